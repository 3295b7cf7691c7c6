"""Formats by their names, and what no format may be asked for."""

from typing import Any

import pytest

from asyncchat import AsyncChat, ChatStream
from asyncchat.bridges.agui import AGUIEvents
from asyncchat.bridges.formats import BODY_FORMATS, FRAME_FORMATS, format_for
from asyncchat.bridges.openai_chunks import OpenAIChunks
from asyncchat.bridges.plain import JSONEvents, PlainText
from asyncchat.bridges.ui_messages import UIMessages


@pytest.fixture
def stream(client: AsyncChat) -> ChatStream[Any]:
    return client.chat.stream("Hi.")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("text", PlainText),
        ("events", JSONEvents),
        ("openai", OpenAIChunks),
        ("ui", UIMessages),
        ("agui", AGUIEvents),
    ],
)
def test_name_gives_a_new_format(stream: ChatStream[Any], name: str, kind: type) -> None:
    allowed = FRAME_FORMATS if name in FRAME_FORMATS else BODY_FORMATS
    made = [format_for(stream, name, allowed, thread_id="t", run_id="r") for _ in range(2)]
    assert all(type(one) is kind for one in made)


def test_unknown_name_is_told_with_the_known_ones(stream: ChatStream[Any]) -> None:
    with pytest.raises(ValueError, match="'agui': it is one of text, events, openai, ui"):
        format_for(stream, "agui", FRAME_FORMATS)


@pytest.mark.parametrize("name", ["text", "openai", "ui"])
def test_format_that_cannot_say_void_refuses_an_answer_that_may_begin_anew(
    client: AsyncChat, name: str
) -> None:
    stream = client.chat.stream("Hi.", resume="restart")
    with pytest.raises(ValueError, match="resume='restart'"):
        format_for(stream, name, FRAME_FORMATS)
    assert type(format_for(stream, "events", FRAME_FORMATS)) is JSONEvents
