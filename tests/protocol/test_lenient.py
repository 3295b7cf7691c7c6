"""What the forgiving reader takes, what it leaves out, and what it says stopped it."""

import math

import pytest

from asyncchat.protocol.lenient import (
    END_MARK,
    dump,
    is_json,
    mend_surrogates,
    mend_value,
    read_values,
    split_json,
)


@pytest.mark.parametrize(
    ("payload", "values"),
    [
        (b'{"a":1}', [{"a": 1}]),
        (b' \t{"a":1}\r\n', [{"a": 1}]),
        (b'{"a":1}{"b":2}', [{"a": 1}, {"b": 2}]),
        (b'{"a":1}\n{"b":2}', [{"a": 1}, {"b": 2}]),
        (b'data: {"a":1}', [{"a": 1}]),
        (b'data:data: {"a":1}\ndata: {"b":2}', [{"a": 1}, {"b": 2}]),
        (b': comment\n{"a":1}', [{"a": 1}]),
        (b'\xef\xbb\xbf{"a":1}', [{"a": 1}]),
        (b"null", []),
        (b'null{"a":1}null', [{"a": 1}]),
        (b'""', []),
        (b"", []),
        (b": only a comment", []),
        (b"ping", []),
        (b"keep-alive", []),
        (b"Keep alive", []),
        (b"HEARTBEAT\n", []),
        (b'{"a":1}\nping', [{"a": 1}]),
        (b"true", [True]),
        (b"0", [0]),
        (b'"a word"', ["a word"]),
        (b'{"a":"x\ty\x01"}', [{"a": "x\ty\x01"}]),
        (b'{"a":"\xff"}', [{"a": "\ufffd"}]),
        (b'{"a":-Infinity}', [{"a": -math.inf}]),
        (b'{"a":1e400}', [{"a": math.inf}]),
        (b'{"a":"\\ud83d"}', [{"a": "\ud83d"}]),
    ],
    ids=repr,
)
def test_payload_gives_its_values(payload: bytes, values: list[object]) -> None:
    assert read_values(payload) == (values, None)


def test_not_a_number_is_read_as_one() -> None:
    ((values,), problem) = read_values(b"[NaN]")
    assert problem is None
    assert isinstance(values, list)
    assert math.isnan(values[0])


@pytest.mark.parametrize(
    "payload",
    [b"[DONE]", b" [DONE] ", b"[done]", b"'[DONE]'", b'"[DONE]"', b"[ DONE ]", b'" [DONE] "',
     b'"\\u005bDONE]"', b"data: [DONE]", b"[DONE]\n{never", b'"[DONE]"\n{"a":1}', b": c\n[DONE]\n"],
)  # fmt: skip
def test_end_mark_in_any_spelling_is_one_and_nothing_follows_it(payload: bytes) -> None:
    assert read_values(payload) == ([END_MARK], None)


def test_end_mark_after_a_value_ends_the_payload() -> None:
    assert read_values(b'{"a":1}\n[DONE]\n{"b":2}') == ([{"a": 1}, END_MARK], None)


@pytest.mark.parametrize("payload", [b"[DONE] and more", b'{"a":"[DONE]"}', b'["[DONE]"]'])
def test_end_mark_inside_something_else_is_none(payload: bytes) -> None:
    assert END_MARK not in read_values(payload)[0]


WHOLE = b'{"a":[-1.5e3,true,false,null,"x\\u00e9\\n"],"b":{"c":NaN}}'


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_json_cut_anywhere_stopped_at_its_end(end: int) -> None:
    values, problem = read_values(WHOLE[:end])
    assert values == []
    assert problem is not None
    assert problem.at_end


@pytest.mark.parametrize(
    "payload", [b"{a:1}", b'{"a" 1}', b'{"a":1,,}', b"two words", b"]", b'{"a":tree}', b"{'a':1}"]
)
def test_json_that_is_wrong_did_not_stop_at_its_end(payload: bytes) -> None:
    problem = read_values(payload)[1]
    assert problem is not None
    assert not problem.at_end


def test_values_before_a_wrong_one_are_kept() -> None:
    values, problem = read_values(b'{"a":1} {b}')
    assert values == [{"a": 1}]
    assert problem is not None


def test_payload_nested_too_deep_is_refused() -> None:
    problem = read_values(b"[" * 100_000)[1]
    assert problem is not None
    assert "deep" in str(problem)
    assert not problem.at_end


def test_integer_of_very_many_digits_is_infinite() -> None:
    assert read_values(b"[1" + b"0" * 5000 + b"]") == ([[math.inf]], None)


def test_integer_of_many_digits_is_exact() -> None:
    assert read_values(b"[1" + b"0" * 30 + b"]") == ([[10**30]], None)


def test_view_of_a_read_is_a_payload() -> None:
    assert read_values(memoryview(b'xx{"a":1}')[2:]) == ([{"a": 1}], None)


# -------------------------------------------------------------------------------------- surrogates


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        ("plain", "plain"),
        ("\u00e9\U0001f600", "\u00e9\U0001f600"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud83db", "a\ufffdb"),
        ("\u00e9\ude00b", "\u00e9\ufffdb"),
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        ("", ""),
    ],
    ids=ascii,
)
def test_surrogate_halves_become_a_character_or_its_replacement(text: str, mended: str) -> None:
    assert mend_surrogates(text) == (mended, "")


def test_first_half_at_the_end_is_held_back_while_more_may_come() -> None:
    assert mend_surrogates("a\ud83d", more_may_come=True) == ("a", "\ud83d")


@pytest.mark.parametrize("text", ["a\ude00", "a\ud83db", "\U0001f600", ""], ids=ascii)
def test_nothing_else_is_held_back(text: str) -> None:
    assert mend_surrogates(text, more_may_come=True)[1] == ""


def test_every_string_of_a_value_is_mended() -> None:
    odd = {"\ud83d": ["a", "\u00e9", "\ud83d", {"b": "\ud83d\ude00"}], "n": 1, "t": True}
    assert mend_value(odd) == {
        "\ufffd": ["a", "\u00e9", "\ufffd", {"b": "\U0001f600"}],
        "n": 1,
        "t": True,
    }


def test_dump_keeps_the_order_of_keys_and_the_characters() -> None:
    assert dump({"b": [1, None], "a": "\u00e9"}) == '{"b":[1,null],"a":"\u00e9"}'


def test_dump_of_half_a_pair_encodes() -> None:
    assert dump(["\ud83d"]) == '["\ufffd"]'


# ------------------------------------------------------------------------------------ whole or not


@pytest.mark.parametrize("text", ["{}", ' {"x": 1} \n', "[1]", '"a"', "1", "null", '{"x":"a\tb"}'])
def test_one_whole_value_is_json(text: str) -> None:
    assert is_json(text)


@pytest.mark.parametrize("text", ["", "  ", "{", '{"x":', "{}{}", "{} x", "[" * 100_000])
def test_none_cut_or_several_values_are_no_json(text: str) -> None:
    assert not is_json(text)


def test_row_of_values_is_split_with_the_text_of_each() -> None:
    assert split_json(' {"x": 1}\n{"x":1.0} [] ') == [
        ('{"x": 1}', {"x": 1}),
        ('{"x":1.0}', {"x": 1.0}),
        ("[]", []),
    ]


def test_row_with_a_cut_value_is_none() -> None:
    assert split_json('{"x":1}{"y"') is None


def test_empty_text_is_an_empty_row() -> None:
    assert split_json(" ") == []
