"""A running batch on stderr: three lines that stay where they are at a terminal, now and then a line elsewhere.

Not here: what is counted (`batch.meter`). stdout is never touched. What a terminal is too narrow for is left out, the least
important first; a resize only changes what the next picture looks like.
"""

import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import ceil
from typing import TYPE_CHECKING, Literal, NamedTuple

import anyio
import msgspec

from asyncchat.batch.meter import BatchProgress
from asyncchat.batch.quantity import amount, duration, number, share, span

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console
    from rich.text import Text

__all__ = ["ProgressStyle", "picture", "progress_line", "show_progress"]

ProgressStyle = Literal["auto", "plain", "json", "none"]
"""`auto` is lines that stay at a terminal, and `plain` elsewhere; `json` is one object a line."""

_TICK = 0.25
_FIRST_LINE, _NEXT_LINE = 5.0, 30.0
_JSON_LINE = 1.0
_GAP = "  "
_LONGEST_BAR = 40
_SHORTEST_BAR = 8

_TO_ASCII = str.maketrans(
    {"\N{EN DASH}": "-", "\N{MICRO SIGN}": "u", "\N{HORIZONTAL ELLIPSIS}": "..."}
)


class _Part(NamedTuple):
    """A few words; the higher its rank, the sooner it is left out. With a space in front it goes on from the one before."""

    rank: int
    words: str
    look: str = ""

    @property
    def gap(self) -> str:
        return "" if self.words.startswith(" ") else _GAP


async def show_progress(
    read: Callable[[], BatchProgress],
    style: ProgressStyle = "auto",
    *,
    every: float | None = None,
    console: "Console | None" = None,
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep,
) -> None:
    """Show what `read` returns, again and again, until cancelled; the last state stays on the screen.

    Args:
        read: Returns how the batch stands.
        style: How to show it.
        every: Seconds between two lines; default 30 (the first after 5), and 1 for `json`. A terminal is always drawn 4 times a second.
        console: Default: stderr.
        sleep: How to wait.

    Cancellation: this is how it ends. It shows the last state before, without awaiting.
    """
    if style == "none":
        return
    if style == "json":
        await _lines(_as_json, read, every or _JSON_LINE, every or _JSON_LINE, sleep)
        return
    if console is None:
        from rich.console import Console

        console = Console(stderr=True, highlight=False)
    if style == "auto" and console.is_terminal and not console.is_dumb_terminal:
        await _Screen(console, read).run(sleep)
    else:
        first = min(_FIRST_LINE, every or _FIRST_LINE)
        await _lines(progress_line, read, first, every or _NEXT_LINE, sleep)


async def _lines(
    write: Callable[[BatchProgress], str],
    read: Callable[[], BatchProgress],
    first: float,
    every: float,
    sleep: Callable[[float], Awaitable[object]],
) -> None:
    wait = first
    try:
        while True:
            await sleep(wait)
            _say(write(read()))
            wait = every
    finally:
        _say(write(read()))


def _say(line: str) -> None:
    with suppress(OSError):  # nobody listens any more; the batch goes on
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _as_json(progress: BatchProgress) -> str:
    return msgspec.json.encode(progress).decode()


def progress_line(progress: BatchProgress) -> str:
    """Return how a batch stands as one line for a log, in ASCII."""
    parts = [*_position(progress), *_counts(progress), *_flow(progress)]
    words = (part.words if part.gap == "" else f", {part.words}" for part in parts if part.words)
    return "".join(words).removeprefix(", ").translate(_TO_ASCII)


class _Screen:
    """Three lines of a terminal that are drawn again in place."""

    def __init__(self, console: "Console", read: Callable[[], BatchProgress]) -> None:
        self._console = console
        self._read = read
        self._widths: list[int] = []  # of the lines on the screen
        self._columns = 0

    async def run(self, sleep: Callable[[float], Awaitable[object]]) -> None:
        from rich.live import Live

        live = Live(
            console=self._console,
            auto_refresh=False,
            redirect_stdout=False,
            get_renderable=self._draw,
        )
        with suppress(OSError), live:  # the terminal may go; the batch need not
            while True:
                self._make_room()
                live.refresh()
                await sleep(_TICK)

    def _draw(self) -> "Text":
        from rich.text import Text

        self._columns = self._console.width
        lines = picture(self._read(), self._columns, is_ascii=self._console.options.ascii_only)
        self._widths = [line.cell_len for line in lines]
        return Text("\n").join(lines)

    def _make_room(self) -> None:
        """Clear the rows that lines of the picture before have become in a terminal that is narrower now.

        rich clears as many rows as there were lines.
        """
        columns = self._console.width
        if not 0 < columns < self._columns:
            return
        from rich.control import Control
        from rich.segment import ControlType

        for _ in range(sum((width - 1) // columns for width in self._widths if width)):
            self._console.control(
                Control((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
            )


def picture(progress: BatchProgress, columns: int, *, is_ascii: bool = False) -> "list[Text]":
    """Return the three lines of a terminal so wide; the last column stays free, so that no line wraps."""
    room = max(columns - 1, 1)
    lines = [
        _bar(progress, room, is_ascii=is_ascii),
        _fitting(_counts(progress), room),
        _fitting(_flow(progress), room),
    ]
    if is_ascii:
        for line in lines:
            line.plain = line.plain.translate(_TO_ASCII)
    return lines


def _fitting(parts: "Sequence[_Part]", room: int) -> "Text":
    """Return the parts in their order, without the least important ones where there is no room for all."""
    from rich.text import Text

    shown = [part for part in parts if part.words]
    while shown and _width(shown) > room:
        shown.remove(max(shown, key=lambda part: part.rank))
    line = Text(no_wrap=True, end="")
    for part in shown:
        line.append(part.gap if line.plain else "").append(part.words, part.look)
    return line


def _width(parts: "Sequence[_Part]") -> int:
    return sum(len(part.gap) + len(part.words) for part in parts) - len(_GAP)


def _bar(progress: BatchProgress, room: int, *, is_ascii: bool) -> "Text":
    from rich.text import Text

    parts = _position(progress)
    width = min(room - _width(parts) - len(_GAP), _LONGEST_BAR)
    fraction = progress.fraction
    if fraction is None or width < _SHORTEST_BAR:
        return _fitting(parts, room)
    full = int(fraction * width)
    failed = min(full, round(width * progress.failed / (progress.expected or 1)))
    mark, rest = ("#", "-") if is_ascii else ("━", "─")
    line = Text(no_wrap=True, end="")
    line.append(mark * (full - failed), "green").append(mark * failed, "red")
    line.append(rest * (width - full), "dim").append(_GAP)
    return line.append_text(_fitting(parts, room))


def _position(progress: BatchProgress) -> list[_Part]:
    total = "" if progress.total is None else f"/{number(progress.total)}"
    about = "about " if progress.total is None else ""
    expected, eta = progress.expected, progress.eta
    return [
        _Part(0, number(progress.finished) + total, "bold"),
        _Part(1, "" if expected is None else about + share(progress.finished, expected)),
        _Part(2, f"{span(*eta)} left" if eta and eta[1] > 0 else "", "cyan"),
        _Part(3, _whole(progress.elapsed), "dim"),
    ]


def _counts(progress: BatchProgress) -> list[_Part]:
    kinds = progress.failures
    worst = max(kinds, key=kinds.__getitem__, default="")
    if worst:
        worst = f" ({'mostly ' if len(kinds) > 1 else ''}{worst})"
    bad = "red" if progress.failed else "dim"
    cost, projected = progress.cost, progress.projected_cost
    return [
        _Part(0, f"ok {number(progress.done)}", "green"),
        _Part(1, f"failed {number(progress.failed)}", bad),
        _Part(6, worst, bad),
        _Part(3, f"retried {number(progress.retried)}", "yellow" if progress.retried else "dim"),
        _Part(5, f"refused {number(progress.refused)}" if progress.refused else "", "yellow"),
        _Part(7, f"skipped {number(progress.skipped)}" if progress.skipped else "", "dim"),
        _Part(2, "" if cost is None else f"cost {cost:,.2f}"),
        _Part(4, "" if projected is None else f" of about {projected:,.2f}"),
    ]


def _flow(progress: BatchProgress) -> list[_Part]:
    limit = "" if progress.limit is None else f"/{number(progress.limit)}"
    tokens = progress.tokens_per_second
    ttft = _pair("ttft", progress.ttft_p50, progress.ttft_p95)
    latency = _pair("latency", progress.latency_p50, progress.latency_p95)
    pause = f"429: {_whole(ceil(progress.pause))}" if progress.pause > 0 else ""
    return [
        _Part(0, pause, "bold yellow"),
        _Part(1, f"{amount(progress.items_per_second)} items/s"),
        _Part(4, "" if tokens is None else f"{amount(tokens)} tokens/s"),
        _Part(2, f"in flight {number(progress.in_flight)}{limit}"),
        _Part(3, ttft),
        _Part(5, latency),
        _Part(6, "p50/p95" if ttft or latency else "", "dim"),
    ]


def _pair(name: str, p50: float | None, p95: float | None) -> str:
    return "" if p50 is None else f"{name} {duration(p50)}/{duration(p95)}"


def _whole(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 99.5 else duration(seconds)
