"""The bridge to Ray: one worker without Ray, then a small dataset with it, then clusters that lose nodes and drivers."""

import gc
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from asyncchat.batch.engine import Batch
from asyncchat.batch.item import Item
from asyncchat.batch.journal import final_lines
from asyncchat.batch.part import Part
from asyncchat.batch.plan import Plan
from asyncchat.batch.record import BatchRecord
from asyncchat.bridges import ray as bridge
from asyncchat.bridges.ray import _Engine, _plan, _table
from tests.batch.counting import Counting
from tests.docs.markdown import DOCS, blocks


@pytest.fixture
def server() -> Iterator[Counting]:
    with Counting() as counting:
        yield counting


class Worker:
    """One life of a worker, as Ray would make it."""

    def __init__(self, plan: Plan, life: str) -> None:
        self.engine = _Engine(plan, 1, life)

    def answer(self, *rows: dict[str, Any]) -> list[BatchRecord]:
        return self.engine.answer(list(rows)).result(20)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.engine.close()
        gc.collect()


def plan_of(tmp_path: Path, server: Counting, **how: Any) -> Plan:
    batch = {"stream": False, **how.pop("batch", {})}
    given = {"base_url": server.base_url, "model": "m", **how}
    plan = _plan(str(tmp_path / "job"), batch=batch, **given)
    plan.open(plan.client()).prepare(layout=plan.layout).lock.close()
    return plan


def ask(name: str, prompt: str) -> dict[str, Any]:
    return {"custom_id": name, "prompt": prompt}


# ------------------------------------------------------------------------------------ without Ray


def test_rows_are_answered_in_their_order(tmp_path: Path, server: Counting) -> None:
    with Worker(plan_of(tmp_path, server), "w1") as worker:
        records = worker.answer(*(ask(f"k{n}", f"q{n}") for n in range(50)))
        more = worker.answer(ask("k50", "q50"))
    assert [record.text for record in records] == [f"you said: q{n}" for n in range(50)]
    assert [record.custom_id for record in more] == ["k50"]
    assert server.requests == 51


def test_collector_looks_seldom_as_long_as_a_worker_lives(
    tmp_path: Path, server: Counting
) -> None:
    before = gc.get_threshold()
    with Worker(plan_of(tmp_path, server), "w1"):
        inside = gc.get_threshold()
    assert inside > before == gc.get_threshold()


def test_collector_looks_seldom_in_a_task_that_works_on_a_file(
    tmp_path: Path, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int, int]] = []

    async def work(*_: object) -> None:
        seen.append(gc.get_threshold())

    monkeypatch.setattr(bridge, "_ray", lambda: SimpleNamespace(get_actor=str))
    monkeypatch.setattr(Part, "work", work)
    before = gc.get_threshold()
    bridge._work_part(msgspec.json.encode(plan_of(tmp_path, server)), 0, 1, "holder")
    assert seen[0] > before == gc.get_threshold()


def test_row_that_fails_is_an_error_among_answers(tmp_path: Path, server: Counting) -> None:
    with Worker(plan_of(tmp_path, server), "w1") as worker:
        records = worker.answer(ask("a", "q"), ask("b", "refuse"), {"custom_id": "c"}, {"x": 1})
    assert [record.error and record.error.code for record in records] == [
        None,
        "bad_request",
        "invalid_line",
        "invalid_line",
    ]


def test_next_life_answers_from_the_journal(tmp_path: Path, server: Counting) -> None:
    plan = plan_of(tmp_path, server)
    with Worker(plan, "w1") as worker:
        worker.answer(ask("a", "q"), ask("b", "refuse"))
    with Worker(plan, "w2") as worker:
        records = worker.answer(ask("a", "q"), ask("b", "refuse"), ask("c", "other"))
    assert [record.ok for record in records] == [True, False, True]
    assert (server.requests, server.asked["q"], server.asked["refuse"]) == (3, 1, 1)


def test_life_that_was_there_before_finds_what_another_has_written_since(
    tmp_path: Path, server: Counting
) -> None:
    plan = plan_of(tmp_path, server)
    with Worker(plan, "w1") as old:
        old.answer(ask("a", "q1"))
        with Worker(plan, "w2") as new:
            new.answer(ask("b", "q2"))
        assert [record.text for record in old.answer(ask("b", "q2"))] == ["you said: q2"]
    assert server.requests == 2


def test_same_rows_once_more_are_not_asked_again(tmp_path: Path, server: Counting) -> None:
    with Worker(plan_of(tmp_path, server), "w1") as worker:
        first = worker.answer(ask("a", "q"), ask("a", "q"))
        again = worker.answer(ask("a", "q"))
    assert [record.text for record in (*first, *again)] == ["you said: q"] * 3
    assert server.requests == 1


def test_rows_without_a_name_are_known_by_what_they_ask(tmp_path: Path, server: Counting) -> None:
    plan = plan_of(tmp_path, server)
    with Worker(plan, "w1") as worker:
        (first,) = worker.answer({"prompt": "q"})
    with Worker(plan, "w2") as worker:
        one, same, other = worker.answer({"prompt": "q"}, {"prompt": "q"}, {"prompt": "else"})
    assert first.custom_id == one.custom_id == same.custom_id != other.custom_id
    assert server.requests == 2


def test_rows_are_hashed_by_the_worker_only_where_one_meets_another_of_its_name(
    tmp_path: Path, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    identity_of = Batch.identity_of

    def noted(batch: Batch, item: Item) -> str:
        hashed.append(item.key)
        return identity_of(batch, item)

    monkeypatch.setattr(Batch, "identity_of", noted)
    with Worker(plan_of(tmp_path, server), "w1") as worker:
        worker.answer(ask("a", "q"), ask("b", "q"), ask("b", "q"), ask("c", "q"))
    assert set(hashed) == {"b"}


def test_two_rows_of_one_name_that_ask_different_things_are_one_answer_and_one_error(
    tmp_path: Path, server: Counting
) -> None:
    server.latency = 0.2
    with Worker(plan_of(tmp_path, server), "w1") as worker:
        first, second = worker.answer(ask("a", "q"), ask("a", "else"))
        (third,) = worker.answer(ask("a", "else"))
    assert (first.text, second.error and second.error.code) == ("you said: q", "duplicate_id")
    assert third.error is not None
    assert third.error.code == "changed"


@pytest.mark.parametrize(
    ("on_change", "texts"),
    [("rerun", ["you said: new"]), ("keep", ["you said: old"]), ("error", [""])],
)
def test_row_that_has_changed_since_it_was_recorded(
    tmp_path: Path, server: Counting, on_change: str, texts: list[str]
) -> None:
    plan = plan_of(tmp_path, server, batch={"on_change": on_change})
    with Worker(plan, "w1") as worker:
        worker.answer(ask("a", "old"))
    with Worker(plan, "w2") as worker:
        assert [record.text for record in worker.answer(ask("a", "new"))] == texts


def test_failures_of_an_earlier_life_are_asked_again_on_request(
    tmp_path: Path, server: Counting
) -> None:
    plan = plan_of(tmp_path, server, batch={"retry_errors": True})
    with Worker(plan, "w1") as worker:
        worker.answer(ask("a", "refuse"))
    with Worker(plan, "w2") as worker:
        assert [record.ok for record in worker.answer(ask("a", "refuse"), ask("b", "q"))] == [
            False,
            True,
        ]
        worker.answer(ask("a", "refuse"))
    assert server.asked["refuse"] == 2


def test_engine_that_stops_gives_errors_for_what_is_left(tmp_path: Path, server: Counting) -> None:
    with Worker(plan_of(tmp_path, server, batch={"max_items": 2}), "w1") as worker:
        records = worker.answer(*(ask(f"k{n}", f"q{n}") for n in range(5)))
        later = worker.answer(ask("later", "q"))
    codes = sorted(record.error.code for record in (*records, *later) if record.error)
    assert codes == ["cap"] * 4
    assert len(list(final_lines(tmp_path / "job"))) == 2


def test_worker_without_its_key_says_which_variable_it_wants(
    tmp_path: Path, server: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "sk-1")
    plan = plan_of(tmp_path, server, api_key_env="MY_KEY")
    monkeypatch.delenv("MY_KEY")
    with pytest.raises(ValueError, match="MY_KEY"):
        Worker(plan, "w1")


def test_key_is_refused_where_it_would_be_seen(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="api_key_env"):
        _plan(str(tmp_path), batch={"api_key": "sk-1"})
    with pytest.raises(ValueError, match="not a URL"):
        _plan("s3://bucket/job", batch={})
    with pytest.raises(TypeError, match="cannot be sent to workers"):
        _plan(str(tmp_path), batch={"response_format": object()})


def test_columns_have_their_types_whatever_is_in_them(tmp_path: Path, server: Counting) -> None:
    with Worker(plan_of(tmp_path, server), "w1") as worker:
        (bad,) = worker.answer({"custom_id": "b"})
        (good,) = worker.answer(ask("a", "q"))
    table = _table([bad])
    assert table.schema == _table([good]).schema == _table([]).schema
    (row,) = table.to_pylist()
    assert (row["response"], row["text"], json.loads(row["error"])["code"]) == (
        "",
        "",
        "invalid_line",
    )
    (row,) = _table([good]).to_pylist()
    assert row["error"] == ""
    assert json.loads(row["response"])["choices"][0]["message"]["content"] == "you said: q"
    assert (row["id"], row["text"], row["prompt_tokens"], row["completion_tokens"]) == (
        "a",
        "you said: q",
        3,
        4,
    )


# --------------------------------------------------------------------------------------- with Ray


class Driver:
    """A program with a Ray of its own, and a session of its own: what is left of that is killed in the end."""

    def __init__(self, tmp_path: Path, arguments: list[str]) -> None:
        self._directory = tmp_path
        self._arguments = arguments

    def __enter__(self) -> "Driver":
        with (self._directory / "log.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *self._arguments],
                cwd=self._directory,
                env={
                    **os.environ,
                    "RAY_USAGE_STATS_ENABLED": "0",
                    "PYTHONPATH": str(Path(__file__).parents[2]),
                    "PYTHONWARNINGS": "ignore",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def output(self) -> str:
        code = self._process.wait(200)
        said = (self._directory / "log.txt").read_text()
        assert code == 0, said[-5000:]
        return said

    def result(self) -> Any:
        self.output()
        return json.loads((self._directory / "result.json").read_text())

    def __exit__(self, *_: object) -> None:
        """Kill it, and all that it has started."""
        for entry in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                session = entry.joinpath("stat").read_text().rsplit(")", 1)[1].split()[3]
                if int(session) == self._process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
        self._process.wait(30)


def driver_of(tmp_path: Path, server: Counting, **how: Any) -> Driver:
    """`ray_driver`, with such arguments."""
    how |= {"journal": str(tmp_path / "job"), "base_url": server.base_url}
    how["result"] = str(tmp_path / "result.json")
    return Driver(tmp_path, ["-m", "tests.bridges.ray_driver", json.dumps(how)])


def exact(rows: list[tuple[str, str, str]], inputs: int) -> bool:
    """Whether there is one answer for each input, and nothing else."""
    return sorted(map(tuple, rows)) == sorted(
        (f"k{n}", f"you said: q{n}", "") for n in range(inputs)
    )


needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")


SMALL = """
import functools, ray
ray.init = functools.partial(
    ray.init, num_cpus=3, include_dashboard=False, object_store_memory=100 << 20, log_to_driver=False
)
"""


@needs_ray
@pytest.mark.timeout(180)
def test_howto_runs_within_the_limit_of_all_workers_together(
    tmp_path: Path, server: Counting
) -> None:
    server.latency = 0.05
    example = next(block for block in blocks(DOCS / "howto" / "ray.md") if block.language == "py")
    code = SMALL + example.code.replace("http://127.0.0.1:8000/v1", server.base_url)
    with Driver(tmp_path, ["-c", code]) as driver:
        assert driver.output().splitlines()[-1] == (example.output or "").strip()
    assert len(server.asked) == 120
    assert set(server.asked.values()) == {1}
    assert server.most_in_flight <= 16
    assert {outcome.ok for outcome, _ in final_lines(tmp_path / "answers.job")} == {True}


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_lost_nodes_lose_and_double_nothing_and_the_limit_holds_without_its_holder(
    tmp_path: Path, server: Counting
) -> None:
    server.latency = 0.3
    how = {"workers": [3, 3], "concurrency": 24, "rpm": 300, "batch_size": 8}
    with driver_of(tmp_path, server, nodes=3, losses=[130, 200], inputs=330, **how) as driver:
        assert exact(driver.result(), 330)
    assert server.requests <= 330 + 2 * 24
    assert server.most_in_a_minute <= 300


@needs_ray
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_killed_driver_is_run_again_and_pays_twice_only_for_what_was_in_flight(
    tmp_path: Path, server: Counting
) -> None:
    server.latency = 0.2
    how = {"inputs": 400, "workers": 2, "concurrency": 24, "batch_size": 8}
    with driver_of(tmp_path, server, **how):
        server.wait_for(200, 100)
    with driver_of(tmp_path, server, **how) as driver:
        assert exact(driver.result(), 400)
    assert server.requests <= 400 + 24
