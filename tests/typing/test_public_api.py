"""Both type checkers agree with `public_api.py`, in which a mistake that they do not see is a failure too."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SNIPPET = Path(__file__).with_name("public_api.py")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


def test_mypy_infers_what_the_api_promises() -> None:
    pytest.importorskip("mypy")
    # With the options of `make check`: with others, each would throw the other's cache away.
    done = run("mypy", "--no-error-summary", str(SNIPPET))
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_infers_what_the_api_promises(tmp_path: Path) -> None:
    pytest.importorskip("basedpyright")
    settings = {
        "typeCheckingMode": "strict",
        "include": [str(SNIPPET)],
        "extraPaths": [str(ROOT)],
        "pythonVersion": "3.11",
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
        "reportMissingTypeStubs": False,
    }
    project = tmp_path / "pyrightconfig.json"
    project.write_text(json.dumps(settings))
    done = run(
        "basedpyright", "-p", str(project), "--pythonpath", sys.executable, "--level", "error"
    )
    assert done.returncode == 0, done.stdout + done.stderr
