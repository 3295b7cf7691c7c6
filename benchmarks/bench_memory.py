"""Resident memory of the client process. `python -m benchmarks.bench_memory`.

open   streams that have said one word and are silent, each awaited by a task of its own: what one more of them holds
most   the same streams, once the other 63 words have come to all of them at once: the most memory there ever was
after  1,000 streams of 64 words, 200 at once, and 4,000 more: what stays

Every value comes from a fresh process. The first request, with its imports and its connection, is not counted in `open`.
"""

import asyncio
import contextlib
import functools
import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import msgspec

from benchmarks import frames, peers, report, token_server

OURS, BARE, ASKED = "asyncchat", "bare aiohttp", "asked for"
SIZES = (1000, 10_000)
AFTER = (1000, 5000)
AT_ONCE = 200
WAVE = 250  # streams opened at a time
MANY = 100_000
TOKENS = 64
_SPARE_FILES = 200
_PATIENCE_SECONDS = 60  # for one wave


def raise_file_limit() -> int:
    """Allow as many open files as the system lets this process have, and return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


# --------------------------------------------------------------------------------------- the server


class HoldingServer(token_server.TokenServer):
    """Holds its answers back: /hold/TOKENS/... says one word, /held tells how many wait, /release says the rest to all."""

    held: ClassVar[list["HoldingServer"]] = []

    def answer(self, path: list[str]) -> None:
        held = HoldingServer.held
        if path[1] == "hold":
            role, first, *rest = _words(int(path[2]))
            self.transport.write(role + first)
            self.rest = b"".join(rest)
            held.append(self)
        elif path[1] in {"held", "release"}:
            count = b"%d" % len(held)
            self.transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(count), count)
            )
            if path[1] == "release":
                for connection in held:
                    connection.transport.write(connection.rest)
                held.clear()
        else:
            super().answer(path)


@functools.cache
def _words(tokens: int) -> tuple[bytes, ...]:
    return token_server._writes(tokens, 1, False)  # noqa: SLF001  the same bytes as everywhere


async def serve() -> None:
    raise_file_limit()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(HoldingServer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    closed = asyncio.Event()
    loop.add_reader(sys.stdin, closed.set)
    await closed.wait()


@contextlib.contextmanager
def serving(core: int | None) -> Iterator[str]:
    """A holding server in a process of its own; gives its address."""
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.bench_memory", "serve", str(core)],
        cwd=report.ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


# ---------------------------------------------------------------------------------------- the peers


class Unlimited(peers.Asyncchat):
    """As many at once as one likes."""

    def __init__(self, base_url: str) -> None:
        from asyncchat import AsyncChat, Limits

        self._client = AsyncChat(base_url, "k", "m", limits=Limits(in_flight=None))


class UnlimitedOpenai(peers.Openai):
    """The same; and as long to connect as it takes, since thousands do."""

    kind = "DefaultAsyncHttpxClient"

    def _transport(self) -> object:
        import httpx2
        import openai

        # A number, since the aiohttp transport takes None for its default of 100.
        limits = httpx2.Limits(max_connections=MANY, max_keepalive_connections=MANY)
        return getattr(openai, self.kind)(limits=limits, timeout=600)


class UnlimitedOpenaiAiohttp(UnlimitedOpenai):
    """The same on its aiohttp transport."""

    kind = "DefaultAioHttpClient"


ROWS: dict[str, tuple[str, Callable[[str], peers.Peer]]] = {
    "floor, counts bytes": ("floor", peers.Floor),
    BARE: ("aiohttp", peers.BareAiohttp),
    "aiohttp + msgspec": ("msgspec", peers.HandWritten),
    OURS: ("asyncchat", Unlimited),
    "openai": ("openai", UnlimitedOpenai),
    "openai[aiohttp]": ("openai-aiohttp", UnlimitedOpenaiAiohttp),
}
SLOW = {"openai", "openai[aiohttp]"}


# ---------------------------------------------------------------------------------------- the child


class Order(msgspec.Struct, frozen=True):
    """What a process is to measure: `streams` open at once, or the memory after each number of `after`."""

    row: str
    server: str
    streams: int = 0
    after: tuple[int, ...] = ()


def rss() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def most_rss() -> int:
    """The most there ever were. Not `ru_maxrss`: that one survives exec, and tells the size of the parent."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def _ask(server: str, path: str) -> int:
    """Ask the server for a number, past every client."""
    host, _, port = server.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET /{path} HTTP/1.1\r\n\r\n".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    number = int(await reader.readexactly(int(head.split(b": ")[1])))
    writer.close()
    return number


async def _until_quiet() -> None:
    """Wait until this process has nothing more to do."""
    while True:
        cpu = time.process_time()
        await asyncio.sleep(0.2)
        if time.process_time() - cpu < 0.01:
            return


async def held(order: Order) -> list[float]:
    """Bytes per open stream, and the most bytes there were."""
    warm = ROWS[order.row][1](f"{order.server}/fast/{TOKENS}/8/v1")
    peer = ROWS[order.row][1](f"{order.server}/hold/{TOKENS}/v1")
    await warm.events()
    gc.collect()
    before = rss()
    tasks: list[asyncio.Future[int]] = []
    while len(tasks) < order.streams:
        count = min(WAVE, order.streams - len(tasks))
        tasks += [asyncio.ensure_future(peer.events()) for _ in range(count)]
        patience = time.monotonic() + _PATIENCE_SECONDS
        while (opened := await _ask(order.server, "held")) < len(tasks):
            failed = [task for task in tasks if task.done()]
            if failed or time.monotonic() > patience:
                raise RuntimeError(f"{opened} streams opened of {len(tasks)}; ended: {failed[:1]}")
            await asyncio.sleep(0.01)
    await _until_quiet()
    each = (rss() - before) / order.streams
    await _ask(order.server, "release")
    _check(order.row, await asyncio.gather(*tasks))
    await peer.close()
    await warm.close()
    return [each, most_rss()]


async def after(order: Order) -> list[float]:
    """Resident bytes after each number of streams."""
    peer = ROWS[order.row][1](f"{order.server}/fast/{TOKENS}/8/v1")
    found: list[float] = []
    done = 0
    for streams in order.after:
        each = (streams - done) // AT_ONCE

        async def lane(each: int = each) -> list[int]:
            return [await peer.events() for _ in range(each)]

        for got in await asyncio.gather(*(lane() for _ in range(AT_ONCE))):
            _check(order.row, got)
        done = streams
        found.append(rss())
    await peer.close()
    return found


def _check(row: str, got: list[int]) -> None:
    want = sum(len(frames.WORDS[i % len(frames.WORDS)]) for i in range(TOKENS))
    counts_bytes = ROWS[row][0] in {"floor", "aiohttp"}
    wrong = [one for one in got if one != want and not (counts_bytes and one > want)]
    if wrong:
        raise RuntimeError(f"{len(wrong)} answers of {len(got)} are not whole")


def hire(order: Order, core: int | None) -> list[float]:
    """Have an order measured in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bench_memory", "obey", str(core)],
        cwd=report.ROOT,
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=list[float])


# --------------------------------------------------------------------------------------- the parent


def main(argv: list[str] | None = None) -> None:
    options = report.options("bench_memory", argv, rounds=3)
    bench = report.Report("bench_memory", options)
    bench.print_head()
    print("here: resident memory of the client process, which is a fresh one each time")
    server_core, core = report.cores()
    rows = [
        row
        for row, (name, _) in ROWS.items()
        if name not in options.without and peers.usable(name)
    ]
    sizes = (100,) if options.quick else SIZES
    numbers = (AT_ONCE, 2 * AT_ONCE) if options.quick else AFTER
    chosen = options.only or ["open", "after"]
    with serving(server_core) as server:
        if "open" in chosen:
            for size in sizes:
                measure_open(bench, rows, server, size, core)
        if "after" in chosen:
            measure_after(bench, rows, server, numbers, core)
    bench.print_goals(goals(sizes, numbers))
    bench.save()


def measure_open(
    bench: report.Report, rows: list[str], server: str, size: int, core: int | None
) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    streams = min(size, hard - _SPARE_FILES)
    if streams < size:
        print(f"\n{streams} streams instead of {size}: the system allows {hard} open files")
    bench.case(f"open, {size}", f"{streams:,} open streams: memory of each", BARE, "kB")
    bench.case(
        f"most, {size}",
        f"{streams:,} streams at once, {TOKENS} words each: the most memory",
        BARE,
        "MB",
    )
    # openai needs minutes to open 10,000.
    for row in _in_turn(bench, rows, slow_rounds=1 if size > AFTER[0] else bench.options.rounds):
        each, most = hire(Order(row, server, streams), core)
        bench.add(f"open, {size}", row, each / 1e3)
        bench.add(f"most, {size}", row, most / 1e6)
    bench.add(f"open, {size}", ASKED, 25)  # kB; the design's SOAK.md
    bench.add(f"most, {size}", ASKED, 1000)  # MB; the design's PERFORMANCE.md
    bench.print_case(f"open, {size}")
    bench.print_case(f"most, {size}")


def measure_after(
    bench: report.Report,
    rows: list[str],
    server: str,
    numbers: tuple[int, ...],
    core: int | None,
) -> None:
    for number in numbers:
        title = f"after {number:,} streams, {AT_ONCE} at once: memory of the process"
        bench.case(f"after, {number}", title, BARE, "MB")
    for row in _in_turn(bench, rows):
        mine = numbers[:1] if row in SLOW else numbers
        found = hire(Order(row, server, after=mine), core)
        for number, size in zip(mine, found, strict=True):
            bench.add(f"after, {number}", row, size / 1e6)
    for number in numbers:
        bench.print_case(f"after, {number}")


def _in_turn(
    bench: report.Report, rows: list[str], slow_rounds: int = sys.maxsize
) -> Iterator[str]:
    """Every row once per round, each round begun with another; slow ones in every second of the first so many."""
    order = list(rows)
    for i in range(bench.options.rounds):
        slow = i % 2 == 0 and i < slow_rounds
        yield from (row for row in order if slow or row not in SLOW)
        order = order[1:] + order[:1]


def goals(sizes: tuple[int, ...], numbers: tuple[int, ...]) -> list[report.Goal]:
    found = []
    for size in sizes:
        held, most = f"open, {size}", f"most, {size}"
        text = f"asyncchat \N{DIVISION SIGN} {BARE}: an open stream, of {size:,}"
        found.append(report.Goal(text, (held, OURS), (held, BARE), 2))
        text = f"asyncchat \N{DIVISION SIGN} 25 kB: an open stream, of {size:,}"
        found.append(report.Goal(text, (held, OURS), (held, ASKED), 1))
        text = f"asyncchat \N{DIVISION SIGN} 1 GB: {size:,} streams at once"
        found.append(report.Goal(text, (most, OURS), (most, ASKED), 1))
    first, last = (f"after, {number}" for number in numbers)
    text = f"asyncchat, after {numbers[1]:,} streams \N{DIVISION SIGN} after {numbers[0]:,}"
    return [*found, report.Goal(text, (last, OURS), (first, OURS), 1.02)]


def _core(text: str) -> int | None:
    return None if text == "None" else int(text)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", core]:
            report.pin(_core(core))
            asyncio.run(serve())
        case ["obey", core]:
            report.pin(_core(core))
            raise_file_limit()
            told = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
            measured = asyncio.run(held(told) if told.streams else after(told))
            sys.stdout.buffer.write(msgspec.json.encode(measured))
        case _:
            main()
