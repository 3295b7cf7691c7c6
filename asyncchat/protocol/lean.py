"""Frames that hold one thing: structs that can hold nothing else, so that to decode one is to know what it holds.

Not here: the frames' meaning (`assembler`), the frames these do not fit (`response`). Nearly every frame of a stream adds
a piece of text, of reasoning or of a call's arguments, and is null otherwise. Decoded into one of these it needs no look
at the other fields; what does not fit is refused by msgspec at no cost to what does. Fields stand in the order in which
servers send them, which is the order msgspec guesses first.
"""

from typing import Any, Literal

import msgspec

__all__ = [
    "CallChunk",
    "PlainChunk",
    "ThoughtChunk",
    "decode_call",
    "decode_plain",
    "decode_thought",
]


class _Lean(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    pass


class _PlainDelta(_Lean, kw_only=True):
    role: Literal["assistant", ""] | None = None
    content: str | None = None
    refusal: None = None
    reasoning_content: None = None
    reasoning: None = None
    reasoning_details: None = None
    tool_calls: None = None
    function_call: None = None
    annotations: None = None
    audio: None = None


class _ThoughtDelta(_Lean, kw_only=True):
    role: Literal["assistant", ""] | None = None
    content: None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: None = None
    reasoning_details: None = None
    tool_calls: None = None
    function_call: None = None


class _Arguments(_Lean, kw_only=True):
    arguments: str = ""
    name: None = None


class _Piece(_Lean, kw_only=True):
    index: int
    id: None = None
    type: Literal["function"] | None = None
    function: _Arguments


class _CallDelta(_Lean, kw_only=True):
    role: Literal["assistant", ""] | None = None
    content: None = None
    tool_calls: tuple[_Piece]
    refusal: None = None
    reasoning_content: None = None
    reasoning: None = None
    function_call: None = None


class _Choice(_Lean, kw_only=True):
    index: int | None = None
    logprobs: None = None
    finish_reason: None = None
    # What servers put there as null until the end.
    native_finish_reason: None = None
    stop_reason: None = None
    matched_stop: None = None
    token_ids: None = None


class _PlainChoice(_Choice, kw_only=True):
    delta: _PlainDelta


class _ThoughtChoice(_Choice, kw_only=True):
    delta: _ThoughtDelta


class _CallChoice(_Choice, kw_only=True):
    delta: _CallDelta


class _Chunk(_Lean, kw_only=True):
    id: str = ""
    object: str = ""
    created: int | None = None
    model: str = ""
    service_tier: str | None = None
    system_fingerprint: str | None = None
    usage: None = None
    error: None = None
    provider: str | None = None
    obfuscation: str | None = None  # padding against eavesdroppers: it means nothing
    prompt_token_ids: None = None

    @property
    def extra_(self) -> dict[str, Any] | None:
        """The fields that a full decode would have found unknown."""
        return {"provider": self.provider} if self.provider else None


class PlainChunk(_Chunk, kw_only=True):
    """Nothing but content."""

    choices: list[_PlainChoice]


class ThoughtChunk(_Chunk, kw_only=True):
    """Nothing but reasoning."""

    choices: list[_ThoughtChoice]


class CallChunk(_Chunk, kw_only=True):
    """Nothing but a piece of the arguments of a call that has begun."""

    choices: tuple[_CallChoice]


decode_plain = msgspec.json.Decoder(PlainChunk).decode
decode_thought = msgspec.json.Decoder(ThoughtChunk).decode
decode_call = msgspec.json.Decoder(CallChunk).decode
