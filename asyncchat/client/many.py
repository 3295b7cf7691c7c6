"""Many prompts, read lazily and answered at once: `map` and `gather`.

Not here: rates and retries (the pool has them), a record that outlives the process. What is alive and what waits for a slow
reader is bounded, so a million prompts, or a source without end, take no more memory than a hundred.
"""

import asyncio
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from types import TracebackType
from typing import Any, Self

import anyio
import msgspec

from asyncchat.client.stream import ChatStream
from asyncchat.client.tasks import BlockTasks, is_being_cancelled
from asyncchat.protocol.events import Event
from asyncchat.protocol.response import Completion

__all__ = ["MapEvent", "MapProgress", "MapResult", "Mapped", "Prompt"]

Prompt = str | Iterable[Any] | Mapping[str, Any]
"""A user message, a list of messages, or the fields of a request, `messages` among them."""


class MapResult(msgspec.Struct):
    """What became of one prompt; `index` is its place among the prompts, from 0."""

    index: int
    completion: Completion | None = None
    error: Exception | None = None

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.error is None

    @property
    def text(self) -> str:
        """What the answer says; `""` where there is none."""
        return "" if self.completion is None else self.completion.text

    @property
    def attempts(self) -> int:
        """How many requests it took; 0 where that is not known, as after a failure."""
        timing = None if self.completion is None else self.completion.timing
        return 0 if timing is None else timing.attempts


class MapEvent(msgspec.Struct, frozen=True):
    """With `stream=True`: an event of the answer to the prompt at `index`."""

    index: int
    event: Event


class MapProgress(msgspec.Struct, frozen=True):
    """How far it is: prompts that are answered, that failed, and that are alive."""

    done: int
    failed: int
    alive: int


class Mapped:
    """The answers to many prompts.

    ```python
    async with client.map(prompts, limit=64) as results:
        async for result in results:
            print(result.index, result.text if result.ok else result.error)
    ```

    At most `limit` are alive; as many results at most wait for a slow reader, and as many again for their turn where the
    order is kept. A failure is a result. Leaving the block cancels the rest.

    Raises, while it is read: what the source of the prompts raises, after the answers to those before.
    Cancellation: safe anywhere; the answers that are alive are closed.
    """

    def __init__(
        self,
        ask: Callable[[Any], ChatStream[Event]],
        prompts: Iterable[Prompt] | AsyncIterable[Prompt],
        limit: int,
        *,
        ordered: bool,
        stream: bool,
        on_progress: Callable[[MapProgress], object] | None,
    ) -> None:
        self._ask = ask
        self._limit = limit
        self._is_ordered = ordered and not stream
        self._is_stream = stream
        self._on_progress = on_progress
        given: object = limit
        if isinstance(given, bool) or not isinstance(given, int) or given < 1:
            raise ValueError(f"limit={limit!r}: it is a whole number from 1 up.")
        self._tasks = BlockTasks()
        self._source = _iterated(prompts)
        self._reading = asyncio.Lock()
        self._room = asyncio.Semaphore(limit * 2 if self._is_ordered else limit)
        self._out: asyncio.Queue[MapResult | MapEvent | None] = asyncio.Queue()
        self._event_room = asyncio.Semaphore(limit)
        self._early: dict[int, MapResult] = {}  # whose turn has not come
        self._next = 0  # to be given out
        self._read = 0  # prompts so far
        self._workers = self._alive = self._done = self._failed = 0
        self._is_read = self._is_told = self._is_entered = False
        self._source_error: Exception | None = None

    def __repr__(self) -> str:
        return f"Mapped({self._done} done, {self._failed} failed, {self._alive} alive)"

    async def __aenter__(self) -> Self:
        if self._is_entered:
            raise RuntimeError("a map is entered once; make another one")
        self._is_entered = True
        await self._tasks.open()
        self._hire()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._tasks.close()
        finally:
            self._wake()
            close = getattr(self._source, "aclose", None)
            if close is not None:
                with anyio.CancelScope(shield=True):
                    await close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401  a MapResult, or with `stream=True` a MapEvent
        while True:
            if not self._tasks.is_open:
                raise RuntimeError("a map is read inside `async with`")
            item = self._early.pop(self._next, None) or await self._out.get()
            if item is None:
                self._is_told = False
                is_last = self._out.empty()
                self._wake()  # the next one who asks, after what is still there
                if not is_last or self._next in self._early:
                    continue
                if self._tasks.is_open:
                    raise self._source_error or StopAsyncIteration
            elif isinstance(item, MapEvent):
                self._event_room.release()
                return item
            elif self._is_ordered and item.index != self._next:
                self._early[item.index] = item
            else:
                self._next += 1
                if self._next in self._early:  # another reader may sleep
                    self._out.put_nowait(self._early.pop(self._next))
                self._room.release()
                return item

    def _wake(self) -> None:
        """Tell a reader, behind what it can still have, that there is no more. One such word at a time."""
        if not self._is_told:
            self._is_told = True
            self._out.put_nowait(None)

    # ------------------------------------------------------------------------------------- workers

    def _hire(self) -> None:
        self._workers += 1
        self._tasks.start(self._work)

    async def _work(self) -> None:
        try:
            while True:
                await self._room.acquire()
                if isinstance(self._source, _Stepped):
                    found = await self._take()  # which does not wait
                else:
                    async with self._reading:
                        found = await self._take()
                if found is None:
                    self._room.release()
                    break
                if self._workers < self._limit and not self._is_read:
                    self._hire()  # as many as there are prompts for, and no more
                await self._answer(*found)
        finally:
            self._workers -= 1
            if not self._workers:
                self._wake()

    async def _take(self) -> tuple[int, Prompt] | None:
        """Return the next prompt and its index, or None at the end."""
        if self._is_read:
            return None
        try:
            prompt = await anext(self._source)
        except StopAsyncIteration:
            self._is_read = True
            return None
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  the reader's affair
            self._fail(_own(error))
            return None
        index, self._read = self._read, self._read + 1
        return index, prompt

    async def _answer(self, index: int, prompt: Prompt) -> None:
        self._alive += 1
        result = MapResult(index)
        try:
            stream = self._ask(prompt)
            if self._is_stream:
                async with stream:
                    async for event in stream:
                        await self._event_room.acquire()
                        self._out.put_nowait(MapEvent(index, event))
                result.completion = stream.completion
            else:
                result.completion = await stream.final()
            self._done += 1
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001  one must not sink the rest
            result.error = _own(error)
            self._failed += 1
        finally:
            self._alive -= 1
        self._out.put_nowait(result)
        if self._on_progress is not None:
            try:
                self._on_progress(MapProgress(self._done, self._failed, self._alive))
            except Exception as error:  # noqa: BLE001  the reader's affair
                self._fail(error)
                self._wake()

    def _fail(self, error: Exception) -> None:
        """Read no more; the reader gets the first error."""
        self._is_read = True
        if self._source_error is None:
            self._source_error = error


def _own(error: BaseException) -> Exception:
    """Return an error as a value; a cancellation only if it is not ours, which passes through."""
    if isinstance(error, Exception):
        return error
    if is_being_cancelled():
        raise error
    return RuntimeError("cancelled from inside")


def _iterated(prompts: Iterable[Prompt] | AsyncIterable[Prompt]) -> AsyncIterator[Prompt]:
    if isinstance(prompts, AsyncIterable):
        return aiter(prompts)
    if isinstance(prompts, (str, bytes, Mapping)) or not isinstance(prompts, Iterable):
        raise TypeError(
            f"prompts is a {type(prompts).__name__}; it has to be an iterable of prompts."
        )
    return _Stepped(iter(prompts))


class _Stepped:
    """An iterator, read as an async one is."""

    def __init__(self, source: Iterator[Prompt]) -> None:
        self._source = source

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Prompt:
        for prompt in self._source:
            return prompt
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Close a generator; other iterators are their owner's."""
        if isinstance(self._source, Generator):
            self._source.close()
