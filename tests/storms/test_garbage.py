"""What a call leaves for the garbage collector: nothing, so that pauses do not grow with the number of calls.

Collections are switched off while calls are made; one at the end counts what only it could find.
"""

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from asyncchat import AsyncChat, AsyncChatError, Limits, RetryPolicy, Timeout
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import start
from tests.storms.conftest import StormServer, show
from tests.storms.test_storms import (
    Way,
    created,
    events,
    final,
    left_by_break,
    left_by_break_in_a_block,
    plain,
    text,
)
from tests.storms.test_turns import read

Call = Callable[[], Awaitable[object]]

COUNTS = [100, pytest.param(1000, marks=pytest.mark.slow)]


@contextmanager
def without_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


async def garbage(call: Call, count: int) -> int:
    """Make so many calls, one after the other, and return how many objects only a collection finds."""
    for _ in range(5):  # what is made once
        await call()
    await asyncio.sleep(0)
    with without_collections():
        for _ in range(count):
            await call()
        for _ in range(5):  # the ends of connections
            await asyncio.sleep(0)
        return gc.collect()


async def of_a_connection(port: int) -> int:
    """Return how many objects a closed connection leaves: a transport of asyncio's refers to itself."""

    async def connect() -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, "127.0.0.1", port)
        vars(transport)  # as the client does, which makes one object more of it
        transport.close()

    return round(await garbage(connect, 100) / 100)


@asynccontextmanager
async def a_client(server: StormServer) -> AsyncIterator[AsyncChat]:
    patient = Timeout(connect=60, first=60, idle=60, total=60)
    async with AsyncChat(server.base_url, "key", timeout=patient, max_retries=0) as client:
        yield client


def making(client: AsyncChat, way: Way, model: str, **fields: Any) -> Call:
    async def call() -> None:
        with suppress(AsyncChatError):
            await way(client, {"model": model, **fields})

    return call


@pytest.mark.parametrize("count", COUNTS)
async def test_answered_calls_leave_no_garbage(
    count: int, storm_server: StormServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_client(storm_server) as client:
        found = {
            way.__name__: await garbage(making(client, way, "good"), count)
            for way in (plain, final, events, text, created)
        }
    if count == 1000:
        show(capsys, f"objects left by 1,000 answered calls: {found}")
    assert max(found.values()) <= count // 100


async def beside_connections(server: StormServer, call: Call, count: int) -> int:
    """Return how many objects calls leave on top of what asyncio itself leaves of their connections."""
    return await garbage(call, count) - count * await of_a_connection(server.port)


@pytest.mark.parametrize("count", COUNTS)
async def test_streams_broken_off_leave_no_garbage_but_their_connections(
    count: int, storm_server: StormServer, capsys: pytest.CaptureFixture[str]
) -> None:
    async with a_client(storm_server) as client:

        async def cancelled() -> None:
            came = asyncio.Event()
            task = start(read(client, "held", came))
            await came.wait()
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

        calls = (
            making(client, left_by_break, "held"),
            making(client, left_by_break_in_a_block, "held"),
            cancelled,
        )
        found = [await beside_connections(storm_server, call, count) for call in calls]
        if count == 1000:
            each = await of_a_connection(storm_server.port)
            show(
                capsys,
                f"objects left by 1,000 streams broken off: {found}; by a connection, of asyncio's: {each}",
            )
        assert max(found) <= 10


@pytest.mark.parametrize("model", ["refused", "cut", "failed", "stalled"])
async def test_failed_calls_leave_no_garbage_but_their_connections(
    model: str, storm_server: StormServer
) -> None:
    # On a busy machine a bound may strike while asyncio still connects, which leaves some objects of its own.
    short = Timeout(connect=60, first=0.03, idle=0.03) if model == "stalled" else None
    count = 10 if model == "stalled" else 50
    async with a_client(storm_server) as client:
        for way in (plain, events):
            call = making(client, way, model, timeout=short)
            is_kept = model == "refused" or (model == "failed" and way is plain)
            found = (
                await garbage(call, count)
                if is_kept
                else await beside_connections(storm_server, call, count)
            )
            assert found <= (40 if model == "stalled" else 10)  # a cycle a call would be hundreds


def timers() -> int:
    """How many timers of the running loop are still to strike."""
    scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not handle.cancelled() for handle in scheduled)


async def timers_left(server: StormServer, models: Sequence[str]) -> dict[str, int]:
    left = {}
    for model in models:
        before = timers()
        async with a_client(server) as client:
            for way in (plain, final, events, created, left_by_break):
                await making(client, way, model)()
        left[model] = timers() - before
    return left


async def test_calls_that_have_ended_leave_no_timer(storm_server: StormServer) -> None:
    models = ("good", "slow", "refused", "cut", "reset", "failed")
    assert await timers_left(storm_server, models) == dict.fromkeys(models, 0)


async def test_stream_answered_by_one_document_leaves_no_timer(storm_server: StormServer) -> None:
    assert await timers_left(storm_server, ["whole"]) == {"whole": 0}


@pytest.mark.parametrize("failure", [Reply().fail(503), Reply().say("a").reset(after="headers")])
async def test_stream_dropped_unread_after_a_retry_frees_its_place_at_once(
    failure: Reply, chat_server: ChatServer
) -> None:
    """What the first attempt failed with refers to the stream: it must not keep it alive."""
    retry = RetryPolicy(initial_delay=0.001)
    async with AsyncChat(
        chat_server.base_url, "key", "m", retry=retry, limits=Limits(in_flight=1)
    ) as client:
        chat_server.queue(failure)
        chat_server.stall(after=3)
        with without_collections(), warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            await client.chat.completions.create(messages="a", stream=True)
            assert client.statistics().in_flight == 0
