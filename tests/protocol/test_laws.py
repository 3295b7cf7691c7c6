"""What holds for every answer, however it is split, cut, interleaved or broken.

The examples are few, and the same in each run. `ASYNCCHAT_LAW_EXAMPLES=5000` looks further, and elsewhere each time;
`make test-slow` looks further too (`test_full_size`).
"""

import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from asyncchat.errors import AsyncChatError, LimitExceeded, StreamCut
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
)
from asyncchat.protocol.lenient import END_MARK, mend_surrogates, read_values
from asyncchat.protocol.response import Choice, Completion, Message, chunk_from, fault_in
from asyncchat.protocol.sse import SSEParser
from tests.protocol.frames import finished, read_chunks, read_events
from tests.wire import RECORDINGS, cut, plain_body, wire_cases

MORE = int(os.environ.get("ASYNCCHAT_LAW_EXAMPLES", "0"))


def law(
    examples: int, *, shrink: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Settings of a law: stable in CI, searching when asked to."""
    return settings(
        max_examples=MORE or examples,
        derandomize=not MORE,
        database=None,
        deadline=None,
        phases=[Phase.generate, *[Phase.shrink] * (shrink or bool(MORE))],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


# ------------------------------------------------------------------------------- messages, generated


class Call(NamedTuple):
    id: str
    name: str
    arguments: str


class Said(NamedTuple):
    """One choice as the model meant it; `calls` in order of their first appearance."""

    content: str
    reasoning: str
    refusal: str
    calls: list[Call]
    extra: dict[str, Any]
    finish: str


class Stream(NamedTuple):
    """A stream and what it says."""

    frames: list[dict[str, Any]]
    body: bytes
    said: list[Said]
    usage: dict[str, int] | None
    extra: dict[str, Any]
    finished_at: int
    """Where the frame that brings the last finish_reason ends."""


Delta = dict[str, Any]

TEXT = st.text(max_size=12)
# Python cuts between characters, JSON escapes between halves of one: both happen.
HALVES = st.text(st.sampled_from("ab\U0001f600\U0001d518\u00e9\u4e2d"), max_size=10)
SCALAR = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXT
VALUE = st.recursive(
    SCALAR,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
NAME = st.from_regex(r"[a-z_]{1,8}", fullmatch=True).filter(lambda name: name != "null")
EXTRA = st.dictionaries(
    st.sampled_from(["weight", "note", "provider_data"]),
    st.booleans() | st.integers(0, 9) | st.text(min_size=1, max_size=4),
    max_size=2,
)
FINISH = st.sampled_from(["stop", "length", "tool_calls", "content_filter", "eos", "whatever"])


def halved(text: str) -> str:
    """The text with its wide characters as two halves each, as JSON escapes name them."""
    units = text.encode("utf-16-le")
    return "".join(chr(units[i] + 256 * units[i + 1]) for i in range(0, len(units), 2))


@st.composite
def pieces_of(draw: st.DrawFn, text: str) -> list[str]:
    ends = sorted(draw(st.sets(st.integers(1, max(1, len(text) - 1)), max_size=4)))
    found = [text[start:end] for start, end in pairwise([0, *ends, len(text)])]
    return [piece for piece in found if piece]


@st.composite
def merged(draw: st.DrawFn, rows: list[list[Any]]) -> list[tuple[int, Any]]:
    """The items of the rows in a random order that keeps each row's own."""
    labels = [number for number, row in enumerate(rows) for _ in row]
    order = draw(st.permutations(labels)) if labels else []
    left = [iter(row) for row in rows]
    return [(label, next(left[label])) for label in order]


@st.composite
def deltas_and_said(draw: st.DrawFn) -> tuple[list[Delta], Said]:
    """A message and the deltas it came in."""
    split = draw(st.booleans())
    words = HALVES if split else TEXT
    texts = {name: draw(words) for name in ("content", "reasoning_content", "refusal")}
    arguments = st.dictionaries(st.text(max_size=3), VALUE, max_size=2)
    calls = [
        Call(
            f"call-{number}",
            draw(NAME),
            json.dumps(draw(arguments), ensure_ascii=draw(st.booleans())),
        )
        for number in range(draw(st.integers(0, 3)))
    ]
    extra = draw(EXTRA)
    rows: list[list[Delta]] = []
    for name, text in texts.items():
        row = draw(pieces_of(halved(text) if split else text))
        rows.append([{name: piece} for piece in row])
    for index, one in enumerate(calls):
        head: dict[str, Any] = {"index": index, "id": one.id, "type": "function"}
        row = draw(pieces_of(halved(one.arguments)))
        rows.append(
            [
                {"tool_calls": [{**head, "function": {"name": one.name, "arguments": ""}}]},
                *({"tool_calls": [{"index": index, "function": {"arguments": p}}]} for p in row),
            ]
        )
    rows.append([{name: value} for name, value in extra.items()])
    deltas: list[Delta] = [{"role": "assistant", "content": ""}] if draw(st.booleans()) else []
    order: list[int] = []
    for label, delta in draw(merged(rows)):
        if 3 <= label < 3 + len(calls) and label - 3 not in order:
            order.append(label - 3)
        if deltas and not delta.keys() & deltas[-1].keys() and draw(st.booleans()):
            deltas[-1].update(delta)
        else:
            deltas.append(dict(delta))
    calls = [calls[number] for number in order]
    said = Said(
        texts["content"], texts["reasoning_content"], texts["refusal"], calls, extra, draw(FINISH)
    )
    return deltas, said


@st.composite
def streams(draw: st.DrawFn, most: int = 3) -> Stream:
    """A whole stream of `n` answers, its frames in a random order and spelling."""
    found = [draw(deltas_and_said()) for _ in range(draw(st.integers(1, most)))]
    rows = [[*({"delta": d} for d in deltas), {"delta": {}, "finish_reason": said.finish}]
            for deltas, said in found]  # fmt: skip
    extra = draw(EXTRA)
    top: dict[str, Any] = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 7,
        "model": "m",
        **extra,
    }
    changing = st.fixed_dictionaries(
        {},
        optional={
            "system_fingerprint": st.sampled_from(["f1", "f2"]),
            "obfuscation": st.just("xx"),
        },
    )
    frames: list[dict[str, Any]] = [
        {**top, **draw(changing), "choices": [{"index": index, **choice}]}
        for index, choice in draw(merged(rows))
    ]
    last = len(frames)
    usage = draw(
        st.none() | st.just({"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7})
    )
    if usage is not None:
        frames.append({**top, "choices": [], "usage": usage})
    end = draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    between = draw(st.sampled_from([b"", b": ping" + end, b": ping" + end * 2, end]))
    head = draw(st.sampled_from([b"data: ", b"data:", b"event: message" + end + b"data: "]))
    body, finished_at = b"", 0
    for number, frame in enumerate(frames):
        # Halves of characters cannot be spelled but as escapes.
        body += head + json.dumps(frame).encode() + end * 2
        finished_at = finished_at or (len(body) if number + 1 == last else 0)
        body += between
    body += draw(st.sampled_from([b"", b"data: [DONE]" + end * 2]))
    return Stream(frames, body, [said for _, said in found], usage, extra, finished_at)


def check_message(said: Said, message: Message) -> None:
    assert (message.content or "") == said.content
    assert (message.reasoning_content or "") == said.reasoning
    assert (message.refusal or "") == said.refusal
    calls = [
        Call(one.id, one.function.name, one.function.arguments) for one in message.tool_calls or []
    ]
    assert calls == said.calls
    assert message.model_extra == said.extra


# --------------------------------------------------------------------------------------- any bytes

RECORDED = [
    *(plain_body(case) for case in wire_cases() if case.status == 200 and len(case.body) < 20_000),
    *(path.read_bytes() for path in sorted(RECORDINGS.glob("*/*.sse")) if path.stat().st_size < 12_000),
]  # fmt: skip

STRINGS = st.sampled_from([
    "", "a", "null", "stop", "error", "[DONE]", "429", "1.5", "{}", '{"x":', "}", "\u00e9\U0001f600", "\x00\n",
])  # fmt: skip
KEYS = st.sampled_from([
    "choices", "delta", "message", "index", "content", "tool_calls", "function", "arguments", "name", "id",
    "finish_reason", "usage", "prompt_tokens", "prompt_tokens_details", "logprobs", "token", "error", "code",
    "type", "object", "detail", "status", "text", "thinking", "reasoning", "reasoning_content", "refusal",
    "reasoning_details", "thinking_blocks", "audio", "data", "transcript", "function_call", "annotations", "x_groq",
    "x", "(extra)", "extra_", "model", "created", "role",
])  # fmt: skip
NUMBERS = st.sampled_from([0, 1, -1, 7.0, 1.5, 429, 10**30, 1e300, float("inf"), float("nan")])
ANYTHING = st.recursive(
    st.none() | st.booleans() | NUMBERS | STRINGS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
ODD_FIELDS = st.dictionaries(KEYS, ANYTHING, max_size=5)
ODD_CHOICE = st.fixed_dictionaries(
    {},
    optional={
        "index": ANYTHING,
        "delta": ODD_FIELDS | ANYTHING,
        "message": ODD_FIELDS | ANYTHING,
        "finish_reason": ANYTHING,
        "error": ANYTHING,
        "logprobs": ODD_FIELDS,
    },
)
ODD_FRAME = (
    st.fixed_dictionaries({"choices": st.lists(ODD_CHOICE, max_size=3)}, optional={"x": ANYTHING})
    | ODD_FIELDS
    | ANYTHING
)


@st.composite
def framed(draw: st.DrawFn, frame: st.SearchStrategy[Any] = ODD_FRAME) -> bytes:
    """JSON of any shape in any framing."""
    texts = [json.dumps(value).encode() for value in draw(st.lists(frame, min_size=1, max_size=5))]
    how = draw(st.sampled_from(["sse", "lines", "list", "one", "named"]))
    if how == "lines":
        return b"\n".join(texts)
    if how == "list":
        return b"[" + b",".join(texts) + b"]"
    if how == "one":
        return texts[0]
    name = draw(st.sampled_from([b"event: error\n", b"event: ping\n"])) if how == "named" else b""
    return b"".join(name + b"data: " + text + b"\n\n" for text in texts)


@st.composite
def broken(draw: st.DrawFn) -> bytes:
    """A recorded body with some bytes lost, doubled or replaced."""
    body = draw(st.sampled_from(RECORDED))
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(len(body), start + 40)))
        put = draw(
            st.sampled_from(
                [b"", b"\n", b"\n\n", b"}", b'"', b"\xff", b"null", body[start:end] * 2]
            )
        )
        body = body[:start] + put + body[end:]
    return body


ANY_BODY = framed() | broken() | st.binary(max_size=60)


def joined(events: Iterable[Event]) -> dict[tuple[str, int], str]:
    """The text of a kind and a choice that the deltas tell."""
    found: dict[tuple[str, int], str] = {}
    for event in events:
        if isinstance(event, (ContentDelta, RefusalDelta, ReasoningDelta)):
            key = (type(event).__name__, event.choice)
            found[key] = found.get(key, "") + event.delta
    return found


def texts(completion: Completion) -> dict[tuple[str, int], str]:
    return {
        (kind, choice.index): text
        for choice in completion.choices
        for kind, text in (
            ("ContentDelta", choice.message.content),
            ("RefusalDelta", choice.message.refusal),
            ("ReasoningDelta", choice.message.reasoning_content),
        )
        if text
    }


def result(completion: Completion | None, error: AsyncChatError | None) -> tuple[str, type, str]:
    dump = completion.to_json() if completion is not None else ""
    return dump, type(error), error.message if error is not None else ""


# -------------------------------------------------------------------------------------------- laws


@law(40)
@given(streams())
def test_message_split_into_deltas_is_put_together_again(stream: Stream) -> None:
    _, completion, error = read_events([stream.body], n=len(stream.said))
    assert error is None
    assert completion is not None
    assert len(completion.choices) == len(stream.said)
    for said, choice in zip(stream.said, completion.choices, strict=True):
        check_message(said, choice.message)
        assert choice.finish_reason == said.finish
    usage = completion.usage
    assert (usage.to_dict() if usage is not None else None) == stream.usage
    assert completion.model_extra == stream.extra
    sent = [f["system_fingerprint"] for f in stream.frames if "system_fingerprint" in f]
    assert completion.system_fingerprint == (sent[-1] if sent else None)


@law(40)
@given(streams())
def test_deltas_of_a_whole_answer_join_to_its_texts_and_arguments(stream: Stream) -> None:
    events, completion, _ = read_events([stream.body], n=len(stream.said))
    assert completion is not None
    assert joined(events) == texts(completion)
    for choice in completion.choices:
        for position, one in enumerate(choice.message.tool_calls or []):
            told = [
                event
                for event in events
                if isinstance(event, (ToolCallStarted, ToolCallDelta, ToolCallDone))
                and (event.choice, event.index) == (choice.index, position)
            ]
            started, *deltas, done = told
            assert started == ToolCallStarted(position, one.function.name, one.id, choice.index)
            assert "".join(e.arguments_delta for e in deltas if isinstance(e, ToolCallDelta)) == (
                one.function.arguments
            )
            assert done == ToolCallDone(
                position, one.function.name, one.function.arguments, one.id, choice.index
            )


@law(20)
@given(st.data(), streams())
def test_order_in_which_choices_interleave_changes_nothing(
    data: st.DataObject, stream: Stream
) -> None:
    rows = [[f for f in stream.frames if f["choices"] and f["choices"][0]["index"] == index]
            for index in range(len(stream.said))]  # fmt: skip
    again = b"".join(
        b"data: " + json.dumps(frame).encode() + b"\n\n" for _, frame in data.draw(merged(rows))
    )
    _, completion, _ = read_events([stream.body], n=len(stream.said))
    _, other, _ = read_events([again], n=len(stream.said))
    assert completion is not None
    assert other is not None
    assert other.choices == completion.choices


@law(50)
@given(st.data(), streams().map(lambda stream: (stream.body, len(stream.said))) | st.tuples(
    ANY_BODY | st.sampled_from(RECORDED), st.integers(1, 2)
))  # fmt: skip
def test_body_cut_anywhere_gives_the_same_events_and_result(
    data: st.DataObject, body_and_n: tuple[bytes, int]
) -> None:
    body, n = body_and_n
    events, completion, error = read_events([body], n=n)
    places = data.draw(st.sets(st.integers(0, len(body)), max_size=8) | st.just(range(len(body))))
    other_events, other, other_error = read_events(cut(body, places), n=n)
    assert result(other, other_error) == result(completion, error)
    assert encoded(other_events) == encoded(events)


def encoded(events: list[Event]) -> list[bytes]:
    return [msgspec.json.encode(event) for event in events]


@law(35)
@given(st.data(), ANY_BODY | st.sampled_from(RECORDED))
def test_chunks_are_the_same_however_the_body_is_cut(data: st.DataObject, body: bytes) -> None:
    def chunks(pieces: list[bytes]) -> list[str]:
        reader = AnswerReader()
        found = [chunk.to_json() for piece in pieces for chunk in reader.feed_chunks(piece)]
        try:
            found += [chunk.to_json() for chunk in reader.close_chunks()]
        except AsyncChatError as error:
            found.append(repr(error))
        return found

    places = data.draw(st.sets(st.integers(0, len(body)), max_size=8))
    assert chunks(cut(body, places)) == chunks([body])


@law(35)
@given(st.data(), streams())
def test_prefix_gives_a_prefix_of_every_text_and_no_verdict_finished_before_its_reason(
    data: st.DataObject, stream: Stream
) -> None:
    n = len(stream.said)
    whole = read_events([stream.body], n=n)[1]
    assert whole is not None
    end = data.draw(st.integers(0, len(stream.body)))
    reader = AnswerReader(n)
    reader.feed(stream.body[:end])
    check_prefix(reader.snapshot(), whole)
    _, partial, error = read_events([stream.body[:end]], n=n)
    assert partial is not None
    check_prefix(partial, whole)
    # The last byte of the JSON makes it whole; the blank line after it adds nothing.
    if end < len(stream.body[: stream.finished_at].rstrip()):
        assert isinstance(error, AsyncChatError)


def check_prefix(part: Completion, whole: Completion) -> None:
    choices: dict[int, Choice] = {choice.index: choice for choice in whole.choices}
    wanted = texts(whole)
    for key, text in texts(part).items():
        assert wanted[key].startswith(text)
    for choice in part.choices:
        calls = choices[choice.index].message.tool_calls or []
        for one, final in zip(choice.message.tool_calls or [], calls, strict=False):
            assert one.function.name == final.function.name
            assert final.function.arguments.startswith(one.function.arguments)


@law(20)
@given(st.data(), st.sampled_from(RECORDED))
def test_prefix_of_a_recording_gives_a_prefix_of_its_texts(
    data: st.DataObject, body: bytes
) -> None:
    whole = read_events([body])[1]
    assert whole is not None
    reader = AnswerReader()
    reader.feed(body[: data.draw(st.integers(0, len(body)))])
    wanted = texts(whole)
    for key, text in texts(reader.snapshot()).items():
        assert wanted[key].startswith(text)


@law(80)
@given(ANY_BODY, st.integers(1, 2))
def test_any_bytes_give_an_answer_or_an_error_of_ours(body: bytes, n: int) -> None:
    events, completion, _ = read_events([body], n=n)
    assert completion is not None  # an error brings what there is
    completion.to_json().encode()
    completion.model_dump_json().encode()
    for event in events:
        msgspec.json.encode(event)
    told, final = joined(events), texts(completion)
    assert all(final[key].startswith(text) for key, text in told.items())


@law(50)
@given(ANY_BODY)
def test_any_bytes_that_hold_an_answer_tell_its_whole_text_in_deltas(body: bytes) -> None:
    events, completion, error = read_events([body])
    assert completion is not None
    if error is None:
        assert joined(events) == texts(completion)


@law(50)
@given(ANY_BODY)
def test_any_bytes_give_chunks_that_can_be_sent_on(body: bytes) -> None:
    reader = AnswerReader()
    chunks = reader.feed_chunks(body)
    with suppress(AsyncChatError):
        chunks += reader.close_chunks()
    for chunk in chunks:
        chunk.to_json().encode()


@law(35)
@given(framed())
def test_body_read_whole_gives_what_feeding_it_gives(body: bytes) -> None:
    _, completion, error = read_events([body])
    try:
        whole: Completion | None = AnswerReader().read_whole(body)
        failure = None
    except AsyncChatError as caught:
        whole, failure = caught.partial, caught
    assert result(whole, failure) == result(completion, error)


@law(50)
@given(framed() | streams(1).map(lambda stream: stream.body) | st.sampled_from(RECORDED))
def test_answer_is_the_same_in_every_mode(body: bytes) -> None:
    silent = AnswerReader(events=False)
    silent.feed(body)
    told = AnswerReader()
    told.feed(body)
    wanted = result(*finished(told))
    assert result(*finished(silent)) == wanted
    assert result(*finished(read_chunks([body]))) == wanted


@law(35)
@given(st.data(), st.binary(max_size=80) | st.lists(
    st.sampled_from([b"data", b":", b" ", b"\n", b"\r", b"event", b"id", b"x", b"\xef\xbb\xbf", b"error", b"retry", b"7"])
).map(b"".join))  # fmt: skip
def test_parser_gives_the_same_payloads_however_bytes_are_cut(
    data: st.DataObject, body: bytes
) -> None:
    def parsed(pieces: Iterable[bytes]) -> list[Any]:
        parser = SSEParser()
        found: list[Any] = []
        for piece in pieces:
            found += [
                (bytes(payload), parser.event, parser.last_event_id)
                for payload in parser.feed(piece)
            ]
        last = parser.flush()
        return [*found, None if last is None else bytes(last), parser.event, parser.retry]

    places = data.draw(st.sets(st.integers(0, len(body)), max_size=6) | st.just(range(len(body))))
    assert parsed(cut(body, places)) == parsed([body])


@law(20)
@given(st.binary(max_size=60) | broken(), st.integers(1, 20))
def test_parser_raises_nothing_but_its_limit(body: bytes, limit: int) -> None:
    parser = SSEParser(limit)
    try:
        for payload in parser.feed(body):
            assert len(payload) <= len(body)
    except LimitExceeded:
        assert len(body) > limit


@law(50)
@given(st.binary(max_size=60) | framed() | st.text(
    st.sampled_from('{}[]":,\\ud83 \n\tdatnul0123456789.eE+-NI'), max_size=30
).map(str.encode))  # fmt: skip
def test_lenient_reader_gives_values_or_says_what_stopped_it(payload: bytes) -> None:
    values, problem = read_values(payload)
    assert all(value not in (None, "") for value in values if value is not END_MARK)
    assert problem is None or str(problem)


@law(50)
@given(ODD_FRAME)
def test_object_of_any_shape_is_a_chunk_or_a_value_error(frame: object) -> None:
    fault_in(frame)
    if not isinstance(frame, dict):
        return
    try:
        made = chunk_from(frame)
    except ValueError as error:
        assert "choice" in str(error)  # noqa: PT017  most frames give a chunk
    else:
        made.to_json().encode()


@law(20)
@given(st.text(st.sampled_from("a\u00e9\U0001f600\ud83d\ude00"), max_size=8), st.data())
def test_text_mended_in_pieces_is_the_text_mended_whole(text: str, data: st.DataObject) -> None:
    mended, held = "", ""
    for piece in data.draw(pieces_of(text)):
        new, held = mend_surrogates(held + piece, more_may_come=True)
        new.encode()
        mended += new
    assert mended + "\ufffd" * bool(held) == mend_surrogates(text)[0]


def test_cut_before_the_end_is_told_as_a_cut() -> None:
    body = (RECORDINGS / "llama_cpp" / "stream_plain.sse").read_bytes()
    assert isinstance(read_events([body[:2000]])[2], StreamCut)
