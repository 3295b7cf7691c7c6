"""Streaming HTTP bodies: read by OpenAI's client and by our own, kept alive, and closed by whoever lets go of them.

Frameworks that send them are run in `tests/docs/test_recipes.py`, with the code of the how-to.
"""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import openai
import pytest
from aiohttp import web

import asyncchat
from asyncchat import APIError, AsyncChat, ChatStream, RateLimitError, SSEBody, sse
from asyncchat.testing import ChatServer, Reply
from tests.bridges.conftest import KEY
from tests.bridges.fakes import start
from tests.bridges.flood import Flood
from tests.bridges.kinds import aiohttp_app


async def read(body: SSEBody) -> str:
    return b"".join([data async for data in body]).decode()


async def test_openai_body_is_the_chunks_then_the_end_mark(
    client: AsyncChat, server: ChatServer
) -> None:
    server.say("One two.")
    *lines, end = (await read(sse(client.chat.stream("Hi.")))).split("\n\n")
    assert end == ""
    assert lines[-1] == "data: [DONE]"
    chunks = [msgspec.json.decode(line.removeprefix("data: ")) for line in lines[:-1]]
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {
        ("chatcmpl-1", "chat.completion.chunk")
    }
    assert '"usage":{' in lines[-2]


@pytest.fixture
async def relay(client: AsyncChat) -> AsyncIterator[str]:
    """A service that passes answers on; gives its base URL."""

    async def chat(request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        body = sse(client.chat.stream(asked["messages"], tools=[]))
        response = web.StreamResponse(headers=body.headers)
        await response.prepare(request)
        async for data in body:
            await response.write(data)
        return response

    app = web.Application()
    app.router.add_post("/v1/chat/completions", chat)
    async with aiohttp_app(app) as url:
        yield f"{url}v1"


MESSAGES: Any = [{"role": "user", "content": "Hi."}]

REPLIES = {
    "text": Reply().say("Grüße, 你好 👋"),
    "reasoning": Reply().think("Hm. So.").say("Four."),
    "calls": Reply().call_tool("weather", {"city": "Oslo"}).call_tool("clock"),
    "choices": Reply().say("Titan.", choice=0).say("Europa.", choice=1),
}


@pytest.mark.parametrize("name", REPLIES)
async def test_openais_client_reads_the_same_through_the_relay_as_from_the_server(
    name: str, relay: str, server: ChatServer
) -> None:
    server.queue(REPLIES[name], times=2)
    read: list[list[Any]] = []
    for url in (server.base_url, relay):
        async with openai.AsyncOpenAI(base_url=url, api_key="none") as peer:
            stream = await peer.chat.completions.create(
                model="m",
                messages=MESSAGES,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk.model_dump(exclude_unset=True) async for chunk in stream]
        read.append([without_ids(chunk) for chunk in chunks])
    direct, relayed = read
    assert relayed == direct


def without_ids(value: Any) -> Any:
    """A value without ids, which differ from answer to answer, and without nulls, which say nothing."""
    if isinstance(value, dict):
        return {k: without_ids(v) for k, v in value.items() if k != "id" and v is not None}
    return [without_ids(one) for one in value] if isinstance(value, list) else value


async def test_our_client_reads_the_same_through_the_relay(relay: str, server: ChatServer) -> None:
    for reply in REPLIES.values():
        server.queue(reply, times=2)
        answers = []
        for url in (server.base_url, relay):
            async with AsyncChat(url, model="m") as peer:
                answers.append(await peer.chat.stream("Hi.", tools=[]).final())
        assert answers[0].text == answers[1].text
        assert answers[0].message.reasoning == answers[1].message.reasoning
        assert answers[0].usage == answers[1].usage
        assert answers[0].finish_reason == answers[1].finish_reason


async def test_failure_upstream_is_an_error_of_its_kind_at_the_reader(
    relay: str, server: ChatServer
) -> None:
    server.queue(Reply().say("Half").error_event(f"{KEY} is slow", code="rate_limit_exceeded"))
    async with AsyncChat(relay, model="m", max_retries=0) as peer:
        with pytest.raises(RateLimitError) as caught:
            await peer.chat.stream("Hi.").final()
        assert caught.value.message == "The model is busy. Try again later."
        assert caught.value.partial is not None
        assert caught.value.partial.text == "Half"
        server.cut(after=3)
        with pytest.raises(APIError) as cut:
            await peer.chat.stream("Hi.").final()
        assert cut.value.code == "stream_cut"
    server.fail(500, f"{KEY} at {server.base_url}")
    async with openai.AsyncOpenAI(base_url=relay, api_key="none", max_retries=0) as other:
        stream = await other.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="The model cannot be asked at the moment"):
            _ = [chunk async for chunk in stream]


async def test_silence_is_filled_with_comments(client: AsyncChat, server: ChatServer) -> None:
    server.queue(Reply().say("One.").stall(after=0))
    body = sse(client.chat.stream("Hi."), keepalive=0.001)
    got = [await anext(body) for _ in range(3)]
    assert got == [b": keep-alive\n\n"] * 3
    await server.wait_for_requests(1)
    server.resume()
    rest = await read(body)
    assert '"content":"One."' in rest
    assert rest.endswith("data: [DONE]\n\n")


async def test_ui_body_begins_before_the_model_does(client: AsyncChat, server: ChatServer) -> None:
    server.stall(after=0)
    body = sse(client.chat.stream("Hi."), "ui")
    assert (await anext(body)).startswith(b'data: {"type":"start"}')
    body.close()


def test_headers_are_those_of_the_format(client: AsyncChat) -> None:
    common = {
        "content-type": "text/event-stream; charset=utf-8",
        "cache-control": "no-cache",
        "x-accel-buffering": "no",
    }
    ui = {"x-vercel-ai-ui-message-stream": "v1"}
    assert sse(client.chat.stream("Hi.")).headers == common
    assert sse(client.chat.stream("Hi."), "ui").headers == {**common, **ui}


async def test_error_and_answer_are_there_afterwards(
    client: AsyncChat, server: ChatServer
) -> None:
    server.say("One.")
    body = sse(client.chat.stream("Hi."))
    await read(body)
    assert (body.completion.text, body.error) == ("One.", None)
    server.cut(after=2)
    body = sse(client.chat.stream("Hi."))
    await read(body)
    assert type(body.error) is asyncchat.StreamCut


async def test_event_that_a_format_has_no_word_for_makes_no_empty_piece(
    client: AsyncChat, server: ChatServer
) -> None:
    """Which would end a chunked body."""
    server.queue(Reply().say("One.").usage().stall(after=4))
    body = sse(client.chat.stream("Hi."), "ui", keepalive=0.05)
    got = [await anext(body)]
    while got[-1] != b": keep-alive\n\n":
        got.append(await anext(body))
    assert all(got)
    body.close()


async def test_mistake_of_the_caller_is_raised_after_the_reader_was_told(
    client: AsyncChat, server: ChatServer
) -> None:
    server.stall(after=3)
    async with client.chat.stream("Hi.") as stream:
        body = sse(stream)
    assert b'"error"' in await anext(body)
    with pytest.raises(RuntimeError, match="closed before its end"):
        await anext(body)


# ------------------------------------------------------------------------------------ who lets go


@pytest.fixture(params=["before the first token", "in mid-stream"])
async def body(request: pytest.FixtureRequest, client: AsyncChat, server: ChatServer) -> SSEBody:
    """A body whose server has gone silent."""
    before = request.param == "before the first token"
    server.queue(Reply().say("One two.").stall(after=0 if before else 2))
    body = sse(client.chat.stream("Hi."), keepalive=0.01)
    seen = b""
    while not seen.endswith(b"keep-alive\n\n") or not (before or b"One" in seen):
        seen += await anext(body)
    await server.wait_for_requests(1)
    return body


async def test_body_that_is_closed_closes_the_request(body: SSEBody, server: ChatServer) -> None:
    await body.aclose()
    await server.wait_for_disconnect()
    assert [data async for data in body] == []


async def test_body_that_is_left_by_its_block_closes_the_request(
    body: SSEBody, server: ChatServer
) -> None:
    async with body:
        pass
    await server.wait_for_disconnect()


async def test_body_whose_reading_is_cancelled_closes_the_request(
    body: SSEBody, server: ChatServer
) -> None:
    reading = start(read(body))
    await asyncio.sleep(0)
    reading.cancel()
    await server.wait_for_disconnect()
    with pytest.raises(asyncio.CancelledError):
        await reading


async def test_body_that_is_dropped_closes_the_request(
    client: AsyncChat, server: ChatServer
) -> None:
    server.queue(Reply().say("One two.").stall(after=2))
    body = sse(client.chat.stream("Hi."))
    await anext(body)
    del body
    gc.collect()
    await server.wait_for_disconnect()


async def test_keepalive_finds_out_about_a_reader_whom_the_server_does_not_watch(
    client: AsyncChat, server: ChatServer
) -> None:
    """aiohttp's, unless told to: it notices only when something is written."""

    async def chat(request: web.Request) -> web.StreamResponse:
        async with sse(client.chat.stream("Hi."), keepalive=0.01) as body:
            response = web.StreamResponse(headers=body.headers)
            await response.prepare(request)
            async for data in body:
                await response.write(data)
        return response

    app = web.Application()
    app.router.add_get("/", chat)
    server.stall(after=0)
    async with aiohttp_app(app) as url, aiohttp.ClientSession() as session:
        async with session.get(url):
            await server.wait_for_requests(1)
        await server.wait_for_disconnect()


async def test_body_that_was_never_read_asks_nothing(
    client: AsyncChat, server: ChatServer
) -> None:
    sse(client.chat.stream("Hi."))
    gc.collect()
    assert server.requests == []


async def test_reader_who_takes_nothing_slows_the_server(flood: Flood) -> None:
    body = sse(flood.stream())
    await anext(body)
    await flood.wait_until_stuck()
    assert flood.sent < flood.size / 2
    body.close()
    await flood.wait_until_left()


def test_body_outlives_its_loop_without_a_word() -> None:
    async def begin() -> SSEBody:
        async with ChatServer() as server, AsyncChat(server.base_url, model="m") as client:
            server.stall(after=2)
            body = sse(client.chat.stream("Hi."))
            await anext(body)
            return body

    body: Any = asyncio.run(begin())
    assert repr(body) == "SSEBody(OpenAIChunks)"
    del body
    gc.collect()


def test_unknown_format_and_an_answer_that_may_begin_anew_are_refused(client: AsyncChat) -> None:
    wrong: Any = "text"
    with pytest.raises(ValueError, match="one of openai, ui, agui"):
        sse(client.chat.stream("Hi."), wrong)
    with pytest.raises(ValueError, match="resume='restart'"):
        sse(client.chat.stream("Hi.", resume="restart"))
    stream: ChatStream[Any] = client.chat.stream("Hi.")
    with pytest.raises(ValueError, match="thread_id"):
        sse(stream, "agui")
