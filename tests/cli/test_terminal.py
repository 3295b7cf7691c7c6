"""`cli.terminal`: what reaches a terminal, and what a pipe."""

import io
import os
import re
import sys
from pathlib import Path

import anyio
import pytest

from asyncchat import local
from asyncchat.cli import terminal
from asyncchat.cli.terminal import Flow, complain, fetch_model, note, run, show, without_controls

TEXT = "The sea is wide.\n\nAnd deep,   deeper than a " + "verylongword" * 12 + " is long."


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_pipe_gets_the_models_words_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    show("a\x1b[31mb\n")
    assert capsys.readouterr().out == "a\x1b[31mb\n"


def test_terminal_gets_no_escape_sequence_from_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    show("a\x1b]0;title\x07b\x9b31mc\td\r\n")
    assert screen.getvalue() == "a]0;titleb31mc\td\n"


def test_letters_of_every_language_survive() -> None:
    text = "né 日本 🙂 שלום\u00a0x"
    assert without_controls(text) == text


def test_complaint_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    complain("two\nlines")
    assert capsys.readouterr().err == "asyncchat: two lines\n"


def test_note_to_a_pipe_has_no_colour(capsys: pytest.CaptureFixture[str]) -> None:
    note("[bold]as it is[/bold] " + "long " * 60)
    assert capsys.readouterr().err == "[bold]as it is[/bold] " + "long " * 60 + "\n"


@pytest.mark.parametrize("step", [1, 2, 7, 1000])
def test_flow_gives_the_same_lines_however_the_words_arrive(
    step: int, capsys: pytest.CaptureFixture[str]
) -> None:
    flow = Flow()
    for start in range(0, len(TEXT), step):
        flow.write(TEXT[start : start + step])
    flow.end()
    out = capsys.readouterr().out
    assert out.split() == TEXT.split()
    assert out.endswith("long.\n")
    assert "wide.\n\n  And deep, deeper than a\n" in out
    assert all(line.startswith("  ") for line in out.splitlines() if line)
    assert all(len(line) <= 100 for line in out.splitlines() if "verylong" not in line)


def test_flow_writes_whole_words_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    flow = Flow(indent="")
    flow.write("one tw")
    assert capsys.readouterr().out == "one"
    flow.write("o ")
    assert capsys.readouterr().out == " two"


def test_empty_flow_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    Flow().end()
    assert capsys.readouterr().out == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pty")
@pytest.mark.parametrize(("columns", "expected"), [(60, 60), (200, 100), (0, 100)])
def test_line_is_as_long_as_the_terminal_up_to_a_readable_length(
    columns: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl
    import struct
    import termios

    ours, theirs = os.openpty()
    with open(theirs, "w", encoding="utf-8") as screen:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        monkeypatch.setattr(sys, "stdout", screen)
        assert terminal.width() == expected
        monkeypatch.undo()
    os.close(ours)


def test_run_returns_what_the_coroutine_does() -> None:
    async def main() -> int:
        await anyio.sleep(0)
        return 7

    assert run(main()) == 7


async def test_model_that_is_here_is_not_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(local, "find_model", lambda: tmp_path)
    monkeypatch.setattr(local, "install_model", None)
    assert await fetch_model() == tmp_path
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("is_terminal", [False, True])
async def test_bar_is_shown_only_where_a_person_looks(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def install_model(*, progress: object = None, **_options: object) -> Path:
        assert callable(progress) is is_terminal
        if callable(progress):
            progress(1, 2)
        return tmp_path

    screen = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(local, "find_model", lambda: None)
    monkeypatch.setattr(local, "install_model", install_model)
    assert await fetch_model() == tmp_path
    assert "Fetching SmolLM2-135M-Instruct.Q4_1.gguf (93 MB, once)." in re.sub(
        r"\x1b\[[\d;?]*[A-Za-z]", "", screen.getvalue()
    )
    assert ("\x1b" in screen.getvalue()) is is_terminal


def test_remark_stands_above_a_picture_that_is_drawn_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from rich.console import Console
    from rich.live import Live

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=60, color_system=None)
    with Live("the picture", console=console, auto_refresh=False, redirect_stdout=False) as live:
        live.refresh()
        note("a remark")
        live.refresh()
    assert capsys.readouterr().err == ""
    after = screen.getvalue().split("a remark")[1]
    assert after.startswith("\nthe picture")
