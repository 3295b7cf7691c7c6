"""`batch.meter`: counts, speeds and times of a batch that is running."""

import tracemalloc
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.batch.meter import BatchProgress, Meter
from asyncchat.batch.record import Trace

TRACE = Trace(n=1, t_first=0.2, t_total=1.0, tokens=(100, 50, 0), cost=0.01)


def shown(
    meter: Meter,
    now: float,
    *,
    total: int | None = None,
    position: float | None = None,
    pause: float = 0.0,
    in_flight: int = 0,
) -> BatchProgress:
    return meter.progress(
        now, in_flight=in_flight, limit=64, pause=pause, total=total, position=position
    )


def steady(meter: Meter, per_second: int, seconds: int, start: int = 0) -> None:
    for i in range(per_second * seconds):
        meter.noted(start + i / per_second, TRACE, None)


def test_new_meter_knows_nothing() -> None:
    progress = shown(Meter(5.0), 5.0)
    assert (progress.done, progress.failed, progress.finished) == (0, 0, 0)
    assert progress.items_per_second == 0
    assert progress.tokens_per_second is None
    assert progress.ttft_p50 is progress.latency_p95 is progress.prompt_tokens is None
    assert progress.cost is progress.projected_cost is progress.fraction is None
    assert progress.eta is None


def test_counts_are_told_apart() -> None:
    meter = Meter(0.0)
    meter.skipped(7)
    meter.noted(1.0, TRACE, None)
    for kind in ("timeout", "server", "timeout"):
        meter.noted(1.0, TRACE, kind)
    meter.retried(1.0, "server")
    meter.refused(1.0)
    meter.refused(2.0)
    progress = shown(meter, 2.0, total=20, in_flight=3)
    assert (progress.done, progress.failed, progress.skipped) == (1, 3, 7)
    assert (progress.retried, progress.refused, progress.in_flight) == (1, 2, 3)
    assert progress.failures == {"timeout": 2, "server": 1}
    assert progress.finished == 11
    assert progress.fraction == pytest.approx(0.55)


@pytest.mark.parametrize("seconds", [1, 10, 29, 30, 31, 300])
def test_speed_is_that_of_the_last_thirty_seconds(seconds: int) -> None:
    meter = Meter(0.0)
    steady(meter, 40, seconds)
    progress = shown(meter, seconds)
    assert progress.items_per_second == pytest.approx(40, rel=0.02)
    assert progress.tokens_per_second == pytest.approx(2000, rel=0.02)


def test_speed_forgets_what_was_before() -> None:
    meter = Meter(0.0)
    steady(meter, 100, 60)
    steady(meter, 10, 30, start=60)
    assert shown(meter, 90).items_per_second == pytest.approx(10, rel=0.02)
    assert shown(meter, 105).items_per_second == pytest.approx(5, rel=0.05)
    assert shown(meter, 121).items_per_second == 0
    assert shown(meter, 100_000).items_per_second == 0


def test_first_answer_is_no_infinite_speed() -> None:
    meter = Meter(0.0)
    meter.noted(0.0, TRACE, None)
    assert shown(meter, 0.0).items_per_second == 2.0


def test_times_are_those_of_answers() -> None:
    meter = Meter(0.0)
    for i in range(1, 101):
        meter.noted(i, Trace(n=i, t_first=i / 100, t_total=float(i)), None)
    meter.noted(101, Trace(n=101, t_first=90.0, t_total=900.0), "timeout")
    progress = shown(meter, 101)
    assert progress.ttft_p50 == pytest.approx(0.5, rel=0.01)
    assert progress.ttft_p95 == pytest.approx(0.95, rel=0.01)
    assert progress.latency_p50 == pytest.approx(50, rel=0.01)
    assert progress.latency_p95 == pytest.approx(95, rel=0.01)


def test_tokens_nobody_counted_are_unknown_and_not_none() -> None:
    meter = Meter(0.0)
    meter.noted(1, Trace(n=1), None)
    progress = shown(meter, 2)
    assert progress.prompt_tokens is progress.completion_tokens is None
    assert progress.tokens_per_second is None
    meter.noted(2, Trace(n=2, tokens=(5, 0, 0)), None)
    progress = shown(meter, 2)
    assert (progress.prompt_tokens, progress.completion_tokens) == (5, 0)
    assert progress.tokens_per_second == 0


def test_copied_answer_is_counted_but_not_paid_again() -> None:
    meter = Meter(0.0)
    meter.noted(1, TRACE, None)
    meter.noted(1, Trace(n=2, tokens=(100, 50, 0), cost=0.01, t_total=9.0, reused="a"), None)
    progress = shown(meter, 2)
    assert (progress.done, progress.prompt_tokens, progress.cost) == (2, 100, 0.01)
    assert progress.latency_p95 == pytest.approx(1.0)


def test_projected_cost_is_what_all_will_have_cost() -> None:
    meter = Meter(0.0)
    meter.skipped(100)
    steady(meter, 10, 10)
    progress = shown(meter, 10, total=300)
    assert progress.cost == pytest.approx(1.0)
    assert progress.projected_cost == pytest.approx(2.0)
    assert shown(meter, 10).projected_cost is None


@given(st.integers(2, 200), st.integers(5, 100), st.integers(0, 2**32))
def test_end_of_a_steady_batch_is_within_its_range(speed: int, seconds: int, seed: int) -> None:
    meter, random, now = Meter(0.0), Random(seed), 0.0
    total = 4 * speed * seconds
    for _ in range(speed * seconds):
        now += random.uniform(0.9, 1.1) / speed
        meter.noted(now, TRACE, None)
    eta = shown(meter, now, total=total).eta
    assert eta is not None
    assert eta[0] <= 3 * seconds * 1.05
    assert 3 * seconds * 0.95 <= eta[1]


def test_end_is_less_certain_after_a_change_of_speed() -> None:
    meter = Meter(0.0)
    steady(meter, 100, 100)
    steady(meter, 10, 40, start=100)
    eta = shown(meter, 140, total=20_000).eta
    assert eta is not None
    assert eta[0] < 9600 / 74
    assert eta[1] > 9600 / 10


def test_end_is_unknown_before_anything_can_be_said() -> None:
    meter = Meter(0.0)
    for _ in range(3):
        meter.noted(1.0, TRACE, None)
    assert shown(meter, 1.0, total=100).eta is None
    meter.noted(1.0, TRACE, None)
    assert shown(meter, 1.0, total=100).eta is not None
    assert shown(meter, 1.0).eta is None


def test_end_comes_after_the_pause_and_the_last_answer() -> None:
    meter = Meter(0.0)
    steady(meter, 100, 30)
    low, high = shown(meter, 30, total=6000).eta or (0, 0)
    paused = shown(meter, 30, total=6000, pause=60).eta
    assert paused == (low + 60, high + 60)
    assert high > 30 + 1.0


def test_end_of_all_is_now() -> None:
    meter = Meter(0.0)
    meter.skipped(10)
    progress = shown(meter, 1.0, total=10)
    assert (progress.eta, progress.fraction) == ((0.0, 0.0), 1.0)
    assert shown(Meter(0.0), 1.0, total=0).fraction == 1.0


def test_input_that_is_not_counted_is_judged_by_how_much_was_read() -> None:
    meter = Meter(0.0)
    steady(meter, 10, 20)
    progress = shown(meter, 20, position=0.25, in_flight=50)
    assert progress.expected == 1000
    assert progress.fraction == pytest.approx(0.2)
    assert progress.eta is not None
    assert progress.eta[0] <= 80 <= progress.eta[1]


def test_memory_does_not_grow() -> None:
    meter = Meter(0.0)
    steady(meter, 100, 60)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        steady(meter, 500, 100, start=60)
        assert tracemalloc.get_traced_memory()[0] - before < 10_000
    finally:
        tracemalloc.stop()
