"""JSON that is still being written: elements as they close, the value so far, and types for it."""

import dataclasses
import datetime as dt
import itertools
import json
import time
from typing import Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from asyncchat.protocol.partial import Elements, PartialJSON, partial_type

ODD_TEXT = st.text(alphabet=st.sampled_from('[]{},:"\\ aé\u2028😀\n\x00'), max_size=12) | st.text(
    max_size=8
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    SCALARS | ODD_TEXT,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(ODD_TEXT, inner, max_size=3) | inner
    ),
    max_leaves=12,
)
DUMPS: list[dict[str, Any]] = [
    {},
    {"ensure_ascii": False},
    {"indent": 2},
    {"separators": (",", ":")},
    {"indent": "\t", "separators": (" \r\n, ", " : ")},
]


def pieces(text: str, cuts: list[int]) -> list[str]:
    """The text, cut at these places."""
    places = sorted({cut % (len(text) + 1) for cut in cuts})
    starts, ends = [0, *places], [*places, len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def elements(parts: list[str], key: str | None = None) -> list[str]:
    reader = Elements(key)
    return [element for part in parts for element in reader.feed(part)]


# ------------------------------------------------------------------------------------------- elements


@given(
    st.lists(VALUES, max_size=5),
    st.sampled_from(DUMPS),
    st.lists(st.integers(0, 1000), max_size=12),
    st.none() | ODD_TEXT,
    st.sampled_from(["", " \n"]),
)
@settings(max_examples=80, deadline=None)
def test_elements_are_those_that_json_gives_however_the_text_is_cut(
    values: list[Any], dump: dict[str, Any], cuts: list[int], key: str | None, around: str
) -> None:
    key = None if key is None or json.dumps(key, **dump) != f'"{key}"' else key
    text = json.dumps(values if key is None else {key: values}, **dump)
    reader = Elements(key)
    found: list[str] = []
    for part in pieces(around + text + around, cuts):
        found += reader.feed(part)
    assert [json.loads(element) for element in found] == values
    assert reader.ended


@given(st.lists(VALUES, max_size=4), st.sampled_from(DUMPS))
@settings(max_examples=30, deadline=None)
def test_elements_are_the_same_character_by_character(
    values: list[Any], dump: dict[str, Any]
) -> None:
    text = json.dumps(values, **dump)
    assert elements(list(text)) == elements([text])


@given(st.lists(VALUES, min_size=1, max_size=4), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_elements_of_a_list_that_is_cut_are_the_first_ones(values: list[Any], cut: int) -> None:
    text = json.dumps(values)
    found = [json.loads(element) for element in elements([text[: cut % len(text)]])]
    assert found == values[: len(found)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("[]", []),
        ("[ \n]", []),
        ("[1,2", ["1"]),
        ("[1 , 2 ]", ["1", "2"]),
        ('["a,]", "\\"]"]', ['"a,]"', '"\\"]"']),
        ('[{"a": [1, {"b": "]"}]}, [[], {}]', ['{"a": [1, {"b": "]"}]}']),
        ("[1] and [2]", ["1"]),
        ("Here: [1,2]", ["1", "2"]),
        ("[1,,2]", ["1", "2"]),
        ("", []),
        ("3", []),
        ("{}", []),
    ],
)
def test_elements_of(text: str, found: list[str]) -> None:
    assert elements([text]) == found
    assert elements(list(text)) == found


def test_element_comes_with_the_character_that_closes_it() -> None:
    reader = Elements()
    assert reader.feed('[{"a":1') == []
    assert reader.feed("}") == []  # a comma or bracket tells that it is whole
    assert reader.feed(",") == ['{"a":1}']
    assert reader.feed("12") == []
    assert not reader.ended
    assert reader.feed("3]") == ["123"]
    assert reader.ended
    assert reader.feed(", 4]") == []


def test_escape_at_the_end_of_a_piece_holds_for_the_next() -> None:
    assert elements(['["a\\', "", '"b"', ",1]"]) == ['"a\\"b"', "1"]


def test_list_in_an_object_is_found_by_its_key() -> None:
    assert elements(['{"value"', ': [{"a": [1]}, [2], 3]}'], "value") == ['{"a": [1]}', "[2]", "3"]


@pytest.mark.parametrize(
    "text",
    [
        '{"notes": [1, "value"], "value": [2, 3]}',
        '{"value ": [1], "a": "value", "b": [1], "value": [2,3]}',
        '{"a": {"value": [1]}, "value" : [2,3], "c": [4]}',
        '{"a\\"value": [[1]], "value":[2,3',
    ],
)
def test_other_lists_are_not_taken_for_the_one_wanted(text: str) -> None:
    closed = text + ("" if text.endswith("}") else "]")
    assert elements([closed], "value") == ["2", "3"]
    assert elements(list(closed), "value") == ["2", "3"]


def _text(size: int, length: int) -> str:
    return json.dumps([{"a": "x" * length}] * (size // length))


def _seconds(text: str) -> float:
    reader = Elements()
    started = time.process_time()
    for start in range(0, len(text), 1024):
        reader.feed(text[start : start + 1024])
    assert reader.ended
    return time.process_time() - started


@pytest.mark.parametrize("is_one", [False, True], ids=["many small", "one large"])
def test_elements_take_time_in_proportion_to_the_text(is_one: bool) -> None:
    one, two = (_text(size, size if is_one else 1000) for size in (1_000_000, 2_000_000))
    # The best of several: what else runs here only ever adds.
    assert min(_seconds(two) for _ in range(3)) < 3 * min(_seconds(one) for _ in range(3)) + 0.005


# ------------------------------------------------------------------------------------------- value so far


def so_far(text: str) -> object:
    growing = PartialJSON()
    growing.feed(text)
    return growing.value()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": "hel', {"a": "hel"}),
        ('{"a": tr', {}),
        ('{"a": nul', {}),
        ('{"a": 12', {"a": 12}),
        ('{"a": 1.', {}),
        ('{"a": 1e', {}),
        ('{"a": -', {}),
        ('{"a": "x\\u00', {"a": "x"}),
        ('{"a": "x\\', {"a": "x"}),
        ('{"a": "\\ud83d', {"a": ""}),
        ('{"a": "\\ud83d\\ude00', {"a": "😀"}),
        ("", None),
        (" \n", None),
        ("{", {}),
        ("[", []),
        ('{"a"', {}),
        ('{"a":', {}),
        ('{"a":[1,{"b":"c"', {"a": [1, {"b": "c"}]}),
        ('"a', "a"),
        ("12", 12),
        ('{"a":1} tail', {"a": 1}),
        ('{"a":1}{"b":2}', {"a": 1}),
        ('{"a":1}', {"a": 1}),
        ("null", None),
    ],
)
def test_value_so_far(text: str, value: object) -> None:
    assert so_far(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "Sure!",
        "```json",
        "{]",
        "[,",
        "{1:",
        '"\x00',
        "[" * 5000,
        '{"a": NaN',
        "\ud83d",
    ],
    ids=lambda text: ascii(text)[:12],
)
def test_text_that_is_no_beginning_of_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        so_far(text)


def is_beginning(part: Any, whole: Any, *, last: bool = True) -> bool:
    """Whether a value is what there can be of another one while it is written. Only what is last may be cut."""
    if isinstance(whole, str):
        return isinstance(part, str) and (whole.startswith(part) if last else part == whole)
    if isinstance(whole, list):
        return (
            isinstance(part, list)
            and (len(part) <= len(whole) if last else len(part) == len(whole))
            and all(
                is_beginning(a, b, last=last and n == len(part) - 1)
                for n, (a, b) in enumerate(zip(part, whole, strict=False))
            )
        )
    if isinstance(whole, dict):
        names = list(part) if isinstance(part, dict) else None
        return (
            names is not None
            and names == list(whole)[: len(names)]
            and (last or len(names) == len(whole))
            and all(
                is_beginning(part[name], whole[name], last=last and name == names[-1])
                for name in names
            )
        )
    if isinstance(whole, int | float) and not isinstance(whole, bool) and last:
        return isinstance(part, int | float)  # it may still grow
    return type(part) is type(whole) and part == whole


@given(st.lists(VALUES, max_size=4) | st.dictionaries(ODD_TEXT, VALUES), st.sampled_from(DUMPS))
@settings(max_examples=25, deadline=None)
def test_every_value_is_a_beginning_of_the_final_one(value: Any, dump: dict[str, Any]) -> None:
    text = json.dumps(value, **dump)
    growing = PartialJSON()
    for character in text:
        growing.feed(character)
        part = growing.value()
        assert is_beginning(part, value)
    assert growing.value() == json.loads(text)


@given(VALUES, st.sampled_from(DUMPS), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_value_does_not_depend_on_how_the_text_is_cut(
    value: Any, dump: dict[str, Any], cut: int
) -> None:
    text = json.dumps([value], **dump)
    text = text[: cut % len(text) + 1]
    growing = PartialJSON()
    for character in text:
        growing.feed(character)
    assert growing.value() == so_far(text)


@given(st.lists(st.integers(1, 400), max_size=300))
@settings(max_examples=30, deadline=None)
def test_characters_parsed_are_bounded_by_those_that_came(sizes: list[int]) -> None:
    growing = PartialJSON()
    fed = parsed = 0
    growing.feed('["')
    fed += 2
    for size in sizes:
        growing.feed("x" * size)
        fed += size
        if growing.may_parse:
            growing.value()
            parsed += fed
    assert parsed <= 256 * fed


def test_long_text_that_comes_in_small_pieces_is_parsed_less_and_less_often() -> None:
    growing = PartialJSON()
    growing.feed('["')
    asked: list[int] = []
    fed, parsed = 2, 0
    for number in range(20_000):
        growing.feed("xxxx")
        fed += 4
        if growing.may_parse:
            growing.value()
            parsed += fed
            asked.append(number)
    assert parsed <= 256 * fed
    assert asked[:500] == list(range(500))
    assert 1000 < len(asked) < 15_000
    assert max(b - a for a, b in itertools.pairwise(asked)) < 200


def test_nothing_is_to_be_parsed_before_text_comes() -> None:
    growing = PartialJSON()
    assert not growing.may_parse
    assert growing.value() is None
    growing.feed("")
    assert not growing.may_parse
    growing.feed("1")
    assert growing.may_parse


def test_value_may_be_asked_for_whenever_wanted() -> None:
    growing = PartialJSON()
    growing.feed("[1")
    for _ in range(1000):
        assert growing.value() == [1]
    assert not growing.may_parse
    assert growing.value() == [1]


# ------------------------------------------------------------------------------------------- types for it


class Inner(Struct, rename="camel"):
    first_name: Annotated[str, Meta(min_length=3)]
    age: Annotated[int, Meta(ge=18)] = 18


class Outer(Struct, forbid_unknown_fields=True):
    one: Inner
    many: list[Inner]
    by_name: dict[str, Inner]
    maybe: Inner | None
    either: int | str
    word: Literal["yes", "no"]
    day: dt.date


class Cat(Struct, tag_field="kind", tag="cat"):
    lives: int


class Dog(Struct, tag_field="kind", tag="dog"):
    name: str


class Holder(Struct):
    animals: list[Cat | Dog]


class Node(Struct):
    value: int
    next: Optional["Node"] = None


@dataclasses.dataclass
class Point:
    x: Annotated[float, Meta(gt=0)]
    inner: Inner
    label: str = "p"


class Typed(TypedDict):
    a: int


class Pair(NamedTuple):
    a: int


def read(type_: Any, text: str) -> Any:
    return msgspec.convert(so_far(text), partial_type(type_), strict=False)


def shown(value: object) -> object:
    """A twin as plain values, by the names that fields have in Python."""
    if isinstance(value, Struct):
        return {name: shown(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, list):
        return [shown(item) for item in value]
    if isinstance(value, dict):
        return {name: shown(item) for name, item in value.items()}
    return value


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Inner, "{", {"first_name": None, "age": None}),
        (Inner, '{"firstName":"A', {"first_name": "A", "age": None}),
        (Inner, '{"firstName":"A","age":1', {"first_name": "A", "age": 1}),
        (Inner, '{"other":1', {"first_name": None, "age": None}),
        (
            Outer,
            '{"one":{"age":1},"many":[{"firstName":"A"},{',
            {
                "one": {"first_name": None, "age": 1},
                "many": [{"first_name": "A", "age": None}, {"first_name": None, "age": None}],
                "by_name": None,
                "maybe": None,
                "either": None,
                "word": None,
                "day": None,
            },
        ),
        (
            Outer,
            '{"by_name":{"a":{"age":1}},"maybe":null,"either":"x","word":"ye","day":"2026-0',
            {
                "one": None,
                "many": None,
                "by_name": {"a": {"first_name": None, "age": 1}},
                "maybe": None,
                "either": "x",
                "word": "ye",
                "day": "2026-0",
            },
        ),
        (
            Holder,
            '{"animals":[{"kind":"cat","lives":9},{"kind":"dog","na',
            {"animals": [{"lives": 9}, {"name": None}]},
        ),
        (Cat, '{"kind":"cat"', {"lives": None}),
        (Node, '{"value":1,"next":{"value":2', {"value": 1, "next": {"value": 2}}),
        (
            Point,
            '{"x":-1,"inner":{"fir',
            {"x": -1.0, "inner": {"first_name": None, "age": None}, "label": None},
        ),
        (list[Inner], '[{"age":1', [{"first_name": None, "age": 1}]),
        (Inner | None, '{"age":1', {"first_name": None, "age": 1}),
        (Annotated[list[int], Meta(min_length=3)], "[1", [1]),
        (Typed, '{"a":1', {"a": 1}),
        (Pair, "[1", [1]),
        (set[int], "[1", [1]),
        (Any, "[1", [1]),
        (Literal["yes"], '"y', "y"),
    ],
)
def test_value_of_a_type_so_far(type_: Any, text: str, value: object) -> None:
    assert shown(read(type_, text)) == value


@pytest.mark.parametrize("type_", [str, int, float, bool, type(None)])
def test_types_of_json_are_their_own_twins(type_: Any) -> None:
    assert partial_type(type_) is type_
    assert partial_type(Annotated[type_, Meta(description="x")]) is type_


def test_twin_of_a_struct_is_called_after_it() -> None:
    assert partial_type(Inner).__name__ == "PartialInner"
    assert partial_type(Point).__name__ == "PartialPoint"


@given(
    st.builds(
        Outer,
        st.builds(Inner, st.text(min_size=3), st.integers(18, 99)),
        st.lists(st.builds(Inner, st.text(min_size=3)), max_size=2),
        st.dictionaries(st.text(), st.builds(Inner, st.text(min_size=3)), max_size=2),
        st.none() | st.builds(Inner, st.text(min_size=3)),
        st.integers(0, 9) | st.text(),
        st.sampled_from(["yes", "no"]),
        st.dates(),
    )
)
@settings(max_examples=30, deadline=None)
def test_twin_of_a_whole_value_has_all_of_it(value: Outer) -> None:
    text = msgspec.json.encode(value).decode()
    twin = read(Outer, text)
    assert msgspec.json.decode(msgspec.json.encode(twin), type=Outer) == value


@given(st.builds(Inner, st.text(min_size=3), st.integers(18, 99)), st.integers(1, 100))
@settings(max_examples=50, deadline=None)
def test_every_beginning_of_a_value_fits_the_twin(value: Inner, cut: int) -> None:
    text = msgspec.json.encode(value).decode()
    twin = read(Inner, text[: cut % len(text) + 1])
    assert twin.first_name is None or value.first_name.startswith(twin.first_name)
