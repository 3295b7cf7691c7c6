"""A batch over its running time, in bins that double in width when there would be too many.

Not here: what is drawn. The time between two runs of the process is cut out: `at` counts the seconds in which one ran.
"""

from bisect import bisect_right
from math import ceil, nextafter

import msgspec

__all__ = ["Bin", "Cell", "Clock", "Timeline"]

_MOST_BINS = 240
_MOST_RUNS = 1000


class Bin(msgspec.Struct):
    """What happened from `at` on, for `seconds` of running time. What was looked at once a second is None where nobody looked."""

    at: float
    seconds: float
    ok: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    in_flight: float | None = None
    """Requests that were on their way, in the mean."""
    limit: float | None = None
    """How many might have been, in the mean."""
    paused: float = 0.0
    """For how much of the time nothing was sent because a server asked for that, from 0 to 1."""


class Clock:
    """Running time out of the time of day: what lies between two runs of the process does not count."""

    __slots__ = ("_before", "_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = []  # seconds of all runs before

    def start(self, t: float) -> None:
        """A run begins. After very many, they count as one."""
        if len(self._starts) < _MOST_RUNS:
            self._before.append(self.seconds)
            self._starts.append(t)
            self._ends.append(t)

    def reach(self, t: float) -> None:
        """The run that began last is still there at `t`."""
        self._ends[-1] = max(self._ends[-1], t)

    @property
    def seconds(self) -> float:
        """Running time in all."""
        if not self._starts:
            return 0.0
        return self._before[-1] + self._ends[-1] - self._starts[-1]

    @property
    def resumed(self) -> list[tuple[float, float]]:
        """When a run followed on another, in running time, and after how many seconds."""
        pairs = zip(self._before[1:], self._ends, self._starts[1:], strict=False)
        return [(at, max(start - end, 0.0)) for at, end, start in pairs]

    def at(self, t: float) -> float:
        """Return the running time at a time of day; in between two runs it stands still."""
        if not self._starts:
            return t
        run = max(bisect_right(self._starts, t) - 1, 0)
        return (
            self._before[run] + min(max(t, self._starts[run]), self._ends[run]) - self._starts[run]
        )


class Cell:
    """Sums of what happened in one bin."""

    __slots__ = (
        "completion_tokens",
        "failed",
        "in_flight",
        "limit",
        "limited",
        "ok",
        "paused",
        "prompt_tokens",
        "samples",
    )

    def __init__(self) -> None:
        self.ok = self.failed = self.prompt_tokens = self.completion_tokens = 0
        self.samples = self.in_flight = self.limited = self.limit = self.paused = 0

    def add(self, other: "Cell") -> None:
        """Add what happened in another."""
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Timeline:
    """At most 240 bins, as narrow as the time they have to cover allows: a second, two, four..."""

    __slots__ = ("_cells", "_first", "_last", "_width")

    def __init__(self) -> None:
        self._cells: dict[int, Cell] = {}
        self._width = 1.0
        self._first = self._last = 0

    def at(self, t: float) -> Cell:
        """Return where to count what happened at `t`; it is good until the next call."""
        place = int(t // self._width)
        found = self._cells.get(place)
        if found is not None:
            return found
        if not self._cells:
            self._first = self._last = place
        self._first, self._last = min(self._first, place), max(self._last, place)
        while self._last - self._first >= _MOST_BINS:
            self._widen()
        return self._cells.setdefault(int(t // self._width), Cell())

    def bins(self, start: float, end: float) -> list[Bin]:
        """Return all bins from `start`, where time is counted from, to `end`; what happened right then is in the last one."""
        if not self._cells:
            return []
        end = max(end, start + 1.0)
        self.at(start)
        self.at(nextafter(end, start))
        beyond = ceil(end / self._width)
        if self._last == beyond > self._first:
            self._last -= 1
            self._cells.setdefault(self._last, Cell()).add(self._cells.pop(beyond))
        return [self._bin(place, start, end) for place in range(self._first, self._last + 1)]

    def _bin(self, place: int, start: float, end: float) -> Bin:
        low = max(place * self._width, start)
        high = max(min((place + 1) * self._width, end), low)
        cell = self._cells.get(place) or Cell()
        return Bin(
            at=low - start,
            seconds=high - low,
            ok=cell.ok,
            failed=cell.failed,
            prompt_tokens=cell.prompt_tokens,
            completion_tokens=cell.completion_tokens,
            in_flight=cell.in_flight / cell.samples if cell.samples else None,
            limit=cell.limit / cell.limited if cell.limited else None,
            paused=cell.paused / cell.samples if cell.samples else 0.0,
        )

    def _widen(self) -> None:
        self._width *= 2
        self._first //= 2
        self._last //= 2
        cells, self._cells = self._cells, {}
        for place, cell in cells.items():
            self._cells.setdefault(place // 2, Cell()).add(cell)
