"""One answer to many websockets: each is sent all of it, as fast as it takes it.

Not here: formats, sending to one (`pipe`). The answer is kept once, and a reader is a place in it: who is slow or late gets
what came since in one piece, and costs nothing more. The fastest reader sets the pace; the last one's leaving ends the
upstream request.
"""

import asyncio
from copy import copy
from typing import Any

import anyio

from asyncchat.bridges.coalesce import START, Place, Tape
from asyncchat.bridges.formats import FRAME_FORMATS, Format, FrameFormat, format_for
from asyncchat.bridges.pipe import OnMessage, Sending, socket_for
from asyncchat.bridges.pump import Pump
from asyncchat.client.stream import ChatStream
from asyncchat.protocol.response import Completion

__all__ = ["Broadcast", "broadcast"]


class _Recording:
    """The answer as far as it has come, and who reads it."""

    __slots__ = ("_caught_up", "_pump", "_tape", "over", "readers", "was_stopped")

    def __init__(self, pump: Pump) -> None:
        self._pump = pump
        self._tape = Tape()
        self._caught_up = asyncio.Event()
        self.over = asyncio.Event()
        self.readers: list[_Reader] = []
        self.was_stopped = False

    @property
    def end(self) -> Place:
        """Where the readers are who have everything."""
        return self._tape.end

    def since(self, place: Place) -> list[Any]:
        """Return what is new to a reader."""
        self._caught_up.set()
        return self._tape.since(place)

    def last(self, made: Format) -> list[bytes]:
        """Return the end of the answer, in a format."""
        return made.abort() if self.was_stopped else self._pump.last(made)

    async def run(self) -> None:
        """Record the stream. Nothing more is read while even the fastest reader is behind."""
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._pump.run)
                while not self.over.is_set():
                    await self._pump.wait()
                    self._record()
                    if not self.over.is_set():
                        await self._caught_up.wait()
        finally:
            self.stop()  # whatever ends it, nobody waits for more

    def _record(self) -> None:
        for item in self._pump.take():
            self._tape.put(item)
        if self._pump.is_over:
            self.over.set()
        self._caught_up.clear()
        for reader in self.readers:
            reader.changed.set()

    def stop(self) -> None:
        """Record no more: whoever reads or comes now gets what there is."""
        if not self.over.is_set():
            self.was_stopped = True
            self.over.set()
            for reader in self.readers:
                reader.changed.set()


class _Reader:
    """A place in a recording, which is where what is sent comes from."""

    __slots__ = ("_place", "_recording", "changed")

    def __init__(self, recording: _Recording) -> None:
        self._recording = recording
        self._place = START
        self.changed = asyncio.Event()
        if recording.end != START or recording.over.is_set():
            self.changed.set()

    @property
    def is_over(self) -> bool:
        return self._recording.over.is_set()

    async def wait(self) -> None:
        await self.changed.wait()

    def take(self) -> list[Any]:
        taken = self._recording.since(self._place)
        self._place = self._recording.end
        if not self.is_over:
            self.changed.clear()
        return taken

    def last(self, made: Format) -> list[bytes]:
        return self._recording.last(made)


class Broadcast:
    """One answer for many websockets. Made by `broadcast`.

    The request is sent when the first reader comes, and ends when the last one has left. Whoever comes in between is first
    sent what there is, and so is whoever comes after the end, for as long as this object is kept.
    """

    __slots__ = (
        "__weakref__",
        "_format",
        "_pump",
        "_recording",
        "_send_timeout",
        "_stream",
        "_task",
    )

    def __init__(
        self,
        stream: ChatStream[Any],
        name: FrameFormat,
        *,
        every: float,
        send_timeout: float | None,
    ) -> None:
        made = format_for(stream, name, FRAME_FORMATS)
        self._stream = stream
        self._format: FrameFormat = name
        self._send_timeout = send_timeout
        # The pace is kept here and not for each reader: they then wake together, and take the same pieces.
        self._pump = Pump(stream, made.reads, every=every)
        self._recording = _Recording(self._pump)
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"Broadcast({self._format!r}, {self.readers} readers)"

    @property
    def readers(self) -> int:
        """How many are reading now."""
        return len(self._recording.readers)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        return self._recording.over.is_set()

    async def pipe(
        self, ws: object, *, on_message: OnMessage | None = None, message_id: str | None = None
    ) -> Completion:
        """Send the answer to a websocket, from its beginning; as `ChatStream.pipe`.

        A reader who says `{"type": "abort"}` stops its own reading and nobody else's.

        Raises: as `ChatStream.pipe`.
        Cancellation: the reader leaves.
        """
        recording = self._recording
        reader = _Reader(recording)
        sending = Sending(
            reader,
            socket_for(ws),
            format_for(self._stream, self._format, FRAME_FORMATS, message_id=message_id),
            send_timeout=self._send_timeout,
            on_message=on_message,
        )
        recording.readers.append(reader)
        try:
            if self._task is None and not self.is_over:
                # Owned by this object: it outlives the reader who came first, and ends with the one who leaves last.
                self._task = asyncio.get_running_loop().create_task(recording.run())
            await sending.run()
        finally:
            recording.readers.remove(reader)
            if not recording.readers:
                self.close()
        ending = sending.ending
        if ending == "finished" and recording.was_stopped:
            ending = "aborted"
        if ending == "finished" and self._pump.error is not None:
            raise copy(self._pump.error)  # each reader's own: a traceback belongs to one
        answer = copy(self._stream.snapshot)
        answer.ending = ending
        return answer

    def close(self) -> None:
        """End the upstream request. Readers get what there is. Idempotent; awaits nothing."""
        self._recording.stop()
        if self._task is not None:
            self._task.cancel()
        self._stream.close()


def broadcast(
    stream: ChatStream[Any],
    format: FrameFormat = "events",  # noqa: A002  the documented name
    *,
    every: float = 0.03,
    send_timeout: float | None = 5.0,
) -> Broadcast:
    """Return a stream that many websockets can be sent.

    Hand over a stream that was not started; arguments as those of `ChatStream.pipe`.

    Raises:
        ValueError: no such format, or `resume="restart"` with one that cannot say it.
    """
    return Broadcast(stream, format, every=every, send_timeout=send_timeout)
