"""aiohttp's connections, made safe for answers that take minutes.

Not here: requests, answers. The only place that touches aiohttp's private names, and it looks at them first: where one is
missing, making a session raises and says which versions fit.

What aiohttp 3.14 does when left alone, and what is done about it:

- A framing error in the body, or a close, never wakes a reader that waits: both now fail the read at once.
- Bytes that no request asked for are handed to the next one: such a connection is not used again.
- A request cannot tell whether its connection has carried another one before: `Use` does.
- Closing a TLS connection waits for the peer's goodbye: one that a request has given up is cut off.
- A peer behind a NAT that forgot the connection is silent for ever: TCP keepalive finds out.
"""

import asyncio
import functools
import socket
import ssl
from contextvars import ContextVar
from typing import Any, Self

import aiohttp
from aiohttp.client_proto import ResponseHandler

__all__ = ["Use", "make_connector"]

_READ_BYTES = 2**16
_PRIVATE = ("_payload", "_buffer", "_tail", "_exception")


class Use:
    """What one request learns of its connection."""

    __slots__ = ("ended_at", "previous", "reused")

    def __init__(self) -> None:
        self.reused: bool | None = None  # None: the connector is not ours and does not say
        self.previous: Use | None = None
        self.ended_at: float | None = None

    @classmethod
    def of_this_request(cls) -> Self:
        """Make one that the next connection of the running task fills in."""
        task = id(asyncio.current_task())
        slot = _slot_of(task)
        if slot is None:
            slot = _Slot(task)
            _SLOT.set(slot)
        made = slot.use = cls()
        return made


class _Slot:
    """Where a task's connections find what to fill in: made once for a task, since setting a context variable costs more.

    A task has the context of the one that started it, and so its slot: the id tells whose it is, among those that live.
    """

    __slots__ = ("task", "use")

    def __init__(self, task: int) -> None:
        self.task = task
        self.use: Use | None = None


_SLOT: ContextVar[_Slot | None] = ContextVar("asyncchat_slot", default=None)


def _slot_of(task: int) -> _Slot | None:
    slot = _SLOT.get()
    return slot if slot is not None and slot.task == task else None


class _Guarded(ResponseHandler):
    """One connection, whose reader is woken by everything that ends it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if hasattr(transport, "max_size"):
            # asyncio's selector transport asks for 256 KiB per read, which the allocator maps and unmaps each time;
            # a quarter of that stays in its free lists (benchmarks/bench_stream, "paced", in a fresh process).
            vars(transport)["max_size"] = _READ_BYTES

    def _wake(self, error: Exception) -> None:
        payload = self._payload
        if payload is not None and not payload.is_eof() and payload.exception() is None:
            payload.set_exception(error)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        self._wake(aiohttp.ClientPayloadError("the body breaks the rules of HTTP"))
        super().set_exception(exc, *(() if exc_cause is None else (exc_cause,)))

    def close(self) -> None:
        self._wake(aiohttp.ClientConnectionError("the connection was closed"))
        use, transport = self.__dict__.get("asyncchat_use"), self.transport
        super().close()
        if transport is not None and use is not None and use.ended_at is None:
            transport.abort()

    def is_connected(self) -> bool:
        """Tell the pool whether this connection can carry another request."""
        unasked = self._buffer or self._tail or self._exception is not None
        return super().is_connected() and not unasked


class _Connector(aiohttp.TCPConnector):
    """A pool of guarded connections that tell a request whether they carried another one before."""

    def guard(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Make every connection a guarded one; say whether this aiohttp allows it."""
        made = _Guarded(loop)
        if not hasattr(self, "_factory") or any(not hasattr(made, name) for name in _PRIVATE):
            return False
        factory: Any = functools.partial(_Guarded, loop=loop)
        self._factory = factory
        return True

    async def connect(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  aiohttp's signature, passed on
        connection = await super().connect(*args, **kwargs)
        slot = _slot_of(id(asyncio.current_task()))
        use = None if slot is None else slot.use
        if use is not None:
            about = connection.protocol.__dict__
            use.previous = about.get("asyncchat_use")
            use.reused = use.previous is not None
            if use.previous is not None:
                use.previous.previous = None  # else each request would keep all before it alive
            about["asyncchat_use"] = use
        return connection


def make_connector(ssl_context: ssl.SSLContext | None) -> aiohttp.TCPConnector:
    """Make a pool of connections for the running loop. Its size is bounded elsewhere.

    Raises:
        RuntimeError: this aiohttp is built otherwise, and what it does when left alone cannot be mended.
    """
    connector = _Connector(
        limit=0, ssl=True if ssl_context is None else ssl_context, socket_factory=_keepalive_socket
    )
    if not connector.guard(asyncio.get_running_loop()):
        raise RuntimeError(
            f"aiohttp {aiohttp.__version__} is built otherwise than this version of asyncchat knows. "
            "Upgrade asyncchat, or install aiohttp 3.14."
        )
    return connector


def _keepalive_socket(address: Any) -> socket.socket:  # noqa: ANN401  aiohttp's AddrInfoType
    """A socket that asks a silent peer whether it is still there."""
    family, kind, protocol = address[:3]
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 30), ("TCP_KEEPCNT", 4)):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
    return made
