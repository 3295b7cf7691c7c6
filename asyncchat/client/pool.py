"""Requests in flight: attempts, retries, failover, hedging.

Not here: the line (`line`), bytes, events; a task or a cancel scope that outlives one call. What a failure means and where
a request goes next is decided in `policy`; this carries it out.
"""

import asyncio
import os
import random
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import count
from typing import Generic, Literal, TypeVar

import anyio
import msgspec

from asyncchat.client.line import Bound, Line
from asyncchat.client.observe import Observers
from asyncchat.client.reply import Reply, now
from asyncchat.client.session import Session
from asyncchat.errors import APIStatusError, AsyncChatError, PoolClosed, RateLimit
from asyncchat.policy.balance import NOT_BEGUN, elsewhere, note
from asyncchat.policy.breaker import State
from asyncchat.policy.estimate import TokenEstimate
from asyncchat.policy.lane import Ask, Hold, Lane, Server
from asyncchat.policy.limits import Limits
from asyncchat.policy.retry import RetryPolicy, rate_limits
from asyncchat.policy.timeout import Timeout
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.encoded import Request
from asyncchat.protocol.facts import (
    AnswerStarted,
    AttemptDropped,
    AttemptFailed,
    AttemptStarted,
    RequestFailed,
    RequestFinished,
    RequestLeft,
    RequestStarted,
)
from asyncchat.protocol.response import Completion, Timing

__all__ = ["Call", "EndpointStatistics", "Place", "SessionPool", "Statistics"]

_T = TypeVar("_T")

_NUMBERS = count(1)
_MOST_MODELS = 64
_LATENCIES = 200  # the newest, of which the 95th percentile is taken
_FEWEST_LATENCIES = 20


class EndpointStatistics(msgspec.Struct, frozen=True):
    """What one endpoint is doing and has done, over all its keys.

    `waiting` counts the requests in line that it could serve; `most` is how many requests at once it may have now (None is
    no bound); `paused` is the seconds until it is asked again, where it said to wait; `rates` is what it last said of its
    limits (`requests`, `tokens`), from the key with the least left.
    """

    url: str
    model: str | None = None
    state: State = "closed"
    in_flight: int = 0
    waiting: int = 0
    sent: int = 0
    failed: int = 0
    limited: int = 0
    most: int | None = None
    paused: float = 0.0
    rates: dict[str, RateLimit] = {}


class Statistics(msgspec.Struct, frozen=True):
    """What a client is doing and has done, since it was made.

    `lenient_decodes` counts frames that only the forgiving rules could read: a server that raises it costs CPU.
    """

    in_flight: int = 0
    waiting: int = 0
    finished: int = 0
    attempts: int = 0
    lenient_decodes: int = 0
    endpoints: tuple[EndpointStatistics, ...] = ()


class Call(msgspec.Struct, frozen=True, gc=False):
    """How one request is to be sent.

    `key` is its idempotency key, else one is drawn. `is_patient` says that it waits in line as long as that takes: its total
    bound begins when it is sent. `sent` is called when its waiting is over.
    """

    timeout: Timeout
    retry: RetryPolicy
    headers: Mapping[str, str] | None = None
    query: Mapping[str, str] | None = None
    key: str | None = None
    is_patient: bool = False
    sent: Callable[[], object] | None = None


class _Estimates:
    """What requests are likely to cost: for each model what it has been seen to."""

    __slots__ = ("_of_models",)

    def __init__(self) -> None:
        self._of_models: dict[str | None, TokenEstimate] = {}

    def for_model(self, model: str | None) -> TokenEstimate:
        """Return the estimate for one model."""
        known = self._of_models.get(model)
        if known is None:
            if len(self._of_models) >= _MOST_MODELS:
                self._of_models.clear()
            known = self._of_models[model] = TokenEstimate()
        return known

    def of(self, request: Request) -> tuple[int, float]:
        """Return what a request is likely to cost, in tokens, and by how much that may be wrong."""
        estimate = self.for_model(request.model)
        return estimate.of(request.characters, request.most_tokens, request.n)


class _Ticket(Ask):
    """One request on its way through its attempts."""

    __slots__ = (
        "_estimates",
        "attempts",
        "call",
        "deadline",
        "free",
        "is_told",
        "key",
        "number",
        "partial",
        "request",
        "resumed",
        "started",
        "stream",
        "wait",
    )

    def __init__(
        self,
        request: Request,
        call: Call,
        estimates: _Estimates,
        *,
        stream: bool,
        is_told: bool,
    ) -> None:
        super().__init__(request.model)
        self._estimates = estimates
        self.number = next(_NUMBERS)
        self.request = request
        self.call = call
        self.stream = stream
        self.is_told = is_told  # whether anybody wants to hear more of it than its failures
        self.started = now()
        total = None if call.is_patient else call.timeout.total
        self.deadline = None if total is None else self.started + total
        # One for all attempts: a server that knows the header answers once.
        self.key = call.key or os.urandom(16).hex()
        self.attempts = 0
        self.free = 0  # attempts that do not count, since no server has begun to work on them
        self.resumed = 0
        self.partial: Completion | None = None  # of the answer that broke off
        self.wait: float | None = None  # what was made of the last failure

    def take_up(self, before: "_Ticket") -> None:
        """Go on where an answer broke off: the same request to its caller, another one to the server."""
        self.number, self.started, self.deadline = before.number, before.started, before.deadline
        self.attempts = self.free = before.attempts
        self.resumed, self.partial = before.resumed + 1, before.partial
        self.tried = before.tried

    def measure(self) -> tuple[int, float]:
        return self._estimates.of(self.request)

    def bound_in_line(self) -> Bound:
        """Return the bound that ends its waiting in line first."""
        timeout = self.call.timeout
        left = None if self.deadline is None else self.deadline - now()
        if timeout.line is not None and (left is None or timeout.line < left):
            return "line", timeout.line, timeout.line
        return "total", timeout.total, left

    def starts(self) -> None:
        """Begin the total bound of one that has waited patiently, and let its caller know."""
        if self.call.is_patient and self.deadline is None and self.call.timeout.total is not None:
            self.deadline = now() + self.call.timeout.total
        if self.call.sent is not None:
            self.call.sent()


class Place:
    """A place among the requests in flight: held from the line's end until the answer's."""

    __slots__ = (
        "_has_begun",
        "_is_over",
        "_pool",
        "attempt",
        "hold",
        "is_held",
        "sent_at",
        "ticket",
    )

    def __init__(self, pool: "SessionPool", hold: Hold, ticket: _Ticket) -> None:
        self._pool = pool
        self.hold = hold
        self.ticket = ticket
        ticket.attempts += 1
        self.attempt = ticket.attempts
        self.sent_at = now()
        self.is_held = True
        self._has_begun = self._is_over = False

    @property
    def endpoint(self) -> str:
        """The server."""
        return self.hold.lane.endpoint.url

    def timing(self, first: float | None = None, itl: float | None = None) -> Timing:
        """Return how long the answer took up to now; `first` is when it began to say something."""
        ticket = self.ticket
        ttft = None if first is None else first - ticket.started
        total = now() - ticket.started
        waited = self.sent_at - ticket.started
        return Timing(ttft, itl, total, ticket.attempts, self.endpoint, ticket.resumed, waited)

    def began(self, reply: Reply) -> None:
        """The answer has begun well: its first event is there, or all of a plain one."""
        if not self._has_begun:
            self._has_begun = True
            reply.on_failed = self.release
            self._pool.began(self, reply)

    def finished(self, reader: AnswerReader | None, answer: Completion) -> None:
        """The answer is whole: give the place to the next in line."""
        if not self._is_over:
            self._is_over = True
            self._pool.finished(self, reader, answer)
            self.release()

    def failed(
        self, error: AsyncChatError, reader: AnswerReader, *, goes_on: bool = False
    ) -> None:
        """The answer broke off after it had begun. `goes_on` says that it will be taken up again. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._pool.broke_off(self, error, reader, goes_on=goes_on)
            self.release()

    def left(self, reader: AnswerReader | None = None) -> None:
        """Its caller wants no more of it. Idempotent; awaits nothing."""
        if not self._is_over:
            self._is_over = True
            self._pool.left(self, reader)
            self.release()

    def dropped(self) -> None:
        """Another attempt at the same request was quicker. Idempotent."""
        if not self._is_over:
            self._is_over = True
            self._pool.dropped(self)
            self.release()

    def release(self) -> None:
        """Give the place back, and tell nobody. Idempotent."""
        if self.is_held:
            self.is_held = False
            self._pool.line.leave(self.hold)


class SessionPool:
    """Some servers, many requests."""

    def __init__(
        self,
        sessions: Sequence[Session],
        limits: Limits,
        observers: Observers | None = None,
    ) -> None:
        self.sessions = tuple(sessions)
        self.servers = tuple(
            Server(session.endpoint, adaptive=limits.adaptive, most=limits.in_flight)
            for session in sessions
        )
        self.line = Line(self.servers, limits)
        self._session_of = dict(zip(self.servers, self.sessions, strict=True))
        self.is_closed = False
        """Whether it can send no more."""
        self._limits = limits
        self._observers = observers or Observers()
        self._pauses: set[asyncio.Timeout] = set()
        self._finished = 0
        self._attempts = 0
        self._lenient = 0
        self._estimates = _Estimates()
        self._latencies: tuple[deque[float], deque[float]] = (
            deque(maxlen=_LATENCIES),
            deque(maxlen=_LATENCIES),
        )
        self.sleep: Callable[[float], Awaitable[None]] = anyio.sleep
        self.rand: Callable[[], float] = random.random

    def __repr__(self) -> str:
        most = "∞" if self._limits.in_flight is None else self._limits.in_flight
        waiting = f", {self.line.waiting} waiting" if self.line.waiting else ""
        at = self.line.clock()
        servers = [
            repr(server.endpoint.url)
            + ("" if (state := _state(server, at)) == "closed" else f" ({state})")
            for server in self.servers
        ]
        return (
            f"SessionPool({', '.join(servers)}, {self.line.in_flight}/{most} in flight{waiting})"
        )

    def statistics(self) -> Statistics:
        """Return the counters as they stand."""
        return Statistics(
            self.line.in_flight,
            self.line.waiting,
            self._finished,
            self._attempts,
            self._lenient,
            tuple(self._about(server) for server in self.servers),
        )

    def _about(self, server: Server) -> EndpointStatistics:
        at, lanes = self.line.clock(), server.lanes
        most = [lane.most for lane in lanes]
        rates: dict[str, RateLimit] = {}
        for lane in lanes:
            for kind, report in lane.reports.items():
                known = rates.get(kind)
                if known is None or (report.remaining or 0) < (known.remaining or 0):
                    rates[kind] = report
        return EndpointStatistics(
            server.endpoint.url,
            server.endpoint.model,
            _state(server, at),
            sum(lane.in_flight for lane in lanes),
            self.line.waiting_for(server),
            server.sent,
            server.failed,
            server.limited,
            None if None in most else sum(one for one in most if one is not None),
            min(lane.paused(at) for lane in lanes),
            rates,
        )

    def adapt(self) -> None:
        """From now on find out how many requests at once each key of each endpoint bears."""
        for server in self.servers:
            server.adapt(self._limits.in_flight)

    async def close(self) -> None:
        """End everything: who waits or reads gets `PoolClosed`. Idempotent."""
        self.is_closed = True
        for session in self.sessions:
            session.is_closed = True
        self.line.close()
        for pause in list(self._pauses):
            if not pause.expired():
                pause.reschedule(0)
        for session in self.sessions:
            await session.close()

    # ------------------------------------------------------------------------------------ requests

    async def run(
        self,
        request: Request,
        call: Call,
        take: Callable[[Reply, Place], Awaitable[_T]],
        *,
        stream: bool,
        drop: Callable[[_T], None] | None = None,
        after: Place | None = None,
    ) -> _T:
        """Send a request until an attempt gives something, and return what `take` makes of its reply.

        `take` reads up to the first event and says so (`Place.began`); what fails before that is tried again, as
        `call.retry` says, or elsewhere. The place is released if this raises; otherwise whoever has it says how the
        answer ended.

        Args:
            request: what to send.
            call: how.
            take: what to do with a reply.
            stream: whether to ask for events.
            drop: what to do with a second answer to the same request, where two were asked for.
            after: the place of an answer that broke off, which this one takes up again: it shares that one's bounds.
        """
        ticket = _Ticket(
            request,
            call,
            self._estimates,
            stream=stream,
            is_told=self._observers.listen,
        )
        if after is not None:
            ticket.take_up(after.ticket)
        elif ticket.is_told:
            self._observers.tell(RequestStarted(ticket.number, request.model, stream))
        try:
            while True:
                self._check_open(ticket)
                hold = await self.line.enter(
                    ticket.number,
                    ticket,
                    is_back=ticket.attempts > 0,
                    bound=ticket.bound_in_line,
                )
                ticket.starts()
                place = Place(self, hold, ticket)
                delay = None if call.retry.hedge is None else self._hedge_delay(ticket)
                try:
                    if delay is None:
                        return await self._attempt(place, take)
                    return await self._hedged(place, take, drop, delay)
                except AsyncChatError:
                    if ticket.wait is None:
                        raise
                self._check_open(ticket)
                if ticket.wait:
                    await self._pause(ticket.wait)
        except AsyncChatError as error:
            if ticket.partial is not None:
                error.partial = ticket.partial
            self._observers.tell(RequestFailed(ticket.number, error, now() - ticket.started))
            raise
        except BaseException:
            if ticket.is_told:
                self._observers.tell(RequestLeft(ticket.number, now() - ticket.started))
            raise

    def _check_open(self, ticket: _Ticket) -> None:
        if self.is_closed:
            hint = "" if ticket.attempts else "Make a new AsyncChat."
            raise PoolClosed("the client is closed", hint=hint)

    async def _attempt(
        self,
        place: Place,
        take: Callable[[Reply, Place], Awaitable[_T]],
        *,
        is_hedge: bool = False,
    ) -> _T:
        self._attempts += 1
        ticket, hold = place.ticket, place.hold
        lane = hold.lane
        session = self._session_of[lane.server]
        if place.attempt == 1:
            lane.server.budget.earn()
        if ticket.is_told:
            waited = place.sent_at - ticket.started
            self._observers.tell(
                AttemptStarted(ticket.number, place.attempt, place.endpoint, waited, is_hedge)
            )
        asks_usage = (
            ticket.stream and session.asks_usage and not ticket.request.sets_stream_options
        )
        try:
            reply = await session.post(
                ticket.request,
                stream=ticket.stream,
                timeout=ticket.call.timeout,
                deadline=ticket.deadline,
                key=lane.key,
                idempotency_key=ticket.key,
                headers=ticket.call.headers,
                query=ticket.call.query,
            )
            try:
                return await take(reply, place)
            except BaseException as error:
                reply.close()
                if isinstance(error, AsyncChatError):
                    reply.signed(error)
                raise
        except AsyncChatError as error:
            if asks_usage and _refused_usage(error):
                session.asks_usage = False
                ticket.free += 1
                ticket.wait = 0.0
                lane.is_there(hold)
                place.release()
            else:
                self._judge(place, error)
            raise
        except BaseException:
            place.release()
            raise

    def _judge(self, place: Place, error: AsyncChatError) -> None:
        """Decide what follows a failure: `ticket.wait` seconds until the next attempt, or None for the end."""
        ticket, hold = place.ticket, place.hold
        ticket.wait = None
        if isinstance(error, PoolClosed) or self.is_closed:
            place.release()
            ticket.wait = None if isinstance(error, PoolClosed) else 0.0
            return
        rand, retry = self.rand(), ticket.call.retry
        left = None if ticket.deadline is None else ticket.deadline - now()
        attempts = ticket.attempts - ticket.free
        wait = retry.delay(error, attempts, rand, left)
        at, budget = self.line.clock(), hold.lane.server.budget
        longest = retry.max_retry_after
        found = note(hold, ticket, error, at, rand=rand, wait=wait, longest=longest)
        place.release()
        others: list[Lane] = []
        if found != "request" and (left is None or left > 0):
            others = elsewhere(self.line.lanes(ticket.model), at, ticket)
        if others and found in NOT_BEGUN:
            ticket.free += 1
            wait = 0.0
        elif others:
            # A server that has not failed lately is no part of an outage that retries could multiply.
            is_well = any(lane.server.breaker.is_well for lane in others)
            allowed = retry.allows(error, attempts) and (is_well or budget.spend(error))
            wait = 0.0 if allowed else None
        elif wait is not None and not budget.spend(error):
            wait = None
        ticket.wait = wait
        self._observers.tell(
            AttemptFailed(ticket.number, place.attempt, place.endpoint, error, found, wait)
        )

    async def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; closing the client ends it."""
        pause = asyncio.timeout(None)
        try:
            async with pause:
                self._pauses.add(pause)
                await self.sleep(seconds)
        except TimeoutError:
            if not pause.expired():
                raise
        finally:
            self._pauses.discard(pause)

    # ------------------------------------------------------------------------------------- hedging

    def _hedge_delay(self, ticket: _Ticket) -> float | None:
        """Return after how many seconds to ask elsewhere too, or None for not at all."""
        hedge = ticket.call.retry.hedge
        if hedge is None or ticket.resumed or len(self.servers) < 2:
            return None
        if hedge != "p95":
            return hedge
        latencies = self._latencies[ticket.stream]
        if len(latencies) < _FEWEST_LATENCIES:
            return None
        return sorted(latencies)[int(len(latencies) * 0.95)]

    async def _hedged(
        self,
        first: Place,
        take: Callable[[Reply, Place], Awaitable[_T]],
        drop: Callable[[_T], None] | None,
        delay: float,
    ) -> _T:
        """Make an attempt, and another one elsewhere if the first takes long. The first event wins."""
        race: _Race[_T] = _Race(drop)
        ticket, server = first.ticket, first.hold.lane.server

        async def run(place: Place, *, is_hedge: bool) -> None:
            try:
                value = await self._attempt(place, take, is_hedge=is_hedge)
                if race.winner is not None:  # in this very turn of the loop
                    place.dropped()
                race.won(place, value)
            except AsyncChatError as error:
                race.lost(error)
            except Exception as error:  # noqa: BLE001  raised below, where no group wraps it
                race.broke(error)
            except BaseException:
                if race.winner is not None:
                    place.dropped()
                raise
            finally:
                race.running -= 1
                if race.is_over:
                    group.cancel_scope.cancel()

        def enter(place: Place, *, is_hedge: bool) -> None:
            race.places.append(place)
            race.running += 1
            group.start_soon(lambda: run(place, is_hedge=is_hedge))

        try:
            async with anyio.create_task_group() as group:
                enter(first, is_hedge=False)
                await anyio.sleep(delay)
                ask = Ask(ticket.model, lambda: ticket.size)
                ask.tried = ticket.tried | {*server.lanes}
                hold = self.line.take_now(ask) if server.budget.has_one else None
                if hold is not None:
                    server.budget.spend_one()
                    enter(Place(self, hold, ticket), is_hedge=True)
        except BaseException:
            race.discard()
            raise
        finally:
            race.release()
        return race.result()

    # ---------------------------------------------------------------------------- what places tell

    def began(self, place: Place, reply: Reply) -> None:
        """An answer has begun well. For `Place`."""
        headers = reply.headers
        says = (
            "x-ratelimit-remaining-requests" in headers
            or "x-ratelimit-remaining-tokens" in headers
        )
        place.hold.lane.began(
            place.hold, self.line.clock(), rate_limits(headers) if says else None
        )
        seconds = now() - place.sent_at
        self._latencies[place.ticket.stream].append(seconds)
        if self.line.waiting:
            self.line.look()  # there may be more room than before
        ticket = place.ticket
        if ticket.is_told:
            self._observers.tell(
                AnswerStarted(ticket.number, place.attempt, place.endpoint, seconds)
            )

    def finished(self, place: Place, reader: AnswerReader | None, answer: Completion) -> None:
        """An answer is whole. For `Place`."""
        self._finished += 1
        place.hold.lane.finished()
        self._lenient += reader.lenient_decodes if reader is not None else 0
        ticket, usage = place.ticket, answer.usage
        if ticket.is_measured and usage is not None and usage.total_tokens:
            place.hold.lane.cost(place.hold, usage.total_tokens)
            self._estimates.for_model(ticket.model).learn(
                ticket.request.characters,
                usage.prompt_tokens or 0,
                usage.completion_tokens or 0,
                ticket.request.n,
            )
        if ticket.is_told:
            reasons = tuple(choice.finish_reason for choice in answer.choices)
            timing = answer.timing or place.timing()
            self._observers.tell(
                RequestFinished(
                    ticket.number, place.endpoint, timing, answer.model, answer.id, usage, reasons
                )
            )

    def broke_off(
        self,
        place: Place,
        error: AsyncChatError,
        reader: AnswerReader,
        *,
        goes_on: bool,
    ) -> None:
        """An answer broke off after its first event. For `Place`."""
        self._lenient += reader.lenient_decodes
        ticket, found = place.ticket, "request"
        if not isinstance(error, PoolClosed):
            longest = ticket.call.retry.max_retry_after
            at, rand = self.line.clock(), self.rand()
            found = note(
                place.hold,
                ticket,
                error,
                at,
                rand=rand,
                wait=None,
                longest=longest,
                is_cut=True,
            )
        if goes_on:
            ticket.partial = error.partial
            self._observers.tell(
                AttemptFailed(ticket.number, place.attempt, place.endpoint, error, found, 0.0)
            )
        else:
            self._observers.tell(RequestFailed(ticket.number, error, now() - ticket.started))

    def left(self, place: Place, reader: AnswerReader | None) -> None:
        """A caller wants no more. For `Place`."""
        self._lenient += reader.lenient_decodes if reader is not None else 0
        ticket = place.ticket
        if ticket.is_told:
            self._observers.tell(RequestLeft(ticket.number, now() - ticket.started))

    def dropped(self, place: Place) -> None:
        """An attempt was the slower one. For `Place`."""
        ticket = place.ticket
        if ticket.is_told:
            self._observers.tell(AttemptDropped(ticket.number, place.attempt, place.endpoint))


class _Race(Generic[_T]):
    """Two attempts at one request: the first good one counts, and an error only if there is no good one."""

    def __init__(self, drop: Callable[[_T], None] | None) -> None:
        self._drop = drop
        self._values: list[_T] = []
        self._error: BaseException | None = None
        self._is_broken = False
        self.places: list[Place] = []
        self.winner: Place | None = None
        self.running = 0

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to wait for."""
        return self.winner is not None or self._is_broken or not self.running

    def won(self, place: Place, value: _T) -> None:
        if self.winner is None:
            self.winner = place
            self._values.append(value)
        elif self._drop is not None:
            self._drop(value)

    def lost(self, error: AsyncChatError) -> None:
        self._error = error

    def broke(self, error: Exception) -> None:
        """Something that no other attempt would mend."""
        self._error, self._is_broken = error, True

    def discard(self) -> None:
        """Nobody wants the answer any more."""
        if self._drop is not None:
            for value in self._values:
                self._drop(value)

    def release(self) -> None:
        """Give back the places of attempts that may not even have begun."""
        for place in self.places:
            if place is not self.winner:
                place.release()

    def result(self) -> _T:
        if self._values:
            return self._values[0]
        error, self._error = self._error, None
        assert error is not None
        try:
            raise error
        finally:
            del error  # else its own traceback keeps it alive


def _state(server: Server, at: float) -> State:
    states: set[Literal["closed", "open", "half-open"]] = {lane.state(at) for lane in server.lanes}
    return "closed" if "closed" in states else "half-open" if "half-open" in states else "open"


def _refused_usage(error: AsyncChatError) -> bool:
    """Whether the server refused to be asked for usage: it is asked without, now and from now on."""
    refused = isinstance(error, APIStatusError) and error.status_code in (400, 404, 422)
    text = f"{error} {getattr(error, 'param', '')}"
    return refused and ("stream_options" in text or "include_usage" in text)
