"""One peer in a process of its own, on the client's core; it runs what it is told and answers with its CPU time.

Not here: what is run, and how often. A process per peer, so that nobody pays for another's imports, heap or garbage; the others sleep.
"""

import asyncio
import contextlib
import gc
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import msgspec

from benchmarks import peers, report


class Order(msgspec.Struct, frozen=True):
    """`streams` at once, `repeat` times each, of one of the peer's calls."""

    base_url: str
    call: str  # a method of Peer
    want: int  # characters that each call has to see
    streams: int = 1
    repeat: int = 1
    loop: str = "asyncio"


class Spent(msgspec.Struct, frozen=True):
    """What an order took, in seconds."""

    cpu: float
    wall: float


# --------------------------------------------------------------------------------------- the child


def _loop_factory(name: str) -> Callable[[], asyncio.AbstractEventLoop] | None:
    if name == "uvloop":
        import uvloop

        return uvloop.new_event_loop
    return None


class Worker:
    """Keeps one loop of each kind, and in it one peer per base URL with its open connections."""

    def __init__(self, name: str) -> None:
        self._make = peers.PEERS[name]
        self._counts_bytes = name in {"floor", "aiohttp"}
        self._runners: dict[str, asyncio.Runner] = {}
        self._peers: dict[tuple[str, str], peers.Peer] = {}

    def obey(self, order: Order) -> Spent:
        runner = self._runners.get(order.loop)
        if runner is None:
            runner = asyncio.Runner(loop_factory=_loop_factory(order.loop))
            self._runners[order.loop] = runner
        return runner.run(self._obey(order))

    async def _obey(self, order: Order) -> Spent:
        place = (order.loop, order.base_url)
        if place not in self._peers:
            self._peers[place] = self._make(order.base_url)
        call = getattr(self._peers[place], order.call)
        gc.collect()
        start, cpu = time.perf_counter(), time.process_time()
        if order.streams == 1:
            await self._repeat(call, order)
        else:
            await asyncio.gather(*(self._repeat(call, order) for _ in range(order.streams)))
        return Spent(time.process_time() - cpu, time.perf_counter() - start)

    async def _repeat(self, call: Callable[[], object], order: Order) -> None:
        for _ in range(order.repeat):
            got = await call()
            if got != order.want and not (self._counts_bytes and got > order.want):
                raise RuntimeError(f"{got} characters arrived, {order.want} were sent")

    def close(self) -> None:
        for (loop, _), peer in self._peers.items():
            self._runners[loop].run(peer.close())
        for runner in self._runners.values():
            runner.close()


def _settle_heap() -> None:
    """Bring the allocator where any longer-lived program brings it.

    asyncio reads into 256 KiB at a time. glibc maps and unmaps such a block (9 instead of 1 microsecond per read) until the
    program has once freed a larger one; whether and when a peer does is luck, and was the largest noise of all.
    """
    del bytearray(8 << 20)[:]


def main() -> None:
    name, core = sys.argv[1:]
    report.pin(int(core) if core != "any" else None)
    _settle_heap()
    answers, sys.stdout = sys.stdout, sys.stderr  # a peer that prints disturbs nobody
    worker = Worker(name)
    for line in sys.stdin:
        spent = worker.obey(msgspec.json.decode(line, type=Order))
        answers.write(msgspec.json.encode(spent).decode() + "\n")
        answers.flush()
    worker.close()


# -------------------------------------------------------------------------------------- the parent


class Hired:
    """The parent's end of a worker."""

    def __init__(self, name: str, core: int | None) -> None:
        self.name = name
        place = "any" if core is None else str(core)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", name, place],
            cwd=report.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, order: Order) -> Spent:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(order).decode() + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the worker of {self.name} died; its reason is above")
        return msgspec.json.decode(line, type=Spent)

    def dismiss(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=10)
        self._process.stdout.close()


@contextlib.contextmanager
def hired(names: list[str], core: int | None) -> Iterator[Mapping[str, Hired]]:
    """A worker for every peer that is installed here."""
    team = {name: Hired(name, core) for name in names if peers.usable(name)}
    try:
        yield team
    finally:
        for one in team.values():
            one.dismiss()


if __name__ == "__main__":
    main()
