"""CPU time and memory of a process and all that it started, while they live.

Not here: what runs in them. Source: proc(5) and prctl(2) of Linux; elsewhere there is nothing to read, and nothing is counted.
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

_PROC = Path("/proc")
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER
_EVERY_SECONDS = 0.5


def adopt_orphans() -> None:
    """Become the parent of those below us whose own parent ended, as the servers of a cluster do: so nobody gets lost."""
    if _PROC.exists():
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def below(root: int) -> list[int]:
    """Every process below `root`, itself left out."""
    children: dict[int, list[int]] = {}
    for entry in _PROC.glob("[0-9]*") if _PROC.exists() else ():
        with contextlib.suppress(OSError):  # it ended meanwhile
            children.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
    found = list(children.get(root, ()))
    for pid in found:
        found += children.get(pid, ())
    return found


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on; its name, which may hold anything, is cut off."""
    text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
    return text.rpartition(") ")[2].split()


def _memory(pid: int) -> int:
    """Bytes that a process has to itself, and its share of what it has with others."""
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    return int(text.partition("\nPss:")[2].split(maxsplit=1)[0]) * 1024


class Watch:
    """Looks at the processes below us now and then; those of `leave` are somebody else's.

    What a process used is counted up to the last look at it: a parent that ignores its children's end is not told of their times.
    """

    def __init__(self, leave: set[int]) -> None:
        self._leave = leave
        self._stop = threading.Event()
        self._used: dict[tuple[int, str], float] = {}  # by process and when it began
        self.most_memory = 0
        self.most_processes = 0

    def pids(self) -> list[int]:
        return [pid for pid in below(os.getpid()) if pid not in self._leave]

    def cpu_seconds(self, without: int) -> float:
        """User and system time of all of them so far, one left out, which counts its own better than we can."""
        self._count()
        return sum(used for (pid, _), used in list(self._used.items()) if pid != without)

    def _count(self) -> list[int]:
        pids = self.pids()
        for pid in pids:
            with contextlib.suppress(OSError):  # it ended meanwhile
                facts = _stat(pid)
                used = (int(facts[11]) + int(facts[12])) / os.sysconf("SC_CLK_TCK")
                self._used[pid, facts[19]] = used
        return pids

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look)
        thread.start()
        try:
            yield
        finally:
            self._stop.set()
            thread.join()

    def _look(self) -> None:
        while not self._stop.wait(_EVERY_SECONDS):
            pids = self._count()
            self.most_processes = max(self.most_processes, len(pids))
            self.most_memory = max(self.most_memory, sum(map(_memory, pids)))

    def end(self) -> None:
        """Kill what is left."""
        while pids := self.pids():  # the children of who is killed become ours, and are next
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            for pid in pids:
                with contextlib.suppress(ChildProcessError):  # somebody else's child
                    os.waitpid(pid, 0)
