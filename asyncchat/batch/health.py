"""Whether it makes sense to go on asking, seen from a batch: an outage is waited for, and a refusal for good ends it.

Not here: which endpoint (the pool knows), a clock. A pause that a server asked for is the pool's as well.
"""

from math import inf

from asyncchat.batch.record import Kind

__all__ = ["Health"]

_ROW = 20  # failures without an answer between them
_LONGEST_PAUSE = 30.0
_OUTAGE: frozenset[Kind] = frozenset({"connection", "timeout", "server", "cut", "protocol"})
_FOR_GOOD: frozenset[Kind] = frozenset({"auth", "quota", "not_found"})


class Health:
    """How the servers do, all together.

    Two things let one request at a time find out how they are: an outage, with growing pauses, and a refusal for good, without:
    were it not the only one's, each of those sent meanwhile would be refused as well.

    Args:
        max_wait: seconds of asking without any answer after which waiting makes no sense.
    """

    __slots__ = (
        "_alone_since",
        "_asking_since",
        "_for_good",
        "_good_sent_at",
        "_max_wait",
        "_next",
        "_pause",
        "_row",
        "is_out",
    )

    def __init__(self, max_wait: float) -> None:
        self._max_wait = max_wait
        self._asking_since: float | None = None  # without an answer
        self._good_sent_at = -inf  # the latest of those that were answered
        self._row = self._for_good = 0
        self._alone_since: float | None = None
        self._pause = self._next = 0.0
        self.is_out = False
        """Whether there is an outage: nothing has worked lately, whatever was asked."""

    def wait(self, now: float) -> float:
        """Return 0 where a request may start, else the seconds until one may."""
        return 0.0 if self._alone_since is None else max(self._next - now, 0.0)

    def sent(self, now: float) -> None:
        """Note that a request starts. Where one at a time does, it is alone for as long as a pause is at most."""
        if self._asking_since is None:
            self._asking_since = now
        if self._alone_since is not None:
            self._next = now + _LONGEST_PAUSE

    def answered(self, sent_at: float) -> bool:
        """Note an answer to what was sent at `sent_at`; return whether more than one may start again."""
        self._good_sent_at = max(self._good_sent_at, sent_at)
        self._for_good = 0
        return self._is_there()

    def failed(self, now: float, kind: Kind, sent_at: float) -> bool:
        """Note a failed attempt that began at `sent_at`; return whether more than one may start again."""
        pause = 0.0
        if kind in _OUTAGE:
            self._row += 1
            if not self.is_out and self._row >= _ROW:
                self.is_out = True
                self._alone_since, self._pause, self._next = now, 1.0, now + 1.0
                return False
            if self.is_out and self._is_latest(sent_at):
                pause = self._pause = min(self._pause * 2, _LONGEST_PAUSE)
        elif kind in _FOR_GOOD:
            self._for_good += 1
            if self._alone_since is None:
                self._alone_since = self._next = now
        elif kind != "rate_limit":  # who refuses this one is there
            return self._is_there()
        if self._is_latest(sent_at):
            self._next = now + pause
        return False

    def _is_latest(self, sent_at: float) -> bool:
        return self._alone_since is not None and sent_at >= self._alone_since

    def _is_there(self) -> bool:
        self._asking_since = None
        self._row = 0
        self.is_out = False
        if self._alone_since is None:
            return False
        self._next = 0.0
        if not self._for_good:
            self._alone_since = None
        return True

    @property
    def has_worked(self) -> bool:
        """Whether there has been an answer at all."""
        return self._good_sent_at > -inf

    def worked_since(self, at: float) -> bool:
        """Whether something that was sent after `at` has been answered."""
        return self._good_sent_at > at

    def give_up(self) -> None:
        """Note that one input has been refused so often that it would be of no use to others."""
        self._for_good = max(self._for_good, _ROW)

    def hopeless(self, now: float) -> str | None:
        """Return why it makes no sense to go on, in words, or None."""
        if self._for_good >= _ROW:
            return "the server refuses every request for good"
        if self._asking_since is not None and now - self._asking_since > self._max_wait:
            return f"no answer has come for {self._max_wait:g} seconds"
        return None
