"""aiohttp's websockets; `test_sockets` runs them with a reader who leaves."""

from typing import Any

import aiohttp

from asyncchat import AsyncChat
from asyncchat.bridges.aiohttp_socket import aiohttp_socket
from asyncchat.testing import ChatServer
from tests.bridges.kinds import aiohttp_web


async def test_websocket_of_the_client_works_too(client: AsyncChat, server: ChatServer) -> None:
    """As where another service asks us to connect to it."""
    got: list[str] = []

    async def hear(ws: Any) -> None:
        got.extend([message.data async for message in ws])

    server.say("One two.")
    async with (
        aiohttp_web(hear) as url,
        aiohttp.ClientSession() as session,
        session.ws_connect(url) as ws,
    ):
        answer = await client.chat.stream("Hi.").pipe(ws)
    assert "".join(got) == answer.text == "One two."


async def test_next_message_is_there_after_the_pipe(client: AsyncChat, server: ChatServer) -> None:
    """What a reader says after the answer is for whoever reads next, and not for the pipe."""
    said: list[str] = []

    async def chat(ws: Any) -> None:
        async for message in ws:
            said.append(message.data)
            await client.chat.stream(message.data).pipe(ws, "openai")

    async with (
        aiohttp_web(chat) as url,
        aiohttp.ClientSession() as session,
        session.ws_connect(url) as ws,
    ):
        for question in ("One", "Two", "Three"):
            await ws.send_str(question)
            while await ws.receive_str() != "[DONE]":
                pass
    assert said == ["One", "Two", "Three"]


def test_other_objects_are_not_taken_for_it() -> None:
    assert aiohttp_socket(object()) is None
