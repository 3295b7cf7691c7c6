"""Inputs become requests, or a reason that says nothing of them."""

import re
from datetime import date
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat import Assistant, User
from asyncchat.batch.item import (
    BadItem,
    Item,
    Layout,
    canonical,
    columns_of,
    identity,
    item_of,
    item_of_row,
)
from asyncchat.protocol.response import Message

ASKED = [{"role": "user", "content": "Hi."}]


def body(value: object, **layout: Any) -> dict[str, Any]:
    item = item_of(1, value, Layout(**layout))
    assert isinstance(item, Item), item
    return item.body


def reason(value: object, **layout: Any) -> str:
    item = item_of(1, value, Layout(**layout))
    assert isinstance(item, BadItem), item
    assert item.code == "invalid_line"
    return item.message.removeprefix("input 1: ")


def line(**fields: Any) -> dict[str, Any]:
    url, method = "/v1/chat/completions", "POST"
    return {"custom_id": "a", "method": method, "url": url, "body": {"messages": ASKED}, **fields}


# --------------------------------------------------------------------------------------------- kinds


def test_line_of_openais_batch_format_is_its_body() -> None:
    made = line(body={"model": "m", "messages": ASKED, "x_unknown": {"deep": [1, None]}})
    assert item_of(7, made, Layout()) == Item(7, "a", made["body"])


def test_body_is_asked_without_what_names_it() -> None:
    asked = {"messages": ASKED, "temperature": 0.5, "n_big": 10**30}
    assert body({"custom_id": "a", **asked}) == asked
    assert body({"id": 3, **asked}, id_column="id") == asked


def test_prompt_becomes_a_message_and_its_other_fields_stay() -> None:
    assert body({"custom_id": "a", "prompt": "Hi.", "seed": 1}) == {"messages": ASKED, "seed": 1}


@pytest.mark.parametrize(
    "value", ["Hi.", ASKED, tuple(ASKED), {"prompt": ASKED}, {"messages": ASKED}]
)
def test_programs_may_give_a_text_or_messages(value: object) -> None:
    assert body(value) == {"messages": ASKED}


def test_message_objects_become_what_is_sent_for_them() -> None:
    said = Message(role="assistant", content="Yes?", extra_={"x": 1})
    made = body([User("Hi."), said, Assistant("So.")])["messages"]
    assert made == [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Yes?", "x": 1},
        {"role": "assistant", "content": "So."},
    ]


def test_objects_of_other_libraries_are_written_as_they_say() -> None:
    class Array:
        def tolist(self) -> list[Any]:
            return [MappingProxyType({"role": "user", "content": "Hi."})]

    class Dumps:
        def model_dump(self, **options: object) -> dict[str, Any]:
            return {"role": "user", "content": "Hi."}

    assert body(MappingProxyType({"messages": Array()})) == {"messages": ASKED}
    assert body({"messages": [Dumps()]}) == {"messages": ASKED}
    assert body({"talk": [*ASKED, Dumps()]}, messages_column="talk") == {"messages": ASKED * 2}
    assert body({"prompt": "Hi.", "x": Dumps()})["x"] == ASKED[0]


def test_system_template_comes_before_all_messages() -> None:
    system = {"role": "system", "content": "Speak French."}
    row = {"prompt": "Hi.", "tongue": "French"}
    made = body(row, system="Speak {tongue}.", prompt="{prompt}")
    assert made == {"messages": [system, *ASKED]}
    assert body(line(), system="Speak French.") == {"messages": [system, *ASKED]}


def test_messages_column_holds_messages_or_their_json() -> None:
    for column in (ASKED, msgspec.json.encode(ASKED).decode()):
        assert body({"talk": column, "other": 1}, messages_column="talk") == {"messages": ASKED}


def test_item_keeps_nothing_of_the_programs() -> None:
    given_ = {"messages": [{"role": "user", "content": ["x"]}]}
    made = body(given_)
    given_["messages"][0]["content"][0] = "y"  # type: ignore[index]  # a list in a dict in a list
    assert made["messages"][0]["content"] == ["x"]


# ---------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("row", "id_column", "key"),
    [
        ({"custom_id": "a"}, None, "a"),
        ({"custom_id": 7}, None, "7"),
        ({"custom_id": "a", "id": "b"}, "id", "a"),
        ({"id": "b"}, "id", "b"),
        ({"id": 2**70}, "id", str(2**70)),
        ({"id": "b"}, None, "line-3"),
        ({"custom_id": "é" * 512}, None, "é" * 512),
    ],
)
def test_key_is_custom_id_then_the_id_column_then_the_place(
    row: dict[str, Any], id_column: str | None, key: str
) -> None:
    item = item_of(3, {**row, "prompt": "Hi."}, Layout(id_column=id_column))
    assert isinstance(item, Item)
    assert (item.n, item.key) == (3, key)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "is null; it has to be text or a whole number"),
        ("", "is empty"),
        ("x" * 513, "is longer than 512 characters"),
        (1.5, "is a number; it has to be text or a whole number"),
        (True, "is true or false; it has to be text or a whole number"),
        ([1], "is a list; it has to be text or a whole number"),
        ("\ud83d", "has half of a surrogate pair"),
    ],
)
def test_unusable_id_is_an_error_record_named_by_its_place(value: object, why: str) -> None:
    for name in ("custom_id", "id"):
        item = item_of(3, {name: value, "prompt": "Hi."}, Layout(id_column="id"))
        assert item == BadItem(3, "line-3", "invalid_line", f"input 3: its {name!r} {why}")


def test_missing_id_column_is_an_error_record() -> None:
    assert reason({"prompt": "Hi."}, id_column="id") == "it has no 'id' to be named by"


def test_bad_input_is_named_by_its_id() -> None:
    item = item_of(3, {"custom_id": "a", "messages": [], "x": object()}, Layout())
    assert isinstance(item, BadItem)
    assert item.key == "a"


# ---------------------------------------------------------------------------------------- bad inputs


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({}, "it has no messages and no prompt"),
        ({"text": "secret"}, "it has no messages and no prompt"),
        ({"messages": None}, "its messages are null; they have to be a list"),
        ({"messages": "secret"}, "its messages are text; they have to be a list"),
        ({"messages": []}, "its list of messages is empty"),
        ({"messages": ["secret"]}, "messages[0] is text; it has to be an object"),
        ({"messages": [*ASKED, {"content": "secret"}]}, "messages[1] has no role"),
        ({"messages": [{"role": 1}]}, "messages[0] has no role"),
        ({"prompt": None}, "its prompt is null; it has to be text or a list of messages"),
        ({"prompt": 5}, "its prompt is a number; it has to be text or a list of messages"),
        ({"prompt": ""}, "its prompt is empty"),
        ({"prompt": []}, "its list of messages is empty"),
        (
            line(url="/v1/embeddings"),
            "its url does not end in /chat/completions, and nothing else can be asked",
        ),
        (line(url=5), "its url does not end in /chat/completions, and nothing else can be asked"),
        (line(method="GET"), "its method is not POST"),
        (line(body="secret"), "its body is text; it has to be an object"),
        (line(body={"input": "secret"}), "its body has no messages"),
    ],
)
def test_wrong_input_is_told_by_its_kind_and_never_by_its_words(value: object, why: str) -> None:
    assert reason(value) == why


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (5, "it is a int; it has to be a dict, a str or a list of messages"),
        (None, "it is a NoneType; it has to be a dict, a str or a list of messages"),
        (b"Hi.", "it is a bytes; it has to be a dict, a str or a list of messages"),
        ("\ud83d", "a text in it has half of a surrogate pair"),
        ({"prompt": "x", "\ud83d": 1}, "a text in it has half of a surrogate pair"),
        (
            {"prompt": "x", "top_p": float("nan")},
            "a number in it is not finite, which JSON has no form for",
        ),
        (
            {"prompt": "x", "bias": [{"a": (float("-inf"),)}]},
            "a number in it is not finite, which JSON has no form for",
        ),
        ({"prompt": "x", "y": object()}, "it holds something that cannot be written as JSON"),
        ([object()], "it holds something that cannot be written as JSON"),
    ],
)
def test_value_that_json_cannot_say_is_an_error_record(value: object, why: str) -> None:
    assert reason(value) == why


def test_value_that_holds_itself_is_an_error_record() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert reason({"prompt": "x", "y": loop}) == "it is nested too deep"


def test_null_among_finite_numbers_is_a_null() -> None:
    assert body({"prompt": "Hi.", "stop": None, "top_p": 1.0})["stop"] is None


@pytest.mark.parametrize(
    ("value", "layout"),
    [
        ("é" * 60, {}),
        ({"text": "é" * 60}, {"prompt": "{text}"}),
        ({"text": "é" * 30}, {"prompt": "{text}{text}"}),
    ],
)
def test_request_over_its_bound_is_an_error_record(value: object, layout: dict[str, Any]) -> None:
    assert reason(value, max_body=100, **layout) == "it is larger than 100 bytes (max_body)"


# ----------------------------------------------------------------------------------------- templates


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("Classify: {text}", "Classify: a{b}"),
        ("{text}{text}", "a{b}a{b}"),
        ('{{"x": "{text}"}}', '{"x": "a{b}"}'),
        ("{{{text}}}", "{a{b}}"),
        ("{{}}", "{}"),
        ("no column", "no column"),
        ("{two words} {a.b!r:>3}", "2 é"),
        ("{n} {f} {yes} {many}", '3 0.5 true ["x",{"y":null}]'),
        ("{day} {price}", "2026-10-01 1.50"),
    ],
)
def test_template_puts_values_where_columns_are_named(template: str, text: str) -> None:
    row = {
        "text": "a{b}",
        "two words": 2,
        "a.b!r:>3": "é",
        "n": 3,
        "f": 0.5,
        "yes": True,
        "many": ["x", {"y": None}],
        "day": date(2026, 10, 1),
        "price": Decimal("1.50"),
    }
    assert body(row, prompt=template) == {"messages": [{"role": "user", "content": text}]}


@given(st.text(), st.text(st.characters(exclude_characters="{}", codec="utf-8"), min_size=1))
def test_any_text_survives_a_template(value: str, column: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        return
    made = body({column: value}, prompt=f"{{{{<{{{column}}}>")
    assert made["messages"][0]["content"] == "{<" + value + ">"


@pytest.mark.parametrize(
    ("row", "layout", "why"),
    [
        ({}, {"prompt": "{text}"}, "it has no 'text'"),
        ({"text": None}, {"prompt": "{text}"}, "its 'text' is null"),
        ({"text": ""}, {"prompt": "{text}"}, "its prompt is empty"),
        ({"text": "x"}, {"prompt": "{text}", "system": "{role}"}, "it has no 'role'"),
        ({}, {"messages_column": "talk"}, "it has no 'talk'"),
        ({"talk": None}, {"messages_column": "talk"}, "its 'talk' is null"),
        (
            {"talk": "secret"},
            {"messages_column": "talk"},
            "its 'talk' is text that is not the JSON of messages",
        ),
        (
            {"talk": "{}"},
            {"messages_column": "talk"},
            "its messages are an object; they have to be a list",
        ),
    ],
)
def test_row_without_what_the_layout_names_is_an_error_record(
    row: object, layout: dict[str, Any], why: str
) -> None:
    assert reason(row, **layout) == why


def test_cells_that_are_no_utf8_are_told_apart_from_half_pairs() -> None:
    layout = Layout(prompt="{text}")
    for text, why in (("a\udcff", "is not UTF-8"), ("a\ud83d", "has half of a surrogate pair")):
        item = item_of_row(2, {"text": text}, layout, "row")
        assert item == BadItem(2, "line-2", "invalid_line", f"row 2: its 'text' {why}")


def test_columns_that_are_not_asked_for_may_hold_anything() -> None:
    row = {"text": "Hi.", "image": object(), "huge": "x" * 1000}
    assert body(row, prompt="{text}", max_body=100) == {"messages": ASKED}


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        (
            {"prompt": "{text"},
            "lone { at character 1: columns are written {name}, and a brace itself {{",
        ),
        (
            {"prompt": "a}"},
            "lone } at character 2: columns are written {name}, and a brace itself }}",
        ),
        ({"prompt": "{}"}, "lone { at character 1"),
        ({"system": "{a{b}"}, "lone { at character 1"),
        ({"prompt": ""}, "prompt is empty: write a template"),
        ({"prompt": "x", "messages_column": "y"}, "leave one of them out"),
        ({"format": "tsv"}, "has to be jsonl, csv or parquet"),
        ({"max_body": 0}, "has to be at least 1"),
    ],
)
def test_layout_that_cannot_be_meant_is_refused_at_once(layout: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Layout(**layout)


def test_layout_names_its_columns_once() -> None:
    layout = Layout(prompt="{a} {b} {{c}} {a}", system="{d}{b}", id_column="a")
    assert columns_of(layout) == ["a", "b", "d"]
    assert columns_of(Layout(messages_column="m", id_column="i")) == ["m", "i"]


def test_identity_does_not_know_the_order_of_fields() -> None:
    one = canonical({"a": 1, "b": {"c": 2, "d": 3}})
    assert identity(one) == identity(canonical({"b": {"d": 3, "c": 2}, "a": 1}))
    assert identity(canonical({"a": 1})) != identity(canonical({"a": 2}))
