"""Requests in flight: the line, the attempts, the retries.

Not here: bytes, events; a task or a cancel scope that outlives one call. Decisions about the line are made without
awaiting and cost the same however long it is.
"""

import asyncio
import random
import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

import anyio
import msgspec

from asyncchat.client.reply import Reply, late, now
from asyncchat.client.session import Session
from asyncchat.errors import APIStatusError, AsyncChatError, PoolClosed
from asyncchat.policy.limits import Limits
from asyncchat.policy.retry import RetryBudget, RetryPolicy
from asyncchat.policy.timeout import Timeout
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.request import ChatRequest
from asyncchat.protocol.response import Timing

__all__ = ["Call", "Place", "SessionPool", "Statistics"]

_T = TypeVar("_T")


class Statistics(msgspec.Struct, frozen=True):
    """What a client is doing and has done, since it was made.

    `lenient_decodes` counts frames that only the forgiving rules could read: a server that raises it costs CPU.
    """

    in_flight: int = 0
    waiting: int = 0
    finished: int = 0
    attempts: int = 0
    lenient_decodes: int = 0


class Call(msgspec.Struct, frozen=True):
    """How one request is to be sent."""

    timeout: Timeout
    retry: RetryPolicy
    headers: Mapping[str, str] | None = None
    query: Mapping[str, str] | None = None


class Place:
    """A place among the requests in flight: held from the line's end until the answer's."""

    __slots__ = ("_pool", "attempts", "endpoint", "is_held", "started")

    def __init__(self, pool: "SessionPool", endpoint: str, started: float) -> None:
        self._pool = pool
        self.started = started
        self.attempts = 0
        self.endpoint = endpoint
        self.is_held = True

    def timing(self, first: float | None = None, itl: float | None = None) -> Timing:
        """Return how long the answer took up to now; `first` is when it began to say something."""
        ttft = None if first is None else first - self.started
        return Timing(ttft, itl, now() - self.started, self.attempts, self.endpoint)

    def release(self, reader: AnswerReader | None, *, finished: bool = True) -> None:
        """Give the place to the next in line. Idempotent; awaits nothing."""
        if self.is_held:
            self.is_held = False
            self._pool.leave(reader, finished=finished)


class SessionPool:
    """One server, many requests."""

    def __init__(self, session: Session, limits: Limits) -> None:
        self.session = session
        self._most = limits.in_flight
        self._in_flight = 0
        self._line: OrderedDict[asyncio.Future[None], None] = OrderedDict()
        self._pauses: set[asyncio.Timeout] = set()
        self._finished = 0
        self._attempts = 0
        self._lenient = 0
        self._budget = RetryBudget()
        self.sleep: Callable[[float], Awaitable[None]] = anyio.sleep
        self.rand: Callable[[], float] = random.random

    def __repr__(self) -> str:
        most = "∞" if self._most is None else self._most
        waiting = f", {len(self._line)} waiting" if self._line else ""
        return (
            f"SessionPool({self.session.base_url!r}, {self._in_flight}/{most} in flight{waiting})"
        )

    def statistics(self) -> Statistics:
        """Return the counters as they stand."""
        return Statistics(
            self._in_flight, len(self._line), self._finished, self._attempts, self._lenient
        )

    # ------------------------------------------------------------------------------------ the line

    async def _enter(self, wait: float | None) -> None:
        """Wait in line for a place. First come, first served; a cancelled waiter leaves no trace."""
        if self._most is None or (self._in_flight < self._most and not self._line):
            self._in_flight += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._line[turn] = None
        try:
            async with asyncio.timeout(wait):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.leave(None)  # the place was given in the moment that we gave up
            else:
                self._line.pop(turn, None)
            raise

    def leave(self, reader: AnswerReader | None, *, finished: bool = False) -> None:
        """Give a place back; it passes on to who is first in line."""
        if reader is not None:
            self._finished += finished
            self._lenient += reader.lenient_decodes
        while self._line:
            turn, _ = self._line.popitem(last=False)
            if not turn.done():
                turn.set_result(None)  # the place passes on
                return
        self._in_flight -= 1

    async def close(self) -> None:
        """End everything: who waits or reads gets `PoolClosed`. Idempotent."""
        line, self._line = self._line, OrderedDict()
        for turn in line:
            if not turn.done():
                turn.set_exception(PoolClosed("the client was closed while the request waited"))
        for pause in list(self._pauses):
            if not pause.expired():
                pause.reschedule(0)
        await self.session.close()

    # ------------------------------------------------------------------------------------ attempts

    async def run(
        self,
        request: ChatRequest,
        call: Call,
        take: Callable[[Reply, Place], Awaitable[_T]],
        *,
        stream: bool,
    ) -> _T:
        """Send a request until an attempt gives something, and return what `take` makes of its reply.

        `take` reads up to the first event; what fails before that is tried again, as `call.retry` says. The place is
        released if this raises; otherwise it is for `take` to release it, now or when the answer ends.
        """
        if self.session.is_closed:
            raise PoolClosed("the client is closed", hint="Make a new AsyncChat.")
        timeout, started = call.timeout, now()
        deadline = None if timeout.total is None else started + timeout.total
        try:
            await self._enter(timeout.total)
        except TimeoutError:
            raise _waited_in_vain(timeout.total, self) from None
        place = Place(self, self.session.base_url, started)
        key = secrets.token_hex(
            16
        )  # one for all attempts: a server that knows the header answers once
        self._budget.earn()
        free = 0
        try:
            while True:
                place.attempts += 1
                self._attempts += 1
                asked = stream and self.session.asks_usage and not request.sets_stream_options
                try:
                    return await self._attempt(
                        request, call, take, place, deadline, key, stream=stream
                    )
                except AsyncChatError as error:
                    if asked and self._refused_usage(error):
                        self.session.asks_usage = False
                        free += 1
                        continue
                    left = None if deadline is None else deadline - now()
                    wait = call.retry.delay(error, place.attempts - free, self.rand(), left)
                    if wait is None or not self._budget.spend(error):
                        raise
                await self._pause(wait)
        except BaseException:
            place.release(None)
            raise

    async def _attempt(
        self,
        request: ChatRequest,
        call: Call,
        take: Callable[[Reply, Place], Awaitable[_T]],
        place: Place,
        deadline: float | None,
        idempotency_key: str,
        *,
        stream: bool,
    ) -> _T:
        reply = await self.session.post(
            request,
            stream=stream,
            timeout=call.timeout,
            deadline=deadline,
            idempotency_key=idempotency_key,
            headers=call.headers,
            query=call.query,
        )
        try:
            return await take(reply, place)
        except BaseException as error:
            reply.close()
            if isinstance(error, AsyncChatError):
                reply.signed(error)
            raise

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

    @staticmethod
    def _refused_usage(error: AsyncChatError) -> bool:
        """Whether the server refused to be asked for usage: it is asked without, now and from now on."""
        refused = isinstance(error, APIStatusError) and error.status_code in (400, 404, 422)
        text = f"{error} {getattr(error, 'param', '')}"
        return refused and ("stream_options" in text or "include_usage" in text)


def _waited_in_vain(seconds: float | None, pool: SessionPool) -> AsyncChatError:
    hint = "It waited in line all the time: Limits(in_flight=...) sets how many run at once."
    return late("total", seconds, pool.session.base_url, hint)
