"""An answer as a value: what keeps it from being one, in which order, and what several answers cost."""

from typing import Any

import pytest
from msgspec import Struct

from asyncchat.errors import (
    AsyncChatError,
    ContentFilterFinishReasonError,
    LengthFinishReasonError,
    OutputMismatch,
    RefusalError,
)
from asyncchat.protocol.parsed import read_value, sum_usage
from asyncchat.protocol.response import Choice, Completion, Message, Usage
from asyncchat.protocol.schema import output_type


class City(Struct):
    name: str


GOOD = '{"name":"Oslo"}'


def answer(
    content: str | None = GOOD, reason: str | None = "stop", refusal: str | None = None
) -> Completion:
    message = Message(content=content, refusal=refusal)
    return Completion(choices=[Choice(message=message, finish_reason=reason)])


def test_answer_that_fits_is_a_value_and_keeps_it() -> None:
    made = answer()
    assert read_value(output_type(City), made) == City("Oslo")
    assert made.message.parsed == City("Oslo")


def test_value_is_on_the_message_and_never_in_its_dumps() -> None:
    made = answer('{"value":[1]}')
    before = made.to_dict()
    assert read_value(output_type(list[int]), made) == [1]
    assert made.message.parsed == [1]
    assert made.to_dict() == before
    assert "parsed" not in made.model_dump_json()


@pytest.mark.parametrize(
    ("content", "reason", "refusal", "kind"),
    [
        (None, "stop", "No.", RefusalError),
        (GOOD, "length", "No.", RefusalError),
        (GOOD, "content_filter", "No.", RefusalError),
        ("not JSON", "stop", "No.", RefusalError),
        (GOOD, "length", None, LengthFinishReasonError),
        ('{"name":"Os', "length", "", LengthFinishReasonError),
        (GOOD, "content_filter", None, ContentFilterFinishReasonError),
        ("", "content_filter", None, ContentFilterFinishReasonError),
        ('{"name":"Os', "stop", None, OutputMismatch),
        (None, "stop", None, OutputMismatch),
        ("", None, None, OutputMismatch),
        ('{"name":1}', "tool_calls", None, OutputMismatch),
    ],
)
def test_what_keeps_an_answer_from_being_a_value(
    content: str | None, reason: str | None, refusal: str | None, kind: type[AsyncChatError]
) -> None:
    made = answer(content, reason, refusal)
    with pytest.raises(AsyncChatError) as caught:
        read_value(output_type(City), made)
    assert type(caught.value) is kind
    assert caught.value.partial is made
    assert made.message.parsed is None


def test_answer_at_its_limit_says_what_to_do() -> None:
    with pytest.raises(LengthFinishReasonError, match="City") as caught:
        read_value(output_type(City), answer('{"name":"Os', "length"))
    assert "max_tokens" in caught.value.hint


def test_words_of_a_refusal_are_not_in_the_message() -> None:
    with pytest.raises(RefusalError) as caught:
        read_value(output_type(City), answer(refusal="secret"))
    assert "secret" not in str(caught.value)


def test_answer_without_choices_does_not_fit() -> None:
    with pytest.raises(OutputMismatch):
        read_value(output_type(City), Completion())


# ------------------------------------------------------------------------------------------- usage


def usage(
    prompt: int | None = None, completion: int | None = None, total: int | None = None
) -> Usage:
    return Usage(prompt_tokens=prompt, completion_tokens=completion, total_tokens=total)


@pytest.mark.parametrize(
    ("usages", "total"),
    [
        ([usage(1, 2, 3)], usage(1, 2, 3)),
        ([usage(1, 2, 3), usage(10, 20, 30)], usage(11, 22, 33)),
        ([usage(0, 0, 0), usage(0, 0, 0)], usage(0, 0, 0)),
        ([usage(1, None, 3), usage(10, 20, 30)], usage(11, None, 33)),
        ([usage(1, 2, 3), usage()], usage()),
        ([usage(1, 2, 3), None], None),
        ([None], None),
        ([], None),
    ],
)
def test_what_is_unknown_of_one_answer_is_unknown_of_all(usages: Any, total: Any) -> None:
    assert sum_usage(usages) == total
