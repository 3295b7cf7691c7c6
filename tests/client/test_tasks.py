"""The tasks of one block: they end with it, and its errors come out as they are."""

import asyncio

import anyio
import pytest

from asyncchat.client.tasks import BlockTasks, is_being_cancelled
from tests.client.conftest import other_tasks, start


async def test_closing_cancels_what_runs_and_waits_until_it_has_ended() -> None:
    ended = []

    async def work(name: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(name)

    tasks = BlockTasks()
    await tasks.open()
    tasks.start(work, "a")
    tasks.start(work, "b")
    await asyncio.sleep(0)
    assert (tasks.is_open, len(other_tasks())) == (True, 2)
    await tasks.close()
    assert sorted(ended) == ["a", "b"]
    assert not tasks.is_open
    assert not other_tasks()


async def test_block_is_closed_before_it_was_opened_and_once_more_without_harm() -> None:
    tasks = BlockTasks()
    assert not tasks.is_open
    tasks.cancel()
    await tasks.close()
    await tasks.open()
    await tasks.close()
    await tasks.close()
    assert not tasks.is_open


async def test_block_can_be_opened_again() -> None:
    tasks, done = BlockTasks(), []

    async def work(number: int) -> None:
        done.append(number)

    for number in range(2):
        await tasks.open()
        tasks.start(work, number)
        await asyncio.sleep(0.001)
        await tasks.close()
    assert done == [0, 1]


async def test_task_that_never_began_is_ended_too() -> None:
    began = []

    async def work() -> None:
        began.append(True)
        await asyncio.Event().wait()

    tasks = BlockTasks()
    await tasks.open()
    tasks.start(work)
    await tasks.close()
    assert not other_tasks()


async def test_cancelling_ends_the_tasks_at_their_next_await() -> None:
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def block() -> None:
        tasks = BlockTasks()
        await tasks.open()
        tasks.start(work)
        try:
            await asyncio.sleep(0)
            tasks.cancel()
        finally:
            await tasks.close()

    await block()
    assert ended.is_set()
    assert not other_tasks()


async def test_error_of_the_block_comes_out_as_itself() -> None:
    error = LookupError("mine")
    tasks = BlockTasks()

    async def block() -> None:
        await tasks.open()
        tasks.start(asyncio.Event().wait)  # type: ignore[arg-type]
        try:
            await asyncio.sleep(0)
            raise error
        finally:
            await tasks.close()

    with pytest.raises(LookupError) as caught:
        await block()
    assert caught.value is error
    assert not other_tasks()


async def test_cancelled_block_ends_its_tasks_and_stays_cancelled() -> None:
    began = asyncio.Event()

    async def block() -> None:
        tasks = BlockTasks()
        await tasks.open()
        try:
            tasks.start(anyio.sleep_forever)
            began.set()
            await anyio.sleep_forever()
        finally:
            await tasks.close()

    task = start(block())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with anyio.move_on_after(0.01) as scope:
        await block()
    assert scope.cancelled_caught
    assert not other_tasks()


async def test_closing_leaves_the_caller_uncancelled() -> None:
    tasks = BlockTasks()
    await tasks.open()
    tasks.start(anyio.sleep_forever)
    await tasks.close()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_cancellation_is_known_for_what_it_is() -> None:
    said: dict[str, bool] = {}

    async def work(name: str, awaited: asyncio.Future[None]) -> None:
        try:
            await awaited
        except asyncio.CancelledError:
            said[name] = is_being_cancelled()

    loop = asyncio.get_running_loop()
    gone = loop.create_future()
    gone.cancel()
    await work("cancelled inside", gone)
    tasks = BlockTasks()
    await tasks.open()
    tasks.start(work, "the block's end", loop.create_future())
    await asyncio.sleep(0)
    await tasks.close()
    assert said == {"cancelled inside": False, "the block's end": True}
