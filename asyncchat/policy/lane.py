"""One key of one server as it is doing: what it bears, what it has said, and whether a request may start now.

Not here: a clock, which lane is the best (`balance`), sending. Providers count by key, so each lane has limits of its
own; what breaks is the server, so the lanes of one endpoint share a breaker.
"""

from collections.abc import Callable
from math import log2

from asyncchat.errors import RateLimit
from asyncchat.policy.adaptive import AdaptiveLimit
from asyncchat.policy.breaker import Breaker, State
from asyncchat.policy.endpoint import Endpoint, Key
from asyncchat.policy.retry import RetryBudget
from asyncchat.policy.window import Allowance, Taken, Window

__all__ = ["Ask", "Bounds", "Hold", "Lane", "Server"]

_OUT_SECONDS = (
    60.0  # how long a key that was refused, or a model that is not there, is left alone at first
)
_LONGEST_OUT_SECONDS = 900.0
_MOST_MODELS = 64  # remembered as not being there
_FORBIDDEN = 3
_START_SECONDS = 0.2  # after a pause the number of requests started doubles in this time
_STARTS = 1024  # ... until so many have been; then all may go
_HOPELESS_SECONDS = 70.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 8.0  # where a server refuses without saying for how long


_NOWHERE: frozenset["Lane"] = frozenset()


class Ask:
    """What a request wants of a lane. Who has no `measure` to give says how it is measured in a class of its own."""

    __slots__ = ("_measure", "_size", "model", "tried")

    def __init__(
        self, model: str | None, measure: Callable[[], tuple[int, float]] | None = None
    ) -> None:
        self.model = model
        self._measure = measure
        self._size: tuple[int, float] | None = None
        self.tried: frozenset[Lane] = _NOWHERE
        """Where it has failed: it goes there again only if there is nowhere else."""

    @property
    def is_measured(self) -> bool:
        """Whether anybody had to know what it may cost."""
        return self._size is not None

    @property
    def size(self) -> tuple[int, float]:
        """What it may cost, in tokens, and by how much that may be wrong: estimated when first asked for."""
        if self._size is None:
            self._size = self.measure()
        return self._size

    def measure(self) -> tuple[int, float]:
        """Estimate what it may cost."""
        assert self._measure is not None
        return self._measure()


class Bounds:
    """Requests and tokens a minute, as they were configured."""

    __slots__ = ("requests", "tokens")

    def __init__(self, rpm: int | None, tpm: int | None) -> None:
        self.requests = None if rpm is None else Window(rpm)
        self.tokens = None if tpm is None else Window(tpm)

    def wait(self, now: float, ask: Ask) -> float:
        """Return 0 where a request may start now, else the seconds after which to ask again."""
        requests = 0.0 if self.requests is None else self.requests.wait(now)
        tokens = 0.0 if self.tokens is None else self.tokens.wait(now, *ask.size)
        return max(requests, tokens)

    def take(self, now: float, ask: Ask, hold: "Hold") -> None:
        """Take a request and its tokens."""
        if self.requests is not None:
            hold.requests += ((self.requests, self.requests.take(now)),)
        if self.tokens is not None:
            hold.tokens += ((self.tokens, self.tokens.take(now, *ask.size)),)


class Hold:
    """A place on a lane, and what the attempt that has it took of the limits."""

    __slots__ = (
        "epoch",
        "is_probe",
        "lane",
        "requests",
        "requests_before",
        "reserved",
        "sent_at",
        "tokens",
        "tokens_before",
    )

    def __init__(self, lane: "Lane", sent_at: float) -> None:
        self.lane = lane
        self.sent_at = sent_at
        self.epoch = 0  # of the line that gave it
        self.is_probe = False
        self.requests: tuple[tuple[Window, Taken], ...] = ()
        self.tokens: tuple[tuple[Window, Taken], ...] = ()
        self.reserved: int | None = None  # of what the server said to be left
        self.requests_before = self.tokens_before = 0.0  # all that was ever taken, with this


class Server:
    """One endpoint as it is doing.

    Args:
        endpoint: as it was described.
        adaptive: whether its lanes find out how many requests at once they bear.
        most: ... up to this number, where the endpoint sets none.
    """

    __slots__ = ("breaker", "budget", "endpoint", "failed", "lanes", "limited", "sent")

    def __init__(
        self, endpoint: Endpoint, *, adaptive: bool = False, most: int | None = None
    ) -> None:
        self.endpoint = endpoint
        self.breaker = Breaker()
        self.budget = RetryBudget()
        self.sent = self.failed = self.limited = 0
        self.lanes = [Lane(self, key) for key in endpoint.keys or (None,)]
        if adaptive:
            self.adapt(most)

    def adapt(self, most: int | None) -> None:
        """From now on find out how many requests at once the lanes bear. What is known already is kept."""
        least = most if self.endpoint.in_flight is None else self.endpoint.in_flight
        for lane in self.lanes:
            lane.adaptive = lane.adaptive or AdaptiveLimit(least)


class Lane:
    """One key of one server."""

    __slots__ = (
        "_bounds",
        "_forbidden",
        "_is_starting",
        "_missing",
        "_most",
        "_out_until",
        "_outs",
        "_paused_at",
        "_pauses",
        "_refused_at",
        "_refused_since",
        "_requests",
        "_resumes_at",
        "_started",
        "_tokens",
        "adaptive",
        "endpoint",
        "in_flight",
        "key",
        "server",
        "turns",
    )

    def __init__(self, server: Server, key: Key | None) -> None:
        endpoint = server.endpoint
        self.server = server
        self.endpoint = endpoint
        self.key = key
        self.in_flight = 0
        self.turns = 0.0
        """How often it was chosen, for its weight."""
        self._most = endpoint.in_flight
        self.adaptive: AdaptiveLimit | None = None
        bounded = endpoint.rpm is not None or endpoint.tpm is not None
        self._bounds = Bounds(endpoint.rpm, endpoint.tpm) if bounded else None
        self._requests, self._tokens = Allowance(), Allowance()
        self._resumes_at = 0.0  # after a pause that the server asked for
        self._is_starting = False  # in a pause, or in the slow start after it
        self._started = 0  # since the pause
        self._pauses = 0  # in a row
        self._paused_at = float("-inf")
        self._refused_since = 0.0
        self._out_until = 0.0  # the key was refused
        self._outs = 0  # in a row
        self._refused_at = float("-inf")
        self._forbidden = 0  # in a row
        self._missing: dict[
            str, float
        ] = {}  # models that are not there, until when that is believed

    # ------------------------------------------------------------------------------- may it start

    def is_down(self, now: float, model: str | None) -> bool:
        """Whether a request should go elsewhere, if there is an elsewhere."""
        if self.server.breaker.is_shut(now) or now < self._out_until:
            return True
        name = model or self.endpoint.model or ""
        return bool(self._missing) and now < self._missing.get(name, 0.0)

    def up_at(self, model: str | None) -> float:
        """When a lane that is down is next worth asking."""
        missing = self._missing.get(model or self.endpoint.model or "", 0.0)
        return max(self.server.breaker.until, self._out_until, missing)

    def wait(self, now: float, ask: Ask) -> float | None:
        """Return 0 where a request may start now, the seconds after which to ask again, or None: when another ends."""
        most = self._most if self.adaptive is None else int(self.adaptive.limit)
        if most is not None and self.in_flight >= most:
            return None
        wait = self._start_in(now) if self._is_starting else 0.0
        if not wait and self._bounds is not None:
            wait = self._bounds.wait(now, ask)
        if not wait and self._requests.is_bounding:
            wait = self._requests.wait(now)
        if not wait and self._tokens.is_bounding:
            wait = self._tokens.wait(now, sum(ask.size))
        return wait

    def _start_in(self, now: float) -> float:
        if now < self._resumes_at:
            return self._resumes_at - now
        due = self._resumes_at + _START_SECONDS * log2(self._started + 1)
        if now >= due and now >= self._resumes_at + _START_SECONDS * log2(_STARTS):
            self._is_starting = False
        return max(due - now, 0.0)

    # ----------------------------------------------------------------------------------- an attempt

    def take(self, now: float, ask: Ask) -> Hold:
        """Note that a request is sent."""
        hold = Hold(self, now)
        self.in_flight += 1
        self.turns += 1 / self.endpoint.weight
        self.server.sent += 1
        self._started += 1
        if self.server.breaker.is_open:
            hold.is_probe = self.server.breaker.pass_one(now)
        if self._bounds is not None:
            self._bounds.take(now, ask, hold)
        self._requests.take()
        if self._tokens.is_bounding:
            hold.reserved = ask.size[0]
            self._tokens.take(hold.reserved)
        hold.requests_before, hold.tokens_before = self._requests.taken, self._tokens.taken
        return hold

    def cost(self, hold: Hold, tokens: int) -> None:
        """Note what a request has cost: that replaces the estimate."""
        for window, taken in hold.tokens:
            window.correct(taken, tokens)
        if hold.reserved is not None:
            self._tokens.correct(hold.reserved - tokens, hold.tokens_before)
            hold.reserved = None

    def give_back(self, hold: Hold) -> None:
        """Note that the request was never sent. It has still to leave."""
        for window, taken in (*hold.requests, *hold.tokens):
            window.correct(taken, 0.0)
        self._requests.give_back(1.0)
        if hold.reserved is not None:
            self._tokens.give_back(hold.reserved)
        self.turns -= 1 / self.endpoint.weight
        self.server.sent -= 1

    def leave(self, hold: Hold) -> None:
        """Note that an attempt is over, however it ended. A probe that showed nothing lets another one probe."""
        self.in_flight -= 1
        if hold.is_probe:
            self.server.breaker.gave_no_answer()

    def began(self, hold: Hold, now: float, reports: "dict[str, RateLimit] | None") -> None:
        """Note that an answer has begun well.

        Args:
            hold: of the attempt.
            now: the time.
            reports: what its headers say of limits, if anything.
        """
        hold.is_probe = False
        self.server.breaker.succeeded()
        self._pauses = self._outs = self._forbidden = 0
        if self.adaptive is not None:
            self.adaptive.answered(now - hold.sent_at, self.in_flight)
        if reports:
            for allowance, kind, before in (
                (self._requests, "requests", hold.requests_before),
                (self._tokens, "tokens", hold.tokens_before),
            ):
                if kind in reports:
                    allowance.reported(reports[kind], now, before)

    def is_there(self, hold: Hold) -> None:
        """Note an answer that says nothing against the server: a probe has found it well."""
        if hold.is_probe:
            hold.is_probe = False
            self.server.breaker.succeeded()

    def finished(self) -> None:
        """Note that an answer is whole."""
        self.server.breaker.finished()

    def broke(
        self,
        hold: Hold,
        now: float,
        rand: float,
        *,
        at_once: bool = False,
        overloaded: bool = False,
        is_cut: bool = False,
    ) -> None:
        """Note that the server failed: it is not there (`at_once`), it had begun to answer (`is_cut`), or neither."""
        self.server.failed += 1
        is_probe, hold.is_probe = hold.is_probe, False
        self.server.breaker.failed(now, rand, at_once=at_once, is_probe=is_probe, is_cut=is_cut)
        if overloaded and self.adaptive is not None:
            self.adaptive.overloaded(hold.sent_at, now)

    def limited(
        self,
        hold: Hold,
        now: float,
        asked: float | None,
        reports: "dict[str, RateLimit] | None" = None,
        own: float = _FIRST_PAUSE,
    ) -> None:
        """Note a refusal for being asked too much: all wait, and then start slowly.

        A server that asks for no wait and has refused everything for more than a minute, which is as long as limits run, is
        not waited for any more: those in line had better hear of it.

        Args:
            hold: of the attempt.
            now: the time.
            asked: the wait that the server asks for.
            reports: what it says of limits.
            own: the wait of our own where it asks for none.
        """
        self.server.limited += 1
        self.is_there(hold)
        for allowance, kind in ((self._requests, "requests"), (self._tokens, "tokens")):
            report = (reports or {}).get(kind)
            allowance.refused(report, asked, now)
            if asked and report is not None and report.reset == asked:
                asked = allowance.wait(
                    now
                )  # no wait that was asked for, but until all is there again
        if self.adaptive is not None:
            self.adaptive.overloaded(hold.sent_at, now, at_once=False)
        if now > self._resumes_at + _HOPELESS_SECONDS:
            self._pauses = 0  # the last one was long ago
        if hold.sent_at >= self._paused_at:  # else it was under way when the pause began
            self._pauses += 1
            self._paused_at = now
            if self._pauses == 1:
                self._refused_since = now
        pause = asked
        if not pause:
            if now - self._refused_since > _HOPELESS_SECONDS:
                self._is_starting = False
                return
            again = _FIRST_PAUSE * 2.0 ** min(self._pauses - 2, 10) if self._pauses > 1 else 0.0
            pause = max(own, min(again, _LONGEST_PAUSE))
        self._resumes_at = max(self._resumes_at, now + pause)
        self._is_starting = True
        self._started = 0

    def pause(self, now: float, seconds: float) -> None:
        """Note that somebody else was refused with the same key: wait as well, and then start slowly."""
        if now + seconds > self._resumes_at:
            self._resumes_at = now + seconds
            self._is_starting = True
            self._started = 0

    def refused_key(self, hold: Hold, now: float, seconds: float | None = None) -> None:
        """Note that the key is not accepted, or spent: others are better for a while."""
        self.server.failed += 1
        if hold.sent_at >= self._refused_at:  # not one of those that were under way with the first
            self._outs = min(self._outs + 1, 10)
            self._refused_at = now
        longest = min(_OUT_SECONDS * 2.0 ** (self._outs - 1), _LONGEST_OUT_SECONDS)
        self._out_until = now + (longest if seconds is None else min(seconds, longest))

    def forbade(self, model: str | None, now: float) -> None:
        """Note a 403: one may be meant for the prompt, several in a row are meant for us."""
        self._forbidden += 1
        if self._forbidden >= _FORBIDDEN:
            self.lacks(model, now)
        else:
            self.server.failed += 1

    def lacks(self, model: str | None, now: float) -> None:
        """Note that the model is not there."""
        self.server.failed += 1
        if len(self._missing) >= _MOST_MODELS:
            self._missing.clear()
        self._missing[model or self.endpoint.model or ""] = now + _OUT_SECONDS

    # -------------------------------------------------------------------------------- what is known

    def state(self, now: float) -> State:
        """Return `open` also where only this key is out."""
        return "open" if now < self._out_until else self.server.breaker.state(now)

    def paused(self, now: float) -> float:
        """Return for how many seconds nothing is sent, since the server asked for that."""
        return max(self._resumes_at - now, 0.0)

    @property
    def most(self) -> int | None:
        """How many requests at once it may have."""
        return self._most if self.adaptive is None else int(self.adaptive.limit)

    @property
    def reports(self) -> dict[str, RateLimit]:
        """What the server last said of its limits, by kind."""
        kinds = (("requests", self._requests.last), ("tokens", self._tokens.last))
        return {kind: last for kind, last in kinds if last is not None}
