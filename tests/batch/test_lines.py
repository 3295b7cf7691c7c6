"""Bytes are unpacked and cut into lines without holding more than they have to."""

import gzip
import io
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.batch.lines import File, Lines, Unpacked
from asyncchat.errors import SourceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


class Fed:
    """Bytes in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = [piece for piece in pieces if piece]
        self.position = 0

    def read(self) -> bytes:
        piece = self.pieces.pop(0) if self.pieces else b""
        self.position += len(piece)
        return piece


def cut(lines: Lines) -> list[tuple[bytes, int | None]]:
    """All lines, and how many quotes those had that are cut."""
    made: list[tuple[bytes, int | None]] = []
    while True:
        if (line := lines.next()) is not None:
            made.append((line, lines.quotes if lines.is_cut else None))
        elif not lines.more():
            return made


@given(st.lists(st.binary(max_size=12) | st.sampled_from([b"\n", b'"'])), st.integers(1, 9))
def test_lines_are_those_of_the_bytes_however_they_come(pieces: list[bytes], longest: int) -> None:
    data = b"".join(pieces)
    wanted = data.split(b"\n")
    if not wanted[-1]:
        wanted.pop()
    lines = Lines(Fed(*pieces), longest)
    assert cut(lines) == [
        (line, None) if len(line) <= longest else (line[:longest], line.count(b'"'))
        for line in wanted
    ]
    assert lines.position == len(data)


def test_long_line_is_held_up_to_its_bound_and_returned_as_a_prefix() -> None:
    lines = Lines(Fed(*[b"x" * 1000] * 100, b"\n"), 50_000)
    while lines.more():
        if (line := lines.next()) is not None:
            assert line == b"x" * 4096
            assert lines.is_cut
        assert len(lines._held) <= 50_001


def test_position_follows_the_lines_and_not_what_was_read_ahead() -> None:
    lines = Lines(Fed(b"aaa\nbbb\nc", b"cc\n"), 100)
    assert lines.position == 0
    seen = []
    while True:
        if lines.next() is not None:
            seen.append(lines.position)
        elif not lines.more():
            break
    assert seen == [4, 8, 12]


@pytest.mark.parametrize("pack", [gzip.compress, zstd.compress])
def test_little_that_unpacks_to_much_comes_in_pieces(pack: Callable[[bytes], bytes]) -> None:
    source = Unpacked(File(io.BytesIO(pack(bytes(20_000_000)))))
    sizes = list(map(len, iter(source.read, b"")))
    assert sum(sizes) == 20_000_000
    assert max(sizes) <= 2**18


def test_damage_costs_no_byte_before_it() -> None:
    packed = bytearray(gzip.compress(data := os.urandom(50_000)))
    packed[-5] ^= 255
    source = Unpacked(File(io.BytesIO(packed)))
    made = bytearray()
    while len(made) < len(data):
        made += source.read()
    with pytest.raises(SourceError, match="is damaged"):
        source.read()
    assert made == data


def test_wake_ends_a_wait_for_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    keeps_open = os.open(path, os.O_RDWR)
    file = File(path)
    got: list[bytes] = []
    thread = threading.Thread(target=lambda: got.append(file.read()))
    thread.start()
    file.wake()
    thread.join(10)
    assert got == [b""]
    file.close()
    file.close()
    file.wake()
    os.close(keeps_open)


def test_descriptor_that_does_not_block_is_waited_for() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with open(reader, "rb", buffering=0) as raw:
        file = File(raw)
        got: list[bytes] = []
        thread = threading.Thread(target=lambda: got.append(file.read()))
        thread.start()
        os.write(writer, b"x")
        thread.join(10)
        os.close(writer)
        assert (got, file.read()) == ([b"x"], b"")
        file.close()


@pytest.mark.parametrize(("opened", "name"), [(io.BytesIO(b"a"), "a BytesIO"), (None, "in.jsonl")])
def test_file_of_the_callers_is_named_and_left_open(
    opened: Any, name: str, tmp_path: Path
) -> None:
    if opened is None:
        (tmp_path / name).write_bytes(b"a")
        opened = (tmp_path / name).open("rb")
    file = File(opened)
    assert file.name.endswith(name)
    assert file.size == (None if isinstance(opened, io.BytesIO) else 1)
    assert (file.read(), file.read(), file.position) == (b"a", b"", 1)
    file.close()
    assert not opened.closed
    opened.close()
