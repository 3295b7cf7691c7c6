"""What the client's tests share: a scripted server, a client of it, recorded waits, and counts of what is left open."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

import aiohttp
import pytest
from aioresponses import aioresponses

from asyncchat import AsyncChat
from asyncchat.testing import ChatServer

KEY = "sk-test-0123456789abcdef"
MakeClient = Callable[..., AsyncChat]
_T = TypeVar("_T")


def start(work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
    """Run something beside the test, which awaits it in its end."""
    return asyncio.get_running_loop().create_task(work)


@pytest.fixture
def server(chat_server: ChatServer) -> ChatServer:
    """The plugin's own fixture, under a short name."""
    return chat_server


@pytest.fixture
async def make_client(server: ChatServer) -> AsyncIterator[MakeClient]:
    """Make clients of the server, which neither retry nor outlive the test."""
    made: list[AsyncChat] = []

    def make(base_url: str | None = None, **options: Any) -> AsyncChat:
        options = {"api_key": KEY, "model": "m", "max_retries": 0, **options}
        if "retry" in options:
            options["max_retries"] = None
        made.append(AsyncChat(base_url or server.base_url, **options))
        return made[-1]

    yield make
    for client in made:
        await client.close()


@pytest.fixture
def client(make_client: MakeClient) -> AsyncChat:
    return make_client()


class Waits:
    """Takes the place of a pool's clockwork: waits are written down, and take no time."""

    def __init__(self, client: AsyncChat, rand: float = 0.0) -> None:
        self.seconds: list[float] = []
        pool = client._core.pool
        pool.sleep, pool.rand, pool.line.clock = self._sleep, lambda: rand, self._clock
        self._now = 1e6

    def _clock(self) -> float:
        """A minute passes with each look: what a server asks to wait is over at the next one."""
        self._now += 61
        return self._now

    async def _sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.fixture
def record_waits() -> type[Waits]:
    return Waits


class _Output:
    """What aiohttp 3.14 asks of the stream writer of a response."""

    output_size = 0


class _Response(aiohttp.ClientResponse):
    """aioresponses 0.7.9 does not know the argument `stream_writer`, which aiohttp 3.14 wants."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, stream_writer=_Output(), **kwargs)  # type: ignore[arg-type]


class Statuses(aioresponses):
    """aioresponses that works with aiohttp 3.14: `answer(status, body, headers)`."""

    URL = "http://server.example/v1/chat/completions"

    def answer(
        self, status: int, body: str | bytes = "", headers: dict[str, str] | None = None
    ) -> None:
        self.post(
            self.URL,
            status=status,
            body=body,
            headers=headers or {"Content-Type": "application/json"},
            response_class=_Response,
        )


@pytest.fixture
async def statuses() -> AsyncIterator[Statuses]:
    mocked = Statuses()
    with mocked:
        yield mocked


def other_tasks() -> set["asyncio.Task[Any]"]:
    """The tasks that run beside this one."""
    return {task for task in asyncio.all_tasks() if task is not asyncio.current_task()}


def open_sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:  # the listing's own
            continue
    return count


async def assert_nothing_is_left(client: AsyncChat, server: ChatServer) -> None:
    """Within 100 ms nothing is in flight or in line, and the server answers nobody."""
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    await server.wait_until_idle(0.1)


@pytest.fixture
def unused_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])
