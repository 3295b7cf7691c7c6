"""Connections of the test server, and one answer being given on one of them.

Not here: which reply is given, and what it says. This is the only place of `testing` that writes to
a connection or breaks it. Source: aiohttp, `web_protocol.RequestHandler`, for what ends a handler.
"""

import asyncio
import os
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Literal

import aiohttp
import anyio
from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import RawRequestMessage

from asyncchat.testing.reply import Reply
from asyncchat.testing.wire import BEFORE_HEADERS, Answer, ReceivedRequest

__all__ = ["Connections", "Exchange"]

# SO_LINGER on, for no seconds: closing sends RST. Winsock's fields are shorts.
_RESET_ON_CLOSE = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)

# Turns of the loop given away after each write. A reader in the same loop needs one to see the
# bytes, one to wake and one to take them; with fewer, two writes arrive in one read.
_TURNS_PER_WRITE = 3

# From the accepting of a connection to `connection_made` asyncio takes two.
_TURNS_PER_ACCEPT = 3


class Connections(web.Server):
    """aiohttp's low-level server, which also numbers its connections and can abort them.

    The low level, because only here is it told when a connection opens and ends. The end cancels
    the handler (`handler_cancellation`): that is how a client's leaving is noticed in mid-silence.
    """

    def __init__(
        self,
        serve: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
        note_change: Callable[[], None],
    ) -> None:
        super().__init__(
            serve, request_factory=_unbounded, handler_cancellation=True, access_log=None
        )
        self.numbers: dict[web.RequestHandler, int] = {}
        self._transports: dict[web.RequestHandler, asyncio.Transport] = {}
        self._note_change = note_change
        self._made = 0
        self._aborted = False
        self._listener: asyncio.Server | None = None

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Number the connection; called by aiohttp."""
        super().connection_made(handler, transport)
        self._made += 1
        self.numbers[handler] = self._made
        self._transports[handler] = transport
        if self._aborted:
            transport.abort()
        self._note_change()

    def connection_lost(
        self, handler: web.RequestHandler, exc: BaseException | None = None
    ) -> None:
        """Forget the connection; called by aiohttp."""
        super().connection_lost(handler, exc)
        del self.numbers[handler], self._transports[handler]
        self._note_change()

    async def listen(self, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen on 127.0.0.1 and return the port, which is chosen where `port` is 0."""
        # The backlog is for tests that open a thousand connections at once.
        self._listener = await asyncio.get_running_loop().create_server(
            self, "127.0.0.1", port, ssl=tls, backlog=2048
        )
        return int(self._listener.sockets[0].getsockname()[1])

    async def abort(self) -> None:
        """Stop listening, drop every connection, and return when their tasks have ended."""
        self._aborted = True
        if self._listener is not None:
            await _close_listener(self._listener)
        for transport in list(self._transports.values()):
            transport.abort()
        # `connections` is aiohttp's own list: a handler leaves it when its task is done. Nothing
        # tells of that, and it is a few turns away, so turns are taken.
        while self.connections:  # noqa: ASYNC110
            await asyncio.sleep(0)


class Exchange:
    """One answer being given; `ended_by_server` tells its own breaks from a client's leaving."""

    __slots__ = (
        "_ping_seconds",
        "_request",
        "_response",
        "_resumed",
        "ended_by_server",
        "received",
    )

    def __init__(
        self, request: web.BaseRequest, received: ReceivedRequest, resumed: asyncio.Event
    ) -> None:
        self.received = received
        self.ended_by_server = False
        self._request = request
        self._response = web.StreamResponse()
        # The event of the moment of arrival: a `resume` that comes before the stall counts too.
        self._resumed = resumed
        self._ping_seconds: float | None = None

    async def play(self, reply: Reply, answer: Answer) -> web.StreamResponse:
        """Send `answer` as `reply` tells; returns only if the connection is to live on."""
        script = reply.script
        self._ping_seconds = script.ping_seconds
        await anyio.sleep(script.delay_seconds)
        await self._strike(answer, BEFORE_HEADERS)
        await self._send_headers(answer)
        for offset, piece in answer.writes():
            await self._strike(answer, offset)
            if offset:
                await anyio.sleep(script.drip_seconds)
            await self._write(piece)
        await self._strike(answer, len(answer.body))
        await self._response.write_eof()
        if script.closes_after:
            await self._end("cut")
        return self._response

    async def _send_headers(self, answer: Answer) -> None:
        self._response.set_status(answer.status)
        self._response.headers.update(answer.headers)
        if not answer.chunked:
            self._response.content_length = len(answer.body)
        await self._response.prepare(self._request)

    async def _write(self, piece: bytes) -> None:
        await self._response.write(piece)
        await _give_turns(_TURNS_PER_WRITE)

    async def _strike(self, answer: Answer, offset: int) -> None:
        """Do what goes wrong at this offset of the body."""
        for at, kind in answer.faults:
            if at == offset:
                await (self._stall() if kind == "stall" else self._end(kind))

    async def _stall(self) -> None:
        # Before the headers there is no body to put a comment in.
        ping_seconds = self._ping_seconds if self._response.prepared else None
        while not self._resumed.is_set():
            with anyio.move_on_after(ping_seconds):
                await self._resumed.wait()
            if not self._resumed.is_set():
                await self._write(b": ping\n\n")

    async def _end(self, kind: Literal["cut", "reset"]) -> None:
        """End the connection; its loss then cancels this task."""
        self.ended_by_server = True
        transport = self._request.transport
        assert transport is not None  # its loss would have cancelled this task before now
        if kind == "cut":
            transport.close()
        else:
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
            transport.abort()
        await anyio.sleep_forever()


def _unbounded(
    message: RawRequestMessage,
    payload: aiohttp.StreamReader,
    protocol: web.RequestHandler,
    writer: AbstractStreamWriter,
    task: "asyncio.Task[None]",
) -> web.BaseRequest:
    """Make a request whose body may be of any size: images go far beyond aiohttp's 1 MiB."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(message, payload, protocol, writer, task, loop, client_max_size=0)


async def _close_listener(listener: asyncio.Server) -> None:
    """Close it when no connection is half accepted.

    In Python 3.11 one that is loses its socket to an AssertionError in `Server._attach`.
    """
    loop = asyncio.get_running_loop()
    # Only the selector loops accept by a reader, and only they have the fault.
    with suppress(NotImplementedError):
        for listening in listener.sockets:
            loop.remove_reader(listening.fileno())
    await _give_turns(_TURNS_PER_ACCEPT)
    listener.close()


async def _give_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)
