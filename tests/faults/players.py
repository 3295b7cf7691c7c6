"""How the rows share the machine: those that mostly wait are played beside each other, in a few processes.

Not here: what is played (`play`). Rows that measure something have a process of their own each, one after the other.

Run as a program it plays the scenarios that its arguments name, one after the other, and prints for each what did not hold.
"""

import asyncio
import gc
import logging
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
import pytest

from tests.faults.play import play, play_alone
from tests.faults.run import Run, open_sockets
from tests.faults.scenarios import ALL, Scenario
from tests.faults.server import Ports
from tests.forks import Forks

_ROOT = Path(__file__).parents[2]
_PROCESSES = 4
_FEW = 8  # so few rows are played where they are asked for: there an assertion tells more


class Players:
    """Plays these rows; with the first that is asked for begin all that can be played beside others."""

    def __init__(
        self, rows: Sequence[Scenario], ports: Ports, forks: Forks, complaints: IO[str]
    ) -> None:
        self._numbers = [row.number for row in rows if not row.is_alone]
        self._ports = ports
        self._forks = forks
        self._processes: list[subprocess.Popen[bytes]] = []
        self._told: dict[str, str] = {}
        self._complaints = complaints

    async def play(self, scenario: Scenario) -> None:
        """Play a row, or learn how it went."""
        if len(self._numbers) <= _FEW:
            await play(scenario, self._ports)
        elif trouble := self._outcome(scenario.number):
            pytest.fail(trouble, pytrace=False)

    def play_alone(self, scenario: Scenario) -> None:
        """Play a row in a process of its own."""
        self._begin()
        play_alone(scenario, self._ports, self._forks)

    def _outcome(self, number: str) -> str:
        self._begin()
        process = self._processes[self._numbers.index(number) % _PROCESSES]
        assert process.stdout is not None
        while number not in self._told:
            line = process.stdout.readline()
            assert line, f"the process that plays {number} is gone: {self._complaint()}"
            self._told.update([msgspec.json.decode(line, type=tuple[str, str])])
        return self._told[number]

    def _begin(self) -> None:
        if self._processes or len(self._numbers) <= _FEW:
            return
        ports = msgspec.json.encode(self._ports).decode()
        for first in range(_PROCESSES):
            mine = self._numbers[first::_PROCESSES]
            command = [sys.executable, "-W", "error", "-m", "tests.faults.players", ports, *mine]
            self._processes.append(
                subprocess.Popen(
                    command, stdout=subprocess.PIPE, stderr=self._complaints, cwd=_ROOT
                )
            )

    def _complaint(self) -> str:
        self._complaints.seek(0)
        return self._complaints.read()

    def close(self) -> None:
        """End the processes, which have to end by themselves where every row was asked for."""
        is_whole = all(number in self._told for number in self._numbers)
        for process in self._processes:
            if not is_whole:
                process.kill()
            with process:
                process.wait(30)
        said = self._complaint() if is_whole else ""
        assert not said, f"a process that plays rows complains:\n{said}"


async def _warm_up(ports: Ports) -> None:
    """What is imported late would count as the first row's time."""
    warm = Run(ports, "ok_stream")
    await warm.read()
    await warm.close(open_sockets())


def _main(ports: Ports, numbers: Sequence[str]) -> None:
    logging.getLogger().addHandler(logging.NullHandler())  # or what is logged goes to stderr
    lost: list[str] = []
    sys.unraisablehook = lambda what: lost.append(f"{what.err_msg or ''} {what.exc_value!r}")
    asyncio.run(_warm_up(ports))
    for number in numbers:
        trouble = ""
        try:
            asyncio.run(play(ALL[number], ports))
        except (Exception, pytest.fail.Exception):  # noqa: BLE001  whatever did not hold is told
            trouble = traceback.format_exc()
        gc.collect()
        told = "\n".join([trouble, *lost]) if lost else trouble
        lost.clear()
        sys.stdout.write(msgspec.json.encode((number, told)).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main(msgspec.json.decode(sys.argv[1], type=Ports), sys.argv[2:])
