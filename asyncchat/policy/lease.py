"""Limits that many workers share: one holder has them, and each worker borrows what it needs for about a second.

Not here: a clock (`now` is a parameter), sending: how messages travel is nobody's business but the transport's. Clocks are never
compared, since a worker counts the seconds of its lease from when it asked, which was before the holder counted.
Law: whoever dies, and however messages are late, lost or doubled, no minute has more than the limit. What a worker may have
spent counts until that is a minute old, and a holder that replaces another gives out only what workers bring with them.
"""

from collections.abc import Callable, Sequence
from math import inf

import msgspec

from asyncchat.policy.lane import Ask, Hold, Lane
from asyncchat.policy.window import WINDOW_SECONDS, Window

__all__ = ["LEASE_SECONDS", "Amounts", "Lease", "Leasehold", "Leases", "Renewal"]

LEASE_SECONDS = 5.0
"""How long a worker may go on that hears nothing: it asks about once a second."""

_RENEWAL_SECONDS = 1.0
_SOONEST_SECONDS = 0.1
_CHUNK_SECONDS = 1.0  # of a limit, given out at once
_FEWEST = 16.0  # starts that one who is held up asks for at least
_ROUNDING = 1e-6
_TOLD_SECONDS = 0.05  # a pause that ends so soon after the one that was told is the same
_TOKENS, _SLOTS = 1, 2  # places in amounts


class Amounts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Requests and tokens a minute, and requests at once."""

    requests: float = 0.0
    tokens: float = 0.0
    slots: float = 0.0

    @property
    def each(self) -> tuple[float, float, float]:
        """All three."""
        return self.requests, self.tokens, self.slots


class Renewal(msgspec.Struct, array_like=True, frozen=True):
    """What a worker says when it asks.

    Args:
        holder: whom it believes to be asking; another one answers only with its own name.
        number: rises with each; one that is overtaken on its way is not heeded.
        used: in its last minute, and in flight.
        kept: what it still has and may spend before the answer comes; it has given up the rest.
        want: how much more it could use.
        least: without so much more it can start nothing; 0 where it can.
        pauses: seconds for which a server told it to wait, by lane: only what it was told by the server itself.
    """

    holder: str
    number: int
    used: Amounts = Amounts()
    kept: Amounts = Amounts()
    want: Amounts = Amounts()
    least: Amounts = Amounts()
    pauses: dict[int, float] = {}


class Lease(msgspec.Struct, array_like=True, frozen=True):
    """What a worker may do for some seconds from when it asked. None is no bound.

    Args:
        holder: who gives it.
        number: of the renewal that this answers.
        requests: that it may start, with those it had kept.
        tokens: that these may cost.
        slots: how many it may have in flight.
        seconds: how long.
        pauses: seconds for which nobody asks, by lane.
    """

    holder: str
    number: int
    requests: float | None = None
    tokens: float | None = None
    slots: float | None = None
    seconds: float = 0.0
    pauses: dict[int, float] = {}


class _Tenant:
    """A worker, as its holder knows it: `counted` is what it may have used by now."""

    __slots__ = ("counted", "is_busy", "lacks_slots", "lease", "number", "until")

    def __init__(self) -> None:
        self.number = 0
        self.counted = [0.0, 0.0, 0.0]
        self.is_busy = self.lacks_slots = False
        self.until = 0.0
        self.lease = Lease("", 0)


class Leases:
    """The limits of a job, and who has borrowed what of them.

    Those who are denied stand in line: what comes back goes to them first. Of what is free a worker gets its share among
    those that want some, up to a second's worth; so one that is busy soon has what others leave.

    Args:
        holder: a name that no other holder ever had.
        rpm: requests a minute, of all workers together.
        tpm: tokens a minute.
        in_flight: requests at once. Those of a worker that is cut off, and not dead, come on top.
        took_over: when this one took the place of another that died, or None for the first.
    """

    def __init__(
        self,
        holder: str,
        *,
        rpm: float | None = None,
        tpm: float | None = None,
        in_flight: float | None = None,
        took_over: float | None = None,
    ) -> None:
        self.holder = holder
        self._limits = [inf if one is None else float(one) for one in (rpm, tpm, in_flight)]
        self._alive: dict[str, _Tenant] = {}  # who asked longest ago comes first
        self._gone: dict[str, _Tenant] = {}  # may have spent until `until` less a minute
        self._counted = [0.0, 0.0, 0.0]
        self._busy = self._lacking = 0  # how many want something, and how many want slots in vain
        self._denied: dict[str, tuple[float, float, float]] = {}  # in the order of their coming
        self._pauses: dict[int, float] = {}
        lost = -inf if took_over is None else took_over + LEASE_SECONDS
        self._blind_until = [lost + WINDOW_SECONDS, lost + WINDOW_SECONDS, lost]
        self._brought: dict[str, tuple[float, float, float]] = {}

    @property
    def workers(self) -> int:
        """How many workers have a lease."""
        return len(self._alive)

    def lease(self, worker: str, now: float, renewal: Renewal) -> Lease:
        """Return what a worker may do. The same renewal gets the same answer, however often it comes.

        Args:
            worker: a name for one life of it.
            now: the time.
            renewal: what it says.
        """
        self._forget(now)
        if renewal.holder != self.holder:
            return Lease(self.holder, renewal.number)
        tenant = self._alive.get(worker)
        known = tenant or self._gone.get(worker)
        if known is not None and renewal.number <= known.number:
            return known.lease
        if tenant is None:
            tenant = _Tenant()
            self._drop(self._gone.pop(worker, None))
        else:
            self._drop(self._alive.pop(worker))
        tenant.number = renewal.number
        tenant.until = now + LEASE_SECONDS
        has = [
            used + kept for used, kept in zip(renewal.used.each, renewal.kept.each, strict=True)
        ]
        if now < self._blind_until[0]:
            self._brought.setdefault(worker, (has[0], has[1], has[2]))
        tenant.counted = has
        self._add(tenant)
        self._alive[worker] = tenant
        self._mark(tenant, is_busy=any(renewal.want.each), lacks_slots=False)
        given = self._give(worker, now, renewal)
        for kind, amount in enumerate(given):
            self._counted[kind] += amount
            tenant.counted[kind] += amount
        lacks_slots = renewal.want.slots > given[_SLOTS]
        self._mark(tenant, is_busy=tenant.is_busy, lacks_slots=lacks_slots)
        tenant.lease = self._write(tenant, now, renewal, given)
        return tenant.lease

    def end(self, worker: str, now: float) -> None:
        """Note that a worker has died, where that is certain: its slots come back before its lease ends."""
        self._forget(now)
        if worker in self._alive:
            self._alive[worker].until = now
            self._bury(worker)

    # ------------------------------------------------------------------------------------ counting

    def _forget(self, now: float) -> None:
        while self._alive:
            worker, tenant = next(iter(self._alive.items()))
            if tenant.until > now:
                break
            self._bury(worker)
        while self._gone:
            worker, tenant = next(iter(self._gone.items()))
            if tenant.until > now:
                break
            self._drop(self._gone.pop(worker))

    def _bury(self, worker: str) -> None:
        """Take back the slots of one that starts nothing any more; what it may have spent counts for a minute."""
        tenant = self._gone[worker] = self._alive.pop(worker)
        self._mark(tenant, is_busy=False, lacks_slots=False)
        self._denied.pop(worker, None)
        self._counted[_SLOTS] -= tenant.counted[_SLOTS]
        tenant.counted[_SLOTS] = 0.0
        tenant.until += WINDOW_SECONDS

    def _add(self, tenant: _Tenant) -> None:
        for kind, amount in enumerate(tenant.counted):
            self._counted[kind] += amount

    def _drop(self, tenant: _Tenant | None) -> None:
        if tenant is not None:
            for kind, amount in enumerate(tenant.counted):
                self._counted[kind] -= amount

    def _mark(self, tenant: _Tenant, *, is_busy: bool, lacks_slots: bool) -> None:
        self._busy += is_busy - tenant.is_busy
        self._lacking += lacks_slots - tenant.lacks_slots
        tenant.is_busy, tenant.lacks_slots = is_busy, lacks_slots

    def _cap(self, kind: int, now: float) -> float:
        """Return what may be given out in all: as long as a dead holder's workers may be about, what is known of them."""
        limit = self._limits[kind]
        if now >= self._blind_until[kind] or limit == inf:
            return limit
        return min(limit, sum(brought[kind] for brought in self._brought.values()))

    # -------------------------------------------------------------------------------------- giving

    def _give(self, worker: str, now: float, renewal: Renewal) -> tuple[float, float, float]:
        """Return what a worker gets on top of what it has: what it needs for one request at least, or nothing."""
        least, has = renewal.least.each, self._alive[worker].counted
        ahead = [0.0, 0.0, 0.0]
        for other, wanted in self._denied.items():
            if other == worker:
                break
            for kind, amount in enumerate(wanted):
                ahead[kind] += amount
        given = [0.0, 0.0, 0.0]
        for kind, want in enumerate(renewal.want.each):
            cap = self._cap(kind, now)
            room = cap - self._counted[kind] - ahead[kind]
            # More than the whole limit goes alone; else it would wait for ever.
            is_alone = cap == self._limits[kind] < least[kind] and room >= cap - _ROUNDING
            if least[kind] > room + _ROUNDING and not is_alone:
                if any(least):
                    self._denied[worker] = least  # where it stands, if it stood there
                else:
                    self._denied.pop(worker, None)
                return 0.0, 0.0, 0.0
            share = room / max(self._busy, 1)
            if kind < _SLOTS:
                share = min(share, max(self._limits[kind] * _CHUNK_SECONDS / 60, 1.0))
            else:
                share = max(share, self._fair_slots() - has[kind])
            if kind != _TOKENS and share != inf:
                share = float(int(share))
            given[kind] = max(least[kind], min(want, share, max(room, 0.0)), 0.0)
        self._denied.pop(worker, None)
        return given[0], given[1], given[2]

    def _fair_slots(self) -> float:
        limit = self._limits[_SLOTS]
        return limit if limit == inf else max(limit // max(self._busy, 1), 1.0)

    def _write(
        self, tenant: _Tenant, now: float, renewal: Renewal, given: tuple[float, float, float]
    ) -> Lease:
        kept = renewal.kept
        slots = tenant.counted[_SLOTS]
        if self._lacking > tenant.lacks_slots:
            # What one has above its share comes back as its requests end, for those that lack some.
            slots = min(slots, self._fair_slots())
        for lane, seconds in renewal.pauses.items():
            self._pauses[lane] = max(self._pauses.get(lane, 0.0), now + seconds)
        requests, tokens, at_once = (
            None if limit == inf else amount
            for limit, amount in zip(
                self._limits,
                (kept.requests + given[0], kept.tokens + given[1], slots),
                strict=True,
            )
        )
        return Lease(
            self.holder,
            renewal.number,
            requests,
            tokens,
            at_once,
            LEASE_SECONDS,
            {lane: until - now for lane, until in self._pauses.items() if until > now},
        )


class Leasehold:
    """What one worker has borrowed: its line asks here whether one more may start.

    Args:
        lanes: of its client, in an order that is the same for all workers.
        on_short: see there.
    """

    __slots__ = (
        "_asked_at",
        "_denied",
        "_has",
        "_holder",
        "_lanes",
        "_left",
        "_needs",
        "_number",
        "_requests",
        "_spent",
        "_tokens",
        "_told",
        "ends",
        "on_short",
        "slots",
    )

    def __init__(self, lanes: Sequence[Lane], on_short: Callable[[], None]) -> None:
        self.slots: float | None = 0.0
        """How many may be in flight; None is no bound."""
        self.on_short = on_short
        """Called when a request cannot start for want of budget: asking the holder now would help."""
        self.ends = -inf
        """When nothing more may start, unless the lease is renewed."""
        self._lanes = tuple(lanes)
        self._holder = ""
        self._number = 0
        self._asked_at = -inf
        self._requests, self._tokens = Window(inf), Window(inf)
        self._left: tuple[float | None, float | None] = (0.0, 0.0)
        self._spent = (0.0, 0.0)  # since the last renewal
        self._has = 0.0  # of everything, at the last renewal
        self._denied = 0  # renewals in a row that brought nothing
        self._needs: float | None = None  # tokens of the first that could not start
        self._told: dict[int, float] = {}

    # ------------------------------------------------------------------------------------- the line

    def wait(self, now: float, ask: Ask) -> float:
        """Return 0 where a request may start now, else the seconds after which to ask again: a renewal ends that sooner."""
        requests, tokens = self._left
        if now >= self.ends:
            self._lacks(0.0 if tokens is None else self._cost(now, ask))
        elif tokens is not None and (cost := self._cost(now, ask)) > tokens + _ROUNDING:
            self._lacks(cost)
        elif requests is not None and requests < 1:
            self._lacks(0.0 if tokens is None else self._cost(now, ask))
        else:
            return 0.0
        return LEASE_SECONDS

    def take(self, now: float, ask: Ask, hold: Hold) -> None:
        """Spend a request and its tokens."""
        requests, tokens = self._left
        cost = 0.0 if tokens is None else self._cost(now, ask)
        if requests is not None:  # else each of the last minute would be remembered for nothing
            hold.requests += ((self._requests, self._requests.take(now)),)
        if tokens is not None:
            hold.tokens += ((self._tokens, self._tokens.take(now, *ask.size)),)
            tokens -= cost
        self._left = None if requests is None else requests - 1, tokens
        self._spent = self._spent[0] + 1, self._spent[1] + cost

    def _cost(self, now: float, ask: Ask) -> float:
        """Return by how much a request adds to what counts as used, the room for its error included."""
        amount, deviation = ask.size
        before = self._tokens.used(now)
        return self._tokens.used(now, deviation) + amount - before

    def _lacks(self, tokens: float) -> None:
        if self._needs is None:
            self._needs = tokens
            self.on_short()

    # ----------------------------------------------------------------------------------- the holder

    def due(self, *, is_short: bool) -> float:
        """Return when to ask next; where somebody is short, that is sooner, but for those who are denied again and again."""
        pause = _SOONEST_SECONDS * 2.0 ** min(self._denied, 9) if is_short else _RENEWAL_SECONDS
        return self._asked_at + min(pause, _RENEWAL_SECONDS)

    def renewal(self, now: float, waiting: int, in_flight: int) -> Renewal:
        """Return what to say to the holder, and give up what is not kept.

        Args:
            now: the time.
            waiting: requests that wait for a place.
            in_flight: requests that have one.
        """
        self._number += 1
        self._asked_at = now
        used = Amounts(self._requests.used(now), self._tokens.used(now), in_flight)
        spent, spent_tokens = self._spent
        self._spent = 0.0, 0.0
        most = inf if self.slots is None else self.slots
        is_full = waiting > 0 and in_flight >= most
        is_stuck = is_full and not in_flight
        # Who is held up by a lease shows only the first of those that would come.
        rush = max(waiting + spent, in_flight, _FEWEST)
        starts = rush if self._needs is not None or is_full else spent
        size = spent_tokens / spent if spent else (self._needs or 0.0)
        slots = 0.0 if self.slots is None else max(min(self.slots - in_flight, starts), 0.0)
        least, kept = Amounts(), Amounts()
        if self._needs is not None or is_stuck:
            # What is too little for the first in line is of more use to others.
            least = Amounts(1.0, self._needs or size, float(is_stuck))
            kept = Amounts(0.0, 0.0, slots)
        elif now < self.ends:
            requests, tokens = self._left
            kept = Amounts(
                0.0 if requests is None else min(requests, starts),
                0.0 if tokens is None else min(tokens, starts * size),
                slots,
            )
        self._left = (
            None if self._left[0] is None else kept.requests,
            None if self._left[1] is None else kept.tokens,
        )
        self.slots = None if self.slots is None else in_flight + kept.slots
        self._has = kept.requests + kept.tokens + (self.slots or 0.0)
        want = (starts, max(starts * size, least.tokens), starts)
        return Renewal(
            self._holder,
            self._number,
            used,
            kept,
            Amounts(*(max(one - has, 0.0) for one, has in zip(want, kept.each, strict=True))),
            least,
            self._pauses(now),
        )

    def renewed(self, lease: Lease, now: float) -> bool:
        """Take a lease over; return False where it is of no use and the holder should be asked anew."""
        if lease.number != self._number:
            return False
        if lease.holder != self._holder:
            self._holder = lease.holder
            return False
        got = (lease.requests or 0.0) + (lease.tokens or 0.0) + (lease.slots or 0.0)
        self._denied = 0 if got > self._has else self._denied + 1
        requests, tokens = self._spent
        self._left = (
            None if lease.requests is None else lease.requests - requests,
            None if lease.tokens is None else lease.tokens - tokens,
        )
        self.slots = lease.slots
        self.ends = self._asked_at + lease.seconds
        self._needs = None
        for lane, seconds in lease.pauses.items():
            if 0 <= lane < len(self._lanes):
                self._told[lane] = now + seconds
                self._lanes[lane].pause(now, seconds)
        return True

    def _pauses(self, now: float) -> dict[int, float]:
        found: dict[int, float] = {}
        for number, lane in enumerate(self._lanes):
            seconds = lane.paused(now)
            if seconds and now + seconds > self._told.get(number, -inf) + _TOLD_SECONDS:
                found[number] = seconds
        return found
