"""What is to be done next: first what is due again, then what is new.

Not here: doing it. A retry waits in a heap while others work, so a batch has no phase of stragglers at its end.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

__all__ = ["Agenda"]

_MOST_ASIDE = 10_000


class _Sized(Protocol):
    """What takes memory while it waits."""

    @property
    def size(self) -> int:
        """How much, in bytes; the same for as long as it waits."""
        ...


_T = TypeVar("_T", bound=_Sized)


class Agenda(Generic[_T]):
    """Tasks for workers, who wait in `next` where there is none.

    Args:
        clock: seconds on the loop's clock.
        gate: asked before anything is given out: 0, or the seconds for which nothing may be.
        places: how many new ones are given out at most before `free` is called for some of them. What is due again has its
            place already, so that those who wait for one never keep it from being done.
    """

    __slots__ = (
        "_again",
        "_aside",
        "_bytes",
        "_clock",
        "_gate",
        "_idle",
        "_is_read",
        "_new",
        "_order",
        "_places",
        "_room",
        "_timer",
        "busy",
        "is_stopped",
    )

    def __init__(
        self, clock: Callable[[], float], gate: Callable[[float], float], places: int
    ) -> None:
        self._clock = clock
        self._gate = gate
        self._places = places
        self._new: deque[_T] = deque()
        self._again: list[tuple[float, int, _T]] = []
        self._order = count()
        self._idle: dict[asyncio.Future[None], None] = {}
        self._room = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._is_read = False
        self.is_stopped = False
        self.busy = 0
        self._bytes = self._aside = 0

    def __len__(self) -> int:
        return len(self._new) + len(self._again)

    @property
    def idle(self) -> int:
        """How many workers wait for something to do."""
        return len(self._idle)

    async def room(self, most: int, most_bytes: int) -> None:
        """Wait until fewer than `most` new ones are there, and fewer than `most_bytes` of them."""
        while not self.is_stopped:
            is_full = len(self._new) >= most or self._bytes >= most_bytes
            if not is_full and self._aside < _MOST_ASIDE:
                break
            self._room.clear()
            await self._room.wait()

    def add(self, tasks: Iterable[_T]) -> None:
        """Add new ones, to be done in this order."""
        for task in tasks:
            self._new.append(task)
            self._bytes += task.size
        self.wake()

    def put_aside(self, number: int) -> None:
        """Note that so many more were read, or fewer if negative, that are done together with another one."""
        self._aside += number
        self._room.set()

    def again(self, task: _T, seconds: float) -> None:
        """Give back one that failed, to be done again after some seconds."""
        heappush(self._again, (self._clock() + seconds, next(self._order), task))
        self._wake_in(seconds)

    def no_more(self) -> None:
        """Note that nothing new will come."""
        self._is_read = True
        self.wake_all()

    def stop(self) -> None:
        """Give out nothing more."""
        self.is_stopped = True
        self._room.set()
        self.wake_all()

    def done(self) -> None:
        """Note that one which was given out is done, or given back."""
        self.busy -= 1
        if self._is_over:
            self.wake_all()

    @property
    def _is_over(self) -> bool:
        if self.is_stopped:
            return True
        return self._is_read and not self.busy and not self._new and not self._again

    async def next(self) -> _T | None:
        """Return what is to be done next, or None when all is done. Whoever gets one says `done` when it is.

        Cancellation: safe; nothing is lost.
        """
        while not self._is_over:
            now = self._clock()
            wait: float | None = self._gate(now)
            if not wait:
                if self._again and self._again[0][0] <= now:
                    return self._take(heappop(self._again)[2], now)
                if self._new and self._places:
                    self._places -= 1
                    task = self._new.popleft()
                    self._bytes -= task.size
                    self._room.set()
                    return self._take(task, now)
                wait = self._again[0][0] - now if self._again else None
            if wait is not None:
                self._wake_in(wait)
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._idle[turn] = None
            try:
                await turn
            except BaseException:
                if turn.done() and not turn.cancelled():
                    self.wake()  # it was this one's turn to look, and now it is another's
                raise
            finally:
                self._idle.pop(turn, None)
        return None

    def _take(self, task: _T, now: float) -> _T:
        self.busy += 1
        if (self._new and self._places) or (self._again and self._again[0][0] <= now):
            self.wake()
        elif self._again and self._idle:  # the others have slept past the timer that woke this one
            self._wake_in(self._again[0][0] - now)
        return task

    def free(self) -> None:
        """Give back the place of one that was new."""
        self._places += 1
        if self._new:
            self.wake()

    def wake(self) -> None:
        """Let one worker look: it wakes the next one if there is more."""
        while self._idle:
            turn, _ = self._idle.popitem()
            if not turn.done():
                turn.set_result(None)
                break

    def wake_all(self) -> None:
        """Let all workers look."""
        while self._idle:
            self.wake()

    def _wake_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        at = loop.time() + max(seconds, 0.0)
        if self._timer is not None:
            if self._timer.when() <= at and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = loop.call_at(at, self._strike)

    def _strike(self) -> None:
        self._timer = None
        self.wake()

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
