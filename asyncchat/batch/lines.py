"""The bytes of an input as they come, unpacked and cut into lines.

Not here: what a line says. Everything here blocks, and is called in a worker thread by one caller at a time; only `wake` may be
called from another thread.

Law: however the bytes come in pieces, the lines are the same. No line is held beyond its bound.
"""

import io
import os
import select
import stat
import sys
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol, TypeAlias

from asyncchat.errors import SourceError

__all__ = ["Bytes", "File", "Lines", "Unpacked"]

_PIECE = 1 << 18
_PACKED_PIECE = 1 << 14
_PREFIX = 1 << 12


class Bytes(Protocol):
    """Where bytes come from. `read` gives what is there, and waits only where nothing is; `b""` is the end."""

    @property
    def position(self) -> int:
        """How many bytes of the file have been used."""
        ...

    def read(self) -> bytes:
        """Return some bytes."""
        ...


class File:
    """A file, a pipe, or an open file of the caller's, read as it comes.

    Args:
        where: a path, `-` for standard input, or a file opened for reading bytes, which stays the caller's to close.

    Attributes:
        name: for people; `-` is standard input.
        size: in bytes, None for what has none.
        position: how many bytes have been read.

    Raises:
        SourceError: it cannot be opened.
    """

    __slots__ = ("_file", "_is_ours", "_waker", "name", "position", "size")

    def __init__(self, where: str | os.PathLike[str] | BinaryIO) -> None:
        self.position = 0
        self.size: int | None = None
        self._waker: tuple[int, int] | None = None
        self._is_ours = isinstance(where, (str, os.PathLike))
        if not isinstance(where, (str, os.PathLike)):
            self._file: BinaryIO | io.RawIOBase = where
            name = getattr(where, "name", None)
            self.name = name if isinstance(name, str) else f"a {type(where).__name__}"
        else:
            self.name = os.fspath(where)
            try:
                is_stdin = self.name == "-"
                self._file = io.FileIO(0 if is_stdin else self.name, closefd=not is_stdin)
            except OSError as error:
                raise _unreadable(self.name, error) from error
        if isinstance(self._file, (io.FileIO, io.BufferedReader)):
            self._look_at(self._file)

    def _look_at(self, file: io.FileIO | io.BufferedReader) -> None:
        """Learn the size of a file that has one; prepare to be woken from waiting for one that has none."""
        about = os.fstat(file.fileno())
        if stat.S_ISREG(about.st_mode):
            self.size = about.st_size
        elif isinstance(file, io.FileIO) and sys.platform != "win32":
            # Only where nothing is buffered does the descriptor tell whether something is there.
            self._waker = os.pipe()

    @property
    def binary(self) -> BinaryIO | io.RawIOBase:
        """The file itself, for a reader that seeks."""
        return self._file

    def read(self) -> bytes:
        """Return what is there, at most 256 KiB; waits where nothing is. `b""` at the end, and after `wake`.

        Raises:
            SourceError: the disk or the other end failed.
        """
        read = getattr(self._file, "read1", self._file.read)
        try:
            while not self._is_woken():
                data: bytes | None = read(_PIECE)
                if data is not None:
                    self.position += len(data)
                    return data
        except OSError as error:
            raise _unreadable(self.name, error) from error
        return b""

    def _is_woken(self) -> bool:
        """Wait for a pipe to have something to read, or for `wake`."""
        if self._waker is None:
            return False
        poll, woken = select.poll(), self._waker[0]
        poll.register(woken, select.POLLIN)
        poll.register(self._file.fileno(), select.POLLIN)
        return any(fd == woken for fd, _ in poll.poll())

    def wake(self) -> None:
        """Let a `read` that waits for a pipe, in another thread, return."""
        if self._waker is not None:
            with suppress(OSError):
                os.write(self._waker[1], b"x")

    def close(self) -> None:
        """Close it, if it was opened here; no `read` may be under way. Idempotent."""
        if self._is_ours:
            self._file.close()
        waker, self._waker = self._waker, None
        for fd in waker or ():
            os.close(fd)


def _unreadable(name: str, error: OSError) -> SourceError:
    return SourceError(f"{name} cannot be read: {error.strerror or error}")


# ---------------------------------------------------------------------------------------- unpacking


class _Decoder(Protocol):
    """One member of a packed file, as `compression.zstd` has it."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gunzip:
    """One member of a gzip file. Before it tells of damage it gives all that stands before that."""

    __slots__ = ("_inflate", "_is_damaged", "_is_full")

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(16 + zlib.MAX_WBITS)
        self._is_full = self._is_damaged = False

    @property
    def eof(self) -> bool:
        return self._inflate.eof

    @property
    def needs_input(self) -> bool:
        return not (self._is_damaged or self._is_full or self._inflate.unconsumed_tail)

    @property
    def unused_data(self) -> bytes:
        return self._inflate.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        if self._is_damaged:
            raise zlib.error
        data = self._inflate.unconsumed_tail + data
        before = self._inflate.copy()
        try:
            made = self._inflate.decompress(data, max_length)
        except zlib.error:
            self._is_damaged = True
            sound: list[bytes] = []
            with suppress(zlib.error):
                sound.extend(before.decompress(bytes([byte])) for byte in data)
            return b"".join(sound)
        self._is_full = len(made) == max_length
        return made


def _gzip() -> "_Codec":
    return _Gunzip, zlib.error


def _zstd() -> "_Codec":
    try:
        if sys.version_info >= (3, 14):
            from compression import zstd
        else:
            from backports import zstd
    except ImportError:
        raise ImportError('Input in zstd needs: pip install "asyncchat[zstd]"') from None
    return zstd.ZstdDecompressor, zstd.ZstdError


_Codec: TypeAlias = tuple[Callable[[], _Decoder], type[Exception]]
"""What unpacks one member, and the error by which it tells of damage."""


class _Packing(NamedTuple):
    name: str
    is_begun_by: Callable[[bytes], bool]
    load: Callable[[], _Codec]


def _begins_gzip(data: bytes) -> bool:
    return data.startswith(b"\x1f\x8b")


def _begins_zstd(data: bytes) -> bool:
    # A frame, or one of those that are stepped over, whose first byte varies.
    return data.startswith(b"\x28\xb5\x2f\xfd") or (
        data[1:4] == b"\x2a\x4d\x18" and data[0] >> 4 == 5
    )


_PACKINGS = {
    ".gz": _Packing("gzip", _begins_gzip, _gzip),
    ".zst": _Packing("zstd", _begins_zstd, _zstd),
}
_MARK = 4
"""As many bytes tell a packing."""
# What a packed file may begin with and a text in UTF-8 cannot, or not as JSON or CSV.
_NO_TEXT = (0x1F, 0x28, *range(0x50, 0x60))


class Unpacked:
    """What a file holds: members one after another, or the file as it is.

    `.gz` and `.zst` are taken at their word; what is named otherwise is known by its first bytes.

    Raises:
        ImportError: there is no zstd here.
        SourceError: while reading: the file is cut short, damaged, or not packed as its name says.
    """

    __slots__ = ("_codec", "_decoder", "_file", "_is_known", "_packing", "_piece")

    def __init__(self, file: File) -> None:
        self._file = file
        self._piece = b""
        self._packing = _PACKINGS.get(Path(file.name).suffix.lower())
        self._codec = self._packing.load() if self._packing else None
        self._is_known = False
        self._decoder: _Decoder | None = None

    @property
    def position(self) -> int:
        """How many bytes of the file have been used."""
        return self._file.position - len(self._piece)

    def read(self) -> bytes:
        """Return what is there, and wait where nothing is; `b""` at the end."""
        if not self._is_known:
            self._look()
        if self._packing is None or self._codec is None:
            data, self._piece = self._piece, b""
            return data or self._file.read()
        data = b""
        while not data:
            if self._decoder is None or self._decoder.eof:
                if not self._reach_member(self._packing):
                    return b""
                self._decoder = self._codec[0]()
            data = self._decode(self._decoder, self._packing, self._codec[1])
        return data

    def _look(self) -> None:
        """Learn from its first bytes how it is packed."""
        while len(self._piece) < _MARK and (not self._piece or self._piece[0] in _NO_TEXT):
            data = self._file.read()
            if not data:
                break
            self._piece += data
        found = next((p for p in _PACKINGS.values() if p.is_begun_by(self._piece)), None)
        if self._packing not in {None, found}:
            raise SourceError(
                f"{self._file.name} is not packed as its name says",
                hint="Give it the name of what it is.",
            )
        if found is not None:
            self._codec = found.load()
        self._packing, self._is_known = found, True

    def _reach_member(self, packing: _Packing) -> bool:
        """Go on to another member, if there is one. What is left of the last piece belongs to it."""
        if self._decoder is not None:
            self._piece = self._decoder.unused_data + self._piece
        self._decoder = None
        self._piece = self._piece or self._file.read()
        # Tapes are written in whole blocks, filled up with zeros.
        while packing.name == "gzip" and self._piece[:1] == b"\0":
            self._piece = self._piece.lstrip(b"\0") or self._file.read()
        return bool(self._piece)

    def _decode(self, decoder: _Decoder, packing: _Packing, damage: type[Exception]) -> bytes:
        piece = b""
        if decoder.needs_input:
            self._piece = self._piece or self._file.read()
            if not self._piece:
                raise SourceError(
                    f"{self._file.name} breaks off: its {packing.name} data has no end",
                    hint="Get it once more.",
                )
            piece, self._piece = self._piece[:_PACKED_PIECE], self._piece[_PACKED_PIECE:]
        try:
            return decoder.decompress(piece, _PIECE)
        except damage:
            raise SourceError(
                f"{self._file.name} is damaged: its {packing.name} data cannot be unpacked",
                hint="Get it once more.",
            ) from None


# --------------------------------------------------------------------------------------------- lines


class Lines:
    """Bytes cut at their newlines.

    Args:
        source: of the bytes.
        longest: bytes of a line; of a longer one only the beginning is kept.

    Attributes:
        is_cut: whether the line that was returned last is such a beginning.
        quotes: how many `"` a line had that was cut.
    """

    __slots__ = (
        "_at",
        "_fed",
        "_held",
        "_is_ended",
        "_longest",
        "_piece",
        "_source",
        "is_cut",
        "quotes",
    )

    def __init__(self, source: Bytes, longest: int) -> None:
        self._source = source
        self._longest = longest
        self._piece = b""
        self._at = 0
        self._fed = 0
        # A bytearray, since a long line may come byte by byte.
        self._held = bytearray()
        self._is_ended = False
        self.is_cut = False
        self.quotes = 0

    @property
    def position(self) -> int:
        """How many bytes of the file went into the lines so far; about, where it is packed."""
        used = self._fed - len(self._piece) + self._at
        return self._source.position * used // self._fed if self._fed else 0

    def next(self) -> bytes | None:
        """Return the next line without its newline, or None where more has to be read first."""
        start, end = self._at, self._piece.find(b"\n", self._at)
        if end < 0:
            self._hold(self._piece[start:] if start else self._piece)
            self._piece, self._at = b"", 0
            return None
        self._at = end + 1
        if not self._held and end - start <= self._longest:
            self.is_cut = False
            return self._piece[start:end]
        self._hold(self._piece[start:end])
        line = bytes(self._held)
        self.is_cut = len(line) > self._longest
        if self.is_cut:
            line = line[: min(_PREFIX, self._longest)]
        self._held.clear()
        return line

    def _hold(self, piece: bytes) -> None:
        if not self._held:
            self.quotes = 0
        room = self._longest + 1 - len(self._held)  # one byte too many tells that it is too long
        self.quotes += piece.count(b'"')
        self._held += piece[:room]

    def more(self) -> bool:
        """Read some more, and wait for it where nothing is there. False at the end."""
        piece = b"" if self._is_ended else self._source.read()
        self._fed += len(piece)
        if not piece and not self._is_ended:
            self._is_ended = True
            if self._held:  # the last line has no newline
                piece = b"\n"
                self._fed += 1
        self._piece, self._at = piece, 0
        return bool(piece)
