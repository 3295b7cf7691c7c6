"""Cancelled at every turn of the loop: the call ends in nothing but that, and its connection is closed a few turns later.

Turns, not times: where the server runs in the same loop, each comes at the same place of a call in every run.
"""

import asyncio
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import pytest

from asyncchat import AsyncChat, AsyncChatError, RetryPolicy
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import other_tasks, start
from tests.faults.server import AUTHORITY, CERTIFICATES
from tests.storms.conftest import StormServer, Watch, show
from tests.storms.test_storms import Way, created, events, final, left_by_break, plain

WORDS = "One two three four five six seven eight."

# What a server does, and how the call is made that meets it. Retries wait for minutes: nobody sees their end.
BEHAVIOURS: dict[str, tuple[Way, Callable[[], Reply]]] = {
    "a whole answer": (plain, lambda: Reply().say(WORDS)),
    "a whole answer, byte by byte": (plain, lambda: Reply().say(WORDS).split(every=20)),
    "a stream": (events, lambda: Reply().say(WORDS)),
    "a stream, cut anywhere": (created, lambda: Reply().say(WORDS).split(every=50)),
    "a stream that is left": (left_by_break, lambda: Reply().say(WORDS)),
    "silence before the head": (final, lambda: Reply().say(WORDS).stall(after=0)),
    "silence after the head": (plain, lambda: Reply().say(WORDS).stall(after="headers")),
    "silence in midstream": (events, lambda: Reply().say(WORDS).stall(after=3)),
    "a stream cut short": (created, lambda: Reply().say(WORDS).cut(after=3)),
    "a reset before the head": (final, lambda: Reply().say(WORDS).reset(after=0)),
    "a refusal, to be retried": (final, lambda: Reply().fail(503)),
    "an error in the stream": (events, lambda: Reply().say(WORDS).error_event()),
}


class Cancelling:
    """One call after the other, each of a client of its own, and each cancelled at another turn."""

    def __init__(self, server: ChatServer, behaviour: str) -> None:
        self.server = server
        self.way, make = BEHAVIOURS[behaviour]
        server.otherwise(make())
        # By what was asked: a request that was cancelled may still be on its way to the server.
        server.when(lambda request: request.last_text == "good?", Reply().say("good"))
        self.count = 0
        self.has_ended = False
        self.wrong: list[str] = []

    async def at(self, turn: int, *, again: int | None = None, kept: bool = False) -> None:
        """Cancel a call at a turn, and a second time some turns after that; on a kept connection or a new one."""
        retry = RetryPolicy(initial_delay=600, max_delay=600)
        async with AsyncChat(self.server.base_url, "key", "m", retry=retry) as client:
            if kept:
                assert (await client.chat("good?")).text == "good"
            task = start(self._call(client))
            for _ in range(turn):
                if task.done():
                    break
                await asyncio.sleep(0)
            is_cancelled = task.cancel()
            if again is not None:
                for _ in range(again):
                    await asyncio.sleep(0)
                task.cancel()
            await asyncio.wait([task])
            self.count += is_cancelled
            self.has_ended = not is_cancelled
            if is_cancelled and not task.cancelled():
                self.wrong.append(f"turn {turn}: {task!r}")
            statistics = client.statistics()
            if (statistics.in_flight, statistics.waiting) != (0, 0):
                self.wrong.append(f"turn {turn}: {statistics}")
            assert (await client.chat("good?")).text == "good"
            await self.server.wait_until_idle()

    async def _call(self, client: AsyncChat) -> None:
        try:
            await self.way(client, {})
        except AsyncChatError:
            return


@asynccontextmanager
async def cancelling(server: ChatServer, behaviour: str) -> AsyncIterator[Cancelling]:
    """Cancel calls, and see that none of them left anything."""
    with Watch() as watch:
        made = Cancelling(server, behaviour)
        yield made
        assert made.wrong == []
        await server.wait_for_connections(0)
        async with asyncio.timeout(10):  # the server's own end too
            while other_tasks() != watch.tasks or watch.new_sockets():
                await asyncio.sleep(0)
        await watch.assert_silent()


@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_call_cancelled_at_any_turn_ends_in_nothing_else(
    behaviour: str, chat_server: ChatServer
) -> None:
    """Up to turn 50: by then every call has ended or is where it stays."""
    async with cancelling(chat_server, behaviour) as calls:
        for turn in range(51):
            await calls.at(turn)
            if calls.has_ended:
                break
        assert calls.count > 10


@pytest.mark.slow
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
async def test_call_cancelled_at_each_of_400_turns_ends_in_nothing_else(
    behaviour: str, chat_server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once or twice, on a new connection and on a kept one; what ends before is cancelled until then."""
    chance = random.Random(5)
    async with cancelling(chat_server, behaviour) as calls:
        for kept in (False, True):
            for turn in range(401):
                again = chance.randrange(4) if chance.random() < 0.5 else None
                await calls.at(turn, again=again, kept=kept)
                if calls.has_ended:
                    break
            show(capsys, f"{behaviour}{', on a kept connection' * kept}: {calls.count} cancelled")


# ------------------------------------------------------------------------------- the connection


async def turns_until_closed(client: AsyncChat, task: "asyncio.Task[Any]", watch: Watch) -> int:
    """Cancel a call, and count the turns until its socket is closed."""
    assert watch.new_sockets() == 1
    task.cancel()
    for turn in range(1, 100):
        await asyncio.sleep(0)
        if watch.new_sockets() == 0:
            assert task.cancelled()
            assert client.statistics().in_flight == 0
            return turn
    raise AssertionError("still open after 100 turns")


@pytest.mark.parametrize("model", ["silent", "held"])
async def test_cancelled_call_closes_its_connection_within_three_turns(
    model: str, storm_server: StormServer
) -> None:
    async with (
        storm_server.control() as control,
        AsyncChat(storm_server.base_url, "key") as client,
    ):
        with Watch() as watch:
            came = asyncio.Event()
            task = start(read(client, model, came))
            await control.ask("wait answering 1")
            if model == "held":
                await came.wait()
            assert await turns_until_closed(client, task, watch) <= 3
            await control.ask("wait open 0")


async def read(client: AsyncChat, model: str, came: asyncio.Event) -> None:
    async with client.chat.stream("a", model=model) as stream:
        async for _ in stream:
            came.set()


async def test_cancelled_connecting_closes_its_socket_within_three_turns() -> None:
    with unanswered() as port, Watch() as watch:
        async with AsyncChat(f"http://127.0.0.1:{port}/v1", "key", "m") as client:
            task = start(plain(client, {}))
            async with asyncio.timeout(10):
                while not watch.new_sockets():
                    await asyncio.sleep(0)
            assert await turns_until_closed(client, task, watch) <= 3


@contextmanager
def unanswered() -> Iterator[int]:
    """A port whose queue is full, so that connecting hangs."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(listening.getsockname())
        yield listening.getsockname()[1]


async def test_cancelled_call_closes_its_connection_to_a_tls_peer_that_has_stopped() -> None:
    """Without a goodbye: asyncio waits half a minute for the peer's."""
    arrived = asyncio.Event()
    transports: list[asyncio.WriteTransport] = []

    async def stop(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        transports.append(writer.transport)
        arrived.set()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "good.pem")
    trusting = ssl.create_default_context(cafile=AUTHORITY)
    async with await asyncio.start_server(stop, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        with Watch() as watch:
            url = f"https://127.0.0.1:{port}/v1"
            async with AsyncChat(url, "key", "m", ssl_context=trusting) as client:
                task = start(plain(client, {}))
                await arrived.wait()
                assert watch.new_sockets() == 2  # both ends of one connection
                task.cancel()
                await asyncio.wait([task])
                try:
                    async with asyncio.timeout(10):
                        while watch.new_sockets() == 2:
                            await asyncio.sleep(0)
                finally:
                    for transport in transports:
                        transport.abort()
                    await asyncio.sleep(0.01)
