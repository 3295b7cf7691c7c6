"""An answer held against a type or a schema."""

import builtins
from typing import Any

import msgspec
import pytest

from asyncchat.batch.check import by_schema, by_type
from asyncchat.errors import (
    ContentFilterFinishReasonError,
    LengthFinishReasonError,
    OutputMismatch,
    RefusalError,
)
from asyncchat.protocol.response import Completion
from asyncchat.protocol.schema import output_type
from tests.batch.conftest import completion

SCHEMA = {"type": "object", "properties": {"km": {"type": "integer"}}, "required": ["km"]}
TREE = {"type": "array", "items": {"$ref": "#"}}


class Moon(msgspec.Struct):
    km: int


def answer(text: str, **choice: Any) -> Completion:
    made = msgspec.json.decode(msgspec.json.encode(completion(text)), type=Completion)
    for name, value in choice.items():
        setattr(made.choices[0], name, value)
    return made


def test_answer_that_fits_passes() -> None:
    by_schema(SCHEMA)(answer('{"km": 3}'))
    fitting = answer('{"km": 3}')
    by_type(output_type(Moon))(fitting)
    assert fitting.message.parsed == Moon(3)


def test_mismatch_says_where_and_not_what() -> None:
    with pytest.raises(OutputMismatch) as caught:
        by_schema(SCHEMA)(answer('{"km": "secret"}'))
    assert "$.km (type)" in caught.value.message
    assert "secret" not in str(caught.value)
    assert caught.value.partial is not None
    assert caught.value.partial.text == '{"km": "secret"}'


@pytest.mark.parametrize("text", ["", "three", '{"km":', '{"km": 3} and so on'])
def test_answer_that_is_no_json_is_a_mismatch(text: str) -> None:
    for check in (by_schema(SCHEMA), by_type(output_type(Moon))):
        with pytest.raises(OutputMismatch) as caught:
            check(answer(text))
        assert caught.value.partial is not None


@pytest.mark.parametrize("depth", [500, 100_000])
def test_answer_that_is_nested_too_deep_is_a_mismatch(depth: int) -> None:
    text = "[" * depth + "]" * depth
    with pytest.raises(OutputMismatch):
        by_schema(TREE)(answer(text))
    with pytest.raises(OutputMismatch):
        by_type(output_type(Moon))(answer(text))


@pytest.mark.parametrize(
    ("choice", "error"),
    [
        ({"finish_reason": "length"}, LengthFinishReasonError),
        ({"finish_reason": "content_filter"}, ContentFilterFinishReasonError),
    ],
)
def test_answer_that_is_not_whole_is_no_mismatch(
    choice: dict[str, str], error: type[Exception]
) -> None:
    with pytest.raises(error):
        by_schema(SCHEMA)(answer('{"km": 3}', **choice))


def test_refusal_is_an_error_of_its_own() -> None:
    refused = answer("")
    refused.message.refusal = "No."
    with pytest.raises(RefusalError):
        by_schema(SCHEMA)(refused)


def test_what_is_no_schema_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="schema: 'whatever' is not valid"):
        by_schema({"type": "whatever"})


def test_reference_to_another_place_is_not_fetched() -> None:
    check = by_schema({"$ref": "http://127.0.0.1:9/schema.json"})
    with pytest.raises(Exception, match="Unresolvable"):
        check(answer("{}"))


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "jsonschema":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r'pip install "asyncchat\[schema\]"'):
        by_schema(SCHEMA)
