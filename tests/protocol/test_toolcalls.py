"""Which call a fragment belongs to, what a call is in the end, and when it is told. Numbers are rules of the wire."""

from typing import Any

import pytest

from asyncchat.protocol.events import Event, ToolCallDelta, ToolCallDone, ToolCallStarted
from asyncchat.protocol.model import build
from asyncchat.protocol.response import ToolCall, ToolCallFragment
from asyncchat.protocol.toolcalls import ToolCalls
from tests.protocol.frames import call

Told = tuple[str, int, str]


def gathered(*fragments: dict[str, Any], whole: bool = False) -> ToolCalls:
    calls = ToolCalls(0)
    for fragment in fragments:
        calls.feed(build(ToolCallFragment, fragment), None, whole=whole)
    return calls


def final(*fragments: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = gathered(*fragments).final(ended=True)
    return [(one.id, one.function.name, one.function.arguments) for one in found]


def told(out: list[Event]) -> list[Told]:
    """Events in short: what, which call, and its words."""
    found: list[Told] = []
    for event in out:
        match event:
            case ToolCallStarted(index=index, name=name):
                found.append(("started", index, name))
            case ToolCallDelta(index=index, arguments_delta=text):
                found.append(("delta", index, text))
            case ToolCallDone(index=index, arguments=text):
                found.append(("done", index, text))
            case _:
                pytest.fail(f"{event!r} is about no call")
    return found


class Telling:
    """Feeds fragments, and says what each made known."""

    def __init__(self) -> None:
        self.calls = ToolCalls(0)

    def feed(self, fragment: dict[str, Any]) -> list[Told]:
        out: list[Event] = []
        self.calls.feed(build(ToolCallFragment, fragment), out)
        return told(out)

    def settle(self) -> list[Told]:
        out: list[Event] = []
        self.calls.settle(out)
        return told(out)

    def finish(self) -> list[Told]:
        out: list[Event] = []
        self.calls.finish(self.calls.final(ended=True), out)
        return told(out)


# ----------------------------------------------------------------------------- which call: rules 17-23


@pytest.mark.parametrize("hollow", [{}, {"index": 5}, call(0, "", "", ""), {"type": "function"}])
def test_hollow_entry_opens_nothing(hollow: dict[str, Any]) -> None:  # 17
    assert len(gathered(hollow)) == 0


def test_hollow_entry_gives_its_unknown_fields_to_the_call_it_is_about() -> None:  # 17
    calls = gathered(
        call(0, "a", "f", "{}"), call(1, "b", "g", "{}"), call(0, x=1), call("", y=2)
    ).final(ended=True)
    assert [one.model_extra for one in calls] == [{"x": 1}, {"y": 2}]


def test_hollow_entry_before_any_call_loses_nothing_but_itself() -> None:  # 17
    assert final({"index": 0, "x": 1}, call(0, "a", "f", "{}")) == [("a", "f", "{}")]


def test_blank_and_null_fields_are_absent() -> None:  # 18
    rest = {"index": 0, "id": "", "function": {"name": None, "arguments": "}"}}
    assert final(call(0, "a", "f", "{"), rest) == [("a", "f", "{}")]


def test_name_null_as_text_is_absent_once_a_name_is_known() -> None:  # 18
    assert final(call(0, "a", "f", "{"), call(0, "a", "null", "}")) == [("a", "f", "{}")]


def test_name_null_as_text_is_a_name_where_none_is_known() -> None:  # 18
    assert final(call(0, "a", "null", "{}")) == [("a", "null", "{}")]


def test_known_id_names_its_call_whatever_the_index_says() -> None:  # 19
    assert final(
        call(0, "a", "f", "{"),
        call(1, "b", "g", "{"),
        call(1, "a", None, "}"),
        call(7, "b", None, "}"),
    ) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_every_id_seen_is_an_alias_of_its_call() -> None:  # 19, 24
    assert final(
        call(0, "a", "f", ""),
        call(0, "a2", None, "{"),
        call(1, "b", "g", "{}"),
        call(None, "a2", None, "}"),
    ) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_index_not_seen_with_a_known_id_is_bound_to_its_call() -> None:  # 19
    assert final(
        call(0, "a", "f", "{"), call(3, "a", None, '"x"'), call(3, None, None, ":1}")
    ) == [("a", "f", '{"x":1}')]


def test_call_may_begin_with_its_id_alone() -> None:  # 20
    assert final({"index": 0, "id": "a"}, call(0, None, "f", "{}")) == [("a", "f", "{}")]


def test_new_id_and_name_at_a_known_index_are_another_call_that_takes_the_index() -> None:  # 20
    assert final(call(0, "a", "f", "{"), call(0, "b", "g", "{"), call(0, None, None, "}")) == [
        ("a", "f", "{"),
        ("b", "g", "{}"),
    ]


def test_id_and_name_that_come_late_belong_to_the_call_at_their_index() -> None:  # 20
    assert final(call(0, None, None, "{"), call(0, "a", "f", "}")) == [("a", "f", "{}")]


def test_late_id_with_the_same_name_belongs_to_the_unfinished_call() -> None:  # 20
    assert final(call(0, None, "f", "{"), call(0, "a", "f", "}")) == [("a", "f", "{}")]


def test_id_with_the_same_name_after_a_finished_call_is_another_call() -> None:  # 20
    (one, other) = final(call(0, None, "f", "{}"), call(0, "b", "f", "{}"))
    assert (one[1:], other) == (("f", "{}"), ("b", "f", "{}"))


def test_another_name_at_the_index_of_a_finished_call_is_another_call() -> None:  # 20
    names = [one[1] for one in final(call(0, "a", "f", "{}"), call(0, None, "g", "{}"))]
    assert names == ["f", "g"]


def test_another_name_at_the_index_of_an_unfinished_call_is_no_other_call() -> None:  # 20
    assert final(call(0, "a", "f", "{"), call(0, None, "g", "}")) == [("a", "f", "{}")]


@pytest.mark.parametrize("index", [-1, 9, 1])
def test_new_index_without_id_and_name_goes_on_with_the_unfinished_call(index: int) -> None:  # 21
    assert final(
        call(0, "a", "f", "{"), call(index, None, None, '"x"'), call(index, None, None, ":1}")
    ) == [("a", "f", '{"x":1}')]


def test_new_index_after_a_finished_call_is_another_call() -> None:  # 21
    assert len(final(call(0, "a", "f", "{}"), call(1, None, None, "{}"))) == 2


@pytest.mark.parametrize("index", [-1, 7])
def test_first_index_may_be_any_number(index: int) -> None:  # 21
    assert final(call(index, "a", "f", "{"), call(index, None, None, "}")) == [("a", "f", "{}")]


def test_name_without_index_is_another_call() -> None:  # 22
    assert final(
        call(None, "a", "f", "{}"), call(None, "b", "g", "{"), call(None, None, None, "}")
    ) == [("a", "f", "{}"), ("b", "g", "{}")]


def test_name_without_index_that_repeats_the_unfinished_call_is_no_other_call() -> None:  # 22
    assert final(call(None, "a", "f", "{"), call(None, None, "f", "}")) == [("a", "f", "{}")]


def test_name_without_index_after_the_finished_call_of_that_name_is_another_call() -> None:  # 22
    assert len(final(call(None, None, "f", "{}"), call(None, None, "f", "{}"))) == 2


def test_new_id_with_the_same_name_and_no_index_is_another_call() -> None:  # 22
    assert final(call(None, "a", "f", ""), call(None, "b", "f", "{}")) == [
        ("a", "f", "{}"),
        ("b", "f", "{}"),
    ]


def test_name_without_index_is_the_late_name_of_the_open_call() -> None:  # 22
    assert final(call(None, "a", None, "{"), call(None, None, "f", "}")) == [("a", "f", "{}")]


def test_id_alone_without_index_is_a_late_id_of_the_open_call() -> None:  # 22
    assert final(call(None, None, "f", "{"), call(None, "a", None, "}")) == [("a", "f", "{}")]


def test_order_is_that_of_first_appearance() -> None:  # 23
    names = [
        one[1]
        for one in final(call(5, "a", "f", "{"), call(2, "b", "g", "{}"), call(5, None, None, "}"))
    ]
    assert names == ["f", "g"]


def test_missing_ids_are_made_unique_even_among_ids_that_look_made() -> None:  # 23
    ids = [
        one[0]
        for one in final(
            call(0, None, "f", "{}"), call(1, "call_0", "g", "{}"), call(2, None, "h")
        )
    ]
    assert ids == ["call_0_", "call_0", "call_2"]


def test_made_id_is_the_same_each_time_it_is_asked_for() -> None:  # 23
    calls = gathered(call(0, None, "f", "{}"))
    assert calls.final(ended=False)[0].id == calls.final(ended=True)[0].id != ""


def test_made_id_begins_with_the_prefix() -> None:  # 23
    calls = ToolCalls(0, prefix="call_c1_")
    calls.feed(build(ToolCallFragment, call(0, None, "f")), None)
    assert calls.final(ended=True)[0].id == "call_c1_0"


# ------------------------------------------------------------------------------- call fields: rules 24-26


def test_first_id_stays() -> None:  # 24
    assert final(call(0, "a", "f", "{"), call(0, "b", None, "}"))[0][0] == "a"


def test_name_in_fragments_is_put_together() -> None:  # 24
    fragments = (call(0, "a", "get_"), call(0, None, "weather"), call(0, None, None, "{}"))
    assert final(*fragments) == [("a", "get_weather", "{}")]


def test_name_that_is_repeated_stays_one() -> None:  # 24
    assert final(call(0, "a", "f"), call(0, "a", "f"), call(0, "a", "f", "{}")) == [
        ("a", "f", "{}")
    ]


def test_type_is_the_first_that_was_sent() -> None:
    calls = gathered(
        {**call(0, "a", "f"), "type": "custom"}, {**call(0, arguments="{}"), "type": "x"}
    )
    assert calls.final(ended=True)[0].type == "custom"


def test_unknown_fields_stay_on_the_call_or_on_its_function() -> None:
    fragment = call(0, "a", "f", "{}", signature="S")
    fragment["function"]["strict"] = True
    (made,) = gathered(fragment, call(0, signature=None)).final(ended=True)
    assert (made.model_extra, made.function.model_extra) == ({"signature": "S"}, {"strict": True})


def test_null_arguments_add_nothing() -> None:  # 25
    rest = {"index": 0, "function": {"arguments": None, "name": None}, "id": "a"}
    assert final(call(0, "a", "f", "{}"), rest) == [("a", "f", "{}")]


@pytest.mark.parametrize(
    ("pieces", "arguments"),
    [
        ([], ["{}"]),
        ([" \n"], ["{}"]),
        (['{"x": ', "1}"], ['{"x": 1}']),
        ([' { "x" : 1 } '], [' { "x" : 1 } ']),
        (["[1]"], ["[1]"]),
        (["{}", '{"x":1}'], ['{"x":1}']),
        (["{}", "{}", '{"x":1}'], ['{"x":1}']),
        (["{}{}"], ["{}"]),
        (['{"x":1}', '{"x": 1}'], ['{"x":1}']),
        (['{"x":1}', '{"y":2}'], ['{"x":1}', '{"y":2}']),
        (['{"x":1}', '{"y":2}', '{"x":1}'], ['{"x":1}', '{"y":2}']),
        (['{"x":1}{"x":true}{"x":1.0}'], ['{"x":1}', '{"x":true}', '{"x":1.0}']),
        (['{"x":1', '{"y":2}'], ['{"x":1{"y":2}']),
        (['{"x":'], ['{"x":']),
    ],
    ids=repr,
)
def test_arguments_are_mended_only_where_they_are_no_json(  # 26
    pieces: list[str], arguments: list[str]
) -> None:
    fragments = [call(0, arguments=piece) for piece in pieces]
    assert [one[2] for one in final(call(0, "a", "f"), *fragments)] == arguments


def test_arguments_are_left_as_they_are_until_the_end() -> None:  # 26
    calls = gathered(call(0, "a", "f"), call(1, "b", "g", '{}{"x":1}'))
    assert [one.function.arguments for one in calls.final(ended=False)] == ["", '{}{"x":1}']


def test_call_split_off_gets_an_id_of_its_own() -> None:  # 26
    found = final(call(0, "a", "f", '{"x":1}{"y":2}'), call(1, "b", "g", "{}"))
    assert [one[0] for one in found] == ["a", "call_1", "b"]


def test_arguments_that_were_cut_are_known_for_incomplete() -> None:  # 26
    (one,) = gathered(call(0, "a", "f", '{"x":')).final(ended=True)
    assert not one.function.is_complete


def test_calls_are_whole_where_none_has_half_an_argument() -> None:
    assert gathered(call(0, "a", "f"), call(1, "b", "g", "{}{}")).all_whole
    assert not gathered(call(0, "a", "f", "{")).all_whole


def test_entries_of_a_whole_message_are_calls_of_their_own() -> None:
    calls = gathered(
        call(0, None, "f", "{}"), call(0, None, "f", "{"), call(None, None, "f"), whole=True
    )
    assert len(calls) == 3


def test_entries_of_a_whole_message_with_one_id_are_one_call() -> None:
    assert len(gathered(call(0, "a", "f", "{"), call(0, "a", None, "}"), whole=True)) == 1


# ---------------------------------------------------------------------------------------------- events


def test_call_is_started_with_its_first_arguments() -> None:
    telling = Telling()
    assert telling.feed(call(0, "a", "f", "")) == []
    assert telling.feed(call(0, None, None, "{")) == [("started", 0, "f"), ("delta", 0, "{")]
    assert telling.feed(call(0, None, None, "}")) == [("delta", 0, "}")]


def test_arguments_before_the_name_are_told_after_it() -> None:
    telling = Telling()
    assert telling.feed(call(0, "a", None, "{")) == []
    assert telling.feed(call(0, "a", "f", '"x"')) == [("started", 0, "f"), ("delta", 0, '{"x"')]


def test_done_comes_with_the_next_call() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", "{}"))
    assert telling.feed(call(1, "b", "g", "")) == [("done", 0, "{}")]


def test_done_comes_with_the_finish_reason() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", "{}"))
    assert telling.settle() == [("done", 0, "{}")]
    assert telling.finish() == []


def test_done_of_a_call_that_went_on_comes_with_the_next_call_after_it() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", "{"))
    assert telling.feed(call(1, "b", "g", "{")) == [("started", 1, "g"), ("delta", 1, "{")]
    telling.feed(call(0, None, None, "}"))
    assert telling.feed(call(2, "c", "h", "")) == [("done", 0, "{}")]


def test_done_of_a_call_without_arguments_comes_at_the_end() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f"))
    assert telling.settle() == [("started", 0, "f")]
    assert telling.finish() == [("done", 0, "{}")]


def test_call_without_arguments_is_started_when_another_follows() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f"))
    assert telling.feed(call(1, "b", "g", "{")) == [
        ("started", 0, "f"),
        ("started", 1, "g"),
        ("delta", 1, "{"),
    ]


def test_call_whose_name_never_came_is_told_at_the_end() -> None:
    telling = Telling()
    telling.feed(call(0, "a", None, "{}"))
    assert [*telling.settle(), *telling.finish()] == [
        ("started", 0, ""),
        ("delta", 0, "{}"),
        ("done", 0, "{}"),
    ]


def test_call_cut_in_its_arguments_is_never_done() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", "{"))
    assert [*telling.settle(), *telling.finish()] == []


def test_name_that_comes_last_is_told_with_what_it_said() -> None:
    telling = Telling()
    telling.feed(call(0, "a", None, "{}"))
    assert telling.feed(call(0, None, "f", None)) == []
    assert telling.settle() == [("started", 0, "f"), ("delta", 0, "{}"), ("done", 0, "{}")]


def test_calls_that_one_text_held_are_done_each() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", '{"x":1}{"y":2}'))
    assert telling.finish() == [("done", 0, '{"x":1}'), ("done", 1, '{"y":2}')]


def test_half_of_a_pair_is_held_back_for_the_piece_that_brings_the_other() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", '{"x":"'))
    assert telling.feed(call(0, None, None, "\ud83d")) == []
    assert telling.feed(call(0, None, None, '\ude00"}')) == [("delta", 0, '\U0001f600"}')]
    assert telling.settle() == [("done", 0, '{"x":"\U0001f600"}')]


def test_half_of_a_pair_without_partner_is_told_at_the_end() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", '{"x":"\ud83d'))
    assert telling.finish() == [("delta", 0, "\ufffd")]


def test_events_bear_the_choice_and_the_id() -> None:
    calls, out = ToolCalls(3), list[Event]()
    calls.feed(build(ToolCallFragment, call(0, "a", "f", "{}")), out)
    calls.settle(out)
    assert out == [
        ToolCallStarted(0, "f", "a", 3),
        ToolCallDelta(0, "{}", 3),
        ToolCallDone(0, "f", "{}", "a", 3),
    ]


def test_done_event_bears_the_id_that_is_made_for_the_message() -> None:
    calls, out = ToolCalls(0), list[Event]()
    calls.feed(build(ToolCallFragment, call(0, None, "f", "{}")), None)
    calls.settle(out)
    made = calls.final(ended=True)
    (done,) = (event for event in out if isinstance(event, ToolCallDone))
    assert made == [ToolCall(id=done.id, function=made[0].function)]


# ----------------------------------------------------------------------------------- the lean way in


def test_piece_at_a_known_index_is_added_and_told() -> None:
    telling = Telling()
    telling.feed(call(0, "a", "f", "{"))
    out: list[Event] = []
    telling.calls.piece(0, "}", out)
    assert told(out) == [("delta", 0, "}")]
    assert telling.settle() == [("done", 0, "{}")]


def test_piece_makes_its_call_the_open_one() -> None:
    calls = gathered(call(0, "a", "f", "{"), call(1, "b", "g", "{}"))
    calls.piece(0, '"x"', None)
    calls.feed(build(ToolCallFragment, call(arguments=":1}")), None)
    assert [one.function.arguments for one in calls.final(ended=True)] == ['{"x":1}', "{}"]


def test_empty_piece_tells_nothing() -> None:
    calls, out = gathered(call(0, "a", "f", "{}")), list[Event]()
    calls.piece(0, "", out)
    assert out == []


def test_piece_at_an_unknown_index_is_refused() -> None:
    calls = gathered(call(0, "a", "f", "{}"))
    with pytest.raises(KeyError):
        calls.piece(1, "{}", None)
    assert len(calls) == 1


# ------------------------------------------------------------------------------------------------ work


class CountedPieces(list[str]):
    """Pieces that count how often they are looked at."""

    looks = 0

    def __getitem__(self, key: Any) -> Any:
        CountedPieces.looks += 1
        return super().__getitem__(key)


def test_very_many_unfinished_calls_are_each_looked_at_a_few_times_only() -> None:
    telling = Telling()
    CountedPieces.looks = 0
    for number in range(300):
        telling.feed(call(number, f"a{number}", "f", "{"))
        newest = telling.calls._calls[-1]
        newest.pieces = CountedPieces(newest.pieces)
    assert CountedPieces.looks < 300 * 10
