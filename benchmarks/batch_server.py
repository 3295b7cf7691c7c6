"""A server for batch jobs that counts: requests, inputs, most at once. In a process of its own, on its own core.

Not here: failures, limits (the tests have servers for those). Bytes and framing are the token server's:

    /batch/TOKENS/MS/...   after MS milliseconds one JSON answer, or a stream if the body asks for one: one event per write,
                           one write per turn of the event loop
    /counts                what was counted since it was last asked, as JSON

Run `python -m benchmarks.batch_server`; it prints its port on the first line and ends when its stdin closes.
"""

import argparse
import asyncio
import sys
import urllib.request
from contextlib import AbstractContextManager

import msgspec

from benchmarks import report, token_server


class Counts(msgspec.Struct):
    """What was asked. Times are the loop's, in seconds."""

    requests: int = 0
    inputs: int = 0  # distinct last messages
    most: int = 0  # at once
    left: int = 0  # whose connection closed before the answer
    span: float = 0.0  # from the first request to the end of the last answer


class _Message(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"")


class _Body(msgspec.Struct):
    messages: list[_Message]
    stream: bool | None = None


class Ledger:
    """Counts for all connections."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.seen: set[bytes] = set()
        self.alive = 0
        self.first = 0.0

    def came(self, asked: bytes, now: float) -> None:
        self.first = self.first or now
        self.seen.add(asked)
        self.alive += 1
        self.counts.requests += 1
        self.counts.most = max(self.counts.most, self.alive)

    def went(self, now: float) -> None:
        self.alive -= 1
        self.counts.span = now - self.first

    def take(self) -> Counts:
        """Return the counts, and begin anew."""
        taken, self.counts = self.counts, Counts()
        taken.inputs = len(self.seen)
        self.seen.clear()
        self.first = 0.0
        return taken


class BatchServer(token_server.TokenServer):
    """One connection, one request at a time."""

    ledger = Ledger()
    _decode = msgspec.json.Decoder(_Body).decode
    writes: tuple[bytes, ...] = ()  # of the answer that is on its way

    def answer(self, path: list[str]) -> None:
        if path[1] == "counts":
            counts = msgspec.json.encode(self.ledger.take())
            head = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
            self.transport.write(head % len(counts) + counts)
            self.transport.close()
            return
        asked = self._decode(self.body)
        # curator's first request, which looks for headers, has no message.
        last = bytes(asked.messages[-1].content) if asked.messages else b""
        self.ledger.came(last, self.loop.time())
        tokens = int(path[2])
        if asked.stream:
            self.writes = token_server._writes(tokens, 1, False)  # noqa: SLF001  the same bytes as everywhere
        else:
            self.writes = (token_server._plain(tokens),)  # noqa: SLF001
        self.timer = self.loop.call_later(float(path[3]) / 1000, self.write_from, 0)

    def write_from(self, index: int) -> None:
        if self.transport.is_closing():
            return
        self.transport.write(self.writes[index])
        if index + 1 < len(self.writes):
            self.loop.call_soon(self.write_from, index + 1)
        else:
            self.writes = ()
            self.ledger.went(self.loop.time())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.writes:
            self.writes = ()
            self.ledger.counts.left += 1
            self.ledger.went(self.loop.time())


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(BatchServer, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    closed = asyncio.Event()
    loop.add_reader(sys.stdin, closed.set)
    await closed.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description="A server for batch jobs that counts.")
    parser.add_argument("--core", type=int, help="run on this core only")
    report.pin(parser.parse_args().core)
    # Whole milliseconds are fine here, and a quicker server tells quick clients apart.
    factory = asyncio.SelectorEventLoop
    if "uvloop" in report.versions():
        import uvloop

        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve())


def running(core: int | None = None) -> AbstractContextManager[str]:
    """A batch server in a process of its own; gives its address, without a path."""
    return token_server.running(core, "benchmarks.batch_server")


def take_counts(server: str) -> Counts:
    """What the server counted since it was last asked."""
    with urllib.request.urlopen(f"{server}/counts") as answer:
        return msgspec.json.decode(answer.read(), type=Counts)


if __name__ == "__main__":
    main()
