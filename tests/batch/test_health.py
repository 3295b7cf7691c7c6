"""Whether to go on asking: outages are waited for one request at a time, refusals for good end it."""

import pytest

from asyncchat.batch.health import Health
from asyncchat.batch.record import Kind

OUTAGE: list[Kind] = ["connection", "timeout", "server", "cut", "protocol"]
FOR_GOOD: list[Kind] = ["auth", "quota", "not_found"]


def failing(times: int, kind: Kind = "connection", now: float = 0.0) -> Health:
    health = Health(3600)
    for _ in range(times):
        health.sent(now)
    for _ in range(times):
        health.failed(now, kind, now)
    return health


@pytest.mark.parametrize("kind", OUTAGE)
def test_twenty_failures_without_an_answer_are_an_outage(kind: Kind) -> None:
    assert not failing(19, kind).is_out
    health = failing(20, kind)
    assert health.is_out
    assert health.wait(0.0) == 1.0
    assert health.wait(1.0) == 0.0
    assert health.hopeless(0.0) is None


def test_answer_between_failures_begins_the_row_anew() -> None:
    health = failing(19)
    assert not health.answered(0.0)
    health.failed(1.0, "connection", 0.5)
    assert not health.is_out


def test_in_an_outage_one_request_at_a_time_finds_out_after_growing_pauses() -> None:
    health, now, pauses = failing(20), 1.0, []
    for _ in range(7):
        assert health.wait(now) == 0.0
        health.sent(now)
        assert health.wait(now) == 30.0  # nobody beside it
        health.failed(now + 1, "connection", now)
        pauses.append(health.wait(now + 1))
        now += 1 + pauses[-1]
    assert pauses == [2, 4, 8, 16, 30, 30, 30]
    health.sent(now)
    assert health.answered(now)
    assert (health.is_out, health.wait(now)) == (False, 0.0)


def test_failures_of_what_was_sent_before_an_outage_do_not_prolong_it() -> None:
    health = failing(20, now=10.0)
    health.failed(10.5, "connection", 9.0)
    assert health.wait(10.5) == 0.5


@pytest.mark.parametrize("kind", ["bad_request", "other", "mismatch", "length"])
def test_refusal_of_one_input_ends_an_outage_for_somebody_is_there(kind: Kind) -> None:
    health = failing(20)
    health.sent(1.0)
    assert health.failed(1.5, kind, 1.0)
    assert (health.is_out, health.wait(1.5)) == (False, 0.0)
    assert not health.failed(1.5, kind, 1.0)


def test_being_told_to_come_later_in_an_outage_leaves_the_pause_to_the_pool() -> None:
    health = failing(20)
    health.sent(1.0)
    assert not health.failed(1.5, "rate_limit", 1.0)
    assert health.is_out
    assert health.wait(1.5) == 0.0


@pytest.mark.parametrize("kind", FOR_GOOD)
def test_twenty_refusals_for_good_are_hopeless(kind: Kind) -> None:
    assert failing(19, kind).hopeless(0.0) is None
    why = failing(20, kind).hopeless(0.0)
    assert why == "the server refuses every request for good"


def test_answer_between_refusals_for_good_gives_hope() -> None:
    health = failing(19, "auth")
    assert health.answered(0.0)
    assert health.wait(0.0) == 0.0
    health.failed(1.0, "auth", 0.5)
    assert health.hopeless(1.0) is None


def test_after_a_refusal_for_good_one_request_at_a_time_is_sent() -> None:
    health = Health(3600)
    for _ in range(3):
        health.sent(0.0)
    health.failed(1.0, "auth", 0.0)
    assert health.wait(1.0) == 0.0
    health.sent(1.0)
    assert health.wait(1.0) == 30.0
    health.failed(1.5, "auth", 0.0)  # sent before: says nothing new
    assert health.wait(1.5) > 0
    health.failed(2.0, "auth", 1.0)
    assert health.wait(2.0) == 0.0
    health.sent(2.0)
    assert health.failed(2.5, "bad_request", 2.0)  # there, and still nothing has worked
    assert health.wait(2.5) == 0.0
    health.sent(2.5)
    assert health.wait(2.5) == 30.0
    assert health.answered(2.5)
    assert health.wait(2.5) == 0.0


def test_input_that_was_refused_too_often_ends_it() -> None:
    health = failing(1, "quota")
    health.give_up()
    assert health.hopeless(0.0)


def test_only_what_was_sent_after_a_failure_shows_whose_fault_it_was() -> None:
    health = Health(3600)
    assert not health.has_worked
    health.answered(5.0)
    health.answered(3.0)
    assert health.has_worked
    assert health.worked_since(4.9)
    assert not health.worked_since(5.0)


def test_no_answer_for_as_long_as_one_may_wait_is_hopeless() -> None:
    health = Health(60)
    health.sent(100.0)
    assert health.hopeless(160.0) is None
    assert health.hopeless(161.0) == "no answer has come for 60 seconds"
    health.answered(100.0)
    assert health.hopeless(1e9) is None


def test_hours_in_which_nothing_is_asked_are_no_silence() -> None:
    health = Health(60)
    assert health.hopeless(1e9) is None
    health.sent(1e9)
    assert health.hopeless(1e9 + 59) is None
