"""What is next: what is due again before what is new, nothing twice, nothing lost, and nobody busy with waiting."""

import asyncio
import random
from collections import Counter

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncchat.batch.agenda import Agenda
from tests.batch.conftest import timeless
from tests.client.conftest import start

MANY = 10**9


class Task:
    def __init__(self, name: object, size: int = 1) -> None:
        self.name = name
        self.size = size


def agenda_of(*names: object, places: int = MANY, gate: float = 0.0) -> Agenda[Task]:
    loop = asyncio.get_running_loop()
    agenda: Agenda[Task] = Agenda(loop.time, lambda _: gate, places)
    agenda.add([Task(name) for name in names])
    return agenda


async def name_of_next(agenda: Agenda[Task]) -> object:
    task = await agenda.next()
    return None if task is None else task.name


@timeless
async def test_new_ones_come_in_their_order_and_none_comes_after_the_last() -> None:
    agenda = agenda_of(1, 2)
    assert [await name_of_next(agenda), await name_of_next(agenda)] == [1, 2]
    agenda.no_more()
    waiting = start(agenda.next())
    await asyncio.sleep(0)
    assert agenda.idle == 1
    agenda.done()
    agenda.done()
    assert await waiting is None


@timeless
async def test_what_is_due_again_comes_before_what_is_new() -> None:
    agenda = agenda_of(1, 2)
    first = await agenda.next()
    assert first is not None
    agenda.again(first, 5)
    agenda.done()
    assert await name_of_next(agenda) == 2
    agenda.add([Task(3)])
    await asyncio.sleep(5)
    assert await name_of_next(agenda) == 1
    assert await name_of_next(agenda) == 3
    assert len(agenda) == 0


@timeless
async def test_worker_waits_until_something_is_due_again() -> None:
    agenda = agenda_of(1)
    loop = asyncio.get_running_loop()
    task = await agenda.next()
    assert task is not None
    agenda.no_more()
    agenda.again(task, 60)
    agenda.done()
    agenda.again(Task(2), 30)  # an earlier one moves the timer forward, a later one leaves it
    agenda.again(Task(3), 90)
    began = loop.time()
    found = []
    for _ in range(3):
        name = await name_of_next(agenda)
        agenda.done()
        found.append((name, round(loop.time() - began)))
    assert found == [(2, 30), (1, 60), (3, 90)]
    assert await agenda.next() is None


@timeless
async def test_closed_gate_holds_everything_back_until_it_opens() -> None:
    loop = asyncio.get_running_loop()
    opens = loop.time() + 42
    agenda: Agenda[Task] = Agenda(loop.time, lambda now: max(opens - now, 0.0), MANY)
    agenda.add([Task(1), Task(2)])
    both = [start(agenda.next()) for _ in range(2)]
    await asyncio.sleep(41)
    assert agenda.idle == 2
    assert {task.name for task in await asyncio.gather(*both) if task} == {1, 2}
    assert loop.time() == opens


@timeless
async def test_new_one_waits_for_a_place_and_one_that_is_due_again_does_not() -> None:
    agenda = agenda_of(1, 2, places=1)
    first = await agenda.next()
    assert first is not None
    waiting = start(name_of_next(agenda))
    await asyncio.sleep(10)
    assert not waiting.done()
    agenda.again(first, 3)
    agenda.done()
    assert await waiting == 1
    waiting = start(name_of_next(agenda))
    await asyncio.sleep(10)
    assert not waiting.done()
    agenda.free()
    assert await waiting == 2
    agenda.free()  # with nothing new to be given out
    assert len(agenda) == 0


@timeless
async def test_reading_ahead_is_bounded_in_number_and_bytes() -> None:
    agenda = agenda_of(1, 2, 3)
    await agenda.room(4, 100)
    waiting = start(agenda.room(3, 100))
    await asyncio.sleep(1)
    assert not waiting.done()
    await agenda.next()
    await waiting
    agenda.add([Task(4, size=100)])
    waiting = start(agenda.room(MANY, 100))
    await asyncio.sleep(1)
    assert not waiting.done()
    for _ in range(3):
        await agenda.next()
    await waiting


@timeless
async def test_reading_ahead_is_bounded_by_those_that_wait_for_anothers_answer() -> None:
    agenda = agenda_of()
    agenda.put_aside(10_000)
    waiting = start(agenda.room(64, 100))
    await asyncio.sleep(1)
    assert not waiting.done()
    agenda.put_aside(-1)
    await waiting


@timeless
async def test_stopping_gives_out_nothing_more_and_lets_everybody_go() -> None:
    agenda = agenda_of(1)
    await agenda.next()
    waiting = [start(agenda.next()) for _ in range(3)]
    agenda.add([])
    reading = start(agenda.room(0, 0))
    await asyncio.sleep(0)
    agenda.stop()
    assert await asyncio.gather(*waiting) == [None] * 3
    await reading
    agenda.add([Task(2)])
    assert await agenda.next() is None
    agenda.done()


@timeless
async def test_worker_cancelled_in_its_turn_passes_it_on() -> None:
    agenda = agenda_of()
    workers = [start(name_of_next(agenda)) for _ in range(3)]
    await asyncio.sleep(0)
    agenda.add([Task(1)])  # wakes one of them, and then that one is cancelled
    chosen = next(worker for worker in workers if worker._fut_waiter.done())  # type: ignore[attr-defined]
    chosen.cancel()
    others = [worker for worker in workers if worker is not chosen]
    done, _ = await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED, timeout=1)
    assert [worker.result() for worker in done] == [1]
    agenda.stop()
    await asyncio.wait(workers)


@timeless
async def test_worker_that_is_cancelled_while_it_waits_is_forgotten() -> None:
    agenda = agenda_of()
    worker = start(agenda.next())
    await asyncio.sleep(0)
    worker.cancel()
    agenda.add([Task(1)])
    await asyncio.wait([worker])
    assert agenda.idle == 0
    assert await name_of_next(agenda) == 1


@timeless
async def test_closing_stops_the_timer() -> None:
    agenda = agenda_of()
    agenda.close()
    agenda.again(Task(1), 60)
    timer = agenda._timer
    assert timer is not None
    agenda.close()
    assert timer.cancelled()
    agenda.again(Task(2), 30)
    assert agenda._timer is not None
    agenda._timer.cancel()
    agenda.again(Task(3), 40)  # a timer that was cancelled is none
    agenda.close()


@timeless
async def test_nobody_looks_more_often_than_something_happens() -> None:
    looks = 0
    loop = asyncio.get_running_loop()

    def gate(now: float) -> float:
        nonlocal looks
        looks += 1
        return 0.0

    agenda: Agenda[Task] = Agenda(loop.time, gate, MANY)
    for number in range(10):
        agenda.again(Task(number), 100 + number)
    workers = [start(agenda.next()) for _ in range(5)]
    await asyncio.sleep(1)
    assert looks == 5
    await asyncio.sleep(98)
    assert looks == 5
    await asyncio.wait(workers)
    assert looks <= 5 + 2 * 5
    agenda.close()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 6),
    st.integers(1, 4),
    st.lists(st.integers(0, 3), max_size=40),
    st.integers(0, 2**32),
)
def test_each_task_is_done_to_its_end_once_whatever_happens(
    workers: int, places: int, failures: list[int], seed: int
) -> None:
    """Each number is how often a task fails. Places are given back late."""
    rand = random.Random(seed)

    @timeless
    async def play() -> None:
        agenda = agenda_of(places=places)
        left = dict(enumerate(failures))
        alive: set[object] = set()
        begun: Counter[object] = Counter()
        ended: list[object] = []
        freed = asyncio.Semaphore(0)

        async def work() -> None:
            while (task := await agenda.next()) is not None:
                try:
                    assert task.name not in alive
                    alive.add(task.name)
                    begun[task.name] += 1
                    await anyio.sleep(rand.random())
                    alive.discard(task.name)
                    assert isinstance(task.name, int)
                    if left[task.name]:
                        left[task.name] -= 1
                        agenda.again(task, rand.choice([0, rand.random() * 10]))
                    else:
                        ended.append(task.name)
                        freed.release()
                finally:
                    agenda.done()

        async def read() -> None:
            for number in range(len(failures)):
                await agenda.room(2, MANY)
                assert len(agenda._new) < 2
                agenda.add([Task(number)])
                await anyio.sleep(rand.random() / 4)
            agenda.no_more()

        async def take() -> None:
            for _ in failures:
                await freed.acquire()
                await anyio.sleep(rand.random())
                agenda.free()

        with anyio.fail_after(10_000):
            async with anyio.create_task_group() as group:
                group.start_soon(read)
                group.start_soon(take)
                for _ in range(workers):
                    group.start_soon(work)
        assert sorted(ended, key=str) == sorted(range(len(failures)), key=str)
        assert begun == Counter({number: 1 + times for number, times in enumerate(failures)})
        assert agenda.busy == 0
        agenda.close()

    play()
