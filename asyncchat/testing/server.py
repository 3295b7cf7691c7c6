"""A scripted Chat Completions server on the loopback interface, for tests.

Not here: what a reply says (`reply`), how that reads on the wire (`wire`), how it is sent or broken
off (`exchange`). The server knows nothing of asyncchat's client, so any client can be tested with it.
Law: whatever a reply does, `close` ends it at once and leaves no task and no socket behind.
"""

import asyncio
import inspect
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self

import anyio
import msgspec
from aiohttp import web

from asyncchat.testing.exchange import Connections, Exchange
from asyncchat.testing.reply import Reply
from asyncchat.testing.wire import CREATED, ReceivedRequest, render

__all__ = ["ChatServer", "Disconnect"]

_Responder = Callable[[ReceivedRequest], Reply | Awaitable[Reply]]

# What a reply says that is only there to go wrong: eight words, eleven events.
_FILLER = "One two three four five six seven eight."


class Disconnect(msgspec.Struct, frozen=True):
    """A client left before its answer was complete; `at` is the loop's time of noticing."""

    request: ReceivedRequest
    at: float


class ChatServer:
    """A server that says, and does wrong, what a test tells it to.

    ```python
    async with ChatServer() as server:
        server.say("Hello there.")
        server.fail(429, headers={"Retry-After": "1"}, times=2)
        server.say("One two three.").cut(after=2)
        ...  # point a client at server.base_url
        assert server.requests[0].body["model"] == "m"
    ```
    Requests are answered with the first `when` that holds, else with the next reply in the queue,
    else with `otherwise`, which at first repeats the last user message. Each of the short forms
    `say`, `think`, `call_tool`, `fail`, `raw`, `cut`, `reset`, `stall`, `split` queues one reply
    and returns it, to be continued with the methods of `Reply`.

    Args:
        models: The ids that `GET /v1/models` lists.
        require_key: The key without which every request is answered with 401.
        tls: A context for serving https.
        port: A fixed port, to start again where another server was; 0 takes a free one.
    """

    def __init__(
        self,
        *,
        models: Sequence[str] = ("test-model",),
        require_key: str | None = None,
        tls: ssl.SSLContext | None = None,
        port: int = 0,
    ) -> None:
        self.requests: list[ReceivedRequest] = []
        self.gone: list[Disconnect] = []
        self._models = tuple(models)
        self._require_key = require_key
        self._tls = tls
        self._port = port
        self._queue: deque[Reply] = deque()
        self._routes: list[tuple[Callable[[ReceivedRequest], bool], Reply]] = []
        self._otherwise: _Responder = _echo
        self._answering: dict[Exchange, None] = {}
        self._gone_awaited = 0
        self._connections: Connections | None = None
        self._closed = False
        self._changed = asyncio.Event()
        self._resumed = asyncio.Event()

    # ------------------------------------------------------------------------------------- life
    async def start(self) -> None:
        """Listen on 127.0.0.1; `async with` does it.

        Raises:
            RuntimeError: This server was started before.
            OSError: The port is taken.
        """
        if self._connections is not None:
            raise RuntimeError("a ChatServer is started once; make another one")
        self._connections = Connections(self._serve, self._note_change)
        self._port = await self._connections.listen(self._port, self._tls)

    async def close(self) -> None:
        """Abort every answer and connection and stop listening. Idempotent."""
        if not self._closed and self._connections is not None:
            self._closed = True
            # A test that was cancelled must still leave nothing behind; it takes a few turns.
            with anyio.CancelScope(shield=True):
                await self._connections.abort()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def base_url(self) -> str:
        """The address for a client, ending in `/v1`."""
        if self._port == 0:
            raise RuntimeError("the server has no address before it is started")
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}/v1"

    # ---------------------------------------------------------------------------------- the script
    def reply(self, *, times: int = 1) -> Reply:
        """Queue an empty reply for the next `times` requests, to be written by its methods."""
        return self.queue(Reply(), times=times)

    def queue(self, reply: Reply, *, times: int = 1) -> Reply:
        """Queue a reply for the next `times` requests and return it."""
        if times < 1:
            raise ValueError(f"times must be 1 or more, not {times!r}")
        self._queue.extend([reply] * times)
        return reply

    def when(self, holds: Callable[[ReceivedRequest], bool], reply: Reply | None = None) -> Reply:
        """Answer every request for which `holds` is true with one reply, and return that."""
        routed = Reply() if reply is None else reply
        self._routes.append((holds, routed))
        return routed

    def otherwise(self, reply: Reply | _Responder) -> None:
        """Set the reply for requests that nothing else answers, or the function that makes it."""
        self._otherwise = (lambda _: reply) if isinstance(reply, Reply) else reply

    def say(self, text: str | Sequence[str], *, usage: bool | None = None) -> Reply:
        """Queue an answer that says `text`; see `Reply.say`."""
        return self.queue(Reply().say(text, usage=usage))

    def think(self, text: str | Sequence[str], *, field: str = "reasoning_content") -> Reply:
        """Queue an answer that reasons first; see `Reply.think`."""
        return self.queue(Reply().think(text, field=field))

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | str | Sequence[str] = "{}",
        *,
        id: str | None = None,  # noqa: A002  the format's own word
    ) -> Reply:
        """Queue an answer that calls a tool; see `Reply.call_tool`."""
        return self.queue(Reply().call_tool(name, arguments, id=id))

    def fail(
        self,
        status: int,
        message: str = "The test server was told to fail.",
        *,
        code: str | int | None = None,
        type: str | None = None,  # noqa: A002  the format's own word
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        times: int = 1,
    ) -> Reply:
        """Refuse the next `times` requests; see `Reply.fail`."""
        failure = Reply().fail(status, message, code=code, type=type, param=param, headers=headers)
        return self.queue(failure, times=times)

    def raw(self, *pieces: bytes, content_type: str = "text/event-stream") -> Reply:
        """Queue an answer of exactly these bytes; see `Reply.raw`."""
        return self.queue(Reply().raw(*pieces, content_type=content_type))

    def cut(self, *, after: int | Literal["headers"], text: str = _FILLER) -> Reply:
        """Queue an answer whose connection ends with FIN; see `Reply.cut`."""
        return self.queue(Reply().say(text).cut(after=after))

    def reset(self, *, after: int | Literal["headers"], text: str = _FILLER) -> Reply:
        """Queue an answer whose connection ends with RST; see `Reply.reset`."""
        return self.queue(Reply().say(text).reset(after=after))

    def stall(self, *, after: int | Literal["headers"], text: str = _FILLER) -> Reply:
        """Queue an answer that goes silent; see `Reply.stall`."""
        return self.queue(Reply().say(text).stall(after=after))

    def split(
        self, text: str = _FILLER, *, every: int | None = None, at: Sequence[int] | None = None
    ) -> Reply:
        """Queue an answer cut into writes at any byte; see `Reply.split`."""
        return self.queue(Reply().say(text).split(every=every, at=at))

    def resume(self) -> None:
        """Let every answer to a request that has arrived go on after its stalls."""
        self._resumed.set()
        self._resumed = asyncio.Event()

    # ----------------------------------------------------------------------------- what is observed
    @property
    def open_connections(self) -> int:
        """How many TCP connections are open."""
        return 0 if self._connections is None else len(self._connections.numbers)

    @property
    def active(self) -> tuple[ReceivedRequest, ...]:
        """The requests being answered now, stalled ones included."""
        return tuple(exchange.received for exchange in self._answering)

    @property
    def queued(self) -> int:
        """How many replies are waiting for a request."""
        return len(self._queue)

    async def wait_for_requests(self, count: int, seconds: float = 5.0) -> None:
        """Wait until `count` requests have arrived since the start.

        Raises:
            TimeoutError: They did not within `seconds`.
        """
        await self._wait(
            lambda: len(self.requests) >= count,
            seconds,
            lambda: f"{len(self.requests)} of {count} requests arrived",
        )

    async def wait_for_disconnect(self, seconds: float = 5.0) -> Disconnect:
        """Wait until a client leaves in mid-answer; each call gives the next one of `gone`.

        Raises:
            TimeoutError: None did within `seconds`.
        """
        await self._wait(
            lambda: len(self.gone) > self._gone_awaited,
            seconds,
            lambda: f"no client left, {len(self._answering)} are being answered",
        )
        self._gone_awaited += 1
        return self.gone[self._gone_awaited - 1]

    async def wait_until_idle(self, seconds: float = 5.0) -> None:
        """Wait until no request is being answered.

        Raises:
            TimeoutError: Some still are after `seconds`.
        """
        await self._wait(
            lambda: not self._answering,
            seconds,
            lambda: f"{len(self._answering)} requests are still being answered",
        )

    async def wait_for_connections(self, count: int, seconds: float = 5.0) -> None:
        """Wait until exactly `count` connections are open.

        Raises:
            TimeoutError: Another number is after `seconds`.
        """
        await self._wait(
            lambda: self.open_connections == count,
            seconds,
            lambda: f"{self.open_connections} connections are open, not {count}",
        )

    # -------------------------------------------------------------------------------------- private
    async def _wait(
        self, claim: Callable[[], bool], seconds: float, state: Callable[[], str]
    ) -> None:
        with anyio.move_on_after(seconds):
            while not claim():
                await self._changed.wait()
        if not claim():
            raise TimeoutError(f"after {seconds:g} s {state()}")

    def _note_change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        resumed = self._resumed
        received = await self._receive(request)
        exchange = Exchange(request, received, resumed)
        self.requests.append(received)
        serial = len(self.requests)
        self._answering[exchange] = None
        self._note_change()
        try:
            reply = self._refusal(received) or await self._choose(received)
            return await exchange.play(reply, render(reply.script, received, serial))
        except (asyncio.CancelledError, ConnectionError) as left:
            if not exchange.ended_by_server and not self._closed:
                self.gone.append(Disconnect(received, asyncio.get_running_loop().time()))
            if isinstance(left, ConnectionError):
                raise asyncio.CancelledError from None  # which aiohttp does not call an error of ours
            raise
        finally:
            del self._answering[exchange]
            self._note_change()

    async def _receive(self, request: web.BaseRequest) -> ReceivedRequest:
        assert self._connections is not None
        connection = self._connections.numbers[request.protocol]
        raw = await request.read()
        try:
            body = msgspec.json.decode(raw, type=dict[str, object])
        except msgspec.DecodeError:
            body = {}
        return ReceivedRequest(
            method=request.method,
            path=request.path,
            query=request.query,
            headers=request.headers,
            body=body,
            raw=raw,
            connection=connection,
            at=asyncio.get_running_loop().time(),
        )

    def _refusal(self, received: ReceivedRequest) -> Reply | None:
        """Return the reply to a request that is not for the script."""
        key = self._require_key
        if key is not None and received.headers.get("Authorization") != f"Bearer {key}":
            return Reply().fail(
                401,
                "Incorrect API key provided.",
                type="invalid_request_error",
                code="invalid_api_key",
            )
        match received.method, received.path:
            case "POST", "/v1/chat/completions":
                if received.body:
                    return None
                return Reply().fail(400, "The body must be a JSON object.")
            case "GET", "/v1/models":
                return Reply().raw(_model_list(self._models), content_type="application/json")
            case method, path:
                return Reply().fail(
                    404, f"Unknown request URL: {method} {path}.", code="unknown_url"
                )

    async def _choose(self, received: ReceivedRequest) -> Reply:
        for holds, reply in self._routes:
            if holds(received):
                return reply
        if self._queue:
            return self._queue.popleft()
        chosen = self._otherwise(received)
        return await chosen if inspect.isawaitable(chosen) else chosen


def _echo(received: ReceivedRequest) -> Reply:
    return Reply().say(received.last_text)


def _model_list(models: Sequence[str]) -> bytes:
    data = [
        {"id": model, "object": "model", "created": CREATED, "owned_by": "asyncchat"}
        for model in models
    ]
    return msgspec.json.encode({"object": "list", "data": data})
