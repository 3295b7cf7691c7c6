"""What the quick run makes small, at its full size: each module in a pytest run of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("module", "setting", "value"),
    [
        ("test_laws", "ASYNCCHAT_LAW_EXAMPLES", "200"),
        ("test_wire", "ASYNCCHAT_EVERY_PLACE", "1"),
        ("test_wire_rules", "ASYNCCHAT_EVERY_PLACE", "1"),
    ],
)
def test_module_holds_at_its_full_size(module: str, setting: str, value: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", f"tests/protocol/{module}.py", "--hypothesis-seed=0"],
        cwd=ROOT,
        env=os.environ | {setting: value},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
