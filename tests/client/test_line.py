"""The line: who is next, what makes the first in line wait, and what is left by those who give up.

No network: the session sends nothing, and the clock of the limits stands still until a test moves it.
"""

import asyncio
import gc
import random
from contextlib import suppress
from typing import Any, cast

import pytest

from asyncchat import (
    APIConnectionError,
    APITimeoutError,
    AsyncChat,
    AsyncChatError,
    Endpoint,
    Limits,
    LineFull,
    PoolClosed,
    RetryPolicy,
    Timeout,
)
from asyncchat.client.pool import Call, Place, SessionPool, Statistics
from asyncchat.client.reply import Reply
from asyncchat.client.session import Session
from asyncchat.policy.lease import Lease, Leasehold, Renewal
from asyncchat.protocol.encoded import Request
from asyncchat.protocol.request import ChatRequest
from asyncchat.testing import ChatServer
from tests.client.conftest import MakeClient, Waits, start

A = "http://a.example/v1"
B = "http://b.example/v1"
MINUTE = 62.0  # a minute, and what a window keeps on top of it
ENDLESS = Timeout(connect=None, first=None, idle=None, total=None)


class Nothing:
    """What an answer is that was never sent for."""

    def close(self) -> None:
        pass

    def signed(self, error: AsyncChatError) -> AsyncChatError:
        return error


class Silent(Session):
    """Sends nothing, and writes down who would have been sent."""

    def __init__(self, endpoint: Endpoint, sent: list[str]) -> None:
        super().__init__(endpoint)
        self._sent = sent

    async def post(self, request: Request, **how: Any) -> Reply:
        self._sent.append(how["query"]["name"])
        return cast("Reply", Nothing())


class Bench:
    """A pool in a test's hands. Each request keeps its place until it is told to leave."""

    def __init__(self, *endpoints: Endpoint, **limits: Any) -> None:
        self.sent: list[str] = []
        """Names, in the order in which they got a place."""
        sessions = [Silent(endpoint, self.sent) for endpoint in endpoints or (Endpoint(A),)]
        self.pool = SessionPool(sessions, Limits(**limits))
        self.line = self.pool.line
        self.now = 1000.0
        self.line.clock = lambda: self.now
        self.pool.sleep = self._sleep
        self.tasks: dict[str, asyncio.Task[Place]] = {}
        self.pauses: dict[str, asyncio.Event] = {}
        """Those that wait before their next attempt, until the event is set."""
        self._breaks: dict[str, asyncio.Future[None]] = {}
        self._failed = ""

    async def join(self, *names: str, **how: Any) -> None:
        """Ask for a place for each; see `_request` for how."""
        for name in names:
            self.tasks[name] = start(self._request(name, **how))
        await settle()

    def leave(self, name: str) -> None:
        """Give a place back, at once."""
        self.tasks[name].result().release()

    async def fail(self, name: str) -> None:
        """Let an attempt fail that was joined with `may_fail`; it then waits for `come_back`."""
        self._failed = name
        self._breaks.pop(name).set_exception(APIConnectionError("lost"))
        await settle()

    async def come_back(self, name: str) -> None:
        """Let a request that has failed want a place again."""
        self.pauses[name].set()
        await settle()

    async def _request(
        self,
        name: str,
        *,
        model: str | None = None,
        tokens: int | None = None,
        timeout: Timeout = ENDLESS,
        may_fail: bool = False,
    ) -> Place:
        if may_fail:
            self._breaks[name] = asyncio.get_running_loop().create_future()

        async def keep(_: Reply, place: Place) -> Place:
            if name in self._breaks:
                await self._breaks[name]
            return place

        request = ChatRequest("a", {"model": model, "max_tokens": tokens}, needs_model=False)
        call = Call(timeout=timeout, retry=RetryPolicy(), query={"name": name})
        return await self.pool.run(request, call, keep, stream=False)

    async def _sleep(self, _: float) -> None:
        self.pauses[self._failed] = asyncio.Event()
        await self.pauses[self._failed].wait()

    async def pass_(self, seconds: float) -> None:
        """Let time pass, and the line have the look that its timer would give it."""
        self.now += seconds
        self.line.look()
        await settle()

    @property
    def counts(self) -> tuple[int, int]:
        """How many are in flight, and in line."""
        statistics = self.pool.statistics()
        return statistics.in_flight, statistics.waiting

    def timers(self) -> list[float]:
        """The seconds until each timer of the line strikes, in the running loop."""
        loop = asyncio.get_running_loop()
        scheduled: list[asyncio.TimerHandle] = vars(loop)["_scheduled"]
        return [
            timer.when() - loop.time()
            for timer in scheduled
            if not timer.cancelled() and _owner(timer) is self.line
        ]

    async def end(self) -> None:
        """Let everybody go; then nothing may be left."""
        for task in self.tasks.values():
            task.cancel()
        for task in self.tasks.values():
            with suppress(asyncio.CancelledError, AsyncChatError):
                (await task).release()
        assert self.counts == (0, 0)
        assert self.timers() == []


def _owner(timer: asyncio.TimerHandle) -> object:
    return getattr(getattr(timer, "_callback", None), "__self__", None)


async def settle() -> None:
    """Let everybody do what they can do now."""
    for _ in range(10):
        await asyncio.sleep(0)


async def error_of(task: "asyncio.Task[Any]") -> BaseException | None:
    await asyncio.wait([task], timeout=5)
    return task.exception()


# ------------------------------------------------------------------------------------------- order


async def test_first_to_come_is_the_first_to_be_served() -> None:
    bench = Bench(in_flight=2)
    await bench.join(*"abcdef")
    assert (bench.sent, bench.counts) == (["a", "b"], (2, 4))
    for name in "bacd":
        bench.leave(name)
        await settle()
    assert bench.sent == list("abcdef")
    await bench.end()


async def test_requests_that_come_back_stand_first_in_the_order_of_their_numbers() -> None:
    bench = Bench(in_flight=2)
    await bench.join("a", "b", may_fail=True)
    await bench.join("c", "d", "e")
    await bench.fail("b")
    await bench.fail("a")  # c and d have their places
    await bench.come_back("b")
    await bench.come_back("a")
    await bench.join("f")
    assert (bench.sent, bench.counts) == (list("abcd"), (2, 4))
    for name in "cd":
        bench.leave(name)
    await settle()
    assert bench.sent == list("abcdab")
    await bench.end()


async def test_request_that_comes_back_finds_its_place_free_and_does_not_wait() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a", may_fail=True)
    await bench.fail("a")
    assert bench.counts == (0, 0)
    await bench.come_back("a")
    assert (bench.sent, bench.counts) == (["a", "a"], (1, 0))
    await bench.end()


async def test_request_that_waits_before_its_next_attempt_holds_no_place() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a", may_fail=True)
    await bench.join("b")
    await bench.fail("a")
    assert (bench.sent, bench.counts) == (["a", "b"], (1, 0))
    await bench.end()


async def test_newcomer_does_not_pass_those_who_wait_for_a_limit() -> None:
    bench = Bench(Endpoint(A, tpm=1000))
    await bench.join("a", tokens=600)
    await bench.join("b", tokens=600)
    await bench.join("c", tokens=10)  # there would be room for it
    assert (bench.sent, bench.counts) == (["a"], (1, 2))
    await bench.end()


async def test_several_places_that_become_free_at_once_go_to_the_first_in_line() -> None:
    bench = Bench(rpm=3)
    await bench.join(*"abcdefgh")
    assert bench.sent == list("abc")
    await bench.pass_(MINUTE)
    assert bench.sent == list("abcdef")
    await bench.end()


# ------------------------------------------------------------------------------ limits and the timer


async def test_one_timer_watches_for_everybody_who_waits_for_a_limit() -> None:
    bench = Bench(rpm=1)
    await bench.join("a")
    assert bench.timers() == []
    await bench.join(*"bcdefg")
    [seconds] = bench.timers()
    assert 60 < seconds <= 61
    await bench.end()


async def test_timer_strikes_and_the_first_in_line_goes() -> None:
    """The only test that waits on a real clock, for as long as it takes."""
    bench = Bench(rpm=1)
    await bench.join("a")
    bench.now += 60.99
    await bench.join("b")
    assert bench.sent == ["a"]
    bench.now += 1
    async with asyncio.timeout(5):
        await bench.tasks["b"]
    assert bench.timers() == []
    await bench.end()


async def test_timer_that_strikes_too_soon_is_set_again() -> None:
    bench = Bench(rpm=1)
    await bench.join(*"abc")
    await bench.pass_(30)
    [seconds] = bench.timers()
    assert 30 < seconds <= 31
    assert bench.sent == ["a"]
    await bench.end()


async def test_waiting_for_a_place_alone_sets_no_timer() -> None:
    bench = Bench(in_flight=1)
    await bench.join(*"abc")
    assert bench.timers() == []
    await bench.end()


async def test_last_one_served_leaves_no_timer_behind() -> None:
    bench = Bench(rpm=2)
    await bench.join(*"abcd")
    assert len(bench.timers()) == 1
    await bench.pass_(MINUTE)
    assert (bench.sent, bench.timers()) == (list("abcd"), [])
    await bench.end()


async def test_last_one_cancelled_leaves_no_timer_behind() -> None:
    bench = Bench(rpm=1)
    await bench.join(*"abc")
    for name in "bc":
        bench.tasks[name].cancel()
    await settle()
    assert (bench.counts, bench.timers()) == ((1, 0), [])
    await bench.end()


async def test_head_that_gives_up_lets_the_next_go_that_wants_less() -> None:
    bench = Bench(Endpoint(A, tpm=1000))
    await bench.join("a", tokens=600)
    await bench.join("b", tokens=600)
    await bench.join("c", tokens=300)
    bench.tasks["b"].cancel()
    await settle()
    assert (bench.sent, bench.counts, bench.timers()) == (["a", "c"], (2, 0), [])
    await bench.end()


async def test_one_timer_serves_the_queues_of_all_models_and_strikes_for_the_soonest() -> None:
    bench = Bench(Endpoint(A, model="a", rpm=1), Endpoint(B, model="b", rpm=1))
    await bench.join("a", model="a")
    bench.now += 20
    await bench.join("b", model="b")
    await bench.join("b again", model="b")
    await bench.join("a again", model="a")
    [seconds] = bench.timers()
    assert 40 < seconds <= 41
    await bench.pass_(41.5)
    assert bench.sent == ["a", "b", "a again"]
    [seconds] = bench.timers()
    assert 18 < seconds <= 20
    await bench.end()


async def test_request_for_more_than_the_whole_limit_goes_when_it_is_alone() -> None:
    bench = Bench(tpm=1000)
    await bench.join("a", tokens=5000)
    await bench.join("b", tokens=5000)
    assert bench.sent == ["a"]
    await bench.pass_(MINUTE)
    assert bench.sent == ["a", "b"]
    await bench.end()


# ------------------------------------------------------------------------------------- giving up


def cancel_in_the_moment(bench: Bench, leaves: str, waits: str) -> None:
    """Give one request's place to another, and cancel that one before it has heard of it."""
    bench.leave(leaves)
    assert bench.line.waiting == 0
    bench.tasks[waits].cancel()


async def test_place_given_in_the_moment_of_cancelling_goes_on_to_the_next() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a", "b")
    cancel_in_the_moment(bench, "a", "b")
    await bench.join("c")
    assert (bench.sent, bench.counts) == (["a", "c"], (1, 0))
    assert bench.tasks["b"].cancelled()
    await bench.end()


@pytest.mark.parametrize("where", ["the client", "the endpoint"])
@pytest.mark.parametrize("limit", ["rpm", "tpm"])
async def test_place_given_in_the_moment_of_cancelling_is_given_back_to_the_limits_too(
    limit: str, where: str
) -> None:
    bounds: dict[str, Any] = {"rpm": 2} if limit == "rpm" else {"tpm": 1000}
    endpoint = Endpoint(A, in_flight=1, **bounds if where == "the endpoint" else {})
    bench = Bench(endpoint, **bounds if where == "the client" else {})
    await bench.join("a", "b", tokens=400)
    cancel_in_the_moment(bench, "a", "b")
    await settle()
    await bench.join("c", tokens=400)
    assert (bench.sent, bench.counts) == (["a", "c"], (1, 0))
    bench.leave("c")
    await bench.join("d", tokens=400)  # now it is used up
    assert bench.counts == (0, 1)
    await bench.end()


async def test_place_given_in_the_moment_of_cancelling_is_not_counted_as_sent() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a", "b")
    cancel_in_the_moment(bench, "a", "b")
    await settle()
    [endpoint] = bench.pool.statistics().endpoints
    assert (endpoint.sent, endpoint.in_flight, endpoint.failed) == (1, 0, 0)
    await bench.end()


async def test_large_request_goes_at_once_where_the_one_before_was_given_back() -> None:
    bench = Bench(in_flight=1, tpm=1000)
    await bench.join("a", tokens=100)
    await bench.pass_(30)
    await bench.join("b", tokens=100)
    cancel_in_the_moment(bench, "a", "b")
    await bench.pass_(32)  # a's tokens are a minute old, and b has taken none
    await bench.join("c", tokens=5000)
    assert (bench.sent, bench.counts) == (["a", "c"], (1, 0))
    await bench.end()


async def test_cancelled_in_the_middle_of_the_line_nobody_else_is_moved() -> None:
    bench = Bench(in_flight=1)
    await bench.join(*"abcde")
    bench.tasks["c"].cancel()
    await settle()
    for name in "abd":
        bench.leave(name)
        await settle()
    assert bench.sent == list("abde")
    await bench.end()


async def test_cancelled_twice_while_it_waits_the_counts_are_right() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a", "b")
    bench.tasks["b"].cancel()
    bench.tasks["b"].cancel()
    await settle()
    assert bench.counts == (1, 0)
    await bench.end()


async def test_cancelled_before_it_has_begun_to_wait_it_is_not_there() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a")
    bench.tasks["b"] = start(bench._request("b"))
    bench.tasks["b"].cancel()
    await settle()
    assert bench.counts == (1, 0)
    await bench.end()


# ------------------------------------------------------------------------------ too many, too long


async def test_one_more_than_may_wait_is_refused_at_once() -> None:
    bench = Bench(in_flight=1, waiting=2)
    await bench.join(*"abcd")
    error = await error_of(bench.tasks["d"])
    assert isinstance(error, LineFull)
    assert error.retryable
    assert "2 requests wait" in str(error)
    assert bench.counts == (1, 2)
    bench.leave("a")
    await settle()
    await bench.join("e")
    assert bench.counts == (1, 2)
    await bench.end()


async def test_who_gave_up_no_longer_counts_as_waiting() -> None:
    bench = Bench(in_flight=1, waiting=1)
    await bench.join("a", "b")
    bench.tasks["b"].cancel()
    await settle()
    await bench.join("c")
    assert bench.counts == (1, 1)
    await bench.end()


async def test_request_that_comes_back_is_never_refused_for_want_of_room() -> None:
    bench = Bench(in_flight=1, waiting=1)
    await bench.join("a", may_fail=True)
    await bench.join("b")
    await bench.fail("a")  # b has its place
    await bench.join("c")
    await bench.come_back("a")
    assert bench.counts == (1, 2)
    bench.leave("b")
    await settle()
    assert bench.sent == ["a", "b", "a"]
    await bench.end()


async def test_all_models_share_the_room_in_line() -> None:
    endpoints = [Endpoint(A, model="a", in_flight=1), Endpoint(B, model="b", in_flight=1)]
    bench = Bench(*endpoints, waiting=1)
    await bench.join("a", "a again", model="a")
    await bench.join("b", "b again", model="b")
    assert isinstance(await error_of(bench.tasks["b again"]), LineFull)
    await bench.end()


async def test_one_that_was_refused_for_want_of_room_stands_in_nobodys_way() -> None:
    endpoints = [Endpoint(A, model="a", in_flight=1), Endpoint(B, model="b")]
    bench = Bench(*endpoints, rpm=2, waiting=1)
    await bench.join("a", "a again", model="a")  # it waits for the place of the first
    await bench.join("b", "b again", model="b")  # it would have to wait for the client's limit
    assert isinstance(await error_of(bench.tasks["b again"]), LineFull)
    bench.now += MINUTE
    await bench.join("b later", model="b")
    assert bench.sent == ["a", "b", "b later"]
    await bench.end()


async def test_bound_of_waiting_in_line_strikes_and_says_so() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a")
    await bench.join("b", timeout=Timeout(line=0.01, total=None))
    error = await error_of(bench.tasks["b"])
    assert isinstance(error, APITimeoutError)
    assert error.phase == "line"
    assert not error.retryable
    assert A in str(error)
    assert "0.01 s" in str(error)
    assert (bench.sent, bench.counts, bench.timers()) == (["a"], (1, 0), [])
    await bench.end()


async def test_total_bound_that_is_shorter_strikes_in_line_by_its_own_name() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a")
    await bench.join("b", timeout=Timeout(line=60, total=0.01))
    error = await error_of(bench.tasks["b"])
    assert isinstance(error, APITimeoutError)
    assert error.phase == "total"
    await bench.end()


async def test_bound_of_waiting_in_line_is_that_of_each_request() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a")
    await bench.join("b", timeout=Timeout(line=60, total=None))
    await bench.join("c", timeout=Timeout(line=0.01, total=None))
    assert isinstance(await error_of(bench.tasks["c"]), APITimeoutError)
    assert bench.counts == (1, 1)
    bench.leave("a")
    await settle()
    assert (bench.sent, bench.timers()) == (["a", "b"], [])  # the bound is gone with the waiting
    await bench.end()


async def test_head_whose_time_is_over_lets_the_next_go_that_wants_less() -> None:
    bench = Bench(Endpoint(A, tpm=1000))
    await bench.join("a", tokens=600)
    await bench.join("b", tokens=600, timeout=Timeout(line=0.01, total=None))
    await bench.join("c", tokens=300)
    await error_of(bench.tasks["b"])
    await settle()
    assert bench.sent == ["a", "c"]
    await bench.end()


async def test_cancelled_in_the_moment_its_time_was_over_nothing_is_said() -> None:
    said: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context))
    bench = Bench(in_flight=1)
    await bench.join("a")
    await bench.join("b", timeout=Timeout(line=1000, total=None))
    # Strike the bound now, as the loop would.
    [patience] = [
        timer
        for timer in vars(loop)["_scheduled"]
        if not timer.cancelled() and 990 < timer.when() - loop.time() <= 1000
    ]
    patience._run()
    bench.tasks["b"].cancel()
    await settle()
    assert bench.tasks["b"].cancelled()
    assert bench.counts == (1, 0)
    await bench.end()
    bench.tasks.clear()
    gc.collect()
    await settle()
    loop.set_exception_handler(None)
    assert said == []


async def test_bound_of_waiting_in_line_starts_anew_when_a_request_comes_back() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a", may_fail=True, timeout=Timeout(line=0.01, total=None))
    await bench.fail("a")
    await bench.join("b")
    await bench.come_back("a")
    error = await error_of(bench.tasks["a"])
    assert isinstance(error, APITimeoutError)
    assert error.phase == "line"
    assert bench.counts == (1, 0)
    await bench.end()


async def test_client_tells_the_phase_of_a_bound_that_struck_in_line(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1), timeout=Timeout(line=0.02))
    server.stall(after=3)
    async with client.chat.stream("a"):
        with pytest.raises(APITimeoutError, match=r"Limits and Endpoint") as caught:
            await client.chat("b")
        assert caught.value.phase == "line"
        with pytest.raises(APITimeoutError) as caught:
            await client.chat.stream("c").final()
        assert caught.value.phase == "line"
    assert len(server.requests) == 1
    assert (await client.chat("d")).text == "d"


# ------------------------------------------------------------------------------- queues per model


def two_models(**limits: Any) -> Bench:
    return Bench(
        Endpoint(A, model="a", in_flight=1), Endpoint(B, model="b", in_flight=1), **limits
    )


async def test_model_whose_endpoint_is_full_does_not_hold_up_another() -> None:
    bench = two_models()
    await bench.join("a", "a again", model="a")
    await bench.join("b", "b again", model="b")
    assert (bench.sent, bench.counts) == (["a", "b"], (2, 2))
    bench.leave("b")
    await settle()
    assert bench.sent == ["a", "b", "b again"]
    await bench.end()


async def test_model_that_waits_for_a_limit_does_not_hold_up_another() -> None:
    bench = Bench(Endpoint(A, model="a", rpm=1), Endpoint(B, model="b"))
    await bench.join("a", "a again", model="a")
    await bench.join("b", model="b")
    assert (bench.sent, bench.counts) == (["a", "b"], (2, 1))
    await bench.end()


async def test_place_of_the_client_goes_to_who_came_first_whatever_the_model() -> None:
    bench = Bench(Endpoint(A, model="a"), Endpoint(B, model="b"), in_flight=1)
    await bench.join("1", model="a")
    await bench.join("2", model="b")
    await bench.join("3", model="a")
    await bench.join("4", model="b")
    for name in "123":
        bench.leave(name)
        await settle()
    assert bench.sent == list("1234")
    await bench.end()


async def test_requests_of_several_models_that_may_go_at_once_go_in_the_order_they_came() -> None:
    bench = Bench(Endpoint(A, model="a"), Endpoint(B, model="b"), rpm=2)
    await bench.join("0", "00", model="a")
    await bench.join("1", model="a")
    await bench.join("2", model="b")
    await bench.join("3", model="a")
    await bench.pass_(MINUTE)
    assert bench.sent[2:] == ["1", "2"]
    await bench.end()


async def test_large_request_is_not_starved_by_small_ones_of_another_model() -> None:
    bench = Bench(Endpoint(A, model="a"), Endpoint(B, model="b"), tpm=1000)
    await bench.join("small 0", model="b", tokens=200)
    await bench.join("large", model="a", tokens=900)
    for number in range(1, 20):  # one each ten seconds: by itself, there is room for it
        await bench.pass_(10)
        await bench.join(f"small {number}", model="b", tokens=200)
    assert "large" in bench.sent
    await bench.end()


async def test_request_that_names_no_model_does_not_wait_behind_one_that_does() -> None:
    bench = two_models()
    await bench.join("a", "a again", model="a")
    await bench.join("any")
    assert (bench.sent, bench.counts) == (["a", "any"], (2, 1))
    await bench.end()


async def test_names_that_no_endpoint_has_share_a_queue_of_their_own() -> None:
    bench = Bench(Endpoint(A, model="a", in_flight=1), Endpoint(B, in_flight=1))
    await bench.join("a", "a again", model="a")
    await bench.join("x", model="x")
    await bench.join("y", model="y")
    assert (bench.sent, bench.counts) == (["a", "x"], (2, 2))
    bench.leave("x")
    await settle()
    assert bench.sent == ["a", "x", "y"]
    await bench.end()


async def test_statistics_tell_how_many_wait_that_an_endpoint_could_serve() -> None:
    bench = two_models()
    await bench.join("a", "a 2", "a 3", model="a")
    await bench.join("b", "b 2", model="b")
    await bench.join("any")
    waiting = [endpoint.waiting for endpoint in bench.pool.statistics().endpoints]
    assert bench.pool.statistics().waiting == 4
    assert waiting == [3, 2]  # the one that names no model counts with both
    await bench.end()


# --------------------------------------------------------------------------------- whatever happens


def some_bench(chance: random.Random) -> Bench:
    """Two to four endpoints of three models, with limits of all kinds."""

    def some(*values: int | None) -> int | None:
        return chance.choice([None, *values])

    endpoints = [
        Endpoint(
            f"http://{name}.example/v1",
            model=chance.choice("xyz"),
            in_flight=some(1, 2),
            rpm=some(2, 5),
            tpm=some(1000),
        )
        for name in "abcd"[: chance.randrange(2, 5)]
    ]
    limits = {"in_flight": some(2, 4), "rpm": some(3, 8), "tpm": some(2000), "waiting": some(3, 9)}
    return Bench(*endpoints, **limits)


def assert_nobody_waits_in_vain(bench: Bench) -> None:
    """Who could go has gone; and who waits is waited for by a timer, or by somebody who will leave."""
    sent = len(bench.sent)
    before = bench.counts
    bench.line.look()
    assert (bench.counts, len(bench.sent)) == (before, sent)
    in_flight, waiting = before
    timers = bench.timers()
    assert len(timers) <= 1
    assert timers or in_flight or not waiting
    assert waiting or not timers


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_comes_and_goes_nobody_waits_in_vain(seed: int) -> None:
    chance = random.Random(seed)
    bench = some_bench(chance)
    for number in range(250):
        done = [name for name, task in bench.tasks.items() if task.done()]
        held = [name for name in done if not bench.tasks[name].cancelled() and _holds(bench, name)]
        waiting = [name for name, task in bench.tasks.items() if not task.done()]
        match chance.randrange(10):
            case 0 | 1 | 2 | 3 | 4:
                model = chance.choice(["x", "y", "z", "other", None])
                tokens = chance.choice([10, 300, 900, 5000])
                await bench.join(f"{number}", model=model, tokens=tokens)
            case 5 | 6 if held:
                bench.leave(chance.choice(held))
            case 7 if waiting:
                bench.tasks[chance.choice(waiting)].cancel()
            case 8 if held and waiting:  # in one turn of the loop
                bench.leave(chance.choice(held))
                bench.tasks[chance.choice(waiting)].cancel()
            case _:
                await bench.pass_(chance.choice([0.5, 5, 20, 62]))
        await settle()
        assert_nobody_waits_in_vain(bench)
    assert len(bench.sent) > 10
    await bench.end()


def _holds(bench: Bench, name: str) -> bool:
    task = bench.tasks[name]
    return task.exception() is None and task.result().is_held


# ------------------------------------------------------------------------------------ several loops


def test_line_is_usable_in_one_loop_after_another() -> None:
    bench = Bench(in_flight=1, rpm=2)

    async def crowd() -> None:
        """The loop ends while some wait for a place and some for a limit."""
        await bench.join(*"abc")
        assert bench.counts == (1, 2)
        bench.leave("a")
        await settle()
        assert bench.counts == (1, 1)
        bench.leave("b")
        await settle()
        assert bench.counts == (0, 1)
        assert len(bench.timers()) == 1

    for _ in range(3):
        bench.sent.clear()
        asyncio.run(crowd())
        assert bench.sent == ["a", "b"]
        assert bench.counts == (0, 0)
        bench.now += MINUTE


def test_timer_of_a_loop_that_has_ended_does_not_stand_in_the_way_of_the_next() -> None:
    bench = Bench(rpm=1)

    async def wait() -> None:
        await bench.join("a", "b")
        bench.leave("a")
        await settle()
        assert (bench.counts, len(bench.timers())) == ((0, 1), 1)

    async def wait_again() -> None:
        await bench.join("c")
        assert len(bench.timers()) == 1
        await bench.pass_(MINUTE)
        assert bench.sent == ["a", "c"]
        await bench.end()

    asyncio.run(wait())
    bench.tasks.clear()
    asyncio.run(wait_again())


def test_place_kept_from_a_loop_that_has_ended_can_be_given_back_in_the_next() -> None:
    bench = Bench(in_flight=1)

    async def take() -> Place:
        await bench.join("a")
        return bench.tasks["a"].result()

    place = asyncio.run(take())

    async def wait_for_it() -> None:
        await bench.join("b")
        assert bench.counts == (1, 1)
        place.release()
        await settle()
        assert bench.sent == ["a", "b"]
        bench.leave("b")

    asyncio.run(wait_for_it())
    assert bench.counts == (0, 0)


def test_place_can_be_given_back_where_no_loop_runs() -> None:
    bench = Bench(in_flight=1)

    async def take() -> Place:
        await bench.join("a")
        return bench.tasks["a"].result()

    asyncio.run(take()).release()
    assert bench.counts == (0, 0)


# ---------------------------------------------------------------------------------------- closing


async def test_closing_ends_everybody_who_waits_for_a_place_or_for_a_limit() -> None:
    bench = Bench(
        Endpoint(A, model="a", in_flight=1), Endpoint(B, model="b", rpm=1), Endpoint(B, model="c")
    )
    await bench.join(*"abc", model="a")
    await bench.join(*"def", model="b")
    assert bench.counts == (2, 4)
    await bench.pool.close()
    for name in "bcef":
        assert isinstance(await error_of(bench.tasks[name]), PoolClosed)
    assert (bench.counts, bench.timers()) == ((2, 0), [])
    await bench.end()


async def test_closing_ends_who_is_back_in_line() -> None:
    bench = Bench(in_flight=1)
    await bench.join("a", may_fail=True)
    await bench.join("b")
    await bench.fail("a")
    await bench.come_back("a")
    assert bench.counts == (1, 1)
    await bench.pool.close()
    assert isinstance(await error_of(bench.tasks["a"]), PoolClosed)
    await bench.end()


async def test_cancelled_in_the_moment_of_closing_nothing_is_said() -> None:
    said: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: said.append(context))
    bench = Bench(in_flight=1)
    await bench.join("a", "b")
    bench.line.close()
    bench.tasks["b"].cancel()
    await settle()
    await bench.end()
    bench.tasks.clear()
    gc.collect()
    await settle()
    loop.set_exception_handler(None)
    assert said == []


async def test_closing_while_the_body_of_a_refusal_is_read_ends_the_request_at_once(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(max_retries=2)
    refusal = server.raw(b'{"error":', b'"x"}').status(429).headers({"Retry-After": "30"})
    refusal.stall(after=1)
    task = start(client.chat("a"))
    await server.wait_for_requests(1)
    await asyncio.sleep(0.02)  # the head of the refusal has come
    await client.close()
    async with asyncio.timeout(0.5):
        with pytest.raises(PoolClosed):
            await task
    assert len(server.requests) == 1


# ------------------------------------------------------------------------------- through the client


async def test_retry_stands_before_those_that_have_not_had_a_turn(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1, limits=Limits(in_flight=1))
    record_waits(client)
    server.fail(503)
    tasks = [start(client.chat(name)) for name in "abcd"]
    for task in tasks:
        await task
    # While a waits for its second attempt, b has the place; then a comes before c.
    assert [request.last_text for request in server.requests] == list("abacd")


async def test_stream_that_is_left_early_lets_the_next_in(
    server: ChatServer, make_client: MakeClient
) -> None:
    client: AsyncChat = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a") as stream:
        waiter = start(client.chat("b"))
        async for _ in stream:
            break
    assert (await waiter).text == "b"
    statistics: Statistics = client.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)


# ------------------------------------------------------------------------------------------ leases


class Leased:
    """What a line may do, in a test's hands."""

    def __init__(self, bench: Bench) -> None:
        self.short = 0
        self.leasehold = Leasehold([], self._is_short)
        self._bench = bench
        self.give()  # it learns whom it asks
        bench.line.obey(self.leasehold)

    def _is_short(self) -> None:
        self.short += 1

    def give(self, requests: float | None = 0, slots: float | None = None) -> Renewal:
        line = self._bench.line
        renewal = self.leasehold.renewal(line.clock(), line.waiting, line.in_flight)
        lease = Lease("h", renewal.number, requests, None, slots, 5.0)
        if self.leasehold.renewed(lease, line.clock()):
            line.look()
        return renewal


async def test_leased_line_starts_what_is_leased_and_says_when_that_is_not_enough() -> None:
    bench = Bench()
    leased = Leased(bench)
    await bench.join(*"abcd")
    assert (bench.sent, leased.short) == ([], 1)
    said = leased.give(requests=2)
    await settle()
    assert (bench.sent, bench.counts) == (["a", "b"], (2, 2))
    assert (said.least.requests, said.kept.requests) == (1, 0)
    assert leased.short == 2
    said = leased.give(requests=1)
    await settle()
    assert (bench.sent, said.used.requests) == (["a", "b", "c"], 2)
    bench.line.obey(None)
    await settle()
    assert bench.sent == ["a", "b", "c", "d"]
    await bench.end()


async def test_leased_places_are_used_again_as_requests_end() -> None:
    bench = Bench(in_flight=3)
    leased = Leased(bench)
    await bench.join(*"abcdef")
    leased.give(requests=None, slots=2)
    await settle()
    assert bench.sent == ["a", "b"]
    bench.leave("a")
    await settle()
    assert bench.sent == ["a", "b", "c"]
    leased.give(requests=None, slots=9)  # more than the client's own bound
    await settle()
    assert (bench.sent, bench.counts) == (["a", "b", "c", "d"], (3, 2))
    await bench.end()


async def test_line_whose_lease_has_ended_starts_nothing() -> None:
    bench = Bench()
    leased = Leased(bench)
    leased.give(requests=9)
    await bench.join("a")
    await bench.pass_(5.0)
    await bench.join("b")
    assert (bench.sent, leased.short) == (["a"], 1)
    leased.give(requests=1)
    await settle()
    assert bench.sent == ["a", "b"]
    await bench.end()
