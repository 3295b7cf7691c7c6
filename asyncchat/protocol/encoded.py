"""A request that is JSON already, as the inputs of a batch are: looked over once, and sent as it is.

Not here: what a program says, and all that has to be said with care (`request`).
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeAlias

import msgspec

from asyncchat.protocol.request import ROLES, ChatRequest, characters_in
from asyncchat.protocol.schema import Dialect

__all__ = ["EncodedRequest", "Request", "request_in"]


class _Message(msgspec.Struct):
    role: str


_Number = int | float


class _Plain(msgspec.Struct):
    """A body that goes out as it is: with messages, and nothing that is told apart, or that no server would take."""

    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    model: Annotated[str, msgspec.Meta(min_length=1)] | None = None
    response_format: dict[str, msgspec.Raw] = {}
    temperature: _Number = 0
    top_p: _Number = 0
    max_tokens: _Number | None = None
    max_completion_tokens: _Number | None = None
    n: int = 1
    presence_penalty: _Number = 0
    frequency_penalty: _Number = 0
    seed: _Number = 0
    top_logprobs: _Number = 0
    stream: msgspec.UnsetType = msgspec.UNSET
    stream_options: msgspec.UnsetType = msgspec.UNSET
    extra_body: msgspec.UnsetType = msgspec.UNSET
    dialect: msgspec.UnsetType = msgspec.UNSET


_look = msgspec.json.Decoder(_Plain).decode
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode

_STREAMED = b',"stream":true}'
_WITH_USAGE = b',"stream":true,"stream_options":{"include_usage":true}}'


class EncodedRequest(msgspec.Struct, frozen=True, gc=False):
    """One request whose body is there: a `ChatRequest` to those who send it."""

    body: bytes
    model: str | None
    n: int
    most_tokens: int | None
    output: ClassVar[None] = None
    sets_stream_options: ClassVar[bool] = False

    def __repr__(self) -> str:
        return f"EncodedRequest(model={self.model!r}, <{len(self.body)} bytes>)"

    @property
    def characters(self) -> int:
        """How much text it holds: as a `ChatRequest` counts."""
        return characters_in(_decode(self.body))

    def continued(
        self, text: str, *, fields: Mapping[str, object], prefix: Mapping[str, object]
    ) -> ChatRequest:
        """Return the request that asks to go on after `text`."""
        mine = _decode(self.body)
        made = ChatRequest(mine.pop("messages"), mine, needs_model=False)
        return made.continued(text, fields=fields, prefix=prefix)

    def encode(
        self,
        *,
        stream: bool,
        ask_usage: bool = True,
        model: str | None = None,
        dialect: Dialect = "strict",
    ) -> bytes:
        """Return the body. With `ask_usage`, a stream is asked to end with its usage; `model` is for one that names none."""
        body = self.body
        if self.model is None and model is not None:
            body = b'{"model":%b,%b' % (_encode(model), body[1:])
        if not stream:
            return body
        return body[:-1] + (_WITH_USAGE if ask_usage else _STREAMED)


Request: TypeAlias = ChatRequest | EncodedRequest


def request_in(body: bytes, *, needs_model: bool = True) -> EncodedRequest | None:
    """Return the request that a body is, or None where it has to be made anew: `ChatRequest` then says what is wrong with it.

    Args:
        body: a JSON object, no name in it twice, without blanks around it.
        needs_model: whether it has to name a model.
    """
    if b"null" in body:  # which is not sent
        return None
    try:
        found = _look(body)
    except msgspec.ValidationError:
        return None
    if needs_model and found.model is None:
        return None
    if not all(message.role in ROLES for message in found.messages):
        return None
    bound = found.max_completion_tokens or found.max_tokens
    most_tokens = bound if isinstance(bound, int) else None
    return EncodedRequest(body, found.model, max(found.n, 1), most_tokens)
