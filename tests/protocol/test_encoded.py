"""A request that is JSON already: sent as it is where a `ChatRequest` would send the same, and left to that where not."""

from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from asyncchat.protocol.encoded import EncodedRequest, request_in
from asyncchat.protocol.request import NUMBERS, ROLES, ChatRequest

SAID = [{"role": "user", "content": "grün"}]
NAMES = (
    "temperature",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "seed",
    "stop",
    "stream",
    "stream_options",
    "extra_body",
    "dialect",
    "response_format",
    "tools",
    "unknown",
)


def encoded(body: dict[str, Any]) -> bytes:
    return msgspec.json.encode(body)


def found_in(body: dict[str, Any]) -> EncodedRequest:
    made = request_in(encoded(body))
    assert made is not None
    return made


def anew(body: dict[str, Any]) -> ChatRequest:
    fields = {**body}
    extra = fields.pop("extra_body", None)
    dialect = fields.pop("dialect", None)
    return ChatRequest(
        fields.pop("messages", ()), fields, extra_body=extra, dialect=dialect, needs_model=False
    )


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 3),
    st.floats(0, 2),
    st.sampled_from(["", "x", "strict", "null"]),
    st.dictionaries(st.sampled_from(["type", "include_usage", "n"]), st.booleans(), max_size=2),
    st.lists(st.sampled_from(["a", "b"]), max_size=2),
)
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from([*sorted(ROLES), "nobody"])},
        optional={
            "content": st.sampled_from(["hi", "data:x", "", None]),
            "tool_calls": st.just([{"id": "1", "function": {"name": "f", "arguments": "{}"}}]),
        },
    ),
    max_size=3,
)
FIELDS = st.lists(st.tuples(st.sampled_from(NAMES), VALUES), max_size=3).map(dict)
MODELS = st.sampled_from([{"model": "m"}, {"model": "m"}, {}, {"model": ""}, {"model": None}])
BODIES = st.builds(
    lambda messages, model, fields: {"messages": messages, **model, **fields},
    st.one_of(MESSAGES, MESSAGES, st.just("hi")),
    MODELS,
    FIELDS,
)


@settings(derandomize=True, database=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(body=BODIES, stream=st.booleans(), ask_usage=st.booleans())
def test_what_is_sent_as_it_is_is_what_would_be_sent_made_anew(
    body: dict[str, Any], stream: bool, ask_usage: bool
) -> None:
    made = request_in(encoded(body), needs_model=False)
    assume(made is not None)
    assert made is not None
    other = anew(body)
    sent = made.encode(stream=stream, ask_usage=ask_usage, model="other")
    expected = other.encode(stream=stream, ask_usage=ask_usage, model="other")
    assert msgspec.json.decode(sent) == msgspec.json.decode(expected)
    assert (made.n, made.model, made.output) == (other.n, other.model, other.output)
    assert made.most_tokens == other.most_tokens
    assert made.characters == other.characters
    assert made.sets_stream_options == other.sets_stream_options


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0, "n": 2, "max_tokens": 5, "anything": {"a": [1]}},
        {"response_format": {"type": "json_object"}, "tools": [{"type": "function"}]},
    ],
)
def test_usual_body_is_sent_as_it_is(fields: dict[str, Any]) -> None:
    body = encoded({"model": "m", "messages": SAID, **fields})
    made = request_in(body)
    assert made is not None
    assert made.encode(stream=False) is body


@pytest.mark.parametrize(
    "body",
    [
        {"messages": SAID},
        {"model": "", "messages": SAID},
        {"model": 3, "messages": SAID},
        {"model": "m"},
        {"model": "m", "messages": []},
        {"model": "m", "messages": "hi"},
        {"model": "m", "messages": [{"content": "hi"}]},
        {"model": "m", "messages": [{"role": "nobody", "content": "hi"}]},
        {"model": "m", "messages": SAID, "temperature": "hot"},
        {"model": "m", "messages": SAID, "temperature": True},
        {"model": "m", "messages": SAID, "temperature": None},
        {"model": "m", "messages": SAID, "stream": True},
        {"model": "m", "messages": SAID, "stream_options": {"include_usage": False}},
        {"model": "m", "messages": SAID, "extra_body": {"temperature": 2}},
        {"model": "m", "messages": SAID, "dialect": "strict"},
        {"model": "m", "messages": SAID, "response_format": "json"},
    ],
)
def test_what_has_to_be_looked_at_is_made_anew(body: dict[str, Any]) -> None:
    assert request_in(encoded(body)) is None


@pytest.mark.parametrize("name", NUMBERS)
def test_every_number_that_is_checked_is_checked_here_too(name: str) -> None:
    assert request_in(encoded({"model": "m", "messages": SAID, name: 1})) is not None
    assert request_in(encoded({"model": "m", "messages": SAID, name: "1"})) is None


def test_stream_is_asked_for_with_its_usage_unless_the_server_has_refused_that() -> None:
    made = found_in({"model": "m", "messages": SAID})
    asked = msgspec.json.decode(made.encode(stream=True))
    assert asked["stream"] is True
    assert asked["stream_options"] == {"include_usage": True}
    assert "stream_options" not in msgspec.json.decode(made.encode(stream=True, ask_usage=False))


def test_request_that_is_continued_holds_what_was_said() -> None:
    made = found_in({"model": "m", "messages": SAID, "seed": 1})
    again = made.continued("and so", fields={"x": 1}, prefix={"prefix": True})
    body = msgspec.json.decode(again.encode(stream=False))
    assert body == {
        "model": "m",
        "seed": 1,
        "x": 1,
        "messages": [*SAID, {"role": "assistant", "content": "and so", "prefix": True}],
    }


def test_repr_tells_no_word() -> None:
    assert (
        repr(found_in({"model": "m", "messages": SAID})) == "EncodedRequest(model='m', <60 bytes>)"
    )


def test_request_without_a_model_is_sent_with_that_of_the_endpoint_where_it_need_not_name_one() -> (
    None
):
    body = encoded({"messages": SAID})
    assert request_in(body) is None
    made = request_in(body, needs_model=False)
    assert made is not None
    assert made.model is None
    assert msgspec.json.decode(made.encode(stream=False, model="n")) == {
        "model": "n",
        "messages": SAID,
    }
    assert made.encode(stream=False) is body
