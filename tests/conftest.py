"""What all tests share: an environment that says nothing of servers, keys and proxies, one browser for those that want it,
and no silent skips in CI.
"""

import gc
import os
import shutil
import signal
from collections.abc import AsyncIterator, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio

if TYPE_CHECKING:
    from playwright.async_api import Browser, Page

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


_CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def browser() -> "AsyncIterator[Browser]":
    """A Chromium that is installed on this machine, started once. For tests in the loop of the session."""
    path = next(filter(None, map(shutil.which, _CHROMIUMS)), None)
    if path is None:
        pytest.skip("no Chromium is installed")
    from playwright.async_api import async_playwright

    playwright = await async_playwright().start()
    try:
        chromium = await playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"]
        )
        yield chromium
        await chromium.close()
    finally:
        await playwright.stop()


@pytest_asyncio.fixture(loop_scope="session")
async def tab(browser: "Browser") -> "Page":
    """A tab. It is the one of the test before, which costs half a second less, unless that has closed it."""
    for window in browser.contexts:
        for open_tab in window.pages:
            return open_tab
    made = await browser.new_page(reduced_motion="reduce")
    made.set_default_timeout(5_000)
    return made


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI, a test that skips for want of something fails instead. Streams that are not ours and the right to mount may be missing."""
    report = yield
    reason = str(report.longrepr)
    allowed = hasattr(report, "wasxfail") or "parameter set" in reason or "may mount" in reason
    if report.skipped and not allowed and os.environ.get("ASYNCCHAT_TEST_NO_SKIP"):
        report.outcome = "failed"
        report.longrepr = f"skipped where nothing may be: {reason}"
    return report
