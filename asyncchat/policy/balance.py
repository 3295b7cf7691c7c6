"""Where a request goes, and what a failure says: of the server, of the key, of the model, or of the request itself.

Not here: a clock, waiting, sending. Decisions cost the same however many requests wait; they grow with the lanes.
"""

from collections.abc import Sequence
from typing import Literal

from asyncchat.errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncChatError,
    LimitExceeded,
    PermissionDeniedError,
    ProtocolError,
    RateLimitError,
    StreamCut,
)
from asyncchat.policy.lane import Ask, Hold, Lane

__all__ = ["NOT_BEGUN", "Blame", "blame", "choose", "eligible", "elsewhere", "note"]

Blame = Literal["request", "limited", "key", "model", "gone", "overloaded", "broken"]
"""What a failure is put down to.

`request`: it would fail anywhere. `limited`: asked too much of this key. `key`: not accepted, or its quota is spent.
`model`: not there, or not for this key. `gone`: no connection, so the server has not seen the request. `overloaded` and
`broken`: the server failed at it, or the connection did.
"""

NOT_BEGUN = frozenset({"limited", "key", "model", "gone"})
"""After these no server has begun to work on the request: sending it elsewhere is no retry."""

_TOO_BUSY = frozenset({503, 529})
_NO_MODEL = frozenset({"model_not_found", "deploymentnotfound", "model_not_available"})


def eligible(lanes: Sequence[Lane], model: str | None) -> list[Lane]:
    """Return the lanes that serve a model: those of that name, else those that name none, else all."""
    if model is None:
        named = [lane for lane in lanes if lane.endpoint.model is not None]
    else:
        named = [lane for lane in lanes if lane.endpoint.model == model]
    return named or [lane for lane in lanes if lane.endpoint.model is None] or list(lanes)


def choose(lanes: Sequence[Lane], now: float, ask: Ask) -> Lane | float | None:
    """Return the lane that a request goes to, or the seconds after which to ask again, or None: when another ends.

    The least busy for its weight among those that are up; spares only while no other is up. Where all are down, they are
    asked all the same: a request that might succeed is not refused here.
    """
    if len(lanes) == 1:
        wait = lanes[0].wait(now, ask)
        return lanes[0] if wait == 0 else wait
    up = [lane for lane in lanes if not lane.is_down(now, ask.model)]
    if not up:
        up = [min(lanes, key=lambda lane: (lane in ask.tried, lane.up_at(ask.model)))]
    chosen = _best(_without_spares(up), now, ask)
    if isinstance(chosen, Lane) or len(up) == len(lanes):
        return chosen
    downs = (lane.up_at(ask.model) - now for lane in lanes if lane not in up)
    again = [seconds for seconds in downs if seconds > 0]  # else a request tries it already
    return min(again if chosen is None else [chosen, *again], default=None)


def elsewhere(lanes: Sequence[Lane], now: float, ask: Ask) -> list[Lane]:
    """Return the lanes where a request could start now and has not failed yet."""
    up = [lane for lane in lanes if not lane.is_down(now, ask.model)]
    return [
        lane for lane in _without_spares(up) if lane not in ask.tried and lane.wait(now, ask) == 0
    ]


def _without_spares(up: Sequence[Lane]) -> Sequence[Lane]:
    """Return those that are no spares, or all where there are only spares."""
    return [lane for lane in up if not lane.endpoint.spare] or up


def _best(lanes: Sequence[Lane], now: float, ask: Ask) -> Lane | float | None:
    """Return the lane whose turn it is, of those that could start it, or when one of them could.

    A lane with more than its share of what is in flight is slow, and has to wait.
    """
    ready: list[Lane] = []
    soonest: float | None = None
    for lane in lanes:
        wait = lane.wait(now, ask)
        if wait == 0:
            ready.append(lane)
        elif wait is not None and (soonest is None or wait < soonest):
            soonest = wait
    if not ready:
        return soonest
    ready = [lane for lane in ready if lane not in ask.tried] or ready
    weights = sum(lane.endpoint.weight for lane in ready)
    places = sum(lane.in_flight for lane in ready) + 1
    fair = [
        lane for lane in ready if lane.in_flight * weights < places * lane.endpoint.weight
    ] or ready
    best = min(fair, key=lambda lane: lane.turns + 1 / lane.endpoint.weight)
    others = [lane.turns for lane in fair if lane is not best]
    if others:  # one that was away does not catch up
        best.turns = max(best.turns, min(others) - 1 / best.endpoint.weight)
    return best


def blame(error: AsyncChatError) -> Blame:
    """Return what an error says: what to hold against whom."""
    found: Blame = "request"
    if isinstance(error, RateLimitError):
        found = "limited" if error.retryable else "key"
    elif isinstance(error, APIStatusError):
        found = _blame_status(error)
    elif isinstance(error, APITimeoutError):
        if error.phase not in ("total", "line"):
            found = "gone" if error.phase == "connect" else "broken"
    elif isinstance(error, APIConnectionError):
        found = "broken" if error.was_sent else "gone"
    elif isinstance(error, (ProtocolError, StreamCut)):
        found = "request" if isinstance(error, LimitExceeded) else "broken"
    elif isinstance(error, APIError) and error.retryable:
        found = "broken"  # told in the stream
    return found


def _blame_status(error: APIStatusError) -> Blame:
    status = error.status_code
    if status in (401, 402):
        return "key"
    if status in (403, 404) or str(error.code).lower() in _NO_MODEL:
        return "model"
    if status in _TOO_BUSY:
        return "overloaded"
    return "broken" if status >= 500 else "request"


def note(
    hold: Hold,
    ask: Ask,
    error: AsyncChatError,
    now: float,
    *,
    rand: float,
    wait: float | None,
    longest: float,
    is_cut: bool = False,
) -> Blame:
    """Hold a failure against whom it concerns, and remember that the request has failed there.

    Args:
        hold: the place of the attempt.
        ask: of the request.
        error: what it met.
        now: the time.
        rand: in [0, 1).
        wait: seconds until the request itself would be sent again, None where it will not.
        longest: the longest wait that is waited out.
        is_cut: whether the answer had begun.
    """
    found, lane = blame(error), hold.lane
    ask.tried |= {lane}
    if found in ("gone", "overloaded", "broken"):
        ask.tried |= {*lane.server.lanes}
        gone, overloaded = found == "gone", found == "overloaded"
        lane.broke(hold, now, rand, at_once=gone, overloaded=overloaded, is_cut=is_cut)
    elif found == "limited":
        asked = error.retry_after
        reports = dict(error.rate_limits) if isinstance(error, APIStatusError) else None
        if asked is not None and asked > longest:
            lane.is_there(hold)
            lane.refused_key(hold, now, asked)
        elif wait is None:
            lane.limited(hold, now, asked, reports)
        else:
            lane.limited(hold, now, asked, reports, own=wait)
    elif found == "key":
        lane.is_there(hold)
        lane.refused_key(hold, now)
    elif found == "model":
        lane.is_there(hold)
        if isinstance(error, PermissionDeniedError):
            lane.forbade(ask.model, now)
        else:
            lane.lacks(ask.model, now)
    elif not isinstance(error, APIConnectionError):
        lane.is_there(hold)  # it has answered
    return found
