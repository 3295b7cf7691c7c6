"""One answer's body, read by pulling, under the bounds of a `Timeout`.

Not here: sending, what the bytes mean. Beside `session` the only importer of aiohttp's client.
"""

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

import aiohttp
import anyio.lowlevel

from asyncchat.errors import (
    APIConnectionError,
    APIError,
    APITimeoutError,
    AsyncChatError,
    LimitExceeded,
    PoolClosed,
    ProtocolError,
    StreamStalled,
    printable,
)
from asyncchat.policy.timeout import Timeout
from asyncchat.protocol.response import HTTP

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Reply", "Sender", "late", "now"]

_LINGER_SECONDS = 0.25  # for the end of a body whose end mark has come

_TURN_SECONDS = 0.002  # how long a fast server may be read without letting others run

now = time.monotonic


def late(phase: str, bound: float | None, endpoint: str, hint: str = "") -> APITimeoutError:
    """Return the error for a bound that ran out before the first event."""
    what = {
        "line": "no turn",
        "connect": "no connection",
        "first": "no answer",
        "idle": "nothing more of the answer came",
        "total": "the answer was not complete",
    }[phase]
    error = APITimeoutError(
        f"{what} within {bound:g} s {'at' if phase == 'line' else 'from'} {endpoint}",
        hint=hint or f"Timeout({phase}=...) sets this bound.",
        endpoint=endpoint,
        retryable=phase not in ("line", "total"),
    )
    error.phase = phase
    return error


class _Expired(Exception):
    """A bound ran out while a read waited."""

    def __init__(self, phase: str) -> None:
        super().__init__(phase)
        self.phase = phase


class Sender(Protocol):
    """What has sent a request, to its reply."""

    def redact(self, text: str) -> str:
        """Return a server's words without the keys it was sent."""
        ...

    def ended(self, reply: "Reply") -> None:
        """Hear that the reply is over."""
        ...


class Reply:
    """One answer's body, read by pulling.

    Bounds are watched by one timer for the whole reply, armed when a read first has to wait and set again only when it
    strikes: a read that waits costs one look at the clock.
    """

    __slots__ = (
        "_bounds",
        "_content",
        "_deadline",
        "_endpoint",
        "_failure",
        "_has_begun",
        "_kept",
        "_lingering",
        "_patience",
        "_response",
        "_sender",
        "_timer",
        "_waiting_since",
        "arrived_at",
        "content_type",
        "counts_events",
        "headers",
        "on_failed",
        "status",
    )

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        endpoint: str,
        bounds: Timeout,
        deadline: float | None,
        *,
        spent: float = 0.0,
        sender: "Sender",
    ) -> None:
        self._endpoint = endpoint
        self._sender = sender
        self._response: aiohttp.ClientResponse | None = response
        self._content = response.content
        self._bounds = bounds
        self._deadline = deadline
        self._timer: asyncio.TimerHandle | None = None
        self._waiting_since: float | None = None
        self.arrived_at = now()
        """When the last read had its data, on this module's clock."""
        self.counts_events = not bounds.keepalive_is_life
        """Whether only events show that the server is alive: `alive` then wants to hear of each."""
        self._patience = None if bounds.first is None else max(bounds.first - spent, 0.0)
        self._has_begun = False
        self._lingering: aiohttp.ClientResponse | None = None
        self._failure: Exception | None = None
        self._kept = b""  # what was read when others had their turn
        self.on_failed: Callable[[], None] | None = None
        """Called when the answer is ended from outside, by its client or its loop, whether or not anybody reads it."""
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self.content_type = self.headers.get("content-type", "")

    @property
    def http(self) -> HTTP:
        """Status and headers, for the answer to carry."""
        return HTTP(self.status, self.headers, self.headers.get("x-request-id"))

    # -------------------------------------------------------------------------------------- read

    async def read(self) -> bytes:
        """Return what has arrived or arrives next, `b""` at the end of the body.

        What is there already is taken without waiting, but not for longer than a turn: a server that sends as fast as we
        read must not keep the loop to itself.

        Raises:
            APITimeoutError: `first` or the deadline ran out.
            StreamStalled: `idle` or the deadline ran out after the first event.
            APIConnectionError: the connection was lost.
        Cancellation: safe; nothing that arrived is lost.
        """
        content, data = self._content, b""
        try:
            data = self._kept or content.read_nowait()
            if data:
                if now() - self.arrived_at > _TURN_SECONDS:
                    self._kept = data
                    await anyio.lowlevel.checkpoint()
                    self.arrived_at = now()
                self._kept = b""
                return data
            if not content.is_eof():
                self._waiting_since = now()
                if self._timer is None:
                    self._set_timer()
                data = await content.readany()
        except Exception as error:  # noqa: BLE001  whatever the transport stored
            self._failure = self._failure or error
            error.__traceback__ = None  # what the transport keeps would keep its frames alive
            data = self._left_over()
        finally:
            if self._waiting_since is not None:
                self._waited()
        if data:
            return data
        if self._failure is not None:
            failure = self._mapped(self._failure)
            self.close()
            try:
                raise failure
            finally:
                del failure  # else its traceback's frames, of which this is one, keep it alive
        self._end()
        return b""

    async def read_some(self, most: int) -> bytes:
        """Return the beginning of the body, whatever goes wrong after it."""
        pieces: list[bytes] = []
        size = 0
        try:
            while size < most and (data := await self.read()):
                pieces.append(data)
                size += len(data)
        except (APIError, PoolClosed):
            pass  # the status says enough
        return b"".join(pieces)[:most]

    async def read_all(self, most: int) -> bytes:
        """Return the whole body.

        Raises:
            LimitExceeded: it is larger than `most` bytes. And as `read`.
        """
        content = self._content
        if content.is_eof() and content.exception() is None:
            pieces = [content.read_nowait()]  # it has come with its headers, as short ones do
            self._end()
            size = len(pieces[0])
        else:
            pieces, size = [], 0
            while size <= most and (data := await self.read()):
                pieces.append(data)
                size += len(data)
        if size > most:
            self.close()
            raise LimitExceeded(f"the answer is larger than {most} bytes")
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _left_over(self) -> bytes:
        """What arrived before the failure and was not read yet: aiohttp itself would drop it."""
        content = self._content
        buffered = getattr(content, "_read_nowait", None)
        if buffered is None:
            return b""
        try:
            left: bytes = buffered(-1)
        except Exception:  # noqa: BLE001  a private name: if it fails, only the last bytes are lost
            return b""
        return left

    def alive(self, *, watched: bool = True) -> None:
        """Say that an event came: from now on `idle` is the bound, and it starts anew.

        Unless `watched`, no timer is set before a read has to wait: for a body that is read in one go.
        """
        if self._response is None:
            return  # it is over, and nothing is left to be watched
        self._patience = self._bounds.idle
        if not self._has_begun:
            self._has_begun = True
            self._cancel_timer()  # it was set for another bound
            if watched and self._deadline is not None:
                self._set_timer()  # now: a reader that is always behind never waits, and `total` holds for it too

    def signed(self, error: AsyncChatError) -> AsyncChatError:
        """Return an error that the body told, with where it came from, and without the key if the server echoed it."""
        if not isinstance(error, APIError):
            return error
        error.endpoint = error.endpoint or self._endpoint
        error.request_id = error.request_id or self.headers.get("x-request-id")
        error.message = self._sender.redact(error.message)
        error.args = tuple(self._sender.redact(str(part)) for part in error.args)
        for name in ("code", "type", "param"):
            value: object = getattr(error, name)
            if isinstance(value, str):
                setattr(error, name, self._sender.redact(value))
        return error

    # ------------------------------------------------------------------------------------- bounds

    def _bound(self) -> float | None:
        return self._bounds.idle if self._has_begun else self._bounds.first

    def _waited(self) -> None:
        since, self._waiting_since = self._waiting_since, None
        self.arrived_at = now()
        if not self.counts_events:
            self._patience = self._bounds.idle if self._has_begun else self._bounds.first
        elif since is not None and self._patience is not None:
            self._patience = max(0.0, self._patience - (self.arrived_at - since))

    def _set_timer(self) -> None:
        self._timer = None
        since, patience = self._waiting_since, self._patience
        if patience is None:
            at = self._deadline
        else:
            at = now() + (self._bound() or patience) if since is None else since + patience
            at = at if self._deadline is None else min(at, self._deadline)
        if at is not None:
            self._timer = asyncio.get_running_loop().call_later(at - now(), self._strike)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _strike(self) -> None:
        since, patience = self._waiting_since, self._patience
        at = now()
        if self._deadline is not None and at >= self._deadline:
            self.fail(_Expired("total"))
        elif since is not None and patience is not None and at - since >= patience - 0.001:
            self.fail(_Expired("idle" if self._has_begun else "first"))
        else:
            self._set_timer()

    def fail(self, error: Exception) -> None:
        """Wake the reader with an error, and close the connection."""
        if self._lingering is not None:
            self._stop_lingering()
            return
        self._failure = self._failure or error
        self._content.set_exception(error)
        self.close()
        if self.on_failed is not None:
            self.on_failed()

    def disown(self) -> object:
        """Leave the connection to the parent process, untouched, and return what has to be kept of it."""
        kept = (self._response, self._lingering, self._timer, self.on_failed)
        self._response = self._lingering = self._timer = self.on_failed = None
        self._failure = PoolClosed(
            "the answer belongs to the process that this one was forked from"
        )
        self._content.set_exception(self._failure)
        return kept

    def _mapped(self, failure: Exception) -> Exception:
        where = self._endpoint
        if isinstance(failure, PoolClosed):
            return failure
        if isinstance(failure, _Expired):
            bound: float | None = getattr(self._bounds, failure.phase)
            error = late(failure.phase, bound, where)
            if not self._has_begun:
                return error
            stalled = StreamStalled(error.message, hint=error.hint, endpoint=where)
            stalled.phase = failure.phase
            return stalled
        if isinstance(failure, aiohttp.ClientPayloadError) and "ecode" in str(failure):
            return ProtocolError(
                f"the body from {where} is not what its encoding says", endpoint=where
            )
        reason = printable(str(failure), 200) or type(failure).__name__
        if isinstance(failure, aiohttp.ClientPayloadError) and "not completed" in reason:
            reason = "it ended before the body did"  # aiohttp's words speak of its own classes
        return APIConnectionError(
            f"the connection to {where} was lost inside the answer: {reason}", endpoint=where
        )

    # ---------------------------------------------------------------------------------------- end

    def _end(self) -> None:
        """The body is over: the connection has gone back to the pool by itself."""
        self._cancel_timer()
        self._response = None
        self._sender.ended(self)

    def done(self) -> None:
        """The end mark has come: keep the connection if the body ends in a moment, without waiting for it."""
        response = self._response
        if response is None:
            return
        if self._content.is_eof():
            self._end()
        elif self._content.exception() is not None:
            self.close()
        else:
            # Ours until then: a client that is closed meanwhile closes this one too.
            self._cancel_timer()
            self._response, self._lingering = None, response
            self._timer = asyncio.get_running_loop().call_later(
                _LINGER_SECONDS, self._stop_lingering
            )
            self._content.on_eof(self._stop_lingering)

    def _stop_lingering(self) -> None:
        response, self._lingering = self._lingering, None
        if response is not None:
            self._end()
            if not self._content.is_eof():
                _cut_off(response)

    def close(self) -> None:
        """Close the connection now, unless the body is over. Idempotent; awaits nothing."""
        response = self._response
        if response is not None:
            self._end()
            _cut_off(response)


def _cut_off(response: aiohttp.ClientResponse) -> None:
    """Close a response's connection at once: a TLS one would wait for its peer's goodbye otherwise."""
    connection = response.connection
    transport = connection.transport if connection is not None else None
    response.close()
    if transport is not None:
        transport.abort()
