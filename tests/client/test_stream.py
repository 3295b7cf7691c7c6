"""One answer, pulled: the ways to read it, leaving it early, and what is there afterwards."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncchat import (
    APIError,
    AsyncChat,
    Chunk,
    ContentDelta,
    ContentDone,
    Event,
    Finish,
    ReasoningDelta,
    ReasoningDone,
    StreamCut,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    UsageReport,
)
from asyncchat.client.stream import ChatStream
from asyncchat.testing import ChatServer
from tests.client.conftest import MakeClient, assert_nothing_is_left

# ---------------------------------------------------------------------------------- ways of reading


async def test_events_tell_the_answer_as_it_comes(server: ChatServer, client: AsyncChat) -> None:
    server.think("Hm.").say("One two.").call_tool("f", {"a": 1}, id="c1").usage(3, 4)
    async with client.chat.stream("a") as stream:
        seen: list[Event] = [event async for event in stream]
    kinds = [type(event) for event in seen]
    for kind in (ReasoningDelta, ToolCallStarted, ToolCallDelta, ToolCallDone, UsageReport):
        assert kind in kinds
    assert [event.delta for event in seen if isinstance(event, ContentDelta)] == ["One", " two."]
    assert ContentDone("One two.") in seen
    assert ReasoningDone("Hm.") in seen
    assert ToolCallDone(0, "f", '{"a":1}', "c1") in seen
    last = seen[-1]
    assert isinstance(last, Finish)
    assert last.reason == "tool_calls"
    assert last.usage is not None
    assert last.usage.total_tokens == 7
    assert last.timing is not None


async def test_text_is_the_text_of_the_first_choice(server: ChatServer, client: AsyncChat) -> None:
    server.reply().think("Hm.").say("One two.", choice=0).say("Other.", choice=1)
    async with client.chat.stream("a", n=2) as stream:
        assert [piece async for piece in stream.text()] == ["One", " two."]
    assert [choice.message.content for choice in stream.completion.choices] == [
        "One two.",
        "Other.",
    ]


async def test_chunks_are_what_the_server_sent(server: ChatServer, client: AsyncChat) -> None:
    server.say("One two.")
    async with client.chat.stream("a") as stream:
        chunks: list[Chunk] = [chunk async for chunk in stream.chunks()]
    assert [c.choices[0].delta.content for c in chunks if c.choices] == ["", "One", " two.", None]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert stream.completion.text == "One two."


async def test_stream_of_chunks_can_be_read_as_events_or_text(
    server: ChatServer, client: AsyncChat
) -> None:
    for _ in range(2):
        server.say("One two.")
    async with await client.chat.completions.create(messages="a", stream=True) as stream:
        assert ContentDelta("One") in [event async for event in stream.events()]
    async with await client.chat.completions.create(messages="a", stream=True) as stream:
        assert [piece async for piece in stream.text()] == ["One", " two."]


async def test_answer_that_came_whole_in_the_first_read_can_still_be_read_in_any_way(
    server: ChatServer, client: AsyncChat
) -> None:
    body = (
        b'data: {"choices":[{"index":0,"delta":{"content":"One"}}]}\n\n'
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'
    )
    for _ in range(3):
        server.raw(body)
    async with client.chat.stream("a") as stream:
        assert len([chunk async for chunk in stream.chunks()]) == 2
    async with client.chat.stream("a") as stream:
        assert [piece async for piece in stream.text()] == ["One"]
    async with client.chat.stream("a") as stream:
        assert (await stream.final()).text == "One"


async def test_failure_that_came_whole_in_the_first_read_is_met_in_any_way(
    server: ChatServer, client: AsyncChat
) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"One"}}]}\n\n'
    ways: list[Callable[[ChatStream[Any]], Any]] = [
        iter_events,
        iter_chunks,
        iter_text,
        take_final,
    ]
    for way in ways:
        server.raw(event + b'data: {"error":{"message":"No."}}\n\n')
        with pytest.raises(APIError, match=r"No\.") as caught:
            async with client.chat.stream("a") as stream:
                await way(stream)
        assert caught.value.partial is not None
        assert caught.value.partial.text == "One"


async def iter_events(stream: ChatStream[Any]) -> None:
    async for _ in stream:
        pass


async def iter_chunks(stream: ChatStream[Any]) -> None:
    async for _ in stream.chunks():
        pass


async def iter_text(stream: ChatStream[Any]) -> None:
    async for _ in stream.text():
        pass


async def take_final(stream: ChatStream[Any]) -> None:
    await stream.final()


async def test_way_of_reading_cannot_change_once_something_was_read(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("One two three.")
    async with client.chat.stream("a") as stream:
        async for _ in stream:
            break
        with pytest.raises(RuntimeError, match="as events already"):
            stream.chunks()


async def test_reading_goes_on_where_it_was_left(server: ChatServer, client: AsyncChat) -> None:
    server.say("One two three.")
    async with client.chat.stream("a") as stream:
        got: list[str] = []
        for _ in range(3):
            async for piece in stream.text():
                got.append(piece)
                break
        assert got == ["One", " two", " three."]
        assert (await stream.final()).text == "One two three."


async def test_stream_that_has_ended_gives_nothing_more(
    server: ChatServer, client: AsyncChat
) -> None:
    async with client.chat.stream("a") as stream:
        assert [piece async for piece in stream.text()] == ["a"]
        assert [piece async for piece in stream.text()] == []
        assert (await stream.final()).text == "a"
    assert [piece async for piece in stream.text()] == []


async def test_stream_that_was_closed_before_its_end_does_not_read_as_a_short_one(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("One two three.")
    async with client.chat.stream("a") as stream:
        async for _ in stream:
            break
    with pytest.raises(RuntimeError, match="closed"):
        async for _ in stream:
            pass
    with pytest.raises(RuntimeError, match="snapshot"):
        await stream.final()


async def test_final_needs_no_block(server: ChatServer, client: AsyncChat) -> None:
    answer = await client.chat.stream("a").final()
    assert answer.text == "a"
    await assert_nothing_is_left(client, server)


async def test_final_after_some_events_gives_the_whole_answer(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("One two three.")
    async with client.chat.stream("a") as stream:
        async for event in stream:
            if isinstance(event, ContentDelta):
                break
        assert (await stream.final()).text == "One two three."


async def test_stream_may_be_read_without_a_block(server: ChatServer, client: AsyncChat) -> None:
    stream = client.chat.stream("a")
    assert [piece async for piece in stream.text()] == ["a"]
    await assert_nothing_is_left(client, server)


async def test_making_a_stream_sends_nothing(server: ChatServer, client: AsyncChat) -> None:
    stream = client.chat.stream("a")
    assert repr(stream) == "ChatStream(new)"
    del stream
    gc.collect()
    assert client.statistics().attempts == 0


# ---------------------------------------------------------------------------------- what is there


async def test_snapshot_is_the_answer_so_far_at_any_moment(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("One two.").stall(after=3)
    stream = client.chat.stream("a")
    assert stream.snapshot.text == ""
    assert stream.http is None
    async with stream:
        seen = []
        async for event in stream:
            if isinstance(event, ContentDelta):
                seen.append(stream.snapshot.text)
                server.resume()
    assert seen[-1] == "One two."
    assert stream.snapshot is stream.completion


async def test_completion_before_the_end_is_an_error_that_names_the_snapshot(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    async with client.chat.stream("a") as stream:
        with pytest.raises(RuntimeError, match="snapshot"):
            _ = stream.completion
    assert stream.snapshot.text == "One two"[: len(stream.snapshot.text)]


async def test_completion_carries_timing_and_http(server: ChatServer, client: AsyncChat) -> None:
    server.say(["a"] * 5).drip(0.02)
    answer = await client.chat.stream("a").final()
    timing = answer.timing
    assert timing is not None
    assert timing.ttft is not None
    assert timing.itl is not None
    assert timing.ttft < timing.total
    assert 0.01 < timing.itl < 0.1
    assert (timing.attempts, timing.endpoint) == (1, server.base_url)
    assert answer.http is not None
    assert answer.http.request_id == "req_1"


async def test_http_of_a_stream_is_there_once_it_is_open(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("x").headers({"x-mine": "1"})
    async with client.chat.stream("a") as stream:
        assert stream.http is not None
        assert stream.http.headers["x-mine"] == "1"


@pytest.mark.parametrize("way", [iter_events, iter_chunks, iter_text, take_final])
async def test_failure_told_inside_the_stream_names_server_request_and_partial(
    way: Callable[[ChatStream[Any]], Awaitable[None]], server: ChatServer, client: AsyncChat
) -> None:
    server.reply().say("One two.").error_event("No more.", type="overloaded", code="busy")
    with pytest.raises(APIError, match=r"No more\.") as caught:
        async with client.chat.stream("a") as stream:
            await way(stream)
    error = caught.value
    assert (error.code, error.type) == ("busy", "overloaded")
    assert error.partial is not None
    assert error.partial.text == "One two."
    assert error.endpoint == server.base_url
    assert error.request_id == "req_1"
    await assert_nothing_is_left(client, server)


# ------------------------------------------------------------------------------------ leaving early


async def leave_block(client: AsyncChat) -> None:
    async with client.chat.stream("a") as stream:
        async for _ in stream:
            break


async def leave_text(client: AsyncChat) -> None:
    async with client.chat.stream("a") as stream:
        async for _ in stream.text():
            break


async def leave_chunks(client: AsyncChat) -> None:
    async with client.chat.stream("a") as stream:
        async for _ in stream.chunks():
            break


async def leave_by_error(client: AsyncChat) -> None:
    async def fail() -> None:
        async with client.chat.stream("a") as stream:
            async for _ in stream:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def leave_unread(client: AsyncChat) -> None:
    async with client.chat.stream("a"):
        pass


async def leave_created_in_a_block(client: AsyncChat) -> None:
    async with await client.chat.completions.create(messages="a", stream=True) as stream:
        async for _ in stream:
            break


async def leave_created_without_a_block(client: AsyncChat) -> None:
    stream = await client.chat.completions.create(messages="a", stream=True)
    async for _ in stream:
        break


async def leave_created_that_has_no_name(client: AsyncChat) -> None:
    async for _ in await client.chat.completions.create(messages="a", stream=True):
        break


async def leave_created_by_error(client: AsyncChat) -> None:
    async def fail() -> None:
        async for _ in await client.chat.completions.create(messages="a", stream=True):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()


async def close_created(client: AsyncChat) -> None:
    stream = await client.chat.completions.create(messages="a", stream=True)
    await stream.aclose()
    await stream.aclose()


async def leave_text_without_a_block(client: AsyncChat) -> None:
    async for _ in client.chat.stream("a").text():
        break


LEAVING = [
    leave_block,
    leave_text,
    leave_chunks,
    leave_by_error,
    leave_unread,
    leave_created_in_a_block,
    leave_created_without_a_block,
    leave_created_that_has_no_name,
    leave_created_by_error,
    close_created,
    leave_text_without_a_block,
]


@pytest.mark.parametrize("leave", LEAVING)
async def test_leaving_early_stops_an_idle_server_and_frees_the_place_at_once(
    leave: Callable[[AsyncChat], Awaitable[None]], server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    await leave(client)
    assert client.statistics().in_flight == 0
    await server.wait_for_disconnect(0.1)
    await server.wait_for_connections(0, 0.1)
    assert (await client.chat("b")).text == "b"


async def test_stream_still_held_after_break_is_closed_all_the_same(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    stream = await client.chat.completions.create(messages="a", stream=True)
    async for _ in stream:
        break
    await server.wait_for_disconnect(0.1)
    assert repr(stream) == "ChatStream(closed)"


async def test_stream_that_is_dropped_unread_is_closed_with_a_warning(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)

    async def drop() -> None:
        await client.chat.completions.create(messages="a", stream=True)

    with pytest.warns(ResourceWarning, match="async with"):
        await drop()
    assert client.statistics().in_flight == 0
    await server.wait_for_disconnect(0.1)


async def test_leaving_the_block_after_the_end_closes_nothing(
    server: ChatServer, client: AsyncChat
) -> None:
    for _ in range(3):
        async with client.chat.stream("a") as stream:
            await stream.final()
        await asyncio.sleep(0.02)
    assert server.gone == []
    assert {request.connection for request in server.requests} == {1}


async def test_stream_that_fails_leaves_nothing_without_a_block(
    server: ChatServer, client: AsyncChat
) -> None:
    server.cut(after=3)
    with pytest.raises(StreamCut):
        async for _ in await client.chat.completions.create(messages="a", stream=True):
            pass
    await assert_nothing_is_left(client, server)
    await server.wait_for_connections(0, 0.1)


async def test_fast_stream_lets_others_run(server: ChatServer, make_client: MakeClient) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"x"}}]}\n\n'
    server.raw(event * 200_000 + b"data: [DONE]\n\n")
    longest = 0.0
    loop = asyncio.get_running_loop()

    async def watch() -> None:
        nonlocal longest
        while True:
            before = loop.time()
            await asyncio.sleep(0)
            longest = max(longest, loop.time() - before)

    watcher = loop.create_task(watch())
    await make_client().chat.stream("a").final()
    watcher.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watcher
    assert longest < 0.25


# ------------------------------------------------------------------------------------- sent on


async def test_stream_is_sent_on_by_its_bridge_and_says_why_that_ended(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("One two.")
    got: list[str] = []

    async def send(text: str) -> None:
        got.append(text)

    async def receive() -> None:
        await asyncio.Event().wait()

    answer = await client.chat.stream("a").pipe((send, receive))
    assert ("".join(got), answer.ending) == ("One two.", "finished")
    assert "ending" not in answer.model_dump_json()
    await assert_nothing_is_left(client, server)


@pytest.mark.parametrize(
    ("resume", "may"), [(None, False), ("continue", False), ("restart", True)]
)
async def test_stream_knows_whether_what_came_may_be_void(
    client: AsyncChat, resume: Any, may: bool
) -> None:
    assert client.chat.stream("a", resume=resume).may_restart is may
