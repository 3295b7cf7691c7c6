"""What the child process runs: `python -m asyncchat.local.serve`.

Not here: the parent's side (`server`). A process of its own because llama.cpp holds the GIL while it loads a
model: in a thread it stalled the event loop for 3.5 s.

The talk between the two: one JSON line of `Options` comes in on stdin, one JSON line of `Ready` or `Failed`
goes out on stdout, and the end of stdin is the end of the server, so that it never outlives its parent.
"""

import os
import signal
import sys
import threading
import urllib.error
import urllib.request
from importlib import import_module
from pathlib import Path
from typing import BinaryIO

import msgspec

__all__ = ["Failed", "Options", "Ready", "main"]


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve a model. Sent on stdin, not as arguments: a key among arguments is seen by every `ps`."""

    model: str
    name: str
    port: int = 0
    parallel: int = 4
    context: int = 8192
    threads: int = 0
    template: str = ""
    api_key: str = ""
    ping_seconds: int = 30


class Ready(msgspec.Struct, frozen=True, kw_only=True, tag="ready"):
    """The server answers at `address`."""

    address: str


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag="failed"):
    """The server could not start; `reason` is half a sentence."""

    reason: str


def main() -> None:
    """Serve until stdin ends, then leave at once."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to judge
    parent = os.getppid()
    # llama.cpp writes where it likes: only our own line may reach the parent.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    options = msgspec.json.decode(sys.stdin.buffer.readline(), type=Options)
    try:
        server, address = _start(options)
        _wait_until_healthy(address)
    except Exception as error:  # noqa: BLE001  whatever it is, the parent has to hear of it
        _say(answers, Failed(reason=str(error) or type(error).__name__))
        os._exit(1)
    _say(answers, Ready(address=address))
    _wait_for_the_end(parent)
    del server  # alive until here: the last reference going would stop it
    os._exit(
        0
    )  # without taking llama.cpp apart: a request may be under way, and nobody waits for it


def _start(options: Options) -> tuple[object, str]:
    """Return the server and its address, once the model is loaded."""
    with Path(options.model).open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{options.model} is no GGUF model")
    xllamacpp = import_module("xllamacpp")  # has no types, so it is asked for by name
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.name}
    params.hostnames = ["127.0.0.1"]
    params.port = (
        options.port
    )  # 0: the server binds a free one itself, so no other process can come between
    params.n_ctx = options.context
    params.n_parallel = options.parallel
    params.n_gpu_layers = 0
    threads = options.threads or _spare_cores()
    params.cpuparams.n_threads = threads
    params.cpuparams_batch.n_threads = threads
    params.endpoint_slots = True
    params.endpoint_metrics = True
    params.use_jinja = True
    params.warmup = False
    params.ui = False
    params.cors_origins = ""  # a page in the user's browser has no business here
    params.verbosity = 0
    params.sse_ping_interval = options.ping_seconds
    if options.template:
        params.chat_template = options.template
    if options.api_key:
        params.api_keys = [options.api_key]
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        taken = f", or port {options.port} is taken" if options.port else ""
        raise RuntimeError(f"llama.cpp cannot load {Path(options.model).name}{taken}") from error
    return server, str(server.listening_address)


def _spare_cores() -> int:
    """Every usable core but one.

    llama.cpp's threads spin while they wait for each other, so a thread whose core is taken stops them all. On two
    cores with other work running, two threads gave 0.8 to 7 tokens/s and one gave 27 to 48; on the same cores idle,
    85 and 46. The client needs a core too.
    """
    usable = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    return max(1, usable - 1)


def _wait_until_healthy(address: str) -> None:
    # Straight to loopback, whatever HTTP_PROXY says.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    pause = threading.Event()
    while True:
        try:
            with opener.open(f"{address}/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except urllib.error.HTTPError as error:
            error.close()  # 503 while it loads
        pause.wait(0.02)


def _wait_for_the_end(parent: int) -> None:
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    # The end of stdin is the signal. The parent's id is looked at too, because a process forked from the
    # parent may hold the other end of the pipe open.
    while not ended.wait(1.0) and os.getppid() == parent:
        pass


def _say(out: BinaryIO, message: Ready | Failed) -> None:
    out.write(msgspec.json.encode(message) + b"\n")
    out.close()


if __name__ == "__main__":
    main()
