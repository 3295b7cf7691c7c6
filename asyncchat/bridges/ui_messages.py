"""The format `ui`: the UI message stream of the Vercel AI SDK, version 1, which `useChat` and many front ends read.

Not here: I/O. Source: the AI SDK's "Stream Protocols" and the schema `uiMessageChunkSchema` of npm `ai`, which the tests
run. One answer is one message of one step; only the first choice is told, since a message has one text.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import msgspec

from asyncchat.bridges.failure import Failure
from asyncchat.protocol.events import (
    ContentDelta,
    Event,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
)
from asyncchat.protocol.response import Completion

__all__ = ["UIMessages"]

_encode = msgspec.json.Encoder().encode

_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "content_filter": "content-filter",
    "tool_calls": "tool-calls",
    "function_call": "tool-calls",
    "error": "error",
}


class UIMessages:
    """Writes the parts of one message.

    `message_id` is the id that the message gets in the reader; left out, the reader makes one.
    """

    __slots__ = ("_calls", "_message_id", "_open", "_parts")

    reads: ClassVar[Literal["events", "chunks"]] = "events"
    after_last: ClassVar[bytes | None] = b"[DONE]"
    headers: ClassVar[Mapping[str, str]] = MappingProxyType(
        {"x-vercel-ai-ui-message-stream": "v1"}
    )
    may_restart: ClassVar[bool] = False

    def __init__(self, message_id: str | None = None) -> None:
        self._message_id = message_id
        self._open: tuple[str, str] | None = None  # the kind and id of the text that is told
        self._parts = 0
        self._calls: dict[int, tuple[str, str]] = {}  # id and name of those not yet whole

    def begin(self) -> list[bytes]:
        """Write the beginning of the message."""
        named = {} if self._message_id is None else {"messageId": self._message_id}
        return _written({"type": "start", **named}, {"type": "start-step"})

    def feed(self, item: Event) -> list[bytes]:
        """Write an event."""
        made: list[bytes] = []
        match item:
            case ContentDelta(choice=0) | RefusalDelta(choice=0):
                made = self._text("text", item.delta)
            case ReasoningDelta(choice=0):
                made = self._text("reasoning", item.delta)
            case ToolCallStarted(choice=0):
                made = [*self._close(), *self._start_call(item)]
            case ToolCallDelta(choice=0) if item.index in self._calls:  # else it was whole already
                made = self._go_on_with_call(item)
            case ToolCallDone(choice=0):
                made = self._finish_call(item)
            case _:
                pass
        return made

    def end(self, answer: Completion) -> list[bytes]:
        """Write the end of the message, with what is known of it as its metadata."""
        calls = answer.message.tool_calls or []
        broken = [
            _broken_call(call, name, calls[index].function.arguments if index < len(calls) else "")
            for index, (call, name) in self._calls.items()
        ]
        reason = answer.finish_reason
        finish: dict[str, Any] = {
            "type": "finish",
            "finishReason": _FINISH_REASONS.get(reason or "", "other"),
        }
        metadata = _metadata(answer)
        if metadata:
            finish["messageMetadata"] = metadata
        return [*self._close(), *_written(*broken, {"type": "finish-step"}, finish)]

    def abort(self) -> list[bytes]:
        """Write that the reader has stopped the answer."""
        return [*self._close(), *_written({"type": "abort", "reason": "stopped"})]

    def fail(self, failure: Failure) -> list[bytes]:
        """Write that the answer failed."""
        return [*self._close(), *_written({"type": "error", "errorText": failure.message})]

    def _text(self, kind: str, delta: str) -> list[bytes]:
        before: list[bytes] = []
        if self._open is None or self._open[0] != kind:
            before = self._close()
            self._open = kind, f"{kind}-{self._parts}"
            self._parts += 1
            before += _written({"type": f"{kind}-start", "id": self._open[1]})
        return [
            *before,
            *_written({"type": f"{kind}-delta", "id": self._open[1], "delta": delta}),
        ]

    def _close(self) -> list[bytes]:
        """Write the end of the text that is told, if one is."""
        opened, self._open = self._open, None
        return [] if opened is None else _written({"type": f"{opened[0]}-end", "id": opened[1]})

    def _start_call(self, event: ToolCallStarted) -> list[bytes]:
        call = event.id or f"call_{event.index}"
        self._calls[event.index] = call, event.name
        return _written(
            {
                "type": "tool-input-start",
                "toolCallId": call,
                "toolName": event.name,
                "dynamic": True,
            }
        )

    def _go_on_with_call(self, event: ToolCallDelta) -> list[bytes]:
        call, _ = self._calls[event.index]
        delta = event.arguments_delta
        return _written({"type": "tool-input-delta", "toolCallId": call, "inputTextDelta": delta})

    def _finish_call(self, event: ToolCallDone) -> list[bytes]:
        call, _ = self._calls.pop(event.index, (event.id, ""))  # one text may be two calls
        try:
            given: object = msgspec.json.decode(event.arguments or "{}")
        except msgspec.DecodeError:  # JSON by forgiving rules, which a browser does not know
            return _written(_broken_call(call, event.name, event.arguments))
        return _written(
            {
                "type": "tool-input-available",
                "toolCallId": call,
                "toolName": event.name,
                "input": given,
                "dynamic": True,
            }
        )


def _broken_call(call: str, name: str, arguments: str | None) -> dict[str, Any]:
    return {
        "type": "tool-input-error",
        "toolCallId": call,
        "toolName": name,
        "input": arguments,
        "dynamic": True,
        "errorText": "The arguments of this call are not whole JSON.",
    }


def _metadata(answer: Completion) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if answer.model:
        made["model"] = answer.model
    if answer.usage is not None:
        made["usage"] = answer.usage.to_dict()
    if answer.timing is not None:
        made["timing"] = msgspec.to_builtins(answer.timing)
        made["timing"].pop("endpoint", None)  # a reader need not know who was asked
    return made


def _written(*parts: dict[str, Any]) -> list[bytes]:
    return [_encode(part) for part in parts]
