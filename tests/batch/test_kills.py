"""`kill -9` at random instants: each input has one record in the end, and nothing that has one is asked again."""

import asyncio
import os
import random
import sys
from pathlib import Path

import anyio
import pytest

from tests.batch.conftest import lines_of, recorded
from tests.batch.faulty import Faulty

ROOT = Path(__file__).parents[2]


async def killed(url: str, job: Path, count: int, order: str, after: int | None) -> bytes:
    """Run the program, kill it once so many more records are written, and return what it said."""
    before = size_of(job)
    async with await anyio.open_process(
        [sys.executable, "-m", "tests.batch.programs", url, str(job), str(count), order], cwd=ROOT
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while after is not None and process.returncode is None:
            if size_of(job) - before >= after:
                process.kill()
                break
            await asyncio.sleep(0.001)
        said = b"".join([part async for part in process.stdout])
        complaint = b"".join([part async for part in process.stderr])
        await process.wait()
    assert process.returncode == 0 or (process.returncode == -9 and after is not None), complaint
    return said


def size_of(job: Path) -> int:
    return sum(path.stat().st_size for path in job.glob("done-*.jsonl"))


async def play(job: Path, *, count: int, kills: int, seed: int, faults: float) -> None:
    rand = random.Random(seed)
    server = Faulty(seed, faults)
    runner, port = await server.serve()
    try:
        url = f"http://127.0.0.1:{port}/v1"
        share = count * 300 // (kills + 1)  # bytes of records between two kills, about
        for _ in range(kills):
            order = rand.choice(["ordered", "as they come"])
            await killed(url, job, count, order, rand.randrange(2 * share))
            if rand.random() < 0.3 and (files := sorted(job.glob("done-*.jsonl"))):
                # What a power cut leaves: a last line that is not whole.
                os.truncate(files[-1], max(0, files[-1].stat().st_size - rand.randrange(1, 50)))
            # Of records that count, nothing may be asked again; of those cut off just now, it has to be.
            server.is_forbidden = {f"p{record.n - 1}" for record in recorded(job).values()}
        before = len(recorded(job))
        said = await killed(url, job, count, "as they come", None)
        assert said.startswith(b"%d %d None\n" % (count - before, before))
        found = recorded(job)
        assert set(found) == {f"line-{n + 1}" for n in range(count)}
        assert all(record.text == f"<p{record.n - 1}>" for record in found.values())
        assert len(lines_of(job)) == count
        assert server.repeated == []
        assert all(len(keys) == 1 for keys in server.keys.values())
        assert (await killed(url, job, count, "as they come", None)).startswith(
            b"0 %d None\n" % count
        )
        assert server.repeated == []
    finally:
        await runner.cleanup()


async def test_killed_three_times_a_batch_is_exactly_right(tmp_path: Path) -> None:
    await play(tmp_path / "job", count=300, kills=3, seed=1, faults=0.1)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_killed_fifty_times_ten_thousand_inputs_are_exactly_right(tmp_path: Path) -> None:
    await play(tmp_path / "job", count=10_000, kills=50, seed=2, faults=0.1)
