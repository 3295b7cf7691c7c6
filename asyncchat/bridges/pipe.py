"""Sends an answer to a websocket while watching whether anybody is still there.

Not here: formats, the libraries that have websockets, reading the stream (`pump`). A plain loop of `send` notices a reader
who has left only by the next thing it sends, on some servers never; so one task watches, one reads ahead within a bound, and
this one sends. The first that ends ends the others, and closing the upstream request awaits nothing.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeAlias

import anyio
import msgspec

from asyncchat.bridges.aiohttp_socket import aiohttp_socket
from asyncchat.bridges.asgi_socket import asgi_socket
from asyncchat.bridges.coalesce import coalesce
from asyncchat.bridges.formats import FRAME_FORMATS, Format, FrameFormat, format_for
from asyncchat.bridges.pump import Pump
from asyncchat.bridges.sockets import Socket
from asyncchat.bridges.websockets_socket import websockets_socket
from asyncchat.client.stream import ChatStream
from asyncchat.protocol.response import Completion, Ending

__all__ = ["OnMessage", "Sending", "Source", "pipe", "socket_for"]

OnMessage: TypeAlias = Callable[[str | bytes], Awaitable[object]]

_LONGEST_ABORT = 1024


class Source(Protocol):
    """Where what is to be sent comes from."""

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes."""
        ...

    async def wait(self) -> None:
        """Wait until something can be taken, or nothing more comes."""
        ...

    def take(self) -> list[Any]:
        """Return what came since the last time."""
        ...

    def last(self, made: Format) -> list[bytes]:
        """Return the end of an answer that is over, in a format."""
        ...


class Sending:
    """One reader, being sent what comes out of a source.

    `run` returns when the reader has everything, has left, has stopped the answer, or has stalled; `ending` says which.
    """

    __slots__ = (
        "_format",
        "_on_message",
        "_send_timeout",
        "_socket",
        "_source",
        "ending",
    )

    def __init__(
        self,
        source: Source,
        socket: Socket,
        made: Format,
        *,
        send_timeout: float | None,
        on_message: OnMessage | None,
    ) -> None:
        self._source = source
        self._socket = socket
        self._format = made
        self._send_timeout = send_timeout
        self._on_message = on_message
        self.ending: Ending | None = None

    async def run(self, beside: Callable[[], Awaitable[None]] | None = None) -> None:
        """Send everything; `beside` runs at the same time, and no longer."""
        failed: list[Exception] = []
        async with anyio.create_task_group() as group:

            async def one(work: Callable[[], Awaitable[None]]) -> None:
                try:
                    await work()
                except Exception as error:  # noqa: BLE001  raised below, without a group around it
                    failed.append(error)
                    group.cancel_scope.cancel()

            async def watch() -> None:
                await self._watch()
                group.cancel_scope.cancel()

            if beside is not None:
                group.start_soon(one, beside)
            group.start_soon(one, watch)
            await one(self._send_all)
            group.cancel_scope.cancel()
        if self.ending == "aborted":
            await self._send_messages(self._format.abort())
        if failed:
            try:
                raise failed[0]
            finally:
                failed.clear()  # else its own traceback keeps it alive

    async def _watch(self) -> None:
        """Listen to the reader until it leaves or says stop."""
        while True:
            try:
                message = await self._socket.receive()
            except self._socket.gone:
                message = None
            if message is None:
                self._end("left")
                return
            if _is_abort(message):
                self._end("aborted")
                return
            if self._on_message is not None:
                await self._on_message(message)

    def _end(self, ending: Ending) -> None:
        self.ending = self.ending or ending

    async def _send_all(self) -> None:
        source, made = self._source, self._format
        await self._send_messages(made.begin())
        while self.ending is None:
            await source.wait()
            items, is_over = source.take(), source.is_over
            messages = [message for item in items for message in made.feed(item)]
            if is_over:
                messages += source.last(made)
            await self._send_messages(messages)
            if is_over:
                self._end("finished")

    async def _send_messages(self, messages: list[bytes]) -> None:
        for message in messages:
            with anyio.move_on_after(self._send_timeout) as scope:
                try:
                    await self._socket.send(message.decode())
                except self._socket.gone:
                    self._end("left")
                    return
            if scope.cancelled_caught:
                self._end("stalled")
                return


class _Alone(Pump):
    """A pump whose one reader is sent what it has."""

    __slots__ = ()

    def take(self) -> list[Any]:
        return coalesce(super().take())


def socket_for(ws: object) -> Socket:
    """Return what a pipe needs of a websocket.

    Raises:
        TypeError: it is none that is known, and no pair of functions.
    """
    if isinstance(ws, Socket):
        return ws
    if isinstance(ws, tuple) and len(ws) == 2 and all(map(callable, ws)):
        return Socket(*ws)
    for known in (aiohttp_socket, asgi_socket, websockets_socket):
        socket = known(ws)
        if socket is not None:
            return socket
    raise TypeError(
        f"{type(ws).__name__} is no websocket that is known: pass a pair of functions, (send, receive)."
    )


def _is_abort(message: str | bytes) -> bool:
    """Whether a reader says `{"type": "abort"}`."""
    if len(message) > _LONGEST_ABORT:
        return False
    try:
        said = msgspec.json.decode(message)
    except (msgspec.DecodeError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("type") == "abort"


async def pipe(
    stream: ChatStream[Any],
    ws: object,
    *,
    format: FrameFormat,  # noqa: A002  the documented name
    every: float,
    send_timeout: float | None,
    on_message: OnMessage | None,
    message_id: str | None,
) -> Completion:
    """Send a stream to a websocket: see `ChatStream.pipe`, which documents it."""
    made = format_for(stream, format, FRAME_FORMATS, message_id=message_id)
    pump = _Alone(stream, made.reads, every=every)
    sending = Sending(
        pump,
        socket_for(ws),
        made,
        send_timeout=send_timeout,
        on_message=on_message,
    )
    try:
        await sending.run(beside=pump.run)
    finally:
        stream.close()
    error, pump.error = pump.error, None
    if error is not None and sending.ending == "finished":
        try:
            raise error
        finally:
            del error  # else its own traceback keeps it alive
    answer = stream.snapshot
    answer.ending = sending.ending
    return answer
