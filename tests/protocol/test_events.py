"""The vocabulary of a stream."""

from typing import get_args

import msgspec
import pytest

from asyncchat.protocol import events as vocabulary
from asyncchat.protocol.events import (
    ContentDelta,
    ContentDone,
    Event,
    Finish,
    LogprobsDelta,
    ReasoningDelta,
    ReasoningDone,
    RefusalDelta,
    RefusalDone,
    Resumed,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    UsageReport,
)
from asyncchat.protocol.response import Timing, TokenLogprob, Usage

ONE_OF_EACH: list[tuple[Event, str]] = [
    (ContentDelta("a"), "content.delta"),
    (ContentDone("a"), "content.done"),
    (RefusalDelta("a"), "refusal.delta"),
    (RefusalDone("a"), "refusal.done"),
    (ReasoningDelta("a"), "reasoning.delta"),
    (ReasoningDone("a"), "reasoning.done"),
    (ToolCallStarted(0, "f"), "tool_calls.function.started"),
    (ToolCallDelta(0, "{"), "tool_calls.function.arguments.delta"),
    (ToolCallDone(0, "f", "{}"), "tool_calls.function.arguments.done"),
    (LogprobsDelta([TokenLogprob(token="a")]), "logprobs.content.delta"),
    (UsageReport(Usage(prompt_tokens=1)), "usage"),
    (Resumed("continue", "the answer ended"), "resumed"),
    (Finish("stop", Usage(prompt_tokens=1), Timing(total=1.0)), "finish"),
]


@pytest.mark.parametrize(
    ("event", "kind"), ONE_OF_EACH, ids=lambda value: getattr(value, "type", "")
)
def test_type_is_readable_on_the_event_and_on_its_class(event: Event, kind: str) -> None:
    assert event.type == type(event).type == kind


@pytest.mark.parametrize(
    ("event", "kind"), ONE_OF_EACH, ids=lambda value: getattr(value, "type", "")
)
def test_event_encodes_with_its_type_and_decodes_to_itself(event: Event, kind: str) -> None:
    data = msgspec.json.encode(event)
    assert msgspec.json.decode(data)["type"] == kind
    assert msgspec.json.decode(data, type=Event) == event


@pytest.mark.parametrize(
    "event", [event for event, _ in ONE_OF_EACH], ids=lambda event: event.type
)
def test_event_cannot_be_changed(event: Event) -> None:
    with pytest.raises(AttributeError):
        setattr(event, event.__struct_fields__[0], None)


def test_every_event_is_in_the_union_and_in_the_list_of_names() -> None:
    kinds = {type(event) for event, _ in ONE_OF_EACH}
    assert set(get_args(Event)) == kinds
    assert set(vocabulary.__all__) == {kind.__name__ for kind in kinds} | {"Event"}


def test_choice_is_the_first_where_nothing_else_is_said() -> None:
    assert ContentDelta("a").choice == 0


def test_events_are_matched_by_class_and_fields() -> None:
    event: Event = ToolCallDone(1, "f", "{}", "a", 2)
    match event:
        case ToolCallDone(index=index, name="f", arguments=arguments, id=call_id, choice=choice):
            assert (index, arguments, call_id, choice) == (1, "{}", "a", 2)
        case _:
            pytest.fail("no match")


def test_event_as_a_dict_has_its_type_and_unknown_fields_where_the_server_put_them() -> None:
    event = UsageReport(Usage(prompt_tokens=1, extra_={"cost": 0.5}))
    assert event.to_dict() == {"type": "usage", "usage": {"prompt_tokens": 1, "cost": 0.5}}


def test_event_with_lists_and_timing_as_a_dict_holds_plain_values() -> None:
    logprobs = LogprobsDelta([TokenLogprob(token="a", logprob=-1.0)])
    finish = Finish("stop", timing=Timing(total=1.0))
    assert logprobs.to_dict()["content"] == [{"token": "a", "logprob": -1.0}]
    assert finish.to_dict()["timing"]["total"] == 1.0
    assert ContentDelta("x").to_dict() == {"type": "content.delta", "delta": "x", "choice": 0}
