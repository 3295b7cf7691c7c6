"""How often which value came: percentiles of any number of values in fixed memory.

Not here: what is counted. The bounds of the buckets grow by 2 % each, as in DDSketch (Masson, Rim, Lee 2019).
Law: a percentile is at most 1 % beside the exact one, between 1e-6 and 1e6; merging gives what one histogram of all would.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate
from math import ceil, log

import msgspec

__all__ = ["Bar", "Histogram"]

_LOWEST = 1e-6
_HIGHEST = 1e6
_GROWTH = 1.02
_PER_LOG = 1 / log(_GROWTH)
_SHIFT = -log(_LOWEST) * _PER_LOG
_BUCKETS = int(log(_HIGHEST) * _PER_LOG + _SHIFT) + 1
_MIDDLE = 2 * _GROWTH / (1 + _GROWTH)  # of a bucket, so that both of its ends are 1 % away
_PER_BAR = 4  # buckets in a bar: each is 8 % wider than the one before, fine enough to look at


class Bar(msgspec.Struct, frozen=True, array_like=True):
    """`count` values from `low` up to `high`."""

    low: float
    high: float
    count: int


class Histogram:
    """Counts of values, by size. Seconds, as a rule; what is not above a millionth counts as 0."""

    __slots__ = ("count", "counts", "largest", "smallest", "sum")

    def __init__(self) -> None:
        self.counts = array("Q", bytes(8 * _BUCKETS))
        self.count = 0
        self.sum = 0.0
        self.smallest = _HIGHEST
        self.largest = 0.0

    def add(self, value: float) -> None:
        """Count one value. Cost: half a microsecond."""
        if value > _LOWEST:
            if value > _HIGHEST:
                value = _HIGHEST
            self.counts[int(log(value) * _PER_LOG + _SHIFT)] += 1
        else:  # no time at all, or a clock that was set back
            value = 0.0
            self.counts[0] += 1
        self.count += 1
        self.sum += value
        if value < self.smallest:
            self.smallest = value
        if value > self.largest:
            self.largest = value

    def merge(self, other: "Histogram") -> None:
        """Count what `other` has counted, too."""
        self.counts = array("Q", map(int.__add__, self.counts, other.counts))
        self.count += other.count
        self.sum += other.sum
        self.smallest = min(self.smallest, other.smallest)
        self.largest = max(self.largest, other.largest)

    @property
    def mean(self) -> float | None:
        """The mean, exactly; None of nothing."""
        return self.sum / self.count if self.count else None

    def percentiles(self, *shares: float) -> list[float | None]:
        """Return, for each share from 0 to 1, the least value that so many are not above; None of nothing."""
        if not self.count:
            return [None] * len(shares)
        below = list(accumulate(self.counts))
        return [self._value(bisect_left(below, max(1, ceil(s * self.count)))) for s in shares]

    def bars(self) -> list[Bar]:
        """Return the counts in broader steps, from the first that is not 0 to the last. The steps are the same in all histograms."""
        bars = list(self._bars())
        filled = [place for place, bar in enumerate(bars) if bar.count]
        return bars[filled[0] : filled[-1] + 1] if filled else []

    def _bars(self) -> Iterator[Bar]:
        for start in range(0, _BUCKETS, _PER_BAR):
            low, high = (_LOWEST * _GROWTH**edge for edge in (start, start + _PER_BAR))
            yield Bar(low, high, sum(self.counts[start : start + _PER_BAR]))

    def _value(self, bucket: int) -> float:
        middle = _LOWEST * _GROWTH**bucket * _MIDDLE
        return min(max(middle, self.smallest), self.largest)
