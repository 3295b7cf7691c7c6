"""Inputs out of files and pipes: the same items however the bytes come, and nothing held that need not be."""

import gzip
import io
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from asyncchat.batch.item import BadItem, Item, Layout
from asyncchat.batch.source import Source, count_items, open_source
from asyncchat.errors import SourceError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXT = Layout(prompt="{text}")
CSV = Layout(prompt="{text}", format="csv")


class Pieces(io.RawIOBase):
    """A stream that gives its bytes in these pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = [piece for piece in pieces if piece]

    def read(self, size: int = -1) -> bytes:
        if not self.pieces:
            return b""
        piece, self.pieces[0] = self.pieces[0][:size], self.pieces[0][size:]
        self.pieces = [piece for piece in self.pieces if piece]
        return piece


def stream(pieces: list[bytes]) -> BinaryIO:
    return cast("BinaryIO", Pieces(pieces))


def all_of(source: Source) -> list[Item | BadItem]:
    made: list[Item | BadItem] = []
    while items := source.read():
        made += items
    source.close()
    return made


def items_of(data: bytes, layout: Layout | None = None) -> list[Item | BadItem]:
    return all_of(open_source(io.BytesIO(data), layout))


def said(items: list[Item | BadItem]) -> list[str]:
    """The last message of each item, the reason of each bad one."""
    return [
        i.message if isinstance(i, BadItem) else i.body["messages"][-1]["content"] for i in items
    ]


def until_error(source: Source) -> tuple[list[Item | BadItem], SourceError | None]:
    made: list[Item | BadItem] = []
    try:
        while items := source.read():
            made += items
    except SourceError as error:
        return made, error
    return made, None


def prompts(*texts: str) -> bytes:
    return b"".join(msgspec.json.encode({"prompt": text}) + b"\n" for text in texts)


# --------------------------------------------------------------------------------------------- JSONL


def test_lines_become_items_in_order_and_are_counted_as_an_editor_counts_them() -> None:
    data = (
        b'\xef\xbb\xbf{"prompt":"a"}\r\n\r\n  \n{"prompt":"b","custom_id":"k"}\n\n{"prompt":"c"}'
    )
    assert [(i.n, i.key) for i in items_of(data)] == [(1, "line-1"), (4, "k"), (6, "line-6")]
    assert said(items_of(data)) == ["a", "b", "c"]


@pytest.mark.parametrize("data", [b"", b"\n", b"\xef\xbb\xbf", b"\r\n \r\n"])
def test_file_without_inputs_has_no_items(data: bytes) -> None:
    assert items_of(data) == []


@pytest.mark.parametrize(
    ("line", "why", "key"),
    [
        (b'{"prompt": "secret', "it is not JSON: it ends too early", None),
        (b'{"custom_id": "k", "prompt": "secret', "it is not JSON: it ends too early", "k"),
        (b'{"custom_id": "k\\"\\u00e9", "prompt": secret}', "it is not JSON: invalid character (byte 37)", 'k"é'),
        (b'{"custom_id": 12, "prompt": secret}', "it is not JSON: invalid character (byte 28)", "12"),
        (b'{"custom_id": "", "prompt": secret}', "it is not JSON: invalid character (byte 28)", None),
        (b'{"custom_id": "\\ud83d", "prompt": secret}', "it is not JSON: unexpected end of escaped utf-16 surrogate pair (byte 21)", None),
        (b'{"prompt": "a"} secret', "it is not JSON: trailing characters (byte 17)", None),
        (b'{"prompt": "a", "top_p": NaN}', "it is not JSON: invalid character (byte 25)", None),
        (b'{"custom_id": "k", "top_p": 1e400}', "a number in it is too large", "k"),
        (b'{"custom_id": "k", "seed": ' + b"9" * 5000 + b"}", "a number in it is too large", "k"),
        (b'{"custom_id": "k", "prompt": "\xff"}', "it is not UTF-8 (byte 30)", "k"),
        (b'{"prompt": "a"\xff}', "it is not UTF-8 (byte 14)", None),
        (b"[" * 100_000, "it is nested too deep", None),
        (b'{"prompt": "secret \\ud83d", "custom_id": "k"}', "it has half of a surrogate pair, which is no character", "k"),
        (b'{"prompt": "secret \\udE00"}', "it has half of a surrogate pair, which is no character", None),
        (b'["\\ud83d"]', "it has half of a surrogate pair, which is no character", None),
        (b'{"prompt": "\\ud83d\\ude00", "x": secret}', "it is not JSON: invalid character (byte 32)", None),
        (b'[{"role": "user", "content": "secret"}]', "it is no JSON object", None),
        (b'"secret"', "it is no JSON object", None),
        (b"null", "it is no JSON object", None),
        (b'{"text": "secret"}', "it has no messages and no prompt", None),
        (b'{"custom_id": "k", "messages": []}', "its list of messages is empty", "k"),
        (b'{"custom_id": null, "prompt": "a"}', "its 'custom_id' is null; it has to be text or a whole number", None),
        (b'{"custom_id": "k", "url": "/v1/embeddings", "body": {}}', "its url does not end in /chat/completions, and nothing else can be asked", "k"),
    ],
)  # fmt: skip
def test_bad_line_is_one_error_record_and_the_next_line_is_read(
    line: bytes, why: str, key: str | None
) -> None:
    bad, good = items_of(b"\n" + line + b"\r\n" + prompts("a"))
    assert bad == BadItem(2, key or "line-2", "invalid_line", f"line 2: {why}")
    assert said([good]) == ["a"]


def test_what_json_can_say_survives() -> None:
    fields = '{"prompt":"\\ud83d\\ude00é\\u0000","seed":123456789012345678901234567890,"x":{"y":[1.5,-0.0,null]}}'
    (item,) = items_of(fields.encode())
    assert isinstance(item, Item)
    assert item.body == {
        "seed": 123456789012345678901234567890,
        "x": {"y": [1.5, -0.0, None]},
        "messages": [{"role": "user", "content": "😀é\x00"}],
    }


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_line_over_its_bound_is_one_error_record_by_its_name(size: int) -> None:
    long = b'{"custom_id":"k","prompt":"' + b"x" * 200 + b'"}'
    data = prompts("a") + long + b"\n" + prompts("b") + long
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    first, bad, second, last = all_of(open_source(stream(pieces), Layout(max_body=100)))
    assert said([first, second]) == ["a", "b"]
    reason = "line {}: it is longer than 100 bytes (max_body)"
    assert bad == BadItem(2, "k", "invalid_line", reason.format(2))
    assert last == BadItem(4, "k", "invalid_line", reason.format(4))


def test_line_may_be_as_long_as_its_bound() -> None:
    line = prompts("x" * 50).rstrip()
    assert said(items_of(line + b"\n" + line, Layout(max_body=len(line)))) == ["x" * 50] * 2


def test_rows_of_jsonl_go_through_the_template() -> None:
    rows = b'{"text":"a","id":5}\n{"txt":"b"}\n'
    first, second = items_of(rows, Layout(prompt="Say {text}.", id_column="id"))
    assert first == Item(1, "5", {"messages": [{"role": "user", "content": "Say a."}]})
    assert said([second]) == ["line 2: it has no 'id' to be named by"]


SEEDS = [
    prompts("a", "é😀") + b'\r\n\n{"custom_id":"k","prompt":"' + b"x" * 90 + b'"}\n[1\n{"prompt":"\xff"}\n' + prompts("z").strip(),
    b'\xef\xbb\xbf{"custom_id":"q","prompt":"' + b'"' * 70,
]  # fmt: skip
TABLES = [
    b'\xef\xbb\xbfid,text\r\n1,"a\r\nb ""c"" \xc3\xa9"\r\n\r\n2,x\n"3","' + b'""y\n' * 40 + b'"\n4,5" disk\n5,"open\n',
    b'text\n"' + b"z" * 90 + b'\n"\n\xff\na,b\n"',
]  # fmt: skip


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@pytest.mark.parametrize("data", SEEDS)
@given(cuts=st.lists(st.integers(0, 500), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_the_bytes_gives_the_same_items(data: bytes, cuts: list[int]) -> None:
    layout = Layout(max_body=80)
    for packed in (data, gzip.compress(data[:50]) + gzip.compress(data[50:]), zstd.compress(data)):
        made = all_of(open_source(stream(pieces_of(packed, cuts)), layout))
        assert made == items_of(data, layout)


@pytest.mark.parametrize("data", TABLES)
@given(cuts=st.lists(st.integers(0, 500), max_size=60))
@settings(max_examples=60, deadline=None)
def test_any_cut_of_a_table_gives_the_same_items(data: bytes, cuts: list[int]) -> None:
    layout = Layout(prompt="{text}", format="csv", max_body=80)
    made = all_of(open_source(stream(pieces_of(data, cuts)), layout))
    assert made == items_of(data, layout)
    assert len(made) == (5 if data is TABLES[0] else 4)


def test_lists_are_bounded_in_number_and_in_bytes() -> None:
    source = open_source(io.BytesIO(prompts(*"x" * 600)))
    assert [len(source.read()) for _ in range(4)] == [256, 256, 88, 0]
    source = open_source(io.BytesIO(prompts(*["x" * 400_000] * 10)))
    while items := source.read():
        assert len(items) <= 3


# -------------------------------------------------------------------------------------------- packed


def gz(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


PACKERS: list[tuple[str, Callable[[bytes], bytes]]] = [(".gz", gz), (".zst", zstd.compress)]


def many(count: int = 4000) -> bytes:
    """Lines that do not pack well, so that packed ones come in many pieces."""
    chance = random.Random(7)
    return prompts(*(f"{n} {chance.randbytes(24).hex()}" for n in range(count)))


@pytest.mark.parametrize(("suffix", "pack"), PACKERS)
def test_packed_file_is_read_member_by_member(
    suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = many()
    path = tmp_path / f"in.jsonl{suffix}"
    path.write_bytes(pack(data[:100_000]) + pack(b"") + pack(data[100_000:]))
    source = open_source(path)
    places = []
    made: list[Item | BadItem] = []
    while items := source.read():
        made += items
        places.append(source.position)
    assert made == items_of(data)
    assert source.size == path.stat().st_size == places[-1]
    assert places[0] < source.size / 3
    source.close()


@pytest.mark.parametrize(("suffix", "pack"), PACKERS)
def test_packed_file_that_breaks_off_is_read_up_to_there_and_then_told(
    suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    data = many(600)
    packed = pack(data)
    path = tmp_path / f"in.jsonl{suffix}"
    whole = items_of(data)
    for end in (
        *range(1, 30),
        *range(1000, len(packed), 4001),
        *range(len(packed) - 9, len(packed)),
    ):
        path.write_bytes(packed[:end])
        source = open_source(path)
        made, error = until_error(source)
        assert error is not None
        assert "breaks off" in str(error) or end < 4
        assert made == whole[: len(made)]
        with pytest.raises(SourceError):  # and for good
            source.read()
        source.close()
    if suffix == ".gz":
        assert len(made) == len(whole)


def test_damaged_gzip_is_read_up_to_the_damage(tmp_path: Path) -> None:
    data = many(600)
    packed = bytearray(gz(data))
    packed[-6] ^= 1  # of the checksum, which comes last
    path = tmp_path / "in.jsonl.gz"
    path.write_bytes(packed)
    source = open_source(path)
    made, error = until_error(source)
    assert made == items_of(data)
    assert "is damaged" in str(error)
    source.close()


def test_damaged_zstd_is_told(tmp_path: Path) -> None:
    head, tail = prompts("a"), bytearray(zstd.compress(many(6000)))
    tail[len(tail) // 2 : len(tail) // 2 + 64] = bytes(64)
    path = tmp_path / "in.jsonl.zst"
    path.write_bytes(zstd.compress(head) + bytes(tail))
    source = open_source(path)
    made, error = until_error(source)
    assert said(made[:1]) == ["a"]
    assert "is damaged" in str(error)
    source.close()


def test_zeros_after_gzip_and_frames_that_zstd_steps_over_are_none_of_the_input() -> None:
    assert said(items_of(gz(prompts("a")) + bytes(1000) + gz(prompts("b")) + bytes(9))) == [
        "a",
        "b",
    ]
    skipped = b"\x5f\x2a\x4d\x18\x02\x00\x00\x00ab"
    assert said(items_of(skipped + zstd.compress(prompts("a")))) == ["a"]


def test_something_else_after_gzip_is_damage() -> None:
    made, error = until_error(open_source(io.BytesIO(gz(prompts("a")) + b"<html>")))
    assert said(made) == ["a"]
    assert "is damaged" in str(error)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("data", [b"", prompts("a"), b"\x1f"])
def test_file_that_is_not_packed_as_its_name_says_is_refused(
    suffix: str, data: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"in.jsonl{suffix}"
    path.write_bytes(data)
    source = open_source(path)
    with pytest.raises(SourceError, match="is not packed as its name says"):
        source.read()
    source.close()


def test_few_bytes_that_a_packed_file_may_begin_with_are_lines_all_the_same() -> None:
    for data in (b"(", b"P", b"\x1f", b"P\n"):
        assert len(items_of(data)) == 1


def test_zstd_without_its_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd"
    monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delattr(sys.modules[name.partition(".")[0]], "zstd")
    path = tmp_path / "in.jsonl.zst"
    path.write_bytes(zstd.compress(b"{}"))
    with pytest.raises(ImportError, match=r'pip install "asyncchat\[zstd\]"'):
        open_source(path)


# ----------------------------------------------------------------------------------------------- CSV


def test_csv_becomes_rows_of_text_and_records_are_counted() -> None:
    data = b'\xef\xbb\xbfid,text,unused\r\n7,"two\r\nlines, ""quoted""",\xff\r\n\r\n,b,\r\n8,c\n'
    layout = Layout(format="csv", prompt="<{text}>", id_column="id")
    first, second, third = items_of(data, layout)
    assert (first.n, first.key, said([first])) == (1, "7", ['<two\r\nlines, "quoted">'])
    assert second == BadItem(2, "line-2", "invalid_line", "row 2: its 'id' is empty")
    assert (third.n, third.key, said([third])) == (3, "8", ["<c>"])


def test_csv_may_name_its_records_and_hold_messages() -> None:
    data = b'custom_id,talk\na,"[{""role"":""user"",""content"":""Hi.""}]"\nb,oops\n'
    first, second = items_of(data, Layout(format="csv", messages_column="talk"))
    assert first == Item(1, "a", {"messages": [{"role": "user", "content": "Hi."}]})
    reason = "row 2: its 'talk' is text that is not the JSON of messages"
    assert second == BadItem(2, "b", "invalid_line", reason)


@pytest.mark.parametrize(
    ("record", "why"),
    [
        (b"1,a,b", "it has 3 cells, and the header 2"),
        (b"1", "it has no 'text'"),
        (b"1,\xff", "its 'text' is not UTF-8"),
        (b"1,a\rb", "it is not CSV"),
        (b"1,", "its prompt is empty"),
        (b'1,"' + b"x" * 100 + b'"', "it is longer than 80 bytes (max_body)"),
        (b'1,"' + b'x\n""' * 30 + b'"', "it is longer than 80 bytes (max_body)"),
        (b'1,"' + b"x\n" * 90 + b"y" * 90 + b'\n"', "it is longer than 80 bytes (max_body)"),
    ],
)
def test_bad_record_is_one_error_record_and_the_next_one_is_read(record: bytes, why: str) -> None:
    layout = Layout(format="csv", prompt="{text}", max_body=80)
    bad, good = items_of(b"id,text\n" + record + b"\n2,b\n", layout)
    assert bad == BadItem(1, "line-1", "invalid_line", f"row 1: {why}")
    assert (good.n, said([good])) == (2, ["b"])


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (b"a,,", "a"),
        (b'5" disk,', '5" disk'),
        (b'"a"b,', "ab"),
        (b" a ,", " a "),
        (b"'a',", "'a'"),
        ("é,".encode(), "é"),
        (b"\x00,", "\x00"),
        (b'"a\nb\n\nc",', "a\nb\n\nc"),
        (b'"' + b"long " * 40_000 + b'",', "long " * 40_000),
    ],
)
def test_oddities_of_csv_are_read_as_csv_reads_them(record: bytes, text: str) -> None:
    assert said(items_of(b"text,other\n" + record + b"\n" + record, CSV)) == [text, text]


def test_quote_that_is_never_closed_spoils_the_rest_and_says_so() -> None:
    assert said(items_of(b'text\na\n"b\nc\nd', CSV)) == [
        "a",
        "row 2: a quote in it is never closed",
    ]


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"id,txt\n1,a\n", r"has no column 'text'; its columns are 'id', 'txt'\."),
        (b"text;id\n", r"has no column 'text'; its columns are 'text;id'\."),
        (b"text,text\n", r"has 2 columns called 'text'\."),
        (b"", r"has no header row of CSV"),
        (b"\n\n", r"has no header row of CSV"),
        (b"a\rb\rc", r"has no header row of CSV"),
        (b"x" * 300, r"has no header row of CSV"),
        ("text\n".encode("utf-16"), r"has no column 'text'"),
        (",".join("abcdefghijklmnopqrstuvwxyzABCDEFG").encode(), r"'C', 'D', …\."),
    ],
)
def test_header_without_the_columns_is_refused_before_anything_is_read(
    header: bytes, says: str, tmp_path: Path
) -> None:
    layout = Layout(format="csv", prompt="{text}", max_body=200)
    path = tmp_path / "in.csv"
    path.write_bytes(header)
    with pytest.raises(ValueError, match=says):
        open_source(path, layout)
    piped = open_source(stream([header]), layout)
    with pytest.raises(ValueError, match=says):
        piped.read()


def test_table_needs_a_layout_that_says_what_is_asked(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(b"id,text\n")
    with pytest.raises(ValueError, match=r"prompt= \(--prompt '\{column\}'\).* are 'id', 'text'"):
        open_source(path)


# ------------------------------------------------------------------------------------------- Parquet


def written(path: Path, columns: dict[str, Any], **options: Any) -> Path:
    parquet.write_table(pa.table(columns), path, **options)
    return path


def test_parquet_rows_go_through_the_template_with_their_types(tmp_path: Path) -> None:
    columns = {
        "id": [7, None, 9],
        "text": ["a", "b", None],
        "score": [0.5, 1.0, 2.0],
        "raw": pa.array([b"x", b"\xff", b"z"], pa.binary()),
    }
    path = written(tmp_path / "in.parquet", columns)
    layout = Layout(prompt="{text} {score} {raw}", id_column="id")
    source = open_source(path, layout)
    first, second, third = source.read()
    assert (first.n, first.key, said([first])) == (1, "7", ["a 0.5 x"])
    assert said([second]) == ["row 2: its 'id' is null; it has to be text or a whole number"]
    assert third == BadItem(3, "9", "invalid_line", "row 3: its 'text' is null")
    assert source.read() == []
    assert source.position == source.size == path.stat().st_size
    source.close()
    (bytes_,) = all_of(open_source(path, Layout(prompt="{raw}")))[1:2]
    assert said([bytes_]) == ["row 2: a text in it is not UTF-8"]


def test_parquet_messages_lose_the_fields_that_only_others_have(tmp_path: Path) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    talks: list[Any] = [
        [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": None, "tool_calls": [call]}],
        [],
        None,
        [None],
    ]  # fmt: skip
    path = written(tmp_path / "in.parquet", {"talk": talks, "custom_id": ["a", "b", "c", "d"]})
    items = all_of(open_source(path, Layout(messages_column="talk")))
    assert items[0] == Item(
        1,
        "a",
        {
            "messages": [
                {"role": "user", "content": "Hi."},
                {"role": "assistant", "content": None, "tool_calls": [call]},
            ]
        },
    )
    assert said(items[1:]) == [
        "row 2: its list of messages is empty",
        "row 3: its 'talk' is null",
        "row 4: messages[0] is null; it has to be an object",
    ]


def test_parquet_messages_may_be_maps_or_json(tmp_path: Path) -> None:
    kind = pa.list_(pa.map_(pa.string(), pa.string()))
    columns = {
        "maps": pa.array([[[("role", "user"), ("content", "Hi.")]]], kind),
        "json": ['[{"role":"user","content":"Hi."}]'],
    }
    path = written(tmp_path / "in.parquet", columns)
    for name in columns:
        assert said(all_of(open_source(path, Layout(messages_column=name)))) == ["Hi."]


def test_parquet_is_read_in_lists_of_bounded_size(tmp_path: Path) -> None:
    small = {"text": [f"{n}" for n in range(700)]}
    source = open_source(written(tmp_path / "small.parquet", small, row_group_size=500), TEXT)
    assert sum(map(len, iter(source.read, []))) == 700
    source.close()
    large = {"text": [f"{n}" + "x" * 300_000 for n in range(20)], "unused": ["y"] * 20}
    source = open_source(written(tmp_path / "large.parquet", large, use_dictionary=False), TEXT)
    sizes = [len(items) for items in iter(source.read, [])]
    assert (sum(sizes), max(sizes)) == (20, 3)
    source.close()


def test_parquet_without_rows_or_columns_is_told_apart(tmp_path: Path) -> None:
    path = written(tmp_path / "in.parquet", {"text": pa.array([], pa.string())})
    source = open_source(path, TEXT)
    assert (source.read(), source.position) == ([], source.size)
    source.close()
    with pytest.raises(ValueError, match=r"has no column 'txt'; its columns are 'text'\."):
        open_source(path, Layout(prompt="{txt}"))


def test_damaged_parquet_is_told_when_the_damage_is_reached(tmp_path: Path) -> None:
    columns = {"text": [os.urandom(500).hex() for _ in range(2000)]}
    path = written(tmp_path / "in.parquet", columns, row_group_size=500, use_dictionary=False)
    data = bytearray(path.read_bytes())
    at = parquet.read_metadata(path).row_group(2).column(0).data_page_offset
    data[at : at + 40] = b"\xff" * 40
    path.write_bytes(data)
    source = open_source(path, TEXT)
    made, error = until_error(source)
    assert said(made)[:1000] == columns["text"][:1000]
    assert "is damaged" in str(error)
    source.close()
    path.write_bytes(b"PAR1 no, it is not")
    with pytest.raises(SourceError, match="is no Parquet file"):
        open_source(path, TEXT)


def test_parquet_out_of_a_pipe_is_refused() -> None:
    with pytest.raises(ValueError, match="is a stream, and Parquet is read from its end"):
        open_source(stream([b"PAR1"]), Layout(format="parquet", prompt="{text}"))


def test_parquet_without_its_extra_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "in.parquet", {"text": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pip install "asyncchat\[parquet\]"'):
        open_source(path, TEXT)


# ------------------------------------------------------------------------------------ files and pipes


@pytest.fixture
def pipe() -> Iterator[tuple[BinaryIO, int]]:
    reader, writer = os.pipe()
    with open(reader, "rb", buffering=0) as file:
        yield cast("BinaryIO", file), writer
        with suppress(OSError):  # a test may have done it
            os.close(writer)


def test_slow_pipe_gives_what_has_come(pipe: tuple[BinaryIO, int]) -> None:
    file, writer = pipe
    source = open_source(file)
    os.write(writer, prompts("a", "b") + b'{"prompt":')
    assert said(source.read()) == ["a", "b"]
    os.write(writer, b'"c"}\n')
    assert said(source.read()) == ["c"]
    os.write(writer, b'{"prompt":"d"}')
    os.close(writer)
    assert said(source.read()) == ["d"]
    assert source.read() == []
    assert (source.size, source.position) == (None, len(prompts(*"abcd")) - 1)
    source.close()
    assert not file.closed


def test_slow_pipe_of_csv_gives_the_records_that_are_whole(pipe: tuple[BinaryIO, int]) -> None:
    file, writer = pipe
    source = open_source(file, CSV)
    os.write(writer, b'text\na\n"b\n')
    assert said(source.read()) == ["a"]
    os.write(writer, b'b"\nc\n"d')
    assert said(source.read()) == ["b\nb", "c"]
    os.write(writer, b'"\n')
    os.close(writer)
    assert said(source.read()) == ["d"]
    assert source.read() == []
    source.close()


@pytest.mark.parametrize("begun", [b"", b'{"prompt":"a', gz(many(200))[:2000]])
def test_closing_ends_a_read_that_waits_for_a_pipe(
    begun: bytes, pipe: tuple[BinaryIO, int]
) -> None:
    file, writer = pipe
    os.write(writer, begun)
    source = open_source(file)
    made: list[list[Item | BadItem]] = []

    def read() -> None:
        while items := source.read():
            made.append(items)
        made.append(items)

    thread = threading.Thread(target=read)
    thread.start()
    while begun and source._file.position < len(begun):  # until it has taken what there is
        pass
    source.close()
    source.close()
    thread.join(10)
    assert not thread.is_alive()
    assert made[-1] == []
    assert source.read() == []


def test_closed_source_has_no_more_and_closes_only_what_it_opened(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(prompts(*"x" * 300))
    with path.open("rb") as file:
        theirs, ours = open_source(file), open_source(path)
        for source in (theirs, ours):
            assert (source.name, source.size) == (str(path), path.stat().st_size)
            assert len(source.read()) == 256
            assert 0 < source.position < path.stat().st_size
            source.close()
            assert source.read() == []
        assert not file.closed
        assert ours._file.binary.closed


@pytest.mark.parametrize(
    ("name", "kind"),
    [("in.jsonl", "jsonl"), ("in.ndjson.gz", "jsonl"), ("IN.JSON", "jsonl"), ("in", "jsonl"), ("in.Csv.ZST", "csv")],
)  # fmt: skip
def test_format_goes_by_suffix(name: str, kind: str, tmp_path: Path) -> None:
    data = b"text\na\n" if kind == "csv" else b'{"text":"a"}\n'
    pack = {".gz": gz, ".zst": zstd.compress}.get(Path(name).suffix.lower(), bytes)
    (tmp_path / name).write_bytes(pack(data))
    assert said(all_of(open_source(tmp_path / name, TEXT))) == ["a"]


def test_suffix_that_says_nothing_wants_a_format(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"text\na\n")
    with pytest.raises(ValueError, match=r"pass format= \(--format\), one of jsonl, csv, parquet"):
        open_source(path, TEXT)
    assert said(all_of(open_source(path, CSV))) == ["a"]


def test_file_that_cannot_be_read_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.jsonl cannot be read: No such file"):
        open_source(tmp_path / "none.jsonl")
    with pytest.raises(SourceError, match="cannot be read: Is a directory"):
        open_source(tmp_path)


def test_disk_that_fails_is_told_after_what_came_before() -> None:
    class Broken(Pieces):
        def read(self, size: int = -1) -> bytes:
            if not self.pieces:
                raise OSError(5, "Input/output error")
            return super().read(size)

    source = open_source(cast("BinaryIO", Broken([prompts("a", "b"), b'{"prompt":"c'])))
    made, error = until_error(source)
    assert said(made) == ["a", "b"]
    assert str(error) == "a Broken cannot be read: Input/output error"


# ---------------------------------------------------------------------------------------- how many


def test_inputs_are_counted_where_that_is_cheap(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    for data, count in ((b"", 0), (b"{}\n{}\n", 2), (b"{}\n{}", 2), (b"x" * 3_000_000 + b"\n", 1)):
        path.write_bytes(data)
        assert count_items(path) == count
    table = written(tmp_path / "in.parquet", {"text": ["a"] * 700}, row_group_size=300)
    assert count_items(table, TEXT) == 700
    assert count_items(path.rename(tmp_path / "in"), Layout(format="jsonl")) == 1


@pytest.mark.parametrize("name", ["in.csv", "in.jsonl.gz", "in.txt"])
def test_inputs_are_not_counted_where_that_takes_reading_them_all(
    name: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(b"x\n")
    assert count_items(tmp_path / name) is None
    assert count_items("-") is None


def test_counting_what_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"{}\n")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(SourceError, match=r"in\.jsonl cannot be read: Permission denied"):
        count_items(path)


# -------------------------------------------------------------------------------------------- memory

READER = """
import re, sys
from pathlib import Path
from asyncchat.batch.item import BadItem, Layout
from asyncchat.batch.source import open_source
def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
where, format = sys.argv[1:]
source = open_source(where, Layout(format=format, prompt="{text}", max_body=2**20))
items = source.read()
before, count = peak(), 0
while items:
    count += len(items)
    items = source.read()
print(count, peak() - before)
"""


def read_in_another_process(
    blocks: Iterator[bytes], where: str = "-", kind: str = "jsonl"
) -> tuple[int, float]:
    """How many items came, and by how many MiB the process grew at most after the first ones."""
    argv = [sys.executable, "-c", READER, where, kind]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin
        for block in blocks:
            child.stdin.write(block)
        printed, _ = child.communicate()
    count, grown = printed.split()
    return int(count), float(grown)


BLOCK = b"".join(b'{"text":"%s"}\n' % (b"word " * 200) for _ in range(1000))
TABLE = b"".join(b'"%s\n""x"""\n' % (b"word " * 200) for _ in range(1000))


def test_standard_input_is_read_in_constant_memory() -> None:
    count, grown = read_in_another_process(BLOCK for _ in range(24))
    assert count == 24_000
    assert grown < 12


def test_long_line_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(BLOCK)
        file.seek(50 * 2**20)  # a hole, which reads as zeros
        file.write(b"\n" + BLOCK)
    count, grown = read_in_another_process(iter([]), str(path))
    assert count == 2001
    assert grown < 12


@pytest.mark.slow
def test_two_gigabytes_of_jsonl_are_read_in_constant_memory() -> None:
    times = 2**31 // len(BLOCK)
    count, grown = read_in_another_process(BLOCK for _ in range(times))
    assert count == times * 1000
    assert grown < 12


@pytest.mark.slow
def test_half_a_gigabyte_of_csv_is_read_in_constant_memory() -> None:
    times = 2**29 // len(TABLE)
    blocks = (TABLE if n else b"text\n" + TABLE for n in range(times))
    count, grown = read_in_another_process(blocks, kind="csv")
    assert count == times * 1000
    assert grown < 12


@pytest.mark.slow
def test_two_gigabytes_of_one_line_are_not_held(tmp_path: Path) -> None:
    path = tmp_path / "in.jsonl"
    with path.open("wb") as file:
        file.write(BLOCK)
        file.truncate(2**31)
    count, grown = read_in_another_process(iter([]), str(path))
    assert count == 1001
    assert grown < 12


@pytest.mark.slow
def test_large_parquet_is_read_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    schema = pa.schema([("text", pa.string())])
    with parquet.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for part in range(20):
            texts = [f"{part} {n} " + "word " * 200 for n in range(10_000)]
            writer.write_table(pa.table({"text": texts}))
    count, grown = read_in_another_process(iter([]), str(path), "parquet")
    assert count == 200_000
    assert grown < 40
