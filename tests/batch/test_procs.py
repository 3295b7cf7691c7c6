"""A batch in several processes: each input once, whoever is killed, and the limits of all together."""

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncchat.batch import procs
from asyncchat.batch.journal import final_lines
from asyncchat.batch.plan import EndpointPlan, Plan
from asyncchat.batch.procs import Processes
from asyncchat.batch.record import Outcome
from asyncchat.errors import JournalLocked, JournalMismatch, SourceError
from tests.batch.counting import Counting


@pytest.fixture
def server() -> Iterator[Counting]:
    with Counting() as counting:
        yield counting


def plan_of(directory: Path, server: Counting, inputs: int, **how: Any) -> Plan:
    source = directory / "in.jsonl"
    source.write_bytes(
        b"".join(
            msgspec.json.encode({"custom_id": f"k{n}", "prompt": f"q{n}"}) + b"\n"
            for n in range(inputs)
        )
    )
    batch = {"stream": False, **how.pop("batch", {})}
    given = {"base_url": server.base_url, "model": "m", "source": str(source), **how}
    return Plan(job=str(directory / "job"), batch=batch, **given)


async def run(plan: Plan, count: int = 2) -> tuple[Processes, list[Outcome]]:
    async with Processes(plan, count) as job:
        outcomes = [outcome async for outcome in job]
    return job, outcomes


def recorded(plan: Plan) -> dict[str, bool]:
    return {outcome.custom_id: outcome.ok for outcome, _ in final_lines(Path(plan.job))}


async def test_each_input_is_asked_once_and_the_children_share_the_work(
    tmp_path: Path, server: Counting
) -> None:
    plan = plan_of(tmp_path, server, 300)
    job, outcomes = await run(plan)
    assert job.stopped is None
    assert sorted(outcome.custom_id for outcome in outcomes) == sorted(f"k{n}" for n in range(300))
    assert set(server.asked.values()) == {1}
    assert recorded(plan) == {f"k{n}": True for n in range(300)}
    shards = {path.name.split("-")[2] for path in (tmp_path / "job").glob("done-*.jsonl")}
    assert shards == {"p0", "p1"}
    again, outcomes = await run(plan)
    assert (outcomes, again.skipped, server.requests) == ([], 300, 300)


def test_collector_looks_seldom_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int, int]] = []

    async def work(sock: socket.socket) -> None:
        seen.append(gc.get_threshold())
        sock.close()

    monkeypatch.setattr(procs, "_work", work)
    before, handler = gc.get_threshold(), signal.getsignal(signal.SIGINT)
    ours, theirs = socket.socketpair()
    with ours:
        try:
            procs.work_for(theirs.detach())
        finally:
            signal.signal(signal.SIGINT, handler)
    assert seen[0] > before == gc.get_threshold()


async def test_killed_child_is_started_again_and_loses_and_doubles_nothing(
    tmp_path: Path, server: Counting
) -> None:
    server.latency = 0.02
    plan = plan_of(tmp_path, server, 400, concurrency=16)
    async with Processes(plan, 2) as job:
        outcomes = []
        async for outcome in job:
            outcomes.append(outcome)
            if len(outcomes) in {80, 200}:
                os.kill(job.pids[0], signal.SIGKILL)
    assert job.stopped is None
    assert recorded(plan) == {f"k{n}": True for n in range(400)}
    assert server.requests <= 400 + 2 * 16
    assert server.most_in_flight <= 16 + 16  # those of the dead are with the server still


@pytest.mark.slow
async def test_limits_are_those_of_all_children_together(tmp_path: Path, server: Counting) -> None:
    plan = plan_of(tmp_path, server, 100, concurrency=8, rpm=40)
    server.latency = 0.05
    async with Processes(plan, 2) as job:
        async for _ in job:
            if sum(server.asked.values()) >= 40:
                break
    assert server.requests == 40
    assert server.most_in_flight <= 8


@pytest.mark.slow
async def test_cap_is_that_of_all_children_together(tmp_path: Path, server: Counting) -> None:
    server.latency = 0.02
    plan = plan_of(tmp_path, server, 500, concurrency=4, batch={"max_tokens_total": 700})
    job, outcomes = await run(plan)
    assert job.stopped is not None
    assert job.stopped.reason == "cap"
    assert 100 <= len(outcomes) <= 140  # of seven tokens each, and what was in flight


@pytest.mark.slow
async def test_draining_finishes_what_is_in_flight(tmp_path: Path, server: Counting) -> None:
    server.latency = 0.02
    plan = plan_of(tmp_path, server, 1000, concurrency=8)
    async with Processes(plan, 2) as job:
        outcomes = []
        async for outcome in job:
            outcomes.append(outcome)
            job.drain()
    assert job.stopped is not None
    assert job.stopped.reason == "interrupted"
    assert len(recorded(plan)) == server.requests < 1000


@pytest.mark.slow
async def test_child_says_why_it_stops_and_the_others_stop_too(
    tmp_path: Path, server: Counting
) -> None:
    plan = plan_of(tmp_path, server, 20)
    await run(plan, 1)
    changed = [{"custom_id": f"k{n}", "prompt": f"other {n}"} for n in range(20)]
    Path(plan.source or "").write_bytes(b"\n".join(msgspec.json.encode(one) for one in changed))
    job, outcomes = await run(plan, 1)
    assert job.stopped is not None
    assert (job.stopped.reason, outcomes) == ("mismatch", [])


async def test_other_options_are_refused_before_anything_starts(
    tmp_path: Path, server: Counting
) -> None:
    await run(plan_of(tmp_path, server, 5), 1)
    with pytest.raises(JournalMismatch):
        await run(plan_of(tmp_path, server, 5, batch={"temperature": 1}), 1)


async def test_job_is_locked_while_it_runs(tmp_path: Path, server: Counting) -> None:
    plan = plan_of(tmp_path, server, 5)
    async with Processes(plan, 1):
        with pytest.raises(JournalLocked) as caught:
            await run(plan, 1)
    assert caught.value.pid == os.getpid()


async def test_part_that_kills_each_of_its_processes_ends_the_job(
    tmp_path: Path, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncchat.batch.procs._PROGRAM", "import sys; sys.exit(3)")
    job, outcomes = await run(plan_of(tmp_path, server, 5), 2)
    assert job.stopped is not None
    assert "kills every process" in job.stopped.message
    assert outcomes == []


async def test_inputs_have_to_be_a_file_that_each_can_read(
    tmp_path: Path, server: Counting
) -> None:
    plan = plan_of(tmp_path, server, 5)
    with pytest.raises(ValueError, match="name a file"):
        Processes(msgspec.structs.replace(plan, source="-"), 2)
    with pytest.raises(ValueError, match="from 1 up"):
        Processes(plan, 0)
    with pytest.raises(SourceError):
        await run(msgspec.structs.replace(plan, source=str(tmp_path / "none.jsonl")))


async def test_key_comes_from_the_environment_and_is_written_nowhere(
    tmp_path: Path, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-not-to-be-seen")
    endpoint = EndpointPlan(url=server.base_url, api_key_env="MY_KEY", rpm=100)
    plan = plan_of(tmp_path, server, 5, base_url=None, endpoints=[endpoint])
    await run(plan, 1)
    assert server.keys == {"bearer sk-not-to-be-seen"}
    written = b"".join(path.read_bytes() for path in (tmp_path / "job").iterdir())
    assert b"not-to-be-seen" not in written + msgspec.json.encode(plan)
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ValueError, match="MY_KEY"):
        plan.client()


PARENT = """
import sys, anyio, msgspec
from asyncchat.batch.plan import Plan
from asyncchat.batch.procs import Processes

async def main():
    plan = msgspec.json.decode(sys.argv[1], type=Plan)
    async with Processes(plan, 2) as job:
        async for outcome in job:
            pass

anyio.run(main)
"""


@pytest.mark.slow
def test_killed_parent_takes_its_children_with_it_and_the_job_goes_on(
    tmp_path: Path, server: Counting
) -> None:
    server.latency = 0.02
    plan = plan_of(tmp_path, server, 400, concurrency=16)
    command = [sys.executable, "-c", PARENT, msgspec.json.encode(plan).decode()]
    with subprocess.Popen(command) as parent:
        server.wait_for(200)
        parent.kill()
    done = subprocess.run(command, timeout=60, check=False)  # waits for the orphans
    assert done.returncode == 0
    assert recorded(plan) == {f"k{n}": True for n in range(400)}
    assert server.requests <= 400 + 16
    deadline = time.monotonic() + 10
    while server.in_flight and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not server.in_flight
