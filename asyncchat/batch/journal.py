"""The record of a batch on disk: what has been written there is never asked for again.

Not here: what the records say (`record`), who may ask. A job is a directory:

    job.json            which input, with which options; replaced as a whole
    lock                held by the process that runs the job
    done-NNNN.jsonl     one line for each outcome, appended by one write(2) each, whole, and never changed
    attempts.jsonl      failed attempts, for the report
    samples.jsonl       how the batch stood from second to second, for the report
    torn-...            what a crash left of a line, set aside

Law: cut the newest file of records at any byte, and opening the job again loses at most the line that was cut.
"""

import fcntl
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import msgspec

from asyncchat.batch.record import Outcome, decode_outcome, is_sound
from asyncchat.batch.table import Table, hash_of
from asyncchat.errors import JournalError, JournalLocked

__all__ = [
    "Fsync",
    "Job",
    "JobLock",
    "Journal",
    "Place",
    "final_lines",
    "job_in",
    "line_at",
    "notes",
    "read_job",
    "read_line",
    "repair",
    "scan",
    "supersedes",
    "sync_directory",
    "unreadable",
    "write_job",
]

Fsync = Literal["always", "1s", "never"]

_T = TypeVar("_T")

_VERSION = 1
_LARGEST_FILE = 2**30
_NUMBERED = re.compile(r"done-(\d+)(?:-.*)?\.jsonl")
_TAIL = 1 << 16
_LOOKS, _MOMENT = 5, 0.01


class Place(msgspec.Struct, frozen=True):
    """Where a line stands: the number of its file, and its first byte there."""

    file: int
    offset: int


class Job(msgspec.Struct, omit_defaults=True):
    """What `job.json` holds. `options` change answers, so a job goes on only with the same; `run` says how it was last started."""

    id: str
    version: int = _VERSION
    input: dict[str, Any] = {}
    options: dict[str, Any] = {}
    run: dict[str, Any] = {}


def read_job(directory: Path) -> Job | None:
    """Return the job of a directory, or None where there is none.

    Raises:
        JournalError: there is something else, or a newer version's.
    """
    try:
        text = (directory / "job.json").read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise JournalError(f"{directory / 'job.json'} cannot be read: {error.strerror}") from error
    try:
        job = msgspec.json.decode(text, type=Job)
    except msgspec.MsgspecError as error:
        raise JournalError(f"{directory / 'job.json'} is no job's") from error
    if job.version > _VERSION:
        raise JournalError(
            f"{directory} was written by a newer version", hint="Update asyncchat to go on."
        )
    return job


def job_in(directory: Path) -> Job:
    """Return the job of a directory.

    Raises:
        JournalError: there is none, or it cannot be read.
    """
    job = read_job(directory)
    if job is None:
        raise JournalError(
            f"there is no job in {directory}", hint="A job is the directory beside its output."
        )
    return job


def write_job(directory: Path, job: Job) -> None:
    """Replace `job.json` as a whole: after a crash there is the old one or the new one.

    Raises:
        JournalError: it cannot be written.
    """
    path = directory / "job.json"
    made = directory / f"job.json.{os.getpid()}"
    try:
        with made.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(job), indent=1))
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
        sync_directory(directory)
    except OSError as error:
        with suppress(OSError):
            made.unlink()
        raise JournalError(
            f"{path} cannot be written: {error.strerror}", hint="Nothing was sent."
        ) from error


def sync_directory(directory: Path) -> None:
    """Make names in a directory outlive a power cut."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class JobLock:
    """The right to run a job, held until `close` or the end of the process, however it ends.

    Raises:
        JournalLocked: another process has it; `.pid` says which, where that is known.
        JournalError: the directory cannot be made or written.
    """

    __slots__ = ("_fd",)

    def __init__(self, directory: Path) -> None:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            fd = os.open(directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalError(
                f"the job directory {directory} cannot be written: {error.strerror}",
                hint="Nothing was sent. Choose another one with --job.",
            ) from error
        try:
            _lock(fd)
        except OSError as error:
            holder = os.pread(fd, 32, 0).strip()
            os.close(fd)
            raise _locked(directory, holder) from error
        self._fd: int | None = fd
        with suppress(OSError):  # a full disk is found out where it matters
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)

    def fileno(self) -> int:
        """Return the descriptor: whoever inherits it holds the lock as well, until both have ended."""
        assert self._fd is not None
        return self._fd

    def close(self) -> None:
        """Give it up. Idempotent."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _lock(fd: int) -> None:
    """Take a lock, unless somebody has it for more than a moment: who looks at a job has, to see whether it runs."""
    for _ in range(_LOOKS):
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_MOMENT)
        else:
            return
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _locked(directory: Path, holder: bytes) -> JournalLocked:
    pid = int(holder) if holder.isdigit() else None
    who = "another process" if pid is None else f"process {pid}"
    error = JournalLocked(
        f"{who} is running the job in {directory}", hint="Wait for it, or choose another job."
    )
    error.pid = pid
    return error


class Journal:
    """What appends to a job: one writer, one file at a time.

    Args:
        directory: of the job.
        shard: a name for the files of one of several writers; no two writers alive share one.
        largest: bytes after which another file is begun.

    Raises:
        JournalError: the directory cannot be written.
    """

    __slots__ = (
        "_directory",
        "_fd",
        "_is_dirty",
        "_largest",
        "_notes",
        "_number",
        "_path",
        "_rotating",
        "_shard",
        "_size",
    )

    def __init__(self, directory: Path, *, shard: str = "", largest: int = _LARGEST_FILE) -> None:
        self._directory = directory
        self._shard = f"-{shard}" if shard else ""
        self._largest = largest
        self._is_dirty = False
        self._size = self._number = 0
        self._fd = -1
        self._path = directory
        self._notes: dict[str, int] = {}
        self._rotating = Lock()  # `sync` runs in a thread
        self._begin()

    def _begin(self) -> None:
        number = 1 + max((number for number, _ in _files(self._directory)), default=0)
        while True:
            path = self._directory / f"done-{number:04}{self._shard}.jsonl"
            try:
                self._fd = os.open(
                    path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL | os.O_CLOEXEC, 0o644
                )
                numbers = [one for one, _ in _files(self._directory)]
                if numbers.count(number) == 1:
                    sync_directory(self._directory)
                    break
                # Another writer took the same number at the same time; who sees that goes on to another one.
                os.close(self._fd)
                path.unlink()
            except OSError as error:
                raise _failed(path, error) from error
            number = max(numbers) + random.randint(1, 8)
        self._number, self._path = number, path
        self._size = 0

    def append(self, line: bytes) -> "Place":
        """Write one whole line, and return where. It outlives the process from then on; `sync` makes it outlive the machine.

        Raises:
            JournalError: the disk is full or broken. The line does not count as written.
        """
        if self._size >= self._largest:
            self.sync()
            with self._rotating:
                fd, self._fd = self._fd, -1  # not to be closed twice, should there be no next one
                if fd >= 0:
                    os.close(fd)
                self._begin()
        try:
            done = os.write(self._fd, line)
            while done < len(line):  # a disk that is almost full
                done += os.write(self._fd, line[done:])
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._fd, self._size)
            raise _failed(self._directory, error) from error
        place = Place(self._number, self._size)
        self._size += done
        self._is_dirty = True
        return place

    def note(self, name: Literal["attempts", "samples"], line: bytes) -> None:
        """Append a line to what only the report reads. It may be lost; a disk that is full loses it silently."""
        with suppress(OSError):
            fd = self._notes.get(name)
            if fd is None:
                path = self._directory / f"{name}{self._shard}.jsonl"
                fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                self._notes[name] = fd
            os.write(fd, line)

    def sync(self) -> None:
        """Make all that was appended outlive a power cut. Blocks for some milliseconds; may run in a thread.

        Raises:
            JournalError: the disk is broken.
        """
        if self._is_dirty:
            self._is_dirty = False
            try:
                with self._rotating:
                    os.fdatasync(self._fd)
            except OSError as error:
                self._is_dirty = True
                raise _failed(self._directory, error) from error

    def close(self) -> None:
        """Close the files; does not sync. A file without a record is removed. Idempotent."""
        if self._fd >= 0 and not self._size:
            with suppress(OSError):
                self._path.unlink()
        fds = [*self._notes.values(), self._fd]
        self._notes.clear()
        self._fd = -1
        for fd in fds:
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _failed(path: Path, error: OSError) -> JournalError:
    return JournalError(
        f"the journal in {path} cannot be written: {error.strerror}",
        hint="No more is asked for. What is recorded is safe: make room and run the same again.",
    )


def _files(directory: Path) -> list[tuple[int, Path]]:
    """Return the files of records with their numbers, oldest first."""
    found = [
        (int(match[1]), path)
        for path in directory.glob("done-*.jsonl")
        if (match := _NUMBERED.fullmatch(path.name))
    ]
    return sorted(found)


def repair(directory: Path) -> list[str]:
    """Set aside what a crash left of the last line of each file, and say so, one sentence each. For who holds the lock.

    Raises:
        JournalError: a file cannot be mended.
    """
    said: list[str] = []
    for _, path in _files(directory):
        try:
            if torn := _torn(path):
                aside = directory / f"torn-{time.time_ns()}-{path.stem}"
                aside.write_bytes(torn)
                os.truncate(path, path.stat().st_size - len(torn))
                said.append(
                    f"the last record of {path.name} was torn ({len(torn)} bytes, now in {aside.name}); "
                    "its input is asked for again"
                )
            elif not path.stat().st_size:
                path.unlink()
        except OSError as error:
            raise _failed(path, error) from error
    return said


def _torn(path: Path) -> bytes:
    """Return what stands after the last sound line's end, if that is no sound line itself."""
    with path.open("rb") as file:
        end = file.seek(0, os.SEEK_END)
        tail = b""
        start = end
        while start > 0 and b"\n" not in tail[:-1]:
            start = max(0, start - _TAIL)
            file.seek(start)
            tail = file.read(end - start)
        last = tail[tail.rfind(b"\n", 0, len(tail) - 1) + 1 :]
    return b"" if not last or is_sound(last) else last


def scan(directory: Path) -> Iterator[tuple[Outcome, Place, bytes]]:
    """Yield the lines of a job, oldest file first, with what they say and where they stand; superseded ones are among them.

    Blocks. Damaged ones are left out, and their inputs asked for again.

    Raises:
        JournalError: a file cannot be read.
    """
    for number, path in _files(directory):
        try:
            with path.open("rb", buffering=1 << 20) as file:
                offset = 0
                for line in file:
                    if is_sound(line):
                        with suppress(ValueError):  # sound, and of another version
                            yield decode_outcome(line), Place(number, offset), line
                    offset += len(line)
        except FileNotFoundError:
            continue  # an empty one, which whoever begins to run the job has just taken away
        except OSError as error:
            raise unreadable(path, error) from error


def notes(
    directory: Path, name: Literal["attempts", "samples"], decode: Callable[[bytes], _T]
) -> Iterator[_T]:
    """Yield what was noted for the report, oldest first within each process; what is torn is left out. Blocks."""
    for path in sorted(directory.glob(f"{name}*.jsonl")):
        with suppress(OSError), path.open("rb") as file:
            for line in file:
                with suppress(ValueError):
                    yield decode(line)


def line_at(directory: Path, place: Place) -> bytes:
    """Return the line that stands at a place.

    Raises:
        JournalError: it cannot be read.
    """
    for number, path in _files(directory):
        if number == place.file:
            return read_line(path, place.offset)
    raise JournalError(f"file {place.file} of the records in {directory} is gone")


def read_line(path: Path, offset: int) -> bytes:
    """Return the line of a file of records that begins at a byte.

    Raises:
        JournalError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.readline()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> JournalError:
    """Return the error that says a file of records cannot be read."""
    return JournalError(f"{path} cannot be read: {error.strerror}")


def supersedes(new: Outcome, *, was_ok: bool, is_same: bool) -> bool:
    """Whether a later record stands for an earlier one: unless that is an answer to the same request, and this an error."""
    return new.ok or not (was_ok and is_same)


def final_lines(directory: Path, *, is_single: bool = False) -> Iterator[tuple[Outcome, bytes]]:
    """Yield the records that count, in the order they were written: one for each input.

    Blocks; reads everything twice, unless each input is known to have a single record.
    """
    if is_single:
        for outcome, _, line in scan(directory):
            yield outcome, line
        return
    standing = Table()
    doubled = 0
    for place, (outcome, _, _) in enumerate(scan(directory), 1):
        key = hash_of(outcome.custom_id)
        fingerprint = hash_of(outcome.trace.hash) & _PRINT
        known = standing.get(key)
        if known is not None:
            doubled += 1
            is_same = known >> 1 & _PRINT == fingerprint
            if not supersedes(outcome, was_ok=bool(known & 1), is_same=is_same):
                continue
        standing.put(key, place << _PLACE | fingerprint << 1 | outcome.ok)
    for place, (outcome, _, line) in enumerate(scan(directory), 1):
        if doubled and (standing.get(hash_of(outcome.custom_id)) or 0) >> _PLACE != place:
            continue
        yield outcome, line


_PRINT = 2**21 - 1
_PLACE = 22
