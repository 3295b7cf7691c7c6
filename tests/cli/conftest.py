"""What the tests of the command line share: a clean environment, and a server in a thread of its own."""

from collections.abc import Iterator

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
