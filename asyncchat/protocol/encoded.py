"""A request that is JSON already, as the inputs of a batch are: looked over once, and sent as it is.

Not here: what a program says, and all that has to be said with care (`request`).
"""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from asyncchat.protocol.request import ROLES, ChatRequest
from asyncchat.protocol.schema import Dialect

__all__ = ["EncodedRequest", "request_in"]


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
    max_tokens: _Number = 0
    max_completion_tokens: _Number = 0
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

    def __repr__(self) -> str:
        return f"EncodedRequest(model={self.model!r}, <{len(self.body)} bytes>)"

    @property
    def output(self) -> None:
        """A type is no JSON: it has none."""

    @property
    def sets_stream_options(self) -> bool:
        """Whether the caller said what a stream should end with: not here."""
        return False

    @property
    def most_tokens(self) -> int | None:
        """How many tokens one answer may have, if the request says so."""
        return self._decoded().most_tokens

    @property
    def characters(self) -> int:
        """How much text it holds: as a `ChatRequest` counts."""
        return self._decoded().characters

    def continued(
        self, text: str, *, fields: Mapping[str, object], prefix: Mapping[str, object]
    ) -> ChatRequest:
        """Return the request that asks to go on after `text`."""
        return self._decoded().continued(text, fields=fields, prefix=prefix)

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

    def _decoded(self) -> ChatRequest:
        fields = _decode(self.body)
        return ChatRequest(fields.pop("messages"), fields, needs_model=False)


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
    return EncodedRequest(body, found.model, max(found.n, 1))
