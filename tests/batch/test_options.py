"""Options are checked when they are set; caps are told in words."""

import pytest

from asyncchat.batch.options import BatchOptions, Price, Share, Spending, kinds_of
from asyncchat.batch.record import Trace

PRICE = Price(1.0, 2.0)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"concurrency": True}, "concurrency=True"),
        ({"concurrency": 1.5}, "whole number from 1 up"),
        ({"concurrency": "many"}, "concurrency='many'"),
        ({"retries": -1}, "retries=-1"),
        ({"repairs": None}, "repairs=None"),
        ({"max_tokens_total": 0}, "max_tokens_total=0"),
        ({"max_items": 0}, "max_items=0"),
        ({"max_wait": float("nan")}, "max_wait=nan"),
        ({"max_cost": -1, "price": PRICE}, "max_cost=-1"),
        ({"max_cost": 1}, "needs a price"),
        ({"on_change": "ask"}, "error, rerun, keep"),
        ({"fsync": "sometimes"}, "always, 1s, never"),
    ],
)
def test_option_that_cannot_be_right_is_refused_by_name(
    wrong: dict[str, object], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        BatchOptions(**wrong)  # type: ignore[arg-type]


def test_price_is_read_and_counts_cached_tokens_apart() -> None:
    assert Price.read("0.15,0.6").cost((2_000_000, 1_000_000, 500_000)) == pytest.approx(0.9)
    assert Price.read("0.15,0.6,0.05").cost((2_000_000, 1_000_000, 500_000)) == pytest.approx(0.85)


@pytest.mark.parametrize("text", ["", "1", "1,2,3,4", "a,b", "-1,2", "nan,1"])
def test_text_that_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no price"):
        Price.read(text)


def test_price_of_a_wrong_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="from 0 up"):
        Price("1", 2)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", "%", "five", -1, "-2%", True, "nan"])
def test_what_is_no_share_is_refused(given: "int | str") -> None:
    with pytest.raises(ValueError, match="such as"):
        Share.read(given)


def test_number_of_failures_is_a_cap_from_the_first_on() -> None:
    assert Share.read(3).is_reached(3, 3)
    assert not Share.read("3").is_reached(2, 1000)
    assert not Share.read(0).is_reached(0, 0)
    assert Share.read(0).is_reached(1, 1)


def test_share_of_failures_means_nothing_of_the_first_twenty() -> None:
    share = Share.read(" 5 % ")
    assert Share.read(share) is share
    assert not share.is_reached(19, 19)
    assert share.is_reached(1, 20)
    assert not share.is_reached(1, 21)
    assert not Share.read("0%").is_reached(0, 100)


def test_kinds_of_errors_are_all_or_none_or_some_by_name() -> None:
    assert BatchOptions(retry_errors=kinds_of(True)).asks_again("server")
    assert not BatchOptions(retry_errors=kinds_of(False)).asks_again("server")
    some = BatchOptions(retry_errors=kinds_of("timeout, server,"))
    assert (some.asks_again("server"), some.asks_again("auth")) == (True, False)
    assert kinds_of(["auth"]) == frozenset({"auth"})


def spent(options: BatchOptions, *traces: Trace, failed: int = 0) -> Spending:
    spending = Spending(options)
    for _ in range(len(traces) + failed):
        spending.asked()
    for trace in traces:
        spending.noted(trace, ok=True)
    for _ in range(failed):
        spending.noted(Trace(1), ok=False)
    return spending


def test_without_caps_there_is_always_room() -> None:
    assert spent(BatchOptions(), Trace(1, tokens=(10, 10, 0)), failed=100).full(1000) is None


def test_requests_in_flight_are_counted_as_the_mean_of_those_answered() -> None:
    options = BatchOptions(price=PRICE, max_cost=1.0)
    trace = Trace(1, tokens=(1, 1, 0), cost=0.2)
    assert spent(options).full(100) is None  # nothing is known yet
    assert spent(options, trace).full(3) is None
    assert spent(options, trace).full(4) == "the cost cap of 1"
    assert spent(BatchOptions(price=PRICE, max_cost=0)).full(0) == "the cost cap of 0"


def test_cap_on_tokens_counts_prompts_and_answers_but_not_what_was_taken_over() -> None:
    options = BatchOptions(max_tokens_total=100)
    assert spent(options, Trace(1, tokens=(40, 20, 0))).full(0) is None
    assert spent(options, Trace(1, tokens=(60, 40, 0))).full(0) == "the cap of 100 tokens"
    assert spent(options, Trace(1, tokens=(60, 40, 0), reused="a")).full(0) is None


def test_cap_on_inputs_counts_those_taken_up() -> None:
    options = BatchOptions(max_items=2)
    assert spent(options, Trace(1)).full(0) is None
    assert spent(options, Trace(1), Trace(2)).full(0) == "the cap of 2 inputs"


def test_cap_on_failures_says_how_many_there_were() -> None:
    options = BatchOptions(max_failures=Share.read(2))
    assert spent(options, Trace(1), failed=1).full(0) is None
    assert spent(options, Trace(1), failed=2).full(0) == "the cap on failures, with 2 of 3"
