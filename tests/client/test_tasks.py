"""The tasks of one block end with it, and its errors come out as they are; a wait ends as `asyncio.timeout` ends one."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple

import anyio
import pytest

from asyncchat.client.tasks import BlockTasks, Waits, is_being_cancelled
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


# ------------------------------------------------------------------------------------------ a wait


class Outcome(NamedTuple):
    """What became of a task whose wait was ended by a clock, by others, or by both."""

    inside: str = ""
    outside: str = ""
    cause: str = ""
    cancellations: int = -1


async def outcome_of(
    does: Callable[[], Awaitable[object]], bounded: AbstractAsyncContextManager[object]
) -> Outcome:
    task = asyncio.current_task()
    assert task is not None
    inside = outside = cause = ""
    try:
        async with bounded:
            try:
                await does()
            except BaseException as error:
                inside = type(error).__name__
                raise
    except BaseException as error:  # noqa: BLE001  a cancellation among them: what passes is what is compared
        outside, cause = type(error).__name__, type(error.__cause__).__name__
    return Outcome(inside, outside, cause, task.cancelling())


@contextlib.asynccontextmanager
async def wait(seconds: float | None) -> AsyncIterator[None]:
    """One of `Waits`, entered as `asyncio.timeout` is."""
    with Waits(asyncio.get_running_loop()).within(seconds):
        yield


async def forever() -> None:
    await asyncio.Event().wait()


async def cancelled_by_others() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await forever()


async def cancelled_by_both() -> None:
    """The clock's turn comes before the others' cancellation is delivered."""
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(task.cancel))
    await forever()


async def cancelled_by_others_and_late() -> None:
    try:
        await cancelled_by_others()
    finally:
        await forever()


async def swallows() -> None:
    with contextlib.suppress(asyncio.CancelledError):
        await forever()


async def fails_instead() -> None:
    try:
        await forever()
    except asyncio.CancelledError:
        raise ValueError from None


async def cancelled_inside() -> None:
    gone = asyncio.get_running_loop().create_future()
    gone.cancel()
    await gone


async def ends_by_itself() -> None:
    await asyncio.sleep(0)


LAST = [forever, swallows, fails_instead]  # until the clock ends it
END = [ends_by_itself, cancelled_by_others, cancelled_by_both, cancelled_inside]


@pytest.mark.parametrize(
    ("does", "seconds"),
    [
        *((does, seconds) for does in (*LAST, *END) for seconds in (-1.0, 0.0, 0.001)),
        *((does, seconds) for does in END for seconds in (60.0, None)),
        (cancelled_by_others_and_late, 0.001),
    ],
)
async def test_wait_ends_as_under_asyncio_timeout(
    does: Callable[[], Awaitable[object]], seconds: float | None
) -> None:
    ours = await start(outcome_of(does, wait(seconds)))
    theirs = await start(outcome_of(does, asyncio.timeout(seconds)))
    assert ours == theirs


async def lasting(waits: Waits, seconds: float | None, over: list[float | None]) -> None:
    try:
        with waits.within(seconds):
            await forever()
    except TimeoutError:
        over.append(seconds)


async def test_waits_end_in_the_order_of_their_times_and_not_of_their_beginnings() -> None:
    waits, over = Waits(asyncio.get_running_loop()), list[float | None]()
    times = [0.03, 0.01, 60.0, 0.02, None, 0.01]
    tasks = [start(lasting(waits, seconds, over)) for seconds in times]
    await asyncio.wait(tasks[:2] + tasks[3:4] + tasks[5:])
    assert over == [0.01, 0.01, 0.02, 0.03]
    assert len(waits.waiting) == 2
    waits.end()
    waits.end()
    await asyncio.wait(tasks)
    assert sorted(over[4:], key=str) == [60.0, None]
    assert [task.cancelling() for task in tasks] == [0] * 6
    assert not waits.waiting


async def test_waits_of_one_length_share_a_timer() -> None:
    loop = asyncio.get_running_loop()
    waits, before = Waits(asyncio.get_running_loop()), len(vars(loop)["_scheduled"])
    for _ in range(10):
        with waits.within(60):
            await asyncio.sleep(0)
    assert len(vars(loop)["_scheduled"]) == before + 1
    waits.end()


async def test_wait_that_is_over_cancels_nobody() -> None:
    waits = Waits(asyncio.get_running_loop())
    for seconds in (0, 0.001):
        with waits.within(seconds):
            pass
    await asyncio.sleep(0.002)  # both times have come
    waits.end()
    with waits.within(None):
        await asyncio.sleep(0)


async def test_waits_leave_no_garbage() -> None:
    waits = Waits(asyncio.get_running_loop())
    gc.collect()
    for seconds in (60, 0, 0.001):
        with contextlib.suppress(TimeoutError), waits.within(seconds):
            await (asyncio.sleep(0) if seconds == 60 else forever())
    waits.end()
    assert gc.collect() == 0
