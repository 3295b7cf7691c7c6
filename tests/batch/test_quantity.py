"""`batch.quantity`: numbers as a person reads them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncchat.batch.quantity import (
    UNKNOWN,
    amount,
    duration,
    mebibytes,
    number,
    printable,
    share,
    span,
)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (None, UNKNOWN),
        (0, "0 s"),
        (-1, "0 s"),
        (0.0000042, "4 \N{MICRO SIGN}s"),
        (0.0012, "1.20 ms"),
        (0.1824, "182 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.00 s"),
        (1.236, "1.24 s"),
        (99.4, "99.4 s"),
        (99.6, "1 min 40 s"),
        (119.7, "2 min"),
        (723, "12 min 3 s"),
        (3599.7, "1 h"),
        (11_100, "3 h 5 min"),
        (86_399, "1 d"),
        (187_200, "2 d 4 h"),
    ],
)
def test_time_has_the_unit_it_is_read_in(seconds: float | None, words: str) -> None:
    assert duration(seconds) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, UNKNOWN),
        (0, "0"),
        (7, "7"),
        (0.526, "0.53"),
        (1523.4, "1.52 k"),
        (97_400, "97.4 k"),
        (999_600, "1.00 M"),
        (12_345_678, "12.3 M"),
        (4.2e12, "4200 G"),
    ],
)
def test_amount_has_three_digits_that_count(value: float | None, words: str) -> None:
    assert amount(value) == words


def test_count_is_exact() -> None:
    assert (number(1_234_567), number(None)) == ("1,234,567", UNKNOWN)
    assert mebibytes(48 << 20) == "48 MiB"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (0, 0.2, "0-1 s"),
        (0.5, 1, "0-1 s"),
        (36.6, 41.2, "36-42 s"),
        (370, 470, "6-8 min"),
        (7200, 7200, "2 h"),
        (9000, 20_000, "2-6 h"),
        (100_000, 200_000, "1-3 d"),
    ],
)
def test_span_is_never_narrower_than_what_it_rounds(low: float, high: float, words: str) -> None:
    assert span(low, high) == words


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_only_all_is_a_hundred_per_cent_and_only_nothing_is_none(some: int, whole: int) -> None:
    assert (share(some, whole) == "100 %") == (some >= whole)
    assert (share(some, whole) == "0 %") == (some == 0)
    assert share(some, 0) == "0 %"


def test_foreign_words_stay_in_their_line_and_their_direction() -> None:
    assert printable("a\x1b[31mb\nc\u202ed\u2066") == "a\ufffd[31mb\ufffdc\ufffdd\ufffd"
    assert printable("né 日本 🙂 שלום") == "né 日本 🙂 שלום"
    assert printable("abcdef", 4) == "abc…"
