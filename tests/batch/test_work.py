"""One input after the other: what is asked again and when, what becomes a record, and what is written in it."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pytest

from asyncchat.batch.check import Check, by_schema, by_type
from asyncchat.batch.item import BadItem, Item
from asyncchat.batch.ledger import Ledger
from asyncchat.batch.meter import Meter
from asyncchat.batch.options import BatchOptions, Price
from asyncchat.batch.work import Todo, Work
from asyncchat.errors import (
    APIConnectionError,
    APITimeoutError,
    AsyncChatError,
    ConflictError,
    JournalError,
    JournalMismatch,
    LimitExceeded,
    LineFull,
    PoolClosed,
    ProtocolError,
    StreamCut,
    StreamStalled,
    status_error,
)
from asyncchat.protocol.answer import AnswerReader, plain_answer
from asyncchat.protocol.response import Completion
from asyncchat.protocol.schema import output_type
from tests.batch.conftest import completion, lines_of, recorded

if TYPE_CHECKING:
    from asyncchat.batch.record import BatchRecord
    from asyncchat.client.core import Asker

NUMBER = {"type": "integer"}
USAGE = {"prompt_tokens": 10, "completion_tokens": 5}
Given = str | bytes | Completion | Exception


def answer_of(text: str, **fields: Any) -> Completion:
    raw = msgspec.json.encode(completion(text, **fields))
    return msgspec.json.decode(raw, type=Completion)


class FakeAsker:
    """Gives what a test lists, one for each request, and writes down what it was asked."""

    def __init__(self, *given: Given) -> None:
        self.given = list(given)
        self.asked: list[tuple[dict[str, Any], str]] = []
        self.pool = SimpleNamespace(line=SimpleNamespace(waiting=0))

    def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        return {"model": "m", **body}

    async def __call__(
        self, body: bytes, key: str, sent: object
    ) -> tuple[Completion, bytes, bool]:
        self.asked.append((msgspec.json.decode(body), key))
        given = self.given.pop(0)
        if isinstance(given, Exception):
            raise given
        if isinstance(given, bytes):
            return AnswerReader().read_whole(given), given, False
        return (answer_of(given) if isinstance(given, str) else given), b"", False


class Bench:
    """Work on a job in a directory, with a clock of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.ledger: Ledger | None = None
        self.now = 1000.0
        self.given: list[tuple[str, BatchRecord]] = []

    def work(self, *given: Given, check: Check | None = None, **options: Any) -> Work:
        self.close()
        made = BatchOptions(**{"fsync": "never", **options})
        self.ledger = Ledger(self.directory, made)
        self.ledger.begin({}, {}, {})
        self.asker = FakeAsker(*given)
        work = Work(self.ledger, cast("Asker", self.asker), made, check, Meter(0.0))
        work.clock, work.rand = lambda: self.now, lambda: 1.0
        work.give = lambda todo, record: self.given.append((todo.key, record))
        return work

    def close(self) -> None:
        if self.ledger is not None:
            self.ledger.close()

    async def to_the_end(self, work: Work, todo: Todo) -> list[float]:
        """Ask until there is a record, and return the waits."""
        waits: list[float] = []
        while (wait := await work.ask(todo)) is not None:
            waits.append(wait)
            self.now += wait
        return waits


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def item(key: str = "a", text: str = "?", n: int = 1, **fields: Any) -> Item:
    return Item(n, key, {"messages": [{"role": "user", "content": text}], **fields})


def taken(work: Work, one: Item | BadItem | None = None) -> Todo:
    todo = work.take(one or item())
    assert todo is not None
    return todo


# ------------------------------------------------------------------------------- attempts and waits

RETRIED = [
    APIConnectionError(""),
    APITimeoutError(""),
    StreamStalled(""),
    StreamCut(""),
    ProtocolError(""),
    LimitExceeded(""),
    ConflictError("", retryable=True),
    LineFull(""),
    status_error(408, ""),
    status_error(500, ""),
    status_error(503, ""),
]


@pytest.mark.parametrize("error", RETRIED, ids=lambda error: type(error).__name__)
async def test_failure_that_may_pass_is_asked_again(bench: Bench, error: Exception) -> None:
    work = bench.work(error, "yes")
    todo = taken(work)
    assert len(await bench.to_the_end(work, todo)) == 1
    record = recorded(bench.directory)["a"]
    assert (record.text, record.trace.attempts, record.trace.refused) == ("yes", 2, 0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (status_error(400, "too long"), "bad_request"),
        (status_error(413, ""), "bad_request"),
        (status_error(501, "", should_retry=False), "server"),
        (AsyncChatError(""), "other"),
        (ValueError("no messages"), "bad_request"),
        (TypeError("n is a str"), "bad_request"),
    ],
)
async def test_failure_that_will_not_pass_is_recorded_at_once(
    bench: Bench, error: Exception, code: str
) -> None:
    work = bench.work(error)
    assert await work.ask(taken(work)) is None
    found = recorded(bench.directory)["a"].error
    assert found is not None
    assert (found.code, found.message) == (code, str(error))


async def test_waits_double_up_to_a_minute_and_end_with_the_attempts(bench: Bench) -> None:
    work = bench.work(*[status_error(500, "broken")] * 10, retries=9)
    waits = await bench.to_the_end(work, taken(work))
    assert waits == [0.5, 1, 2, 4, 8, 16, 32, 60, 60]
    record = recorded(bench.directory)["a"]
    assert record.error is not None
    assert (record.error.code, record.error.status_code) == ("server", 500)
    assert record.trace.attempts == 10
    assert record.trace.t_total == sum(waits)


async def test_wait_is_random_but_never_shorter_than_was_asked(bench: Bench) -> None:
    work = bench.work(status_error(503, "", retry_after=7.0), status_error(503, ""), "yes")
    work.rand = lambda: 0.5
    assert await bench.to_the_end(work, taken(work)) == [7.0, 0.5]


async def test_wait_that_a_server_asks_for_is_bounded(bench: Bench) -> None:
    work = bench.work(status_error(503, "", retry_after=86400.0), "yes")
    assert await bench.to_the_end(work, taken(work)) == [60.0]


async def test_being_told_to_come_later_is_no_attempt(bench: Bench) -> None:
    work = bench.work(*[status_error(429, "")] * 50, "yes", retries=0)
    waits = await bench.to_the_end(work, taken(work))
    assert len(waits) == 50
    trace = recorded(bench.directory)["a"].trace
    assert (trace.attempts, trace.refused) == (51, 50)


async def test_failures_in_an_outage_are_no_attempts(bench: Bench) -> None:
    work = bench.work(*[APIConnectionError("")] * 100, "yes", retries=30)
    todo = taken(work)
    await bench.to_the_end(work, todo)
    assert recorded(bench.directory)["a"].ok
    assert todo.attempts < 30
    assert work.ends_outage


async def test_failed_attempts_are_noted_without_a_word_of_the_prompt(bench: Bench) -> None:
    error = status_error(500, "secret words", endpoint="http://here/v1")
    work = bench.work(error, "yes")
    await bench.to_the_end(work, taken(work, item(text="a secret")))
    (line,) = (bench.directory / "attempts.jsonl").read_bytes().splitlines()
    noted = msgspec.json.decode(line)
    assert noted["custom_id"] == "a"
    assert (noted["kind"], noted["status"], noted["wait"]) == ("server", 500, 0.5)
    assert noted["endpoint"] == "http://here/v1"
    assert b"secret" not in line


async def test_closed_client_leaves_no_record(bench: Bench) -> None:
    work = bench.work(PoolClosed(""))
    with pytest.raises(PoolClosed):
        await work.ask(taken(work))
    assert lines_of(bench.directory) == []


async def test_full_disk_is_no_fault_of_the_input(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise JournalError("full")

    monkeypatch.setattr(Ledger, "write", full)
    unfinished: dict[str, Any] = {"retry_finish": ("stop",), "retries": 0}
    for given, options in (
        ("yes", {}),
        (status_error(400, ""), {}),
        ("yes", unfinished),
        (ValueError(), {}),
    ):
        work = bench.work(given, **options)
        with pytest.raises(JournalError):
            await work.ask(taken(work))
    assert bench.given == []


# --------------------------------------------------------------------------------- refused for good

FOR_GOOD = [
    (status_error(401, ""), "auth"),
    (status_error(403, ""), "auth"),
    (status_error(404, ""), "not_found"),
    (status_error(429, "", code="insufficient_quota"), "quota"),
]


@pytest.mark.parametrize(("error", "code"), FOR_GOOD)
async def test_input_refused_while_others_are_answered_is_to_blame_itself(
    bench: Bench, error: Exception, code: str
) -> None:
    work = bench.work(error, "yes", error)
    refused, good = taken(work, item("a")), taken(work, item("b"))
    wait = await work.ask(refused)
    assert wait == 0.5
    bench.now += 0.1
    assert await work.ask(good) is None
    assert await work.ask(refused) is None
    found = recorded(bench.directory)["a"].error
    assert found is not None
    assert found.code == code
    assert work.health.hopeless(bench.now) is None


@pytest.mark.parametrize("error", [error for error, _ in FOR_GOOD])
async def test_answer_to_what_was_sent_before_a_refusal_proves_nothing(
    bench: Bench, error: Exception
) -> None:
    work = bench.work("yes", error, error)
    refused, good = taken(work, item("a")), taken(work, item("b"))
    # The good one is asked first, and answered after the other was refused.
    asker, first = bench.asker, bench.asker.given.pop(0)
    sent_at = bench.now
    bench.now += 0.1
    assert await work.ask(refused) == 0.5
    bench.now += 0.1
    asker.given.insert(0, first)
    work.clock = lambda: sent_at
    assert await work.ask(good) is None
    work.clock = lambda: bench.now
    assert await work.ask(refused) == 0.5
    assert list(recorded(bench.directory)) == ["b"]


@pytest.mark.parametrize("error", [error for error, _ in FOR_GOOD])
async def test_input_that_is_refused_alone_ends_the_batch_without_a_record(
    bench: Bench, error: Exception
) -> None:
    work = bench.work(*[error] * 5)
    todo = taken(work)
    for _ in range(5):
        assert work.health.hopeless(bench.now) is None
        assert await work.ask(todo) == 0.5
        bench.now += 0.5
    assert work.health.hopeless(bench.now) is not None
    assert lines_of(bench.directory) == []


async def test_last_input_with_a_wrong_model_is_recorded_where_others_were_answered(
    bench: Bench,
) -> None:
    work = bench.work("yes", *[status_error(404, "no such model")] * 5)
    await work.ask(taken(work, item("good")))
    bench.now += 1
    assert len(await bench.to_the_end(work, taken(work, item("bad", model="wrong")))) == 4
    assert recorded(bench.directory)["bad"].error is not None
    assert work.health.hopeless(bench.now) is None


# --------------------------------------------------------------------------------------- taking up


async def test_input_with_a_record_is_nothing_to_do(bench: Bench) -> None:
    work = bench.work("yes")
    assert bench.ledger is not None
    todo = taken(work)
    bench.ledger.write("a", work._trace(todo, None, None), body=b"{}")
    assert bench.work().take(item()) is None


async def test_second_input_of_a_name_is_an_error_under_another(bench: Bench) -> None:
    for _ in range(2):
        work = bench.work("yes")
        for text in ("1", "2", "3"):
            if (todo := work.take(item("a", text))) is not None:
                await work.ask(todo)
    found = recorded(bench.directory)
    assert {key: record.error and record.error.code for key, record in found.items()} == {
        "a": None,
        "a#2": "duplicate_id",
        "a#3": "duplicate_id",
    }
    assert len(lines_of(bench.directory)) == 3


@pytest.mark.parametrize("order", [["a", "a#2", "a"], ["a", "a", "a#2"], ["a#2", "a", "a"]])
async def test_name_for_a_double_takes_no_other_inputs(bench: Bench, order: list[str]) -> None:
    for _ in range(2):
        work = bench.work("yes", "yes")
        for number, key in enumerate(order):
            if (todo := work.take(item(key, str(number)))) is not None:
                await work.ask(todo)
    found = recorded(bench.directory)
    assert len(found) == len(lines_of(bench.directory)) == 3
    assert found["a"].ok
    if order != ["a", "a", "a#2"]:
        assert found["a#2"].ok


async def test_bad_input_is_a_record_and_not_asked(bench: Bench) -> None:
    work = bench.work(dedupe=True)
    todo = taken(work, BadItem(7, "line-7", "invalid_line", "line 7: it is not JSON"))
    assert work.cap(todo, 0) is None
    assert await work.ask(todo) is None
    record = recorded(bench.directory)["line-7"]
    assert record.error is not None
    assert (record.n, record.error.code, record.error.message) == (
        7,
        "invalid_line",
        "line 7: it is not JSON",
    )
    assert bench.asker.asked == []


async def test_body_that_is_no_json_is_a_bad_input(bench: Bench) -> None:
    work = bench.work()
    await work.ask(taken(work, item(strange=object())))
    found = recorded(bench.directory)["a"].error
    assert found is not None
    assert found.code == "invalid_line"


async def test_changed_input_is_refused_or_kept_or_asked_again(bench: Bench) -> None:
    work = bench.work("old")
    await work.ask(taken(work, item(text="1")))
    with pytest.raises(JournalMismatch, match="input 4 \\('a'\\)") as caught:
        bench.work().take(item(text="2 secret", n=4))
    assert "on_change='rerun'" in caught.value.hint
    assert "secret" not in str(caught.value)
    assert bench.work(on_change="keep").take(item(text="2")) is None
    work = bench.work("new", on_change="rerun")
    await work.ask(taken(work, item(text="2")))
    assert recorded(bench.directory)["a"].text == "new"
    assert bench.work(on_change="rerun").take(item(text="2")) is None


async def test_changed_input_that_fails_does_not_keep_the_answer_to_another_question(
    bench: Bench,
) -> None:
    work = bench.work("old")
    await work.ask(taken(work, item(text="1")))
    work = bench.work(status_error(400, ""), on_change="rerun")
    await work.ask(taken(work, item(text="2")))
    assert recorded(bench.directory)["a"].error is not None


# ------------------------------------------------------------------------------------------- dedupe


async def test_same_request_is_sent_once_and_answers_each(bench: Bench) -> None:
    work = bench.work("yes", dedupe=True)
    leader = taken(work, item("a"))
    followers = [taken(work, item(key)) for key in "bc"]
    assert [one.is_follower for one in (leader, *followers)] == [False, True, True]
    await work.ask(leader)
    late = taken(work, item("d"))
    assert not late.is_follower
    await work.ask(late)
    found = recorded(bench.directory)
    assert {key: (record.text, record.trace.reused) for key, record in found.items()} == {
        "a": ("yes", None),
        "b": ("yes", "a"),
        "c": ("yes", "a"),
        "d": ("yes", "a"),
    }
    assert [key for key, _ in bench.given] == ["a", "b", "c", "d"]
    assert len(bench.asker.asked) == 1


async def test_same_request_in_a_later_run_is_not_sent_again(bench: Bench) -> None:
    work = bench.work(msgspec.json.encode(completion("yes", provider="p")), dedupe=True)
    await work.ask(taken(work, item("a")))
    work = bench.work(dedupe=True)
    one = taken(work, item("b"))
    other = taken(work, item("c"))
    await work.ask(one)
    assert other.is_follower
    found = recorded(bench.directory)
    assert found["b"].trace.reused == found["c"].trace.reused == "a"
    assert found["b"].completion is not None
    assert found["b"].completion.model_extra == {"provider": "p"}


async def test_failure_is_that_of_all_who_ask_the_same(bench: Bench) -> None:
    work = bench.work(status_error(400, ""), "yes", dedupe=True)
    leader, _ = taken(work, item("a")), taken(work, item("b"))
    await work.ask(leader)
    assert {key: record.ok for key, record in recorded(bench.directory).items()} == {
        "a": False,
        "b": False,
    }
    await work.ask(taken(work, item("c")))  # and nobody's who comes later
    assert recorded(bench.directory)["c"].ok


# ---------------------------------------------------------------------------------- answers that fit


async def test_answer_that_does_not_fit_is_asked_again_with_what_was_wrong(bench: Bench) -> None:
    work = bench.work("three", "3", check=by_schema(NUMBER))
    assert await bench.to_the_end(work, taken(work)) == [0.0]
    first, second = (body["messages"] for body, _ in bench.asker.asked)
    assert second[: len(first)] == first
    assert second[len(first)] == {"role": "assistant", "content": "three"}
    assert second[-1]["role"] == "user"
    assert "no JSON" in second[-1]["content"]
    record = recorded(bench.directory)["a"]
    assert (record.text, record.trace.attempts) == ("3", 2)


async def test_answer_that_does_not_fit_after_its_repairs_is_kept_in_the_error(
    bench: Bench,
) -> None:
    work = bench.work("three", "drei", check=by_type(output_type(int)))
    await bench.to_the_end(work, taken(work))
    found = recorded(bench.directory)["a"].error
    assert found is not None
    assert (found.code, found.text) == ("mismatch", "drei")
    work = bench.work("three", check=by_type(output_type(int)), repairs=0, retry_errors=True)
    await bench.to_the_end(work, taken(work))
    found = recorded(bench.directory)["a"].error
    assert found is not None
    assert found.text == "three"


async def test_repair_is_of_the_same_input_in_the_next_run(bench: Bench) -> None:
    work = bench.work("three", "3", check=by_schema(NUMBER))
    await bench.to_the_end(work, taken(work))
    assert bench.work().take(item()) is None


async def test_failure_between_keeps_the_repair(bench: Bench) -> None:
    work = bench.work("three", status_error(500, ""), "3", check=by_schema(NUMBER))
    await bench.to_the_end(work, taken(work))
    keys = [key for _, key in bench.asker.asked]
    assert keys[0] != keys[1] == keys[2]
    assert len(bench.asker.asked[2][0]["messages"]) == 3


def cut_short(text: str = "thre", reason: str = "length", **fields: Any) -> Completion:
    made = answer_of(text, **fields)
    made.choices[0].finish_reason = reason
    return made


@pytest.mark.parametrize("check", [None, by_schema(NUMBER)])
async def test_finish_that_is_no_answer_is_an_attempt(bench: Bench, check: Check | None) -> None:
    work = bench.work(cut_short(), "3", check=check, retry_finish=("length",))
    assert await bench.to_the_end(work, taken(work)) == [0.5]
    assert recorded(bench.directory)["a"].text == "3"
    keys = [key for _, key in bench.asker.asked]
    assert keys[0] != keys[1]  # or a server that knows it would say the same again


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_finish_that_is_no_answer_each_time_is_an_error(bench: Bench, reason: str) -> None:
    given = [cut_short("th", reason), cut_short("thr", reason)]
    work = bench.work(*given, retry_finish=(reason,), retries=1)
    await bench.to_the_end(work, taken(work))
    found = recorded(bench.directory)["a"].error
    assert found is not None
    assert (found.code, found.text) == (reason, "thr")


async def test_answer_cut_at_its_limit_is_an_answer_where_nothing_has_to_fit(
    bench: Bench,
) -> None:
    work = bench.work(cut_short())
    await work.ask(taken(work))
    assert recorded(bench.directory)["a"].ok


# ------------------------------------------------------------------------------------------ the trace


async def test_tokens_and_cost_count_every_answer_that_was_paid(bench: Bench) -> None:
    bad, good = answer_of("three", usage=USAGE), answer_of("3", usage=USAGE)
    work = bench.work(
        cut_short(usage=USAGE),
        bad,
        good,
        check=by_schema(NUMBER),
        price=Price(1e6, 2e6),
        retry_finish=("length",),
    )
    await bench.to_the_end(work, taken(work))
    trace = recorded(bench.directory)["a"].trace
    assert trace.tokens == (30, 15, 0)
    assert trace.cost == 60.0
    assert bench.ledger is not None
    assert bench.ledger.spending.cost == 60.0


async def test_error_has_the_cost_of_its_answers(bench: Bench) -> None:
    bad = answer_of("three", usage={**USAGE, "prompt_tokens_details": {"cached_tokens": 4}})
    work = bench.work(bad, bad, check=by_schema(NUMBER))
    await bench.to_the_end(work, taken(work))
    trace = recorded(bench.directory)["a"].trace
    assert (trace.tokens, trace.cost) == ((20, 10, 8), None)


async def test_tokens_that_nobody_counted_are_unknown(bench: Bench) -> None:
    work = bench.work(answer_of("yes", usage={"completion_tokens": 3}))
    await work.ask(taken(work))
    assert recorded(bench.directory)["a"].trace.tokens is None


async def test_cap_counts_what_is_taken_up(bench: Bench) -> None:
    work = bench.work(max_items=1)
    first, second = taken(work, item("a")), taken(work, item("b"))
    assert work.cap(first, 0) is None
    assert work.cap(second, 0) == "the cap of 1 inputs"
    assert not work.is_crowded
    bench.asker.pool.line.waiting = 1
    assert work.is_crowded


# --------------------------------------------------------------------------------- keys and lines


async def test_idempotency_key_is_that_of_the_input_in_every_attempt_and_run(
    bench: Bench,
) -> None:
    keys = []
    for _ in range(2):
        work = bench.work(status_error(500, ""), PoolClosed(""))
        todo = taken(work, item("a", "secret"))
        await work.ask(todo)
        with pytest.raises(PoolClosed):
            await work.ask(todo)
        keys += [key for _, key in bench.asker.asked]
    assert len(keys) == 4
    assert len(set(keys)) == 1
    assert "secret" not in keys[0]
    work = bench.work("yes", "yes")
    for other in (item("b", "secret"), item("a", "else")):
        await work.ask(taken(work, other))
    assert keys[0] not in {key for _, key in bench.asker.asked}


PRETTY = msgspec.json.format(msgspec.json.encode(completion("yes")), indent=2)


@pytest.mark.parametrize(
    "raw",
    [
        PRETTY,
        PRETTY.replace(b"\n", b"\r\n"),
        msgspec.json.encode(completion("grün", provider={"x": 1})),
        b"[" + PRETTY + b"]",
        b"\xff" + PRETTY,
        PRETTY.replace(b"yes", b"y\xffs"),
        PRETTY + b"and more",
        b"",
    ],
)
async def test_answer_is_recorded_on_one_line_and_as_it_came_where_that_was_json(
    bench: Bench, raw: bytes
) -> None:
    work = bench.work("x")
    whole = answer_of("yes")

    async def ask(*_: object) -> tuple[Completion, bytes, bool]:
        return whole, raw, plain_answer(raw) is not None

    work._asker = cast("Asker", ask)
    todo = Todo(1, "a", b'{"messages":[]}', "1" * 32)
    assert await work.ask(todo) is None
    (line,) = lines_of(bench.directory)
    body = msgspec.json.decode(line)["response"]["body"]
    try:
        expected = msgspec.json.decode(raw)
        assert isinstance(expected, dict)
    except (ValueError, AssertionError):
        expected = msgspec.json.decode(whole.model_dump_json(exclude_unset=True))
    assert body == expected


async def test_what_is_given_is_what_is_recorded(bench: Bench) -> None:
    work = bench.work("yes", status_error(400, ""))
    for key in "ab":
        await work.ask(taken(work, item(key)))
    found = recorded(bench.directory)
    for key, record in bench.given:
        assert (record.trace, record.error) == (found[key].trace, found[key].error)
        assert record.text == found[key].text


async def test_work_that_nobody_listens_to_is_done(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, BatchOptions(fsync="never"))
    ledger.begin({}, {}, {})
    work = Work(ledger, cast("Asker", FakeAsker("yes")), BatchOptions(), None, Meter(0.0))
    await work.ask(taken(work))
    assert 0 <= work.rand() < 1
    ledger.close()
    assert recorded(tmp_path)["a"].ok
