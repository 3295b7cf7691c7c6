"""One body under its bounds: silence before and after the headers, inside the answer, and on the whole; and lost connections.

Bounds are short here because they are what is tested; each test ends by its bound, long before the outer one.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from asyncchat import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AsyncChat,
    Completion,
    ContentDelta,
    PoolClosed,
    StreamCut,
    StreamStalled,
    Timeout,
)
from asyncchat.testing import ChatServer
from tests.client.conftest import MakeClient, start

SHORT = 0.1
SHORTER = 0.05  # where nothing comes that could be in time
LONGER = 0.3  # where something comes that has to be in time, also on a busy machine
SOON = 2.0  # an outer bound: a test that needs it has failed

Asking = Callable[[AsyncChat], Coroutine[Any, Any, Completion]]


async def plain(client: AsyncChat) -> Completion:
    return await client.chat("a")


async def final(client: AsyncChat) -> Completion:
    return await client.chat.stream("a").final()


async def events(client: AsyncChat) -> Completion:
    async with client.chat.stream("a") as stream:
        async for _ in stream:
            pass
    return stream.completion


async def chunks(client: AsyncChat) -> Completion:
    stream = await client.chat.completions.create(messages="a", stream=True)
    async for _ in stream:
        pass
    return stream.completion


every_way = pytest.mark.parametrize("ask", [plain, final, events, chunks])
streamed = pytest.mark.parametrize("ask", [final, events, chunks])


async def next_of(pieces: AsyncIterator[str]) -> str:
    return await anext(pieces)


async def read_slowly(
    client: AsyncChat, got: list[str], pause: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    async with client.chat.stream("a") as stream:
        async for piece in stream.text():
            got.append(piece)
            await pause()


async def late(ask: Asking, client: AsyncChat) -> APITimeoutError:
    """Return the timeout that a request ends with."""
    with pytest.raises(APITimeoutError) as caught:
        async with asyncio.timeout(SOON):
            await ask(client)
    assert client.statistics().in_flight == 0
    return caught.value


@pytest.fixture
def deaf_port() -> Iterator[int]:
    """A port that listens, and whose line of connections to accept is full."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listening.getsockname())
        yield listening.getsockname()[1]


# ------------------------------------------------------------------------------------ the four bounds


@every_way
async def test_server_that_accepts_no_connection_is_given_up_at_connect(
    ask: Asking, deaf_port: int, make_client: MakeClient
) -> None:
    client = make_client(f"http://127.0.0.1:{deaf_port}/v1", timeout=Timeout(connect=SHORTER))
    error = await late(ask, client)
    assert error.phase == "connect"
    assert error.retryable
    assert "no connection within 0.05 s" in str(error)
    assert "Timeout(connect=...)" in str(error)


async def test_host_whose_name_takes_for_ever_to_look_up_is_given_up_at_connect(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def look_up(*_: Any, **__: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr("aiohttp.connector.DefaultResolver.resolve", look_up)
    client = make_client("http://server.example/v1", timeout=Timeout(connect=SHORTER))
    assert (await late(plain, client)).phase == "connect"


@every_way
async def test_server_silent_before_its_headers_is_given_up_at_first(
    ask: Asking, server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after=0)
    client = make_client(timeout=Timeout(first=SHORTER))
    error = await late(ask, client)
    assert error.phase == "first"
    assert error.retryable
    assert not isinstance(error, StreamStalled)
    assert "Timeout(first=...)" in str(error)
    await server.wait_for_disconnect(0.1)


@streamed
async def test_server_silent_after_its_headers_is_given_up_at_first(
    ask: Asking, server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after="headers")
    error = await late(ask, make_client(timeout=Timeout(first=SHORTER)))
    assert error.phase == "first"
    assert error.retryable
    assert not isinstance(error, StreamStalled)
    await server.wait_for_disconnect(0.1)


async def test_first_is_one_bound_for_headers_and_first_event_together(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say("a").delay(0.3).stall(after="headers")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert (await late(final, make_client(timeout=Timeout(first=0.4)))).phase == "first"
    assert loop.time() - begun < 0.65


@streamed
async def test_server_silent_inside_its_answer_stalls_at_idle_and_what_came_is_kept(
    ask: Asking, server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after=4)
    error = await late(ask, make_client(timeout=Timeout(idle=SHORT)))
    assert isinstance(error, StreamStalled)
    assert error.phase == "idle"
    assert not error.retryable
    assert error.partial is not None
    assert error.partial.text == "One two three"
    assert "Timeout(idle=...)" in str(error)
    await server.wait_for_disconnect(0.1)


async def test_plain_answer_that_stalls_inside_its_body_ends_at_idle(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after=1)
    assert (await late(plain, make_client(timeout=Timeout(idle=SHORT)))).phase == "idle"


@every_way
async def test_total_ends_a_server_that_is_silent_before_its_headers(
    ask: Asking, server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after=0)
    error = await late(ask, make_client(timeout=SHORTER, max_retries=5))
    assert error.phase == "total"
    assert not error.retryable
    assert len(server.requests) == 1


@streamed
async def test_total_ends_a_server_that_only_pings(
    ask: Asking, server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after="headers").ping(every=0.02)
    error = await late(ask, make_client(timeout=Timeout(total=0.3, first=0.2)))
    assert error.phase == "total"
    assert not isinstance(error, StreamStalled)


@streamed
async def test_total_ends_a_stream_that_only_pings_after_its_first_events(
    ask: Asking, server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after=3).ping(every=0.02)
    error = await late(ask, make_client(timeout=Timeout(total=0.3, idle=0.2)))
    assert isinstance(error, StreamStalled)
    assert error.phase == "total"
    assert error.partial is not None
    assert error.partial.text == "One two"


async def test_total_ends_a_stream_without_end(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say(["x"] * 10_000).drip(0.001)
    assert (await late(events, make_client(timeout=0.2))).phase == "total"


async def test_total_ends_a_stream_whose_reader_is_always_behind(
    server: ChatServer, make_client: MakeClient
) -> None:
    event = b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"x" * 10_000)
    server.raw(*[event] * 1000)

    async def behind(client: AsyncChat) -> Completion:
        async with client.chat.stream("a") as stream:
            async for _ in stream:
                await asyncio.sleep(0.002)
        return stream.completion

    assert (await late(behind, make_client(timeout=0.2))).phase == "total"


@every_way
async def test_no_bound_is_no_bound(
    ask: Asking, server: ChatServer, make_client: MakeClient
) -> None:
    bounds = Timeout(connect=None, first=None, idle=None, total=None)
    server.say("One two.").delay(0.02).drip(0.002)
    assert (await ask(make_client(timeout=bounds))).text == "One two."


async def test_bounds_of_a_call_win_over_the_clients(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after=3)
    client = make_client(timeout=Timeout(idle=30))
    with pytest.raises(StreamStalled):
        async with asyncio.timeout(SOON):
            await client.chat.stream("a", timeout=Timeout(idle=SHORT)).final()


async def test_timeout_of_the_callers_passes_through(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(0.05):
            await client.chat.stream("a").final()
    assert not isinstance(caught.value, APITimeoutError)
    await server.wait_for_disconnect(0.1)


# ----------------------------------------------------------------------------------- signs of life


async def test_comments_before_the_first_event_count_as_life(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say("Hi.").stall(after="headers").ping(every=0.03)
    task = start(final(make_client(timeout=Timeout(first=LONGER))))
    await server.wait_for_requests(1)
    await asyncio.sleep(1.5 * LONGER)
    server.resume()
    assert (await task).text == "Hi."


async def test_comments_inside_the_answer_count_as_life(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say("One two.").stall(after=2).ping(every=0.03)
    task = start(final(make_client(timeout=Timeout(idle=LONGER))))
    await server.wait_for_requests(1)
    await asyncio.sleep(1.5 * LONGER)
    server.resume()
    assert (await task).text == "One two."


@pytest.mark.parametrize(("after", "phase"), [("headers", "first"), (3, "idle")])
async def test_comments_do_not_count_as_life_where_the_caller_says_so(
    after: Any, phase: str, server: ChatServer, make_client: MakeClient
) -> None:
    server.stall(after=after).ping(every=0.03)
    bounds = Timeout(first=SHORT, idle=SHORT, keepalive_is_life=False)
    error = await late(events, make_client(timeout=bounds))
    assert error.phase == phase
    assert isinstance(error, StreamStalled) is (phase == "idle")


async def test_without_life_by_comments_each_event_starts_idle_anew(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say(["x"] * 6).drip(0.03).comments()
    bounds = Timeout(idle=LONGER, keepalive_is_life=False)
    assert (await events(make_client(timeout=bounds))).text == "x" * 6


async def test_piece_of_an_event_counts_as_life(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say("One").split(every=40).drip(0.025)
    assert (await events(make_client(timeout=Timeout(idle=LONGER)))).text == "One"


async def test_slow_reader_does_not_make_the_server_late(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say(["x"] * 6).drip(0.005)
    read = 0
    bounds = Timeout(first=LONGER, idle=LONGER)
    async with make_client(timeout=bounds).chat.stream("a") as stream:
        async for event in stream:
            if type(event) is ContentDelta and (read := read + 1) in (1, 3):
                await asyncio.sleep(1.2 * LONGER)  # busy for longer than the server may be silent
    assert stream.completion.text == "x" * 6


async def test_silence_is_counted_from_the_moment_the_reader_waits(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say("One two.").stall(after=2)
    async with make_client(timeout=Timeout(idle=4 * SHORT)).chat.stream("a") as stream:
        reading = stream.text()
        assert await anext(reading) == "One"
        await asyncio.sleep(3 * SHORT)
        waiting = start(next_of(reading))
        await asyncio.sleep(2 * SHORT)  # together longer than idle, waited for less
        server.resume()
        assert await waiting == " two."


# ------------------------------------------------------------------------------------ backpressure


async def test_server_waits_for_a_slow_reader_and_nothing_is_lost(
    server: ChatServer, client: AsyncChat
) -> None:
    pieces = [f"{number:05d}" + "x" * 20_000 for number in range(600)]  # 12 MB
    server.say(pieces)
    got: list[str] = []
    async with client.chat.stream("a") as stream:
        async for piece in stream.text():
            got.append(piece)
            if len(got) == 1:
                await asyncio.sleep(0.1)
                assert server.active  # it could not send all of it
    assert got == pieces


@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_all_that_had_arrived_is_given_to_a_slow_reader_before_the_loss(
    how: str, server: ChatServer, client: AsyncChat
) -> None:
    reply = server.say("One two three four five six.")
    reply.cut(after=6) if how == "cut" else reply.reset(after=6)
    got: list[str] = []

    async def until_it_has_gone() -> None:
        await server.wait_until_idle()
        await asyncio.sleep(0.02)

    with pytest.raises(StreamCut) as caught:
        await read_slowly(client, got, until_it_has_gone)
    assert "".join(got) == "One two three four five"
    assert caught.value.partial is not None
    assert caught.value.partial.text == "One two three four five"


async def test_all_that_had_arrived_is_given_to_a_slow_reader_before_a_failure_that_was_told(
    server: ChatServer, client: AsyncChat
) -> None:
    server.reply().say("One two three.").error_event("Too much.")
    got: list[str] = []

    async def a_moment() -> None:
        await asyncio.sleep(0.02)

    with pytest.raises(APIError, match="Too much") as caught:
        await read_slowly(client, got, a_moment)
    assert "".join(got) == "One two three."
    assert caught.value.partial is not None
    assert caught.value.partial.text == "One two three."


# -------------------------------------------------------------------------------- lost connections


@streamed
@pytest.mark.parametrize("how", ["cut", "reset"])
async def test_server_gone_inside_its_answer_cuts_the_stream_and_what_came_is_kept(
    ask: Asking, how: str, server: ChatServer, client: AsyncChat
) -> None:
    server.cut(after=4) if how == "cut" else server.reset(after=4)
    with pytest.raises(StreamCut) as caught:
        await ask(client)
    assert caught.value.partial is not None
    assert caught.value.partial.text == "One two three"
    assert not caught.value.retryable
    assert caught.value.endpoint == server.base_url
    assert caught.value.request_id == "req_1"


@streamed
async def test_server_gone_after_every_finish_reason_has_lost_nothing(
    ask: Asking, server: ChatServer, client: AsyncChat
) -> None:
    server.say("One").without_usage().cut(after=3)
    assert (await ask(client)).text == "One"


@streamed
async def test_body_that_ends_well_but_without_any_end_mark_is_cut(
    ask: Asking, server: ChatServer, client: AsyncChat
) -> None:
    server.say("One").finish(None).without_done().without_usage()
    with pytest.raises(StreamCut, match="without finish_reason"):
        await ask(client)


@streamed
async def test_server_gone_before_its_first_event_is_a_lost_connection(
    ask: Asking, server: ChatServer, client: AsyncChat
) -> None:
    server.cut(after="headers")
    with pytest.raises(APIConnectionError) as caught:
        await ask(client)
    assert caught.value.retryable


async def test_lost_connection_is_told_without_the_transports_own_words(
    server: ChatServer, client: AsyncChat
) -> None:
    server.cut(after=3)
    with pytest.raises(StreamCut) as caught:
        await final(client)
    assert "TransferEncodingError" not in str(caught.value)


@streamed
async def test_client_closed_while_a_stream_is_read_ends_it(
    ask: Asking, server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    reading = start(ask(client))
    await server.wait_for_requests(1)
    await asyncio.sleep(0.02)
    await client.close()
    with pytest.raises(PoolClosed) as caught:
        async with asyncio.timeout(SOON):
            await reading
    assert caught.value.partial is not None
    assert caught.value.partial.text == "One two"
    assert client.statistics().in_flight == 0


async def test_client_closed_between_two_reads_ends_the_stream_at_the_next(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    async with client.chat.stream("a") as stream:
        await client.close()
        with pytest.raises(PoolClosed):
            async for _ in stream:
                pass


async def test_client_closed_while_a_plain_answer_is_read_ends_it(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=1)
    reading = start(client.chat("a"))
    await server.wait_for_requests(1)
    await asyncio.sleep(0.02)
    await client.close()
    with pytest.raises(PoolClosed):
        await reading


async def test_cancelled_while_others_have_their_turn_loses_nothing(
    client: AsyncChat, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncchat.client.reply._TURN_SECONDS", -1.0)  # each read lets others run
    words = [f"{number} " for number in range(40)]
    server.say(words)
    pieces: list[str] = []
    async with client.chat.stream("count") as stream:
        text = stream.text()

        async def read() -> None:
            pieces.append(await anext(text))

        outcome: object = None
        for turn in range(1000):
            reading = start(read())
            await asyncio.sleep(0)
            if turn % 2:
                reading.cancel()
            (outcome,) = await asyncio.gather(reading, return_exceptions=True)
            if isinstance(outcome, StopAsyncIteration):
                break
    assert pieces == words
