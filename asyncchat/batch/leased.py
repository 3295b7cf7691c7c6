"""A batch within limits that it shares with others: who holds them is asked once a second, and sooner where requests wait.

Not here: how much is given (`policy.lease`), how the holder is reached.
"""

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import anyio.lowlevel

from asyncchat.client.pool import SessionPool
from asyncchat.policy.lease import Lease, Leasehold, Renewal

__all__ = ["Holder", "LeaseKeeper"]

Holder = Callable[[Renewal], Awaitable[Lease | None]]
"""Asks who holds the limits; returns None where nobody does at the moment."""

_PATIENCE = 2.0  # seconds for an answer: after them it is asked anew
_LOST_SECONDS = 0.25


class LeaseKeeper:
    """Keeps a pool within what it is leased, from when this is made until `close`.

    Args:
        pool: whose line obeys.
        holder: who is asked.
    """

    __slots__ = ("_holder", "_leasehold", "_line", "_short")

    def __init__(self, pool: SessionPool, holder: Holder) -> None:
        lanes = [lane for server in pool.servers for lane in server.lanes]
        self._holder = holder
        self._line = pool.line
        self._short = asyncio.Event()
        self._leasehold = Leasehold(lanes, self._short.set)
        self._line.obey(self._leasehold)

    async def run(self) -> None:
        """Renew the lease again and again.

        Cancellation: this is how it ends; what is leased is not given back, but nothing more can be started once it is over.
        """
        line, leasehold = self._line, self._leasehold
        while True:
            renewal = leasehold.renewal(line.clock(), line.waiting, line.in_flight)
            lease: Lease | None = None
            with anyio.move_on_after(_PATIENCE):
                lease = await self._holder(renewal)
            self._short.clear()
            if lease is None:
                await anyio.sleep(_LOST_SECONDS)
            elif leasehold.renewed(lease, line.clock()):
                line.look()
                await self._rest()
            else:  # it is another one, which knows nothing of us yet
                await anyio.lowlevel.checkpoint()

    async def _rest(self) -> None:
        clock = self._line.clock
        with anyio.move_on_after(max(self._leasehold.due(is_short=False) - clock(), 0.0)):
            await self._short.wait()
            await anyio.sleep(max(self._leasehold.due(is_short=True) - clock(), 0.0))

    def close(self) -> None:
        """Let the pool go on within its own limits."""
        self._line.obey(None)
