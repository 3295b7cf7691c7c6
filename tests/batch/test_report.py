"""`batch.report`: what became of a batch, in numbers."""

import re
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncchat.batch import report as module
from asyncchat.batch.meter import BatchProgress
from asyncchat.batch.record import (
    Attempt,
    BatchError,
    Outcome,
    Sample,
    SessionNote,
    Trace,
    decode_outcome,
    encode_record,
)
from asyncchat.batch.report import Report
from asyncchat.batch.timeline import Bin
from tests.batch import simulated

ROOT = Path(__file__).parents[2]


def ok(custom_id: str = "a", **trace: Any) -> Outcome:
    made = {"n": 1, "attempts": 1, "t_end": 100.0, **trace}
    return Outcome(custom_id, msgspec.convert(made, Trace))


def bad(code: str, custom_id: str = "b", message: str = "no", **trace: Any) -> Outcome:
    return Outcome(custom_id, ok(**trace).trace, BatchError(code=code, message=message))


def life(start: float, end: float, *, is_killed: bool = False) -> list[Sample | SessionNote]:
    notes: list[Sample | SessionNote] = [SessionNote(start)]
    notes += [
        Sample(start + i, in_flight=8, limit=16, lag=0.001) for i in range(1, int(end - start) + 1)
    ]
    return notes if is_killed else [*notes, SessionNote(start, end, "end", cpu=2.0, rss=50 << 20)]


def test_empty_batch_has_a_report() -> None:
    report = Report.of([], [], [])
    assert (report.items, report.ok, report.failed, report.wall_seconds) == (0, 0, 0, 0)
    assert report.items_per_second is report.cost is report.prompt_tokens is None
    assert [*report.failures, *report.timeline, *report.slowest, *report.endpoints] == []
    assert report.times_ok.total.p50 is report.times_ok.total.max is None
    assert report.client.warnings == []
    assert report.client.lag_p99_seconds is report.client.cpu_share is None


def test_inputs_are_counted_by_what_became_of_them() -> None:
    outcomes = [ok(), bad("timeout", "t1", "too slow"), bad("timeout", "t2"), bad("cut", "c")]
    report = Report.of(outcomes, [], [])
    assert (report.items, report.ok, report.failed) == (4, 1, 3)
    assert [(f.kind, f.count, f.custom_id, f.message) for f in report.failures] == [
        ("timeout", 2, "t1", "too slow"),
        ("cut", 1, "c", "no"),
    ]


def test_batch_that_failed_altogether_has_times_of_failures_alone() -> None:
    report = Report.of([bad("server", t_total=float(i), attempts=6) for i in (1, 2, 3)], [], [])
    assert (report.ok, report.failed) == (0, 3)
    assert report.times_ok.total.count == 0
    assert report.times_failed.total.p50 == pytest.approx(2, rel=0.01)
    assert report.times_failed.total.max == 3


def test_requests_are_retries_refusals_or_first_ones() -> None:
    outcomes = [
        ok(attempts=1),
        ok(attempts=4, refused=2),
        bad("server", attempts=6, refused=1),
        bad("invalid_line", attempts=0),
    ]
    report = Report.of(outcomes, [], [])
    assert (report.requests, report.retries, report.refused) == (11, 5, 3)


def test_tokens_nobody_counted_are_unknown() -> None:
    report = Report.of([ok(), bad("cut")], [], life(90, 100))
    assert report.prompt_tokens is report.completion_tokens is report.cached_tokens is None
    assert report.completion_tokens_per_second is report.cost is None


def test_tokens_and_cost_are_summed_where_they_are_known() -> None:
    outcomes = [
        ok(tokens=(10, 5, 2), cost=0.5),
        bad("length", tokens=(1, 9, 0), cost=0.25),
        ok(tokens=None),
    ]
    report = Report.of(outcomes, [], life(90, 100))
    assert (report.prompt_tokens, report.completion_tokens, report.cached_tokens) == (11, 14, 2)
    assert (report.cost, report.completion_tokens_per_second) == (0.75, 1.4)


def test_copied_answer_costs_nothing_and_took_no_time() -> None:
    copy = ok("b", tokens=(10, 5, 0), cost=0.5, t_total=3.0, reused="a", attempts=0)
    report = Report.of([ok(tokens=(10, 5, 0), cost=0.5, t_total=3.0), copy], [], [])
    assert (report.items, report.reused, report.prompt_tokens, report.cost) == (2, 1, 10, 0.5)
    assert report.times_ok.total.count == 1
    assert report.requests == 1


def test_running_time_is_the_sum_of_all_runs() -> None:
    notes = [*life(100, 110), *life(5000, 5020)]
    outcomes = [ok(t_end=105.0), ok(t_end=5010.0), ok(t_end=5020.0)]
    report = Report.of(outcomes, [], notes)
    assert (report.runs, report.wall_seconds, report.is_open) == (2, 30, False)
    assert report.items_per_second == pytest.approx(0.1)
    assert [(gap.at, gap.seconds) for gap in report.gaps] == [(10, 4890)]
    assert [b.at for b in report.timeline if b.ok] == [5, 20, 29]


def test_only_what_was_in_flight_at_a_kill_is_sent_again() -> None:
    killed, resumed = life(100, 110, is_killed=True), life(200, 210)
    assert Report.of([], [], [*killed, *killed, *resumed]).resent_at_most == 16
    assert Report.of([], [], [*resumed, *resumed]).resent_at_most == 0


def test_run_that_has_not_noted_its_end_may_go_on() -> None:
    report = Report.of([ok(t_end=105.0)], [], life(100, 110, is_killed=True))
    assert (report.is_open, report.resent_at_most, report.wall_seconds) == (True, 0, 10)
    assert report.client.cpu_share is None


def test_samples_whose_beginning_was_lost_are_a_run() -> None:
    report = Report.of([], [], [Sample(5.0, 3), Sample(9.0, 3), SessionNote(4.0, 10.0, cpu=3.0)])
    assert (report.runs, report.wall_seconds) == (1, 5)
    assert Report.of([], [], [SessionNote(4.0, 10.0)]).wall_seconds == 6


def test_without_notes_the_records_tell_the_time() -> None:
    report = Report.of([ok(t_end=103.0), ok(t_end=100.0), ok(t_end=110.0)], [], [])
    assert (report.wall_seconds, report.items_per_second) == (10, 0.3)
    assert [b.at for b in report.timeline if b.ok] == [0, 3, 9]


def test_timeline_has_what_was_in_flight_and_what_ended() -> None:
    notes: list[Sample | SessionNote] = [
        SessionNote(0.0),
        Sample(0.5, in_flight=4, limit=8),
        Sample(1.5, in_flight=0, limit=5, pause=3.0),
        SessionNote(0.0, 2.0),
    ]
    outcomes = [ok(t_end=0.7, tokens=(3, 7, 0)), bad("cut", t_end=1.9)]
    first, second = Report.of(outcomes, [], notes).timeline
    assert (first.ok, first.failed, first.completion_tokens) == (1, 0, 7)
    assert (first.in_flight, first.limit, first.paused) == (4, 8, 0)
    assert (second.ok, second.failed, second.in_flight, second.paused) == (0, 1, 0, 1)


def test_attempts_count_by_kind_and_endpoint() -> None:
    attempts = [
        Attempt(1.0, "a", 1, "server", 500, endpoint="one"),
        Attempt(2.0, "a", 2, "server", 500, endpoint="one"),
        Attempt(3.0, "b", 1, "timeout", endpoint="two"),
        Attempt(3.0, "b", 2, "connection"),
    ]
    outcomes = [
        ok(endpoint="one", t_first=0.5, t_total=2.0),
        ok(endpoint="one"),
        bad("x", endpoint="two"),
    ]
    report = Report.of(outcomes, attempts, [])
    assert report.failed_attempts == {"server": 2, "timeout": 1, "connection": 1}
    one, two = report.endpoints
    assert (one.endpoint, one.ok, one.failed, one.failed_attempts) == ("one", 2, 0, 2)
    assert (two.endpoint, two.ok, two.failed, two.failed_attempts) == ("two", 0, 1, 1)
    assert (one.ttft_p50, one.total_p95, two.ttft_p50) == (0.5, 2.0, None)


def test_slowest_are_ten_slowest_first() -> None:
    outcomes = [ok(f"i{i}", n=i, t_total=float(i * 37 % 100)) for i in range(100)]
    report = Report.of(outcomes, [], [])
    assert [item.total for item in report.slowest] == [float(t) for t in range(99, 89, -1)]
    assert report.slowest[0].custom_id == "i27"


def test_equally_slow_items_are_those_that_came_first() -> None:
    report = Report.of([ok(f"i{i}", t_total=1.0) for i in range(30)], [], [])
    assert [item.custom_id for item in report.slowest] == [f"i{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("lag", "ttft", "is_doubtful"),
    [(0.05, 0.2, True), (0.05, 2.0, False), (0.004, 0.01, False), (0.05, None, False)],
)
def test_lag_that_makes_the_first_token_doubtful_is_told(
    lag: float, ttft: float | None, is_doubtful: bool
) -> None:
    notes: list[Sample | SessionNote] = [SessionNote(0.0)]
    notes += [Sample(float(i), lag=lag) for i in range(100)]
    report = Report.of([ok(t_first=ttft)], [], notes)
    assert report.client.lag_p99_seconds == pytest.approx(lag, rel=0.01)
    assert (len(report.client.warnings) == 1) is is_doubtful
    assert all("p99" in warning for warning in report.client.warnings)


def test_busy_client_is_told() -> None:
    notes = [SessionNote(0.0), SessionNote(0.0, 10.0, cpu=9.8, rss=7)]
    client = Report.of([], [], notes).client
    assert client.cpu_share == pytest.approx(0.98)
    assert client.rss_bytes == 7
    assert "98 % of a core" in client.warnings[0]


def test_foreign_words_are_shortened_and_foreign_kinds_bounded() -> None:
    outcomes = [bad(f"kind{i}", "i" * 5000, "m" * 50_000, endpoint=f"e{i}") for i in range(300)]
    attempts = [Attempt(0.0, "a", 1, f"kind{i}") for i in range(300)]
    report = Report.of(outcomes, attempts, [])
    assert len(report.failures) == len(report.failed_attempts) == 51
    assert (report.failures[0].kind, report.failures[0].count) == ("(others)", 250)
    assert len(report.endpoints) == 51
    assert sum(endpoint.failed for endpoint in report.endpoints) == 300
    assert max(len(f.custom_id) + len(f.message) for f in report.failures) == 700


def test_report_reads_the_records_as_the_journal_has_them() -> None:
    error = BatchError(code="length", message="cut", text="SECRET ANSWER")
    lines = [
        encode_record("a", ok(t_total=1.0).trace, body=b'{"choices":[{"text":"SECRET ANSWER"}]}'),
        encode_record("b", ok(t_total=2.0).trace, error=error),
    ]
    report = Report.of(map(decode_outcome, lines), [], [])
    assert (report.ok, report.failed) == (1, 1)
    for written in (report.json().decode(), report.text(), report.html()):
        assert "SECRET" not in written


def test_json_is_the_report_and_nothing_else() -> None:
    report = simulated.report()
    assert msgspec.json.decode(report.json(), type=Report) == report
    assert report.json().endswith(b"}\n")


@pytest.mark.parametrize(
    "cls",
    [
        *(getattr(module, name) for name in module.__all__ if name != "Counting"),
        Bin,
        BatchProgress,
    ],
)
def test_reference_gives_each_field(cls: type[msgspec.Struct]) -> None:
    page = (ROOT / "docs/reference/batch-report.md").read_text(encoding="utf-8")
    section = page.split(f"\n## {cls.__name__}\n")[1].split("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert told == [field.name for field in msgspec.structs.fields(cls)]


def stream(n: int) -> Iterator[Outcome]:
    for i in range(n):
        yield ok(
            f"item-{i}", n=i, t_end=i / 100, t_total=i % 977 / 7, t_first=0.2, endpoint=f"e{i % 9}"
        )


def peak_of(n: int) -> int:
    tracemalloc.start()
    try:
        report = Report.of(stream(n), [], [])
        assert report.items == n
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_is_the_same_for_more_inputs() -> None:
    assert peak_of(12_000) < peak_of(3000) + 100_000


@pytest.mark.slow
def test_memory_is_the_same_for_a_million_inputs() -> None:
    code = """if True:
        import resource
        from asyncchat.batch.report import Report
        from tests.batch.test_report import stream
        for n in (20_000, 1_000_000):
            assert Report.of(stream(n), [], []).items == n
            print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    few, many = map(int, done.stdout.split())
    assert many < few * 1.05
