"""What all tests share: an environment that says nothing of servers, keys and proxies, and no silent skips in CI."""

import gc
import os
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

_NAMES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ASYNCCHAT_BASE_URL",
    "ASYNCCHAT_MODEL",
    *(f"{kind}_{end}" for kind in ("http", "https", "all", "no") for end in ("proxy",)),
    *(f"{kind}_PROXY" for kind in ("HTTP", "HTTPS", "ALL", "NO")),
)

# Before anything imports them: so that their assertions tell what was compared.
pytest.register_assert_rewrite(*(f"tests.faults.{name}" for name in ("callers", "play", "run")))

# A shell has what runs in its background ignore Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


_begun: set[Path] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before each module, keep what is there out of the searches for garbage, of which many tests ask for several.

    It is more with every test that has been, and after a search it is no garbage.
    """
    if item.path not in _begun:
        _begun.add(item.path)
        gc.collect()
        gc.freeze()


@pytest.fixture(autouse=True)
def silent_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, a test that skips for want of something fails instead. Only streams that are not ours may be missing."""
    report = yield
    reason = str(report.longrepr)
    allowed = hasattr(report, "wasxfail") or "parameter set" in reason
    if report.skipped and not allowed and os.environ.get("ASYNCCHAT_TEST_NO_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be: {reason}"
    return report
