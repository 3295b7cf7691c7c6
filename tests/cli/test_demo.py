"""`asyncchat demo`: the whole report, with a scripted server and with the real model."""

import re
import subprocess
import sys

import pytest

from asyncchat.cli import demo, main
from asyncchat.testing import ChatServer, Reply


@pytest.fixture
def arguments(server: ChatServer) -> list[str]:
    return ["demo", "--base-url", server.base_url, "--model", "m"]


def test_report_has_the_answer_its_facts_and_eight_rows(
    server: ChatServer, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.otherwise(Reply().say("The sea is wide and deep.").drip(0.01))
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "\n  The sea is wide and deep.\n" in out
    assert re.search(
        r"first token after \d+\.\d\d s · \d+ tokens/s · finish_reason stop · usage \d+ in, \d+ out\n",
        out,
    )
    for question in demo._QUESTIONS:
        assert re.search(rf"(?m)^  {re.escape(question)} +The sea is.* stop *$", out)
    assert "8 of 8 answered in " in out
    assert "\x1b" not in out
    assert all(len(line) <= 100 for line in out.splitlines())


def test_eight_questions_are_asked_at_once(
    server: ChatServer, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.otherwise(Reply().delay(0.3).say("Yes."))
    assert main(arguments) == 0
    taken = re.search(r"answered in (\d+\.\d) s", capsys.readouterr().out)
    assert taken
    assert float(taken[1]) < 8 * 0.3
    assert len(server.requests) == 9


def test_some_that_fail_are_shown_and_give_exit_code_3(
    server: ChatServer, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def choose(request: object) -> Reply:
        snow = "snow" in repr(request.body)  # type: ignore[attr-defined]
        return Reply().fail(400) if snow else Reply().say("Yes.")

    server.otherwise(choose)
    assert main(arguments) == 3
    out = capsys.readouterr().out
    assert re.search(r"(?m)^  What is snow\? .* failed *$", out)
    assert "7 of 8 answered" in out


def test_server_without_usage_is_reported_as_such(
    server: ChatServer, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.otherwise(Reply().say("Yes.").without_usage())
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "usage not sent" in out
    assert "tokens, " not in out


def test_server_that_refuses_is_one_line_and_exit_code_1(
    server: ChatServer, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    server.otherwise(Reply().fail(401))
    assert main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.local
@pytest.mark.parametrize(
    "options", [["--max-tokens", "6"], pytest.param([], marks=pytest.mark.slow)], ids=["short", ""]
)
def test_real_model_answers_all_nine(options: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "asyncchat", "demo", *options],
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "8 of 8 answered" in done.stdout
    assert "finish_reason" in done.stdout
    assert done.stderr == "Starting a small model on this machine ...\n"
