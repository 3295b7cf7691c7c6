"""What a server says: tolerant structs, a fast typed decode, and a second one that forgives.

Not here: judging the server's manners, gathering chunks (that is `assembler`), bytes cut anywhere (`sse`).
Every field has a default and a wide type, so that a missing or odd one costs nothing but itself.
Names of fields are OpenAI's. Source: the Chat Completions reference, and what servers really send.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal, TypeAlias, TypeVar

import msgspec

from asyncchat.protocol.lenient import dump, is_json
from asyncchat.protocol.model import Model, build

__all__ = [
    "HTTP",
    "Choice",
    "Chunk",
    "ChunkChoice",
    "Completion",
    "CompletionTokensDetails",
    "Delta",
    "Ending",
    "Function",
    "FunctionDelta",
    "Logprobs",
    "Message",
    "PromptTokensDetails",
    "ServerFault",
    "Timing",
    "TokenLogprob",
    "ToolCall",
    "ToolCallFragment",
    "TopLogprob",
    "Usage",
    "chunk_from",
    "chunk_with_extra",
    "completion_with_extra",
    "fault_in",
    "merge_usage",
]


_T = TypeVar("_T")
_M = TypeVar("_M", bound=Model)


# ------------------------------------------------------------------------------------------ usage


class PromptTokensDetails(Model):
    """What the prompt's tokens were."""

    cached_tokens: int | None = None
    audio_tokens: int | None = None


class CompletionTokensDetails(Model):
    """What the answer's tokens were."""

    reasoning_tokens: int | None = None
    audio_tokens: int | None = None
    accepted_prediction_tokens: int | None = None
    rejected_prediction_tokens: int | None = None


class Usage(Model):
    """Tokens as the server counted them. `None` is unknown, never zero, and nothing here is estimated."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptTokensDetails | None = None
    completion_tokens_details: CompletionTokensDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens served from a cache, under whichever name the server keeps them."""
        details, extra = self.prompt_tokens_details, self.model_extra
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        found = extra.get("cached_tokens", extra.get("prompt_cache_hit_tokens"))
        return found if isinstance(found, int) else None

    @property
    def reasoning_tokens(self) -> int | None:
        """Answer tokens spent on reasoning."""
        details = self.completion_tokens_details
        return None if details is None else details.reasoning_tokens


def merge_usage(old: Usage | None, new: Usage) -> Usage:
    """Return both counts as one: per field the newer number wins, and nothing is ever added up.

    Some servers send a running count on each chunk, some one number per chunk, some an empty object at the end.
    """
    if old is None:
        return new
    made = Usage(
        prompt_tokens=_newer(old.prompt_tokens, new.prompt_tokens),
        completion_tokens=_newer(old.completion_tokens, new.completion_tokens),
        total_tokens=_newer(old.total_tokens, new.total_tokens),
        prompt_tokens_details=_merged(old.prompt_tokens_details, new.prompt_tokens_details),
        completion_tokens_details=_merged(
            old.completion_tokens_details, new.completion_tokens_details
        ),
    )
    made.extra_ = {**old.model_extra, **_present(new.model_extra)} or None
    return made


def _newer(old: _T | None, new: _T | None) -> _T | None:
    return old if new is None else new


def _merged(old: _M | None, new: _M | None) -> _M | None:
    if old is None or new is None:
        return _newer(old, new)
    made = copy(old)
    for name in made.__struct_fields__:
        setattr(made, name, _newer(getattr(old, name), getattr(new, name)))
    made.extra_ = {**old.model_extra, **_present(new.model_extra)} or None
    return made


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


# --------------------------------------------------------------------------------------- logprobs


class TopLogprob(Model):
    """One of the likeliest tokens at a place."""

    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None


class TokenLogprob(Model):
    """One token of the answer and how likely it was; `logprob` is None where the server sent no number."""

    token: str = ""
    logprob: float | None = None
    bytes: list[int] | None = None
    top_logprobs: list[TopLogprob] | None = None


class Logprobs(Model):
    """Log probabilities of the content's and the refusal's tokens."""

    content: list[TokenLogprob] | None = None
    refusal: list[TokenLogprob] | None = None


# --------------------------------------------------------------------------------- a whole answer


class Function(Model):
    """A function the model wants called. `arguments` is JSON text as the model wrote it."""

    name: str = ""
    arguments: str = ""

    @property
    def is_complete(self) -> bool:
        """Whether `arguments` is whole JSON: a call cut by `length` or by the network is not."""
        return is_json(self.arguments)


class ToolCall(Model):
    """One call the model makes. `id` is the server's, or one made here where it sent none."""

    id: str = ""
    type: str = "function"
    function: Function = msgspec.field(default_factory=Function)
    index: int | None = None


class _Said(Model):
    """What a message and a piece of one have in common.

    `reasoning_content` and `reasoning` are one value: it is sent back under the name it came with.
    """

    content: str | None = None
    refusal: str | None = None
    reasoning_content_: str | None = msgspec.field(default=None, name="reasoning_content")
    reasoning_: str | None = msgspec.field(default=None, name="reasoning")
    reasoning_details: list[Any] | None = None
    annotations: list[Any] | None = None
    audio: dict[str, Any] | None = None

    @property
    def reasoning_content(self) -> str | None:
        """The model's reasoning, as far as the server shows it, under whichever name it came."""
        return self.reasoning_content_ or self.reasoning_

    @property
    def reasoning(self) -> str | None:
        """The same as `reasoning_content`."""
        return self.reasoning_content_ or self.reasoning_


class Message(_Said):
    """What the model said. It can go back into `messages` as it is."""

    role: str = "assistant"
    tool_calls: list[ToolCall] | None = None
    function_call: Function | None = None
    # Ours, not the server's: what `parse` made of the content.
    parsed: Any = msgspec.field(default=None, name="(parsed)")


class Choice(Model):
    """One of the `n` answers."""

    index: int = 0
    message: Message = msgspec.field(default_factory=Message)
    finish_reason: str | None = None
    logprobs: Logprobs | None = None


class Timing(msgspec.Struct, frozen=True, gc=False):
    """How long an answer took, in seconds on a monotonic clock.

    `ttft` runs from the first attempt to the first event that carries something; `itl` is the mean time between
    events from then on (None with fewer than two); `total` includes the line, retries and their waits. `attempts` counts the
    requests sent; `resumed` says how often the answer had broken off and was taken up again (`resume=`); `waited` is the
    part of `total` before the last request was sent.
    """

    ttft: float | None = None
    itl: float | None = None
    total: float = 0.0
    attempts: int = 1
    endpoint: str = ""
    resumed: int = 0
    waited: float = 0.0


class HTTP(msgspec.Struct, frozen=True):
    """The answer's status line and headers, names in lower case."""

    status: int = 200
    headers: dict[str, str] = {}
    request_id: str | None = None


Ending: TypeAlias = Literal["finished", "left", "aborted", "stalled"]
"""Why `pipe` has stopped sending an answer: it was whole; its reader left, said stop, or took nothing more."""


class Completion(Model):
    """A finished answer, or on an error's `partial` and on a stream's `snapshot` the answer so far."""

    id: str = ""
    object: str = "chat.completion"
    created: int | None = None
    model: str = ""
    choices: list[Choice] = []
    usage: Usage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None
    # Ours, not the server's: the names keep them off the wire and out of dumps.
    timing: Timing | None = msgspec.field(default=None, name="(timing)")
    http: HTTP | None = msgspec.field(default=None, name="(http)")
    ending: Ending | None = msgspec.field(default=None, name="(ending)")

    @property
    def text(self) -> str:
        """The first choice's content, `""` where there is none."""
        return (self.choices[0].message.content or "") if self.choices else ""

    @property
    def message(self) -> Message:
        """The first choice's message."""
        return self.choices[0].message if self.choices else Message()

    @property
    def finish_reason(self) -> str | None:
        """The first choice's finish_reason, as the server spelled it."""
        return self.choices[0].finish_reason if self.choices else None


# --------------------------------------------------------------------------------------- a stream


class FunctionDelta(Model):
    """A piece of a function call."""

    name: str | None = None
    arguments: str | None = None


class ToolCallFragment(Model):
    """A piece of a tool call; which call it belongs to is for `toolcalls` to say."""

    index: int | None = None
    id: str | None = None
    type: str | None = None
    function: FunctionDelta | None = None


class Delta(_Said):
    """What one chunk adds to a message."""

    role: str | None = None
    tool_calls: list[ToolCallFragment] | None = None
    function_call: FunctionDelta | None = None


class ChunkChoice(Model):
    """What one chunk says of one choice."""

    index: int | None = None
    delta: Delta = msgspec.field(default_factory=Delta)
    finish_reason: str | None = None
    logprobs: Logprobs | None = None
    # A server that ignores `stream`, or repeats the whole message at the end, sends this in place of a delta.
    message: Delta | None = None


class Chunk(Model):
    """One event of a stream."""

    id: str = ""
    object: str = "chat.completion.chunk"
    created: int | None = None
    model: str = ""
    choices: list[ChunkChoice] = []
    usage: Usage | None = None
    system_fingerprint: str | None = None
    service_tier: str | None = None


# ------------------------------------------------------------------------ objects → structs, faults


def chunk_with_extra(source: dict[str, Any]) -> Chunk | None:
    """Make a chunk out of a well-typed object that has unknown fields on the chunk, its choices or their deltas.

    Returns None, and leaves `source` as it was, where it takes the slower and more forgiving `chunk_from`.
    """
    extras = _set_aside(source, "delta", _CHUNK_FIELDS)
    if extras is None:
        return None
    try:
        made = msgspec.convert(source, Chunk)
    except msgspec.ValidationError:
        _put_back(extras)
        return None
    made.extra_ = extras[0][1] or None
    for position, choice in enumerate(made.choices):
        choice.extra_ = extras[1 + 2 * position][1] or None
        choice.delta.extra_ = extras[2 + 2 * position][1] or None
    return made


def completion_with_extra(source: dict[str, Any]) -> Completion | None:
    """Make a completion out of a well-typed object with unknown fields; as `chunk_with_extra`."""
    extras = _set_aside(source, "message", _COMPLETION_FIELDS)
    if extras is None:
        return None
    try:
        made = msgspec.convert(source, Completion)
    except msgspec.ValidationError:
        return None
    made.extra_ = extras[0][1] or None
    for position, choice in enumerate(made.choices):
        choice.extra_ = extras[1 + 2 * position][1] or None
        choice.message.extra_ = extras[2 + 2 * position][1] or None
    return made


_Extras = list[tuple[dict[str, Any], dict[str, Any]]]


def _set_aside(source: dict[str, Any], said: str, known: frozenset[str]) -> _Extras | None:
    """Take the unknown fields out of an answer, its choices and what they said; None where they need care."""
    choices = source.get("choices")
    if not isinstance(choices, list):
        return None
    holders: list[tuple[dict[str, Any], frozenset[str]]] = [(source, known)]
    for choice in choices:
        inner = choice.get(said) if isinstance(choice, dict) else None
        if not isinstance(inner, dict):
            return None
        holders += ((choice, _CHOICE_FIELDS), (inner, _MESSAGE_FIELDS))
    unknown = [holder.keys() - fields for holder, fields in holders]
    if not all(_NEEDS_CARE.isdisjoint(names) for names in unknown):
        return None
    return [
        (holder, {name: holder.pop(name) for name in names})
        for (holder, _), names in zip(holders, unknown, strict=True)
    ]


def _put_back(extras: _Extras) -> None:
    for holder, extra in extras:
        holder.update(extra)


_CHUNK_FIELDS = frozenset(Chunk.__struct_encode_fields__)
_COMPLETION_FIELDS = frozenset(Completion.__struct_encode_fields__)
_CHOICE_FIELDS = frozenset(ChunkChoice.__struct_encode_fields__)
_MESSAGE_FIELDS = frozenset(Delta.__struct_encode_fields__)
# Unknown fields that mean something: a failure, usage in an odd place, an older format.
_NEEDS_CARE = frozenset({"error", "type", "usage", "x_groq", "text"})


def chunk_from(source: Mapping[str, object]) -> Chunk:
    """Make a chunk out of a decoded object of any manners: whole answers, list content, stray usage.

    Raises:
        ValueError: `choices` is there and is no list of objects.
    """
    choices = source.get("choices")
    if isinstance(choices, dict):
        choices = [choices]
    if choices is not None and not isinstance(choices, list):
        raise ValueError("an object whose choices are no list")
    items = [item for item in choices or [] if item is not None]
    if not all(isinstance(item, dict) for item in items):
        raise ValueError("an object with a choice that is no object")
    read = [_choice_from(item) for item in items]
    chunk = build(Chunk, {**source, "choices": None, "usage": None})
    chunk.choices = [choice for choice, _ in read]
    groq = source.get("x_groq")
    stray = [groq.get("usage")] if isinstance(groq, dict) else []
    for found in (source.get("usage"), *(usage for _, usage in read), *stray):
        usage = _usage_from(found)
        if usage is not None:
            chunk.usage = merge_usage(chunk.usage, usage)
    return chunk


def _choice_from(source: dict[str, object]) -> tuple[ChunkChoice, object]:
    usage = source.get("usage")
    said = {
        "delta": _delta_from(source.get("delta")),
        "message": _delta_from(source.get("message")),
    }
    rest = {
        key: value for key, value in source.items() if key not in ("usage", "delta", "message")
    }
    if isinstance(rest.get("text"), str) and said["delta"] is None and said["message"] is None:
        said["delta"] = {"content": rest.pop("text")}  # the older completions format
    return build(ChunkChoice, {**rest, **said}), usage


def _delta_from(source: object) -> dict[str, object] | None:
    if not isinstance(source, dict):
        return {"content": source} if isinstance(source, str) else None
    delta = dict(source)
    content = delta.get("content")
    if isinstance(content, (list, dict)):
        _take_parts(delta, content if isinstance(content, list) else [content])
    calls = delta.get("tool_calls")
    if calls is not None:
        found = calls if isinstance(calls, list) else [calls]
        delta["tool_calls"] = [_call_from(c) for c in found if isinstance(c, dict)]
    if isinstance(delta.get("function_call"), dict):
        delta["function_call"] = _function_from(delta["function_call"])
    return delta


def _call_from(source: dict[str, object]) -> dict[str, object]:
    function = source.get("function")
    if isinstance(function, dict):
        return {**source, "function": _function_from(function)}
    flat = {key: source[key] for key in ("name", "arguments") if source.get(key) is not None}
    if not flat:
        return source
    rest = {key: value for key, value in source.items() if key not in flat}
    return {**rest, "function": _function_from(flat)}


def _function_from(source: dict[str, object]) -> dict[str, object]:
    arguments = source.get("arguments")
    if isinstance(arguments, (dict, list)):
        return {**source, "arguments": dump(arguments)}
    return source


def _take_parts(delta: dict[str, object], parts: list[object]) -> None:
    """Split list content: text is content, thinking is reasoning, the rest is kept aside."""
    text, thinking, rest = list[str](), list[str](), list[object]()
    for part in parts:
        if isinstance(part, str):
            text.append(part)
            continue
        fields = part if isinstance(part, dict) else {}
        if "thinking" in fields:
            thinking.append(_text_in(fields["thinking"]))
        elif isinstance(fields.get("text"), str):
            text.append(_text_in(part))
        elif part is not None:
            rest.append(part)
    delta["content"] = "".join(text) if text else None
    if thinking and not delta.get("reasoning_content"):
        delta["reasoning_content"] = "".join(thinking)
    if rest:
        delta["content_parts"] = rest


def _text_in(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(_text_in(item) for item in value)
    if isinstance(value, dict):
        fields = value
        return _text_in(fields.get("text") or fields.get("thinking") or "")
    return ""


def _usage_from(source: object) -> Usage | None:
    if not isinstance(source, dict):
        return None
    fields = dict(source)
    for ours, theirs in (
        ("prompt_tokens", "input_tokens"),
        ("completion_tokens", "output_tokens"),
    ):
        if fields.get(ours) is None and fields.get(theirs) is not None:
            fields[ours] = fields.pop(theirs)
    made = build(Usage, fields)
    return None if made == Usage() else made  # null in every field says as little as no usage


class ServerFault(msgspec.Struct, frozen=True):
    """A failure in the server's own words."""

    message: str
    code: str | int | None = None
    type: str | None = None
    param: str | None = None
    status: int | None = None

    @property
    def is_rate_limit(self) -> bool:
        """Whether it says that requests come too fast."""
        return (
            429 in (self.status, self.code)
            or self.code == "429"
            or _TOO_FAST in (self.code, self.type)
        )

    @property
    def may_pass(self) -> bool:
        """Whether the same request may succeed later."""
        if _QUOTA in (self.code, self.type):
            return False
        statuses = (self.status, self.code)
        failed = any(
            isinstance(s, int) and (500 <= s < 600 or s in (408, 409, 425)) for s in statuses
        )
        return failed or self.is_rate_limit or self.type in _SERVERS_FAULT


_TOO_FAST = "rate_limit_exceeded"
_QUOTA = "insufficient_quota"
_SERVERS_FAULT = ("server_error", "overloaded_error", "internal_server_error")


def fault_in(source: object, event: str = "", *, always: bool = False) -> ServerFault | None:
    """Return the failure that a decoded value tells of, or None where it tells of none.

    `error: null`, `""` and `{}` tell of none. `event` is the name the SSE event had. With `always`, the value is known
    to be a failure (a 4xx body) and its words are looked for wherever servers put them.
    """
    if isinstance(source, list):
        found = (fault_in(item, event, always=always) for item in source)
        return next((fault for fault in found if fault), None)
    named = always or event == "error"
    if not isinstance(source, dict):
        return ServerFault(str(source)) if named and source else None
    error = source.get("error")
    if error:
        return _fault_from(error, source)
    choices = source.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        inner = choice.get("error") if isinstance(choice, dict) else None
        if isinstance(inner, (dict, str)) and inner:
            return _fault_from(inner, source)
    named |= "error" in (source.get("object"), source.get("type"))
    bare = "choices" not in source and isinstance(source.get("detail"), (str, list))
    return _fault_from(source, source) if named or bare else None


def _fault_from(error: object, around: dict[str, Any]) -> ServerFault:
    if isinstance(error, list):
        error = error[0]
    fields: dict[str, Any] = error if isinstance(error, dict) else {}
    said = error if isinstance(error, str) else ""
    statuses = (
        holder.get(name) for holder in (fields, around) for name in ("status", "status_code")
    )
    kind, param = fields.get("type"), fields.get("param")
    return ServerFault(
        _words(fields or around, said),
        code=_code(fields.get("code")) or _code(around.get("code")),
        type=kind if isinstance(kind, str) else None,
        param=param if isinstance(param, str) else None,
        status=next((_whole(status) for status in statuses if _whole(status)), None),
    )


def _words(fields: dict[str, object], first: str) -> str:
    detail = fields.get("detail")
    if isinstance(detail, list):
        details = detail
        detail = "; ".join(_words(d, "") if isinstance(d, dict) else str(d) for d in details)
    for found in (first, fields.get("message"), fields.get("error"), detail, fields.get("msg")):
        if isinstance(found, str) and found:
            return found
    return dump(fields)


def _code(value: object) -> str | int | None:
    return value if isinstance(value, str) else _whole(value)


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if value == value // 1 else None
