"""How many requests at once a server bears, found out: more while it stays quick, half as many when it says stop.

Not here: counting who is in flight, a clock. Source: the additive increase and multiplicative decrease of TCP, with the
rule of congestion window validation (RFC 7661) that a bound nobody reaches does not grow.
"""

from math import inf

__all__ = ["AdaptiveLimit"]

_START = 16.0
_LEAST = 1.0
_CUT = 0.5
_USED = 0.5  # the share of the limit that has to be in use for it to grow
_SLOWER = 2.0  # how many times its best a server's latency may be while the limit still grows
_SLACK_SECONDS = 0.02
_WEIGHT = 0.1
_FIRST = 10  # answers of which the mean is no measure yet
_FORGETTING = 0.002  # a round: what was quick is the measure for some five hundred rounds
_KNOWN_GOOD = 0.85  # of the limit at which there was trouble: up to there it comes back quickly


class AdaptiveLimit:
    """A bound on requests in flight that follows the server.

    It grows by one with each good answer until close to where there was trouble, then by one a round; a refusal halves
    it, once for all requests that were under way together.

    Args:
        most: what it never exceeds; None is no bound.
    """

    __slots__ = ("_answers", "_best", "_ceiling", "_cut_at", "_latency", "_most", "limit")

    def __init__(self, most: int | None) -> None:
        self._most = inf if most is None else float(most)
        self.limit = min(_START, self._most)
        self._ceiling = inf  # where there was trouble
        self._answers = 0
        self._latency = self._best = 0.0
        self._cut_at = -inf

    def answered(self, latency: float, in_flight: int) -> None:
        """Note a good answer: how long it took to begin, and how many were in flight with it."""
        self._answers += 1
        self._latency += max(_WEIGHT, 1 / self._answers) * (latency - self._latency)
        is_known = self._answers > _FIRST and self._latency > self._best
        follows = _FORGETTING / self.limit if is_known else 1.0
        self._best += follows * (self._latency - self._best)
        if in_flight < self.limit * _USED:
            return
        if self._latency > self._best * _SLOWER + _SLACK_SECONDS:
            if self._ceiling == inf:  # else a refusal has shown more exactly where trouble begins
                self._ceiling = self.limit
            return
        is_near = self.limit >= self._ceiling * _KNOWN_GOOD
        grown = self.limit + (1 / self.limit if is_near else 1.0)
        self.limit = min(grown, self._most)

    def overloaded(self, sent_at: float, now: float, *, at_once: bool = True) -> None:
        """Note a refusal of a request that was sent at `sent_at`: too many `at_once`, or too many a minute."""
        if sent_at > self._cut_at:
            self._cut_at, before = now, self.limit
            self.limit = max(self.limit * _CUT, _LEAST)
            self._ceiling = before if at_once else self.limit
