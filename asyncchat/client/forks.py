"""What a forked child must not share with its parent.

Not here: what that is. Connections and the count of requests in flight belong to the parent: a child that went on with them
would take its answers away, or wait for places that nobody gives back.
"""

import os
from typing import Any, Protocol
from weakref import WeakSet

__all__ = ["Forgetful", "forget_in_child", "keep_for_parent"]


class Forgetful(Protocol):
    """Something that can begin anew."""

    def forget(self) -> None:
        """Drop what belongs to the parent, and close none of it."""
        ...


_FORGETFUL: WeakSet[Forgetful] = WeakSet()
_KEPT: list[Any] = []


def forget_in_child(one: Forgetful) -> None:
    """Let an object forget what it has open in every child that is forked from now on."""
    _FORGETFUL.add(one)


def keep_for_parent(what: object) -> None:
    """Keep what a child must not even collect: closing it there would take it out of the parent's event loop."""
    _KEPT.append(what)


def _begin_anew() -> None:
    for one in list(_FORGETFUL):
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
