"""The body of an answer: framings, verdicts, what errors keep, chunks, and bodies read whole."""

import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from asyncchat.errors import (
    APIError,
    AsyncChatError,
    LimitExceeded,
    ProtocolError,
    RateLimitError,
    StreamCut,
)
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.events import (
    ContentDelta,
    ContentDone,
    Finish,
    ReasoningDelta,
    ToolCallDelta,
)
from asyncchat.protocol.response import Timing
from tests.protocol.frames import (
    HELLO,
    STOP,
    WHOLE,
    call,
    calling,
    chunk,
    finished,
    read_chunks,
    read_events,
    say,
    sse,
)
from tests.wire import cut, read

JSON = json.dumps(WHOLE).encode()
FRAMES = [say("Hel"), say("lo"), STOP]


def text(body: bytes, **options: Any) -> str:
    _, completion, error = read([body], **options)
    assert error is None, repr(error)
    assert completion is not None
    return completion.text


def failure(body: bytes, **options: Any) -> AsyncChatError:
    error = read([body], **options)[2]
    assert error is not None
    return error


# ------------------------------------------------------------------------------------------- framings


@pytest.mark.parametrize(
    "body",
    [
        HELLO,
        b"\xef\xbb\xbf\r\n " + HELLO,
        b": comment first\n\n" + HELLO,
        JSON,
        json.dumps(WHOLE, indent=2).encode(),
        b"\n" + JSON + b"\n[DONE]\n",
        json.dumps(FRAMES).encode(),
        b"\n".join(json.dumps(frame).encode() for frame in FRAMES),
        b"\n\n".join(json.dumps(frame).encode() for frame in FRAMES) + b"\n",
        b"".join(json.dumps(frame).encode() for frame in FRAMES),
    ],
    ids=[
        "sse",
        "bom",
        "comment",
        "json",
        "indented",
        "json+done",
        "list",
        "lines",
        "spaced",
        "row",
    ],
)
def test_framing_is_told_by_the_first_byte(body: bytes) -> None:
    assert text(body) == "Hello"


def test_json_lines_are_told_as_they_come() -> None:
    reader = AnswerReader()
    assert reader.feed(json.dumps(say("Hel")).encode() + b"\n") == [ContentDelta("Hel")]


def test_bad_line_after_good_ones_is_an_error_that_keeps_them() -> None:
    error = failure(json.dumps(say("Hel")).encode() + b"\n{bad\n")
    assert isinstance(error, ProtocolError)
    assert error.partial is not None
    assert error.partial.text == "Hel"


def test_end_mark_among_json_lines_ends_the_answer() -> None:
    lines = [json.dumps(say("Hello")).encode(), b"[DONE]", json.dumps(say("late")).encode()]
    assert text(b"\n".join([*lines, b""])) == "Hello"


def test_white_space_alone_is_an_empty_body() -> None:
    error = failure(b" \r\n\xef\xbb\xbf")
    assert isinstance(error, ProtocolError)


def test_nothing_at_all_is_an_empty_body() -> None:
    assert "an empty body" in failure(b"").message


def test_web_page_is_named_with_its_content_type() -> None:
    error = failure(b"<html>", content_type="text/html")
    assert isinstance(error, ProtocolError)
    assert "a web page" in error.message
    assert "text/html" in error.message
    assert "/v1" in error.hint


@pytest.mark.parametrize(
    "body", [b"Not Found", b"data: two words\n\n", b"data: 7\n\n", b"[7]", b'data: "x"\n\n']
)
def test_body_that_is_no_answer_is_a_protocol_error(body: bytes) -> None:
    assert isinstance(failure(body), ProtocolError)


def test_choices_of_another_kind_are_a_protocol_error() -> None:
    assert "choices" in failure(sse({"choices": "none"})).message


def test_value_that_is_no_object_under_another_event_name_is_a_keepalive() -> None:
    assert text(b"event: ping\ndata: 1700000000\n\n" + HELLO) == "Hello"


DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    "body",
    [sse(DEEP), DEEP, DEEP + b"\n", b"data: " + DEEP, b'{"detail":[' * 600 + b"1" + b"]}" * 600],
)
def test_body_nested_too_deep_is_an_error_and_no_crash(body: bytes) -> None:
    assert isinstance(failure(body), (ProtocolError, StreamCut))


def nested(depth: int) -> bytes:
    return b'{"detail":[' * depth + b"1" + b"]}" * depth


@pytest.mark.parametrize(
    "body", [sse(nested(400)), nested(400) + b"\n", nested(400), b"data: " + nested(400)]
)
def test_failure_nested_deeper_than_its_words_are_looked_for_is_an_error(body: bytes) -> None:
    assert isinstance(failure(body), APIError)


# --------------------------------------------------------------------------------------------- verdicts


def test_end_mark_finishes_an_answer_without_finish_reason() -> None:
    assert text(sse(say("Hello"))) == "Hello"


def test_finish_reason_finishes_an_answer_without_end_mark() -> None:
    assert text(sse(say("Hello"), STOP, done=False)) == "Hello"


def test_neither_is_a_cut_that_keeps_the_text() -> None:
    error = failure(sse(say("Hello"), done=False))
    assert isinstance(error, StreamCut)
    assert error.partial is not None
    assert error.partial.text == "Hello"


def test_end_mark_with_half_a_call_and_no_finish_reason_is_a_cut() -> None:
    error = failure(sse(chunk({"tool_calls": [call(0, "a", "f", "{")]})))
    assert isinstance(error, StreamCut)
    assert "arguments" in error.message


def test_end_inside_an_event_is_a_cut_even_after_a_finish_reason() -> None:
    error = failure(sse(say("Hello"), STOP, done=False) + b'data: {"choices": [], "usa')
    assert isinstance(error, StreamCut)
    assert "inside an event" in error.message


def test_end_inside_a_json_body_is_a_cut() -> None:
    error = failure(JSON[:-10])
    assert isinstance(error, StreamCut)
    assert "inside its JSON" in error.message


def test_json_body_cut_right_after_an_escape_is_a_cut() -> None:
    assert isinstance(failure(b'{"choices":[{"message":{"content":"\\u00e9'), StreamCut)


def test_json_body_that_is_wrong_is_a_protocol_error() -> None:
    assert isinstance(failure(b'{"choices": nonsense}'), ProtocolError)


def test_last_event_without_its_blank_line_counts() -> None:
    assert text(
        sse(say("Hel"), done=False)
        + b"data: "
        + json.dumps(chunk({"content": "lo"}, "stop")).encode()
    ) == ("Hello")


@pytest.mark.parametrize("body", [sse(), sse({"choices": []}), b": ping\n\n", b"{}"])
def test_answer_without_a_choice_is_a_protocol_error(body: bytes) -> None:
    error = failure(body)
    assert isinstance(error, ProtocolError)
    assert "without a choice" in error.message


def test_whole_answer_in_json_ends_at_its_brace_without_a_finish_reason() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": None}]}
    assert text(json.dumps(whole).encode()) == "Hello"


def test_whole_answer_in_json_ends_at_its_brace_for_a_reader_of_chunks_too() -> None:
    whole = {"choices": [{"index": 0, "message": {"content": "Hello"}, "finish_reason": None}]}
    completion, error = finished(read_chunks([json.dumps(whole).encode()]))
    assert error is None
    assert completion is not None
    assert completion.text == "Hello"


def test_nothing_is_read_after_the_end_mark() -> None:
    reader = AnswerReader()
    reader.feed(HELLO)
    assert reader.done
    assert reader.feed(sse(say("late"))) == []
    assert reader.finish().text == "Hello"


def test_nothing_is_read_after_an_error() -> None:
    reader = AnswerReader()
    reader.feed(sse(say("Hel"), {"error": "gone"}, done=False))
    assert reader.feed(sse(say("late"), done=False)) == []
    assert reader.snapshot().text == "Hel"


def test_answer_is_finished_before_its_end_once_every_choice_has_its_reason() -> None:
    reader = AnswerReader()
    reader.feed(sse(say("Hello"), done=False))
    assert not reader.is_finished
    reader.feed(sse(STOP, done=False))
    assert reader.is_finished


def test_answer_with_an_error_after_its_finish_reason_is_not_finished() -> None:
    reader = AnswerReader()
    reader.feed(sse(say("Hello"), STOP, {"error": "gone"}))
    assert not reader.is_finished


def test_finish_may_be_asked_for_twice() -> None:
    reader = AnswerReader()
    reader.feed(HELLO)
    assert reader.finish() is reader.finish() is reader.snapshot()


# ----------------------------------------------------------------------------------------------- errors


def test_events_before_an_error_in_the_same_read_are_told() -> None:
    events, partial, error = read_events([sse(say("Hel"), {"error": "gone"}, say("lo"))])
    assert events == [ContentDelta("Hel")]
    assert isinstance(error, APIError)
    assert partial is not None
    assert partial.text == "Hel"


def test_last_words_beside_an_error_are_told() -> None:
    events, partial, error = read_events([sse(say("Hel"), {**say("lo"), "error": "gone"})])
    assert events == [ContentDelta("Hel"), ContentDelta("lo")]
    assert error is not None
    assert partial is not None
    assert partial.text == "Hello"


def test_words_that_only_the_end_completed_are_told_before_the_cut() -> None:
    reader = AnswerReader()
    events = reader.feed(sse(say("Hel"), done=False) + b"data: " + json.dumps(say("lo")).encode())
    events += reader.end()
    assert events == [ContentDelta("Hel"), ContentDelta("lo")]
    with pytest.raises(StreamCut) as caught:
        reader.close()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "Hello"


def test_every_fact_of_a_failure_is_on_its_error() -> None:
    said = {"message": "gone\nforged", "code": 500, "type": "server_error", "param": "p"}
    error = failure(sse({"error": said}))
    assert isinstance(error, APIError)
    assert (error.message, error.code, error.type, error.param, error.retryable) == (
        "gone\\nforged",
        500,
        "server_error",
        "p",
        True,
    )


def test_rate_limit_in_mid_stream_is_its_own_error() -> None:
    error = failure(sse(say("Hel"), {"error": {"message": "slow", "code": 429}}))
    assert isinstance(error, RateLimitError)
    assert error.retryable


def test_failure_of_the_request_is_not_tried_again() -> None:
    assert not failure(sse({"error": {"message": "no such model", "code": 404}})).retryable


def test_finish_reason_error_is_a_failure() -> None:
    error = failure(sse(say("Hel"), chunk(finish="error")))
    assert type(error) is APIError


@pytest.mark.parametrize("data", [b"", b"null", b"   ", b'""'])
def test_error_event_without_a_word_is_an_error(data: bytes) -> None:
    error = failure(b"event: error\ndata: " + data + b"\n\n")
    assert type(error) is APIError


@pytest.mark.parametrize("content", [[], [{"index": 0, "delta": {"content": "lo"}}]])
def test_error_event_is_an_error_whatever_chunk_it_holds(content: list[Any]) -> None:
    body = sse(say("Hel"), done=False) + b"event: error\n" + sse({"choices": content})
    assert type(failure(body)) is APIError


def test_error_of_an_answer_pickles_with_its_partial() -> None:
    error = failure(
        sse({**say("Hel"), "provider": "p"}, {"error": {"message": "gone", "code": 500}})
    )
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.partial) == (type(error), str(error), error.partial)
    assert again.partial.provider == "p"


# ----------------------------------------------------------------------------------------------- limits


def test_answer_larger_than_allowed_is_refused() -> None:
    body = sse(say("Hel"), done=False)
    reader = AnswerReader(max_answer_bytes=len(body) + 5)
    reader.feed(body)
    reader.feed(b": ping\n")
    assert isinstance(reader.error, LimitExceeded)
    assert "max_answer_bytes" in reader.error.hint


def test_event_at_a_time_is_counted_too() -> None:
    body = sse(say("Hel"), done=False)
    reader = AnswerReader(max_answer_bytes=5 * len(body))
    for _ in range(6):
        reader.feed(body)
    assert isinstance(reader.error, LimitExceeded)
    assert reader.frames == 5


def test_event_larger_than_allowed_is_refused() -> None:
    reader = AnswerReader(max_event_bytes=1000)
    reader.feed(sse(say("Hel"), done=False))
    reader.feed(b"data: " + b"x" * 1001)
    assert isinstance(reader.error, LimitExceeded)
    assert reader.error.partial is not None
    assert reader.error.partial.text == "Hel"


def test_json_larger_than_allowed_is_refused() -> None:
    error = failure(b"{" + b" " * 1000, max_event_bytes=1000)
    assert isinstance(error, LimitExceeded)
    assert "max_event_bytes" in error.hint


def test_json_read_whole_that_is_larger_than_allowed_is_refused() -> None:
    with pytest.raises(LimitExceeded):
        AnswerReader(max_event_bytes=10).read_whole(JSON)


def test_json_lines_within_the_limit_may_be_many() -> None:
    line = json.dumps(say("a")).encode() + b"\n"
    reader = AnswerReader(max_event_bytes=2 * len(line))
    for _ in range(20):
        reader.feed(line)
    assert reader.error is None
    assert reader.snapshot().text == "a" * 20


# ------------------------------------------------------------------------------------------------ counts


def test_bytes_frames_and_lenient_decodes_are_counted() -> None:
    reader = AnswerReader()
    body = sse(say("a"), {**STOP, "created": "7"}, b'{"choices":[]}')
    reader.feed(body)
    assert (reader.received, reader.frames, reader.lenient_decodes) == (len(body), 3, 1)


def test_unknown_fields_cost_no_lenient_decode() -> None:
    reader = AnswerReader()
    reader.feed(sse(*({**say("a"), "x": number} for number in range(5)), say("b"), STOP))
    assert (reader.frames, reader.lenient_decodes) == (7, 0)


def test_answer_has_said_something_once_words_have_come() -> None:
    reader = AnswerReader()
    reader.feed(sse(chunk({"role": "assistant"}), done=False))
    assert not reader.has_said
    reader.feed(sse(say("a"), done=False))
    assert reader.has_said


# ------------------------------------------------------------------------------------------------- modes


def test_reader_without_events_tells_none() -> None:
    reader = AnswerReader(events=False)
    assert reader.feed(HELLO) == []
    assert reader.close() == []
    assert reader.finish().text == "Hello"


def test_close_tells_the_last_events_and_the_timing() -> None:
    reader, timing = AnswerReader(), Timing(total=1.0)
    reader.feed(HELLO)
    assert reader.close(timing) == [ContentDone("Hello"), Finish("stop", timing=timing)]


LEAN: dict[str, list[Any]] = {
    "content": [say("a"), say("b"), say("")],
    "reasoning": [chunk({"reasoning_content": "a"}), chunk({"reasoning": "b"}), chunk({"reasoning_content": ""})],
    "call": [
        chunk({"tool_calls": [call(0, "a", "f", "")]}),
        chunk({"tool_calls": [call(0, arguments="{")]}),
        chunk({"tool_calls": [call(0, arguments="")]}),
        chunk({"tool_calls": [call(0, arguments="}")]}),
    ],
    "turns": [
        chunk({"reasoning_content": "a"}), say("b"), chunk({"tool_calls": [call(0, "a", "f", "{}")]}),
        chunk({"reasoning_content": "c"}), say("d"), chunk({"tool_calls": [call(1, arguments="{}")]}),
    ],
    "two calls": [
        chunk({"tool_calls": [call(0, "a", "f", "{")]}), chunk({"tool_calls": [call(1, "b", "g", "{")]}),
        chunk({"tool_calls": [call(0, arguments="}")]}), chunk({"tool_calls": [call(1, arguments="}")]}),
    ],
    "nothing between pieces": [
        chunk({"tool_calls": [call(0, "a", "f", "{")]}), {"choices": []},
        chunk({"tool_calls": [call(0, arguments="}")]}),
    ],
    "two choices in a chunk": [
        chunk({"tool_calls": [call(0, "a", "f", "{")]}),
        {"choices": chunk({"tool_calls": [call(0, arguments='"x"')]})["choices"]
         + chunk({"tool_calls": [call(0, arguments=":1}")]})["choices"]},
    ],
    "role beside content": [chunk({"role": "model", "content": "a"}), say("b")],
    "role beside reasoning": [chunk({"reasoning": "a"}), chunk({"reasoning": "b", "role": "model"})],
    "role that comes late": [chunk({"reasoning": "a"}), chunk({"reasoning": "b", "role": "assistant"})],
    "type of a call that comes late": [
        chunk({"tool_calls": [call(0, "a", "f", "{")]}),
        chunk({"tool_calls": [call(0, arguments="}", type="custom")]}),
    ],
    "fingerprint that changes": [
        {**say("a"), "created": 7, "system_fingerprint": "f1"},
        {**say("b"), "created": 7, "system_fingerprint": "f2"},
    ],
    "provider that comes late": [{**say("a"), "created": 7}, {**say("b"), "provider": "p"}],
    "fingerprint in the midst": [
        {**say("a"), "created": 7}, {**say("b"), "created": 7, "system_fingerprint": "f1"}, say("c"), say("d"),
    ],
    "padding": [{**say("a"), "obfuscation": "xx"}],
}  # fmt: skip


@pytest.mark.parametrize("frames", LEAN.values(), ids=LEAN)
def test_lean_decoding_changes_no_answer(frames: list[Any]) -> None:
    bodies = [sse(one, done=False) for one in [*frames, STOP]]
    full = finished(read_chunks([b"".join(bodies)]))  # a reader of chunks decodes none lean
    assert read([b"".join(bodies)])[1:] == full
    assert read(bodies)[1:] == full  # each event in a read of its own
    assert read([body.replace(b"\n", b"\r\n") for body in bodies])[1:] == full


def test_one_event_in_a_read_is_told_as_among_others() -> None:
    bodies = [sse(one, done=False) for one in (*LEAN["turns"], STOP)]
    assert read_events(bodies)[0] == read_events([b"".join(bodies)])[0]


def test_read_that_looks_like_an_event_inside_another_is_none() -> None:
    body = sse(say("lo"), done=False)
    reader = AnswerReader()
    reader.feed(sse(say("Hel"), done=False))
    reader.feed(b": a comment that goes on ")
    assert reader.feed(body) == []


def test_tags_are_split_and_repetitions_left_out_where_asked() -> None:
    body = sse(say("<think>hm"), say("<think>hm</think>Hello"), STOP)
    events, completion, _ = read_events([body], split_think_tags=True, cumulative_content=True)
    assert ReasoningDelta("hm") in events
    assert completion is not None
    assert (completion.text, completion.message.reasoning) == ("Hello", "hm")


# ------------------------------------------------------------------------------ halves of characters


HALF = "\ud83d"
HALVES: list[dict[str, Any]] = [
    chunk({"content": "a"}) | {"id": HALF},
    chunk({"content": "a"}) | {"model": HALF},
    chunk({"content": "a"}) | {"system_fingerprint": HALF},
    chunk({"content": "a"}) | {"service_tier": HALF},
    chunk({"content": "a"}) | {"unknown": [HALF]},
    chunk({"content": "a"}) | {"unknown": {HALF: 1}},
    chunk({"content": "a"}) | {"unknown": {"content": HALF}},
    chunk({"content": "a"}) | {"content": HALF},
    chunk({"content": "a"}) | {HALF: 1},
    chunk({"content": "a"}) | {"usage": {"prompt_tokens": 1, "unknown": HALF}},
    chunk({"content": "a"}) | {"usage": {"prompt_tokens_details": {"unknown": HALF}}},
    {"choices": [{"finish_reason": HALF}]},
    {"choices": [{"unknown": HALF}]},
    {"choices": [{"text": HALF}]},
    {"choices": [{"message": {"role": HALF, "unknown": HALF}}]},
    {"choices": [{"logprobs": {"content": [{"token": HALF}]}}]},
    {"choices": [{"logprobs": {"refusal": [{"token": HALF}]}}]},
    {"choices": [{"logprobs": {"content": [{"token": "a", "unknown": HALF}]}}]},
    {"choices": [{"logprobs": {"content": [{"top_logprobs": [{"token": HALF}]}]}}]},
    {"choices": [{"logprobs": {"content": [{"token": "a"}], "unknown": HALF}}]},
    chunk({"role": HALF}),
    chunk({"content": HALF}),
    chunk({"reasoning": HALF}),
    chunk({"refusal": HALF}),
    chunk({"unknown": HALF}),
    chunk({"text": HALF}),
    chunk({"unknown": {"text": HALF}}),
    chunk({"annotations": [{"url": HALF}]}),
    chunk({"audio": {"id": HALF}}),
    chunk({"reasoning_details": [{"data": HALF}]}),
    chunk({"thinking_blocks": [{"thinking": HALF, "signature": HALF}]}),
    chunk({"content": [{"type": "image", "text": HALF}, {"type": "x", "content": HALF}]}),
    chunk({"function_call": {"name": HALF}}),
    chunk({"tool_calls": [call(0, HALF, "f")]}),
    chunk({"tool_calls": [call(0, "a", HALF)]}),
    chunk({"tool_calls": [call(0, "a", "f", {"x": HALF})]}),
    chunk({"tool_calls": [call(0, "a", "f", type=HALF)]}),
    chunk({"tool_calls": [call(0, "a", "f", unknown=HALF)]}),
    chunk({"tool_calls": [{**call(0, "a"), "function": {"name": "f", "unknown": HALF}}]}),
]


IN_CHUNKS: list[dict[str, Any]] = [
    {"choices": [{"message": {"content": HALF, "tool_calls": [call(0, "a", "f", HALF)]}}]},
    chunk({"annotations": [{"text": HALF}]}),
    chunk({"audio": {"transcript": HALF}}),
    chunk({"reasoning_details": [{"text": HALF}]}),
    chunk({"function_call": {"name": "f", "arguments": HALF}}),
    chunk({"tool_calls": [call(0, "a", "f", HALF)]}),
]
UNKNOWN_FIELDS: list[dict[str, Any]] = [
    chunk({"content": "a"}) | {"usage": {"prompt_tokens": 1, "text": HALF}},
    chunk({"content": "a"}) | {"usage": {"prompt_tokens_details": {"text": HALF}}},
    {"choices": [{"logprobs": {"content": [{"token": "a", "text": HALF}]}}]},
    chunk({"tool_calls": [call(0, "a", "f", text=HALF)]}),
    chunk({"tool_calls": [{**call(0, "a"), "function": {"name": "f", "text": HALF}}]}),
]


def halves() -> list[Any]:
    found = [*HALVES, *IN_CHUNKS, *UNKNOWN_FIELDS]
    return [pytest.param(one, id=f"{n} {ascii(one)[-70:]}") for n, one in enumerate(found)]


@pytest.mark.parametrize("frame", halves())
def test_half_of_a_character_anywhere_in_an_answer_leaves_text_that_encodes(
    frame: dict[str, Any],
) -> None:
    completion, error = read([sse(frame, chunk(finish="length"))])[1:]
    assert error is None
    assert completion is not None
    text = completion.to_json().encode().decode()
    assert "\ufffd" in text or "usage" not in frame


@pytest.mark.parametrize("frame", halves())
def test_half_of_a_character_anywhere_in_an_answer_leaves_chunks_that_encode(
    frame: dict[str, Any],
) -> None:
    reader = AnswerReader()
    found = reader.feed_chunks(sse(frame, chunk(finish="length")))
    for one in [*found, *reader.close_chunks()]:
        one.to_json().encode()


# ------------------------------------------------------------------------------------------------ chunks


def chunks(body: bytes, **options: Any) -> list[dict[str, Any]]:
    reader = AnswerReader(**options)
    found = reader.feed_chunks(body)
    return [one.to_dict() for one in [*found, *reader.close_chunks()]]


def test_chunks_are_what_the_server_sent() -> None:
    sent = [
        {**say("a"), "provider": "p"},
        chunk({"tool_calls": [call(0, "a", "f", "{}", extra_content=[1])], "weight": 1}),
        chunk({"reasoning": "hm"}, "stop"),
    ]
    for frame in sent:
        if frame["choices"][0]["finish_reason"] is None:
            del frame["choices"][0]["finish_reason"]
    assert chunks(sse(*sent)) == sent


def test_whole_message_is_shown_to_a_reader_of_chunks_as_a_delta() -> None:
    (only,) = chunks(JSON)
    assert only["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    ]


def test_message_that_repeats_the_deltas_is_no_delta_of_its_own() -> None:
    found = chunks(sse(say("Hello"), {**WHOLE, "object": "chat.completion.chunk"}))
    deltas = [one["choices"][0]["delta"].get("content") for one in found]
    assert deltas == ["Hello", None]


def test_text_in_messages_instead_of_deltas_is_joined_for_a_reader_of_chunks_too() -> None:
    body = sse(
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hel"}}]},
        {"choices": [{"index": 0, "message": {"content": "lo"}, "finish_reason": "stop"}]},
    )
    completion, error = finished(read_chunks([body]))
    assert error is None
    assert completion is not None
    assert completion.text == "Hello"


def test_halves_of_a_character_come_in_the_chunk_of_the_second() -> None:
    found = chunks(sse(say("a\ud83d"), say("\ude00"), STOP))
    assert [one["choices"][0]["delta"].get("content") for one in found] == [
        "a",
        "\U0001f600",
        None,
    ]


def test_half_without_partner_comes_in_a_chunk_of_its_own() -> None:
    found = chunks(sse(chunk({"reasoning": "a\ud83d"}), STOP))
    deltas = [one["choices"][0]["delta"] for one in found]
    assert deltas == [{"reasoning": "a"}, {}, {"reasoning": "\ufffd"}]


def test_chunk_that_only_the_end_completes_comes_at_the_end() -> None:
    reader = AnswerReader()
    assert (
        reader.feed_chunks(b"data: " + json.dumps(chunk({"content": "a"}, "stop")).encode()) == []
    )
    (last,) = reader.close_chunks()
    assert last.choices[0].delta.content == "a"


def test_closing_chunks_raises_as_closing_does() -> None:
    reader = read_chunks([sse(say("a"), done=False)])
    with pytest.raises(StreamCut):
        reader.close_chunks()


# --------------------------------------------------------------------------------------- read in one piece


def whole(**changes: Any) -> bytes:
    made = json.loads(JSON)
    made["choices"][0] |= {
        k: v for k, v in changes.items() if k in ("finish_reason", "index", "logprobs")
    }
    made["choices"][0]["message"] |= changes.pop("message", {})
    made |= {
        k: v
        for k, v in changes.items()
        if k in ("usage", "object", "provider", "choices", "error")
    }
    return json.dumps(made).encode()


@pytest.mark.parametrize(
    "body",
    [
        JSON,
        whole(provider="p", message={"weight": 1}),
        whole(usage={"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}),
        whole(usage={"prompt_tokens": 1, "completion_tokens": 2}),
        whole(usage={"prompt_tokens": "1"}),
        whole(message={"tool_calls": [call(None, "a", "f", {"x": 1})]}),
        whole(message={"tool_calls": [call(0, None, "f", "{}"), call(0, None, "f", "{}")]}),
        whole(message={"function_call": {"name": "f", "arguments": "{}"}}),
        whole(message={"audio": {"id": "a", "data": "AA==", "transcript": "x"}}),
        whole(message={"content": [{"type": "text", "text": "Hello"}]}),
        whole(message={"content": None, "reasoning": "hm"}),
        whole(message={"role": ""}),
        whole(message={"content": "\ud83d\ude00\ud83d"}),
        whole(finish_reason=None),
        whole(finish_reason=""),
        whole(finish_reason="error"),
        whole(index=3),
        whole(index=None),
        whole(object="error"),
        whole(error={"message": "gone", "code": 500}),
        whole(logprobs={"content": [{"token": "Hello", "logprob": -1.5}]}),
        whole(choices=[]),
        whole(choices=None),
        JSON[:-5],
        JSON + b"\n[DONE]",
        json.dumps({"detail": "Not Found"}).encode(),
        b'{"a":1} nonsense',
        b"[]",
        b"7",
        b"",
        b"<html>",
        HELLO,
        calling(call(0, "a", "f", "{}")),
        DEEP,
    ],
    ids=lambda body: ascii(body)[:60],
)  # fmt: skip
def test_body_read_whole_is_what_feeding_it_gives(body: bytes) -> None:
    _, completion, error = read([body])
    reader = AnswerReader()
    try:
        got: Any = reader.read_whole(body).to_json()
    except AsyncChatError as caught:
        got = (type(caught), caught.message)
    assert completion is not None
    assert got == (completion.to_json() if error is None else (type(error), error.message))


def test_body_of_several_answers_read_whole_has_them_all() -> None:
    choice = json.loads(JSON)["choices"][0]
    body = whole(choices=[choice, {**choice, "index": 1}])
    assert len(AnswerReader(2).read_whole(body).choices) == 2


def test_more_answers_than_asked_for_are_one() -> None:
    choice = json.loads(JSON)["choices"][0]
    body = whole(choices=[choice, {**choice, "index": 1}])
    assert [one.message.content for one in AnswerReader().read_whole(body).choices] == ["Hello"]


def test_reader_that_has_read_a_body_whole_is_done() -> None:
    reader = AnswerReader()
    made = reader.read_whole(JSON)
    assert reader.done
    assert reader.finish() is made


def test_tags_in_a_body_read_whole_are_split_where_asked() -> None:
    body = whole(message={"content": "<think>hm</think>Hello"})
    made = AnswerReader(split_think_tags=True).read_whole(body)
    assert (made.text, made.message.reasoning) == ("Hello", "hm")


# ---------------------------------------------------------------------------------------------- any cut


def same(body: bytes, act: Callable[[list[bytes]], object]) -> None:
    wanted = act([body])
    for position in range(1, len(body), 3):
        assert act(cut(body, [position])) == wanted


@pytest.mark.parametrize("frames", LEAN.values(), ids=LEAN)
def test_answer_of_lean_frames_is_the_same_however_it_is_cut(frames: list[Any]) -> None:
    same(sse(*frames, STOP), lambda pieces: read_events(pieces)[:2])


def test_piece_of_arguments_is_told_before_the_next_event_has_begun() -> None:
    reader = AnswerReader()
    reader.feed(sse(chunk({"tool_calls": [call(0, "a", "f", "{")]}), done=False))
    assert reader.feed(sse(chunk({"tool_calls": [call(0, arguments="}")]}), done=False)) == [
        ToolCallDelta(0, "}")
    ]
