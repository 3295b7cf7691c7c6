"""The habits of servers that no recording of ours shows, each by the rule that answers it.

Every body is read whole, cut at every place, byte by byte, with other line ends, and with comments between its
events; `outcome` asserts that all of these agree and returns what they agree on.
"""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from asyncchat.errors import APIError, AsyncChatError, ProtocolError, RateLimitError, StreamCut
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    ToolCallDelta,
    ToolCallDone,
    UsageReport,
)
from asyncchat.protocol.response import Completion, Message
from tests.protocol.frames import (
    HELLO,
    STOP,
    WHOLE,
    call,
    calling,
    chunk,
    finished,
    read_chunks,
    say,
    sse,
)
from tests.wire import cut, places, read

Result = tuple[Completion | None, AsyncChatError | None]


def ways(body: bytes) -> Iterator[list[bytes]]:
    bodies = [body]
    if b"\r" not in body and body.lstrip(b"\xef\xbb\xbf \n")[:1] not in (b"{", b"[", b"<"):
        commented = body.replace(b"\n\n", b"\n\n: keepalive\n\n")
        bodies += [commented.replace(b"\n", end) for end in (b"\n", b"\r\n", b"\r")]
        bodies += [body.replace(b"\n", end) for end in (b"\r\n", b"\r")]
    for one in bodies:
        yield [one]
        yield cut(one, range(len(one)))
    for place in places(body):
        yield cut(body, [place])


def summary(completion: Completion | None, error: AsyncChatError | None) -> tuple[Any, ...]:
    facts = (error.message, vars(error).get("code"), error.retryable) if error else ()
    return repr(msgspec.to_builtins(completion)), type(error), facts


def outcome(body: bytes, **options: Any) -> Result:
    """What the body reads as, however it comes."""
    _, completion, error = read([body], **options)
    wanted = summary(completion, error)
    for pieces in ways(body):
        _, other, other_error = read(pieces, **options)
        assert summary(other, other_error) == wanted
    _, quiet, quiet_error = read([body], events=False, **options)
    assert summary(quiet, quiet_error) == wanted
    assert summary(*finished(read_chunks([body], **options))) == wanted
    return completion, error


def message(body: bytes, **options: Any) -> Message:
    completion, error = outcome(body, **options)
    assert error is None, repr(error)
    assert completion is not None
    return completion.message


def calls(body: bytes) -> list[tuple[str, str, str]]:
    found = message(body).tool_calls or []
    return [(one.id, one.function.name, one.function.arguments) for one in found]


def failure(body: bytes, **options: Any) -> APIError:
    error = outcome(body, **options)[1]
    assert isinstance(error, APIError), repr(error)
    assert error.partial is not None
    return error


def events(body: bytes, **options: Any) -> list[Event]:
    reader = AnswerReader(**options)
    return [*reader.feed(body), *reader.close()]


# ------------------------------------------------------------------------------- framing and JSON


def test_crlf_line_ends_read_as_lf() -> None:
    assert message(HELLO.replace(b"\n", b"\r\n")).content == "Hello"


def test_cr_line_ends_read_as_lf() -> None:
    assert message(HELLO.replace(b"\n", b"\r")).content == "Hello"


def test_comments_before_between_and_inside_events_are_ignored() -> None:
    body = b": open\n\n:\n\n" + HELLO.replace(b"data: ", b": inside\ndata: ") + b": late\n\n"
    assert message(body).content == "Hello"


def test_fields_of_other_names_are_ignored() -> None:
    body = HELLO.replace(b"data: ", b"event: message\nid: 7\nretry: 10\nfoo: bar\nbare\ndata: ")
    assert message(body).content == "Hello"


def test_data_doubled_by_a_proxy_is_read_once() -> None:
    assert message(HELLO.replace(b"data: ", b"data: data: ")).content == "Hello"


def test_blank_and_null_payloads_between_chunks_are_left_out() -> None:
    body = sse(
        say("Hel"), b"", b"   ", b"null", b"data:", b": PROCESSING", b"data: ", say("lo"), STOP
    )
    assert message(body).content == "Hello"


def test_empty_object_and_empty_list_between_chunks_say_nothing() -> None:
    assert message(sse(say("Hel"), b"{}", b"[]", say("lo"), STOP)).content == "Hello"


def test_bare_word_between_chunks_is_a_keepalive() -> None:
    assert message(sse(say("Hel"), b"ping", say("lo"), STOP)).content == "Hello"


@pytest.mark.parametrize(
    "mark",
    [b" [DONE] ", b"[done]", b"'[DONE]'", b'"[DONE]"', b"[ DONE ]", b'" [DONE] "', b"[DONE]\t"],
)
def test_end_mark_in_any_spelling_ends_the_answer(mark: bytes) -> None:
    assert message(sse(say("Hello"), mark, b"never read {", done=False)).content == "Hello"


def test_end_mark_as_the_whole_content_of_a_chunk_is_text() -> None:
    assert (
        message(sse(say("[DONE]"), say("data: [DONE]\n\n"), STOP)).content
        == "[DONE]data: [DONE]\n\n"
    )


def test_chunks_on_crowded_data_lines_are_all_read() -> None:
    body = HELLO.replace(b"\n\n", b"\n") + b"\n"
    assert message(body).content == "Hello"


def test_chunk_cut_over_two_events_is_an_error_that_keeps_the_text() -> None:
    torn = (
        sse(say("Hel"), done=False)
        + b'data: {"choices":[{"delta":{"con\n\ndata: tent":"lo"}}]}\n\n'
    )
    error = failure(torn + sse(STOP))
    assert isinstance(error, ProtocolError)
    assert error.partial is not None
    assert error.partial.text == "Hel"


@pytest.mark.parametrize(
    "tail", ["\n\n[DONE]\n", "\n\ndata: [DONE]\n\n", "data: [DONE]\n\n", "[DONE]"]
)
@pytest.mark.parametrize("indent", [None, 2])
def test_json_body_may_be_followed_by_an_end_mark(tail: str, indent: int | None) -> None:
    assert message((json.dumps(WHOLE, indent=indent) + tail).encode()).content == "Hello"


def test_json_body_may_follow_blank_lines_and_a_byte_order_mark() -> None:
    assert message(b"\xef\xbb\xbf\n\n  " + json.dumps(WHOLE).encode()).content == "Hello"


@pytest.mark.parametrize("indent", [None, 1])
def test_json_list_of_chunks_is_read_in_order(indent: int | None) -> None:
    body = json.dumps([say("Hel"), say("lo"), STOP], indent=indent).encode()
    assert message(body).content == "Hello"


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b"\n\n"])
def test_json_lines_with_any_line_end_are_read(end: bytes) -> None:
    lines = [json.dumps(one).encode() for one in (say("Hel"), say("lo"), STOP)]
    assert message(end.join(lines)).content == "Hello"


def test_json_line_then_events_are_read_as_one_answer() -> None:
    body = json.dumps(say("Hel")).encode() + b"\n" + sse(say("lo"), STOP)
    assert message(body).content == "Hello"


def test_web_page_after_blank_lines_names_the_content_type() -> None:
    error = failure(b"\r\n <!DOCTYPE html><html>", content_type="text/html")
    assert isinstance(error, ProtocolError)
    assert "text/html" in str(error)


def test_line_separators_inside_text_are_text() -> None:
    text = "a\u2028b\u2029c\u0085d\x0be\x0cf\x1cg"
    body = b"data: %b\n\n" % json.dumps(say(text), ensure_ascii=False).encode()
    assert message(body + sse(STOP)).content == text


def test_raw_control_characters_inside_text_are_text() -> None:
    body = sse(say("a?b"), STOP).replace(b"?", b"\x01\t")
    assert message(body).content == "a\x01\tb"


def test_surrogate_halves_in_two_deltas_become_their_character() -> None:
    body = sse(say("a\ud83d"), say("\ude00b"), STOP)
    assert message(body).content == "a\U0001f600b"
    pieces = [e.delta for e in events(body) if isinstance(e, ContentDelta)]
    assert pieces == ["a", "\U0001f600b"]


def test_surrogate_half_without_partner_becomes_a_replacement_character() -> None:
    body = sse(say("a\ud83d"), say("b"), say("c\ude00"), say("\ud83d"), STOP)
    assert message(body).content == "a\ufffdbc\ufffd\ufffd"
    pieces = [e.delta for e in events(body) if isinstance(e, ContentDelta)]
    assert "".join(pieces) == "a\ufffdbc\ufffd\ufffd"


def test_json_body_cut_anywhere_is_truncated() -> None:
    body = json.dumps({**WHOLE, "usage": None, "seed": -1.5, "ok": True}).encode()
    for end in range(1, len(body)):
        assert isinstance(read([body[:end]])[2], StreamCut), body[:end]


# ------------------------------------------------------------------------- choices, text, metadata


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": None},
        {"choices": []},
        {"id": "c1"},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0}]},
        {"choices": {}},
    ],
    ids=str,
)
def test_chunk_without_choice_or_delta_says_nothing(odd: dict[str, Any]) -> None:
    assert message(sse(odd, say("Hel"), odd, say("lo"), STOP, odd)).content == "Hello"


def test_repeated_words_of_an_honest_server_are_kept() -> None:
    body = sse(say("ha"), say("ha"), say("ha"), say("hahaha"), STOP)
    assert message(body).content == "hahahahahaha"


def test_index_that_counts_chunks_leaves_one_answer() -> None:
    body = sse(*(chunk({"content": t}, index=i) for i, t in enumerate("Hello")), STOP)
    assert message(body).content == "Hello"


def test_whole_message_beside_its_deltas_is_not_added() -> None:
    first = {"choices": [{"index": 0, "delta": {"content": "Hel"}, "message": {"content": "Hel"}}]}
    last = {
        "choices": [
            {"delta": {"content": "lo"}, "message": {"content": "Hello"}, "finish_reason": "stop"}
        ]
    }
    assert message(sse(first, last)).content == "Hello"


def test_whole_message_in_another_choice_after_the_deltas_is_not_added() -> None:
    last = {
        "choices": [
            {"index": 0, "finish_reason": "stop"},
            {"index": 1, "message": {"content": "Hello"}},
        ]
    }
    assert message(sse(say("Hel"), say("lo"), last)).content == "Hello"


def test_usage_and_finish_reason_beside_a_repeated_message_count() -> None:
    last = {**WHOLE, "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    completion, _ = outcome(sse(say("Hello"), last))
    assert completion is not None
    assert completion.usage is not None
    assert (completion.text, completion.finish_reason, completion.usage.total_tokens) == (
        "Hello",
        "stop",
        3,
    )


def test_whole_message_after_deltas_with_reasoning_only_fills_the_content() -> None:
    last = {
        "choices": [
            {
                "index": 0,
                "message": {"content": "Hello", "reasoning_content": "hm"},
                "finish_reason": "stop",
            }
        ]
    }
    got = message(sse(chunk({"reasoning_content": "hm"}), last))
    assert (got.content, got.reasoning) == ("Hello", "hm")


def test_text_in_messages_instead_of_deltas_is_joined() -> None:
    body = sse(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hel"}}]},
        {"choices": [{"index": 0, "message": {"content": "lo"}, "finish_reason": "stop"}]},
    )
    assert message(body).content == "Hello"


def test_message_of_the_older_completions_format_is_text() -> None:
    body = sse(
        {"choices": [{"text": "Hel"}]}, {"choices": [{"text": "lo", "finish_reason": "stop"}]}
    )
    assert message(body).content == "Hello"


def test_metadata_blank_in_the_first_chunk_comes_from_a_later_one() -> None:
    azure = {
        "id": "",
        "object": "",
        "created": 0,
        "model": "",
        "choices": [],
        "prompt_filter_results": [],
    }
    completion, _ = outcome(sse(azure, {**say("Hello"), "created": 5}, STOP))
    assert completion is not None
    assert (completion.id, completion.model, completion.created) == ("c1", "m", 5)


def test_thinking_part_in_list_content_is_reasoning() -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]},
        {"type": "text", "text": "Hello"},
        {"type": "reference", "reference_ids": [1]},
    ]
    got = message(sse(say(parts), STOP))
    assert (got.content, got.reasoning) == ("Hello", "hm")
    assert got.model_extra["content_parts"] == parts[2:]


def test_thinking_part_beside_null_reasoning_content_is_reasoning() -> None:
    delta = {
        "reasoning_content": None,
        "content": [{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Hello"}],
    }
    assert message(sse(chunk(delta), STOP)).reasoning == "hm"


def test_reasoning_under_three_names_is_read_once() -> None:
    details = [{"type": "reasoning.text", "text": "hm"}]
    body = sse(
        chunk({"reasoning": "hm", "reasoning_content": "hm", "reasoning_details": details}),
        chunk({"reasoning": "", "reasoning_content": None, "reasoning_details": details}),
        STOP,
    )
    assert message(body).reasoning == "hmhm"


def test_late_signature_joins_the_thinking_block_before_it() -> None:
    blocks = [
        {"type": "thinking", "thinking": "a", "signature": ""},
        {"type": "thinking", "thinking": "b", "signature": None},
        {"type": "thinking", "thinking": "", "signature": "S"},
    ]
    body = sse(*(chunk({"thinking_blocks": [block]}) for block in blocks), say("Hello"), STOP)
    wanted = [{"type": "thinking", "thinking": "ab", "signature": "S"}]
    assert message(body).model_extra["thinking_blocks"] == wanted


def test_thinking_after_a_signature_begins_another_block() -> None:
    blocks = [
        {"type": "thinking", "thinking": "a", "signature": "S1"},
        {"type": "thinking", "thinking": "b", "signature": "S2"},
    ]
    body = sse(*(chunk({"thinking_blocks": [block]}) for block in blocks), say("Hello"), STOP)
    assert message(body).model_extra["thinking_blocks"] == blocks


def test_encrypted_blocks_in_a_row_stay_apart() -> None:
    blocks = [
        {"type": "reasoning.encrypted", "data": "AA=="},
        {"type": "reasoning.encrypted", "data": "BB=="},
    ]
    body = sse(*(chunk({"reasoning_details": [block]}) for block in blocks), say("Hello"), STOP)
    assert message(body).reasoning_details == blocks


def test_audio_in_padded_pieces_is_decoded_and_joined() -> None:
    body = sse(
        chunk({"audio": {"id": "au", "data": "AAE="}}),
        chunk({"audio": {"transcript": "he"}}),
        chunk({"audio": {"data": "AgM=", "transcript": "y"}}),
        chunk({"audio": {"expires_at": 5}}, "stop"),
    )
    wanted = {"id": "au", "data": "AAECAw==", "transcript": "hey", "expires_at": 5}
    assert message(body).audio == wanted


def test_null_after_a_value_erases_no_unknown_field_of_the_message() -> None:
    body = sse(chunk({"content": "a", "weight": 1}), chunk({"content": "b", "weight": None}), STOP)
    assert message(body).model_extra == {"weight": 1}


def test_null_after_a_value_erases_no_unknown_field_of_the_choice() -> None:
    last = chunk(finish="stop")
    last["choices"][0]["stop_reason"] = "END"
    after = chunk()
    after["choices"][0]["stop_reason"] = None
    completion, _ = outcome(sse(say("Hello"), last, {**after, "seed": 1}))
    assert completion is not None
    assert completion.choices[0].model_extra == {"stop_reason": "END"}


def test_two_choices_with_textual_and_missing_indexes_stay_apart() -> None:
    body = sse(
        chunk({"content": "A"}, index=None),
        chunk({"content": "B"}, index="1"),
        chunk({"content": "a"}, "stop", index=None),
        chunk({"content": "b"}, "stop", index="1"),
    )
    completion, error = outcome(body, n=2)
    assert error is None
    assert completion is not None
    assert [choice.message.content for choice in completion.choices] == ["Aa", "Bb"]


def test_stream_that_ends_before_its_second_choice_began_is_truncated() -> None:
    body = sse(chunk({"content": "A"}, "stop", index=0), done=False)
    assert isinstance(failure(body, n=2), StreamCut)


def test_json_answer_of_a_server_that_ignores_n_is_no_failure() -> None:
    assert message(json.dumps(WHOLE).encode(), n=2).content == "Hello"


# --------------------------------------------------------------------------------------- tool calls


def test_fragments_without_index_follow_the_open_call() -> None:
    body = calling(
        call(None, "a", "f", ""), call(arguments='{"x"'), call(arguments=":1}"),
        call(None, "b", "g", ""), call(arguments='{"y"'), call(arguments=":2}"),
    )  # fmt: skip
    assert calls(body) == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


@pytest.mark.parametrize("second", ["g", "f"])
def test_whole_calls_that_all_bear_index_zero_stay_apart(second: str) -> None:
    body = calling(call(0, "a", "f", '{"x":1}'), call(0, "b", second, '{"x":1}'))
    assert calls(body) == [("a", "f", '{"x":1}'), ("b", second, '{"x":1}')]


def test_indexes_with_gaps_are_labels() -> None:
    body = calling(
        call(3, "a", "f", "{"),
        call(1, "b", "g", "{"),
        call(3, arguments="}"),
        call(1, arguments="}"),
    )
    assert calls(body) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_index_as_text_is_the_number() -> None:
    body = calling(call("0", "a", "f", "{"), call(0, arguments="}"), call("1", "b", "g", "{}"))
    assert calls(body) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_name_on_every_fragment_without_id_is_a_repeat() -> None:
    body = calling(call(0, "a", "f", "{"), call(0, None, "f", '"x":1'), call(0, None, "f", "}"))
    assert calls(body) == [("a", "f", '{"x":1}')]


def test_new_id_on_every_fragment_without_name_is_an_alias() -> None:
    body = calling(call(0, "a", "f", "{"), call(0, "b", None, '"x":1'), call(0, "c", None, "}"))
    assert calls(body) == [("a", "f", '{"x":1}')]


def test_another_name_at_the_index_of_a_whole_call_is_another_call() -> None:
    got = calls(calling(call(0, None, "f", "{}"), call(0, None, "g", "{}")))
    assert [one[1:] for one in got] == [("f", "{}"), ("g", "{}")]


def test_name_null_as_text_after_the_name_is_no_name() -> None:
    body = calling(call(0, "a", "f", "{"), call(0, "", "null", "}"))
    assert calls(body) == [("a", "f", "{}")]


def test_call_that_never_gets_arguments_has_an_empty_object() -> None:
    body = calling(call(0, "a", "f", ""), call(1, "b", "g"))
    assert calls(body) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_valid_arguments_are_left_as_the_model_wrote_them() -> None:
    text = ' { "x" : 1.0, "x": 1.0, "e": {} }\n'
    assert calls(calling(call(0, "a", "f", text[:9]), call(0, arguments=text[9:]))) == [
        ("a", "f", text)
    ]


def test_one_call_as_an_object_instead_of_a_list_is_read() -> None:
    body = sse(
        chunk({"tool_calls": call(0, "a", "f", '{"x"')}),
        chunk({"tool_calls": call(0, arguments=":1}")}),
        chunk(finish="tool_calls"),
    )
    assert calls(body) == [("a", "f", '{"x":1}')]


def test_entries_that_are_no_objects_are_ignored() -> None:
    body = sse(
        chunk({"tool_calls": [None, "x", 5, call(0, "a", "f", "{}")]}), chunk(finish="tool_calls")
    )
    assert calls(body) == [("a", "f", "{}")]


def test_hollow_entry_opens_no_call() -> None:
    body = calling(call(0), call(1, "", "", ""), call(2, "a", "f", "{}"))
    assert calls(body) == [("a", "f", "{}")]


def test_older_function_call_in_pieces_is_joined() -> None:
    body = sse(
        chunk({"content": None, "function_call": {"name": "f", "arguments": ""}}),
        chunk({"function_call": {"name": None, "arguments": '{"x"'}}),
        chunk({"function_call": {"arguments": ":1}"}}),
        chunk(finish="function_call"),
    )
    got = message(body).function_call
    assert got is not None
    assert (got.name, got.arguments) == ("f", '{"x":1}')


def test_unknown_field_of_a_call_is_kept() -> None:
    body = calling(call(0, "a", "f", "{}", extra_content={"google": {"thought_signature": "S"}}))
    (got,) = message(body).tool_calls or []
    assert got.model_extra == {"extra_content": {"google": {"thought_signature": "S"}}}


def test_null_on_a_later_fragment_erases_no_unknown_field_of_a_call() -> None:
    body = calling(
        call(0, "a", "f", "{", extra_content={"signature": "S"}),
        call(0, arguments="}", extra_content=None),
    )
    (got,) = message(body).tool_calls or []
    assert got.model_extra == {"extra_content": {"signature": "S"}}


def test_unknown_field_of_a_function_stays_where_the_server_put_it() -> None:
    fragment = call(0, "a", "f", "{}")
    fragment["function"]["thought_signature"] = "S"
    (got,) = message(calling(fragment)).tool_calls or []
    assert got.function.model_extra == {"thought_signature": "S"}


def test_argument_objects_that_differ_in_type_only_are_two_calls() -> None:
    got = calls(calling(call(0, "a", "f", '{"x":1}{"x":true}')))
    assert [one[2] for one in got] == ['{"x":1}', '{"x":true}']


def test_arguments_object_with_a_very_long_integer_is_dumped() -> None:
    body = calling(call(0, "a", "f", {"n": 10**30}))
    assert calls(body) == [("a", "f", f'{{"n":{10**30}}}')]


def test_arguments_object_with_half_a_surrogate_pair_is_dumped() -> None:
    body = calling(call(0, "a", "f", {"n": "\ud83d"}))
    assert calls(body) == [("a", "f", '{"n":"\ufffd"}')]


def test_joined_argument_deltas_equal_arguments_that_end_in_half_a_pair() -> None:
    body = sse(chunk({"tool_calls": [call(0, "a", "f", '{"x":"\ud83d')]}), chunk(finish="length"))
    told = "".join(e.arguments_delta for e in events(body) if isinstance(e, ToolCallDelta))
    assert told == calls(body)[0][2]


def test_done_event_of_a_call_without_id_has_the_id_of_the_message() -> None:
    body = calling(call(0, None, "f", "{}"))
    (done,) = (e for e in events(body) if isinstance(e, ToolCallDone))
    assert done.id == calls(body)[0][0]


@pytest.mark.parametrize(
    "delta",
    [
        {"function_call": {"name": "f", "arguments": '{"x":"\ud83d"}'}},
        {"tool_calls": [call(0, "a", "f\ud83d", "{}")]},
        {"reasoning_details": [{"type": "reasoning.text", "text": "\ud83d"}]},
        {"unknown": "\ud83d"},
    ],
    ids=["function_call", "name", "reasoning_details", "unknown"],
)
def test_every_text_of_an_answer_can_be_sent_back_as_utf8(delta: dict[str, Any]) -> None:
    completion, _ = outcome(sse(chunk(delta), STOP))
    assert completion is not None
    completion.to_json().encode()


# --------------------------------------------------------------------------- finish, usage, the end


def test_stop_after_tool_calls_leaves_the_telling_reason() -> None:
    completion, _ = outcome(sse(chunk(finish="length"), chunk({"content": "x"}, "stop")))
    assert completion is not None
    assert completion.finish_reason == "length"


def test_blank_finish_reason_is_none() -> None:
    assert isinstance(failure(sse(chunk({"content": "Hello"}, ""), done=False)), StreamCut)
    completion, error = outcome(sse(chunk({"content": "Hello"}, "")))
    assert error is None
    assert completion is not None
    assert completion.finish_reason is None


def test_end_of_file_without_finish_reason_and_end_mark_is_truncated() -> None:
    error = failure(sse(say("Hel"), say("lo"), done=False))
    assert isinstance(error, StreamCut)
    assert error.partial is not None
    assert error.partial.text == "Hello"


USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def usage_of(*found: Any) -> tuple[Any, ...] | None:
    chunks = [{"choices": [], "usage": one} for one in found]
    completion, error = outcome(sse(say("Hello"), STOP, *chunks))
    assert error is None
    assert completion is not None
    usage = completion.usage
    return (
        usage
        if usage is None
        else (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
    )


def test_running_usage_is_the_last_count_and_no_sum() -> None:
    assert usage_of({"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4}, USAGE) == (
        3,
        2,
        5,
    )


@pytest.mark.parametrize(
    "late", [None, {}, {"completion_tokens_details": None}, {"prompt_tokens": None}]
)
def test_empty_usage_after_the_count_erases_nothing(late: Any) -> None:
    assert usage_of(USAGE, late) == (3, 2, 5)


def test_usage_in_pieces_is_put_together() -> None:
    assert usage_of({"prompt_tokens": 3}, {"completion_tokens": 2}) == (3, 2, 5)


def test_usage_of_nothing_but_nulls_is_none() -> None:
    assert usage_of(dict.fromkeys(USAGE)) is None


RUNNING = [
    chunk({"content": "a"}, usage={"prompt_tokens": 5, "completion_tokens": 1}),
    chunk({"content": "b"}, "stop", usage={"prompt_tokens": 5, "completion_tokens": 2}),
]


def test_total_is_right_although_a_snapshot_was_taken_in_between() -> None:
    reader = AnswerReader()
    reader.feed(sse(RUNNING[0], done=False))
    reader.snapshot()
    reader.feed(sse(RUNNING[1]))
    usage = reader.finish().usage
    assert usage is not None
    assert usage.total_tokens == 7


def test_usage_event_keeps_what_it_told() -> None:
    told = [e.usage.completion_tokens for e in events(sse(*RUNNING)) if isinstance(e, UsageReport)]
    assert told == [1, 2]


def test_chunk_keeps_the_usage_it_came_with() -> None:
    chunks = AnswerReader().feed_chunks(sse(*RUNNING))
    assert [c.usage.completion_tokens for c in chunks if c.usage is not None] == [1, 2]


def test_snapshot_stays_as_it_was() -> None:
    def one(text: str) -> dict[str, Any]:
        made = chunk(
            {
                "content": text,
                "reasoning_details": [{"type": "reasoning.text", "text": text}],
                "images": [text],
            }
        )
        made["choices"][0]["logprobs"] = {"content": [{"token": text, "logprob": -1}]}
        return made

    reader = AnswerReader()
    reader.feed(sse(one("a"), done=False))
    snapshot = reader.snapshot()
    before = snapshot.to_json()
    reader.feed(sse(one("b"), done=False))
    assert snapshot.to_json() == before


# ------------------------------------------------------------------------------------------- errors


def test_error_beside_a_choice_keeps_the_last_words() -> None:
    last = {
        "choices": [{"delta": {"content": "lo"}, "finish_reason": "error"}],
        "error": {"code": 502, "message": "gone"},
    }
    error = failure(sse(say("Hel"), last))
    assert error.partial is not None
    assert (error.message, error.code, error.partial.text) == ("gone", 502, "Hello")


@pytest.mark.parametrize(
    "fault", [{"code": 502, "message": "gone"}, "gone"], ids=["object", "text"]
)
def test_error_inside_a_choice_is_an_error(fault: object) -> None:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "error", "error": fault}]}
    assert failure(sse(say("Hel"), last)).message == "gone"


def test_finish_reason_error_alone_is_an_error() -> None:
    error = failure(sse(say("Hel"), chunk(finish="error")))
    assert not isinstance(error, (ProtocolError, StreamCut))


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "slow"}},
        {"error": "slow"},
        {"error": [{"message": "slow"}]},
        [{"error": {"message": "slow"}}],
        {"object": "error", "message": "slow"},
        {"type": "error", "message": "slow"},
        {"type": "error", "error": {"type": "overloaded_error", "message": "slow"}},
        {"object": "error", "detail": "slow"},
        {"error": {"detail": [{"loc": ["body"], "msg": "slow"}]}},
        {"error": True, "message": "slow"},
    ],
    ids=str,
)
def test_words_of_a_failure_are_found_wherever_they_are(said: object) -> None:
    error = failure(sse(say("Hel"), said))
    assert not isinstance(error, (ProtocolError, StreamCut))
    assert error.message == "slow"


@pytest.mark.parametrize("code", [429, "429", "rate_limit_exceeded"])
@pytest.mark.parametrize("where", ["inside", "beside", "type"])
def test_rate_limit_in_mid_stream_is_told_by_its_code(code: object, where: str) -> None:
    said: dict[str, object] = {
        "inside": {"error": {"message": "slow", "code": code}},
        "beside": {"error": "slow", "code": code},
        "type": {"error": {"message": "slow", "type": "rate_limit_exceeded", "code": None}},
    }[where]  # type: ignore[assignment]  # the three are all dicts of objects
    error = failure(sse(say("Hel"), said))
    assert isinstance(error, RateLimitError)
    assert error.retryable


@pytest.mark.parametrize(
    "said",
    [
        {"error": {"message": "slow", "status": 429}},
        {"error": {"message": "slow", "status_code": 429}},
        {"error": "slow", "status": 429},
        {"error": {"message": "slow", "code": None}, "code": 429},
        {"error": {"message": "slow", "code": 429.0}},
    ],
    ids=str,
)
def test_rate_limit_in_mid_stream_is_told_by_its_status(said: object) -> None:
    assert isinstance(failure(sse(say("Hel"), said)), RateLimitError)


@pytest.mark.parametrize("field", [b"event: error\ndata: ", b"error: "])
@pytest.mark.parametrize("text", [b"Overloaded", b"Internal server error"])
def test_error_event_in_plain_words_is_an_error_with_these_words(
    field: bytes, text: bytes
) -> None:
    error = failure(sse(say("Hel"), done=False) + field + text + b"\n\n")
    assert not isinstance(error, (ProtocolError, StreamCut))
    assert error.message == text.decode()


def test_failure_with_half_a_surrogate_pair_and_no_message_is_an_error() -> None:
    error = failure(sse(say("Hel"), {"error": {"reason": "\ud83d"}}))
    assert "reason" in error.message


def test_deeply_nested_list_is_a_protocol_error() -> None:
    _, _, error = read([sse(say("Hel"), b"[" * 500 + b"]" * 500)])
    assert isinstance(error, ProtocolError)


def test_json_list_of_chunks_that_ends_in_an_error_keeps_the_text() -> None:
    error = failure(json.dumps([say("Hel"), say("lo"), {"error": {"message": "gone"}}]).encode())
    assert error.partial is not None
    assert error.partial.text == "Hello"


def test_tags_are_split_off_and_told_as_reasoning_when_asked() -> None:
    body = sse(say("<thi"), say("nk>h"), say("m</th"), say("ink>Hello"), STOP)
    got = events(body, split_think_tags=True)
    assert "".join(e.delta for e in got if isinstance(e, ReasoningDelta)) == "hm"
    assert "".join(e.delta for e in got if isinstance(e, ContentDelta)) == "Hello"


def test_integer_beyond_the_range_of_a_float_costs_nothing_but_its_field() -> None:
    body = sse({**chunk({"content": "Hello"}, "stop"), "created": 10**400, "error": None})
    assert message(body).content == "Hello"


def test_deeply_nested_thinking_part_breaks_nothing() -> None:
    deep = b"[" * 400 + b"]" * 400
    body = sse(b'{"choices":[{"delta":{"content":[{"thinking":%b}]}}]}' % deep, say("Hello"), STOP)
    assert isinstance(read([body])[2], ProtocolError | None)


def test_metadata_of_the_last_chunk_that_has_it_is_the_same_in_every_mode() -> None:
    body = sse(
        chunk({"content": "a"}, system_fingerprint="f1"),
        chunk({"content": "b"}, system_fingerprint="f2"),
    )
    reader = AnswerReader()
    reader.feed_chunks(body)
    completion, _ = outcome(body)
    assert completion is not None
    assert completion.system_fingerprint == reader.finish().system_fingerprint == "f2"
