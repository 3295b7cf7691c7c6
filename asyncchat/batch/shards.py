"""The records that many write to one job, followed as they grow.

Not here: writing (`journal`), which record of two counts for a report (`journal.final_lines`, which reads what is complete).
"""

from collections.abc import Iterator
from pathlib import Path

from asyncchat.batch.journal import read_line, supersedes, unreadable
from asyncchat.batch.record import BatchRecord, Outcome, decode_outcome, decode_record, is_sound
from asyncchat.batch.table import Table, hash_of

__all__ = ["Shards"]

_OFFSET_BITS = 40


class _File:
    __slots__ = ("path", "read")

    def __init__(self, path: Path) -> None:
        self.path = path
        self.read = 0  # bytes


class Shards:
    """Where each input's record is, as far as the files have been read. All of it blocks.

    Args:
        directory: of the job.
    """

    __slots__ = ("_directory", "_files", "_names", "_places")

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: list[_File] = []
        self._names: set[str] = set()
        self._places = Table()

    @property
    def is_behind(self) -> bool:
        """Whether there is a file of which nothing has been read: somebody has begun to write since."""
        return not self._names.issuperset(path.name for path in self._paths())

    def _paths(self) -> list[Path]:
        return sorted(self._directory.glob("done-*.jsonl"))

    def catch_up(self) -> Iterator[Outcome]:
        """Read what was written since, and yield what it says; a line that is not complete yet is left for the next time.

        Raises:
            JournalError: a file cannot be read.
        """
        for path in self._paths():
            if path.name not in self._names:
                self._names.add(path.name)
                self._files.append(_File(path))
        for number, file in enumerate(self._files):
            try:
                yield from self._read(number, file)
            except FileNotFoundError:  # its writer had nothing to write
                continue
            except OSError as error:
                raise unreadable(file.path, error) from error

    def _read(self, number: int, file: _File) -> Iterator[Outcome]:
        with file.path.open("rb", buffering=1 << 20) as lines:
            lines.seek(file.read)
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                at, file.read = file.read, file.read + len(line)
                if not is_sound(line):
                    continue
                try:
                    outcome = decode_outcome(line)
                except ValueError:  # of another version
                    continue
                self._note(outcome, number << _OFFSET_BITS | at)
                yield outcome

    def _note(self, outcome: Outcome, place: int) -> None:
        key = hash_of(outcome.custom_id)
        before = self._places.get(key)
        if before is not None and not outcome.ok:
            was = decode_outcome(self._line(before))
            is_same = was.trace.hash == outcome.trace.hash
            if not supersedes(outcome, was_ok=was.ok, is_same=is_same):
                return
        self._places.put(key, place)

    def _line(self, place: int) -> bytes:
        return read_line(self._files[place >> _OFFSET_BITS].path, place & (1 << _OFFSET_BITS) - 1)

    def find(self, key: str) -> BatchRecord | None:
        """Return the record of an input, if it was read of.

        Raises:
            JournalError: it cannot be read again.
        """
        place = self._places.get(hash_of(key))
        if place is None:
            return None
        record = decode_record(self._line(place))
        return record if record.custom_id == key else None
