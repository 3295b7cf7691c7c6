"""Bounds on one client."""

from typing import Any

import pytest

from asyncchat.policy.limits import Limits, checked_bound
from asyncchat.protocol.answer import MAX_ANSWER_BYTES
from asyncchat.protocol.sse import MAX_EVENT_BYTES

NAMES = [
    "in_flight",
    "rpm",
    "tpm",
    "waiting",
    "max_event_bytes",
    "max_answer_bytes",
    "max_error_bytes",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5"])
def test_bound_that_makes_no_sense_is_a_value_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_bound_may_be_one(name: str) -> None:
    options: dict[str, Any] = {name: 1}
    assert getattr(Limits(**options), name) == 1


@pytest.mark.parametrize("name", ["in_flight", "rpm", "tpm", "waiting"])
def test_requests_may_be_without_bound(name: str) -> None:
    options: dict[str, Any] = {name: None}
    assert getattr(Limits(**options), name) is None


@pytest.mark.parametrize("value", [1, None, "yes"])
def test_adaptive_is_a_bool(value: Any) -> None:
    with pytest.raises(ValueError, match="adaptive"):
        Limits(adaptive=value)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("max_")])
def test_bytes_are_never_without_bound(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: None})  # type: ignore[arg-type]  # that is what is tested


def test_bounds_are_those_of_a_reader_used_alone() -> None:
    limits = Limits()
    assert (limits.max_event_bytes, limits.max_answer_bytes) == (MAX_EVENT_BYTES, MAX_ANSWER_BYTES)


@pytest.mark.parametrize("bound", [1, 2, 10**12])
def test_bound_is_a_whole_number_from_one_up(bound: int) -> None:
    checked_bound("Endpoint", "rpm", bound)


@pytest.mark.parametrize("bound", [0, -1, 1.0, True, "1", None, float("inf"), [1]])
def test_what_is_no_bound_is_a_value_error_that_names_where_it_was_given(bound: object) -> None:
    with pytest.raises(ValueError, match=r"Endpoint\(rpm=.*from 1 up"):
        checked_bound("Endpoint", "rpm", bound)
