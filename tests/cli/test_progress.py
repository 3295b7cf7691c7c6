"""`cli.progress`: a running batch on a terminal, in a log, and for machines."""

import io
import re
import sys
from collections.abc import Awaitable, Callable

import anyio
import msgspec
import pytest
from rich.console import Console

from asyncchat.batch.meter import BatchProgress
from asyncchat.cli.progress import ProgressStyle, picture, progress_line, show_progress

PROGRESS = BatchProgress(
    done=60_772,
    failed=28,
    skipped=281,
    retried=279,
    refused=60,
    in_flight=256,
    limit=300,
    pause=11.2,
    total=100_000,
    position=0.7,
    items_per_second=1523.4,
    tokens_per_second=97_400.0,
    ttft_p50=0.182,
    ttft_p95=0.41,
    latency_p50=1.1,
    latency_p95=2.9,
    prompt_tokens=18_000_000,
    completion_tokens=4_000_000,
    cost=12.41,
    projected_cost=20.3,
    elapsed=723.0,
    eta=(370.0, 470.0),
    failures={"timeout": 18, "server": 10},
)
UNKNOWN = BatchProgress(
    done=0,
    failed=0,
    skipped=0,
    retried=0,
    refused=0,
    in_flight=1,
    limit=None,
    pause=0.0,
    total=None,
    position=None,
    items_per_second=0.0,
    tokens_per_second=None,
    ttft_p50=None,
    ttft_p95=None,
    latency_p50=None,
    latency_p95=None,
    prompt_tokens=None,
    completion_tokens=None,
    cost=None,
    projected_cost=None,
    elapsed=3.0,
    eta=None,
    failures={},
)


def changed(**fields: object) -> BatchProgress:
    made: BatchProgress = msgspec.structs.replace(PROGRESS, **fields)
    return made


def words(progress: BatchProgress, columns: int) -> list[str]:
    return [line.plain for line in picture(progress, columns)]


def terminal(width: int = 100) -> Console:
    return Console(
        file=io.StringIO(), force_terminal=True, width=width, color_system="standard", _environ={}
    )


def written(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


async def show(
    style: ProgressStyle,
    ticks: int,
    *,
    console: Console | None = None,
    every: float | None = None,
    read: Callable[[], BatchProgress] = lambda: PROGRESS,
    between: Callable[[int], object] = lambda _: None,
) -> list[float]:
    """Show it until so many ticks have passed; return how long each was to last."""
    waits: list[float] = []
    with anyio.CancelScope() as scope:

        async def sleep(seconds: float) -> None:
            waits.append(seconds)
            between(len(waits))
            if len(waits) > ticks:
                scope.cancel()
            await anyio.sleep(0)

        wait: Callable[[float], Awaitable[object]] = sleep
        await show_progress(read, style, every=every, console=console, sleep=wait)
    assert scope.cancelled_caught == (style != "none")
    return waits


# ----------------------------------------------------------------------------------- the picture


def test_wide_terminal_shows_everything() -> None:
    bar, counts, flow = words(PROGRESS, 140)
    assert bar == f"{'━' * 24}{'─' * 16}  61,081/100,000  61.1 %  6-8 min left  12 min 3 s"
    assert counts == (
        "ok 60,772  failed 28 (mostly timeout)  retried 279  refused 60  skipped 281  "
        "cost 12.41 of about 20.30"
    )
    assert flow == (
        "429: 12 s  1.52 k items/s  97.4 k tokens/s  in flight 256/300  ttft 182 ms/410 ms  "
        "latency 1.10 s/2.90 s  p50/p95"
    )


def test_narrow_terminal_shows_what_matters_most() -> None:
    bar, counts, flow = words(PROGRESS, 60)
    assert bar == f"{'━' * 5}{'─' * 4}  61,081/100,000  61.1 %  6-8 min left  12 min 3 s"
    assert counts == "ok 60,772  failed 28  retried 279  cost 12.41"
    assert flow == "429: 12 s  1.52 k items/s  in flight 256/300"


@pytest.mark.parametrize("progress", [PROGRESS, UNKNOWN])
def test_no_line_is_ever_too_long(progress: BatchProgress) -> None:
    for columns in range(2, 150):
        assert all(line.cell_len < columns for line in picture(progress, columns))


def test_unknown_numbers_are_left_out() -> None:
    assert words(UNKNOWN, 100) == [
        "0  3 s",
        "ok 0  failed 0  retried 0",
        "0 items/s  in flight 1",
    ]


def test_input_that_is_not_counted_shows_about_how_far_it_is() -> None:
    bar = words(changed(total=None, position=0.7), 100)[0]
    assert "61,081  about 69.7 %" in bar


def test_one_kind_of_failure_is_named() -> None:
    assert "failed 28 (timeout)" in words(changed(failures={"timeout": 28}), 140)[1]


def test_failures_are_red_in_the_bar() -> None:
    (line, *_) = picture(changed(done=50_000, failed=30_000), 120)
    looks = {str(span.style): span.end - span.start for span in line.spans}
    assert (looks["green"], looks["red"], looks["dim"]) == (20, 12, 10)


def test_terminal_without_unicode_gets_ascii() -> None:
    lines = [line.plain for line in picture(PROGRESS, 140, is_ascii=True)]
    assert all(line.isascii() for line in lines)
    assert lines[0].startswith("#" * 24 + "-" * 16)


# ---------------------------------------------------------------------------------- the terminal


class Emulator:
    """A terminal of so many columns, which wraps anew what it shows when it becomes narrower, as most do."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows = [""]
        self.row = self.column = 0

    def feed(self, text: str) -> None:
        for number, code, control, plain in re.findall(
            r"\x1b\[([?\d;]*)([A-Za-z])|([\r\n])|([^\x1b\r\n]+)", text
        ):
            if code == "A":
                self.row -= int(number or 1)
                assert self.row >= 0, "above the first line"
            elif code == "K":
                self.rows[self.row] = ""
            elif control == "\r":
                self.column = 0
            elif control == "\n":
                self.row, self.column = self.row + 1, 0
                if self.row == len(self.rows):
                    self.rows.append("")
            elif plain:
                before = self.rows[self.row].ljust(self.column)
                self.column += len(plain)
                self.rows[self.row] = before[: self.column - len(plain)] + plain
                assert self.column <= self.columns, "a line that wraps"

    def resize(self, columns: int) -> None:
        self.columns = columns
        wrapped: list[str] = []
        for number, row in enumerate(self.rows):
            wrapped += [row[i : i + columns] for i in range(0, max(len(row), 1), columns)]
            if number == self.row:
                self.column = len(wrapped[-1])
                cursor = len(wrapped) - 1
        self.rows, self.row = wrapped, cursor

    @property
    def shown(self) -> list[str]:
        """The rows up to the last one that is not empty."""
        return "\n".join(row.rstrip() for row in self.rows).rstrip("\n").split("\n")


async def test_picture_stays_in_its_place() -> None:
    console, screen = terminal(100), Emulator(100)
    await show("auto", 5, console=console)
    screen.feed(written(console))
    assert screen.shown == words(PROGRESS, 100)


@pytest.mark.parametrize("widths", [(100, 60), (140, 40, 120), (60, 100), (90, 20, 19, 130)])
async def test_resize_leaves_nothing_of_the_picture_before(widths: tuple[int, ...]) -> None:
    console, screen = terminal(widths[0]), Emulator(widths[0])
    fed = 0

    def between(tick: int) -> None:
        nonlocal fed
        screen.feed(written(console)[fed:])
        fed = len(written(console))
        if tick < len(widths):
            screen.resize(widths[tick])
            console.width = widths[tick]

    await show("auto", len(widths), console=console, between=between)
    screen.feed(written(console)[fed:])
    assert screen.shown == words(PROGRESS, widths[-1])


async def test_terminal_is_drawn_four_times_a_second() -> None:
    assert await show("auto", 3, console=terminal(), every=30) == [0.25] * 4


async def test_last_state_stays_on_the_screen() -> None:
    last = changed(done=99_719 - 28)
    states = iter([changed(done=1), changed(done=2), *[last] * 9])
    console, screen = terminal(), Emulator(100)
    await show("auto", 2, console=console, read=lambda: next(states))
    screen.feed(written(console))
    assert screen.shown == words(last, 100)
    assert (screen.row, screen.column) == (3, 0)


async def test_no_color_means_no_colour() -> None:
    console = Console(
        file=io.StringIO(),
        force_terminal=True,
        width=80,
        _environ={"NO_COLOR": "1", "TERM": "xterm"},
    )
    await show("auto", 1, console=console)
    assert not re.search(r"\x1b\[(\d+;)*3[0-7]", written(console))
    assert "61,081/100,000" in written(console)


async def test_what_is_written_to_stderr_meanwhile_stands_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    console, screen = terminal(), Emulator(100)
    monkeypatch.setattr(sys, "stderr", console.file)
    await show(
        "auto", 2, console=console, between=lambda tick: tick == 1 and sys.stderr.write("Look!\n")
    )
    screen.feed(written(console))
    assert screen.shown == ["Look!", *words(PROGRESS, 100)]


class Gone(io.StringIO):
    """A stream whose reader hangs up after the first words."""

    def write(self, text: str) -> int:
        if len(self.getvalue()) > 200:
            raise OSError(5, "Input/output error")
        return super().write(text)


async def test_terminal_that_goes_away_does_not_end_the_batch() -> None:
    console = Console(file=Gone(), force_terminal=True, width=100, _environ={})
    with anyio.fail_after(5):
        await show_progress(lambda: PROGRESS, console=console, sleep=lambda _: anyio.sleep(0))


# ------------------------------------------------------------------------------- logs and machines


async def test_log_gets_a_line_soon_and_then_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await show("auto", 2) == [5, 30, 30]
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (progress_line(PROGRESS) + "\n") * 3


async def test_line_in_a_log_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    await show("plain", 1, console=terminal())
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert err.isascii()
    assert err.startswith(
        "61,081/100,000, 61.1 %, 6-8 min left, 12 min 3 s, ok 60,772, failed 28 (mostly timeout), "
    )


@pytest.mark.parametrize(("every", "waits"), [(2, [2, 2, 2]), (60, [5, 60, 60])])
async def test_lines_come_as_often_as_asked(every: float, waits: list[float]) -> None:
    assert await show("plain", 2, every=every) == waits


async def test_machines_get_one_object_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert await show("json", 2) == [1, 1, 1]
    out, err = capsys.readouterr()
    assert out == ""
    assert [msgspec.json.decode(line, type=BatchProgress) for line in err.splitlines()] == [
        PROGRESS
    ] * 3
    assert msgspec.json.decode(err.splitlines()[0])["projected_cost"] == 20.3


async def test_none_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert await show("none", 3) == []
    assert capsys.readouterr() == ("", "")


async def test_log_that_nobody_reads_does_not_end_the_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", Gone())
    assert len(await show("plain", 9)) == 10
