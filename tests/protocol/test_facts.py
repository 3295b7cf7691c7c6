"""The vocabulary of what happens to requests."""

import pickle
from typing import get_args

import msgspec
import pytest

from asyncchat.errors import APIConnectionError, RateLimitError, StreamCut
from asyncchat.protocol import facts as vocabulary
from asyncchat.protocol.facts import (
    AnswerStarted,
    AttemptDropped,
    AttemptFailed,
    AttemptStarted,
    Fact,
    RequestFailed,
    RequestFinished,
    RequestLeft,
    RequestStarted,
)
from asyncchat.protocol.response import Choice, Completion, Message, Timing, Usage

URL = "http://a.example/v1"

ONE_OF_EACH: list[Fact] = [
    RequestStarted(1, "m", stream=True),
    AttemptStarted(1, 1, URL, 0.5, is_hedge=True),
    AnswerStarted(1, 1, URL, 0.25),
    AttemptFailed(1, 1, URL, RateLimitError("slow", retry_after=2.0), "limited", 2.0),
    AttemptDropped(1, 2, URL),
    RequestFinished(1, URL, Timing(total=1.0), "m", "c-1", Usage(total_tokens=3), ("stop", None)),
    RequestFailed(1, APIConnectionError("refused"), 0.5),
    RequestLeft(1, 0.5),
]
KINDS = [type(fact) for fact in ONE_OF_EACH]

facts = pytest.mark.parametrize("fact", ONE_OF_EACH, ids=lambda fact: type(fact).__name__)
kinds = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def test_every_fact_is_in_the_union_and_in_the_list_of_names() -> None:
    assert set(get_args(Fact)) == set(KINDS)
    assert set(vocabulary.__all__) == {kind.__name__ for kind in KINDS} | {"Fact"}


def test_every_struct_of_the_module_is_a_fact() -> None:
    made_here = {
        value
        for value in vars(vocabulary).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == vocabulary.__name__
    }
    assert made_here == set(KINDS)


@kinds
def test_first_field_is_the_number_of_the_request(kind: type[Fact]) -> None:
    assert kind.__struct_fields__[0] == "request"


def test_each_has_a_tag_of_its_own_that_names_what_it_is_about() -> None:
    tags = [kind.__struct_config__.tag for kind in KINDS]
    assert len(set(tags)) == len(tags)
    assert {str(tag).partition(".")[0] for tag in tags} == {"request", "attempt", "answer"}


@facts
def test_fact_cannot_be_changed(fact: Fact) -> None:
    for name in fact.__struct_fields__:
        with pytest.raises(AttributeError):
            setattr(fact, name, None)


@facts
def test_fact_is_the_same_after_pickling(fact: Fact) -> None:
    again = pickle.loads(pickle.dumps(fact))
    assert type(again) is type(fact)
    assert repr(again) == repr(fact)


def test_error_of_a_pickled_fact_keeps_what_it_says_and_the_answer_so_far() -> None:
    partial = Completion(id="c-1")
    error = StreamCut("the answer ended", partial=partial)
    again = pickle.loads(pickle.dumps(RequestFailed(7, error, 1.5)))
    assert (again.request, again.seconds) == (7, 1.5)
    assert isinstance(again.error, StreamCut)
    assert str(again.error) == str(error)
    assert again.error.partial == partial


@pytest.mark.parametrize(
    "fact",
    [fact for fact in ONE_OF_EACH if not isinstance(fact, AttemptFailed | RequestFailed)],
    ids=lambda fact: type(fact).__name__,
)
def test_fact_without_an_error_encodes_with_its_tag_and_decodes_to_itself(fact: Fact) -> None:
    data = msgspec.json.encode(fact)
    assert msgspec.json.decode(data)["type"] == fact.__struct_config__.tag
    assert msgspec.json.decode(data, type=type(fact)) == fact


def test_facts_are_matched_by_class_and_fields() -> None:
    fact: Fact = AttemptStarted(3, 2, URL, 0.0)
    match fact:
        case AttemptStarted(request=request, attempt=attempt, is_hedge=False):
            assert (request, attempt) == (3, 2)
        case _:
            pytest.fail("no match")


def test_repr_shows_nothing_of_the_answer_so_far() -> None:
    partial = Completion(choices=[Choice(message=Message(content="moonlight"))])
    error = StreamCut("the answer ended", partial=partial)
    for fact in (RequestFailed(1, error, 0.5), AttemptFailed(1, 1, URL, error, "broken", 0.0)):
        assert "moonlight" not in repr(fact)
