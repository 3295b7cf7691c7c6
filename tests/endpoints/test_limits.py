"""How much is sent: as configured, as servers report it, as they refuse it, and as they are found to bear."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from asyncchat import APIStatusError, AsyncChat, Limits, RateLimitError, RetryPolicy
from asyncchat.policy.adaptive import AdaptiveLimit
from asyncchat.policy.lane import Ask
from asyncchat.testing import ChatServer, ReceivedRequest, Reply
from tests.client.conftest import start
from tests.endpoints.conftest import Clock, MakeClient, MakeServers, at, counts, until

WINDOW = 61.0  # a minute, and a second for what is faster on its way than the one before it


@pytest.fixture
async def server(servers: MakeServers) -> ChatServer:
    [made] = await servers(1)
    return made


async def sent(client: AsyncChat, number: int) -> None:
    """Wait until everybody has come as far as they can, and see that so many requests were sent in all."""
    for _ in range(30):
        await asyncio.sleep(0)
    assert sum(one.sent for one in client.statistics().endpoints) == number


async def ended(tasks: "list[asyncio.Task[Any]]") -> list[BaseException | None]:
    await asyncio.wait(tasks)
    return [task.exception() for task in tasks]


# ------------------------------------------------------------------------------- requests a minute


@pytest.mark.parametrize("where", ["client", "endpoint"])
async def test_no_more_requests_than_allowed_start_in_a_minute(
    where: str, server: ChatServer, make_client: MakeClient
) -> None:
    if where == "client":
        client = make_client(server, limits=Limits(rpm=3))
    else:
        client = make_client(at(server, rpm=3))
    clock = Clock(client)
    tasks = [start(client.chat(str(number))) for number in range(7)]
    await sent(client, 3)
    await clock.pass_(WINDOW - 0.5)
    await sent(client, 3)
    await clock.pass_(0.6)
    await sent(client, 6)
    await clock.pass_(WINDOW + 0.1)
    await sent(client, 7)
    assert await ended(tasks) == [None] * 7
    assert [request.last_text for request in server.requests] == list("0123456")


async def test_limits_of_the_client_and_of_the_endpoint_both_hold(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, rpm=2), at(b, rpm=9), limits=Limits(rpm=6))
    Clock(client)
    tasks = [start(client.chat("a")) for _ in range(20)]
    await sent(client, 6)
    await until(lambda: sum(counts(a, b)) == 6)
    assert counts(a, b) == [2, 4]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


@pytest.mark.parametrize("seed", range(3))
async def test_limit_holds_in_every_minute_whatever_comes_and_goes(
    seed: int, server: ChatServer, make_client: MakeClient
) -> None:
    chance = random.Random(seed)
    client = make_client(at(server, rpm=10))
    clock = Clock(client)
    times: list[float] = []

    def note(_: ReceivedRequest) -> Reply:
        times.append(clock.now)
        return Reply().fail(400) if chance.random() < 0.2 else Reply().say("x")

    server.otherwise(note)
    tasks: list[asyncio.Task[Any]] = []
    for _ in range(150):
        if chance.random() < 0.7:
            tasks.append(start(client.chat("a")))
        if tasks and chance.random() < 0.2:
            chance.choice(tasks).cancel()
        await clock.pass_(chance.random() * 6)
        await until(lambda: client.statistics().in_flight == 0)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    in_a_minute = [len([at for at in times if begin <= at < begin + 60]) for begin in times]
    assert max(in_a_minute) == 10  # used, and never more
    assert len(times) > 30


async def test_failed_and_cancelled_requests_count_once_they_are_sent(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(at(server, rpm=2))
    Clock(client)
    server.fail(400)
    with pytest.raises(APIStatusError):
        await client.chat("a")
    server.stall(after=0)
    task = start(client.chat("b"))
    await server.wait_for_requests(2)
    task.cancel()
    await asyncio.wait([task])
    waiting = start(client.chat("c"))
    await sent(client, 2)
    waiting.cancel()
    await asyncio.wait([waiting])


async def test_retries_count_against_the_limit(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(at(server, rpm=2))
    clock = Clock(client, rand=0.5)
    server.fail(500, times=2)
    task = start(client.chat("a"))
    await until(lambda: client.statistics().waiting == 1)
    await sent(client, 2)  # a third attempt has to wait for the minute
    await clock.pass_(WINDOW)
    assert (await task).text == "a"


async def test_who_waits_for_a_limit_goes_to_another_endpoint_as_soon_as_that_is_free(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, rpm=1), at(b, in_flight=1))
    Clock(client)
    b.otherwise(Reply().say("x").stall(after=0))
    tasks = [start(client.chat("a")) for _ in range(3)]
    await sent(client, 2)
    await b.wait_for_requests(1)
    b.resume()
    await b.wait_for_requests(2)
    b.resume()
    assert await ended(tasks) == [None] * 3
    assert counts(a, b) == [1, 2]


# --------------------------------------------------------------------------------- tokens a minute


@pytest.mark.parametrize("where", ["client", "endpoint"])
async def test_tokens_are_estimated_before_a_request_by_what_it_allows(
    where: str, server: ChatServer, make_client: MakeClient
) -> None:
    if where == "client":
        client = make_client(server, limits=Limits(tpm=1000))
    else:
        client = make_client(at(server, tpm=1000))
    clock = Clock(client)
    server.otherwise(Reply().say("x").without_usage())
    tasks = [start(client.chat("a", max_tokens=300)) for _ in range(4)]
    await sent(client, 3)
    await clock.pass_(WINDOW)
    await sent(client, 4)
    assert await ended(tasks) == [None] * 4


async def test_usage_replaces_the_estimate_and_lets_the_next_go(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(at(server, tpm=1000))
    Clock(client)
    server.otherwise(Reply().say("x").usage(10, 10))
    for number in range(1, 6):
        await client.chat("a", max_tokens=990)
        await sent(client, number)


async def test_usage_above_the_estimate_makes_the_next_wait(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(at(server, model=None, tpm=1000))
    clock = Clock(client)
    server.say("x").usage(900, 90)
    await client.chat("a", model="x", max_tokens=100)
    task = start(client.chat("a", model="y", max_tokens=100))  # of which nothing is learned yet
    await sent(client, 1)
    await clock.pass_(WINDOW)
    assert (await task).text == "a"


async def test_usage_of_streams_counts_too(server: ChatServer, make_client: MakeClient) -> None:
    client = make_client(at(server, tpm=1000))
    Clock(client)
    server.otherwise(Reply().say("x").usage(10, 10))
    for _ in range(5):
        await client.chat.stream("a", max_tokens=990).final()
    await sent(client, 5)


async def test_request_that_allows_more_than_the_limit_goes_when_nothing_else_does(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(at(server, tpm=100))
    clock = Clock(client)
    server.otherwise(Reply().say("x").without_usage())
    tasks = [start(client.chat("a", max_tokens=5000)) for _ in range(2)]
    await sent(client, 1)
    await clock.pass_(WINDOW)
    await sent(client, 2)
    assert await ended(tasks) == [None, None]


async def test_without_a_limit_nobody_measures(
    server: ChatServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = make_client(server)

    def measured(_: object) -> int:
        raise AssertionError("a request was measured that nobody wanted to know of")

    monkeypatch.setattr(Ask, "size", property(measured))
    await client.chat("a")
    await client.chat.stream("a").final()


# ------------------------------------------------------------------------------- what servers report


def left(kind: str, remaining: int, reset: str, limit: int | None = None) -> dict[str, str]:
    headers = {f"x-ratelimit-remaining-{kind}": str(remaining), f"x-ratelimit-reset-{kind}": reset}
    return headers if limit is None else {**headers, f"x-ratelimit-limit-{kind}": str(limit)}


@pytest.mark.parametrize("streamed", [False, True])
async def test_requests_that_a_server_says_are_left_are_used_and_the_next_waits_for_the_reset(
    streamed: bool, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    clock = Clock(client)
    server.say("x").headers(left("requests", 2, "30s"))
    await (client.chat.stream("a").final() if streamed else client.chat("a"))
    tasks = [start(client.chat("a")) for _ in range(4)]
    await sent(client, 3)
    await clock.pass_(29.5)
    await sent(client, 3)
    await clock.pass_(0.6)
    await sent(client, 5)
    assert await ended(tasks) == [None] * 4


async def test_limit_that_comes_back_bit_by_bit_is_used_bit_by_bit(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    clock = Clock(client)
    server.say("x").headers(left("requests", 0, "1m0s", limit=60))
    await client.chat("a")
    tasks = [start(client.chat("a")) for _ in range(3)]
    await sent(client, 1)
    await clock.pass_(0.9)
    await sent(client, 1)
    await clock.pass_(0.2)
    await sent(client, 2)
    await clock.pass_(2)
    await sent(client, 4)
    assert await ended(tasks) == [None] * 3


async def test_tokens_that_a_server_says_are_left_bound_what_is_sent(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    clock = Clock(client)
    server.say("x").headers(left("tokens", 1000, "20s")).without_usage()
    await client.chat("a")
    server.otherwise(Reply().say("x").without_usage())
    tasks = [start(client.chat("a", max_tokens=400)) for _ in range(3)]
    await sent(client, 3)
    await clock.pass_(20.1)
    await sent(client, 4)
    assert await ended(tasks) == [None] * 3


async def test_requests_sent_since_are_not_in_a_report(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    clock = Clock(client)
    server.reply().say("x").headers(left("requests", 2, "30s")).stall(after=0)
    server.reply().say("x").stall(after=0)
    tasks = [start(client.chat("a"))]
    await server.wait_for_requests(1)
    tasks.append(start(client.chat("b")))
    await server.wait_for_requests(2)
    server.resume()
    await ended(tasks)
    tasks = [start(client.chat("c")) for _ in range(3)]
    await sent(client, 3)  # of the two that were left, b was one
    await clock.pass_(30.1)
    await sent(client, 5)
    await ended(tasks)


async def test_report_of_plenty_bounds_nothing(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    Clock(client)
    server.otherwise(Reply().say("x").headers(left("requests", 9999, "6ms", limit=10_000)))
    for number in range(1, 30):
        await client.chat("a")
        await sent(client, number)


async def test_used_up_endpoint_leaves_the_rest_to_the_other(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    a.say("x").headers(left("requests", 0, "30s"))
    for _ in range(6):
        await client.chat("a")
    assert (counts(a, b), clock.waits) == ([1, 5], [])
    assert client.statistics().endpoints[0].state == "closed"


async def test_report_is_one_of_the_key_that_was_used(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(at(server, ["k1", "k2"]))
    Clock(client)
    server.say("x").headers(left("requests", 0, "30s"))
    for _ in range(5):
        await client.chat("a")
    keys = [request.headers["Authorization"] for request in server.requests]
    assert keys == ["Bearer k1"] + ["Bearer k2"] * 4


async def test_reset_that_is_far_away_is_not_waited_for_longer_than_a_minute(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    clock = Clock(client)
    server.say("x").headers(left("requests", 0, "24h0m0s"))
    await client.chat("a")
    task = start(client.chat("a"))
    await sent(client, 1)
    await clock.pass_(60.1)
    await sent(client, 2)
    await task


# ------------------------------------------------------------------------------ what servers refuse


async def test_refusal_for_being_too_fast_holds_up_everybody_on_that_key(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=0, limits=Limits(in_flight=2))
    clock = Clock(client)
    server.fail(429, headers={"Retry-After": "5"})
    server.reply().say("x").stall(after=0)
    first = start(client.chat("refused"))
    second = start(client.chat("under way"))
    others = [start(client.chat("a")) for _ in range(10)]
    with pytest.raises(RateLimitError):
        await first
    await server.wait_for_requests(2)
    server.resume()
    assert (await second).text == "x"  # what was under way goes on
    await sent(client, 2)
    await clock.pass_(4.9)
    await sent(client, 2)
    assert client.statistics().waiting == 10
    await clock.pass_(0.2)
    await server.wait_for_requests(3)
    while client.statistics().waiting:
        await clock.pass_(0.2)
        await until(lambda: client.statistics().in_flight < 2)
    assert await ended(others) == [None] * 10


async def test_after_a_pause_the_number_of_requests_doubles_step_by_step(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=0)
    clock = Clock(client)
    server.fail(429, headers={"Retry-After": "2"})
    with pytest.raises(RateLimitError):
        await client.chat("refused")
    tasks = [start(client.chat("a")) for _ in range(100)]
    await sent(client, 1)
    steps = []
    await clock.pass_(2.001)
    for _ in range(7):
        for _ in range(30):
            await asyncio.sleep(0)
        steps.append(client.statistics().endpoints[0].sent - 1)
        await clock.pass_(0.2)
    assert steps == [1, 2, 4, 8, 16, 32, 64]
    assert await ended(tasks) == [None] * 100


async def test_refusals_without_a_wait_pause_longer_and_longer(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=0)
    clock = Clock(client)
    server.otherwise(Reply().fail(429))
    pauses = []
    for _ in range(9):
        with pytest.raises(RateLimitError):
            await client.chat("a")
        pauses.append(client.statistics().endpoints[0].paused)
        await clock.pass_(pauses[-1] + 0.001)
    assert pauses[0] == 0.5
    assert pauses == sorted(pauses)
    assert pauses[-1] == max(pauses) == 8
    assert set(pauses) == {0.5, 1, 2, 4, 8}


async def test_good_answer_ends_the_row_of_pauses(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=0)
    clock = Clock(client)
    for _ in range(2):
        server.fail(429, times=5)
        for _ in range(5):
            with pytest.raises(RateLimitError):
                await client.chat("a")
            await clock.pass_(20)
        await client.chat("a")
    server.fail(429)
    with pytest.raises(RateLimitError):
        await client.chat("a")
    assert client.statistics().endpoints[0].paused == 0.5


async def test_refusals_of_requests_that_were_under_way_together_are_one(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, max_retries=0)
    clock = Clock(client)
    server.otherwise(Reply().fail(429).stall(after=0))
    tasks = [start(client.chat("a")) for _ in range(10)]
    await server.wait_for_requests(10)
    await clock.pass_(0.1)
    server.resume()
    assert all(isinstance(error, RateLimitError) for error in await ended(tasks))
    assert client.statistics().endpoints[0].paused == 0.5
    assert client.statistics().endpoints[0].limited == 10


async def test_retry_of_a_refused_request_waits_for_as_long_as_the_server_asked_and_no_longer(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server)
    clock = Clock(client, rand=0.0)
    server.fail(429, headers={"Retry-After": "3"})
    task = start(client.chat("a"))
    await until(lambda: len(clock.waits) == 1)
    assert (await task).text == "a"
    assert clock.waits == [3]


# --------------------------------------------------------------------------- what servers are found to bear


class Rounds:
    """A server that bears so many requests at once, and answers all of them together, round by round.

    A moment passes with each request, so that what is sent later is known to be sent later.
    """

    def __init__(
        self, server: ChatServer, clock: Clock, bears: int, refusal: Callable[[], Reply]
    ) -> None:
        self.working = 0
        self.refused = 0
        self._server = server
        self._clock = clock
        self._bears = bears
        self._refusal = refusal
        server.otherwise(self._answer)

    def _answer(self, _: ReceivedRequest) -> Reply:
        self._clock.now += 1e-5
        if self.working >= self._bears:
            self.refused += 1
            return self._refusal()
        self.working += 1
        return Reply().say("x").stall(after=0)

    async def play(self, client: AsyncChat, rounds: int) -> list[int]:
        """Return how many were worked on in each round."""
        used = []
        for _ in range(rounds):
            await until(lambda: self._is_full(client))
            used.append(self.working)
            self.working = 0
            self._clock.now += (
                1  # an answer takes a second, so that a wait before a retry does not make it slow
            )
            self._server.resume()
            await asyncio.sleep(0)
        return used

    def _is_full(self, client: AsyncChat) -> bool:
        statistics = client.statistics()
        most = statistics.endpoints[0].most
        return statistics.in_flight == self.working and (
            most is None or statistics.in_flight >= most
        )


async def crowd(client: AsyncChat, size: int) -> "list[asyncio.Task[None]]":
    """So many callers who ask again and again."""

    async def caller() -> None:
        while True:
            try:
                await client.chat("a")
            except APIStatusError:
                await asyncio.sleep(0)

    tasks = [start(caller()) for _ in range(size)]
    await asyncio.sleep(0)
    return tasks


async def disperse(tasks: "list[asyncio.Task[None]]") -> None:
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


ADAPTIVE = Limits(adaptive=True, in_flight=None)
REFUSALS: dict[str, Callable[[], Reply]] = {
    "503": lambda: Reply().fail(503),
    "529": lambda: Reply().fail(529),
}


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_adaptive_limit_settles_near_what_the_server_bears_and_uses_most_of_it(
    refusal: str, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, limits=ADAPTIVE, retry=RetryPolicy(max_retries=5))
    clock = Clock(client)
    rounds = Rounds(server, clock, 20, REFUSALS[refusal])
    tasks = await crowd(client, 50)
    await rounds.play(client, 12)
    refused, asked = rounds.refused, len(server.requests)
    used = await rounds.play(client, 40)
    await disperse(tasks)
    assert max(used) == 20
    assert min(used) >= 10
    assert sum(used) / len(used) >= 0.8 * 20
    assert rounds.refused - refused <= 0.05 * (len(server.requests) - asked)


async def test_adaptive_limit_is_quick_to_find_out_that_a_server_bears_much(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, limits=ADAPTIVE)
    clock = Clock(client)
    rounds = Rounds(server, clock, 1000, REFUSALS["503"])
    tasks = await crowd(client, 300)
    used = await rounds.play(client, 4)
    await disperse(tasks)
    assert used == [16, 32, 64, 128]


async def test_adaptive_limit_of_a_server_that_breaks_down_falls_to_one_and_comes_back(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, limits=ADAPTIVE, max_retries=0)
    clock = Clock(client)
    server.otherwise(Reply().fail(503))
    for _ in range(10):
        await clock.pass_(1)
        with pytest.raises(APIStatusError):
            await client.chat("a")
    assert client.statistics().endpoints[0].most == 1
    rounds = Rounds(server, clock, 8, REFUSALS["503"])
    tasks = await crowd(client, 20)
    used = await rounds.play(client, 12)
    await disperse(tasks)
    assert used[0] == 1
    assert max(used) == 8
    assert used.index(8) >= 7  # one more in each round, and no faster


@pytest.mark.parametrize("where", ["client", "endpoint"])
async def test_adaptive_limit_stays_below_the_one_that_was_set(
    where: str, server: ChatServer, make_client: MakeClient
) -> None:
    if where == "client":
        client = make_client(server, limits=Limits(adaptive=True, in_flight=25))
    else:
        client = make_client(at(server, in_flight=25), limits=ADAPTIVE)
    clock = Clock(client)
    rounds = Rounds(server, clock, 1000, REFUSALS["503"])
    tasks = await crowd(client, 60)
    used = await rounds.play(client, 6)
    await disperse(tasks)
    assert used[0] == 16
    assert used[-3:] == [25, 25, 25]


async def test_adaptive_limit_that_nobody_reaches_does_not_grow(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, limits=ADAPTIVE)
    Clock(client)
    for _ in range(30):
        await client.chat("a")
    assert client.statistics().endpoints[0].most == 16


async def test_adaptive_limit_is_one_for_each_endpoint(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, limits=ADAPTIVE, max_retries=0)
    clock = Clock(client)
    a.otherwise(Reply().fail(503))
    for _ in range(10):
        await clock.pass_(40)
        while len(a.requests) < 4:
            try:
                await client.chat("a")
            except APIStatusError:
                await clock.pass_(1)
    of_a, of_b = client.statistics().endpoints
    assert of_a.most == 1
    assert of_b.most == 16


async def test_refusals_of_requests_that_were_under_way_together_halve_the_limit_once(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server, limits=ADAPTIVE, max_retries=0)
    clock = Clock(client)
    server.otherwise(Reply().fail(503).stall(after=0))
    tasks = [start(client.chat("a")) for _ in range(16)]
    await server.wait_for_requests(16)
    await clock.pass_(0.1)
    server.resume()
    await ended(tasks)
    most = client.statistics().endpoints[0].most
    assert most is not None
    assert 8 <= most < 16


def test_adaptive_limit_does_not_creep_up_while_answers_become_slower() -> None:
    """A server with a queue of its own refuses nothing: that it takes longer is all it says."""
    limit = AdaptiveLimit(None)
    used = []
    for _ in range(200):
        used.append(int(limit.limit))
        latency = max(0.1, 0.1 * used[-1] / 20)  # twenty at once, and no faster
        for _ in range(used[-1]):
            limit.answered(latency, used[-1])
    assert min(used[10:]) >= 20
    assert max(used) <= 4 * 20
