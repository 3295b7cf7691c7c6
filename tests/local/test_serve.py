"""`local.serve`: what the child says and when it leaves. Real children, most without a model."""

import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from asyncchat.local import find_model
from asyncchat.local import serve as module
from asyncchat.local.serve import Failed, Options, Ready

COMMAND = [sys.executable, "-P", "-m", "asyncchat.local.serve"]


def talk(words: bytes) -> tuple[int, bytes]:
    done = subprocess.run(COMMAND, input=words, capture_output=True, timeout=100, check=False)
    return done.returncode, done.stdout


def test_model_that_is_none_is_answered_with_one_line_on_stdout(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(b"PK")
    code, out = talk(msgspec.json.encode(Options(model=str(path), name="x")) + b"\n")
    assert code == 1
    assert out.count(b"\n") == 1
    assert "is no GGUF model" in msgspec.json.decode(out, type=Failed).reason


def test_missing_model_is_answered_with_one_line_on_stdout(tmp_path: Path) -> None:
    code, out = talk(msgspec.json.encode(Options(model=str(tmp_path / "none"), name="x")) + b"\n")
    assert code == 1
    assert "No such file" in msgspec.json.decode(out, type=Failed).reason


def test_parent_that_goes_before_it_speaks_leaves_no_child() -> None:
    code, out = talk(b"")
    assert code == 1
    assert out == b""


@pytest.mark.local
def test_end_of_stdin_is_the_end_of_the_server() -> None:
    model = find_model()
    assert model, "asyncchat local install"
    options = Options(model=str(model), name="x", context=512, parallel=1)
    code, out = talk(msgspec.json.encode(options) + b"\n")
    assert code == 0
    assert msgspec.json.decode(out, type=Ready).address.startswith("http://127.0.0.1:")


class FakeEngine:
    """Stands for xllamacpp: remembers what it was asked to serve."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.params = SimpleNamespace(
            model=SimpleNamespace(), cpuparams=SimpleNamespace(), cpuparams_batch=SimpleNamespace()
        )

    def CommonParams(self) -> SimpleNamespace:  # noqa: N802  its name there
        return self.params

    def Server(self, params: SimpleNamespace) -> SimpleNamespace:  # noqa: N802
        if self.error:
            raise self.error
        return SimpleNamespace(listening_address="http://127.0.0.1:1", params=params)


@pytest.fixture
def weights(tmp_path: Path) -> str:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


def test_options_become_the_engines_parameters(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    monkeypatch.setitem(sys.modules, "xllamacpp", engine)
    _, address = module._start(
        Options(
            model=weights,
            name="tiny",
            port=7,
            threads=3,
            template="t",
            api_key="k",
            ping_seconds=9,
        )
    )
    params = engine.params
    assert address == "http://127.0.0.1:1"
    assert (params.hostnames, params.port) == (["127.0.0.1"], 7)
    assert (params.model.path, params.model_alias) == (weights, {"tiny"})
    assert params.cpuparams.n_threads == params.cpuparams_batch.n_threads == 3
    assert (params.chat_template, params.api_keys, params.sse_ping_interval) == ("t", ["k"], 9)
    assert params.cors_origins == ""
    assert params.ui is False


def test_what_was_not_given_is_left_to_the_engine(
    weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = FakeEngine()
    monkeypatch.setitem(sys.modules, "xllamacpp", engine)
    module._start(Options(model=weights, name="tiny"))
    assert not hasattr(engine.params, "chat_template")
    assert not hasattr(engine.params, "api_keys")
    assert engine.params.cpuparams.n_threads >= 1


@pytest.mark.parametrize(("port", "words"), [(0, "load tiny.gguf$"), (7, "or port 7 is taken$")])
def test_engine_that_gives_no_reason_is_given_one(
    port: int, words: str, weights: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", FakeEngine(RuntimeError("check the params")))
    with pytest.raises(RuntimeError, match=words):
        module._start(Options(model=weights, name="tiny", port=port))


def test_health_is_asked_until_it_is_good_and_never_through_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [503, 503, 200]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answers.pop(0))
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        module._wait_until_healthy(f"http://127.0.0.1:{server.server_port}")
        server.shutdown()
        thread.join()
    assert answers == []


@pytest.mark.parametrize("end", ["stdin", "parent"])
def test_watch_ends_with_stdin_or_with_the_parent(
    end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hasty(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            return super().wait(None if timeout is None else timeout / 100)

    hasty = SimpleNamespace(Event=Hasty, Thread=threading.Thread)
    monkeypatch.setattr(module, "threading", hasty)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as pipe:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe))
        if end == "stdin":
            os.close(writing)
            module._wait_for_the_end(os.getppid())
        else:
            module._wait_for_the_end(-1)
            os.close(writing)


@pytest.mark.skipif(sys.platform != "linux", reason="asks the scheduler")
@pytest.mark.parametrize(("usable", "threads"), [(1, 1), (2, 1), (8, 7)])
def test_one_core_is_left_to_the_rest(
    usable: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(usable)))
    assert module._spare_cores() == threads
