"""`asyncchat batch`: looking at jobs, writing their records out, asking again for what failed."""

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from asyncchat.batch import page
from asyncchat.batch.journal import JobLock
from asyncchat.cli import main
from asyncchat.cli.batch import arguments_to_run_again
from asyncchat.cli.terminal import ARGUMENTS
from asyncchat.testing import ChatServer, Reply
from tests.cli.conftest import read

Run = Callable[..., int]
Seen = pytest.CaptureFixture[str]


@pytest.fixture
def run(server: ChatServer, folder: Path) -> Run:
    """Run a batch of prompts; its job is `NAME.jsonl.job`."""

    def run(*prompts: str, name: str = "out", options: tuple[str, ...] = ()) -> int:
        lines = [{"custom_id": f"{name}-{n}", "prompt": p} for n, p in enumerate(prompts, 1)]
        source = folder / f"{name}.in.jsonl"
        source.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
        target = ["--base-url", server.base_url, "--model", "m", "--progress", "none"]
        return main(["batch", "run", source.name, f"{name}.jsonl", *target, *options])

    return run


def fail(server: ChatServer, text: str, status: int) -> None:
    server.when(lambda request: request.last_text == text, Reply().fail(status, message="no"))


@pytest.mark.parametrize("command", [[], ["run"], ["status"], ["report"], ["export"], ["retry"]])
def test_each_command_explains_itself(command: list[str], capsys: Seen) -> None:
    assert main(["batch", *command, "--help"]) == 0
    seen = capsys.readouterr().out
    assert seen.startswith("Usage: asyncchat batch ")
    if command == ["run"]:
        for head in ("Inputs", "How it is asked", "Server", "When to stop", "Outputs"):
            assert f" {head} " in seen, head


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "in.jsonl"],
        ["run", "in.jsonl", "out.jsonl", "more"],
        ["run", "in.jsonl", "out.jsonl", "--nonsense"],
        ["run", "--nonsense", "in.jsonl", "out.jsonl"],
        ["run", "in.jsonl", "out.jsonl", "--on-change", "ask"],
        ["run", "in.jsonl", "out.jsonl", "--max-items", "many"],
        ["status"],
        ["export", "out.jsonl.job"],
        ["export", "out.jsonl.job", "--nonsense"],
        ["retry"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    arguments: list[str], folder: Path, capsys: Seen
) -> None:
    assert main(["batch", *arguments]) == 2
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("asyncchat: ")
    assert seen.err.count("\n") == 1
    assert not [*folder.iterdir()]


@pytest.mark.parametrize(
    "command", [["status", "none"], ["report", "none"], ["retry", "none"], ["export", "none", "o"]]
)
def test_directory_without_a_job_is_one_line_and_exit_code_2(
    command: list[str], folder: Path, capsys: Seen
) -> None:
    (folder / "o").write_text("of yesterday")
    assert main(["batch", *command]) == 2
    seen = capsys.readouterr()
    assert seen.err == (
        "asyncchat: There is no job in none. A job is the directory beside its output: OUT.job.\n"
    )
    assert (folder / "o").read_text() == "of yesterday"


@pytest.mark.parametrize("command", [["status"], ["report"], ["retry"], ["export"]])
def test_job_that_cannot_be_read_is_exit_code_5(
    command: list[str], folder: Path, capsys: Seen
) -> None:
    (folder / "j").mkdir()
    (folder / "j" / "job.json").write_text("{")
    more = ["o"] if command == ["export"] else []
    assert main(["batch", *command, "j", *more]) == 5
    assert "job.json is no job's" in capsys.readouterr().err


# -------------------------------------------------------------------------------- status and report


def test_status_says_how_far_a_job_is_and_why_inputs_failed(
    server: ChatServer, run: Run, folder: Path, capsys: Seen
) -> None:
    fail(server, "bad", 400)
    assert run("good", "bad", "bad") == 1
    with (folder / "out.in.jsonl").open("a") as file:
        file.write("\n{")
    run("good", "bad", "bad")
    capsys.readouterr()
    assert main(["batch", "status", "out.jsonl.job"]) == 0
    assert capsys.readouterr() == ("1 answered, 2 failed (2 bad_request); not running\n", "")


def test_status_of_a_job_that_runs_names_its_process(run: Run, folder: Path, capsys: Seen) -> None:
    run("good")
    job = folder / "out.jsonl.job"
    lock = JobLock(job)
    with (job / "samples.jsonl").open("a") as file:
        file.write('{"what":"sample","t":1,"in_flight":1234,"limit":2000,"pause":12.3}\n')
    capsys.readouterr()
    assert main(["batch", "status", str(job)]) == 0
    lock.close()
    assert capsys.readouterr().out == (
        f"1 answered, 0 failed; running, process {os.getpid()}\n"
        "1,234 in flight of 2,000, paused for 12 s\n"
    )


def test_report_is_shown_and_written(
    server: ChatServer, run: Run, folder: Path, capsys: Seen
) -> None:
    fail(server, "bad", 400)
    run("good", "bad")
    shown = capsys.readouterr().err
    options = ["--html", "page.html", "--summary", "numbers.json"]
    assert main(["batch", "report", "out.jsonl.job", *options]) == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    assert seen.out.splitlines()[0] == "inputs    2 · ok 1 (50.0 %) · failed 1"
    assert seen.out.splitlines()[0] in shown
    assert "out.jsonl" in (folder / "page.html").read_text()
    assert msgspec.json.decode((folder / "numbers.json").read_bytes())["items"] == 2
    assert main(["batch", "report", "out.jsonl.job", "--html", "none/page.html"]) == 5
    assert "none/page.html cannot be written: No such file" in capsys.readouterr().err


def test_page_without_its_extra_is_one_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, capsys: Seen
) -> None:
    run("good")
    monkeypatch.setitem(sys.modules, "jinja2", None)
    page._template.cache_clear()
    capsys.readouterr()
    assert main(["batch", "report", "out.jsonl.job", "--html", "page.html"]) == 2
    assert 'pip install "asyncchat[report]"' in capsys.readouterr().err


# ------------------------------------------------------------------------------------------- export


def test_jobs_of_several_machines_become_one_file(
    server: ChatServer, run: Run, folder: Path, capsys: Seen
) -> None:
    fail(server, "bad", 400)
    run("one", "bad", name="a")
    run("two", name="b")
    capsys.readouterr()
    jobs = ["a.jsonl.job", "b.jsonl.job"]
    assert main(["batch", "export", *jobs, "all.jsonl", "--errors", "bad.jsonl"]) == 0
    assert capsys.readouterr() == (
        "",
        "2 answers written to all.jsonl, 1 errors to bad.jsonl\n",
    )
    assert [line["custom_id"] for line in read(folder / "all.jsonl")] == ["a-1", "b-1"]
    assert [line["custom_id"] for line in read(folder / "bad.jsonl")] == ["a-2"]


def test_export_writes_flat_lines_in_order_to_stdout(
    server: ChatServer, run: Run, capsys: Seen
) -> None:
    server.when(lambda request: request.last_text == "one", Reply().say("one").delay(0.05))
    run("one", "two", "three")
    capsys.readouterr()
    assert main(["batch", "export", "out.jsonl.job", "-", "--flat", "--ordered"]) == 0
    seen = capsys.readouterr()
    found = [msgspec.json.decode(line) for line in seen.out.splitlines()]
    assert [line["text"] for line in found] == ["one", "two", "three"]
    assert seen.err == "3 answers and 0 errors written to stdout\n"


def test_export_refuses_one_file_for_both_and_says_where_it_cannot_write(
    run: Run, folder: Path, capsys: Seen
) -> None:
    run("one")
    capsys.readouterr()
    assert main(["batch", "export", "out.jsonl.job", "o", "--errors", "./o"]) == 2
    assert "--errors is another file" in capsys.readouterr().err
    assert main(["batch", "export", "out.jsonl.job", "none/o"]) == 5
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


def test_reader_of_an_export_that_leaves_is_no_traceback(run: Run, folder: Path) -> None:
    run(*map(str, range(5)))
    command = [sys.executable, "-m", "asyncchat", "batch", "export", "out.jsonl.job", "-"]
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            command, stdout=writing, stderr=subprocess.PIPE, timeout=60, check=False
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (1, b"")


# -------------------------------------------------------------------------------------------- retry


def test_retry_asks_for_what_failed_from_any_directory(
    server: ChatServer, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fail(400, times=2)
    assert run("one", "two", "three", options=("--concurrency", "1", "--system", "Hm.")) == 1
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    assert main(["batch", "retry", "../out.jsonl.job"]) == 0
    assert [request.last_text for request in server.requests[3:]] == ["one", "two"]
    assert {request.messages[0]["content"] for request in server.requests} == {"Hm."}
    assert len(read(folder / "out.jsonl")) == 3
    assert not [*(folder / "elsewhere").iterdir()]
    # Again: there is nothing left.
    monkeypatch.chdir(folder / "elsewhere")
    assert main(["batch", "retry", "../out.jsonl.job"]) == 0
    assert len(server.requests) == 5


def test_retry_of_some_kinds_leaves_the_others(server: ChatServer, run: Run, folder: Path) -> None:
    fail(server, "bad", 400)
    fail(server, "broken", 500)
    assert run("bad", "broken", "good", options=("--retries", "0")) == 1
    assert main(["batch", "retry", "out.jsonl.job", "--kinds", "server,timeout"]) == 1
    assert [request.last_text for request in server.requests[3:]] == ["broken"]
    # How it was made is remembered without that.
    assert main(["batch", "retry", "out.jsonl.job"]) == 1
    assert sorted(request.last_text for request in server.requests[4:]) == ["bad", "broken"]


def test_retry_of_a_kind_that_is_none_is_one_sentence(
    server: ChatServer, run: Run, capsys: Seen
) -> None:
    run("one")
    capsys.readouterr()
    assert main(["batch", "retry", "out.jsonl.job", "--kinds", "timeuot"]) == 2
    assert "--kinds: timeuot is not known; the kinds are " in capsys.readouterr().err
    assert len(server.requests) == 1


def test_retry_where_the_job_was_not_made_by_this_command_is_one_sentence(
    run: Run, folder: Path, capsys: Seen
) -> None:
    run("one")
    path = folder / "out.jsonl.job" / "job.json"
    made = msgspec.json.decode(path.read_bytes())
    made["run"]["directory"] = str(folder / "gone")
    path.write_bytes(msgspec.json.encode(made))
    capsys.readouterr()
    assert main(["batch", "retry", "out.jsonl.job"]) == 2
    assert "gone, where the job was started, cannot be entered" in capsys.readouterr().err
    made["run"] = {}
    path.write_bytes(msgspec.json.encode(made))
    assert main(["batch", "retry", "out.jsonl.job"]) == 2
    assert "is not the job of an `asyncchat batch run`" in capsys.readouterr().err


def test_retry_that_stops_says_commands_for_the_directory_where_it_was_typed(
    server: ChatServer, run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Seen
) -> None:
    server.fail(400, times=30)
    assert run(*map(str, range(31))) == 1
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    server.otherwise(Reply().fail(401))
    capsys.readouterr()
    assert main(["batch", "retry", "../out.jsonl.job", "--kinds", "bad_request"]) == 3
    seen = dict(
        line.split(": ", 1) for line in capsys.readouterr().err.splitlines() if ": " in line
    )
    assert seen["To go on"] == "asyncchat batch retry ../out.jsonl.job --kinds bad_request"
    (folder / "out.jsonl").unlink()
    monkeypatch.chdir(folder / "elsewhere")
    assert main(shlex.split(seen["What there is so far"])[1:]) == 0
    assert len(read(folder / "out.jsonl")) == 31
    server.otherwise(Reply().say("Yes."))
    assert main(shlex.split(seen["To go on"])[1:]) == 0
    assert all(line["error"] is None for line in read(folder / "out.jsonl"))


@pytest.mark.parametrize(
    "typed",
    [
        ["batch", "run", "in", "out", "--retry-failed", "--flat"],
        ["batch", "run", "in", "--retry-kinds", "timeout", "out", "--flat"],
        ["batch", "run", "in", "out", "--retry-kinds=timeout,server", "--flat"],
    ],
)
def test_asking_for_failures_again_is_not_remembered(typed: list[str]) -> None:
    ARGUMENTS.set(tuple(typed))
    assert arguments_to_run_again() == ["batch", "run", "in", "out", "--flat"]
