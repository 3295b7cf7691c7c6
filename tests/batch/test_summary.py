"""`batch.summary`: the report as a table for a terminal."""

from asyncchat.batch.record import BatchError, Outcome, Sample, SessionNote, Trace
from asyncchat.batch.report import Report
from tests.batch import simulated


def test_table_fits_a_terminal() -> None:
    lines = simulated.report(lag=0.2).text().splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("inputs    40,000")
    assert any(line.startswith("warning: ") for line in lines)
    heads = [line.split()[0] for line in lines if line and not line.startswith(" ")]
    for head in ("requests", "time", "tokens", "cost", "queue", "first", "total", "failures"):
        assert head in heads


def test_empty_batch_has_a_table() -> None:
    text = Report.of([], [], []).text()
    assert text.startswith("inputs    0")
    assert "unknown: no server counted them" in text
    assert "cost      unknown" in text
    assert "p50" not in text


def test_times_that_nobody_measured_have_no_row() -> None:
    lines = Report.of([Outcome("a", Trace(n=1, t_total=2.0))], [], []).text().splitlines()
    assert any(line.startswith("total ") for line in lines)
    assert not any(line.startswith(("queue", "first token", "failed ")) for line in lines)


def test_run_that_is_open_is_told() -> None:
    assert "has not noted its end" in Report.of([], [], [SessionNote(0.0)]).text()


def test_what_is_sent_again_after_a_kill_is_told() -> None:
    notes: list[Sample | SessionNote] = [
        SessionNote(0.0),
        Sample(1.0, in_flight=7),
        SessionNote(9.0),
        SessionNote(9.0, 10.0),
    ]
    assert "resent at most 7" in Report.of([], [], notes).text()


def test_copied_answers_are_told() -> None:
    copy = Outcome("b", Trace(n=2, reused="a"))
    assert "copied 1" in Report.of([copy], [], []).text()


def test_foreign_words_move_no_cursor_and_make_no_line() -> None:
    error = BatchError(code="other\x1b]0;x\x07", message="a\x1b[2J\nb\r\u202ec")
    text = Report.of([Outcome("\x1b[31mid\n", Trace(n=1), error)], [], []).text()
    assert all(character.isprintable() or character == "\n" for character in text)
    (line,) = (line for line in text.splitlines() if "id" in line and "31m" in line)
    assert line.startswith("other")
