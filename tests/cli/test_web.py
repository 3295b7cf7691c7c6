"""`asyncchat demo --web`: what its owner sees, from the first line to Ctrl-C."""

import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from asyncchat.cli import main
from asyncchat.testing import ChatServer

ASK = b'{"messages":[{"role":"user","content":"Say hello."}]}'


@contextmanager
def demo(*options: str) -> Iterator[tuple[str, "subprocess.Popen[str]"]]:
    """A demo in a process of its own, and its address; killed if it does not end by itself."""
    with subprocess.Popen(
        [sys.executable, "-m", "asyncchat", "demo", "--web", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip(), process
        finally:
            process.kill()


def post(url: str) -> urllib.request.Request:
    return urllib.request.Request(
        url + "chat", data=ASK, headers={"Content-Type": "application/json"}
    )


def test_url_is_printed_and_ctrl_c_ends_it_at_once_even_while_it_answers(
    server: ChatServer,
) -> None:
    server.fail(401, "Wrong\n\x1b[31mkey.")
    server.say("One two three.").stall(after=3)
    with demo("--base-url", server.base_url, "--model", "m") as (url, process):
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", url)
        assert b"cannot be asked" in urllib.request.urlopen(post(url), timeout=20).read()
        with urllib.request.urlopen(post(url), timeout=20) as answer:
            while b'"One' not in answer.readline():
                pass
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    ready, failure = said.splitlines()
    assert ready == "The page above talks with m. Ctrl-C ends it."
    assert failure.startswith("asyncchat: 401")
    assert "\x1b" not in failure


def test_port_in_use_is_one_sentence_before_a_model_is_started(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["demo", "--web", "--port", str(port)]) == 2
    assert capsys.readouterr().err == (
        f"asyncchat: Port {port} is in use: choose another with --port, or none to get a free one.\n"
    )


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--web", "--port", "65536"], "--port is a number from 0 to 65535."),
        (["--web", "--host", "300.0.0.1"], "Cannot listen on 300.0.0.1, port 0: "),
        (["--port", "8000"], "--port, --host and --open are for the page: say --web as well."),
        (["--open"], "--port, --host and --open are for the page: say --web as well."),
    ],
)
def test_options_that_cannot_be_are_one_sentence(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"asyncchat: {sentence}")
    assert said.count("\n") == 1


@pytest.mark.parametrize("found", [True, False])
def test_browser_is_opened_where_it_is_asked_for(
    server: ChatServer,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: bool,
) -> None:
    opened: list[str] = []

    def open_and_interrupt(url: str) -> bool:
        opened.append(url)
        os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(webbrowser, "open", open_and_interrupt)
    address = ["--base-url", server.base_url, "--model", "m"]
    assert main(["demo", "--web", "--open", *address]) == 130
    assert [f"{url}\n" for url in opened] == [capsys.readouterr().out]


def test_address_that_others_reach_is_said_to_be_one(server: ChatServer) -> None:
    address = ["--base-url", server.base_url, "--model", "m"]
    with demo("--host", "0.0.0.0", *address) as (url, process):
        assert url.startswith("http://0.0.0.0:")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert "Everybody who reaches this address can use the model.\n" in said


@pytest.mark.local
def test_real_model_answers_on_the_page() -> None:
    with demo("--max-tokens", "8") as (url, process):
        body = urllib.request.urlopen(post(url), timeout=60).read()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=20)
    assert b'"text-delta"' in body
    assert b'"completion_tokens"' in body
    assert said.startswith("Starting a small model on this machine ...\n")
    assert process.returncode == 130
