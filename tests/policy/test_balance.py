"""Where a request goes, and what a failure says of whom."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat import errors
from asyncchat.errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncChatError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ContentFilterFinishReasonError,
    InternalServerError,
    JournalError,
    JournalLocked,
    JournalMismatch,
    LengthFinishReasonError,
    LimitExceeded,
    LineFull,
    MaxTurnsReached,
    NotFoundError,
    OutputMismatch,
    PermissionDeniedError,
    PoolClosed,
    ProtocolError,
    RateLimit,
    RateLimitError,
    RefusalError,
    SourceError,
    StreamCut,
    StreamStalled,
    UnprocessableEntityError,
    status_error,
)
from asyncchat.policy.balance import Blame, blame, choose, eligible, elsewhere, note
from asyncchat.policy.endpoint import Endpoint
from asyncchat.policy.lane import Ask, Hold, Lane, Server
from tests.policy.simulated import Client, Counter, World, law, refuse_key

URL = "http://a/v1"
MIDDLE = 0.5


def lanes_of(*endpoints: Endpoint) -> list[Lane]:
    return [lane for endpoint in endpoints for lane in Server(endpoint).lanes]


def lane_of(**fields: Any) -> Lane:
    (lane,) = lanes_of(Endpoint(**{"url": URL, **fields}))
    return lane


def ask(model: str | None = None, tried: Sequence[Lane] = ()) -> Ask:
    one = Ask(model, lambda: (1, 0.0))
    one.tried = frozenset(tried)
    return one


def take_down(lane: Lane, seconds: float) -> None:
    """Leave the key alone for so long."""
    refuse_key(lane, 0, seconds)


# ------------------------------------------------------------------------------- which lanes serve a model


ANY, LARGE, SMALL = Endpoint(URL), Endpoint(URL, model="large"), Endpoint(URL, model="small")


@pytest.mark.parametrize(
    ("endpoints", "model", "those"),
    [
        ([LARGE, SMALL, ANY], "large", [0]),  # those of that name
        ([LARGE, SMALL, LARGE], "large", [0, 2]),
        ([LARGE, SMALL, ANY], "other", [2]),  # else those that name none
        ([LARGE, SMALL], "other", [0, 1]),  # else all
        ([ANY, ANY], "other", [0, 1]),
        ([LARGE, SMALL, ANY], None, [0, 1]),  # without a model, those that have one
        ([ANY, ANY], None, [0, 1]),
        ([LARGE], None, [0]),
        ([ANY], "large", [0]),
    ],
)
def test_request_goes_to_endpoints_of_its_model_else_to_those_without_one_else_to_all(
    endpoints: list[Endpoint], model: str | None, those: list[int]
) -> None:
    lanes = lanes_of(*endpoints)
    assert eligible(lanes, model) == [lanes[number] for number in those]


def test_each_key_of_an_endpoint_is_eligible() -> None:
    lanes = lanes_of(Endpoint(URL, api_key=["a", "b"], model="large"), SMALL)
    assert eligible(lanes, "large") == lanes[:2]


# ------------------------------------------------------------------------------------- where a request goes


def test_only_lane_is_taken_as_soon_as_it_can() -> None:
    lane = lane_of(rpm=1)
    assert choose([lane], 0, ask()) is lane
    lane.take(0, ask())
    assert choose([lane], 1, ask()) == 60


def test_only_lane_is_asked_though_it_is_down() -> None:
    lane = lane_of()
    take_down(lane, 60)
    assert choose([lane], 0, ask()) is lane


def test_only_lane_that_is_full_is_waited_for() -> None:
    lane = lane_of(in_flight=1)
    lane.take(0, ask())
    assert choose([lane], 0, ask()) is None


def test_least_busy_lane_is_chosen() -> None:
    first, second = lanes = lanes_of(ANY, ANY)
    first.take(0, ask())
    assert choose(lanes, 0, ask()) is second
    second.take(0, ask())
    second.take(0, ask())
    assert choose(lanes, 0, ask()) is first


def test_lanes_that_are_as_busy_take_turns() -> None:
    lanes, chosen = lanes_of(ANY, ANY, ANY), []
    for _ in range(9):
        lane = choose(lanes, 0, ask())
        assert isinstance(lane, Lane)
        lane.leave(lane.take(0, ask()))
        chosen.append(lanes.index(lane))
    assert sorted(chosen[:3]) == sorted(chosen[3:6]) == sorted(chosen[6:]) == [0, 1, 2]


def test_lane_where_a_request_has_failed_is_its_last_choice() -> None:
    first, second = lanes = lanes_of(ANY, ANY)
    for _ in range(9):
        second.take(0, ask())
    assert choose(lanes, 0, ask(tried=[first])) is second
    assert choose(lanes, 0, ask(tried=lanes)) is first


def test_lane_where_a_request_has_failed_is_taken_where_no_other_can() -> None:
    first, second = lanes = lanes_of(ANY, Endpoint(URL, in_flight=1))
    second.take(0, ask())
    assert choose(lanes, 0, ask(tried=[first])) is first


def test_lane_that_is_down_is_left_out() -> None:
    first, second = lanes = lanes_of(ANY, ANY)
    take_down(first, 30)
    for _ in range(5):
        second.take(0, ask())
    assert choose(lanes, 0, ask()) is second
    assert choose(lanes, 30, ask()) is first


def test_lane_that_lacks_a_model_is_left_out_for_that_model() -> None:
    first, second = lanes = lanes_of(ANY, ANY)
    first.lacks("large", 0)
    second.take(0, ask())
    assert choose(lanes, 0, ask("large")) is second
    assert choose(lanes, 0, ask("small")) is first


def test_spare_is_used_only_while_all_others_are_down() -> None:
    first, second, spare = lanes = lanes_of(ANY, ANY, Endpoint(URL, spare=True))
    for lane in (first, second):
        for _ in range(9):
            lane.take(0, ask())
    assert choose(lanes, 0, ask()) in (first, second)
    take_down(first, 30)
    assert choose(lanes, 0, ask()) is second
    take_down(second, 30)
    assert choose(lanes, 0, ask()) is spare
    assert choose(lanes, 30, ask()) in (first, second)


def test_others_that_are_full_are_waited_for_though_there_is_a_spare() -> None:
    first, _ = lanes = lanes_of(Endpoint(URL, in_flight=1), Endpoint(URL, spare=True))
    first.take(0, ask())
    assert choose(lanes, 0, ask()) is None


def test_where_all_are_down_the_one_that_is_up_first_is_asked() -> None:
    first, second, third = lanes = lanes_of(ANY, ANY, Endpoint(URL, spare=True))
    for lane, seconds in zip(lanes, (30, 20, 40), strict=True):
        take_down(lane, seconds)
    assert choose(lanes, 0, ask()) is second
    assert choose(lanes, 0, ask(tried=[second])) is first
    assert choose(lanes, 0, ask(tried=[first, second])) is third


def test_shortest_wait_of_all_is_waited() -> None:
    lanes = lanes_of(Endpoint(URL, rpm=1), Endpoint(URL, rpm=1), Endpoint(URL, in_flight=1))
    for at, lane in enumerate(lanes):
        lane.take(at, ask())
    assert choose(lanes, 10, ask()) == 51


def test_lane_that_is_down_is_looked_at_again_when_it_is_up() -> None:
    first, second = lanes = lanes_of(Endpoint(URL, rpm=1), ANY)
    first.take(0, ask())
    take_down(second, 20)
    assert choose(lanes, 5, ask()) == 15
    assert choose(lanes, 20, ask()) is second


def test_lane_that_is_down_is_looked_at_again_while_another_is_full() -> None:
    first, second = lanes = lanes_of(Endpoint(URL, in_flight=1), ANY)
    first.take(0, ask())
    take_down(second, 20)
    assert choose(lanes, 5, ask()) == 15


def test_probe_on_its_way_has_no_time_and_the_next_one_to_end_is_waited_for() -> None:
    first, second = lanes = lanes_of(Endpoint(URL, in_flight=1), ANY)
    first.take(0, ask())
    second.broke(second.take(0, ask()), 0, MIDDLE, at_once=True, overloaded=False)
    second.take(5, ask())
    assert choose(lanes, 6, ask()) is None


def test_lane_that_lacks_another_model_is_looked_at_again_when_its_server_is_up() -> None:
    first, second = lanes = lanes_of(Endpoint(URL, rpm=1), ANY)
    first.take(0, ask())
    second.lacks("small", 0)
    take_down(second, 20)
    assert choose(lanes, 5, ask("large")) == 15


def shares(weights: Sequence[float], in_flight: int) -> list[float]:
    world = World(1)
    endpoints = [(Endpoint(URL, weight=weight), [Counter()]) for weight in weights]
    client = Client(world, endpoints, in_flight=in_flight, latency=(1.0, 1.0))
    client.add(3000)
    world.run(1e6)
    assert client.finished == 3000
    return [lane.server.sent / 3000 for lane in client.lanes]


@pytest.mark.parametrize(
    ("weights", "in_flight"),
    [
        ((1, 1), 1),
        ((2, 1), 1),
        ((3, 2, 1), 1),
        ((1, 1), 100),
        ((1, 1, 1), 7),
        ((2, 1), 30),
        ((3, 2, 1), 12),
        ((3, 2, 1), 100),
        ((10, 1), 110),
        ((0.2, 0.1), 100),
        ((2, 1), 2),
        ((3, 2, 1), 3),
        ((10, 1), 5),
    ],
)
def test_requests_are_shared_by_weight(weights: Sequence[float], in_flight: int) -> None:
    wanted = [weight / sum(weights) for weight in weights]
    assert shares(weights, in_flight) == pytest.approx(wanted, abs=0.03)


def test_slow_server_gets_less_than_its_weight_and_not_nothing() -> None:
    first, second = lanes = lanes_of(ANY, ANY)
    slow: list[tuple[int, Hold]] = []
    for turn in range(1000):
        while slow and slow[0][0] <= turn:
            first.leave(slow.pop(0)[1])
        lane = choose(lanes, 0, ask())
        assert isinstance(lane, Lane)
        hold = lane.take(0, ask())
        if lane is first:
            slow.append((turn + 20, hold))
        else:
            second.leave(hold)
    assert 30 <= first.server.sent <= 200


def test_lane_that_was_down_for_long_does_not_get_everything_when_it_is_back() -> None:
    lanes = lanes_of(ANY, ANY)
    take_down(lanes[1], 60)
    for now in [0] * 1000 + [60] * 100:
        lane = choose(lanes, now, ask())
        assert isinstance(lane, Lane)
        lane.leave(lane.take(now, ask()))
    assert lanes[1].server.sent <= 60


def test_request_can_be_elsewhere_where_a_lane_it_has_not_failed_at_may_start() -> None:
    first, second = lanes = lanes_of(ANY, Endpoint(URL, in_flight=1))
    assert elsewhere(lanes, 0, ask())
    assert elsewhere(lanes, 0, ask(tried=[first]))
    assert not elsewhere(lanes, 0, ask(tried=lanes))
    take_down(second, 20)
    assert not elsewhere(lanes, 0, ask(tried=[first]))
    assert elsewhere(lanes, 20, ask(tried=[first]))
    second.take(20, ask())
    assert not elsewhere(lanes, 20, ask(tried=[first]))


def test_request_is_not_elsewhere_at_a_spare_while_another_is_up() -> None:
    first, second, _ = lanes = lanes_of(ANY, ANY, Endpoint(URL, spare=True))
    assert not elsewhere(lanes, 0, ask(tried=[first, second]))
    take_down(first, 20)
    take_down(second, 20)
    assert elsewhere(lanes, 0, ask(tried=[first, second]))
    assert not elsewhere(lanes, 0, ask(tried=lanes))
    assert not elsewhere(lanes, 20, ask(tried=[first, second]))


# ------------------------------------------------------------------------------------ what an error says


def of_phase(cls: type[APITimeoutError], phase: str) -> APITimeoutError:
    error = cls("late")
    error.phase = phase
    return error


def not_sent(error: APIConnectionError) -> APIConnectionError:
    error.was_sent = False
    return error


def status(number: int, **fields: Any) -> APIStatusError:
    return status_error(number, "no", **fields)


ERRORS: dict[str, tuple[AsyncChatError, Blame]] = {
    # of the way to the server
    "no connection": (not_sent(APIConnectionError("refused")), "gone"),
    "no connection, for good": (
        not_sent(APIConnectionError("certificate", retryable=False)),
        "gone",
    ),
    "connection lost": (APIConnectionError("reset"), "broken"),
    "no connection in time": (of_phase(APITimeoutError, "connect"), "gone"),
    "no answer in time": (of_phase(APITimeoutError, "first"), "broken"),
    "silence": (of_phase(APITimeoutError, "idle"), "broken"),
    "no time left": (of_phase(APITimeoutError, "total"), "request"),
    "no place in time": (of_phase(APITimeoutError, "line"), "request"),
    "silence in the answer": (StreamStalled("late"), "broken"),
    "no time left in the answer": (of_phase(StreamStalled, "total"), "request"),
    # of the answer
    "cut": (StreamCut("cut"), "broken"),
    "no completion": (ProtocolError("a web page"), "broken"),
    "more than we hold": (LimitExceeded("large"), "request"),
    "error in the stream that may pass": (APIError("busy", retryable=True), "broken"),
    "error in the stream": (APIError("bad"), "request"),
    # of the key
    "429": (status(429), "limited"),
    "429 in the stream": (RateLimitError("slow"), "limited"),
    "429, quota": (status(429, code="insufficient_quota"), "key"),
    "429, quota by type": (status(429, type="insufficient_quota"), "key"),
    "429, billing": (status(429, code="billing_hard_limit_reached"), "key"),
    "429, not to be retried": (status(429, should_retry=False), "key"),
    "401": (status(401), "key"),
    "402": (status(402), "key"),
    # of the model
    "403": (status(403), "model"),
    "404": (status(404), "model"),
    "404, model": (status(404, code="model_not_found"), "model"),
    "400, model": (status(400, code="model_not_found"), "model"),
    "400, model not available": (status(400, code="model_not_available"), "model"),
    "Azure's 404": (status(404, code="DeploymentNotFound"), "model"),
    # of the request
    "400": (status(400), "request"),
    "400 with a number as code": (status(400, code=400), "request"),
    "405": (status(405), "request"),
    "408": (status(408), "request"),
    "409": (status(409), "request"),
    "413": (status(413), "request"),
    "422": (status(422), "request"),
    "425": (status(425), "request"),
    "302": (status(302), "request"),
    # of the server
    "500": (status(500), "broken"),
    "502": (status(502), "broken"),
    "504": (status(504), "broken"),
    "500, not to be retried": (status(500, should_retry=False), "broken"),
    "503": (status(503), "overloaded"),
    "529": (status(529), "overloaded"),
    # ours
    "closed": (PoolClosed("closed"), "request"),
    "line full": (LineFull("full"), "request"),
    "journal": (JournalError("torn"), "request"),
    "source": (SourceError("torn"), "request"),
    "mismatch": (OutputMismatch("no"), "request"),
    "too long": (LengthFinishReasonError("no"), "request"),
    "filtered": (ContentFilterFinishReasonError("no"), "request"),
    "any": (AsyncChatError("no"), "request"),
}

BY_CLASS: dict[type[AsyncChatError], Blame] = {
    AsyncChatError: "request",
    APIError: "request",
    APIConnectionError: "broken",
    APITimeoutError: "request",
    StreamStalled: "broken",
    APIStatusError: "request",
    BadRequestError: "request",
    AuthenticationError: "key",
    PermissionDeniedError: "model",
    NotFoundError: "model",
    ConflictError: "request",
    UnprocessableEntityError: "request",
    RateLimitError: "limited",
    InternalServerError: "broken",
    StreamCut: "broken",
    ProtocolError: "broken",
    LimitExceeded: "request",
    OutputMismatch: "request",
    LengthFinishReasonError: "request",
    ContentFilterFinishReasonError: "request",
    PoolClosed: "request",
    LineFull: "request",
    RefusalError: "request",
    MaxTurnsReached: "request",
    JournalError: "request",
    JournalLocked: "request",
    JournalMismatch: "request",
    SourceError: "request",
}


@pytest.mark.parametrize(("error", "found"), ERRORS.values(), ids=ERRORS)
def test_error_is_put_down_to_whom_it_concerns(error: AsyncChatError, found: Blame) -> None:
    assert blame(error) == found


def test_every_class_of_errors_has_a_blame() -> None:
    classes = {
        cls
        for cls in vars(errors).values()
        if isinstance(cls, type) and issubclass(cls, AsyncChatError)
    }
    assert set(BY_CLASS) == classes
    assert {cls: blame(cls("no")) for cls in classes} == BY_CLASS


def expected_of_status(number: int) -> Blame:
    if number in (401, 402):
        return "key"
    if number in (403, 404):
        return "model"
    if number == 429:
        return "limited"
    if number in (503, 529):
        return "overloaded"
    return "broken" if number >= 500 else "request"


def test_every_status_has_a_blame() -> None:
    found = {number: blame(status(number)) for number in range(400, 530)}
    assert found == {number: expected_of_status(number) for number in range(400, 530)}


# -------------------------------------------------------------------------------- and what follows from it


class Consequence(NamedTuple):
    """What a failure changes, of two keys of one server, with the request's model `large`."""

    breaker: str = "closed"
    failed: int = 0
    limited: int = 0
    paused: float = 0.0
    is_key_out: bool = False
    lacks: bool = False  # the model
    most: int | None = 16  # at once, found out
    server_is_tried: bool = False


CONSEQUENCES: dict[Blame, Consequence] = {
    "request": Consequence(),
    "limited": Consequence(limited=1, paused=2.0, most=8),
    "key": Consequence(failed=1, is_key_out=True),
    "model": Consequence(failed=1, lacks=True),
    "gone": Consequence("open", failed=1, server_is_tried=True),
    "overloaded": Consequence(failed=1, most=8, server_is_tried=True),
    "broken": Consequence(failed=1, server_is_tried=True),
}


def after(
    error: AsyncChatError, *, wait: float | None = 2.0, longest: float = 60.0, times: int = 1
) -> tuple[Consequence, Lane, Ask]:
    """Meet an error so often at second 0, each time with a request of its own."""
    server = Server(Endpoint(URL, api_key=["a", "b"]), adaptive=True)
    lane, other = server.lanes
    for _ in range(times):
        one = ask("large")
        hold = lane.take(0, one)
        note(hold, one, error, 0, rand=MIDDLE, wait=wait, longest=longest)
        lane.leave(hold)
    assert lane in one.tried
    assert other.paused(0) == 0
    consequence = Consequence(
        server.breaker.state(0),
        server.failed,
        server.limited,
        lane.paused(0),
        is_key_out=lane.is_down(0, "small") and not other.is_down(0, "small"),
        lacks=lane.is_down(0, "large") and not lane.is_down(0, "small"),
        most=lane.most,
        server_is_tried=other in one.tried,
    )
    return consequence, lane, one


@pytest.mark.parametrize(
    ("error", "found"),
    [pair for name, pair in ERRORS.items() if name != "403"],
    ids=[name for name in ERRORS if name != "403"],
)
def test_failure_is_held_against_whom_it_concerns_and_nobody_else(
    error: AsyncChatError, found: Blame
) -> None:
    assert after(error)[0] == CONSEQUENCES[found]


@pytest.mark.parametrize(("times", "lacks"), [(1, False), (2, False), (3, True), (4, True)])
def test_403_is_held_against_the_model_from_the_third_on(times: int, lacks: bool) -> None:
    assert after(status(403), times=times)[0] == Consequence(failed=times, lacks=lacks)


@pytest.mark.parametrize(
    ("error", "state"),
    [(status(500), "open"), (APIConnectionError("reset"), "open"), (status(503), "open"), (status(400), "closed"),
     (status(429), "closed"), (status(401), "closed"), (status(404), "closed"), (status(403), "closed")],
)  # fmt: skip
def test_five_failures_of_the_server_open_its_breaker_and_refusals_do_not(
    error: AsyncChatError, state: str
) -> None:
    assert after(error, times=4)[0].breaker == "closed"
    assert after(error, times=5)[0].breaker == state


def test_wait_that_the_server_asks_for_is_that_of_all() -> None:
    assert after(status(429, retry_after=7.0))[0].paused == 7
    assert after(status(429, retry_after=7.0), wait=None)[0].paused == 7


def test_wait_of_the_request_is_that_of_all_where_the_server_asks_for_none() -> None:
    assert after(status(429), wait=3.0)[0].paused == 3
    assert after(status(429), wait=None)[0].paused == 0.5
    assert after(status(429, retry_after=0.0), wait=3.0)[0].paused == 3


def test_wait_that_is_too_long_leaves_the_key_alone_instead() -> None:
    consequence, lane, _ = after(status(429, retry_after=50.0), longest=20)
    assert consequence == Consequence(failed=1, is_key_out=True)
    assert lane.up_at(None) == 50
    _, lane, _ = after(status(429, retry_after=86_400.0))
    assert lane.up_at(None) == 60  # then it is asked once more


def test_limits_in_the_headers_of_a_refusal_are_kept() -> None:
    error = status(429, retry_after=7.0)
    error.rate_limits = {"requests": RateLimit(60, 0, 30.0)}
    _, lane, _ = after(error)
    assert lane.reports == {"requests": RateLimit(60, 0, 30.0)}


OURS = {"no time left", "no place in time", "no time left in the answer"} | set(
    list(ERRORS)[list(ERRORS).index("closed") :]
)


@pytest.mark.parametrize("name", [name for name in ERRORS if name not in OURS])
def test_probe_is_over_whatever_the_server_answered(name: str) -> None:
    error, found = ERRORS[name]
    lane = lane_of()
    lane.broke(lane.take(0, ask()), 0, MIDDLE, at_once=True, overloaded=False)
    one = ask()
    hold = lane.take(1, one)
    assert hold.is_probe
    assert note(hold, one, error, 2, rand=MIDDLE, wait=1.0, longest=60) == found
    assert not hold.is_probe
    server_failed = found in ("gone", "overloaded", "broken")
    assert lane.server.breaker.state(2) == ("open" if server_failed else "closed")


@pytest.mark.parametrize("name", ["no time left", "no time left in the answer"])
def test_probe_that_ended_on_our_side_does_not_show_that_the_server_is_well(name: str) -> None:
    lane = lane_of()
    lane.broke(lane.take(0, ask()), 0, MIDDLE, at_once=True, overloaded=False)
    one = ask()
    hold = lane.take(1, one)
    note(hold, one, ERRORS[name][0], 2, rand=MIDDLE, wait=None, longest=60)
    lane.leave(hold)
    assert lane.state(2) == "half-open"


# ----------------------------------------------------------------------------------------------- a law


ENDPOINTS = st.lists(
    st.builds(
        Endpoint,
        st.just(URL),
        st.sampled_from([None, "k", ["k", "l"]]),
        st.sampled_from([None, "large", "small"]),
        st.sampled_from([0.1, 1.0, 3.0]),
        rpm=st.sampled_from([None, 1, 20]),
        tpm=st.sampled_from([None, 5, 100]),
        in_flight=st.sampled_from([None, 1, 5]),
        spare=st.booleans(),
    ),
    min_size=1,
    max_size=4,
)
STEP = st.tuples(
    st.sampled_from(["start", "start", "start", "good", "bad"]),
    st.floats(0, 5),
    st.sampled_from([None, "large", "small", "other"]),
    st.sampled_from(sorted(ERRORS)),
    st.floats(0, 0.999),
)


@law(120)
@given(endpoints=ENDPOINTS, steps=st.lists(STEP, max_size=50))
def test_decisions_are_always_made_and_a_spare_waits_for_the_others(
    endpoints: list[Endpoint], steps: list[Any]
) -> None:
    lanes = lanes_of(*endpoints)
    running: list[tuple[Ask, Hold]] = []
    now = 0.0
    for what, later, model, error, rand in steps:
        now += later
        if what == "start":
            one = ask(model)
            few = eligible(lanes, model)
            assert few
            assert set(few) <= set(lanes)
            decision = choose(few, now, one)
            up = [lane for lane in few if not lane.is_down(now, model)]
            elsewhere(few, now, one)
            if isinstance(decision, Lane):
                assert decision in (up or few)
                assert decision.wait(now, one) == 0
                if decision.endpoint.spare and len(few) > 1:
                    assert all(lane.endpoint.spare for lane in up)
                running.append((one, decision.take(now, one)))
            else:
                assert decision is None or decision > 0
                assert all(lane.wait(now, one) != 0 for lane in up if not lane.endpoint.spare)
            if decision is None:
                assert any(lane.in_flight for lane in few)  # somebody will end
        elif running:
            one, hold = running.pop(0)
            if what == "good":
                hold.lane.began(hold, now, {"requests": RateLimit(60, 3, 30.0)})
                hold.lane.cost(hold, 2)
            else:
                note(hold, one, ERRORS[error][0], now, rand=rand, wait=rand, longest=60)
            hold.lane.leave(hold)
    for _, hold in running:
        hold.lane.leave(hold)
    assert not any(lane.in_flight for lane in lanes)
