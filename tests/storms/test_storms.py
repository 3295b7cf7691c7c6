"""Thousands of requests at once, cancelled, dropped and broken off at random: each ends as it should, and nothing is left.

The seed is fixed, the timing is not: every run is another storm, and what is asserted holds for each.
"""

import asyncio
import gc
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import pytest

from asyncchat import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncChat,
    ContentDelta,
    Limits,
    RetryPolicy,
    StreamCut,
    Timeout,
)
from tests.client.conftest import start
from tests.storms.conftest import Control, StormServer, Watch, percentile, rss, show
from tests.storms.server import LONG, SHORT

# ------------------------------------------------------------------------- what a request can be

Way = Callable[
    [AsyncChat, dict[str, Any]], Awaitable[str | None]
]  # the whole text, if it was read


async def plain(client: AsyncChat, fields: dict[str, Any]) -> str:
    return (await client.chat("a", **fields)).text


async def final(client: AsyncChat, fields: dict[str, Any]) -> str:
    return (await client.chat.stream("a", **fields).final()).text


async def events(client: AsyncChat, fields: dict[str, Any]) -> str:
    async with client.chat.stream("a", **fields) as stream:
        pieces = [event.delta async for event in stream if isinstance(event, ContentDelta)]
    return "".join(pieces)


async def text(client: AsyncChat, fields: dict[str, Any]) -> str:
    pieces = []
    async with client.chat.stream("a", **fields) as stream:
        async for piece in stream.text():
            pieces.append(piece)
            await asyncio.sleep(0)
    return "".join(pieces)


async def created(client: AsyncChat, fields: dict[str, Any]) -> str:
    pieces = []
    async for chunk in await client.chat.completions.create(messages="a", stream=True, **fields):
        pieces += [choice.delta.content or "" for choice in chunk.choices]
    return "".join(pieces)


async def left_by_break(client: AsyncChat, fields: dict[str, Any]) -> None:
    async for _ in await client.chat.completions.create(messages="a", stream=True, **fields):
        break


async def left_by_break_in_a_block(client: AsyncChat, fields: dict[str, Any]) -> None:
    async with client.chat.stream("a", **fields) as stream:
        async for _ in stream:
            break


async def dropped_unread(client: AsyncChat, fields: dict[str, Any]) -> None:
    await client.chat.completions.create(messages="a", stream=True, **fields)


async def dropped_unopened(client: AsyncChat, fields: dict[str, Any]) -> None:
    client.chat.stream("a", **fields)


WAYS: dict[Way, int] = {
    plain: 20,
    final: 15,
    events: 25,
    text: 10,
    created: 10,
    left_by_break: 8,
    left_by_break_in_a_block: 5,
    dropped_unread: 5,
    dropped_unopened: 2,
}
MODELS = {"good": 35, "slow": 20, "stalled": 10, "reset": 10, "cut": 10, "refused": 8, "failed": 7}
LEAVING = {left_by_break, left_by_break_in_a_block, dropped_unread, dropped_unopened}
STEADY = {"good", "slow", "stalled"}  # where the server itself ends no connection
PATIENT = Timeout(connect=60, first=60, idle=60, total=60)


def is_right(model: str, way: Way, error: BaseException | None, answer: str | None) -> bool:
    """Whether a request that nobody cancelled ended as the server's behaviour asks."""
    match model, error:
        case _, None:
            left = way in LEAVING  # before anything went wrong
            return left or (model in {"good", "slow"} and answer == SHORT)
        case "reset" | "cut", APIConnectionError() | StreamCut():
            return not isinstance(error, APITimeoutError)
        case "failed", APIError():
            return "told to fail" in str(error)
        case ("stalled", APITimeoutError()) | ("refused", APIStatusError(status_code=503)):
            return True
    return False


class Storm:
    """Requests in so many lanes, each lane one after the other, cancelled by chance.

    Only where the server is silent on purpose has anybody little patience: elsewhere a busy machine is no reason to
    give up.
    """

    def __init__(self, client: AsyncChat, patience: float) -> None:
        self.client = client
        self.random = random.Random()
        self.impatient = Timeout(connect=60, first=patience, idle=patience, total=30)
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.drops = 0
        self.left = 0
        self.most_in_flight = 0
        self.numbers = itertools.count(1)
        self.cancelled_at: dict[str, float] = {}
        self.delays: list[float] = []
        """Seconds from a cancellation to when the server saw the connection closed."""

    async def blow(self, requests: int, lanes: int, seed: int) -> None:
        self.random.seed(seed)
        self.left = requests
        async with asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(self._lane())

    async def _lane(self) -> None:
        while self.left > 0:
            self.left -= 1
            await self._request()

    async def _request(self) -> None:
        chance = self.random
        [way] = chance.choices(list(WAYS), list(WAYS.values()))
        [model] = chance.choices(list(MODELS), list(MODELS.values()))
        number = str(next(self.numbers))
        timeout = self.impatient if model == "stalled" else PATIENT
        task = start(_run(way, self.client, {"model": model, "timeout": timeout, "user": number}))
        self.drops += way is dropped_unread
        cancelled_at = await self._cancel_by_chance(task)
        if cancelled_at is not None and model in STEADY:
            self.cancelled_at[number] = cancelled_at
        await asyncio.wait([task])
        in_flight = self.client.statistics().in_flight
        self.most_in_flight = max(self.most_in_flight, in_flight)
        self._judge(task, way, model, was_cancelled=cancelled_at is not None)

    async def _cancel_by_chance(self, task: "asyncio.Task[str | None]") -> float | None:
        """Cancel 30 % within their first 40 turns of the loop and 30 % later, and half of both a second time."""
        chance, when = self.random, self.random.random()
        if when < 0.3:
            # The more there are at once, the fewer turns a request takes: most of the 40 would come too late.
            await _turns(task, int(40 * chance.random() ** 3))
        elif when < 0.6:
            await asyncio.wait([task], timeout=chance.random() * 0.02)
        else:
            return None
        at = time.monotonic()
        was_cancelled = task.cancel()
        self.outcomes["cancelled early" if when < 0.3 else "cancelled late"] += was_cancelled
        if chance.random() < 0.5:
            await _turns(task, chance.randrange(4))
            task.cancel()
        return at if was_cancelled else None

    def take_lost(self, lost: Mapping[str, float]) -> None:
        """Compare when the server lost connections with when their requests were cancelled."""
        self.delays += [
            lost_at - self.cancelled_at[number]
            for number, lost_at in lost.items()
            # An attempt that was given up is lost too, before its request is cancelled in the wait for the next one.
            if lost_at > self.cancelled_at.get(number, lost_at)
        ]
        self.cancelled_at.clear()

    def _judge(
        self, task: "asyncio.Task[str | None]", way: Way, model: str, *, was_cancelled: bool
    ) -> None:
        if was_cancelled:
            if not task.cancelled():
                self.wrong.append(f"{way.__name__}, {model}: cancelled, but ended as {task!r}")
            return
        error = None if task.cancelled() else task.exception()
        self.outcomes["answered" if error is None else type(error).__name__] += 1
        answer = None if task.cancelled() or error else task.result()
        if task.cancelled() or not is_right(model, way, error, answer):
            self.wrong.append(f"{way.__name__}, {model}: {error!r}, {answer!r}")


async def _run(way: Way, client: AsyncChat, fields: dict[str, Any]) -> str | None:
    return await way(client, fields)


async def _turns(task: "asyncio.Task[Any]", turns: int) -> None:
    for _ in range(turns):
        if task.done():
            return
        await asyncio.sleep(0)


# -------------------------------------------------------------------------------- cancel storms


async def storm(
    server: StormServer,
    requests: int,
    in_flight: int,
    seeds: Sequence[int],
    *,
    patience: float = 0.1,
    options: Mapping[str, Any] | None = None,
) -> tuple[Storm, list[tuple[float, int]]]:
    """Blow in parts, one for each seed, and look after each; return the memory (MB) and objects alive after each."""
    parts: list[tuple[float, int]] = []
    async with server.control() as control:
        with Watch() as watch:
            client = AsyncChat(
                api_key="key",
                limits=Limits(in_flight=in_flight),
                retry=RetryPolicy(max_retries=1, initial_delay=0.005),
                **(options or {"base_url": server.base_url}),
            )
            blowing = Storm(client, patience)
            for seed in seeds:
                await blowing.blow(requests // len(seeds), in_flight + in_flight // 2, seed)
                await assert_calm(client, watch, control)
                blowing.take_lost((await control.ask("lost")).lost)
                parts.append((rss(), len(gc.get_objects())))
            assert blowing.wrong == []
            await assert_answers(client)
            await client.close()
            assert (await control.ask("wait open 0")).strays == 0
            assert watch.new_sockets() == 0
            await watch.assert_silent()
            assert watch.drops <= blowing.drops  # who was cancelled before dropping drops nothing
            assert blowing.most_in_flight <= in_flight
    return blowing, parts


def growth(parts: Sequence[tuple[float, int]]) -> tuple[float, int]:
    """Return what came on top between the first two parts and the others; how many connections are kept moves both."""
    (megabytes, objects), (more_megabytes, more_objects) = (
        [choose(values) for values in zip(*some, strict=True)]
        for some, choose in ((parts[:2], max), (parts[2:], min))
    )
    return more_megabytes - megabytes, int(more_objects - objects)


async def assert_calm(client: AsyncChat, watch: Watch, control: Control) -> None:
    """Nobody is in flight or in line, the server answers nobody, and both count the same connections."""
    gc.collect()
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    await control.ask("wait answering 0")
    # The server hears of a closed connection a moment after us, and we of one that it closed.
    async with asyncio.timeout(10):
        while (await control.ask()).open != watch.new_sockets():
            await asyncio.sleep(0.005)
    await watch.assert_silent()


async def assert_answers(client: AsyncChat) -> None:
    fields = {"model": "good", "timeout": PATIENT}
    for way in (plain, final, events, text, created) * 4:
        assert await way(client, fields) == SHORT


async def test_cancel_storm_leaves_nothing_behind(storm_server: StormServer) -> None:
    blown, parts = await storm(storm_server, 1000, in_flight=100, seeds=range(1, 5))
    assert blown.outcomes["cancelled early"] > 120
    assert blown.outcomes["cancelled late"] > 30
    assert blown.outcomes["answered"] > 120
    assert {"StreamCut", "StreamStalled", "APIConnectionError"} <= set(blown.outcomes)
    megabytes, objects = growth(parts)
    assert objects < 250  # less than one for each request of a part
    assert megabytes < 4
    assert percentile(blown.delays, 0.5) < 5


@pytest.mark.parametrize("in_flight", [1, 2])
async def test_cancel_storm_through_the_narrowest_line_loses_no_place(
    storm_server: StormServer, in_flight: int
) -> None:
    blown, _ = await storm(storm_server, 300, in_flight, range(1, 5), patience=0.02)
    assert blown.outcomes["answered"] > 40


async def test_cancel_storm_behind_tls_leaves_nothing_behind(storm_server: StormServer) -> None:
    options = storm_server.secure()
    blown, _ = await storm(storm_server, 300, 50, range(1, 5), options=options)
    assert blown.outcomes["cancelled early"] > 40
    assert blown.outcomes["answered"] > 40


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_cancel_storm_of_100_000_requests_leaves_nothing_behind(
    storm_server: StormServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five seeds, 20,000 requests each, through one client."""
    started, cpu = time.perf_counter(), time.process_time()
    blown, parts = await storm(storm_server, 100_000, in_flight=100, seeds=range(1, 6))
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    show(
        capsys,
        f"100,000 requests, 100 in flight: {seconds:.0f} s ({100_000 / seconds:.0f}/s), CPU {cpu:.0f} s; after each "
        f"fifth, RSS {', '.join(f'{size:.1f}' for size, _ in parts)} MB, objects "
        f"{', '.join(str(objects) for _, objects in parts)}; {dict(blown.outcomes)}, {blown.drops} dropped unread; "
        f"{delays(blown)}",
    )
    megabytes, objects = growth(parts)
    assert objects < 2000  # a tenth of one for each request of a part
    assert megabytes < 2
    assert percentile(blown.delays, 0.99) < 10


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("requests", "in_flight", "is_secure"),
    [(1500, 1, False), (1500, 2, False), (4000, 100, True)],
    ids=["one-place", "two-places", "tls"],
)
async def test_long_cancel_storm_leaves_nothing_behind(
    requests: int,
    in_flight: int,
    *,
    is_secure: bool,
    storm_server: StormServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The same with one place, with two, and with TLS: fewer requests, since each takes longer."""
    options = storm_server.secure() if is_secure else None
    started = time.perf_counter()
    blown, parts = await storm(
        storm_server, requests, in_flight, range(1, 6), patience=0.02, options=options
    )
    seconds = time.perf_counter() - started
    show(
        capsys,
        f"{requests} requests, {in_flight} in flight{', TLS' * is_secure}: {seconds:.0f} s ({requests / seconds:.0f}/s); "
        f"objects {', '.join(str(objects) for _, objects in parts)}; {dict(blown.outcomes)}; {delays(blown)}",
    )
    assert growth(parts)[1] < requests // len(parts)  # less than one for each request of a part


def delays(blown: Storm) -> str:
    p50, p99 = (percentile(blown.delays, share) * 1000 for share in (0.5, 0.99))
    return f"{len(blown.delays)} times from cancel() to the server's end: p50 {p50:.1f}, p99 {p99:.1f} ms"


# --------------------------------------------------------------------------- kept connections


@pytest.mark.parametrize("way", [plain, final, created])
async def test_answers_on_kept_connections_leave_nothing_behind(
    way: Way, storm_server: StormServer
) -> None:
    """A storm cannot tell: it breaks its connections, and what hangs on a connection goes with it."""
    client = AsyncChat(storm_server.base_url, "key")
    quarters = []
    for _ in range(4):
        for _ in range(100):
            assert await way(client, {"model": "good"}) == SHORT
        gc.collect()
        quarters.append((rss(), len(gc.get_objects())))
    await client.close()
    assert growth(quarters)[1] < 25  # a quarter of an object per request


# ------------------------------------------------------------------------------- many streams


async def many_streams(server: StormServer, count: int) -> list[float]:
    """Open `count` streams, all at once, then read all to their ends; return memory in MB at each step."""
    sizes = [rss()]
    async with server.control() as control:
        with Watch() as watch:
            client = AsyncChat(
                server.base_url,
                "key",
                timeout=Timeout(connect=300, first=300, idle=300, total=600),
                limits=Limits(in_flight=count),
            )
            ways = (final, events, text, created)
            tasks = [
                start(_run(ways[number % 4], client, {"model": "held"})) for number in range(count)
            ]
            await control.ask(f"wait answering {count}", 200)
            assert client.statistics().in_flight == count
            assert client.statistics().waiting == 0
            sizes.append(rss())
            await control.ask("release", 60)
            wrong = 0
            for task in tasks:
                wrong += await task != LONG
            assert wrong == 0
            sizes.append(rss())
            counts = await control.ask()
            assert counts.most_answering == counts.most_open == count
            assert counts.requests == {"held": count}
            assert client.statistics().finished == count
            assert client.statistics().attempts == count
            await client.close()
            del tasks, task
            await control.ask("wait open 0", 30)
            assert watch.new_sockets() == 0
            await watch.assert_silent()
    return [*sizes, rss()]


async def test_500_streams_at_once_are_all_right(
    storm_server: StormServer, file_limit: int
) -> None:
    assert file_limit > 600
    before, *sizes = await many_streams(storm_server, 500)
    assert max(sizes) - before < 100


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_10_000_streams_at_once_are_all_right_in_less_than_a_gigabyte(
    storm_server: StormServer, file_limit: int, capsys: pytest.CaptureFixture[str]
) -> None:
    count = min(10_000, file_limit - 200)
    started, cpu = time.perf_counter(), time.process_time()
    sizes = await many_streams(storm_server, count)
    seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
    scaled = "" if count == 10_000 else f" (the system allows {file_limit} open files, not more)"
    show(
        capsys,
        f"{count} streams at once, 64 tokens each{scaled}: {seconds:.1f} s, CPU {cpu:.1f} s; RSS before, open, read, "
        f"closed: {', '.join(f'{size:.0f}' for size in sizes)} MB, "
        f"{(sizes[1] - sizes[0]) * 1024 / count:.1f} kB per open stream",
    )
    assert max(sizes) < 1000
