"""The line: requests that wait for their turn, and the places that they get.

Not here: sending, retrying. Only the head of a line decides, without awaiting, and what it costs is the same however many
stand behind it. No task watches: a place given back, or one timer, gives the head another look.
"""

import asyncio
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable, Sequence

from asyncchat.client.forks import forget_in_child, keep_for_parent
from asyncchat.client.reply import late, now
from asyncchat.errors import LineFull, PoolClosed
from asyncchat.policy.balance import choose, eligible
from asyncchat.policy.lane import Ask, Bounds, Hold, Lane, Server
from asyncchat.policy.lease import Leasehold
from asyncchat.policy.limits import Limits

__all__ = ["Bound", "Line"]

Bound = tuple[str, float | None, float | None]
"""Which field of `Timeout` bounds the waiting, its length, and the seconds left of it."""


class _Waiter:
    """A request that waits."""

    __slots__ = ("ask", "number", "turn")

    def __init__(self, number: int, ask: Ask) -> None:
        self.number = number
        self.ask = ask
        self.turn: asyncio.Future[Hold] = asyncio.get_running_loop().create_future()

    @property
    def is_gone(self) -> bool:
        """Whether it waits no more: cancelled in this very turn of the loop, or its loop has ended."""
        return self.turn.done() or self.turn.get_loop().is_closed()


class _Queue:
    """Who waits for the same lanes: first those that come back from an attempt, then the others as they came."""

    __slots__ = ("_back", "_new", "lanes")

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self.lanes = lanes
        self._new: OrderedDict[_Waiter, None] = OrderedDict()
        self._back: list[_Waiter] = []  # few; in the order of their numbers

    def __len__(self) -> int:
        return len(self._new) + len(self._back)

    @property
    def head(self) -> _Waiter | None:
        """Who is first."""
        return self._back[0] if self._back else next(iter(self._new), None)

    def is_free(self, *, is_back: bool) -> bool:
        """Whether nobody would stand before a request that comes now."""
        return not self._back and (is_back or not self._new)

    def add(self, waiter: _Waiter, *, is_back: bool) -> None:
        """Let somebody wait."""
        if is_back:
            insort(self._back, waiter, key=lambda one: one.number)
        else:
            self._new[waiter] = None

    def empty(self) -> list[_Waiter]:
        """Let everybody go, untold, and return them."""
        gone = [*self._back, *self._new]
        self._back, self._new = [], OrderedDict()
        return gone

    def remove(self, waiter: _Waiter) -> bool:
        """Let somebody go; return whether they stood here."""
        if waiter in self._new:
            del self._new[waiter]
            return True
        if waiter in self._back:
            self._back.remove(waiter)
            return True
        return False


class _ForAll(float):
    """Seconds for which nobody may start, since the client's own limits are used up."""


class Line:
    """Who waits for a place, and who has one. One line for each set of lanes that a request can want."""

    def __init__(self, servers: Sequence[Server], limits: Limits) -> None:
        self._limits = limits
        self._bounds = Bounds(limits.rpm, limits.tpm) if limits.rpm or limits.tpm else None
        self._leasehold: Leasehold | None = None
        lanes = [lane for server in servers for lane in server.lanes]
        sets: dict[tuple[Lane, ...], _Queue] = {}

        def queue_for(model: str | None) -> _Queue:
            wanted = tuple(eligible(lanes, model))
            return sets.setdefault(wanted, _Queue(wanted))

        models = (None, *(lane.endpoint.model for lane in lanes))
        self._queues = {model: queue_for(model) for model in models}
        self._other = queue_for("\0")  # for a name that no endpoint has
        self._all = tuple(sets.values())
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle] | None = None
        self._epoch = 0
        self._is_held = False  # whether the head of the line waits for the client's own limits
        self.in_flight = 0
        self.waiting = 0
        self.clock: Callable[[], float] = now
        forget_in_child(self)

    def forget(self) -> None:
        """Leave to the parent who is in flight and who waits: this is a child."""
        keep_for_parent((self._timer, [queue.empty() for queue in self._all]))
        self._timer, self._is_held = None, False
        self._epoch += 1  # places from before are the parent's to give back
        self.in_flight = self.waiting = 0
        for lane in {lane for queue in self._all for lane in queue.lanes}:
            lane.in_flight = 0

    def obey(self, leasehold: Leasehold | None) -> None:
        """Start from now on only what is leased, within the client's own limits; or, with None, all within these."""
        self._leasehold = leasehold
        self.look()

    def lanes(self, model: str | None) -> Sequence[Lane]:
        """Return where a request for a model can go."""
        return self._queues.get(model, self._other).lanes

    def waiting_for(self, server: Server) -> int:
        """Return how many wait that this server could serve."""
        return sum(
            len(queue) for queue in self._all if any(lane.server is server for lane in queue.lanes)
        )

    async def enter(
        self,
        number: int,
        ask: Ask,
        *,
        is_back: bool,
        bound: Callable[[], "Bound"],
    ) -> Hold:
        """Wait for a place.

        Args:
            number: of the request.
            ask: what it wants.
            is_back: whether it had a place before: it stands before those that had none, in the order of numbers.
            bound: how long it may wait; asked if it has to.

        Raises:
            APITimeoutError: no place in time.
            LineFull: too many wait already.
            PoolClosed: the client was closed.
        Cancellation: safe; a cancelled waiter leaves no trace.
        """
        queue = self._queues.get(ask.model, self._other)
        wait: float | None = None
        if queue.is_free(is_back=is_back) and not self._is_held:
            given = self._give(queue, ask)
            if isinstance(given, Hold):
                return given
            wait = given
        most = self._limits.waiting
        if most is not None and self.waiting >= most and not is_back:
            raise LineFull(
                f"{self.waiting} requests wait in line already",
                hint="Limits(waiting=...) sets how many may.",
            )
        waiter = _Waiter(number, ask)
        queue.add(waiter, is_back=is_back)
        self._is_held = self._is_held or isinstance(wait, _ForAll)
        self.waiting += 1
        self._look_again_in(wait)
        name, length, left = bound()
        patience = None
        if left is not None:
            loop = asyncio.get_running_loop()
            patience = loop.call_later(left, self._turn_away, queue, waiter, name, length)
        try:
            return await waiter.turn
        except BaseException:
            self._left(queue, waiter)
            raise
        finally:
            if patience is not None:
                patience.cancel()

    def take_now(self, ask: Ask) -> Hold | None:
        """Return a place where the request has not been, if there is one at once that nobody waits for."""
        queue = self._queues.get(ask.model, self._other)
        is_free = queue.is_free(is_back=False) and not self._is_held
        given = self._give(queue, ask, again=False) if is_free else None
        return given if isinstance(given, Hold) else None

    def leave(self, hold: Hold) -> None:
        """Give a place back; who is first in line gets another look."""
        if hold.epoch != self._epoch:
            return
        self.in_flight -= 1
        hold.lane.leave(hold)
        if self.waiting:
            self.look()

    def close(self) -> None:
        """End everybody's waiting."""
        for queue in self._all:
            while (waiter := queue.head) is not None:
                self._remove(queue, waiter)
                self._hand(waiter, PoolClosed("the client was closed while the request waited"))
        self._stop_timer()

    # ------------------------------------------------------------------------------------ decisions

    def look(self) -> None:
        """Give out every place that can be given now, in the order of the line."""
        soonest: float | None = None
        self._is_held = False
        queues = list(self._all)
        while queues:
            waiter, queue = _first(queues)
            if waiter is None:
                break
            if waiter.is_gone:
                self._remove(queue, waiter)
                continue
            given = self._give(queue, waiter.ask)
            if isinstance(given, Hold):
                self._remove(queue, waiter)
                self._hand(waiter, given)
                continue
            if given is not None and (soonest is None or given < soonest):
                soonest = given
            self._is_held = isinstance(given, _ForAll)
            if self._is_held or self._is_full:
                break  # nobody behind may pass
            queues.remove(queue)  # others may want another lane
        self._stop_timer()
        self._look_again_in(soonest)

    @property
    def _is_full(self) -> bool:
        most: float | None = self._limits.in_flight
        if self._leasehold is not None and self._leasehold.slots is not None:
            most = self._leasehold.slots if most is None else min(most, self._leasehold.slots)
        return most is not None and self.in_flight >= most

    def _give(self, queue: _Queue, ask: Ask, *, again: bool = True) -> Hold | float | None:
        """Return a place, or the seconds after which to ask again, or None: when another ends.

        Without `again`, a place where the request has been already is none.
        """
        if self._is_full:
            if self._leasehold is not None:
                self._leasehold.on_short()
            return None
        at = self.clock()
        if self._bounds is not None:
            wait = self._bounds.wait(at, ask)
            if wait:
                return _ForAll(wait)
        if self._leasehold is not None:
            wait = self._leasehold.wait(at, ask)
            if wait:
                return _ForAll(wait)
        lane = choose(queue.lanes, at, ask)
        if not isinstance(lane, Lane):
            return lane
        if not again and lane in ask.tried:
            return None
        hold = lane.take(at, ask)
        hold.epoch = self._epoch
        if self._bounds is not None:
            self._bounds.take(at, ask, hold)
        if self._leasehold is not None:
            self._leasehold.take(at, ask, hold)
        self.in_flight += 1
        return hold

    # -------------------------------------------------------------------------------------- details

    def _turn_away(self, queue: _Queue, waiter: _Waiter, name: str, length: float | None) -> None:
        """Somebody has waited for too long."""
        if not waiter.turn.done():
            hint = (
                "It waited in line all the time: Limits and Endpoint set how much may run at once."
            )
            where = " or ".join(dict.fromkeys(lane.endpoint.url for lane in queue.lanes))
            waiter.turn.set_exception(late(name, length, where, hint))

    def _hand(self, waiter: _Waiter, given: Hold | PoolClosed) -> None:
        """Give somebody a place, or the end; in their own loop, which may be that of another thread."""
        loop = waiter.turn.get_loop()
        if loop is _running_loop():
            self._arrive(waiter, given)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(self._arrive, waiter, given)
        elif isinstance(given, Hold):
            self._take_back(given)

    def _arrive(self, waiter: _Waiter, given: Hold | PoolClosed) -> None:
        if not waiter.turn.done():
            if isinstance(given, Hold):
                waiter.turn.set_result(given)
            else:
                waiter.turn.set_exception(given)
        elif isinstance(given, Hold):
            self._take_back(given)

    def _take_back(self, hold: Hold) -> None:
        """Nobody is there any more for a place that was given."""
        hold.lane.give_back(hold)
        self.leave(hold)

    def _left(self, queue: _Queue, waiter: _Waiter) -> None:
        """Somebody gave up waiting: leave no trace, and pass on what was given in that very moment."""
        if self._remove(queue, waiter):
            self.look()  # the next one may want less than this one waited for
        elif not waiter.turn.cancelled() and waiter.turn.exception() is None:
            self._take_back(waiter.turn.result())

    def _remove(self, queue: _Queue, waiter: _Waiter) -> bool:
        stood = queue.remove(waiter)
        self.waiting -= stood
        return stood

    def _look_again_in(self, seconds: float | None) -> None:
        """Set the timer, unless it strikes sooner anyway."""
        loop = _running_loop()
        if seconds is None or loop is None:
            return
        at = loop.time() + seconds
        if self._timer is not None:
            owner, timer = self._timer
            if owner is loop and timer.when() <= at and not timer.cancelled():
                return
            timer.cancel()
        self._timer = loop, loop.call_at(at, self._strike)

    def _strike(self) -> None:
        self._timer = None
        self.look()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()
            self._timer = None


def _first(queues: Sequence[_Queue]) -> tuple[_Waiter | None, _Queue]:
    """Return who has waited longest, and where."""
    if len(queues) == 1:
        return queues[0].head, queues[0]
    heads = [(head.number, head, queue) for queue in queues if (head := queue.head) is not None]
    if not heads:
        return None, queues[0]
    _, first, queue = min(heads, key=lambda one: one[0])
    return first, queue


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:  # a stream can be closed without one
        return None
