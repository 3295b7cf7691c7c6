"""Types and functions as schemas in every dialect, and JSON read back as values of the types."""

import contextlib
import dataclasses
import datetime as dt
import decimal
import enum
import functools
import itertools
import re
import sys
import types
import uuid
from collections.abc import Callable, Iterable
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NotRequired,
    Optional,
    TypedDict,
    TypeVar,
)

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Meta, Struct, UnsetType
from openai.lib._pydantic import to_strict_json_schema

from asyncchat.errors import OutputMismatch
from asyncchat.protocol.partial import PartialJSON
from asyncchat.protocol.schema import (
    Dialect,
    OutputType,
    SchemaError,
    Tool,
    output_type,
    problems_of,
    schema_of,
    strict,
    tool,
)


class Person(Struct):
    """A person."""

    name: str
    age: Annotated[int, Meta(ge=0, description="in years", examples=[3])] = 3


class Team(Struct, rename="camel"):
    team_lead: Annotated[Person, Meta(description="who leads")]
    all_members: list[Person] = []


class Node(Struct):
    value: int
    next: "Node | None" = None


class Cat(Struct, tag_field="kind", tag="cat"):
    lives: int


class Dog(Struct, tag_field="kind", tag="dog"):
    name: Annotated[str, Meta(description="call", min_length=2, max_length=5)]


class Bounds(Struct):
    code: Annotated[str, Meta(pattern="^a+$", max_length=3)]
    share: Annotated[float, Meta(gt=0, lt=1, multiple_of=0.5)]
    some: Annotated[list[int], Meta(min_length=1, max_length=3)]


class Color(enum.Enum):
    RED = "r"
    GREEN = "g"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Pair(NamedTuple):
    first: int
    second: str = "x"


class HasPair(Struct):
    pair: Pair
    more: tuple[int, str]
    free: dict[str, int]
    odd: Any


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Half(TypedDict, total=False):
    a: int


class Mixed(TypedDict):
    a: int
    b: NotRequired[str]


class Stamps(Struct):
    day: dt.date
    aware: Annotated[dt.datetime, Meta(tz=True)]
    wait: dt.timedelta
    key: uuid.UUID
    price: decimal.Decimal
    raw: bytes


class Moments(Struct):
    when: dt.datetime
    at: dt.time


class Sets(Struct):
    a: set[int]
    b: frozenset[str]
    c: tuple[float, ...]


class Unset(Struct):
    maybe: int | UnsetType = UNSET


class Keeps(TypedDict):
    it: Unset


class HoldsUnset(Struct, rename="camel"):
    some_items: list[Unset]


class Same(pydantic.BaseModel):
    """Has definitions of the names that others use."""

    color: Color
    person: "PersonModel | None" = None


class PersonModel(pydantic.BaseModel):
    name: str
    age: int = pydantic.Field(3, ge=0, description="in years")


def _other_same() -> type[pydantic.BaseModel]:
    class PersonModel(pydantic.BaseModel):
        size: float

    class Same(pydantic.BaseModel):
        person: PersonModel | None

    return Same


OtherSame: Any = _other_same()


class Mother(Struct):
    one: Same
    two: OtherSame
    color: Color


class Chain(pydantic.BaseModel):
    value: int
    kids: list["Chain"] = []


class Round(pydantic.BaseModel):
    shape: Literal["round"]
    radius: float


class Square(pydantic.BaseModel):
    shape: Literal["square"]
    side: float


class Drawing(pydantic.BaseModel):
    shapes: list[Annotated[Round | Square, pydantic.Field(discriminator="shape")]]


class Numbers(pydantic.RootModel[list[int]]):
    pass


@dataclasses.dataclass
class HoldsModel:
    model: PersonModel
    more: list[PersonModel]


def obj(**properties: Any) -> dict[str, Any]:
    """An object as strict mode wants it."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}
NULL = {"type": "null"}
YEARS = {"type": "integer", "minimum": 0, "description": "in years"}
PERSON = {**obj(name=STRING, age=YEARS), "description": "A person."}
NODE = obj(value=INTEGER, next={"anyOf": [{"$ref": "#/$defs/Node"}, NULL]})
CAT = obj(kind={"type": "string", "enum": ["cat"]}, lives=INTEGER)
DOG = obj(
    kind={"type": "string", "enum": ["dog"]},
    name={"type": "string", "description": "call, at most 5 characters, at least 2 characters"},
)
PERSON_MODEL = obj(name=STRING, age=YEARS)
CHAIN = obj(value=INTEGER, kids={"type": "array", "items": {"$ref": "#/$defs/Chain"}})


def of(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


STRICT: list[tuple[str, Any, dict[str, Any]]] = [
    ("struct with default, bound, words", Person, PERSON),
    (
        "nested struct, renamed",
        Team,
        {
            **obj(
                teamLead={**PERSON, "description": "who leads"},
                allMembers=of({"$ref": "#/$defs/Person"}),
            ),
            "$defs": {"Person": PERSON},
        },
    ),
    ("recursive struct", Node, {**NODE, "$defs": {"Node": NODE}}),
    ("tagged struct", Cat, CAT),
    (
        "tagged union",
        Cat | Dog,
        {
            **obj(value={"anyOf": [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]}),
            "$defs": {"Cat": CAT, "Dog": DOG},
        },
    ),
    (
        "bounds",
        Bounds,
        obj(
            code={"type": "string", "pattern": "^a+$", "description": "at most 3 characters"},
            share={
                "type": "number",
                "exclusiveMinimum": 0,
                "exclusiveMaximum": 1,
                "multipleOf": 0.5,
            },
            some={"type": "array", "items": INTEGER, "minItems": 1, "maxItems": 3},
        ),
    ),
    ("dataclass", Point, {**obj(x=INTEGER, y=INTEGER)}),
    ("TypedDict, total=False", Half, obj(a=INTEGER)),
    ("TypedDict with NotRequired", Mixed, obj(a=INTEGER, b=STRING)),
    ("literal", Literal["a", "b"], obj(value={"type": "string", "enum": ["a", "b"]})),
    (
        "literal of several types",
        Literal["a", 1],
        obj(
            value={"anyOf": [{"type": "integer", "enum": [1]}, {"type": "string", "enum": ["a"]}]}
        ),
    ),
    (
        "enum",
        Color,
        {
            **obj(value={"$ref": "#/$defs/Color"}),
            "$defs": {"Color": {"type": "string", "enum": ["g", "r"]}},
        },
    ),
    (
        "enum of numbers",
        Level,
        {
            **obj(value={"$ref": "#/$defs/Level"}),
            "$defs": {"Level": {"type": "integer", "enum": [1, 2]}},
        },
    ),
    ("optional", Optional[int], obj(value={"anyOf": [INTEGER, NULL]})),  # noqa: UP045
    ("union", int | str, obj(value={"anyOf": [INTEGER, STRING]})),
    ("list", list[int], obj(value=of(INTEGER))),
    (
        "list of structs",
        list[Person],
        {**obj(value=of({"$ref": "#/$defs/Person"})), "$defs": {"Person": PERSON}},
    ),
    ("int", int, obj(value=INTEGER)),
    ("bool", bool, obj(value={"type": "boolean"})),
    ("float", float, obj(value=NUMBER)),
    ("str", str, obj(value=STRING)),
    ("None", None, obj(value=NULL)),
    ("sets and a tuple of one type", Sets, obj(a=of(INTEGER), b=of(STRING), c=of(NUMBER))),
    (
        "stamps",
        Stamps,
        obj(
            day={"type": "string", "format": "date"},
            aware={"type": "string", "format": "date-time"},
            wait={"type": "string", "format": "duration"},
            key={"type": "string", "format": "uuid"},
            price=STRING,
            raw=STRING,
        ),
    ),
    (
        "annotated list",
        Annotated[list[int], Meta(min_length=1, description="some")],
        obj(value={"type": "array", "items": INTEGER, "minItems": 1, "description": "some"}),
    ),
    ("pydantic", PersonModel, PERSON_MODEL),
    ("pydantic in a list", list[PersonModel], obj(value=of(PERSON_MODEL))),
    ("pydantic in a dataclass", HoldsModel, obj(model=PERSON_MODEL, more=of(PERSON_MODEL))),
    ("pydantic or nothing", PersonModel | None, obj(value={"anyOf": [PERSON_MODEL, NULL]})),
    ("pydantic, recursive", Chain, {**CHAIN, "$defs": {"Chain": CHAIN}}),
    ("pydantic, root", Numbers, obj(value=of(INTEGER))),
    (
        "pydantic, tagged union",
        Drawing,
        {
            **obj(shapes=of({"anyOf": [{"$ref": "#/$defs/Round"}, {"$ref": "#/$defs/Square"}]})),
            "$defs": {
                "Round": obj(shape={"type": "string", "const": "round"}, radius=NUMBER),
                "Square": obj(shape={"type": "string", "const": "square"}, side=NUMBER),
            },
        },
    ),
    (
        "definitions of equal names",
        Mother,
        {
            **obj(
                one={
                    **obj(
                        color={"$ref": "#/$defs/Color_2"},
                        person={"anyOf": [{"$ref": "#/$defs/PersonModel"}, NULL]},
                    ),
                    "description": "Has definitions of the names that others use.",
                },
                two=obj(person={"anyOf": [{"$ref": "#/$defs/PersonModel_2"}, NULL]}),
                color={"$ref": "#/$defs/Color"},
            ),
            "$defs": {
                "Color": {"type": "string", "enum": ["g", "r"]},
                "Color_2": {"type": "string", "enum": ["r", "g"]},
                "PersonModel": PERSON_MODEL,
                "PersonModel_2": obj(size=NUMBER),
            },
        },
    ),
]


# -------------------------------------------------------------------------------------------- strict


@pytest.mark.parametrize(
    ("type_", "expected"), [row[1:] for row in STRICT], ids=[row[0] for row in STRICT]
)
def test_type_has_this_strict_schema(type_: Any, expected: dict[str, Any]) -> None:
    assert OutputType(type_).schema("strict") == expected


def test_annotated_struct_at_the_root_is_an_object_of_its_own() -> None:
    made: OutputType[Any] = OutputType(Annotated[Person, Meta(description="root")])
    assert made.schema("strict") == {**PERSON, "description": "root"}


def test_annotated_struct_at_the_root_is_read() -> None:
    made: OutputType[Any] = OutputType(Annotated[Person, Meta(description="root")])
    text = '{"name":"a","age":1}'
    assert made.decode(f'{{"value":{text}}}' if made.is_wrapped else text) == Person("a", 1)


def nodes(schema: object) -> Iterable[dict[str, Any]]:
    """Every schema in a schema."""
    if isinstance(schema, dict):
        yield schema
        for key in ("properties", "$defs"):
            for inner in schema.get(key, {}).values():
                yield from nodes(inner)
        yield from nodes(schema.get("items"))
        for inner in schema.get("anyOf", ()):
            yield from nodes(inner)


UNKNOWN_TO_STRICT = {
    "default",
    "title",
    "examples",
    "discriminator",
    "uniqueItems",
    "minLength",
    "maxLength",
    "oneOf",
    "allOf",
    "contentEncoding",
}


@pytest.mark.parametrize("type_", [row[1] for row in STRICT], ids=[row[0] for row in STRICT])
def test_every_node_of_a_strict_schema_keeps_the_rules(type_: Any) -> None:
    schema = OutputType(type_).schema("strict")
    assert schema["type"] == "object"
    for node in nodes(schema):
        assert not UNKNOWN_TO_STRICT & set(node)
        assert {"type", "anyOf", "$ref"} & set(node)
        if "$ref" in node:
            assert set(node) == {"$ref"}
            assert node["$ref"].removeprefix("#/$defs/") in schema["$defs"]
        if node.get("type") == "object":
            assert node["required"] == list(node["properties"])
            assert node["additionalProperties"] is False
    assert problems_of(schema) == []


@pytest.mark.parametrize("type_", [row[1] for row in STRICT], ids=[row[0] for row in STRICT])
def test_strict_is_done_after_one_pass(type_: Any) -> None:
    schema = OutputType(type_).schema("strict")
    assert strict(schema) == schema


NAMED_TUPLE = "a tuple of several types cannot be said; use an object, or tuple[T, ...]"
FREE_KEYS = (
    "an object with keys of any name (dict[str, ...]) cannot be said; "
    "use a list of objects with a key and a value"
)
ANYTHING = "any value may stand here; say of what type it is"


@pytest.mark.parametrize(
    ("type_", "problems"),
    [
        (Pair, [f"$.$defs.Pair: {NAMED_TUPLE}"]),
        (tuple[int, str], [f"$.value: {NAMED_TUPLE}"]),
        (dict[str, int], [f"$: {FREE_KEYS}"]),
        (list[dict[str, int]], [f"$.value.items: {FREE_KEYS}"]),
        (Any, [f"$.value: {ANYTHING}"]),
        (int | dict[str, int], [f"$.value.anyOf[1]: {FREE_KEYS}"]),
        (
            HasPair,
            [
                f"$.more: {NAMED_TUPLE}",
                f"$.free: {FREE_KEYS}",
                f"$.odd: {ANYTHING}",
                f"$.$defs.Pair: {NAMED_TUPLE}",
            ],
        ),
    ],
    ids=["NamedTuple", "tuple", "dict", "list of dict", "Any", "union", "all at once"],
)
def test_what_strict_cannot_say_is_told_all_at_once_with_paths(
    type_: Any, problems: list[str]
) -> None:
    made: OutputType[Any] = OutputType(type_)
    with pytest.raises(SchemaError) as caught:
        made.schema("strict")
    assert caught.value.problems == problems
    assert all(problem in str(caught.value) for problem in problems)
    assert made.schema("json_schema")


@pytest.mark.parametrize(
    ("type_", "path"),
    [
        (Unset, "$.maybe"),
        (list[Unset], "$.value.items.maybe"),
        (HoldsUnset, "$.someItems.items.maybe"),
    ],
)
def test_field_that_may_be_absent_is_a_problem_in_strict(type_: Any, path: str) -> None:
    with pytest.raises(SchemaError, match=re.escape(path) + r": .*UNSET.*T \| None"):
        OutputType(type_).schema("strict")


@pytest.mark.parametrize(
    "type_",
    [
        dataclasses.make_dataclass("Loose", [("maybe", int | UnsetType, UNSET)]),
        msgspec.defstruct(
            "Noted", [("maybe", Annotated[int | UnsetType, Meta(description="x")], UNSET)]
        ),
        Keeps,
    ],
    ids=["dataclass", "Annotated", "in a TypedDict"],
)
def test_field_that_may_be_absent_is_found_wherever_it_is(type_: Any) -> None:
    with pytest.raises(SchemaError, match="UNSET"):
        OutputType(type_).schema("strict")


def test_field_that_may_be_absent_is_fine_as_plain_schema() -> None:
    assert OutputType(Unset).schema("json_schema") == {
        "title": "Unset",
        "type": "object",
        "properties": {"maybe": {"type": "integer"}},
        "required": [],
    }


# -------------------------------------------------------------------------------------------- rewriting


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ({"const": 1}, {"type": "integer", "const": 1}),
        ({"const": None}, {"type": "null", "const": None}),
        ({"enum": [True]}, {"type": "boolean", "enum": [True]}),
        (
            {"enum": [1.5, "a"], "description": "d"},
            {
                "anyOf": [{"type": "number", "enum": [1.5]}, {"type": "string", "enum": ["a"]}],
                "description": "d",
            },
        ),
        ({"allOf": [{"type": "integer"}], "description": "d"}, {**INTEGER, "description": "d"}),
        ({"oneOf": [{"type": "integer", "title": "t"}]}, {"anyOf": [INTEGER]}),
        ({"type": "string", "format": "decimal"}, STRING),
        ({"type": "string", "format": "email"}, {"type": "string", "format": "email"}),
        ({"type": "object"}, obj()),
        ({"$ref": "#/$defs/Gone", "description": "d"}, {"$ref": "#/$defs/Gone"}),
    ],
    ids=lambda node: msgspec.json.encode(node).decode(),
)
def test_node_is_rewritten(node: dict[str, Any], expected: dict[str, Any]) -> None:
    assert strict(obj(a=node))["properties"]["a"] == expected


def test_properties_may_be_called_like_keywords() -> None:
    schema = obj(default=INTEGER, title=STRING, anyOf=INTEGER, items=STRING)
    assert strict(schema) == schema
    assert problems_of(schema) == []


def test_property_may_be_called_like_the_definitions() -> None:
    odd = msgspec.defstruct("Odd", [("a", int), ("b", int)], rename={"a": "$ref", "b": "$defs"})
    assert OutputType(odd).schema() == obj(**{"$ref": INTEGER, "$defs": INTEGER})


def test_type_that_is_called_like_the_wrapper_is_kept_apart() -> None:
    answer = msgspec.defstruct("Answer", [("a", int)])
    made: OutputType[Any] = OutputType(list[answer])  # type: ignore[valid-type]
    [name] = made.schema()["$defs"]
    assert made.schema() == {
        **obj(value=of({"$ref": f"#/$defs/{name}"})),
        "$defs": {name: obj(a=INTEGER)},
    }
    assert made.decode('{"value":[{"a":1}]}') == [answer(1)]


def test_words_beside_a_recursive_reference_are_dropped() -> None:
    inner = obj(next={"$ref": "#/$defs/N"})
    made = strict({**obj(a={"$ref": "#/$defs/N", "description": "d"}), "$defs": {"N": inner}})
    assert made == {**obj(a={"$ref": "#/$defs/N"}), "$defs": {"N": inner}}


def test_definition_that_is_in_its_place_is_no_definition_any_more() -> None:
    made = strict({**obj(a={"$ref": "#/$defs/N", "description": "d"}), "$defs": {"N": STRING}})
    assert made == obj(a={"type": "string", "description": "d"})


def test_definitions_inside_come_to_the_root() -> None:
    class Hooked(Struct):
        a: Annotated[
            int, Meta(extra_json_schema={"$defs": {"X": {"type": "integer"}, "Y": {}}, "x": [1]})
        ]
        b: Annotated[int, Meta(extra_json_schema={"anyOf": [{"$ref": "#/$defs/X"}]})]

    made = schema_of(Hooked)
    assert made["$defs"] == {"X": INTEGER}
    assert made["properties"]["a"] == {"type": "integer", "x": [1]}


def test_definition_gets_the_first_name_that_is_free() -> None:
    def model(kind: Any) -> Any:
        class Inner(pydantic.BaseModel):
            a: kind

        class Outer(pydantic.BaseModel):
            inner: list[Inner]

        return Outer

    three = msgspec.defstruct("Three", [("a", model(int)), ("b", model(str)), ("c", model(float))])
    made = schema_of(three)
    assert set(made["$defs"]) == {"Inner", "Inner_2", "Inner_3"}
    for name, inner, kind in (
        ("a", "Inner", "integer"),
        ("b", "Inner_2", "string"),
        ("c", "Inner_3", "number"),
    ):
        items = made["properties"][name]["properties"]["inner"]["items"]
        assert items == {"$ref": f"#/$defs/{inner}"}
        assert made["$defs"][inner]["properties"]["a"]["type"] == kind


# -------------------------------------------------------------------------------------------- linter


def nested(levels: int) -> dict[str, Any]:
    made: dict[str, Any] = STRING
    for _ in range(levels):
        made = obj(a=made)
    return made


@pytest.mark.parametrize(
    ("schema", "problems"),
    [
        (STRING, ["$: the root has to be an object"]),
        ({"anyOf": [obj()]}, ["$: the root has to be an object"]),
        (obj(a=3), ["$.a: 3 is no schema"]),
        (
            {**obj(a={"$ref": "#/$defs/A", "description": "d"}), "$defs": {"A": STRING}},
            ["$.a: nothing may stand beside $ref"],
        ),
        (obj(a={"type": "string", "minLength": 1}), ["$.a: minLength is not known"]),
        (obj(a={"type": "string", "not": {}}), ["$.a: not cannot be said"]),
        (obj(a={"allOf": []}), ["$.a: allOf cannot be said", f"$.a: {ANYTHING}"]),
        (
            {**obj(), "patternProperties": {}},
            ["$: keys by pattern cannot be said"],
        ),
        ({**obj(a=STRING, b=STRING), "required": []}, ["$: a, b has to be required"]),
        (
            {**obj(a={"type": "object", "properties": {}}), "additionalProperties": True},
            [f"$: {FREE_KEYS}", f"$.a: {FREE_KEYS}"],
        ),
        (obj(a={"anyOf": [STRING, {}]}), [f"$.a.anyOf[1]: {ANYTHING}"]),
        (nested(9), []),
        (nested(12), [f"${'.a' * 10}: nested deeper than 10 levels"]),
        (obj(**{f"p{n}": STRING for n in range(5000)}), []),
        (
            obj(**{f"p{n}": STRING for n in range(5001)}),
            ["$: 5001 properties; 5000 are allowed"],
        ),
        (obj(a={"type": "integer", "enum": list(range(1000))}), []),
        (
            obj(a={"type": "integer", "enum": list(range(1001))}),
            ["$: 1001 values in enums; 1000 are allowed"],
        ),
        (obj(a={"type": "string", "enum": ["x" * 59_999, "y" * 60_000]}), []),
        (
            obj(a={"type": "string", "enum": ["x" * 60_000, "y" * 60_000]}),
            ["$: 120001 characters in names and values; 120000 are allowed"],
        ),
        (obj(a={"type": "string", "enum": ["x" * 60] * 250}), []),
        (
            obj(a={"type": "string", "enum": ["x" * 60] * 251}),
            ["$.a: an enum of more than 250 values may have 15000 characters"],
        ),
    ],
    ids=lambda value: None,
)
def test_linter_finds(schema: dict[str, Any], problems: list[str]) -> None:
    assert problems_of(schema) == problems


@pytest.mark.parametrize("type_", [list, list[Any]])
def test_list_of_anything_is_a_problem_in_strict(type_: Any) -> None:
    with pytest.raises(SchemaError, match=r"\$\.value"):
        OutputType(type_).schema("strict")


@pytest.mark.parametrize(
    "schema",
    [
        obj(a={"type": "string", "const": "x" * 120_000}),
        {**obj(a={"$ref": "#/$defs/" + "x" * 120_000}), "$defs": {"x" * 120_000: STRING}},
    ],
    ids=["const", "definition"],
)
def test_characters_of_constants_and_definitions_count(schema: dict[str, Any]) -> None:
    assert problems_of(schema) == ["$: 120001 characters in names and values; 120000 are allowed"]


# -------------------------------------------------------------------------------------------- other dialects


PLAIN_PERSON = {
    "title": "Person",
    "description": "A person.",
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {
            "type": "integer",
            "minimum": 0,
            "description": "in years",
            "examples": [3],
            "default": 3,
        },
    },
    "required": ["name"],
}


@pytest.mark.parametrize("dialect", ["json_schema", "json_object"])
@pytest.mark.parametrize(
    ("type_", "expected"),
    [
        (Person, PLAIN_PERSON),
        (
            list[Person],
            {
                "title": "Answer",
                **obj(value=of({"$ref": "#/$defs/Person"})),
                "$defs": {"Person": PLAIN_PERSON},
            },
        ),
        (dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (
            Half,
            {"title": "Half", "type": "object", "properties": {"a": INTEGER}, "required": []},
        ),
        (set[int], {"title": "Answer", **obj(value={**of(INTEGER), "uniqueItems": True})}),
        (
            Color,
            {
                "title": "Answer",
                **obj(value={"$ref": "#/$defs/Color"}),
                "$defs": {"Color": {"title": "Color", "enum": ["g", "r"]}},
            },
        ),
        (PersonModel, PersonModel.model_json_schema()),
        (Drawing, Drawing.model_json_schema()),
    ],
    ids=["struct", "list", "dict", "TypedDict", "set", "enum", "pydantic", "pydantic union"],
)
def test_other_dialects_have_the_schema_as_it_is(
    dialect: Dialect, type_: Any, expected: dict[str, Any]
) -> None:
    assert OutputType(type_).schema(dialect) == expected


def test_response_format_of_each_dialect() -> None:
    made: OutputType[Any] = OutputType(Person)
    assert made.response_format() == {
        "type": "json_schema",
        "json_schema": {"name": "Person", "schema": PERSON, "strict": True},
    }
    assert made.response_format("json_schema") == {
        "type": "json_schema",
        "json_schema": {"name": "Person", "schema": PLAIN_PERSON},
    }
    assert made.response_format("json_object") == {"type": "json_object"}


def test_only_json_object_has_the_schema_in_words() -> None:
    made: OutputType[Any] = OutputType(Person)
    assert made.instructions() is None
    assert made.instructions("json_schema") is None
    words = made.instructions("json_object")
    assert words is not None
    assert msgspec.json.decode(words.partition("\n")[2]) == PLAIN_PERSON


def test_schema_is_made_once() -> None:
    made: OutputType[Any] = OutputType(Person)
    assert made.schema() is made.schema()


# -------------------------------------------------------------------------------------------- names and types


T = TypeVar("T")


class Box(Struct, Generic[T]):
    content: T


@pytest.mark.parametrize(
    ("type_", "name"),
    [
        (Person, "Person"),
        (list[Person], "list_Person"),
        (dict[str, list[int]], "dict_str_list_int"),
        (Annotated[Person, Meta(description="x")], "Person"),
        (Box[int], "Box_int"),
        (Cat | Dog, "Union_Cat_Dog"),
        (types.new_class("Größe", (Struct,)), "Gr_e"),
        (types.new_class("Ä", (Struct,)), "answer"),
        (msgspec.defstruct("x" * 80, []), "x" * 64),
    ],
)
def test_schema_is_named_after_its_type(type_: Any, name: str) -> None:
    assert OutputType(type_).name == name
    assert repr(OutputType(type_)) == f"OutputType({name})"


@pytest.mark.parametrize("type_", [row[1] for row in STRICT], ids=[row[0] for row in STRICT])
def test_name_is_one_that_servers_take(type_: Any) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", OutputType(type_).name)


@given(st.text(min_size=1))
@settings(max_examples=50)
def test_any_given_name_becomes_one_that_servers_take(name: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", OutputType(int, name).name)


def test_output_type_is_made_once_for_a_type() -> None:
    made: OutputType[Any] = output_type(list[Person])
    assert output_type(list[Person]) is made
    assert output_type(made) is made


def test_output_type_of_an_annotation_without_hash_is_made_each_time() -> None:
    odd = Annotated[int, Meta(extra_json_schema={"x": 1}), []]
    assert output_type(odd).decode('{"value":1}') == 1


class Lost(Struct):
    a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class LostModel(pydantic.BaseModel):
    a: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    "type_",
    [
        object,
        3,
        Callable[[], int],
        list[object],
        Person | Point,
        PersonModel | Round,
        LostModel,
        Lost,
    ],
    ids=str,
)
def test_type_without_schema_is_a_schema_error(type_: Any) -> None:
    with pytest.raises(SchemaError, match=r"\$: "):
        OutputType(type_)


# -------------------------------------------------------------------------------------------- oracle


class Described(pydantic.BaseModel):
    """Words of its own."""

    one: PersonModel = pydantic.Field(description="one of them")
    two: PersonModel | None = None


class Enums(pydantic.BaseModel):
    color: Color
    level: Level = Level.LOW
    word: Literal["a"] = "a"
    either: Literal["a", "b"]


class Dates(pydantic.BaseModel):
    when: dt.datetime
    day: dt.date
    at: dt.time
    wait: dt.timedelta
    key: uuid.UUID


class Limits(pydantic.BaseModel):
    share: float = pydantic.Field(gt=0, lt=1)
    count: int = pydantic.Field(5, multiple_of=5, le=50)
    some: list[int] = pydantic.Field(min_length=1, max_length=3)
    code: str = pydantic.Field(pattern="^a+$")


class Aliased(pydantic.BaseModel):
    first_name: str = pydantic.Field(alias="firstName", title="T", examples=["a"])


class Empty(pydantic.BaseModel):
    pass


class Deep(pydantic.BaseModel):
    a: list[list[Described]]
    b: dict[str, int] | None = pydantic.Field(None, exclude=True)


class Deeper(pydantic.BaseModel):
    a: list[list[Described | Enums | None]]
    unique: set[str]
    many: tuple[int, ...]


class Money(pydantic.BaseModel):
    raw: bytes
    number: int | float | str | bool | None


class Tree(pydantic.BaseModel):
    left: "Tree | None" = None
    right: Optional["Tree"] = pydantic.Field(None, description="the other")
    color: Color = pydantic.Field(Color.RED, description="of the leaf")


def _normal(node: Any, *, is_names: bool = False) -> Any:
    """What the two may differ in is made equal.

    Titles, defaults, discriminators, uniqueItems and formats that strict does not know are dropped; oneOf is anyOf.
    """
    if isinstance(node, list):
        return [_normal(item) for item in node]
    if not isinstance(node, dict):
        return node
    if is_names:
        return {name: _normal(inner) for name, inner in node.items()}
    dropped = {"title", "default", "discriminator", "uniqueItems", "examples"}
    return {
        "anyOf" if key == "oneOf" else key: _normal(value, is_names=key in ("properties", "$defs"))
        for key, value in node.items()
        if key not in dropped and not (key == "format" and value == "binary")
    }


def _used(schema: dict[str, Any]) -> dict[str, Any]:
    """Without definitions that nothing points at any more: the helper leaves those, we do not."""
    defs = schema.pop("$defs", {})
    used: set[str] = set()
    new = {"": schema}
    while new:
        names = {name for name in defs if f"'#/$defs/{name}'" in str(new)} - used
        used |= names
        new = {name: defs[name] for name in names}
    kept = {name: node for name, node in defs.items() if name in used}
    return {**schema, **({"$defs": kept} if kept else {})}


@pytest.mark.parametrize(
    "model",
    [
        PersonModel,
        Same,
        Drawing,
        Described,
        Enums,
        Dates,
        Limits,
        Aliased,
        Empty,
        Deeper,
        Money,
        Tree,
        Chain,
    ],
    ids=lambda model: model.__name__,
)
def test_strict_schema_of_a_model_is_the_one_that_openai_makes(model: Any) -> None:
    expected = _used(_normal(to_strict_json_schema(model)))
    assert _normal(OutputType(model).schema("strict")) == expected


def test_dict_is_refused_where_openai_lets_it_through() -> None:
    with pytest.raises(SchemaError, match=r"\$\.b\.anyOf\[0\]"):
        OutputType(Deep).schema("strict")


# -------------------------------------------------------------------------------------------- round trip


class Sub(Struct, frozen=True, rename="kebab"):
    some_text: str
    number: int | None = None


@dataclasses.dataclass
class Flat:
    ok: bool
    share: float = 0.5


class Typed(TypedDict):
    a: int
    b: list[str]


class Whole(Struct):
    sub: Sub
    color: Color
    word: Literal["x", "y"]
    stamp: dt.date
    key: uuid.UUID
    price: decimal.Decimal
    raw: bytes
    subs: list[Sub] = []
    numbers: set[int] = set()
    node: Node | None = None
    animal: Cat | Dog | None = None


TEXT = st.text(max_size=8)
INT = st.integers(-(2**63), 2**63 - 1)
FLOAT = st.floats(allow_nan=False, allow_infinity=False)
SUB = st.builds(Sub, TEXT, st.none() | INT)
NODES = st.recursive(st.builds(Node, INT), lambda inner: st.builds(Node, INT, inner), max_leaves=4)
ANIMAL = st.builds(Cat, INT) | st.builds(Dog, st.text(min_size=2, max_size=5))
WHOLE = st.builds(
    Whole,
    SUB,
    st.sampled_from(Color),
    st.sampled_from(["x", "y"]),
    st.dates(),
    st.uuids(),
    st.decimals(allow_nan=False, allow_infinity=False, places=2),
    st.binary(max_size=8),
    st.lists(SUB, max_size=2),
    st.sets(INT, max_size=2),
    st.none() | NODES,
    st.none() | ANIMAL,
)
FAMILY: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, INT),
    (str, TEXT),
    (bool, st.booleans()),
    (float, FLOAT),
    (None, st.none()),
    (int | str | None, INT | TEXT | st.none()),
    (list[int], st.lists(INT)),
    (set[str], st.sets(TEXT)),
    (tuple[float, ...], st.lists(FLOAT).map(tuple)),
    (Color, st.sampled_from(Color)),
    (Level, st.sampled_from(Level)),
    (Literal["a", 1], st.sampled_from(["a", 1])),
    (Sub, SUB),
    (list[Sub], st.lists(SUB)),
    (Flat, st.builds(Flat, st.booleans(), FLOAT)),
    (Typed, st.fixed_dictionaries({"a": INT, "b": st.lists(TEXT)})),
    (Node, NODES),
    (Cat | Dog, ANIMAL),
    (list[list[Cat | Dog]], st.lists(st.lists(ANIMAL, max_size=3), max_size=3)),
    (Whole, WHOLE),
    (PersonModel, st.builds(PersonModel, name=TEXT, age=st.integers(0, 99))),
    (list[PersonModel], st.lists(st.builds(PersonModel, name=TEXT, age=st.integers(0, 99)))),
    (
        Drawing,
        st.builds(
            Drawing,
            shapes=st.lists(
                st.builds(Round, shape=st.just("round"), radius=FLOAT)
                | st.builds(Square, shape=st.just("square"), side=FLOAT)
            ),
        ),
    ),
    (Numbers, st.lists(INT).map(Numbers)),
]
LOOSE: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (dict[str, Sub], st.dictionaries(TEXT, SUB)),
    (Pair, st.builds(Pair, INT, TEXT)),
    (tuple[int, str], st.tuples(INT, TEXT)),
]


def _plain(value: object) -> object:
    assert isinstance(value, pydantic.BaseModel)
    return value.model_dump(mode="json")


def written(made: OutputType[Any], value: object) -> str:
    """The JSON of a value, as a model that keeps to the schema writes it."""
    shown = {"value": value} if made.is_wrapped else value
    return msgspec.json.encode(shown, enc_hook=_plain).decode()


def fits(value: Any, node: dict[str, Any], root: dict[str, Any]) -> bool:  # noqa: PLR0911  one return for each keyword
    """Whether plain JSON keeps to a schema: the keywords that say of what shape it is."""
    if "$ref" in node:
        return fits(value, root["$defs"][node["$ref"].removeprefix("#/$defs/")], root)
    if "anyOf" in node:
        return any(fits(value, inner, root) for inner in node["anyOf"])
    kinds = {
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
        "null": types.NoneType,
        "array": list,
        "object": dict,
    }
    if "type" in node:
        kind: Any = kinds[node["type"]]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            return False
    if "enum" in node and value not in node["enum"]:
        return False
    if "const" in node and value != node["const"]:
        return False
    if isinstance(value, list) and "items" in node:
        return all(fits(item, node["items"], root) for item in value if node["items"])
    if isinstance(value, dict):
        properties = node.get("properties", {})
        other = node.get("additionalProperties", {})
        return set(node.get("required", ())) <= set(value) and all(
            fits(item, properties[name], root)
            if name in properties
            else other is not False and fits(item, other, root)
            for name, item in value.items()
        )
    return True


@pytest.mark.parametrize(
    ("type_", "values"), [*FAMILY, *LOOSE], ids=[str(row[0]) for row in [*FAMILY, *LOOSE]]
)
def test_what_is_written_for_a_type_is_read_as_the_same_value(
    type_: Any, values: st.SearchStrategy[Any]
) -> None:
    made: OutputType[Any] = OutputType(type_)

    @given(values)
    @settings(max_examples=20, deadline=None)
    def check(value: Any) -> None:
        text = written(made, value)
        assert made.decode(text) == value
        assert made.decode(text.encode()) == value
        plain = msgspec.json.decode(text)
        schema = made.schema("json_schema")
        assert type_ in (Pair, tuple[int, str]) or fits(plain, schema, schema)

    check()


@pytest.mark.parametrize(("type_", "values"), FAMILY, ids=[str(row[0]) for row in FAMILY])
def test_what_is_written_for_a_type_keeps_to_its_strict_schema(
    type_: Any, values: st.SearchStrategy[Any]
) -> None:
    made: OutputType[Any] = OutputType(type_)
    schema = made.schema("strict")

    @given(values)
    @settings(max_examples=10, deadline=None)
    def check(value: Any) -> None:
        assert fits(msgspec.json.decode(written(made, value)), schema, schema)

    check()


_number = itertools.count()


def _struct_of(rows: list[tuple[Any, st.SearchStrategy[Any]]]) -> tuple[Any, Any]:
    fields = [(f"f{n}", type_) for n, (type_, _) in enumerate(rows)]
    made = msgspec.defstruct(f"Made{next(_number)}", fields)
    return made, st.builds(made, *[values for _, values in rows])


TYPES = st.recursive(
    st.sampled_from([row for row in FAMILY if row[0] not in (Drawing, Numbers, PersonModel)]),
    lambda inner: (
        inner.map(lambda row: (types.GenericAlias(list, row[0]), st.lists(row[1], max_size=3)))
        | inner.map(lambda row: (row[0] | None if row[0] else None, st.none() | row[1]))
        | st.lists(inner, min_size=1, max_size=3).map(_struct_of)
    ),
    max_leaves=5,
)


@given(TYPES, st.data())
@settings(max_examples=60, deadline=None)
def test_type_made_of_types_is_written_and_read(row: Any, data: st.DataObject) -> None:
    type_, values = row
    made: OutputType[Any] = OutputType(type_)
    value = data.draw(values)
    text = written(made, value)
    assert made.decode(text) == value
    schema = made.schema("strict")
    assert strict(schema) == schema
    assert fits(msgspec.json.decode(text), schema, schema)
    growing = PartialJSON()
    growing.feed(text)
    assert value is None or made.partial(growing) is not None


def from_schema(  # noqa: PLR0911  one return for each keyword
    node: dict[str, Any], root: dict[str, Any], depth: int = 4
) -> st.SearchStrategy[Any]:
    """Whatever a schema allows."""
    if "$ref" in node:
        return from_schema(root["$defs"][node["$ref"].removeprefix("#/$defs/")], root, depth - 1)
    if "anyOf" in node:
        few = [inner for inner in node["anyOf"] if depth > 0 or "$ref" not in inner]
        return st.one_of([from_schema(inner, root, depth) for inner in few])
    if "enum" in node:
        return st.sampled_from(node["enum"])
    if "const" in node:
        return st.just(node["const"])
    if node["type"] == "array":
        most = 2 if depth > 0 else 0
        return (
            st.lists(from_schema(node["items"], root, depth - 1), max_size=most)
            if most
            else st.just([])
        )
    if node["type"] == "object":
        return st.fixed_dictionaries(
            {name: from_schema(inner, root, depth) for name, inner in node["properties"].items()}
        )
    simple: dict[str, st.SearchStrategy[Any]] = {
        "string": st.text(max_size=4),
        "integer": st.integers(node.get("minimum", -9), 9),
        "number": FLOAT,
        "boolean": st.booleans(),
        "null": st.none(),
    }
    return simple[node["type"]]


@pytest.mark.parametrize(
    "type_",
    [
        Person,
        Team,
        Node,
        Point,
        Half,
        Mixed,
        Sub,
        list[Sub],
        Cat | Level,
        Color,
        Literal["a", 1],
        Sets,
        int | str | None,
        PersonModel,
        Drawing,
        list[PersonModel],
        Chain,
        Flat,
    ],
    ids=str,
)
def test_whatever_a_strict_schema_allows_is_read(type_: Any) -> None:
    made: OutputType[Any] = OutputType(type_)
    schema = made.schema("strict")

    @given(from_schema(schema, schema))
    @settings(max_examples=10, deadline=None)
    def check(value: Any) -> None:
        made.decode(msgspec.json.encode(value))

    check()


# -------------------------------------------------------------------------------------------- decode


class Modest(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    when: dt.datetime


def test_model_that_is_strict_with_itself_is_read_inside_a_list() -> None:
    made: OutputType[list[Modest]] = OutputType(list[Modest])
    read = made.decode('{"value":[{"when":"2026-05-03T00:00:00Z"}]}')
    assert [one.when.year for one in read] == [2026]


def test_root_model_is_read() -> None:
    assert OutputType(Numbers).decode('{"value":[1,2]}') == Numbers([1, 2])


@pytest.mark.parametrize(
    ("type_", "text", "said"),
    [
        (Person, '{"name":1}', r"Expected `str`, got `int` - at `\$\.name`"),
        (Person, '{"name":"a","age":-1}', r"Expected `int` >= 0 - at `\$\.age`"),
        (Person, "{}", "missing required field `name`"),
        (Team, '{"teamLead":{"name":[]}}', r"at `\$\.teamLead\.name`"),
        (list[int], '{"value":[1,"a"]}', r"at `\$\.value\[1\]`"),
        (list[int], "[1]", "Expected `object`"),
        (list[int], "{}", "missing required field `value`"),
        (Cat | Dog, '{"value":{"kind":"cow"}}', r"Invalid value 'cow' - at `\$\.value\.kind`"),
        (Color, '{"value":"b"}', r"Invalid enum value 'b' - at `\$\.value`"),
        (PersonModel, '{"name":"a","age":"x"}', "age Input should be a valid integer"),
        (
            list[PersonModel],
            '{"value":[{"age":1}]}',
            r"name Field required.* - at `\$\.value\[0\]`",
        ),
        (Person, "", "truncated"),
        (Person, " ", "truncated"),
        (Person, "Sure!", "malformed"),
        (Person, '{"name":"a"', "truncated"),
        (Person, '{"name":"a"} Hope it helps.', "trailing characters"),
        (Person, '```json\n{"name":"a"}\n```', "malformed"),
        (list[Any], '{"value":' + "[" * 100_000, "recursion"),
        (PersonModel, "[" * 100_000, "recursion"),
        (Person, "[" * 100_000, "Expected `object`"),
        (Person, b'{"name":"\xff"}', "UTF-8"),
        (PersonModel, b'{"name":"\xff"}', "Invalid JSON"),
        (Person, '{"name":"\ud83d"}', "surrogates"),
        (PersonModel, '{"name":"\ud83d"}', "unicode"),
        (dict[str, int], '{"a":' + "9" * 5000 + "}", "out of range"),
        (dict[str, float], '{"a":NaN}', "malformed"),
        (dict[str, dt.timedelta], '{"a":"P99999999999D"}', "out of range"),
    ],
)
def test_what_does_not_fit_says_where(type_: Any, text: str | bytes, said: str) -> None:
    with pytest.raises(OutputMismatch, match=said) as caught:
        OutputType(type_).decode(text)
    assert str(caught.value).startswith("the answer does not fit ")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("type_", [Whole, list[Whole], PersonModel, Drawing, dict[str, Any]])
def test_any_text_is_a_value_or_a_mismatch(type_: Any) -> None:
    made: OutputType[Any] = OutputType(type_)

    @given(st.text() | st.binary())
    @settings(max_examples=30, deadline=None)
    def check(text: str | bytes) -> None:
        with contextlib.suppress(OutputMismatch):
            made.decode(text)

    check()


def test_control_characters_of_an_answer_do_not_reach_the_terminal() -> None:
    with pytest.raises(OutputMismatch) as caught:
        OutputType(Color).decode('{"value":"\\u001b[31m"}')
    assert "\x1b" not in str(caught.value)


def test_elements_of_a_list_are_read_one_by_one() -> None:
    made: OutputType[Any] = output_type(list[Person])
    assert made.is_list
    assert not output_type(Person).is_list
    read = made.element_decoder()
    assert read('{"name":"a"}') == Person("a")
    with pytest.raises(OutputMismatch, match=r"does not fit Person: .*at `\$\.name`"):
        read('{"name":1}')


def test_elements_are_never_wrapped() -> None:
    assert output_type(list[int]).element_decoder()("3") == 3
    assert output_type(list[PersonModel]).element_decoder()('{"name":"a"}').name == "a"


class Custom:
    pass


def test_type_that_nothing_can_read_is_told_as_a_schema_error_or_a_mismatch() -> None:
    with pytest.raises((SchemaError, OutputMismatch)):
        OutputType(Annotated[Custom, Meta(extra_json_schema=STRING)]).decode('{"value":"x"}')


def test_parameter_that_nothing_can_read_is_told_as_a_schema_error_or_a_mismatch() -> None:
    def odd(a: Custom) -> None: ...

    with pytest.raises((SchemaError, OutputMismatch)):
        Tool(odd).decode('{"a":1}')


# -------------------------------------------------------------------------------------------- partial values


def test_partial_value_is_asked_for_again_and_again() -> None:
    growing = PartialJSON()
    made: OutputType[Point] = OutputType(Point)
    seen: list[Any] = []
    for part in ('{"x"', ":1", ',"y":2}'):
        growing.feed(part)
        twin: Any = made.partial(growing)
        seen.append((twin.x, twin.y))
    assert seen == [(None, None), (1, None), (1, 2)]


def so_far(type_: Any, text: str) -> Any:
    growing = PartialJSON()
    growing.feed(text)
    return output_type(type_).partial(growing)


def test_partial_value_is_a_twin_of_the_type() -> None:
    made = so_far(Team, '{"teamLead":{"name":"An')
    assert type(made).__name__ == "PartialTeam"
    assert made.team_lead.name == "An"
    assert made.team_lead.age is None
    assert made.all_members is None


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (list[int], '{"value":[1,2', [1, 2]),
        (list[int], '{"val', None),
        (list[int], "[1", None),
        (Person, "", None),
        (Person, "Sure", None),
        (Cat | Dog, '{"value":{"kind":"c', None),
        (Half, '{"a":1', {"a": 1}),
        (Color, '{"value":"r', "r"),
        (PersonModel, '{"name":"a', {"name": "a"}),
    ],
)
def test_partial_value(type_: Any, text: str, value: object) -> None:
    assert so_far(type_, text) == value


# -------------------------------------------------------------------------------------------- tools


class Place(Struct):
    """A place."""

    name: str


def plain(city: str, unit: Literal["c", "f"] = "c") -> str:
    """Current weather.

    city: a city name
    unit: of the degrees
    """
    return city + unit


def google(city: str, unit: Literal["c", "f"] = "c") -> None:
    """Current weather.

    Args:
        city: a city
            name
        unit (str, optional): of the degrees

    Returns:
        nothing
    """


def numpy(city: str, unit: Literal["c", "f"] = "c") -> None:
    """Current weather.

    Parameters
    ----------
    city : str
        a city name
    unit : {"c", "f"}
        of the degrees
    """


def sphinx(city: str, unit: Literal["c", "f"] = "c") -> None:
    """Current weather.

    :param city: a city name
    :param unit: of the degrees
    :returns: nothing
    """


@pytest.mark.parametrize("function", [plain, google, numpy, sphinx])
def test_docstring_of_every_style_describes_the_parameters(function: Any) -> None:
    city = {"type": "string", "description": "a city name"}
    unit = {"type": "string", "enum": ["c", "f"], "description": "of the degrees"}
    name = function.__name__
    assert Tool(function).definition() == {
        "type": "function",
        "function": {
            "name": name,
            "description": "Current weather.",
            "parameters": obj(city=city, unit=unit),
            "strict": True,
        },
    }
    assert Tool(function).definition("json_schema") == {
        "type": "function",
        "function": {
            "name": name,
            "description": "Current weather.",
            "parameters": {
                **obj(
                    city=city,
                    unit={"enum": ["c", "f"], "description": "of the degrees", "default": "c"},
                ),
                "required": ["city"],
            },
        },
    }


def test_lines_about_something_else_stay_in_the_description() -> None:
    def find(city: str) -> None:
        """Find.

        Note: slow
        city: which
        """

    made = Tool(find)
    assert made.description == "Find.\n\nNote: slow"
    assert made.schema() == obj(city={"type": "string", "description": "which"})


def test_words_in_the_annotation_win_over_the_docstring() -> None:
    def find(place: Annotated[Place, Meta(description="mine")], other: Place) -> None:
        """Find.

        place: other words
        other: its words
        """

    made = Tool(find).schema()["properties"]
    assert made["place"] == {**obj(name=STRING), "description": "mine"}
    assert made["other"] == {**obj(name=STRING), "description": "its words"}


def test_function_without_docstring_or_parameters_is_a_tool() -> None:
    def now() -> str:
        return "noon"

    assert Tool(now).definition() == {
        "type": "function",
        "function": {"name": "now", "parameters": obj(), "strict": True},
    }
    assert Tool(now).decode("") == {}
    assert Tool(now)() == "noon"
    assert repr(Tool(now)) == "Tool(now)"


def defaults(
    a: int,
    tags: list[str] = ["x"],  # noqa: B006  on purpose
    bag: dict[str, int] = {"k": 1},  # noqa: B006
    some: set[int] = {1},  # noqa: B006
    pair: tuple[int, ...] = (1, 2),
    place: Place | None = None,
    color: Color = Color.RED,
    *,
    late: float,
    last: str = "z",
) -> None: ...


def test_defaults_are_filled_in() -> None:
    assert Tool(defaults).decode('{"a":1,"late":2,"tags":["y"]}') == {
        "a": 1,
        "tags": ["y"],
        "bag": {"k": 1},
        "some": {1},
        "pair": (1, 2),
        "place": None,
        "color": Color.RED,
        "late": 2.0,
        "last": "z",
    }


def test_default_that_is_a_struct_is_filled_in() -> None:
    def find(place: Place = Place("here")) -> None: ...  # noqa: B008  on purpose

    assert Tool(find).decode("{}") == {"place": Place("here")}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("", "missing required field `city`"),
        ("{}", "missing required field `city`"),
        ('{"city":1}', r"Expected `str`, got `int` - at `\$\.city`"),
        ('{"city":"a","unit":"k"}', r"Invalid enum value 'k' - at `\$\.unit`"),
        ('{"city":"a","day":1}', "unknown field `day`"),
        ("[]", "Expected `object`"),
        ('{"city":"a"', "truncated"),
        (b'{"city":"\xff"}', "UTF-8"),
        ('{"city":"\ud83d"}', "surrogates"),
        ('{"city":"a"} {}', "trailing"),
    ],
)
def test_arguments_that_do_not_fit_say_where(arguments: str | bytes, said: str) -> None:
    with pytest.raises(OutputMismatch, match=said) as caught:
        Tool(plain).decode(arguments)
    assert str(caught.value).startswith("the arguments do not fit plain: ")
    assert caught.value.__cause__ is None


def test_arguments_are_values_of_their_types() -> None:
    def go(when: dt.date, place: Place, model: PersonModel) -> None: ...

    text = '{"when":"2026-05-03","place":{"name":"a"},"model":{"name":"b"}}'
    assert Tool(go).decode(text) == {
        "when": dt.date(2026, 5, 3),
        "place": Place("a"),
        "model": PersonModel.model_validate({"name": "b"}),
    }


def test_everything_wrong_with_a_signature_is_told_at_once() -> None:
    def odd(a, b: int, /, c, *rest: int, **more: int):  # type: ignore[no-untyped-def]
        return a

    with pytest.raises(SchemaError) as caught:
        Tool(odd)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [
        "$.a",
        "$.b",
        "$.c",
        "$.rest",
        "$.more",
    ]
    assert "needs an annotation" in caught.value.problems[2]


def test_everything_that_strict_cannot_say_of_parameters_is_told_at_once() -> None:
    def odd(a: dict[str, int], b: tuple[int, str], c: Any, d: list[Pair]) -> None: ...

    made = Tool(odd)
    with pytest.raises(SchemaError) as caught:
        made.schema()
    assert caught.value.problems == [
        f"$.a: {FREE_KEYS}",
        f"$.b: {NAMED_TUPLE}",
        f"$.c: {ANYTHING}",
        f"$.$defs.Pair: {NAMED_TUPLE}",
    ]
    assert made.schema("json_schema") == made.schema("json_object")


def test_parameter_that_may_be_absent_is_a_problem_in_strict() -> None:
    def odd(a: int | UnsetType = UNSET) -> None: ...

    with pytest.raises(SchemaError, match=r"\$\.a: .*UNSET"):
        Tool(odd).schema()


def unhashed(a: Person | Point) -> None: ...


def two_models(a: PersonModel | Round) -> None: ...


def private(__x: int = 1) -> None: ...


def lost(a: "Nowhere") -> None: ...  # type: ignore[name-defined]  # noqa: F821


def anything(a: object) -> None: ...


@pytest.mark.parametrize(
    "function", [max, len, unhashed, two_models, lost, anything], ids=lambda f: f.__name__
)
def test_function_without_schema_is_a_schema_error(function: Any) -> None:
    with pytest.raises(SchemaError, match=r"\$"):
        Tool(function).definition()


def test_return_annotation_that_is_not_there_does_not_matter() -> None:
    def find(a: int) -> "Nowhere": ...  # type: ignore[name-defined]  # noqa: F821

    assert Tool(find).schema() == obj(a=INTEGER)


class Weather:
    """An object that can be called."""

    async def __call__(self, city: str) -> str:
        """Call it."""
        return city

    async def method(self, city: str) -> str:
        """Ask it."""
        return city

    @classmethod
    def of_class(cls, city: str) -> str:
        """Ask the class."""
        return city

    @staticmethod
    def of_none(city: str) -> str:
        """Ask nobody."""
        return city


@pytest.mark.parametrize(
    ("function", "name", "is_async"),
    [
        (Weather(), "Weather", True),
        (Weather().method, "method", True),
        (Weather.of_class, "of_class", False),
        (Weather.of_none, "of_none", False),
    ],
)
def test_methods_and_objects_are_tools(function: Any, name: str, is_async: bool) -> None:
    made = Tool(function)
    assert made.name == name
    assert made.is_async is is_async
    assert made.schema() == obj(city=STRING)
    assert made.description


async def test_asynchronous_function_is_called_as_it_is() -> None:
    assert await Tool(Weather().method)("a") == "a"
    assert await Tool(Weather())(city="a") == "a"


def test_decorated_function_keeps_its_own_signature() -> None:
    @functools.wraps(plain)
    def around(*args: Any, **kwargs: Any) -> str:
        return plain(*args, **kwargs).upper()

    assert Tool(around).definition() == Tool(plain).definition()
    assert Tool(around)(city="a") == "AC"


def test_partial_function_asks_for_what_is_left() -> None:
    made = Tool(functools.partial(plain, "Oslo"), name="weather")
    assert list(made.schema()["properties"]) == ["unit"]
    assert made(**made.decode('{"unit":"f"}')) == "Oslof"


def test_partial_function_says_nothing_of_what_is_bound() -> None:
    assert Tool(functools.partial(plain, "Oslo"), name="weather").description == "Current weather."


def test_partial_function_of_any_kind_is_a_tool() -> None:
    twice = Tool(functools.partial(functools.partial(google, "Oslo"), unit="f"), name="w")
    assert twice.decode("{}") == {"unit": "f"}
    method = Tool(functools.partial(Weather().method, city="Oslo"), name="m")
    assert method.is_async
    assert method.description == "Ask it."
    assert method.decode("") == {"city": "Oslo"}


def test_lambda_needs_a_name() -> None:
    with pytest.raises(SchemaError, match="1 to 64 letters"):
        Tool(lambda: 1)
    assert Tool(lambda: 1, name="one").schema() == obj()


@pytest.mark.parametrize("name", ["a b", "a.b", "ä", "x" * 65, "a\n"])
def test_name_that_servers_refuse_is_refused(name: str) -> None:
    with pytest.raises(SchemaError, match="1 to 64 letters"):
        Tool(plain, name=name)


@pytest.mark.parametrize("name", ["a-b", "2x", "x" * 64, "_"])
def test_name_may_be_given(name: str) -> None:
    assert Tool(plain, name=name).definition()["function"]["name"] == name


def test_tool_called_like_a_type_of_its_parameters_keeps_them_apart() -> None:
    def find(a: Place) -> None: ...

    made = Tool(find, name="Place").schema()
    [inner] = made["$defs"].values()
    assert inner == {**obj(name=STRING), "description": "A place."}


def test_decorator_works_with_and_without_options() -> None:
    @tool
    def one(a: int) -> int:
        """One."""
        return a

    def of_its_own(a: int) -> int:
        """Of its own."""
        return a

    two = tool(name="zwei", description="Two.", timeout=3, confirm=True)(of_its_own)
    assert isinstance(one, Tool)
    assert (one.name, one.description, one.timeout, one.confirm) == ("one", "One.", None, False)
    assert isinstance(two, Tool)
    assert (two.name, two.description, two.timeout, two.confirm) == ("zwei", "Two.", 3, True)
    assert one(1) == two(a=1) == 1


def test_description_may_be_nothing() -> None:
    assert "description" not in Tool(plain, description="").definition()["function"]


LATER = '''
from __future__ import annotations
from msgspec import Struct


def find(place: Place, tags: list[str] | None = None) -> Elsewhere:
    """Find.

    place: where
    """


class Place(Struct):
    name: str
'''


def test_annotations_that_are_text_are_looked_up_in_their_module(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module: Any = types.ModuleType("later")
    monkeypatch.setitem(sys.modules, "later", module)
    exec(compile(LATER, "later", "exec"), module.__dict__)
    made = Tool(module.find)
    assert made.schema()["properties"] == {
        "place": {**obj(name=STRING), "description": "where"},
        "tags": {"anyOf": [of(STRING), NULL]},
    }
    assert made.decode('{"place":{"name":"a"}}') == {"place": module.Place("a"), "tags": None}
