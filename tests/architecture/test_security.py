"""What SECURITY.md promises: each promise names tests that exist, and the sources hold nothing that would break one."""

import ast
import re
from pathlib import Path

import pytest

from tests.faults.scenarios import ALL

ROOT = Path(__file__).parents[2]
PROMISES = re.findall(
    r"^\* (.+(?:\n  .+)*)",
    (ROOT / "SECURITY.md")
    .read_text(encoding="utf-8")
    .split("## What is promised")[1]
    .split("\n## ")[0],
    re.MULTILINE,
)
ROWS = {scenario.name.split("-")[0] for scenario in ALL.values()}


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise[:50])
def test_promise_names_tests_that_exist(promise: str) -> None:
    _, held, names = promise.partition("\n  Held by ")
    assert held, promise
    for name in re.findall(r"`([^`]+)`", names):
        path, _, function = name.partition("::")
        if function:
            source = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert re.search(rf"^\s*(async )?def {function}\(", source, re.MULTILINE), name
        else:
            assert name in ROWS, name


def test_there_are_promises_to_check() -> None:
    assert len(PROMISES) > 15
    assert len(ROWS) >= 188


@pytest.mark.parametrize("path", sorted((ROOT / "asyncchat").rglob("*.py")), ids=str)
def test_nothing_received_can_be_evaluated(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in ("eval", "exec", "compile", "__import__"), ast.unparse(node)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
            assert not {"pickle", "marshal", "shelve", "yaml", "dill"} & {
                name.partition(".")[0] for name in names
            }, ast.unparse(node)
