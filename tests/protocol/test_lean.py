"""Frames that hold one thing: what the lean decoders take, and that they refuse whatever else means something."""

from typing import Any

import msgspec
import pytest

from asyncchat.protocol.lean import decode_call, decode_plain, decode_thought
from tests.protocol.frames import call, chunk, say


def encoded(frame: Any) -> bytes:
    return msgspec.json.encode(frame)


def piece(**fields: Any) -> dict[str, Any]:
    return chunk({"tool_calls": [{"index": 0, "function": {"arguments": "{"}, **fields}]})


PLAIN = say("a")
THOUGHT = chunk({"reasoning_content": "hm"})


def test_plain_frame_holds_content() -> None:
    assert decode_plain(encoded(PLAIN)).choices[0].delta.content == "a"


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_thought_holds_reasoning_under_either_name(name: str) -> None:
    assert getattr(decode_thought(encoded(chunk({name: "hm"}))).choices[0].delta, name) == "hm"


def test_piece_holds_arguments_and_their_index() -> None:
    (choice,) = decode_call(encoded(piece(type="function"))).choices
    (one,) = choice.delta.tool_calls
    assert (one.index, one.function.arguments) == (0, "{")


@pytest.mark.parametrize(
    "more",
    [
        {"usage": None, "error": None, "system_fingerprint": "f", "service_tier": None},
        {"obfuscation": "xx", "prompt_token_ids": None, "created": None},
    ],
)
def test_fields_beside_the_choices_that_servers_always_send_are_taken(
    more: dict[str, Any],
) -> None:
    assert decode_plain(encoded({**PLAIN, **more})).choices[0].delta.content == "a"


def test_provider_is_the_unknown_field_that_is_kept() -> None:
    assert decode_plain(encoded({**PLAIN, "provider": "p"})).extra_ == {"provider": "p"}
    assert decode_plain(encoded(PLAIN)).extra_ is None


REFUSED: list[dict[str, Any]] = [
    {**PLAIN, "usage": {"prompt_tokens": 1}},
    {**PLAIN, "error": {"message": "x"}},
    {**PLAIN, "unknown": 1},
    {"choices": [{"delta": {"content": "a"}, "finish_reason": "stop"}]},
    {"choices": [{"delta": {"content": "a"}, "logprobs": {"content": []}}]},
    {"choices": [{"delta": {"content": "a"}, "message": {"content": "a"}}]},
    {"choices": [{"delta": {"content": ["a"]}}]},
    {"choices": [{"delta": {"content": "a", "refusal": "b"}}]},
    {"choices": [{"delta": {"content": "a", "reasoning": "b"}}]},
    {"choices": [{"delta": {"content": "a", "unknown": 1}}]},
    {"choices": [{"delta": {"function_call": {"name": "f"}}}]},
    {"choices": [{"delta": None}]},
    {"choices": None},
    {"id": "c1"},
]


@pytest.mark.parametrize("frame", REFUSED, ids=repr)
@pytest.mark.parametrize("decode", [decode_plain, decode_thought, decode_call])
def test_frame_that_holds_anything_else_is_refused(decode: Any, frame: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(encoded(frame))


@pytest.mark.parametrize(
    "frame",
    [
        piece(id="a"),
        piece(id=""),
        piece(function={"arguments": "{", "name": "f"}),
        piece(function={"arguments": {}}),
        piece(function=None),
        piece(extra_content={"signature": "S"}),
        chunk({"tool_calls": [call(None, arguments="{")]}),
        chunk({"tool_calls": [call(0, arguments="{"), call(1, arguments="{")]}),
        chunk({"tool_calls": []}),
        chunk({"tool_calls": [call(0, arguments="{")], "content": "a"}),
        {"choices": []},
        {"choices": piece()["choices"] * 2},
    ],
    ids=repr,
)
def test_anything_but_one_piece_of_arguments_is_no_piece(frame: dict[str, Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_call(encoded(frame))


def test_kinds_of_frames_refuse_each_other() -> None:
    frames = {decode_plain: PLAIN, decode_thought: THOUGHT, decode_call: piece()}
    for decode, frame in frames.items():
        for other in frames.keys() - {decode}:
            with pytest.raises(msgspec.DecodeError):
                other(encoded(frame))
