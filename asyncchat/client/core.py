"""What a client is made of: the pool, the settings, and what turns a call into a request and its answer.

Not here: what a user calls (`client`), what awaits the network (`pool`, `stream`).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

import msgspec

from asyncchat.client.pool import Call, Place, SessionPool
from asyncchat.client.reply import Reply
from asyncchat.client.stream import ChatStream, Opened
from asyncchat.policy.limits import Limits
from asyncchat.policy.retry import Resume, RetryPolicy
from asyncchat.policy.timeout import Timeout
from asyncchat.protocol.answer import AnswerReader, plain_answer
from asyncchat.protocol.encoded import Request, request_in
from asyncchat.protocol.request import ChatRequest, Messages
from asyncchat.protocol.response import Completion
from asyncchat.protocol.schema import Dialect, OutputType

__all__ = ["OPENAI", "Asker", "Core", "Settings", "Whole", "both"]

OPENAI = "https://api.openai.com/v1"


Whole = tuple[Completion, bytes, bool]
"""An answer, the bytes that it came as, if it came in one piece, and whether these are known to be JSON."""
_Taken = tuple[AnswerReader | None, Completion, Place, bytes]


class Settings(msgspec.Struct, frozen=True):
    """What `with_options` can change: it is cheap, since everything that is open is shared."""

    model: str | None
    timeout: Timeout
    retry: RetryPolicy
    headers: Mapping[str, str] | None
    query: Mapping[str, str] | None
    limits: Limits
    split_think_tags: bool
    cumulative_content: bool


class Core:
    """What `AsyncChat` and its `chat` share: the pool, and what turns a call into a request."""

    __slots__ = ("dialects", "has_models", "is_plain", "lacks_key", "pool", "settings")

    def __init__(self, pool: SessionPool, settings: Settings) -> None:
        self.pool = pool
        self.settings = settings
        self.lacks_key = any(
            session.base_url == OPENAI and not session.has_key for session in pool.sessions
        )
        self.dialects: set[Dialect] = {server.endpoint.dialect for server in pool.servers}
        self.is_plain = not (settings.split_think_tags or settings.cumulative_content)
        """Whether answers say what they mean, and need no care of ours."""
        self.has_models = any(server.endpoint.model for server in pool.servers)

    def request(
        self, messages: Messages, system: str | None, fields: dict[str, Any]
    ) -> ChatRequest:
        """Make the request that a call's keywords ask for."""
        self.check_key()
        extra = fields.pop("extra_body", None)
        if fields.get("model") is None:
            fields["model"] = self.settings.model
        made = ChatRequest(
            messages,
            fields,
            system=system,
            extra_body=extra,
            needs_model=not self.has_models,
            dialect=fields.pop("dialect", None),
        )
        made.check(self.dialects)
        return made

    def check_key(self) -> None:
        """Refuse to ask OpenAI without a key."""
        if self.lacks_key:
            raise ValueError(
                "no key: pass api_key=... or set OPENAI_API_KEY; or set base_url to a server that wants none."
            )

    def call(self, fields: dict[str, Any]) -> Call:
        """Take out of a call's keywords what says how it is sent."""
        mine = self.settings
        return Call(
            timeout=Timeout.of(fields.pop("timeout", None), mine.timeout),
            retry=mine.retry,
            headers=both(mine.headers, fields.pop("extra_headers", None)),
            query=both(mine.query, fields.pop("extra_query", None)),
        )

    async def whole(self, request: Request, call: Call) -> Whole:
        """Return an answer that is not streamed."""
        reader, answer, place, body = await self.pool.run(
            request, call, self._take_whole, stream=False, drop=_drop
        )
        answer.timing = place.timing()
        place.finished(reader, answer)
        return answer, body, reader is None

    async def _take_whole(self, reply: Reply, place: Place) -> _Taken:
        n = place.ticket.request.n
        reply.alive(watched=False)
        body = await reply.read_all(self.settings.limits.max_event_bytes)
        answer, reader = plain_answer(body, n) if self.is_plain else None, None
        if answer is None:
            reader = self.reader(reply.content_type, n)
            answer = reader.assemble(body)
        answer.http = reply.http
        place.began(reply)
        return reader, answer, place, body

    def stream(
        self,
        request: Request,
        call: Call,
        *,
        mode: Literal["events", "chunks"],
        resumes: Resume | None = None,
    ) -> ChatStream[Any]:
        """Return the answer to a request as a stream, not yet started."""

        async def start(stream: ChatStream[Any]) -> Opened:
            return await self.pool.run(request, call, stream.begin, stream=True, drop=Opened.drop)

        async def resume(stream: ChatStream[Any], before: Place, said: str) -> Opened:
            assert resumes is not None
            again = request
            if resumes.mode == "continue":
                again = request.continued(said, fields=resumes.fields, prefix=resumes.prefix)
            return await self.pool.run(again, call, stream.begin, stream=True, after=before)

        def make_reader(content_type: str) -> AnswerReader:
            return self.reader(content_type, request.n)

        return ChatStream(
            start,
            make_reader,
            mode=mode,
            resume=resume,
            resumes=resumes,
            output=request.output,
        )

    def reader(self, content_type: str, n: int) -> AnswerReader:
        """Make the reader of one answer."""
        mine = self.settings
        return AnswerReader(
            n,
            content_type=content_type,
            max_event_bytes=mine.limits.max_event_bytes,
            max_answer_bytes=mine.limits.max_answer_bytes,
            split_think_tags=mine.split_think_tags,
            cumulative_content=mine.cumulative_content,
        )


def _drop(taken: _Taken) -> None:
    taken[2].left(taken[0])


class Asker:
    """What a batch asks with: one attempt for each call, on a client's connections and within its limits.

    Args:
        core: of the client.
        stream: whether answers are streamed underneath, so that a stall is noticed.
        timeout: bounds of one attempt. None of them runs while it waits in line.
        output: what every answer has to be, if anything.
        system: a message to put first, if anything.
        fields: of every request.
    """

    __slots__ = ("_call", "_core", "_fields", "_output", "_stream", "_system")

    def __init__(
        self,
        core: Core,
        *,
        stream: bool,
        timeout: Timeout,
        output: OutputType[Any] | None,
        system: str | None,
        fields: Mapping[str, Any],
    ) -> None:
        mine = core.settings
        self._core = core
        self._stream = stream
        self._output = output
        self._system = system
        model = {} if mine.model is None else {"model": mine.model}
        given = {name: value for name, value in fields.items() if value is not None}
        if "tools" in given:  # as they are sent: what is recorded has to know them again
            asked = ChatRequest("?", {"tools": given["tools"]}, needs_model=False)
            dialect = next(iter(core.dialects)) if len(core.dialects) == 1 else "strict"
            given["tools"] = msgspec.json.decode(asked.encode(stream=False, dialect=dialect))[
                "tools"
            ]
        # As JSON has them, where keys are text and a tuple is a list: so they are compared with those of another run.
        self._fields: dict[str, Any] = msgspec.json.decode(msgspec.json.encode({**model, **given}))
        self._call = Call(timeout, _ONCE, mine.headers, mine.query, is_patient=True)

    @property
    def pool(self) -> SessionPool:
        """Who is asked, and how they are doing."""
        return self._core.pool

    def described(self) -> dict[str, Any]:
        """Return what is the same in every request, as JSON."""
        made = dict(self._fields)
        if self._system is not None:
            made["system"] = self._system
        if self._output is not None:
            made["response_format"] = self._output.response_format("json_schema")
        return made

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return a body with what every request has and this one does not say itself."""
        made = {**self._fields, **body}
        messages = made.get("messages")
        if self._system is not None and isinstance(messages, list):
            made["messages"] = [{"role": "system", "content": self._system}, *messages]
        return made

    def __call__(
        self, body: bytes, key: str, sent: Callable[[], object] | None = None
    ) -> Awaitable[Whole]:
        """Return an answer.

        Args:
            body: the fields of a request as JSON, `messages` among them, as `complete` made them.
            key: the idempotency key.
            sent: called when it waits in line no more.

        Raises:
            ValueError, TypeError: it cannot be sent.
            AsyncChatError: as `chat(...)`.
        Cancellation: safe anywhere.
        """
        core = self._core
        core.check_key()
        request: Request | None = None
        if self._output is None:
            request = request_in(body, needs_model=not core.has_models)
        if request is None:
            fields = _fields_in(body)
            messages = fields.pop("messages", ())
            fields.pop("stream", None)
            if self._output is not None:
                fields["response_format"] = self._output
            request = core.request(messages, None, fields)
        call = msgspec.structs.replace(self._call, key=key, sent=sent)
        return self._streamed(request, call) if self._stream else core.whole(request, call)

    async def _streamed(self, request: Request, call: Call) -> Whole:
        return await self._core.stream(request, call, mode="events").final(), b"", False


_fields_in = msgspec.json.Decoder(dict[str, Any]).decode
_ONCE = RetryPolicy(max_retries=0, max_retry_after=600.0)  # a batch has time


def both(
    one: Mapping[str, str] | None, other: Mapping[str, str] | None
) -> Mapping[str, str] | None:
    """Return two sets of headers or parameters as one; the second wins."""
    return {**one, **other} if one and other else other or one
