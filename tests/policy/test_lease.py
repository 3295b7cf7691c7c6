"""Leases: many workers never spend more than the limit together, whatever becomes of them, and use almost all of it.

In simulated time: workers, a holder and the messages between them, which may be late, lost or doubled. Servers count what
arrives, by their own clock.
"""

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.policy.endpoint import Endpoint
from asyncchat.policy.lane import Ask, Hold, Lane, Server
from asyncchat.policy.lease import LEASE_SECONDS, Amounts, Lease, Leasehold, Leases, Renewal
from tests.policy.simulated import LONGEST_WAY, MINUTE, World, law, most_in_a_minute

URL = "http://a.example/v1"
COUNTED = 61.0 + LEASE_SECONDS  # what a dead worker may have spent


class Net(NamedTuple):
    """What becomes of messages."""

    longest: float = 0.0  # seconds that one is on its way, at most
    lost: float = 0.0  # the share of those that never arrive
    doubled: float = 0.0  # ... and of those that arrive twice


class Job:
    """A holder that may die and be replaced, workers that may die too, and what a server saw of them."""

    def __init__(self, seed: int, net: Net | None = None, **limits: float) -> None:
        self.world = World(seed)
        self.net = net or Net()
        self.limits = limits
        self.arrivals: list[tuple[float, int]] = []
        self.in_flight = self.most_in_flight = 0
        self.workers: list[Worker] = []
        self._names = count(1)
        self.holder: Leases | None = Leases("first", **limits)

    def worker(self, **how: "object") -> "Worker":
        worker = Worker(self, f"w{next(self._names)}", **how)  # type: ignore[arg-type]  # passed on
        self.workers.append(worker)
        return worker

    def lose_holder(self, down: float) -> None:
        self.holder = None
        self.world.after(down, self._replace)

    def _replace(self) -> None:
        name = f"h{next(self._names)}"
        self.holder = Leases(name, took_over=self.world.now, **self.limits)

    def send(self, message: Callable[[], None]) -> None:
        """Let a message travel, as the net lets it."""
        rand = self.world.random
        for _ in range(2 if rand.random() < self.net.doubled else 1):
            if rand.random() >= self.net.lost:
                self.world.after(rand.uniform(0, self.net.longest), message)

    def ask(self, worker: "Worker", renewal: Renewal) -> None:
        asked = self.holder

        def arrive() -> None:
            if self.holder is not None and self.holder is asked:
                lease = self.holder.lease(worker.name, self.world.now, renewal)
                self.send(lambda: worker.hears(lease))

        self.send(arrive)

    @property
    def requests(self) -> float:
        return most_in_a_minute((at, 1) for at, _ in self.arrivals)

    @property
    def tokens(self) -> float:
        return most_in_a_minute(self.arrivals)

    def sent_between(self, since: float, until: float) -> int:
        return sum(since < at <= until for at, _ in self.arrivals)


class Worker:
    """A line of requests before one lane, that obeys a lease: `line` and `pool` without asyncio."""

    def __init__(
        self,
        job: Job,
        name: str,
        *,
        latency: tuple[float, float] = (0.1, 3.0),
        slots: int = 10_000,
    ) -> None:
        self.job = job
        self.name = name
        self.lane = Server(Endpoint(URL)).lanes[0]
        self.leasehold = Leasehold([self.lane], self._is_short)
        self.waiting: deque[int] = deque()  # sizes in tokens
        self.in_flight = 0
        self.sent = 0
        self.is_dead = False
        self._latency = latency
        self._slots = slots
        self._timer = 0
        self._asks_at = float("inf")
        self._ask_in(0.0)

    def wants(self, *sizes: int) -> None:
        self.waiting.extend(sizes)
        self.look()

    def keeps_wanting(self, every: float, sizes: Callable[[], int]) -> None:
        """Let a request come so often."""

        def come() -> None:
            if not self.is_dead:
                self.wants(sizes())
                self.job.world.after(every, come)

        come()

    def dies(self) -> None:
        self.is_dead = True
        self.job.in_flight -= self.in_flight

    def look(self) -> None:
        world = self.job.world
        while self.waiting and not self.is_dead:
            slots = self.leasehold.slots
            if self.in_flight >= (self._slots if slots is None else min(slots, self._slots)):
                self.leasehold.on_short()
                break
            ask = Ask(None, partial(_size, self.waiting[0]))
            if self.leasehold.wait(world.now, ask) or self.lane.wait(world.now, ask):
                break
            self._send(self.waiting.popleft(), ask)

    def _send(self, size: int, ask: Ask) -> None:
        world, job = self.job.world, self.job
        self.leasehold.take(world.now, ask, Hold(self.lane, world.now))
        self.sent += 1
        self.in_flight += 1
        job.in_flight += 1
        job.most_in_flight = max(job.most_in_flight, job.in_flight)
        way = world.random.uniform(0, LONGEST_WAY)
        world.after(way, lambda: job.arrivals.append((world.now, size)))
        world.after(way + world.random.uniform(*self._latency), self._end)

    def _end(self) -> None:
        if not self.is_dead:
            self.in_flight -= 1
            self.job.in_flight -= 1
            self.look()

    def _is_short(self) -> None:
        self._ask_in(self.leasehold.due(is_short=True) - self.job.world.now)

    def _ask_in(self, seconds: float) -> None:
        at = self.job.world.now + max(seconds, 0.0)
        if not self._asks_at <= at:
            self._asks_at = at
            self._timer += 1
            self.job.world.after(at - self.job.world.now, partial(self._ask, self._timer))

    def _ask(self, number: int) -> None:
        if number == self._timer and not self.is_dead:
            now = self.job.world.now
            self._asks_at = float("inf")
            renewal = self.leasehold.renewal(now, len(self.waiting), self.in_flight)
            self._ask_in(self.leasehold.due(is_short=False) - now)
            self.job.ask(self, renewal)

    def hears(self, lease: Lease) -> None:
        if not self.is_dead:
            if self.leasehold.renewed(lease, self.job.world.now):
                self.look()
            else:
                self._is_short()


def _size(tokens: int) -> tuple[int, float]:
    return tokens, 0.0


# ------------------------------------------------------------------------------------------- the law


@law(20)
@given(
    seed=st.integers(0, 2**32),
    rpm=st.integers(1, 300),
    tpm=st.integers(50, 3000),
    workers=st.integers(1, 6),
    longest=st.sampled_from([0.0, 0.02, 1.0, 8.0]),
    lost=st.sampled_from([0.0, 0.2]),
    doubled=st.sampled_from([0.0, 0.3]),
    deaths=st.lists(st.floats(1, 130), max_size=6),
    holder_deaths=st.lists(
        st.tuples(st.floats(1, 130), st.floats(0, 20), st.booleans()), max_size=3
    ),
)
def test_no_minute_has_more_than_the_limit_whoever_dies_and_whatever_is_late(
    seed: int,
    rpm: int,
    tpm: int,
    workers: int,
    longest: float,
    lost: float,
    doubled: float,
    deaths: list[float],
    holder_deaths: list[tuple[float, float, bool]],
) -> None:
    job = Job(seed, Net(longest, lost, doubled), rpm=rpm, tpm=tpm)
    rand = job.world.random

    def begin() -> None:
        worker = job.worker()
        worker.keeps_wanting(rand.choice([0.02, 0.3, 2.0]), lambda: rand.choice([1, 7, 40]))

    def die() -> None:
        alive = [worker for worker in job.workers if not worker.is_dead]
        rand.choice(alive).dies()
        begin()

    for _ in range(workers):
        job.world.after(rand.uniform(0, 3), begin)
    for at in deaths:
        job.world.after(at + 3, die)

    def lose(down: float, takes_all: bool) -> None:
        job.lose_holder(down)
        for _ in [worker for worker in job.workers if not worker.is_dead and takes_all]:
            die()

    for at, down, takes_all in holder_deaths:
        job.world.after(at, partial(lose, down, takes_all))
    job.world.run(200)
    assert job.requests <= rpm
    assert job.tokens <= tpm


@law(10)
@given(
    seed=st.integers(0, 2**32),
    in_flight=st.integers(1, 40),
    workers=st.integers(1, 8),
    deaths=st.lists(st.floats(1, 60), max_size=5),
    takes_over=st.floats(1, 60),
)
def test_no_more_are_in_flight_than_may_be(
    seed: int, in_flight: int, workers: int, deaths: list[float], takes_over: float
) -> None:
    job = Job(seed, Net(0.05), in_flight=in_flight)
    rand = job.world.random

    def begin() -> None:
        job.worker().keeps_wanting(rand.choice([0.02, 0.5]), lambda: 1)

    def die() -> None:
        rand.choice([worker for worker in job.workers if not worker.is_dead]).dies()
        begin()

    for _ in range(workers):
        job.world.after(rand.uniform(0, 1), begin)
    for at in deaths:
        job.world.after(at + 1, die)
    job.world.after(takes_over, partial(job.lose_holder, 1.0))
    job.world.run(90)
    assert job.most_in_flight <= in_flight
    assert len(job.arrivals) > 20


# ------------------------------------------------------------------------------------------ its use


@pytest.mark.parametrize(("workers", "rpm"), [(1, 60), (4, 60), (3, 900), (12, 300)])
def test_steady_demand_uses_nine_tenths_of_the_requests(workers: int, rpm: int) -> None:
    job = Job(1, Net(0.05), rpm=rpm)
    for _ in range(workers):
        job.worker().keeps_wanting(0.5 * workers * MINUTE / rpm, lambda: 1)
    job.world.run(420)
    assert job.sent_between(120, 420) >= 0.9 * 5 * rpm
    assert job.requests <= rpm


@pytest.mark.parametrize(("workers", "tpm"), [(1, 20_000), (4, 200_000)])
def test_steady_demand_uses_nine_tenths_of_the_tokens(workers: int, tpm: int) -> None:
    job = Job(2, Net(0.05), tpm=tpm)
    rand = job.world.random
    for _ in range(workers):
        job.worker().keeps_wanting(0.2, lambda: rand.randint(100, 3000))
    job.world.run(600)
    assert sum(size for at, size in job.arrivals if 120 < at <= 600) >= 0.9 * 8 * tpm
    assert job.tokens <= tpm


def test_steady_demand_uses_nine_tenths_of_the_slots() -> None:
    job = Job(3, Net(0.05), in_flight=64)
    for _ in range(4):
        job.worker(latency=(1.0, 1.0)).keeps_wanting(0.02, lambda: 1)
    job.world.run(120)
    # One takes a second, and up to LONGEST_WAY to the server.
    assert len(job.arrivals) >= 0.9 * 64 * 110 / (1 + LONGEST_WAY)
    assert job.most_in_flight <= 64


def test_busy_worker_gets_what_idle_ones_leave() -> None:
    job = Job(4, Net(0.02), rpm=600, in_flight=50)
    for _ in range(7):
        job.worker().keeps_wanting(10.0, lambda: 1)
    busy = job.worker()
    busy.keeps_wanting(0.05, lambda: 1)
    job.world.run(300)
    idle = sum(worker.sent for worker in job.workers) - busy.sent
    assert idle >= 7 * 28  # none of them was starved
    assert busy.sent >= 0.9 * (600 * 5 - idle)


def test_two_busy_workers_get_about_the_same() -> None:
    job = Job(5, Net(0.05), rpm=300, in_flight=60)
    first, second = job.worker(), job.worker()
    first.keeps_wanting(0.03, lambda: 1)
    job.world.run(30)
    second.keeps_wanting(0.03, lambda: 1)
    job.world.run(200)
    before = first.sent, second.sent
    job.world.run(500)
    one, other = first.sent - before[0], second.sent - before[1]
    assert 0.5 <= one / other <= 2


def test_one_who_comes_late_gets_slots_of_those_who_have_them_all() -> None:
    job = Job(6, Net(0.02), in_flight=40)
    greedy, late = job.worker(), job.worker()
    greedy.wants(*[1] * 5000)
    job.world.run(10)
    assert greedy.in_flight == 40
    late.wants(*[1] * 5000)
    job.world.run(25)
    assert (greedy.in_flight, late.in_flight) == (20, 20)


def test_request_that_wants_a_lot_is_not_passed_by_small_ones_for_ever() -> None:
    job = Job(7, Net(0.02), tpm=1000)
    for _ in range(3):
        job.worker().keeps_wanting(0.1, lambda: 10)
    large = job.worker()
    large.wants(900)
    job.world.run(100)
    assert large.sent == 1


def test_several_that_want_a_lot_do_not_keep_it_from_each_other() -> None:
    job = Job(8, Net(0.02), tpm=1000)
    workers = [job.worker() for _ in range(4)]
    for worker in workers:
        worker.wants(800, 800)
    job.world.run(9 * 62)
    assert [worker.sent for worker in workers] == [2, 2, 2, 2]
    assert job.tokens <= 1000


def test_request_for_more_than_the_limit_goes_alone() -> None:
    job = Job(9, Net(0.02), tpm=1000)
    small, huge = job.worker(), job.worker()
    small.wants(*[10] * 30)
    job.world.run(20)
    huge.wants(5000)
    job.world.run(60)
    assert (small.sent, huge.sent) == (30, 0)
    job.world.run(90)
    assert (small.sent, huge.sent) == (30, 1)


# -------------------------------------------------------------------------------------------- death


def test_slots_of_a_dead_worker_come_back_when_its_lease_ends() -> None:
    job = Job(10, in_flight=10)
    dead, other = job.worker(latency=(1000, 1000)), job.worker(latency=(1000, 1000))
    dead.wants(*[1] * 10)
    job.world.run(1)
    assert dead.in_flight == 10
    dead.dies()
    other.wants(*[1] * 10)
    job.world.run(LEASE_SECONDS - 0.5)
    assert other.in_flight == 0
    job.world.run(2 * LEASE_SECONDS)
    assert other.in_flight == 10


def test_slots_of_one_that_is_known_to_be_dead_come_back_at_once() -> None:
    leases = Leases("h", rpm=10, in_flight=4)
    leases.lease("w", 0, Renewal("h", 1, want=Amounts(4, 0, 4)))
    leases.end("w", 1)
    leases.end("nobody", 1)
    lease = leases.lease("x", 2, Renewal("h", 1, want=Amounts(50, 0, 50), least=Amounts(4, 0, 4)))
    assert lease.slots == 4
    assert lease.requests == 4  # of the ten; what the dead one had counts
    more = leases.lease("x", 61.9, Renewal("h", 2, want=Amounts(50), least=Amounts(10)))
    assert more.requests == 0
    more = leases.lease("x", 62, Renewal("h", 3, want=Amounts(50), least=Amounts(10)))
    assert more.requests == 10


def test_what_a_dead_worker_may_have_spent_counts_for_a_minute_after_its_lease() -> None:
    job = Job(11, rpm=10)
    dead, other = job.worker(), job.worker()
    dead.wants(*[1] * 10)
    job.world.run(5)
    dead.dies()
    other.wants(*[1] * 10)
    job.world.run(60)
    assert (dead.sent, other.sent) == (10, 0)
    job.world.run(5 + COUNTED + 15)
    assert other.sent == 10


def test_worker_that_hears_nothing_starts_nothing_more() -> None:
    job = Job(12, rpm=6000)
    worker = job.worker()
    worker.keeps_wanting(0.1, lambda: 1)
    job.world.run(10)
    job.lose_holder(1000)
    job.world.run(10 + LEASE_SECONDS)
    before = worker.sent
    job.world.run(40)
    assert worker.sent == before


def test_worker_that_was_thought_dead_is_taken_back() -> None:
    leases = Leases("h", rpm=100)
    said = Amounts(requests=90)
    leases.lease("w", 0, Renewal("h", 1, used=said))
    other = leases.lease("x", 20, Renewal("h", 1, want=Amounts(50), least=Amounts(50)))
    assert other.requests == 0  # of the one that is gone, 90 count
    leases.lease("w", 21, Renewal("h", 2, used=Amounts(requests=10)))
    other = leases.lease("x", 22, Renewal("h", 2, want=Amounts(50), least=Amounts(50)))
    assert other.requests == 50


# --------------------------------------------------------------------------------------- the holder


def test_new_holder_gives_out_what_workers_bring_and_after_a_minute_all() -> None:
    job = Job(13, Net(0.02), rpm=600)
    for _ in range(3):
        job.worker().keeps_wanting(0.01, lambda: 1)
    job.world.run(200)
    job.lose_holder(1.0)
    job.world.run(324)
    assert job.requests <= 600
    assert (
        job.sent_between(202, 324) >= 0.9 * 1200
    )  # all three went on: nothing was lost with the holder


def test_new_holder_gives_nothing_to_those_who_bring_nothing() -> None:
    job = Job(14, rpm=100)
    job.lose_holder(0.0)
    job.world.run(1)
    worker = job.worker()
    worker.wants(*[1] * 10)
    job.world.run(60)
    assert worker.sent == 0
    job.world.run(COUNTED + 4)
    assert worker.sent == 10


def test_renewal_that_was_meant_for_a_dead_holder_tells_its_successor_nothing() -> None:
    leases = Leases("new", rpm=100, took_over=0.0)
    old = Renewal("old", 7, used=Amounts(80), kept=Amounts(20), want=Amounts(5))
    assert leases.lease("w", 1, old) == Lease("new", 7)
    assert leases.workers == 0
    lease = leases.lease("w", 2, Renewal("new", 8, used=Amounts(30), want=Amounts(40)))
    assert lease.requests == 0


def test_same_renewal_gets_the_same_lease() -> None:
    leases = Leases("h", rpm=60)
    renewal = Renewal("h", 3, want=Amounts(1), least=Amounts(1))
    assert leases.lease("w", 0, renewal) == leases.lease("w", 0.5, renewal)
    older = Renewal("h", 2, want=Amounts(1), least=Amounts(1))
    assert leases.lease("w", 1, older).number == 3  # which the worker does not heed


def test_lease_that_was_overtaken_is_not_heeded() -> None:
    leasehold = Leasehold([], lambda: None)
    assert not leasehold.renewed(Lease("h", 1), 0)  # not asked for
    first = leasehold.renewal(0, 1, 0)
    assert not leasehold.renewed(Lease("h", first.number), 0)  # now it knows whom it asks
    leasehold.renewal(1, 1, 0)
    leasehold.renewal(2, 1, 0)
    assert not leasehold.renewed(Lease("h", 2, 5.0, None, None, 5.0), 2)
    assert leasehold.renewed(Lease("h", 3, 5.0, None, None, 5.0), 2)
    assert leasehold.wait(6.9, _ask()) == 0
    assert leasehold.wait(7.0, _ask()) > 0  # since it asked at 2


def test_job_without_limits_is_not_limited() -> None:
    job = Job(15, Net(0.02))
    worker = job.worker()
    worker.wants(*[1] * 1000)
    job.world.run(1)
    assert worker.sent == 1000
    assert worker.leasehold.slots is None
    said = worker.leasehold.renewal(1, 0, 0)
    assert said.used == Amounts()  # nothing is remembered that nobody counts


def _ask() -> Ask:
    return Ask(None, partial(_size, 1))


# ------------------------------------------------------------------------------------------- pauses


def _lanes() -> Iterator[Lane]:
    yield from Server(Endpoint(URL, api_key=["k1", "k2"])).lanes


def test_pause_that_one_was_told_is_kept_by_all() -> None:
    job = Job(16, Net(0.02), rpm=60_000)
    workers = [job.worker() for _ in range(4)]
    job.world.run(5)
    hold = workers[0].lane.take(job.world.now, _ask())
    workers[0].lane.limited(hold, job.world.now, 20.0)
    job.world.run(6.5)
    for worker in workers:
        assert worker.lane.paused(6.5) == pytest.approx(18.5, abs=0.1)
    job.world.run(24.9)
    assert all(worker.lane.paused(24.9) > 0 for worker in workers)
    job.world.run(25.2)  # and it does not go round for ever
    assert all(worker.lane.paused(25.2) == 0 for worker in workers)


def test_pause_holds_for_its_key_only() -> None:
    leases = Leases("h")
    lanes, others = list(_lanes()), list(_lanes())
    told, hears = Leasehold(lanes, lambda: None), Leasehold(others, lambda: None)
    for name, leasehold in (("told", told), ("hears", hears)):
        leasehold.renewed(leases.lease(name, 0, leasehold.renewal(0, 0, 0)), 0)
    lanes[1].limited(lanes[1].take(1, _ask()), 1, 9.0)
    told.renewed(leases.lease("told", 1, told.renewal(1, 0, 0)), 1)
    hears.renewed(leases.lease("hears", 2, hears.renewal(2, 0, 0)), 2)
    assert [lane.paused(2) for lane in others] == [0.0, 8.0]


def test_pause_of_a_lane_that_is_not_there_is_passed_over() -> None:
    leasehold = Leasehold([], lambda: None)
    leasehold.renewed(Lease("h", leasehold.renewal(0, 0, 0).number), 0)
    number = leasehold.renewal(0, 0, 0).number
    assert leasehold.renewed(Lease("h", number, seconds=5.0, pauses={3: 5.0}), 0)


# ---------------------------------------------------------------------------------------- estimates


def test_what_a_request_has_cost_replaces_its_estimate_in_the_lease() -> None:
    leases = Leases("h", tpm=1000)
    lane = Server(Endpoint(URL)).lanes[0]
    leasehold = Leasehold([lane], lambda: None)
    leasehold.renewed(leases.lease("w", 0, leasehold.renewal(0, 0, 0)), 0)
    ask = Ask(None, lambda: (600, 50.0))
    assert leasehold.wait(0, ask) > 0
    leasehold.renewed(leases.lease("w", 0, leasehold.renewal(0, 1, 0)), 0)
    assert leasehold.wait(0, ask) == 0
    hold = Hold(lane, 0)
    leasehold.take(0, ask, hold)
    assert leasehold.renewal(1, 0, 1).used.tokens == 700  # with the room for its error
    lane.cost(hold, 120)
    assert leasehold.renewal(2, 0, 0).used.tokens == 120
