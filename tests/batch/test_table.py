"""Names in a few bytes each: a table is a dict of numbers."""

from hypothesis import given
from hypothesis import strategies as st

from asyncchat.batch.table import Table, hash_of

# Few shards and few slots of them, so that they fill up and meet; and numbers of any size.
_KEYS = st.one_of(
    st.builds(lambda shard, slot: shard + 1024 * slot, st.integers(1, 3), st.integers(0, 40)),
    st.integers(1, 2**64 - 1),
)


@given(st.lists(st.tuples(_KEYS, st.integers(0, 2**64 - 1)), max_size=200), st.lists(_KEYS))
def test_table_answers_as_a_dict_does(written: list[tuple[int, int]], others: list[int]) -> None:
    table, model = Table(), dict[int, int]()
    for key, value in written:
        assert table.get(key) == model.get(key)
        table.put(key, value)
        model[key] = value
        assert table.get(key) == value
    assert len(table) == len(model)
    for key in [*model, *others]:
        assert table.get(key) == model.get(key)


def test_value_of_zero_is_there() -> None:
    table = Table()
    table.put(5, 0)
    assert table.get(5) == 0
    assert len(table) == 1


def test_entry_takes_less_than_a_dict_by_far() -> None:
    table = Table()
    for number in range(30_000):
        table.put(hash_of(f"line-{number}"), number)
    assert len(table) == 30_000
    arrays = [one for side in (table._keys, table._values) for one in side if one is not None]
    assert sum(len(one) * one.itemsize for one in arrays) / 30_000 < 44


@given(st.text())
def test_any_name_has_the_same_hash_each_time(name: str) -> None:
    assert hash_of(name) == hash_of(name)
    assert 0 < hash_of(name) < 2**64


def test_half_of_a_surrogate_pair_has_a_hash() -> None:
    assert hash_of("\ud800") != hash_of("\ud801")
