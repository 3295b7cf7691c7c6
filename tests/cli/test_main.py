"""`asyncchat.__main__`: the door, with and without what is behind it."""

import subprocess
import sys

import pytest

from asyncchat.__main__ import main
from asyncchat._version import __version__


def test_module_runs_as_a_program() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "asyncchat", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"{__version__}\n"
    assert done.stderr == ""


def test_without_the_extra_it_says_the_command_that_installs_it() -> None:
    code = (
        "import sys; sys.modules['cyclopts'] = None\n"
        "from asyncchat.__main__ import main; sys.exit(main(['--help']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == (
        "asyncchat: the command line needs cyclopts, which is not installed. "
        "Install it with: pip install 'asyncchat[cli]'\n"
    )


def test_other_missing_module_is_no_matter_of_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncchat.cli", None)
    with pytest.raises(ModuleNotFoundError):
        main(["--version"])
