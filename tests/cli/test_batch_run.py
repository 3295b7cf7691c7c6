"""`asyncchat batch run`: what goes in and comes out, exit codes, what a second run does, signals."""

import gzip
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from asyncchat.batch.journal import JobLock
from asyncchat.cli import batch_run, main
from asyncchat.testing import ChatServer, Reply
from asyncchat.testing.wire import ReceivedRequest
from tests.cli.conftest import read

Run = Callable[..., int]
Signals = Callable[..., None]
Stdin = Callable[..., None]


def lines(*prompts: str, **fields: object) -> str:
    return "".join(
        msgspec.json.encode({"custom_id": f"k{n}", "prompt": prompt, **fields}).decode() + "\n"
        for n, prompt in enumerate(prompts, 1)
    )


def said(line: dict[str, Any]) -> str:
    text: str = line["response"]["body"]["choices"][0]["message"]["content"]
    return text


def asked(server: ChatServer) -> list[str]:
    return [request.last_text for request in server.requests]


@pytest.fixture
def run(server: ChatServer, folder: Path) -> Run:
    """`asyncchat batch run in.jsonl out.jsonl` with the server, without progress."""

    def run(*options: str, paths: tuple[str, str] = ("in.jsonl", "out.jsonl")) -> int:
        target = ["--base-url", server.base_url, "--model", "m", "--progress", "none"]
        return main(["batch", "run", *paths, *target, *options])

    return run


@pytest.fixture
def stdin() -> Iterator[Stdin]:
    """Put a pipe where stdin is, with something in it, and close its other end or leave it idle."""
    before = os.dup(0)
    idle: list[int] = []

    def put(text: str, *, is_open: bool = False) -> None:
        reading, writing = os.pipe()
        os.dup2(reading, 0)
        os.close(reading)
        os.write(writing, text.encode())
        if is_open:
            idle.append(writing)
        else:
            os.close(writing)

    yield put
    os.dup2(before, 0)
    os.close(before)
    for end in idle:
        os.close(end)


# ------------------------------------------------------------------------------------ in and out


def test_each_input_is_asked_and_its_answer_is_a_line_of_openais_batch_output(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    message = [{"role": "user", "content": "Two?"}]
    (folder / "in.jsonl").write_text(
        '{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": '
        '[{"role": "user", "content": "One?"}], "temperature": 0}}\n\n'
        f'{{"messages": {msgspec.json.encode(message).decode()}}}\n'
        '{"custom_id": "c", "prompt": "Three?"}'
    )
    assert run("--ordered") == 0
    found = read(folder / "out.jsonl")
    assert [line["custom_id"] for line in found] == ["a", "line-3", "c"]
    assert [said(line) for line in found] == ["One?", "Two?", "Three?"]
    assert all(line["error"] is None and line["response"]["status_code"] == 200 for line in found)
    assert {request.body["model"] for request in server.requests} == {"m"}
    assert all(request.streaming for request in server.requests)
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "3 answers and 0 errors written to out.jsonl" in seen.err
    assert "inputs    3" in seen.err


def test_bad_lines_are_error_records_with_their_numbers_and_the_job_goes_on(
    folder: Path, run: Run
) -> None:
    (folder / "in.jsonl").write_text(
        '{"prompt": "One?"}\n{"prompt": "Two?\n[3]\n{"prompt": "4?"}\n'
    )
    assert run("--ordered") == 1
    good, bad, worse, last = read(folder / "out.jsonl")
    assert (said(good), said(last)) == ("One?", "4?")
    assert (bad["custom_id"], bad["response"]) == ("line-2", None)
    assert bad["error"]["code"] == worse["error"]["code"] == "invalid_line"
    assert bad["error"]["message"].startswith("line 2: it is not JSON")
    assert worse["error"]["message"] == "line 3: it is no JSON object"


def test_rows_of_a_packed_table_are_asked_through_a_template(
    server: ChatServer, folder: Path, run: Run
) -> None:
    (folder / "in.csv.gz").write_bytes(gzip.compress(b"id,text,n\n17,Broke.,1\n18,Fine.,2\n"))
    options = ["--prompt", "Good or bad? {text}", "--system", "Row {n}.", "--id-col", "id"]
    assert run(*options, "--ordered", paths=("in.csv.gz", "out.jsonl")) == 0
    found = read(folder / "out.jsonl")
    assert [(line["custom_id"], said(line)) for line in found] == [
        ("17", "Good or bad? Broke."),
        ("18", "Good or bad? Fine."),
    ]
    assert {request.messages[0]["content"] for request in server.requests} == {"Row 1.", "Row 2."}


def test_column_of_messages_of_a_file_whose_suffix_says_nothing(folder: Path, run: Run) -> None:
    talk = '[{"role": "user", "content": "One?"}]'
    (folder / "in.data").write_text(msgspec.json.encode({"talk": talk}).decode())
    options = ["--format", "jsonl", "--messages-col", "talk"]
    assert run(*options, paths=("in.data", "out.jsonl")) == 0
    assert said(read(folder / "out.jsonl")[0]) == "One?"


def test_stdin_to_stdout_with_nothing_else_on_stdout(
    stdin: Stdin,
    folder: Path,
    server: ChatServer,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin(lines("One?", "Two?"))
    target = ["--base-url", server.base_url, "--model", "m"]
    assert main(["batch", "run", "-", "-", "--job", "j", *target]) == 0
    out = capsys.readouterr().out.splitlines()
    assert sorted(said(msgspec.json.decode(line)) for line in out) == ["One?", "Two?"]
    assert (folder / "j" / "job.json").exists()


def test_answers_for_stdout_need_a_place_for_the_records(
    folder: Path, run: Run, server: ChatServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    assert run(paths=("in.jsonl", "-")) == 2
    assert "--job" in capsys.readouterr().err
    assert not server.requests


def test_errors_have_a_file_of_their_own_if_wanted(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    server.when(lambda request: request.last_text == "Bad?", Reply().fail(400, message="no"))
    (folder / "in.jsonl").write_text(lines("One?", "Bad?"))
    assert run("--errors", "bad.jsonl") == 1
    assert [line["custom_id"] for line in read(folder / "out.jsonl")] == ["k1"]
    assert [line["error"]["code"] for line in read(folder / "bad.jsonl")] == ["bad_request"]
    assert "1 answers written to out.jsonl, 1 errors to bad.jsonl" in capsys.readouterr().err


def test_flat_lines_in_the_order_of_the_inputs_whichever_is_answered_first(
    server: ChatServer, folder: Path, run: Run
) -> None:
    ended: list[str] = []

    async def answer(request: ReceivedRequest) -> Reply:
        n = int(request.last_text)
        while len(ended) < 8 - n:  # the last input first
            await anyio.sleep(0.005)
        ended.append(request.last_text)
        return Reply().say(f"It is {n}.")

    server.otherwise(answer)
    (folder / "in.jsonl").write_text(lines(*"12345678"))
    assert run("--ordered", "--flat", "--concurrency", "8") == 0
    found = read(folder / "out.jsonl")
    assert [line["text"] for line in found] == [f"It is {n}." for n in range(1, 9)]
    assert found[0]["finish_reason"] == "stop"
    assert ended == [*"87654321"]


def test_fields_of_options_and_of_the_body_are_sent_and_those_of_a_line_win(
    server: ChatServer, folder: Path, run: Run
) -> None:
    (folder / "in.jsonl").write_text(lines("One?") + '{"prompt": "Two?", "temperature": 1.5}')
    options = ["--temperature", "0", "--max-tokens", "9", "--body", '{"top_k": 5, "seed": 1}']
    assert run(*options, "--no-stream") == 0
    one, two = sorted(
        (request.body for request in server.requests), key=lambda b: b["temperature"]
    )
    assert (one["temperature"], two["temperature"]) == (0, 1.5)
    for body in (one, two):
        assert (body["max_tokens"], body["top_k"], body["seed"]) == (9, 5, 1)
        assert not body.get("stream")


def test_same_question_is_asked_once_if_wanted(server: ChatServer, folder: Path, run: Run) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "One?", "Two?", "One?"))
    assert run("--dedupe") == 0
    assert sorted(asked(server)) == ["One?", "Two?"]
    assert sorted(said(line) for line in read(folder / "out.jsonl")) == ["One?"] * 3 + ["Two?"]


def test_report_comes_as_a_table_a_page_and_numbers(
    folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "Two?") + "{\n")
    assert run("--report", "page.html", "--summary", "numbers.json") == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert "ok 2 (66.7 %)" in seen.err
    assert "invalid_line" in seen.err
    page = (folder / "page.html").read_text()
    assert page.startswith("<!")
    assert "out.jsonl" in page
    numbers = msgspec.json.decode((folder / "numbers.json").read_bytes())
    assert (numbers["items"], numbers["ok"], numbers["failed"]) == (3, 2, 1)


def test_answer_of_a_shape_is_asked_for_again_with_what_was_wrong(
    server: ChatServer, folder: Path, run: Run
) -> None:
    (folder / "s.json").write_text('{"type": "object", "required": ["km"]}')
    (folder / "in.jsonl").write_text(lines("How far?"))
    server.say("far")
    server.say('{"km": 3}')
    assert run("--schema", "s.json") == 0
    assert said(read(folder / "out.jsonl")[0]) == '{"km": 3}'
    first, second = server.requests
    assert first.body["response_format"]["type"] == "json_schema"
    assert [message["role"] for message in second.messages] == ["user", "assistant", "user"]
    assert second.messages[1]["content"] == "far"
    assert "no JSON" in second.last_text


def test_answer_that_never_fits_is_a_failure_with_what_was_said(
    server: ChatServer, folder: Path, run: Run
) -> None:
    (folder / "s.json").write_text('{"type": "object"}')
    (folder / "in.jsonl").write_text(lines("How far?"))
    server.otherwise(Reply().say("far"))
    assert run("--schema", "s.json", "--repairs", "0") == 1
    (line,) = read(folder / "out.jsonl")
    assert (line["error"]["code"], line["error"]["text"]) == ("mismatch", "far")
    assert len(server.requests) == 1


def test_finish_reason_that_is_no_answer_is_asked_again(
    server: ChatServer, folder: Path, run: Run
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    server.otherwise(Reply().say("One and").finish("length"))
    assert run("--retry-finish", "length", "--retries", "1") == 1
    assert read(folder / "out.jsonl")[0]["error"]["code"] == "length"
    assert len(server.requests) == 2


def test_progress_is_on_stderr_in_the_form_that_is_asked_for(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    target = ["--base-url", server.base_url, "--model", "m"]
    for style, expected in (("plain", "1/1, 100 %"), ("json", '"done":1'), ("auto", "1/1, 100 %")):
        (folder / "in.jsonl").write_text(lines("One?"))
        out = f"{style}.jsonl"
        assert main(["batch", "run", "in.jsonl", out, *target, "--progress", style]) == 0
        seen = capsys.readouterr()
        assert seen.out == ""
        assert expected in seen.err, style
        objects = [line for line in seen.err.splitlines() if line.startswith("{")]
        assert all(msgspec.json.decode(line) for line in objects)
        assert bool(objects) is (style == "json")
    assert run() == 0
    assert "100 %," not in capsys.readouterr().err


# ---------------------------------------------------------------------------- before anything is sent


BODY = '{"messages": []}'


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--concurrency", "many"], "--concurrency many: it is auto, or a whole number from 1 up"),
        (["--concurrency", "0"], "--concurrency 0"),
        (["--body", "[1]"], "--body is no JSON object"),
        (["--body", BODY], "--body cannot hold 'messages'"),
        (["--body", '{"shard": "a"}'], "--body cannot hold 'shard'"),
        (["--max-cost", "1"], "--max-cost needs --price"),
        (["--price", "cheap"], "'cheap' is no price"),
        (["--max-items", "0"], "--max-items 0: it is a whole number from 1 up"),
        (["--max-failures", "some"], "'some'"),
        (["--retries", "-1"], "--retries -1"),
        (["--retry-kinds", "timeuot"], "--retry-kinds: timeuot is not known; the kinds are inv"),
        (["--schema", "none.json"], "--schema none.json cannot be read: No such file"),
        (["--schema", "in.jsonl"], "--schema in.jsonl is no JSON Schema"),
        (["--prompt", "{text"], "lone {"),
        (["--max-body", "0"], "max_body is 0"),
        (["--local"], "--local and --base-url name two servers"),
        (["--api-key-env", "NOT_SET"], "NOT_SET"),
        (["--endpoint", "http://h/v1"], "--endpoint stands for --base-url"),
        (["--endpoint", "http://h/v1,weight=much"], "--endpoint http://h/v1: weight=much is no n"),
        (["--endpoint", "http://h/v1,weight=-1"], "--endpoint http://h/v1: "),
        (["--endpoint", "http://h/v1,colour=red"], "'colour' is not known; it takes model, key-env"),
        (["--endpoint", "http://h/v1,key-env=NOT_SET"], "--endpoint http://h/v1: the environment variable NOT_SET"),
        (["--endpoint", "h/v1"], "--endpoint h/v1"),
        (["--errors", "out.jsonl"], "out.jsonl cannot be written: other outputs are to be there"),
        (["--report", "in.jsonl"], "in.jsonl cannot be written: the inputs are to be there"),
        (["--summary", "nowhere/s.json"], "there is no directory nowhere"),
        (["--errors", "."], "it is a directory"),
    ],
)  # fmt: skip
def test_options_that_cannot_be_right_are_one_sentence_and_leave_nothing(
    options: list[str],
    words: str,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "Two?"))
    assert run(*options) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("asyncchat: ")
    assert seen.err.count("\n") == 1
    assert words in seen.err
    assert not server.requests
    assert [path.name for path in folder.iterdir()] == ["in.jsonl"]


@pytest.mark.parametrize(
    ("paths", "words"),
    [
        (("none.jsonl", "out.jsonl"), "none.jsonl cannot be read: No such file"),
        (("in.jsonl", "in.jsonl"), "in.jsonl cannot be written: the inputs are to be there"),
        (("in.jsonl", "."), "it is a directory"),
        (("in.jsonl", "none/out.jsonl"), "there is no directory none"),
        (("in.csv", "out.jsonl"), "say what of it is asked"),
        (("in.txt", "out.jsonl"), "(--format)"),
        ((".", "out.jsonl"), "."),
    ],
)
def test_files_that_cannot_be_right_are_one_sentence_and_leave_nothing(
    paths: tuple[str, str],
    words: str,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("in.jsonl", "in.csv", "in.txt"):
        (folder / name).write_text(lines("One?"))
    assert run(paths=paths) == 2
    seen = capsys.readouterr()
    assert words in seen.err
    assert seen.err.count("\n") == 1
    assert not server.requests
    assert len([*folder.iterdir()]) == 3


def test_output_that_may_not_be_written_is_found_out_before_anything_is_sent(
    server: ChatServer,
    folder: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    monkeypatch.setattr(os, "access", lambda _path, _how: False)
    assert run("--job", "j") == 2
    assert "out.jsonl cannot be written: permission denied" in capsys.readouterr().err
    assert not server.requests


def test_page_that_could_not_be_made_is_found_out_before_anything_is_sent(
    server: ChatServer,
    folder: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    monkeypatch.setattr(batch_run, "find_spec", lambda _name: None)
    assert run("--report", "page.html") == 2
    assert 'pip install "asyncchat[report]"' in capsys.readouterr().err
    assert not server.requests


def test_strict_stops_at_bad_lines_and_at_names_that_are_there_twice(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    good = lines("One?", "Two?")
    (folder / "in.jsonl").write_text(good + "{\n" * 7 + '{"custom_id": "k1", "prompt": "x"}')
    assert run("--strict") == 2
    seen = capsys.readouterr().err
    assert "line 3: it is not JSON" in seen
    assert "8 inputs are wrong. 3 more are not shown. Nothing was sent." in seen
    assert not server.requests
    (folder / "in.jsonl").write_text(good + '{"custom_id": "k1", "prompt": "x"}')
    assert run("--strict") == 2
    assert "input 3: another one before it is called 'k1' too" in capsys.readouterr().err
    assert not server.requests
    (folder / "in.jsonl").write_text(good)
    assert run("--strict") == 0
    assert len(server.requests) == 2


def test_strict_needs_a_file(stdin: Stdin, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    stdin("")
    assert run("--strict", paths=("-", "out.jsonl")) == 2
    assert "--strict reads the inputs twice" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------- endpoints


def test_endpoints_stand_in_for_each_other_with_keys_and_models_of_their_own(
    server: ChatServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KEY_B", "sk-b")
    (folder / "in.jsonl").write_text(lines("One?", "Two?", "Three?"))
    dead = "http://127.0.0.1:9/v1,model=a,weight=2.5,rpm=500,tpm=100000,in-flight=4"
    spare = f"{server.base_url},model=b,key-env=KEY_B,spare"
    options = ["--endpoint", dead, "--endpoint", spare, "--progress", "none"]
    assert main(["batch", "run", "in.jsonl", "out.jsonl", *options]) == 0
    assert len(read(folder / "out.jsonl")) == 3
    assert {request.body["model"] for request in server.requests} == {"b"}
    assert {request.headers["authorization"] for request in server.requests} == {"Bearer sk-b"}


def test_endpoints_without_a_model_are_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    assert main(["batch", "run", "in.jsonl", "o.jsonl", "--endpoint", "http://h/v1"]) == 2
    assert "model=NAME in each --endpoint" in capsys.readouterr().err
    assert main(["batch", "run", "in.jsonl", "o", "--endpoint", "http://h/v1", "--local"]) == 2
    assert "--local and --endpoint" in capsys.readouterr().err


def test_key_is_in_no_file_and_no_output(
    server: ChatServer,
    folder: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    server.when(lambda request: request.last_text == "Bad?", Reply().fail(400, message="no"))
    (folder / "in.jsonl").write_text(lines("One?", "Bad?"))
    options = ["--api-key-env", "MY_KEY", "--report", "r.html", "--summary", "s.json"]
    assert run(*options, "--endpoint", "x") == 2
    assert run(*options) == 1
    assert {request.headers["authorization"] for request in server.requests} == {
        "Bearer sk-very-secret"
    }
    seen = capsys.readouterr()
    assert "very-secret" not in seen.out + seen.err
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 6
    assert not [path for path in files if b"very-secret" in path.read_bytes()]


# --------------------------------------------------------------------------------------- exit codes


def test_failures_that_may_pass_are_tried_again_and_then_are_exit_code_1(
    server: ChatServer, folder: Path, run: Run
) -> None:
    server.otherwise(Reply().fail(500))
    (folder / "in.jsonl").write_text(lines("One?"))
    assert run("--retries", "1") == 1
    assert len(server.requests) == 2
    assert read(folder / "out.jsonl")[0]["error"]["code"] == "server"


@pytest.mark.parametrize(
    ("status", "code"), [(401, None), (404, None), (429, "insufficient_quota")]
)
def test_server_that_refuses_for_good_is_exit_code_3_soon(
    status: int,
    code: str | None,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.otherwise(Reply().fail(status, message="no", code=code))
    (folder / "in.jsonl").write_text(lines(*map(str, range(100))))
    assert run("--concurrency", "4") == 3
    assert len(server.requests) <= 25
    seen = capsys.readouterr().err
    assert "asyncchat: the server refuses every request for good" in seen
    assert "To go on: asyncchat batch run in.jsonl" in seen
    assert not (folder / "out.jsonl").exists()
    # It costs no input its chance.
    server.otherwise(Reply().say("Yes."))
    assert run("--concurrency", "4") == 0
    assert len(read(folder / "out.jsonl")) == 100


def test_server_that_never_answers_is_exit_code_3(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    server.otherwise(Reply().fail(503))
    (folder / "in.jsonl").write_text(lines("One?"))
    assert run("--max-wait", "0.01") == 3
    assert "no answer has come for 0.01 seconds" in capsys.readouterr().err


def test_job_that_runs_is_exit_code_4_with_its_process(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    lock = JobLock(folder / "out.jsonl.job")
    assert run() == 4
    assert f"process {os.getpid()} is running the job in out.jsonl.job" in capsys.readouterr().err
    assert not server.requests
    lock.close()
    assert run() == 0


def test_job_directory_that_cannot_be_is_exit_code_5(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    (folder / "out.jsonl.job").write_text("a file")
    assert run() == 5
    assert "Nothing was sent. Choose another one with --job." in capsys.readouterr().err
    assert not server.requests


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Let no file become larger."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def shrink(size: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))

    yield shrink
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_stops_the_job_cleanly_with_exit_code_5_and_it_goes_on_with_room(
    small_disk: Callable[[int], None],
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.otherwise(Reply().say("word " * 800))
    (folder / "in.jsonl").write_text(lines(*map(str, range(60))))
    small_disk(80_000)
    try:
        assert run("--concurrency", "4", "--no-stream") == 5
    finally:
        small_disk(resource.RLIM_INFINITY)
    seen = capsys.readouterr().err
    assert "cannot be written: File too large" in seen
    assert "To go on: asyncchat batch run" in seen
    sent = len(server.requests)
    assert 10 < sent < 40
    assert run("--concurrency", "4") == 0
    assert len(server.requests) <= 60 + 5  # what was in flight
    assert {line["custom_id"] for line in read(folder / "out.jsonl")} == {
        f"k{n}" for n in range(1, 61)
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--max-items", "2"], "stopped at the cap of 2 inputs"),
        (["--max-failures", "1"], "stopped at the cap on failures, with 1 of"),
        (["--price", "1000000,0", "--max-cost", "3"], "stopped at the cost cap of 3"),
        (["--max-tokens-total", "6"], "stopped at the cap of 6 tokens"),
    ],
)
def test_caps_are_exit_code_6_and_the_same_command_goes_on(
    options: list[str],
    words: str,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    server.when(lambda request: request.last_text == "bad", Reply().fail(400))
    server.otherwise(Reply().say("Yes.").usage(prompt_tokens=1, completion_tokens=1))
    (folder / "in.jsonl").write_text(lines("one", "bad", "three", "four", "five", "six", "seven"))
    assert run("--concurrency", "1", *options) == 6
    seen = capsys.readouterr().err
    assert words in seen
    assert f"To go on: asyncchat batch run in.jsonl out.jsonl --base-url {server.base_url}" in seen
    before = len(server.requests)
    assert 2 <= before < 7
    assert len(read(folder / "out.jsonl")) == before
    assert run("--concurrency", "1") == 1
    assert len(server.requests) == 7
    assert len(read(folder / "out.jsonl")) == 7


# --------------------------------------------------------------------------------------- a second run


def test_second_run_asks_nothing_and_writes_the_output_again(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "Two?"))
    assert run() == 0
    before = (folder / "out.jsonl").read_bytes()
    (folder / "out.jsonl").unlink()
    capsys.readouterr()
    assert run() == 0
    assert "2 inputs are recorded already" in capsys.readouterr().err
    assert len(server.requests) == 2
    assert (folder / "out.jsonl").read_bytes() == before


def test_input_that_was_only_touched_or_moved_is_the_same(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "Two?"))
    assert run() == 0
    os.utime(folder / "in.jsonl", (1, 1))
    assert run() == 0
    (folder / "in.jsonl").rename(folder / "moved.jsonl")
    assert run(paths=("moved.jsonl", "out.jsonl")) == 0
    assert "has changed" not in capsys.readouterr().err
    assert len(server.requests) == 2


def test_input_that_has_grown_is_asked_for_the_rest(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "Two?"))
    assert run() == 0
    (folder / "in.jsonl").write_text(lines("One?", "Two?", "Three?"))
    assert run() == 0
    assert "the input has changed since the last run: 1 are new" in capsys.readouterr().err
    assert asked(server)[2:] == ["Three?"]
    assert len(read(folder / "out.jsonl")) == 3


@pytest.mark.parametrize(
    ("now", "words"),
    [
        (
            lines("One?", "Two, please?"),
            "1 inputs say something else than when they were answered",
        ),
        (lines("One?"), "1 recorded inputs are not there any more"),
    ],
)
def test_input_that_has_changed_is_refused_with_a_sentence_that_says_what_to_do(
    now: str,
    words: str,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "Two?"))
    assert run() == 0
    before = (folder / "out.jsonl").read_bytes()
    (folder / "in.jsonl").write_text(now)
    capsys.readouterr()
    assert run() == 2
    seen = capsys.readouterr().err
    assert words in seen
    assert "Nothing was sent. --on-change rerun" in seen
    assert len(server.requests) == 2
    assert (folder / "out.jsonl").read_bytes() == before
    assert run("--on-change", "keep") == 0
    assert len(server.requests) == 2
    assert (folder / "out.jsonl").read_bytes() == before


def test_input_that_has_changed_is_asked_again_if_wanted(
    server: ChatServer, folder: Path, run: Run
) -> None:
    (folder / "in.jsonl").write_text(lines("One?", "Two?", "Three?"))
    assert run() == 0
    (folder / "in.jsonl").write_text(lines("One?", "Two, please?", "Three?"))
    assert run("--on-change", "rerun") == 0
    assert asked(server)[3:] == ["Two, please?"]
    found = {line["custom_id"]: said(line) for line in read(folder / "out.jsonl")}
    assert found == {"k1": "One?", "k2": "Two, please?", "k3": "Three?"}


def test_stdin_that_has_changed_is_refused_when_it_comes(
    stdin: Stdin,
    server: ChatServer,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin(lines("One?", "Two?"))
    assert run(paths=("-", "out.jsonl")) == 0
    stdin(lines("One?", "Two, please?"))
    assert run(paths=("-", "out.jsonl")) == 2
    seen = capsys.readouterr().err
    assert "'k2'" in seen
    assert "--on-change 'rerun'" in seen
    assert len(server.requests) == 2


def test_other_options_are_refused_with_their_names(
    server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in.jsonl").write_text(lines("One?"))
    assert run("--temperature", "0") == 0
    assert run("--temperature", "1", "--system", "Be brief.") == 2
    seen = capsys.readouterr().err
    assert "were made with other options: system, temperature" in seen
    assert len(server.requests) == 1
    # What changes no answer may change.
    assert run("--temperature", "0", "--concurrency", "3", "--fsync", "always", "--flat") == 0
    assert len(server.requests) == 1


def test_failed_inputs_are_asked_again_only_if_wanted_and_only_of_the_kinds_wanted(
    server: ChatServer, folder: Path, run: Run
) -> None:
    server.when(lambda request: request.last_text == "bad", Reply().fail(400))
    server.when(lambda request: request.last_text == "cut", Reply().say("x").cut(after=1))
    (folder / "in.jsonl").write_text(lines("bad", "cut", "good"))
    options = ["--retries", "0", "--fsync", "never"]
    assert run(*options) == 1
    assert run(*options) == 1
    assert len(server.requests) == 3
    assert run(*options, "--retry-kinds", "cut,timeout") == 1
    assert asked(server)[3:] == ["cut"]
    assert run(*options, "--retry-failed") == 1
    assert sorted(asked(server)[4:]) == ["bad", "cut"]


def test_killed_at_any_moment_it_goes_on(server: ChatServer, folder: Path, run: Run) -> None:
    (folder / "in.jsonl").write_text(lines(*map(str, range(40))))
    programs: list[int] = []

    def answer(request: ReceivedRequest) -> Reply:
        if request.last_text == "20" and programs:
            os.kill(programs.pop(), signal.SIGKILL)
        return Reply().say(request.last_text)

    server.otherwise(answer)
    with program(server, "--concurrency", "4") as killed:
        programs.append(killed.pid)
        assert killed.wait(60) == -signal.SIGKILL
    assert not (folder / "out.jsonl").exists()
    sent = len(server.requests)
    assert run("--concurrency", "4") == 0
    assert sorted(line["custom_id"] for line in read(folder / "out.jsonl")) == sorted(
        f"k{n}" for n in range(1, 41)
    )
    assert len(server.requests) <= 40 + 4
    assert sent >= 18


# ------------------------------------------------------------------------------------------- signals


def program(server: ChatServer, *options: str) -> "subprocess.Popen[str]":
    """`asyncchat batch run in.jsonl out.jsonl` in a process of its own."""
    target = ["--base-url", server.base_url, "--model", "m", "--progress", "none"]
    return subprocess.Popen(
        [sys.executable, "-m", "asyncchat", "batch", "run", "in.jsonl", "out.jsonl", *target, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip


@pytest.fixture
def struck(monkeypatch: pytest.MonkeyPatch) -> Iterator[Signals]:
    """Send signals to this process, each when the one before has been heard."""
    strike = batch_run._Interrupts._strike
    queued: list[int] = []

    def heard(self: batch_run._Interrupts, number: int) -> None:
        strike(self, number)
        if queued:
            os.kill(os.getpid(), queued.pop(0))

    def send(*numbers: int) -> None:
        queued.extend(numbers[1:])
        os.kill(os.getpid(), numbers[0])

    monkeypatch.setattr(batch_run._Interrupts, "_strike", heard)
    before = {n: signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGHUP)}
    yield send
    for n, handler in before.items():
        signal.signal(n, handler)


def when(
    holds: Callable[[Any], bool], then: Callable[[], object], patch: pytest.MonkeyPatch
) -> None:
    """Do something once the progress of the batch is such."""

    async def look(progress: Callable[[], Any], _style: str) -> None:
        while not holds(progress()):
            await anyio.sleep(0.005)
        then()
        await anyio.sleep_forever()

    patch.setattr(batch_run, "show_progress", look)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_first_signal_finishes_what_is_in_flight_and_the_sentence_goes_on(
    number: int,
    code: int,
    struck: Signals,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def answer(request: ReceivedRequest) -> Reply:
        if len(server.requests) == 4:
            struck(number)
            await anyio.sleep(0.05)
        return Reply().say(request.last_text).drip(0.01)

    server.otherwise(answer)
    (folder / "in.jsonl").write_text(lines(*(f"{n} and more words" for n in range(40))))
    assert run("--concurrency", "4") == code
    seen = capsys.readouterr().err
    assert re.search(r"^finishing the [1-4] in flight; again to leave them$", seen, re.MULTILINE)
    assert not (folder / "out.jsonl").exists()
    sent = len(server.requests)
    assert 4 <= sent <= 8
    assert not server.gone
    # What there is so far, and the rest.
    commands = dict(re.findall(r"^(To go on|What there is so far): (.*)$", seen, re.MULTILINE))
    program, *arguments = shlex.split(commands["What there is so far"])
    assert program == "asyncchat"
    assert main(arguments) == 0
    assert len(read(folder / "out.jsonl")) == sent
    assert main(shlex.split(commands["To go on"])[1:]) == 0
    assert len(server.requests) == 40
    assert len(read(folder / "out.jsonl")) == 40


def test_second_signal_leaves_what_is_in_flight(
    struck: Signals, server: ChatServer, folder: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(request: ReceivedRequest) -> Reply:
        if request.last_text == "1":
            return Reply().say("Yes.")
        struck(signal.SIGINT, signal.SIGINT)
        return Reply().say("Ne").stall(after=1)

    server.otherwise(answer)
    (folder / "in.jsonl").write_text(lines("1", "2", "3"))
    assert run("--concurrency", "1") == 130
    seen = capsys.readouterr().err
    assert "inputs    1 · ok 1" in seen
    assert "To go on: asyncchat batch run" in seen
    server.otherwise(Reply().say("Yes."))
    assert run("--concurrency", "1") == 0
    assert asked(server) == ["1", "2", "2", "3"]


def test_third_signal_is_the_end_at_once(
    monkeypatch: pytest.MonkeyPatch,
    struck: Signals,
    server: ChatServer,
    folder: Path,
    run: Run,
) -> None:
    class Died(BaseException):
        pass

    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)

    async def answer(request: ReceivedRequest) -> Reply:
        struck(signal.SIGTERM, signal.SIGINT, signal.SIGINT)
        return Reply().say("Ne").stall(after=1)

    server.otherwise(answer)
    (folder / "in.jsonl").write_text(lines("1"))
    assert run() == 143
    assert codes == [130]


def test_patience_with_what_is_in_flight_ends_with_the_grace(
    struck: Signals, server: ChatServer, folder: Path, run: Run
) -> None:
    async def answer(request: ReceivedRequest) -> Reply:
        struck(signal.SIGINT)
        return Reply().say("Ne").stall(after=1)

    server.otherwise(answer)
    (folder / "in.jsonl").write_text(lines("1"))
    began = time.monotonic()
    assert run("--grace", "0.1") == 130
    assert time.monotonic() - began < 20


def test_signal_while_stdin_is_an_idle_pipe(
    struck: Signals,
    stdin: Stdin,
    monkeypatch: pytest.MonkeyPatch,
    server: ChatServer,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stdin(lines("One?"), is_open=True)
    when(lambda now: now.done == 1, lambda: struck(signal.SIGINT), monkeypatch)
    assert run(paths=("-", "out.jsonl")) == 130
    seen = capsys.readouterr().err
    assert "To go on (with the same inputs on stdin): asyncchat batch run -" in seen
    assert "finishing" not in seen
    assert len(server.requests) == 1


def test_signal_while_all_wait_in_a_pause(
    struck: Signals, monkeypatch: pytest.MonkeyPatch, server: ChatServer, folder: Path, run: Run
) -> None:
    server.otherwise(Reply().fail(429, headers={"Retry-After": "600"}))
    (folder / "in.jsonl").write_text(lines(*map(str, range(20))))
    when(lambda now: now.pause > 60, lambda: struck(signal.SIGINT), monkeypatch)
    began = time.monotonic()
    assert run("--concurrency", "4") == 130
    assert time.monotonic() - began < 30  # where the grace is 60
    assert len(server.requests) <= 4


def test_signal_does_not_send_what_waits_for_a_limit(
    struck: Signals, monkeypatch: pytest.MonkeyPatch, server: ChatServer, folder: Path, run: Run
) -> None:
    (folder / "in.jsonl").write_text(lines(*map(str, range(20))))
    when(lambda now: now.done == 2, lambda: struck(signal.SIGINT), monkeypatch)
    began = time.monotonic()
    assert run("--rpm", "2", "--concurrency", "4") == 130
    assert time.monotonic() - began < 30
    assert len(server.requests) == 2


def test_signal_before_anything_is_sent_ends_it(
    struck: Signals,
    monkeypatch: pytest.MonkeyPatch,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def read(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)  # it is another thread that hears it

    monkeypatch.setattr(batch_run, "_refuse_bad_lines", read)
    (folder / "in.jsonl").write_text(lines("One?"))
    assert run("--strict") == 143
    assert "To go on: asyncchat batch run" in capsys.readouterr().err
    assert not server.requests


def test_usr1_says_how_it_stands_and_it_goes_on(
    struck: Signals,
    server: ChatServer,
    folder: Path,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    async def answer(request: ReceivedRequest) -> Reply:
        if request.last_text == "2":
            struck(signal.SIGUSR1)
        return Reply().say("Yes.").drip(0.02)

    server.otherwise(answer)
    (folder / "in.jsonl").write_text(lines("1", "2", "3"))
    assert run("--concurrency", "1") == 0
    assert re.search(r"^1/3, 33\.3 %", capsys.readouterr().err, re.MULTILINE)


def test_interrupted_process_says_a_command_that_works_in_a_shell(
    server: ChatServer, folder: Path
) -> None:
    """Quotes in its options included; and it leaves no trace of ours on stderr."""
    (folder / "in.jsonl").write_text(lines(*map(str, range(10))))
    programs: list[int] = []

    def answer(request: ReceivedRequest) -> Reply:
        if len(server.requests) == 3:
            os.kill(programs[0], signal.SIGINT)
        return Reply().say("Yes.").drip(0.02)

    server.otherwise(answer)
    with program(server, "--system", 'It\'s "so" $HOME.', "--concurrency", "1") as first:
        programs.append(first.pid)
        out, seen = first.communicate(timeout=60)
    assert (first.returncode, out) == (130, "")
    assert "Traceback" not in seen
    assert "Exception" not in seen
    command = seen.split("To go on: ")[1].splitlines()[0]
    done = subprocess.run(
        command, shell=True, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(read(folder / "out.jsonl")) == 10
    assert {request.messages[0]["content"] for request in server.requests} == {'It\'s "so" $HOME.'}


# --------------------------------------------------------------------------------------- a real model


@pytest.mark.local
def test_small_model_on_this_machine_answers_a_file(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_local(folder, 6, capsys)


@pytest.mark.local
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_small_model_on_this_machine_answers_two_hundred_prompts(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    check_local(folder, 200, capsys)


def check_local(folder: Path, number: int, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "in.jsonl").write_text(lines(*(f"What is {n} plus {n % 7}?" for n in range(number))))
    options = ["--local", "--max-tokens", "8", "--temperature", "0", "--ordered"]
    written = ["--report", "page.html", "--summary", "numbers.json"]
    assert main(["batch", "run", "in.jsonl", "out.jsonl", *options, *written]) == 0
    seen = capsys.readouterr()
    assert seen.out == ""
    found = read(folder / "out.jsonl")
    assert [line["custom_id"] for line in found] == [f"k{n}" for n in range(1, number + 1)]
    assert all(line["response"]["body"]["usage"]["completion_tokens"] <= 8 for line in found)
    assert sum(bool(said(line).strip()) for line in found) >= 0.9 * number
    numbers = msgspec.json.decode((folder / "numbers.json").read_bytes())
    assert (numbers["ok"], numbers["failed"]) == (number, 0)
    assert numbers["times_ok"]["ttft"]["count"] == number
    assert numbers["completion_tokens"] > number
    assert "<svg" in (folder / "page.html").read_text()
    assert f"inputs    {number} · ok {number} (100 %)" in seen.err
