"""A stream as the body of a streaming HTTP response: server-sent events, for any framework that sends an iterator of bytes.

Not here: the formats, a framework. The body is an object and not an async generator: whoever drops it, closes it or is
cancelled while waiting for it closes the upstream request at that moment, without an await.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from types import MappingProxyType, TracebackType
from typing import Any, Self

import anyio

from asyncchat.bridges.coalesce import coalesce
from asyncchat.bridges.formats import BODY_FORMATS, BodyFormat, Format, format_for
from asyncchat.bridges.pump import Pump
from asyncchat.client.stream import ChatStream
from asyncchat.errors import AsyncChatError
from asyncchat.protocol.response import Completion

__all__ = ["SSEBody", "sse"]

_KEEPALIVE = b": keep-alive\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold tokens back
}


class SSEBody:
    """The body of a streaming HTTP response: iterate it once, for bytes. Made by `sse`.

    A failure of the upstream is told to the reader in the format's own way, after which the body ends: the status was sent
    long before. `error` has it, and the logger `asyncchat` tells of it. A body that is left early closes the upstream request: when its iteration is cancelled,
    when it is closed, and when it is dropped.
    """

    __slots__ = (
        "__weakref__",
        "_format",
        "_has_begun",
        "_is_over",
        "_keepalive",
        "_pump",
        "_stream",
        "_task",
    )

    media_type = "text/event-stream"
    """The content type, for frameworks that want it apart from the headers."""

    def __init__(self, stream: ChatStream[Any], made: Format, *, keepalive: float) -> None:
        self._stream = stream
        self._format = made
        self._keepalive = keepalive
        self._pump = Pump(stream, made.reads)
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._is_over = False

    def __repr__(self) -> str:
        return f"SSEBody({type(self._format).__name__})"

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers that the response should have, names in lower case."""
        return MappingProxyType({**_HEADERS, **self._format.headers})

    @property
    def error(self) -> Exception | None:
        """What the upstream failed with, once it has."""
        return self._pump.error

    @property
    def completion(self) -> Completion:
        """The finished answer; RuntimeError before the end. `stream.snapshot` gives the answer so far."""
        return self._stream.completion

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._is_over:
            if self.error is not None and not isinstance(self.error, AsyncChatError):
                raise self.error  # no failure of the upstream: a mistake, for the framework to log
            raise StopAsyncIteration
        try:
            return await self._next()
        except BaseException:
            self.close()
            raise

    async def _next(self) -> bytes:
        if not self._has_begun:
            self._has_begun = True
            # Owned by this object and not by a task group: keep-alives go out while the first token is waited for, so
            # something has to wait for it between two calls of `__anext__`, and no block of a caller spans those.
            self._task = asyncio.get_running_loop().create_task(self._pump.run())
            begun = self._lines(self._format.begin())
            if begun:
                return begun
        with anyio.move_on_after(self._keepalive):
            while True:
                await self._pump.wait()
                taken = self._taken()
                if taken:  # an empty piece would end a chunked body
                    return taken
        return _KEEPALIVE

    def _taken(self) -> bytes:
        """What has come, and the end if that has come too."""
        pump, made = self._pump, self._format
        items, is_over = pump.take(), pump.is_over
        if made.reads == "events":
            items = coalesce(items)
        messages = [message for item in items for message in made.feed(item)]
        if is_over:
            self._is_over = True
            messages += pump.last(made)
            if made.after_last is not None:
                messages.append(made.after_last)
        return self._lines(messages)

    @staticmethod
    def _lines(messages: list[bytes]) -> bytes:
        return b"".join(b"data: %b\n\n" % message for message in messages)

    def close(self) -> None:
        """End the body, and the upstream request with it. Idempotent; awaits nothing."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._stream.close()

    async def aclose(self) -> None:
        """As `close`. Idempotent."""
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_is_over", True):
            with suppress(RuntimeError):  # the loop has ended, and closed everything itself
                self.close()


def sse(
    stream: ChatStream[Any],
    format: BodyFormat = "openai",  # noqa: A002  the documented name
    *,
    keepalive: float = 15.0,
    message_id: str | None = None,
    thread_id: str | None = None,
    run_id: str | None = None,
) -> SSEBody:
    """Return a stream as the body of a streaming HTTP response.

    Hand over a stream that was not started: then the reader is watched from the first moment on.

    Args:
        stream: what `client.chat.stream(...)` gives.
        format: `openai`, chunks as OpenAI's API sends them; `ui`, the UI message stream of the Vercel AI SDK; `agui`, the
            events of AG-UI.
        keepalive: seconds of silence after which a comment is sent, which readers skip and proxies see.
        message_id: with `ui` and `agui`, the id of the message in the reader.
        thread_id: with `agui`, what the request named; so is `run_id`.
        run_id: as `thread_id`.

    Raises:
        ValueError: no such format, `resume="restart"`, which none of them can say, or `agui` without its ids.
        ImportError: `agui` without the extra `agui`.
    """
    made = format_for(
        stream,
        format,
        BODY_FORMATS,
        message_id=message_id,
        thread_id=thread_id,
        run_id=run_id,
    )
    return SSEBody(stream, made, keepalive=keepalive)
