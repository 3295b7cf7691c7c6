"""The inputs of a batch out of a file: JSONL, CSV or Parquet, packed or not, or what comes through a pipe.

Not here: what a line means (`item`), when it is asked, what has been asked before. All of it blocks, and runs in a worker thread.

Law: however the bytes come in pieces, the items are the same; a file of any size is read in constant memory.
"""

import csv
import os
import re
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol

import msgspec

from asyncchat.batch.item import BadItem, Item, Layout, bad_line, columns_of, item_of, item_of_row
from asyncchat.batch.lines import File, Lines, Unpacked
from asyncchat.errors import SourceError, printable
from asyncchat.protocol.lenient import mend_value, read_values

__all__ = ["Source", "count_items", "open_source"]

_MOST_ITEMS = 256
_MOST_BYTES = 1 << 20
_BOM = b"\xef\xbb\xbf"
_PACKED = frozenset({".gz", ".zst"})
_MOST_SHOWN = 30  # columns
_LARGEST_COUNTED = 1 << 33  # bytes; to read more than that twice costs too much

_Format = Literal["jsonl", "csv", "parquet"]
_FORMATS: dict[str, _Format] = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


def open_source(
    where: str | os.PathLike[str] | BinaryIO, layout: Layout | None = None
) -> "Source":
    """Open the inputs of a batch. Blocks: reads the header of a CSV file, the footer of a Parquet file.

    Args:
        where: a path, `-` for standard input, or a file opened for reading bytes, which stays the caller's to close.
        layout: how rows become requests.

    Raises:
        ValueError: the layout does not fit: no such column, no format to go by.
        SourceError: there is no such file, or it is not what its name says.
        ImportError: Parquet and zstd need an extra, which it names.
    """
    layout = layout or Layout()
    file = File(where)
    try:
        return Source(file, _rows(file, layout))
    except BaseException:
        file.close()
        raise


class Source:
    """The inputs of a batch, in their order. Made by `open_source`.

    Attributes:
        name: for people; `-` is standard input.
        size: in bytes as it lies on disk, None for a stream.
    """

    __slots__ = ("_error", "_file", "_is_closed", "_lock", "_rows", "name", "size")

    def __init__(self, file: File, rows: "_Rows") -> None:
        self.name = file.name
        self.size = file.size
        self._file = file
        self._rows = rows
        self._error: SourceError | None = None
        self._is_closed = False
        self._lock = threading.Lock()  # a file is not closed under who reads it

    @property
    def position(self) -> int:
        """How many of its `size` bytes have been used; about, where it is packed or a table."""
        return self._rows.position

    def read(self) -> list[Item | BadItem]:
        """Return the next inputs: what is there, 256 and about 1 MiB at most. `[]` at the end, and once it is closed.

        Blocks, and waits for a slow pipe only where nothing is there. For one caller at a time.

        Raises:
            SourceError: it cannot be read on. All that stands before the damage has been returned.
            ValueError: the header of a CSV stream lacks a column.
        """
        with self._lock:
            made: list[Item | BadItem] = []
            try:
                if not (self._is_closed or self._error):
                    made = self._rows.read()
            except SourceError as error:
                self._error = error
        if self._error is not None and not self._is_closed:  # one that was left is not cut short
            raise self._error
        if self._is_closed:
            self._release()
            return []
        return made

    def close(self) -> None:
        """Read no more, also where a thread is in `read`: it returns `[]` as soon as what it waits for lets it. Idempotent."""
        self._is_closed = True
        self._file.wake()
        self._release()

    def _release(self) -> None:
        # Who holds the lock comes here afterwards.
        if self._lock.acquire(blocking=False):
            try:
                self._file.close()
            finally:
                self._lock.release()


def count_items(where: str | os.PathLike[str], layout: Layout | None = None) -> int | None:
    """Return how many inputs a file has, or None where it takes reading it all to know: CSV, what is packed, streams.

    Of JSONL the lines are counted, blank ones among them. Blocks, for a second per some gigabytes.

    Raises:
        SourceError: it cannot be read.
        ImportError: Parquet needs an extra, which it names.
    """
    path, layout = Path(where), layout or Layout()
    kind = layout.format or _FORMATS.get(path.suffix.lower())
    try:
        if not path.is_file() or kind not in {"jsonl", "parquet"} or path.suffix in _PACKED:
            return None
        if kind == "jsonl":
            return None if path.stat().st_size > _LARGEST_COUNTED else _count_lines(path)
    except OSError as error:
        raise SourceError(f"{path} cannot be read: {error.strerror}") from error
    file = File(path)
    try:
        return int(_parquet_file(file).metadata.num_rows)
    finally:
        file.close()


def _count_lines(path: Path) -> int:
    count, block = 0, b"\n"
    with path.open("rb", buffering=0) as file:
        while data := file.read(_MOST_BYTES):
            count += data.count(b"\n")
            block = data
    return count + (block[-1:] != b"\n")


class _Rows(Protocol):
    """What a format makes items of. `read` returns the next ones and waits only where there is none; `[]` is the end."""

    @property
    def position(self) -> int: ...
    def read(self) -> list[Item | BadItem]: ...


def _rows(file: File, layout: Layout) -> _Rows:
    kind = layout.format or _format(file.name)
    if kind == "parquet":
        return _ParquetRows(file, layout)
    lines = Lines(Unpacked(file), layout.max_body)
    if kind == "jsonl":
        return _JSONLines(lines, layout)
    table = _CSVRows(lines, layout, file.name)
    if file.size is not None:  # a pipe would be waited for
        table.read_header()
    return table


def _format(name: str) -> _Format:
    path = Path(name)
    if path.suffix.lower() in _PACKED:
        path = path.with_suffix("")
    suffix = path.suffix.lower()
    if suffix and suffix not in _FORMATS:
        raise ValueError(
            f"{name} has a suffix that says nothing: pass format= (--format), one of jsonl, csv, parquet."
        )
    return _FORMATS.get(suffix, "jsonl")


def _check_columns(layout: Layout, columns: list[str], name: str) -> None:
    """Refuse a layout that does not fit the columns of a file."""
    if layout.prompt is None and layout.messages_column is None:
        raise ValueError(
            f"{name} is a table: say what of it is asked, with prompt= (--prompt '{{column}}') "
            f"or messages_column= (--messages-col). Its columns are {_listed(columns)}."
        )
    for column in columns_of(layout):
        if column not in columns:
            raise ValueError(
                f"{name} has no column {column!r}; its columns are {_listed(columns)}."
            )
        if columns.count(column) > 1:
            raise ValueError(f"{name} has {columns.count(column)} columns called {column!r}.")


def _listed(columns: list[str]) -> str:
    shown = ", ".join(map(repr, columns[:_MOST_SHOWN]))
    return printable(f"{shown}, …" if len(columns) > _MOST_SHOWN else shown)


# --------------------------------------------------------------------------------------------- JSONL


class _JSONLines:
    """One value a line. Lines are counted as an editor counts them."""

    __slots__ = ("_layout", "_lines", "_n")

    def __init__(self, lines: Lines, layout: Layout) -> None:
        self._lines = lines
        self._layout = layout
        self._n = 0

    @property
    def position(self) -> int:
        return self._lines.position

    def read(self) -> list[Item | BadItem]:
        made: list[Item | BadItem] = []
        lines, weight = self._lines, 0
        while len(made) < _MOST_ITEMS and weight < _MOST_BYTES:
            line = lines.next()
            if line is None:
                if made or not lines.more():
                    break
                continue
            self._n += 1
            if self._n == 1:
                line = line.removeprefix(_BOM)
            line = line.strip()
            if line:
                made.append(self._item(line))
                weight += len(line)
        return made

    def _item(self, line: bytes) -> Item | BadItem:
        if self._lines.is_cut:
            reason = f"it is longer than {self._layout.max_body:,} bytes (max_body)"
            return bad_line(self._n, reason, _first_id(line), "line")
        try:
            row = _decode(line)
        except (ValueError, RecursionError) as error:
            return bad_line(self._n, *_reason(line, error), "line")
        if type(row) is not dict:
            return bad_line(self._n, "it is no JSON object", None, "line")
        return item_of_row(self._n, row, self._layout, "line")


_decode = msgspec.json.Decoder().decode
_FIRST_ID = re.compile(rb'\s*\{\s*"custom_id"\s*:\s*("(?:[^"\\]|\\.)*"|-?\d+(?=[\s,}]))')
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def _first_id(line: bytes) -> object:
    """Return the `custom_id` of a line that begins with it, whatever comes after; else None."""
    if found := _FIRST_ID.match(line):
        try:
            return _decode(found.group(1))
        except ValueError:
            pass
    return None


def _reason(line: bytes, error: Exception) -> tuple[str, object]:
    """Return why a line cannot be decoded, and its `custom_id`, if that can be read all the same."""
    custom_id = _first_id(line)
    said = str(error)
    if isinstance(error, RecursionError):
        return "it is nested too deep", custom_id
    try:
        line.decode()
    except UnicodeDecodeError as wrong:
        return f"it is not UTF-8 (byte {wrong.start})", custom_id
    # No type was asked for, so that only numbers can fail.
    if isinstance(error, msgspec.ValidationError):
        return "a number in it is too large", custom_id
    if _HALF_PAIR.search(line):
        values, problem = read_values(line)
        if problem is None and len(values) == 1 and mend_value(values) != values:
            row = values[0]
            custom_id = row.get("custom_id") if isinstance(row, dict) else None
            return "it has half of a surrogate pair, which is no character", custom_id
    said = "it ends too early" if "truncated" in said else said.rpartition(": ")[2]
    return f"it is not JSON: {said}", custom_id


# ----------------------------------------------------------------------------------------------- CSV


class _NotYet(Exception):
    """More has to be read first, and there are items to return meanwhile."""


class _TooLong(Exception):
    """The record is longer than it may be."""


class _CSVRows:
    """One record a row, below a header. Records are counted, since a quoted text may have many lines.

    `csv` pulls its lines out of this: what it has pulled of a record that is not whole yet is given to it once more.
    """

    __slots__ = (
        "_again",
        "_columns",
        "_is_unfinished",
        "_layout",
        "_lines",
        "_may_wait",
        "_n",
        "_name",
        "_reader",
        "_record",
        "_size",
        "_skips",
        "_width",
    )

    def __init__(self, lines: Lines, layout: Layout, name: str) -> None:
        self._lines = lines
        self._layout = layout
        self._name = name
        self._n = 0
        self._width = 0
        self._columns: list[tuple[str, int]] | None = None
        self._record: list[str] = []
        self._again: deque[str] = deque()
        self._size = 0
        self._skips = False
        self._may_wait = True
        self._is_unfinished = False
        # The only bound that `csv` has is one for the whole process; ours is kept by counting what it is given.
        csv.field_size_limit(max(csv.field_size_limit(), layout.max_body))
        self._reader = csv.reader(self)

    @property
    def position(self) -> int:
        return self._lines.position

    def read_header(self) -> None:
        """Read the header, if that has not been done, and find the columns in it."""
        if self._columns is not None:
            return
        try:
            header = next((cells for cells in self._reader if cells), [])
        except (csv.Error, _TooLong):
            header = []
        self._begin_record()
        if not header:
            raise ValueError(f"{self._name} has no header row of CSV.")
        header[0] = header[0].removeprefix("\ufeff")
        _check_columns(self._layout, header, self._name)
        used = dict.fromkeys(["custom_id", *columns_of(self._layout)])
        self._columns = [(name, header.index(name)) for name in used if name in header]
        self._width = len(header)

    def read(self) -> list[Item | BadItem]:
        made: list[Item | BadItem] = []
        weight = 0
        self._may_wait = True
        self.read_header()
        while len(made) < _MOST_ITEMS and weight < _MOST_BYTES:
            self._may_wait = not made
            self._again = deque(self._record)
            try:
                item = self._item(next(self._reader))
            except (StopIteration, _NotYet):
                break
            except (csv.Error, _TooLong) as error:
                self._n += 1
                is_long = isinstance(error, _TooLong)
                most = f"it is longer than {self._layout.max_body:,} bytes (max_body)"
                item = bad_line(self._n, most if is_long else "it is not CSV", None, "row")
            weight += self._size
            self._begin_record()
            if item is not None:
                made.append(item)
        return made

    def _begin_record(self) -> None:
        self._record.clear()
        self._again.clear()
        self._size = 0
        self._is_unfinished = False

    def _item(self, cells: list[str]) -> Item | BadItem | None:
        if not cells:
            return None
        self._n += 1
        if self._is_unfinished:
            return bad_line(self._n, "a quote in it is never closed", None, "row")
        if any(cells[self._width :]):
            reason = f"it has {len(cells)} cells, and the header {self._width}"
            return bad_line(self._n, reason, None, "row")
        row = {name: cells[at] for name, at in self._columns or () if at < len(cells)}
        return item_of_row(self._n, row, self._layout, "row")

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        """Return the next line for `csv`."""
        if self._again:
            return self._again.popleft()
        while True:
            line = self._lines.next()
            if line is None:
                if not self._may_wait:
                    raise _NotYet
                if not self._lines.more():
                    self._is_unfinished = bool(self._record)
                    raise StopIteration
                continue
            is_cut = self._lines.is_cut
            quotes = self._lines.quotes if is_cut else line.count(b'"')
            if self._skips:
                self._skips = quotes % 2 == 0
                continue
            self._size += len(line) + 1
            if is_cut or self._size > self._layout.max_body + 1:
                # Its end is the first newline that has as many quotes before it as close each other.
                quotes += sum(text.count('"') for text in self._record)
                self._skips = quotes % 2 == 1
                raise _TooLong
            # A byte that is no UTF-8 spoils its own cell only, and only if that is used.
            text = line.decode("utf-8", "surrogateescape") + "\n"
            self._record.append(text)
            return text


# ------------------------------------------------------------------------------------------- Parquet


class _ParquetRows:
    """One record a row; only the columns that are used are read."""

    __slots__ = ("_batches", "_count", "_layout", "_n", "_name", "_size")

    def __init__(self, file: File, layout: Layout) -> None:
        found = _parquet_file(file)
        names: list[str] = found.schema_arrow.names
        _check_columns(layout, names, file.name)
        used = dict.fromkeys(["custom_id", *columns_of(layout)])
        columns = [name for name in used if name in names]
        self._layout = layout
        self._name = file.name
        self._size = file.size or 0
        self._count = int(found.metadata.num_rows)
        self._n = 0
        size = _batch_size(found.metadata, columns)
        # Group by group, so that damage to one does not take a part of the one before with it.
        self._batches: Iterator[Any] = (
            batch
            for group in range(found.num_row_groups)
            for batch in found.iter_batches(size, [group], columns, use_threads=False)
        )

    @property
    def position(self) -> int:
        return self._size * self._n // self._count if self._count else self._size

    def read(self) -> list[Item | BadItem]:
        try:
            batch = next(self._batches, None)
            # A map, as Spark writes messages, becomes a dict.
            rows = [] if batch is None else batch.to_pylist(maps_as_pydicts="strict")
        except (OSError, ValueError, KeyError) as error:  # what pyarrow's errors are
            raise _damaged(self._name) from error
        return [self._item(row) for row in rows]

    def _item(self, row: dict[str, Any]) -> Item | BadItem:
        self._n += 1
        column = self._layout.messages_column
        made = {
            name: _without_nulls(value) if name == column else _as_text(value)
            for name, value in row.items()
        }
        return item_of(self._n, made, self._layout, "row")


def _batch_size(metadata: Any, columns: list[str]) -> int:  # noqa: ANN401  pyarrow has no types
    """Return how many records make about one list of items."""
    used = rows = 0
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        rows += group.num_rows
        for part in map(group.column, range(group.num_columns)):
            if part.path_in_schema in columns or part.path_in_schema.split(".")[0] in columns:
                used += part.total_uncompressed_size
    return max(1, min(_MOST_ITEMS, _MOST_BYTES * rows // max(used, 1)))


def _parquet_file(file: File) -> Any:  # noqa: ANN401  pyarrow has no types
    try:
        from pyarrow import parquet
    except ImportError:
        raise ImportError('Parquet needs: pip install "asyncchat[parquet]"') from None
    if not file.binary.seekable():
        raise ValueError(
            f"{file.name} is a stream, and Parquet is read from its end: pass a file."
        )
    try:
        # Buffered, or whole columns of a row group would be read at once.
        return parquet.ParquetFile(file.binary, buffer_size=_MOST_BYTES, pre_buffer=False)
    except (OSError, ValueError) as error:
        raise SourceError(f"{file.name} is no Parquet file, or a damaged one") from error


def _damaged(name: str) -> SourceError:
    return SourceError(f"{name} is damaged: its rows cannot be read on", hint="Get it once more.")


def _as_text(value: object) -> object:
    """Return bytes as the text that they are: writers may leave out that a column is text."""
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value


def _without_nulls(value: object, *, keeps: str = "content") -> object:
    """Return messages without the fields they have only because another one has them: records of a column are of one type."""
    if isinstance(value, dict):
        return {
            name: _without_nulls(part, keeps="")
            for name, part in value.items()
            if part is not None or name == keeps
        }
    if isinstance(value, list):
        return [_without_nulls(part, keeps=keeps) for part in value]
    return value
