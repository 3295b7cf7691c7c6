"""Records of many writers, followed while they grow, and files whose numbers are each writer's own."""

import os
from pathlib import Path

import pytest

from asyncchat.batch.journal import Journal
from asyncchat.batch.record import BatchError, Trace, encode_record
from asyncchat.batch.shards import Shards
from asyncchat.errors import JournalError

BODY = b'{"id":"%b","object":"chat.completion","created":1,"model":"m","choices":[]}'


def line(key: str, answer: bytes | None, hash_: str = "aa") -> bytes:
    error = BatchError("timeout", "late") if answer is None else None
    body = None if answer is None else BODY % answer
    return encode_record(key, Trace(1, hash_), body=body, error=error)


def answer_of(shards: Shards, key: str) -> str | None:
    record = shards.find(key)
    return None if record is None or record.completion is None else record.completion.id


def test_each_catching_up_brings_what_was_written_since(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    with Journal(tmp_path, shard="a") as one, Journal(tmp_path, shard="b") as other:
        one.append(line("k1", b"1"))
        assert shards.is_behind
        assert [outcome.custom_id for outcome in shards.catch_up()] == ["k1"]
        assert not shards.is_behind
        other.append(line("k2", b"2"))
        one.append(line("k3", None))
        assert sorted(outcome.custom_id for outcome in shards.catch_up()) == ["k2", "k3"]
        assert list(shards.catch_up()) == []
    assert (answer_of(shards, "k1"), answer_of(shards, "k2")) == ("1", "2")
    failed = shards.find("k3")
    assert failed is not None
    assert not failed.ok
    assert shards.find("k4") is None


def test_line_that_is_not_complete_is_read_when_it_is(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    whole = line("k1", b"1")
    path = tmp_path / "done-0001-a.jsonl"
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        assert list(shards.catch_up()) == []
    path.write_bytes(whole)
    assert len(list(shards.catch_up())) == 1


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    other_version = line("k9", b"9").replace(b'"custom_id"', b'"customid"')
    path = tmp_path / "done-0001-a.jsonl"
    path.write_bytes(b'{"torn\n' + other_version + line("k1", b"1"))
    assert [outcome.custom_id for outcome in shards.catch_up()] == ["k1"]
    assert answer_of(shards, "k1") == "1"


def test_failure_does_not_stand_for_an_answer_to_the_same(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    with Journal(tmp_path, shard="a") as journal:
        journal.append(line("k1", b"1"))
        journal.append(line("k1", None))
        journal.append(line("k2", None))
        journal.append(line("k2", b"2"))
        journal.append(line("k3", b"3"))
        journal.append(line("k3", None, hash_="bb"))  # it has changed
        list(shards.catch_up())
    assert [answer_of(shards, key) for key in ("k1", "k2", "k3")] == ["1", "2", None]


def test_file_that_cannot_be_read_is_an_error_and_one_that_is_gone_is_none(tmp_path: Path) -> None:
    shards = Shards(tmp_path)
    path = tmp_path / "done-0001-a.jsonl"
    path.write_bytes(line("k1", b"1"))
    list(shards.catch_up())
    path.unlink()
    assert list(shards.catch_up()) == []
    with pytest.raises(JournalError):
        shards.find("k1")
    (tmp_path / "done-0002-a.jsonl").mkdir()
    with pytest.raises(JournalError):
        list(shards.catch_up())


def test_writers_that_begin_at_the_same_time_number_their_files_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open
    others = [Path(tmp_path / "done-0001-b.jsonl")]

    def open_late(path: "os.PathLike[str]", flags: int, mode: int = 0o777) -> int:
        if flags & os.O_EXCL and others:
            others.pop().touch()  # another one was quicker
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", open_late)
    with Journal(tmp_path, shard="a") as journal:
        place = journal.append(line("k1", b"1"))
    assert place.file > 1
    (written,) = tmp_path.glob("done-*-a.jsonl")
    assert written.name == f"done-{place.file:04}-a.jsonl"


def test_writer_that_has_nothing_to_write_leaves_no_file(tmp_path: Path) -> None:
    Journal(tmp_path, shard="a").close()
    assert list(tmp_path.iterdir()) == []
