"""What a batch knows of its inputs: which have a record, and which is new, changed or there twice.

Not here: asking, the form of files (`journal`).
"""

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from asyncchat.batch.item import BadItem, Item, canonical, identity
from asyncchat.batch.journal import (
    Job,
    JobLock,
    Journal,
    Place,
    line_at,
    read_job,
    repair,
    scan,
    supersedes,
    write_job,
)
from asyncchat.batch.options import BatchOptions, Spending
from asyncchat.batch.record import (
    Attempt,
    BatchError,
    BatchRecord,
    Sample,
    SessionNote,
    Trace,
    decode_record,
    encode_record,
)
from asyncchat.batch.table import Table, hash_of
from asyncchat.errors import JournalMismatch

__all__ = ["Differences", "Ledger", "Standing"]

Standing = Literal["new", "recorded", "changed", "twice"]

_RECORDED, _SEEN, _OK = 1, 2, 4
_BITS = 3
_FINGERPRINT = 2**61 - 1
_OFFSET_BITS = 40
_EXAMPLES = 3

_encode = msgspec.json.Encoder().encode


class Differences(msgspec.Struct):
    """How an input differs from the one that was recorded: inputs that are new, that say something else, and that are gone."""

    added: int = 0
    changed: int = 0
    gone: int = 0
    examples: list[str] = []

    @property
    def is_harmless(self) -> bool:
        """Whether what is recorded still stands for its inputs."""
        return not self.changed and not self.gone

    def __str__(self) -> str:
        parts = [
            f"{number} {what}"
            for number, what in (
                (self.changed, "inputs say something else than when they were answered"),
                (self.gone, "recorded inputs are not there any more"),
                (self.added, "are new"),
            )
            if number
        ]
        such = f" (such as {', '.join(self.examples)})" if self.examples else ""
        return f"{', '.join(parts)}{such}"


class Ledger:
    """The state of a job, opened for one run. Opening and `scan` block; nothing else does for long.

    Args:
        directory: of the job.
        options: of the batch.
        shard: where several processes write: the name of this one's files. Who has one works for the holder of the lock.

    Raises:
        JournalLocked: another process runs the job.
        JournalError: the directory cannot be used.
    """

    __slots__ = (
        "_answers",
        "_directory",
        "_doubles",
        "_has_begun",
        "_ids",
        "_job",
        "_journal",
        "_lock",
        "_options",
        "known",
        "spending",
        "superseded",
        "warnings",
    )

    def __init__(self, directory: Path, options: BatchOptions, *, shard: str = "") -> None:
        self._directory = directory
        self._options = options
        self._ids = Table()
        self._doubles: dict[int, int] = {}
        self._answers = Table() if options.dedupe else None
        self._journal: Journal | None = None
        self._job: Job | None = None
        self.spending = Spending(options)
        self._has_begun = False
        self.known = self.superseded = 0
        self.warnings: list[str] = []
        self._lock = None if shard else JobLock(directory)
        try:
            if self._lock is not None:
                self.warnings += repair(directory)
            self._job = read_job(directory)
            self._scan()
            self._journal = Journal(directory, shard=shard)
        except BaseException:
            self.close()
            raise

    def _scan(self) -> None:
        for outcome, place, _ in scan(self._directory):
            key = hash_of(outcome.custom_id)
            there = self._ids.get(key)
            before = there or 0
            self.superseded += there is not None
            fingerprint = _fingerprint(outcome.trace.hash)
            is_same = before >> _BITS == fingerprint
            self.spending.paid(outcome.trace)
            if before and not supersedes(outcome, was_ok=bool(before & _OK), is_same=is_same):
                continue
            error = outcome.error
            is_open = error is not None and self._options.asks_again(error.code)
            now = fingerprint << _BITS | (0 if is_open else _RECORDED) | (_OK if outcome.ok else 0)
            self._ids.put(key, now)
            self.known += (now & _RECORDED) - (before & _RECORDED)
            if self._answers is not None and outcome.ok and outcome.trace.reused is None:
                self._answers.put(hash_of(outcome.trace.hash), _packed(place))

    # ------------------------------------------------------------------------------------ the job

    @property
    def job(self) -> Job:
        """What `job.json` says; made by `begin`."""
        assert self._job is not None
        return self._job

    @property
    def input(self) -> dict[str, Any] | None:
        """What told the input of the runs before from others; None where there was none."""
        return None if self._job is None or not self.known else self._job.input

    def begin(
        self, about: Mapping[str, Any], options: Mapping[str, Any], again: Mapping[str, Any]
    ) -> None:
        """Note what is run.

        Args:
            about: what tells one input from another.
            options: what changes answers.
            again: how to run it again.

        Raises:
            JournalMismatch: other options than before.
            JournalError: the note cannot be written.
        """
        if self._has_begun:  # and in another run nothing has been seen yet
            self._ids, self._doubles = Table(), {}
            self.spending = Spending(self._options)
            self.known = self.superseded = 0
            self._scan()
        self._has_begun = True
        before = self._job
        given = msgspec.json.decode(_encode(options))  # as it will be read: a tuple is a list
        if before is not None and self.known and before.options != given:
            names = sorted(
                name
                for name in {**before.options, **given}
                if before.options.get(name) != given.get(name)
            )
            raise JournalMismatch(
                f"the records in {self._directory} were made with other options: {', '.join(names)}",
                hint="Use the same, or another job directory for another batch.",
            )
        made = Job(
            id=secrets.token_hex(8) if before is None else before.id,
            input={**about},
            options=given,
            run={**again},
        )
        if made != before:
            write_job(self._directory, made)
        self._job = made

    # --------------------------------------------------------------------------------- the inputs

    def standing(self, key: str, hash_: str) -> Standing:
        """Say what is known of an input, and from now on that it was there."""
        place = hash_of(key)
        before = self._ids.get(place)
        fingerprint = _fingerprint(hash_)
        if before is None:
            self._ids.put(place, fingerprint << _BITS | _SEEN)
            return "new"
        if before & _SEEN:
            return "twice"
        self._ids.put(place, fingerprint << _BITS | (before & (_RECORDED | _OK)) | _SEEN)
        if before & _RECORDED and before >> _BITS == fingerprint:
            return "recorded"
        self.superseded += 1
        if not before & _RECORDED:
            return "new"
        return "changed" if before & _OK else "new"  # mending an input that failed asks for it

    def name_for_double(self, key: str) -> str:
        """Return a name for another input of the same name: the same one in each run of the same inputs."""
        place = hash_of(key)
        number = self._doubles[place] = self._doubles.get(place, 1) + 1
        return f"{key}#{number}"

    def compare(self, items: Iterable[Item | BadItem], differences: Differences) -> None:
        """Hold inputs against the records, and count what differs. Changes nothing. `gone` begins with all that is known."""
        for item in items:
            known = self._ids.get(hash_of(item.key)) or 0
            if not known & _RECORDED:
                differences.added += 1
                continue
            differences.gone -= 1  # it is not
            hash_ = identity(canonical(item.body)) if isinstance(item, Item) else ""
            if known & _OK and known >> _BITS != _fingerprint(hash_):
                differences.changed += 1
                if len(differences.examples) < _EXAMPLES:
                    differences.examples.append(repr(item.key))

    # -------------------------------------------------------------------------------- the records

    def write(
        self,
        key: str,
        trace: Trace,
        *,
        body: bytes | None = None,
        request_id: str | None = None,
        error: BatchError | None = None,
    ) -> None:
        """Write down what became of an input. From then on it is known.

        Raises:
            JournalError: the disk is full or broken; it does not count as written.
        """
        assert self._journal is not None
        line = encode_record(key, trace, body=body, request_id=request_id, error=error)
        place = self._journal.append(line)
        if self._options.fsync == "always":
            self._journal.sync()
        self.spending.noted(trace, ok=error is None)
        if self._answers is not None and error is None and trace.reused is None:
            self._answers.put(hash_of(trace.hash), _packed(place))

    def answer_to(self, hash_: str) -> BatchRecord | None:
        """Return the record of an answer to the same request, where that is kept track of.

        Raises:
            JournalError: it cannot be read.
        """
        packed = None if self._answers is None else self._answers.get(hash_of(hash_))
        if packed is None:
            return None
        place = Place(packed >> _OFFSET_BITS, packed & (1 << _OFFSET_BITS) - 1)
        try:
            record = decode_record(line_at(self._directory, place))
        except ValueError:
            return None
        # Of two processes, each may have a file of that number, and 64 bits may be those of another request.
        return record if record.trace.hash == hash_ else None

    def note(self, what: SessionNote | Sample | Attempt) -> None:
        """Note something for the report."""
        if self._journal is not None:
            is_attempt = isinstance(what, Attempt)
            self._journal.note("attempts" if is_attempt else "samples", _encode(what) + b"\n")

    def sync(self) -> None:
        """Make what was written outlive a power cut. Blocks; may run in a thread.

        Raises:
            JournalError: the disk is broken.
        """
        if self._journal is not None:
            self._journal.sync()

    def hand_over(self) -> JobLock:
        """Give the lock to the caller, who closes it: without a moment in which nobody has it."""
        lock, self._lock = self._lock, None
        assert lock is not None
        return lock

    def close(self) -> None:
        """Give up the lock and the files. Idempotent."""
        journal, self._journal = self._journal, None
        if journal is not None:
            journal.close()
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.close()


def _fingerprint(hash_: str) -> int:
    """Return 61 bits of a request's hash; 0 where there was no request."""
    return int(hash_[:16] or "0", 16) & _FINGERPRINT


def _packed(place: Place) -> int:
    return place.file << _OFFSET_BITS | place.offset
