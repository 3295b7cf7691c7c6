"""Connections of the package websockets; `test_sockets` runs them with a reader who leaves."""

import sys
from typing import Any

import pytest
from websockets.asyncio.client import connect

from asyncchat import AsyncChat
from asyncchat.bridges.websockets_socket import websockets_socket
from asyncchat.testing import ChatServer
from tests.bridges.kinds import websockets_server


async def test_connection_of_the_client_works_too(client: AsyncChat, server: ChatServer) -> None:
    got: list[str] = []

    async def hear(ws: Any) -> None:
        got.extend([message async for message in ws])

    server.say("One two.")
    async with websockets_server(hear) as url, connect(url) as ws:
        answer = await client.chat.stream("Hi.").pipe(ws)
        await ws.close()
    assert "".join(got) == answer.text == "One two."


def test_other_objects_are_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert websockets_socket(object()) is None
    monkeypatch.delitem(sys.modules, "websockets.asyncio.connection")
    assert websockets_socket(object()) is None
