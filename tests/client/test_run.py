"""The tool-call loop: what runs when, what the model is told of it, how it ends, and what is left behind."""

import asyncio
import dataclasses
import pickle
import threading
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any

import anyio
import msgspec
import pydantic
import pytest

from asyncchat import (
    APIStatusError,
    AsyncChat,
    Completion,
    ContentDelta,
    ContentFilterFinishReasonError,
    Finish,
    LengthFinishReasonError,
    MaxTurnsReached,
    OutputMismatch,
    RefusalError,
    SchemaError,
    StreamCut,
    Timeout,
    Tool,
    ToolCallDone,
    ToolFinished,
    ToolRecord,
    ToolRun,
    ToolStarted,
    TurnFinished,
    tool,
)
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import (
    MakeClient,
    assert_nothing_is_left,
    open_sockets,
    other_tasks,
    start,
)


def asks(server: ChatServer, *calls: tuple[str, Any]) -> Reply:
    """Queue a turn that calls tools, with the ids c0, c1, ..."""
    reply = server.reply()
    for number, (name, arguments) in enumerate(calls):
        reply.call_tool(name, arguments, id=f"c{number}")
    return reply


def told(run: ToolRun) -> list[tuple[str, str]]:
    """What the model was told of its calls, by id."""
    return [
        (said["tool_call_id"], said["content"])
        for said in run.messages
        if isinstance(said, dict) and said["role"] == "tool"
    ]


def sent(server: ChatServer, request: int = -1) -> list[dict[str, Any]]:
    """The messages of a request."""
    messages: Any = server.requests[request].body["messages"]
    return list(messages)


class Calls:
    """Tools that write down how they were called."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    async def double(self, n: int) -> int:
        """Twice a number."""
        self.seen.append(n)
        return 2 * n


@pytest.fixture
def calls() -> Calls:
    return Calls()


# -------------------------------------------------------------------------------------- one round
async def test_function_is_called_and_the_model_answers_with_its_result(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    server.say("Eight.")
    run = await client.chat.run("What is 2 * 4?", [calls.double], system="Count.", temperature=0)
    assert run.text == "Eight."
    assert run.turns == 2
    assert [one.finish_reason for one in run.completions] == ["tool_calls", "stop"]
    assert run.completion is run.completions[-1]
    assert calls.seen == [4]
    record = run.tool_calls[0]
    assert (record.id, record.name, record.arguments) == ("c0", "double", '{"n":4}')
    assert (record.turn, record.content, record.result, record.error) == (1, "8", 8, None)
    assert record.seconds >= 0
    assert [said["role"] for said in sent(server, 0)] == ["system", "user"]
    assert [said["role"] for said in sent(server)] == ["system", "user", "assistant", "tool"]
    assert sent(server)[2]["tool_calls"][0]["function"] == {
        "name": "double",
        "arguments": '{"n":4}',
    }
    assert sent(server)[3] == {"role": "tool", "tool_call_id": "c0", "content": "8"}


async def test_each_turn_carries_the_tools_and_the_other_fields(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    await client.chat.run(
        "a",
        [calls.double],
        temperature=0.5,
        timeout=Timeout(total=5),
        extra_headers={"X-Mine": "1"},
        extra_body={"odd": None},
        dialect="json_schema",
    )
    assert len(server.requests) == 2
    for request in server.requests:
        tools: Any = request.body["tools"]
        assert [one["function"]["name"] for one in tools] == ["double"]
        assert tools[0]["function"]["description"] == "Twice a number."
        assert "strict" not in tools[0]["function"]
        assert request.body["temperature"] == 0.5
        assert request.body["odd"] is None
        assert request.body["stream"] is True
        assert request.headers["X-Mine"] == "1"
        assert not {"timeout", "extra_headers", "dialect"} & set(request.body)


async def test_answer_without_a_call_is_the_whole_run(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.say("No need.")
    run = await client.chat.run("a", [calls.double])
    assert (run.text, run.turns, run.tool_calls, run.pending) == ("No need.", 1, [], [])
    assert run.output is None


async def test_run_without_any_tool_is_a_plain_answer(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("Yes.")
    run = await client.chat.run("a", [])
    assert run.text == "Yes."
    assert "tools" not in server.requests[0].body


async def test_call_of_a_run_without_tools_is_told_that_there_are_none(
    server: ChatServer, client: AsyncChat
) -> None:
    asks(server, ("double", {}))
    run = await client.chat.run("a", [])
    assert told(run) == [("c0", "Error: there is no tool 'double'; there are: none.")]


async def test_several_turns_are_told_apart(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    for n in (1, 2, 3):
        asks(server, ("double", {"n": n}))
    server.say("Done.")
    run = await client.chat.run("a", [calls.double])
    assert run.turns == 4
    assert [(record.turn, record.result) for record in run.tool_calls] == [(1, 2), (2, 4), (3, 6)]


async def test_messages_of_a_run_are_the_next_conversation(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    server.say("Eight.")
    run = await client.chat.run("a", [calls.double])
    server.say("Sixteen.")
    again = await client.chat.run(
        [*run.messages, {"role": "user", "content": "And twice that?"}], [calls.double]
    )
    roles = ["user", "assistant", "tool", "assistant", "user"]
    assert [said["role"] for said in sent(server)] == roles
    assert sent(server)[3]["content"] == "Eight."
    assert again.text == "Sixteen."
    assert (await client.chat(again.messages)).text  # and of a plain request


async def test_list_of_messages_that_was_passed_is_left_alone(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    said = [{"role": "user", "content": "a"}]
    await client.chat.run(said, [calls.double])
    assert said == [{"role": "user", "content": "a"}]


async def test_tools_may_be_a_generator_and_an_object_that_can_be_called(
    server: ChatServer, client: AsyncChat
) -> None:
    class Greet:
        async def __call__(self, name: str) -> str:
            return f"Hi, {name}."

    asks(server, ("Greet", {"name": "Ann"}))
    run = await client.chat.run("a", (one for one in [Greet()]))
    assert told(run) == [("c0", "Hi, Ann.")]


async def test_arguments_arrive_as_the_types_of_the_parameters(
    server: ChatServer, client: AsyncChat
) -> None:
    class Place(msgspec.Struct):
        city: str

    got: list[object] = []

    def visit(place: Place, days: int = 3) -> None:
        got.extend([place, days])

    asks(server, ("visit", {"place": {"city": "Oslo"}}))
    await client.chat.run("a", [Tool(visit)], dialect="json_schema")
    assert got == [Place("Oslo"), 3]


async def test_function_that_gives_something_to_await_is_awaited(
    server: ChatServer, client: AsyncChat
) -> None:
    """As a decorator makes of an async function that it wraps in a plain one."""

    class Later:
        def __await__(self) -> Generator[Any, None, int]:
            yield from asyncio.sleep(0).__await__()
            return 8

    def wrapped() -> Later:
        return Later()

    asks(server, ("wrapped", {}))
    run = await client.chat.run("a", [wrapped])
    assert told(run) == [("c0", "8")]


# ------------------------------------------------------------------------------------- side by side
async def test_function_that_is_not_async_runs_in_a_thread_while_the_loop_goes_on(
    server: ChatServer, client: AsyncChat
) -> None:
    called, may_end = asyncio.Event(), threading.Event()
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    where: list[int] = []

    def slow() -> str:
        where.append(threading.get_ident())
        loop.call_soon_threadsafe(called.set)
        return "ended" if may_end.wait(5) else "was waited for"

    asks(server, ("slow", {}))
    task = start(client.chat.run("a", [slow]))
    await called.wait()  # only a loop that goes on gets here
    may_end.set()
    assert told(await task) == [("c0", "ended")]
    assert where != [here]


async def test_calls_of_a_turn_run_side_by_side_and_are_told_in_the_order_they_were_asked_for(
    server: ChatServer, client: AsyncChat
) -> None:
    ended: list[int] = []
    events = [asyncio.Event() for _ in range(3)]

    async def wait(n: int) -> str:
        if n < 2:
            await events[n + 1].wait()  # for the one after it
        ended.append(n)
        events[n].set()
        return f"r{n}"

    asks(server, *[("wait", {"n": n}) for n in range(3)])
    with anyio.fail_after(2):
        async with client.chat.run_stream("a", [wait]) as run:
            seen = [event.id async for event in run if isinstance(event, ToolFinished)]
    assert ended == [2, 1, 0]
    assert seen == ["c2", "c1", "c0"]  # told of as they end
    assert told(run) == [("c0", "r0"), ("c1", "r1"), ("c2", "r2")]
    assert [record.id for record in run.tool_calls] == ["c0", "c1", "c2"]


@pytest.mark.parametrize("parallel", [1, 3])
@pytest.mark.parametrize("is_async", [True, False])
async def test_no_more_tools_than_parallel_run_at_once(
    parallel: int, is_async: bool, server: ChatServer, client: AsyncChat
) -> None:
    lock, running, most = threading.Lock(), 0, 0
    full = threading.Barrier(parallel)

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    def sync_tool(n: int) -> int:
        enter()
        full.wait(5)  # as many as may are in here together
        leave()
        return n

    async def async_tool(n: int) -> int:
        enter()
        for _ in range(20):
            await asyncio.sleep(0)
        leave()
        return n

    used = async_tool if is_async else sync_tool
    asks(server, *[(used.__name__, {"n": n}) for n in range(9)])
    run = await client.chat.run("a", [used], parallel=parallel)
    assert most == parallel
    assert [record.result for record in run.tool_calls] == list(range(9))


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("ids", [("", ""), ("a", "b")])
async def test_two_calls_that_are_the_same_run_twice(
    ids: tuple[str, str], eager: bool, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    reply = server.reply()
    for one in ids:
        reply.call_tool("double", {"n": 4}, id=one)
    with anyio.fail_after(1):
        run = await client.chat.run("a", [calls.double], eager=eager)
    assert calls.seen == [4, 4]
    assert [content for _, content in told(run)] == ["8", "8"]
    assert len({call_id for call_id, _ in told(run)}) == 2


@pytest.mark.parametrize("eager", [False, True])
async def test_call_that_was_sent_twice_under_one_id_runs_once(
    eager: bool, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.call_tool("double", {"n": 4}, id="x").call_tool("double", {"n": 4}, id="x")
    server.call_tool("double", {"n": 5}, id="y")
    server.say("Done.")
    with anyio.fail_after(1):
        run = await client.chat.run("a", [calls.double], eager=eager)
    assert calls.seen == [4, 5]
    assert told(run) == [("x", "8"), ("y", "10")]


@pytest.mark.parametrize("eager", [False, True])
async def test_two_calls_of_one_id_are_told_apart_in_events_and_messages(
    eager: bool, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.call_tool("double", {"n": 4}, id="x").call_tool("double", {"n": 5}, id="x")
    server.say("Done.")
    with anyio.fail_after(1):
        async with client.chat.run_stream("a", [calls.double], eager=eager) as run:
            seen = [event async for event in run]
    ids = [call_id for call_id, _ in told(run)]
    assert [call["id"] for call in sent(server)[1]["tool_calls"]] == ids
    assert len(set(ids)) == 2
    assert [event.id for event in seen if isinstance(event, ToolStarted)] == ids
    assert sorted(event.id for event in seen if isinstance(event, ToolFinished)) == sorted(ids)


# ---------------------------------------------------------------------------------- what goes wrong
async def test_unknown_tool_is_told_which_there_are(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("triple", {"n": 4}))
    run = await client.chat.run("a", [calls.double])
    assert told(run) == [("c0", "Error: there is no tool 'triple'; there are: double.")]
    assert isinstance(run.tool_calls[0].error, LookupError)
    assert run.turns == 2


async def test_tool_that_fails_is_told_with_its_error_and_the_others_go_on(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    async def fails() -> None:
        raise RuntimeError("no such row")

    def fails_in_a_thread() -> None:
        raise KeyError("k")

    asks(server, ("fails", {}), ("double", {"n": 4}), ("fails_in_a_thread", {}))
    run = await client.chat.run("a", [calls.double, fails, fails_in_a_thread])
    assert told(run) == [
        ("c0", "Error: RuntimeError: no such row"),
        ("c1", "8"),
        ("c2", "Error: KeyError: 'k'"),
    ]
    assert [type(record.error) for record in run.tool_calls] == [
        RuntimeError,
        type(None),
        KeyError,
    ]
    assert [record.result for record in run.tool_calls] == [None, 8, None]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"n": "four"}, "$.n"),
        ({}, "`n`"),
        ({"n": 4, "m": 5}, "`m`"),
        ('{"n": 4', "truncated"),
        ("[1]", "array"),
        ("nonsense", "malformed"),
    ],
)
async def test_arguments_that_do_not_fit_are_told_with_what_is_wrong(
    arguments: Any, says: str, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", arguments))
    asks(server, ("double", {"n": 4}))
    run = await client.chat.run("a", [calls.double])
    content = told(run)[0][1]
    assert content.startswith("Error: the arguments do not fit double: ")
    assert says in content
    assert content.endswith("Call it again with arguments that fit.")
    assert isinstance(run.tool_calls[0].error, OutputMismatch)
    assert run.tool_calls[1].error is None
    assert calls.seen == [4]


@pytest.mark.parametrize("arguments", ["", "{}"])
async def test_tool_without_parameters_needs_no_arguments(
    arguments: str, server: ChatServer, client: AsyncChat
) -> None:
    async def ping() -> str:
        return "pong"

    asks(server, ("ping", arguments))
    run = await client.chat.run("a", [ping])
    assert told(run) == [("c0", "pong")]


@pytest.mark.parametrize("is_async", [True, False])
async def test_tool_has_no_more_time_than_its_timeout(
    is_async: bool, server: ChatServer, client: AsyncChat
) -> None:
    may_end, stopped = threading.Event(), asyncio.Event()

    async def slow() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()

    def slow_in_a_thread() -> None:
        may_end.wait(5)

    name = "slow" if is_async else "slow_in_a_thread"
    asks(server, (name, {}))
    with anyio.fail_after(2):
        run = await client.chat.run("a", map(tool(timeout=0.01), [slow, slow_in_a_thread]))
    may_end.set()
    assert told(run) == [("c0", f"Error: {name} has taken longer than 0.01 s.")]
    assert isinstance(run.tool_calls[0].error, TimeoutError)
    assert stopped.is_set() is is_async


async def test_error_of_a_tools_own_is_told_as_such(server: ChatServer, client: AsyncChat) -> None:
    """What looks like the loop's own errors, and is not."""

    async def no_file() -> None:
        raise PermissionError("/etc/shadow")

    async def no_answer() -> None:
        raise OutputMismatch("the inner answer does not fit Person")

    async def no_host() -> None:
        raise TimeoutError("the host is down")

    asks(server, ("no_file", {}), ("no_answer", {}), ("no_host", {}))
    run = await client.chat.run(
        "a", [Tool(no_file, confirm=True), no_answer, no_host], confirm=lambda _: True
    )
    file, answer, host = [content for _, content in told(run)]
    assert file == "Error: PermissionError: /etc/shadow"
    assert "with arguments that fit" not in answer
    assert "the inner answer does not fit Person" in answer
    assert host == "Error: TimeoutError: the host is down"


async def test_tool_that_meets_a_cancellation_of_its_own_does_not_hang_the_run(
    server: ChatServer, client: AsyncChat
) -> None:
    async def awaits_what_is_cancelled() -> str:
        never = start(anyio.sleep_forever())
        await asyncio.sleep(0)
        never.cancel()
        await never
        return "never"

    asks(server, ("awaits_what_is_cancelled", {}))
    with anyio.fail_after(1):
        run = await client.chat.run("a", [awaits_what_is_cancelled])
    assert told(run)[0][1].startswith("Error: ")
    assert run.tool_calls[0].error is not None


# -------------------------------------------------------------------------------- results as text
class Point(msgspec.Struct):
    x: int


@dataclasses.dataclass
class Pair:
    a: int


class Modelled(pydantic.BaseModel):
    name: str


class Odd:
    def __str__(self) -> str:
        return "an odd thing"


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("result", "content"),
    [
        ("as it is", "as it is"),
        ("", ""),
        ({"a": [1, None]}, '{"a":[1,null]}'),
        ([1, "é"], '[1,"é"]'),
        (Point(1), '{"x":1}'),
        (Pair(2), '{"a":2}'),
        (Modelled(name="Ann"), '{"name":"Ann"}'),
        ([Modelled(name="Ann"), Point(1)], '[{"name":"Ann"},{"x":1}]'),
        (None, "null"),
        (True, "true"),
        (0.5, "0.5"),
        (b"ab", '"YWI="'),
        (Odd(), "an odd thing"),
        ({1, 2}, "[1,2]"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_result_is_told_as_text_or_as_json(
    result: object, content: str, server: ChatServer, client: AsyncChat
) -> None:
    async def give() -> Any:
        return result

    asks(server, ("give", {}))
    run = await client.chat.run("a", [give])
    assert told(run) == [("c0", content)]
    assert run.tool_calls[0].result is result
    assert sent(server)[-1]["content"] == content


async def test_result_that_has_no_text_is_an_error_of_its_call(
    server: ChatServer, client: AsyncChat
) -> None:
    async def give() -> Any:
        return Unspeakable()

    asks(server, ("give", {}))
    run = await client.chat.run("a", [give])
    assert told(run) == [("c0", "Error: RuntimeError: no words")]


@pytest.mark.parametrize("kind", ["text", "error"])
async def test_text_of_half_a_surrogate_pair_can_be_told(
    kind: str, server: ChatServer, client: AsyncChat
) -> None:
    async def give() -> str:
        if kind == "error":
            raise ValueError("half \ud83d")
        return "half \ud83d"

    asks(server, ("give", {}))
    run = await client.chat.run("a", [give])
    assert "half" in told(run)[0][1]
    assert run.turns == 2


# ------------------------------------------------------------------------------- how a run ends badly
async def test_model_that_never_answers_is_stopped_after_max_turns(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.otherwise(Reply().call_tool("double", {"n": 4}, id="c"))
    with pytest.raises(MaxTurnsReached, match="after 3 turns") as caught:
        await client.chat.run("a", [calls.double], max_turns=3)
    error = caught.value
    assert "max_turns" in error.hint
    assert calls.seen == [4, 4, 4]
    assert len(server.requests) == 3
    assert len(error.messages) == 7
    assert error.partial is not None
    assert error.partial.finish_reason == "tool_calls"
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is MaxTurnsReached
    assert str(again) == str(error)
    assert again.messages == error.messages
    server.otherwise(Reply().say("Done."))
    assert (await client.chat.run(again.messages, [calls.double])).text == "Done."


async def test_answer_at_the_last_turn_is_an_answer(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    server.say("Eight.")
    assert (await client.chat.run("a", [calls.double], max_turns=2)).text == "Eight."


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("arguments", ['{"n": 4', ""])
@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("length", LengthFinishReasonError),
        ("content_filter", ContentFilterFinishReasonError),
    ],
)
async def test_calls_of_an_answer_that_was_cut_are_never_run(
    reason: str,
    kind: type[Exception],
    arguments: str,
    eager: bool,
    server: ChatServer,
    client: AsyncChat,
) -> None:
    seen: list[int] = []

    async def double(n: int = 0) -> int:
        seen.append(n)
        return 2 * n

    asks(server, ("double", arguments)).finish(reason)
    with pytest.raises(kind, match="not run") as caught:
        await client.chat.run("a", [double], eager=eager)
    assert seen == []
    partial: Completion = caught.value.partial  # type: ignore[attr-defined]
    assert partial.message.tool_calls
    await assert_nothing_is_left(client, server)


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_eager_call_that_was_cut_before_its_arguments_is_not_run(
    reason: str, server: ChatServer, client: AsyncChat
) -> None:
    seen: list[int] = []

    async def double(n: int = 0) -> int:
        seen.append(n)
        return 2 * n

    asks(server, ("double", "")).finish(reason).stall(after=3)  # the reason has come, no end mark
    task = start(client.chat.run("a", [double], eager=True))
    await server.wait_for_requests(1)
    await asyncio.sleep(0.02)
    server.resume()
    with pytest.raises((LengthFinishReasonError, ContentFilterFinishReasonError)):
        await task
    assert seen == []


@pytest.mark.parametrize("eager", [False, True])
async def test_call_without_any_arguments_that_is_whole_runs(
    eager: bool, server: ChatServer, client: AsyncChat
) -> None:
    async def ping(n: int = 0) -> str:
        return f"pong {n}"

    asks(server, ("ping", ""), ("ping", "{}"))
    run = await client.chat.run("a", [ping], eager=eager)
    assert told(run) == [("c0", "pong 0"), ("c1", "pong 0")]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_text_that_was_cut_is_an_answer_with_its_reason(
    reason: str, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.say("One two").finish(reason)
    run = await client.chat.run("a", [calls.double])
    assert (run.text, run.completion.finish_reason) == ("One two", reason)


async def test_refusal_ends_the_run(server: ChatServer, client: AsyncChat, calls: Calls) -> None:
    server.reply().refuse("I will not.")
    run = await client.chat.run("a", [calls.double])
    assert run.completion.message.refusal == "I will not."
    assert run.turns == 1


@pytest.mark.parametrize("eager", [False, True])
async def test_stream_that_fails_comes_out_as_itself_and_stops_the_tools(
    eager: bool, server: ChatServer, client: AsyncChat
) -> None:
    state: list[str] = []

    async def wait() -> None:
        state.append("began")
        try:
            await anyio.sleep_forever()
        finally:
            state.append("stopped")

    async def other() -> None:
        state.append("other")

    reply = asks(server, ("wait", {}), ("other", {}))
    reply.stall(after=4).cut(after=4)
    task = start(client.chat.run("a", [wait, other], eager=eager))
    await server.wait_for_requests(1)
    with anyio.move_on_after(1):
        while eager and not state:
            await asyncio.sleep(0)
    server.resume()
    with pytest.raises(StreamCut) as caught:
        await task
    assert caught.value.partial is not None
    assert state == (["began", "stopped"] if eager else [])
    await assert_nothing_is_left(client, server)


async def test_request_that_is_refused_in_a_later_turn_comes_out_as_itself(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    server.fail(400, "No.")
    async with client.chat.run_stream("a", [calls.double]) as run:
        with pytest.raises(APIStatusError, match=r"No\."):
            await run.final()
    assert told(run) == [("c0", "8")]  # what was done is there


# ------------------------------------------------------------------------------- what is a mistake
async def test_two_tools_of_one_name_are_a_mistake(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    with pytest.raises(ValueError, match="two tools are called 'double'"):
        client.chat.run_stream("a", [calls.double, Tool(Calls().double)])
    with pytest.raises(ValueError, match="two tools are called 'double'"):
        await client.chat.run("a", [calls.double, calls.double])
    assert server.requests == []


@pytest.mark.parametrize(
    "bounds", [{"max_turns": 0}, {"max_turns": -1}, {"parallel": 0}, {"parallel": -2}]
)
async def test_bound_below_one_is_a_mistake(
    bounds: dict[str, Any], server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    with pytest.raises(ValueError, match="from 1 up"):
        client.chat.run_stream("a", [calls.double], **bounds)
    assert server.requests == []


@pytest.mark.parametrize(
    "given",
    [
        {"type": "function", "function": {"name": "f", "parameters": {}}},
        "double",
        3,
        None,
    ],
    ids=["dict", "str", "int", "None"],
)
async def test_tool_that_cannot_be_called_is_a_mistake(
    given: Any, server: ChatServer, client: AsyncChat
) -> None:
    with pytest.raises((TypeError, SchemaError), match=r"callable|function"):
        client.chat.run_stream("a", [given])
    assert server.requests == []


async def test_function_without_a_schema_is_a_mistake_before_anything_is_sent(
    server: ChatServer, client: AsyncChat
) -> None:
    def anything(x: dict[str, int]) -> None:
        """Strict mode cannot say this."""

    def untyped(x) -> None:  # type: ignore[no-untyped-def]
        """Nor is this anything."""

    with pytest.raises(SchemaError, match=r"\$\.x"):
        client.chat.run_stream("a", [anything])
    with pytest.raises(SchemaError, match="annotation"):
        client.chat.run_stream("a", [untyped])
    with pytest.raises(ValueError, match="message"):
        client.chat.run_stream([], [])
    assert server.requests == []


# ------------------------------------------------------------------------------------------- eager
async def test_eager_tool_runs_while_the_answer_still_comes(
    server: ChatServer, client: AsyncChat
) -> None:
    seen: list[str] = []

    async def first() -> str:
        seen.append("first")
        assert server.active
        server.resume()  # without which the answer never ends
        return "1"

    async def second() -> str:
        seen.append("second")
        return "2"

    asks(server, ("first", {}), ("second", {})).stall(after=4)
    server.say("Done.")
    with anyio.fail_after(2):
        run = await client.chat.run("a", [first, second], eager=True)
    assert seen == ["first", "second"]
    assert told(run) == [("c0", "1"), ("c1", "2")]
    assert run.text == "Done."


@pytest.mark.parametrize("eager", [False, True])
async def test_each_call_runs_once_and_has_one_start_and_one_end(
    eager: bool, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, *[("double", {"n": n}) for n in range(5)])
    asks(server, *[("double", {"n": n}) for n in range(5, 8)])
    started: list[str] = []
    finished: list[str] = []
    with anyio.fail_after(2):
        async with client.chat.run_stream("a", [calls.double], eager=eager) as run:
            async for event in run:
                if isinstance(event, ToolStarted):
                    started.append(event.arguments)
                elif isinstance(event, ToolFinished):
                    finished.append(event.content)
    assert sorted(calls.seen) == list(range(8))
    assert started == [f'{{"n":{n}}}' for n in range(8)]
    assert sorted(finished, key=int) == [str(2 * n) for n in range(8)]
    assert [content for _, content in told(run)] == [str(2 * n) for n in range(8)]


@pytest.mark.parametrize("indexes", [(1, 2), (0, 5), (3, 1)])
async def test_eager_call_runs_once_however_the_server_numbers_its_calls(
    indexes: tuple[int, int], server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    reply = server.reply()
    for n, index in enumerate(indexes):
        call = {
            "index": index,
            "id": f"c{n}",
            "type": "function",
            "function": {"name": "double", "arguments": f'{{"n":{n}}}'},
        }
        reply.delta({"tool_calls": [call]})
    reply.finish("tool_calls")
    server.say("Done.")
    with anyio.fail_after(1):
        run = await client.chat.run("a", [calls.double], eager=True)
    assert sorted(calls.seen) == [0, 1]
    assert sorted(told(run)) == [("c0", "0"), ("c1", "2")]


async def test_eager_unknown_tool_and_bad_arguments_are_told_as_well(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("triple", {}), ("double", {"n": "x"}), ("double", {"n": 4}))
    run = await client.chat.run("a", [calls.double], eager=True)
    assert [record.error is None for record in run.tool_calls] == [False, False, True]
    assert calls.seen == [4]


async def test_eager_run_that_pauses_has_run_no_call_twice_after_it(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    erased: list[int] = []

    async def erase(n: int) -> str:
        erased.append(n)
        return "gone"

    asks(server, ("double", {"n": 4}), ("erase", {"n": 1}))
    server.say("Done.")
    with anyio.fail_after(1):
        run = await client.chat.run("a", [calls.double, Tool(erase, confirm=True)], eager=True)
        assert erased == []
        run = await run.resume({record.id: True for record in run.pending}).final()
    assert calls.seen == [4]
    assert erased == [1]
    assert told(run) == [("c0", "8"), ("c1", "gone")]


@pytest.mark.parametrize("eager", [False, True])
async def test_calls_of_other_choices_are_not_run(
    eager: bool, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    reply = server.reply()
    reply.call_tool("double", {"n": 4}, id="c0", choice=0)
    reply.call_tool("double", {"n": 5}, id="c1", choice=1)
    server.say("Done.")
    with anyio.fail_after(1):
        run = await client.chat.run("a", [calls.double], n=2, eager=eager)
    assert calls.seen == [4]
    assert told(run) == [("c0", "8")]


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("again", [4, 5])
async def test_answer_that_began_anew_is_told_the_results_of_its_own_calls(
    again: int, eager: bool, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    async def double(n: int) -> int:
        for _ in range(20 * len(calls.seen)):  # a later one ends long after the first
            await asyncio.sleep(0)
        return await calls.double(n)

    asks(server, ("double", {"n": 4}), ("double", {"n": 9})).stall(after=4).cut(after=4)
    asks(server, ("double", {"n": again}))
    server.say("Done.")
    task = start(client.chat.run("a", [double], eager=eager, resume="restart"))
    await server.wait_for_requests(1)
    with anyio.move_on_after(0.1):
        while not calls.seen:
            await asyncio.sleep(0)
    server.resume()
    with anyio.fail_after(1):
        run = await task
    assert told(run) == [("c0", str(2 * again))]
    assert [record.arguments for record in run.tool_calls] == [f'{{"n":{again}}}']
    assert calls.seen == ([4, again] if eager and again != 4 else [again])


# ----------------------------------------------------------------------------------------- confirm
class Eraser:
    def __init__(self) -> None:
        self.erased: list[str] = []
        self.tool = Tool(self.erase, confirm=True)

    async def erase(self, name: str) -> str:
        self.erased.append(name)
        return f"{name} is gone"


@pytest.mark.parametrize(
    ("verdict", "content"),
    [
        (True, "a is gone"),
        (False, "The user has not allowed this call: declined."),
        ("Not this one.", "The user has not allowed this call: Not this one."),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
async def test_confirm_is_asked_before_a_tool_that_wants_it(
    is_async: bool,
    verdict: bool | str,
    content: str,
    server: ChatServer,
    client: AsyncChat,
    calls: Calls,
) -> None:
    asked: list[ToolRecord] = []
    eraser = Eraser()

    def ask(record: ToolRecord) -> bool | str:
        assert not eraser.erased
        asked.append(record)
        return verdict

    async def ask_later(record: ToolRecord) -> bool | str:
        await asyncio.sleep(0)
        return ask(record)

    asks(server, ("erase", {"name": "a"}), ("double", {"n": 4}))
    run = await client.chat.run(
        "a", [eraser.tool, calls.double], confirm=ask_later if is_async else ask
    )
    assert [(record.name, record.arguments) for record in asked] == [("erase", '{"name":"a"}')]
    assert told(run) == [("c0", content), ("c1", "8")]
    assert eraser.erased == (["a"] if verdict is True else [])
    assert (run.tool_calls[0].error is None) is (verdict is True)
    assert run.pending == []


async def test_confirm_is_not_asked_for_arguments_that_do_not_fit(
    server: ChatServer, client: AsyncChat
) -> None:
    eraser, asked = Eraser(), []

    def ask(record: ToolRecord) -> bool:
        asked.append(record)
        return True

    asks(server, ("erase", {"name": 3}))
    await client.chat.run("a", [eraser.tool], confirm=ask)
    assert asked == []
    assert eraser.erased == []


async def test_confirm_that_fails_does_not_run_the_tool(
    server: ChatServer, client: AsyncChat
) -> None:
    eraser = Eraser()

    def ask(_: ToolRecord) -> bool:
        raise ConnectionError("nobody is there")

    asks(server, ("erase", {"name": "a"}))
    run = await client.chat.run("a", [eraser.tool], confirm=ask)
    assert eraser.erased == []
    assert isinstance(run.tool_calls[0].error, ConnectionError)


@pytest.mark.parametrize("value", [1, "", None])
async def test_verdict_that_is_not_true_is_a_no(
    value: Any, server: ChatServer, client: AsyncChat
) -> None:
    eraser = Eraser()
    asks(server, ("erase", {"name": "a"}))
    await client.chat.run("a", [eraser.tool], confirm=lambda _: value)
    assert eraser.erased == []


async def test_run_without_confirm_pauses_before_anything_has_run(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    eraser = Eraser()
    asks(server, ("erase", {"name": "a"}), ("double", {"n": 4}), ("erase", {"name": "b"}))
    server.say("Done.")
    run = await client.chat.run("a", [eraser.tool, calls.double])
    assert (eraser.erased, calls.seen, run.tool_calls, told(run)) == ([], [], [], [])
    assert [record.id for record in run.pending if record.name == "erase"] == ["c0", "c2"]
    assert "pending" in repr(run)
    assert len(server.requests) == 1
    with pytest.raises(ValueError, match="no verdict for c2"):
        run.resume({"c0": True, "c1": True})
    assert eraser.erased == []
    resumed = await run.resume({"c0": True, "c1": True, "c2": "Keep b."}).final()
    assert eraser.erased == ["a"]
    assert calls.seen == [4]
    assert told(resumed) == [
        ("c0", "a is gone"),
        ("c1", "8"),
        ("c2", "The user has not allowed this call: Keep b."),
    ]
    assert (resumed.text, resumed.turns, resumed.pending) == ("Done.", 2, [])


async def test_call_that_needs_no_yes_needs_no_verdict(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    eraser = Eraser()
    asks(server, ("erase", {"name": "a"}), ("double", {"n": 4}))
    run = await client.chat.run("a", [eraser.tool, calls.double])
    resumed = await run.resume({"c0": False}).final()
    assert calls.seen == [4]
    assert [record.error is None for record in resumed.tool_calls] == [False, True]


async def test_run_that_was_resumed_can_pause_again(server: ChatServer, client: AsyncChat) -> None:
    eraser = Eraser()
    asks(server, ("erase", {"name": "a"}))
    asks(server, ("erase", {"name": "b"}))  # of the same id: no old verdict is good for it
    server.say("Done.")
    run = await client.chat.run("a", [eraser.tool])
    run = await run.resume({"c0": True}).final()
    assert eraser.erased == ["a"]
    assert [record.arguments for record in run.pending] == ['{"name":"b"}']
    run = await run.resume({"c0": True}).final()
    assert eraser.erased == ["a", "b"]
    assert run.text == "Done."


async def test_paused_run_stays_as_it_was_when_it_is_resumed(
    server: ChatServer, client: AsyncChat
) -> None:
    eraser = Eraser()
    asks(server, ("erase", {"name": "a"}))
    server.say("Done.")
    run = await client.chat.run("a", [eraser.tool])
    await run.resume({"c0": True}).final()
    assert (run.turns, run.tool_calls, len(run.messages)) == (1, [], 2)
    assert [record.content for record in run.pending] == [None]


async def test_run_that_has_not_paused_cannot_be_resumed(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.say("Done.")
    run = await client.chat.run("a", [calls.double])
    with pytest.raises(ValueError, match="has not paused"):
        run.resume({})


async def test_resumed_run_can_be_iterated(server: ChatServer, client: AsyncChat) -> None:
    eraser = Eraser()
    asks(server, ("erase", {"name": "a"}))
    server.say("Done.")
    async with client.chat.run_stream("a", [eraser.tool]) as run:
        kinds = [type(event) for event in [event async for event in run]]
    assert ToolStarted not in kinds
    assert kinds[-1] is TurnFinished
    async with run.resume({"c0": True}) as resumed:
        kinds = [type(event) for event in [event async for event in resumed]]
    assert kinds[:2] == [ToolStarted, ToolFinished]
    assert resumed.text == "Done."


# ------------------------------------------------------------------------------- usage and output
async def test_usage_is_that_of_all_turns(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4})).usage(10, 2, total_tokens=12)
    server.say("Eight.").usage(20, 3, total_tokens=23)
    run = await client.chat.run("a", [calls.double])
    assert run.usage is not None
    assert run.usage.prompt_tokens == 30
    assert run.usage.completion_tokens == 5
    assert run.usage.total_tokens == 35


async def test_usage_is_none_where_one_turn_has_told_none(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4})).without_usage()
    server.say("Eight.").usage(20, 3)
    run = await client.chat.run("a", [calls.double])
    assert run.usage is None


class Answer(msgspec.Struct):
    value: int


async def test_last_answer_is_read_as_the_type_that_was_asked_for(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    server.say('{"value": 8}')
    run = await client.chat.run("a", [calls.double], response_format=Answer)
    assert run.output == Answer(8)
    assert run.completion.message.parsed == Answer(8)
    for request in server.requests:
        wanted: Any = request.body["response_format"]
        assert wanted["json_schema"]["name"] == "Answer"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply().say("Eight."), OutputMismatch),
        (Reply().say('{"value": 8}').finish("length"), LengthFinishReasonError),
        (Reply().say('{"value": 8}').finish("content_filter"), ContentFilterFinishReasonError),
        (Reply().refuse("No."), RefusalError),
    ],
    ids=["mismatch", "length", "filter", "refusal"],
)
async def test_last_answer_that_is_no_value_of_the_type_is_an_error(
    reply: Reply, kind: type[Exception], server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    server.queue(reply)
    run = client.chat.run_stream("a", [calls.double], response_format=Answer)
    with pytest.raises(kind) as caught:
        await run.final()
    assert caught.value.partial is run.completion  # type: ignore[attr-defined]
    assert run.output is None


async def test_response_format_as_a_dict_goes_through_as_it_is(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.say("{}")
    run = await client.chat.run("a", [calls.double], response_format={"type": "json_object"})
    assert run.output is None
    assert server.requests[0].body["response_format"] == {"type": "json_object"}


# --------------------------------------------------------------------------------- events and blocks
@pytest.mark.parametrize("eager", [False, True])
async def test_events_tell_of_turns_and_tools_in_their_order(
    eager: bool, server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4})).usage(1, 2)
    server.say("Eight.")
    async with client.chat.run_stream("a", [calls.double], eager=eager) as run:
        seen = [event async for event in run]
    told_of = (ToolCallDone, Finish, TurnFinished, ToolStarted, ToolFinished, ContentDelta)
    kinds = [type(event) for event in seen if isinstance(event, told_of)]
    first = [ToolCallDone, ToolStarted, Finish] if eager else [ToolCallDone, Finish]
    then = [TurnFinished, ToolFinished] if eager else [TurnFinished, ToolStarted, ToolFinished]
    assert kinds == [*first, *then, ContentDelta, Finish, TurnFinished]
    turns = [event for event in seen if isinstance(event, TurnFinished)]
    assert [(turn.turn, turn.reason) for turn in turns] == [(1, "tool_calls"), (2, "stop")]
    assert turns[0].usage is not None
    assert turns[0].usage.completion_tokens == 2
    begun = next(event for event in seen if isinstance(event, ToolStarted))
    assert begun == ToolStarted("c0", "double", '{"n":4}')
    ended = next(event for event in seen if isinstance(event, ToolFinished))
    assert (ended.id, ended.name, ended.content, ended.is_error) == ("c0", "double", "8", False)
    assert ended.seconds >= 0
    assert (turns[0].type, begun.type, ended.type) == (
        "turn.finished",
        "tool.started",
        "tool.finished",
    )


async def test_event_of_a_tool_that_failed_says_so(server: ChatServer, client: AsyncChat) -> None:
    asks(server, ("nothing", {}))
    async with client.chat.run_stream("a", []) as run:
        ended = [event async for event in run if isinstance(event, ToolFinished)]
    assert [event.is_error for event in ended] == [True]


async def test_final_inside_a_block_runs_what_is_left(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    server.say("Eight.")
    async with client.chat.run_stream("a", [calls.double]) as run:
        async for event in run:
            if isinstance(event, ToolFinished):
                break
        assert await run.final() is run
        assert await run.final() is run  # and there is nothing after it
        assert [event async for event in run] == []
    assert run.text == "Eight."
    assert run.turns == 2


async def test_run_is_iterated_only_inside_its_block(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    run = client.chat.run_stream("a", [calls.double])
    with pytest.raises(RuntimeError, match="async with"):
        await anext(run)
    async with run:
        await anext(run)
    with pytest.raises(RuntimeError, match="async with"):
        async for _ in run:
            pass
    assert len(server.requests) == 1


async def test_run_that_is_over_does_not_begin_anew(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    server.say("Done.")
    run = await client.chat.run("a", [calls.double])
    with suppress(RuntimeError):
        await run.final()
    assert len(server.requests) == 1
    assert run.turns == 1


async def test_repr_counts_turns_and_calls_and_tells_no_words(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    asks(server, ("double", {"n": 4}))
    run = client.chat.run_stream("a secret", [calls.double])
    assert repr(run) == "ToolRun(0 turns, 0 calls)"
    assert run.usage is None
    assert run.text == ""
    await run.final()
    assert repr(run) == "ToolRun(2 turns, 1 calls)"


# ------------------------------------------------------------------------------ leaving and cancelling
class Stuck:
    """A tool that never ends by itself, and tells that it was stopped."""

    def __init__(self) -> None:
        self.called = asyncio.Event()
        self.stopped = 0

    async def stuck(self) -> None:
        self.called.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.stopped += 1


async def assert_gone(
    client: AsyncChat, server: ChatServer, tasks: set["asyncio.Task[Any]"], sockets: int
) -> None:
    await assert_nothing_is_left(client, server)
    await client.close()
    await server.wait_for_connections(0, 0.2)
    for _ in range(3):
        await asyncio.sleep(0)
    assert other_tasks() == tasks
    assert open_sockets() == sockets


async def final(run: ToolRun) -> None:
    await run.final()


async def block(run: ToolRun) -> None:
    async with run:
        async for _ in run:
            pass


async def final_in_a_block(run: ToolRun) -> None:
    async with run:
        await run.final()


Way = Callable[[ToolRun], Coroutine[Any, Any, None]]
ways = pytest.mark.parametrize("way", [final, block, final_in_a_block])


@ways
async def test_cancelled_in_a_tool_the_tools_are_stopped_and_nothing_is_left(
    way: Way, server: ChatServer, client: AsyncChat
) -> None:
    tasks, sockets, tools = other_tasks(), open_sockets(), Stuck()
    asks(server, ("stuck", {}), ("stuck", {}))
    task = start(way(client.chat.run_stream("a", [tools.stuck])))
    await tools.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tools.stopped == 2
    assert len(server.requests) == 1
    await assert_gone(client, server, tasks, sockets)


@ways
async def test_cancelled_in_a_stream_the_server_sees_it_close_and_eager_tools_stop(
    way: Way, server: ChatServer, client: AsyncChat
) -> None:
    tasks, sockets, tools = other_tasks(), open_sockets(), Stuck()
    asks(server, ("stuck", {}), ("stuck", {})).stall(after=4)
    task = start(way(client.chat.run_stream("a", [tools.stuck], eager=True)))
    with anyio.fail_after(1):
        await tools.called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_for_disconnect(0.1)
    assert tools.stopped == 1
    await assert_gone(client, server, tasks, sockets)


@ways
async def test_cancelled_at_any_turn_nothing_is_left(
    way: Way, server: ChatServer, make_client: MakeClient
) -> None:
    async def quick() -> str:
        await asyncio.sleep(0)
        return "a"

    tasks = other_tasks()
    server.otherwise(Reply().call_tool("quick", {}, id="c"))
    for turns in range(0, 120, 4):
        client = make_client()
        task = start(way(client.chat.run_stream("a", [quick], eager=turns % 8 == 0)))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await assert_nothing_is_left(client, server)
        await client.close()
    await server.wait_for_connections(0, 0.2)
    for _ in range(3):
        await asyncio.sleep(0)
    assert other_tasks() == tasks


async def test_scope_of_the_callers_ends_a_run_quietly(
    server: ChatServer, client: AsyncChat
) -> None:
    tools = Stuck()
    asks(server, ("stuck", {}))
    with anyio.CancelScope() as scope:
        async with client.chat.run_stream("a", [tools.stuck]) as run:
            async for event in run:
                if isinstance(event, ToolStarted):
                    scope.cancel()
    assert scope.cancelled_caught
    await assert_nothing_is_left(client, server)


async def test_function_in_a_thread_does_not_hold_up_a_cancellation(
    server: ChatServer, client: AsyncChat
) -> None:
    loop, called, may_end = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    def slow() -> None:
        loop.call_soon_threadsafe(called.set)
        may_end.wait(5)

    asks(server, ("slow", {}))
    task = start(client.chat.run("a", [slow]))
    await called.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError), anyio.fail_after(1):
        await task
    may_end.set()
    await assert_nothing_is_left(client, server)


@pytest.mark.parametrize(
    "where",
    [
        "stream",
        "tool",
        "before",
        "after",
    ],
)
async def test_exception_in_the_block_comes_out_as_itself(
    where: str, server: ChatServer, client: AsyncChat
) -> None:
    tasks, sockets, tools = other_tasks(), open_sockets(), Stuck()
    asks(server, ("stuck", {}))
    kinds = {"stream": ToolCallDone, "tool": ToolStarted, "after": TurnFinished}

    async def fail() -> None:
        async with client.chat.run_stream("a", [tools.stuck]) as run:
            if where == "before":
                raise ZeroDivisionError
            async for event in run:
                if isinstance(event, kinds[where]):
                    await asyncio.sleep(0)
                    raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        await fail()
    assert type(caught.value) is ZeroDivisionError
    assert tools.stopped == (where == "tool")
    await assert_gone(client, server, tasks, sockets)


@pytest.mark.parametrize("kind", [ContentDelta, ToolCallDone, TurnFinished, ToolStarted])
async def test_block_that_is_left_early_stops_everything_at_once(
    kind: type, server: ChatServer, client: AsyncChat
) -> None:
    tasks, sockets, tools = other_tasks(), open_sockets(), Stuck()
    server.say("Let me see.").call_tool("stuck", {}, id="c0").call_tool("stuck", {}, id="c1")
    async with client.chat.run_stream("a", [tools.stuck]) as run:
        async for event in run:
            if isinstance(event, kind):
                break
    await assert_gone(client, server, tasks, sockets)
    assert len(server.requests) == 1


async def test_block_that_is_entered_and_left_sends_nothing(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    tasks = other_tasks()
    async with client.chat.run_stream("a", [calls.double]):
        pass
    assert server.requests == []
    assert other_tasks() == tasks


async def test_two_runs_at_once_keep_their_tools_apart(
    server: ChatServer, client: AsyncChat, calls: Calls
) -> None:
    def answer(request: Any) -> Reply:
        last = request.body["messages"][-1]
        if last["role"] == "user":
            return Reply().call_tool("double", {"n": int(last["content"])}, id="c")
        return Reply().say(last["content"])

    server.otherwise(answer)
    runs = await asyncio.gather(*(client.chat.run(str(n), [calls.double]) for n in range(10)))
    assert [run.text for run in runs] == [str(2 * n) for n in range(10)]
