"""What may be sent in a minute: exact where it is configured, and never wrong by an odd report where it is not."""

from math import isfinite
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.errors import RateLimit
from asyncchat.policy.window import Allowance, Taken, Window
from tests.policy.simulated import law, most_in_a_minute

# Quarters of a second and whole units: the recount is exact.
QUARTERS = st.integers(0, 200).map(lambda quarters: quarters / 4)
FULL_MINUTE = 61.0  # with the second that a request may gain on its way

# ------------------------------------------------------------------------------------------- a window


def test_window_gives_its_limit_at_once_and_the_rest_when_the_first_are_a_minute_old() -> None:
    window = Window(3)
    for _ in range(3):
        assert window.wait(10) == 0
        window.take(10)
    assert window.wait(10) == FULL_MINUTE
    assert window.wait(40.5) == 30.5
    assert window.wait(71) == 0


def test_window_waits_for_the_oldest_only() -> None:
    window = Window(2)
    window.take(0)
    window.take(20)
    assert window.wait(30) == 31
    assert window.wait(61) == 0
    window.take(61)
    assert window.wait(61) == 20


def test_amount_waits_until_enough_has_left() -> None:
    window = Window(100)
    for at in (0, 1, 2):
        window.take(at, 30)
    assert window.wait(2, 10) == 0
    assert window.wait(2, 50) == 59  # then 60 are left in it: ask again
    assert window.wait(61, 50) == 1
    assert window.wait(62, 50) == 0


def test_estimate_is_replaced_by_what_it_was() -> None:
    window = Window(100)
    taken = window.take(0, 90)
    assert window.wait(0, 20) > 0
    window.correct(taken, 80)
    assert window.wait(0, 20) == 0
    window.correct(taken, 95)
    assert window.wait(0, 20) > 0


def test_what_is_given_back_is_free_at_once() -> None:
    window = Window(1)
    taken = window.take(0)
    window.correct(taken, 0)
    assert window.wait(0) == 0


def test_correction_that_comes_after_its_minute_changes_nothing() -> None:
    window = Window(10)
    taken = window.take(0, 10)
    assert window.wait(61, 10) == 0
    window.correct(taken, 5)
    window.take(61, 10)
    assert window.wait(61, 1) == FULL_MINUTE


def test_what_is_used_has_room_for_the_errors_of_estimates() -> None:
    window = Window(1000)
    window.take(0, 100, 3.0)
    assert window.used(1) == 106
    assert window.used(1, 4.0) == 110
    window.take(30, 50)
    assert window.used(61) == 50


def test_request_for_more_than_the_limit_goes_when_nothing_else_is_in_the_window() -> None:
    window = Window(10)
    assert window.wait(0, 11) == 0
    window.take(0, 11)
    assert window.wait(0, 1) == FULL_MINUTE
    assert window.wait(61, 11) == 0


def test_request_for_more_than_the_limit_waits_for_the_others() -> None:
    window = Window(10)
    window.take(5, 1)
    assert window.wait(6, 11) == 60
    assert window.wait(66, 11) == 0


def test_request_for_more_than_the_limit_goes_when_all_was_given_back() -> None:
    window = Window(10)
    window.correct(window.take(0, 5), 0)
    assert window.wait(1, 11) == 0


Step = tuple[str, float, int, int]  # what, seconds later, of how much, which of those taken
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "take", "take", "ask", "correct", "give back"]),
        QUARTERS,
        st.integers(1, 15),
        st.integers(0, 50),
    ),
    max_size=40,
)


class Recount:
    """A window that keeps everything and counts anew each time."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.taken: list[list[float]] = []

    def sum(self, now: float) -> float:
        return sum(amount for at, amount in self.taken if at > now - FULL_MINUTE)

    def allows(self, now: float, amount: float) -> bool:
        return not self.sum(now) or self.sum(now) + amount <= self.limit


@law(150)
@given(steps=STEPS, limit=st.integers(15, 40), is_polite=st.booleans())
def test_window_is_a_recount_whatever_was_taken_corrected_and_given_back(
    steps: list[Step], limit: int, is_polite: bool
) -> None:
    window, recount, now = Window(limit), Recount(limit), 100.0
    taken: list[Taken] = []
    for what, later, amount, which in steps:
        now += later
        if what == "ask" or (what == "take" and is_polite):
            wait = window.wait(now, amount)
            assert (wait == 0) is recount.allows(now, amount)
            assert window._sum == recount.sum(now)
            if wait:
                continue
        if what == "take":
            taken.append(window.take(now, amount))
            recount.taken.append([now, amount])
        elif what != "ask" and taken:
            corrected = amount if what == "correct" else 0
            window.correct(taken[which % len(taken)], corrected)
            recount.taken[which % len(taken)][1] = corrected
    window.wait(now)
    assert window._sum == recount.sum(now)


@law(100)
@given(
    ages=st.lists(st.floats(0, 59), min_size=1, max_size=30),
    amount=st.integers(1, 30),
    began=st.floats(0, 1e7),
)
def test_whoever_waits_as_long_as_told_may_go_in_the_end(
    ages: list[float], amount: int, began: float
) -> None:
    window, now = Window(12), began + 60
    for age in sorted(ages, reverse=True):
        window.take(now - age, 7)
    for _ in range(2 * len(ages) + 2):
        wait = window.wait(now, amount)
        if not wait:
            break
        assert 0 < wait <= FULL_MINUTE
        now += wait
    assert window.wait(now, amount) == 0
    assert now <= began + 60 + FULL_MINUTE + 0.01


@law(60)
@given(
    pauses=st.lists(st.floats(0, 20), min_size=1, max_size=60),
    ways=st.lists(st.floats(0, 0.99), min_size=60, max_size=60),
    limit=st.integers(1, 8),
)
def test_no_minute_at_the_server_has_more_than_the_limit_though_requests_overtake_each_other(
    pauses: list[float], ways: list[float], limit: int
) -> None:
    window, now, arrivals = Window(limit), 0.0, []
    for pause, way in zip(pauses, ways, strict=False):
        now += pause
        while wait := window.wait(now):
            now += wait
        window.take(now)
        arrivals.append((now + way, 1.0))
    assert most_in_a_minute(arrivals) <= limit


# --------------------------------------------------------------------------------------- an allowance


def reported(report: RateLimit, now: float = 0.0) -> Allowance:
    allowance = Allowance()
    allowance.reported(report, now, allowance.taken)
    return allowance


def test_nothing_is_bounded_before_a_report() -> None:
    allowance = Allowance()
    for _ in range(100):
        assert allowance.wait(0, 1e9) == 0
        allowance.take(1e9)
    assert not allowance.is_bounding
    assert allowance.last is None


def test_what_is_left_may_go_and_the_rest_as_it_comes_back() -> None:
    allowance = reported(RateLimit(60, 2, 58.0))  # one comes back each second
    for _ in range(2):
        assert allowance.wait(0) == 0
        allowance.take()
    assert allowance.wait(0) == pytest.approx(1)
    assert allowance.wait(0.25) == pytest.approx(0.75)
    assert allowance.wait(1) == 0
    assert allowance.wait(1, 10) == pytest.approx(9)


def test_what_was_taken_since_the_request_is_not_left() -> None:
    allowance = Allowance()
    allowance.take()
    before = allowance.taken
    allowance.take()
    allowance.take()
    allowance.reported(RateLimit(60, 2, 58.0), 0, before)
    assert allowance.wait(0) == pytest.approx(1)


def test_what_was_never_sent_is_left() -> None:
    allowance = reported(RateLimit(60, 1, 59.0))
    allowance.take()
    assert allowance.wait(0) > 0
    allowance.give_back(1)
    assert allowance.wait(0) == 0
    assert allowance.taken == 0


def test_request_for_more_than_the_limit_waits_until_all_is_there() -> None:
    allowance = reported(RateLimit(60, 30, 30.0))
    assert allowance.wait(0, 1000) == pytest.approx(30)
    assert allowance.wait(30, 1000) == 0


def test_report_holds_until_its_time_is_over() -> None:
    allowance = reported(RateLimit(60, 0, 20.0), now=5)
    assert allowance.wait(24.99, 60) > 0
    assert allowance.is_bounding
    assert allowance.wait(25, 60) == 0


def test_server_is_asked_again_after_a_minute_though_it_says_a_day() -> None:
    allowance = reported(RateLimit(None, 0, 86_400.0))
    assert allowance.wait(0) == 60
    assert allowance.wait(60) == 0


def test_limit_that_is_not_told_comes_back_at_once() -> None:
    allowance = reported(RateLimit(None, 1, 30.0))
    assert allowance.wait(0) == 0
    allowance.take()
    assert allowance.wait(0) == 30
    assert allowance.wait(29) == 1


def test_refusal_that_asks_for_the_whole_reset_shows_a_limit_that_comes_back_at_once() -> None:
    allowance = Allowance()
    allowance.refused(RateLimit(60, 0, 50.0), 49.5, 0)
    allowance.reported(RateLimit(60, 0, 40.0), 100, allowance.taken)
    assert allowance.wait(100) == 40


@pytest.mark.parametrize("asked", [1.0, 20.0])
def test_refusal_that_asks_for_less_than_the_reset_shows_a_limit_that_comes_back_bit_by_bit(
    asked: float,
) -> None:
    allowance = Allowance()
    allowance.refused(RateLimit(60, 0, 50.0), 49.0, 0)
    allowance.refused(RateLimit(60, 0, 60.0), asked, 0)
    allowance.reported(RateLimit(60, 0, 60.0), 100, allowance.taken)
    assert allowance.wait(100) == pytest.approx(1)


@pytest.mark.parametrize(
    ("report", "asked"),
    [
        (RateLimit(60, 30, 50.0), 50.0),  # it refuses for another reason
        (RateLimit(60, 0, None), 50.0),
        (RateLimit(60, 0, 50.0), None),
        (None, 50.0),
    ],
)
def test_refusal_that_shows_nothing_changes_nothing(
    report: RateLimit | None, asked: float | None
) -> None:
    allowance = Allowance()
    allowance.refused(report, asked, 0)
    assert allowance.last is report
    allowance.reported(RateLimit(60, 0, 60.0), 100, allowance.taken)
    assert allowance.wait(100) == pytest.approx(1)


@pytest.mark.parametrize(
    "report",
    [
        RateLimit(),
        RateLimit(60),
        RateLimit(60, 5),
        RateLimit(60, None, 5.0),
        RateLimit(60, 0, 0.0),
    ],
)
def test_report_that_says_too_little_bounds_nothing_and_is_kept(report: RateLimit) -> None:
    allowance = reported(RateLimit(60, 0, 50.0))
    assert allowance.wait(0.5) > 0
    allowance.reported(report, 1, 0.0)
    assert allowance.wait(1, 1e6) == 0
    assert allowance.last is report


def test_more_left_than_the_limit_is_simply_left() -> None:
    allowance = reported(RateLimit(10, 20, 10.0))
    for _ in range(20):
        assert allowance.wait(0) == 0
        allowance.take()


COUNT = st.none() | st.integers(0, 1000) | st.sampled_from([10**9, 10**15])
REPORTS = st.builds(RateLimit, COUNT, COUNT, st.none() | st.floats(0, 100) | st.just(1e9))
SENSIBLE = REPORTS.filter(
    lambda report: (
        report.limit is None or report.remaining is None or report.remaining <= report.limit
    )
)


def live(allowance: Allowance, events: list[tuple[str, float, Any]]) -> float:
    """Let all of it happen, and return when it is over. Every wait on the way makes sense."""
    now = 1000.0
    for what, later, value in events:
        now += later
        if what == "report":
            allowance.reported(value, now, allowance.taken - later)
        elif what == "refusal":
            allowance.refused(value, later or None, now)
        elif what == "take":
            allowance.take(value)
        else:
            allowance.give_back(value)
        for amount in (1.0, 500.0, 1e12):
            wait = allowance.wait(now, amount)
            assert isfinite(wait)
            assert 0 <= wait <= 60
    return now


def events_of(reports: st.SearchStrategy[RateLimit]) -> st.SearchStrategy[list[Any]]:
    return st.lists(
        st.one_of(
            st.tuples(st.just("report"), QUARTERS, reports),
            st.tuples(st.just("refusal"), QUARTERS, st.none() | reports),
            st.tuples(st.sampled_from(["take", "give back"]), QUARTERS, st.integers(0, 2000)),
        ),
        max_size=25,
    )


@law(150)
@given(events=events_of(SENSIBLE), amount=st.integers(1, 2000))
def test_odd_reports_never_lead_to_a_wait_that_makes_no_sense(
    events: list[Any], amount: int
) -> None:
    allowance = Allowance()
    now = live(allowance, events)
    for _ in range(20):
        wait = allowance.wait(now, amount)
        if not wait:
            break
        now += max(wait, 1e-6)  # a clock is no finer
    assert allowance.wait(now, amount) == 0


def test_wait_is_not_negative_where_more_was_left_than_the_limit() -> None:
    allowance = reported(RateLimit(10, 20, 10.0))
    allowance.take(20)
    assert allowance.wait(5) > 0


def test_wait_is_a_number_though_the_reset_is_as_good_as_nothing() -> None:
    allowance = reported(RateLimit(10**9, 0, 1e-300))
    assert isfinite(allowance.wait(0))
