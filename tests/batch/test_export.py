"""`batch.export`: the records of jobs as a file for others, whole or not at all."""

import io
import os
import random
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from asyncchat.batch.export import Exported, export
from asyncchat.batch.journal import Job, Journal, write_job
from asyncchat.batch.record import BatchError, Outcome, Trace, encode_record
from asyncchat.errors import JournalError
from tests.batch.conftest import completion

Made = tuple[str, int, str | BatchError]
"""A record: its name, its place, and what the answer says or why there is none."""


def line_of(made: Made) -> bytes:
    key, n, said = made
    trace = Trace(n, hash=f"{n:032x}", attempts=1, t_total=1.5, tokens=(7, 3, 0))
    if isinstance(said, BatchError):
        return encode_record(key, trace, error=said)
    body = completion(said, a_field_of_tomorrow={"x": [1]})
    return encode_record(key, trace, body=msgspec.json.encode(body), request_id="req-9")


def job(directory: Path, records: Iterable[Made], name: str = "0123456789abcdef") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    write_job(directory, Job(id=name))
    with Journal(directory) as journal:
        for made in records:
            journal.append(line_of(made))
    return directory


def read(path: Path) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]


FAILED = BatchError("bad_request", "no such tool", 400, "invalid_request_error")


@pytest.mark.parametrize("ordered", [True, False])
def test_each_outcome_is_shown_to_who_looks_on(tmp_path: Path, ordered: bool) -> None:
    seen: list[Outcome] = []
    records: list[Made] = [("b", 2, "x"), ("a", 1, FAILED)]
    export(
        [job(tmp_path / "j", records)],
        tmp_path / "out.jsonl",
        ordered=ordered,
        is_single=True,
        look=seen.append,
    )
    assert [(outcome.custom_id, outcome.ok) for outcome in seen] == [("b", True), ("a", False)]


def test_line_is_openais_batch_output_and_no_more(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    assert export([job(tmp_path / "j", [("a", 1, "One.")])], out) == Exported(ok=1, failed=0)
    (line,) = read(out)
    assert set(line) == {"id", "custom_id", "response", "error"}
    assert line["custom_id"] == "a"
    assert line["error"] is None
    response = line["response"]
    assert isinstance(response, dict)
    assert (response["status_code"], response["request_id"]) == (200, "req-9")
    assert response["body"]["choices"][0]["message"]["content"] == "One."
    assert response["body"]["a_field_of_tomorrow"] == {"x": [1]}


def test_failed_input_is_a_line_with_its_error_and_no_response(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    found = export([job(tmp_path / "j", [("a", 1, FAILED), ("b", 2, "Two.")])], out)
    assert found == Exported(ok=1, failed=1)
    line = read(out)[0]
    assert line["response"] is None
    error = line["error"]
    assert isinstance(error, dict)
    assert (error["code"], error["message"]) == ("bad_request", "no such tool")


def test_names_and_answers_of_any_characters_come_through(tmp_path: Path) -> None:
    said = 'a "quote", a \\, \n a line, ,"x":{"n":1},"crc":1}} and \u2028 🙂'
    key = '","x":{"n":7,"crc":3}}'
    out = tmp_path / "out.jsonl"
    export([job(tmp_path / "j", [(key, 1, said)])], out)
    assert out.read_bytes().count(b"\n") == 1
    (line,) = read(out)
    assert line["custom_id"] == key
    response = line["response"]
    assert isinstance(response, dict)
    assert response["body"]["choices"][0]["message"]["content"] == said
    assert set(line) == {"id", "custom_id", "response", "error"}


def test_ids_are_different_across_jobs_and_the_same_in_each_export(tmp_path: Path) -> None:
    jobs = [
        job(tmp_path / "a", [("line-1", 1, "x"), ("line-2", 2, "x")], name="a" * 16),
        job(tmp_path / "b", [("line-1", 1, "x"), ("line-2", 2, "x")], name="b" * 16),
    ]
    out = tmp_path / "out.jsonl"
    export(jobs, out)
    ids = [line["id"] for line in read(out)]
    assert len(set(ids)) == 4
    export(jobs, out)
    assert [line["id"] for line in read(out)] == ids


def test_errors_go_to_a_file_of_their_own(tmp_path: Path) -> None:
    out, errors = tmp_path / "out.jsonl", tmp_path / "bad.jsonl"
    records: list[Made] = [("c", 3, FAILED), ("b", 2, "Two."), ("a", 1, FAILED), ("d", 4, "Four.")]
    export([job(tmp_path / "j", records)], out, errors=errors, ordered=True)
    assert [line["custom_id"] for line in read(out)] == ["b", "d"]
    assert [line["custom_id"] for line in read(errors)] == ["a", "c"]


def test_file_for_errors_is_made_also_where_there_are_none(tmp_path: Path) -> None:
    errors = tmp_path / "bad.jsonl"
    errors.write_text("of yesterday")
    export([job(tmp_path / "j", [("a", 1, "One.")])], tmp_path / "out.jsonl", errors=errors)
    assert errors.read_bytes() == b""


def test_flat_line_says_the_answer_the_end_the_tokens_and_the_error(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    export([job(tmp_path / "j", [("a", 1, "One."), ("b", 2, FAILED)])], out, flat=True)
    good, bad = read(out)
    assert good == {
        "custom_id": "a",
        "text": "One.",
        "finish_reason": "stop",
        "reasoning": None,
        "tool_calls": None,
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "seconds": 1.5,
        "error": None,
    }
    assert bad == {"custom_id": "b", "text": None, "error": "bad_request: no such tool"}


def test_flat_line_has_reasoning_and_tool_calls(tmp_path: Path) -> None:
    directory = tmp_path / "j"
    directory.mkdir()
    write_job(directory, Job(id="1"))
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}}
    message = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "tool_calls": [call],
    }
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    with Journal(directory) as journal:
        journal.append(encode_record("a", Trace(1), body=msgspec.json.encode(body)))
    export([directory], tmp_path / "out.jsonl", flat=True)
    (line,) = read(tmp_path / "out.jsonl")
    assert line["reasoning"] == "Hm."
    assert line["tool_calls"] == [{"name": "f", "arguments": '{"x":1}'}]
    assert line["prompt_tokens"] is None
    assert not line["text"]


def test_only_the_record_that_counts_is_written(tmp_path: Path) -> None:
    records: list[Made] = [("a", 1, FAILED), ("b", 2, "Two."), ("a", 1, "One at last.")]
    out = tmp_path / "out.jsonl"
    assert export([job(tmp_path / "j", records)], out) == Exported(ok=2, failed=0)
    assert sorted(str(line["custom_id"]) for line in read(out)) == ["a", "b"]


# ------------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("run_bytes", [1, 3_000, 1 << 26])
def test_order_is_that_of_the_inputs_however_little_is_sorted_in_memory(
    run_bytes: int, tmp_path: Path
) -> None:
    places = list(range(1, 301))
    random.Random(5).shuffle(places)
    records: list[Made] = [(f"k{n}", n, FAILED if n % 7 == 0 else f"{n}.") for n in places]
    out = tmp_path / "out.jsonl"
    export([job(tmp_path / "j", records)], out, ordered=True, run_bytes=run_bytes)
    assert [line["custom_id"] for line in read(out)] == [f"k{n}" for n in range(1, 301)]


def test_without_it_the_order_is_that_of_the_answers(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    export([job(tmp_path / "j", [("b", 2, "x"), ("c", 3, "x"), ("a", 1, "x")])], out)
    assert [line["custom_id"] for line in read(out)] == ["b", "c", "a"]


def test_jobs_with_parts_of_one_input_come_in_its_order(tmp_path: Path) -> None:
    even = job(tmp_path / "even", [(f"k{n}", n, "x") for n in (4, 2, 6)])
    odd = job(tmp_path / "odd", [(f"k{n}", n, "x") for n in (5, 1, 3)])
    out = tmp_path / "out.jsonl"
    assert export([even, odd], out, ordered=True, run_bytes=1).ok == 6
    assert [line["custom_id"] for line in read(out)] == [f"k{n}" for n in range(1, 7)]


def test_what_is_sorted_lies_beside_the_output_and_not_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is in memory on many machines."""
    asked: list[object] = []
    real = tempfile.TemporaryFile

    def noted(*args: object, **options: object) -> object:
        asked.append(options.get("dir"))
        return real(*args, **options)  # type: ignore[call-overload]

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    records: list[Made] = [(f"k{n}", n, "x") for n in (3, 1, 2)]
    export([job(tmp_path / "j", records)], tmp_path / "out.jsonl", ordered=True, run_bytes=1)
    assert asked == [tmp_path] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "out.jsonl"]


@pytest.mark.slow
def test_order_of_many_answers_is_made_in_little_memory(tmp_path: Path) -> None:
    directory = tmp_path / "j"
    places = list(range(1, 150_001))
    random.Random(1).shuffle(places)
    job(directory, ((f"k{n}", n, "word " * 60) for n in places))
    code = (
        "import resource, sys; from pathlib import Path; from asyncchat.batch.export import export\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "export([Path(sys.argv[1])], Path(sys.argv[2]), ordered=True, run_bytes=2**22)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    out = tmp_path / "out.jsonl"
    done = subprocess.run(
        [sys.executable, "-c", code, directory, out],
        capture_output=True, text=True, timeout=110, check=True,
    )  # fmt: skip
    assert out.stat().st_size > 80 * 2**20
    assert int(done.stdout) < 40, "MiB"
    with out.open("rb") as file:
        for n, line in enumerate(file, 1):
            assert b'"custom_id":"k%d",' % n in line


# ------------------------------------------------------------------------------- whole or not at all


def test_open_file_is_written_to_and_stays_open(tmp_path: Path) -> None:
    out = io.BytesIO()
    export([job(tmp_path / "j", [("b", 2, "x"), ("a", 1, "x")])], out, ordered=True)
    assert out.getvalue().count(b"\n") == 2


def test_file_that_is_there_is_kept_until_the_new_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("of yesterday")
    directory = job(tmp_path / "j", [("a", 1, "One.")])

    def broken(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken)
        with pytest.raises(OSError, match="No space left"):
            export([directory], out)
    assert out.read_text() == "of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "out.jsonl"]


def test_killed_in_the_middle_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    directory = job(tmp_path / "j", [(f"k{n}", n, "x") for n in range(1, 50)])
    out = tmp_path / "out.jsonl"
    out.write_text("of yesterday")
    code = (
        "import os, signal, sys; from pathlib import Path; from asyncchat.batch import export\n"
        "form, seen = export.as_openai_line, []\n"
        "def dies(outcome, line, *rest):\n"
        "    seen.append(1)\n"
        "    if len(seen) == 20: os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return form(outcome, line, *rest)\n"
        "export.as_openai_line = dies\n"
        "export.export([Path(sys.argv[1])], Path(sys.argv[2]))\n"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, directory, out], timeout=60, check=False
        )
        assert done.returncode == -signal.SIGKILL
    assert out.read_text() == "of yesterday"
    export([directory], out)
    assert len(read(out)) == 49
    # What the killed ones left behind is gone with the next one.
    assert sorted(path.name for path in tmp_path.iterdir()) == ["j", "out.jsonl"]


def test_link_stays_a_link_and_its_target_is_written(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "out.jsonl"
    link.symlink_to(tmp_path / "real" / "out.jsonl")
    export([job(tmp_path / "j", [("a", 1, "One.")])], link)
    assert link.is_symlink()
    assert len(read(tmp_path / "real" / "out.jsonl")) == 1


def test_what_is_no_file_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    """`/dev/null` of a machine, say."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        export([job(tmp_path / "j", [("a", 1, "One.")])], pipe)
        assert os.read(reading, 1 << 16).count(b"\n") == 1
    finally:
        os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("ordered", [False, True])
def test_directory_without_a_job_is_an_error_and_nothing_is_written(
    ordered: bool, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("of yesterday")
    there = job(tmp_path / "j", [("a", 1, "One.")])
    with pytest.raises(JournalError, match=r"there is no job in .*typo"):
        export([there, tmp_path / "typo"], out, ordered=ordered)
    assert out.read_text() == "of yesterday"
