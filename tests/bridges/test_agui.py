"""The format `agui`, whose events the protocol's own models read."""

import sys
from typing import Any

import msgspec
import pytest
from ag_ui.core import Event as AGUIEvent
from pydantic import TypeAdapter

from asyncchat import AsyncChat, ContentDelta, ToolCallStarted, sse
from asyncchat.bridges.agui import AGUIEvents
from asyncchat.testing import ChatServer, Reply
from tests.bridges.recorded import Recorded, recorded, written

READ: TypeAdapter[Any] = TypeAdapter(AGUIEvent)


async def events_of(client: AsyncChat, server: ChatServer, reply: Reply) -> list[Any]:
    server.queue(reply)
    body = sse(client.chat.stream("Hi.", tools=[]), "agui", thread_id="t", run_id="r")
    lines = b"".join([data async for data in body]).split(b"\n\n")[:-1]
    return [READ.validate_json(line.removeprefix(b"data: ")) for line in lines]


def types(events: list[Any]) -> list[str]:
    return [event.type.value for event in events]


async def test_answer_is_one_run_whose_events_the_protocol_reads(
    client: AsyncChat, server: ChatServer
) -> None:
    reply = Reply().think("Hm.").say("Look:").call_tool("weather", {"city": "Oslo"})
    events = await events_of(client, server, reply)
    assert types(events) == [
        "RUN_STARTED",
        "REASONING_START",
        "REASONING_MESSAGE_START",
        "REASONING_MESSAGE_CONTENT",
        "REASONING_MESSAGE_END",
        "REASONING_END",
        "TEXT_MESSAGE_START",
        "TEXT_MESSAGE_CONTENT",
        "TEXT_MESSAGE_END",
        "TOOL_CALL_START",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_ARGS",
        "TOOL_CALL_END",
        "RUN_FINISHED",
    ]
    run = events[0], events[-1]
    assert {(event.thread_id, event.run_id) for event in run} == {("t", "r")}
    assert (
        "".join(e.delta for e in events if e.type.value == "TOOL_CALL_ARGS") == '{"city":"Oslo"}'
    )
    assert events[-1].usage[0].output_tokens > 0
    texts = [event.message_id for event in events if hasattr(event, "message_id")]
    assert set(texts) == {"r-message", "r-message-1"}


async def test_run_that_fails_says_so_in_words_of_ours(
    client: AsyncChat, server: ChatServer
) -> None:
    events = await events_of(client, server, Reply().say("Half").error_event("with sk-secret"))
    assert types(events)[-1] == "RUN_ERROR"
    assert "sk-secret" not in repr(events)


def test_run_that_is_stopped_ends_what_is_open_and_is_cancelled() -> None:
    made = AGUIEvents("t", "r", "m")
    made.feed(ToolCallStarted(0, "f", "c"))
    made.feed(ContentDelta("x"))
    events = [READ.validate_json(message) for message in made.abort()]
    assert types(events) == ["TEXT_MESSAGE_END", "TOOL_CALL_END", "RUN_FINISHED"]
    assert events[-1].outcome.type == "cancelled"


def test_other_choices_are_not_told() -> None:
    assert AGUIEvents("t", "r").feed(ContentDelta("x", 1)) == []


def test_ids_of_the_request_are_wanted() -> None:
    with pytest.raises(ValueError, match="thread_id"):
        AGUIEvents(None, "r")


def test_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ag_ui", None)
    with pytest.raises(ImportError, match=r'pip install "asyncchat\[agui\]"'):
        AGUIEvents("t", "r")


def test_counts_that_the_server_did_not_send_are_left_out() -> None:
    from asyncchat import Completion

    (finished,) = AGUIEvents("t", "r").end(Completion())
    assert msgspec.json.decode(finished) == {
        "type": "RUN_FINISHED",
        "threadId": "t",
        "runId": "r",
    }


@pytest.mark.parametrize("case", recorded(), ids=lambda case: case.name)
def test_what_servers_really_sent_is_one_run_that_the_protocol_reads(case: Recorded) -> None:
    messages, answer = written(case, lambda: AGUIEvents("t", "r"))
    events = [READ.validate_json(message) for message in messages]
    assert types(events)[0] == "RUN_STARTED"
    assert types(events)[-1] == ("RUN_ERROR" if answer is None else "RUN_FINISHED")
    if answer is not None and answer.choices and not answer.choices[0].index:
        said = [event.delta for event in events if event.type.value == "TEXT_MESSAGE_CONTENT"]
        assert "".join(said) == (answer.message.content or "") + (answer.message.refusal or "")
        opened = [event.tool_call_id for event in events if event.type.value == "TOOL_CALL_START"]
        ended = [event.tool_call_id for event in events if event.type.value == "TOOL_CALL_END"]
        assert sorted(opened) == sorted(ended)
