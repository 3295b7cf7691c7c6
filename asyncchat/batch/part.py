"""A batch in parts: one part as a worker does it, and all of them as whoever started the workers sees them.

Not here: where workers run (`procs`, `bridges.ray`), how they are talked to.
"""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.to_thread
import msgspec

from asyncchat.batch.engine import Batch, Stop
from asyncchat.batch.item import BadItem, Item
from asyncchat.batch.leased import Holder
from asyncchat.batch.meter import BatchProgress, Meter
from asyncchat.batch.options import Spending
from asyncchat.batch.plan import Plan, part_of
from asyncchat.batch.record import Outcome
from asyncchat.batch.source import Source, open_source
from asyncchat.client.tasks import BlockTasks
from asyncchat.errors import AsyncChatError, JournalError, JournalMismatch

__all__ = ["Part", "Standing", "Tally"]

_SAY_SECONDS = 0.5


class Standing(msgspec.Struct, frozen=True):
    """How one worker stands; `read` is how much of the inputs it has gone through, from 0 to 1, where that is known."""

    skipped: int = 0
    in_flight: int = 0
    limit: int = 0
    pause: float = 0.0
    retried: int = 0
    refused: int = 0
    read: float | None = None


class Part(msgspec.Struct, frozen=True):
    """Which part of the inputs one life of a worker has, and what its shard is called."""

    plan: Plan
    part: int
    parts: int
    shard: str

    async def work(
        self,
        holder: Holder,
        on_outcome: Callable[[Outcome], Awaitable[None]],
        on_standing: Callable[[Standing], None],
        on_batch: Callable[[Batch], None],
    ) -> Stop | None:
        """Do it; return why it ended early, if it did.

        Args:
            holder: of the limits.
            on_outcome: gets each new outcome, after it is recorded.
            on_standing: gets how it stands, every half second.
            on_batch: gets what can be stopped, before it begins.

        Cancellation: safe; what is in flight is asked for again by the next life.
        """
        try:
            async with self.plan.client(self.parts) as client:
                batch = self.plan.open(client, self.shard)
                batch.share(holder)
                on_batch(batch)
                await self._run(batch, on_outcome, on_standing)
        except (AsyncChatError, ValueError) as error:
            return _stop_for(error)
        return batch.stopped

    async def _run(
        self,
        batch: Batch,
        on_outcome: Callable[[Outcome], Awaitable[None]],
        on_standing: Callable[[Standing], None],
    ) -> None:
        plan = self.plan
        assert plan.source is not None
        source = await anyio.to_thread.run_sync(open_source, plan.source, plan.layout)
        inputs = _Inputs(source, self.part, self.parts)
        async with batch as job:
            tasks = BlockTasks()

            def say() -> None:
                now = job.progress()
                on_standing(
                    Standing(job.skipped, *job.load(), now.retried, now.refused, inputs.read_share)
                )

            async def keep_saying() -> None:
                while True:
                    say()
                    await anyio.sleep(_SAY_SECONDS)

            await tasks.open()
            tasks.start(keep_saying)
            try:
                run = job.run(inputs, layout=plan.layout, about=plan.about, again=plan.again)
                async for record in run:
                    await on_outcome(Outcome(record.custom_id, record.trace, record.error))
            finally:
                await tasks.close()
            say()


class _Inputs:
    """Those inputs of a source that belong to one part."""

    def __init__(self, source: Source, part: int, parts: int) -> None:
        self._source = source
        self._part = part
        self._parts = parts

    @property
    def read_share(self) -> float | None:
        return self._source.position / self._source.size if self._source.size else None

    def read(self) -> list[Item | BadItem]:
        while items := self._source.read():
            if mine := [item for item in items if part_of(item, self._parts) == self._part]:
                return mine
        return []

    def close(self) -> None:
        self._source.close()


def _stop_for(error: Exception) -> Stop:
    if isinstance(error, JournalMismatch):
        return Stop("mismatch", str(error))
    return Stop("journal" if isinstance(error, JournalError) else "endpoint", str(error))


class Tally:
    """What all parts come to.

    Args:
        plan: of the batch.
        spending: what it has cost so far, with its caps.
        clock: seconds of a clock that only goes forward.
    """

    __slots__ = ("_clock", "_meter", "_plan", "_skipped", "_spending")

    def __init__(self, plan: Plan, spending: Spending, clock: Callable[[], float]) -> None:
        self._plan = plan
        self._spending = spending
        self._clock = clock
        self._meter = Meter(clock())
        self._skipped = 0

    def noted(self, outcome: Outcome, in_flight: int) -> str | None:
        """Count an outcome; return the cap that is reached with it, in words, if one is."""
        kind = None if outcome.error is None else outcome.error.code
        self._meter.noted(self._clock(), outcome.trace, kind)
        self._spending.asked()
        self._spending.noted(outcome.trace, ok=outcome.ok)
        return self._spending.full(in_flight)

    def load(self, standings: Sequence[Standing]) -> tuple[int, int, float]:
        """Return how many requests are in flight, how many may be, and for how many seconds more all have to wait."""
        limit = min(sum(one.limit for one in standings), self._plan.in_flight)
        pause = min((one.pause for one in standings), default=0.0)
        return sum(one.in_flight for one in standings), limit, pause

    def progress(
        self, standings: Sequence[Standing], total: int | None, position: float | None
    ) -> BatchProgress:
        """Return how the batch stands: as `Batch.progress`."""
        skipped = sum(one.skipped for one in standings)
        if skipped > self._skipped:  # a part that begins anew counts its own once more
            self._meter.skipped(skipped - self._skipped)
            self._skipped = skipped
        reads = [one.read for one in standings if one.read is not None]
        if position is None and len(reads) == len(standings) > 0:
            position = sum(reads) / len(reads)
        in_flight, limit, pause = self.load(standings)
        now = self._meter.progress(
            self._clock(),
            in_flight=in_flight,
            limit=limit,
            pause=pause,
            total=total,
            position=position,
        )
        return msgspec.structs.replace(
            now,
            retried=sum(one.retried for one in standings),
            refused=sum(one.refused for one in standings),
        )
