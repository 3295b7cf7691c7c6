"""What the tests of the command line share: a clean environment, and a server in a thread of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anyio.from_thread import start_blocking_portal

from asyncchat.testing import ChatServer

_NAMES = ("API_KEY", "BASE_URL", "ORG_ID", "PROJECT_ID", "CUSTOM_HEADERS")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(f"OPENAI_{name}", raising=False)
    for name in ("BASE_URL", "MODEL"):
        monkeypatch.delenv(f"ASYNCCHAT_{name}", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    """A `ChatServer` that is not in the way of the command's own event loop."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ChatServer()) as server,
    ):
        yield server


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, in which `asyncchat` is typed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["asyncchat"])
    return tmp_path


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file of answers."""
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
