"""One answer, pulled: bytes into events, on to the caller, and in the end a `Completion`.

Not here: tasks, queues, a timeout object per event; sending and retrying (`pool`). Backpressure is TCP's: nothing is
read that nobody asked for. Closing awaits nothing, so a stream left early frees its connection at once.
"""

import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, Self, TypeVar

from asyncchat.client.reply import Reply, now
from asyncchat.errors import (
    APIConnectionError,
    APITimeoutError,
    AsyncChatError,
    OutputMismatch,
    StreamCut,
    StreamStalled,
)
from asyncchat.policy.retry import Resume
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.events import ContentDelta, Event, Resumed
from asyncchat.protocol.parsed import read_value
from asyncchat.protocol.partial import Elements, PartialJSON
from asyncchat.protocol.response import HTTP, Chunk, Completion, Timing
from asyncchat.protocol.schema import OutputType

if TYPE_CHECKING:
    from asyncchat.bridges.formats import FrameFormat
    from asyncchat.bridges.pipe import OnMessage

__all__ = ["ChatStream", "Lease", "Opened"]

_Item = TypeVar("_Item")
_Mode = Literal["events", "chunks"]

_NO_RESTART = (
    "resume='restart' makes what came before void, which {} cannot say: iterate the events, "
    "await final(), or use resume='continue'."
)
_NO_CHUNKS = "resume= is told by an event, which chunks have no place for: iterate the events, or await final()."


class Lease(Protocol):
    """A place among the requests in flight, held until the answer has ended."""

    def timing(self, first: float | None = None, itl: float | None = None) -> Timing:
        """Return how long the answer took up to now."""
        ...

    def began(self, reply: Reply) -> None:
        """The first event is there. Idempotent."""
        ...

    def finished(self, reader: AnswerReader, answer: Completion) -> None:
        """The answer is whole: give the place back."""
        ...

    def failed(self, error: AsyncChatError, reader: AnswerReader, *, goes_on: bool) -> None:
        """The answer broke off: give the place back. `goes_on` says that it will be taken up again."""
        ...

    def left(self, reader: AnswerReader | None = None) -> None:
        """Nobody wants the rest: give the place back. Idempotent."""
        ...


class Opened:
    """An answer up to its first event: what an attempt at a stream gives."""

    __slots__ = (
        "data",
        "first_at",
        "first_frames",
        "is_over",
        "items",
        "lease",
        "reader",
        "reply",
    )

    def __init__(self, reply: Reply, lease: Lease, reader: AnswerReader) -> None:
        self.reply = reply
        self.lease = lease
        self.reader = reader
        self.data: list[bytes] = []  # kept until it is known how the stream is read
        self.items: list[Any] = []
        self.is_over = False
        self.first_at: float | None = None
        self.first_frames = 0

    def drop(self) -> None:
        """Close an answer that nobody will read."""
        self.reply.close()
        self.lease.left(self.reader)


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
        "_frames_before",
        "_http",
        "_is_managed",
        "_last_at",
        "_lease",
        "_make_reader",
        "_mode",
        "_open",
        "_output",
        "_reader",
        "_ready",
        "_reply",
        "_resume",
        "_resumed",
        "_resumes",
        "_state",
    )

    def __init__(
        self,
        start: "Callable[[ChatStream[Any]], Awaitable[Opened]]",
        make_reader: Callable[[str], AnswerReader],
        *,
        mode: _Mode = "events",
        resume: "Callable[[ChatStream[Any], Any, str], Awaitable[Opened]] | None" = None,
        resumes: Resume | None = None,
        output: OutputType[Any] | None = None,
    ) -> None:
        self._output = output
        self._open = start
        self._make_reader = make_reader
        self._mode: _Mode = mode
        self._resume = resume
        self._resumes = resumes
        self._resumed = 0
        self._state: Literal["new", "open", "ended", "closed"] = "new"
        self._is_managed = False
        self._reply: Reply | None = None
        self._lease: Lease | None = None
        self._reader: AnswerReader | None = None
        self._ready = _Ready()
        self._first_data: list[bytes] | None = []  # kept until it is known how the stream is read
        self._first_at: float | None = None
        self._first_frames = 0
        self._frames_before = 0  # of readers that another one continued
        self._last_at = 0.0
        self._completion: Completion | None = None
        self._http: HTTP | None = None
        if resumes is not None and mode == "chunks":
            raise ValueError(_NO_CHUNKS)

    def __repr__(self) -> str:
        return f"ChatStream({self._state})"

    # ------------------------------------------------------------------------------ open and close

    async def start(self) -> None:
        """Send the request and wait for the first event; retried until then. Idempotent."""
        if self._state == "new":
            self._state = "open"
            try:
                self._adopt(await self._open(self))
            except BaseException:
                self._state = "closed"
                raise

    async def begin(self, reply: Reply, lease: Lease) -> Opened:
        """Read a reply up to its first event, which ends the retries. For the pool; the stream is not changed."""
        continues = (
            self._resumed and self._resumes is not None and self._resumes.mode == "continue"
        )
        if continues and self._reader is not None:
            reader = self._reader.continued(reply.content_type)
        else:
            reader = self._make_reader(reply.content_type)
        reader.events = self._reader is None or self._reader.events
        opened = Opened(reply, lease, reader)
        try:
            data = b"more"
            while data and not reader.frames and not reader.done:
                data = await reply.read()
                opened.data.append(data)
                opened.items += self._feed(reader, data)
            if not data or reader.done:
                opened.is_over = True
                opened.items += self._ended(reader)
                if reader.error is not None and not (opened.items or reader.frames):
                    reader.finish()  # which raises it
        except AsyncChatError as error:
            error.partial = error.partial or reader.snapshot()
            data = b""  # a traceback shows it, and servers echo keys
            raise
        if reader.frames:
            reply.alive()
        if reader.has_said:
            opened.first_at, opened.first_frames = now(), reader.frames
        lease.began(reply)
        return opened

    def _adopt(self, opened: Opened) -> None:
        """Make an opened answer the one that is read."""
        self._reply, self._lease, self._reader = opened.reply, opened.lease, opened.reader
        self._http = opened.reply.http
        self._first_data = opened.data
        if self._first_at is None:
            self._first_at, self._first_frames = opened.first_at, opened.first_frames
            self._last_at = opened.first_at or 0.0
        items = opened.items
        if opened.is_over and opened.reader.error is None:
            items += self._finish(opened.reader)
        self._ready.items = iter(items)

    def close(self) -> None:
        """Close the answer now: the connection is freed, the server sees it. Idempotent; awaits nothing."""
        self._state = "ended" if self._state == "ended" else "closed"
        if self._reply is not None:
            self._reply.close()
        if self._lease is not None:
            self._lease.left(self._reader)

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
        """Iterate the text of the first choice as it comes.

        Raises:
            ValueError: with `resume="restart"`: text cannot say that what came before is void.
        """
        self._refuse_restart("text()")
        self._read_as("events")
        return self._walk(_Text)

    def items(self) -> AsyncIterator[Any]:
        """Iterate the elements of the list that the answer is to be, each checked and whole, as soon as it is closed.

        Needs `response_format=list[T]`. Each character of the answer is looked at once.

        Raises:
            ValueError: the answer is not to be a list.
            OutputMismatch: an element does not fit.
            RefusalError: the model refused.
            LengthFinishReasonError: the answer was cut at its token limit; so does ContentFilterFinishReasonError by a filter.
        """
        if self._output is None or not self._output.is_list:
            raise ValueError("items() wants a list to come: pass response_format=list[T].")
        self._refuse_restart("items()")
        self._read_as("events")
        elements, decode = Elements("value"), self._output.element_decoder()

        def take(text: str) -> Iterator[Any]:
            return map(decode, elements.feed(text))

        def end() -> Iterator[Any]:
            _ = self.parsed  # which raises what keeps the whole from being one
            return iter(())

        return self._grow(take, end)

    def partials(self, *, every: float = 0.05) -> AsyncIterator[Any]:
        """Iterate the value that the answer is to be, while it grows; the last one is whole and checked.

        Until then the fields of structs and dataclasses are None where nothing has come, strings may be the beginnings of
        what they will be, and a number at the very end may grow. Other types come as plain dicts and lists.

        Args:
            every: seconds between two values at least. In long answers they are further apart, so that the cost of them all
                stays linear.

        Raises:
            ValueError: the answer is not to be of a type.
            OutputMismatch: the whole answer does not fit; the others as `items`.
        """
        if self._output is None:
            raise ValueError("partials() wants a type to come: pass response_format=T.")
        self._refuse_restart("partials()")
        self._read_as("events")
        output, growing, shown = self._output, PartialJSON(), -inf

        def take(text: str) -> Iterator[Any]:
            nonlocal shown
            growing.feed(text)
            if growing.may_parse and now() - shown >= every:
                value = output.partial(growing)
                shown = now()
                if value is not None:
                    yield value

        return self._grow(take, lambda: iter((self.parsed,)))

    def _refuse_restart(self, what: str) -> None:
        if self.may_restart:
            raise ValueError(_NO_RESTART.format(what))

    @property
    def may_restart(self) -> bool:
        """Whether what came may turn out to be void: with `resume="restart"`."""
        return self._resumes is not None and self._resumes.mode == "restart"

    def _grow(
        self, take: Callable[[str], Iterator[Any]], end: Callable[[], Iterator[Any]]
    ) -> AsyncIterator[Any]:
        return _Growing(self._walk(_Items), self._drop, lambda: self.snapshot, take, end)

    @property
    def parsed(self) -> Any:  # noqa: ANN401  of the type that was asked for
        """The finished answer as a value of the type in `response_format=`.

        Raises:
            RuntimeError: the stream has not ended.
            ValueError: no type was asked for.
            OutputMismatch: it does not fit; RefusalError, LengthFinishReasonError, ContentFilterFinishReasonError: why
                there is none. Each carries the answer in `partial`.
        """
        if self._output is None:
            raise ValueError("no type was asked for: pass response_format=T.")
        return read_value(self._output, self.completion)

    def chunks(self) -> AsyncIterator[Chunk]:
        """Iterate OpenAI-shaped chunks, as the server sent them.

        Raises:
            ValueError: with `resume=`: chunks cannot say that an answer was taken up again.
        """
        if self._resumes is not None:
            raise ValueError(_NO_CHUNKS)
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

    async def pipe(
        self,
        ws: object,
        format: "FrameFormat" = "text",  # noqa: A002  the documented name
        *,
        every: float = 0.03,
        send_timeout: float | None = 5.0,
        on_message: "OnMessage | None" = None,
        message_id: str | None = None,
    ) -> Completion:
        """Send the answer to a websocket as it comes, while watching whether its reader is still there.

        Call it on a stream that was not started, `await client.chat.stream(...).pipe(ws)`: then the reader is watched from
        the first moment on. Works without a block. The websocket stays open.

        Args:
            ws: a websocket of aiohttp, Starlette, FastAPI, Litestar or websockets, accepted; or a pair of functions,
                `send(text)` and `receive()`, of which the second returns None or raises OSError once the reader has left.
            format: `text`, words only; `events`, events as JSON; `openai`, chunks, then `[DONE]`; `ui`, the parts of the
                Vercel AI SDK.
            every: seconds between two sends at least. What comes in between goes out in one piece.
            send_timeout: seconds that one send may take before the reader counts as stalled; None for no bound.
            on_message: is awaited with each message of the reader that is not `{"type": "abort"}`; without it they are
                dropped. The next message is taken after that; what still runs when the answer ends is cancelled.
            message_id: with `ui`, the id of the message in the reader.

        Returns:
            The answer, with `ending`: `finished`; or what there is of it, where the reader `left`, was `stalled`, or said
            `{"type": "abort"}`, which is `aborted`. In these cases the upstream request is closed at once.

        Raises:
            APIError: as reading does, after the reader was told, in the format's own way and in words of ours.
            TypeError: no such websocket.
            ValueError: no such format, or `resume="restart"` with one that cannot say it.
        Cancellation: safe anywhere; the answer is closed.
        """
        from asyncchat.bridges.pipe import pipe

        return await pipe(
            self,
            ws,
            format=format,
            every=every,
            send_timeout=send_timeout,
            on_message=on_message,
            message_id=message_id,
        )

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
                if self._first_at is None and reader.has_said:
                    self._first_at = self._last_at = now()
                    self._first_frames = reader.frames
            if not data or reader.done:
                self._conclude(reader, items)
        except AsyncChatError as error:
            data = b""  # a traceback shows it, and servers echo keys
            failure = error
        else:
            return items
        try:
            return await self._broke_off(reader, failure)
        finally:
            del failure  # else its own traceback keeps it alive

    def _conclude(self, reader: AnswerReader, items: list[Any]) -> None:
        """Add what the end of the body brings. What came before a failure goes out first: it meets the next read."""
        items += self._ended(reader)
        if not items or reader.error is None:
            items += self._finish(reader)

    def _feed(self, reader: AnswerReader, data: bytes) -> list[Any]:
        return reader.feed_chunks(data) if self._mode == "chunks" else reader.feed(data)

    def _ended(self, reader: AnswerReader) -> list[Any]:
        return reader.end_chunks() if self._mode == "chunks" else reader.end()

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
        self._lease.finished(reader, self._completion)
        return last

    async def _broke_off(self, reader: AnswerReader, error: AsyncChatError) -> list[Any]:
        """Close, and raise what ended the answer; or take it up again, if that was asked for."""
        assert self._reply is not None
        assert self._lease is not None
        if isinstance(error, APIConnectionError) and not isinstance(error, APITimeoutError):
            error = StreamCut(error.message, hint="`partial` holds what had come.")
        if error.partial is None:
            error.partial = reader.snapshot()
        error = self._reply.signed(error)
        goes_on = self._may_resume(error)
        self._reply.close()
        self._lease.failed(error, reader, goes_on=goes_on)
        if not goes_on:
            self.close()
            try:
                raise error from None
            finally:
                del error  # else its own traceback keeps it alive
        assert self._resume is not None
        assert self._resumes is not None
        self._resumed += 1
        said = "" if error.partial is None else error.partial.text
        try:
            opened = await self._resume(self, self._lease, said)
        except BaseException:
            self.close()
            raise
        if self.may_restart:
            self._first_at = None
        else:
            self._frames_before += reader.frames
        self._adopt(opened)
        self._first_data = None
        return [Resumed(self._resumes.mode, error.message), *self._ready.items]

    def _may_resume(self, error: AsyncChatError) -> bool:
        """Whether the caller wants more than the error, and there is a way."""
        if self._resumes is None or self._resumed >= self._resumes.most:
            return False
        cut = isinstance(error, (StreamCut, StreamStalled)) or error.retryable
        if not cut or (isinstance(error, APITimeoutError) and error.phase == "total"):
            return False
        if self.may_restart:
            return True
        choices = error.partial.choices if error.partial is not None else []
        if len(choices) != 1:
            return False
        message = choices[0].message
        odd = message.tool_calls or message.function_call or message.refusal or message.audio
        return bool(message.content) and not odd

    def _timing(self, reader: AnswerReader) -> Timing:
        assert self._lease is not None
        first = self._first_at
        events = self._frames_before + reader.frames - self._first_frames
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


class _Growing:
    """Walks values made of the text of the first choice; `end` gives what comes when that is whole."""

    __slots__ = ("_drop", "_end", "_events", "_made", "_so_far", "_take")

    def __init__(
        self,
        events: AsyncIterator[Event],
        drop: Callable[[], None],
        so_far: Callable[[], Completion],
        take: Callable[[str], Iterator[Any]],
        end: Callable[[], Iterator[Any]],
    ) -> None:
        self._events = events
        self._drop = drop
        self._so_far = so_far
        self._take = take
        self._end: Callable[[], Iterator[Any]] | None = end
        self._made: Iterator[Any] = iter(())

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401  of the type that was asked for
        while True:
            try:
                for value in self._made:
                    return value
            except OutputMismatch as error:
                error.partial = error.partial or self._so_far()
                self._drop()
                raise
            try:
                item = await anext(self._events)
            except StopAsyncIteration:
                if self._end is None:
                    raise
                end, self._end = self._end, None
                self._made = end()
            else:
                if type(item) is ContentDelta and not item.choice:
                    self._made = self._take(item.delta)


class _Text(_Items):
    """Walks the text of the first choice."""

    __slots__ = ()

    async def __anext__(self) -> str:
        while True:
            item = await super().__anext__()
            if type(item) is ContentDelta and not item.choice:
                return item.delta
