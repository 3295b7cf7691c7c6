"""Plays a scenario and checks what came out of it, here or in a process of its own.

Not here: the table.
"""

import asyncio
import contextlib
import gc
import itertools
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import msgspec

from asyncchat import APIError, AsyncChatError
from tests.faults.callers import assert_pickles
from tests.faults.exchange import SECRET_MARK
from tests.faults.run import Run, open_sockets
from tests.faults.scenarios import ALL, Scenario
from tests.faults.server import Ports, State
from tests.forks import Forks

_PROGRAM = "import sys; from tests.faults.play import main; main(*sys.argv[1:])"
_ADDRESS_SPACE = 6 * 2**30  # a client that holds everything dies of this, not the machine


async def play(scenario: Scenario, ports: Ports) -> None:
    """Play a scenario in each of its ways, in the running loop."""
    for way in scenario.ways:
        sockets = open_sockets()
        run = Run(
            ports,
            scenario.behaviour,
            port=scenario.port,
            host=scenario.host,
            options=scenario.options,
            trusts_authority=scenario.trusts_authority,
            way=way,
        )
        with _resolving(scenario.names):
            error = await _outcome(scenario, run)
        # The error is held on purpose: what it refers to must not be what keeps a connection open.
        await run.assert_nothing_is_left()
        try:
            _check(scenario, run, error)
            _check_seen(scenario, await run.state())
        except AssertionError as failed:
            failed.add_note(f"{scenario.name}, {way}: {error!r} after {run.text[:200]!r}")
            raise
        await run.close(sockets)


async def _outcome(scenario: Scenario, run: Run) -> Exception | None:
    try:
        async with asyncio.timeout(scenario.seconds) as bound:
            await scenario.does(run)
    except (AsyncChatError, ValueError) as error:
        return error
    except TimeoutError:
        assert not bound.expired(), f"still running after {scenario.seconds} s"
        raise
    return None


def _check(scenario: Scenario, run: Run, error: Exception | None) -> None:
    run.text.encode()  # nothing that nobody can print or store
    if error is None:
        assert not scenario.raises, f"no error, and {run.text[:100]!r}"
        assert scenario.text in (None, run.text)
        return
    if type(error) not in scenario.raises:
        raise error
    assert SECRET_MARK not in f"{error} {error!r}"
    if isinstance(error, AsyncChatError):
        assert_pickles(error)
    if scenario.partial:
        assert isinstance(error, AsyncChatError)
        assert run.text.startswith(scenario.partial)
        assert error.partial is not None
        assert error.partial.text.startswith(scenario.partial)
    assert scenario.says in str(error)
    assert scenario.phase in (None, getattr(error, "phase", None))
    assert scenario.retry_after in (None, getattr(error, "retry_after", None))
    assert len(str(error)) < 1000
    if isinstance(error, APIError):
        assert error.endpoint == run.base_url


def _check_seen(scenario: Scenario, state: State) -> None:
    requests = state.requests
    assert not state.elsewhere
    for seen in requests:
        assert seen.authorization.startswith("Bearer sk-")
        assert not seen.is_injected
        assert seen.cookie is None
    assert scenario.requests in (None, len(requests))
    if scenario.gap is not None:
        least, most = scenario.gap
        gaps = [after.at - before.at for before, after in itertools.pairwise(requests)]
        assert min(gaps) >= least - 0.02
        assert gaps[-1] <= most


@contextlib.contextmanager
def _resolving(names: dict[str, list[str] | None]) -> Iterator[None]:
    """Let some names have some addresses, or hang (None) until the block is left."""
    real, left = socket.getaddrinfo, threading.Event()

    def resolve(host: Any, port: int, family: int = 0, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in names:
            return real(name, port, family, *args, **kwargs)
        addresses = names[str(name)]
        if addresses is None:
            left.wait(20)
        found = []
        for address in addresses or ():
            of = socket.AF_INET6 if ":" in address else socket.AF_INET
            if family in (0, of):
                place = (address, port, 0, 0) if of == socket.AF_INET6 else (address, port)
                found.append((of, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", place))
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found

    with mock.patch.object(socket, "getaddrinfo", resolve):
        try:
            yield
        finally:
            left.set()


# ------------------------------------------------------------------------- a process for one scenario


class Measured(msgspec.Struct):
    """What a process measured of its client, and what it said at its end."""

    memory: int = 0
    """Bytes of its peak above what it held after one good call."""
    lag: float = 0.0
    """Seconds: the longest that one turn of the loop held the processor."""


def play_alone(scenario: Scenario, ports: Ports, forks: Forks) -> None:
    """Play a scenario in a process of its own, which has to end well and silently."""
    done = forks.run(_PROGRAM, scenario.number, msgspec.json.encode(ports).decode())
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    measured = msgspec.json.decode(done.stdout, type=Measured)
    assert scenario.memory is None or measured.memory < scenario.memory
    assert scenario.lag is None or measured.lag < scenario.lag


class _Memory(threading.Thread):
    """Looks at the size of this process all the time, through a file that is open from the start."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._file = os.open("/proc/self/statm", os.O_RDONLY)
        self.first = self.peak = self._resident()
        self._is_over = threading.Event()
        self.start()

    def run(self) -> None:
        while not self._is_over.wait(0.01):
            self.peak = max(self.peak, self._resident())

    def end(self) -> int:
        """Stop looking, and return the bytes of the peak above the first look."""
        self._is_over.set()
        self.join()
        os.close(self._file)
        return self.peak - self.first

    def _resident(self) -> int:
        return int(os.pread(self._file, 100, 0).split()[1]) * resource.getpagesize()


async def _beat(measured: Measured) -> None:
    """Write down how long the loop did not come round, on the clock and on the processor.

    The lesser counts: a machine that is busy with something else is late on the clock alone.
    """
    while True:
        clock, processor = time.monotonic(), time.thread_time()
        await asyncio.sleep(0.01)
        late = min(time.monotonic() - clock, time.thread_time() - processor) - 0.01
        measured.lag = max(measured.lag, late)


async def _measure(scenario: Scenario, ports: Ports) -> Measured:
    warm = Run(ports, "ok_stream")  # lazy imports and caches are not what is measured
    await warm.read()
    await warm.close(open_sockets())
    gc.collect()
    measured, memory = Measured(), _Memory()
    beat = asyncio.create_task(_beat(measured))
    await asyncio.sleep(0.03)
    await play(scenario, ports)
    beat.cancel()
    measured.memory = memory.end()
    return measured


def main(number: str, ports: str) -> None:
    """Play one scenario and print what was measured; what does not hold ends it."""
    scenario = ALL[number]
    open_to = msgspec.json.decode(ports, type=Ports)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE, _ADDRESS_SPACE))
    measured = Measured()
    if scenario.script is None:
        measured = asyncio.run(_measure(scenario, open_to))
    else:
        scenario.script(f"http://127.0.0.1:{open_to.http}/s/{scenario.behaviour}/{os.getpid()}/v1")
    sys.stdout.write(msgspec.json.encode(measured).decode())
