"""`asyncchat chat`, against the scripted server: what is shown where, and what Ctrl-C leaves."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator

import msgspec
import pytest

from asyncchat.cli import main
from asyncchat.testing import ChatServer

Ask = Callable[..., int]


@pytest.fixture
def ask(server: ChatServer) -> Ask:
    def run(*arguments: str) -> int:
        return main(["chat", "--base-url", server.base_url, "--model", "m", *arguments])

    return run


def test_answer_goes_to_stdout_and_nothing_else_does(
    server: ChatServer, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say("Three moons.")
    assert ask("Name", "three", "moons.", "--system", "Be brief.", "--max-tokens", "9") == 0
    assert capsys.readouterr() == ("Three moons.\n", "")
    body = server.requests[0].body
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Name three moons."},
    ]
    assert body["max_tokens"] == 9
    assert body["stream"] is True


def test_whole_answer_without_a_stream(
    server: ChatServer, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say("Three moons.")
    assert ask("--no-stream", "Name them.") == 0
    assert capsys.readouterr() == ("Three moons.\n", "")
    assert not server.requests[0].body.get("stream")


@pytest.mark.parametrize("stream", ["--stream", "--no-stream"])
def test_json_is_one_object_on_one_line(
    stream: str, server: ChatServer, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say("Three moons.")
    assert ask("--json", stream, "Name them.") == 0
    seen = capsys.readouterr()
    assert seen.err == ""
    assert seen.out.count("\n") == 1
    choice = msgspec.json.decode(seen.out)["choices"][0]
    assert choice["message"]["content"] == "Three moons."
    assert choice["finish_reason"] == "stop"


def test_answer_that_was_cut_is_remarked_on_stderr(
    server: ChatServer, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    server.say("Three").finish("length")
    assert ask("Name them.") == 0
    assert capsys.readouterr() == (
        "Three\n",
        "(cut at the token limit; --max-tokens sets it)\n",
    )


def test_prompt_comes_from_stdin_when_that_is_no_terminal(
    server: ChatServer,
    ask: Ask,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reading, writing = os.pipe()
    os.write(writing, b"From a pipe.\n")
    os.close(writing)
    with open(reading, encoding="utf-8") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert ask() == 0
        assert server.requests[0].body["messages"][0]["content"] == "From a pipe."
        assert ask() == 2
    assert "the prompt is empty" in capsys.readouterr().err


def test_refusal_is_one_line_without_key_or_prompt(
    server: ChatServer,
    ask: Ask,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-very-secret")
    server.fail(401)
    assert ask("--api-key-env", "MY_KEY", "a private question") == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("asyncchat: ")
    assert seen.err.count("\n") == 1
    assert "very-secret" not in seen.err
    assert "private question" not in seen.err
    assert server.requests[0].headers["authorization"] == "Bearer sk-very-secret"


def test_server_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["chat", "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "hello"]
    assert main(arguments) == 1
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err.startswith("asyncchat: ")
    assert seen.err.count("\n") == 1


def test_failure_in_the_middle_keeps_what_was_said(
    server: ChatServer, ask: Ask, capsys: pytest.CaptureFixture[str]
) -> None:
    server.cut(after=4)
    assert ask("Count.") == 1
    seen = capsys.readouterr()
    assert seen.out.startswith("One two three")
    assert seen.out.endswith("\n")
    assert seen.err.startswith("asyncchat: ")


# ------------------------------------------------------------------------------- at a terminal
class Screen:
    """A person at a terminal: a child on a pty, what it shows, and keys to press."""

    def __init__(self, arguments: list[str]) -> None:
        import pty

        self.text = ""
        self.pid, self._keys = pty.fork()
        if self.pid == 0:
            os.execv(sys.executable, [sys.executable, "-m", "asyncchat", *arguments])

    def wait_for(self, words: str, seconds: float = 60) -> None:
        """Read until `words` are on the screen after what was waited for before."""
        until = time.monotonic() + seconds
        while words not in self.text:
            assert time.monotonic() < until, self.text
            if select.select([self._keys], [], [], 0.1)[0]:
                try:
                    self.text += os.read(self._keys, 4096).decode()
                except OSError as error:
                    raise AssertionError(f"ended: {self.text}") from error
        self.text = self.text.partition(words)[2]

    def press(self, keys: str) -> None:
        os.write(self._keys, keys.encode())

    def end(self, again: str = "", seconds: float = 60) -> int:
        """Read to the end and return the exit code; press `again` whenever nothing happens for two seconds."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not select.select([self._keys], [], [], 2)[0]:
                self.press(again)
                continue
            try:
                if not (more := os.read(self._keys, 4096)):
                    break
            except OSError:  # how Linux says that the other side of a pty is closed
                break
            self.text += more.decode()
        else:
            raise AssertionError(f"still running: {self.text}")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def close(self) -> None:
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        os.close(self._keys)


@pytest.fixture
def sit_down(
    server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Screen]]:
    if sys.platform == "win32":
        pytest.skip("needs a pty")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "dumb")
    screens: list[Screen] = []

    def start(*arguments: str) -> Screen:
        common = ["chat", "--base-url", server.base_url, "--model", "m"]
        screens.append(Screen([*common, *arguments]))
        return screens[-1]

    yield start
    for screen in screens:
        screen.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
class TestAtATerminal:
    def test_interrupt_stops_the_servers_work_and_keeps_the_partial_answer(
        self, server: ChatServer, sit_down: Callable[..., Screen]
    ) -> None:
        server.stall(after=4)
        screen = sit_down("Count.")
        screen.wait_for("One two three")
        screen.press("\x03")
        assert screen.end() == 130
        assert "Traceback" not in screen.text
        until = time.monotonic() + 5
        while server.active and time.monotonic() < until:
            time.sleep(0.01)
        assert len(server.requests) == 1
        assert not server.active

    def test_talk_keeps_its_history_and_ends_with_quit(
        self, server: ChatServer, sit_down: Callable[..., Screen]
    ) -> None:
        server.say("Hello Ann.")
        server.say("You are Ann.")
        screen = sit_down("--system", "Be kind.")
        screen.wait_for("> ")
        screen.press("I am Ann.\n")
        screen.wait_for("Hello Ann.")
        screen.wait_for("> ")
        screen.press("Who am I?\n")
        screen.wait_for("You are Ann.")
        screen.wait_for("> ")
        screen.press("/quit\n")
        assert screen.end() == 0
        said = [(m["role"], m["content"]) for m in server.requests[1].body["messages"]]
        assert said == [
            ("system", "Be kind."),
            ("user", "I am Ann."),
            ("assistant", "Hello Ann."),
            ("user", "Who am I?"),
        ]

    def test_interrupt_stops_one_answer_and_the_talk_goes_on_with_what_was_said(
        self, server: ChatServer, sit_down: Callable[..., Screen]
    ) -> None:
        server.stall(after=4)
        server.say("Yes.")
        screen = sit_down()
        screen.wait_for("> ")
        screen.press("Count.\n")
        screen.wait_for("One two three")
        screen.press("\x03")
        screen.wait_for("(stopped)")
        screen.wait_for("> ")
        screen.press("Go on?\n")
        screen.wait_for("Yes.")
        screen.wait_for("> ")
        screen.press("\x04")
        assert screen.end() == 0
        said = [m["content"] for m in server.requests[1].body["messages"]]
        assert said == ["Count.", "One two three", "Go on?"]

    def test_interrupt_at_the_prompt_ends_with_130(self, sit_down: Callable[..., Screen]) -> None:
        screen = sit_down()
        screen.wait_for("> ")
        screen.press("half a li\x03")
        # Again, since CPython's readline is deaf for the moment between drawing the prompt and waiting for keys.
        assert screen.end(again="\x03") == 130
        assert "Traceback" not in screen.text

    def test_failed_turn_is_one_line_and_is_not_remembered(
        self, server: ChatServer, sit_down: Callable[..., Screen]
    ) -> None:
        server.fail(400)
        server.say("Fine.")
        screen = sit_down()
        screen.wait_for("> ")
        screen.press("Bad.\n")
        screen.wait_for("asyncchat: ")
        screen.wait_for("> ")
        screen.press("\nGood.\n")
        screen.wait_for("Fine.")
        screen.wait_for("> ")
        screen.press("/new\n")
        screen.wait_for("(forgotten)")
        screen.wait_for("> ")
        screen.press("/quit\n")
        assert screen.end() == 0
        assert [m["content"] for m in server.requests[1].body["messages"]] == ["Good."]
