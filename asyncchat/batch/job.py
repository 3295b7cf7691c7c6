"""A job as it lies on disk, seen from outside: how far it is, and its report.

Not here: running it. All of it blocks, some microseconds a record, and may look at a job that runs.
"""

import fcntl
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from asyncchat.batch.journal import final_lines, job_in, notes
from asyncchat.batch.record import Attempt, Sample, SessionNote, decode_attempt, decode_note
from asyncchat.batch.report import Counting, Report

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
    job_in(directory)
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
    job_in(directory)
    return Report.of((outcome for outcome, _ in final_lines(directory)), *_noted(directory))


def report_without_outcomes(directory: Path) -> Counting:
    """Return the report of a job in the making, for who reads its outcomes anyway.

    Raises:
        JournalError: there is no job.
    """
    job_in(directory)
    return Counting(*_noted(directory))


def _noted(directory: Path) -> tuple[Iterator[Attempt], Iterator[Sample | SessionNote]]:
    attempts = notes(directory, "attempts", decode_attempt)
    return attempts, notes(directory, "samples", decode_note)


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
