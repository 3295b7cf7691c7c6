"""What the storms share: the server in its own process, and a watch over everything that a client could leave behind."""

import asyncio
import gc
import os
import resource
import ssl
import subprocess
import sys
import time
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec
import pytest

from tests.client.conftest import other_tasks, start
from tests.faults.server import AUTHORITY
from tests.storms.server import Counts, raise_file_limit

ROOT = Path(__file__).parents[2]
DROPPED = "a stream was dropped unread"


class StormServer:
    """The parent's end of the server."""

    def __init__(self, port: int, control: int, behind_tls: int) -> None:
        self.base_url = f"http://127.0.0.1:{port}/v1"
        self.tls_url = f"https://127.0.0.1:{behind_tls}/v1"
        self.port = port
        self.control_port = control

    def secure(self) -> dict[str, Any]:
        """What makes a client speak to the server behind TLS."""
        return {
            "base_url": self.tls_url,
            "ssl_context": ssl.create_default_context(cafile=AUTHORITY),
        }

    @asynccontextmanager
    async def control(self) -> AsyncIterator["Control"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.control_port, limit=2**24)
        try:
            yield Control(reader, writer)
        finally:
            writer.close()
            await writer.wait_closed()


class Control:
    """Asks the server for what it sees."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, line: str = "count", seconds: float = 10.0) -> Counts:
        self._writer.write(line.encode() + b"\n")
        try:
            async with asyncio.timeout(seconds):
                return msgspec.json.decode(await self._reader.readline(), type=Counts)
        except TimeoutError:
            self._writer.write(b"count\n")
            raise AssertionError(f"{line}: {(await self._reader.readline()).decode()}") from None


@pytest.fixture
def storm_server(tmp_path: Path) -> Iterator[StormServer]:
    """A fresh server, which has to end without having said a word of trouble."""
    said = tmp_path / "stderr"
    with (
        said.open("wb") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "tests.storms.server"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield StormServer(*map(int, process.stdout.readline().split()))
        finally:
            process.stdin.close()
        assert process.wait(10) == 0
    assert said.read_text() == ""


class Watch:
    """Everything that may not be left, and everything that may not be said, between two moments of a test.

    Under `with`: warnings are counted instead of raised (a dropped stream warns from where nothing can be raised to),
    and so is whatever the loop or the interpreter would print.
    """

    def __init__(self) -> None:
        self.drops = 0
        self.said: list[str] = []
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> Self:
        self.tasks = other_tasks()
        self.sockets = sockets()
        self._caught.__enter__()
        warnings.simplefilter("always")
        warnings.showwarning = self._warned
        self._hook, sys.unraisablehook = sys.unraisablehook, self._unraisable
        asyncio.get_running_loop().set_exception_handler(self._unhandled)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        asyncio.get_running_loop().set_exception_handler(None)
        sys.unraisablehook = self._hook
        self._caught.__exit__(kind, error, traceback)

    def _warned(
        self,
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: IO[str] | None = None,
        line: str | None = None,
    ) -> None:
        if category is ResourceWarning and str(message).startswith(DROPPED):
            self.drops += 1
        else:
            self.said.append(f"{category.__name__}: {message} ({filename}:{lineno})")

    def _unraisable(self, unraisable: "sys.UnraisableHookArgs") -> None:
        self.said.append(f"unraisable: {unraisable.exc_value!r} in {unraisable.object!r}")

    def _unhandled(self, _: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.said.append(f"{context['message']}: {context.get('exception')!r}")

    async def assert_silent(self) -> None:
        """Nothing was said, not even by what only a collection finds; and no task is left."""
        gc.collect()
        await asyncio.sleep(0)
        assert self.said == []
        assert other_tasks() == self.tasks

    def new_sockets(self) -> int:
        """How many sockets are open that were not."""
        return len(sockets() - self.sockets)


def sockets() -> set[str]:
    """The sockets of this process."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the listing's own
            continue
        if target.startswith("socket:"):
            found.add(target)
    return found


def rss() -> float:
    """Resident memory of this process in MB."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Beat:
    """Under `async with`: the longest time that one turn of the loop held the processor (`stall`, in seconds).

    The lesser of the clock and the processor counts: a machine that is busy with something else is late on the clock
    alone. `pause` is the longest collection of garbage, by the same measure.
    """

    def __init__(self) -> None:
        self.stall = 0.0
        self.pause = 0.0
        self._began = (0.0, 0.0)

    async def __aenter__(self) -> Self:
        gc.callbacks.append(self._collecting)
        self._task = start(self._run())
        await asyncio.sleep(0)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        gc.callbacks.remove(self._collecting)
        self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            began = _clocks()
            await asyncio.sleep(0.01)
            self.stall = max(self.stall, _since(began) - 0.01)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            self._began = _clocks()
        else:
            self.pause = max(self.pause, _since(self._began))


def _clocks() -> tuple[float, float]:
    return time.monotonic(), time.thread_time()


def _since(before: tuple[float, float]) -> float:
    return min(now - then for now, then in zip(_clocks(), before, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    """Return what so large a share of the values is not above."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else 0.0


@pytest.fixture
def file_limit() -> Iterator[int]:
    """How many files this process may have open, after asking for all that it may ask for."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield raise_file_limit()
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def show(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """Print a measurement past the capture."""
    with capsys.disabled():
        sys.stdout.write(f"\n  {line}\n")
