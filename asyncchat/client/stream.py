"""One answer, pulled: bytes into events, on to the caller, and in the end a `Completion`.

Not here: tasks, queues, a timeout object per event; sending and retrying (`pool`). Backpressure is TCP's: nothing is
read that nobody asked for. Closing awaits nothing, so a stream left early frees its connection at once.
"""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from types import TracebackType
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from asyncchat.client.reply import Reply, now
from asyncchat.errors import APIConnectionError, APITimeoutError, AsyncChatError, StreamCut
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.events import ContentDelta, Event
from asyncchat.protocol.response import HTTP, Chunk, Completion, Timing

__all__ = ["ChatStream", "Lease"]

_Item = TypeVar("_Item")
_Mode = Literal["events", "chunks"]


class Lease(Protocol):
    """A place among the requests in flight, held until the answer has ended."""

    def timing(self, first: float | None = None, itl: float | None = None) -> Timing:
        """Return how long the answer took up to now."""
        ...

    def release(self, reader: AnswerReader | None, *, finished: bool = True) -> None:
        """Give the place back. Idempotent."""
        ...


class _Ready:
    """What was read and not yet taken."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: Iterator[Any] = iter(())


class ChatStream(Generic[_Item]):
    """One streamed answer.

    ```python
    async with client.chat.stream("Hi") as stream:
        async for event in stream: ...               # or stream.text(), or stream.chunks()
    stream.completion
    ```

    Use it under `async with`: leaving the block closes the answer, wherever it stands. `await stream.final()` needs
    no block. A stream that `create(stream=True)` gave iterates chunks, and closes when its iterator is dropped.

    Raises, while it is read:
        StreamCut: the answer ended without an end mark.
        StreamStalled: a bound of `Timeout` ran out after the first event.
        APIError: the server told of a failure. Each of these carries the answer so far in `partial`.
    Cancellation: safe anywhere; the answer is closed when the block is left.
    """

    __slots__ = (
        "__weakref__",
        "_completion",
        "_first_at",
        "_first_data",
        "_first_frames",
        "_http",
        "_is_managed",
        "_last_at",
        "_lease",
        "_make_reader",
        "_mode",
        "_open",
        "_reader",
        "_ready",
        "_reply",
        "_state",
    )

    def __init__(
        self,
        start: "Callable[[ChatStream[Any]], Awaitable[None]]",
        make_reader: Callable[[str], AnswerReader],
        *,
        mode: _Mode = "events",
    ) -> None:
        self._open = start
        self._make_reader = make_reader
        self._mode: _Mode = mode
        self._state: Literal["new", "open", "ended", "closed"] = "new"
        self._is_managed = False
        self._reply: Reply | None = None
        self._lease: Lease | None = None
        self._reader: AnswerReader | None = None
        self._ready = _Ready()
        self._first_data: list[bytes] | None = []  # kept until it is known how the stream is read
        self._first_at: float | None = None
        self._first_frames = 0
        self._last_at = 0.0
        self._completion: Completion | None = None
        self._http: HTTP | None = None

    def __repr__(self) -> str:
        return f"ChatStream({self._state})"

    # ------------------------------------------------------------------------------ open and close

    async def start(self) -> None:
        """Send the request and wait for the first event; retried until then. Idempotent."""
        if self._state == "new":
            self._state = "open"
            try:
                await self._open(self)
            except BaseException:
                self._state = "closed"
                raise

    async def begin(self, reply: Reply, lease: Lease) -> None:
        """Take a reply and read it up to its first event, which ends the retries. For the pool."""
        self._reply, self._lease, self._http = reply, lease, reply.http
        reader = self._reader = self._make_reader(reply.content_type)
        self._first_data, ready, self._first_at = [], list[Any](), None
        try:
            data = b"more"
            while data and not reader.frames and not reader.done:
                data = await reply.read()
                self._first_data.append(data)
                ready += self._feed(reader, data)
            self._took(reader)
            if not data or reader.done:
                self._conclude(reader, ready)
        except AsyncChatError as error:
            error.partial = error.partial or reader.snapshot()
            data = b""  # a traceback shows it, and servers echo keys
            raise
        self._ready.items = iter(ready)

    def close(self) -> None:
        """Close the answer now: the connection is freed, the server sees it. Idempotent; awaits nothing."""
        self._state = "ended" if self._state == "ended" else "closed"
        if self._reply is not None:
            self._reply.close()
        if self._lease is not None:
            self._lease.release(self._reader, finished=False)

    async def aclose(self) -> None:
        """Close the answer, as leaving the block does. Idempotent."""
        self.close()

    async def __aenter__(self) -> Self:
        self._is_managed = True
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_state", "") == "open":
            self.close()
            warnings.warn(
                "a stream was dropped unread; use `async with`", ResourceWarning, stacklevel=2
            )

    # ---------------------------------------------------------------------------------------- read

    def __aiter__(self) -> AsyncIterator[_Item]:
        return self._walk(_Items)

    def text(self) -> AsyncIterator[str]:
        """Iterate the text of the first choice as it comes."""
        self._read_as("events")
        return self._walk(_Text)

    def chunks(self) -> AsyncIterator[Chunk]:
        """Iterate OpenAI-shaped chunks, as the server sent them."""
        self._read_as("chunks")
        return self._walk(_Items)

    def events(self) -> AsyncIterator[Event]:
        """Iterate events; the same as iterating the stream, and needed only on one that iterates chunks."""
        self._read_as("events")
        return self._walk(_Items)

    def _walk(self, kind: "type[_Items]") -> "_Items":
        self._first_data = None  # from here on the way of reading is settled
        return kind(self._ready, self._next, self._drop)

    def _drop(self) -> None:
        if not self._is_managed and self._state == "open":
            self.close()

    async def final(self) -> Completion:
        """Read to the end and return the answer. Works without a block; makes no events."""
        try:
            await self.start()
            if self._state == "open" and self._reader is not None:
                self._reader.events = False
                self._mode = "events"
                while self._state == "open":
                    await self._pull()
        finally:
            if not self._is_managed:
                self.close()
        return self.completion

    def _read_as(self, mode: _Mode) -> None:
        """Settle what the stream is read as; what came while it was opened is read again if need be."""
        if mode == self._mode:
            return
        if self._first_data is None:
            raise RuntimeError(f"the stream is being read as {self._mode} already")
        self._mode = mode
        if self._reader is None:
            return
        ended = self._state == "ended"
        reader = self._reader = self._make_reader(self._reader.content_type)
        ready = [item for data in self._first_data for item in self._feed(reader, data)]
        if ended:
            ready += [*self._ended(reader), *self._finish(reader)]
        self._ready.items = iter(ready)

    async def _next(self) -> Any:  # noqa: ANN401  an Event or a Chunk, by mode
        try:
            if self._state == "new":
                await self.start()
            self._first_data = None
            while True:
                for item in self._ready.items:
                    return item
                if self._state != "open":
                    break
                self._ready.items = iter(await self._pull())
        except BaseException:
            self._drop()  # no block will close what an error or a cancellation ends
            raise
        if self._state == "closed":
            raise RuntimeError(
                "the stream was closed before its end; see `snapshot` for what came"
            )
        raise StopAsyncIteration

    async def _pull(self) -> list[Any]:
        """Read once and return what that brought; the end of the answer is one of the things it can bring."""
        reader, reply = self._reader, self._reply
        assert reader is not None
        assert reply is not None
        try:
            if reader.error is not None:
                return self._finish(reader)
            try:
                data = await reply.read()
            except APIConnectionError as error:
                if reader.is_finished and not isinstance(error, APITimeoutError):
                    return self._finish(reader)  # whole, though its connection broke after that
                raise
            frames = reader.frames
            items = self._feed(reader, data)
            if reader.frames > frames:
                self._last_at = reply.arrived_at
                if reply.counts_events:
                    reply.alive()
                if self._first_at is None:
                    self._took(reader)
            if not data or reader.done:
                self._conclude(reader, items)
        except AsyncChatError as error:
            data = b""  # a traceback shows it, and servers echo keys
            raise self._failed(error) from None
        return items

    def _conclude(self, reader: AnswerReader, items: list[Any]) -> None:
        """Add what the end of the body brings. What came before a failure goes out first: it meets the next read."""
        items += self._ended(reader)
        if not items or reader.error is None:
            items += self._finish(reader)

    def _feed(self, reader: AnswerReader, data: bytes) -> list[Any]:
        return reader.feed_chunks(data) if self._mode == "chunks" else reader.feed(data)

    def _ended(self, reader: AnswerReader) -> list[Any]:
        return reader.end_chunks() if self._mode == "chunks" else reader.end()

    def _took(self, reader: AnswerReader) -> None:
        if reader.frames and self._reply is not None:
            self._reply.alive()
        if reader.has_said:
            self._first_at = self._last_at = now()
            self._first_frames = reader.frames

    # ----------------------------------------------------------------------------------------- end

    def _finish(self, reader: AnswerReader) -> list[Any]:
        """The body is over, or its end mark has come: return its last events, or raise what it ended with."""
        timing, chunks = self._timing(reader), self._mode == "chunks"
        last: list[Any] = reader.close_chunks(timing) if chunks else reader.close(timing)
        assert reader.completion is not None
        assert self._reply is not None
        assert self._lease is not None
        self._completion = reader.completion
        self._completion.http = self._http
        self._state = "ended"
        self._reply.done()
        self._lease.release(reader)
        return last

    def _failed(self, error: AsyncChatError) -> AsyncChatError:
        """Close, and give the error what it should carry."""
        reader = self._reader
        self.close()
        if isinstance(error, APIConnectionError) and not isinstance(error, APITimeoutError):
            error = StreamCut(error.message, hint="`partial` holds what had come.")
        if reader is not None and error.partial is None:
            error.partial = reader.snapshot()
        return error if self._reply is None else self._reply.signed(error)

    def _timing(self, reader: AnswerReader) -> Timing:
        assert self._lease is not None
        first, events = self._first_at, reader.frames - self._first_frames
        itl = (self._last_at - first) / events if first is not None and events > 0 else None
        return self._lease.timing(first, itl)

    # -------------------------------------------------------------------------------------- results

    @property
    def completion(self) -> Completion:
        """The finished answer.

        Raises:
            RuntimeError: the stream has not ended; `snapshot` gives what there is.
        """
        if self._completion is None:
            raise RuntimeError(
                "the stream was not read to its end; `snapshot` gives the answer so far"
            )
        return self._completion

    @property
    def snapshot(self) -> Completion:
        """The answer so far, built when read."""
        if self._completion is not None:
            return self._completion
        return Completion() if self._reader is None else self._reader.snapshot()

    @property
    def http(self) -> HTTP | None:
        """Status and headers, once there are any."""
        return self._http


class _Items:
    """Walks what a stream brings. A stream that no block manages ends with it: `break` frees the connection."""

    __slots__ = ("_advance", "_drop", "_ready")

    def __init__(
        self, ready: "_Ready", advance: Callable[[], Awaitable[Any]], drop: Callable[[], None]
    ) -> None:
        self._ready = ready
        self._advance = advance
        self._drop = drop

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401  an Event or a Chunk, by the stream's mode
        for item in self._ready.items:
            return item
        return await self._advance()

    def __del__(self) -> None:
        self._drop()


class _Text(_Items):
    """Walks the text of the first choice."""

    __slots__ = ()

    async def __anext__(self) -> str:
        while True:
            item = await super().__anext__()
            if type(item) is ContentDelta and not item.choice:
                return item.delta
