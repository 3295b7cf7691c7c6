"""`batch.histogram`: percentiles within 1 %, in fixed memory."""

import pickle
from itertools import pairwise
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.batch.histogram import Bar, Histogram

SHARES = (0.0, 0.01, 0.5, 0.9, 0.95, 0.99, 1.0)
times = st.floats(1e-6, 1e6, exclude_min=True)


def made(values: list[float]) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


def exact(values: list[float], share: float) -> float:
    return sorted(values)[max(1, ceil(share * len(values))) - 1]


def state(histogram: Histogram) -> tuple[object, ...]:
    return (
        list(histogram.counts),
        histogram.count,
        histogram.smallest,
        histogram.largest,
        pytest.approx(histogram.sum),
    )


@given(st.lists(times, min_size=1, max_size=200))
def test_percentiles_are_at_most_one_per_cent_beside_the_exact_ones(values: list[float]) -> None:
    for share, told in zip(SHARES, made(values).percentiles(*SHARES), strict=True):
        assert told is not None
        assert abs(told - exact(values, share)) <= 0.01 * exact(values, share)


@given(st.lists(times, max_size=50), st.lists(times, max_size=50))
def test_merging_gives_what_one_histogram_of_all_would(a: list[float], b: list[float]) -> None:
    merged = made(a)
    merged.merge(made(b))
    assert state(merged) == state(made(a + b))


def test_count_mean_and_ends_are_exact() -> None:
    histogram = made([0.1, 0.2, 0.6])
    assert (histogram.count, histogram.smallest, histogram.largest) == (3, 0.1, 0.6)
    assert histogram.mean == pytest.approx(0.3)


def test_percentile_of_one_value_is_that_value() -> None:
    assert made([0.123]).percentiles(0, 0.5, 1) == [0.123] * 3


def test_nothing_has_no_percentiles_no_mean_and_no_bars() -> None:
    empty = Histogram()
    assert empty.percentiles(0.5, 0.99) == [None, None]
    assert empty.mean is None
    assert empty.bars() == []


@pytest.mark.parametrize("value", [0.0, -3.0, 1e-9, float("nan")])
def test_what_takes_no_time_counts_as_none(value: float) -> None:
    assert made([value]).percentiles(0.5) == [0.0]
    assert made([value]).sum == 0.0


@pytest.mark.parametrize("value", [1e6, 1e7, 1e300, float("inf")])
def test_what_takes_for_ever_counts_as_the_longest_time(value: float) -> None:
    assert made([value]).percentiles(0.5) == [1e6]


@given(st.lists(times, min_size=1, max_size=100))
def test_bars_hold_every_value_and_touch_each_other(values: list[float]) -> None:
    bars = made(values).bars()
    assert sum(bar.count for bar in bars) == len(values)
    assert bars[0].low <= min(values) * (1 + 1e-9)
    assert max(values) <= bars[-1].high * (1 + 1e-9)
    for left, right in pairwise(bars):
        assert left.high == pytest.approx(right.low)


def test_bars_of_two_histograms_are_the_same_steps() -> None:
    wide, narrow = made([0.01, 1.0, 90.0]).bars(), made([1.0]).bars()
    assert narrow == [Bar(narrow[0].low, narrow[0].high, 1)]
    assert narrow[0] in wide


def test_histogram_crosses_to_another_process() -> None:
    histogram = made([0.5, 2.0])
    assert state(pickle.loads(pickle.dumps(histogram))) == state(histogram)
