"""What became of a batch, in numbers: the summary as data, as a table, and as a page.

Not here: the files of a job, prompts and answers. Everything is read once and in order, and memory is fixed, however many
inputs there were. Names and messages come from others: they are shortened here, and made harmless where they are shown.
"""

from collections import Counter
from collections.abc import Iterable
from heapq import heappush, heappushpop
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from asyncchat.batch.histogram import Bar, Histogram
from asyncchat.batch.record import Attempt, Outcome, Sample, SessionNote, Trace
from asyncchat.batch.timeline import Bin, Clock, Timeline

if TYPE_CHECKING:
    import os

__all__ = [
    "ClientHealth",
    "Counting",
    "Distribution",
    "EndpointReport",
    "Failure",
    "Gap",
    "Report",
    "SlowItem",
    "Times",
]

_LONGEST_ID = 200
_LONGEST_MESSAGE = 500
_MOST_KINDS = 50
_MOST_ENDPOINTS = 50
_MOST_SLOW = 10
_REST = "(others)"
_DOUBTFUL = 0.1  # of the time to the first token: what the client itself may add to it
_TOO_SHORT = 0.005  # seconds of lag that any busy machine has
_BUSY = 0.9  # of one core


class Distribution(msgspec.Struct, frozen=True, kw_only=True):
    """How long something took, in seconds. Percentiles are at most 1 % beside the exact ones; all but `count` are None of nothing."""

    count: int
    mean: float | None
    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    bars: list[Bar]
    """The histogram: `[low, high, count]` each, from `low` up to `high` seconds."""


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """The times of inputs with one kind of outcome."""

    queue: Distribution
    """From taking the input up until its first request was sent."""
    ttft: Distribution
    """From sending the last request to its first token."""
    itl: Distribution
    """Between two tokens: one value for each answer, its mean."""
    total: Distribution
    """From taking the input up until its record was written."""


class Failure(msgspec.Struct, frozen=True):
    """Inputs that failed for one reason, and the first of them."""

    kind: str
    count: int
    custom_id: str
    message: str


class EndpointReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came from one endpoint: the last one that each input was sent to."""

    endpoint: str
    ok: int
    failed: int
    failed_attempts: int
    prompt_tokens: int | None
    completion_tokens: int | None
    cost: float | None
    ttft_p50: float | None
    ttft_p95: float | None
    total_p50: float | None
    total_p95: float | None


class SlowItem(msgspec.Struct, frozen=True, kw_only=True):
    """One of the inputs that took longest. Times are in seconds."""

    custom_id: str
    n: int
    total: float
    queue: float | None
    ttft: float | None
    attempts: int
    completion_tokens: int | None
    endpoint: str | None
    failure: str | None


class Gap(msgspec.Struct, frozen=True):
    """A run that took up the batch after an earlier one: when, in seconds of running time, and how many seconds after that had ended."""

    at: float
    seconds: float


class ClientHealth(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the client itself was in the way."""

    lag_p99_seconds: float | None
    """How late the event loop was, at worst but for one second in a hundred."""
    cpu_share: float | None
    """CPU seconds for each second of running time; 1 is one core."""
    rss_bytes: int | None
    """The most memory that a run had."""
    warnings: list[str]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a batch. None is unknown, which is not 0: tokens where no server counted them, cost where there are no prices."""

    items: int
    """Inputs with a record."""
    ok: int
    failed: int
    reused: int
    """Inputs whose answer was copied from the same question. Their times, tokens and costs are counted once."""
    failures: list[Failure]
    """Why inputs failed, the most frequent reason first."""
    requests: int
    """Requests that were sent."""
    retries: int
    """Those that followed on a failed attempt."""
    refused: int
    """Those that were told to come back later."""
    resent_at_most: int
    """Those that were on their way when a run ended unexpectedly, and were sent again by the next."""
    failed_attempts: dict[str, int]
    """Attempts that failed, by kind: those that were refused, and those of inputs that succeeded later, included."""
    runs: int
    """Runs of the process."""
    is_open: bool
    """Whether the last run has not noted its end: it goes on, or was killed."""
    wall_seconds: float
    """Running time: the sum of all runs."""
    gaps: list[Gap]
    items_per_second: float | None
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    prompt_tokens_per_second: float | None
    completion_tokens_per_second: float | None
    cost: float | None
    """In the money of the prices that were given."""
    times_ok: Times
    times_failed: Times
    timeline: list[Bin]
    endpoints: list[EndpointReport]
    slowest: list[SlowItem]
    client: ClientHealth

    @classmethod
    def of(
        cls,
        outcomes: Iterable[Outcome],
        attempts: Iterable[Attempt],
        notes: Iterable[Sample | SessionNote],
    ) -> "Report":
        """Return the report of a batch. Each is read once: `notes` first, in the order in which they were written."""
        count = Counting(attempts, notes)
        for outcome in outcomes:
            count.outcome(outcome)
        return count.report()

    def json(self) -> bytes:
        """Return the summary as a JSON document of one line."""
        return msgspec.json.encode(self) + b"\n"

    def text(self) -> str:
        """Return the summary as a table of at most 80 columns, for a terminal."""
        from asyncchat.batch.summary import as_text

        return as_text(self)

    def html(
        self, path: "str | os.PathLike[str] | None" = None, title: str = "Batch report"
    ) -> str:
        """Return the summary as one HTML page that needs no network and runs no script; write it to `path` if there is one.

        Raises:
            ImportError: the extra `report` is not installed.
            OSError: it cannot be written.
        """
        from asyncchat.batch.page import as_html

        page = as_html(self, title)
        if path is not None:
            Path(path).write_text(page, encoding="utf-8")
        return page


class _Tokens:
    """Tokens and cost of some inputs; None as long as nobody has counted any."""

    __slots__ = ("cached", "completion", "cost", "prompt")

    def __init__(self) -> None:
        self.prompt: int | None = None
        self.completion: int | None = None
        self.cached: int | None = None
        self.cost: float | None = None

    def add(self, trace: Trace) -> None:
        if trace.tokens is not None:
            prompt, completion, cached = trace.tokens
            self.prompt = (self.prompt or 0) + prompt
            self.completion = (self.completion or 0) + completion
            self.cached = (self.cached or 0) + cached
        if trace.cost is not None:
            self.cost = (self.cost or 0.0) + trace.cost


class _Times:
    __slots__ = ("itl", "queue", "total", "ttft")

    def __init__(self) -> None:
        self.queue, self.ttft, self.itl, self.total = (Histogram() for _ in range(4))

    def add(self, trace: Trace) -> None:
        if trace.t_queue is not None:
            self.queue.add(trace.t_queue)
        if trace.t_first is not None:
            self.ttft.add(trace.t_first)
        if trace.t_itl is not None:
            self.itl.add(trace.t_itl)
        if trace.t_total is not None:
            self.total.add(trace.t_total)

    def times(self) -> Times:
        return Times(
            queue=_distribution(self.queue),
            ttft=_distribution(self.ttft),
            itl=_distribution(self.itl),
            total=_distribution(self.total),
        )


class _Endpoint:
    __slots__ = ("failed", "failed_attempts", "ok", "tokens", "total", "ttft")

    def __init__(self) -> None:
        self.ok = self.failed = self.failed_attempts = 0
        self.tokens = _Tokens()
        self.ttft, self.total = Histogram(), Histogram()

    def add(self, outcome: Outcome) -> None:
        trace = outcome.trace
        self.tokens.add(trace)
        if outcome.error is not None:
            self.failed += 1
            return
        self.ok += 1
        if trace.t_first is not None:
            self.ttft.add(trace.t_first)
        if trace.t_total is not None:
            self.total.add(trace.t_total)

    def report(self, name: str) -> EndpointReport:
        ttft_p50, ttft_p95 = self.ttft.percentiles(0.5, 0.95)
        total_p50, total_p95 = self.total.percentiles(0.5, 0.95)
        return EndpointReport(
            endpoint=name,
            ok=self.ok,
            failed=self.failed,
            failed_attempts=self.failed_attempts,
            prompt_tokens=self.tokens.prompt,
            completion_tokens=self.tokens.completion,
            cost=self.tokens.cost,
            ttft_p50=ttft_p50,
            ttft_p95=ttft_p95,
            total_p50=total_p50,
            total_p95=total_p95,
        )


class _Runs:
    """The runs of the process: how long, how they ended, what they used."""

    __slots__ = ("clock", "cpu", "ended", "in_flight", "is_open", "lag", "resent", "rss", "runs")

    def __init__(self) -> None:
        self.clock = Clock()
        self.runs = self.resent = self.rss = 0
        self.is_open = False
        self.in_flight = 0  # as last seen in the run that is open
        self.lag = Histogram()
        self.cpu = self.ended = 0.0  # CPU seconds, and running time, of runs that noted their end

    def begin(self, t: float) -> None:
        if self.is_open:  # the one before was killed
            self.resent += self.in_flight
        self.clock.start(t)
        self.runs += 1
        self.is_open, self.in_flight = True, 0

    def end(self, note: SessionNote, end: float) -> None:
        if not self.is_open:
            self.begin(note.start)
        self.clock.reach(end)
        self.is_open = False
        self.cpu += note.cpu
        self.ended += max(end - note.start, 0.0)
        self.rss = max(self.rss, note.rss)

    def sample(self, sample: Sample) -> None:
        if not self.is_open:
            self.begin(sample.t)
        self.clock.reach(sample.t)
        self.in_flight = sample.in_flight
        self.lag.add(sample.lag)


class Counting:
    """A report in the making, which lacks the outcomes. Each argument is read once, `notes` in the order in which they were written."""

    def __init__(self, attempts: Iterable[Attempt], notes: Iterable[Sample | SessionNote]) -> None:
        self._runs = _Runs()
        self._timeline = Timeline()
        self._ok = self._failed = self._reused = 0
        self._requests = self._retries = self._refused = 0
        self._examples: dict[str, tuple[str, str]] = {}
        self._kinds: Counter[str] = Counter()
        self._attempts: Counter[str] = Counter()
        self._tokens = _Tokens()
        self._times = {True: _Times(), False: _Times()}
        self._endpoints: dict[str, _Endpoint] = {}
        # Shortest first; the place tells equals apart, so that outcomes are not compared.
        self._slowest: list[tuple[float, int, Outcome]] = []
        self._ends: tuple[float, float] | None = None  # the first and the last record
        for note in notes:
            self._note(note)
        for attempt in attempts:
            self._attempt(attempt)

    def _note(self, note: Sample | SessionNote) -> None:
        runs = self._runs
        if isinstance(note, SessionNote):
            if note.end is None:
                runs.begin(note.start)
            else:
                runs.end(note, note.end)
            return
        runs.sample(note)
        cell = self._timeline.at(runs.clock.at(note.t))
        cell.samples += 1
        cell.in_flight += note.in_flight
        if note.limit is not None:
            cell.limited += 1
            cell.limit += note.limit
        if note.pause > 0:
            cell.paused += 1

    def _attempt(self, attempt: Attempt) -> None:
        self._attempts[_bounded(attempt.kind, self._attempts, _MOST_KINDS)] += 1
        if attempt.endpoint is not None:
            self._endpoint(attempt.endpoint).failed_attempts += 1

    def outcome(self, outcome: Outcome) -> None:
        """Count what became of an input."""
        trace, ok = outcome.trace, outcome.error is None
        if outcome.error is None:
            self._ok += 1
        else:
            self._failed += 1
            kind = _bounded(outcome.error.code, self._kinds, _MOST_KINDS)
            self._kinds[kind] += 1
            if kind not in self._examples:
                self._examples[kind] = (
                    _cut(outcome.custom_id, _LONGEST_ID),
                    _cut(outcome.error.message, _LONGEST_MESSAGE),
                )
        cell = self._timeline.at(self._runs.clock.at(trace.t_end))
        if ok:
            cell.ok += 1
        else:
            cell.failed += 1
        first, last = self._ends or (trace.t_end, trace.t_end)
        self._ends = (min(first, trace.t_end), max(last, trace.t_end))
        if trace.reused is not None:
            self._reused += 1
            return
        self._requests += trace.attempts
        self._refused += trace.refused
        self._retries += max(trace.attempts - trace.refused - 1, 0)
        self._tokens.add(trace)
        self._times[ok].add(trace)
        if trace.tokens is not None:
            cell.prompt_tokens += trace.tokens[0]
            cell.completion_tokens += trace.tokens[1]
        if trace.endpoint is not None:
            self._endpoint(trace.endpoint).add(outcome)
        if trace.t_total is not None:
            self._rank(trace.t_total, outcome)

    def _rank(self, seconds: float, outcome: Outcome) -> None:
        ranked = (seconds, -self._ok - self._failed, outcome)
        if len(self._slowest) < _MOST_SLOW:
            heappush(self._slowest, ranked)
        elif ranked > self._slowest[0]:
            heappushpop(self._slowest, ranked)

    def _endpoint(self, name: str) -> _Endpoint:
        name = _bounded(name, self._endpoints, _MOST_ENDPOINTS)
        found = self._endpoints.get(name)
        if found is None:
            found = self._endpoints[name] = _Endpoint()
        return found

    def report(self) -> Report:
        """Return the report of what was counted."""
        runs, tokens = self._runs, self._tokens
        start, wall = 0.0, runs.clock.seconds
        if not runs.runs and self._ends is not None:  # the notes are lost: the records tell when
            start, wall = self._ends[0], self._ends[1] - self._ends[0]
        items = self._ok + self._failed
        return Report(
            items=items,
            ok=self._ok,
            failed=self._failed,
            reused=self._reused,
            failures=[
                Failure(kind, n, *self._examples[kind]) for kind, n in self._kinds.most_common()
            ],
            requests=self._requests,
            retries=self._retries,
            refused=self._refused,
            resent_at_most=runs.resent,
            failed_attempts=dict(self._attempts.most_common()),
            runs=runs.runs,
            is_open=runs.is_open,
            wall_seconds=wall,
            gaps=[Gap(at, seconds) for at, seconds in runs.clock.resumed],
            items_per_second=_rate(items, wall),
            prompt_tokens=tokens.prompt,
            completion_tokens=tokens.completion,
            cached_tokens=tokens.cached,
            prompt_tokens_per_second=_rate(tokens.prompt, wall),
            completion_tokens_per_second=_rate(tokens.completion, wall),
            cost=tokens.cost,
            times_ok=self._times[True].times(),
            times_failed=self._times[False].times(),
            timeline=self._timeline.bins(start, start + wall),
            endpoints=[
                endpoint.report(name)
                for name, endpoint in sorted(
                    self._endpoints.items(), key=lambda pair: -pair[1].ok - pair[1].failed
                )
            ],
            slowest=[
                _slow(seconds, outcome)
                for seconds, _, outcome in sorted(self._slowest, reverse=True)
            ],
            client=self._health(),
        )

    def _health(self) -> ClientHealth:
        runs = self._runs
        (lag,) = runs.lag.percentiles(0.99)
        (ttft,) = self._times[True].ttft.percentiles(0.5)
        share = _rate(runs.cpu, runs.ended)
        warnings: list[str] = []
        if lag is not None and ttft is not None and lag > max(_DOUBTFUL * ttft, _TOO_SHORT):
            warnings.append(
                "The client was late in reading what had come: the event loop lagged by "
                f"{lag * 1000:.0f} ms (p99), and half of the first tokens came within {ttft * 1000:.0f} ms. "
                "Times to the first token and between tokens are partly the client's own."
            )
        if share is not None and share > _BUSY:
            warnings.append(
                f"The client used {100 * share:.0f} % of a core: it may have been what bounded the speed. More processes would help."
            )
        return ClientHealth(
            lag_p99_seconds=lag,
            cpu_share=share,
            rss_bytes=runs.rss or None,
            warnings=warnings,
        )


def _bounded(name: str, known: "Counter[str] | dict[str, _Endpoint]", most: int) -> str:
    """Return the name to count under: what is new after `most` others goes together."""
    return name if name in known or len(known) < most else _REST


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _slow(seconds: float, outcome: Outcome) -> SlowItem:
    trace = outcome.trace
    return SlowItem(
        custom_id=_cut(outcome.custom_id, _LONGEST_ID),
        n=trace.n,
        total=seconds,
        queue=trace.t_queue,
        ttft=trace.t_first,
        attempts=trace.attempts,
        completion_tokens=None if trace.tokens is None else trace.tokens[1],
        endpoint=trace.endpoint,
        failure=None if outcome.error is None else outcome.error.code,
    )


def _distribution(histogram: Histogram) -> Distribution:
    p50, p90, p95, p99 = histogram.percentiles(0.5, 0.9, 0.95, 0.99)
    some = histogram.count > 0
    return Distribution(
        count=histogram.count,
        mean=histogram.mean,
        min=histogram.smallest if some else None,
        p50=p50,
        p90=p90,
        p95=p95,
        p99=p99,
        max=histogram.largest if some else None,
        bars=histogram.bars(),
    )


def _rate(amount: float | None, seconds: float) -> float | None:
    return None if amount is None or seconds <= 0 else amount / seconds
