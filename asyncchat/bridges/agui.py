"""The format `agui`: the events of AG-UI, which CopilotKit and other agent front ends read.

Not here: I/O. Source: the models of the package `ag-ui-protocol`, which check every event that is written. One answer is one
run; only the first choice is told.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

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
from asyncchat.protocol.response import Completion, Usage

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent

__all__ = ["AGUIEvents"]


class AGUIEvents:
    """Writes the events of one run.

    Raises:
        ValueError: the ids that the request named are missing: the protocol wants them back.
        ImportError: the package `ag-ui-protocol` is missing.
    """

    __slots__ = ("_calls", "_core", "_message_id", "_open", "_parts", "_run_id", "_thread_id")

    reads: ClassVar[Literal["events", "chunks"]] = "events"
    after_last: ClassVar[bytes | None] = None
    headers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    may_restart: ClassVar[bool] = False

    def __init__(
        self, thread_id: str | None, run_id: str | None, message_id: str | None = None
    ) -> None:
        if thread_id is None or run_id is None:
            raise ValueError("AG-UI wants thread_id= and run_id=, as the request names them.")
        try:
            from ag_ui import core
        except ImportError as error:
            raise ImportError(
                'AG-UI needs a package of its own: pip install "asyncchat[agui]"'
            ) from error
        self._core = core
        self._thread_id, self._run_id = thread_id, run_id
        self._message_id = message_id or f"{run_id}-message"
        self._open: tuple[str, str] | None = None  # the kind and id of the text that is told
        self._parts = 0
        self._calls: dict[int, str] = {}  # the ids of those not yet whole

    def begin(self) -> list[bytes]:
        """Write the beginning of the run."""
        return _written(self._core.RunStartedEvent(thread_id=self._thread_id, run_id=self._run_id))

    def feed(self, item: Event) -> list[bytes]:
        """Write an event."""
        core = self._core
        made: list[BaseEvent] = []
        match item:
            case ContentDelta(choice=0) | RefusalDelta(choice=0):
                made = self._text("text", item.delta)
            case ReasoningDelta(choice=0):
                made = self._text("reasoning", item.delta)
            case ToolCallStarted(choice=0):
                call = self._calls[item.index] = item.id or f"{self._message_id}-{item.index}"
                named = core.ToolCallStartEvent(tool_call_id=call, tool_call_name=item.name)
                made = [*self._close(), named]
            case ToolCallDelta(choice=0) if item.index in self._calls:  # else it was whole already
                call, delta = self._calls[item.index], item.arguments_delta
                made = [core.ToolCallArgsEvent(tool_call_id=call, delta=delta)]
            case ToolCallDone(choice=0) if item.index in self._calls:
                made = [core.ToolCallEndEvent(tool_call_id=self._calls.pop(item.index))]
            case _:
                pass
        return _written(*made)

    def end(self, answer: Completion) -> list[bytes]:
        """Write the end of the run, with the server's counts."""
        counts = _counts(answer.model, answer.usage)
        usage = [self._core.TokenUsage(**counts)] if counts else None
        finished = self._core.RunFinishedEvent(
            thread_id=self._thread_id, run_id=self._run_id, usage=usage
        )
        return _written(*self._close(), *self._close_calls(), finished)

    def abort(self) -> list[bytes]:
        """Write that the run was stopped."""
        outcome = self._core.RunFinishedCancelledOutcome()
        finished = self._core.RunFinishedEvent(
            thread_id=self._thread_id, run_id=self._run_id, outcome=outcome
        )
        return _written(*self._close(), *self._close_calls(), finished)

    def fail(self, failure: Failure) -> list[bytes]:
        """Write that the run failed."""
        return _written(self._core.RunErrorEvent(message=failure.message, code=failure.code))

    def _text(self, kind: str, delta: str) -> "list[BaseEvent]":
        core, before = self._core, list["BaseEvent"]()
        if self._open is None or self._open[0] != kind:
            before = self._close()
            suffix = f"-{self._parts}" if self._parts else ""
            named = f"{self._message_id}{suffix}"
            self._open = kind, named
            self._parts += 1
            if kind == "text":
                before.append(core.TextMessageStartEvent(message_id=named, role="assistant"))
            else:
                before.append(core.ReasoningStartEvent(message_id=named))
                before.append(core.ReasoningMessageStartEvent(message_id=named))
        of_kind = (
            core.TextMessageContentEvent if kind == "text" else core.ReasoningMessageContentEvent
        )
        return [*before, of_kind(message_id=self._open[1], delta=delta)]

    def _close(self) -> "list[BaseEvent]":
        opened, self._open = self._open, None
        if opened is None:
            return []
        if opened[0] == "text":
            return [self._core.TextMessageEndEvent(message_id=opened[1])]
        return [
            self._core.ReasoningMessageEndEvent(message_id=opened[1]),
            self._core.ReasoningEndEvent(message_id=opened[1]),
        ]

    def _close_calls(self) -> "list[BaseEvent]":
        """End the calls whose arguments never became whole, which the reader sees by parsing them."""
        calls, self._calls = self._calls, {}
        return [self._core.ToolCallEndEvent(tool_call_id=call) for call in calls.values()]


def _counts(model: str, usage: Usage | None) -> dict[str, Any]:
    if usage is None:
        return {}
    return {
        "model": model or None,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "cached_input_tokens": usage.cached_tokens,
    }


def _written(*events: "BaseEvent") -> list[bytes]:
    return [event.model_dump_json(by_alias=True, exclude_none=True).encode() for event in events]
