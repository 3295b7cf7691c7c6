"""What a reply refuses. What it means is shown in test_wire (bytes) and test_server (events)."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from asyncchat.testing import Reply


@pytest.mark.parametrize(
    ("misuse", "text"),
    [
        (lambda reply: reply.cut(after=-1), "after must be a whole number from 0 up, not -1"),
        (lambda reply: reply.stall(after="body"), "after must be"),
        (lambda reply: reply.reset(after=1.5), "after must be"),
        (lambda reply: reply.cut(after=True), "after must be"),
        (lambda reply: reply.split(), "either every="),
        (lambda reply: reply.split(every=1, at=[2]), "either every="),
        (lambda reply: reply.split(every=0), "every must be a whole number from 1 up"),
        (lambda reply: reply.split(at=[-1]), "at must be"),
        (lambda reply: reply.drip(-1), "seconds must be a number from 0 up, not -1"),
        (lambda reply: reply.delay(float("nan")), "seconds must be"),
        (lambda reply: reply.delay("1"), "seconds must be"),
        (lambda reply: reply.ping(every=0), "every must be more than 0 seconds"),
        (lambda reply: reply.comments(every=0), "every must be"),
        (lambda reply: reply.status(99), "status must be from 200 to 599"),
        (lambda reply: reply.fail(200), "status is from 400 to 599"),
        (lambda reply: reply.say("a", choice=-1), "choice must be"),
        (lambda reply: reply.think("a", field=""), "field must name"),
    ],
)
def test_misuse_is_a_value_error_that_says_what_was_wrong(
    misuse: Callable[[Reply], object], text: str
) -> None:
    with pytest.raises(ValueError, match=text):
        misuse(Reply())


def test_a_finish_reason_of_another_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="reason must be a str or None, not 3"):
        Reply().finish(cast("Any", 3))


def test_every_method_returns_the_reply() -> None:
    reply = Reply()
    chained = (
        reply.say("a")
        .think("b")
        .refuse("c")
        .call_tool("f")
        .delta({})
        .event(b"")
        .finish("stop")
        .usage(1)
        .without_usage()
        .without_done()
        .error_event()
        .fail(500)
        .raw(b"")
        .status(200)
        .headers({})
        .split(every=1)
        .split(at=[1])
        .delay(0)
        .drip(0)
        .comments()
        .ping(every=1)
        .cut(after=1)
        .reset(after=1)
        .stall(after="headers")
        .close_after()
    )
    assert chained is reply


def test_two_replies_share_nothing() -> None:
    Reply().say("a").headers({"X": "y"}).finish("stop").cut(after=1)
    assert repr(Reply()) == f"Reply({Reply().script!r})"
    assert Reply().script.parts == []
    assert Reply().script.faults == []
