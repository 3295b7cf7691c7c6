"""Pieces of a text are joined; nothing is lost, and nothing changes places."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat import (
    Chunk,
    ContentDelta,
    Finish,
    Logprobs,
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from asyncchat.bridges.coalesce import START, Tape, coalesce, weight
from asyncchat.protocol.response import ChunkChoice, Delta, TokenLogprob, chunk_from

_words = st.text(max_size=3)
_choices = st.integers(0, 1)
EVENTS = st.lists(
    st.one_of(
        st.builds(ContentDelta, _words, _choices),
        st.builds(ReasoningDelta, _words, _choices),
        st.builds(RefusalDelta, _words, _choices),
        st.builds(ToolCallDelta, _choices, _words, _choices),
        st.builds(ToolCallStarted, _choices, _words),
        st.just(Finish("stop")),
    )
)


def said(items: list[Any]) -> list[tuple[Any, ...]]:
    """The order of everything, letter by letter."""
    made: list[tuple[Any, ...]] = []
    for item in items:
        match item:
            case ToolCallDelta():
                key = (ToolCallDelta, item.choice, item.index)
                made += [(*key, letter) for letter in item.arguments_delta]
            case ContentDelta() | ReasoningDelta() | RefusalDelta():
                made += [(type(item), item.choice, letter) for letter in item.delta]
            case _:
                made.append((item,))
    return made


@given(EVENTS)
def test_joining_changes_neither_texts_nor_order(items: list[Any]) -> None:
    assert said(coalesce(items)) == said(items)


@given(EVENTS, st.lists(st.integers(0, 20)))
def test_reader_of_a_tape_gets_all_of_it_wherever_it_stops(
    items: list[Any], stops: list[int]
) -> None:
    tape, place, got = Tape(), START, list[Any]()
    for number, item in enumerate(items):
        tape.put(item)
        if number in stops:
            got += tape.since(place)
            place = tape.end
    got += tape.since(place)
    assert said(got) == said(items)
    assert said(tape.since(START)) == said(items)
    assert tape.since(tape.end) == []


def test_pieces_of_one_text_become_one() -> None:
    deltas = [ContentDelta("a"), ContentDelta("b"), ContentDelta("c")]
    assert coalesce(deltas) == [ContentDelta("abc")]
    assert coalesce(deltas[:1])[0] is deltas[0]


def test_pieces_of_different_texts_stay_apart() -> None:
    items = [ContentDelta("a"), ContentDelta("b", 1), ReasoningDelta("c"), ToolCallDelta(0, "d")]
    assert coalesce([*items, ToolCallDelta(1, "e")]) == [*items, ToolCallDelta(1, "e")]


def chunk(text: str | None = None, **fields: Any) -> Chunk:
    choices = [ChunkChoice(index=0, delta=Delta(content=text))]
    return Chunk(**{"id": "c1", "created": 1, "model": "m", "choices": choices, **fields})


def test_chunks_of_bare_content_become_one_in_the_same_envelope() -> None:
    assert coalesce([chunk("a"), chunk("b")]) == [chunk("ab")]


@pytest.mark.parametrize(
    "other",
    [
        chunk("b", id="c2"),
        chunk("b", system_fingerprint="f"),
        chunk(choices=[ChunkChoice(index=1, delta=Delta(content="b"))]),
        chunk(choices=[ChunkChoice(index=0, delta=Delta(content="b"), finish_reason="stop")]),
        chunk(choices=[ChunkChoice(index=0, delta=Delta(content="b", role="assistant"))]),
        chunk(choices=[]),
        chunk_from(
            {
                "id": "c1",
                "created": 1,
                "model": "m",
                "x": 1,
                "choices": [{"index": 0, "delta": {"content": "b"}}],
            }
        ),
    ],
)
def test_chunk_that_says_anything_else_stays_as_it_is(other: Chunk) -> None:
    assert coalesce([chunk("a"), other, chunk("c")]) == [chunk("a"), other, chunk("c")]


def test_weight_grows_with_what_an_item_holds() -> None:
    long = "x" * 10_000
    tokens = [TokenLogprob(token="x")] * 100
    calls: Any = chunk_from(
        {"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": long}}]}}]}
    )
    likely = chunk(choices=[ChunkChoice(index=0, logprobs=Logprobs(content=tokens))])
    for heavy in (ContentDelta(long), ToolCallDelta(0, long), chunk(long), calls):
        assert 10_000 < weight(heavy) < 11_000
    assert weight(LogprobsDelta(tokens)) > 10_000
    assert weight(likely) > 10_000
    assert 0 < weight(Finish("stop")) < 100
