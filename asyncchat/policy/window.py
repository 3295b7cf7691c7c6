"""How much may be sent in a minute: exactly, as configured, and roughly, as a server reports it.

Not here: a clock (`now` is a parameter), waiting, what is counted: requests or tokens, both are units here.
"""

from collections import deque
from math import sqrt

from asyncchat.errors import RateLimit

__all__ = ["WINDOW_SECONDS", "Allowance", "Taken", "Window"]

WINDOW_SECONDS = 61.0
"""A minute, and a second for what is faster on its way than the one before it."""

_CERTAINTY = 2.0  # deviations of the sum of all estimates that are kept free
_LONGEST_SECONDS = 60.0  # beyond this a report is not waited for: the server is asked again
_SHORTEST_SECONDS = 1e-3
_FINER = 0.5  # a wait this much shorter than the reset shows that the limit comes back bit by bit
_TELLING = 10.0  # units that have to be used for the time of a refill to be told from a report


class Taken:
    """Units that something took, and when. They count until they are a minute old."""

    __slots__ = ("amount", "at", "is_counted", "variance")

    def __init__(self, at: float, amount: float, variance: float) -> None:
        self.at = at
        self.amount = amount
        self.variance = variance
        self.is_counted = True


class Window:
    """At most `limit` units in any minute. Exact: what was taken is remembered until it is a minute old.

    Where amounts are estimates, room is kept for the error of their sum. A request for more than the whole limit may go
    when nothing else is in the window; else it would wait for ever.
    """

    __slots__ = ("_log", "_sum", "_variance", "limit")

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._log: deque[Taken] = deque()
        self._sum = self._variance = 0.0

    def wait(self, now: float, amount: float = 1.0, deviation: float = 0.0) -> float:
        """Return 0 where `amount` may be taken now, else the seconds after which to ask again."""
        self._forget(now)
        margin = _CERTAINTY * sqrt(self._variance + deviation**2) if deviation else 0.0
        if self._sum <= 0 or self._sum + amount + margin <= self.limit:
            return 0.0
        return max(self._log[0].at + WINDOW_SECONDS - now, 1e-6)

    def used(self, now: float, deviation: float = 0.0) -> float:
        """Return what is in the window, with the room that the errors of all estimates want, and of one more."""
        self._forget(now)
        return self._sum + _CERTAINTY * sqrt(self._variance + deviation**2)

    def take(self, now: float, amount: float = 1.0, deviation: float = 0.0) -> Taken:
        """Take units, whether or not there is room for them. An estimate says by how much it may be wrong."""
        taken = Taken(now, amount, deviation**2)
        self._log.append(taken)
        self._count(amount, taken.variance)
        return taken

    def correct(self, taken: Taken, amount: float) -> None:
        """Replace an estimate by what it turned out to be; 0 gives it back."""
        if taken.is_counted:
            self._count(amount - taken.amount, -taken.variance)
        taken.amount, taken.variance = amount, 0.0

    def _forget(self, now: float) -> None:
        log, before = self._log, now - WINDOW_SECONDS
        while log and log[0].at <= before:
            old = log.popleft()
            old.is_counted = False
            self._count(-old.amount, -old.variance)

    def _count(self, amount: float, variance: float) -> None:
        self._sum = self._sum + amount if self._log else 0.0
        self._variance = max(self._variance + variance, 0.0) if self._log else 0.0


class Allowance:
    """What a server reported to be left of a limit, and how it comes back. Nothing is bounded before a report.

    A limit comes back bit by bit, or at once when its time is over, and no header says which. From empty to full the
    first takes the same time by each report; the second does not, and asks for a wait until the reset.
    """

    __slots__ = (
        "_at",
        "_comes_back_at_once",
        "_ends",
        "_full",
        "_known",
        "_left",
        "_rate",
        "_refill",
        "_renews",
        "is_bounding",
        "last",
        "taken",
    )

    def __init__(self) -> None:
        self.last: RateLimit | None = None
        """The last report."""
        self.is_bounding = False
        """Whether there is a report that still says something: `wait` is in vain without."""
        self.taken = 0.0
        """All that was ever taken: what a report has to be told of the time since its request was sent."""
        self._known = 0.0  # of that, what the last report knows of
        self._ends = self._at = self._left = self._rate = self._full = 0.0
        self._refill = 0.0  # seconds from empty to full, by the last report
        self._comes_back_at_once = self._renews = False

    def wait(self, now: float, amount: float = 1.0) -> float:
        """Return 0 where `amount` may be taken now, else the seconds after which to ask again."""
        if not self.is_bounding:
            return 0.0
        if now >= self._ends:
            self._end(now)
            return self.wait(now, amount)
        missing = min(amount, self._full) - self._left - self._rate * (now - self._at)
        if missing <= 1e-6:
            return 0.0
        ends = self._ends - now
        return min(missing / self._rate, ends) if self._rate else ends

    def _end(self, now: float) -> None:
        """The time of a report is over: all of the limit is there again, once; then nothing is known any more."""
        self.is_bounding = self._renews
        if self._renews:
            self._renews = False
            self._left, self._rate, self._at = self._full, 0.0, now
            self._ends, self._known = now + _LONGEST_SECONDS, self.taken

    def take(self, amount: float = 1.0) -> None:
        """Take units, whether or not they are there."""
        self.taken += amount
        self._left -= amount

    def give_back(self, amount: float) -> None:
        """Undo a `take` whose request was never sent."""
        self.taken -= amount
        self._left += amount

    def correct(self, amount: float, taken_before: float) -> None:
        """Give back what a request took too much, unless the last report knows already what it has cost."""
        if taken_before > self._known:
            self._left += amount

    def reported(self, report: RateLimit, now: float, taken_before: float) -> None:
        """Note what a good answer's headers say.

        Args:
            report: of the headers.
            now: when they came.
            taken_before: what `taken` was once the answered request had been sent; what was taken since is not in the
                report.
        """
        self.last = report
        if report.remaining is None or not report.reset:
            self.is_bounding = False
            return
        self._renews = report.limit is not None and report.reset <= _LONGEST_SECONDS
        left = report.remaining - (self.taken - taken_before)
        if not (self._comes_back_at_once and self.is_bounding and now < self._ends):
            self._note(report, now, left, taken_before)
        elif taken_before > self._known:  # else it is of the time before the limit came back
            self._left = min(self._left, report.remaining)
            self._ends = min(self._ends, now + min(report.reset, _LONGEST_SECONDS))

    def refused(self, report: RateLimit | None, asked: float | None, now: float) -> None:
        """Note that a request was refused, with its headers' report and the wait they ask for."""
        self.is_bounding = False
        if report is None:
            return
        self.last = report
        if report.remaining is None or not report.reset:
            return
        if report.remaining == 0 and asked is not None and asked != report.reset:
            self._comes_back_at_once = asked > report.reset * _FINER
        self._note(report, now, report.remaining, self.taken)

    def _note(self, report: RateLimit, now: float, left: float, known: float) -> None:
        assert report.remaining is not None
        assert report.reset is not None
        reset = max(report.reset, _SHORTEST_SECONDS)
        self._full = float(report.limit or max(report.remaining, 1))
        used = max(self._full - report.remaining, 0.0)
        if report.limit is not None and used >= _TELLING:
            refill = self._full * reset / used
            if self._refill and not 0.5 < refill / self._refill < 2:
                self._comes_back_at_once = True
            self._refill = refill
        self._at, self._ends = now, now + min(reset, _LONGEST_SECONDS)
        self._left, self._known = left, known
        self._renews = report.limit is not None and reset <= _LONGEST_SECONDS
        bit_by_bit = report.limit is not None and not self._comes_back_at_once
        self._rate = used / reset if bit_by_bit else 0.0
        self.is_bounding = True
