"""The batch itself: reads inputs ahead, asks, writes down, and only then gives out.

Not here: files of inputs (`source`), what is on disk (`ledger`), counting for people (`meter`), limits and failover (the pool).
Law: an input has exactly one record that counts, whatever is killed when; what has an answer on record is not asked again.
"""

import asyncio
import resource
import sys
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Generator,
    Iterable,
    Iterator,
    Mapping,
)
from itertools import count, islice
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self, runtime_checkable

import anyio
import anyio.to_thread
import msgspec

from asyncchat.batch.agenda import Agenda
from asyncchat.batch.check import Check
from asyncchat.batch.item import BadItem, Item, Layout, canonical, identity, item_of
from asyncchat.batch.job import report_of
from asyncchat.batch.journal import JobLock
from asyncchat.batch.leased import Holder, LeaseKeeper
from asyncchat.batch.ledger import Differences, Ledger
from asyncchat.batch.meter import BatchProgress, Meter
from asyncchat.batch.options import BatchOptions, Spending, most_in_flight
from asyncchat.batch.record import BatchRecord, Sample, SessionNote
from asyncchat.batch.report import Report
from asyncchat.batch.work import Todo, Work
from asyncchat.client.core import Asker
from asyncchat.client.tasks import BlockTasks, is_being_cancelled
from asyncchat.errors import JournalError, JournalMismatch

__all__ = ["Batch", "BatchRun", "Prepared", "Reading", "Stop"]

_FEWEST_AHEAD = 64
_AHEAD = 2  # inputs read ahead for each worker
_AHEAD_BYTES = 64 * 2**20
_CHUNK = 32  # inputs taken at once from an iterable

Reason = Literal["interrupted", "cap", "endpoint", "journal", "mismatch"]


class Stop(msgspec.Struct, frozen=True):
    """Why a batch ended before its inputs did. What is left is asked for when the same is run again."""

    reason: Reason
    message: str


class Prepared(NamedTuple):
    """A job that others work on: its lock, to be closed after them, what it has cost so far, and what a person should know."""

    lock: JobLock
    spending: Spending
    warnings: list[str]


@runtime_checkable
class Reading(Protocol):
    """Inputs that are read in a thread, such as a `Source`."""

    def read(self) -> list[Item | BadItem]:
        """Return the next inputs; an empty list at the end. Blocks."""
        ...

    def close(self) -> None:
        """Close them."""
        ...


class Batch:
    """A durable batch, made by `client.batch(...)`.

    ```python
    async with client.batch("moons.job") as job:
        async for record in job.run(["Name three moons.", "Name a star."]):
            print(record.custom_id, record.text if record.ok else record.error.message)
    ```

    Running the same again goes on: what is recorded is not asked for again. Leaving the block cancels what is in flight,
    which is then asked for again as well.

    Raises, when it is entered:
        JournalLocked: another process runs it.
        JournalError: the directory cannot be used.
    """

    def __init__(
        self,
        asker: Asker,
        directory: Path,
        options: BatchOptions,
        *,
        check: Check | None = None,
        shard: str = "",
    ) -> None:
        self.directory = directory
        self.options = options
        self.stopped: Stop | None = None
        """Why the last run ended before its inputs did; None where it did not."""
        self.skipped = 0
        """Inputs that had a record already."""
        self._asker = asker
        self._check = check
        self._shard = shard
        self._tasks = BlockTasks()
        self._ledger: Ledger | None = None
        self._run: BatchRun | None = None
        self._meter = Meter(0.0)
        self._keeper: LeaseKeeper | None = None
        self._holder: Holder | None = None
        self._started = self._cpu = 0.0

    def __repr__(self) -> str:
        return f"Batch({str(self.directory)!r})"

    @property
    def recorded(self) -> int:
        """How many inputs had their record when the batch was entered."""
        return 0 if self._ledger is None else self._ledger.known

    @property
    def is_single(self) -> bool:
        """Whether no input has more than one record, or is asked for another one."""
        return self._ledger is not None and not self._ledger.superseded

    @property
    def input(self) -> dict[str, Any] | None:
        """What was said `about` the input of the run before; None where nothing is recorded."""
        return None if self._ledger is None else self._ledger.input

    @property
    def warnings(self) -> list[str]:
        """What a person should know of the records as they were found, one sentence each."""
        return [] if self._ledger is None else self._ledger.warnings

    async def __aenter__(self) -> Self:
        if self._ledger is not None:
            raise RuntimeError("this batch is entered already")
        self._ledger = await self._open()
        if self.options.concurrency == "auto":
            self._asker.pool.adapt()
        self._meter = Meter(asyncio.get_running_loop().time())
        self._started, self._cpu = time.time(), _cpu_seconds()
        self._ledger.note(SessionNote(self._started))
        await self._tasks.open()
        self._tasks.start(self._tick)
        if self._holder is not None:
            self._keeper = LeaseKeeper(self._asker.pool, self._holder)
            self._tasks.start(self._keeper.run)
        return self

    async def _open(self) -> Ledger:
        """Open the records in a thread. Who is cancelled meanwhile leaves no lock behind, however long the thread takes."""
        made: list[Ledger] = []
        passing, is_left = Lock(), False

        def work() -> None:
            ledger = Ledger(self.directory, self.options, shard=self._shard)
            with passing:
                if is_left:
                    ledger.close()
                else:
                    made.append(ledger)

        try:
            await anyio.to_thread.run_sync(work)
        except BaseException:
            with passing:
                is_left = True
                for ledger in made:
                    ledger.close()
            raise
        return made[0]

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._tasks.close()
        finally:
            run, self._run = self._run, None
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                keeper.close()
            with anyio.CancelScope(shield=True):
                if run is not None:
                    await run.close()
                ledger, self._ledger = self._ledger, None
                if ledger is not None:
                    try:
                        self._say_goodbye(ledger, "left" if kind else "end")
                        if self.options.fsync != "never":
                            await anyio.to_thread.run_sync(ledger.sync)
                    finally:
                        ledger.close()

    def share(self, holder: Holder) -> None:
        """Keep within limits that are shared with others, and held by `holder`. To be said before the block begins."""
        self._holder = holder

    def prepare(
        self,
        *,
        layout: Layout | None = None,
        about: Mapping[str, Any] | None = None,
        again: Mapping[str, Any] | None = None,
    ) -> "Prepared":
        """Make the job ready for others who work on it with shards. Blocks.

        Args:
            layout: as for `run`; theirs has to be the same.
            about: likewise.
            again: likewise.

        Raises:
            JournalLocked, JournalMismatch, JournalError: as when a batch is entered and run.
        """
        ledger = Ledger(self.directory, self.options)
        try:
            ledger.begin(about or {}, self._answer_options(layout or Layout()), again or {})
            return Prepared(ledger.hand_over(), ledger.spending, ledger.warnings)
        finally:
            ledger.close()

    def _say_goodbye(self, ledger: Ledger, reason: str) -> None:
        largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ledger.note(
            SessionNote(
                self._started,
                time.time(),
                self.stopped.reason if self.stopped else reason,
                round(_cpu_seconds() - self._cpu, 3),
                largest * (1 if sys.platform == "darwin" else 1024),
            )
        )

    async def _tick(self) -> None:
        """Once a second: sync, and note how the batch stands."""
        assert self._ledger is not None
        while True:
            due = anyio.current_time() + 1.0
            await anyio.sleep(1.0)
            lag = max(anyio.current_time() - due, 0.0)
            in_flight, limit, pause = self.load()
            self._ledger.note(Sample(time.time(), in_flight, limit, pause, round(lag, 4)))
            if self._run is not None:
                self._run.look()
            if self.options.fsync == "1s":
                try:
                    await anyio.to_thread.run_sync(self._ledger.sync)
                except JournalError as error:
                    self.stop("journal", str(error))

    def load(self) -> tuple[int, int, float]:
        """Return how many requests are in flight, how many may be, and for how many seconds more all have to wait."""
        statistics = self._asker.pool.statistics()
        bounds = [one.most for one in statistics.endpoints if one.most is not None]
        limit = sum(bounds) if len(bounds) == len(statistics.endpoints) else self.most
        pause = min((one.paused for one in statistics.endpoints), default=0.0)
        return statistics.in_flight, min(limit, self.most), pause

    def progress(
        self, *, total: int | None = None, position: float | None = None
    ) -> BatchProgress:
        """Return how the batch stands. Costs a fraction of a millisecond.

        Args:
            total: how many inputs there are, where that is known.
            position: how much of them has been read, from 0 to 1, where that is known.
        """
        in_flight, limit, pause = self.load()
        now = asyncio.get_running_loop().time()
        return self._meter.progress(
            now, in_flight=in_flight, limit=limit, pause=pause, total=total, position=position
        )

    @property
    def report(self) -> Report:
        """What became of the batch, over all its runs. Read from disk each time: blocks, some microseconds a record."""
        return report_of(self.directory)

    def skip(self) -> None:
        """Count an input that has its record."""
        self.skipped += 1
        self._meter.skipped(1)

    @property
    def most(self) -> int:
        """How many requests are ever in flight."""
        return most_in_flight(self.options.concurrency)

    def run(
        self,
        requests: "Reading | Iterable[Any] | AsyncIterable[Any]",
        *,
        ordered: bool = False,
        layout: Layout | None = None,
        about: Mapping[str, Any] | None = None,
        again: Mapping[str, Any] | None = None,
    ) -> "BatchRun":
        """Return the records of those inputs that had none, for `async for`, each after it is written down.

        Args:
            requests: a `Source`, or any iterable or async iterable, read lazily, of prompts: a str, a list of messages,
                a dict of the fields of a request, or a line of OpenAI's batch format.
            ordered: whether records come in the order of their inputs, or as they are complete.
            layout: how rows become requests.
            about: what tells this input from another, as JSON.
            again: how to run this again, as JSON: kept in `job.json` for who looks there.

        Raises, while it is read:
            JournalMismatch: the records are of another input, or were made with other options. Nothing more is sent.
            JournalError: the disk is full or broken; what is recorded is safe.
        """
        if self._ledger is None:
            raise RuntimeError("a batch runs inside `async with`")
        if self._run is not None and not self._run.is_over:
            raise RuntimeError("this batch runs already: read its records to the end first")
        layout = layout or Layout()
        self._ledger.begin(about or {}, self._answer_options(layout), again or {})
        self.stopped = None
        self._run = BatchRun(
            self,
            Work(self._ledger, self._asker, self.options, self._check, self._meter),
            _reader(requests, layout),
            self._tasks,
            ordered=ordered,
        )
        return self._run

    def _answer_options(self, layout: Layout) -> dict[str, Any]:
        """Return what changes answers, to be the same in each run."""
        rows = {
            name: getattr(layout, name)
            for name in ("prompt", "system", "messages_column", "id_column")
            if getattr(layout, name) is not None
        }
        return {**self._asker.described(), **rows}

    def compare(self, inputs: Iterable[Item | BadItem]) -> Differences:
        """Hold all inputs against the records, before anything is sent. Blocks."""
        if self._ledger is None:
            raise RuntimeError("a batch is compared inside `async with`")
        found = Differences(gone=self._ledger.known)
        whole = (
            msgspec.structs.replace(one, body=self._asker.complete(one.body))
            if isinstance(one, Item)
            else one
            for one in inputs
        )
        self._ledger.compare(whole, found)
        return found

    def identity_of(self, item: Item) -> str:
        """Return the hash by which an input is known again: of the request with what all have in common.

        Raises:
            TypeError, ValueError: it cannot be sent.
        """
        return identity(canonical(self._asker.complete(item.body)))

    def drain(self, message: str = "interrupted") -> None:
        """Begin nothing more; what is in flight is finished, and the run ends after it. Idempotent."""
        self.stop("interrupted", message)

    def stop(self, reason: Reason, message: str) -> None:
        """Begin nothing more, and say why. The first reason counts."""
        if self.stopped is None:
            self.stopped = Stop(reason, message)
        if self._run is not None:
            self._run.stop()
            if reason != "cap":  # which counts those in line
                self._run.leave_line()


class BatchRun:
    """The records of one run of a batch, as they are written: an async iterator."""

    def __init__(
        self,
        batch: Batch,
        work: Work,
        reader: "_Reader",
        tasks: BlockTasks,
        *,
        ordered: bool,
    ) -> None:
        self._batch = batch
        self._work = work
        self._reader = reader
        self._tasks = tasks
        self._is_ordered = ordered
        self._agenda: Agenda[Todo] = Agenda(
            asyncio.get_running_loop().time, work.health.wait, places=2 * batch.most
        )
        self._out: asyncio.Queue[tuple[Todo, BatchRecord] | None] = asyncio.Queue()
        self._early: dict[int, tuple[Todo, BatchRecord]] = {}  # whose turn has not come
        self._places = self._next = 0
        self._workers = 0
        self._asked: dict[Todo, anyio.CancelScope] = {}  # each with its worker's
        self._is_begun = False
        self.is_over = False
        self._error: Exception | None = None
        work.give = self._give

    def __repr__(self) -> str:
        return f"BatchRun({self._agenda.busy} alive, {len(self._agenda)} waiting)"

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchRecord:
        if not self._is_begun:
            if not self._tasks.is_open:
                raise RuntimeError("the records of a batch are read inside `async with`")
            self._is_begun = True
            self._tasks.start(self._read)
            self._hire()
        while not self.is_over:
            found = self._early.pop(self._next, None) or await self._out.get()
            if found is None:
                if self._early:  # it was stopped, so some will never come
                    self._next = min(self._early)
                    self._tell_end()
                    continue
                self.is_over = True
                self._tell_end()
                break
            todo, record = found
            if self._is_ordered and todo.place != self._next:
                self._early[todo.place] = found
                continue
            self._next += 1
            if not todo.is_follower:
                self._agenda.free()
            return record
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def _give(self, todo: Todo, record: BatchRecord) -> None:
        if todo.is_follower:
            self._agenda.put_aside(-1)
        self._out.put_nowait((todo, record))

    def _tell_end(self) -> None:
        """Tell whoever reads that there is no more."""
        self._out.put_nowait(None)

    def stop(self) -> None:
        """Begin nothing more."""
        self._agenda.stop()

    def leave_line(self) -> None:
        """Give up what has not been sent yet, but waits for a limit, or for a pause that a server asked for."""
        for todo, scope in self._asked.items():
            if todo.is_in_line:
                scope.cancel()

    async def close(self) -> None:
        """End what reads the inputs, and whoever waits for a record."""
        self._agenda.close()
        self._tell_end()
        await self._reader.close()

    def look(self) -> None:
        """Once a second: see whether it makes sense to go on."""
        if (why := self._work.health.hopeless(self._work.clock())) is not None:
            self._batch.stop("endpoint", why)

    def _fail(self, error: Exception) -> None:
        """End now, and let the reader of the records have the error."""
        if self._error is None:
            self._error = error
        self._agenda.stop()
        self._tell_end()

    # --------------------------------------------------------------------------------- the inputs

    async def _read(self) -> None:
        agenda = self._agenda
        try:
            while not agenda.is_stopped:
                await agenda.room(max(_FEWEST_AHEAD, _AHEAD * self._workers), _AHEAD_BYTES)
                items = await self._reader.more()
                if not items:
                    break
                agenda.add(self._taken(items))
        except JournalMismatch as error:
            self._batch.stop("mismatch", str(error))
            self._error = error
        except Exception as error:  # noqa: BLE001  what reads the records gets it, after those before
            self._error = error
        except asyncio.CancelledError:
            if is_being_cancelled():
                raise
            self._error = RuntimeError("reading the inputs was cancelled from inside")
        finally:
            agenda.no_more()

    def _taken(self, items: Iterable[Item | BadItem]) -> list[Todo]:
        todos: list[Todo] = []
        for item in items:
            todo = self._work.take(item)
            if todo is None:
                self._batch.skip()
                continue
            todo.place, self._places = self._places, self._places + 1
            if todo.is_follower:
                self._agenda.put_aside(1)
            else:
                todos.append(todo)
        return todos

    # --------------------------------------------------------------------------------- the workers

    def _hire(self) -> None:
        self._workers += 1
        self._tasks.start(self._labour)

    async def _labour(self) -> None:
        agenda = self._agenda
        with anyio.CancelScope() as scope:
            try:
                while (todo := await agenda.next()) is not None:
                    try:
                        await self._do(todo, scope)
                    finally:
                        agenda.done()
            except JournalError as error:
                self._batch.stop("journal", str(error))
                self._fail(error)
            except Exception as error:  # noqa: BLE001  a fault of ours: whoever reads gets it
                self._fail(error)
            except asyncio.CancelledError:
                if is_being_cancelled():
                    raise
                self._fail(RuntimeError("cancelled from inside"))
            finally:
                self._workers -= 1
                if not self._workers:
                    self._tell_end()

    async def _do(self, todo: Todo, scope: anyio.CancelScope) -> None:
        agenda, work = self._agenda, self._work
        if self._workers < self._batch.most and not agenda.idle and not work.is_crowded:
            self._hire()  # as many as the servers bear and as there is work for
        if not todo.is_begun:
            todo.is_begun = True
            if (cap := work.cap(todo, agenda.busy - 1)) is not None:
                self._batch.stop("cap", f"stopped at {cap}")
                return
        self._asked[todo] = scope
        try:
            seconds = await work.ask(todo)
        finally:
            del self._asked[todo]
        is_there = work.ends_outage
        if seconds is not None:
            self.look()
            agenda.again(todo, seconds)
        if is_there:
            agenda.wake_all()


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class _Reader:
    """Inputs as lists, wherever they come from."""

    def __init__(
        self,
        more: Callable[[], Awaitable[list[Item | BadItem]]],
        close: Callable[[], Awaitable[object]],
    ) -> None:
        self.more = more
        self.close = close


def _reader(requests: "Reading | Iterable[Any] | AsyncIterable[Any]", layout: Layout) -> _Reader:
    if isinstance(requests, Reading):
        return _reader_in_thread(requests)
    if isinstance(requests, AsyncIterable):
        return _reader_of_async(aiter(requests), layout)
    if isinstance(requests, (str, bytes, Mapping)) or not isinstance(requests, Iterable):
        raise TypeError(
            f"requests is a {type(requests).__name__}: it has to be an iterable of prompts, or open_source(path)."
        )
    return _reader_of(iter(requests), layout)


def _reader_in_thread(reading: Reading) -> _Reader:
    async def more() -> list[Item | BadItem]:
        return await anyio.to_thread.run_sync(reading.read, abandon_on_cancel=True)

    async def close() -> None:
        reading.close()

    return _Reader(more, close)


def _reader_of_async(source: AsyncIterator[Any], layout: Layout) -> _Reader:
    numbers = count(1)

    async def more() -> list[Item | BadItem]:
        async for value in source:
            return [item_of(next(numbers), value, layout)]
        return []

    async def close() -> None:
        if isinstance(source, AsyncGenerator):  # other iterators are their owner's
            await source.aclose()

    return _Reader(more, close)


def _reader_of(source: Iterator[Any], layout: Layout) -> _Reader:
    numbers = count(1)
    failures: list[Exception] = []

    async def more() -> list[Item | BadItem]:
        if failures:
            raise failures.pop()
        made: list[Item | BadItem] = []
        try:
            for value in islice(source, _CHUNK):
                made.append(item_of(next(numbers), value, layout))  # noqa: PERF401  those before a failure count
        except Exception as error:
            if not made:
                raise
            failures.append(error)
        return made

    async def close() -> None:
        if isinstance(source, Generator):
            source.close()

    return _Reader(more, close)
