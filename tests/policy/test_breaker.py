"""A server that fails every time is left alone for a while, and then asked by one request first."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.policy.breaker import Breaker
from tests.policy.simulated import law

MIDDLE = 0.5  # the chance that leaves a time as it is


def opened(now: float = 0.0) -> Breaker:
    """A breaker that is open for one second."""
    breaker = Breaker()
    breaker.failed(now, MIDDLE, at_once=True)
    return breaker


def test_all_may_pass_at_first() -> None:
    breaker = Breaker()
    assert breaker.state(0) == "closed"
    assert not breaker.is_shut(0)
    assert not breaker.is_open
    assert not breaker.pass_one(0)


def test_five_failures_in_a_row_open_it() -> None:
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(0, MIDDLE)
        assert breaker.state(0) == "closed"
    breaker.failed(0, MIDDLE)
    assert breaker.state(0) == "open"
    assert breaker.is_open
    assert breaker.is_shut(0)
    assert breaker.until == 1


def test_failures_that_are_not_in_a_row_do_not_open_it() -> None:
    breaker = Breaker()
    for _ in range(10):
        for _ in range(4):
            breaker.failed(0, MIDDLE)
        breaker.succeeded()
    assert breaker.state(0) == "closed"


def test_server_that_is_not_there_opens_it_at_once() -> None:
    assert opened().state(0) == "open"


@pytest.mark.parametrize(("rand", "until"), [(0.0, 0.75), (0.5, 1.0), (0.999, 1.2495)])
def test_time_is_spread_by_a_quarter_each_way(rand: float, until: float) -> None:
    breaker = Breaker()
    breaker.failed(0, rand, at_once=True)
    assert breaker.until == pytest.approx(until)


def test_time_doubles_up_to_thirty_seconds() -> None:
    breaker, now, times = opened(), 0.0, []
    for _ in range(8):
        times.append(breaker.until - now)
        now = breaker.until
        assert breaker.pass_one(now)
        breaker.failed(now, MIDDLE)
    assert times == [1, 2, 4, 8, 16, 30, 30, 30]


def test_very_many_failures_are_no_overflow() -> None:
    breaker, now = opened(), 0.0
    for _ in range(3000):
        now = breaker.until
        breaker.failed(now, MIDDLE)
    assert breaker.until - now == 30


def test_one_request_probes_when_the_time_is_over() -> None:
    breaker = opened()
    assert not breaker.pass_one(0.99)
    assert breaker.state(1) == "half-open"
    assert not breaker.is_shut(1)
    assert breaker.pass_one(1)
    assert breaker.state(1) == "open"
    assert breaker.is_shut(1)
    assert not breaker.pass_one(1)
    assert not breaker.pass_one(100)


def test_probe_that_succeeds_closes_it() -> None:
    breaker = opened()
    breaker.pass_one(1)
    breaker.succeeded()
    assert breaker.state(1) == "closed"
    breaker.failed(1, MIDDLE, at_once=True)
    assert breaker.until == 2  # one second again


def test_probe_that_shows_nothing_lets_another_probe() -> None:
    breaker = opened()
    breaker.pass_one(1)
    breaker.gave_no_answer()
    assert breaker.state(1) == "half-open"
    assert breaker.pass_one(1)


def test_failures_of_what_was_under_way_when_it_opened_do_not_make_it_longer() -> None:
    breaker = opened()
    for _ in range(20):
        breaker.failed(0.5, MIDDLE, at_once=True)
    assert breaker.until == 1


def test_answer_to_what_was_under_way_closes_it() -> None:
    breaker = opened()
    breaker.succeeded()
    assert breaker.state(0.5) == "closed"


Event = tuple[str, float, float]


@law(120)
@given(
    events=st.lists(
        st.tuples(
            st.sampled_from(["send", "send", "fail", "gone", "succeed", "nothing"]),
            st.floats(0, 20),
            st.floats(0, 0.999),
        ),
        max_size=60,
    )
)
def test_one_request_at_a_time_probes_and_none_before_its_time(events: list[Event]) -> None:
    """All failures are those of the probe, or of requests that began while it was closed and end while it is."""
    breaker, now, failures, is_probing = Breaker(), 0.0, 0, False
    for what, later, rand in events:
        now += later
        state = breaker.state(now)
        assert breaker.is_open is (state != "closed")
        assert breaker.is_shut(now) is (state == "open")
        if what == "send":
            probes = breaker.pass_one(now)
            assert probes is (state == "half-open")
            assert not (probes and is_probing)
            is_probing = is_probing or probes
        elif what == "nothing":
            if is_probing:
                breaker.gave_no_answer()
                is_probing = False
                assert breaker.state(now) == "half-open"
        elif what == "succeed":
            breaker.succeeded()
            failures, is_probing = 0, False
            assert breaker.state(now) == "closed"
        elif state == "closed" or is_probing:
            failures += 1
            breaker.failed(now, rand, at_once=what == "gone")
            opens = state != "closed" or what == "gone" or failures >= 5
            assert (breaker.state(now) == "open") is opens
            if opens:
                assert 0.75 <= breaker.until - now <= 37.5
            is_probing = False
