"""How often the collector of cycles looks."""

import gc

import pytest

from asyncchat.batch.garbage import rare_collections


def test_collector_looks_seldom_inside_and_as_before_after_it() -> None:
    before = gc.get_threshold()
    with rare_collections():
        inside = gc.get_threshold()
    assert all(now > then for now, then in zip(inside, before, strict=True))
    assert gc.get_threshold() == before


def test_collector_looks_as_before_after_an_error() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), rare_collections():
        raise RuntimeError
    assert gc.get_threshold() == before
