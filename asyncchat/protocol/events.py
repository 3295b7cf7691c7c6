"""The vocabulary of a stream: what happened, one frozen struct each, made for `match`.

Not here: how events come about. Each has the `type` string of OpenAI's event of that kind, and `choice`, the
index of the answer it belongs to where `n` answers were asked for.
"""

from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from asyncchat.protocol.model import Model
from asyncchat.protocol.response import Timing, TokenLogprob, Usage

__all__ = [
    "ContentDelta",
    "ContentDone",
    "Event",
    "Finish",
    "LogprobsDelta",
    "ReasoningDelta",
    "ReasoningDone",
    "RefusalDelta",
    "RefusalDone",
    "Resumed",
    "ToolCallDelta",
    "ToolCallDone",
    "ToolCallStarted",
    "UsageReport",
]


class _Event(msgspec.Struct, frozen=True, gc=False):
    def to_dict(self) -> dict[str, Any]:
        """Return plain values, with `type` first: what an event is as JSON. Unknown fields stand in their place."""
        made: dict[str, Any] = {"type": self.__struct_config__.tag}
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if isinstance(value, Model):
                made[name] = value.to_dict()
            elif isinstance(value, list):
                made[name] = [item.to_dict() for item in value]
            elif isinstance(value, msgspec.Struct):
                made[name] = msgspec.to_builtins(value)
            else:
                made[name] = value
        return made


class ContentDelta(_Event, frozen=True, gc=False, tag="content.delta"):
    """Text of the answer."""

    type: ClassVar[Literal["content.delta"]] = "content.delta"
    delta: str
    choice: int = 0


class ContentDone(_Event, frozen=True, gc=False, tag="content.done"):
    """The whole text, once the answer has ended."""

    type: ClassVar[Literal["content.done"]] = "content.done"
    content: str
    choice: int = 0


class RefusalDelta(_Event, frozen=True, gc=False, tag="refusal.delta"):
    """Text of a refusal."""

    type: ClassVar[Literal["refusal.delta"]] = "refusal.delta"
    delta: str
    choice: int = 0


class RefusalDone(_Event, frozen=True, gc=False, tag="refusal.done"):
    """The whole refusal, once the answer has ended."""

    type: ClassVar[Literal["refusal.done"]] = "refusal.done"
    refusal: str
    choice: int = 0


class ReasoningDelta(_Event, frozen=True, gc=False, tag="reasoning.delta"):
    """Text of the model's reasoning."""

    type: ClassVar[Literal["reasoning.delta"]] = "reasoning.delta"
    delta: str
    choice: int = 0


class ReasoningDone(_Event, frozen=True, gc=False, tag="reasoning.done"):
    """The whole reasoning, once the answer has ended: models may think again between words."""

    type: ClassVar[Literal["reasoning.done"]] = "reasoning.done"
    reasoning: str
    choice: int = 0


class ToolCallStarted(_Event, frozen=True, gc=False, tag="tool_calls.function.started"):
    """The model begins a call and its name is known. `id` is `""` where the server has sent none yet."""

    type: ClassVar[Literal["tool_calls.function.started"]] = "tool_calls.function.started"
    index: int
    name: str
    id: str = ""
    choice: int = 0


class ToolCallDelta(_Event, frozen=True, gc=False, tag="tool_calls.function.arguments.delta"):
    """A piece of a call's arguments, as it came."""

    type: ClassVar[Literal["tool_calls.function.arguments.delta"]] = (
        "tool_calls.function.arguments.delta"
    )
    index: int
    arguments_delta: str
    choice: int = 0


class ToolCallDone(_Event, frozen=True, gc=False, tag="tool_calls.function.arguments.done"):
    """A call is complete: its arguments are whole JSON, and something said that no more of it comes."""

    type: ClassVar[Literal["tool_calls.function.arguments.done"]] = (
        "tool_calls.function.arguments.done"
    )
    index: int
    name: str
    arguments: str
    id: str = ""
    choice: int = 0


class LogprobsDelta(_Event, frozen=True, gc=False, tag="logprobs.content.delta"):
    """Log probabilities of the tokens that a chunk brought."""

    type: ClassVar[Literal["logprobs.content.delta"]] = "logprobs.content.delta"
    content: list[TokenLogprob]
    refusal: list[TokenLogprob] = []
    choice: int = 0


class UsageReport(_Event, frozen=True, gc=False, tag="usage"):
    """What the server has counted so far; the last one stands."""

    type: ClassVar[Literal["usage"]] = "usage"
    usage: Usage


class Finish(_Event, frozen=True, gc=False, tag="finish"):
    """The answer has ended as it should. `reason` is the server's word, None where it sent none."""

    type: ClassVar[Literal["finish"]] = "finish"
    reason: str | None
    usage: Usage | None = None
    timing: Timing | None = None
    choice: int = 0


class Resumed(_Event, frozen=True, gc=False, tag="resumed"):
    """The answer had broken off, and goes on as `resume=` asked.

    After `restart`, everything that came before is void: the answer begins anew. After `continue`, more of it follows.
    `error` is what had happened.
    """

    type: ClassVar[Literal["resumed"]] = "resumed"
    mode: Literal["restart", "continue"]
    error: str


Event: TypeAlias = (
    ContentDelta
    | ContentDone
    | RefusalDelta
    | RefusalDone
    | ReasoningDelta
    | ReasoningDone
    | ToolCallStarted
    | ToolCallDelta
    | ToolCallDone
    | LogprobsDelta
    | UsageReport
    | Resumed
    | Finish
)
