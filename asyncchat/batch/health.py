"""Whether it makes sense to go on asking, seen from a batch: an outage is waited for, and a refusal for good ends it.

Not here: which endpoint (the pool knows), a clock. A pause that a server asked for is the pool's as well.
"""

from asyncchat.batch.record import Kind

__all__ = ["Health"]

_ROW = 20  # failures without an answer between them
_LONGEST_PAUSE = 30.0
_OUTAGE: frozenset[Kind] = frozenset({"connection", "timeout", "server", "cut", "protocol"})
_FOR_GOOD: frozenset[Kind] = frozenset({"auth", "quota", "not_found"})


class Health:
    """How the servers do, all together.

    Args:
        now: the time, in seconds on a monotonic clock.
        max_wait: seconds without any answer after which waiting makes no sense.
    """

    __slots__ = ("_for_good", "_good_at", "_max_wait", "_next", "_out_since", "_pause", "_row")

    def __init__(self, now: float, max_wait: float) -> None:
        self._max_wait = max_wait
        self._good_at = now
        self._row = self._for_good = 0
        self._out_since: float | None = None
        self._pause = self._next = 0.0

    @property
    def is_out(self) -> bool:
        """Whether nothing has worked lately: then one request at a time finds out if it does again."""
        return self._out_since is not None

    def wait(self, now: float) -> float:
        """Return 0 where a request may start, else the seconds until one may."""
        return 0.0 if self._out_since is None else max(self._next - now, 0.0)

    def sent(self, now: float) -> None:
        """Note that a request starts. In an outage it is alone for as long as a pause is at most."""
        if self._out_since is not None:
            self._next = now + _LONGEST_PAUSE

    def answered(self, now: float) -> bool:
        """Note an answer; return whether that ends an outage."""
        was_out = self._out_since is not None
        self._good_at = now
        self._row = self._for_good = 0
        self._out_since = None
        return was_out

    def failed(self, now: float, kind: Kind, sent_at: float) -> None:
        """Note a failed attempt that began at `sent_at`."""
        if kind in _FOR_GOOD:
            self._for_good += 1
        elif kind in _OUTAGE:
            self._row += 1
            if self._out_since is None:
                if self._row >= _ROW:
                    self._out_since, self._pause = now, 1.0
                    self._next = now + self._pause
            elif sent_at >= self._out_since:
                self._pause = min(self._pause * 2, _LONGEST_PAUSE)
                self._next = now + self._pause

    def worked_since(self, at: float) -> bool:
        """Whether there has been an answer since `at`."""
        return self._good_at > at

    def give_up(self) -> None:
        """Note that one input has been refused so often that it would be of no use to others."""
        self._for_good = max(self._for_good, _ROW)

    def hopeless(self, now: float) -> str | None:
        """Return why it makes no sense to go on, in words, or None."""
        if self._for_good >= _ROW:
            return "the server refuses every request for good"
        if now - self._good_at > self._max_wait:
            return f"no answer has come for {self._max_wait:g} seconds"
        return None
