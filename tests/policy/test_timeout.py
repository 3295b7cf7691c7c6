"""Five bounds, in seconds."""

from typing import Any

import pytest

from asyncchat.policy.timeout import Timeout

BOUNDS = ["connect", "first", "idle", "total", "line"]


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [0, -1, float("nan"), True, "5", [5]])
def test_bound_that_makes_no_sense_is_a_value_error_that_names_it(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        Timeout(**{name: value})


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("value", [None, 1, 0.5, float("inf")])
def test_bound_may_be_any_number_above_nothing_or_none(name: str, value: Any) -> None:
    assert getattr(Timeout(**{name: value}), name) == value


def test_number_is_the_total_and_leaves_the_other_bounds() -> None:
    default = Timeout(connect=1, first=2, idle=3, total=4, line=5, keepalive_is_life=False)
    assert Timeout.of(9, default) == Timeout(
        connect=1, first=2, idle=3, total=9, line=5, keepalive_is_life=False
    )


def test_line_is_waited_in_without_bound_by_default() -> None:
    assert Timeout().line is None


def test_bounds_are_taken_as_they_are() -> None:
    mine = Timeout(total=None)
    assert Timeout.of(mine, Timeout()) is mine


def test_none_is_the_default() -> None:
    default = Timeout(total=9)
    assert Timeout.of(None, default) is default


@pytest.mark.parametrize("value", ["5", [5], object()])
def test_bounds_of_another_type_are_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match=type(value).__name__):
        Timeout.of(value, Timeout())


@pytest.mark.parametrize("value", [0, -1, True])
def test_number_that_makes_no_sense_as_total_is_a_value_error(value: float) -> None:
    with pytest.raises(ValueError, match="total"):
        Timeout.of(value, Timeout())
