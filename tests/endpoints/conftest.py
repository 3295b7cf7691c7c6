"""What the tests of many endpoints share: servers, clients of them, and a clock in the test's hands."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest

from asyncchat import AsyncChat, Completion, Endpoint
from asyncchat.testing import ChatServer

MakeServers = Callable[..., Awaitable[list[ChatServer]]]
MakeClient = Callable[..., AsyncChat]

BLAME_AFTER = 5
"""How many failures in a row open a breaker."""


@pytest.fixture
async def servers() -> AsyncIterator[MakeServers]:
    """Start so many servers: `a, b = await servers(2)`."""
    started: list[ChatServer] = []

    async def make(count: int, **options: Any) -> list[ChatServer]:
        made = [ChatServer(**options) for _ in range(count)]
        for server in made:
            await server.start()
            started.append(server)
        return made

    yield make
    for server in started:
        await server.close()


@pytest.fixture
async def make_client() -> AsyncIterator[MakeClient]:
    """Make clients of endpoints, or of servers that need no more said; they do not outlive the test."""
    made: list[AsyncChat] = []

    def make(*where: Endpoint | ChatServer, **options: Any) -> AsyncChat:
        endpoints = [at(one) if isinstance(one, ChatServer) else one for one in where]
        made.append(AsyncChat(endpoints=endpoints, **options))
        return made[-1]

    yield make
    for client in made:
        await client.close()


def at(server: ChatServer, key: Any = "key", /, **options: Any) -> Endpoint:
    """An endpoint that is a server of the test."""
    return Endpoint(server.base_url, key, **{"model": "m", **options})


class Clock:
    """Takes the place of a pool's clockwork: time stands still, but for waits, which are written down.

    What is done while nothing was waited for and nothing passed was therefore done at once.
    """

    def __init__(self, client: AsyncChat, rand: float = 0.5) -> None:
        self.waits: list[float] = []
        self.now = 1000.0
        pool = client._core.pool
        self._line = pool.line
        pool.sleep, pool.rand, pool.line.clock = self._sleep, lambda: rand, lambda: self.now

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self.pass_(seconds)

    async def pass_(self, seconds: float) -> None:
        """Let time pass, and the line have the look that its timer would give it."""
        self.now += seconds
        self._line.look()
        await asyncio.sleep(0)


def counts(*servers: ChatServer) -> list[int]:
    """How many requests each has had."""
    return [len(server.requests) for server in servers]


def keys_at(server: ChatServer) -> list[str]:
    """The keys that a server was sent, in order."""
    headers = [request.headers.get("Authorization", "") for request in server.requests]
    return [header.removeprefix("Bearer ") for header in headers]


async def ask(client: AsyncChat, text: str = "a", *, streamed: bool, **fields: Any) -> Completion:
    """Ask in one of the two ways."""
    if streamed:
        return await client.chat.stream(text, **fields).final()
    return await client.chat(text, **fields)


async def until(claim: Callable[[], bool], seconds: float = 5.0) -> None:
    """Give turns away until something holds."""
    async with asyncio.timeout(seconds):
        while not claim():
            await asyncio.sleep(0)


@pytest.fixture
def unused_port() -> Iterator[int]:
    """A port that is bound, so that nobody else gets it, and refuses."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield int(bound.getsockname()[1])


@pytest.fixture
def black_hole() -> Iterator[int]:
    """A port where nothing is accepted and nothing refused: its backlog is full."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        port = listening.getsockname()[1]
        waiting = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            waiting.append(one)
        yield int(port)
        for one in waiting:
            one.close()
