"""`batch.timeline`: running time without gaps, in bins that widen."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.batch.timeline import Clock, Timeline


def filled(times: list[float]) -> Timeline:
    timeline = Timeline()
    for t in times:
        timeline.at(t).ok += 1
    return timeline


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300))
def test_nothing_is_lost_in_whatever_order_it_comes(times: list[float]) -> None:
    bins = filled(times).bins(min(times), max(times))
    assert sum(b.ok for b in bins) == len(times)
    assert len(bins) <= 240
    assert bins[0].at == 0
    assert all(b.at + b.seconds == pytest.approx(after.at) for b, after in pairwise(bins))
    assert bins[-1].at + bins[-1].seconds <= max(max(times) - min(times), 1.0) * (1 + 1e-9)


def test_short_batch_is_seen_second_by_second() -> None:
    bins = filled([0.1, 0.2, 5.5]).bins(0, 6)
    assert [(b.at, b.seconds, b.ok) for b in bins] == [
        (0, 1, 2),
        (1, 1, 0),
        (2, 1, 0),
        (3, 1, 0),
        (4, 1, 0),
        (5, 1, 1),
    ]


def test_long_batch_has_wider_bins_not_more() -> None:
    timeline = filled([float(t) for t in range(100_000)])
    bins = timeline.bins(0, 100_000)
    assert 120 <= len(bins) <= 240
    assert {b.seconds for b in bins[:-1]} == {512.0}
    assert {b.ok for b in bins[:-1]} == {512}


def test_what_was_looked_at_is_a_mean_and_unknown_where_nobody_looked() -> None:
    timeline = Timeline()
    for in_flight, limit, paused in ((10, 20, 0), (20, None, 1)):
        cell = timeline.at(0.5)
        cell.samples += 1
        cell.in_flight += in_flight
        cell.paused += paused
        if limit is not None:
            cell.limited += 1
            cell.limit += limit
    timeline.at(1.5).ok += 1
    looked, unseen = timeline.bins(0, 2)
    assert (looked.in_flight, looked.limit, looked.paused) == (15, 20, 0.5)
    assert (unseen.in_flight, unseen.limit, unseen.paused) == (None, None, 0.0)


def test_what_happens_at_the_very_end_is_in_the_last_bin() -> None:
    bins = filled([0.0, 2.0]).bins(0, 2)
    assert [b.ok for b in bins] == [1, 1]


def test_nothing_has_no_bins() -> None:
    assert Timeline().bins(0, 0) == []


def test_clock_stands_still_between_two_runs() -> None:
    clock = Clock()
    clock.start(100)
    clock.reach(110)
    clock.start(1000)
    clock.reach(1020)
    assert clock.seconds == 30
    assert [clock.at(t) for t in (50, 100, 105, 110, 500, 1000, 1020, 2000)] == [
        0,
        0,
        5,
        10,
        10,
        10,
        30,
        30,
    ]
    assert clock.resumed == [(10, 890)]


def test_clock_that_was_set_back_does_not_run_backwards() -> None:
    clock = Clock()
    clock.start(100)
    clock.reach(110)
    clock.reach(90)
    assert clock.seconds == 10


def test_very_many_runs_count_as_one_at_the_end() -> None:
    clock = Clock()
    for i in range(5000):
        clock.start(10.0 * i)
        clock.reach(10.0 * i + 1)
    assert len(clock.resumed) == 999
    assert clock.seconds == 999 + 40_001 + 0


def test_without_runs_time_is_the_time_of_day() -> None:
    assert (Clock().at(123.0), Clock().seconds, Clock().resumed) == (123.0, 0.0, [])
