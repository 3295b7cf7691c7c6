"""The record on disk: whatever cuts or damages it, at most the line that was hit is lost."""

import errno
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncchat.batch import journal as module
from asyncchat.batch.journal import (
    Job,
    JobLock,
    Journal,
    Place,
    final_lines,
    line_at,
    read_job,
    repair,
    scan,
    supersedes,
    write_job,
)
from asyncchat.batch.record import BatchError, Outcome, Trace, encode_record
from asyncchat.errors import JournalError, JournalLocked

HASH = "00112233445566778899aabbccddeeff"


def line_of(key: str, *, ok: bool = True, hash_: str = HASH, text: str = "yes") -> bytes:
    if ok:
        body = b'{"choices":[{"message":{"content":"%s"}}]}' % text.encode()
        return encode_record(key, Trace(1, hash_), body=body)
    return encode_record(key, Trace(1, hash_), error=BatchError("server", "no"))


def written(directory: Path, *lines: bytes, largest: int = 2**30) -> list[Place]:
    with Journal(directory, largest=largest) as journal:
        return [journal.append(line) for line in lines]


def names(directory: Path) -> list[str]:
    return [outcome.custom_id for outcome, _, _ in scan(directory)]


# --------------------------------------------------------------------------------------- appending


def test_line_is_there_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    place = journal.append(line_of("a"))
    assert names(tmp_path) == ["a"]  # though nothing was synced or closed
    assert line_at(tmp_path, place) == line_of("a")
    journal.close()
    journal.close()


def test_each_run_begins_a_file_and_large_ones_are_followed_by_another(tmp_path: Path) -> None:
    lines = [line_of(str(number)) for number in range(6)]
    places = written(tmp_path, *lines[:5], largest=len(lines[0]) + 20)
    places += written(tmp_path, lines[5])
    assert [place.file for place in places] == [1, 1, 2, 2, 3, 4]
    assert [line_at(tmp_path, place) for place in places] == lines
    assert names(tmp_path) == ["0", "1", "2", "3", "4", "5"]


def test_files_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "done-10000.jsonl").write_bytes(line_of("last"))
    (tmp_path / "done-9999.jsonl").write_bytes(line_of("first"))
    (tmp_path / "done-x.jsonl").write_bytes(line_of("of somebody else"))
    assert names(tmp_path) == ["first", "last"]


def test_writers_of_one_job_have_files_of_their_own(tmp_path: Path) -> None:
    with Journal(tmp_path, shard="a") as one, Journal(tmp_path, shard="b") as other:
        one.append(line_of("1"))
        other.append(line_of("2"))
        one.note("attempts", b"{}\n")
    assert sorted(names(tmp_path)) == ["1", "2"]
    assert {path.name for path in tmp_path.iterdir()} == {
        "done-0001-a.jsonl",
        "done-0002-b.jsonl",
        "attempts-a.jsonl",
    }


def test_write_that_takes_only_a_part_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    written(tmp_path, line_of("a"), line_of("b"))
    assert names(tmp_path) == ["a", "b"]


def failing_write(after: int) -> Callable[[int, bytes], int]:
    """Takes so many bytes, and then the disk is full."""
    real, left = os.write, after

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, data[:left])
        left -= done
        return done

    return write


@pytest.mark.parametrize("part", [0, 1, 100])
def test_full_disk_leaves_whole_lines_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    first = line_of("a")
    with Journal(tmp_path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing_write(len(first) + part))
            journal.append(first)
            with pytest.raises(JournalError, match="No space left") as caught:
                journal.append(line_of("b"))
        assert "run the same again" in caught.value.hint
        assert journal.append(line_of("c")) == Place(1, len(first))
    assert names(tmp_path) == ["a", "c"]
    assert repair(tmp_path) == []


def test_directory_that_takes_no_next_file_is_an_error_and_closes_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal(tmp_path, largest=1)
    journal.append(line_of("a"))

    def refuse(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(JournalError, match="Read-only"):
            journal.append(line_of("b"))
    mine = os.open(tmp_path / "mine", os.O_CREAT)  # gets the number of the file that was closed
    assert journal.append(line_of("c")).file == 2
    journal.close()
    os.fstat(mine)
    os.close(mine)
    assert names(tmp_path) == ["a", "c"]


def test_directory_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="cannot be written"):
        Journal(tmp_path / "nowhere")


def test_only_what_is_new_is_synced_and_a_broken_disk_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    with Journal(tmp_path) as journal:
        journal.sync()
        assert not synced
        journal.append(line_of("a"))
        journal.sync()
        journal.sync()
        assert len(synced) == 1
        journal.append(line_of("b"))

        def broken(_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, "fdatasync", broken)
        for _ in range(2):  # it is still not safe
            with pytest.raises(JournalError, match="Input/output"):
                journal.sync()


def test_notes_that_find_no_room_are_lost_silently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Journal(tmp_path) as journal:
        journal.note("samples", b"1\n")
        journal.note("samples", b"2\n")
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", failing_write(0))
            journal.note("samples", b"3\n")
    assert (tmp_path / "samples.jsonl").read_bytes() == b"1\n2\n"


# ------------------------------------------------------------------------------------ after a crash


def test_journal_cut_at_any_byte_of_its_last_lines_loses_the_cut_one_at_most(
    tmp_path: Path,
) -> None:
    lines = [line_of(name, text="ü" * 5) for name in ("a", "b", "c", "d")]
    whole = b"".join(lines)
    path = tmp_path / "done-0001.jsonl"
    for cut in range(len(lines[0]), len(whole) + 1):
        path.write_bytes(whole[:cut])
        ends = [sum(map(len, lines[: number + 1])) for number in range(4)]
        is_torn = cut not in ends
        said = repair(tmp_path)
        assert len(said) == is_torn
        assert names(tmp_path) == ["a", "b", "c", "d"][: sum(end <= cut for end in ends)]
        aside = list(tmp_path.glob("torn-*"))
        assert len(aside) == is_torn
        if is_torn:
            kept = path.stat().st_size
            assert aside[0].read_bytes() == whole[kept:cut]
            assert aside[0].name in said[0]
            aside[0].unlink()
        assert repair(tmp_path) == []
        if not cut % 50:  # it syncs
            written(tmp_path, line_of("after"))
            assert names(tmp_path)[-1] == "after"
            (tmp_path / "done-0002.jsonl").unlink()


def test_torn_line_larger_than_a_block_is_set_aside_whole(tmp_path: Path) -> None:
    path = tmp_path / "done-0001.jsonl"
    torn = line_of("b", text="x" * 200_000)[:-9]
    path.write_bytes(line_of("a") + torn)
    (said,) = repair(tmp_path)
    assert f"{len(torn)} bytes" in said
    assert names(tmp_path) == ["a"]
    path.write_bytes(torn)  # and where there is no other
    assert len(repair(tmp_path)) == 1
    assert path.read_bytes() == b""
    repair(tmp_path)
    assert not path.exists()


def test_last_line_that_is_damaged_is_set_aside_though_it_is_whole(tmp_path: Path) -> None:
    damaged = line_of("b").replace(b"yes", b"yEs")
    (tmp_path / "done-0001.jsonl").write_bytes(line_of("a") + damaged)
    assert len(repair(tmp_path)) == 1
    assert names(tmp_path) == ["a"]


def test_every_file_is_mended(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"done-000{number}.jsonl").write_bytes(line_of(str(number)) + b"{")
    assert len(repair(tmp_path)) == 3
    assert names(tmp_path) == ["1", "2", "3"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.data())
def test_damage_in_the_middle_loses_what_it_hit_and_nothing_else(
    tmp_path: Path, data: st.DataObject
) -> None:
    lines = [line_of(str(number)) for number in range(5)]
    whole = bytearray(b"".join(lines))
    at = data.draw(st.integers(0, len(whole) - 1))
    junk = data.draw(st.binary(min_size=1, max_size=8))
    whole[at : at + len(junk)] = junk
    (tmp_path / "done-0001.jsonl").write_bytes(whole)
    start, unhurt = 0, set()
    for number, line in enumerate(lines):
        end = start + len(line)
        if at >= end or at + len(junk) < start:  # nor is the end of the line before it hit
            unhurt.add(str(number))
        start = end
    assert unhurt <= set(names(tmp_path))
    for outcome, place, line in scan(tmp_path):
        assert line in lines
        assert line_at(tmp_path, place) == line
        assert outcome.ok


def test_file_that_goes_while_the_job_is_read_was_empty(tmp_path: Path) -> None:
    """Who looks at a job holds no lock, and who begins to run it takes empty files away."""
    (tmp_path / "done-0001.jsonl").write_bytes(line_of("a"))
    (tmp_path / "done-0002.jsonl").write_bytes(b"")
    reading = scan(tmp_path)
    assert next(reading)[0].custom_id == "a"
    repair(tmp_path)
    assert list(reading) == []


def test_sound_line_that_is_no_record_is_left_out(tmp_path: Path) -> None:
    import zlib

    other = b'{"other":1'
    other += b',"crc":%d}}\n' % zlib.crc32(other)
    (tmp_path / "done-0001.jsonl").write_bytes(other + line_of("a"))
    assert names(tmp_path) == ["a"]


def test_file_that_cannot_be_read_or_mended_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "done-0001.jsonl").mkdir()
    with pytest.raises(JournalError):
        repair(tmp_path)
    with pytest.raises(JournalError, match="cannot be read"):
        names(tmp_path)
    with pytest.raises(JournalError, match="cannot be read"):
        line_at(tmp_path, Place(1, 0))
    with pytest.raises(JournalError, match="is gone"):
        line_at(tmp_path, Place(2, 0))


# ---------------------------------------------------------------------------------- which one counts


def outcome(*, ok: bool) -> Outcome:
    return Outcome("a", Trace(1), None if ok else BatchError("server", ""))


@pytest.mark.parametrize(
    ("ok", "was_ok", "is_same", "expected"),
    [
        (True, True, True, True),
        (True, False, False, True),
        (False, False, True, True),
        (False, False, False, True),
        (False, True, False, True),
        (False, True, True, False),
    ],
)
def test_error_never_stands_for_an_answer_to_the_same_request(
    ok: bool, was_ok: bool, is_same: bool, expected: bool
) -> None:
    assert supersedes(outcome(ok=ok), was_ok=was_ok, is_same=is_same) is expected


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.booleans(), st.sampled_from([HASH, "f" * 32])))
)
def test_one_record_counts_for_each_input(
    tmp_path: Path, history: list[tuple[str, bool, str]]
) -> None:
    lines = [
        line_of(key, ok=ok, hash_=hash_, text=str(number))
        for number, (key, ok, hash_) in enumerate(history)
    ]
    (tmp_path / "done-0001.jsonl").write_bytes(b"".join(lines))
    model: dict[str, tuple[int, bool, str]] = {}
    for number, (key, ok, hash_) in enumerate(history):
        before = model.get(key)
        if before is None or ok or not before[1] or before[2] != hash_:
            model[key] = number, ok, hash_
    assert [line for _, line in final_lines(tmp_path)] == [
        lines[number] for number, _, _ in sorted(model.values())
    ]


def test_records_of_which_none_supersedes_another_are_read_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line_of(key) for key in "abc"]
    (tmp_path / "done-0001.jsonl").write_bytes(b"".join(lines))
    reads: list[Path] = []

    def counted(directory: Path) -> Iterator[tuple[Outcome, Place, bytes]]:
        reads.append(directory)
        return scan(directory)

    monkeypatch.setattr(module, "scan", counted)
    assert [line for _, line in final_lines(tmp_path, is_single=True)] == lines
    assert len(reads) == 1
    assert [line for _, line in final_lines(tmp_path)] == lines
    assert len(reads) == 3


# --------------------------------------------------------------------------------- job.json, the lock


def test_job_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_job(tmp_path) is None
    job = Job("id", input={"name": "in.jsonl"}, options={"model": "m"}, run={"concurrency": 4})
    write_job(tmp_path, job)
    assert read_job(tmp_path) == job
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"{", "is no job's"),
        (b"[]", "is no job's"),
        (b'{"id":"a","version":2}', "newer version"),
    ],
)
def test_job_of_another_kind_is_refused(tmp_path: Path, text: bytes, said: str) -> None:
    (tmp_path / "job.json").write_bytes(text)
    with pytest.raises(JournalError, match=said):
        read_job(tmp_path)


def test_job_that_cannot_be_read_or_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "job.json").mkdir()
    with pytest.raises(JournalError, match="cannot be read"):
        read_job(tmp_path)
    with pytest.raises(JournalError, match="cannot be written"):
        write_job(tmp_path, Job("a"))
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]
    with pytest.raises(JournalError, match="cannot be written"):
        write_job(tmp_path / "nowhere", Job("a"))

    def crash(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "job.json").rmdir()
    write_job(tmp_path, Job("old"))
    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(JournalError, match="No space"):
        write_job(tmp_path, Job("new"))
    assert read_job(tmp_path) == Job("old")


def test_second_lock_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    lock = JobLock(tmp_path / "made" / "for it")
    with pytest.raises(JournalLocked, match=f"process {os.getpid()} is running") as caught:
        JobLock(tmp_path / "made" / "for it")
    assert caught.value.pid == os.getpid()
    lock.close()
    lock.close()
    JobLock(tmp_path / "made" / "for it").close()


def test_lock_without_a_pid_is_somebody_elses(tmp_path: Path) -> None:
    lock = JobLock(tmp_path)
    (tmp_path / "lock").write_text("")
    with pytest.raises(JournalLocked, match="another process") as caught:
        JobLock(tmp_path)
    assert caught.value.pid is None
    lock.close()


def test_lock_where_no_directory_can_be_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot be written") as caught:
        JobLock(tmp_path / "file" / "job")
    assert "Nothing was sent" in caught.value.hint


def test_lock_on_a_full_disk_is_held_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(*_: object) -> None:
        raise OSError(errno.ENOSPC, "")

    monkeypatch.setattr(os, "pwrite", crash)
    lock = JobLock(tmp_path)
    with pytest.raises(JournalLocked):
        JobLock(tmp_path)
    lock.close()


def test_names_of_files_are_synced_with_their_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: Counter[Path] = Counter()
    monkeypatch.setattr(
        module, "sync_directory", lambda directory: synced.update([Path(directory)])
    )
    write_job(tmp_path, Job("a"))
    written(tmp_path, line_of("a"), line_of("b"), largest=1)
    assert synced == {tmp_path: 3}


def test_torn_files_have_names_that_nobody_reads(tmp_path: Path) -> None:
    (tmp_path / "done-0001.jsonl").write_bytes(line_of("a")[:-3])
    repair(tmp_path)
    assert any(re.fullmatch(r"torn-\d+-done-0001", path.name) for path in tmp_path.iterdir())
    assert names(tmp_path) == []
