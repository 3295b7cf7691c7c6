"""What the bridges' tests share: a scripted server, a client of it, and keys that must not get out."""

from collections.abc import AsyncIterator

import pytest

from asyncchat import AsyncChat
from asyncchat.testing import ChatServer
from tests.bridges.flood import Flood

KEY = "sk-test-0123456789abcdef"


@pytest.fixture
def server(chat_server: ChatServer) -> ChatServer:
    """The plugin's own fixture, under a short name."""
    return chat_server


@pytest.fixture
async def client(server: ChatServer) -> AsyncIterator[AsyncChat]:
    client = AsyncChat(server.base_url, KEY, "m", max_retries=0)
    yield client
    await client.close()


@pytest.fixture
async def flood() -> AsyncIterator[Flood]:
    async with Flood(64 * 2**20) as flood:
        yield flood
