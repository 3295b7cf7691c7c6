"""What callers do to a client: one function per habit, good or bad. What goes wrong for them comes out of them.

Not here: what must come out in general; a caller asserts only what none but it can see.
"""

import asyncio
import contextlib
import io
import logging
import os
import pickle
import random
import resource
import socket
import tempfile
import time
import traceback
from collections.abc import Awaitable, Callable, Iterator
from typing import Any
from unittest import mock

import pytest

from asyncchat import AsyncChatError, InternalServerError, Timeout
from tests.faults.exchange import MIB, PROMPT_MARK, SECRET_MARK, TEXT
from tests.faults.run import PROMPT, Run, open_sockets
from tests.faults.server import HOST

Caller = Callable[[Run], Awaitable[None]]

# ------------------------------------------------------------------------------------------- calls


async def read(run: Run) -> None:
    await run.read()


async def read_as_it_comes(run: Run) -> None:
    """Eight pieces, ten milliseconds apart: together they would come at once."""
    times: list[float] = []

    async def each(number: int) -> None:
        times.append(time.monotonic())

    await run.read(each=each)
    assert times[-1] - times[0] >= 0.05


async def complete(run: Run) -> None:
    run.parts.append((await run.client.chat(PROMPT)).text)


def twice(gap: float) -> Caller:
    """Two calls, one after the other; the first has to be right, the second is looked at."""

    async def call(run: Run) -> None:
        first: list[str] = []
        await run.read(first)
        assert "".join(first) == TEXT
        await asyncio.sleep(gap)
        await run.read()

    return call


async def big_prompt(run: Run) -> None:
    await run.read(prompt=PROMPT + "x" * (8 * MIB))


def read_within(seconds: float) -> Caller:
    """The caller's own bound around a call that would not end: it has to strike in time."""

    async def call(run: Run) -> None:
        before = time.monotonic()
        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(seconds):
                await run.read()
        assert type(caught.value) is TimeoutError
        assert time.monotonic() - before < seconds + 0.5

    return call


async def read_behind(run: Run) -> None:
    """A turn of the loop for each piece of a server at full speed: there is always more to read, and no wait."""

    async def each(number: int) -> None:
        await asyncio.sleep(0)

    await run.read(each=each)


async def look_at_socket(run: Run) -> None:
    wanted = (
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE),
        (socket.IPPROTO_TCP, socket.TCP_NODELAY),
    )
    async with await run.create():
        found = []
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                    with socket.socket(fileno=os.dup(int(name))) as copy:
                        if copy.getpeername()[1:2] == (run.ports.http,):
                            found.append([copy.getsockopt(*option) for option in wanted])
    assert found == [[1, 1]]


def _storm(count: int, expects: type[Exception]) -> Caller:
    """Many calls at once against a server that refuses them all."""

    async def call(run: Run) -> None:
        async def fail() -> None:
            with pytest.raises(expects):
                await run.client.chat(PROMPT)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(fail())

    return call


async def meet_dead_service(run: Run) -> None:
    count = 50
    await _storm(count, InternalServerError)(run)
    requests = len((await run.state()).requests)
    assert count < requests <= 1.5 * count


async def come_back_apart(run: Run) -> None:
    """Rate limits, since a budget would let few of the others come back."""
    count = 50
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(run.client.chat(PROMPT))
    retries = (await run.state()).requests[count:]
    assert len(retries) == count
    assert retries[-1].at - retries[0].at >= 0.3


async def read_with_one_key(run: Run) -> None:
    await run.read()
    first, second = (seen.idempotency_key for seen in (await run.state()).requests)
    assert first
    assert first == second


# --------------------------------------------------------------------------------------- lifecycle


async def _read_until(run: Run, count: int) -> "asyncio.Task[None]":
    """Begin to read beside the caller, and return once there are so many more pieces."""
    reached = asyncio.Event()
    wanted = len(run.parts) + count

    async def each(number: int) -> None:
        if number >= wanted:
            reached.set()

    task = asyncio.create_task(run.read(each=each))
    await reached.wait()
    return task


async def _assert_cancelled(task: "asyncio.Task[None]") -> None:
    with pytest.raises(asyncio.CancelledError):
        await task


async def break_and_hold(run: Run) -> None:
    run.kept = [await run.read_two(), await run.read_two()]
    await run.assert_nothing_is_left()
    await run.probe()


async def break_and_drop(run: Run) -> None:
    for _ in range(2):
        await run.read_two()
    await run.assert_nothing_is_left()
    await run.probe()


async def open_and_drop(run: Run) -> None:
    for _ in range(2):
        with pytest.warns(ResourceWarning, match="dropped unread"):
            await run.create()
    await run.assert_nothing_is_left()
    await run.probe()


async def cancel_in_midstream(run: Run) -> None:
    for _ in range(2):
        task = await _read_until(run, 2)
        task.cancel()
        await _assert_cancelled(task)
    await run.assert_nothing_is_left()
    await run.probe()


async def cancel_twice(run: Run) -> None:
    for _ in range(3):
        task = await _read_until(run, 2)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await _assert_cancelled(task)
    await run.assert_nothing_is_left()
    await run.probe()


async def cancel_before_headers(run: Run) -> None:
    for number in (1, 2):
        task = asyncio.create_task(run.read())
        await run.until_requested(number)
        task.cancel()
        await _assert_cancelled(task)
    await run.assert_nothing_is_left()
    await run.probe()


class Mine(Exception):
    """The caller's own."""


async def raise_inside(run: Run) -> None:
    async def each(number: int) -> None:
        if number % 2 == 0:
            raise Mine

    for _ in range(2):
        with pytest.raises(Mine):
            await run.read(each=each)
    await run.assert_nothing_is_left()
    await run.probe()


async def cancel_waiters(run: Run) -> None:
    holding = [await _read_until(run, 1) for _ in range(2)]
    waiting = [asyncio.create_task(run.read([])) for _ in range(6)]
    while run.client.statistics().waiting < 6:
        await asyncio.sleep(0)
    for task in (*waiting, *holding):
        task.cancel()
        await _assert_cancelled(task)
    await run.assert_nothing_is_left()
    await run.probe(2)


async def cancel_storm(run: Run) -> None:
    chance = random.Random(7)
    tasks = [asyncio.create_task(run.read([])) for _ in range(200)]
    loop = asyncio.get_running_loop()
    for task in tasks:
        loop.call_later(chance.uniform(0, 0.3), task.cancel)
    for task in tasks:
        await _assert_cancelled(task)
    await run.assert_nothing_is_left()
    await run.probe(10)


async def cancel_after_turns(run: Run) -> None:
    for turns in range(60):
        task = asyncio.create_task(run.read([]))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await _assert_cancelled(task)
    await run.assert_nothing_is_left()
    await run.probe(2)


async def close_while_reading(run: Run) -> None:
    task = await _read_until(run, 2)
    await run.client.close()
    async with asyncio.timeout(1):
        await task


async def read_slowly(run: Run) -> None:
    """Twenty pieces a second, of a server that would send thousands."""

    async def each(number: int) -> None:
        await asyncio.sleep(0.05)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await run.read(each=each)


async def run_out_of_files(run: Run) -> None:
    await run.read([], model="fault:ok_stream")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 16, hard))
    try:
        tasks = [asyncio.create_task(run.read([])) for _ in range(60)]
        await asyncio.wait(tasks)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    errors = [error for task in tasks if (error := task.exception()) is not None]
    assert errors
    assert all(isinstance(error, AsyncChatError) for error in errors), errors
    await run.probe(5)


async def fail_often(run: Run) -> None:
    before = open_sockets()
    for _ in range(99):
        with pytest.raises(AsyncChatError):
            await run.read([])
    assert open_sockets() - before <= 1
    await run.read()


async def be_refused_often(run: Run) -> None:
    for number in range(100):
        with pytest.raises(AsyncChatError):
            await run.read([], model="fault:err_html" if number % 2 else "fault:e422")
    await run.assert_nothing_is_left()
    await run.probe()


async def make_many(run: Run) -> None:
    before = time.process_time()
    for _ in range(50):
        run.make()
    assert time.process_time() - before <= 0.25
    await run.read()


async def pickle_errors(run: Run) -> None:
    models = ["e400", "quota", "trunc_chunked_rst", "error_event", "stall_headers"]
    for model in models:
        if model == "stall_headers":
            run.make(timeout=Timeout(first=0.2))
        with pytest.raises(AsyncChatError) as caught:
            await run.read([], model=f"fault:{model}")
        assert_pickles(caught.value)


def assert_pickles(error: AsyncChatError) -> None:
    """It comes back as it was, and its pickle holds no key."""
    data = pickle.dumps(error)
    again = pickle.loads(data)
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)
    assert SECRET_MARK.encode() not in data


# ---------------------------------------------------------------------------------------- security


@contextlib.contextmanager
def _everything_logged() -> Iterator[io.StringIO]:
    root, said = logging.getLogger(), io.StringIO()
    taking, level = logging.StreamHandler(said), root.level
    taking.setFormatter(logging.Formatter("%(levelname)s %(name)s %(message)s"))
    root.addHandler(taking)
    root.setLevel(logging.DEBUG)
    try:
        yield said
    finally:
        root.setLevel(level)
        root.removeHandler(taking)


async def read_logged(run: Run) -> None:
    with _everything_logged() as said:
        try:
            await run.read([], model="fault:ok_stream")
            await run.read()
        finally:
            assert SECRET_MARK not in said.getvalue()
            assert PROMPT_MARK not in said.getvalue()


async def read_and_print_error(run: Run) -> None:
    with pytest.raises(AsyncChatError) as caught:
        await run.read()
    error = caught.value
    told = [str(error), repr(error), repr(vars(error))]
    whole = traceback.TracebackException.from_exception(error, capture_locals=True)
    assert SECRET_MARK not in "".join((*told, *whole.format()))
    assert PROMPT_MARK not in "".join((*told, *traceback.format_exception(error)))
    assert str(error).isprintable()
    raise error


async def print_client(run: Run) -> None:
    shown: Any = run.client
    core = shown._core
    assert SECRET_MARK not in f"{shown} {shown!r} {core.pool!r} {vars(core.pool.sessions[0])}"
    await run.read()


async def read_in_clear(run: Run) -> None:
    """It works, since servers at home are reached so, with one warning."""
    with _everything_logged() as said:
        await run.read()
        await run.read([])
    warnings = [line for line in said.getvalue().splitlines() if line.startswith("WARNING")]
    assert len(warnings) == 1
    assert "over plain http" in warnings[0]
    assert SECRET_MARK not in said.getvalue()


async def read_beside_netrc(run: Run) -> None:
    with tempfile.NamedTemporaryFile("w") as netrc:
        netrc.write(f"machine {HOST} login somebody password else\n")
        netrc.flush()
        with mock.patch.dict(os.environ, NETRC=netrc.name):
            await run.read()


async def read_beside_proxy(run: Run) -> None:
    proxy = f"http://{HOST}:{run.ports.elsewhere}"
    names = ("HTTP_PROXY", "http_proxy", "ALL_PROXY")
    with mock.patch.dict(os.environ, dict.fromkeys(names, proxy)):
        await run.read()
