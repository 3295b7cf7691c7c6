"""A task group that lives as long as an object's `async with` block, and whether a cancellation is meant for it.

Not here: what the tasks do. The group ends with the block, cancelled, and never wraps the error of the block in one of its
own: tasks report what goes wrong as values.
"""

from collections.abc import Callable, Coroutine
from math import inf
from typing import TYPE_CHECKING, Any

import anyio

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["BlockTasks", "is_being_cancelled"]


class BlockTasks:
    """The tasks of one block."""

    __slots__ = ("_group",)

    def __init__(self) -> None:
        self._group: TaskGroup | None = None

    @property
    def is_open(self) -> bool:
        """Whether the block has begun and not ended."""
        return self._group is not None

    async def open(self) -> None:
        """Begin the block."""
        self._group = anyio.create_task_group()
        await self._group.__aenter__()

    def start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: object) -> None:
        """Start a task in the block."""
        assert self._group is not None
        self._group.start_soon(work, *args)

    def cancel(self) -> None:
        """End every task at its next await."""
        if self._group is not None:
            self._group.cancel_scope.cancel()

    async def close(self) -> None:
        """End the block: cancel what still runs, and wait until it has ended."""
        group, self._group = self._group, None
        if group is not None:
            group.cancel_scope.cancel()
            await group.__aexit__(None, None, None)


def is_being_cancelled() -> bool:
    """Whether a scope around the running code is cancelled: if none is, a cancellation comes from what it has awaited."""
    return anyio.current_effective_deadline() == -inf
