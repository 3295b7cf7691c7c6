"""The two opt-in readings of content."""

import pytest

from asyncchat.protocol.textfilter import TextFilter


def filtered(*texts: str, split: bool = False, cumulative: bool = False) -> list[tuple[str, str]]:
    reading = TextFilter(split, cumulative)
    return [*(piece for text in texts for piece in reading.feed(text)), *reading.flush()]


def joined(pieces: list[tuple[str, str]], kind: str) -> str:
    return "".join(text for found, text in pieces if found == kind)


def test_no_filter_is_made_where_none_was_asked_for() -> None:
    assert TextFilter.factory(False, False) is None


@pytest.mark.parametrize(("split", "cumulative"), [(True, False), (False, True), (True, True)])
def test_each_choice_gets_a_filter_of_its_own(split: bool, cumulative: bool) -> None:
    filters = TextFilter.factory(split, cumulative)
    assert filters is not None
    assert filters[0] is filters[0]
    assert filters[0] is not filters[1]


def test_text_between_tags_is_reasoning() -> None:
    assert filtered("<think>hm</think>Hello", split=True) == [
        ("reasoning", "hm"),
        ("content", "Hello"),
    ]


def test_tags_cut_anywhere_are_found() -> None:
    text = "a<think>b<c</think>d</e<think></think>f"
    for position in range(len(text) + 1):
        pieces = filtered(text[:position], text[position:], split=True)
        assert joined(pieces, "content") == "ad</ef"
        assert joined(pieces, "reasoning") == "b<c"
    assert joined(filtered(*text, split=True), "content") == "ad</ef"


def test_text_that_only_begins_like_a_tag_comes_out_at_the_end() -> None:
    assert filtered("a<thi", split=True) == [("content", "a"), ("content", "<thi")]


def test_tag_that_is_never_closed_leaves_its_text_and_the_head_of_the_close_as_reasoning() -> None:
    pieces = filtered("<think>hm</th", split=True)
    assert pieces == [("reasoning", "hm"), ("reasoning", "</th")]


def test_no_more_is_held_back_than_may_be_a_tag() -> None:
    reading = TextFilter(True, False)
    assert list(reading.feed("a<<th")) == [("content", "a<")]


def test_empty_text_gives_nothing() -> None:
    assert filtered("", split=True) == filtered("", cumulative=True) == []


def test_text_that_repeats_itself_is_told_once() -> None:
    assert filtered("Hel", "Hello", "Hello", "Hello!", cumulative=True) == [
        ("content", "Hel"),
        ("content", "lo"),
        ("content", "!"),
    ]


def test_text_that_does_not_repeat_itself_is_added() -> None:
    assert joined(filtered("Hel", "lo", "Hello!", cumulative=True), "content") == "Hello!"


def test_tags_in_text_that_repeats_itself_are_found() -> None:
    pieces = filtered("<th", "<think>h", "<think>hm</think>Hi", split=True, cumulative=True)
    assert (joined(pieces, "reasoning"), joined(pieces, "content")) == ("hm", "Hi")
