"""One part of the inputs, done here without a process of its own; and what all parts come to."""

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from asyncchat.batch.options import BatchOptions, Spending
from asyncchat.batch.part import Part, Standing, Tally
from asyncchat.batch.plan import Plan
from asyncchat.batch.record import BatchError, Outcome, Trace
from asyncchat.policy.lease import Lease, Renewal
from tests.batch.counting import Counting

if TYPE_CHECKING:
    from asyncchat.batch.engine import Batch


async def work(plan: Plan, part: int, parts: int) -> tuple[list[str], list[Standing], str | None]:
    leases = plan.leases("h")
    done: list[str] = []
    standings: list[Standing] = []
    batches: list[Batch] = []

    async def ask(renewal: Renewal) -> Lease:
        return leases.lease("w", 0.0, renewal)

    async def note(outcome: Outcome) -> None:
        done.append(outcome.custom_id)

    given = Part(plan, part, parts, f"w{part}")
    stop = await given.work(ask, note, standings.append, batches.append)
    assert len(batches) == (stop is None)
    return done, standings, None if stop is None else stop.reason


def plan_of(tmp_path: Path, server: Counting) -> Plan:
    source = tmp_path / "in.jsonl"
    lines = [{"custom_id": f"k{n}", "prompt": f"q{n}"} for n in range(40)]
    source.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    plan = Plan(
        job=str(tmp_path / "job"),
        base_url=server.base_url,
        model="m",
        source=str(source),
        batch={"stream": False},
    )
    plan.open(plan.client()).prepare().lock.close()
    return plan


async def test_parts_are_disjoint_and_all_of_them_everything(tmp_path: Path) -> None:
    with Counting() as server:
        plan = plan_of(tmp_path, server)
        first, standings, _ = await work(plan, 0, 2)
        second, _, _ = await work(plan, 1, 2)
        again, others, _ = await work(plan, 0, 2)
    assert sorted(first + second) == sorted(f"k{n}" for n in range(40))
    assert set(server.asked.values()) == {1}
    assert (standings[-1].skipped, standings[-1].read) == (0, 1.0)
    assert (again, others[-1].skipped) == ([], len(first))


async def test_part_that_cannot_begin_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "k")
    with Counting() as server:
        plan = msgspec.structs.replace(plan_of(tmp_path, server), api_key_env="MY_KEY")
        monkeypatch.delenv("MY_KEY")
        assert await work(plan, 0, 1) == ([], [], "endpoint")


def outcome(tokens: int, code: str | None = None) -> Outcome:
    error = None if code is None else BatchError(code, "no")
    return Outcome("k", Trace(1, "h", tokens=(tokens, 0, 0), attempts=1), error)


def test_tally_is_of_all_parts() -> None:
    plan = Plan(job="j", concurrency=10)
    tally = Tally(plan, Spending(BatchOptions(max_tokens_total=100)), lambda: 5.0)
    assert tally.noted(outcome(60), 0) is None
    assert tally.noted(outcome(1, "timeout"), 0) is None
    assert "100 tokens" in (tally.noted(outcome(60), 0) or "")
    standings = [
        Standing(skipped=3, in_flight=4, limit=9, pause=2.0, retried=1, read=0.5),
        Standing(skipped=1, in_flight=2, limit=9, refused=2, read=1.0),
    ]
    assert tally.load(standings) == (6, 10, 0.0)
    now = tally.progress(standings, None, None)
    assert (now.done, now.failed, now.skipped, now.retried, now.refused) == (2, 1, 4, 1, 2)
    assert (now.in_flight, now.limit, now.position) == (6, 10, 0.75)
    assert tally.progress([Standing()], 8, None).skipped == 4  # it is on its way once more
