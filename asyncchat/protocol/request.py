"""What we say to a server: messages, parameters, and the bytes they become.

Not here: headers, URLs, keys. Every field of the format passes through, known here or not; what is checked is only
what would otherwise come back as a puzzle: no model, no messages, a role or a number that cannot be right.
A message that came out of an answer goes back in as it is.
"""

import base64
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
from typing import Any, TypeAlias

import msgspec

from asyncchat.protocol.model import ATOMS, Model
from asyncchat.protocol.schema import Dialect, OutputType, Tool, output_type

__all__ = [
    "NUMBERS",
    "ROLES",
    "Assistant",
    "AudioPart",
    "ChatRequest",
    "Developer",
    "ImagePart",
    "ImageURL",
    "InputAudio",
    "MessageLike",
    "Messages",
    "System",
    "TextPart",
    "ToolResult",
    "User",
    "characters_in",
]

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
NUMBERS = (
    "temperature",
    "top_p",
    "max_tokens",
    "max_completion_tokens",
    "n",
    "presence_penalty",
    "frequency_penalty",
    "seed",
    "top_logprobs",
)


class _Said(msgspec.Struct, kw_only=False, omit_defaults=True):
    """Something of the user's: its repr tells the kind and the size, never the words."""

    def __repr__(self) -> str:
        try:
            size = f"{len(_ENCODER.encode(self))} bytes"
        except (TypeError, ValueError):
            size = "not to be sent"
        return f"{type(self).__name__}(<{size}>)"


class TextPart(_Said, tag_field="type", tag="text"):
    """A part of a message: text."""

    text: str


class ImageURL(_Said):
    """Where an image is: an https URL, or a data URL that holds it."""

    url: str
    detail: str | None = None


class ImagePart(_Said, tag_field="type", tag="image_url"):
    """A part of a message: an image, by URL or as bytes (`from_bytes`)."""

    image_url: ImageURL | str

    def __post_init__(self) -> None:
        if isinstance(self.image_url, str):
            self.image_url = ImageURL(self.image_url)

    @classmethod
    def from_bytes(
        cls, data: bytes, media_type: str = "image/png", detail: str | None = None
    ) -> "ImagePart":
        """Make a part that carries the image itself."""
        encoded = base64.b64encode(data).decode()
        return cls(ImageURL(f"data:{media_type};base64,{encoded}", detail))


class InputAudio(_Said):
    """Sound as base64 text, and its format (`wav`, `mp3`)."""

    data: str
    format: str


class AudioPart(_Said, tag_field="type", tag="input_audio"):
    """A part of a message: sound."""

    input_audio: InputAudio

    @classmethod
    def from_bytes(cls, data: bytes, format: str = "wav") -> "AudioPart":  # noqa: A002  OpenAI's name
        """Make a part that carries the sound itself."""
        return cls(InputAudio(base64.b64encode(data).decode(), format))


Content: TypeAlias = str | list[TextPart | ImagePart | AudioPart | dict[str, Any]]


class System(_Said, tag_field="role", tag="system"):
    """Instructions."""

    content: Content
    name: str | None = None


class Developer(_Said, tag_field="role", tag="developer"):
    """Instructions, under the name that newer models know them by."""

    content: Content
    name: str | None = None


class User(_Said, tag_field="role", tag="user"):
    """What the user says."""

    content: Content
    name: str | None = None


class Assistant(_Said, tag_field="role", tag="assistant"):
    """What the model said; a `Message` out of an answer serves as well."""

    content: Content | None = None
    tool_calls: list[Any] | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    name: str | None = None


class ToolResult(_Said, tag_field="role", tag="tool"):
    """What a tool gave, for the call with this id."""

    content: Content
    tool_call_id: str


MessageLike: TypeAlias = (
    System | Developer | User | Assistant | ToolResult | Model | Mapping[str, Any] | object
)
Messages: TypeAlias = str | Iterable[MessageLike]


_APART = ("stream", "stream_options", "messages")


class ChatRequest:
    """One request: messages and parameters, checked, and encoded when asked.

    Args:
        messages: a str (one user message) or a list of messages: our structs, dicts, a `Message` out of an
            answer, or any object with `model_dump`.
        fields: every other field of the body. One that is None is not sent; to send null, use `extra_body`.
        system: a system message to put first.
        extra_body: fields that go in last and as they are.
        needs_model: whether it is an error to name no model; without, `encode` has to be given one.
        dialect: how schemas are sent, whatever the endpoint prefers.

    `response_format` may be a type, and `tools` may hold functions: their schemas are made when the request is encoded.

    Raises:
        ValueError: no model, no message, an unknown role, a number that is none.
        TypeError: a message or a parameter of a type that cannot be sent.
    """

    __slots__ = ("_extra_body", "_fields", "_messages", "dialect", "n", "output", "tools")

    def __init__(
        self,
        messages: Messages,
        fields: Mapping[str, Any],
        *,
        system: str | None = None,
        extra_body: Mapping[str, Any] | None = None,
        needs_model: bool = True,
        dialect: Dialect | None = None,
    ) -> None:
        if dialect not in (None, "strict", "json_schema", "json_object"):
            raise ValueError(
                f"dialect={dialect!r}: it is 'strict', 'json_schema' or 'json_object'."
            )
        self.dialect: Dialect | None = dialect
        self.output, self.tools = _schemas_in(fields)
        apart = self._apart
        try:
            self._messages = _messages_from(messages, system)
            self._fields = {
                key: _settled(value)
                for key, value in fields.items()
                if value is not None and key not in apart
            }
            extra = extra_body.items() if extra_body else ()
            self._extra_body = {key: _settled(value) for key, value in extra}
        except RecursionError:
            raise ValueError(
                "a message or parameter holds itself, or is nested too deep"
            ) from None
        _check_model(self._extra_body.get("model", fields.get("model")), needed=needs_model)
        _check_numbers(self._fields)
        options = fields.get("stream_options")
        if options is not None:
            if not isinstance(options, Mapping):
                raise TypeError(
                    f"stream_options is a {type(options).__name__}; it has to be a dict."
                )
            self._fields["stream_options"] = dict(options)
        n = self._extra_body.get("n", self._fields.get("n", 1))
        self.n: int = n if isinstance(n, int) and n > 0 else 1

    def __repr__(self) -> str:
        return (
            f"ChatRequest(model={self._fields.get('model')!r}, messages=<{len(self._messages)}>)"
        )

    def continued(
        self, text: str, *, fields: Mapping[str, object], prefix: Mapping[str, object]
    ) -> "ChatRequest":
        """Return the request that asks to go on after `text`, which the assistant has said already.

        Args:
            text: of the answer so far.
            fields: of the body, besides.
            prefix: of the message that is continued, besides.
        """
        made = object.__new__(ChatRequest)
        made.n, made.dialect = self.n, self.dialect
        made.output, made.tools = self.output, self.tools
        made._messages = [*self._messages, {"role": "assistant", "content": text, **prefix}]
        made._fields = {**self._fields, **fields}
        made._extra_body = self._extra_body
        return made

    @property
    def sets_stream_options(self) -> bool:
        """Whether the caller said what a stream should end with."""
        return "stream_options" in self._fields or "stream_options" in self._extra_body

    @property
    def model(self) -> str | None:
        """The model it names."""
        model: object = self._extra_body.get("model", self._fields.get("model"))
        return model if isinstance(model, str) else None

    @property
    def most_tokens(self) -> int | None:
        """How many tokens one answer may have, if the request says so."""
        said = {**self._fields, **self._extra_body}
        bound = said.get("max_completion_tokens") or said.get("max_tokens")
        return bound if isinstance(bound, int) else None

    @property
    def characters(self) -> int:
        """How much text it holds, in messages, tools and schemas. Images and sound are left out."""
        said = {"messages": self._messages, **self._fields, **self._extra_body}
        if self.output is not None or self.tools is not None:
            self._add_schemas(said, self.dialect or "json_schema")
        return characters_in(said)

    @property
    def _apart(self) -> tuple[str, ...]:
        """The fields that are not sent as they were given."""
        if self.output is None and self.tools is None:
            return _APART
        schemas = ("response_format",) if self.output is not None else ()
        tools = ("tools",) if self.tools is not None else ()
        return (*_APART, *schemas, *tools)

    def check(self, dialects: Iterable[Dialect]) -> None:
        """Make the schemas that will be sent, to know what is wrong with them before anything is.

        Raises:
            SchemaError: one cannot be said in its dialect.
        """
        if self.output is None and self.tools is None:
            return
        wanted: set[Dialect] = set(dialects) if self.dialect is None else {self.dialect}
        for dialect in wanted:
            if self.output is not None:
                self.output.response_format(dialect)
            for tool in self.tools or ():
                if isinstance(tool, Tool):
                    tool.definition(dialect)

    def encode(
        self,
        *,
        stream: bool,
        ask_usage: bool = True,
        model: str | None = None,
        dialect: Dialect = "strict",
    ) -> bytes:
        """Return the body. With `ask_usage`, a stream is asked to end with its usage.

        `model` is for a request that names none, `dialect` for one that says nothing of how its schemas are sent.
        """
        body: dict[str, Any] = {"messages": self._messages, **self._fields}
        if model is not None:
            body.setdefault("model", model)
        if self.output is not None or self.tools is not None:
            self._add_schemas(body, self.dialect or dialect)
        options = body.pop("stream_options", None)
        if stream:
            body["stream"] = True
            if ask_usage:
                options = {"include_usage": True, **(options or {})}
            if options:
                body["stream_options"] = options
        body.update(self._extra_body)
        try:
            return _ENCODER.encode(body)
        except (TypeError, ValueError, RecursionError, UnicodeEncodeError) as error:
            raise _unsendable(body, error) from None

    def _add_schemas(self, body: dict[str, Any], dialect: Dialect) -> None:
        if self.tools is not None:
            body["tools"] = [
                tool.definition(dialect) if isinstance(tool, Tool) else tool for tool in self.tools
            ]
        if self.output is not None:
            body["response_format"] = self.output.response_format(dialect)
            instructions = self.output.instructions(dialect)
            if instructions is not None:
                body["messages"] = _with_instructions(self._messages, instructions)


def _schemas_in(fields: Mapping[str, Any]) -> tuple[OutputType[Any] | None, list[Any] | None]:
    """Return the type that answers are to have, and the tools, where one of them is a function."""
    output, tools = fields.get("response_format"), fields.get("tools")
    if output is None and tools is None:
        return None, None
    made = None if output is None or isinstance(output, Mapping) else output_type(output)
    if isinstance(tools, Iterator):
        tools = list(tools)
        if all(isinstance(tool, Mapping) for tool in tools):
            return made, [_settled(tool) for tool in tools]
    if not isinstance(tools, (list, tuple)) or all(isinstance(tool, Mapping) for tool in tools):
        return made, None
    return made, [
        Tool(tool) if callable(tool) and not isinstance(tool, Tool) else _settled(tool)
        for tool in tools
    ]


def _with_words(content: Any, text: str) -> Any:  # noqa: ANN401  a text, or its parts
    if isinstance(content, str):
        return f"{content}\n\n{text}"
    return [*(content or ()), {"type": "text", "text": text}]


def _with_instructions(messages: list[object], text: str) -> list[object]:
    """Put words into the system message, or one with them in front."""
    first = messages[0]
    if isinstance(first, Mapping) and first.get("role") in ("system", "developer"):
        said = first.get("content")
        return [{**first, "content": _with_words(said, text)}, *messages[1:]]
    if isinstance(first, (System, Developer)):
        said = _with_words(first.content, text)
        return [msgspec.structs.replace(first, content=said), *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def characters_in(fields: Mapping[str, object]) -> int:
    """Return how much text the fields of a request hold, without images and sound."""
    return sum(_length(fields.get(name)) for name in ("messages", "tools", "response_format"))


def _length(value: object) -> int:
    """Return the number of characters in a value, without those of data."""
    if isinstance(value, str):
        return 0 if value.startswith("data:") else len(value)
    if isinstance(value, Mapping):
        return sum(_length(item) for name, item in value.items() if name != "data")
    if isinstance(value, (list, tuple)):
        return sum(map(_length, value))
    if isinstance(value, msgspec.Struct):
        return sum(_length(getattr(value, name)) for name in value.__struct_fields__)
    return 0


def _settled(value: object) -> object:
    """A value as it can be encoded, more than once: a retry sends the same again.

    msgspec would encode a struct of ours by its fields, and unknown ones under our name for them.
    """
    if type(value) in ATOMS:
        return value
    if isinstance(value, Model):
        return value.to_dict()
    if isinstance(value, (list, tuple, Iterator)):
        return [_settled(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _settled(item) for key, item in value.items()}
    return value


def _sendable(value: object) -> object:
    """Turn what msgspec cannot encode by itself into what it can."""
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return _settled(dump(exclude_none=True))
    if isinstance(value, Iterable):
        return _settled(list(value))
    raise TypeError(f"a {type(value).__name__} cannot be sent as JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=_sendable)


def _unsendable(body: dict[str, Any], cause: Exception) -> Exception:
    for name, value in body.items():
        try:
            _ENCODER.encode(value)
        except (TypeError, ValueError, RecursionError, UnicodeEncodeError):
            kind = TypeError if isinstance(cause, TypeError) else ValueError
            return kind(f"parameter {name!r} cannot be sent as JSON ({type(cause).__name__})")
    return cause


def _check_model(model: object, *, needed: bool) -> None:
    if not model and needed:
        raise ValueError(
            "no model: pass model=..., or set AsyncChat(model=...) or ASYNCCHAT_MODEL once."
        )
    if model and not isinstance(model, str):
        raise TypeError(f"model is a {type(model).__name__}; it has to be a str.")


def _check_numbers(fields: dict[str, Any]) -> None:
    if fields.keys().isdisjoint(NUMBERS):
        return
    for name in NUMBERS:
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"{name} is a {type(value).__name__}; it has to be a number.")
        if isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{name} is {value}; it has to be a finite number.")


# --------------------------------------------------------------------------------------- messages


def _messages_from(messages: Messages, system: str | None) -> list[object]:
    made: list[object] = [] if system is None else [{"role": "system", "content": system}]
    if isinstance(messages, str):
        made.append({"role": "user", "content": messages})
        return made
    if isinstance(messages, (Mapping, bytes, msgspec.Struct)) or not isinstance(
        messages, Iterable
    ):
        raise TypeError(
            f"messages is a {type(messages).__name__}; it has to be a str or a list of messages."
        )
    made.extend(_message_from(message, position) for position, message in enumerate(messages))
    if len(made) == (system is not None):
        raise ValueError("messages is empty: pass a str, or a list with at least one message.")
    return made


def _message_from(message: object, position: int) -> object:
    if isinstance(message, dict):
        role = message.get("role")
        if not (isinstance(role, str) and role in ROLES):
            raise ValueError(
                f"messages[{position}] has role {role!r}, which is none of {', '.join(sorted(ROLES))}. "
                "To send it all the same, pass the whole list as extra_body={'messages': [...]}."
            )
        plain = all(type(value) is str for value in message.values())
        return message if plain else _settled(message)
    if isinstance(message, Assistant):
        return msgspec.structs.replace(message, tool_calls=_settled(message.tool_calls))
    if isinstance(message, _Said):
        return message
    if isinstance(message, Model) and "role" in message.__struct_fields__:
        return _said_again(message)
    if isinstance(message, Model):
        raise TypeError(
            f"messages[{position}] is a {type(message).__name__}; pass its message (`answer.message`)."
        )
    dump = getattr(message, "model_dump", None)
    if callable(dump):
        return _message_from(dump(exclude_none=True), position)
    if isinstance(message, Mapping):
        return _message_from(dict(message), position)
    raise TypeError(
        f"messages[{position}] is a {type(message).__name__}; it has to be a dict with role and content, "
        "one of asyncchat's message types, or an object with model_dump()."
    )


def _said_again(message: Model) -> dict[str, Any]:
    """A message out of an answer, as the server takes it back: in its own spelling, nothing dropped."""
    said = message.to_dict()
    audio = said.pop("audio", None)
    if isinstance(audio, dict) and audio.get("id"):
        said["audio"] = {"id": audio["id"]}  # the server keeps the sound under that id
    if "tool_calls" not in said and "function_call" not in said:
        said.setdefault("content", "")
    return said
