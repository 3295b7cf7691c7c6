"""A bound on requests at once that follows the server: up while it stays quick, half as many when it says stop."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.policy.adaptive import AdaptiveLimit
from tests.policy.simulated import law

BUSY = 10**6  # in flight: the bound is in use


def test_bound_begins_at_sixteen_or_at_its_most() -> None:
    assert AdaptiveLimit(None).limit == 16
    assert AdaptiveLimit(1000).limit == 16
    assert AdaptiveLimit(5).limit == 5


def test_bound_grows_by_one_with_each_good_answer_while_there_was_no_trouble() -> None:
    limit = AdaptiveLimit(None)
    for _ in range(16):
        limit.answered(1.0, BUSY)
    assert limit.limit == 32


def test_bound_grows_up_to_its_most() -> None:
    limit = AdaptiveLimit(20)
    for _ in range(16):
        limit.answered(1.0, BUSY)
    assert limit.limit == 20


def test_refusal_halves() -> None:
    limit = AdaptiveLimit(None)
    limit.overloaded(sent_at=0, now=1)
    assert limit.limit == 8


def test_refusals_of_requests_that_were_under_way_together_halve_once() -> None:
    limit = AdaptiveLimit(None)
    for sent_at in (0.0, 0.2, 0.9, 1.0):
        limit.overloaded(sent_at, now=1 + sent_at)
    assert limit.limit == 8
    limit.overloaded(sent_at=1.1, now=3)
    assert limit.limit == 4


def test_bound_never_falls_below_one() -> None:
    limit = AdaptiveLimit(None)
    for sent_at in range(20):
        limit.overloaded(sent_at, sent_at + 0.5)
    assert limit.limit == 1


def test_bound_comes_back_quickly_and_grows_by_one_a_round_near_where_there_was_trouble() -> None:
    limit = AdaptiveLimit(None)
    limit.overloaded(0, 1)
    for _ in range(6):
        limit.answered(1.0, 8)
    assert limit.limit == 14  # 0.85 of 16
    for _ in range(14):
        limit.answered(1.0, 14)
    assert limit.limit == pytest.approx(15, abs=0.1)


@pytest.mark.parametrize(("in_flight", "grown"), [(7, 16), (8, 17)])
def test_bound_that_is_not_half_used_does_not_grow(in_flight: int, grown: float) -> None:
    limit = AdaptiveLimit(None)
    limit.answered(1.0, in_flight)
    assert limit.limit == grown


def test_bound_does_not_grow_while_answers_take_twice_as_long_as_at_their_best() -> None:
    limit = AdaptiveLimit(None)
    for _ in range(50):
        limit.answered(0.1, BUSY)
    for _ in range(30):  # until the mean has followed
        limit.answered(0.4, BUSY)
    grown = limit.limit
    for _ in range(50):
        limit.answered(0.4, BUSY)
    assert limit.limit == grown


def test_bound_grows_again_when_answers_are_as_quick_as_before() -> None:
    limit = AdaptiveLimit(None)
    for latency in [0.1] * 50 + [0.4] * 50 + [0.1] * 30:
        limit.answered(latency, BUSY)
    grown = limit.limit
    limit.answered(0.1, BUSY)
    assert limit.limit == pytest.approx(grown + 1 / grown)  # slowly, since there was trouble


def test_a_few_milliseconds_more_are_no_sign_of_trouble() -> None:
    limit = AdaptiveLimit(None)
    for _ in range(10):
        limit.answered(0.001, BUSY)
    for _ in range(10):
        limit.answered(0.01, BUSY)
    assert limit.limit == 36


def test_slower_answers_are_the_new_best_after_a_while() -> None:
    """A model that is slower from now on must not hold the bound down for ever."""
    limit = AdaptiveLimit(None)
    for _ in range(10):
        limit.answered(0.1, BUSY)
    for _ in range(10_000):
        limit.answered(0.4, BUSY)
    grown = limit.limit
    limit.answered(0.4, BUSY)
    assert limit.limit > grown


def test_answers_that_come_at_once_are_borne() -> None:
    limit = AdaptiveLimit(None)
    for _ in range(3):
        limit.answered(0.0, BUSY)
    assert limit.limit == 19


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("good"), st.floats(0, 100), st.integers(0, 200)),
        st.tuples(st.just("refused"), st.floats(0, 5), st.floats(0, 10)),
    ),
    max_size=60,
)


@law(120)
@given(events=EVENTS, most=st.none() | st.integers(1, 100))
def test_bound_stays_between_one_and_its_most_and_halves_once_a_round(
    events: list[Any], most: int | None
) -> None:
    limit, now, halved_at = AdaptiveLimit(most), 0.0, -1.0
    for what, first, second in events:
        before = limit.limit
        if what == "good":
            limit.answered(first, second)
            if second < before / 2:
                assert limit.limit == before
            assert before <= limit.limit <= before + 1
        else:
            now += first
            sent_at = max(now - second, 0.0)
            limit.overloaded(sent_at, now)
            if sent_at > halved_at:
                assert limit.limit == max(before / 2, 1)
                halved_at = now
            else:
                assert limit.limit == before
        assert 1 <= limit.limit <= (most or float("inf"))
