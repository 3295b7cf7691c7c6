"""What workers have to know: it travels as JSON, has no key in it, and gives each worker its part of what cannot be leased."""

from pathlib import Path

import msgspec
import pytest

from asyncchat.batch.item import Item
from asyncchat.batch.options import Price
from asyncchat.batch.plan import EndpointPlan, Plan, part_of
from asyncchat.policy.timeout import Timeout

URL = "http://a.example/v1"


def travelled(plan: Plan) -> Plan:
    return msgspec.json.decode(msgspec.json.encode(plan), type=Plan)


def test_keys_are_named_by_their_variables_and_looked_up_where_they_are_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    endpoint = EndpointPlan(url=URL, api_key_env=["ONE", "TWO"])
    monkeypatch.setenv("ONE", "sk-1")
    with pytest.raises(ValueError, match="TWO"):
        endpoint.endpoint(1)
    monkeypatch.setenv("TWO", "sk-2")
    assert len(endpoint.endpoint(1).keys) == 2
    assert len(endpoint.endpoint(1, with_keys=False).keys) == 0
    assert b"sk-" not in msgspec.json.encode(Plan(job="j", endpoints=[endpoint]))


def test_limits_of_an_endpoint_are_divided_among_the_workers() -> None:
    endpoint = EndpointPlan(url=URL, rpm=100, tpm=7, in_flight=2)
    part = endpoint.endpoint(4)
    assert (part.rpm, part.tpm, part.in_flight) == (25, 1, 1)


def test_limits_of_the_job_are_held_for_all() -> None:
    plan = Plan(job="j", rpm=10, concurrency="auto")
    assert plan.in_flight == 1024
    assert Plan(job="j", concurrency=7).in_flight == 7
    assert plan.leases("h").holder == "h"


def test_batch_is_the_same_after_the_journey(tmp_path: Path) -> None:
    options = {
        "price": msgspec.to_builtins(Price(1.0, 2.0)),
        "timeout": msgspec.to_builtins(Timeout(total=5.0)),
        "retries": 1,
        "temperature": 0,
    }
    plan = travelled(Plan(job=str(tmp_path), base_url=URL, model="m", batch=options))
    batch = plan.open(plan.client(), "w1")
    assert batch.options.price == Price(1.0, 2.0)
    assert batch.options.timeout.total == 5.0
    assert batch.options.concurrency == "auto"
    assert batch._answer_options(plan.layout) == {"model": "m", "temperature": 0}


def test_inputs_of_one_name_belong_to_one_part_and_parts_are_even() -> None:
    parts = [part_of(Item(n, f"k{n}", {}), 4) for n in range(4000)]
    assert part_of(Item(9, "k1", {}), 4) == parts[1]
    assert all(900 < parts.count(part) < 1100 for part in range(4))
