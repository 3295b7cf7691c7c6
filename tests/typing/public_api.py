"""What type checkers should make of the public API. Checked by `test_public_api.py`, and never run."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Literal, TypedDict, assert_never, assert_type

import msgspec

from asyncchat import (
    APIStatusError,
    AsyncChat,
    Choice,
    Chunk,
    Completion,
    ContentDelta,
    ContentDone,
    Event,
    Finish,
    LogprobsDelta,
    Message,
    ReasoningDelta,
    ReasoningDone,
    RefusalDelta,
    RefusalDone,
    Resumed,
    RunEvent,
    Statistics,
    Timing,
    Tool,
    ToolCall,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    ToolFinished,
    ToolRecord,
    ToolRun,
    ToolStarted,
    TurnFinished,
    Usage,
    UsageReport,
    User,
)
from asyncchat.client.stream import ChatStream


async def one_answer(client: AsyncChat) -> None:
    answer = await client.chat("Hi.", temperature=0, top_k=3, timeout=5)
    assert_type(answer, Completion)
    assert_type(answer.text, str)
    assert_type(answer.choices, list[Choice])
    assert_type(answer.choices[0].message, Message)
    assert_type(answer.choices[0].message.content, str | None)
    assert_type(answer.choices[0].message.tool_calls, list[ToolCall] | None)
    assert_type(answer.choices[0].finish_reason, str | None)
    assert_type(answer.usage, Usage | None)
    assert_type(answer.timing, Timing | None)
    await client.chat([User("a"), {"role": "user", "content": "b"}, answer.message])


async def a_stream(client: AsyncChat) -> None:
    assert_type(client.chat.stream("Hi."), ChatStream[Event])
    async with client.chat.stream("Hi.") as stream:
        assert_type(stream, ChatStream[Event])
        async for event in stream:
            assert_type(event, Event)
        assert_type(stream.text(), AsyncIterator[str])
        assert_type(stream.chunks(), AsyncIterator[Chunk])
        assert_type(await stream.final(), Completion)
    assert_type(stream.completion, Completion)
    assert_type(stream.snapshot, Completion)


def every_event(event: Event) -> str:
    match event:
        case ContentDelta(delta):
            return assert_type(delta, str)
        case ContentDone() | RefusalDelta() | RefusalDone() | ReasoningDelta() | ReasoningDone():
            return event.type
        case ToolCallStarted(index, name):
            assert_type(index, int)
            return assert_type(name, str)
        case ToolCallDelta() | ToolCallDone() | LogprobsDelta() | Resumed():
            return event.type
        case UsageReport(usage):
            assert_type(usage, Usage)
            return event.type
        case Finish():
            assert_type(event.reason, str | None)
            assert_type(event.usage, Usage | None)
            return event.type
        case _:
            assert_never(event)


async def create(client: AsyncChat, messages: list[dict[str, str]], streams: bool) -> None:
    completions = client.chat.completions
    assert_type(await completions.create(messages=messages), Completion)
    assert_type(await completions.create(messages=messages, model="m"), Completion)
    assert_type(await completions.create(messages=messages, stream=False), Completion)
    assert_type(await completions.create(messages=messages, stream=None), Completion)
    assert_type(await completions.create(messages=messages, stream=True), ChatStream[Chunk])
    assert_type(
        await completions.create(messages=messages, stream=streams),
        ChatStream[Chunk] | Completion,
    )
    yes: Literal[True] = True
    async for chunk in await completions.create(messages=messages, stream=yes):
        assert_type(chunk, Chunk)
        assert_type(chunk.choices[0].delta.content, str | None)
    assert_type(completions.stream(messages=messages), ChatStream[Event])


async def the_client() -> None:
    async with AsyncChat(api_key=lambda: "k") as client:
        assert_type(client, AsyncChat)
        assert_type(client.with_options(timeout=3), AsyncChat)
        assert_type(client.statistics(), Statistics)

    async def key() -> str:
        return "k"

    AsyncChat(api_key=key)


class Meeting(msgspec.Struct):
    title: str


@dataclass
class Place:
    city: str


class Row(TypedDict):
    a: int


async def types(client: AsyncChat) -> None:
    assert_type(await client.chat.parse("Tea on 3 May.", Meeting), Meeting)
    assert_type(await client.chat.parse("Oslo.", Place, reask=2, dialect="json_object"), Place)
    assert_type(await client.chat.parse("A row.", Row, temperature=0), Row)
    assert_type(await client.chat.parse("All.", list[Meeting]), list[Meeting])
    assert_type(await client.chat.parse("A number.", int), int)
    answer = await client.chat.completions.parse(messages="Tea.", response_format=Meeting)
    assert_type(answer, Completion)
    async with client.chat.stream("All.", response_format=list[Meeting]) as stream:
        assert_type(stream, ChatStream[Event])
        assert_type(stream.items(), AsyncIterator[Any])
        assert_type(stream.partials(every=0.1), AsyncIterator[Any])
    assert_type(stream.parsed, Any)


async def tools(client: AsyncChat) -> None:
    async def weather(city: str) -> str:
        return city

    def erase(name: str) -> None:
        del name

    run = await client.chat.run("Coat?", [weather, Tool(erase, confirm=True)], max_turns=3)
    assert_type(run, ToolRun)
    assert_type(run.text, str)
    assert_type(run.usage, Usage | None)
    assert_type(run.completion, Completion)
    assert_type(run.tool_calls, list[ToolRecord])
    assert_type(run.pending, list[ToolRecord])
    assert_type(run.resume({"a": True, "b": "Not that one."}), ToolRun)
    await client.chat.run("Coat?", [weather], confirm=lambda record: record.name == "erase")
    await client.chat(run.messages)
    async with client.chat.run_stream("Coat?", tools=[weather], eager=True) as run:
        assert_type(run, ToolRun)
        async for event in run:
            assert_type(event, RunEvent)
            match event:
                case ToolStarted():
                    assert_type(event.arguments, str)
                case ToolFinished():
                    assert_type(event.is_error, bool)
                case TurnFinished():
                    assert_type(event.usage, Usage | None)
                case _:
                    assert_type(event, Event)
        assert_type(await run.final(), ToolRun)


async def errors(client: AsyncChat) -> None:
    try:
        await client.chat("Hi.")
    except APIStatusError as error:
        assert_type(error.status_code, int)
        assert_type(error.message, str)
        assert_type(error.retryable, bool)
        assert_type(error.retry_after, float | None)
        assert_type(error.partial, Completion | None)
        assert_type(error.request_id, str | None)


async def mistakes(client: AsyncChat) -> None:
    await client.chat()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.chat("Hi.", system=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.chat.parse("Hi.")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await client.chat.parse("Hi.", Meeting, reask="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await client.chat.run("Hi.", ["weather"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await client.chat.completions.create("Hi.")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    AsyncChat(timeout="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncChat(api_key=3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    AsyncChat(max_retries=1, retries=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
