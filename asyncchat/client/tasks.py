"""What is made of cancellation: a task group that ends with an object's `async with` block, and bounds on waits.

Not here: what the tasks do, what is waited for. The group ends with the block, cancelled, and never wraps the error of the
block in one of its own: tasks report what goes wrong as values.
"""

import asyncio
from collections.abc import Callable, Coroutine
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["BlockTasks", "Wait", "Waits", "is_being_cancelled"]


class BlockTasks:
    """The tasks of one block."""

    __slots__ = ("_group",)

    def __init__(self) -> None:
        self._group: TaskGroup | None = None

    @property
    def is_open(self) -> bool:
        """Whether the block has begun and not ended."""
        return self._group is not None

    async def open(self) -> None:
        """Begin the block."""
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Start a task in the block."""
        assert self._group is not None
        self._group.start_soon(work, *args)

    def cancel(self) -> None:
        """End every task at its next await."""
        if self._group is not None:
            self._group.cancel_scope.cancel()

    async def close(self) -> None:
        """End the block: cancel what still runs, and wait until it has ended."""
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            await group.__aexit__(None, None, None)


def is_being_cancelled() -> bool:
    """Whether a scope around the running code is cancelled: if none is, a cancellation comes from what it has awaited."""
    return anyio.current_effective_deadline() == -inf


class Waits:
    """The waits of one loop that have an end: each at a time of its own, or all when their owner says so.

    One timer serves them all, set anew only for a wait that is to end before it strikes: a wait that ends well costs a
    quarter of `asyncio.timeout`, most of which is its timer.
    """

    __slots__ = ("_timer", "loop", "waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.waiting: set[Wait] = set()
        self._timer: asyncio.TimerHandle | None = None

    def within(self, seconds: float | None) -> "Wait":
        """Return a wait that may last so long; None is until it is told to end."""
        return Wait(self, seconds)

    def end(self) -> None:
        """End them all now."""
        for wait in self.waiting:
            wait.end()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def watch(self, until: float) -> None:
        """See to it that a wait ends at a time."""
        if self._timer is None or until < self._timer.when():
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(until, self._look, until)

    def _look(self, at: float) -> None:
        """End the waits whose time has come, and set the timer for the next."""
        self._timer = None
        at = max(at, self.loop.time())
        left: list[float] = []
        for wait in self.waiting:
            if wait.until > at:
                left.append(wait.until)
            else:
                wait.end()
        if left and (soonest := min(left)) < inf:
            self.watch(soonest)


class Wait:
    """What a task waits for inside a `with` block, ended by `TimeoutError` where it takes too long.

    It does as `asyncio.timeout` does; a cancellation that is not its own passes through.
    """

    __slots__ = ("_cancellations", "_seconds", "_task", "_waits", "until", "was_ended")

    def __init__(self, waits: Waits, seconds: float | None) -> None:
        self._waits = waits
        self._seconds = seconds
        self._task: asyncio.Task[Any] | None = None
        self._cancellations = 0  # of others, before the block
        self.until = inf
        """When it is to end, on the loop's clock."""
        self.was_ended = False

    def __enter__(self) -> Self:
        waits, seconds = self._waits, self._seconds
        # Told of the loop, since asking for the running one is a system call in some versions of Python.
        task = self._task = asyncio.current_task(waits.loop)
        assert task is not None
        self._cancellations = task.cancelling()
        waits.waiting.add(self)
        if seconds is not None:
            self.until = waits.loop.time() + seconds
            if seconds > 0:
                waits.watch(self.until)
            else:
                waits.loop.call_soon(self.end)  # before anything that the block has others do
        return self

    def end(self) -> None:
        """End it now, if it has not ended."""
        if self._task is not None and not self.was_ended:
            self.was_ended = True
            self._task.cancel()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        self._waits.waiting.discard(self)
        if self.was_ended:
            assert task is not None
            by_others = task.uncancel() > self._cancellations
            if isinstance(error, asyncio.CancelledError) and not by_others:
                raise TimeoutError from error
