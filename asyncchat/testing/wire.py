"""What a request asked, what a reply says, and the bytes between them.

Not here: sockets, waiting, the clock, and any code of asyncchat's client: this is an independent
witness, with its own writer of SSE and of chat objects. Sources: OpenAI's API reference, "The chat
completion object" and "The chat completion chunk object"; WHATWG HTML, "Event stream format".
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any, Literal, cast

import msgspec

__all__ = [
    "BEFORE_HEADERS",
    "Answer",
    "Call",
    "Event",
    "Fault",
    "Fields",
    "ReceivedRequest",
    "Script",
    "Text",
    "error_body",
    "render",
]

# A fixed date: two runs of a test see the same bytes.
CREATED = 1_767_225_600

# Where a fault strikes that comes before the status line; other places are offsets in the body.
BEFORE_HEADERS = -1


# ------------------------------------------------------------------------------- what was asked
class ReceivedRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it arrived.

    `connection` numbers the TCP connections from 1, so equal numbers mean a connection was used
    again. `at` is the loop's time when the body was complete. A body that is no JSON object reads
    as `{}`; the bytes are in `raw`.
    """

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    # Any, not object: a test reads `body["messages"][0]["content"]`, and a wrong guess fails it.
    body: dict[str, Any]
    raw: bytes
    connection: int
    at: float

    @property
    def streaming(self) -> bool:
        """Whether `stream` was asked for."""
        return self.body.get("stream") is True

    @property
    def messages(self) -> list[dict[str, Any]]:
        """The messages that are objects; empty where there are none."""
        messages: object = self.body.get("messages")
        if not isinstance(messages, list):
            return []
        return [
            cast("dict[str, Any]", message)
            for message in cast("list[object]", messages)
            if isinstance(message, dict)
        ]

    @property
    def last_text(self) -> str:
        """The text of the last user message; "" where there is none."""
        for message in reversed(self.messages):
            if message.get("role") == "user":
                return _text_of(message.get("content"))
        return ""


def _text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    parts = [
        cast("dict[str, object]", part)
        for part in cast("list[object]", content)
        if isinstance(part, dict)
    ]
    return "".join(text for part in parts if isinstance(text := part.get("text"), str))


# ------------------------------------------------------------------------------ what is answered
class Text(msgspec.Struct, frozen=True):
    """Text of one field of the message, in the pieces that are streamed."""

    field: str
    pieces: tuple[str, ...]
    choice: int | None = None


class Call(msgspec.Struct, frozen=True):
    """One tool call, its arguments in the fragments that are streamed."""

    name: str
    fragments: tuple[str, ...]
    id: str | None = None
    choice: int | None = None


class Fields(msgspec.Struct, frozen=True):
    """One delta, exactly as given; its keys are keys of the message when not streamed."""

    fields: Mapping[str, object]
    choice: int | None = None


class Event(msgspec.Struct, frozen=True):
    """One event of the stream, exactly as given; left out when not streamed."""

    data: bytes
    choice: int | None = 0


Part = Text | Call | Fields | Event


class Fault(msgspec.Struct, frozen=True):
    """One thing that goes wrong after `after` events; 0 is before the headers are sent."""

    kind: Literal["cut", "reset", "stall"]
    after: int | Literal["headers"]


class Script(msgspec.Struct, kw_only=True):
    """All that one reply says and does; `Reply` is the way to write one."""

    parts: list[Part] = []
    finish: dict[int | None, str | None] = {}
    usage: bool | None = None
    usage_fields: dict[str, object] = {}
    done: bool = True
    error: dict[str, object] | None = None
    comment: str | None = None
    comment_every: int = 1

    status: int = 200
    headers: dict[str, str] = {}
    content_type: str | None = None
    pieces: tuple[bytes, ...] | None = None
    whole: bool = False

    faults: list[Fault] = []
    cut_every: int | None = None
    cut_at: tuple[int, ...] | None = None
    delay_seconds: float = 0.0
    drip_seconds: float = 0.0
    ping_seconds: float | None = None
    closes_after: bool = False


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One reply as bytes: the body, where it is cut into writes, and where faults strike."""

    status: int
    headers: dict[str, str]
    body: bytes
    chunked: bool
    cuts: tuple[int, ...]
    faults: tuple[tuple[int, Literal["cut", "reset", "stall"]], ...] = ()

    def writes(self) -> Iterator[tuple[int, bytes]]:
        """Give each write with its offset in the body."""
        offsets = {0, len(self.body), *self.cuts, *(at for at, _ in self.faults)}
        inside = sorted(offset for offset in offsets if 0 <= offset <= len(self.body))
        for start, end in pairwise(inside):
            yield start, self.body[start:end]


def error_body(
    message: str,
    *,
    type: str,  # noqa: A002  the format's own word
    code: str | int | None = None,
    param: str | None = None,
) -> dict[str, object]:
    """Return an error object in OpenAI's format."""
    return {"error": {"message": message, "type": type, "param": param, "code": code}}


def render(script: Script, request: ReceivedRequest, serial: int) -> Answer:
    """Return the bytes that `script` becomes for `request`; `serial` makes its ids unique."""
    streamed = request.streaming
    if script.pieces is not None:
        frames, content_type = list(script.pieces), script.content_type or "application/json"
    elif streamed:
        frames, content_type = _events(script, request, serial), "text/event-stream"
    else:
        frames, content_type = [_document(script, request, serial)], "application/json"
    whole = script.whole if script.pieces is not None else not streamed
    ends = _ends(frames)
    body = b"".join(frames)
    return Answer(
        status=script.status,
        headers={
            "Content-Type": script.content_type or content_type,
            "x-request-id": f"req_{serial}",
            **script.headers,
        },
        body=body,
        chunked=not whole,
        cuts=_cuts(script, len(body), ends),
        faults=tuple((_place(fault, frames, ends, whole), fault.kind) for fault in script.faults),
    )


# ------------------------------------------------------------------------------ cutting the body
def _ends(frames: Sequence[bytes]) -> tuple[int, ...]:
    ends: list[int] = []
    for frame in frames:
        ends.append(len(frame) + (ends[-1] if ends else 0))
    return tuple(ends)


def _cuts(script: Script, size: int, ends: tuple[int, ...]) -> tuple[int, ...]:
    if script.cut_every is not None:
        return tuple(range(script.cut_every, size, script.cut_every))
    return ends if script.cut_at is None else script.cut_at


def _place(fault: Fault, frames: Sequence[bytes], ends: tuple[int, ...], whole: bool) -> int:
    """Return the offset at which `fault` strikes: at the end where there are too few events."""
    if fault.after == "headers":
        return 0
    if fault.after == 0:
        return BEFORE_HEADERS
    if whole:
        # One document is no sequence of events; half of it is what a fault leaves.
        return ends[-1] // 2
    events = [end for frame, end in zip(frames, ends, strict=True) if not frame.startswith(b":")]
    if not events:
        return 0
    return events[fault.after - 1] if fault.after <= len(events) else ends[-1]


# ------------------------------------------------------------------------------------ the stream
def _events(script: Script, request: ReceivedRequest, serial: int) -> list[bytes]:
    usage_wanted = script.usage
    if usage_wanted is None:
        usage_wanted = _usage_asked(request)

    def chunk(choices: list[object], usage: object = None) -> bytes:
        head = _head(request, serial, "chat.completion.chunk")
        tail = {"usage": usage} if usage_wanted else {}
        return _event(msgspec.json.encode({**head, "choices": choices, **tail}))

    columns = [
        _column(script, request, serial, index) for index in range(_choice_count(script, request))
    ]
    events = [
        _event(part) if isinstance(part, bytes) else chunk([part])
        for row in zip_longest(*columns)
        for part in row
        if part is not None
    ]
    if script.error is not None:
        events.append(_event(msgspec.json.encode(script.error)))
    else:
        if usage_wanted:
            events.append(chunk([], _usage(script, request)))
        if script.done:
            events.append(_event(b"[DONE]"))
    return list(_commented(events, script))


def _column(
    script: Script, request: ReceivedRequest, serial: int, index: int
) -> list[dict[str, object] | bytes]:
    """Return what one choice sends, in order: chunk choices, and events that are given as bytes."""
    parts = _parts_of(script, index)
    column: list[dict[str, object] | bytes] = []
    says_nothing = all(isinstance(part, Event) for part in parts)
    if not says_nothing or (not parts and script.error is None):
        column.append(_chunk_choice(index, {"role": "assistant", "content": ""}))
    calls = 0
    for part in parts:
        match part:
            case Event(data):
                column.append(data)
            case Fields(fields):
                column.append(_chunk_choice(index, fields))
            case Text():
                column.extend(
                    _chunk_choice(index, {part.field: piece}, _logprobs(part, [piece], request))
                    for piece in part.pieces
                )
            case Call():
                column.extend(
                    _chunk_choice(index, {"tool_calls": [entry]})
                    for entry in _call_entries(part, calls, _call_id(part, serial, index, calls))
                )
                calls += 1
    reason = _finish_reason(script, index)
    if script.error is None and reason is not None:
        column.append(_chunk_choice(index, {}, finish_reason=reason))
    return column


def _call_entries(call: Call, position: int, identity: str) -> Iterator[dict[str, object]]:
    yield {
        "index": position,
        "id": identity,
        "type": "function",
        "function": {"name": call.name, "arguments": ""},
    }
    for fragment in call.fragments:
        yield {"index": position, "function": {"arguments": fragment}}


def _chunk_choice(
    index: int,
    delta: Mapping[str, object],
    logprobs: object = None,
    finish_reason: str | None = None,
) -> dict[str, object]:
    return {
        "index": index,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }


def _event(data: bytes) -> bytes:
    lines = data.split(b"\n")
    return b"".join(b"data: " + line + b"\n" for line in lines) + b"\n"


def _commented(events: Sequence[bytes], script: Script) -> Iterator[bytes]:
    for number, event in enumerate(events):
        if script.comment is not None and number % script.comment_every == 0:
            yield f": {script.comment}\n\n".encode()
        yield event


# -------------------------------------------------------------------------------- the whole answer
def _document(script: Script, request: ReceivedRequest, serial: int) -> bytes:
    if script.error is not None:
        return msgspec.json.encode(script.error)
    choices = [
        _choice(script, request, serial, index) for index in range(_choice_count(script, request))
    ]
    document = {**_head(request, serial, "chat.completion"), "choices": choices}
    if script.usage is not False:
        document["usage"] = _usage(script, request)
    return msgspec.json.encode(document)


def _choice(
    script: Script, request: ReceivedRequest, serial: int, index: int
) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": None, "refusal": None}
    calls: list[object] = []
    tokens: list[object] = []
    for part in _parts_of(script, index):
        match part:
            case Text():
                message[part.field] = f"{message.get(part.field) or ''}{''.join(part.pieces)}"
                if logprobs := _logprobs(part, part.pieces, request):
                    tokens.extend(logprobs["content"])
            case Call():
                function = {"name": part.name, "arguments": "".join(part.fragments)}
                identity = _call_id(part, serial, index, len(calls))
                calls.append({"id": identity, "type": "function", "function": function})
            case Fields(fields):
                message.update(fields)
            case Event():
                pass
    if calls:
        message["tool_calls"] = calls
    return {
        "index": index,
        "message": message,
        "logprobs": {"content": tokens, "refusal": None} if tokens else None,
        "finish_reason": _finish_reason(script, index),
    }


# ---------------------------------------------------------------------------------- common to both
def _head(request: ReceivedRequest, serial: int, kind: str) -> dict[str, object]:
    return {
        "id": f"chatcmpl-{serial}",
        "object": kind,
        "created": CREATED,
        "model": request.body.get("model", "test-model"),
    }


def _choice_count(script: Script, request: ReceivedRequest) -> int:
    """Return how many choices are sent: as many as asked for, and each that the script names."""
    asked: object = request.body.get("n")
    named = [part.choice + 1 for part in script.parts if part.choice is not None]
    return max([asked if isinstance(asked, int) else 1, 1, *named])


def _parts_of(script: Script, index: int) -> list[Part]:
    return [part for part in script.parts if part.choice in {None, index}]


def _call_id(call: Call, serial: int, index: int, position: int) -> str:
    return f"call_{serial}_{index}_{position}" if call.id is None else call.id


def _finish_reason(script: Script, index: int) -> str | None:
    for key in (index, None):
        if key in script.finish:
            return script.finish[key]
    calls = any(isinstance(part, Call) for part in _parts_of(script, index))
    return "tool_calls" if calls else "stop"


def _logprobs(
    text: Text, pieces: Sequence[str], request: ReceivedRequest
) -> dict[str, list[object]] | None:
    if text.field != "content" or request.body.get("logprobs") is not True:
        return None
    content: list[object] = []
    for piece in pieces:
        token = {"token": piece, "logprob": -0.25, "bytes": list(piece.encode())}
        top = [token] if request.body.get("top_logprobs") else []
        content.append({**token, "top_logprobs": top})
    return {"content": content}


def _usage_asked(request: ReceivedRequest) -> bool:
    options: object = request.body.get("stream_options")
    if not isinstance(options, dict):
        return False
    return cast("dict[str, object]", options).get("include_usage") is True


def _usage(script: Script, request: ReceivedRequest) -> dict[str, object]:
    """Return the usage the script names, completed by counts: words asked, pieces said."""
    asked = sum(len(_text_of(message.get("content")).split()) for message in request.messages)
    said = 0
    for index in range(_choice_count(script, request)):
        for part in _parts_of(script, index):
            match part:
                case Text():
                    said += len(part.pieces)
                case Call():
                    said += len(part.fragments)
                case _:
                    pass
    usage = {"prompt_tokens": asked, "completion_tokens": said, **script.usage_fields}
    prompt, completion = usage["prompt_tokens"], usage["completion_tokens"]
    if isinstance(prompt, int) and isinstance(completion, int):
        usage.setdefault("total_tokens", prompt + completion)
    return usage
