"""How a batch is doing, while it runs: counts, speeds, times, and when it may end.

Not here: a clock (`now` is a parameter: seconds of any clock that only goes forward), the engine, how it is shown.
Memory is fixed, however long the batch.
"""

from collections import Counter
from math import sqrt

import msgspec

from asyncchat.batch.histogram import Histogram
from asyncchat.batch.record import Trace

__all__ = ["BatchProgress", "Meter"]

_STEP = 0.5  # seconds
_STEPS = 60  # speeds are of the last 30 seconds
_TELLING = 4  # inputs that have to be finished before anything is said of the end


class BatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch stands. Counts are of this run of the process, but for `skipped`: inputs that an earlier one has finished.

    Times are in seconds and of inputs that were answered; speeds are per second, over the last 30 seconds; `tokens_per_second`
    are those of answers. None is unknown, which is not 0: tokens where no server counted them, cost where there are no prices.
    """

    done: int
    """Inputs with an answer."""
    failed: int
    """Inputs with an error."""
    skipped: int
    retried: int
    """Failed attempts that are or were made again."""
    refused: int
    """Requests that were told to come back later."""
    in_flight: int
    """Requests that are on their way."""
    limit: int | None
    """How many may be."""
    pause: float
    """Seconds until anything is sent again, as a server asked for."""
    total: int | None
    """Inputs in all."""
    position: float | None
    """How much of the input has been read, from 0 to 1."""
    items_per_second: float
    tokens_per_second: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    latency_p50: float | None
    latency_p95: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    projected_cost: float | None
    """What this run will have cost at its end, if inputs go on costing what they did."""
    elapsed: float
    eta: tuple[float, float] | None
    """Seconds until the end: at least, at most."""
    failures: dict[str, int]
    """How many of `failed`, by kind."""

    @property
    def finished(self) -> int:
        """Inputs that have a record, of this run or an earlier one."""
        return self.done + self.failed + self.skipped

    @property
    def fraction(self) -> float | None:
        """How much is finished, from 0 to 1."""
        total = self.expected
        if total is None:
            return None
        return min(self.finished / total, 1.0) if total else 1.0

    @property
    def expected(self) -> float | None:
        """Inputs in all; where they are not counted, what the part of the input that has been read lets expect."""
        return _expected(self.total, self.position, self.finished + self.in_flight)


class Meter:
    """Counts what happens in one run of a batch, from `now` on."""

    __slots__ = (
        "_completion_tokens",
        "_cost",
        "_done",
        "_failures",
        "_items",
        "_latency",
        "_prompt_tokens",
        "_refused",
        "_retried",
        "_skipped",
        "_start",
        "_step",
        "_tokens",
        "_ttft",
    )

    def __init__(self, now: float) -> None:
        self._start = now
        self._done = self._skipped = self._retried = self._refused = 0
        self._failures: Counter[str] = Counter()
        self._prompt_tokens: int | None = None
        self._completion_tokens: int | None = None
        self._cost: float | None = None
        self._ttft, self._latency = Histogram(), Histogram()
        self._step = 0  # the newest of the last steps, in which the next two count what happened
        self._items, self._tokens = [0] * _STEPS, [0] * _STEPS

    def noted(self, now: float, trace: Trace, kind: str | None) -> None:
        """Count an input that got its record; `kind` is that of its failure, None where it has an answer.

        An answer that was only copied from the same question is counted, but neither its time nor its cost.
        """
        step = self._at(now)
        self._items[step] += 1
        if kind is None:
            self._done += 1
        else:
            self._failures[kind] += 1
        if trace.reused is not None:
            return
        if trace.tokens is not None:
            prompt, completion, _ = trace.tokens
            self._prompt_tokens = (self._prompt_tokens or 0) + prompt
            self._completion_tokens = (self._completion_tokens or 0) + completion
            self._tokens[step] += completion
        if trace.cost is not None:
            self._cost = (self._cost or 0.0) + trace.cost
        if kind is None:
            if trace.t_first is not None:
                self._ttft.add(trace.t_first)
            if trace.t_total is not None:
                self._latency.add(trace.t_total)

    def retried(self, now: float, kind: str) -> None:
        """Count a failed attempt that will be made again."""
        del now, kind  # the report tells them apart; progress needs only how many
        self._retried += 1

    def refused(self, now: float) -> None:
        """Count a request that was told to come back later."""
        del now
        self._refused += 1

    def skipped(self, n: int) -> None:
        """Count `n` inputs that an earlier run has finished."""
        self._skipped += n

    def progress(
        self,
        now: float,
        *,
        in_flight: int,
        limit: int | None,
        pause: float,
        total: int | None,
        position: float | None,
    ) -> BatchProgress:
        """Return how it stands. Cost: about 0.2 ms, so not for each input.

        Args:
            now: As before.
            in_flight: Requests that are on their way.
            limit: How many may be.
            pause: Seconds until anything is sent again.
            total: Inputs in all, skipped ones included; None where they are not counted (yet).
            position: How much of the input has been read, from 0 to 1; None where its end is unknown.
        """
        self._at(now)
        elapsed = now - self._start
        # Up to now, from the beginning of the oldest step: so many seconds are what the steps have counted.
        seconds = max(elapsed - max(0, self._step - _STEPS + 1) * _STEP, _STEP)
        items, failed = sum(self._items), self._failures.total()
        new = self._done + failed
        expected = _expected(total, position, new + self._skipped + in_flight)
        left = None if expected is None else max(expected - new - self._skipped, 0.0)
        ttft_p50, ttft_p95 = self._ttft.percentiles(0.5, 0.95)
        latency_p50, latency_p95 = self._latency.percentiles(0.5, 0.95)
        projected = None
        if self._cost is not None and left is not None:
            projected = self._cost * (1 + left / new)
        return BatchProgress(
            done=self._done,
            failed=failed,
            skipped=self._skipped,
            retried=self._retried,
            refused=self._refused,
            in_flight=in_flight,
            limit=limit,
            pause=pause,
            total=total,
            position=position,
            items_per_second=items / seconds,
            tokens_per_second=None
            if self._completion_tokens is None
            else sum(self._tokens) / seconds,
            ttft_p50=ttft_p50,
            ttft_p95=ttft_p95,
            latency_p50=latency_p50,
            latency_p95=latency_p95,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            cost=self._cost,
            projected_cost=projected,
            elapsed=elapsed,
            eta=_eta(left, (items, seconds), (new, elapsed), pause, latency_p95 or 0.0),
            failures=dict(self._failures),
        )

    def _at(self, now: float) -> int:
        """Return the place of the step that `now` is in, after emptying those that begin anew."""
        step = int((now - self._start) / _STEP)
        if step > self._step:
            for passed in range(max(self._step + 1, step - _STEPS + 1), step + 1):
                self._items[passed % _STEPS] = self._tokens[passed % _STEPS] = 0
            self._step = step
        return self._step % _STEPS


def _expected(total: int | None, position: float | None, read: int) -> float | None:
    if total is not None:
        return total
    return read / position if position and read else None


def _eta(
    left: float | None,
    lately: tuple[int, float],
    altogether: tuple[int, float],
    pause: float,
    slowest: float,
) -> tuple[float, float] | None:
    """Return at least and at most how long the rest takes: at the quicker and the slower of two speeds, lately and altogether.

    Speeds that few inputs have shown are known less well: a count of n is off by its root. At the end the last answer is waited for.
    """
    if left is None:
        return None
    if not left:
        return (0.0, 0.0)
    speeds = [(n / seconds, n) for n, seconds in (lately, altogether) if n >= _TELLING]
    if not speeds:
        return None
    quickest = max(speed * (1 + 1 / sqrt(n)) for speed, n in speeds)
    slowest_speed = min(speed * (1 - 1 / sqrt(n)) for speed, n in speeds)
    return (pause + left / quickest, pause + left / slowest_speed + slowest)
