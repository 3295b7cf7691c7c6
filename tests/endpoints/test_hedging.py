"""Asking a second server where the first one takes long: the first event wins, and nothing is left of the other."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from asyncchat import (
    APIStatusError,
    AsyncChat,
    AuthenticationError,
    BadRequestError,
    Completion,
    Endpoint,
    InternalServerError,
    Limits,
    PoolClosed,
    RetryPolicy,
)
from asyncchat.policy.retry import RetryBudget
from asyncchat.protocol.facts import (
    AttemptDropped,
    AttemptStarted,
    Fact,
    RequestFinished,
    RequestLeft,
    RequestStarted,
)
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import other_tasks, start
from tests.endpoints.conftest import Clock, MakeClient, MakeServers, ask, at, counts, until

both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])

SOON = RetryPolicy(max_retries=0, hedge=0.01)
AT_ONCE = RetryPolicy(max_retries=0, hedge=0)
NEVER_REACHED = RetryPolicy(max_retries=0, hedge=60)


# ------------------------------------------------------------------------------------- who wins


@both_ways
async def test_second_server_is_asked_when_the_first_one_is_silent(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    a.stall(after=0)
    answer = await ask(client, streamed=streamed)
    assert answer.text == "a"
    assert counts(a, b) == [1, 1]
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.endpoint) == (2, b.base_url)
    assert answer.timing.total >= 0.01


@both_ways
async def test_slower_answer_is_closed_and_its_place_is_free_at_once(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    a.stall(after=0)
    await ask(client, streamed=streamed)
    statistics = client.statistics()
    assert (statistics.in_flight, [one.in_flight for one in statistics.endpoints]) == (0, [0, 0])
    await a.wait_for_disconnect(0.5)
    await a.wait_for_connections(0, 0.5)


async def test_winning_stream_has_one_place_while_it_is_read(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    a.stall(after=0)
    b.stall(after=3)
    async with client.chat.stream("a") as stream:
        await a.wait_for_disconnect(0.5)
        assert [one.in_flight for one in client.statistics().endpoints] == [0, 1]
        b.resume()
        assert "".join([piece async for piece in stream.text()]).startswith("One two three")
    assert client.statistics().in_flight == 0


@both_ways
async def test_first_server_may_still_win_and_the_second_is_closed(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    a.reply().say("x").stall(after=0)
    b.stall(after=0)
    task = start(ask(client, streamed=streamed))
    await b.wait_for_requests(1)
    a.resume()
    answer = await task
    assert answer.text == "x"
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.endpoint) == (2, a.base_url)
    await b.wait_for_disconnect(0.5)
    assert client.statistics().in_flight == 0


@both_ways
async def test_answer_before_the_delay_asks_nobody_else(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=NEVER_REACHED)
    for _ in range(10):
        await ask(client, streamed=streamed)
    assert sum(counts(a, b)) == 10


async def test_first_event_counts_and_not_the_end_of_a_stream(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=RetryPolicy(max_retries=0, hedge=0.2))
    a.stall(after=3)
    async with client.chat.stream("a") as stream:
        reading = start(stream.final())
        await asyncio.wait([reading], timeout=0.25)  # longer than the delay
        assert counts(a, b) == [1, 0]
        a.resume()
        await reading


@both_ways
async def test_both_attempts_bear_the_same_idempotency_key_and_ask_each_its_own_model(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, "ka", model="ma"), at(b, "kb", model="mb"), retry=SOON)
    a.stall(after=0)
    await ask(client, streamed=streamed)
    [one], [other] = a.requests, b.requests
    assert one.headers["Idempotency-Key"] == other.headers["Idempotency-Key"]
    assert (one.body["model"], other.body["model"]) == ("ma", "mb")
    assert (one.headers["Authorization"], other.headers["Authorization"]) == (
        "Bearer ka",
        "Bearer kb",
    )


# ------------------------------------------------------------------------------------ what fails


@both_ways
async def test_first_server_that_fails_before_the_delay_is_left_at_once(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=RetryPolicy(max_retries=1, hedge=60))
    clock = Clock(client)
    a.fail(503)
    async with asyncio.timeout(5):
        answer = await ask(client, streamed=streamed)
    assert answer.text == "a"
    assert (counts(a, b), clock.waits) == ([1, 1], [])


@both_ways
async def test_second_server_that_fails_leaves_the_first_one_to_answer(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    for trouble in (400, 401, 404, 429, 500):
        a, b = await servers(2)
        client = make_client(a, b, retry=SOON)
        a.reply().say("x").stall(after=0)
        b.fail(trouble)
        task = start(ask(client, streamed=streamed))
        await b.wait_for_requests(1)
        await b.wait_until_idle()
        await until(lambda client=client: client.statistics().in_flight == 1)  # type: ignore[misc]
        a.resume()
        assert (await task).text == "x"
        assert counts(a, b) == [1, 1]


@both_ways
async def test_first_server_that_fails_after_the_delay_leaves_the_second_one_to_answer(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    clock = Clock(client)
    a.reply().fail(500).stall(after=0)
    b.reply().say("x").stall(after=0)
    task = start(ask(client, streamed=streamed))
    await b.wait_for_requests(1)
    a.resume()
    await until(lambda: client.statistics().in_flight == 1)
    b.resume()
    assert (await task).text == "x"
    assert (counts(a, b), clock.waits) == ([1, 1], [])


@both_ways
async def test_both_fail_the_last_error_is_raised(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    a.reply().fail(500, "the first").stall(after=0)
    b.reply().fail(500, "the second").stall(after=0)
    task = start(ask(client, streamed=streamed))
    await b.wait_for_requests(1)
    b.resume()
    await until(lambda: client.statistics().in_flight == 1)
    a.resume()
    with pytest.raises(InternalServerError, match="the first"):
        await task
    assert counts(a, b) == [1, 1]
    assert client.statistics().in_flight == 0


@both_ways
async def test_both_fail_and_the_retry_after_that_is_answered(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=RetryPolicy(max_retries=2, hedge=0.01))
    clock = Clock(client)
    a.reply().fail(500).stall(after=0)
    b.fail(500)
    task = start(ask(client, streamed=streamed))
    await b.wait_for_requests(1)
    await until(lambda: client.statistics().endpoints[1].failed == 1)
    a.resume()
    assert (await task).text == "a"
    assert sum(counts(a, b)) == 3
    assert len(clock.waits) == 1


@both_ways
async def test_refusal_of_the_second_does_not_end_a_request_whose_first_may_be_retried(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=RetryPolicy(max_retries=2, hedge=0.01))
    Clock(client)
    a.reply().fail(500).stall(after=0)
    b.fail(400)
    task = start(ask(client, streamed=streamed))
    await b.wait_for_requests(1)
    await b.wait_until_idle()
    await until(lambda: client.statistics().in_flight == 1)
    a.resume()
    assert (await task).text == "a"


@both_ways
async def test_what_is_no_error_of_ours_comes_out_as_it_is(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)

    def broken() -> str:
        raise ZeroDivisionError

    client = make_client(at(a), at(b, broken), retry=SOON)
    a.stall(after=0)
    with pytest.raises(ZeroDivisionError):
        await ask(client, streamed=streamed)
    await a.wait_for_disconnect(0.5)
    assert client.statistics().in_flight == 0


@both_ways
async def test_error_of_the_only_attempt_comes_out_as_it_is(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=NEVER_REACHED)
    a.fail(400, "no good")
    with pytest.raises(BadRequestError, match="no good") as caught:
        await ask(client, streamed=streamed)
    assert caught.value.__cause__ is None
    assert counts(a, b) == [1, 0]


# ------------------------------------------------------------------------------ where nobody is asked


async def slow_first_answer(
    client: AsyncChat, a: ChatServer, *, streamed: bool = False
) -> Completion:
    """Let the first server take many times as long as the delay, and then answer."""
    a.reply().say("x").delay(0.06)
    return await ask(client, streamed=streamed)


@both_ways
async def test_one_endpoint_is_asked_once_even_with_two_keys(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    client = make_client(at(a, ["k1", "k2"]), retry=SOON)
    assert (await slow_first_answer(client, a, streamed=streamed)).text == "x"
    assert counts(a) == [1]


async def test_without_a_delay_nobody_is_asked(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    await slow_first_answer(make_client(a, b), a)
    assert counts(a, b) == [1, 0]


async def test_endpoint_of_another_model_is_not_asked(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, model="x"), at(b, model="y"), retry=SOON, model="x")
    a.reply().say("x").delay(0.06)
    await client.chat("a", model="x")
    assert counts(a, b) == [1, 0]


async def test_endpoint_that_is_down_is_not_asked(
    servers: MakeServers, make_client: MakeClient, unused_port: int
) -> None:
    [a] = await servers(1)
    gone = Endpoint(f"http://127.0.0.1:{unused_port}/v1", "key", "m")
    client = make_client(gone, a, retry=SOON)
    Clock(client)
    await client.chat("a")  # found to be down
    attempts = client.statistics().attempts
    await slow_first_answer(client, a)
    assert client.statistics().attempts == attempts + 1


async def test_spare_is_not_asked_while_the_first_is_up(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, spare = await servers(2)
    client = make_client(at(a), at(spare, spare=True), retry=SOON)
    await slow_first_answer(client, a)
    assert counts(a, spare) == [1, 0]


async def test_endpoint_that_is_full_is_not_waited_for(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a), at(b, in_flight=1), retry=SOON)
    calm = client.with_options(retry=RetryPolicy())
    await calm.chat("the first one is a's")
    b.stall(after=3)
    async with calm.chat.stream("a"):
        assert counts(a, b) == [1, 1]
        await slow_first_answer(client, a)
    assert counts(a, b) == [2, 1]


async def test_second_attempt_takes_no_place_beyond_the_limit_of_the_client(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON, limits=Limits(in_flight=1))
    await slow_first_answer(client, a)
    assert counts(a, b) == [1, 0]


async def test_second_attempt_takes_no_place_that_somebody_waits_for(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a), at(b), retry=SOON, limits=Limits(in_flight=2))
    for server in (a, b):
        server.reply().say("x").delay(0.06)
    tasks = [start(client.chat(text)) for text in "123"]
    for task in tasks:
        await task
    # The last one may be asked elsewhere: nobody waits behind it.
    asked = [request.last_text for server in (a, b) for request in server.requests]
    assert (asked.count("1"), asked.count("2")) == (1, 1)


@pytest.mark.parametrize("limit", ["rpm", "tpm"])
async def test_second_attempt_counts_against_the_limits(
    limit: str, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    limits = Limits(rpm=3) if limit == "rpm" else Limits(tpm=3 * 410)
    client = make_client(a, b, retry=SOON, limits=limits)
    Clock(client)
    a.stall(after=0)
    b.reply().say("x").usage(1, 400)
    await client.chat("a", max_tokens=400)
    for server in (a, b):
        server.otherwise(Reply().say("x").delay(0.06))
    await client.chat("a", max_tokens=400)
    assert sum(counts(a, b)) == 3  # a fourth would be beyond the limit


async def test_second_attempt_that_finds_no_room_in_the_clients_limit_holds_nobody_up(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON, limits=Limits(rpm=1))
    clock = Clock(client)
    await slow_first_answer(client, a)
    clock.now += 62  # and nobody looks: nobody waits
    async with asyncio.timeout(0.5):
        assert (await client.chat("b")).text == "b"
    assert sum(counts(a, b)) == 2


# ----------------------------------------------------------------------------------------- how much


async def test_second_attempts_are_paid_for_by_the_budget_of_retries(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=AT_ONCE)
    for server in (a, b):
        server.otherwise(Reply().say("x").delay(0.002))
    for _ in range(100):
        await client.chat("a")
    requests = sum(counts(a, b))
    # A second attempt for each would be 200; each server's budget holds twenty and a tenth of a request.
    assert 100 + 2 * 20 <= requests <= 100 * 1.1 + 2 * 20


async def test_budget_spent_by_second_attempts_comes_back_with_requests(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=AT_ONCE)
    for server in (a, b):
        server.otherwise(Reply().say("x").delay(0.001))
    for _ in range(80):
        await client.chat("a")
    before = sum(counts(a, b))
    calm = client.with_options(retry=RetryPolicy())
    for _ in range(40):
        await calm.chat("a")
    assert sum(counts(a, b)) == before + 40
    for _ in range(10):
        await client.chat("a")
    assert sum(counts(a, b)) >= before + 40 + 10 + 4


# ---------------------------------------------------------------------------------------- p95


LATEST = RetryPolicy(max_retries=0, hedge="p95")


@both_ways
async def test_p95_asks_nobody_until_twenty_answers_have_shown_what_is_long(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, weight=1000), at(b), retry=LATEST)
    for _ in range(19):
        await ask(client, streamed=streamed)
    before = sum(counts(a, b))
    for server in (a, b):
        server.otherwise(Reply().say("x").delay(0.1))
    await ask(client, streamed=streamed)
    assert sum(counts(a, b)) == before + 1


@both_ways
async def test_p95_asks_elsewhere_after_the_time_in_which_most_answers_began(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=LATEST)
    calm = client.with_options(retry=RetryPolicy())
    for _ in range(40):
        await ask(calm, streamed=streamed)
    before = counts(a, b)
    a.stall(after=0)
    b.stall(after=0)  # whichever is asked first is silent
    task = start(ask(client, streamed=streamed))
    await until(lambda: sum(counts(a, b)) == sum(before) + 2)
    for server in (a, b):
        server.resume()
    answer = await task
    assert answer.timing is not None
    assert answer.timing.attempts == 2


async def test_p95_of_streams_says_nothing_of_plain_answers(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=LATEST)
    calm = client.with_options(retry=RetryPolicy())
    for _ in range(40):
        await ask(calm, streamed=True)
    before = sum(counts(a, b))
    for server in (a, b):
        server.otherwise(Reply().say("x").delay(0.1))
    await ask(client, streamed=False)
    assert sum(counts(a, b)) == before + 1


# ------------------------------------------------------------------------- cancelled, closed, at once


@both_ways
async def test_cancellation_closes_both(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    tasks = other_tasks()
    for server in (a, b):
        server.stall(after=0)
    task = start(ask(client, streamed=streamed))
    await b.wait_for_requests(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert client.statistics().in_flight == 0
    for server in (a, b):
        await server.wait_for_disconnect(0.5)
    assert not [one for one in other_tasks() - tasks if "aiohttp" not in repr(one)]


@both_ways
async def test_closing_the_client_ends_both(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    for server in (a, b):
        server.stall(after=0)
    task = start(ask(client, streamed=streamed))
    await b.wait_for_requests(1)
    await client.close()
    with pytest.raises(PoolClosed):
        async with asyncio.timeout(0.5):
            await task
    assert client.statistics().in_flight == 0
    for server in (a, b):
        await server.wait_for_disconnect(0.5)


Work = Callable[[AsyncChat], Awaitable[None]]


async def plain(client: AsyncChat) -> None:
    await client.chat("a")


async def final(client: AsyncChat) -> None:
    await client.chat.stream("a").final()


async def events(client: AsyncChat) -> None:
    async with client.chat.stream("a") as stream:
        async for _ in stream:
            pass


@pytest.mark.parametrize("work", [plain, final, events])
@pytest.mark.parametrize("stalls", [True, False], ids=["stalls", "answers"])
async def test_cancelled_at_any_turn_nothing_is_left_of_either(
    stalls: bool, work: Work, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    for server in (a, b):
        reply = Reply().say("One two three.")
        server.otherwise(reply.stall(after=4) if stalls else reply)
    client = make_client(a, b, retry=AT_ONCE)
    for turns in range(80):
        for one in client._core.pool.servers:
            one.budget = RetryBudget()  # each turn may hedge
        task = start(_run(work, client))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        statistics = client.statistics()
        in_flight = [one.in_flight for one in statistics.endpoints]
        assert (turns, statistics.in_flight, in_flight) == (turns, 0, [0, 0])
        for server in (a, b):
            await server.wait_until_idle(0.5)


async def _run(work: Work, client: AsyncChat) -> None:
    await work(client)


class Gate:
    """Holds back every reply that has arrived, and lets all of them through in one turn of the loop."""

    def __init__(self, client: AsyncChat) -> None:
        self.held = 0
        self._open: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for session in client._core.pool.sessions:
            self._put_before(session)

    def _put_before(self, session: Any) -> None:
        post = session.post

        async def held_back(*args: Any, **kwargs: Any) -> Any:
            reply = await post(*args, **kwargs)
            self.held += 1
            await asyncio.shield(self._open)
            return reply

        session.post = held_back

    async def open(self, replies: int) -> None:
        """Wait for so many replies, and for their bodies, and let them through."""
        await until(lambda: self.held == replies)
        await asyncio.sleep(0.02)  # more than the bodies need on loopback; sooner only shows less
        self._open.set_result(None)


@both_ways
async def test_two_answers_in_the_same_moment_are_one_answer_to_one_request(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    facts: list[Fact] = []
    client = make_client(a, b, retry=AT_ONCE, observers=[facts.append])
    gate = Gate(client)
    task = start(ask(client, streamed=streamed))
    await gate.open(2)
    assert (await task).text == "a"
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.finished, statistics.attempts) == (0, 1, 2)
    ends = [fact for fact in facts if isinstance(fact, RequestFinished | RequestLeft)]
    assert len([fact for fact in facts if isinstance(fact, RequestStarted)]) == 1
    assert len([fact for fact in facts if isinstance(fact, AttemptStarted)]) == 2
    assert len([fact for fact in facts if isinstance(fact, AttemptDropped)]) == 1
    assert [type(fact) for fact in ends] == [RequestFinished]
    assert facts[-1] is ends[0]
    for server in (a, b):
        await server.wait_until_idle(0.5)


@both_ways
async def test_cancelled_in_the_moment_of_an_answer_nothing_is_left(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    for server in (a, b):
        server.otherwise(Reply().say("One two three.").stall(after=4))
        if not streamed:
            server.otherwise(Reply().say("One two three."))
    for turns in range(12):
        client = make_client(a, b, retry=AT_ONCE)
        gate = Gate(client)
        task = start(ask(client, streamed=streamed))
        await gate.open(2)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert (turns, client.statistics().in_flight) == (turns, 0)
        for server in (a, b):
            await server.wait_until_idle(0.5)


async def test_many_hedged_requests_at_once_leave_nothing(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(a, b, c, retry=AT_ONCE, limits=Limits(in_flight=20))
    for server in (a, b, c):
        server.otherwise(Reply().say("One two three.").drip(0.0005))
    tasks = [start(ask(client, streamed=bool(number % 2))) for number in range(100)]
    for task in tasks:
        assert (await task).text == "One two three."
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.waiting, statistics.finished) == (0, 0, 100)
    for server in (a, b, c):
        await server.wait_until_idle(0.5)


async def test_key_that_the_second_server_refuses_is_left_alone_like_any_other(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    Clock(client)
    a.reply().say("x").stall(after=0)
    b.fail(401)
    task = start(client.chat("a"))
    await b.wait_for_requests(1)
    await until(lambda: client.statistics().endpoints[1].failed == 1)
    a.resume()
    await task
    assert client.statistics().endpoints[1].state == "open"


def test_delay_that_makes_no_sense_is_refused() -> None:
    for hedge in (-1, "p99", True, "0.5"):
        options: dict[str, Any] = {"hedge": hedge}
        with pytest.raises(ValueError, match="hedge"):
            RetryPolicy(**options)


async def test_both_refused_the_keys_the_error_is_theirs(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, retry=SOON)
    for server in (a, b):
        server.otherwise(Reply().fail(401))
    with pytest.raises(AuthenticationError) as caught:
        await client.chat("a")
    assert isinstance(caught.value, APIStatusError)
    assert counts(a, b) == [1, 1]
