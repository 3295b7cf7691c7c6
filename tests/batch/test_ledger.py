"""What a batch knows of its inputs: held against a model through runs, errors and crashes."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncchat.batch.item import BadItem, Item, canonical, identity
from asyncchat.batch.journal import Journal, final_lines
from asyncchat.batch.ledger import Differences, Ledger, Standing
from asyncchat.batch.options import BatchOptions, Price
from asyncchat.batch.record import Attempt, BatchError, Sample, SessionNote, Trace
from asyncchat.errors import JournalError, JournalLocked, JournalMismatch

BODY = b'{"choices":[{"message":{"content":"yes"}}]}'
ONE, OTHER = "1" * 32, "2" * 32
NEVER = BatchOptions(fsync="never")


def answer(ledger: Ledger, key: str, hash_: str = ONE, **trace: object) -> None:
    ledger.write(key, Trace(1, hash_, **trace), body=BODY)  # type: ignore[arg-type]


def fail(ledger: Ledger, key: str, hash_: str = ONE, code: str = "server") -> None:
    ledger.write(key, Trace(1, hash_), error=BatchError(code, "no"))


def reopened(ledger: Ledger, options: BatchOptions = NEVER) -> Ledger:
    ledger.close()
    return Ledger(ledger._directory, options)


# ---------------------------------------------------------------------------------------- standing


def test_input_is_new_until_it_has_a_record_and_then_recorded(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    assert ledger.standing("a", ONE) == "new"
    assert ledger.standing("a", ONE) == "twice"
    answer(ledger, "a")
    ledger = reopened(ledger)
    assert ledger.known == 1
    assert ledger.standing("a", ONE) == "recorded"
    assert ledger.standing("a", OTHER) == "twice"
    assert ledger.standing("b", ONE) == "new"
    ledger.close()
    ledger.close()


def test_answered_input_that_says_something_else_has_changed(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    answer(ledger, "a")
    ledger = reopened(ledger)
    assert ledger.standing("a", OTHER) == "changed"
    ledger.close()


def test_failed_input_is_final_unless_it_is_mended_or_asked_for(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    fail(ledger, "a")
    fail(ledger, "b", "", "invalid_line")
    ledger = reopened(ledger)
    assert ledger.known == 2
    assert ledger.standing("a", ONE) == "recorded"
    assert ledger.standing("b", "") == "recorded"
    ledger = reopened(ledger)
    assert ledger.standing("a", OTHER) == "new"
    assert ledger.standing("b", ONE) == "new"
    ledger = reopened(ledger, BatchOptions(retry_errors=frozenset({"server"})))
    assert ledger.known == 1
    assert ledger.standing("a", ONE) == "new"
    assert ledger.standing("b", "") == "recorded"
    ledger.close()


def test_second_record_of_an_input_is_known_before_it_is_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    ledger.standing("a", ONE)
    answer(ledger, "a")
    ledger.standing("b", ONE)
    fail(ledger, "b")
    assert ledger.superseded == 0
    ledger = reopened(ledger)
    ledger.standing("a", ONE)
    ledger.standing("b", ONE)
    ledger.standing("c", ONE)
    assert ledger.superseded == 0
    ledger = reopened(ledger, BatchOptions(retry_errors=frozenset({"server"})))
    ledger.standing("a", ONE)
    ledger.standing("b", ONE)
    assert ledger.superseded == 1
    answer(ledger, "b")
    ledger = reopened(ledger)
    assert ledger.superseded == 1
    ledger.close()


def test_name_for_a_double_is_the_same_in_each_run(tmp_path: Path) -> None:
    for _ in range(2):
        ledger = Ledger(tmp_path, NEVER)
        names = [ledger.name_for_double(key) for key in ("a", "a", "b")]
        assert names == ["a#2", "a#3", "b#2"]
        ledger.close()


_EVENTS = st.lists(
    st.tuples(
        st.sampled_from("abcd"),
        st.sampled_from([ONE, OTHER]),
        st.sampled_from(["ok", "server", "timeout", "nothing"]),
    ),
    max_size=12,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(
    st.lists(st.tuples(_EVENTS, st.sampled_from([False, True, frozenset({"server"})])), max_size=5)
)
def test_any_sequence_of_runs_knows_what_a_model_knows(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[tuple[list[tuple[str, str, str]], bool | frozenset[str]]],
) -> None:
    """An input is what it says and what came of it; a run that changes an answered one asks again."""
    directory = tmp_path_factory.mktemp("job")
    model: dict[str, tuple[str, str]] = {}  # what counts: the request's hash, and what came
    for events, retry in runs:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)  # 300 of them
            ledger = Ledger(directory, BatchOptions(fsync="never", retry_errors=retry))
        opened = {
            key: (hash_, came)
            for key, (hash_, came) in model.items()
            if came == "ok" or not (retry is True or (retry and came in retry))
        }
        assert ledger.known == len(opened)
        seen: set[str] = set()
        for key, hash_, came in events:
            standing = ledger.standing(key, hash_)
            known = opened.get(key)
            expected: Standing = "new"
            if key in seen:
                expected = "twice"
            elif known is not None and known[0] == hash_:
                expected = "recorded"
            elif known is not None and known[1] == "ok":
                expected = "changed"
            assert standing == expected
            if standing in ("new", "changed") and came != "nothing":
                if came == "ok":
                    answer(ledger, key, hash_)
                else:
                    fail(ledger, key, hash_, came)
                before = model.get(key)
                if before is None or came == "ok" or before != (hash_, "ok"):
                    model[key] = hash_, came
            seen.add(key)
        ledger.close()
        counting = {
            outcome.custom_id: (
                outcome.trace.hash,
                "ok" if outcome.error is None else outcome.error.code,
            )
            for outcome, _ in final_lines(directory)
        }
        assert counting == model


# ------------------------------------------------------------------------------------------ the job


def test_job_keeps_its_name_and_notes_how_it_was_run(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    ledger.begin({"name": "in"}, {"model": "m"}, {"concurrency": 3})
    first = ledger.job
    ledger = reopened(ledger)
    assert ledger.input is None  # nothing is recorded yet
    ledger.begin({"name": "other"}, {"model": "n"}, {})
    assert ledger.job.id == first.id
    answer(ledger, "a")
    ledger = reopened(ledger)
    assert ledger.input == {"name": "other"}
    ledger.begin({"name": "third"}, {"model": "n"}, {})
    assert (ledger.job.input, ledger.job.run) == ({"name": "third"}, {})
    ledger.close()


def test_other_options_than_those_of_the_records_are_refused_by_name(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    ledger.begin({}, {"model": "m", "temperature": 1}, {})
    answer(ledger, "a")
    ledger = reopened(ledger)
    with pytest.raises(JournalMismatch, match="other options: model, top_p") as caught:
        ledger.begin({}, {"model": "n", "temperature": 1, "top_p": 0.5}, {})
    assert "another job directory" in caught.value.hint
    ledger.close()


def test_options_are_compared_as_json_has_them(tmp_path: Path) -> None:
    options = {"stop": ("a", "b"), "logit_bias": {50256: -100}, "temperature": 1}
    ledger = Ledger(tmp_path, NEVER)
    ledger.begin({}, options, {})
    answer(ledger, "a")
    ledger = reopened(ledger)
    ledger.begin({}, {**options, "temperature": 1.0}, {})
    assert ledger.standing("a", ONE) == "recorded"
    ledger.begin({}, options, {})  # another run of the same: nothing was seen in it yet
    assert ledger.standing("a", ONE) == "recorded"
    ledger.close()


def test_two_ledgers_of_one_job_are_one_too_many_unless_one_is_a_shard(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    with pytest.raises(JournalLocked):
        Ledger(tmp_path, NEVER)
    shard = Ledger(tmp_path, NEVER, shard="1")
    answer(shard, "a")
    shard.close()
    ledger.close()
    assert [outcome.custom_id for outcome, _ in final_lines(tmp_path)] == ["a"]


def test_ledger_that_cannot_be_opened_leaves_no_lock(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("no job")
    with pytest.raises(JournalError):
        Ledger(tmp_path, NEVER)
    (tmp_path / "job.json").unlink()
    Ledger(tmp_path, NEVER).close()


def test_torn_record_is_told_and_its_input_new(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    answer(ledger, "a")
    ledger.close()
    path = tmp_path / "done-0001.jsonl"
    os.truncate(path, path.stat().st_size - 1)
    ledger = Ledger(tmp_path, NEVER)
    assert len(ledger.warnings) == 1
    assert ledger.standing("a", ONE) == "new"
    ledger.close()


# ---------------------------------------------------------------------------------------- comparing


def item(key: str, text: str) -> Item:
    return Item(1, key, {"messages": [{"role": "user", "content": text}]})


def hash_of_item(one: Item) -> str:
    return identity(canonical(one.body))


def test_differences_are_counted_and_told_with_examples(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    for key in ("same", "changed", "gone"):
        answer(ledger, key, hash_of_item(item(key, "x")))
    fail(ledger, "failed", hash_of_item(item("failed", "x")))
    ledger = reopened(ledger)
    found = Differences(gone=ledger.known)
    ledger.compare(
        [
            item("same", "x"),
            item("changed", "y"),
            item("failed", "y"),
            BadItem(1, "new", "invalid_line", ""),
        ],
        found,
    )
    assert (found.added, found.changed, found.gone) == (1, 1, 1)
    assert not found.is_harmless
    assert "1 inputs say something else" in str(found)
    assert "(such as 'changed')" in str(found)
    assert ledger.standing("same", hash_of_item(item("same", "x"))) == "recorded"
    ledger.close()


def test_more_inputs_at_the_end_are_no_harm(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    found = Differences(gone=ledger.known)
    ledger.compare([item(str(number), "x") for number in range(5)], found)
    assert found.is_harmless
    assert str(found) == "5 are new"
    ledger.close()


def test_three_examples_are_enough(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    for number in range(5):
        answer(ledger, str(number), ONE)
    ledger = reopened(ledger)
    found = Differences(gone=ledger.known)
    ledger.compare([item(str(number), "x") for number in range(5)], found)
    assert (found.changed, len(found.examples)) == (5, 3)
    ledger.close()


# ------------------------------------------------------------------------------------------ records


def test_answers_to_the_same_request_are_found_again_also_those_of_earlier_runs(
    tmp_path: Path,
) -> None:
    options = BatchOptions(dedupe=True, fsync="never")
    ledger = Ledger(tmp_path, options)
    assert ledger.answer_to(ONE) is None
    fail(ledger, "failed", ONE)
    assert ledger.answer_to(ONE) is None
    answer(ledger, "a", ONE)
    answer(ledger, "b", ONE, reused="a")
    ledger = reopened(ledger, options)
    found = ledger.answer_to(ONE)
    assert found is not None
    assert (found.custom_id, found.text) == ("a", "yes")
    ledger = reopened(ledger)
    assert ledger.answer_to(ONE) is None  # nobody keeps track
    ledger.close()


def test_line_of_another_writer_is_not_taken_for_the_answer(tmp_path: Path) -> None:
    options = BatchOptions(dedupe=True, fsync="never")
    ledger = Ledger(tmp_path, options, shard="b")
    answer(ledger, "b", ONE)
    other = Ledger(tmp_path, NEVER, shard="a")
    path = tmp_path / "done-0001-a.jsonl"  # as it comes about when both begin at once
    (tmp_path / "done-0002-a.jsonl").rename(path)
    answer(other, "a", OTHER)
    assert ledger.answer_to(ONE) is None
    path.write_bytes(b"torn")
    assert ledger.answer_to(ONE) is None
    for one in (ledger, other):
        one.close()


def test_spending_goes_on_from_what_earlier_runs_paid(tmp_path: Path) -> None:
    options = BatchOptions(price=Price(1, 1), max_tokens_total=100, fsync="never")
    ledger = Ledger(tmp_path, options)
    answer(ledger, "a", tokens=(40, 20, 0), cost=0.5)
    ledger.write("a", Trace(1, ONE, tokens=(30, 10, 0)), error=BatchError("mismatch", ""))
    ledger = reopened(ledger, options)
    assert (ledger.spending.tokens, ledger.spending.cost) == (100, 0.5)
    assert ledger.spending.full(0) == "the cap of 100 tokens"
    ledger.close()


@pytest.mark.parametrize(("fsync", "expected"), [("always", 3), ("1s", 0), ("never", 0)])
def test_each_record_is_synced_where_that_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fsync: str, expected: int
) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fdatasync", synced.append)
    ledger = Ledger(tmp_path, BatchOptions(fsync=fsync))  # type: ignore[arg-type]
    for key in "abc":
        answer(ledger, key)
    assert len(synced) == expected
    ledger.sync()
    ledger.close()
    ledger.sync()
    ledger.note(Sample(1.0))


def test_notes_are_kept_apart_for_the_report(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, NEVER)
    ledger.note(Attempt(1.0, "a", 1, "server"))
    ledger.note(SessionNote(1.0))
    ledger.note(Sample(2.0))
    ledger.close()
    assert (tmp_path / "attempts.jsonl").read_bytes().count(b"\n") == 1
    assert (tmp_path / "samples.jsonl").read_bytes().count(b"\n") == 2


def test_record_that_could_not_be_written_is_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger = Ledger(tmp_path, BatchOptions(dedupe=True, fsync="never"))

    def full(*_: object) -> None:
        raise JournalError("full")

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(JournalError):
        answer(ledger, "a", tokens=(1, 1, 0))
    assert ledger.spending.tokens == 0
    assert ledger.answer_to(ONE) is None
    ledger.close()
