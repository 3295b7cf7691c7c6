"""A pool that keeps within what it is leased: when it asks, what it does without an answer, and how that ends."""

import asyncio

import pytest

from asyncchat import AsyncChat
from asyncchat.batch.leased import LeaseKeeper
from asyncchat.policy.lease import Lease, Leases, Renewal
from asyncchat.testing import ChatServer


class Holder:
    """Leases of one job, which can be lost and found again."""

    def __init__(self) -> None:
        self.leases: Leases | None = Leases("h", rpm=600, in_flight=2)
        self.asked = 0

    async def __call__(self, renewal: Renewal) -> Lease | None:
        self.asked += 1
        if self.leases is None:
            return None
        return self.leases.lease("w", asyncio.get_running_loop().time(), renewal)


async def test_requests_wait_for_a_lease_and_go_as_soon_as_there_is_one(
    chat_server: ChatServer,
) -> None:
    holder = Holder()
    async with (
        AsyncChat(chat_server.base_url, api_key="k", model="m") as client,
        asyncio.TaskGroup() as group,
    ):
        keeper = LeaseKeeper(client._core.pool, holder)
        asked = [group.create_task(client.chat("a")) for _ in range(3)]
        await asyncio.sleep(0)
        assert client.statistics().in_flight == 0
        keeping = group.create_task(keeper.run())
        assert [(await one).text for one in asked] == ["a"] * 3
        assert holder.asked < 20  # it does not ask all the time
        keeping.cancel()


async def test_holder_that_is_lost_is_asked_until_it_is_there_again(
    chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncchat.batch.leased._LOST_SECONDS", 0.0)
    holder = Holder()
    leases, holder.leases = holder.leases, None
    async with (
        AsyncChat(chat_server.base_url, api_key="k", model="m") as client,
        asyncio.TaskGroup() as group,
    ):
        keeping = group.create_task(LeaseKeeper(client._core.pool, holder).run())
        asked = group.create_task(client.chat("a"))
        while holder.asked < 3:
            await asyncio.sleep(0)
        assert chat_server.requests == []
        holder.leases = leases
        assert (await asked).text == "a"
        keeping.cancel()


async def test_closed_keeper_leaves_the_pool_to_its_own_limits(chat_server: ChatServer) -> None:
    async with AsyncChat(chat_server.base_url, api_key="k", model="m") as client:
        keeper = LeaseKeeper(client._core.pool, Holder())
        asked = asyncio.ensure_future(client.chat("a"))
        await asyncio.sleep(0)
        keeper.close()
        assert (await asked).text == "a"
