"""How long before another attempt, and the wait that a server asks for in all its spellings."""

from datetime import UTC, datetime
from email.utils import format_datetime
from types import MappingProxyType
from typing import Any

import pytest

from asyncchat.errors import (
    APIConnectionError,
    AsyncChatError,
    BadRequestError,
    ProtocolError,
    RateLimit,
    RateLimitError,
)
from asyncchat.policy.retry import (
    Resume,
    RetryBudget,
    RetryPolicy,
    rate_limits,
    requested_wait,
)

NOW = 1_800_000_000.0


def date(seconds_from_now: float) -> str:
    return format_datetime(datetime.fromtimestamp(NOW + seconds_from_now, UTC), usegmt=True)


def asking(seconds: float | None) -> AsyncChatError:
    return RateLimitError("slow", retry_after=seconds)


# -------------------------------------------------------------------------------------------- the policy


def test_failure_that_may_pass_is_tried_again() -> None:
    assert RetryPolicy().delay(APIConnectionError("refused"), 1, 0.5) is not None


def test_failure_that_cannot_pass_is_given_up() -> None:
    assert RetryPolicy().delay(BadRequestError("no"), 1, 0.5) is None


@pytest.mark.parametrize(
    ("most", "attempts", "again"), [(0, 1, False), (2, 2, True), (2, 3, False)]
)
def test_attempts_are_bounded(most: int, attempts: int, again: bool) -> None:
    policy = RetryPolicy(max_retries=most)
    assert (policy.delay(APIConnectionError("refused"), attempts, 0.5) is not None) is again


def test_bound_of_the_wait_doubles_up_to_its_end() -> None:
    policy = RetryPolicy(max_retries=99, initial_delay=0.5, max_delay=8)
    error = APIConnectionError("refused")
    assert [policy.delay(error, attempts, 0.5) for attempts in range(1, 8)] == [
        0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0,
    ]  # fmt: skip


def test_wait_after_very_many_attempts_is_the_longest_and_no_overflow() -> None:
    policy = RetryPolicy(max_retries=5000, max_delay=8)
    assert policy.delay(APIConnectionError("refused"), 2000, 0.5) == 4.0


def test_wait_is_never_so_short_that_it_is_a_busy_loop() -> None:
    assert RetryPolicy(initial_delay=1).delay(APIConnectionError("refused"), 1, 0.0) == 0.1


def test_wait_that_the_server_asks_for_is_kept_and_spread() -> None:
    policy = RetryPolicy()
    assert policy.delay(asking(10), 1, 0.0) == 10
    assert policy.delay(asking(10), 1, 0.5) == 10.5


def test_wait_longer_than_allowed_is_not_waited_for() -> None:
    policy = RetryPolicy(max_retry_after=60)
    assert policy.delay(asking(60), 1, 0.0) == 60
    assert policy.delay(asking(60.1), 1, 0.0) is None


@pytest.mark.parametrize("asked", [None, 0.0])
def test_server_that_asks_for_no_wait_gets_the_policys_own(asked: float | None) -> None:
    assert RetryPolicy(initial_delay=1).delay(asking(asked), 1, 0.5) == 0.5


def test_wait_that_the_total_bound_leaves_no_time_for_is_in_vain() -> None:
    policy = RetryPolicy(initial_delay=1)
    error = APIConnectionError("refused")
    assert policy.delay(error, 1, 0.5, remaining=0.6) == 0.5
    assert policy.delay(error, 1, 0.5, remaining=0.5) is None


@pytest.mark.parametrize("name", ["max_retries", "initial_delay", "max_delay", "max_retry_after"])
@pytest.mark.parametrize("value", [-1, True, None, "1", float("nan")])
def test_number_that_makes_no_sense_is_a_value_error(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=name):
        RetryPolicy(**{name: value})  # type: ignore[arg-type]  # that is what is tested


def test_nothing_is_a_sensible_number() -> None:
    policy = RetryPolicy(max_retries=0, initial_delay=0, max_delay=0, max_retry_after=0)
    assert policy.delay(REFUSED, 1, 0.5) is None


@pytest.mark.parametrize(
    ("error", "attempts", "may_go"),
    [
        (APIConnectionError("refused"), 1, True),
        (APIConnectionError("refused"), 2, True),
        (APIConnectionError("refused"), 3, False),
        (RateLimitError("slow", retry_after=86_400.0), 1, True),  # not waited for, but elsewhere
        (ProtocolError("a web page"), 1, True),
        (ProtocolError("a web page"), 3, False),
        (BadRequestError("no"), 1, False),
    ],
)
def test_request_may_go_elsewhere_after_what_may_pass_or_is_no_answer(
    error: AsyncChatError, attempts: int, may_go: bool
) -> None:
    assert RetryPolicy(max_retries=2).allows(error, attempts) is may_go


@pytest.mark.parametrize("hedge", [None, "p95", 0, 0.5, 30])
def test_other_endpoint_is_asked_after_a_time_or_after_the_usual_one(hedge: Any) -> None:
    assert RetryPolicy(hedge=hedge).hedge == hedge


def test_one_endpoint_is_asked_at_a_time_by_default() -> None:
    assert RetryPolicy().hedge is None


@pytest.mark.parametrize("hedge", ["p99", "1", -1, True, float("nan"), [1]])
def test_time_after_which_no_other_endpoint_can_be_asked_is_a_value_error(hedge: Any) -> None:
    with pytest.raises(ValueError, match="hedge"):
        RetryPolicy(hedge=hedge)


# ------------------------------------------------------------------------------ an answer that breaks off


@pytest.mark.parametrize("mode", ["restart", "continue"])
def test_answer_that_breaks_off_is_taken_up_twice_at_most_in_the_way_that_is_named(
    mode: Any,
) -> None:
    resume = Resume.of(mode)
    assert resume == Resume(mode=mode)
    assert resume is not None
    assert (resume.mode, resume.most, resume.fields, resume.prefix) == (mode, 2, {}, {})


def test_description_of_how_to_go_on_is_taken_as_it_is() -> None:
    mine = Resume(mode="continue", most=5, prefix={"prefix": True})
    assert Resume.of(mine) is mine


def test_answer_that_breaks_off_is_an_error_where_nothing_is_asked() -> None:
    assert Resume.of(None) is None


@pytest.mark.parametrize("value", ["again", "", True, False, 1, {"mode": "restart"}])
def test_way_to_go_on_that_is_none_is_a_value_error_that_names_those_there_are(
    value: object,
) -> None:
    with pytest.raises(ValueError, match=r"resume=.*'restart'.*'continue'"):
        Resume.of(value)


# -------------------------------------------------------------------------------------------- the budget


REFUSED = APIConnectionError("refused")


def spent(most: float = 2, share: float = 0.5) -> RetryBudget:
    """A budget of which nothing is left."""
    budget = RetryBudget(most, share)
    while budget.spend(REFUSED):
        pass
    return budget


def test_retries_at_hand_are_as_many_as_are_saved_up() -> None:
    budget = RetryBudget(most=2)
    assert [budget.spend(REFUSED) for _ in range(3)] == [True, True, False]


def test_retry_after_a_rate_limit_spends_nothing() -> None:
    budget = RetryBudget(most=1)
    assert all(budget.spend(RateLimitError("slow")) for _ in range(9))
    assert budget.spend(REFUSED)


def test_rate_limit_is_tried_again_though_nothing_is_left() -> None:
    assert spent().spend(RateLimitError("slow"))


@pytest.mark.parametrize(("share", "requests"), [(0.5, 2), (0.25, 4), (0.1, 10)])
def test_requests_earn_a_share_of_a_retry(share: float, requests: int) -> None:
    budget = spent(share=share)
    for _ in range(requests):
        assert not budget.spend(REFUSED)
        budget.earn()
    assert budget.spend(REFUSED)


def test_no_more_than_the_most_is_saved_up() -> None:
    budget = RetryBudget(most=1, share=1)
    for _ in range(9):
        budget.earn()
    assert [budget.spend(REFUSED) for _ in range(2)] == [True, False]


def test_budget_says_whether_there_is_a_retry_without_spending_it() -> None:
    budget = RetryBudget(most=1)
    assert budget.has_one
    assert budget.has_one
    budget.spend_one()
    assert not budget.has_one
    assert not budget.spend(REFUSED)


@pytest.mark.parametrize("requests", [9, 10])
def test_ten_tenths_are_a_retry_and_nine_are_not(requests: int) -> None:
    budget = RetryBudget(most=1, share=0.1)
    budget.spend_one()
    for _ in range(requests):
        budget.earn()
    assert budget.has_one is (requests == 10)


def test_budget_of_no_retry_has_none() -> None:
    assert not RetryBudget(most=0).has_one


# ------------------------------------------------------------------------------------- what the server asks


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "3"}, 3),
        ({"retry-after": "0"}, 0),
        ({"retry-after": "0.503"}, 0.503),
        ({"retry-after": " 3 "}, 3),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250.5"}, 0.2505),
        ({"x-ms-retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "3"}, 0.25),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3),
        ({"retry-after": date(20)}, 20),
        ({"retry-after": date(20), "date": date(-5)}, 25),
        ({"retry-after": date(20), "date": "yesterday"}, 20),
        ({"retry-after": date(20), "date": ""}, 20),
        ({"retry-after": date(20).replace(" GMT", "")}, 20),
        ({"retry-after": date(20).replace("GMT", "-0000")}, 20),
        ({"retry-after": date(20).replace(" GMT", ""), "date": date(-5).replace(" GMT", "")}, 25),
    ],
    ids=str,
)
def test_wait_is_read_in_every_spelling(headers: dict[str, str], seconds: float) -> None:
    assert requested_wait(headers, NOW) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "after",
    ["soon", "", "-1", "nan", "inf", date(-20), "99999999999999999999 Jan", "Wed, 99 Foo 2020"],
)
def test_wait_that_makes_no_sense_leaves_the_reset_of_the_limit(after: str) -> None:
    headers = {"retry-after": after, "x-ratelimit-reset-requests": "4s"}
    assert requested_wait(headers, NOW) == 4
    assert requested_wait({"retry-after": after}, NOW) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"x-ratelimit-reset-requests": "4s"}, 4),
        ({"x-ratelimit-reset-requests": "4s", "x-ratelimit-remaining-requests": "0"}, 4),
        ({"x-ratelimit-reset-requests": "4s", "x-ratelimit-remaining-requests": "7"}, None),
        ({"x-ratelimit-remaining-requests": "0"}, None),
        (
            {
                "x-ratelimit-reset-requests": "4s",
                "x-ratelimit-remaining-requests": "7",
                "x-ratelimit-reset-tokens": "6ms",
                "x-ratelimit-remaining-tokens": "0",
            },
            0.006,
        ),
        ({"x-ratelimit-reset-requests": "4s", "x-ratelimit-reset-tokens": "1m2.5s"}, 62.5),
    ],
    ids=str,
)
def test_wait_is_the_reset_of_the_limit_that_is_used_up(
    headers: dict[str, str], seconds: float | None
) -> None:
    assert requested_wait(headers, NOW) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1m2.5s", 62.5),
        ("6ms", 0.006),
        ("1h30m", 5400),
        ("2d", 172_800),
        ("250us", 0.00025),
        ("250\u00b5s", 0.00025),
        ("1s250us", 1.00025),
        ("7", 7),
        ("0.5", 0.5),
        ("0s", 0),
        ("", None),
        ("soon", None),
        ("4s later", None),
        ("-4s", None),
    ],
)
def test_duration_is_read_in_every_spelling(text: str, seconds: float | None) -> None:
    limits = rate_limits({"x-ratelimit-limit-tokens": "9", "x-ratelimit-reset-tokens": text})
    assert limits["tokens"].reset == (None if seconds is None else pytest.approx(seconds))


def test_limits_are_told_by_kind() -> None:
    headers = {
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "6ms",
        "x-ratelimit-limit-tokens": "2e5",
        "x-ratelimit-remaining-tokens": "many",
    }
    assert rate_limits(MappingProxyType(headers)) == {
        "requests": RateLimit(500, 0, 0.006),
        "tokens": RateLimit(200_000, None, None),
    }


def test_kind_that_no_header_speaks_of_is_not_told() -> None:
    assert rate_limits({"content-type": "text/plain"}) == {}
