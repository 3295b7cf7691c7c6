"""`tests.forks`: what a fork says and how it ends is what a program of its own would."""

import subprocess
from collections.abc import Iterator

import pytest

from tests.forks import Done, Forks


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks("import json", "-X", "dev", "-W", "error") as forks:
        yield forks


def test_arguments_environment_and_output_are_its_own(
    forks: Forks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_NOW", "b")
    code = "import os, sys; print(sys.argv[1], os.environ['OF_NOW'], repr(sys.stdin.read()))"
    assert forks.run(code, "a") == Done(0, "a b ''\n", "")


def test_ways_to_end_are_seen(forks: Forks) -> None:
    assert forks.run("raise SystemExit(3)").returncode == 3
    assert forks.run("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -9
    done = forks.run("1 / 0")
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_end_of_the_interpreter_may_complain(forks: Forks) -> None:
    done = forks.run("kept = open('/dev/null')")
    assert done.returncode == 0
    assert "ResourceWarning: unclosed file" in done.stderr
    assert forks.run("class Last:\n  def __del__(self): print('gone')\nkept = Last()").stdout


def test_program_without_end_is_killed(forks: Forks) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        forks.run("import time; time.sleep(100)", seconds=0.1)
    assert forks.run("print('next')").stdout == "next\n"
