"""A server that behaves as each request's model says, below HTTP and in a process of its own: for thousands at once.

Not here: tests; JSON and HTTP beyond what one honest client sends. The models:

    good      the answer in one write
    slow      a write per event, one millisecond apart
    stalled   silence before the head, after it, or after some events, by turns
    reset     RST, at the same places
    cut       FIN, at the same places
    refused   status 503
    failed    some events and then an error event; a plain answer that is an error object
    whole     an answer that is not streamed, though a stream was asked for
    held      head and first events, the rest when `release` is asked for
    silent    nothing at all
    burst     64 tokens in eight writes
    paced     64 tokens, a write each two milliseconds
    ticking   numbered tokens for ever, one a second; `ticking:0.1` is ten a second

`python -m tests.storms.server` prints three ports on the first line, of the server, of its control, and of the server
behind TLS, and ends when its stdin closes. The control takes lines, and answers each with the counts as JSON: `count`,
`release`, `wait NAME NUMBER`, which is answered when that count is at that number, and `lost`, which also tells when
the connections of answers that were under way were lost since it was last asked, by the `user` of their requests.
"""

import asyncio
import itertools
import resource
import socket
import ssl
import struct
import sys
import time
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from tests.faults.server import CERTIFICATES

if TYPE_CHECKING:
    from collections.abc import Callable

WORDS = tuple(f"word{number} " for number in range(64))
SHORT = "".join(WORDS[:4])
LONG = "".join(WORDS)

_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
_PLAIN = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
_CLOSE = b"connection: close\r\n"
_END = b"0\r\n\r\n"
_REFUSED = "503 Service Unavailable"
_ERROR = {"error": {"message": "told to fail", "type": "server_error", "code": "told"}}
_GROUP = 8  # events per write of a held answer, and of one that comes in bursts
_LONG = {"held", "burst", "paced"}


class Counts(msgspec.Struct):
    """What the server sees: connections and answers now, the most there were, and requests by model."""

    open: int = 0
    answering: int = 0
    most_open: int = 0
    most_answering: int = 0
    strays: int = 0  # bytes that came while an answer was under way
    requests: dict[str, int] = {}
    lost: dict[str, float] = {}  # when, on the clock that all processes share


# ------------------------------------------------------------------------------------------- bytes


def _event(value: object) -> bytes:
    data = (
        b"data: " + (value if isinstance(value, bytes) else msgspec.json.encode(value)) + b"\n\n"
    )
    return b"%x\r\n%b\r\n" % (len(data), data)


def _delta(delta: dict[str, str], finish: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return _event(
        {"id": "c", "object": "chat.completion.chunk", "model": "m", "choices": [choice]}
    )


_ROLE = _delta({"role": "assistant", "content": ""})
_LAST = _delta({}, "stop") + _event(b"[DONE]") + _END


@lru_cache(1000)
def _tick(number: int) -> bytes:
    return _delta({"content": f"tick{number} "})


@lru_cache
def _streamed(model: str, close: bool) -> tuple[bytes, ...]:
    """The writes of a streamed answer."""
    head = _STREAM + _CLOSE * close + b"\r\n"
    words = [_delta({"content": word}) for word in (WORDS if model in _LONG else WORDS[:4])]
    if model == "good":
        return (head + _ROLE + b"".join(words) + _LAST,)
    if model in {"held", "burst"}:
        groups = [b"".join(words[i : i + _GROUP]) for i in range(0, len(words), _GROUP)]
        return (head + _ROLE + groups[0], *groups[1:-1], groups[-1] + _LAST)
    if model == "failed":
        return (head + _ROLE, *words[:2], _event(_ERROR) + _END)
    return (head, _ROLE, *words, _LAST)


@lru_cache
def _plain(model: str, close: bool) -> tuple[bytes, ...]:
    """The writes of an answer that is not streamed."""
    message = {"role": "assistant", "content": SHORT}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    answer = {"id": "c", "object": "chat.completion", "model": "m", "choices": [choice]}
    body = msgspec.json.encode(_ERROR if model in {"failed", "refused"} else answer)
    status = _REFUSED if model == "refused" else "200 OK"
    head = _PLAIN % (status.encode(), len(body)) + _CLOSE * close + b"\r\n"
    if model in {"good", "failed", "refused"}:
        return (head + body,)
    return (head, body[:10], body[10:20], body[20:])


# ------------------------------------------------------------------------------------------ server


class Server:
    """What all connections share."""

    def __init__(self) -> None:
        self.counts = Counts()
        self.places = itertools.cycle(
            (0, 1, 3)
        )  # where an answer goes wrong: after so many writes
        self.held: list[Connection] = []
        self.lost: dict[str, float] = {}
        self.waiters: list[tuple[str, int, Callable[[], None]]] = []

    def change(self, name: str, by: int) -> None:
        counts = self.counts
        value = getattr(counts, name) + by
        setattr(counts, name, value)
        most = f"most_{name}"
        setattr(counts, most, max(getattr(counts, most), value))
        if self.waiters:
            ready = [waiter for waiter in self.waiters if getattr(counts, waiter[0]) == waiter[1]]
            for waiter in ready:
                self.waiters.remove(waiter)
                waiter[2]()

    async def control(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def tell(counts: Counts = self.counts) -> None:
            writer.write(msgspec.json.encode(counts) + b"\n")

        while line := await reader.readline():
            match line.decode().split():
                case ["wait", name, number] if getattr(self.counts, name) != int(number):
                    self.waiters.append((name, int(number), tell))
                case ["release"]:
                    held, self.held = self.held, []
                    for connection in held:
                        connection.step(0.0)
                    tell()
                case ["lost"]:
                    lost, self.lost = self.lost, {}
                    tell(msgspec.structs.replace(self.counts, lost=lost))
                case _:
                    tell()
        self.waiters = []
        writer.close()


class Connection(asyncio.Protocol):
    """One connection: one answer after the other."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.received = b""
        self.writes: list[bytes] = []  # what is to come, the next one last
        self.answering = False
        self.close = False
        self.user = ""
        self.timer: asyncio.Handle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.server.change("open", +1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        if self.answering and self.user:
            self.server.lost[self.user] = time.monotonic()
        self.finish()
        self.server.change("open", -1)

    def data_received(self, data: bytes) -> None:
        self.server.counts.strays += self.answering
        received = self.received + data
        head, blank, body = received.partition(b"\r\n\r\n")
        if not blank or len(body) < _length(head):
            self.received = received
            return
        self.received = b""
        model, self.user = (
            body.partition(b'"%b":"' % name)[2].partition(b'"')[0].decode()
            for name in (b"model", b"user")
        )
        requests = self.server.counts.requests
        requests[model] = requests.get(model, 0) + 1
        self.answering = True
        self.server.change("answering", +1)
        self.close = b"connection: close" in head.lower()
        self.answer(model, streamed=b'"stream":true' in body)

    def answer(self, model: str, *, streamed: bool) -> None:
        make = _streamed if streamed and model not in {"refused", "whole"} else _plain
        writes = make(model, self.close)
        if model in {"stalled", "reset", "cut"}:
            for piece in writes[: next(self.server.places)]:
                self.transport.write(piece)
            if model == "reset":
                self.reset()
            elif model == "cut":
                self.transport.close()
            return
        if model.startswith("ticking"):
            self.transport.write(writes[0] + writes[1])
            self.tick(float(model.partition(":")[2] or 1), 0)
            return
        self.writes = list(reversed(writes))
        match model:
            case "silent":
                pass
            case "held":
                self.transport.write(self.writes.pop())
                self.server.held.append(self)
            case "burst":
                self.step(0.0)
            case "paced":
                self.step(0.002)
            case _:
                self.step(0.001)

    def tick(self, seconds: float, number: int) -> None:
        """Write a numbered token, and the next one so many seconds later."""
        if not self.transport.is_closing():
            self.transport.write(_tick(number))
            loop = asyncio.get_running_loop()
            self.timer = loop.call_later(seconds, self.tick, seconds, number + 1)

    def step(self, seconds: float) -> None:
        """Write the next piece, and the others one by one, so many seconds apart."""
        if self.transport.is_closing():
            return
        self.transport.write(self.writes.pop())
        if self.writes:
            loop = asyncio.get_running_loop()
            self.timer = (
                loop.call_later(seconds, self.step, seconds)
                if seconds
                else loop.call_soon(self.step, seconds)
            )
            return
        self.finish()
        if self.close:
            self.transport.close()

    def finish(self) -> None:
        if self.answering:
            self.answering = False
            self.server.change("answering", -1)

    def reset(self) -> None:
        """Leave with RST: what was written and not yet read is lost too."""
        linger = struct.pack("ii", 1, 0)
        self.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, linger
        )
        self.transport.abort()


def _length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def raise_file_limit() -> int:
    """Allow this process as many open files as the system lets it, and return how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def serve() -> None:
    raise_file_limit()
    loop = asyncio.get_running_loop()
    server = Server()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "good.pem")
    plain, behind_tls = [
        await loop.create_server(
            lambda: Connection(server), "127.0.0.1", 0, backlog=4096, ssl=using
        )
        for using in (None, context)
    ]
    control = await asyncio.start_server(server.control, "127.0.0.1", 0)
    ports = [one.sockets[0].getsockname()[1] for one in (plain, control, behind_tls)]
    sys.stdout.write(" ".join(map(str, ports)) + "\n")
    sys.stdout.flush()
    ended = asyncio.Event()
    loop.add_reader(sys.stdin, ended.set)
    await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve())
