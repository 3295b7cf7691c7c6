"""Answers that broke off in the middle, taken up again: begun anew, or continued where they stood."""

import asyncio
from typing import Any

import pytest

from asyncchat import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AsyncChatError,
    BadRequestError,
    ContentDelta,
    Event,
    Finish,
    Limits,
    PoolClosed,
    ProtocolError,
    Resume,
    Resumed,
    RetryPolicy,
    StreamCut,
    StreamStalled,
    Timeout,
    ToolCallDone,
    UsageReport,
)
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import start
from tests.endpoints.conftest import Clock, MakeClient, MakeServers, at, counts, until

both_modes = pytest.mark.parametrize("mode", ["restart", "continue"])
FIRST = "One two"
"""What has come of an answer that is cut after three events."""

REST = {"restart": "One two three.", "continue": " three."}
"""What a server says that is asked again."""


@pytest.fixture
async def server(servers: MakeServers) -> ChatServer:
    [made] = await servers(1)
    return made


def said(events: list[Event]) -> str:
    return "".join(event.delta for event in events if isinstance(event, ContentDelta))


def continued(server: ChatServer, number: int = 1) -> dict[str, Any]:
    """The last message of a request: what it asks to go on from, if it does."""
    return server.requests[number].messages[-1]


async def error_of(stream: Any) -> AsyncChatError:
    with pytest.raises(AsyncChatError) as caught:
        await stream.final()
    return caught.value


def partial_of(error: AsyncChatError) -> str:
    assert error.partial is not None
    return error.partial.text


# ------------------------------------------------------------------------------------ begun anew


async def test_restarted_answer_is_asked_for_anew_and_what_had_come_is_void(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.say("Four five.")
    async with client.chat.stream("a", resume="restart") as stream:
        events = [event async for event in stream]
    [resumed] = [event for event in events if isinstance(event, Resumed)]
    place = events.index(resumed)
    assert resumed.mode == "restart"
    assert said(events[:place]) == FIRST
    assert said(events[place:]) == "Four five."
    assert stream.completion.text == "Four five."
    assert isinstance(events[-1], Finish)
    assert server.requests[0].messages == server.requests[1].messages
    assert server.requests[0].body == server.requests[1].body


async def test_restarted_answer_has_no_text_iterator(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    async with client.chat.stream("a", resume="restart") as stream:
        with pytest.raises(ValueError, match=r"text\(\)"):
            stream.text()


@both_modes
async def test_resumed_answer_has_no_chunks(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    async with client.chat.stream("a", resume=mode) as stream:
        with pytest.raises(ValueError, match="chunks"):
            stream.chunks()
    asked = counts(server)
    with pytest.raises(ValueError, match="chunks"):
        await client.chat.completions.create(messages="a", stream=True, resume=mode)
    assert counts(server) == asked


async def test_restarted_answer_may_have_several_choices_and_calls(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.reply().call_tool("f", {"city": "Rome"}).cut(after=2)
    server.call_tool("f", {"city": "Rome"})
    async with client.chat.stream("a", resume="restart") as stream:
        events = [event async for event in stream]
    assert [event.arguments for event in events if isinstance(event, ToolCallDone)] == [
        '{"city":"Rome"}'
    ]
    calls = stream.completion.choices[0].message.tool_calls
    assert calls is not None
    assert [call.function.arguments for call in calls] == ['{"city":"Rome"}']
    server.reply().say("x y").cut(after=4)
    answer = await client.chat.stream("b", n=2, resume="restart").final()
    assert [choice.message.content for choice in answer.choices] == ["b", "b"]


# -------------------------------------------------------------------------------------- continued


async def test_continued_answer_goes_on_where_it_stood(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.say(" three four.")
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}]
    async with client.chat.stream(messages, temperature=0, resume="continue") as stream:
        events = [event async for event in stream]
    [resumed] = [event for event in events if isinstance(event, Resumed)]
    place = events.index(resumed)
    assert resumed.mode == "continue"
    assert said(events[:place]) == FIRST
    assert said(events[place:]) == " three four."
    assert stream.completion.text == "One two three four."
    first, second = server.requests
    assert second.messages == [*first.messages, {"role": "assistant", "content": FIRST}]
    assert {**first.body, "messages": []} == {**second.body, "messages": []}
    assert len(messages) == 2  # the caller's own list is as it was


async def test_text_of_a_continued_answer_is_whole(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.say(" three four.")
    async with client.chat.stream("a", resume="continue") as stream:
        pieces = [piece async for piece in stream.text()]
    assert pieces == ["One", " two", " three", " four."]


@pytest.mark.parametrize("iterated", [True, False])
async def test_fields_and_prefix_go_into_the_continued_request_alone(
    iterated: bool, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.say(REST["continue"])
    resume = Resume(
        mode="continue",
        fields={"continue_final_message": True, "add_generation_prompt": False},
        prefix={"prefix": True},
    )
    stream = client.chat.stream("a", resume=resume)
    if iterated:
        async with stream:
            async for _ in stream:
                pass
    else:
        await stream.final()
    first, second = server.requests
    assert "continue_final_message" not in first.body
    assert second.body["continue_final_message"] is True
    assert second.body["add_generation_prompt"] is False
    assert continued(server) == {"role": "assistant", "content": FIRST, "prefix": True}


@pytest.mark.parametrize(
    "reply",
    [
        pytest.param(Reply().call_tool("f", {"city": "Rome"}).cut(after=3), id="in a call"),
        pytest.param(
            Reply().say("One").call_tool("f", {"city": "Rome"}).cut(after=4), id="text and a call"
        ),
        pytest.param(Reply().refuse("I will not.").cut(after=3), id="refusal"),
        pytest.param(Reply().think("Let me see now.").cut(after=3), id="only thought"),
    ],
)
async def test_what_is_not_text_alone_is_not_continued(
    reply: Reply, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.queue(reply)
    error = await error_of(client.chat.stream("a", resume="continue"))
    assert isinstance(error, StreamCut)
    assert error.partial is not None
    assert counts(server) == [1]


async def test_several_choices_are_not_continued(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.reply().say("One two three four.").cut(after=5)
    error = await error_of(client.chat.stream("a", n=2, resume="continue"))
    assert isinstance(error, StreamCut)
    assert error.partial is not None
    assert len(error.partial.choices) == 2
    assert counts(server) == [1]


async def test_text_after_a_thought_is_continued_without_the_thought(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.reply().think("Hm.").say("One two three.").cut(after=4)
    server.say(REST["continue"])
    answer = await client.chat.stream("a", resume="continue").final()
    assert continued(server) == {"role": "assistant", "content": FIRST}
    assert answer.text == "One two three."
    assert answer.choices[0].message.reasoning_content == "Hm."


# ---------------------------------------------------------------------------- what is taken up again


@both_modes
@pytest.mark.parametrize("iterated", [True, False])
@pytest.mark.parametrize("how", ["cut", "reset", "no end mark", "stalled", "error that may pass"])
async def test_everything_that_may_pass_is_taken_up(
    how: str, iterated: bool, mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, timeout=Timeout(idle=0.05))
    match how:
        case "cut":
            server.cut(after=3)
        case "reset":
            server.reset(after=3)
        case "no end mark":
            server.reply().say(FIRST).finish(None).without_done()
        case "stalled":
            server.stall(after=3)
        case _:
            server.reply().say(FIRST).error_event("Busy.", type="overloaded_error")
    server.say(REST[mode])
    stream = client.chat.stream("a", resume=mode)
    if iterated:
        async with stream:
            events = [event async for event in stream]
        assert len([event for event in events if isinstance(event, Resumed)]) == 1
    answer = stream.completion if iterated else await stream.final()
    assert answer.text == "One two three."
    assert answer.finish_reason == "stop"
    assert counts(server) == [2]
    assert client.statistics().in_flight == 0


@both_modes
@pytest.mark.parametrize("how", ["error for good", "no JSON", "too large"])
async def test_nothing_is_taken_up_that_would_break_off_again(
    how: str, mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, limits=Limits(max_event_bytes=5000))
    match how:
        case "error for good":
            error = Reply().say(FIRST).error_event("Bad.", type="invalid_request_error", code="x")
            server.queue(error)
        case "no JSON":
            server.reply().say(FIRST).event(b"{nonsense")
        case _:
            server.reply().say(FIRST).event(b"x" * 20_000)
    caught = await error_of(client.chat.stream("a", resume=mode))
    assert isinstance(caught, APIError)
    assert isinstance(caught, ProtocolError) is (how != "error for good")
    assert partial_of(caught) == FIRST
    assert counts(server) == [1]


@both_modes
async def test_answer_whose_connection_breaks_after_its_end_is_whole(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.reset(after=10)  # after the finish_reason, before `[DONE]`
    answer = await client.chat.stream("a", resume=mode).final()
    assert answer.finish_reason == "stop"
    assert counts(server) == [1]


async def test_nothing_is_taken_up_that_did_not_ask_for_it(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    assert isinstance(await error_of(client.chat.stream("a")), StreamCut)
    assert counts(server) == [1]


@both_modes
async def test_what_fails_before_the_first_event_is_a_retry_and_not_taken_up(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    clock = Clock(client)
    server.fail(503)
    async with client.chat.stream("a", resume=mode) as stream:
        events = [event async for event in stream]
    assert not [event for event in events if isinstance(event, Resumed)]
    assert len(clock.waits) == 1
    assert stream.completion.timing is not None
    assert (stream.completion.timing.attempts, stream.completion.timing.resumed) == (2, 0)


@pytest.mark.parametrize("value", ["again", True, {"mode": "restart"}, 1])
async def test_other_values_are_refused(
    value: Any, server: ChatServer, make_client: MakeClient
) -> None:
    with pytest.raises(ValueError, match="resume"):
        make_client(server).chat.stream("a", resume=value)


@both_modes
async def test_plain_answers_are_not_taken_up_and_asking_for_it_is_refused(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    with pytest.raises(ValueError, match="resume"):
        await client.chat("a", resume=mode)
    assert (await client.chat("a", resume=None)).text == "a"
    assert "resume" not in server.requests[0].body


# ------------------------------------------------------------------------------------ how often


@both_modes
async def test_cut_again_it_is_taken_up_again(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    if mode == "continue":
        server.reply().say(" three four five.").cut(after=3)
        server.say(" five six.")
    else:
        server.cut(after=5)
        server.say("One two three four five six.")
    async with client.chat.stream("a", resume=mode) as stream:
        events = [event async for event in stream]
    assert len([event for event in events if isinstance(event, Resumed)]) == 2
    assert stream.completion.text == "One two three four five six."
    if mode == "continue":
        assert said(events) == "One two three four five six."
        assert continued(server, 2) == {"role": "assistant", "content": "One two three four"}
        assert len(server.requests[2].messages) == 2
    assert stream.completion.timing is not None
    assert (stream.completion.timing.attempts, stream.completion.timing.resumed) == (3, 2)


@both_modes
@pytest.mark.parametrize("most", [0, 1, 3])
async def test_answer_is_taken_up_as_often_as_was_allowed(
    most: int, mode: Any, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.otherwise(Reply().say("One two three.").cut(after=3))
    stream = client.chat.stream("a", resume=Resume(mode=mode, most=most))
    error = await error_of(stream)
    assert isinstance(error, StreamCut)
    assert counts(server) == [1 + most]
    assert partial_of(error) == FIRST * (1 + most if mode == "continue" else 1)


@both_modes
async def test_answer_is_taken_up_twice_where_nothing_is_said(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=0)
    server.otherwise(Reply().say("One two three.").cut(after=3))
    await error_of(client.chat.stream("a", resume=mode))
    assert counts(server) == [3]


@pytest.mark.parametrize("iterated", [True, False])
async def test_failure_right_behind_the_first_event_of_what_was_taken_up_loses_and_doubles_nothing(
    iterated: bool, server: ChatServer, make_client: MakeClient
) -> None:
    """Text and failure in one read: the text belongs to the answer, and the next request has to go on from it."""
    client = make_client(server)
    Clock(client)
    server.cut(after=3)
    delta = b'data: {"choices":[{"index":0,"delta":{"content":" three"}}]}\n\n'
    failure = b'data: {"error":{"message":"Busy.","type":"overloaded_error"}}\n\n'
    server.raw(delta + failure)
    server.say(" four.")
    stream = client.chat.stream("a", resume="continue")
    if iterated:
        async with stream:
            assert said([event async for event in stream]) == "One two three four."
    else:
        await stream.final()
    assert stream.completion.text == "One two three four."
    assert continued(server, 2) == {"role": "assistant", "content": "One two three"}


# ---------------------------------------------------------------------------------------- bounds


@both_modes
async def test_total_bound_spans_what_was_taken_up(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, timeout=Timeout(idle=0.25, total=0.45))
    server.stall(after=3)
    server.reply().say(REST[mode]).stall(after=2)  # for less than `idle`, until `total` strikes
    error = await error_of(client.chat.stream("a", resume=mode))
    assert isinstance(error, StreamStalled)
    assert error.phase == "total"
    assert counts(server) == [2]  # the bound ends it for good
    assert partial_of(error) == ("One two three." if mode == "continue" else "One")


@both_modes
async def test_total_bound_that_strikes_while_it_is_reopened_is_the_error_with_the_answer_so_far(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, timeout=Timeout(total=0.15))
    server.cut(after=3)
    server.stall(after=0)
    error = await error_of(client.chat.stream("a", resume=mode))
    assert isinstance(error, APITimeoutError)
    assert error.phase == "total"
    assert partial_of(error) == FIRST
    assert client.statistics().in_flight == 0
    await server.wait_for_disconnect(0.5)


@both_modes
async def test_timing_is_that_of_the_whole_request(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, timeout=Timeout(idle=0.2))
    server.stall(after=3)
    server.say(REST[mode])
    answer = await client.chat.stream("a", resume=mode).final()
    timing = answer.timing
    assert timing is not None
    assert (timing.attempts, timing.resumed) == (2, 1)
    assert timing.total >= 0.2
    assert timing.ttft is not None
    # The first word that counts: that of the new answer where the old one is void.
    assert (timing.ttft >= 0.2) is (mode == "restart")
    assert timing.ttft <= timing.total


async def test_time_between_events_counts_all_events_of_a_continued_answer(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, timeout=Timeout(idle=0.1))
    server.reply().say(["a "] * 10).stall(after=11)
    server.say(["b "] * 10)
    answer = await client.chat.stream("a", resume="continue").final()
    assert answer.timing is not None
    assert answer.timing.itl is not None
    assert 0.1 / 25 <= answer.timing.itl <= 0.1 / 10  # the silence, shared by some twenty events


@both_modes
async def test_retries_of_the_reopening_are_those_of_any_request(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=2)
    clock = Clock(client, rand=0.5)
    server.cut(after=3)
    server.fail(503, times=2)
    server.say(REST[mode])
    answer = await client.chat.stream("a", resume=mode).final()
    assert answer.text == "One two three."
    assert clock.waits == [0.25, 0.5]
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.resumed) == (4, 1)


@both_modes
async def test_request_that_is_taken_up_is_another_one_to_the_server(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    """The same idempotency key would bring back the answer that broke off, or an error."""
    client = make_client(server)
    server.cut(after=3)
    server.say(REST[mode])
    await client.chat.stream("a", resume=mode).final()
    first, second = (request.headers["Idempotency-Key"] for request in server.requests)
    assert first != second


# --------------------------------------------------------------------------- what has come, at any time


@both_modes
async def test_snapshot_is_what_the_events_have_said_at_every_moment(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=4)
    server.reply().say("Four five six.").cut(after=3)
    server.say(" seven eight.")
    text = ""
    seen = 0
    async with client.chat.stream("a", resume=mode) as stream:
        async for event in stream:
            match event:
                case Resumed(mode="restart"):
                    text = ""
                case ContentDelta(delta=delta):
                    text += delta
                case _:
                    pass
            snapshot = stream.snapshot.text
            # One read may bring several events; what is not given out yet may be in it, nothing else.
            assert snapshot.startswith(text) or isinstance(event, Resumed)
            seen += 1
        assert stream.snapshot.text == text
    assert stream.completion.text == text
    assert text == (
        " seven eight." if mode == "restart" else "One two threeFour five seven eight."
    )
    assert seen > 8


@both_modes
async def test_snapshot_while_it_is_reopened_is_what_had_come(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.reply().say(REST[mode]).stall(after=0)
    async with client.chat.stream("a", resume=mode) as stream:
        reading = start(stream.final())
        await server.wait_for_requests(2)
        assert stream.snapshot.text == FIRST
        server.resume()
        await reading
    assert stream.snapshot.text == "One two three."


# -------------------------------------------------------------------------------- what cannot be mended


@both_modes
async def test_refusal_of_the_reopening_is_the_error_with_the_answer_so_far(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.fail(400, "no prefill here")
    error = await error_of(client.chat.stream("a", resume=mode))
    assert isinstance(error, BadRequestError)
    assert "no prefill here" in str(error)
    assert partial_of(error) == FIRST
    assert client.statistics().in_flight == 0


@both_modes
async def test_server_that_is_gone_is_the_error_with_the_answer_so_far(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=1)
    clock = Clock(client)
    server.stall(after=3)
    async with client.chat.stream("a", resume=mode) as stream:
        task = start(error_of(stream))
        await until(lambda: stream.snapshot.text == FIRST)
        await server.close()
        error = await task
    assert isinstance(error, APIConnectionError)
    assert partial_of(error) == FIRST
    assert len(clock.waits) == 1
    assert client.statistics().in_flight == 0


async def test_second_cut_carries_what_came_of_both(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.reply().say(" three four.").cut(after=2)
    server.fail(400)
    error = await error_of(client.chat.stream("a", resume="continue"))
    assert partial_of(error) == "One two three"


@both_modes
async def test_cancelled_while_it_is_reopened_nothing_is_left(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.stall(after=0)
    task = start(client.chat.stream("a", resume=mode).final())
    await server.wait_for_requests(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_for_disconnect(0.5)
    assert client.statistics().in_flight == 0


@both_modes
async def test_cancelled_at_any_turn_nothing_is_left(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    for turns in range(0, 160, 2):
        server._queue.clear()
        server.cut(after=3)
        server.say(REST[mode])
        task = start(client.chat.stream("a", resume=mode).final())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert (turns, client.statistics().in_flight) == (turns, 0)
        await server.wait_until_idle(0.5)
    server._queue.clear()
    assert (await client.chat("b")).text == "b"


@both_modes
async def test_closed_while_it_is_reopened_the_reader_is_told(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.stall(after=0)
    task = start(error_of(client.chat.stream("a", resume=mode)))
    await server.wait_for_requests(2)
    await client.close()
    async with asyncio.timeout(0.5):
        error = await task
    assert isinstance(error, PoolClosed)
    assert partial_of(error) == FIRST


async def test_closed_while_it_is_read_nothing_is_taken_up(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.stall(after=3)
    async with client.chat.stream("a", resume="restart") as stream:
        await client.close()
        with pytest.raises(PoolClosed):
            await stream.final()
    assert counts(server) == [1]


@both_modes
async def test_leaving_the_block_closes_what_was_taken_up(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.cut(after=3)
    server.reply().say("Four five six.").stall(after=3)
    async with client.chat.stream("a", resume=mode) as stream:
        async for event in stream:
            if isinstance(event, ContentDelta) and event.delta == " five":
                assert client.statistics().in_flight == 1
                break
    assert client.statistics().in_flight == 0
    await server.wait_for_disconnect(0.5)


# ------------------------------------------------------------------------------ usage, endpoints


@both_modes
async def test_usage_is_that_of_the_last_request(
    mode: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    server.reply().say("One two three.").usage(7, 7).cut(after=3)
    server.reply().say(REST[mode]).usage(10, 3)
    async with client.chat.stream("a", resume=mode) as stream:
        events = [event async for event in stream]
    reports = [event.usage.total_tokens for event in events if isinstance(event, UsageReport)]
    assert reports == [13]
    assert stream.completion.usage is not None
    assert stream.completion.usage.prompt_tokens == 10
    assert stream.completion.usage.completion_tokens == 3


@both_modes
async def test_answer_is_taken_up_elsewhere_where_there_is_an_elsewhere(
    mode: str, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, "key-a", model="ma", weight=50), at(b, "key-b", model="mb"))
    a.cut(after=3)
    b.say(REST[mode])
    answer = await client.chat.stream("a", resume=mode).final()
    assert answer.text == "One two three."
    assert counts(a, b) == [1, 1]
    [request] = b.requests
    assert request.body["model"] == "mb"
    assert request.headers["Authorization"] == "Bearer key-b"
    assert answer.timing is not None
    assert answer.timing.endpoint == b.base_url
    assert answer.http is not None
    assert answer.http.request_id == "req_1"


async def test_answer_is_taken_up_at_its_own_server_where_the_others_are_of_another_model(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, model="large"), at(b, model="small"))
    a.cut(after=3)
    a.say(REST["continue"])
    answer = await client.chat.stream("a", model="large", resume="continue").final()
    assert answer.text == "One two three."
    assert counts(a, b) == [2, 0]


@both_modes
async def test_cut_is_held_against_the_server_and_its_breaker_opens(
    mode: str, servers: MakeServers, make_client: MakeClient
) -> None:
    """Answers that begin are no sign of health where none of them ends."""
    a, b = await servers(2)
    client = make_client(a, b)
    Clock(client)
    a.otherwise(Reply().say("One two three.").cut(after=3))
    b.otherwise(Reply().say(REST[mode]))
    for _ in range(30):
        await client.chat.stream("a", resume=mode).final()
    assert client.statistics().endpoints[0].failed == len(a.requests)
    assert len(a.requests) <= 10


async def test_place_is_passed_on_while_it_is_reopened(
    servers: MakeServers, make_client: MakeClient
) -> None:
    """A request that comes back stands first, so one place is enough for all of it."""
    a, b = await servers(2)
    client = make_client(at(a, in_flight=1), at(b, in_flight=1))
    for server in (a, b):
        server.otherwise(Reply().say("One two three.").cut(after=3))
    tasks = [
        start(error_of(client.chat.stream(str(number), resume="restart"))) for number in range(10)
    ]
    async with asyncio.timeout(10):
        for task in tasks:
            assert isinstance(await task, StreamCut)
    assert sum(counts(a, b)) == 30
    assert client.statistics().in_flight == 0


async def test_hedge_of_the_first_attempt_and_a_resumption_go_together(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=RetryPolicy(hedge=0.01))
    a.stall(after=0)
    b.cut(after=3)
    b.say(REST["continue"])
    a.say(REST["continue"])
    task = start(client.chat.stream("a", resume="continue").final())
    answer = await task
    assert answer.text == "One two three."
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.resumed) == (3, 1)
    await until(lambda: client.statistics().in_flight == 0)
