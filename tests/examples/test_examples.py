"""The programs in `examples/`, each run on its server."""

import importlib

import msgspec
import pytest
from websockets.asyncio.client import connect

from asyncchat.testing import ChatServer
from tests.bridges.kinds import aiohttp_app, uvicorn_app


@pytest.fixture(autouse=True)
def environment(chat_server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", chat_server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("MODEL", "m")


async def test_chat_with_fastapi_remembers_what_was_said(chat_server: ChatServer) -> None:
    example = importlib.reload(importlib.import_module("examples.fastapi_websocket"))
    async with uvicorn_app(example.app) as url, connect(f"{url.replace('http', 'ws')}chat") as ws:
        for question in ("One?", "Fail.", "Two?"):
            if question == "Fail.":
                chat_server.fail(400)
            await ws.send(msgspec.json.encode({"type": "ask", "text": question}).decode())
            while msgspec.json.decode(await ws.recv())["type"] not in ("finish", "error"):
                pass
            await ws.send('{"type": "abort"}')  # too late: nothing is being sent
    await example.client.close()
    said = [message["content"] for message in chat_server.requests[-1].body["messages"]]
    assert said == ["One?", "One?", "Two?"]
    assert len(chat_server.requests) == 3


async def test_room_with_aiohttp_is_asked_once_and_closed_by_the_last(
    chat_server: ChatServer,
) -> None:
    from examples import aiohttp_websocket as example

    chat_server.stall(after=3)
    app = example.make_app()
    async with aiohttp_app(app) as url:
        room = f"{url.replace('http', 'ws')}rooms/moons?ask=Hm"
        async with connect(room) as first, connect(room) as second:
            for ws in (first, second):
                assert msgspec.json.decode(await ws.recv())["type"] == "content.delta"
            assert len(chat_server.requests) == 1
            await first.close()
            assert len(chat_server.active) == 1
        await chat_server.wait_for_disconnect()
        chat_server.say("Anew.")
        async with connect(room) as ws:
            assert msgspec.json.decode(await ws.recv())["delta"] == "Anew."
    assert app[example.ROOMS] == {}
