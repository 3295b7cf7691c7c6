"""Cancelled at every await, once and twice: the error passes through, and nothing is left behind."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest

from asyncchat import AsyncChat, Limits
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import (
    MakeClient,
    assert_nothing_is_left,
    open_sockets,
    other_tasks,
    start,
)

Work = Callable[[AsyncChat], Coroutine[Any, Any, None]]


async def plain(client: AsyncChat) -> None:
    await client.chat("a")


async def final(client: AsyncChat) -> None:
    await client.chat.stream("a").final()


async def events(client: AsyncChat) -> None:
    async with client.chat.stream("a") as stream:
        async for _ in stream:
            pass


async def text(client: AsyncChat) -> None:
    async with client.chat.stream("a") as stream:
        async for _ in stream.text():
            await asyncio.sleep(0)


async def created(client: AsyncChat) -> None:
    async for _ in await client.chat.completions.create(messages="a", stream=True):
        pass


async def created_in_a_block(client: AsyncChat) -> None:
    async with await client.chat.completions.create(messages="a", stream=True) as stream:
        async for _ in stream:
            pass


WORKS = [plain, final, events, text, created, created_in_a_block]
works = pytest.mark.parametrize("work", WORKS)


async def cancelled(work: Work, client: AsyncChat, turns: int, times: int) -> bool:
    """Cancel `turns` loop turns after the start; tell whether the work had not ended before."""
    task = start(work(client))
    for _ in range(turns):
        await asyncio.sleep(0)
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@works
@pytest.mark.parametrize("times", [1, 2])
async def test_cancelled_at_any_turn_of_a_first_request_nothing_is_left(
    work: Work, times: int, server: ChatServer, make_client: MakeClient
) -> None:
    server.otherwise(Reply().say("One two three.").stall(after=4))
    tasks, sockets = other_tasks(), open_sockets()
    for turns in range(81):
        client = make_client()
        assert await cancelled(work, client, turns, times)
        await assert_nothing_is_left(client, server)
        await server.wait_for_connections(0, 0.1)
        await client.close()
    await asyncio.sleep(0)
    assert len(server.gone) > 20  # the later turns were inside the answer
    assert len(server.requests) < 80  # the earlier ones before the request was there
    assert other_tasks() == tasks
    assert open_sockets() == sockets


@works
@pytest.mark.parametrize("times", [1, 2])
async def test_cancelled_at_any_turn_of_a_later_request_the_client_goes_on(
    work: Work, times: int, server: ChatServer, client: AsyncChat
) -> None:
    stalling = Reply().say("One two three.").stall(after=4)
    for turns in range(0, 81, 2):
        assert (await client.chat("b")).text == "b"  # its connection is kept, and meets the next
        server.queue(stalling)
        assert await cancelled(work, client, turns, times)
        await assert_nothing_is_left(client, server)
        server._queue.clear()  # the cancellation may have come before the request


@works
async def test_cancelled_at_any_turn_of_a_request_that_succeeds_nothing_is_left(
    work: Work, server: ChatServer, client: AsyncChat
) -> None:
    for turns in range(81):
        await cancelled(work, client, turns, 1)
        await assert_nothing_is_left(client, server)
    assert (await client.chat("b")).text == "b"


@works
async def test_cancelled_while_an_error_body_is_read_nothing_is_left(
    work: Work, server: ChatServer, client: AsyncChat
) -> None:
    server.raw(b'{"error":', b'"x"}').status(500).stall(after=1)
    task = start(work(client))
    await server.wait_for_requests(1)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_for_disconnect(0.1)
    await assert_nothing_is_left(client, server)


@works
async def test_cancelled_before_a_retry_nothing_is_left(
    work: Work, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(max_retries=2)
    server.fail(429, headers={"Retry-After": "30"})
    task = start(work(client))
    await server.wait_for_requests(1)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_nothing_is_left(client, server)
    assert len(server.requests) == 1


async def test_cancelled_while_the_key_is_asked_for_nothing_is_left(
    server: ChatServer, make_client: MakeClient
) -> None:
    async def key() -> str:
        await asyncio.get_running_loop().create_future()
        return ""

    client = make_client(api_key=key)
    assert await cancelled(plain, client, 10, 1)
    await assert_nothing_is_left(client, server)
    assert server.requests == []


@works
async def test_cancelled_in_line_the_place_goes_to_the_next(
    work: Work, server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a"):
        for turns in range(10):
            assert await cancelled(work, client, turns, 1)
        assert client.statistics().waiting == 0
        waiter = start(client.chat("b"))
    assert (await waiter).text == "b"
    await assert_nothing_is_left(client, server)
    assert len(server.requests) == 2


async def test_cancelled_between_two_events_the_place_is_free(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)

    async def busy() -> None:
        async with client.chat.stream("a") as stream:
            async for _ in stream:
                await asyncio.Event().wait()

    task = start(busy())
    await server.wait_for_requests(1)
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_for_disconnect(0.1)
    await assert_nothing_is_left(client, server)


async def test_storm_of_cancellations_loses_no_place(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=10))
    server.otherwise(Reply().say("One two three.").drip(0.001))
    tasks = [start(WORKS[number % len(WORKS)](client)) for number in range(200)]
    for number in range(200):
        await asyncio.sleep(0)
        if number % 3:
            tasks[(number * 7) % 200].cancel()
    for task in tasks:
        with suppress(asyncio.CancelledError):
            await task
    await assert_nothing_is_left(client, server)
    for call in [start(client.chat("b")) for _ in range(10)]:
        assert (await call).text == "One two three."


async def test_cancellation_in_a_task_group_stops_every_stream(
    server: ChatServer, client: AsyncChat
) -> None:
    server.otherwise(Reply().say("One.").stall(after=2))

    async def all_at_once() -> None:
        async with asyncio.TaskGroup() as group:
            for work in WORKS:
                group.create_task(work(client))
            await server.wait_for_requests(len(WORKS))
            raise ZeroDivisionError

    with pytest.raises(ExceptionGroup):
        await all_at_once()
    await assert_nothing_is_left(client, server)
    await server.wait_for_connections(0, 0.1)
