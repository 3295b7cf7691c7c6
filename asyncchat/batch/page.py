"""The report of a batch as one page that needs no network and runs no script.

Not here: what is counted (`report`); the markup (`page.html`). Shapes are SVG that stretches, words are HTML that does
not, so that a plot is readable at any width. Foreign words are text: the template escapes everything.
"""

from functools import cache
from importlib.resources import files
from math import ceil, log, log10
from typing import TYPE_CHECKING, NamedTuple

from asyncchat.batch.quantity import UNKNOWN, amount, duration, mebibytes, number, printable, share

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jinja2 import Template

    from asyncchat.batch.histogram import Bar
    from asyncchat.batch.report import Distribution, Report
    from asyncchat.batch.timeline import Bin

__all__ = ["Line", "Plot", "Shape", "Tick", "as_html"]

_TIME_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200)
_DAY = 86400
_MOST_STEPS = 48  # of a histogram
_NARROW = 15.0  # per cent of a plot: two words that are closer would touch on a telephone


class Tick(NamedTuple):
    """A word on an axis, at so many per cent of it."""

    at: float
    word: str


class Shape(NamedTuple):
    """A rectangle in per cent of a plot, from its left upper corner, and what is said when it is pointed at."""

    x: float
    y: float
    width: float
    height: float
    name: str
    hint: str = ""


class Line(NamedTuple):
    """A curve: an SVG path in per cent of a plot."""

    path: str
    name: str


class Plot(NamedTuple):
    """What one plot shows. Areas are drawn below lines."""

    title: str
    note: str
    about: str
    """The plot in words, for who cannot see it."""
    x: list[Tick]
    y: list[Tick]
    shapes: list[Shape]
    lines: list[Line]
    marks: list[Tick]
    """Upright lines, with a word above where there is room for one."""
    hints: list[Shape]
    """What is said where."""


def as_html(report: "Report", title: str) -> str:
    """Return the page.

    Raises:
        ImportError: jinja2 is not installed.
    """
    return _template().render(
        title=printable(title),
        share=share,
        unknown=UNKNOWN,
        report=report,
        timeline=_timeline_plots(report),
        histograms=_histogram_plots(report),
        percentiles=_percentile_tables(report),
    )


@cache
def _template() -> "Template":
    try:
        from jinja2 import Environment, StrictUndefined
    except ImportError as error:
        raise ImportError('The page needs jinja2: pip install "asyncchat[report]"') from error
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters.update(
        number=number,
        amount=amount,
        duration=duration,
        mebibytes=mebibytes,
        printable=printable,
        short=_short,
    )
    return environment.from_string(
        files("asyncchat.batch").joinpath("page.html").read_text(encoding="utf-8")
    )


def _short(value: float) -> str:
    """Return a coordinate without digits nobody sees."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _percentile_tables(
    report: "Report",
) -> "list[tuple[str, list[tuple[str, str, Distribution]]]]":
    tables = []
    for name, times in (("Answered", report.times_ok), ("Failed", report.times_failed)):
        rows = [
            ("Queue", "until the first request was sent", times.queue),
            ("First token", "from the last request on", times.ttft),
            ("Per token", "the mean of each answer", times.itl),
            ("Total", "until the record was written", times.total),
        ]
        rows = [row for row in rows if row[2].count]
        if rows:
            tables.append((name, rows))
    return tables


# ------------------------------------------------------------------------------ over time


def _timeline_plots(report: "Report") -> list[Plot]:
    bins = report.timeline
    if not bins:
        return []
    end = bins[-1].at + bins[-1].seconds
    x = _time_ticks(end)
    marks = [Tick(100 * gap.at / end, f"{duration(gap.seconds)} later") for gap in report.gaps]
    made = [_speed_plot(bins, end, x, marks)]
    if report.completion_tokens is not None:
        made.append(_token_plot(bins, end, x, marks))
    if any(b.in_flight is not None for b in bins):
        made.append(_flight_plot(bins, end, x, marks))
    return made


def _speed_plot(bins: "Sequence[Bin]", end: float, x: list[Tick], marks: list[Tick]) -> Plot:
    top, y = _scale(max((b.ok + b.failed) / b.seconds for b in bins))

    def say(b: "Bin") -> str:
        failed = f", {number(b.failed)} failed" if b.failed else ""
        return f"{amount((b.ok + b.failed) / b.seconds)} inputs/s{failed}"

    answered = _area(bins, end, top, lambda b: b.ok / b.seconds)
    return Plot(
        title="Inputs per second",
        note="Red: failed." if any(b.failed for b in bins) else "",
        about=f"Inputs finished per second over the running time, at most {amount(top)}.",
        x=x,
        y=y,
        shapes=[],
        lines=[
            Line(answered, "good"),
            # Of the two areas only what is not in both: a band on top.
            Line(_area(bins, end, top, lambda b: (b.ok + b.failed) / b.seconds) + answered, "bad"),
        ],
        marks=marks,
        hints=_hints(bins, end, say),
    )


def _token_plot(bins: "Sequence[Bin]", end: float, x: list[Tick], marks: list[Tick]) -> Plot:
    top, y = _scale(max(b.completion_tokens / b.seconds for b in bins))
    return Plot(
        title="Tokens of answers per second",
        note="",
        about=f"Tokens of answers per second over the running time, at most {amount(top)}.",
        x=x,
        y=y,
        shapes=[],
        lines=[Line(_area(bins, end, top, lambda b: b.completion_tokens / b.seconds), "good")],
        marks=marks,
        hints=_hints(bins, end, lambda b: f"{amount(b.completion_tokens / b.seconds)} tokens/s"),
    )


def _flight_plot(bins: "Sequence[Bin]", end: float, x: list[Tick], marks: list[Tick]) -> Plot:
    top, y = _scale(max(max(b.in_flight or 0, b.limit or 0) for b in bins))

    def say(b: "Bin") -> str:
        if b.in_flight is None:
            return "nobody looked"
        limit = "" if b.limit is None else f" of {number(b.limit)}"
        paused = f", paused for {share(b.paused, 1)} of the time" if b.paused else ""
        return f"{amount(b.in_flight)}{limit} in flight{paused}"

    pauses = [
        Shape(100 * b.at / end, 0, 100 * b.seconds / end, 100, "pause") for b in bins if b.paused
    ]
    return Plot(
        title="Requests in flight",
        note="The line is the limit."
        + (" Shaded: a server had asked for a pause." if pauses else ""),
        about=f"Requests in flight over the running time, at most {amount(top)}.",
        x=x,
        y=y,
        shapes=pauses,
        lines=[
            Line(_area(bins, end, top, lambda b: b.in_flight), "good"),
            Line(_curve(bins, end, top, lambda b: b.limit), "limit"),
        ],
        marks=marks,
        hints=_hints(bins, end, say),
    )


def _hints(bins: "Sequence[Bin]", end: float, say: "Callable[[Bin], str]") -> list[Shape]:
    return [
        Shape(100 * b.at / end, 0, 100 * b.seconds / end, 100, "hint", f"{_clock(b.at)}: {say(b)}")
        for b in bins
    ]


def _area(
    bins: "Sequence[Bin]", end: float, top: float, value: "Callable[[Bin], float | None]"
) -> str:
    """Return steps as a closed path; where nothing is known it is at the ground."""
    steps = ["M0 100"]
    for b in bins:
        height = _short(100 - 100 * (value(b) or 0) / top)
        steps.append(f"V{height}H{_short(100 * (b.at + b.seconds) / end)}")
    return "".join([*steps, "V100Z"])


def _curve(
    bins: "Sequence[Bin]", end: float, top: float, value: "Callable[[Bin], float | None]"
) -> str:
    """Return steps as an open path, which is broken where nothing is known."""
    steps: list[str] = []
    is_open = False
    for b in bins:
        known = value(b)
        if known is not None:
            height = _short(100 - 100 * known / top)
            steps.append(f"V{height}" if is_open else f"M{_short(100 * b.at / end)} {height}")
            steps.append(f"H{_short(100 * (b.at + b.seconds) / end)}")
        is_open = known is not None
    return "".join(steps)


def _time_ticks(end: float) -> list[Tick]:
    step = next((s for s in _TIME_STEPS if end / s <= 5), -(-end // (5 * _DAY)) * _DAY)
    count = int(end / step)
    return [Tick(100 * i * step / end, _clock(i * step)) for i in range(count + 1)]


def _clock(seconds: float) -> str:
    """Return a running time as it stands on an axis: `90 s`, `5 min`, `1:30 h`."""
    if seconds == 0:
        return "0"
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{rest:02} min" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02} h"


def _scale(largest: float) -> tuple[float, list[Tick]]:
    """Return where an axis from 0 ends, and its words: two or three round numbers."""
    if largest <= 0:
        return 1.0, [Tick(100, "0")]
    unit = 10.0 ** int(log10(largest) // 1)
    step = next(s * unit for s in (0.2, 0.5, 1, 2, 5) if largest / (s * unit) <= 4)
    top = largest * 1.05
    return top, [
        Tick(100 - 100 * i * step / top, _round(i * step)) for i in range(int(top / step) + 1)
    ]


def _round(value: float) -> str:
    """Return a round number: `0.5`, `10`, `2.5 k`."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


# ------------------------------------------------------------------------------ histograms


def _histogram_plots(report: "Report") -> list[Plot]:
    good, bad = report.times_ok, report.times_failed
    plots = (
        _histogram_plot("Time to the first token", good.ttft, bad.ttft),
        _histogram_plot("Time per token", good.itl, bad.itl),
        _histogram_plot("Total time", good.total, bad.total),
        _histogram_plot("Time in the queue", good.queue, bad.queue),
    )
    return [plot for plot in plots if plot is not None]


def _histogram_plot(title: str, good: "Distribution", bad: "Distribution") -> Plot | None:
    counts = _side_by_side(good.bars, bad.bars)
    if not counts:
        return None
    low, high = log10(counts[0][0]), log10(counts[-1][1])

    def place(seconds: float) -> float:
        return min(max(100 * (log10(seconds) - low) / (high - low), 0), 100)

    top, y = _scale(max(n + failed for _, _, n, failed in counts))
    shapes: list[Shape] = []
    hints: list[Shape] = []
    for start, end, n, failed in counts:
        x, width = place(start), place(end) - place(start)
        height = _visible(100 * n / top)
        if n:
            shapes.append(Shape(x, 100 - height, width, height, "good"))
        if failed:
            bad_height = _visible(100 * failed / top)
            shapes.append(Shape(x, 100 - height - bad_height, width, bad_height, "bad"))
        if n or failed:
            also = f", {number(failed)} failed" if failed else ""
            hints.append(
                Shape(
                    x,
                    0,
                    width,
                    100,
                    "hint",
                    f"{duration(start)} to {duration(end)}: {number(n)} answered{also}",
                )
            )
    values = (("p50", good.p50), ("p95", good.p95), ("p99", good.p99))
    told = [f"{name} {duration(value)}" for name, value in values if value is not None]
    return Plot(
        title=title,
        note=" · ".join(told),
        about=f"{title}: a histogram of {number(good.count)} answers; {', '.join(told)}.",
        x=_log_ticks(low, high),
        y=y,
        shapes=shapes,
        lines=[],
        marks=_apart([Tick(place(v), name) for name, v in values if v]),
        hints=hints,
    )


def _side_by_side(
    good: "Sequence[Bar]", bad: "Sequence[Bar]"
) -> list[tuple[float, float, int, int]]:
    """Return low, high, answered, failed of each step in which something is; several bars make one step where there are many."""
    bars = [*good, *bad]
    if not bars:
        return []
    least = min(bar.low for bar in bars)
    ratio = bars[0].high / bars[0].low
    places = [round(log(bar.low / least, ratio)) for bar in bars]
    width = ceil((max(places) + 1) / _MOST_STEPS)
    counts: dict[int, list[int]] = {}
    for number_, (bar, place) in enumerate(zip(bars, places, strict=True)):
        counts.setdefault(place // width, [0, 0])[number_ >= len(good)] += bar.count
    return [
        (least * ratio ** (step * width), least * ratio ** ((step + 1) * width), n, failed)
        for step, (n, failed) in sorted(counts.items())
    ]


def _visible(height: float) -> float:
    """Return a height at which even one of a million is seen."""
    return max(height, 0.8) if height else 0.0


def _log_ticks(low: float, high: float) -> list[Tick]:
    """Return 1, 2 and 5 of each power of ten on a logarithmic axis; where there is little room, words go to the powers."""
    steps = (1, 2, 5) if high - low < 2.5 else (1,)
    ticks = [
        (log10(step) + decade, step * 10.0**decade)
        for step in steps
        for decade in range(int(low) - 2, int(high) + 2)
    ]
    return _apart(
        [Tick(100 * (at - low) / (high - low), _axis(v)) for at, v in ticks if low <= at <= high]
    )


def _axis(seconds: float) -> str:
    """Return a round time: `50 ms`, `2 s`."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "\N{MICRO SIGN}s")):
        if seconds >= size * 0.999:
            return f"{seconds / size:,.0f} {unit}"
    return "0"


def _apart(ticks: list[Tick]) -> list[Tick]:
    """Return the same ticks, without the words that are too close to an earlier one's."""
    words: list[Tick] = []
    for tick in ticks:
        if all(abs(tick.at - word.at) >= _NARROW for word in words):
            words.append(tick)
    return [tick if tick in words else Tick(tick.at, "") for tick in ticks]
