"""Each kind of websocket server, run for real: the upstream request ends when the reader leaves, stalls or says stop.

The readers are clients over TCP; `left at` is when the reader did it, and the scripted server tells when it saw the end.
"""

import asyncio
import contextlib
import resource
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from asyncchat import AsyncChat, Completion
from asyncchat.bridges.pipe import socket_for
from asyncchat.testing import ChatServer, Reply
from tests.bridges.fakes import start
from tests.bridges.flood import Flood
from tests.bridges.kinds import KINDS

SECONDS = (
    0.1  # within which the upstream request has to be closed: what the documentation promises
)
TRIES = 3  # a busy machine may be late; a leak is late every time

each_kind = pytest.mark.parametrize("kind", KINDS)
now = asyncio.get_running_loop


class Room:
    """A websocket server that pipes one answer to each who connects, and what `pipe` returned."""

    def __init__(self, kind: str, asks: Any, **options: Any) -> None:
        self.kind = kind
        self.answers: asyncio.Queue[Completion] = asyncio.Queue()
        self._asks = asks
        self._options = options

    async def __aenter__(self) -> "Room":
        self._stack = AsyncExitStack()
        self._url = await self._stack.enter_async_context(KINDS[self.kind](self._handle))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _handle(self, ws: Any) -> None:
        answer = await self._asks().pipe(ws, "text", **self._options)
        self.answers.put_nowait(answer)

    async def connect(self) -> ClientConnection:
        # Uncompressed: a flood of one letter would be nothing.
        return await connect(self._url, ping_interval=None, close_timeout=0.1, compression=None)

    async def answer(self) -> Completion:
        async with asyncio.timeout(5):
            return await self.answers.get()


@contextlib.asynccontextmanager
async def reading(room: Room) -> AsyncIterator[ClientConnection]:
    ws = await room.connect()
    try:
        yield ws
    finally:
        ws.transport.abort()


async def leave(ws: ClientConnection, how: str) -> None:
    match how:
        case "crash":
            ws.transport.abort()
        case "close":
            start(ws.close())
        case _:
            await ws.send('{"type": "abort"}')


@pytest.mark.parametrize("how", ["crash", "close", "abort"])
@pytest.mark.parametrize("when", ["before the first token", "in mid-stream"])
@each_kind
async def test_upstream_is_closed_when_the_reader_leaves(
    kind: str, when: str, how: str, client: AsyncChat, server: ChatServer
) -> None:
    before = when == "before the first token"
    async with Room(kind, lambda: client.chat.stream("Hi.")) as room:
        for attempt in range(1, TRIES + 1):
            server.queue(Reply().say("One two three.").stall(after="headers" if before else 3))
            async with reading(room) as ws:
                await server.wait_for_requests(attempt)
                got = ""
                while not before and got != "One two":  # then there is no send that could fail
                    got += str(await ws.recv())
                left_at = now().time()
                await leave(ws, how)
                seconds = (await server.wait_for_disconnect()).at - left_at
                answer = await room.answer()
            assert answer.ending == ("aborted" if how == "abort" else "left")
            assert answer.text == got
            if seconds < SECONDS:
                return
        pytest.fail(f"the upstream was closed {seconds:.3f} s after the reader had left")


@each_kind
async def test_reader_who_stalls_is_given_up_and_the_upstream_closed(
    kind: str, flood: Flood
) -> None:
    async with Room(kind, flood.stream, send_timeout=0.05, every=0) as room, reading(room):
        answer = await room.answer()
        assert answer.ending == "stalled"
        await flood.wait_until_left()
    assert flood.sent < flood.size / 2


@each_kind
async def test_whole_answer_comes_in_order(
    kind: str, client: AsyncChat, server: ChatServer
) -> None:
    said = "".join(f"word {number}, " for number in range(100))
    server.say(said)
    async with Room(kind, lambda: client.chat.stream("Hi."), every=0) as room, reading(room) as ws:
        got = ""
        while got != said:
            got += str(await ws.recv())
        assert (await room.answer()).ending == "finished"


@each_kind
async def test_who_has_left_already_is_found_to_have_left(
    kind: str, client: AsyncChat, server: ChatServer
) -> None:
    server.otherwise(Reply().say("One two.").stall(after=2))
    endings: asyncio.Queue[str | None] = asyncio.Queue()

    async def ask_twice(ws: Any) -> None:
        for _ in range(2):
            endings.put_nowait((await client.chat.stream("Hi.").pipe(ws)).ending)

    async with KINDS[kind](ask_twice) as url:
        ws = await connect(url, ping_interval=None)
        await ws.recv()
        ws.transport.abort()
        async with asyncio.timeout(5):
            assert [await endings.get(), await endings.get()] == ["left", "left"]
    await server.wait_until_idle()


def resident() -> int:
    """The memory of this process, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.slow
@each_kind
async def test_memory_stays_flat_while_a_reader_takes_nothing(kind: str) -> None:
    """Where 200 MB are to be had, less than 32 are read, and most of that is in the kernel's buffers."""
    async with Flood(200 * 2**20) as flood:
        async with Room(kind, flood.stream, send_timeout=None) as room, reading(room):
            await flood.wait_until_sent(2**20)
            before = resident()
            await flood.wait_until_stuck()
            sent = flood.sent
            await asyncio.sleep(5)
            assert flood.sent == sent < 32 * 2**20
            assert resident() - before < 32 * 2**20
        assert (await room.answer()).ending == "left"


def test_other_objects_are_no_websockets() -> None:
    with pytest.raises(TypeError, match="object is no websocket"):
        socket_for(object())
