"""The records of a job as a file for others: OpenAI's batch output, or flat lines.

Not here: which record counts (`journal`). The file appears as a whole or not at all; the order of the inputs is made on disk, so
that memory does not grow with it.
"""

import fcntl
import glob
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, suppress
from hashlib import blake2b
from heapq import merge
from pathlib import Path
from typing import IO

import msgspec

from asyncchat.batch.journal import final_lines, job_in, sync_directory
from asyncchat.batch.record import BatchRecord, Outcome, decode_record

__all__ = ["Exported", "as_flat_line", "as_openai_line", "export"]

_RUN_BYTES = 64 * 2**20
_LINE_BYTES = 150  # what a short line takes in memory beside itself
_X = b',"x":'
_encode = msgspec.json.Encoder().encode

_Line = tuple[int, bytes]
"""The place of an input, and what is written for it."""


class Exported(msgspec.Struct):
    """How many answers and errors were written."""

    ok: int = 0
    failed: int = 0


def export(
    directories: Iterable[Path],
    out: Path | IO[bytes],
    *,
    errors: Path | None = None,
    flat: bool = False,
    ordered: bool = False,
    run_bytes: int = _RUN_BYTES,
    is_single: bool = False,
    look: Callable[[Outcome], object] | None = None,
) -> Exported:
    """Write the records of one job, or of several that each have a part of the inputs. Blocks.

    Args:
        directories: of the jobs.
        out: a path, written as a whole, but for what is no file, such as a pipe; or an open file.
        errors: a path for those that failed; else they are among the others.
        flat: a line of names and texts for each, instead of OpenAI's output format.
        ordered: in the order of the inputs, else in that of the answers.
        run_bytes: how much is sorted in memory at once.
        is_single: whether no input is known to have more than one record: else everything is read twice.
        look: called with each outcome, in any order.

    Raises:
        JournalError: there is no job in one of the directories, or its records cannot be read. Nothing is written then.
        OSError: the file cannot be written.
    """
    named = {directory: job_in(directory).id.encode() for directory in directories}
    form = as_flat_line if flat else as_openai_line
    found = Exported()
    with ExitStack() as stack:
        good = stack.enter_context(_Whole(out)) if isinstance(out, Path) else out
        bad = good if errors is None else stack.enter_context(_Whole(errors))

        def put(line: _Line) -> None:
            (good if line[0] >= 0 else bad).write(line[1])

        lines = _read_all(named, found, is_single=is_single, look=look)
        apart = errors is not None
        made = (
            (
                -outcome.trace.n if apart and not outcome.ok else outcome.trace.n,
                form(outcome, line, name),
            )
            for outcome, line, name in lines
        )
        beside = out.resolve().parent if isinstance(out, Path) else None
        for line in _sorted(made, run_bytes, beside, stack) if ordered else made:
            put(line)
    return found


def _read_all(
    named: Mapping[Path, bytes],
    found: Exported,
    *,
    is_single: bool,
    look: Callable[[Outcome], object] | None,
) -> Iterator[tuple[Outcome, bytes, bytes]]:
    """Yield each record that counts, with its line and the name of its job."""
    for directory, name in named.items():
        for outcome, line in final_lines(directory, is_single=is_single):
            if outcome.ok:
                found.ok += 1
            else:
                found.failed += 1
            if look is not None:
                look(outcome)
            yield outcome, line, name


def _sorted(
    made: Iterable[_Line], run_bytes: int, beside: Path | None, stack: ExitStack
) -> Iterator[_Line]:
    """Yield lines by their place: sorted runs on disk are merged."""
    runs: list[Iterator[_Line]] = []
    run: list[_Line] = []
    size = 0
    for line in made:
        run.append(line)
        size += len(line[1]) + _LINE_BYTES
        if size >= run_bytes:
            runs.append(_spilled(run, beside, stack))
            run, size = [], 0
    run.sort(key=_place)
    return merge(*runs, iter(run), key=_place)


def _place(line: _Line) -> int:
    return abs(line[0])


def _spilled(run: list[_Line], beside: Path | None, stack: ExitStack) -> Iterator[_Line]:
    """Sort lines, put them on disk, and return what reads them from there."""
    run.sort(key=_place)
    # Not where temporary files go, which is memory on many machines.
    file = tempfile.TemporaryFile(dir=beside)  # noqa: SIM115  the stack closes it
    stack.enter_context(file)
    file.writelines(b"%d %b" % line for line in run)
    file.seek(0)
    return _read(file)


def _read(file: IO[bytes]) -> Iterator[_Line]:
    for stored in file:
        n, _, line = stored.partition(b" ")
        yield int(n), line


class _Whole:
    """A file that has its name only when all of it is written. What is no file, such as a pipe, is written to as it is."""

    def __init__(self, path: Path) -> None:
        self._path = path.resolve()
        self._made = self._path.with_name(f".{path.name}.{os.getpid()}")
        self._is_file = self._path.is_file() or not self._path.exists()

    def __enter__(self) -> IO[bytes]:
        if self._is_file:
            self._sweep()
            self._file = self._made.open("wb", buffering=1 << 20)
            fcntl.flock(self._file, fcntl.LOCK_EX)
        else:
            self._file = self._path.open("wb", buffering=1 << 20)
        return self._file

    def _sweep(self) -> None:
        """Remove what killed processes left of this file: nobody holds its lock."""
        for left in self._path.parent.glob(f"{glob.escape(f'.{self._path.name}.')}[0-9]*"):
            with suppress(OSError), left.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        try:
            if kind is None:
                self._file.flush()
                if self._is_file:
                    os.fsync(self._file.fileno())
                    self._made.replace(self._path)
                    sync_directory(self._path.parent)
        finally:
            with suppress(OSError):
                self._file.close()
            if self._is_file:
                with suppress(OSError):
                    self._made.unlink()


def as_openai_line(outcome: Outcome, line: bytes, job: bytes) -> bytes:
    """Return a record as a line of OpenAI's batch output: with an `id`, made of the names of job and input, and without what is ours."""
    name = outcome.custom_id.encode("utf-8", "surrogatepass")
    made = blake2b(name, digest_size=12, key=job[:64]).hexdigest()
    return b'{"id":"batch_req_%b",%b}\n' % (made.encode(), line[1 : line.rfind(_X)])


def as_flat_line(outcome: Outcome, line: bytes, job: bytes) -> bytes:
    """Return a record as one flat object: its name, what the answer says, why it ended, tokens, and the error if there is one."""
    del job
    record = decode_record(line)
    flat: dict[str, object] = {"custom_id": record.custom_id, "text": None}
    if record.completion is not None:
        flat["text"] = record.completion.text
        flat |= _about(record)
    flat["error"] = (
        None if outcome.error is None else f"{outcome.error.code}: {outcome.error.message}"
    )
    return _encode(flat) + b"\n"


def _about(record: BatchRecord) -> dict[str, object]:
    answer = record.completion
    assert answer is not None
    message, tokens = answer.message, record.trace.tokens
    return {
        "finish_reason": answer.finish_reason,
        "reasoning": message.reasoning_content,
        "tool_calls": [
            {"name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or []
        ]
        or None,
        "prompt_tokens": None if tokens is None else tokens[0],
        "completion_tokens": None if tokens is None else tokens[1],
        "seconds": record.trace.t_total,
    }
