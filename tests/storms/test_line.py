"""The line under a crowd: a decision costs the same however many wait, and the first to come is the first served.

No network: the session answers at once, so that what is left is the line.
"""

import asyncio
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, cast

import pytest

from asyncchat import Endpoint, Limits, RetryPolicy, Timeout
from asyncchat.client.pool import Call, Place, SessionPool
from asyncchat.client.reply import Reply
from asyncchat.client.session import Session
from asyncchat.protocol.encoded import Request
from asyncchat.protocol.request import ChatRequest
from tests.client.conftest import start
from tests.storms.conftest import show

REQUEST = ChatRequest("a", {"model": "m"})


class Nothing:
    """What an answer is that was never sent for."""

    def close(self) -> None:
        pass


class Instant(Session):
    """Sends nothing, and writes down whose turn it was."""

    def __init__(self) -> None:
        super().__init__(Endpoint("http://127.0.0.1/v1"))
        self.served: list[int] = []

    async def post(self, request: Request, **how: Any) -> Reply:
        self.served.append(int(how["query"]["number"]))
        return cast("Reply", Nothing())


class Line:
    """A pool of one place, taken until `serve`; every request holds it for one turn of the loop."""

    def __init__(self) -> None:
        self.session = Instant()
        self.pool = SessionPool([self.session], Limits(in_flight=1))
        self.tasks: list[asyncio.Task[None]] = []

    async def take_place(self) -> Place:
        async def keep(_: Reply, place: Place) -> Place:
            return place

        return await self.pool.run(REQUEST, _call(-1), keep, stream=False)

    async def join(self, number: int) -> None:
        async def hold(_: Reply, place: Place) -> None:
            await asyncio.sleep(0)
            place.release()

        await self.pool.run(REQUEST, _call(number), hold, stream=False)

    async def grow(self, count: int) -> None:
        """Let so many more stand in line."""
        first = len(self.tasks)
        self.tasks += [start(self.join(number)) for number in range(first, first + count)]
        await asyncio.sleep(0)

    async def empty(self) -> None:
        for task in self.tasks:
            with suppress(asyncio.CancelledError):
                await task
        statistics = self.pool.statistics()
        assert (statistics.in_flight, statistics.waiting) == (0, 0)


def _call(number: int) -> Call:
    return Call(timeout=Timeout(), retry=RetryPolicy(), query={"number": str(number)})


# -------------------------------------------------------------------------------------------- cost


async def cost(
    waiting: int, decisions: int, meter: Callable[[], float] = time.thread_time
) -> dict[str, float]:
    """Return what each kind of decision costs while so many wait, in seconds of CPU or by another meter."""
    line = Line()
    place = await line.take_place()
    await line.grow(waiting)
    spent = {}

    begun = meter()
    await line.grow(decisions)
    spent["join"] = meter() - begun

    # From the middle: a search from either end has the longest way.
    middle = waiting // 2
    begun = meter()
    for task in line.tasks[middle : middle + decisions]:
        task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    spent["give up"] = meter() - begun
    assert line.pool.statistics().waiting == waiting

    begun = meter()
    place.release()
    while len(line.session.served) <= decisions:
        await asyncio.sleep(0)
    spent["be served"] = meter() - begun

    await line.empty()
    return {kind: amount / decisions for kind, amount in spent.items()}


@pytest.mark.parametrize("waiting", [2000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_decision_costs_the_same_however_many_wait(
    waiting: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """The least of five, interleaved: what else the machine does only adds."""
    few: list[dict[str, float]] = []
    many: list[dict[str, float]] = []
    for _ in range(5):
        few.append(await cost(100, 100))
        many.append(await cost(waiting, 100))
    ratios = {
        kind: min(one[kind] for one in many) / min(one[kind] for one in few) for kind in few[0]
    }
    if waiting == 10_000:
        show(capsys, f"a decision with 10,000 waiting, against 100: {ratios}")
    assert max(ratios.values()) < 3, ratios


class Waiter(asyncio.Future[None]):
    """What somebody in line waits for; counts how often any of them is looked at."""

    looks = 0

    def __eq__(self, other: object) -> bool:
        Waiter.looks += 1
        return self is other

    def __hash__(self) -> int:
        Waiter.looks += 1
        return id(self)

    def done(self) -> bool:
        Waiter.looks += 1
        return super().done()

    def cancelled(self) -> bool:
        Waiter.looks += 1
        return super().cancelled()


async def test_decision_looks_at_nobody_else_in_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times cannot tell a scan from a cold cache where the scan is C's; this can."""
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_future", lambda: Waiter(loop=loop))
    few, many = [await cost(waiting, 50, lambda: Waiter.looks) for waiting in (100, 1000)]
    assert 0 < few["be served"] < 20
    assert many == pytest.approx(few, rel=0.1)


# --------------------------------------------------------------------------------------- fairness


@pytest.mark.parametrize("seed", range(5))
async def test_first_come_is_first_served_whoever_gives_up(seed: int) -> None:
    chance = random.Random(seed)
    line = Line()
    place = await line.take_place()
    gave_up = set()
    await line.grow(500)
    place.release()
    while len(line.tasks) < 2000 or any(not task.done() for task in line.tasks):
        await asyncio.sleep(0)
        if len(line.tasks) < 2000:
            await line.grow(chance.randrange(20))
        # Anywhere in line; and the very first ones, whose turn may have come at this moment.
        waiting = [number for number, task in enumerate(line.tasks) if not task.done()]
        for number in {
            *waiting[: chance.randrange(3)],
            *chance.sample(waiting, k=min(3, len(waiting))),
        }:
            if chance.random() < 0.3:
                gave_up.add(number)
                line.tasks[number].cancel()
                if chance.random() < 0.3:
                    line.tasks[number].cancel()
    await line.empty()
    served = line.session.served[1:]
    assert served == sorted(served)  # in the order in which they came
    assert set(range(len(line.tasks))) - set(served) <= gave_up  # and nobody was left out
    assert len(served) > 500
    assert len(gave_up) > 100
