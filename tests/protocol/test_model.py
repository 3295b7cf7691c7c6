"""Structs of the wire: unknown fields, dumps in OpenAI's dialect, copies, and building out of odd objects."""

import copy
import json
import pickle
from typing import Any

import msgspec
import pytest

from asyncchat.protocol.model import Model, build
from asyncchat.protocol.response import (
    HTTP,
    Choice,
    Completion,
    Function,
    Message,
    Timing,
    ToolCall,
    TopLogprob,
    Usage,
)

SOURCE = {
    "id": "c1",
    "model": "m",
    "provider": "p",
    "choices": [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "reasoning_content": "hm",
                "tool_calls": [
                    {"id": "a", "type": "function", "function": {"name": "f"}, "extra_content": [1]}
                ],
                "weight": 1,
            },
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 3, "cost": 0.5},
}  # fmt: skip


@pytest.fixture
def completion() -> Completion:
    return build(Completion, SOURCE)


# ------------------------------------------------------------------------------------ unknown fields


def test_unknown_fields_are_attributes_on_every_level(completion: Completion) -> None:
    message = completion.message
    (call,) = message.tool_calls or []
    assert completion.usage is not None
    assert (completion.provider, message.weight, call.extra_content, completion.usage.cost) == (
        "p",
        1,
        [1],
        0.5,
    )


def test_unknown_fields_are_listed_in_model_extra(completion: Completion) -> None:
    assert completion.model_extra == {"provider": "p"}


def test_struct_without_unknown_fields_lists_none() -> None:
    assert Message().model_extra == {}


def test_field_that_was_not_sent_is_an_attribute_error_that_names_it(
    completion: Completion,
) -> None:
    with pytest.raises(AttributeError, match="Completion has no field 'nothing'"):
        _ = completion.nothing


def test_field_that_was_not_sent_is_an_attribute_error_where_none_was_unknown() -> None:
    assert not hasattr(Message(), "weight")


# --------------------------------------------------------------------------------------------- dumps


def test_dump_without_nones_gives_back_what_the_server_sent(completion: Completion) -> None:
    dump = completion.model_dump(exclude_none=True)
    assert dump == {
        **SOURCE,
        "object": "chat.completion",
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "reasoning_content": "hm",
                    "tool_calls": [
                        {
                            "id": "a",
                            "type": "function",
                            "function": {"name": "f", "arguments": ""},
                            "extra_content": [1],
                        }
                    ],
                    "weight": 1,
                },
                "finish_reason": "stop",
            }
        ],
    }


def test_dump_names_every_field_of_the_format_and_none_of_ours(completion: Completion) -> None:
    completion.timing, completion.http = Timing(), HTTP()
    dump = completion.model_dump()
    assert dump["system_fingerprint"] is None
    assert {"timing", "http", "extra_", "(extra)", "(timing)", "(http)"}.isdisjoint(dump)


@pytest.mark.parametrize("option", ["exclude_none", "exclude_unset"])
def test_fields_that_are_none_are_left_out_of_inner_structs_too(
    completion: Completion, option: str
) -> None:
    options: dict[str, Any] = {option: True}
    assert "content" not in completion.model_dump(**options)["choices"][0]["message"]


def test_to_dict_leaves_out_what_was_not_sent(completion: Completion) -> None:
    assert completion.to_dict() == completion.model_dump(exclude_unset=True)


def test_to_dict_can_name_every_field(completion: Completion) -> None:
    assert completion.to_dict(exclude_unset=False) == completion.model_dump()


def test_mode_of_pydantic_is_accepted(completion: Completion) -> None:
    assert completion.model_dump(mode="json") == completion.model_dump()


def test_dump_as_json_is_the_dump(completion: Completion) -> None:
    assert json.loads(completion.model_dump_json()) == completion.model_dump()


def test_dump_as_json_can_be_indented(completion: Completion) -> None:
    assert completion.model_dump_json(indent=4).startswith('{\n    "id": "c1"')


def test_to_json_is_to_dict_indented(completion: Completion) -> None:
    text = completion.to_json()
    assert text.startswith('{\n  "id": "c1"')
    assert json.loads(text) == completion.to_dict()


def test_to_json_can_be_one_line(completion: Completion) -> None:
    assert "\n" not in completion.to_json(indent=None)


def test_dump_turns_foreign_structs_into_plain_objects() -> None:
    class Point(msgspec.Struct):
        x: int

    assert Message(content="a", extra_={"at": Point(1)}).to_dict()["at"] == {"x": 1}


def test_deeply_nested_unknown_value_is_dumped() -> None:
    deep: list[Any] = []
    for _ in range(600):
        deep = [deep]
    assert Message(extra_={"x": deep}).to_json(indent=None).count("[") == 601


def test_repr_shows_what_is_there_and_nothing_else() -> None:
    assert repr(Function(name="f", extra_={"x": 1})) == "Function(name='f', arguments='', x=1)"


# -------------------------------------------------------------------------------------------- copies


@pytest.mark.parametrize(
    "copied",
    [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_copy_is_equal_and_keeps_unknown_fields(completion: Completion, copied: Any) -> None:
    completion.timing, completion.http = Timing(total=1.0), HTTP(request_id="r")
    other = copied(completion)
    assert other == completion
    assert other.provider == "p"
    assert other.message.weight == 1


def test_deep_copy_shares_no_unknown_field(completion: Completion) -> None:
    other = copy.deepcopy(completion)
    other.model_extra["provider"] = "q"
    assert completion.provider == "p"


def test_structs_that_differ_in_an_unknown_field_differ() -> None:
    assert Message(extra_={"x": 1}) != Message()


def test_two_structs_share_no_list() -> None:
    Completion().choices.append(Choice())
    assert Completion().choices == []


# ---------------------------------------------------------------------------------------- the builder


def test_typed_decode_refuses_an_unknown_field() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"role":"assistant","weight":1}', type=Message)


@pytest.mark.parametrize("name", ["(extra)", "extra_", "timing"])
def test_nothing_on_the_wire_lands_in_a_field_of_ours(name: str) -> None:
    made = build(Completion, {name: {"x": 1}})
    assert made.model_extra == {name: {"x": 1}}
    assert made.timing is None


@pytest.mark.parametrize(
    ("value", "read"),
    [
        (7, 7),
        (7.0, 7),
        ("7", 7),
        ("7.0", 7),
        (" 7 ", 7),
        (7.5, None),
        ("7.5", None),
        ("seven", None),
        ("", None),
        (True, None),
        ([7], None),
        ({}, None),
        (None, None),
        (float("inf"), None),
        (float("nan"), None),
        ("nan", None),
        (10**400, 10**400),
    ],
    ids=repr,
)
def test_whole_number_comes_in_many_spellings(value: object, read: int | None) -> None:
    made = build(Usage, {"prompt_tokens": value}).prompt_tokens
    assert (type(made), made) == (type(read), read)


def test_whole_number_as_text_is_exact() -> None:
    assert build(Completion, {"created": "9007199254740993"}).created == 9007199254740993


@pytest.mark.parametrize(
    ("value", "read"),
    [(-1, -1), (-0.5, -0.5), ("-0.5", -0.5), ("x", None), (False, None), (None, None)],
)
def test_number_comes_in_many_spellings(value: object, read: float | None) -> None:
    assert build(TopLogprob, {"logprob": value}).logprob == read


@pytest.mark.parametrize(
    ("value", "read"), [("x", "x"), (7, "7"), (1.5, "1.5"), (True, ""), ([], ""), ({}, "")]
)
def test_text_may_come_as_a_number(value: object, read: str) -> None:
    assert build(Completion, {"id": value}).id == read


def test_one_struct_instead_of_a_list_is_a_list_of_one() -> None:
    calls = build(Message, {"tool_calls": {"id": "a"}}).tool_calls
    assert calls == [ToolCall(id="a")]


def test_entry_of_a_list_that_fits_in_no_way_is_left_out() -> None:
    assert build(Message, {"tool_calls": [None, "x", {"id": "a"}]}).tool_calls == [
        ToolCall(id="a")
    ]


@pytest.mark.parametrize("value", ["x", 7, True, [7]])
def test_struct_of_another_type_counts_as_absent(value: object) -> None:
    assert build(Completion, {"usage": value}).usage is None


@pytest.mark.parametrize("value", ["x", 7, True, [7], []])
def test_object_of_another_type_counts_as_absent(value: object) -> None:
    assert build(Message, {"audio": value}).audio is None


def test_name_on_the_wire_may_differ_from_the_name_of_the_field() -> None:
    made = build(Message, {"reasoning": "hm"})
    assert (made.reasoning, made.reasoning_content) == ("hm", "hm")
    assert made.to_dict() == {"role": "assistant", "reasoning": "hm"}


def test_fields_of_any_type_are_kept_as_they_are() -> None:
    class Odd(Model):
        anything: object = None

    assert build(Odd, {"anything": [1, {"x": None}]}).anything == [1, {"x": None}]
