"""`batch.job`: a job as it lies on disk, seen from outside."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from asyncchat.batch.job import report_of, status_of
from asyncchat.batch.journal import Job, JobLock, Journal, write_job
from asyncchat.batch.record import (
    Attempt,
    BatchError,
    Kind,
    Sample,
    SessionNote,
    Trace,
    encode_record,
)
from asyncchat.errors import JournalError


def job(directory: Path, records: Iterable[tuple[str, Kind | None]]) -> Path:
    """A job with records: a name, and the kind of its failure."""
    directory.mkdir(exist_ok=True)
    write_job(directory, Job(id="1"))
    with Journal(directory) as journal:
        for n, (key, kind) in enumerate(records, 1):
            error = None if kind is None else BatchError(kind, "why")
            body = None if error else b'{"choices":[]}'
            journal.append(encode_record(key, Trace(n, t_end=100.0 + n), body=body, error=error))
    return directory


def note(directory: Path, name: str, *notes: msgspec.Struct) -> None:
    with (directory / f"{name}.jsonl").open("ab") as file:
        file.writelines(msgspec.json.encode(one) + b"\n" for one in notes)


def test_answers_and_failures_are_counted_by_kind_the_most_frequent_first(tmp_path: Path) -> None:
    directory = job(
        tmp_path,
        [("a", None), ("b", "server"), ("c", "timeout"), ("d", "timeout"), ("e", None)],
    )
    status = status_of(directory)
    assert (status.ok, status.failed, status.pid) == (2, 3, None)
    assert list(status.failures.items()) == [("timeout", 2), ("server", 1)]


def test_only_the_record_that_counts_is_counted(tmp_path: Path) -> None:
    status = status_of(job(tmp_path, [("a", "timeout"), ("b", "server"), ("a", None)]))
    assert (status.ok, status.failures) == (1, {"server": 1})


def test_job_that_never_asked_anything_has_a_status_and_a_report(tmp_path: Path) -> None:
    directory = job(tmp_path, [])
    status = status_of(directory)
    assert (status.ok, status.failed, status.sample) == (0, 0, None)
    assert report_of(directory).items == 0


@pytest.mark.parametrize("look", [status_of, report_of])
def test_directory_without_a_job_is_an_error(look: object, tmp_path: Path) -> None:
    assert callable(look)
    for directory in (tmp_path, tmp_path / "none"):
        with pytest.raises(JournalError, match="there is no job in"):
            look(directory)


@pytest.mark.parametrize("look", [status_of, report_of])
@pytest.mark.parametrize("text", ["{", "[]", '{"id": 1}', "\x00"])
def test_file_that_is_no_jobs_is_an_error(look: object, text: str, tmp_path: Path) -> None:
    assert callable(look)
    (tmp_path / "job.json").write_text(text)
    with pytest.raises(JournalError, match=r"job\.json is no job's"):
        look(tmp_path)


def test_sample_is_how_it_stood_last_in_the_run_that_goes_on(tmp_path: Path) -> None:
    directory = job(tmp_path, [])
    note(directory, "samples", SessionNote(1.0), Sample(2.0, 5, 64), Sample(3.0, 7, 64, 9.0))
    assert status_of(directory).sample == Sample(3.0, 7, 64, 9.0)
    # A run that has begun and not yet stood for a second.
    note(directory, "samples", SessionNote(1.0, 4.0, "end"), SessionNote(5.0))
    assert status_of(directory).sample is None


def test_notes_that_are_torn_or_lost_cost_no_status_and_no_report(tmp_path: Path) -> None:
    directory = job(tmp_path, [("a", None), ("b", "server")])
    note(directory, "samples", SessionNote(100.0), Sample(101.0, 1))
    with (directory / "samples.jsonl").open("ab") as file:
        file.write(b'{"what":"sample","t":10')
    assert status_of(directory).sample == Sample(101.0, 1)
    assert report_of(directory).items == 2
    (directory / "samples.jsonl").unlink()
    assert report_of(directory).items == 2


def test_report_is_over_all_runs(tmp_path: Path) -> None:
    directory = job(tmp_path, [("a", None), ("b", None)])
    with Journal(directory) as journal:  # the next run
        journal.append(
            encode_record("c", Trace(3, t_end=501.0), error=BatchError("server", "why"))
        )
    note(directory, "samples", SessionNote(100.0), SessionNote(100.0, 110.0, "interrupted"))
    note(directory, "samples", SessionNote(500.0), SessionNote(500.0, 502.0, "end"))
    note(directory, "attempts", Attempt(501.0, "c", 1, "server", 500))
    report = report_of(directory)
    assert (report.items, report.ok, report.failed, report.runs) == (3, 2, 1, 2)
    assert report.wall_seconds == pytest.approx(12.0)
    assert report.failed_attempts == {"server": 1}


# --------------------------------------------------------------------------------------- who runs it


def test_process_that_runs_it_is_named_until_it_has_ended(tmp_path: Path) -> None:
    directory = job(tmp_path, [("a", None)])
    code = (
        "import sys; from pathlib import Path; from asyncchat.batch.journal import JobLock\n"
        "lock = JobLock(Path(sys.argv[1])); print('locked', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, directory],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert status_of(directory).pid == other.pid
        other.kill()
    assert status_of(directory).pid is None


def test_looking_does_not_get_in_the_way_of_a_run_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the very moment of looking."""
    import fcntl

    directory = job(tmp_path, [])
    JobLock(directory).close()
    real, looking, tried = fcntl.flock, threading.Event(), threading.Event()
    look = threading.Thread(target=status_of, args=(directory,))

    def flock(fd: int, how: int) -> None:
        real(fd, how)
        if how & fcntl.LOCK_SH:
            looking.set()
            tried.wait(10)

    def sleep(_: float) -> None:
        tried.set()
        look.join()

    monkeypatch.setattr(fcntl, "flock", flock)
    monkeypatch.setattr("asyncchat.batch.journal.time.sleep", sleep)
    look.start()
    looking.wait(10)
    JobLock(directory).close()
    assert tried.is_set()


def test_looking_writes_nothing(tmp_path: Path) -> None:
    directory = job(tmp_path, [("a", None)])
    before = {path.name: path.stat().st_mtime_ns for path in directory.iterdir()}
    os.chmod(directory, 0o500)
    try:
        status_of(directory)
        report_of(directory)
    finally:
        os.chmod(directory, 0o700)
    assert {path.name: path.stat().st_mtime_ns for path in directory.iterdir()} == before
