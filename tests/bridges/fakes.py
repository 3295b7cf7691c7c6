"""A websocket without a network, whose reader reads when the test says so."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import msgspec

__all__ = ["Reader", "start"]

_T = TypeVar("_T")


def start(work: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
    """Run something beside the test, which awaits it in its end."""
    return asyncio.get_running_loop().create_task(work)


class Reader:
    """The pair of functions that a pipe takes, and what the one at the other end sees and does."""

    def __init__(self, *, reads: bool = True) -> None:
        self.got: list[str] = []
        self.ready = asyncio.Event()
        self.changed = asyncio.Condition()
        self._said: asyncio.Queue[str | bytes | None] = asyncio.Queue()
        if reads:
            self.ready.set()

    @property
    def pair(self) -> Any:
        return self.send, self.receive

    async def send(self, text: str) -> None:
        await self.ready.wait()
        async with self.changed:
            self.got.append(text)
            self.changed.notify_all()

    async def receive(self) -> str | bytes | None:
        return await self._said.get()

    def say(self, message: str | bytes) -> None:
        self._said.put_nowait(message)

    def leave(self) -> None:
        self._said.put_nowait(None)

    async def wait_for(self, count: int) -> None:
        """Wait until so many messages have come."""
        async with asyncio.timeout(5), self.changed:
            await self.changed.wait_for(lambda: len(self.got) >= count)

    @property
    def parts(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(text) for text in self.got]

    @property
    def types(self) -> list[str]:
        return [part["type"] for part in self.parts]
