"""A batch from outside: a scripted server, a job directory, and what comes out, in whatever way it ends."""

import asyncio
import contextlib
import gc
import itertools
import logging
import os
import random
import subprocess
import sys
import threading
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncchat import (
    AsyncChat,
    BatchRecord,
    Completion,
    Endpoint,
    JournalError,
    JournalLocked,
    JournalMismatch,
    Limits,
    PoolClosed,
    Price,
)
from asyncchat.batch.engine import Batch, BatchRun
from asyncchat.batch.item import BadItem, Item
from asyncchat.batch.ledger import Ledger
from asyncchat.batch.options import BatchOptions
from asyncchat.testing import ChatServer, Reply
from asyncchat.testing.wire import ReceivedRequest
from tests.batch.conftest import (
    KEY,
    Served,
    Timeless,
    codes,
    completion,
    document,
    lines_of,
    prompts,
    read_into,
    recorded,
    texts,
    timeless,
)
from tests.client.conftest import assert_nothing_is_left, start

NUMBER = {"type": "integer"}


def fails_first(times: int, reply: Callable[[], Reply]) -> Callable[[ReceivedRequest], Reply]:
    """Each prompt fails so often before it is answered."""
    seen: Counter[str] = Counter()

    def answer(request: ReceivedRequest) -> Reply:
        seen[request.last_text] += 1
        if seen[request.last_text] <= times:
            return reply()
        return Reply().say(f"<{request.last_text}>")

    return answer


def slow(reply: Reply, seconds: float = 0.1) -> Reply:
    return reply.delay(seconds)


def keys(count: int, first: int = 1) -> set[str]:
    return {f"line-{number}" for number in range(first, first + count)}


# ------------------------------------------------------------------------------------------- order


@timeless
async def test_each_input_has_one_record_and_nothing_is_asked_in_the_next_run(
    tmp_path: Path,
) -> None:
    async with Served() as served:
        records = await served.run(tmp_path, prompts(200))
        assert texts(records) == {f"line-{n + 1}": f"<p{n}>" for n in range(200)}
        assert set(recorded(tmp_path)) == keys(200)
        assert await served.run(tmp_path, prompts(200)) == []
        assert served.job.skipped == 200
        assert set(served.asked.values()) == {1}
        more = await served.run(tmp_path, prompts(203))
        assert texts(more) == {f"line-{n + 1}": f"<p{n}>" for n in range(200, 203)}
        assert served.job.stopped is None


@timeless
async def test_records_come_as_they_are_complete(tmp_path: Path) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        return slow(Reply().say("x"), 10 - int(request.last_text[1:]))

    async with Served(answer) as served:
        records = await served.run(tmp_path, prompts(8))
    assert [record.n for record in records] == [8, 7, 6, 5, 4, 3, 2, 1]


@timeless
async def test_records_come_in_the_order_of_their_inputs_where_that_is_wanted(
    tmp_path: Path,
) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        number = int(request.last_text[1:])
        if number % 7 == 0 and served.asked[request.last_text] < 3:
            return Reply().fail(500)
        return slow(Reply().say("x"), 10 - number % 10)

    async with Served(answer) as served:
        given = [*prompts(40), {"custom_id": "line-3", "prompt": "again"}, 7, *prompts(9, 40)]
        records = await served.run(tmp_path, given, ordered=True, concurrency=4)
    assert [record.n for record in records] == list(range(1, 52))
    assert codes(records) == {"": 49, "duplicate_id": 1, "invalid_line": 1}


@timeless
async def test_ordered_records_leave_out_what_has_one_already(tmp_path: Path) -> None:
    async with Served() as served:
        await served.run(tmp_path, prompts(3))
        given = [*prompts(3), *prompts(4, 3)]
        records = await served.run(tmp_path, given, ordered=True)
    assert [record.n for record in records] == [4, 5, 6, 7]


@timeless
async def test_two_failures_and_two_workers_are_no_deadlock(tmp_path: Path) -> None:
    """Workers once waited for room with a new input in their hands, while what was due again held it."""
    async with Served(fails_first(3, lambda: Reply().fail(500))) as served:
        with anyio.fail_after(1000):
            records = await served.run(tmp_path, prompts(20), concurrency=2)
    assert codes(records) == {"": 20}


@timeless
async def test_hung_request_holds_back_no_retry_of_others(tmp_path: Path) -> None:
    """The timer woke one worker once, and nobody after it."""

    def answer(request: ReceivedRequest) -> Reply:
        if request.last_text == "hung":
            return slow(Reply().say("late"), 100)
        return fails(request)

    fails = fails_first(1, lambda: Reply().fail(500))
    loop = asyncio.get_running_loop()
    async with Served(answer) as served:
        began, ends = loop.time(), {}
        async with served.client.batch(tmp_path, concurrency=4, fsync="never") as job:
            async for record in job.run([*prompts(8), "hung"]):
                ends[record.n] = loop.time() - began
    assert max(seconds for n, seconds in ends.items() if n != 9) < 3


# ----------------------------------------------------------------------------------------- reading


class Source:
    """Prompts without an end, counted as they are read."""

    def __init__(self) -> None:
        self.read = 0
        self.is_closed = False

    def __iter__(self) -> Iterator[str]:
        try:
            while True:
                self.read += 1
                yield f"p{self.read - 1}"
        finally:
            self.is_closed = True

    async def slowly(self) -> AsyncIterator[str]:
        try:
            for prompt in self:
                await asyncio.sleep(0.01)
                yield prompt
        finally:
            self.is_closed = True


@timeless
async def test_inputs_are_read_little_ahead_of_a_slow_reader(tmp_path: Path) -> None:
    source = Source()
    async with Served() as served, served.client.batch(tmp_path, concurrency=4) as job:
        run = aiter(job.run(source))
        for number in range(1, 6):
            await anext(run)
            await asyncio.sleep(20)
            # 64 waiting, a chunk of 32 more, and at most two a worker that nobody has read.
            assert source.read <= 64 + 32 + 2 * 4 + number + 1
            assert len(served.server.requests) <= 2 * 4 + number
    assert source.is_closed
    assert len(recorded(tmp_path)) == len(served.server.requests)


@timeless
async def test_async_iterables_are_read_one_by_one_and_closed(tmp_path: Path) -> None:
    source = Source()
    async with Served() as served, served.client.batch(tmp_path, concurrency=4) as job:
        async for record in job.run(source.slowly()):
            assert record.text == f"<p{record.n - 1}>"
            if record.n == 3:
                break
        assert source.read < 64 + 20
    assert source.is_closed


@timeless
async def test_slow_source_is_waited_for_and_its_inputs_answered_at_once(tmp_path: Path) -> None:
    async def source() -> AsyncIterator[str]:
        for prompt in prompts(3):
            await asyncio.sleep(90)
            yield prompt

    async with Served() as served:
        records = await served.run(tmp_path, source(), max_wait=60)
    assert codes(records) == {"": 3}


@timeless
async def test_reader_that_takes_its_time_is_no_outage(tmp_path: Path) -> None:
    async with Served() as served:
        found = []
        async with served.client.batch(tmp_path, max_wait=60, concurrency=1, fsync="never") as job:
            async for record in job.run(prompts(8)):
                await asyncio.sleep(90)
                found.append(record)
        assert job.stopped is None
    assert codes(found) == {"": 8}


class Reads:
    """A source as files are one: read in a thread, in lists."""

    def __init__(self, *lists: list[Item | BadItem]) -> None:
        self.lists = list(lists)
        self.threads: set[int] = set()
        self.is_closed = False

    def read(self) -> list[Item | BadItem]:
        self.threads.add(threading.get_ident())
        return self.lists.pop(0) if self.lists else []

    def close(self) -> None:
        self.is_closed = True


@timeless
async def test_source_is_read_in_a_thread_and_closed(tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "x"}]}
    source = Reads(
        [Item(5, "a", dict(body)), BadItem(6, "line-6", "invalid_line", "no JSON")],
        [Item(9, "b", dict(body))],
    )
    async with Served() as served:
        records = await served.run(tmp_path, source)
    assert {(record.custom_id, record.n, record.ok) for record in records} == {
        ("a", 5, True),
        ("line-6", 6, False),
        ("b", 9, True),
    }
    assert source.is_closed
    assert threading.get_ident() not in source.threads


@pytest.mark.parametrize("is_async", [False, True])
@timeless
async def test_error_of_the_source_comes_after_the_records_of_what_it_gave(
    tmp_path: Path, is_async: bool
) -> None:
    def source() -> Iterator[str]:
        yield from prompts(10)
        raise OSError("the tape broke")

    async def slowly() -> AsyncIterator[str]:
        for prompt in source():
            yield prompt

    found: list[BatchRecord] = []
    async with Served() as served, served.client.batch(tmp_path, fsync="never") as job:
        run = job.run(slowly() if is_async else source())
        for _ in range(2):
            with pytest.raises(OSError, match="the tape broke"):
                await read_into(found, run)
    assert codes(found) == {"": 10}


@timeless
async def test_source_that_fails_at_once_is_told(tmp_path: Path) -> None:
    def source() -> Iterator[str]:
        raise OSError("no tape")
        yield

    async with Served() as served:
        with pytest.raises(OSError, match="no tape"):
            await served.run(tmp_path, source())


@timeless
async def test_source_cancelled_from_inside_is_not_taken_for_its_end(tmp_path: Path) -> None:
    async def source() -> AsyncIterator[str]:
        yield "p0"
        raise asyncio.CancelledError

    async with Served() as served:
        with pytest.raises(RuntimeError, match="cancelled from inside"):
            await served.run(tmp_path, source())


@pytest.mark.parametrize("wrong", ["text", b"bytes", {"prompt": "x"}, 7, None])
@timeless
async def test_what_is_no_iterable_of_prompts_is_refused(tmp_path: Path, wrong: object) -> None:
    async with Served() as served:
        with pytest.raises(TypeError, match="iterable of prompts"):
            await served.run(tmp_path, wrong)


@timeless
async def test_bad_inputs_are_records_with_their_number_and_the_batch_goes_on(
    tmp_path: Path,
) -> None:
    given: list[object] = [
        "good",
        7,
        {"no": "messages"},
        {"messages": []},
        {"body": "text"},
        {"custom_id": "", "prompt": "x"},
        {"prompt": "\ud800"},
        {"prompt": "x", "temperature": float("nan")},
        {"url": "/v1/embeddings", "body": {"messages": [{"role": "user", "content": "x"}]}},
        {"messages": [{"role": "user", "content": "also good"}]},
    ]
    async with Served() as served:
        records = await served.run(tmp_path, given)
        assert codes(records) == {"": 2, "invalid_line": 8}
        for record in records:
            assert record.ok or str(record.n) in record.error.message  # type: ignore[union-attr]
        assert await served.run(tmp_path, given) == []
        assert len(served.server.requests) == 2


# ------------------------------------------------------------------------------------ leaving early


@timeless
async def test_leaving_early_cancels_what_is_in_flight_and_keeps_what_is_recorded(
    tmp_path: Path,
) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        return Reply().say("x") if request.last_text < "p5" else Reply().say("a b").stall(after=1)

    async with Served(answer) as served:
        async with served.client.batch(tmp_path, fsync="never") as job:
            run = job.run(prompts(9))
            for _ in range(5):
                await anext(run)
        await assert_nothing_is_left(served.client, served.server)
        assert len(recorded(tmp_path)) == 5
        served.server.otherwise(lambda _: Reply().say("y"))
        assert len(await served.run(tmp_path, prompts(9))) == 4


@timeless
async def test_who_reads_in_another_task_is_told_of_the_end(tmp_path: Path) -> None:
    async with Served(lambda _: Reply().say("a b").stall(after=1)) as served:
        found: list[BatchRecord] = []

        async def read(run: BatchRun) -> None:
            await read_into(found, run)

        async with served.client.batch(tmp_path, fsync="never") as job:
            run = job.run(prompts(3))
            reading = start(read(run))
            await served.server.wait_for_requests(3)
            assert "3 alive" in repr(run)
        await reading
        assert found == []


@timeless
async def test_records_are_read_inside_the_block_only(tmp_path: Path) -> None:
    async with Served() as served:
        job = served.client.batch(tmp_path, fsync="never")
        for early in (lambda: job.run([]), lambda: job.compare([])):
            with pytest.raises(RuntimeError, match="inside `async with`"):
                early()
        assert job.warnings == []
        async with job:
            with pytest.raises(RuntimeError, match="entered already"):
                await job.__aenter__()
            run = job.run(prompts(3))
            with pytest.raises(RuntimeError, match="runs already"):
                job.run(prompts(3))
        with pytest.raises(RuntimeError, match="inside `async with`"):
            await anext(run)


@timeless
async def test_batch_runs_several_inputs_one_after_the_other(tmp_path: Path) -> None:
    async with Served() as served, served.client.batch(tmp_path, fsync="never") as job:
        first = [record async for record in job.run(prompts(3))]
        second = [record async for record in job.run(prompts(5))]
        assert (len(first), len(second), job.skipped) == (3, 2, 3)
    assert set(recorded(tmp_path)) == keys(5)


@pytest.mark.parametrize("by_scope", [False, True])
async def test_cancelled_anywhere_a_batch_leaves_no_lock_task_or_torn_line(
    tmp_path: Path, by_scope: bool
) -> None:
    rand = random.Random(7)
    async with Served() as served:

        async def work() -> None:
            with contextlib.suppress(JournalLocked):  # a thread that was left is closing it
                await served.run(tmp_path, prompts(60), concurrency=4, fsync="1s")

        for _ in range(25):
            seconds = rand.random() * 0.05
            if by_scope:
                with anyio.move_on_after(seconds):
                    await work()
            else:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(seconds):
                        await work()
            assert (served.client.statistics().in_flight, served.client.statistics().waiting) == (
                0,
                0,
            )
        for _ in range(50):
            await work()
            if len(recorded(tmp_path)) == 60:
                break
            await asyncio.sleep(0.02)
        assert set(recorded(tmp_path)) == keys(60)
        assert not list(tmp_path.glob("torn-*"))
        assert len(lines_of(tmp_path)) == 60


@pytest.mark.parametrize("by_scope", [False, True])
async def test_cancelled_while_it_opens_a_batch_leaves_no_lock(
    tmp_path: Path, by_scope: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, goes_on = threading.Event(), threading.Event()
    real = Ledger.__init__

    def slowly(self: Ledger, *args: Any, **kwargs: Any) -> None:
        real(self, *args, **kwargs)
        entered.set()
        assert goes_on.wait(5)

    monkeypatch.setattr(Ledger, "__init__", slowly)
    async with Served() as served:

        async def enter() -> None:
            async with served.client.batch(tmp_path):
                pass

        with anyio.CancelScope() as scope:
            task = start(enter())
            while not entered.is_set():
                await asyncio.sleep(0.001)
            if by_scope:
                goes_on.set()
            task.cancel()
            await asyncio.wait([task], timeout=5)
            scope.cancel()
        goes_on.set()
        assert task.cancelled()
        monkeypatch.setattr(Ledger, "__init__", real)
        for _ in range(200):
            try:
                await enter()
                break
            except JournalLocked:
                await asyncio.sleep(0.01)
        else:
            pytest.fail("the lock is still held")


@timeless
async def test_closing_the_client_ends_the_batch_with_its_error(tmp_path: Path) -> None:
    async with Served(lambda _: Reply().say("a b").stall(after=1)) as served:
        job = served.client.batch(tmp_path, fsync="never")
        with pytest.raises(PoolClosed):  # noqa: PT012  it is what the block is left with
            async with job:
                run = job.run(prompts(3))
                reading = start(anext(run))
                await served.server.wait_for_requests(3)
                await served.client.close()
                await reading
    assert lines_of(tmp_path) == []


@timeless
async def test_worker_cancelled_from_inside_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Served() as served:

        async def cancelled(*_: object) -> None:
            raise asyncio.CancelledError

        monkeypatch.setattr("asyncchat.client.core.Asker.__call__", cancelled)
        with pytest.raises(RuntimeError, match="cancelled from inside"):
            await served.run(tmp_path, prompts(3))


# ---------------------------------------------------------------------------------------- draining


@timeless
async def test_draining_finishes_what_is_in_flight_and_begins_nothing(tmp_path: Path) -> None:
    async with Served(lambda _: slow(Reply().say("x"), 5)) as served:
        found: list[BatchRecord] = []
        async with served.client.batch(tmp_path, concurrency=3, fsync="never") as job:
            run = job.run(prompts(50), ordered=True)
            found.append(await anext(run))
            await asyncio.sleep(1)
            job.drain()
            job.drain("again")
            await read_into(found, run)
            assert job.stopped is not None
            assert (job.stopped.reason, job.stopped.message) == ("interrupted", "interrupted")
            with pytest.raises(StopAsyncIteration):
                await anext(run)
        sent = len(served.server.requests)
        assert len(found) == sent == len(recorded(tmp_path)) < 10
        assert len(await served.run(tmp_path, prompts(50))) == 50 - sent


@timeless
async def test_drained_before_it_is_read_a_run_has_nothing(tmp_path: Path) -> None:
    async with Served() as served, served.client.batch(tmp_path, fsync="never") as job:
        job.drain()  # of no run: the next one is not meant
        run = job.run(prompts(5))
        job.drain()
        assert [record async for record in run] == []
        assert served.server.requests == []


@timeless
async def test_stopped_in_order_what_is_complete_is_given_though_what_is_before_it_is_not(
    tmp_path: Path,
) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        return Reply().fail(500) if request.last_text == "p0" else Reply().say("x")

    async with Served(answer) as served, served.client.batch(tmp_path, concurrency=2) as job:
        run = job.run(prompts(30), ordered=True)
        reading = start(anext(run))
        await served.server.wait_for_requests(4)
        job.drain()
        found = [await reading, *[record async for record in run]]
    assert [record.n for record in found] == sorted(record.n for record in found)
    assert {record.custom_id for record in found} == set(recorded(tmp_path))
    assert "line-1" not in recorded(tmp_path)


# --------------------------------------------------------------------------------- outages, refusals


@timeless
async def test_in_an_outage_one_request_at_a_time_finds_out_and_all_are_answered_after_it(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + 1800
    times: list[float] = []
    alive = most = 0

    async def answer(request: ReceivedRequest) -> Reply:
        nonlocal alive, most
        times.append(loop.time())
        if loop.time() > ends:
            return Reply().say("x")
        alive += 1
        if loop.time() > ends - 1700:
            most = max(most, alive)
        await asyncio.sleep(0.5)
        alive -= 1
        return Reply().cut(after=0)

    async with Served(answer) as served:
        records = await served.run(tmp_path, prompts(120))
    assert codes(records) == {"": 120}
    assert most == 1
    late = [at for at in times if ends - 1700 < at < ends]
    assert 50 < len(late) < 110
    assert loop.time() - ends < 60


@timeless
async def test_server_that_never_comes_back_stops_the_batch_after_as_long_as_it_may_wait(
    tmp_path: Path,
) -> None:
    async with Served(lambda _: Reply().cut(after=0)) as served:
        began = asyncio.get_running_loop().time()
        records = await served.run(tmp_path, prompts(100), max_wait=600)
        assert served.job.stopped is not None
        assert served.job.stopped.reason == "endpoint"
        assert "600 seconds" in served.job.stopped.message
        assert 600 < asyncio.get_running_loop().time() - began < 640
        failed = len(records)
        assert failed < 20
        served.server.otherwise(lambda _: Reply().say("x"))
        again = await served.run(tmp_path, prompts(100), retry_errors=True)
        assert codes(again) == {"": 100}


@timeless
async def test_being_told_to_come_later_loses_nothing_and_is_no_attempt(tmp_path: Path) -> None:
    busy = fails_first(2, lambda: Reply().fail(429, headers={"Retry-After": "2"}))
    async with Served(busy) as served:
        records = await served.run(tmp_path, prompts(60), retries=0)
    assert codes(records) == {"": 60}
    assert all(record.trace.refused == record.trace.attempts - 1 == 2 for record in records)


@pytest.mark.parametrize(
    "reply",
    [
        lambda: Reply().fail(401),
        lambda: Reply().fail(403),
        lambda: Reply().fail(404, "no such model", code="model_not_found"),
        lambda: Reply().fail(429, code="insufficient_quota"),
        lambda: Reply().fail(402),
    ],
)
@timeless
async def test_endpoint_that_refuses_for_good_stops_the_batch_and_nothing_is_recorded(
    tmp_path: Path, reply: Callable[[], Reply]
) -> None:
    async with Served(lambda _: slow(reply())) as served:
        assert await served.run(tmp_path, prompts(80)) == []
        assert served.job.stopped is not None
        assert served.job.stopped.reason == "endpoint"
        assert len(served.server.requests) <= 25
        assert lines_of(tmp_path) == []
        served.server.otherwise(lambda _: Reply().say("x"))
        assert codes(await served.run(tmp_path, prompts(80))) == {"": 80}


@timeless
async def test_few_inputs_that_are_refused_for_good_stop_the_batch_too(tmp_path: Path) -> None:
    async with Served(lambda _: slow(Reply().fail(401))) as served:
        assert await served.run(tmp_path, prompts(2)) == []
        assert served.job.stopped is not None
        assert served.job.stopped.reason == "endpoint"
        assert lines_of(tmp_path) == []


@pytest.mark.parametrize("place", [0, 15, 29])
@pytest.mark.parametrize("concurrency", [1, 4])
@timeless
async def test_wrong_model_among_good_ones_is_an_error_record(
    tmp_path: Path, place: int, concurrency: int
) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        is_wrong = request.body["model"] == "wrong"
        return slow(Reply().fail(404, "no such model") if is_wrong else Reply().say("x"))

    given: list[Any] = [*prompts(30)]
    given[place] = {"prompt": "x", "model": "wrong"}
    async with Served(answer) as served:
        records = await served.run(tmp_path, given, concurrency=concurrency)
    assert codes(records) == {"": 29, "not_found": 1}
    assert served.job.stopped is None


@timeless
async def test_quota_that_ends_in_the_middle_makes_no_error_records(tmp_path: Path) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        if len(served.server.requests) <= 40:
            return slow(Reply().say("x"), random.Random(request.last_text).random())
        return slow(Reply().fail(429, code="insufficient_quota"), 0.01)

    async with Served(answer) as served:
        records = await served.run(tmp_path, prompts(200), concurrency=8)
        assert codes(records) == {"": 40}
        assert served.job.stopped is not None
        assert len(recorded(tmp_path)) == 40
        assert len(served.server.requests) < 40 + 8 + 60


@timeless
async def test_key_that_is_wrong_does_not_stop_where_another_is_right(tmp_path: Path) -> None:
    async with Served() as served, ChatServer(require_key="right") as other:
        client = AsyncChat(
            model="m",
            endpoints=[
                Endpoint(other.base_url, "wrong"),
                Endpoint(served.server.base_url, KEY),
            ],
        )
        async with client, client.batch(tmp_path, fsync="never") as job:
            records = [record async for record in job.run(prompts(50))]
        assert job.stopped is None
    assert codes(records) == {"": 50}


# ---------------------------------------------------------------------------------- changes, options


@timeless
async def test_changed_input_stops_the_run_with_a_sentence_that_says_what_to_do(
    tmp_path: Path,
) -> None:
    async with Served() as served:
        await served.run(tmp_path, prompts(5))
        changed = [*prompts(2), "new words", *prompts(10, 3)]
        with pytest.raises(JournalMismatch, match=r"input 3 .* on_change='rerun'") as caught:
            await served.run(tmp_path, changed)
        assert "new words" not in str(caught.value)
        assert served.job.stopped is not None
        assert served.job.stopped.reason == "mismatch"
        assert len(served.server.requests) == 5
        kept = await served.run(tmp_path, changed, on_change="keep")
        assert [record.n for record in kept] == [6, 7, 8, 9, 10, 11, 12, 13]
        rerun = await served.run(tmp_path, changed, on_change="rerun")
        assert texts(rerun) == {"line-3": "<new words>"}
        assert recorded(tmp_path)["line-3"].text == "<new words>"


@pytest.mark.parametrize(
    "other", [{"model": "n"}, {"system": "Be brief."}, {"temperature": 1}, {"schema": NUMBER}]
)
@timeless
async def test_changed_options_are_refused_by_name(tmp_path: Path, other: dict[str, Any]) -> None:
    async with Served() as served:
        await served.run(tmp_path, prompts(3))
        name = "response_format" if "schema" in other else next(iter(other))
        with pytest.raises(JournalMismatch, match=f"other options: {name}.*another job"):
            await served.run(tmp_path, prompts(3), **other)
        assert len(served.server.requests) == 3
        how: dict[str, Any] = {
            "concurrency": 2,
            "retries": 9,
            "stream": False,
            "max_wait": 5.0,
            "timeout": 5,
        }
        assert await served.run(tmp_path, prompts(3), **how) == []  # of these no answer depends


def weather(city: str) -> str:
    """Current weather."""
    return city


@timeless
async def test_fields_as_for_chat_are_sent_and_known_again(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "tools": [weather],
        "stop": ("a", "b"),
        "logit_bias": {5: 1},
        "system": "Be brief.",
        "temperature": 0,
        "top_p": None,
        "extra_body": {"special": 1},
    }
    async with Served() as served:
        await served.run(tmp_path, ["x"], **fields)
        assert await served.run(tmp_path, ["x"], **fields) == []
        (request,) = served.server.requests
        assert request.body["tools"][0]["function"]["name"] == "weather"
        assert request.body["special"] == 1
        assert "top_p" not in request.body
        assert [message["role"] for message in request.messages] == ["system", "user"]


@timeless
async def test_input_says_itself_what_it_wants_otherwise(tmp_path: Path) -> None:
    async with Served() as served:
        given = [{"prompt": "x", "model": "other", "temperature": 1, "stream": False}]
        await served.run(tmp_path, given, temperature=0)
        (request,) = served.server.requests
        assert (request.body["model"], request.body["temperature"]) == ("other", 1)
        assert request.streaming


@timeless
async def test_inputs_are_compared_before_anything_is_sent(tmp_path: Path) -> None:
    def items(*texts_: str) -> list[Item | BadItem]:
        return [
            Item(n, f"line-{n}", {"messages": [{"role": "user", "content": text}]})
            for n, text in enumerate(texts_, 1)
        ]

    async with Served() as served:
        await served.run(tmp_path, ["a", "b", "c"])
        async with served.client.batch(tmp_path, fsync="never") as job:
            found = job.compare([*items("a", "x"), BadItem(9, "bad", "invalid_line", "")])
            assert (found.added, found.changed, found.gone) == (1, 1, 1)
            assert job.compare(items("a", "b", "c", "d")).is_harmless
        assert len(served.server.requests) == 3


def test_two_ways_to_say_one_thing_are_refused(tmp_path: Path) -> None:
    client = AsyncChat("http://127.0.0.1:9/v1", KEY, "m")
    with pytest.raises(ValueError, match="two ways"):
        client.batch(tmp_path, schema=NUMBER, response_format=int)
    with pytest.raises(ValueError, match="schema"):
        client.batch(tmp_path, schema={"type": "x"})
    assert not list(tmp_path.iterdir())


# ------------------------------------------------------------------------------- errors asked again


@timeless
async def test_errors_are_final_until_they_are_asked_for(tmp_path: Path) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        if is_mended or int(request.last_text[1:]) % 3:
            return Reply().say("x")
        return Reply().fail(400 if request.last_text == "p0" else 422)

    is_mended = False
    async with Served(answer) as served:
        assert codes(await served.run(tmp_path, prompts(9))) == {"": 6, "bad_request": 3}
        is_mended = True
        assert await served.run(tmp_path, prompts(9)) == []
        assert await served.run(tmp_path, prompts(9), retry_errors="timeout,server") == []
        again = await served.run(tmp_path, prompts(9), retry_errors=["bad_request"])
        assert {record.n for record in again} == {1, 4, 7}
        assert codes(recorded(tmp_path).values()) == {"": 9}
        assert await served.run(tmp_path, prompts(9), retry_errors=True) == []


@timeless
async def test_finish_reason_may_be_given_as_one_word(tmp_path: Path) -> None:
    cut = fails_first(1, lambda: Reply().say("a").finish("length"))
    async with Served(cut) as served:
        records = await served.run(tmp_path, prompts(3), retry_finish="length")
    assert [record.trace.attempts for record in records] == [2, 2, 2]


# --------------------------------------------------------------------------------------------- caps


@pytest.mark.parametrize(
    ("cap", "low", "high", "words"),
    [
        ({"max_items": 10}, 10, 10, "10 inputs"),
        ({"max_tokens_total": 200}, 10, 13, "200 tokens"),
        ({"max_cost": 200, "price": Price(1e6, 1e6)}, 10, 13, "cost cap of 200"),
    ],
)
@timeless
async def test_cap_drains_and_another_run_goes_on(
    tmp_path: Path, cap: dict[str, Any], low: int, high: int, words: str
) -> None:
    async with Served(lambda _: slow(Reply().say("x").usage(10, 10))) as served:
        records = await served.run(tmp_path, prompts(60), concurrency=4, **cap)
        assert served.job.stopped is not None
        assert served.job.stopped.reason == "cap"
        assert words in served.job.stopped.message
        assert low <= len(records) <= high
        assert len(recorded(tmp_path)) == len(records) == len(served.server.requests)
        if "max_items" not in cap:
            assert await served.run(tmp_path, prompts(60), **cap) == []
        rest = await served.run(tmp_path, prompts(60))
        assert len(rest) == 60 - len(records)
        assert set(served.asked.values()) == {1}


@pytest.mark.parametrize(("cap", "most"), [(5, 5 + 4), ("10%", 20 + 4)])
@timeless
async def test_cap_on_failures_stops_what_fails(
    tmp_path: Path, cap: "int | str", most: int
) -> None:
    async with Served(lambda _: slow(Reply().fail(400))) as served:
        records = await served.run(tmp_path, prompts(100), concurrency=4, max_failures=cap)
        assert served.job.stopped is not None
        assert "failures" in served.job.stopped.message
        assert len(records) == len(served.server.requests) <= most
        served.server.otherwise(lambda _: Reply().say("x"))
        rest = await served.run(tmp_path, prompts(100), max_failures=cap)
        assert codes(rest) == {"": 100 - len(records)}


# ------------------------------------------------------------------------------ dedupe, what has to fit


@timeless
async def test_same_prompts_are_asked_once_also_after_a_restart(tmp_path: Path) -> None:
    async with Served(lambda _: slow(Reply().say("x"))) as served:
        records = await served.run(tmp_path, ["a", "b"] * 50, dedupe=True, ordered=True)
        assert [record.n for record in records] == list(range(1, 101))
        more = await served.run(tmp_path, ["a", "b"] * 60, dedupe=True)
        assert len(more) == 20
        assert served.asked == {"a": 1, "b": 1}
        assert set(recorded(tmp_path)) == keys(120)


@timeless
async def test_endless_doubles_are_not_read_to_the_end_while_the_first_is_asked(
    tmp_path: Path,
) -> None:
    count = 0

    def doubles() -> Iterator[str]:
        nonlocal count
        while True:
            count += 1
            yield "same"

    async with (
        Served(lambda _: slow(Reply().say("x"), 60)) as served,
        served.client.batch(tmp_path, dedupe=True, fsync="never") as job,
    ):
        run = job.run(doubles())
        with anyio.fail_after(120):
            await anext(run)
        assert count < 11_000


class Moon(msgspec.Struct):
    name: str
    km: int


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("kind", ["type", "schema"])
@timeless
async def test_answer_that_does_not_fit_is_mended_once_and_told_what_was_wrong(
    tmp_path: Path, stream: bool, kind: str
) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        first = request.messages[0]["content"]
        if len(request.messages) > 1 and first == "mends":
            return Reply().say('{"name":"Europa","km":1561}')
        return Reply().say('{"name":"Europa","km":"many"}')

    schema = {
        "type": "object",
        "properties": {"name": {"type": "string"}, "km": {"type": "integer"}},
    }
    how = {"response_format": Moon} if kind == "type" else {"schema": schema}
    async with Served(answer) as served:
        records = await served.run(tmp_path, ["mends", "does not"], stream=stream, **how)
        found = {record.n: record for record in records}
        assert found[1].ok
        assert found[2].error is not None
        assert (found[2].error.code, found[2].error.text) == (
            "mismatch",
            '{"name":"Europa","km":"many"}',
        )
        repair = next(r for r in served.server.requests if len(r.messages) == 3)
        assert repair.messages[1]["content"] == '{"name":"Europa","km":"many"}'
        assert "km" in repair.messages[2]["content"]
        assert all("response_format" in request.body for request in served.server.requests)
        assert len(served.server.requests) == 4
        assert await served.run(tmp_path, ["mends", "does not"], stream=stream, **how) == []


# ---------------------------------------------------------------------------------- what is on record


@pytest.mark.parametrize("stream", [True, False])
@timeless
async def test_record_holds_the_answer_its_tokens_and_its_times(
    tmp_path: Path, stream: bool
) -> None:
    async with Served(lambda _: Reply().say("a b c").usage(7, 3).delay(1).drip(0.5)) as served:
        (record,) = await served.run(
            tmp_path, ["x"], stream=stream, price=Price(1e6, 1e6, cached=0)
        )
        (request,) = served.server.requests
        assert request.streaming is stream
    (kept,) = recorded(tmp_path).values()
    assert kept.trace == record.trace
    assert kept.text == record.text == "a b c"
    trace = record.trace
    assert (trace.tokens, trace.cost, trace.endpoint) == ((7, 3, 0), 10.0, request_url(served))
    assert trace.t_total is not None
    assert trace.t_queue == 0
    if stream:
        assert trace.t_first is not None
        assert 1 <= trace.t_first < trace.t_total
        assert trace.t_itl == 0.5


def request_url(served: Served) -> str:
    return served.server.base_url


@timeless
async def test_plain_answer_is_recorded_as_the_server_sent_it(tmp_path: Path) -> None:
    body = completion("grün\n", provider={"x": [1]}, usage={"prompt_tokens": "5", "error": None})
    async with Served(lambda _: document(body)) as served:
        (record,) = await served.run(tmp_path, ["x"], stream=False)
        assert record.text == "grün\n"
    (line,) = lines_of(tmp_path)
    assert msgspec.json.decode(line)["response"]["body"] == body
    assert recorded(tmp_path)["line-1"].text == "grün\n"


@timeless
async def test_answers_with_half_a_surrogate_pair_are_recorded(tmp_path: Path) -> None:
    def answer(request: ReceivedRequest) -> Reply:
        event = msgspec.json.encode(completion("HALF")).replace(b"HALF", rb"a\ud83d")
        if request.last_text == "cut":
            chunk = b'data: {"choices":[{"index":0,"delta":{"content":"a\\ud83d"}}]}\n\n'
            return Reply().raw(chunk)
        return document(event)

    async with Served(answer) as served:
        records = await served.run(tmp_path, ["whole", "cut"], retries=0)
        assert codes(records) == {"": 1, "cut": 1}
        assert len(recorded(tmp_path)) == 2


@timeless
async def test_idempotency_keys_are_those_of_the_inputs_in_every_run(tmp_path: Path) -> None:
    def header(request: ReceivedRequest) -> str:
        return request.headers["Idempotency-Key"]

    async with Served(lambda _: Reply().say("a b").stall(after=1)) as served:
        async with served.client.batch(tmp_path, fsync="never") as job:
            reading = start(anext(job.run(prompts(4))))
            await served.server.wait_for_requests(4)
        with pytest.raises(StopAsyncIteration):
            await reading
        first = {request.last_text: header(request) for request in served.server.requests}
        served.server.otherwise(fails_first(1, lambda: Reply().fail(500)))
        await served.run(tmp_path, prompts(4))
        assert len(set(first.values())) == 4
        assert len(served.server.requests) == 4 + 8
        for request in served.server.requests:
            assert header(request) == first[request.last_text]


@timeless
async def test_no_prompt_answer_or_key_is_in_a_repr_a_log_or_a_note(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    prompt, said = "my-secret-prompt", "my-secret-answer"

    def answer(request: ReceivedRequest) -> Reply:
        if served.asked[request.last_text] == 1:
            return Reply().fail(500, f"not with {KEY}")
        return Reply().say(said)

    async with Served(answer) as served, served.client.batch(tmp_path, fsync="never") as job:
        run = job.run([prompt])
        shown = f"{job!r} {run!r} {job.options!r} {job.warnings!r}"
        await anext(run)
        shown += f"{job!r} {run!r} {job.load()!r}"
    for text in (shown, caplog.text):
        assert prompt not in text
        assert said not in text
        assert KEY not in text
    for path in tmp_path.iterdir():
        content = path.read_text()
        assert KEY not in content, path.name
        assert prompt not in content, path.name
        if not path.name.startswith("done"):
            assert said not in content, path.name


@timeless
async def test_runs_are_noted_for_the_report(tmp_path: Path) -> None:
    async with Served(lambda _: slow(Reply().say("x"), 3.5)) as served:
        async with served.client.batch(tmp_path, concurrency=1) as job:
            async for _ in job.run(["x"]):
                pass
        with pytest.raises(KeyError):
            async with served.client.batch(tmp_path):
                raise KeyError
    notes = [
        msgspec.json.decode(line)
        for line in (tmp_path / "samples.jsonl").read_bytes().splitlines()
    ]
    assert [note["what"] for note in notes] == [
        "session",
        *["sample"] * 3,
        "session",
        "session",
        "session",
    ]
    assert notes[1]["in_flight"] == 1
    assert [note.get("reason") for note in notes if note["what"] == "session"] == [
        None,
        "end",
        None,
        "left",
    ]


@timeless
async def test_records_are_synced_once_a_second_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    for fsync in ("always", "1s", "never"):
        synced: list[int] = []
        monkeypatch.setattr(os, "fdatasync", synced.append)
        async with Served(lambda _: slow(Reply().say("x"), 0.4)) as served:
            await served.run(tmp_path / fsync, prompts(10), concurrency=1, fsync=fsync)
        counts.append(len(synced))
    assert (counts[0], counts[2]) == (10, 0)
    assert counts[1] in (4, 5)


async def read_all(job: Batch) -> None:
    async for _ in job.run(prompts(50)):
        pass


@timeless
async def test_broken_disk_that_a_sync_finds_stops_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", broken)
    async with Served(lambda _: slow(Reply().say("x"), 0.4)) as served:
        job = served.client.batch(tmp_path, concurrency=1)
        with pytest.raises(JournalError, match="Input/output"):
            async with job:
                await read_all(job)
        assert len(recorded(tmp_path)) < 10
        assert job.stopped is not None
        assert job.stopped.reason == "journal"


# ------------------------------------------------------------------------------------ in flight, memory


@timeless
async def test_no_more_are_in_flight_than_are_allowed_and_as_many_where_there_is_work(
    tmp_path: Path,
) -> None:
    async with Served(lambda _: slow(Reply().say("x"))) as served:
        await served.run(tmp_path, prompts(100), concurrency=7)
        assert served.most_alive == 7
        async with served.client.batch(tmp_path, concurrency=7) as job:
            assert job.load() == (0, 7, 0.0)


@timeless
async def test_left_to_itself_it_finds_out_how_many_the_servers_bear(tmp_path: Path) -> None:
    async def answer(_: ReceivedRequest) -> Reply:
        if len(served.server.active) > 40:
            return Reply().fail(503, headers={"Retry-After": "1"})
        return slow(Reply().say("x"))

    async with Served(answer) as served:
        records = await served.run(tmp_path, prompts(350))
        assert codes(records) == {"": 350}
        assert 20 < served.most_alive < 90
        async with served.client.batch(tmp_path) as job:
            assert 8 <= job.load()[1] <= 90


@timeless
async def test_limits_of_the_client_hold_for_a_batch_and_waiting_is_in_no_bound(
    tmp_path: Path,
) -> None:
    async with Served(lambda _: slow(Reply().say("x")), limits=Limits(in_flight=3)) as served:
        records = await served.run(tmp_path, prompts(60), timeout=1)
        assert codes(records) == {"": 60}
        assert served.most_alive == 3


async def test_another_batch_of_the_same_job_is_refused_with_the_pid(tmp_path: Path) -> None:
    async with Served() as served, served.client.batch(tmp_path) as job:
        with pytest.raises(JournalLocked) as caught:
            async with served.client.batch(tmp_path):
                pass
        assert caught.value.pid == os.getpid()
        code = (
            "import asyncio, sys\n"
            "from asyncchat import AsyncChat, JournalLocked\n"
            "async def main():\n"
            "    async with AsyncChat('http://127.0.0.1:9/v1', 'k', 'm').batch(sys.argv[1]): pass\n"
            "try: asyncio.run(main())\n"
            "except JournalLocked as error: print(error.pid)\n"
        )
        done = await anyio.run_process([sys.executable, "-c", code, str(tmp_path)])
        assert int(done.stdout) == os.getpid()
        assert [record.ok async for record in job.run(prompts(3))] == [True] * 3


class Instant:
    """Asks nobody: for what has to be measured many times."""

    def __init__(self, client: AsyncChat) -> None:
        self.pool = client._core.pool
        self.raw = msgspec.json.encode(completion("x" * 100))

    def described(self) -> dict[str, Any]:
        return {}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return body

    async def __call__(self, body: object, key: str, sent: object) -> tuple[Any, bytes, bool]:
        await asyncio.sleep(0)
        return msgspec.json.decode(self.raw, type=Completion), self.raw, True


async def held_after(directory: Path, count: int) -> tuple[int, int]:
    """Return the bytes that Python holds after so many inputs, and at most while they were done."""
    client = AsyncChat("http://127.0.0.1:9/v1", KEY, "m")
    asker: Any = Instant(client)
    options = BatchOptions(concurrency=32, fsync="never")
    async with Batch(asker, directory, options) as job:
        gc.collect()
        tracemalloc.start()
        source = ({"prompt": "y" * 1000 + str(n)} for n in range(count))
        done = 0
        async for record in job.run(source):
            done += record.ok
        gc.collect()
        held, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert done == count
    await client.close()
    return held, most


async def test_memory_does_not_grow_with_the_inputs_but_for_some_bytes_each(
    tmp_path: Path,
) -> None:
    few, most_of_few = await held_after(tmp_path / "few", 300)
    many, most_of_many = await held_after(tmp_path / "many", 1800)
    assert (many - few) / 1500 < 300  # of the first thousands, in a table of as many parts
    assert (most_of_many - most_of_few) / 1500 < 300


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_hundreds_of_thousands_of_inputs_fit_into_120_mib(tmp_path: Path) -> None:
    code = (
        "import asyncio, re, sys\n"
        "from pathlib import Path\n"
        "from asyncchat import AsyncChat\n"
        "from asyncchat.batch.engine import Batch\n"
        "from asyncchat.batch.options import BatchOptions\n"
        "from tests.batch.test_engine import Instant\n"
        "async def main(count):\n"
        "    client = AsyncChat('http://127.0.0.1:9/v1', 'k', 'm')\n"
        "    async with Batch(Instant(client), Path(sys.argv[1]), BatchOptions()) as job:\n"
        "        done = 0\n"
        "        async for record in job.run({'prompt': f'p{n}'} for n in range(count)): done += 1\n"
        "    await client.close()\n"
        # Not `ru_maxrss`, which counts the process that started this one.
        "    peak = re.search(r'VmHWM:\\s+(\\d+)', Path('/proc/self/status').read_text())[1]\n"
        "    print(done, job.skipped, peak)\n"
        "asyncio.run(main(int(sys.argv[2])))\n"
    )
    for expected in ("300000 0", "0 300000"):
        done = subprocess.run(
            [sys.executable, "-c", code, str(tmp_path), "300000"],
            capture_output=True,
            text=True,
            check=True,
        )
        counts, _, kib = done.stdout.strip().rpartition(" ")
        assert counts == expected
        assert int(kib) < 120 * 1024


# -------------------------------------------------------------------------------- a thousand kinds


def _kinds() -> list[Callable[[], Reply]]:
    """Ways to fail, each with where it strikes."""
    statuses = [400, 404, 408, 409, 413, 422, 429, 500, 502, 503, 504, 529]
    kinds: list[Callable[[], Reply]] = [
        lambda status=status: Reply().fail(status)  # type: ignore[misc]
        for status in statuses
    ]
    for after in (0, "headers", 1, 3):
        kinds += [
            lambda after=after: Reply().say("a b c").cut(after=after),  # type: ignore[misc]
            lambda after=after: Reply().say("a b c").reset(after=after),  # type: ignore[misc]
            lambda after=after: Reply().say("a b c").stall(after=after),  # type: ignore[misc]
        ]
    kinds += [
        lambda: Reply().raw(b"<html>bad gateway</html>", content_type="text/html"),
        lambda: Reply().raw(b"data: {broken\n\n"),
        lambda: Reply().raw(b"\xff\xfe\x00"),
        lambda: Reply().raw(b""),
        lambda: Reply().say("a").error_event("overloaded"),
        lambda: Reply().error_event("too many", type="rate_limit_error", code=429),
        lambda: Reply().say("a").finish(None).without_done(),
        lambda: document(b"[" * 5000),
        lambda: document(completion("x", choices=[])),
        lambda: Reply().status(200).raw(b"data: [DONE]\n\n"),
    ]
    return kinds


@settings(
    max_examples=3, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32))
def test_a_thousand_errors_mixed_end_in_one_record_for_each_input(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    directory = tmp_path_factory.mktemp("job")
    rand = random.Random(seed)

    @timeless
    async def play() -> None:
        kinds = _kinds()
        left = {
            f"p{n}": [rand.choice(kinds) for _ in range(rand.choice([0, 0, 1, 2, 7]))]
            for n in range(120)
        }

        def answer(request: ReceivedRequest) -> Reply:
            faults = left[request.last_text]
            return faults.pop()() if faults else Reply().say("x").delay(rand.random())

        async with Served(answer) as served:
            with anyio.fail_after(100_000):
                for _ in range(20):
                    await served.run(directory, prompts(120), stream=bool(seed % 2), max_wait=1e9)
                    if served.job.stopped is None:
                        break
            found = recorded(directory)
            assert set(found) == keys(120)
            assert len(lines_of(directory)) == 120
            assert await served.run(directory, prompts(120), stream=bool(seed % 2)) == []

    play()


# ------------------------------------------------------------------------- any sequence of anything


@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**32))
def test_any_sequence_of_runs_and_ends_asks_nothing_twice_that_is_recorded(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    """Runs that are left, drained, cancelled, and whose last line is torn, against the law."""
    rand = random.Random(seed)
    directory = tmp_path_factory.mktemp("job")
    count = 40

    @timeless
    async def play() -> None:
        asked_though_recorded: list[str] = []
        known: set[str] = set()

        def answer(request: ReceivedRequest) -> Reply:
            if request.last_text in known:
                asked_though_recorded.append(request.last_text)
            luck = rand.random()
            if luck < 0.1:
                return Reply().fail(500)
            if luck < 0.15:
                return Reply().fail(400)
            return slow(Reply().say("x"), rand.random() * 5)

        async with Served(answer) as served:
            for turn in itertools.count():
                known = {f"p{record.n - 1}" for record in recorded(directory).values()}
                if turn == 6:
                    break
                leaves_after = rand.randrange(count)
                how = rand.choice(["leave", "drain", "cancel", "tear"])
                concurrency = rand.choice([1, 3, 16])
                with anyio.move_on_after(rand.random() * 10 if how == "cancel" else None):
                    async with served.client.batch(
                        directory, concurrency=concurrency, fsync="never"
                    ) as job:
                        read = 0
                        async for _ in job.run(prompts(count), ordered=rand.random() < 0.5):
                            read += 1
                            if read == leaves_after:
                                if how == "drain":
                                    job.drain()
                                else:
                                    break
                if how == "tear":
                    files = sorted(directory.glob("done-*.jsonl"))
                    size = files[-1].stat().st_size
                    if size:
                        os.truncate(files[-1], size - rand.randrange(1, min(size, 60)))
            await served.run(directory, prompts(count))
        assert set(recorded(directory)) == keys(count)
        assert asked_though_recorded == []

    play()


def test_the_clock_of_these_tests_stands_still_while_something_happens() -> None:
    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        began, real = loop.time(), time.monotonic()
        await asyncio.sleep(3600)
        return loop.time() - began, time.monotonic() - real

    with asyncio.Runner(loop_factory=Timeless) as runner:
        passed, real = runner.run(main())
    assert passed >= 3600
    assert real < 60
