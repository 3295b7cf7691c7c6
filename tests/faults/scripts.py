"""Whole programs, for what only a process shows: two loops, and what is said when the interpreter ends.

Not here: checks from outside. Each is called in a process of its own, which it ends by returning.
"""

import asyncio
from collections.abc import Callable
from typing import Any

from asyncchat import AsyncChat
from tests.faults.exchange import TEXT

Script = Callable[[str], None]

_kept: list[Any] = []
"""What lives until the interpreter ends."""


def two_loops(base_url: str) -> None:
    """A client of the module, made outside any loop, used in two, never closed."""
    client = AsyncChat(base_url, api_key="k", model="m")
    _kept.append(client)
    assert [asyncio.run(_whole(client)) for _ in range(2)] == [TEXT, TEXT]


async def _whole(client: AsyncChat) -> str:
    async with client.chat.stream("Hi") as stream:
        return "".join([text async for text in stream.text()])


def ends_without_closing(base_url: str) -> None:
    client = AsyncChat(base_url, api_key="k", model="m")
    _kept.append(client)
    assert asyncio.run(_whole(client)) == TEXT


async def _break(client: AsyncChat) -> None:
    stream = await client.chat.completions.create(
        messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    async for _ in stream:
        break
    _kept.append(stream)


def ends_in_midstream(base_url: str) -> None:
    client = AsyncChat(base_url, api_key="k", model="m")
    _kept.append(client)
    asyncio.run(_break(client))


def breaks_in_task_group(base_url: str) -> None:
    async def main() -> None:
        async with AsyncChat(base_url, api_key="k", model="m") as client:
            async with asyncio.TaskGroup() as group:
                for _ in range(20):
                    group.create_task(_break(client))
            assert client.statistics().in_flight == 0

    asyncio.run(main())
