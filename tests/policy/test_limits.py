"""Bounds on one client."""

from typing import Any

import pytest

from asyncchat.policy.limits import Limits
from asyncchat.protocol.answer import MAX_ANSWER_BYTES
from asyncchat.protocol.sse import MAX_EVENT_BYTES

NAMES = ["in_flight", "max_event_bytes", "max_answer_bytes", "max_error_bytes"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("value", [0, -1, 1.5, True, "5"])
def test_bound_that_makes_no_sense_is_a_value_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: value})


@pytest.mark.parametrize("name", NAMES)
def test_bound_may_be_one(name: str) -> None:
    assert getattr(Limits(**{name: 1}), name) == 1


def test_requests_at_once_may_be_without_bound() -> None:
    assert Limits(in_flight=None).in_flight is None


@pytest.mark.parametrize("name", [name for name in NAMES if name != "in_flight"])
def test_bytes_are_never_without_bound(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        Limits(**{name: None})  # type: ignore[arg-type]  # that is what is tested


def test_bounds_are_those_of_a_reader_used_alone() -> None:
    limits = Limits()
    assert (limits.max_event_bytes, limits.max_answer_bytes) == (MAX_EVENT_BYTES, MAX_ANSWER_BYTES)
