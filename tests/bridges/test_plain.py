"""The formats `text` and `events`."""

import msgspec

from asyncchat import Completion, ContentDelta, Event, Finish, ReasoningDelta, Resumed, Timing
from asyncchat.bridges.failure import Failure
from asyncchat.bridges.plain import JSONEvents, PlainText

FAILURE = Failure("It broke.", "server_error")


def test_text_is_the_words_of_the_first_choice() -> None:
    made = PlainText()
    events: list[Event] = [
        ContentDelta("Ä"),
        ContentDelta("no", 1),
        ReasoningDelta("hm"),
        Finish("stop"),
    ]
    assert [m for event in events for m in made.feed(event)] == ["Ä".encode()]
    nothing = made.begin() + made.end(Completion()) + made.abort() + made.fail(FAILURE)
    assert nothing == []


def test_event_is_what_it_is_as_json() -> None:
    made = JSONEvents()
    (message,) = made.feed(ContentDelta("Hi", 1))
    assert msgspec.json.decode(message) == {"type": "content.delta", "delta": "Hi", "choice": 1}
    assert made.begin() == made.end(Completion()) == []


def test_events_do_not_tell_who_was_asked() -> None:
    made = JSONEvents()
    (finish,) = made.feed(Finish("stop", timing=Timing(endpoint="https://host.example/v1")))
    (resumed,) = made.feed(Resumed("restart", "the connection to https://host.example/v1 broke"))
    assert b"host.example" not in finish + resumed
    assert msgspec.json.decode(finish)["timing"]["attempts"] == 1
    assert msgspec.json.decode(resumed)["mode"] == "restart"


def test_events_end_by_saying_why() -> None:
    assert JSONEvents().abort() == [b'{"type":"abort"}']
    (failed,) = JSONEvents().fail(FAILURE)
    assert msgspec.json.decode(failed) == {
        "type": "error",
        "error": {"message": "It broke.", "type": "server_error", "code": None},
    }
