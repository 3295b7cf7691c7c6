"""Requests, a line and servers that count, in simulated time: a heap of what happens when. Nothing sleeps.

The line is that of `client.line` without asyncio: one head decides, by `choose`; a place given back or one timer gives it
another look. The servers are models of what providers do, and count exactly when a request arrives.
"""

import random
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import NamedTuple

from hypothesis import HealthCheck, settings

from asyncchat.errors import RateLimit, RateLimitError
from asyncchat.policy.balance import choose, note
from asyncchat.policy.endpoint import Endpoint
from asyncchat.policy.estimate import TokenEstimate
from asyncchat.policy.lane import Ask, Hold, Lane, Server
from asyncchat.policy.retry import RetryPolicy

MINUTE = 60.0
LONGEST_WAY = 0.8  # seconds that a request is on its way, at most
NOTHING: dict[str, RateLimit] = {}


def law(examples: int) -> settings:
    """Settings of a law: the same examples in each run."""
    return settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


class World:
    """What happens when."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.random = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def after(self, seconds: float, event: Callable[[], None]) -> None:
        heappush(self._events, (self.now + seconds, next(self._numbers), event))

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, event = heappop(self._events)
            event()
        self.now = until


# ---------------------------------------------------------------------------------------------- servers


class Arrival(NamedTuple):
    at: float
    tokens: int
    is_good: bool


class Reply(NamedTuple):
    """What a server says to a request: that it is good, or that it is refused and for how long."""

    is_good: bool
    retry_after: float | None = None
    reports: dict[str, RateLimit] = NOTHING


class Counter:
    """A server that bears everything; the others differ in what they admit and say."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []

    def arrives(self, now: float, tokens: int) -> Reply:
        reply = self.judge(now, tokens)
        self.arrivals.append(Arrival(now, tokens, reply.is_good))
        return reply

    def judge(self, now: float, tokens: int) -> Reply:
        return Reply(is_good=True)

    # What a test asks.

    @property
    def refused(self) -> int:
        return sum(not arrival.is_good for arrival in self.arrivals)

    def refused_share(self, since: float = -1.0) -> float:
        arrivals = [arrival for arrival in self.arrivals if arrival.at > since]
        return sum(not arrival.is_good for arrival in arrivals) / len(arrivals)

    def requests(self, since: float, until: float) -> int:
        return sum(one.is_good and since < one.at <= until for one in self.arrivals)

    def tokens(self, since: float, until: float) -> int:
        return sum(one.tokens for one in self.arrivals if one.is_good and since < one.at <= until)


def most_in_a_minute(amounts: Iterable[tuple[float, float]]) -> float:
    """Return the largest sum over any time of 60 s, its begin not included."""
    window: deque[tuple[float, float]] = deque()
    most = total = 0.0
    for at, amount in sorted(amounts):
        window.append((at, amount))
        total += amount
        while window[0][0] <= at - MINUTE:
            total -= window.popleft()[1]
        most = max(most, total)
    return most


class SlidingWindow(Counter):
    """At most so many requests and tokens in any minute; it refuses more, and asks for the wait that is enough."""

    def __init__(
        self,
        requests: float = float("inf"),
        tokens: float = float("inf"),
        *,
        says_wait: bool = True,
    ) -> None:
        super().__init__()
        self._limits = requests, tokens
        self._says_wait = says_wait
        self._log: deque[tuple[float, int]] = deque()
        self._sums = [0, 0]

    def judge(self, now: float, tokens: int) -> Reply:
        log, sums = self._log, self._sums
        while log and log[0][0] <= now - MINUTE:
            sums[0] -= 1
            sums[1] -= log.popleft()[1]
        if sums[0] + 1 > self._limits[0] or sums[1] + tokens > self._limits[1]:
            wait = log[0][0] + MINUTE - now if log and self._says_wait else None
            return Reply(is_good=False, retry_after=wait)
        log.append((now, tokens))
        sums[0] += 1
        sums[1] += tokens
        return Reply(is_good=True)


class Bucket(Counter):
    """OpenAI's way: a limit that comes back continuously, told in `x-ratelimit-*`; `reset` is when it is full again."""

    def __init__(
        self,
        limit: int,
        kind: str = "requests",
        *,
        says_wait: bool = True,
        seconds: float = MINUTE,
    ) -> None:
        super().__init__()
        self._limit = limit
        self._kind = kind
        self._says_wait = says_wait
        self._rate = limit / seconds
        self._left = float(limit)
        self._at = 0.0

    def judge(self, now: float, tokens: int) -> Reply:
        amount = 1 if self._kind == "requests" else tokens
        self._left = min(self._left + (now - self._at) * self._rate, self._limit)
        self._at = now
        is_good = amount <= self._left
        if is_good:
            self._left -= amount
        reset = round((self._limit - self._left) / self._rate, 3)
        reports = {self._kind: RateLimit(self._limit, int(self._left), reset)}
        if is_good:
            return Reply(is_good=True, reports=reports)
        # Without Retry-After the client takes the reset of what is used up, if anything is.
        missing = (amount - self._left) / self._rate
        wait = missing if self._says_wait else reset if not int(self._left) else None
        return Reply(is_good=False, retry_after=wait, reports=reports)


class FixedWindow(Counter):
    """A limit that comes back all at once, at the end of its minute; `reset` is when that is."""

    def __init__(self, limit: int, kind: str = "requests", *, begins: float = 0.0) -> None:
        super().__init__()
        self._limit = limit
        self._kind = kind
        self._ends = begins + MINUTE
        self._left = limit

    def judge(self, now: float, tokens: int) -> Reply:
        amount = 1 if self._kind == "requests" else tokens
        while now >= self._ends:
            self._ends += MINUTE
            self._left = self._limit
        is_good = amount <= self._left
        if is_good:
            self._left -= amount
        reset = self._ends - now
        reports = {self._kind: RateLimit(self._limit, self._left, reset)}
        return Reply(is_good, None if is_good else reset, reports)


# ----------------------------------------------------------------------------------------------- client


class Request:
    """One request; `waits` says until when it pauses between attempts."""

    def __init__(
        self, number: int, ask: Ask, prompt: int, completion: int, characters: int
    ) -> None:
        self.number = number
        self.ask = ask
        self.prompt = prompt
        self.completion = completion
        self.characters = characters
        self.attempts = 0

    @property
    def tokens(self) -> int:
        return self.prompt + self.completion


class Sent(NamedTuple):
    at: float
    lane: Lane
    paused: float  # seconds that its lane should still have waited


Sizes = Callable[[random.Random], tuple[int, int]]


def one_token(_: random.Random) -> tuple[int, int]:
    return 1, 1


class Client:
    """A line before the lanes of some endpoints, each lane with the server that counts its key."""

    def __init__(
        self,
        world: World,
        endpoints: Sequence[tuple[Endpoint, Sequence[Counter]]],
        *,
        in_flight: int = 1000,
        latency: tuple[float, float] = (0.2, 2.0),
        adaptive: bool = False,
        estimate: TokenEstimate | None = None,
    ) -> None:
        self.world = world
        self.servers = [
            Server(endpoint, adaptive=adaptive, most=in_flight) for endpoint, _ in endpoints
        ]
        self.lanes = [lane for server in self.servers for lane in server.lanes]
        counters = [counter for _, counters in endpoints for counter in counters]
        self.counters = dict(zip(self.lanes, counters, strict=True))
        self.estimate = estimate or TokenEstimate()
        self.sent: list[Sent] = []
        self.finished = 0
        self._retry = RetryPolicy(max_retries=10_000)
        self._latency = latency
        self._places = in_flight
        self._new: deque[Request] = deque()
        self._back: list[Request] = []
        self._numbers = count()
        self._timer = 0
        self._strikes = float("inf")

    @property
    def waiting(self) -> int:
        return len(self._new) + len(self._back)

    def add(self, requests: int, sizes: Sizes = one_token, bound: int | None = None) -> None:
        """Let requests stand in line, of such a size; four characters of a prompt are a token, more or less."""
        rand = self.world.random
        for _ in range(requests):
            prompt, completion = sizes(rand)
            characters = round(prompt * 4 * rand.uniform(0.9, 1.1))
            ask = Ask(None, self._measure(characters, bound))
            self._new.append(Request(next(self._numbers), ask, prompt, completion, characters))
        self.look()

    def _measure(self, characters: int, bound: int | None) -> Callable[[], tuple[int, float]]:
        return lambda: self.estimate.of(characters, bound)

    def look(self) -> None:
        soonest: float | None = None
        while self.waiting and self._places > 0:
            request = self._back[0] if self._back else self._new[0]
            decision = choose(self.lanes, self.world.now, request.ask)
            if not isinstance(decision, Lane):
                soonest = decision
                break
            if self._back:
                del self._back[0]
            else:
                self._new.popleft()
            self._send(request, decision)
        if soonest is not None and self.world.now + soonest < self._strikes:
            self._timer += 1
            self._strikes = self.world.now + soonest
            self.world.after(soonest, self._striking(self._timer))

    def _striking(self, number: int) -> Callable[[], None]:
        def strike() -> None:
            if number == self._timer:
                self._strikes = float("inf")
                self.look()

        return strike

    def _send(self, request: Request, lane: Lane) -> None:
        world = self.world
        hold = lane.take(world.now, request.ask)
        self._places -= 1
        request.attempts += 1
        self.sent.append(Sent(world.now, lane, lane.paused(world.now)))

        def arrive() -> None:
            reply = self.counters[lane].arrives(world.now, request.tokens)
            if reply.is_good:
                begins, ends = sorted(world.random.uniform(*self._latency) for _ in range(2))
                world.after(begins, lambda: lane.began(hold, world.now, reply.reports))
                world.after(ends, lambda: self._finish(request, lane, hold))
            else:
                way = world.random.uniform(0, LONGEST_WAY)
                world.after(way, lambda: self._refuse(request, lane, hold, reply))

        world.after(world.random.uniform(0, LONGEST_WAY), arrive)

    def _finish(self, request: Request, lane: Lane, hold: Hold) -> None:
        if request.ask.is_measured:
            lane.cost(hold, request.tokens)
            self.estimate.learn(request.characters, request.prompt, request.completion)
        self.finished += 1
        self._leave(lane, hold)

    def _refuse(self, request: Request, lane: Lane, hold: Hold, reply: Reply) -> None:
        error = RateLimitError("slow", retry_after=reply.retry_after)
        error.rate_limits = reply.reports
        rand = self.world.random.random()
        wait = self._retry.delay(error, request.attempts, rand)
        note(
            hold,
            request.ask,
            error,
            self.world.now,
            rand=rand,
            wait=wait,
            longest=self._retry.max_retry_after,
        )
        self._leave(lane, hold)

        def come_back() -> None:
            insort(self._back, request, key=lambda one: one.number)
            self.look()

        self.world.after(wait or 0.0, come_back)

    def _leave(self, lane: Lane, hold: Hold) -> None:
        self._places += 1
        lane.leave(hold)
        self.look()


def refuse_key(lane: Lane, now: float, seconds: float | None = None) -> None:
    """One request to a lane, whose key is not accepted."""
    hold = lane.take(now, Ask(None, lambda: (1, 0.0)))
    lane.refused_key(hold, now, seconds)
    lane.leave(hold)
