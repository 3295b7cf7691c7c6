"""What a script becomes as bytes. The reading side here is three lines, and no code of ours."""

from typing import Any

import msgspec
import pytest

from asyncchat.testing import ReceivedRequest, Reply
from asyncchat.testing.wire import BEFORE_HEADERS, Answer, Script, error_body, render


def asked(**body: object) -> ReceivedRequest:
    return ReceivedRequest(
        method="POST",
        path="/v1/chat/completions",
        query={},
        headers={},
        body={"model": "m", "messages": [{"role": "user", "content": "a b c"}], **body},
        raw=b"",
        connection=1,
        at=0.0,
    )


def answered(reply: Reply, **body: object) -> Answer:
    return render(reply.script, asked(**body), serial=7)


def data_of(answer: Answer) -> list[bytes]:
    frames = answer.body.split(b"\n\n")[:-1]
    return [frame.removeprefix(b"data: ") for frame in frames if not frame.startswith(b":")]


def chunks_of(answer: Answer) -> list[Any]:
    return [msgspec.json.decode(data) for data in data_of(answer) if data != b"[DONE]"]


def deltas_of(answer: Answer, index: int = 0) -> list[Any]:
    return [
        choice["delta"]
        for chunk in chunks_of(answer)
        for choice in chunk["choices"]
        if choice["index"] == index
    ]


def document_of(answer: Answer) -> Any:
    return msgspec.json.decode(answer.body)


# ------------------------------------------------------------------------------------- the stream
def test_text_is_streamed_word_by_word_between_role_and_finish() -> None:
    answer = answered(Reply().say("Hello there, you.\n"), stream=True)
    chunks = chunks_of(answer)
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello"},
        {"content": " there,"},
        {"content": " you."},
        {"content": "\n"},
        {},
    ]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * 5 + ["stop"]
    assert {(chunk["id"], chunk["object"], chunk["model"]) for chunk in chunks} == {
        ("chatcmpl-7", "chat.completion.chunk", "m")
    }
    assert data_of(answer)[-1] == b"[DONE]"
    assert answer.headers == {"Content-Type": "text/event-stream", "x-request-id": "req_7"}
    assert answer.chunked


def test_each_event_is_one_write() -> None:
    answer = answered(Reply().say("a b"), stream=True)
    assert [piece for _, piece in answer.writes()] == [
        b"data: " + data + b"\n\n" for data in data_of(answer)
    ]


def test_a_list_is_streamed_piece_by_piece() -> None:
    answer = answered(Reply().say(["Hel", "lo"]), stream=True)
    assert deltas_of(answer)[1:3] == [{"content": "Hel"}, {"content": "lo"}]


def test_thinking_and_refusing_use_their_own_fields() -> None:
    reply = Reply().think("hmm").think("so", field="reasoning").refuse("No.")
    assert deltas_of(answered(reply, stream=True))[1:] == [
        {"reasoning_content": "hmm"},
        {"reasoning": "so"},
        {"refusal": "No."},
        {},
    ]


def test_parallel_calls_have_an_index_an_id_and_fragments_each() -> None:
    reply = Reply().call_tool("weather", {"city": "Oslo"}).call_tool("time", ["{", "}"], id="x")
    answer = answered(reply, stream=True)
    entries = [delta["tool_calls"][0] for delta in deltas_of(answer) if "tool_calls" in delta]
    assert [(entry["index"], entry.get("id")) for entry in entries] == [
        (0, "call_7_0_0"),
        (0, None),
        (0, None),
        (1, "x"),
        (1, None),
        (1, None),
    ]
    fragments = [entry["function"]["arguments"] for entry in entries]
    assert fragments == ["", '{"city":', '"Oslo"}', "", "{", "}"]
    assert chunks_of(answer)[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_choices_take_turns() -> None:
    reply = Reply().say("a b", choice=0).say("c", choice=1).finish("length", choice=1)
    chunks = chunks_of(answered(reply, stream=True, n=2))
    assert [chunk["choices"][0]["index"] for chunk in chunks] == [0, 1, 0, 1, 0, 1, 0]
    assert chunks[5]["choices"][0]["finish_reason"] == "length"
    assert chunks[6]["choices"][0]["finish_reason"] == "stop"


def test_text_without_a_choice_is_said_by_all() -> None:
    answer = answered(Reply().say("a"), stream=True, n=3)
    assert [deltas_of(answer, index)[1] for index in range(3)] == [{"content": "a"}] * 3


def test_a_choice_nobody_asked_for_is_sent_all_the_same() -> None:
    answer = answered(Reply().say("a", choice=2), stream=True)
    assert deltas_of(answer, 2)[1] == {"content": "a"}


def test_usage_is_streamed_only_where_asked_for() -> None:
    reply = Reply().say("d e")
    assert all("usage" not in chunk for chunk in chunks_of(answered(reply, stream=True)))
    asking = {"stream": True, "stream_options": {"include_usage": True}}
    *others, last = chunks_of(answered(reply, **asking))
    assert all(chunk["usage"] is None for chunk in others)
    assert last["choices"] == []
    assert last["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    refusing = chunks_of(answered(Reply().say("d", usage=False), **asking))
    assert all("usage" not in chunk for chunk in refusing)


def test_usage_that_is_named_is_sent_without_asking() -> None:
    reply = Reply().call_tool("f").usage(10, prompt_tokens_details={"cached_tokens": 4})
    assert chunks_of(answered(reply, stream=True))[-1]["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 1,
        "prompt_tokens_details": {"cached_tokens": 4},
        "total_tokens": 11,
    }


def test_a_total_is_not_made_up_from_counts_that_are_no_numbers() -> None:
    reply = Reply().say("a").usage(total_tokens=None, completion_tokens_details=None)
    assert document_of(answered(reply))["usage"]["total_tokens"] is None
    reply.script.usage_fields = {"prompt_tokens": "3"}
    assert "total_tokens" not in document_of(answered(reply))["usage"]


def test_logprobs_follow_the_text_where_asked_for() -> None:
    asking = {"logprobs": True, "top_logprobs": 1}
    token = {"token": "å", "logprob": -0.25, "bytes": [0xC3, 0xA5]}
    expected = {**token, "top_logprobs": [token]}
    streamed = chunks_of(answered(Reply().say("å").think("x"), stream=True, **asking))
    assert streamed[1]["choices"][0]["logprobs"] == {"content": [expected]}
    assert streamed[2]["choices"][0]["logprobs"] is None
    whole = document_of(answered(Reply().say("å"), **asking))
    assert whole["choices"][0]["logprobs"] == {"content": [expected], "refusal": None}


def test_events_and_deltas_go_out_exactly_as_given() -> None:
    reply = Reply().event(b"{broken").event({"x": 1}).delta({"odd": [1]}).finish(None)
    answer = answered(reply.event(b"two\nlines").without_done(), stream=True)
    frames = answer.body.split(b"\n\n")
    assert frames[1:3] == [b"data: {broken", b'data: {"x":1}']
    assert b'"delta":{"odd":[1]}' in frames[3]
    assert frames[4:] == [b"data: two\ndata: lines", b""]


def test_a_stream_of_given_events_has_no_role_of_its_own() -> None:
    answer = answered(Reply().event(b"{}").finish(None).without_done(), stream=True)
    assert answer.body == b"data: {}\n\n"


def test_an_error_event_stands_in_place_of_the_end() -> None:
    answer = answered(Reply().say("a").error_event("Overloaded", code=503), stream=True)
    assert len(data_of(answer)) == 3
    assert chunks_of(answer)[-1] == error_body("Overloaded", type="server_error", code=503)
    alone = answered(Reply().error_event(), stream=True)
    assert len(data_of(alone)) == 1


def test_comments_stand_before_every_nth_event() -> None:
    reply = Reply().say("a b").comments("busy", every=2)
    frames = answered(reply, stream=True).body.split(b"\n\n")[:-1]
    assert [frame == b": busy" for frame in frames] == [True, False, False] * 2 + [True, False]


# ------------------------------------------------------------------------------- the whole answer
def test_an_answer_that_is_not_streamed_is_one_object() -> None:
    reply = Reply().think("hm").say("a ").say("b").call_tool("f", {"x": 1}).delta({"odd": 1})
    answer = answered(reply.event(b"only streamed"))
    document = document_of(answer)
    assert document["object"] == "chat.completion"
    assert document["choices"] == [
        {
            "index": 0,
            "message": {
                "role": "assistant",
                "content": "a b",
                "refusal": None,
                "reasoning_content": "hm",
                "odd": 1,
                "tool_calls": [
                    {
                        "id": "call_7_0_0",
                        "type": "function",
                        "function": {"name": "f", "arguments": '{"x":1}'},
                    }
                ],
            },
            "logprobs": None,
            "finish_reason": "tool_calls",
        }
    ]
    assert document["usage"]["total_tokens"] == 8
    assert not answer.chunked
    assert answer.headers["Content-Type"] == "application/json"


def test_no_usage_is_sent_where_it_was_taken_out() -> None:
    assert "usage" not in document_of(answered(Reply().say("a").without_usage()))


def test_an_error_event_that_is_not_streamed_is_the_body() -> None:
    answer = answered(Reply().say("a").error_event("Overloaded"))
    assert answer.status == 200
    assert document_of(answer)["error"]["message"] == "Overloaded"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (429, "rate_limit_error"), (502, "server_error")],
)
def test_a_failure_is_an_error_object_with_its_status(status: int, kind: str) -> None:
    reply = Reply().fail(status, "No.", code="c", param="p", headers={"Retry-After": "1"})
    answer = answered(reply, stream=True)
    assert (answer.status, answer.chunked) == (status, False)
    assert answer.headers["Retry-After"] == "1"
    assert document_of(answer) == error_body("No.", type=kind, code="c", param="p")


def test_raw_pieces_are_the_body_and_its_writes() -> None:
    answer = answered(Reply().raw(b"a", b"bc", content_type="text/html", headers={"X": "y"}))
    assert list(answer.writes()) == [(0, b"a"), (1, b"bc")]
    assert (answer.headers["Content-Type"], answer.headers["X"]) == ("text/html", "y")
    assert answer.chunked


def test_an_empty_body_has_no_writes() -> None:
    assert list(answered(Reply().raw()).writes()) == []


# ------------------------------------------------------------------------------- cuts and faults
def test_split_cuts_the_body_at_any_byte() -> None:
    reply = Reply().raw(b"abcdefg")
    assert [piece for _, piece in answered(reply.split(every=3)).writes()] == [
        b"abc",
        b"def",
        b"g",
    ]
    assert [piece for _, piece in answered(reply.split(at=[1, 99])).writes()] == [b"a", b"bcdefg"]


@pytest.mark.parametrize(
    ("after", "place"), [(0, BEFORE_HEADERS), ("headers", 0), (1, 1), (2, 3), (99, 6)]
)
def test_a_fault_strikes_after_so_many_events(after: Any, place: int) -> None:
    reply = Reply().raw(b"a", b"bc", b": comment").cut(after=after)
    expected = 3 + len(": comment") if after == 99 else place
    assert answered(reply).faults == ((expected, "cut"),)


def test_a_fault_in_a_document_strikes_in_its_middle() -> None:
    answer = answered(Reply().say("a").stall(after=3))
    assert answer.faults == ((len(answer.body) // 2, "stall"),)
    assert len(list(answer.writes())) == 2


def test_a_fault_in_a_body_without_events_strikes_after_the_headers() -> None:
    assert answered(Reply().raw().reset(after=3)).faults == ((0, "reset"),)


def test_several_faults_strike_one_after_the_other() -> None:
    answer = answered(Reply().say("a b c").stall(after=1).cut(after=2), stream=True)
    assert [kind for _, kind in answer.faults] == ["stall", "cut"]
    assert answer.faults[0][0] < answer.faults[1][0]


# -------------------------------------------------------------------------------- what was asked
@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "a"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "x"}, 3]}], "a"),
        ([{"role": "user", "content": None}], ""),
        ([{"role": "system", "content": "a"}, 3], ""),
        (None, ""),
    ],
)
def test_last_text_is_what_the_user_said_last(messages: object, text: str) -> None:
    assert asked(messages=messages).last_text == text


def test_a_script_of_nothing_is_an_empty_answer() -> None:
    answer = render(Script(), asked(stream=True, stream_options="odd", n="odd"), serial=1)
    assert deltas_of(answer) == [{"role": "assistant", "content": ""}, {}]
