"""The tool-call loop: ask, run what the model calls, tell it what came of that, until it answers.

Not here: schemas (`protocol.schema`), sending. Tools of one turn run side by side in a task group that lives as long as
the run's block; an exception of a tool, an unknown tool and bad arguments go back to the model as text.
"""

import asyncio
import inspect
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import anyio
import anyio.to_thread
import msgspec

from asyncchat.client.stream import ChatStream
from asyncchat.client.tasks import BlockTasks, is_being_cancelled
from asyncchat.errors import (
    ContentFilterFinishReasonError,
    LengthFinishReasonError,
    MaxTurnsReached,
    OutputMismatch,
)
from asyncchat.protocol.events import Event, Resumed, ToolCallDone
from asyncchat.protocol.parsed import read_value, sum_usage
from asyncchat.protocol.response import Completion, ToolCall, Usage
from asyncchat.protocol.schema import OutputType, Tool

__all__ = [
    "Plan",
    "RunEvent",
    "ToolFinished",
    "ToolRecord",
    "ToolRun",
    "ToolStarted",
    "TurnFinished",
    "Verdict",
]

Verdict = bool | str
"""Whether a call may run; a str is what the model is told instead."""


class ToolRecord(msgspec.Struct, eq=False):
    """One call of a tool: what the model asked for, and what came of it.

    `content` is the text that the model got; `error` is what went wrong, if something did.
    """

    id: str
    name: str
    arguments: str
    turn: int
    content: str | None = None
    result: Any = None
    error: Exception | None = None
    seconds: float = 0.0

    def say(self, content: str, error: Exception | None = None) -> None:
        """Note what the model is told, and what went wrong. Half a surrogate pair could not be sent."""
        self.content = content.encode("utf-8", "replace").decode()
        self.error = error


class ToolStarted(msgspec.Struct, frozen=True, tag="tool.started"):
    """A tool is called."""

    type: ClassVar[Literal["tool.started"]] = "tool.started"
    id: str
    name: str
    arguments: str


class ToolFinished(msgspec.Struct, frozen=True, tag="tool.finished"):
    """A call is over; `content` is what the model is told, `is_error` whether something went wrong."""

    type: ClassVar[Literal["tool.finished"]] = "tool.finished"
    id: str
    name: str
    content: str
    is_error: bool
    seconds: float


class TurnFinished(msgspec.Struct, frozen=True, tag="turn.finished"):
    """The model has ended its turn, with calls or with its answer."""

    type: ClassVar[Literal["turn.finished"]] = "turn.finished"
    turn: int
    reason: str | None
    usage: Usage | None = None


RunEvent = Event | ToolStarted | ToolFinished | TurnFinished


class Plan(msgspec.Struct):
    """What a run was asked to do."""

    ask: Callable[[list[Any]], ChatStream[Event]]
    tools: dict[str, Tool]
    max_turns: int
    parallel: int
    eager: bool
    confirm: Callable[[ToolRecord], Verdict | Awaitable[Verdict]] | None
    output: OutputType[Any] | None


class ToolRun:
    """A conversation in which the model calls tools.

    ```python
    async with client.chat.run_stream("Coat in Oslo?", tools=[weather]) as run:
        async for event in run: ...           # events of each turn, ToolStarted, ToolFinished, TurnFinished
    run.text
    ```

    `messages` is the whole conversation, ready to go on with; `tool_calls` what was called; `completions` an answer for
    each turn; `pending` the calls that wait for a yes, where the run has paused for it.

    Raises, while it runs: what a stream raises; `MaxTurnsReached`; `LengthFinishReasonError` where calls were cut at the
        token limit, which are never run.
    Cancellation: stops the tools and the answer that is being read; a function in a thread runs to its end unheard.
    """

    def __init__(self, plan: Plan, messages: Iterable[Any]) -> None:
        self._plan = plan
        self.messages: list[Any] = list(messages)
        self.tool_calls: list[ToolRecord] = []
        self.completions: list[Completion] = []
        self.pending: list[ToolRecord] = []
        self.output: Any = None
        """With `response_format=`, the value that the last answer holds."""
        self._turn: list[ToolRecord] = []  # all calls of the turn in which it has paused
        self._verdicts: dict[str, Verdict] = {}
        self._is_over = False
        self._tasks = BlockTasks()
        self._events: AsyncGenerator[RunEvent, None] | None = None
        self._limiter = anyio.Semaphore(plan.parallel)
        self._over: asyncio.Queue[ToolRecord] = asyncio.Queue()
        asks = any(tool.confirm for tool in plan.tools.values())
        self._is_eager = plan.eager and (plan.confirm is not None or not asks)

    def __repr__(self) -> str:
        state = f", {len(self.pending)} pending" if self.pending else ""
        return f"ToolRun({self.turns} turns, {len(self.tool_calls)} calls{state})"

    # -------------------------------------------------------------------------------------- results

    @property
    def completion(self) -> Completion:
        """The last answer."""
        return self.completions[-1] if self.completions else Completion()

    @property
    def text(self) -> str:
        """What the last answer says."""
        return self.completion.text

    @property
    def turns(self) -> int:
        """How many answers there were."""
        return len(self.completions)

    @property
    def usage(self) -> Usage | None:
        """Tokens over all turns; None where the server has not told those of each."""
        return sum_usage([one.usage for one in self.completions])

    # -------------------------------------------------------------------------------------- running

    async def __aenter__(self) -> Self:
        await self._tasks.open()
        self._events = self._go()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        events, self._events = self._events, None
        self._tasks.cancel()
        try:
            if events is not None:
                await events.aclose()
        finally:
            await self._tasks.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> RunEvent:
        if self._events is None:
            raise RuntimeError("a run is iterated inside `async with`, or awaited by `final()`")
        return await anext(self._events)

    async def final(self) -> Self:
        """Run to the end, or to where it pauses. Needs no block."""
        if self._is_over:
            return self
        if self._events is not None:
            async for _ in self:
                pass
            return self
        async with self:
            return await self.final()

    def resume(self, verdicts: Mapping[str, Verdict]) -> "ToolRun":
        """Return the run that goes on after a pause: a verdict for each pending call, by its id.

        Raises:
            ValueError: nothing is pending, or a call has no verdict.
        """
        missing = [record.id for record in self.pending if record.id not in verdicts]
        if missing or not self.pending:
            raise ValueError(
                f"no verdict for {', '.join(missing)}" if missing else "the run has not paused"
            )
        made = ToolRun(self._plan, self.messages)
        made.tool_calls, made.completions = list(self.tool_calls), list(self.completions)
        made._turn = [msgspec.structs.replace(record) for record in self._turn]
        made._verdicts = dict(verdicts)
        return made

    async def _go(self) -> AsyncGenerator[RunEvent, None]:
        if self._is_over:
            return
        if self._turn:
            turn, self._turn = self._turn, []
            async for event in self._call_all(turn, {}):
                yield event
        while True:
            self._check_turns()
            started: dict[int, ToolRecord] = {}
            void: list[ToolRecord] = []  # begun in an answer that began anew
            stream = self._plan.ask(self.messages)
            try:
                async for event in stream:
                    if isinstance(event, Resumed) and event.mode == "restart":
                        void += started.values()
                        started = {}
                    record = self._begun_early(event, void)
                    yield event
                    if record is not None and isinstance(event, ToolCallDone):
                        started[event.index] = record
                        yield ToolStarted(record.id, record.name, record.arguments)
            finally:
                stream.close()
            answer = stream.completion
            self.completions.append(answer)
            self.messages.append(answer.message)
            yield TurnFinished(self.turns, answer.finish_reason, answer.usage)
            calls = answer.message.tool_calls or []
            if not calls:
                self._is_over = True
                if self._plan.output is not None:
                    self.output = read_value(self._plan.output, answer)
                return
            self._is_over = True  # if its calls must not be run
            _check_whole(answer)
            self._is_over = False
            turn = self._records(calls, started)
            if self._plan.confirm is None and not all(map(self._is_free, turn)):
                self._turn, self._is_over = turn, True
                self.pending = [record for record in turn if not self._is_free(record)]
                return
            async for event in self._call_all(turn, started):
                yield event

    def _check_turns(self) -> None:
        if self.turns >= self._plan.max_turns:
            error = MaxTurnsReached(
                f"the model still calls tools after {self.turns} turns",
                hint="max_turns=... sets how many it may have.",
                partial=self.completion,
            )
            error.messages = tuple(self.messages)
            raise error

    # ---------------------------------------------------------------------------------------- calls

    def _begun_early(self, event: Event, void: list[ToolRecord]) -> ToolRecord | None:
        """Start a call that an event says to be whole, if calls start early, and return its record."""
        if not (self._is_eager and isinstance(event, ToolCallDone) and event.choice == 0):
            return None
        for known in void:  # the same call, of an answer that began anew: it runs already
            if (known.name, known.arguments) == (event.name, event.arguments):
                void.remove(known)
                return known
        record = ToolRecord(event.id, event.name, event.arguments, self.turns + 1)
        self._tasks.start(self._call, record)
        return record

    def _records(
        self, calls: Iterable[ToolCall], started: Mapping[int, ToolRecord]
    ) -> list[ToolRecord]:
        """Return a record for each call of an answer: the one that runs already, where it was begun early."""
        made: list[ToolRecord] = []
        for index, call in enumerate(calls):
            name, arguments = call.function.name or "", call.function.arguments or ""
            record = started.get(index)
            if record is None:
                record = ToolRecord(call.id or "", name, arguments, self.turns)
            record.id = call.id or record.id
            made.append(record)
        return made

    def _is_free(self, record: ToolRecord) -> bool:
        """Whether a call may run without anybody's yes."""
        tool = self._plan.tools.get(record.name)
        return tool is None or not tool.confirm

    async def _call_all(
        self, turn: list[ToolRecord], started: Mapping[int, ToolRecord]
    ) -> AsyncGenerator[RunEvent, None]:
        """Run the calls of a turn side by side, tell of each when it is over, and the model in the order it asked."""
        later = [record for index, record in enumerate(turn) if index not in started]
        for record in later:
            self._tasks.start(self._call, record)
        for record in later:
            yield ToolStarted(record.id, record.name, record.arguments)
        waiting = {id(record) for record in turn}
        while waiting:
            over = await self._over.get()
            if id(over) not in waiting:
                continue  # of an answer that began anew
            waiting.remove(id(over))
            content, is_error = over.content or "", over.error is not None
            yield ToolFinished(over.id, over.name, content, is_error, over.seconds)
        for record in turn:
            self.tool_calls.append(record)
            content = record.content or ""
            self.messages.append({"role": "tool", "tool_call_id": record.id, "content": content})

    async def _call(self, record: ToolRecord) -> None:
        """Run one call; whatever goes wrong in it is for the model to know."""
        async with self._limiter:
            began = time.monotonic()
            try:
                await self._perform(record)
            except anyio.get_cancelled_exc_class():
                if is_being_cancelled():
                    raise  # the run is cancelled, and not something inside the tool
                record.say("Error: it was cancelled.", RuntimeError("cancelled inside the tool"))
            except Exception as error:  # noqa: BLE001  the model is told
                record.say(f"Error: {type(error).__name__}: {error}", error)
            record.seconds = time.monotonic() - began
        self._over.put_nowait(record)

    async def _perform(self, record: ToolRecord) -> None:
        """Call the function, if it can and may be; what it raises comes out as it is."""
        tools = self._plan.tools
        tool = tools.get(record.name)
        if tool is None:
            text = f"there is no tool {record.name!r}; there are: {', '.join(tools) or 'none'}."
            record.say(f"Error: {text}", LookupError(text))
            return
        try:
            arguments = tool.decode(record.arguments)
        except OutputMismatch as error:
            record.say(f"Error: {error}. Call it again with arguments that fit.", error)
            return
        verdict = await self._verdict(record) if tool.confirm else True
        if verdict is not True:
            reason = verdict if isinstance(verdict, str) else "declined"
            text = f"The user has not allowed this call: {reason.rstrip('.')}."
            record.say(text, PermissionError(reason))
            return
        with anyio.move_on_after(tool.timeout):
            if tool.is_async:
                record.result = await tool(**arguments)
            else:
                result = await anyio.to_thread.run_sync(
                    lambda: tool(**arguments), abandon_on_cancel=True
                )
                record.result = await result if inspect.isawaitable(result) else result
            record.say(_text_of(record.result))
            return
        text = f"{record.name} has taken longer than {tool.timeout:g} s."
        record.say(f"Error: {text}", TimeoutError(text))

    async def _verdict(self, record: ToolRecord) -> Verdict:
        if record.id in self._verdicts or self._plan.confirm is None:
            return self._verdicts.get(record.id, False)
        given = self._plan.confirm(record)
        return await given if inspect.isawaitable(given) else given


def _check_whole(answer: Completion) -> None:
    """Calls of an answer that was cut or filtered are never run."""
    if answer.finish_reason == "length":
        raise LengthFinishReasonError(
            "the answer was cut at the token limit inside its calls, which were not run",
            hint="Raise max_tokens.",
            partial=answer,
        )
    if answer.finish_reason == "content_filter":
        raise ContentFilterFinishReasonError(
            "a content filter ended the answer inside its calls, which were not run",
            partial=answer,
        )


def _text_of(result: object) -> str:
    """Return a tool's result as the model gets it: text as it is, everything else as JSON."""
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result, enc_hook=_plain).decode()
    except (TypeError, ValueError, RecursionError):
        return str(result)


def _plain(value: object) -> object:
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    raise TypeError
