"""A batch in several processes of one machine: each has a part of the inputs and a shard of the records, the parent the limits.

Not here: what a worker is told (`plan`), asking (`engine`). A child is talked to over a Unix socket that it inherits, in lines of
JSON, and the end of that socket is how both learn of the other's death. The children inherit the lock of the job as well: a
parent that was killed leaves it locked until the last of them has gone.
"""

import asyncio
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
import anyio.to_thread
import msgspec

from asyncchat.batch.engine import Batch, Prepared, Stop
from asyncchat.batch.garbage import rare_collections
from asyncchat.batch.meter import BatchProgress
from asyncchat.batch.part import Part, Standing, Tally
from asyncchat.batch.plan import Plan
from asyncchat.batch.record import Outcome
from asyncchat.batch.source import open_source
from asyncchat.client.tasks import BlockTasks
from asyncchat.errors import JournalLocked
from asyncchat.policy.lease import Lease, Renewal

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from asyncchat.batch.journal import JobLock

__all__ = ["Processes", "work_for"]

_LONGEST_LINE = 1 << 24
_AHEAD = 10_000  # outcomes that wait for a slow reader
_DEATHS = 5  # of a child that has achieved nothing
_LOCKED_SECONDS = 5.0  # for which orphans of a killed parent are waited for
_LAST_SECONDS = 5.0  # for which a child may take to end
_PROGRAM = "from asyncchat.batch.procs import work_for; work_for(int(__import__('sys').argv[1]))"


class _Begin(msgspec.Struct, tag="begin", frozen=True):
    part: Part


class _End(msgspec.Struct, tag="end", frozen=True):
    """To a child: begin nothing more. From a child: it has ended, and why, where that was not the end of its inputs."""

    stop: Stop | None = None


class _Stands(msgspec.Struct, tag="stands", frozen=True):
    standing: Standing


class _Ask(msgspec.Struct, tag="ask", frozen=True):
    renewal: Renewal


class _Leased(msgspec.Struct, tag="leased", frozen=True):
    lease: Lease


class _Done(msgspec.Struct, tag="done", frozen=True):
    outcome: Outcome


_encode = msgspec.json.Encoder().encode
_decode_to_child = msgspec.json.Decoder(_Begin | _Leased | _End).decode
_decode_to_parent = msgspec.json.Decoder(_Ask | _Done | _Stands | _End).decode


class _Child:
    """One part of the inputs, and the process that has it at the moment."""

    __slots__ = ("deaths", "part", "standing", "writer")

    def __init__(self, part: int) -> None:
        self.part = part
        self.deaths = 0  # in a row, with nothing achieved
        self.standing = Standing()
        self.writer: asyncio.StreamWriter | None = None

    def tell(self, what: _Begin | _Leased | _End) -> None:
        if self.writer is not None and not self.writer.is_closing():
            self.writer.write(_encode(what) + b"\n")


class Processes:
    """The outcomes of a batch that several processes run: like a `Batch` and its run in one.

    ```python
    async with Processes(plan, 4) as job:
        async for outcome in job:
            print(outcome.custom_id, outcome.ok)
    ```

    A child that dies is started again and goes on where its shard ends; what it had in flight is asked for again. Caps are held
    by the parent: what was in flight when one is reached is finished.

    Args:
        plan: what the children do. They read `plan.source` each for itself, so it cannot be a pipe.
        count: of processes.

    Raises, when it is entered:
        ValueError: an option that cannot be right.
        JournalLocked, JournalMismatch, JournalError: as for `client.batch`.
        SourceError: the inputs cannot be read.
    """

    def __init__(self, plan: Plan, count: int) -> None:
        plan.file_for(count)
        self._plan = plan
        self._children = [_Child(part) for part in range(count)]
        self._leases = plan.leases(secrets.token_hex(8))
        self._tasks = BlockTasks()
        self._lock: JobLock | None = None
        self._tally: Tally | None = None
        self._pids: set[int] = set()
        self._left = count
        self._send: MemoryObjectSendStream[Outcome]
        self._receive: MemoryObjectReceiveStream[Outcome]
        self.stopped: Stop | None = None
        self.warnings: list[str] = []

    @property
    def skipped(self) -> int:
        """Inputs that had a record already."""
        return sum(child.standing.skipped for child in self._children)

    @property
    def pids(self) -> list[int]:
        """The processes that run at the moment."""
        return sorted(self._pids)

    @property
    def _standings(self) -> list[Standing]:
        return [child.standing for child in self._children]

    def load(self) -> tuple[int, int, float]:
        """Return how many requests are in flight, how many may be, and for how many seconds more all have to wait."""
        assert self._tally is not None
        return self._tally.load(self._standings)

    def progress(
        self, *, total: int | None = None, position: float | None = None
    ) -> BatchProgress:
        """Return how the batch stands: as `Batch.progress`."""
        assert self._tally is not None
        return self._tally.progress(self._standings, total, position)

    async def __aenter__(self) -> Self:
        batch = self._plan.open(self._plan.client())
        await anyio.to_thread.run_sync(_check_source, self._plan)
        self._lock, spending, self.warnings = await self._prepared(batch)
        self._tally = Tally(self._plan, spending, anyio.current_time)
        self._send, self._receive = anyio.create_memory_object_stream[Outcome](_AHEAD)
        await self._tasks.open()
        for child in self._children:
            self._tasks.start(self._look_after, child)
        return self

    async def _prepared(self, batch: Batch) -> Prepared:
        plan = self._plan

        def prepare() -> Prepared:
            return batch.prepare(layout=plan.layout, about=plan.about, again=plan.again)

        until = anyio.current_time() + _LOCKED_SECONDS
        while True:
            try:
                return await anyio.to_thread.run_sync(prepare)
            except JournalLocked as error:
                is_orphaned = error.pid is not None and not _is_alive(error.pid)
                if not is_orphaned or anyio.current_time() > until:
                    raise
            await anyio.sleep(0.05)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._tasks.close()
        finally:
            self._send.close()
            self._receive.close()
            if self._lock is not None:
                self._lock.close()

    def __aiter__(self) -> AsyncIterator[Outcome]:
        return self._receive.__aiter__()

    def drain(self, message: str = "interrupted") -> None:
        """Begin nothing more; what is in flight is finished. Idempotent."""
        self._stop(Stop("interrupted", message))

    def _stop(self, stop: Stop) -> None:
        if self.stopped is None:
            self.stopped = stop
        for child in self._children:
            child.tell(_End(self.stopped))

    # --------------------------------------------------------------------------------- the children

    async def _look_after(self, child: _Child) -> None:
        try:
            while not await self._live(child):
                child.deaths += 1
                if child.deaths >= _DEATHS:
                    why = f"part {child.part} of the inputs kills every process that takes it up"
                    self._stop(Stop("endpoint", why))
                    break
        except OSError as error:
            self._stop(Stop("endpoint", f"no process can be started: {error.strerror}"))
        finally:
            self._left -= 1
            if not self._left:
                self._send.close()

    async def _live(self, child: _Child) -> bool:
        """Run one life of a child; return whether it came to its end."""
        shard = f"p{child.part}-{secrets.token_hex(4)}"
        ours, theirs = socket.socketpair()
        assert self._lock is not None
        with theirs:
            process = await anyio.open_process(
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=None,
                stderr=None,
                pass_fds=(theirs.fileno(), self._lock.fileno()),
            )
        self._pids.add(process.pid)
        reader, child.writer = await asyncio.open_connection(sock=ours, limit=_LONGEST_LINE)
        try:
            child.tell(_Begin(Part(self._plan, child.part, len(self._children), shard)))
            if self.stopped is not None:
                child.tell(_End(self.stopped))
            has_ended = False
            with suppress(ConnectionError):
                while line := await reader.readline():
                    has_ended = await self._hear(child, shard, line) or has_ended
            return has_ended
        finally:
            self._leases.end(shard, anyio.current_time())
            child.standing = Standing(child.standing.skipped, read=child.standing.read)
            child.writer.close()  # which ends it, if it has not ended
            child.writer = None
            with anyio.CancelScope(shield=True):
                with anyio.move_on_after(_LAST_SECONDS):
                    await process.wait()
                if process.returncode is None:
                    process.kill()
                await process.aclose()
            self._pids.discard(process.pid)

    async def _hear(self, child: _Child, shard: str, line: bytes) -> bool:
        match _decode_to_parent(line):
            case _Ask(renewal):
                child.tell(_Leased(self._leases.lease(shard, anyio.current_time(), renewal)))
            case _Done(outcome):
                child.deaths = 0
                await self._count(outcome)
            case _Stands(standing):
                child.standing = standing
            case _End(stop):
                if stop is not None:
                    self._stop(stop)
                return True
        return False

    async def _count(self, outcome: Outcome) -> None:
        assert self._tally is not None
        cap = self._tally.noted(outcome, self.load()[0])
        if cap is not None and self.stopped is None:
            self._stop(Stop("cap", f"stopped at {cap}"))
        await self._send.send(outcome)


def _check_source(plan: Plan) -> None:
    assert plan.source is not None
    open_source(plan.source, plan.layout).close()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


# ------------------------------------------------------------------------------------------ a child


def work_for(descriptor: int) -> None:
    """Be a child: do what is said on a socket, until that is done or the socket ends."""
    signal.signal(
        signal.SIGINT, signal.SIG_IGN
    )  # a terminal interrupts all; the parent knows what to do
    with rare_collections():
        anyio.run(_work, socket.socket(fileno=descriptor))


class _Parent:
    """The other end of the socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._lease: asyncio.Future[Lease] | None = None

    async def ask(self, renewal: Renewal) -> Lease | None:
        """Be a `Holder`."""
        self._lease = asyncio.get_running_loop().create_future()
        self.tell(_Ask(renewal))
        return await self._lease

    def tell(self, what: _Ask | _Done | _Stands | _End) -> None:
        self._writer.write(_encode(what) + b"\n")

    async def drain(self) -> None:
        with suppress(ConnectionError):  # whoever listens finds out
            await self._writer.drain()

    async def begin(self) -> Part:
        first = _decode_to_child(await self._reader.readline())
        assert isinstance(first, _Begin)
        return first.part

    async def listen(self, batches: list[Batch]) -> None:
        """Hear what the parent says, until it has ended; the batches stop when it says so."""
        with suppress(ConnectionError):
            while line := await self._reader.readline():
                match _decode_to_child(line):
                    case _Leased(lease):
                        if self._lease is not None and not self._lease.done():
                            self._lease.set_result(lease)
                    case _End(stop) if stop is not None:
                        for batch in batches:
                            batch.stop(stop.reason, stop.message)
                    case _:
                        pass

    async def close(self) -> None:
        await self.drain()
        with suppress(ConnectionError):
            self._writer.close()
            await self._writer.wait_closed()


async def _work(sock: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=sock, limit=_LONGEST_LINE)
    parent = _Parent(reader, writer)
    try:
        part = await parent.begin()
        batches: list[Batch] = []

        async def done(outcome: Outcome) -> None:
            parent.tell(_Done(outcome))
            await parent.drain()

        async with anyio.create_task_group() as group:

            async def listen() -> None:
                await parent.listen(batches)
                group.cancel_scope.cancel()  # nobody wants any more of it

            group.start_soon(listen)
            stop = await part.work(
                parent.ask,
                done,
                lambda standing: parent.tell(_Stands(standing)),
                batches.append,
            )
            parent.tell(_End(stop))
            await parent.drain()
            group.cancel_scope.cancel()
    finally:
        await parent.close()
