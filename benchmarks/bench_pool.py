"""The line in front of a server: what it costs, and how that grows. `python -m benchmarks.bench_pool`.

line   one place, and always so many in line for it; the server is taken out, each request holds the place for one turn of
       the loop. Time per request: stand in line, be served, make room
limit  512 callers at once of plain requests with an answer of 64 tokens, from 1 up to all of them at a time. Time per request

Every value comes from a fresh process, which measures all sizes in turn: sizes are compared within one process.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec

from benchmarks import frames, peers, report, token_server

OURS, OPENAI, HAND = "asyncchat", "openai", "aiohttp + msgspec"
CAPACITY, SEMAPHORE = "anyio.CapacityLimiter", "asyncio.Semaphore"
WAITING = (1, 100, 10_000)
REQUESTS = 20_000
LIMITS = (1, 10, 100, 512)
CALLERS = 512
TOKENS = 64


# ----------------------------------------------------------------------------------- the line alone


def _ours() -> Callable[[], Awaitable[None]]:
    from asyncchat import Endpoint, Limits, RetryPolicy, Timeout
    from asyncchat.client.pool import Call, Place, SessionPool
    from asyncchat.client.reply import Reply
    from asyncchat.client.session import Session
    from asyncchat.protocol.request import ChatRequest

    class Instant(Session):
        async def post(self, request: ChatRequest, **_: Any) -> Reply:
            return cast("Reply", None)

    pool = SessionPool([Instant(Endpoint("http://127.0.0.1/v1"))], Limits(in_flight=1))
    request = ChatRequest(peers.QUESTION, {"model": "m"})
    call = Call(timeout=Timeout(), retry=RetryPolicy())

    async def hold(_: Reply, place: Place) -> None:
        await asyncio.sleep(0)
        place.release()

    return lambda: pool.run(request, call, hold, stream=False)


def _limited(gate: Any) -> Callable[[], Awaitable[None]]:
    async def pass_through() -> None:
        async with gate:
            await asyncio.sleep(0)

    return pass_through


def _semaphore() -> Callable[[], Awaitable[None]]:
    return _limited(asyncio.Semaphore(1))


def _capacity() -> Callable[[], Awaitable[None]]:
    import anyio

    return _limited(anyio.CapacityLimiter(1))


LINES = {SEMAPHORE: _semaphore, CAPACITY: _capacity, OURS: _ours}


async def line(row: str, waiting: int, requests: int) -> float:
    """CPU seconds per request with always so many in line: who was served stands in line again."""
    go = LINES[row]()
    served = 0
    over = asyncio.Event()

    async def come_again() -> None:
        nonlocal served
        while served < requests:
            await go()
            served += 1
        over.set()

    tasks = [asyncio.ensure_future(come_again()) for _ in range(waiting + 1)]
    await asyncio.sleep(0)
    started = time.process_time()
    await over.wait()
    spent = time.process_time() - started
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return spent / requests


# -------------------------------------------------------------------------------- against a server


def _limited_aiohttp(base_url: str, limit: int) -> peers.Peer:
    import aiohttp

    class Limited(peers.HandWritten):
        def __init__(self) -> None:
            self._url = f"{base_url}/chat/completions"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=limit), cookie_jar=aiohttp.DummyCookieJar()
            )

    return Limited()


def _limited_asyncchat(base_url: str, limit: int) -> peers.Peer:
    from asyncchat import AsyncChat, Limits

    class Limited(peers.Asyncchat):
        def __init__(self) -> None:
            self._client = AsyncChat(base_url, "k", "m", limits=Limits(in_flight=limit))

    return Limited()


def _limited_openai(base_url: str, limit: int) -> peers.Peer:
    import httpx2
    import openai

    class Limited(peers.Openai):
        def _transport(self) -> object:
            limits = httpx2.Limits(max_connections=limit, max_keepalive_connections=limit)
            return openai.DefaultAsyncHttpxClient(limits=limits, timeout=600)  # in line, too

    return Limited(base_url)


PEERS = {
    HAND: ("msgspec", _limited_aiohttp),
    OURS: ("asyncchat", _limited_asyncchat),
    OPENAI: ("openai", _limited_openai),
}


async def throughput(row: str, base_url: str, limit: int, requests: int) -> float:
    """CPU seconds per request of so many callers at once, each with its share."""
    peer = PEERS[row][1](base_url, limit)
    want = sum(len(frames.WORDS[i % len(frames.WORDS)]) for i in range(TOKENS))

    async def ask(times: int) -> None:
        for _ in range(times):
            got = await peer.request()
            if got != want:
                raise RuntimeError(f"{got} characters arrived, {want} were sent")

    each = max(1, requests // CALLERS)
    await asyncio.gather(*(ask(1) for _ in range(min(limit, CALLERS))))  # connections are open
    started = time.process_time()
    await asyncio.gather(*(ask(each) for _ in range(CALLERS)))
    spent = time.process_time() - started
    await peer.close()
    return spent / each / CALLERS


# ---------------------------------------------------------------------------------------- the child


class Order(msgspec.Struct, frozen=True):
    """What a process is to measure: `server` is empty for the line alone."""

    row: str
    sizes: tuple[int, ...]
    requests: int
    server: str = ""


def obey(order: Order) -> dict[int, float]:
    """Measure all sizes in turn, the first of them once more before anything counts."""
    found = {}
    for size in (order.sizes[0], *order.sizes):
        if order.server:
            work = throughput(order.row, order.server, size, order.requests)
        else:
            work = line(order.row, size, order.requests)
        found[size] = asyncio.run(work)
    return found


def hire(order: Order, core: int | None) -> dict[int, float]:
    """Have an order measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.bench_pool", "obey", str(core)]
    done = subprocess.run(
        command,
        cwd=report.ROOT,
        input=msgspec.json.encode(order),
        stdout=subprocess.PIPE,
        check=True,
    )
    return msgspec.json.decode(done.stdout, type=dict[int, float])


# --------------------------------------------------------------------------------------- the parent


def main(argv: list[str] | None = None) -> None:
    options = report.options("bench_pool", argv)
    bench = report.Report("bench_pool", options)
    bench.print_head()
    server_core, core = report.cores()
    chosen = options.only or ["line", "limit"]
    if "line" in chosen:
        requests = 2000 if options.quick else REQUESTS
        orders = {row: Order(row, WAITING, requests) for row in LINES}
        names = {size: (f"line, {size}", f"the line alone, {size:,} waiting") for size in WAITING}
        measure(bench, orders, names, core, base=SEMAPHORE)
    if "limit" in chosen:
        with token_server.running(server_core) as server:
            url = f"{server}/plain/{TOKENS}/v1"
            orders = {}
            for row, (name, _) in PEERS.items():
                if name not in options.without and peers.usable(name):
                    # openai takes up to a second for a request when 512 are in line.
                    requests = CALLERS * (1 if options.quick or row == OPENAI else 8)
                    sizes = LIMITS[-1:] if options.quick and row == OPENAI else LIMITS
                    orders[row] = Order(row, sizes, requests, url)
            title = f"{CALLERS} callers, {{}} at once: CPU per request"
            names = {size: (f"limit, {size}", title.format(size)) for size in LIMITS}
            measure(bench, orders, names, core, base=HAND)
    bench.print_goals(GOALS)
    bench.save()


def measure(
    bench: report.Report,
    orders: dict[str, Order],
    names: dict[int, tuple[str, str]],
    core: int | None,
    base: str,
) -> None:
    """Rounds, each begun with another row; a process's own first measurement is the one that is thrown away."""
    for key, title in names.values():
        rows = bench.case(key, title, base).rows
        rows.update({row: [] for row in orders})
    order = list(orders)
    for _ in range(bench.options.rounds):
        for row in order:
            for size, seconds in hire(orders[row], core).items():
                bench.add(names[size][0], row, seconds * 1e6)
        order = order[1:] + order[:1]
    for key, _ in names.values():
        bench.cases[key].rows = {row: got for row, got in bench.cases[key].rows.items() if got}
        bench.print_case(key)


GOALS = [
    report.Goal(
        "asyncchat, a request with 10,000 in line \N{DIVISION SIGN} with 100",
        ("line, 10000", OURS),
        ("line, 100", OURS),
        1.5,
    ),
    *(
        report.Goal(
            f"asyncchat \N{DIVISION SIGN} {HAND}: {CALLERS} callers, {limit} at once",
            (f"limit, {limit}", OURS),
            (f"limit, {limit}", HAND),
            1.25,
        )
        for limit in LIMITS
    ),
    *(
        report.Goal(
            f"openai \N{DIVISION SIGN} asyncchat: {CALLERS} callers, {limit} at once",
            (f"limit, {limit}", OPENAI),
            (f"limit, {limit}", OURS),
            10,
            15,
            at_least=True,
        )
        for limit in LIMITS
    ),
]


if __name__ == "__main__":
    if sys.argv[1:2] == ["obey"]:
        report.pin(None if sys.argv[2] == "None" else int(sys.argv[2]))
        found = obey(msgspec.json.decode(sys.stdin.buffer.read(), type=Order))
        sys.stdout.buffer.write(msgspec.json.encode(found))
    else:
        main()
