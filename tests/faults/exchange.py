"""One request at the fault server, and every way to answer it wrongly: what behaviours are written with.

Not here: what any one behaviour does, sockets that listen. Bytes and TCP flags are all ours: no HTTP library would send
most of this.
"""

import asyncio
import itertools
import json
import socket
import struct
import time
from collections.abc import Iterable, Sequence
from typing import NoReturn

import msgspec

TOKENS = ("Alpha ", "beta ", "gamma ", "delta ", "epsilon ", "zeta ", "eta ", "theta.")
TEXT = "".join(TOKENS)
ODD_TOKENS = ("naïve ", "日本語", "🙂🚀", " Привет", " \u2028\u0085x", " end")
ODD_TEXT = "".join(ODD_TOKENS)

SECRET_MARK = "SECRET"  # in every key and secret header of the callers
PROMPT_MARK = "PROMPT-MARKER"

MIB = 2**20
_LIFE_SECONDS = 25.0  # no exchange lasts longer, whoever forgot it

DONE = b"data: [DONE]\n\n"


class Gone(Exception):
    """The client has closed the connection, or the exchange is too old."""


class Seen(msgspec.Struct):
    """What the server saw of one request."""

    at: float
    path: str
    secret_headers: list[str]
    has_prompt: bool
    idempotency_key: str | None
    cookie: str | None
    is_injected: bool
    authorization: str


class Request(msgspec.Struct):
    """One request, its body read unless the behaviour wants it unread."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes = b""

    def seen(self) -> Seen:
        return Seen(
            at=time.monotonic(),
            path=self.target,
            secret_headers=sorted(k for k, v in self.headers.items() if SECRET_MARK in v),
            has_prompt=PROMPT_MARK.encode() in self.body,
            idempotency_key=self.headers.get("idempotency-key"),
            cookie=self.headers.get("cookie"),
            is_injected="x-evil" in self.headers,
            authorization=self.headers.get("authorization", "")[:10],
        )


class Connection:
    """One connection of a client."""

    _numbers = itertools.count()

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.number = next(self._numbers)
        self.served = 0
        self.is_answering = False

    @property
    def is_open(self) -> bool:
        return not (self.writer.transport.is_closing() or self.reader.at_eof())


def token(text: str, *, bare: bool = False) -> dict[str, object]:
    """Return a chunk that says `text`; `bare` leaves out what need not be there."""
    return _chunk({"content": text}, None, bare=bare)


def finish(reason: str = "stop", *, bare: bool = False) -> dict[str, object]:
    """Return the chunk that ends a choice."""
    return _chunk({}, reason, bare=bare)


def _chunk(
    delta: dict[str, object], reason: str | None, *, bare: bool = False
) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"choices": [choice]} if bare else with_choices([choice])


def with_choices(choices: object) -> dict[str, object]:
    """Return a chunk with any choices, right or wrong."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": choices,
    }


def event(value: object, line_end: bytes = b"\n", prefix: bytes = b"data: ") -> bytes:
    """Return one server-sent event."""
    return prefix + json.dumps(value, ensure_ascii=False).encode() + line_end + line_end


def tokens(*texts: str, line_end: bytes = b"\n", prefix: bytes = b"data: ") -> bytes:
    """Return the events of some tokens."""
    return b"".join(event(token(text), line_end, prefix) for text in texts)


def whole(line_end: bytes = b"\n", prefix: bytes = b"data: ") -> bytes:
    """Return a whole stream: the tokens, the finish reason, the end mark."""
    return (
        tokens(*TOKENS, line_end=line_end, prefix=prefix)
        + event(finish(), line_end, prefix)
        + prefix
        + b"[DONE]"
        + line_end
        + line_end
    )


def pieces(data: bytes, places: Iterable[int]) -> list[bytes]:
    """Return the data in pieces that end at these places. None is empty: as a chunk, that would be the end."""
    ends = [*places, len(data)]
    cut = [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    return [piece for piece in cut if piece]


def completion(text: str = TEXT) -> dict[str, object]:
    """Return an answer that is not streamed."""
    message = {"role": "assistant", "content": text}
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 8, "total_tokens": 9},
    }


class Exchange:
    """A request and its connection.

    `attempt` counts the requests of the same run, from 1; `elsewhere` is another origin, where nobody should go.
    """

    def __init__(
        self, connection: Connection, request: Request, attempt: int, elsewhere: str
    ) -> None:
        self.connection = connection
        self.request = request
        self.attempt = attempt
        self.elsewhere = elsewhere
        self.reader = connection.reader
        self.writer = connection.writer
        self._deadline = time.monotonic() + _LIFE_SECONDS

    # ------------------------------------------------------------------------------------ bytes

    async def write(self, data: bytes) -> None:
        """Send bytes as they are, and wait until the client takes them.

        Raises:
            Gone: there is nobody to send to.
        """
        self._check()
        self.writer.write(data)
        try:
            await self.writer.drain()
        except OSError:
            raise Gone from None

    async def chunk(self, data: bytes) -> None:
        """Send one HTTP chunk."""
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> bool:
        """Send the end of a chunked body; the connection can be kept."""
        await self.write(b"0\r\n\r\n")
        return True

    async def sleep(self, seconds: float) -> None:
        """Wait, but not for a client that has gone."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._check()
            await asyncio.sleep(min(left, 0.02))

    async def hold(self) -> NoReturn:
        """Say nothing more, for as long as the client stays."""
        await self.sleep(_LIFE_SECONDS)
        raise Gone

    def reset(self) -> bool:
        """End the connection by RST."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        return False

    def end_without_notice(self) -> bool:
        """End the connection by FIN alone: under TLS, without the close_notify that should come before it."""
        raw: socket.socket = self.writer.get_extra_info("socket")
        raw.shutdown(socket.SHUT_WR)
        return False

    def _check(self) -> None:
        if not self.connection.is_open or time.monotonic() > self._deadline:
            raise Gone

    # ------------------------------------------------------------------------------------- HTTP

    async def head(
        self,
        status: str = "200 OK",
        kind: str | None = "text/event-stream; charset=utf-8",
        *,
        length: int | None = None,
        extra: Iterable[tuple[str, str]] = (),
    ) -> None:
        """Send status and headers of a body that is chunked, or has a `length`."""
        lines = [f"HTTP/1.1 {status}"]
        if kind is not None:
            lines.append(f"content-type: {kind}")
        lines.append(
            "transfer-encoding: chunked" if length is None else f"content-length: {length}"
        )
        lines += [f"{name}: {value}" for name, value in extra]
        await self.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def head_until_close(self, version: str = "1.1") -> None:
        """Send the head of a body that ends with the connection."""
        closes = "connection: close\r\n" if version == "1.1" else ""
        await self.write(
            f"HTTP/{version} 200 OK\r\ncontent-type: text/event-stream\r\n{closes}\r\n".encode()
        )

    async def json(
        self,
        value: object,
        status: str = "200 OK",
        extra: Sequence[tuple[str, str]] = (),
    ) -> bool:
        """Send a whole JSON answer; bytes go out as they are."""
        body = value if isinstance(value, bytes) else json.dumps(value).encode()
        await self.head(status, "application/json", length=len(body), extra=extra)
        await self.write(body)
        return True

    async def refuse(
        self,
        status: str,
        message: str = "injected",
        *,
        kind: str = "server_error",
        code: str | None = None,
        extra: Sequence[tuple[str, str]] = (),
    ) -> bool:
        """Send an error in OpenAI's shape."""
        error = {"message": message, "type": kind, "code": code, "param": None}
        return await self.json({"error": error}, status, extra)

    async def some(self, count: int = 3) -> None:
        """Begin a chunked stream and send the first tokens of it."""
        await self.head()
        for text in TOKENS[:count]:
            await self.chunk(tokens(text))

    async def ok(self, texts: Iterable[str] = TOKENS) -> bool:
        """Send a stream that is right in every way."""
        await self.head()
        for text in texts:
            await self.chunk(tokens(text))
        await self.chunk(event(finish()))
        await self.chunk(DONE)
        return await self.end()

    async def stream(self, data: bytes, *, extra: Sequence[tuple[str, str]] = ()) -> bool:
        """Send a chunked stream in one piece."""
        await self.head(extra=extra)
        await self.chunk(data)
        return await self.end()

    async def in_segments(self, pieces: Iterable[bytes]) -> bool:
        """Send a chunked stream, each piece in a TCP segment of its own."""
        await self.head()
        for piece in pieces:
            await self.chunk(piece)
            await asyncio.sleep(0.0005)  # or the client's kernel joins the segments
        return await self.end()
