"""Reads a stream ahead of who sends it on, within a bound, so that what waits can be sent in one go.

Not here: tasks, sending, formats. What a reader has not taken weighs `MOST_WAITING` at most; then nothing more is read,
and TCP slows the model's server. While nothing is read no bound of silence runs, so a slow reader is no silent server.
"""

import asyncio
from typing import Any, Literal

import anyio

from asyncchat.bridges.coalesce import weight
from asyncchat.bridges.failure import Failure
from asyncchat.bridges.formats import Format
from asyncchat.client.stream import ChatStream

__all__ = ["Pump"]

MOST_WAITING = 64 * 1024


class Pump:
    """What came of a stream and was not yet taken."""

    __slots__ = (
        "_changed",
        "_every",
        "_has_been_taken",
        "_items",
        "_reads",
        "_room",
        "_stream",
        "_urgent",
        "_waiting",
        "error",
        "is_over",
    )

    def __init__(
        self, stream: ChatStream[Any], reads: Literal["events", "chunks"], *, every: float = 0.0
    ) -> None:
        self.error: Exception | None = None
        """What ended the stream, if it did not end well."""
        self.is_over = False
        """Whether nothing more comes."""
        self._stream = stream
        self._every = every
        self._has_been_taken = False
        self._reads = reads
        self._items: list[Any] = []
        self._waiting = 0  # what `_items` weigh
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._urgent = asyncio.Event()

    async def run(self) -> None:
        """Read the stream to its end. What it raises is kept in `error`; leaving early closes it.

        Cancellation: closes the stream.
        """
        stream = self._stream
        try:
            async for item in stream.events() if self._reads == "events" else stream.chunks():
                self._items.append(item)
                self._waiting += weight(item)
                self._changed.set()
                while self._waiting >= MOST_WAITING:
                    self._urgent.set()
                    self._room.clear()
                    await self._room.wait()
        except Exception as error:  # noqa: BLE001  raised where the reader is told of it
            self.error = error
        finally:
            stream.close()
            self.is_over = True
            self._urgent.set()
            self._changed.set()

    async def wait(self) -> None:
        """Wait until something can be taken, or nothing more comes. For what comes next, `every` seconds at least.

        There is no reason to wait longer once nothing more comes, or nothing more is read before something is taken.
        """
        if self._every and self._has_been_taken:
            with anyio.move_on_after(self._every):
                await self._urgent.wait()
        await self._changed.wait()

    def take(self) -> list[Any]:
        """Return what came since the last time."""
        taken, self._items = self._items, []
        self._waiting = 0
        self._has_been_taken = True
        self._room.set()
        if not self.is_over:
            self._changed.clear()
            self._urgent.clear()
        return taken

    def last(self, made: Format) -> list[bytes]:
        """Return the end of the answer that is over, in a format."""
        if self.error is not None:
            return made.fail(Failure.of(self.error))
        return made.end(self._stream.completion)
