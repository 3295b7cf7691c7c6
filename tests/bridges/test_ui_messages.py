"""The format `ui`, read by the AI SDK's own parser and message reader where node and the npm package `ai` are installed."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncchat import (
    AsyncChat,
    Completion,
    ContentDelta,
    Event,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    sse,
)
from asyncchat.bridges.failure import Failure
from asyncchat.bridges.ui_messages import UIMessages
from asyncchat.testing import ChatServer, Reply
from tests.bridges.recorded import recorded, written

HERE = Path(__file__).parent
PACKAGE = HERE.parents[1] / ".venv/node/node_modules/ai/package.json"


def told(made: UIMessages, *events: Event) -> list[dict[str, Any]]:
    return [msgspec.json.decode(message) for event in events for message in made.feed(event)]


def types(parts: list[dict[str, Any]]) -> list[str]:
    return [part["type"] for part in parts]


def test_text_and_reasoning_take_turns_in_parts_of_their_own() -> None:
    made = UIMessages()
    parts = told(made, ReasoningDelta("a"), ReasoningDelta("b"), ContentDelta("c"))
    parts += told(made, ReasoningDelta("d"))
    assert [(part["type"], part["id"], part.get("delta")) for part in parts] == [
        ("reasoning-start", "reasoning-0", None),
        ("reasoning-delta", "reasoning-0", "a"),
        ("reasoning-delta", "reasoning-0", "b"),
        ("reasoning-end", "reasoning-0", None),
        ("text-start", "text-1", None),
        ("text-delta", "text-1", "c"),
        ("text-end", "text-1", None),
        ("reasoning-start", "reasoning-2", None),
        ("reasoning-delta", "reasoning-2", "d"),
    ]


def test_refusal_is_text() -> None:
    assert told(UIMessages(), RefusalDelta("No."))[-1]["delta"] == "No."


def test_other_choices_are_not_told() -> None:
    events: list[Event] = [
        ContentDelta("x", 1),
        ReasoningDelta("x", 1),
        ToolCallStarted(0, "f", "c", 1),
        ToolCallDelta(0, "{}", 1),
        ToolCallDone(0, "f", "{}", "c", 1),
    ]
    assert told(UIMessages(), *events) == []


def test_call_ends_the_text_before_it_and_gives_its_input_as_json() -> None:
    parts = told(
        UIMessages(),
        ContentDelta("Look:"),
        ToolCallStarted(0, "weather", "call_1"),
        ToolCallDelta(0, '{"city":"Oslo"}'),
        ToolCallDone(0, "weather", '{"city":"Oslo"}', "call_1"),
    )
    assert types(parts)[2:] == [
        "text-end",
        "tool-input-start",
        "tool-input-delta",
        "tool-input-available",
    ]
    assert parts[-1] == {
        "type": "tool-input-available",
        "toolCallId": "call_1",
        "toolName": "weather",
        "input": {"city": "Oslo"},
        "dynamic": True,
    }


def test_call_keeps_the_id_it_began_with() -> None:
    events = ToolCallStarted(0, "f"), ToolCallDelta(0, "{}"), ToolCallDone(0, "f", "{}", "late")
    assert [part["toolCallId"] for part in told(UIMessages(), *events)] == ["call_0"] * 3


@pytest.mark.parametrize("arguments", ['{"a": NaN}', '{"a": "\t"}'])
def test_arguments_that_a_browser_cannot_read_are_an_error_of_the_call(arguments: str) -> None:
    events = ToolCallStarted(0, "f", "c"), ToolCallDone(0, "f", arguments, "c")
    last = told(UIMessages(), *events)[-1]
    assert (last["type"], last["input"]) == ("tool-input-error", arguments)


@pytest.mark.parametrize(
    ("reason", "finish"),
    [("stop", "stop"), ("content_filter", "content-filter"), ("eos", "other"), (None, "other")],
)
def test_finish_reason_is_spelled_as_the_sdk_does(reason: str | None, finish: str) -> None:
    answer = msgspec.convert({"choices": [{"finish_reason": reason}]}, Completion)
    parts = [msgspec.json.decode(message) for message in UIMessages().end(answer)]
    assert parts == [{"type": "finish-step"}, {"type": "finish", "finishReason": finish}]


def test_message_gets_the_id_that_was_given() -> None:
    start, _ = UIMessages("m-1").begin()
    assert msgspec.json.decode(start) == {"type": "start", "messageId": "m-1"}


# ------------------------------------------------------------------------- read by the SDK itself


async def body_of(client: AsyncChat, server: ChatServer, reply: Reply, **options: Any) -> bytes:
    server.queue(reply)
    stream = client.chat.stream("Hi.", tools=[], **options)
    return b"".join([data async for data in sse(stream, "ui", message_id="m-1")])


def parts_in(body: bytes) -> list[dict[str, Any]]:
    *lines, done, _ = body.split(b"\n\n")
    assert done == b"data: [DONE]"
    return [msgspec.json.decode(line.removeprefix(b"data: ")) for line in lines]


def read_by_sdk(bodies: list[bytes]) -> list[dict[str, Any]]:
    node = shutil.which("node")
    if node is None or not PACKAGE.exists():
        pytest.skip("node or the package ai is not installed")
    done = subprocess.run(
        [node, str(HERE / "read_ui.mjs"), str(PACKAGE)],
        input=msgspec.json.encode([body.decode() for body in bodies]),
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    made: list[dict[str, Any]] = msgspec.json.decode(done.stdout)
    return made


@pytest.mark.aisdk
async def test_sdk_reads_each_part_as_it_was_sent_and_makes_the_message(
    client: AsyncChat, server: ChatServer
) -> None:
    cut_call = Reply().call_tool("weather", '{"city": "Os').finish("length")
    replies = {
        "text": Reply().say("Grüße, 你好 👋\n\ndata: x"),
        "all": Reply().think("Hm. So.").say("Look:").call_tool("weather", {"city": "Oslo"}),
        "calls": Reply().call_tool("weather", {"city": "Oslo"}).call_tool("clock", ""),
        "refusal": Reply().refuse("I will not."),
        "cut call": cut_call,
        "failed": Reply().say("Half an").error_event("with sk-secret"),
        "refused": Reply().fail(500, "with sk-secret"),
        "empty": Reply().say("").finish("content_filter"),
    }
    bodies = {name: await body_of(client, server, reply) for name, reply in replies.items()}
    read = dict(zip(bodies, read_by_sdk(list(bodies.values())), strict=True))

    for name, made in read.items():
        assert made["problems"] == [], name
        assert made["chunks"] == parts_in(bodies[name]), name
        assert b"sk-secret" not in bodies[name]
    message = {name: made["message"] for name, made in read.items()}
    failed = {name for name, made in read.items() if made["errors"]}
    assert failed == {"failed", "refused"}

    def parts(name: str) -> list[tuple[Any, ...]]:
        kinds = {"text": ("text", "state"), "reasoning": ("text", "state")}
        return [
            (part["type"], *(part.get(key) for key in kinds.get(part["type"], ("state", "input"))))
            for part in message[name]["parts"][1:]
        ]

    assert parts("text") == [("text", "Grüße, 你好 👋\n\ndata: x", "done")]
    assert parts("all") == [
        ("reasoning", "Hm. So.", "done"),
        ("text", "Look:", "done"),
        ("dynamic-tool", "input-available", {"city": "Oslo"}),
    ]
    assert parts("calls") == [
        ("dynamic-tool", "input-available", {"city": "Oslo"}),
        ("dynamic-tool", "input-available", {}),
    ]
    assert parts("refusal") == [("text", "I will not.", "done")]
    assert parts("cut call") == [("dynamic-tool", "output-error", '{"city": "Os')]
    assert message["text"]["id"] == "m-1"
    assert message["text"]["metadata"]["usage"]["completion_tokens"] > 0


@pytest.mark.aisdk
def test_sdk_reads_what_servers_really_sent_as_we_do() -> None:
    told = [(case, *written(case, UIMessages)) for case in recorded()]
    bodies = [b"".join(b"data: %b\n\n" % one for one in messages) for _, messages, _ in told]
    for (case, messages, answer), read in zip(told, read_by_sdk(bodies), strict=True):
        assert read["problems"] == [], case.name
        assert read["chunks"] == [msgspec.json.decode(one) for one in messages], case.name
        if answer is None or not answer.choices or answer.choices[0].index:
            continue
        parts, said = read["message"]["parts"], answer.message
        text = "".join(part["text"] for part in parts if part["type"] == "text")
        thought = "".join(part["text"] for part in parts if part["type"] == "reasoning")
        assert text == (said.content or "") + (said.refusal or ""), case.name
        assert thought == (said.reasoning or ""), case.name
        calls = [part for part in parts if part["type"] == "dynamic-tool"]
        assert [call["toolName"] for call in calls] == [
            call.function.name for call in said.tool_calls or []
        ], case.name


def test_message_that_is_stopped_or_fails_ends_its_text_and_says_so() -> None:
    for end, last in (
        (UIMessages.abort, {"type": "abort", "reason": "stopped"}),
        (
            lambda made: made.fail(Failure("It broke.", "x")),
            {"type": "error", "errorText": "It broke."},
        ),
    ):
        made = UIMessages()
        told(made, ContentDelta("x"))
        parts = [msgspec.json.decode(message) for message in end(made)]
        assert parts == [{"type": "text-end", "id": "text-0"}, last]
