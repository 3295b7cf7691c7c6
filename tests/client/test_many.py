"""Many prompts at once: how far ahead they are read, in what order results come, and what is left behind."""

import asyncio
import gc
import time
import tracemalloc
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from typing import Any, Self

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncchat import (
    AsyncChat,
    BadRequestError,
    Completion,
    ContentDelta,
    Limits,
    MapEvent,
    MapProgress,
    MapResult,
    PoolClosed,
)
from asyncchat.client.client import Chat
from asyncchat.testing import ChatServer, Reply
from asyncchat.testing.wire import ReceivedRequest
from tests.client.conftest import (
    MakeClient,
    Waits,
    assert_nothing_is_left,
    other_tasks,
    start,
)


class Source:
    """The prompts "0", "1", ..., counted as they are read."""

    def __init__(self, count: int | None = None) -> None:
        self.read = 0
        self._count = count

    def __iter__(self) -> Iterator[str]:
        while self._count is None or self.read < self._count:
            self.read += 1
            yield str(self.read - 1)

    async def __call__(self) -> AsyncIterator[str]:
        for prompt in self:
            await asyncio.sleep(0)
            yield prompt


class Gates:
    """Has the server answer a prompt when it is told to, and not before."""

    def __init__(self, server: ChatServer) -> None:
        self._opened: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        server.otherwise(self._respond)

    def open(self, *prompts: str) -> None:
        for prompt in prompts:
            self._opened[prompt].set()

    async def _respond(self, request: ReceivedRequest) -> Reply:
        await self._opened[request.last_text].wait()
        return Reply().say(request.last_text)


class Fake:
    """An answer without a server: some events, and the end."""

    alive = most = made = 0
    events = 3
    is_held = False

    def __init__(self) -> None:
        type(self).made += 1
        self.completion = Completion()

    async def final(self) -> Completion:
        async with self:
            while type(self).is_held:
                await asyncio.sleep(0)
            return self.completion

    async def __aenter__(self) -> Self:
        kind = type(self)
        kind.alive += 1
        kind.most = max(kind.most, kind.alive)
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        type(self).alive -= 1

    async def __aiter__(self) -> AsyncIterator[ContentDelta]:
        for number in range(type(self).events):
            yield ContentDelta(str(number))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """Has each prompt answered in this process."""

    class Mine(Fake):
        pass

    def answer_to(_chat: Chat, _prompt: object, fields: Mapping[str, Any]) -> Fake:
        assert fields is not None
        return Mine()

    monkeypatch.setattr(Chat, "answer_to", answer_to)
    return Mine


async def turns(count: int = 300) -> None:
    """Let everything else go on as far as it can."""
    for _ in range(count):
        await asyncio.sleep(0)


def workers() -> list["asyncio.Task[Any]"]:
    """The tasks of maps; others are the server's."""
    return [task for task in other_tasks() if "Mapped" in task.get_name()]


async def settled(server: ChatServer, left: int) -> None:
    """Wait until the server answers no more than so many, and what it said has arrived."""
    while len(server.active) > left:
        await asyncio.sleep(0)
    await turns()


async def texts(results: AsyncIterator[MapResult]) -> list[str]:
    return [result.text async for result in results]


# ----------------------------------------------------------------------------- how far it reads


@pytest.mark.parametrize("limit", [1, 2, 5])
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize(("ordered", "ahead"), [(True, 2), (False, 1)])
async def test_source_without_end_is_read_no_further_than_what_is_alive_and_waits(
    limit: int, is_async: bool, ordered: bool, ahead: int, client: AsyncChat, fake: type[Fake]
) -> None:
    source = Source()
    prompts = source() if is_async else source
    async with client.map(prompts, limit=limit, ordered=ordered) as results:
        for given_out in range(6):
            await turns()  # the reader stands still
            assert source.read == given_out + limit * ahead
            assert fake.alive == 0
            result = await anext(results)
            assert result.index == given_out
    assert fake.most <= limit
    assert not workers()


@pytest.mark.parametrize("ordered", [True, False])
async def test_no_prompt_is_read_while_as_many_as_may_be_are_alive(
    ordered: bool, client: AsyncChat, fake: type[Fake]
) -> None:
    fake.is_held = True
    source = Source()
    async with client.map(source, limit=4, ordered=ordered):
        await turns()
        assert (source.read, fake.alive) == (4, 4)
        assert len(workers()) == 4
    assert not workers()


async def test_nothing_is_read_before_the_block_begins(
    client: AsyncChat, fake: type[Fake]
) -> None:
    source = Source()
    mapped = client.map(source)
    await turns()
    assert (source.read, fake.made) == (0, 0)
    assert repr(mapped) == "Mapped(0 done, 0 failed, 0 alive)"


@pytest.mark.parametrize("limit", [1, 3, 50])
async def test_never_more_than_the_limit_are_alive_at_the_server(
    limit: int, server: ChatServer, client: AsyncChat
) -> None:
    most = 0

    async def respond(request: ReceivedRequest) -> Reply:
        nonlocal most
        most = max(most, len(server.active))
        await server.wait_for_requests(min(limit, 20))
        return Reply().say(request.last_text)

    server.otherwise(respond)
    async with client.map(Source(20), limit=limit) as results:
        assert await texts(results) == [str(number) for number in range(20)]
    assert most <= limit
    assert most == min(limit, 20)


async def test_prompt_that_keeps_its_turn_holds_up_reading_at_twice_the_limit(
    server: ChatServer, client: AsyncChat
) -> None:
    gates, source = Gates(server), Source()
    gates.open(*map(str, range(1, 100)))
    async with client.map(source, limit=3) as results:
        await server.wait_for_requests(6)
        await settled(server, 1)
        assert source.read == len(server.requests) == 6
        gates.open("0")
        assert [(await anext(results)).index for _ in range(6)] == list(range(6))


# --------------------------------------------------------------------------------------- order


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7])
async def test_sources_of_each_kind_are_read_to_their_end(
    is_async: bool, ordered: bool, count: int, client: AsyncChat
) -> None:
    source = Source(count)
    prompts = source() if is_async else source
    async with client.map(prompts, limit=3, ordered=ordered) as results:
        found = {result.index: result.text async for result in results}
    assert found == {number: str(number) for number in range(count)}
    assert not workers()


async def test_results_come_in_the_order_of_the_prompts_though_answers_end_in_another(
    server: ChatServer, client: AsyncChat
) -> None:
    gates = Gates(server)
    async with client.map(["0", "1", "2"], limit=3) as results:
        first = start(anext(results))
        for left, prompt in ((2, "2"), (1, "1")):
            await server.wait_for_requests(3)
            gates.open(prompt)
            await settled(server, left)
        assert not first.done()
        gates.open("0")
        assert (await first).index == 0
        assert await texts(results) == ["1", "2"]


async def test_results_come_as_they_are_complete_where_no_order_is_kept(
    server: ChatServer, client: AsyncChat
) -> None:
    gates, found = Gates(server), []
    async with client.map(["0", "1", "2"], limit=3, ordered=False) as results:
        for prompt in ("2", "0", "1"):
            gates.open(prompt)
            found.append(await anext(results))
    assert [(result.index, result.text) for result in found] == [(2, "2"), (0, "0"), (1, "1")]


# ------------------------------------------------------------------------------------- the source


async def test_async_generator_is_closed_when_the_block_is_left(client: AsyncChat) -> None:
    closed = []

    async def prompts() -> AsyncIterator[str]:
        try:
            while True:
                yield "a"
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async with client.map(prompts(), limit=2) as results:
        await anext(results)
        assert not closed
    assert closed == [True]


async def test_async_generator_that_waits_is_closed_when_the_block_is_left(
    client: AsyncChat,
) -> None:
    closed = []

    async def prompts() -> AsyncIterator[str]:
        yield "a"
        try:
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async with client.map(prompts(), limit=2) as results:
        assert (await anext(results)).text == "a"
    assert closed == [True]


async def test_async_generator_is_closed_though_a_scope_around_the_block_was_cancelled(
    client: AsyncChat,
) -> None:
    closed = []

    async def prompts() -> AsyncGenerator[str, None]:
        try:
            while True:
                yield "a"
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    source = prompts()
    with anyio.CancelScope() as scope:
        async with client.map(source, limit=2) as results:
            await anext(results)
            scope.cancel()
            await anyio.sleep_forever()
    assert closed == [True]
    await source.aclose()


async def test_generator_is_closed_when_the_block_is_left(client: AsyncChat) -> None:
    closed = []

    def prompts() -> Iterator[str]:
        try:
            while True:
                yield "a"
        finally:
            closed.append(True)

    source = prompts()
    async with client.map(source, limit=2) as results:
        await anext(results)
        assert not closed
    assert closed == [True]


async def test_iterator_that_is_no_generator_stays_open_for_its_owner(client: AsyncChat) -> None:
    class Lines:
        closed = False

        def __iter__(self) -> Self:
            return self

        def __next__(self) -> str:
            return "a"

        def close(self) -> None:
            self.closed = True

    lines = Lines()
    async with client.map(lines, limit=2) as results:
        await anext(results)
    assert not lines.closed


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("ordered", [True, False])
async def test_source_that_raises_gives_the_answers_before_it_and_then_its_error(
    is_async: bool, ordered: bool, client: AsyncChat
) -> None:
    def broken() -> Iterator[str]:
        yield from ("0", "1", "2")
        raise LookupError("the file is cut")

    async def broken_async() -> AsyncIterator[str]:
        for prompt in broken():
            yield prompt

    found: list[str] = []
    prompts: Any = broken_async() if is_async else broken()
    async with client.map(prompts, limit=2, ordered=ordered) as results:
        found += [(await anext(results)).text for _ in range(3)]
        for _ in range(2):
            with pytest.raises(LookupError, match="the file is cut"):
                await anext(results)
    assert sorted(found) == ["0", "1", "2"]
    assert not workers()


@pytest.mark.parametrize("error", [StopIteration, LookupError])
async def test_source_that_has_ended_is_not_asked_again(
    error: type[Exception], client: AsyncChat
) -> None:
    class Ends:
        asked = 0

        def __iter__(self) -> Self:
            return self

        def __next__(self) -> str:
            self.asked += 1
            if self.asked > 2:
                raise error
            return "a"

    ends = Ends()
    async with client.map(ends, limit=5) as results:
        assert [(await anext(results)).text for _ in range(2)] == ["a", "a"]
        with pytest.raises((StopAsyncIteration, LookupError)):
            await anext(results)
    assert ends.asked == 3


async def test_error_of_the_source_comes_out_of_the_block_as_itself(client: AsyncChat) -> None:
    def broken() -> Iterator[str]:
        yield "0"
        raise LookupError

    with pytest.raises(LookupError):
        async with client.map(broken()) as results:
            await texts(results)
    with pytest.raises(LookupError):
        await client.gather(broken())


async def test_source_whose_own_task_was_cancelled_does_not_leave_the_reader_waiting(
    client: AsyncChat,
) -> None:
    async def prompts() -> AsyncIterator[str]:
        yield "0"
        feeder = start(asyncio.sleep(60))
        feeder.cancel()
        await feeder

    async with asyncio.timeout(0.2), client.map(prompts()) as results:
        assert (await anext(results)).text == "0"
        with pytest.raises((asyncio.CancelledError, StopAsyncIteration, RuntimeError)):
            await anext(results)
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


async def test_answer_whose_own_task_was_cancelled_does_not_leave_the_reader_waiting(
    make_client: MakeClient,
) -> None:
    async def key() -> str:
        feeder = start(asyncio.sleep(60, "key"))
        feeder.cancel()
        return await feeder

    async with asyncio.timeout(0.2), make_client(api_key=key).map(["0"]) as results:
        try:
            result = await anext(results)
        except (asyncio.CancelledError, RuntimeError):
            pass
        else:
            assert not result.ok
        assert asyncio.current_task().cancelling() == 0  # type: ignore[union-attr]


# --------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("prompt", "kind"),
    [
        ({"temperature": 0}, ValueError),
        ({}, ValueError),
        ({"role": "user", "content": "a"}, ValueError),
        ({"messages": "a", "prompt": "b"}, ValueError),
        ({"messages": []}, ValueError),
        ({"messages": "a", 1: 2}, TypeError),
        ([], ValueError),
        ([{"role": "nobody", "content": "a"}], ValueError),
        ([{"role": "user", "content": object()}], TypeError),
        (["a"], TypeError),
        (None, TypeError),
        (7, TypeError),
        (b"a", TypeError),
        ({"messages": "a", "temperature": "hot"}, TypeError),
    ],
    ids=repr,
)
async def test_prompt_that_cannot_be_sent_is_a_failed_result(
    prompt: Any, kind: type[Exception], server: ChatServer, client: AsyncChat
) -> None:
    async with client.map(["0", prompt, "2"], limit=2) as results:
        found = [result async for result in results]
    assert [(result.index, result.ok) for result in found] == [(0, True), (1, False), (2, True)]
    assert isinstance(found[1].error, kind)
    assert (found[1].text, found[1].attempts, found[1].completion) == ("", 0, None)
    assert len(server.requests) == 2


@pytest.mark.parametrize("ordered", [True, False])
async def test_source_without_end_of_bad_prompts_lets_the_rest_of_the_program_run(
    ordered: bool, client: AsyncChat
) -> None:
    def prompts() -> Iterator[dict[str, Any]]:
        while True:
            yield {}

    async with client.map(prompts(), limit=3, ordered=ordered) as results:
        await turns()
        found = [(await anext(results)).index for _ in range(20)]
    assert found == list(range(20))


async def test_one_failure_never_sinks_the_rest(server: ChatServer, client: AsyncChat) -> None:
    server.when(lambda r: r.last_text in {"1", "3"}, Reply().fail(400, "no"))
    server.when(lambda r: r.last_text == "5", Reply().say("One two").cut(after=2))
    async with client.map(Source(7), limit=3) as results:
        found = [result async for result in results]
    assert [result.ok for result in found] == [n not in {1, 3, 5} for n in range(7)]
    assert isinstance(found[1].error, BadRequestError)
    assert found[5].error.partial.text.startswith("One")
    await assert_nothing_is_left(client, server)


async def test_result_tells_the_answer_and_how_many_requests_it_took(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    record_waits(client)
    server.fail(503)
    async with client.map(["a"]) as results:
        result = await anext(results)
    assert (result.index, result.ok, result.error) == (0, True, None)
    assert (result.text, result.attempts) == ("a", 2)
    assert result.completion is not None
    assert result.completion.usage is not None


async def test_prompts_to_a_closed_client_are_failed_results(client: AsyncChat) -> None:
    await client.close()
    assert [type(result.error) for result in await client.gather(Source(3))] == [PoolClosed] * 3


async def test_closing_the_client_fails_what_is_alive_and_what_follows(
    server: ChatServer, client: AsyncChat
) -> None:
    Gates(server)
    async with client.map(Source(5), limit=2) as results:
        await server.wait_for_requests(2)
        await client.close()
        found = [type(result.error) async for result in results]
    assert found == [PoolClosed] * 5


# ---------------------------------------------------------------------------------------- prompts


@pytest.mark.parametrize(
    "prompt",
    [
        "a",
        [{"role": "user", "content": "a"}],
        ({"role": "user", "content": "a"},),
        {"messages": "a"},
        {"messages": [{"role": "user", "content": "a"}]},
        {"prompt": "a"},
        {"prompt": [{"role": "user", "content": "a"}]},
    ],
    ids=repr,
)
async def test_prompt_of_each_form_is_sent_as_messages(
    prompt: Any, server: ChatServer, client: AsyncChat
) -> None:
    (result,) = await client.gather([prompt], temperature=0)
    assert result.text == "a"
    body = server.requests[0].body
    assert body["messages"] == [{"role": "user", "content": "a"}]
    assert body["temperature"] == 0
    assert "prompt" not in body


async def test_iterator_of_messages_is_a_prompt(server: ChatServer, client: AsyncChat) -> None:
    (result,) = await client.gather([iter([{"role": "user", "content": "a"}])])
    assert result.text == "a"


async def test_fields_of_a_prompts_own_win_over_common_ones_and_stay_as_they_are(
    server: ChatServer, client: AsyncChat
) -> None:
    prompt = {
        "messages": "a",
        "temperature": 1,
        "system": "Be brief.",
        "extra_body": {"top_k": 3},
        "timeout": 9,
    }
    before = {**prompt, "extra_body": {"top_k": 3}}
    common: dict[str, Any] = {"temperature": 0, "seed": 5, "extra_headers": {"X-Mine": "yes"}}
    results = await client.gather([prompt, "b", prompt], limit=1, **common)
    assert [result.text for result in results] == ["a", "b", "a"]
    first, second, third = server.requests
    assert first.body == third.body
    assert (first.body["temperature"], first.body["seed"], first.body["top_k"]) == (1, 5, 3)
    assert first.body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (second.body["temperature"], second.body["seed"]) == (0, 5)
    assert "top_k" not in second.body
    assert {r.headers["X-Mine"] for r in server.requests} == {"yes"}
    assert prompt == before
    assert common == {"temperature": 0, "seed": 5, "extra_headers": {"X-Mine": "yes"}}


async def test_extra_headers_of_a_prompts_own_are_sent(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.gather([{"prompt": "a", "extra_headers": {"X-Mine": "1"}, "model": "other"}])
    assert server.requests[0].headers["X-Mine"] == "1"
    assert server.requests[0].body["model"] == "other"


# --------------------------------------------------------------------------------- leaving early


@pytest.mark.parametrize("stream", [False, True])
async def test_leaving_the_block_closes_what_is_alive(
    stream: bool, server: ChatServer, client: AsyncChat
) -> None:
    server.otherwise(Reply().say("One two three four.").stall(after=3))
    source = Source()
    told: list[MapProgress] = []
    async with client.map(source, limit=4, stream=stream, on_progress=told.append):
        await server.wait_for_requests(4)
        await turns(20)
    assert not workers()
    await assert_nothing_is_left(client, server)
    assert len(server.gone) == 4
    assert len(server.requests) == 4
    assert (source.read, told) == (4, [])


async def test_error_in_the_block_comes_out_as_itself_and_closes_what_is_alive(
    server: ChatServer, client: AsyncChat
) -> None:
    Gates(server)
    error = KeyError("mine")

    async def read() -> None:
        async with client.map(Source(), limit=4):
            await server.wait_for_requests(4)
            raise error

    with pytest.raises(KeyError) as caught:
        await read()
    assert caught.value is error
    assert not workers()
    await assert_nothing_is_left(client, server)


async def test_cancelled_reader_closes_what_is_alive(
    server: ChatServer, client: AsyncChat
) -> None:
    Gates(server)

    async def read() -> None:
        async with client.map(Source(), limit=4) as results:
            await texts(results)

    task = start(read())
    await server.wait_for_requests(4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not workers()
    await assert_nothing_is_left(client, server)


async def test_bound_in_time_around_the_block_is_told_as_such(
    server: ChatServer, client: AsyncChat
) -> None:
    Gates(server)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05), client.map(Source(), limit=4) as results:
            await texts(results)
    with anyio.move_on_after(0.05) as scope:
        async with client.map(Source(), limit=4) as results:
            await texts(results)
    assert scope.cancelled_caught
    assert not workers()
    await assert_nothing_is_left(client, server)


async def test_cancelled_gather_closes_what_is_alive(
    server: ChatServer, client: AsyncChat
) -> None:
    Gates(server)
    task = start(client.gather(Source(50), limit=4))
    await server.wait_for_requests(4)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not workers()
    await assert_nothing_is_left(client, server)


async def test_read_that_was_cancelled_loses_no_result(
    server: ChatServer, client: AsyncChat
) -> None:
    gates = Gates(server)
    async with client.map(Source(3), limit=3) as results:
        for _ in range(3):
            with anyio.move_on_after(0.005):
                await anext(results)
        gates.open("0", "1", "2")
        assert await texts(results) == ["0", "1", "2"]


async def test_places_of_the_client_bound_it_too(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=2))
    Gates(server)
    async with client.map(Source(), limit=5):
        await server.wait_for_requests(2)
        await turns()
        assert (client.statistics().in_flight, client.statistics().waiting) == (2, 3)
    await assert_nothing_is_left(client, server)


# ---------------------------------------------------------------------------------------- reading


async def test_reading_outside_the_block_is_refused(client: AsyncChat) -> None:
    mapped = client.map(["a", "b"])
    with pytest.raises(RuntimeError, match="inside `async with`"):
        await anext(mapped)
    async with mapped as results:
        await anext(results)
    with pytest.raises(RuntimeError, match="inside `async with`"):
        await anext(results)


@pytest.mark.parametrize("is_read", [True, False])
async def test_block_is_entered_once(is_read: bool, client: AsyncChat) -> None:
    mapped = client.map(["a", "b"], limit=1)
    async with mapped as results:
        if is_read:
            assert await texts(results) == ["a", "b"]
    with pytest.raises(RuntimeError, match="once"):
        await mapped.__aenter__()
    assert not workers()


async def test_reading_on_after_the_end_ends_again(client: AsyncChat) -> None:
    async with client.map(["a"]) as results:
        assert await texts(results) == ["a"]
        for _ in range(3):
            assert await texts(results) == []


async def test_iteration_goes_on_where_another_left_off(client: AsyncChat) -> None:
    async with client.map(Source(5), limit=2) as results:
        async for result in results:
            if result.index == 1:
                break
        assert await texts(results) == ["2", "3", "4"]


@pytest.mark.parametrize("ordered", [True, False])
async def test_two_readers_share_the_results(
    ordered: bool, server: ChatServer, client: AsyncChat
) -> None:
    async with client.map(Source(30), limit=3, ordered=ordered) as results:
        tasks = [start(texts(results)) for _ in range(2)]
        found = [await task for task in tasks]
    assert sorted(map(int, found[0] + found[1])) == list(range(30))
    if ordered:
        assert all(list(map(int, share)) == sorted(map(int, share)) for share in found)


async def test_result_whose_turn_has_come_goes_to_the_reader_who_still_asks(
    server: ChatServer, client: AsyncChat
) -> None:
    gates = Gates(server)
    async with client.map(["0", "1"], limit=2) as results:
        second = start(texts(results))
        await server.wait_for_requests(2)
        first = start(anext(results))
        await turns(5)
        gates.open("1")
        await settled(server, 1)
        gates.open("0")
        taken = await first
        async with asyncio.timeout(0.2):
            rest = await second
    assert (taken.text, rest) == ("0", ["1"])


async def test_sleeping_reader_is_woken_when_the_turn_of_a_result_has_come(
    server: ChatServer, client: AsyncChat
) -> None:
    gates = Gates(server)

    async def prompts() -> AsyncIterator[str]:
        yield "0"
        yield "1"
        await asyncio.Event().wait()

    async with client.map(prompts(), limit=3) as results:
        second = start(anext(results))
        await server.wait_for_requests(2)
        first = start(anext(results))
        await turns(5)
        gates.open("1")
        await settled(server, 1)
        gates.open("0")
        done, waiting = await asyncio.wait([first, second], timeout=0.2)
        for task in waiting:
            task.cancel()
    assert sorted(task.result().text for task in done) == ["0", "1"]


async def test_reader_who_waits_when_the_block_is_left_is_told(
    server: ChatServer, client: AsyncChat
) -> None:
    Gates(server)
    async with client.map(Source(), limit=2) as results:
        waiter = start(texts(results))
        await server.wait_for_requests(2)
    with pytest.raises(RuntimeError, match="inside `async with`"):
        async with asyncio.timeout(0.2):
            await waiter


# ------------------------------------------------------------------------------ streams of events


async def test_events_of_each_prompt_come_in_their_order_and_a_result_at_each_end(
    server: ChatServer, client: AsyncChat
) -> None:
    server.when(lambda r: r.last_text == "3", Reply().fail(400, "no"))
    server.otherwise(lambda r: Reply().say(["a", r.last_text, "z"]))
    said: defaultdict[int, list[str]] = defaultdict(list)
    ends: dict[int, MapResult] = {}
    async with client.map(Source(6), limit=3, stream=True) as results:
        async for item in results:
            assert item.index not in ends
            if isinstance(item, MapResult):
                ends[item.index] = item
                continue
            assert isinstance(item, MapEvent)
            if isinstance(item.event, ContentDelta):
                said[item.index].append(item.event.delta)
    good = [0, 1, 2, 4, 5]
    assert said == {number: ["a", str(number), "z"] for number in good}
    assert sorted(ends) == list(range(6))
    assert {index: end.text for index, end in ends.items() if end.ok} == {
        number: f"a{number}z" for number in good
    }
    assert isinstance(ends[3].error, BadRequestError)


async def test_events_of_answers_mix_as_they_come(server: ChatServer, client: AsyncChat) -> None:
    server.otherwise(Reply().say(["a", "b"]).stall(after=2))
    seen: set[int] = set()
    async with client.map(Source(3), limit=3, stream=True) as results:
        while len(seen) < 3:
            item = await anext(results)
            assert isinstance(item, MapEvent)
            seen.add(item.index)


async def test_answer_that_breaks_off_gives_its_events_and_then_its_error(
    server: ChatServer, client: AsyncChat
) -> None:
    server.cut(after=3)
    async with client.map(["a"], stream=True) as results:
        items = [item async for item in results]
    assert [i.event.delta for i in items[:-1] if isinstance(i.event, ContentDelta)] == [
        "One",
        " two",
    ]
    assert items[-1].error.partial.text == "One two"


@pytest.mark.parametrize("limit", [1, 3])
async def test_reader_of_events_that_stands_still_holds_up_the_answers(
    limit: int, client: AsyncChat, fake: type[Fake]
) -> None:
    fake.events = 100
    source = Source()
    async with client.map(source, limit=limit, stream=True) as results:
        for _ in range(5):
            await turns()
            assert source.read == fake.alive == limit
            assert results._out.qsize() == limit
            await anext(results)
    assert fake.alive == 0
    assert not workers()


async def test_source_of_streams_is_read_no_further_than_results_are_taken(
    client: AsyncChat, fake: type[Fake]
) -> None:
    fake.events = 1
    source = Source()
    async with client.map(source, limit=2, stream=True) as results:
        ends = 0
        while ends < 10:
            await turns(20)
            assert source.read <= ends + 2
            ends += isinstance(await anext(results), MapResult)


async def test_streams_end_where_their_prompts_end(client: AsyncChat, fake: type[Fake]) -> None:
    async with client.map(Source(5), limit=1, stream=True) as results:
        items = [item async for item in results]
        assert [item async for item in results] == []
    assert [item.index for item in items] == [n for n in range(5) for _ in range(4)]


# --------------------------------------------------------------------------------------- progress


@pytest.mark.parametrize("ordered", [True, False])
async def test_progress_is_told_after_each_result(
    ordered: bool, server: ChatServer, client: AsyncChat
) -> None:
    server.when(lambda r: r.last_text in {"1", "4"}, Reply().fail(400, "no"))
    told: list[MapProgress] = []
    async with client.map(Source(6), limit=2, ordered=ordered, on_progress=told.append) as results:
        async for _ in results:
            pass
    assert [progress.done + progress.failed for progress in told] == [1, 2, 3, 4, 5, 6]
    assert told[-1] == MapProgress(done=4, failed=2, alive=0)
    assert all(0 <= progress.alive <= 1 for progress in told)


async def test_progress_of_one_at_a_time_is_exact(server: ChatServer, client: AsyncChat) -> None:
    server.when(lambda r: r.last_text == "1", Reply().fail(400, "no"))
    told: list[MapProgress] = []
    await client.gather(Source(3), limit=1, on_progress=told.append)
    assert told == [MapProgress(1, 0, 0), MapProgress(1, 1, 0), MapProgress(2, 1, 0)]


async def test_progress_of_streams_is_told_once_for_each_result(
    client: AsyncChat, fake: type[Fake]
) -> None:
    told: list[MapProgress] = []
    async with client.map(Source(9), limit=3, stream=True, on_progress=told.append) as results:
        async for _ in results:
            await turns(3)
    assert len(told) == 9
    assert told[-1] == MapProgress(9, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_progress_that_raises_comes_out_to_the_reader(
    stream: bool, server: ChatServer, client: AsyncChat
) -> None:
    def complain(progress: MapProgress) -> None:
        raise LookupError(f"after {progress.done}")

    source = Source()

    async def read() -> None:
        async with client.map(source, limit=2, stream=stream, on_progress=complain) as results:
            async for _ in results:
                pass

    with pytest.raises(LookupError, match="after"):
        await read()
    assert source.read <= 4
    assert not workers()
    await assert_nothing_is_left(client, server)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("ordered", [True, False])
async def test_progress_that_raises_each_time_comes_out_after_the_results_that_are_there(
    ordered: bool, client: AsyncChat, fake: type[Fake]
) -> None:
    def complain(progress: MapProgress) -> None:
        raise LookupError(f"after {progress.done}")

    async with client.map(Source(3), limit=3, ordered=ordered, on_progress=complain) as results:
        await turns()
        found = [(await anext(results)).index for _ in range(fake.made)]
        for _ in range(2):
            with pytest.raises(LookupError, match="after 1"):
                await anext(results)
    assert found == list(range(fake.made))


@pytest.mark.timeout(10)
async def test_readers_who_wait_when_progress_raises_are_all_told(
    server: ChatServer, client: AsyncChat
) -> None:
    gates = Gates(server)

    def complain(_: MapProgress) -> None:
        raise LookupError

    async with client.map(Source(3), limit=3, on_progress=complain) as results:
        readers = [start(texts(results)) for _ in range(3)]
        await server.wait_for_requests(3)
        gates.open("0", "1", "2")
        done, _ = await asyncio.wait(readers, timeout=1)
    assert [type(reader.exception()) for reader in done] == [LookupError] * 3


async def test_first_error_of_progress_is_the_one_that_comes_out(
    server: ChatServer, client: AsyncChat
) -> None:
    gates = Gates(server)

    def complain(progress: MapProgress) -> None:
        raise LookupError(f"after {progress.done}")

    async with client.map(["0", "1"], limit=2, on_progress=complain) as results:
        await server.wait_for_requests(2)
        gates.open("0")
        await anext(results)
        gates.open("1")
        with pytest.raises(LookupError, match="after 1"):
            await texts(results)


async def test_progress_that_raises_comes_out_though_the_source_has_no_more_for_now(
    client: AsyncChat,
) -> None:
    def complain(_: MapProgress) -> None:
        raise LookupError

    async def prompts() -> AsyncIterator[str]:
        yield "0"
        await asyncio.Event().wait()

    with pytest.raises(LookupError):
        async with (
            asyncio.timeout(0.2),
            client.map(prompts(), limit=2, on_progress=complain) as results,
        ):
            await texts(results)


# ----------------------------------------------------------------------------------------- gather


async def test_gather_keeps_the_order_of_the_prompts_with_errors_among_them(
    server: ChatServer, client: AsyncChat
) -> None:
    gates = Gates(server)
    server.when(lambda r: r.last_text == "1", Reply().fail(400, "no"))
    task = start(client.gather(["0", "1", {}, "3"], limit=4))
    await server.wait_for_requests(3)
    gates.open("3")
    await turns()
    gates.open("0")
    results = await task
    assert [result.index for result in results] == [0, 1, 2, 3]
    assert [result.text for result in results] == ["0", "", "", "3"]
    assert [type(result.error) for result in results] == [
        type(None),
        BadRequestError,
        ValueError,
        type(None),
    ]


async def test_gather_of_nothing_is_empty(server: ChatServer, client: AsyncChat) -> None:
    assert await client.gather([]) == []
    assert server.requests == []


# -------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize("limit", [0, -1, 1.5, 2.0, True, "3", None], ids=repr)
async def test_limit_that_is_no_whole_number_from_one_up_is_refused(
    limit: Any, client: AsyncChat
) -> None:
    with pytest.raises(ValueError, match="limit="):
        client.map(["a"], limit=limit)
    with pytest.raises(ValueError, match="limit="):
        await client.gather(["a"], limit=limit)


@pytest.mark.parametrize("prompts", ["abc", b"abc", {"messages": "a"}, 7, None], ids=repr)
async def test_prompts_that_are_no_iterable_of_prompts_are_refused(
    prompts: Any, client: AsyncChat
) -> None:
    with pytest.raises(TypeError, match=f"prompts is a {type(prompts).__name__}"):
        client.map(prompts)
    with pytest.raises(TypeError, match="prompts"):
        await client.gather(prompts)


# -------------------------------------------------------------------------------------------- law


@settings(
    max_examples=50,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    limit=st.integers(1, 8),
    plan=st.integers(0, 30).flatmap(
        lambda count: st.lists(
            st.tuples(st.booleans(), st.integers(0, 40)), min_size=count, max_size=count
        )
    ),
    ordered=st.booleans(),
    is_async=st.booleans(),
)
async def test_every_prompt_is_answered_once_whatever_fails_and_in_whatever_order_answers_end(
    limit: int,
    plan: list[tuple[bool, int]],
    ordered: bool,
    is_async: bool,
    server: ChatServer,
    client: AsyncChat,
) -> None:
    most = 0

    async def respond(request: ReceivedRequest) -> Reply:
        nonlocal most
        most = max(most, len(server.active))
        fails, delay = plan[int(request.last_text)]
        await turns(delay)
        return Reply().fail(400, "no") if fails else Reply().say([request.last_text])

    server.otherwise(respond)
    source = Source(len(plan))
    prompts: Any = source() if is_async else source
    async with client.map(prompts, limit=limit, ordered=ordered) as results:
        found = [result async for result in results]
    assert most <= limit
    indices = [result.index for result in found]
    assert (indices if ordered else sorted(indices)) == list(range(len(plan)))
    for result in found:
        fails = plan[result.index][0]
        assert result.ok is not fails
        assert result.text == ("" if fails else str(result.index))
    assert not workers()
    assert client.statistics().in_flight == 0


# -------------------------------------------------------------------------------------- full size


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [True, False])
async def test_twenty_thousand_prompts_take_no_more_memory_than_two_and_time_in_proportion(
    ordered: bool, client: AsyncChat, fake: type[Fake]
) -> None:
    async def run(count: int) -> float:
        began = time.perf_counter()
        async with client.map(Source(count), limit=64, ordered=ordered) as results:
            expected = 0
            async for result in results:
                assert result.ok
                expected += 1
        assert expected == count
        return (time.perf_counter() - began) / count

    await run(1000)  # what is made once
    small = min([await run(2000) for _ in range(3)])
    large = await run(20_000)
    assert large < small * 3
    gc.collect()
    tracemalloc.start()
    try:
        await run(2000)
        _, peak_of_few = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        await run(20_000)
        left, peak_of_many = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_of_many < peak_of_few + 256 * 1024
    assert left < 256 * 1024
    assert 1 < fake.most <= 64
