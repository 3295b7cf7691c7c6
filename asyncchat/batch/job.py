"""A job as it lies on disk, seen from outside: how far it is, and its report.

Not here: running it. All of it blocks, some microseconds a record, and may look at a job that runs.
"""

import fcntl
import os
from collections import Counter
from pathlib import Path

import msgspec

from asyncchat.batch.journal import final_lines, notes, read_job
from asyncchat.batch.record import Sample, decode_attempt, decode_note
from asyncchat.batch.report import Counting, Report
from asyncchat.errors import JournalError

__all__ = ["JobStatus", "report_of", "report_without_outcomes", "status_of"]


class JobStatus(msgspec.Struct, frozen=True):
    """How far a job is. `pid` is that of the process that runs it; `sample` is how it stood last, None where it never ran a second."""

    ok: int
    failures: dict[str, int]
    pid: int | None
    sample: Sample | None

    @property
    def failed(self) -> int:
        """Inputs with an error on record."""
        return sum(self.failures.values())


def status_of(directory: Path) -> JobStatus:
    """Return how far a job is.

    Raises:
        JournalError: there is no job, or it cannot be read.
    """
    _check(directory)
    ok, failures = 0, Counter[str]()
    for outcome, _ in final_lines(directory):
        if outcome.error is None:
            ok += 1
        else:
            failures[outcome.error.code] += 1
    sample = None
    for note in notes(directory, "samples", decode_note):
        sample = note if isinstance(note, Sample) else None
    return JobStatus(ok, dict(failures.most_common()), _holder(directory), sample)


def report_of(directory: Path) -> Report:
    """Return the report of a job, over all its runs.

    Raises:
        JournalError: there is no job, or it cannot be read.
    """
    made = report_without_outcomes(directory)
    for outcome, _ in final_lines(directory):
        made.outcome(outcome)
    return made.report()


def report_without_outcomes(directory: Path) -> Counting:
    """Return the report of a job in the making, for who reads its outcomes anyway.

    Raises:
        JournalError: there is no job.
    """
    _check(directory)
    made = Counting()
    for note in notes(directory, "samples", decode_note):
        made.note(note)
    for attempt in notes(directory, "attempts", decode_attempt):
        made.attempt(attempt)
    return made


def _check(directory: Path) -> None:
    if read_job(directory) is None:
        raise JournalError(
            f"there is no job in {directory}", hint="A job is the directory beside its output."
        )


def _holder(directory: Path) -> int | None:
    """Return the process that runs a job."""
    try:
        fd = os.open(directory / "lock", os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        text = os.pread(fd, 32, 0).strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(fd)
    return None
