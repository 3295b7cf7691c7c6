"""Where a client's world ends: its loop, its thread, its process. It works on, or gives one clear error; and it is silent."""

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from asyncchat import AsyncChat, ChatStream, Limits, Timeout
from tests.client.conftest import start
from tests.storms import programs
from tests.storms.conftest import StormServer, Watch, sockets
from tests.storms.server import SHORT
from tests.storms.test_storms import created, events, final, plain

ROOT = Path(__file__).parents[2]


def ends_well(server: StormServer, *which: str, flags: Iterable[str] = ()) -> list[str]:
    """Run a program, and return what is to be complained of."""
    arguments = (server.base_url, str(server.control_port), *which)
    command = [sys.executable, *flags, "-m", "tests.storms.programs", *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False
    )
    wrong = f"{' '.join(which)}: code {done.returncode}, {done.stdout}{done.stderr}"
    return [wrong] if done.returncode or done.stdout or done.stderr else []


def all_end_well(server: StormServer, ending: str, states: Iterable[str]) -> list[str]:
    """Run programs that differ in their states, two at a time."""
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda state: ends_well(server, state, ending), states)
        return [wrong for one in found for wrong in one]


NAMED = ("idle", "in_midstream", "waiting_in_line", "connecting", "cancelled")
TASKLESS = ("idle", "opened", "left_by_break", "cancelled")


def test_interpreter_ends_silently_whatever_the_client_does(storm_server: StormServer) -> None:
    assert all_end_well(storm_server, "returns", NAMED) == []


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["returns", "exits", "in_a_thread", "closes"])
def test_interpreter_ends_silently_from_every_state_in_every_way(
    ending: str, storm_server: StormServer
) -> None:
    assert all_end_well(storm_server, ending, programs.STATES) == []


@pytest.mark.slow
@pytest.mark.xfail(
    reason="a loop that is never closed closes nothing that was opened in it: aiohttp says so at exit",
    strict=True,
)
def test_interpreter_ends_silently_though_the_loop_was_never_closed(
    storm_server: StormServer,
) -> None:
    """States with no task alone: of a task that is pending asyncio itself complains."""
    assert all_end_well(storm_server, "abandons", TASKLESS) == []


# ------------------------------------------------------------------------------------------ forks


@pytest.mark.parametrize(
    "fork",
    [
        pytest.param("fork_between_loops", marks=pytest.mark.slow),
        "fork_and_call",
        pytest.param(
            "fork_and_leave",
            marks=[
                pytest.mark.slow,
            ],
        ),
        pytest.param(
            "fork_with_no_place_left",
            marks=[
                pytest.mark.slow,
            ],
        ),
    ],
)
def test_forked_child_works_and_leaves_its_parent_alone(
    fork: str, storm_server: StormServer
) -> None:
    assert ends_well(storm_server, fork) == []


# ------------------------------------------------------------------------------------ other loops


async def is_good(client: AsyncChat) -> None:
    async with asyncio.timeout(20):
        for way in (plain, final, events, created):
            assert await way(client, {"model": "good"}) == SHORT


def next_loop(server: StormServer, state: str) -> None:
    before = sockets()
    asyncio.run(programs.STATES[state](server.base_url))
    [client] = [one for one in programs.kept if isinstance(one, AsyncChat)]
    statistics = client.statistics()
    programs.let_go()
    assert sockets() == before, state
    assert (statistics.in_flight, statistics.waiting) == (0, 0), state
    if state not in {"connecting", "closed"}:
        asyncio.run(is_good(client))
        assert sockets() == before, state


def test_client_works_in_the_next_loop_whatever_the_last_one_ended_in(
    storm_server: StormServer,
) -> None:
    for state in programs.STATES:
        if state != "opened":
            next_loop(storm_server, state)


def test_stream_that_lives_on_gives_its_place_back_when_its_loop_ends(
    storm_server: StormServer,
) -> None:
    next_loop(storm_server, "opened")


def test_place_is_not_given_to_somebody_whose_loop_is_closed(storm_server: StormServer) -> None:
    client = AsyncChat(
        storm_server.base_url, "key", limits=Limits(in_flight=1), timeout=Timeout(total=3)
    )

    async def leave_in_line() -> tuple[ChatStream[Any], "asyncio.Task[Any]"]:
        stream = client.chat.stream("a", model="held")
        await stream.start()
        waiting = start(plain(client, {"model": "good"}))
        await programs.until(lambda: client.statistics().waiting == 1)
        return stream, waiting

    loop = asyncio.new_event_loop()
    stream, waiting = loop.run_until_complete(leave_in_line())
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    waiting._log_destroy_pending = False  # type: ignore[attr-defined]
    stream.close()
    asyncio.run(is_good(client))


def test_client_forgets_the_loops_that_have_ended(storm_server: StormServer) -> None:
    client = AsyncChat(storm_server.base_url, "key")

    async def call() -> "weakref.ref[asyncio.AbstractEventLoop]":
        assert await plain(client, {"model": "good"}) == SHORT
        return weakref.ref(asyncio.get_running_loop())

    loops = [asyncio.run(call()) for _ in range(10)]
    gc.collect()
    assert [loop() for loop in loops[:-1]] == [None] * 9


async def test_threads_with_loops_of_their_own_use_one_client_at_once(
    storm_server: StormServer,
) -> None:
    """Three threads and this one, 160 calls each; the connections of a loop close with it."""
    client = AsyncChat(storm_server.base_url, "key")

    async def call() -> None:
        for _ in range(10):
            async with asyncio.TaskGroup() as group:
                for _ in range(4):
                    group.create_task(is_good(client))

    async with storm_server.control() as control:
        with Watch() as watch:
            with ThreadPoolExecutor(3) as pool:
                others = [pool.submit(asyncio.run, call()) for _ in range(3)]
                await call()
                while not all(other.done() for other in others):
                    await asyncio.sleep(0.01)
            for other in others:
                other.result()
            statistics = client.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
            assert statistics.finished == statistics.attempts == 4 * 160
            await client.close()
            await control.ask("wait open 0")
            assert watch.new_sockets() == 0
            await watch.assert_silent()


@pytest.mark.slow
async def test_caller_in_another_thread_gets_the_place_that_is_given_back_here(
    storm_server: StormServer,
) -> None:
    limits, timeout = Limits(in_flight=1), Timeout(total=3)
    async with AsyncChat(storm_server.base_url, "key", limits=limits, timeout=timeout) as client:
        stream = client.chat.stream("a", model="held")
        await stream.start()
        with ThreadPoolExecutor(1) as pool:
            other = pool.submit(asyncio.run, plain(client, {"model": "good"}))
            await programs.until(lambda: client.statistics().waiting == 1)
            stream.close()
            await programs.until(other.done)
        assert other.result() == SHORT
