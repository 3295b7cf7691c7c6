"""Chunks into events and one answer: what is joined, set once, extended, replaced and merged."""

from typing import Any

import pytest

from asyncchat.protocol.assembler import Assembler
from asyncchat.protocol.events import (
    ContentDelta,
    ContentDone,
    Event,
    Finish,
    LogprobsDelta,
    ReasoningDelta,
    ReasoningDone,
    RefusalDelta,
    RefusalDone,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    UsageReport,
)
from asyncchat.protocol.response import (
    Completion,
    Function,
    Message,
    Timing,
    TokenLogprob,
    Usage,
    chunk_from,
)
from tests.protocol.frames import STOP, call, chunk, say


def assembled(*chunks: dict[str, Any], n: int = 1, **options: Any) -> Completion:
    assembler = Assembler(n, **options)
    for one in chunks:
        assembler.feed(chunk_from(one), None)
    return assembler.finish(None)


def message(*deltas: dict[str, Any]) -> Message:
    return assembled(*(chunk(delta) for delta in deltas)).message


def events(*chunks: dict[str, Any], n: int = 1, **options: Any) -> list[Event]:
    assembler, out = Assembler(n, **options), list[Event]()
    for one in chunks:
        assembler.feed(chunk_from(one), out, odd_text=True)
    assembler.finish(out)
    return out


def instead(said: dict[str, Any], **choice: Any) -> dict[str, Any]:
    """A chunk with a whole message in place of a delta."""
    return {"choices": [{"index": 0, "message": said, **choice}]}


# ----------------------------------------------------------------------------------------------- text


def test_text_of_each_kind_is_joined() -> None:
    made = message(
        {"content": "a", "reasoning": "x", "refusal": "p"},
        {"content": "b", "reasoning": "y", "refusal": "q"},
    )
    assert (made.content, made.reasoning, made.refusal) == ("ab", "xy", "pq")


def test_message_to_which_nothing_was_added_has_no_text() -> None:
    assert message({"content": "", "reasoning_content": "", "refusal": ""}) == Message()


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_keeps_the_name_it_came_under(name: str) -> None:
    assert message({name: "a"}, {name: "b"}).to_dict() == {"role": "assistant", name: "ab"}


def test_reasoning_keeps_its_first_name_where_names_change() -> None:
    made = message({"reasoning": "a"}, {"reasoning_content": "b"})
    assert made.to_dict() == {"role": "assistant", "reasoning": "ab"}


def test_reasoning_is_read_out_of_details_where_nothing_else_holds_it() -> None:
    made = message(
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "a"}, "odd"]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "b"}, {"text": 7}]},
    )
    assert made.reasoning == "ab"


def test_role_is_set_once() -> None:
    assert message({"role": "tool"}, {"role": "assistant"}).role == "tool"


def test_role_is_assistant_where_none_was_sent() -> None:
    assert message({"content": "a"}).role == "assistant"


# ------------------------------------------------------------------------------------------ whole messages


def test_message_in_place_of_deltas_is_the_answer() -> None:
    made = assembled(instead({"role": "assistant", "content": "Hello"}, finish_reason="stop"))
    assert (made.text, made.finish_reason) == ("Hello", "stop")


def test_message_after_deltas_adds_nothing() -> None:
    assert assembled(say("Hello"), instead({"content": "Hello"})).text == "Hello"


def test_message_after_calls_in_deltas_adds_no_call() -> None:
    calls = {"tool_calls": [call(0, "a", "f", "{}")]}
    made = assembled(chunk(calls), instead(calls)).message
    assert len(made.tool_calls or []) == 1


def test_message_that_repeats_an_earlier_one_and_goes_on_adds_what_is_new() -> None:
    made = assembled(instead({"content": "Hel"}), instead({"content": "Hello", "refusal": "no"}))
    assert (made.text, made.message.refusal) == ("Hello", "no")


def test_message_that_does_not_repeat_the_earlier_one_is_joined_to_it() -> None:
    assert assembled(instead({"content": "Hel"}), instead({"content": "lo"})).text == "Hello"


def test_second_message_in_one_chunk_is_another_choice_of_the_same_answer() -> None:
    both = {"choices": [{"message": {"content": "one"}}, {"message": {"content": "two"}}]}
    assert assembled(both).text == "one"


def test_answer_split_over_the_choices_of_one_chunk_is_one_answer() -> None:
    both = {
        "choices": [
            {"index": 0, "message": {"content": "Hello"}},
            {"index": 1, "message": {"tool_calls": [call(None, "a", "f", "{}")]}},
        ]
    }
    made = assembled(both).message
    assert (made.content, len(made.tool_calls or [])) == ("Hello", 1)


def test_details_of_a_message_whose_reasoning_came_in_deltas_are_not_taken_twice() -> None:
    details = {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}
    made = assembled(chunk(details), instead({**details, "content": "Hello"})).message
    assert (made.content, made.reasoning, made.reasoning_details) == (
        "Hello",
        "hm",
        details["reasoning_details"],
    )


def test_calls_of_a_message_that_bear_one_index_stay_apart() -> None:
    made = assembled(
        instead({"tool_calls": [call(0, None, "f", "{}"), call(0, None, "f", "{}")]})
    ).message
    assert len(made.tool_calls or []) == 2


# -------------------------------------------------------------------------------------------- other parts


def test_older_function_call_is_put_together() -> None:
    made = message(
        {"function_call": {"name": "get_"}},
        {"function_call": {"name": "weather"}},
        {"function_call": {}},
        {"function_call": {"arguments": "{"}},
        {"function_call": {"name": "late", "arguments": "}"}},
    )
    assert made.function_call == Function(name="get_weather", arguments="{}")


def test_name_of_the_older_function_call_may_be_repeated() -> None:
    made = message(
        {"function_call": {"name": "f"}}, {"function_call": {"name": "f", "arguments": "{}"}}
    )
    assert made.function_call == Function(name="f", arguments="{}")


def test_annotations_and_unknown_lists_extend_and_unknown_values_replace() -> None:
    made = message(
        {"annotations": [1], "images": ["a"], "weight": 1, "kept": 1},
        {"annotations": [2], "images": ["b"], "weight": 2, "kept": None},
    )
    assert made.annotations == [1, 2]
    assert made.model_extra == {"images": ["a", "b"], "weight": 2, "kept": 1}


def test_unknown_value_that_turns_into_a_list_is_replaced_by_it() -> None:
    assert message({"odd": 1}, {"odd": [2]}).model_extra == {"odd": [2]}


def test_unknown_fields_of_chunk_and_choice_are_those_sent_last() -> None:
    one, other = chunk(provider="p", kept=1), chunk(provider="q", kept=None)
    one["choices"][0] |= {"stop": "a", "kept": 1}
    other["choices"][0] |= {"stop": "b", "kept": None}
    made = assembled(one, other)
    assert made.model_extra == {"provider": "q", "kept": 1}
    assert made.choices[0].model_extra == {"stop": "b", "kept": 1}


def test_metadata_is_the_first_and_the_fingerprint_the_last_that_was_sent() -> None:
    made = assembled(
        {"id": "", "choices": []},
        {"id": "c1", "created": 5, "system_fingerprint": "f1", "service_tier": "a"},
        {"id": "c2", "model": "m", "created": 6, "system_fingerprint": "f2"},
        {"id": "c3", "model": "m2", "created": 7, "system_fingerprint": None, "service_tier": "b"},
    )
    assert (made.id, made.model, made.created) == ("c1", "m", 5)
    assert (made.system_fingerprint, made.service_tier) == ("f2", "b")


AUDIO = [
    ([{"data": "AAE="}, {"data": "AgM="}], {"data": "AAECAw=="}),
    ([{"data": "AAEC"}, {"data": "Aw=="}], {"data": "AAECAw=="}),
    ([{"data": "AA"}, {"data": "EC"}], {"data": "AAEC"}),
    ([{"data": "A=B"}, {"data": "C"}], {"data": "A=BC"}),
    ([{"id": "au"}, {"id": "later", "expires_at": None}], {"id": "au"}),
    ([{"transcript": "he"}, {"transcript": "y"}], {"transcript": "hey"}),
    ([{"data": ""}, {"id": "au"}], {"data": "", "id": "au"}),
]


@pytest.mark.parametrize(("pieces", "audio"), AUDIO, ids=repr)
def test_audio_is_put_together(pieces: list[dict[str, Any]], audio: dict[str, Any]) -> None:
    assert message(*({"audio": piece} for piece in pieces)).audio == audio


def test_blocks_of_one_type_are_one_block_whatever_their_index() -> None:
    made = message(
        {"reasoning_details": [{"type": "reasoning.text", "text": "a", "index": 0}]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "b", "index": 1, "id": ""}]},
        {"reasoning_details": [{"type": "reasoning.summary", "summary": "c", "index": 0}]},
    )
    assert made.reasoning_details == [
        {"type": "reasoning.text", "text": "ab", "index": 1},
        {"type": "reasoning.summary", "summary": "c", "index": 0},
    ]


@pytest.mark.parametrize(
    "blocks",
    [
        [{"type": "t", "text": "a", "id": "1"}, {"type": "t", "text": "b", "id": "2"}],
        [{"type": "t", "text": "a", "signature": "S"}, {"type": "t", "text": "b"}],
        [{"type": "redacted_thinking", "data": "a"}, {"type": "redacted_thinking", "data": "b"}],
        ["a", "b"],
        [{"type": "t", "text": "a"}, "b", {"type": "t", "text": "c"}],
    ],
    ids=repr,
)
def test_blocks_that_something_tells_apart_stay_apart(blocks: list[Any]) -> None:
    assert message(*({"thinking_blocks": [b]} for b in blocks)).model_extra == {
        "thinking_blocks": blocks
    }


def test_signature_that_comes_late_joins_the_block_before_it() -> None:
    blocks = [{"type": "t", "text": "a"}, {"type": "t", "signature": "S"}]
    made = message(*({"reasoning_details": [block]} for block in blocks))
    assert made.reasoning_details == [{"type": "t", "text": "a", "signature": "S"}]


def token(text: str) -> dict[str, Any]:
    return {"token": text, "logprob": -1.0}


def test_logprobs_are_gathered_and_their_unknown_fields_kept() -> None:
    one, other = chunk(), chunk()
    one["choices"][0]["logprobs"] = {"content": [token("a")], "x": 1}
    other["choices"][0]["logprobs"] = {"content": [token("b")], "refusal": [token("c")], "y": 2}
    logprobs = assembled(one, other).choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content == [TokenLogprob(token=t, logprob=-1.0) for t in "ab"]
    assert logprobs.refusal == [TokenLogprob(token="c", logprob=-1.0)]
    assert logprobs.model_extra == {"x": 1, "y": 2}


def test_logprobs_without_a_token_are_none() -> None:
    one = chunk()
    one["choices"][0]["logprobs"] = {"content": [], "refusal": None}
    assert assembled(one).choices[0].logprobs is None


# ------------------------------------------------------------------------------------- finish and usage


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (["stop"], "stop"),
        (["stop", "length"], "length"),
        (["tool_calls", "stop"], "tool_calls"),
        (["function_call", "stop"], "function_call"),
        (["content_filter", "stop"], "content_filter"),
        (["length", "tool_calls"], "tool_calls"),
        (["eos", "stop"], "stop"),
        (["stop", "", None], "stop"),
        (["", None], None),
        (["odd"], "odd"),
    ],
    ids=repr,
)
def test_finish_reason_is_the_last_that_tells_something(
    sent: list[str | None], kept: str | None
) -> None:
    assert assembled(*(chunk(finish=reason) for reason in sent)).finish_reason == kept


def test_finish_reason_error_is_remembered() -> None:
    assembler = Assembler()
    assembler.feed(chunk_from(chunk(finish="error")), None)
    assert assembler.finish_error


def test_total_is_the_sum_where_it_is_missing() -> None:
    made = assembled(say("a"), {"usage": {"prompt_tokens": 3, "completion_tokens": 2}})
    assert made.usage is not None
    assert made.usage.total_tokens == 5


@pytest.mark.parametrize(
    "usage", [{"prompt_tokens": 3}, {"completion_tokens": 3}, {"total_tokens": 9}]
)
def test_total_is_never_guessed(usage: dict[str, int]) -> None:
    made = assembled(say("a"), {"usage": usage})
    assert made.usage is not None
    assert made.usage.to_dict() == usage


def test_usage_is_none_where_none_was_sent() -> None:
    assert assembled(say("a")).usage is None


# ----------------------------------------------------------------------------------------------- choices


def test_choices_are_in_order_of_their_index() -> None:
    made = assembled(chunk({"content": "b"}, index=1), chunk({"content": "a"}, index=0), n=2)
    assert [(choice.index, choice.message.content) for choice in made.choices] == [
        (0, "a"),
        (1, "b"),
    ]


def test_every_choice_is_the_one_that_was_asked_for() -> None:
    made = assembled(chunk({"content": "a"}, index=0), chunk({"content": "b"}, index=4))
    assert [(choice.index, choice.message.content) for choice in made.choices] == [(0, "ab")]


def finished(*chunks: dict[str, Any], n: int = 1) -> bool:
    assembler = Assembler(n)
    for one in chunks:
        assembler.feed(chunk_from(one), None)
    return assembler.is_finished


def test_answer_is_finished_once_every_choice_has_its_reason() -> None:
    one, other = chunk(finish="stop", index=0), chunk(finish="stop", index=1)
    assert not finished()
    assert not finished(say("a"))
    assert finished(STOP)
    assert not finished(one, n=2)
    assert not finished(one, chunk({"content": "a"}, index=1), n=2)
    assert finished(one, other, n=2)


@pytest.mark.parametrize(
    ("delta", "said"),
    [
        ({"role": "assistant"}, False),
        ({"content": ""}, False),
        ({"weight": 1}, False),
        ({"content": "a"}, True),
        ({"refusal": "a"}, True),
        ({"reasoning": "a"}, True),
        ({"tool_calls": [call(0, "a")]}, True),
        ({"function_call": {"name": "f"}}, True),
        ({"audio": {"id": "au"}}, True),
    ],
    ids=repr,
)
def test_answer_has_said_something_once_it_holds_text_a_call_or_audio(
    delta: dict[str, Any], said: bool
) -> None:
    assembler = Assembler()
    assembler.feed(chunk_from(chunk(delta)), None)
    assert assembler.has_choice
    assert assembler.has_said is said


@pytest.mark.parametrize(
    ("delta", "finish", "cut"),
    [
        ({"tool_calls": [call(0, "a", "f", "{")]}, None, True),
        ({"tool_calls": [call(0, "a", "f", "{")]}, "length", False),
        ({"tool_calls": [call(0, "a", "f", "{}")]}, None, False),
        ({"tool_calls": [call(0, "a", "f")]}, None, False),
        ({"function_call": {"name": "f", "arguments": "{"}}, None, True),
        ({"function_call": {"name": "f", "arguments": "{}"}}, None, False),
        ({"function_call": {"name": "f"}}, None, False),
        ({"content": "{"}, None, False),
    ],
    ids=repr,
)
def test_call_cut_in_a_choice_without_reason_is_known(
    delta: dict[str, Any], finish: str | None, cut: bool
) -> None:
    assembler = Assembler()
    assembler.feed(chunk_from(chunk(delta, finish)), None)
    assert assembler.has_cut_call is cut


# ------------------------------------------------------------------------------------------------ events


def test_each_kind_of_text_is_told_as_it_comes_and_whole_at_the_end() -> None:
    delta = {"reasoning": "x", "content": "a", "refusal": "p"}
    assert events(chunk(delta), STOP) == [
        ReasoningDelta("x"),
        ContentDelta("a"),
        RefusalDelta("p"),
        ReasoningDone("x"),
        ContentDone("a"),
        RefusalDone("p"),
        Finish("stop"),
    ]


def test_answer_that_says_nothing_only_finishes() -> None:
    assert events(chunk({"role": "assistant"}), STOP) == [Finish("stop")]


def test_events_bear_the_index_of_their_choice() -> None:
    told = events(
        chunk({"content": "b"}, "stop", index=1), chunk({"content": "a"}, "stop", index=0), n=2
    )
    assert told == [
        ContentDelta("b", 1),
        ContentDelta("a", 0),
        ContentDone("a", 0),
        Finish("stop", choice=0),
        ContentDone("b", 1),
        Finish("stop", choice=1),
    ]


def test_calls_are_told_started_piece_by_piece_and_done_with_the_reason() -> None:
    told = events(chunk({"tool_calls": [call(0, "a", "f", "{}")]}), chunk(finish="tool_calls"))
    assert told == [
        ToolCallStarted(0, "f", "a"),
        ToolCallDelta(0, "{}"),
        ToolCallDone(0, "f", "{}", "a"),
        Finish("tool_calls"),
    ]


def test_every_usage_is_told_as_it_stands_then() -> None:
    told = events(
        {**say("a"), "usage": {"prompt_tokens": 1}},
        {"choices": [], "usage": {"completion_tokens": 2}},
    )
    reports = [event.usage for event in told if isinstance(event, UsageReport)]
    assert reports == [Usage(prompt_tokens=1), Usage(prompt_tokens=1, completion_tokens=2)]


def test_usage_that_counts_nothing_is_not_told() -> None:
    assert not any(isinstance(e, UsageReport) for e in events({**say("a"), "usage": {}}))


def test_logprobs_are_told_with_their_chunk() -> None:
    one = say("a")
    one["choices"][0]["logprobs"] = {"content": [token("a")]}
    empty = say("b")
    empty["choices"][0]["logprobs"] = {"content": []}
    told = [event for event in events(one, empty) if isinstance(event, LogprobsDelta)]
    assert told == [LogprobsDelta([TokenLogprob(token="a", logprob=-1.0)])]


def test_finish_has_the_usage_and_the_timing() -> None:
    assembler, out = Assembler(), list[Event]()
    assembler.feed(chunk_from({**STOP, "usage": {"total_tokens": 7}}), None)
    timing = Timing(total=1.0)
    made = assembler.finish(out, timing)
    assert out == [Finish("stop", Usage(total_tokens=7), timing)]
    assert made.timing is timing


def test_half_of_a_pair_is_told_with_its_other_half() -> None:
    told = events(say("a\ud83d"), say("\ude00b"), say("\ud83d"), STOP)
    assert told == [
        ContentDelta("a"),
        ContentDelta("\U0001f600b"),
        ContentDelta("\ufffd"),
        ContentDone("a\U0001f600b\ufffd"),
        Finish("stop"),
    ]


def test_halves_of_two_kinds_of_text_do_not_meet() -> None:
    told = events(
        chunk({"content": "\ud83d", "reasoning": "\ud83d"}), chunk({"content": "\ude00"})
    )
    assert ContentDelta("\U0001f600") in told
    assert ReasoningDelta("\ufffd") in told


def test_tags_are_told_as_reasoning_where_asked() -> None:
    told = events(say("<think>hm</thi"), say("nk>Hello<"), STOP, split_think_tags=True)
    assert told == [
        ReasoningDelta("hm"),
        ContentDelta("Hello"),
        ContentDelta("<"),
        ReasoningDone("hm"),
        ContentDone("Hello<"),
        Finish("stop"),
    ]


def test_text_that_repeats_itself_is_told_once_where_asked() -> None:
    told = events(say("Hel"), say("Hello"), cumulative_content=True)
    assert told[:2] == [ContentDelta("Hel"), ContentDelta("lo")]


# --------------------------------------------------------------------------------------------- snapshots


def test_snapshot_holds_what_has_come_and_keeps_back_half_a_character() -> None:
    assembler = Assembler()
    assembler.feed(chunk_from(say("a\ud83d")), None, odd_text=True)
    assert assembler.snapshot().text == "a"
    assert assembler.snapshot(ended=True).text == "a\ufffd"


def test_snapshot_of_nothing_is_an_answer_without_a_choice() -> None:
    assert Assembler().snapshot() == Completion()


def test_snapshot_shares_nothing_that_still_grows() -> None:
    assembler = Assembler()
    one = chunk(
        {
            "content": "a",
            "tool_calls": [call(0, "a", "f", "{", x=1)],
            "annotations": [1],
            "images": ["a"],
            "audio": {"transcript": "a"},
            "reasoning_details": [{"type": "t", "text": "a"}, "odd"],
        },
        usage={"prompt_tokens": 1, "completion_tokens": 1},
        provider="p",
    )
    one["choices"][0]["logprobs"] = {"content": [token("a")], "refusal": [token("b")]}
    assembler.feed(chunk_from(one), None)
    snapshot = assembler.snapshot()
    before = snapshot.to_json()
    for _ in range(2):
        assembler.feed(chunk_from(one), None)
    assert snapshot.to_json() == before


# -------------------------------------------------------------------------------------- the lean ways in


def test_piece_of_a_call_that_has_not_begun_is_refused_and_leaves_nothing() -> None:
    from asyncchat.protocol.lean import decode_call

    assembler = Assembler()
    frame = b'{"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}'
    with pytest.raises(KeyError):
        assembler.piece(decode_call(frame), None)
    assert assembler.finish(None).message == Message()
