"""What a server says: odd objects into chunks, faults out of objects, counts merged."""

from typing import Any

import pytest

from asyncchat.protocol.response import (
    Chunk,
    Completion,
    CompletionTokensDetails,
    Delta,
    Function,
    Message,
    PromptTokensDetails,
    ServerFault,
    ToolCallFragment,
    Usage,
    chunk_from,
    chunk_with_extra,
    completion_with_extra,
    fault_in,
    merge_usage,
)


def delta(source: object) -> Delta:
    """What `chunk_from` makes of a delta."""
    (choice,) = chunk_from({"choices": [{"delta": source}]}).choices
    return choice.delta


def fragments(calls: object) -> list[ToolCallFragment]:
    return delta({"tool_calls": calls}).tool_calls or []


# ------------------------------------------------------------------------------------ a whole answer


def test_text_message_and_reason_are_those_of_the_first_choice() -> None:
    made = completion_with_extra(
        {"choices": [{"message": {"content": "a"}, "finish_reason": "stop"}, {"message": {}}]}
    )
    assert made is not None
    assert (made.text, made.message.content, made.finish_reason) == ("a", "a", "stop")


def test_answer_without_a_choice_has_no_text_no_reason_and_an_empty_message() -> None:
    made = Completion()
    assert (made.text, made.message, made.finish_reason) == ("", Message(), None)


def test_text_of_a_message_without_content_is_blank() -> None:
    made = completion_with_extra({"choices": [{"message": {}}]})
    assert made is not None
    assert made.text == ""


@pytest.mark.parametrize(
    "made",
    [
        Message(reasoning_content_="hm"),
        Message(reasoning_="hm"),
        Delta(reasoning_content_="hm"),
        Delta(reasoning_="hm"),
    ],
    ids=repr,
)
def test_reasoning_is_read_under_both_names(made: Message | Delta) -> None:
    assert made.reasoning == made.reasoning_content == "hm"


@pytest.mark.parametrize(("text", "complete"), [("{}", True), ('{"x"', False), ("", False)])
def test_arguments_are_complete_where_they_are_whole_json(text: str, complete: bool) -> None:
    assert Function(arguments=text).is_complete is complete


# --------------------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("usage", "count"),
    [
        (Usage(prompt_tokens_details=PromptTokensDetails(cached_tokens=3)), 3),
        (Usage(extra_={"cached_tokens": 3}), 3),
        (Usage(extra_={"prompt_cache_hit_tokens": 3}), 3),
        (Usage(prompt_tokens_details=PromptTokensDetails(), extra_={"cached_tokens": 3}), 3),
        (Usage(extra_={"cached_tokens": "many"}), None),
        (Usage(), None),
    ],
    ids=repr,
)
def test_cached_tokens_are_found_under_every_name(usage: Usage, count: int | None) -> None:
    assert usage.cached_tokens == count


def test_reasoning_tokens_are_those_of_the_details() -> None:
    details = CompletionTokensDetails(reasoning_tokens=3)
    assert Usage(completion_tokens_details=details).reasoning_tokens == 3


def test_reasoning_tokens_without_details_are_unknown() -> None:
    assert Usage().reasoning_tokens is None


def test_first_count_stands_as_it_is() -> None:
    usage = Usage(prompt_tokens=1)
    assert merge_usage(None, usage) is usage


def test_newer_number_wins_and_none_erases_nothing() -> None:
    old = Usage(
        prompt_tokens=1,
        completion_tokens=2,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=1, audio_tokens=1),
        extra_={"cost": 1, "kept": 1},
    )
    new = Usage(
        completion_tokens=5,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=4, extra_={"x": 1}),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=3),
        extra_={"cost": 2, "kept": None},
    )
    assert merge_usage(old, new) == Usage(
        prompt_tokens=1,
        completion_tokens=5,
        prompt_tokens_details=PromptTokensDetails(
            cached_tokens=4, audio_tokens=1, extra_={"x": 1}
        ),
        completion_tokens_details=CompletionTokensDetails(reasoning_tokens=3),
        extra_={"cost": 2, "kept": 1},
    )


def test_merging_changes_neither_count() -> None:
    old = Usage(prompt_tokens=1, prompt_tokens_details=PromptTokensDetails(cached_tokens=1))
    new = Usage(prompt_tokens=2, prompt_tokens_details=PromptTokensDetails(cached_tokens=2))
    before = repr((old, new))
    merge_usage(old, new)
    assert repr((old, new)) == before


# ------------------------------------------------------------------ well-typed, with unknown fields


CHUNK: dict[str, Any] = {
    "id": "c1",
    "provider": "p",
    "choices": [{"index": 0, "delta": {"content": "a", "weight": 1}, "stop": "END"}],
}


def copied(source: dict[str, Any]) -> dict[str, Any]:
    (choice,) = source["choices"]
    return {**source, "choices": [{**choice, "delta": dict(choice["delta"])}]}


def test_unknown_fields_of_a_chunk_its_choices_and_deltas_are_kept() -> None:
    made = chunk_with_extra(copied(CHUNK))
    assert made is not None
    (choice,) = made.choices
    assert (made.model_extra, choice.model_extra, choice.delta.model_extra) == (
        {"provider": "p"},
        {"stop": "END"},
        {"weight": 1},
    )


@pytest.mark.parametrize("field", ["error", "type", "usage", "x_groq", "text"])
@pytest.mark.parametrize("level", ["choice", "delta"])
def test_chunk_with_a_field_that_means_something_is_left_to_the_forgiving_rules(
    field: str, level: str
) -> None:
    source = copied(CHUNK)
    (choice,) = source["choices"]
    (choice if level == "choice" else choice["delta"])[field] = "x"
    before = repr(source)
    assert chunk_with_extra(source) is None
    assert repr(source) == before


def test_chunk_with_an_odd_type_is_left_as_it_was() -> None:
    source = copied(CHUNK) | {"created": "7"}
    assert chunk_with_extra(source) is None
    assert source == copied(CHUNK) | {"created": "7"}


@pytest.mark.parametrize("choices", [None, {}, "x", [None], [{}], [{"delta": None}]])
def test_chunk_without_a_list_of_choices_and_deltas_is_left_alone(choices: object) -> None:
    assert chunk_with_extra({"choices": choices}) is None


def test_unknown_fields_of_a_completion_its_choices_and_messages_are_kept() -> None:
    made = completion_with_extra(
        {"provider": "p", "choices": [{"message": {"content": "a", "weight": 1}, "stop": "END"}]}
    )
    assert made is not None
    (choice,) = made.choices
    assert (made.model_extra, choice.model_extra, choice.message.model_extra) == (
        {"provider": "p"},
        {"stop": "END"},
        {"weight": 1},
    )


@pytest.mark.parametrize(
    "source", [{}, {"choices": [{"delta": {}}]}, {"choices": [{"message": {"content": 7}}]}]
)
def test_object_that_is_no_well_typed_completion_is_none(source: dict[str, Any]) -> None:
    assert completion_with_extra(source) is None


# ----------------------------------------------------------------------------- of any manners: chunks


@pytest.mark.parametrize("choices", [None, [], [None]])
def test_chunk_without_choices_has_none(choices: object) -> None:
    assert chunk_from({"id": "c1", "choices": choices}) == Chunk(id="c1")


def test_one_choice_as_an_object_is_a_list_of_one() -> None:
    (choice,) = chunk_from({"choices": {"delta": {"content": "a"}}}).choices
    assert choice.delta.content == "a"


@pytest.mark.parametrize("choices", ["x", 7, True, [7], ["x"], [{}, []]])
def test_choices_of_another_kind_are_a_value_error(choices: object) -> None:
    with pytest.raises(ValueError, match="choice"):
        chunk_from({"choices": choices})


def test_delta_that_is_text_is_content() -> None:
    assert delta("a").content == "a"


@pytest.mark.parametrize("source", [None, 7, []])
def test_delta_of_another_kind_says_nothing(source: object) -> None:
    assert delta(source) == Delta()


def test_text_of_the_older_format_is_content() -> None:
    (choice,) = chunk_from({"choices": [{"text": "a"}]}).choices
    assert choice.delta.content == "a"
    assert choice.model_extra == {}


def test_text_beside_a_delta_is_an_unknown_field() -> None:
    (choice,) = chunk_from({"choices": [{"text": "a", "delta": {"content": "b"}}]}).choices
    assert (choice.delta.content, choice.model_extra) == ("b", {"text": "a"})


def test_message_is_kept_beside_the_delta() -> None:
    (choice,) = chunk_from({"choices": [{"message": {"content": "a"}}]}).choices
    assert choice.delta == Delta()
    assert choice.message == Delta(content="a")


@pytest.mark.parametrize(
    ("content", "read"),
    [
        (["a", "b"], {"content": "ab"}),
        ([{"type": "text", "text": "a"}, {"text": "b"}], {"content": "ab"}),
        ({"type": "text", "text": "a"}, {"content": "a"}),
        ([{"thinking": "hm"}, "a"], {"content": "a", "reasoning_content": "hm"}),
        ([{"thinking": [{"text": "h"}, "m"]}], {"reasoning_content": "hm"}),
        ([{"thinking": {"thinking": "hm"}}], {"reasoning_content": "hm"}),
        ([{"thinking": [7, {}]}], {"reasoning_content": ""}),
        (
            [{"type": "image", "url": "u"}, None],
            {"content_parts": [{"type": "image", "url": "u"}]},
        ),
        ([7], {"content_parts": [7]}),
        ([], {}),
    ],
    ids=repr,
)
def test_list_content_is_split_into_text_thinking_and_the_rest(
    content: object, read: dict[str, Any]
) -> None:
    assert delta({"content": content}).to_dict() == read


def test_thinking_part_beside_reasoning_is_not_taken_twice() -> None:
    source = {"content": [{"thinking": "hm"}], "reasoning_content": "hm"}
    assert delta(source).reasoning_content == "hm"


@pytest.mark.parametrize(
    "source",
    [
        [{"id": "a", "function": {"name": "f", "arguments": {"x": [1, "\u00e9"]}}}],
        {"id": "a", "function": {"name": "f", "arguments": {"x": [1, "\u00e9"]}}},
        [{"id": "a", "name": "f", "arguments": {"x": [1, "\u00e9"]}}, None, 7],
    ],
    ids=["object as arguments", "one call", "flat call"],
)
def test_call_of_odd_shape_is_read(source: object) -> None:
    (one,) = fragments(source)
    assert one.function is not None
    assert (one.id, one.function.name, one.function.arguments) == ("a", "f", '{"x":[1,"\u00e9"]}')


def test_call_without_a_function_is_kept() -> None:
    assert fragments([{"id": "a", "name": None}]) == [
        ToolCallFragment(id="a", extra_={"name": None})
    ]


def test_older_function_call_with_an_object_as_arguments_is_read() -> None:
    found = delta({"function_call": {"name": "f", "arguments": [1]}}).function_call
    assert found is not None
    assert found.arguments == "[1]"


@pytest.mark.parametrize(
    "source",
    [
        {"usage": {"prompt_tokens": 1, "completion_tokens": 2}},
        {"x_groq": {"usage": {"prompt_tokens": 1, "completion_tokens": 2}}},
        {"choices": [{"usage": {"prompt_tokens": 1, "completion_tokens": 2}}]},
        {"usage": {"input_tokens": 1, "output_tokens": "2.0"}},
        {"usage": {"prompt_tokens": 1}, "x_groq": {"usage": {"completion_tokens": 2}}},
        {"usage": {"prompt_tokens": None, "input_tokens": 1, "completion_tokens": 2}},
    ],
    ids=repr,
)
def test_usage_is_found_wherever_servers_put_it(source: dict[str, Any]) -> None:
    assert chunk_from(source).usage == Usage(prompt_tokens=1, completion_tokens=2)


@pytest.mark.parametrize(
    "usage", [None, {}, 7, "x", [], {"prompt_tokens": None, "prompt_tokens_details": None}]
)
def test_usage_that_counts_nothing_is_none(usage: object) -> None:
    assert chunk_from({"usage": usage, "x_groq": None}).usage is None


def test_both_names_of_a_count_are_kept_where_both_are_sent() -> None:
    usage = chunk_from({"usage": {"prompt_tokens": 1, "input_tokens": 3}}).usage
    assert usage == Usage(prompt_tokens=1, extra_={"input_tokens": 3})


# -------------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"error": {"message": "slow"}}, "slow"),
        ({"error": "slow"}, "slow"),
        ({"error": [{"message": "slow"}]}, "slow"),
        ({"error": {"error": "slow"}}, "slow"),
        ({"error": {"detail": "slow"}}, "slow"),
        ({"error": {"detail": [{"msg": "slow"}, "down"]}}, "slow; down"),
        ({"error": {"msg": "slow"}}, "slow"),
        ({"error": {"reason": "slow"}}, '{"reason":"slow"}'),
        ({"error": True, "message": "slow"}, "slow"),
        ({"error": 7}, '{"error":7}'),
        ([{"error": "slow"}], "slow"),
        ([{}, {"error": "slow"}], "slow"),
        ({"object": "error", "message": "slow"}, "slow"),
        ({"type": "error", "message": "slow"}, "slow"),
        ({"detail": "slow"}, "slow"),
        ({"detail": ["slow", {"msg": "down"}]}, "slow; down"),
        ({"choices": [{"error": "slow"}]}, "slow"),
        ({"choices": [{"error": {"message": "slow"}}]}, "slow"),
    ],
    ids=repr,
)
def test_words_of_a_failure_are_found(source: object, message: str) -> None:
    fault = fault_in(source)
    assert fault is not None
    assert fault.message == message


@pytest.mark.parametrize(
    "source",
    [
        {"error": None},
        {"error": ""},
        {"error": {}},
        {"error": []},
        {"choices": [{"error": None}, None]},
        {"choices": [{"error": 7}]},
        {"choices": [], "detail": "fine"},
        {"detail": {"x": 1}},
        {"message": "hello"},
        [],
        [{}],
        "error",
        7,
        None,
        {},
    ],
    ids=repr,
)
def test_no_failure_is_found_where_none_is_told(source: object) -> None:
    assert fault_in(source) is None


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("gone", "gone"),
        ({"message": "gone"}, "gone"),
        (["gone"], "gone"),
        ([{"message": "gone"}], "gone"),
        (7, "7"),
        ({"x": 1}, '{"x":1}'),
    ],
    ids=repr,
)
def test_whatever_an_error_event_holds_is_a_failure(source: object, message: str) -> None:
    fault = fault_in(source, "error")
    assert fault is not None
    assert fault.message == message
    assert fault_in(source, always=True) == fault


@pytest.mark.parametrize("source", ["", 0, None, []])
def test_error_event_that_holds_nothing_tells_no_failure(source: object) -> None:
    assert fault_in(source, "error") is None


def test_every_fact_of_a_failure_is_read() -> None:
    said = {"error": {"message": "m", "code": "c", "type": "t", "param": "p", "status": 500}}
    assert fault_in(said) == ServerFault("m", code="c", type="t", param="p", status=500)


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"code": 429.0}},
        {"error": {"code": None}, "code": 429},
        {"error": "x", "code": 429},
    ],
)
def test_code_is_found_inside_or_beside_the_error(said: object) -> None:
    fault = fault_in(said)
    assert fault is not None
    assert (type(fault.code), fault.code) == (int, 429)


@pytest.mark.parametrize("code", [True, 1.5, [], {}, float("inf"), float("nan")])
def test_code_of_another_kind_is_none(code: object) -> None:
    fault = fault_in({"error": {"message": "x", "code": code, "type": 7, "param": []}})
    assert fault == ServerFault("x")


@pytest.mark.parametrize(
    "fault",
    [
        ServerFault("x", code=429),
        ServerFault("x", code="429"),
        ServerFault("x", status=429),
        ServerFault("x", code="rate_limit_exceeded"),
        ServerFault("x", type="rate_limit_exceeded"),
    ],
)
def test_request_that_came_too_fast_is_a_rate_limit(fault: ServerFault) -> None:
    assert fault.is_rate_limit
    assert fault.may_pass


@pytest.mark.parametrize(
    "fault",
    [
        ServerFault("x", code=500),
        ServerFault("x", status=599),
        ServerFault("x", code=408),
        ServerFault("x", type="overloaded_error"),
        ServerFault("x", type="server_error"),
    ],
)
def test_failure_of_the_server_may_pass(fault: ServerFault) -> None:
    assert fault.may_pass
    assert not fault.is_rate_limit


@pytest.mark.parametrize(
    "fault",
    [
        ServerFault("x"),
        ServerFault("x", code="500"),
        ServerFault("x", code=400),
        ServerFault("x", status=600),
        ServerFault("x", code="insufficient_quota", status=429),
        ServerFault("x", code=429, type="insufficient_quota"),
    ],
)
def test_failure_of_the_request_or_the_account_does_not_pass(fault: ServerFault) -> None:
    assert not fault.may_pass
