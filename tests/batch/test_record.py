"""One line for each input: whatever it says, it is read back as it was written, and damage is seen."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat import errors
from asyncchat.batch.record import (
    BatchError,
    Trace,
    decode_outcome,
    decode_record,
    encode_record,
    is_sound,
    kind_of,
)
from asyncchat.errors import status_error
from tests.batch.conftest import completion

# What looks like the parts of a line, what has to be escaped, and any text.
_HOSTILE = st.sampled_from(
    [
        ',"x":{',
        ',"error":null',
        ',"error":{"code":"a","message":"b"}',
        ',"crc":1}}',
        "}}\n",
        '"},"x":{"n":1,"crc":0}}',
        "\\",
        '\\"',
        "\x00\x1f\u2028\n\r",
        '{"custom_id":"other",',
    ]
)
TEXTS = st.one_of(
    st.text(), _HOSTILE, st.builds("".join, st.lists(st.one_of(_HOSTILE, st.text())))
)
_NUMBERS = st.floats(0, 1e9).map(lambda number: round(number, 5))
TRACES = st.builds(
    Trace,
    n=st.integers(1, 2**40),
    hash=st.sampled_from(["", "0123456789abcdef0123456789abcdef"]),
    attempts=st.integers(0, 9),
    t_end=_NUMBERS,
    t_first=st.none() | _NUMBERS,
    tokens=st.none() | st.tuples(*[st.integers(0, 10**6)] * 3),
    endpoint=st.none() | TEXTS,
    reused=st.none() | TEXTS,
)
ERRORS = st.builds(
    BatchError,
    code=TEXTS,
    message=TEXTS,
    status_code=st.none() | st.integers(100, 599),
    type=st.none() | TEXTS,
    text=st.none() | TEXTS,
)
# Members of an answer that a reader from behind could take for ours.
BODIES = st.builds(
    lambda text, extra, usage: msgspec.json.encode(completion(text, **extra, usage=usage)),
    TEXTS,
    st.dictionaries(
        st.sampled_from(["x", "error", "crc", "strange"]),
        st.one_of(st.none(), TEXTS, st.just({"n": 1, "crc": 2}), st.just({"code": "a"})),
    ).map(lambda extra: {name: value for name, value in extra.items() if name != "error"}),
    st.sampled_from([None, {"prompt_tokens": "5"}, {"prompt_tokens": 5, "x": {"n": 7}}]),
)


@given(TEXTS, TRACES, BODIES, st.none() | TEXTS)
def test_answer_is_read_back_as_it_was_written(
    key: str, trace: Trace, body: bytes, request_id: str | None
) -> None:
    line = encode_record(key, trace, body=body, request_id=request_id)
    assert line.count(b"\n") == 1
    assert is_sound(line)
    outcome, record = decode_outcome(line), decode_record(line)
    assert (outcome.custom_id, outcome.trace, outcome.ok) == (key, trace, True)
    assert (record.custom_id, record.trace, record.ok, record.n) == (key, trace, True, trace.n)
    assert record.text == msgspec.json.decode(body)["choices"][0]["message"]["content"]
    as_openai = msgspec.json.decode(line)
    assert as_openai["response"]["body"] == msgspec.json.decode(body)
    assert as_openai["response"]["request_id"] == request_id


@given(TEXTS, TRACES, ERRORS)
def test_error_is_read_back_as_it_was_written(key: str, trace: Trace, error: BatchError) -> None:
    line = encode_record(key, trace, error=error)
    assert is_sound(line)
    outcome, record = decode_outcome(line), decode_record(line)
    assert (outcome.custom_id, outcome.trace, outcome.error) == (key, trace, error)
    assert (record.error, record.completion, record.text) == (error, None, "")
    assert not outcome.ok
    assert not record.ok


@given(TEXTS, BODIES, st.data())
def test_any_byte_that_is_changed_or_missing_is_seen(
    key: str, body: bytes, data: st.DataObject
) -> None:
    line = encode_record(key, Trace(1), body=body)
    at = data.draw(st.integers(0, len(line) - 1))
    assert not is_sound(line[:at])
    changed = bytearray(line)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    assert not is_sound(bytes(changed))


@pytest.mark.parametrize(
    "line", [b"", b"\n", b"{}\n", b'{"a":1,"crc":}}\n', b'{"a":1,"crc":-5}}\n', b'","crc":1}}']
)
def test_line_of_others_is_not_sound(line: bytes) -> None:
    assert not is_sound(line)


@pytest.mark.parametrize(
    "line", [b"{}\n", b'{"custom_id":"a","response":null}\n', b'{"custom_id":7,"x":{"n":1}}\n']
)
def test_what_is_no_record_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"not a record|Expected"):
        decode_outcome(line)
    with pytest.raises(ValueError, match=r"not a record|Expected|missing"):
        decode_record(line)


def test_answer_with_several_choices_and_fields_of_a_servers_own_is_read_back() -> None:
    body: dict[str, Any] = completion("one", provider="here")
    body["choices"].append({**body["choices"][0], "index": 1, "message": {"content": "two"}})
    record = decode_record(encode_record("a", Trace(1), body=msgspec.json.encode(body)))
    assert record.completion is not None
    assert [choice.message.content for choice in record.completion.choices] == ["one", "two"]
    assert record.completion.model_extra == {"provider": "here"}


@pytest.mark.parametrize("body", [b"7", b'{"choices":7}', b'{"choices":[]}'])
def test_what_is_no_answer_is_an_error_when_it_is_read(body: bytes) -> None:
    line = encode_record("a", Trace(1), body=body)
    assert decode_outcome(line).ok
    if body != b'{"choices":[]}':
        with pytest.raises((errors.AsyncChatError, ValueError)):
            decode_record(line)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.APITimeoutError(""), "timeout"),
        (errors.StreamStalled(""), "timeout"),
        (errors.APIConnectionError(""), "connection"),
        (errors.StreamCut(""), "cut"),
        (errors.ProtocolError(""), "protocol"),
        (errors.LimitExceeded(""), "protocol"),
        (errors.OutputMismatch(""), "mismatch"),
        (errors.LengthFinishReasonError(""), "length"),
        (errors.ContentFilterFinishReasonError(""), "content_filter"),
        (errors.RefusalError(""), "refusal"),
        (errors.LineFull(""), "other"),
        (ValueError(""), "other"),
        (status_error(400, ""), "bad_request"),
        (status_error(401, ""), "auth"),
        (status_error(402, ""), "quota"),
        (status_error(403, ""), "auth"),
        (status_error(404, ""), "not_found"),
        (status_error(408, ""), "timeout"),
        (status_error(409, ""), "bad_request"),
        (status_error(422, ""), "bad_request"),
        (status_error(429, ""), "rate_limit"),
        (status_error(429, "", code="insufficient_quota"), "quota"),
        (status_error(500, ""), "server"),
        (status_error(503, ""), "server"),
        (status_error(504, ""), "timeout"),
    ],
)
def test_failure_is_put_down_to_a_kind(error: Exception, kind: str) -> None:
    assert kind_of(error) == kind


def test_line_begins_with_its_name_and_ends_with_its_checksum() -> None:
    line = encode_record("moon-1", Trace(1), error=BatchError("server", "m"))
    assert re.fullmatch(rb'\{"custom_id":"moon-1",.*,"crc":\d+\}\}\n', line)
