"""`cli`: which commands there are, and how each kind of end becomes an exit code."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from asyncchat._version import __version__
from asyncchat.cli import chat, main
from asyncchat.cli.terminal import UsageError
from asyncchat.errors import AuthenticationError

Fail = Callable[[BaseException], None]


@pytest.fixture
def fail(monkeypatch: pytest.MonkeyPatch) -> Fail:
    def arrange(error: BaseException) -> None:
        def raises(_main: object) -> int:
            _main.close()  # type: ignore[attr-defined]  # a coroutine that nobody will await
            raise error

        monkeypatch.setattr(chat, "run", raises)

    return arrange


def test_help_names_every_command_and_loads_no_http_library() -> None:
    code = (
        "import sys; from asyncchat.cli import main; main(['--help']); "
        "print([m for m in ('aiohttp', 'anyio', 'xllamacpp', 'asyncchat.local') if m in sys.modules],"
        " file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert all(f" {name} " in done.stdout for name in ("chat", "demo", "local"))
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("command", [["chat"], ["demo"], ["local"], ["local", "install"]])
def test_each_command_explains_itself(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "--help"]) == 0
    assert capsys.readouterr().out.startswith("Usage: asyncchat ")


def test_version_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["chat", "--nonsense"], ["local", "--port", "many"], ["demo", "x"]]
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("asyncchat: ")
    assert seen.err.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (AuthenticationError("no good key", hint="Set OPENAI_API_KEY."), 1, "Set OPENAI_API_KEY."),
        (UsageError("two servers"), 2, "two servers"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_end_has_its_exit_code(
    error: BaseException, code: int, words: str, fail: Fail, capsys: pytest.CaptureFixture[str]
) -> None:
    fail(error)
    assert main(["chat", "hello"]) == code
    seen = capsys.readouterr()
    assert words in seen.err
    assert "Traceback" not in seen.err


def test_reader_that_leaves_is_no_traceback() -> None:
    code = (
        "import sys; from asyncchat.cli import main, chat\n"
        "def run(main):\n"
        "    main.close()\n"
        "    for _ in range(10000): chat.show('word ' * 100)\n"
        "chat.run = run\n"
        "sys.exit(main(['chat', 'hello']))\n"
    )
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writing)
    assert done.returncode == 1
    assert done.stderr == b""
