"""A fast, dumb token server: canned bytes over HTTP/1.1, in its own process, on its own core.

Not here: JSON, answers that depend on the question, error handling. The path says what to send; the rest of it is ignored:

    /flood/TOKENS/GROUP/...         GROUP events per write, all writes in one go
    /fast/TOKENS/GROUP/...          GROUP events per write, one write per turn of the event loop, as servers do that serve many
    /paced/TOKENS/GROUP/MS/TICK/... GROUP events per write, writes MS milliseconds apart, each stream at a phase of its own;
                                    phases are whole multiples of TICK milliseconds, 0 for no two at the same instant
    /plain/TOKENS/...               one JSON answer
    /late/...                       before all but the last: the end of the body comes in a write of its own after [DONE]

Every event has an HTTP chunk of its own.

Run `python -m benchmarks.token_server`; it prints its port on the first line and ends when its stdin closes.
"""

import argparse
import asyncio
import select
import selectors
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

from benchmarks import frames, report

_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"date: Wed, 02 Jul 2025 15:26:40 GMT\r\n"
    b"content-type: text/event-stream; charset=utf-8\r\n"
    b"cache-control: no-cache\r\n"
    b"x-request-id: req_1f2e3d4c5b6a\r\n"
    b"transfer-encoding: chunked\r\n\r\n"
)
_PLAIN_HEAD = (
    b"HTTP/1.1 200 OK\r\n"
    b"date: Wed, 02 Jul 2025 15:26:40 GMT\r\n"
    b"content-type: application/json\r\n"
    b"x-request-id: req_1f2e3d4c5b6a\r\n"
    b"content-length: %d\r\n\r\n"
)
_LAST_CHUNK = b"0\r\n\r\n"
_GOLDEN = 0.6180339887  # phases k * golden mod 1 spread any number of streams evenly


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event)


@lru_cache(maxsize=64)
def _writes(tokens: int, group: int, late: bool) -> tuple[bytes, ...]:
    """What a stream writes, in order: the head with the first events, and so on.

    [DONE] always shares its write with the usage chunk before it, and with the end of the body unless `late`.
    """
    chunks = [_chunk(event) for event in frames.wrap(frames.content_deltas(tokens))]
    chunks[-2:] = [chunks[-2] + chunks[-1]]
    groups = [b"".join(chunks[i : i + group]) for i in range(0, len(chunks), group)]
    groups[0] = _STREAM_HEAD + groups[0]
    if late:
        return (*groups, _LAST_CHUNK)
    groups[-1] += _LAST_CHUNK
    return tuple(groups)


@lru_cache(maxsize=64)
def _plain(tokens: int) -> bytes:
    body = frames.answer(tokens)
    return _PLAIN_HEAD % len(body) + body


class TokenServer(asyncio.Protocol):
    """One connection: reads requests, forgets them, and writes what their path says."""

    streams = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport
        self.loop = asyncio.get_running_loop()
        self.received = self.body = b""
        self.timer: asyncio.TimerHandle | None = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()

    def data_received(self, data: bytes) -> None:
        received = self.received + data
        head, blank, body = received.partition(b"\r\n\r\n")
        if blank and len(body) >= _content_length(head):
            self.received = b""
            self.body = body  # for who counts what is asked
            self.answer(head.split(b" ", 2)[1].decode("ascii").split("/"))
        else:
            self.received = received

    def answer(self, path: list[str]) -> None:
        late = path[1] == "late"
        kind, tokens, *rest = path[2:] if late else path[1:]
        if kind == "plain":
            self.transport.write(_plain(int(tokens)))
            return
        writes = _writes(int(tokens), int(rest[0]), late)
        if kind == "fast":
            self.run(iter(writes))
        elif kind == "flood":
            for piece in writes[: len(writes) - late]:
                self.transport.write(piece)
            if late:
                self.timer = self.loop.call_later(0.001, self.transport.write, writes[-1])
        else:
            every, tick = float(rest[1]) / 1000, float(rest[2]) / 1000
            self.pace(iter(writes), every, tick)

    def run(self, writes: Iterator[bytes]) -> None:
        piece = next(writes, None)
        if piece is not None:
            self.transport.write(piece)
            self.loop.call_soon(self.run, writes)

    def pace(self, writes: Iterator[bytes], every: float, tick: float) -> None:
        TokenServer.streams += 1
        phase = TokenServer.streams * _GOLDEN % 1 * every
        if tick:
            phase -= phase % tick
        now = self.loop.time()
        start = now - now % every + phase
        self.write_at(writes, start if start > now else start + every, every)

    def write_at(self, writes: Iterator[bytes], due: float, every: float) -> None:
        self.timer = self.loop.call_at(due, self.write_next, writes, due, every)

    def write_next(self, writes: Iterator[bytes], due: float, every: float) -> None:
        piece = next(writes, None)
        if piece is not None:
            self.transport.write(piece)
            self.write_at(writes, due + every, every)


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


class FineSelector(selectors.DefaultSelector):
    """Waits in microseconds.

    epoll waits in whole milliseconds, and so does uvloop, which is why it is not used here: a TICK of 0 would be one of 1.
    `select` on the epoll descriptor itself is fine-grained.
    """

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            select.select([self.fileno()], [], [], timeout)
        return super().select(0)


async def serve(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(TokenServer, "127.0.0.1", port, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    closed = asyncio.Event()
    loop.add_reader(sys.stdin, closed.set)
    await closed.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A fast, dumb token server.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--core", type=int, help="run on this core only")
    options = parser.parse_args()
    report.pin(options.core)
    with asyncio.Runner(loop_factory=_fine_loop) as runner:
        runner.run(serve(options.port))


def _fine_loop() -> asyncio.AbstractEventLoop:
    return asyncio.SelectorEventLoop(FineSelector())


@contextmanager
def running(core: int | None = None, module: str = "benchmarks.token_server") -> Iterator[str]:
    """A server in a process of its own; gives its address, without a path."""
    command = [sys.executable, "-m", module]
    if core is not None:
        command += ["--core", str(core)]
    with subprocess.Popen(
        command, cwd=report.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()


if __name__ == "__main__":
    main()
