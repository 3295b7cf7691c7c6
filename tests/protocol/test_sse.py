"""Bytes into events: the vectors of the standard cut anywhere, limits, and work that stays linear."""

import json
from collections.abc import Callable, Iterable
from time import process_time
from typing import Any, NamedTuple, SupportsIndex

import pytest

from asyncchat.errors import LimitExceeded
from asyncchat.protocol.sse import SSEParser
from tests.wire import RECORDINGS, cut

VECTORS = json.loads((RECORDINGS / "sse_vectors.json").read_text())


class Parsed(NamedTuple):
    events: list[dict[str, str]]
    retry: int | None
    last_id: str


def parse(pieces: Iterable[bytes], parser: SSEParser | None = None) -> Parsed:
    parser = parser or SSEParser()
    events = [
        {
            "event": parser.event or "message",
            "data": str(payload, "utf-8", "replace"),
            "id": parser.last_event_id,
        }
        for piece in pieces
        for payload in parser.feed(piece)
    ]
    return Parsed(events, parser.retry, parser.last_event_id)


def payloads(*pieces: bytes) -> list[str]:
    return [event["data"] for event in parse(pieces).events]


def wanted(vector: dict[str, Any]) -> Parsed:
    return Parsed(vector["events"], vector["retry"], vector["last_id"])


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vector_fed_whole_gives_what_the_standard_says(vector: dict[str, Any]) -> None:
    assert parse([vector["input_latin1"].encode("latin-1")]) == wanted(vector)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vector_cut_at_any_place_gives_what_the_standard_says(vector: dict[str, Any]) -> None:
    body = vector["input_latin1"].encode("latin-1")
    for position in range(len(body) + 1):
        assert parse([body[:position], body[position:]]) == wanted(vector)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vector_fed_byte_by_byte_gives_what_the_standard_says(vector: dict[str, Any]) -> None:
    body = vector["input_latin1"].encode("latin-1")
    assert parse(cut(body, range(len(body)))) == wanted(vector)


def test_there_are_as_many_vectors_as_there_should_be() -> None:
    assert len(VECTORS) == 39


def test_empty_read_between_cr_and_lf_leaves_one_line_end() -> None:
    assert payloads(b"data: a\r", b"", b"\ndata: b\r\n", b"", b"\r\n") == ["a\nb"]


def test_blank_lines_that_end_in_cr_take_the_lf_of_the_next_read_with_them() -> None:
    assert payloads(b"\r\n\r", b"\ndata: a\n\n") == ["a"]


def test_name_of_an_event_is_gone_at_the_next_one() -> None:
    parser = SSEParser()
    names = [parser.event for _ in parser.feed(b"event: a\ndata: 1\n\ndata: 2\n\n")]
    assert names == ["a", ""]


def test_field_named_error_is_the_data_of_an_error_event() -> None:
    assert parse([b"error: gone\n\n"]).events == [{"event": "error", "data": "gone", "id": ""}]


def test_retry_of_very_many_digits_is_bounded() -> None:
    assert parse([b"retry: " + b"9" * 5000 + b"\n\n"]).retry == int("9" * 15)


# --------------------------------------------------------------------------------------- the end


def flushed(*pieces: bytes) -> tuple[bytes | None, str]:
    parser = SSEParser()
    for piece in pieces:
        list(parser.feed(piece))
    last = parser.flush()
    return None if last is None else bytes(last), parser.event


def test_event_without_its_blank_line_is_there_to_flush() -> None:
    assert flushed(b"data: a\n\nevent: x\ndata: b\n") == (b"b", "x")


def test_event_cut_inside_its_line_is_there_to_flush() -> None:
    assert flushed(b"data: a\ndata: ", b"b") == (b"a\nb", "")


def test_line_cut_inside_a_field_name_gives_nothing_to_flush() -> None:
    assert flushed(b"data: a\n\nda") == (None, "")


def test_flush_after_a_whole_event_gives_nothing() -> None:
    assert flushed(b"data: a\n\n") == (None, "")


# ---------------------------------------------------------------------------------------- memory


def test_payload_of_an_event_inside_one_read_is_a_view_of_that_read() -> None:
    data = b": hi\nevent: x\ndata: first\n\ndata: second\r\n\r\n"
    found = list(SSEParser().feed(data))
    assert [bytes(payload) for payload in found] == [b"first", b"second"]
    assert all(payload.obj is data for payload in found)


def test_payload_of_one_plain_line_is_a_view_of_its_read() -> None:
    data = b"data: only\n\n"
    assert [payload.obj is data for payload in SSEParser().feed(data)] == [True]


@pytest.mark.parametrize("data", [b"data: a\ndata: b\n", b"data: a\ndata: b"])
def test_nothing_holds_on_to_a_read_that_is_over(data: bytes) -> None:
    parser, read = SSEParser(), bytearray(data)
    list(parser.feed(read))  # type: ignore[arg-type]  # a bytearray tells whether views of it are left
    read.clear()  # BufferError if there is one
    assert payloads_of(parser, b"\n\n") == [b"a\nb"]


def payloads_of(parser: SSEParser, data: bytes) -> list[bytes]:
    return [bytes(payload) for payload in parser.feed(data)]


# ---------------------------------------------------------------------------------------- limits


def test_event_of_the_allowed_size_over_several_reads_passes() -> None:
    parser = SSEParser(max_event_bytes=10)
    assert parse([b"data:", b"12345", b"\n\n"], parser).events[0]["data"] == "12345"


def test_line_that_never_ends_exceeds_the_limit() -> None:
    parser = SSEParser(max_event_bytes=10)
    with pytest.raises(LimitExceeded, match="larger than 10 bytes") as caught:
        parse([b"data:", b"12345", b"6"], parser)
    assert "max_event_bytes" in caught.value.hint


def test_data_lines_of_an_event_that_never_ends_exceed_the_limit() -> None:
    with pytest.raises(LimitExceeded):
        parse([b"data: 1234\n"] * 3, SSEParser(max_event_bytes=10))


def test_line_end_counts_so_that_empty_data_lines_exceed_the_limit() -> None:
    with pytest.raises(LimitExceeded):
        parse([b"data\n" * 11], SSEParser(max_event_bytes=10))


def test_comment_that_never_ends_exceeds_the_limit() -> None:
    with pytest.raises(LimitExceeded):
        parse([b": 345678", b"901"], SSEParser(max_event_bytes=10))


def test_comments_and_events_that_end_add_nothing_to_the_next_one() -> None:
    parser = SSEParser(max_event_bytes=10)
    body = b": ping\n\n:\nid: 7\ndata: 12\ndata: 3\n\n" * 50
    assert len(parse(cut(body, range(0, len(body), 3)), parser).events) == 50


# ------------------------------------------------------------------------------------------ work


class Counted(bytes):
    """Bytes that count how often they are searched, and how many of them were looked at."""

    searches: int
    seen: int

    def __new__(cls, data: bytes) -> "Counted":
        made = super().__new__(cls, data)
        made.searches = made.seen = 0
        return made

    def find(
        self,
        sub: Any,
        start: SupportsIndex | None = None,
        end: SupportsIndex | None = None,
        /,
    ) -> int:
        found = super().find(sub, start, end)
        first = int(start or 0)
        last = len(self) if end is None else int(end)
        self.searches += 1
        self.seen += (found if found >= 0 else last) - first
        return found


@pytest.mark.parametrize(
    "block",
    [
        b"data: a\n\n",
        b"data: a\r\r",
        b"data: a\r\n\r\n",
        b"data: a\rdata: b\r\r",
        b"data: a\r",
        b"\r",
        b"\n",
        b"\r\n",
        b": ping\r",
        b"x\n",
        b"event: x\ndata: a\n\n",
        b"data: a\n\n\r",
    ],
    ids=repr,
)
def test_bytes_of_a_big_read_are_looked_at_a_few_times_only(block: bytes) -> None:
    data = Counted(block * 20_000)
    for _ in SSEParser().feed(data):
        pass
    assert data.seen <= 4 * len(data)


@pytest.mark.parametrize("blank", [b"\n", b"\r", b"\r\n"], ids=repr)
def test_endless_blank_lines_are_skipped_in_one_step(blank: bytes) -> None:
    data = Counted(blank * 100_000 + b"data: a\n\n")
    assert [bytes(payload) for payload in SSEParser().feed(data)] == [b"a"]
    assert data.searches < 12


def seconds(act: Callable[[], object]) -> float:
    def once() -> float:
        before = process_time()
        act()
        return process_time() - before

    return min(once() for _ in range(3))


@pytest.mark.parametrize("head", [b"data: ", b": ", b"data: a\ndata: "], ids=repr)
def test_one_big_event_in_small_reads_takes_linear_time(head: bytes) -> None:
    def drip(size: int) -> None:
        parser = SSEParser()
        for piece in [head, *([b"x" * 8] * size), b"\n\n"]:
            list(parser.feed(piece))

    assert seconds(lambda: drip(40_000)) < 10 * seconds(lambda: drip(10_000))  # quadratic: 16


def test_many_data_lines_in_small_reads_take_linear_time() -> None:
    def drip(size: int) -> None:
        parser = SSEParser()
        for _ in range(size):
            list(parser.feed(b"data: x\n"))

    assert seconds(lambda: drip(8_000)) < 10 * seconds(lambda: drip(2_000))
