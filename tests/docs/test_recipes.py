"""The handlers of the how-tos on websockets and HTTP, each on the server it is used with; their readers leave."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any

import msgspec
import pytest
from websockets.asyncio.client import connect

import asyncchat
from asyncchat import AsyncChat
from asyncchat.testing import ChatServer
from tests.bridges.flood import Flood
from tests.bridges.kinds import aiohttp_app, free_port, hypercorn_app, uvicorn_app
from tests.docs.markdown import ROOT
from tests.docs.test_examples import URL

SECONDS = 0.1  # within which the request to the model has to be closed
TRIES = 3  # a busy machine may be late; a leak is late every time
QUESTION = [{"role": "user", "content": "Hi."}]

Serve = Callable[[dict[str, Any]], AbstractAsyncContextManager[str]]


@pytest.fixture
def recipe_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Where a recipe is defined: frameworks look their handlers' modules up."""
    module = ModuleType("recipe")
    monkeypatch.setitem(sys.modules, "recipe", module)
    return module


def define(module: ModuleType, page: str, heading: str, client: AsyncChat) -> dict[str, Any]:
    """Run the first block below a heading of a page, and return what it defines."""
    text = (ROOT / page).read_text(encoding="utf-8")
    section = re.split(rf"^## {re.escape(heading)}$", text, flags=re.MULTILINE)[1]
    code = section.split("```python\n", 1)[1].split("```", 1)[0]
    code = code.replace(URL, client.base_url)
    names = {n: getattr(asyncchat, n) for n in asyncchat.__all__}
    vars(module).update(names, client=client)
    exec(compile(code, f"{page}: {heading}", "exec", dont_inherit=True), vars(module))
    return vars(module)


def on_uvicorn(names: dict[str, Any]) -> AbstractAsyncContextManager[str]:
    return uvicorn_app(names["app"])


def on_hypercorn(names: dict[str, Any]) -> AbstractAsyncContextManager[str]:
    return hypercorn_app(names["app"])


@asynccontextmanager
async def on_aiohttp(names: dict[str, Any]) -> AsyncIterator[str]:
    async with aiohttp_app(names["app"], handler_cancellation=True) as url:
        yield url


@asynccontextmanager
async def on_websockets(names: dict[str, Any]) -> AsyncIterator[str]:
    from websockets.asyncio.server import serve

    bound = free_port()
    async with serve(names["chat"], sock=bound, close_timeout=0.1):
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"


@asynccontextmanager
async def on_django(names: dict[str, Any]) -> AsyncIterator[str]:
    import django
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.urls import path

    urls = sys.modules["recipe_urls"] = ModuleType("recipe_urls")
    vars(urls)["urlpatterns"] = [path("chat", names["chat"])]
    if not settings.configured:
        settings.configure(ROOT_URLCONF="recipe_urls", ALLOWED_HOSTS=["*"], LOGGING_CONFIG=None)
        django.setup()
    from django.urls import clear_url_caches

    clear_url_caches()
    async with uvicorn_app(get_asgi_application()) as url:
        yield url


# ------------------------------------------------------------------------------------- websockets

WEBSOCKETS = {
    "FastAPI and Starlette": on_uvicorn,
    "FastAPI and Starlette, on hypercorn": on_hypercorn,
    "aiohttp": on_aiohttp,
    "websockets": on_websockets,
    "Litestar": on_uvicorn,
    "Quart": on_hypercorn,
    "Websockets": on_uvicorn,  # the README's
}


@pytest.mark.parametrize("when", ["before the first word", "after it"])
@pytest.mark.parametrize("recipe", WEBSOCKETS)
async def test_handler_of_websockets_answers_stops_and_notices_who_leaves(
    recipe: str, when: str, chat_server: ChatServer, recipe_module: ModuleType
) -> None:
    before = when == "before the first word"
    async with AsyncChat(chat_server.base_url, model="m", max_retries=0) as client:
        page = "README.md" if recipe == "Websockets" else "docs/howto/websockets.md"
        names = define(recipe_module, page, recipe.partition(",")[0], client)
        async with WEBSOCKETS[recipe](names) as url:
            await answers_then_leaves(url, before, chat_server)


async def answers_then_leaves(url: str, before: bool, server: ChatServer) -> None:
    for _ in range(TRIES):
        ws = await connect(f"{url.replace('http', 'ws', 1)}chat", ping_interval=None)
        server.say("One two.")
        await ws.send("Hi.")
        said = ""
        while (event := msgspec.json.decode(await ws.recv()))["type"] != "finish":
            said += event["delta"] if event["type"] == "content.delta" else ""
        assert said == "One two."
        server.stall(after=2)
        await ws.send("Again.")
        await ws.recv()
        await ws.send('{"type": "abort"}')
        await server.wait_for_disconnect()
        assert msgspec.json.decode(await ws.recv()) == {"type": "abort"}
        count = len(server.requests)
        server.stall(after="headers" if before else 2)
        await ws.send("Once more.")
        await server.wait_for_requests(count + 1)
        if not before:
            await ws.recv()
        left_at = asyncio.get_running_loop().time()
        ws.transport.abort()
        seconds = (await server.wait_for_disconnect()).at - left_at
        if seconds < SECONDS:
            return
    pytest.fail(f"the request was closed {seconds:.3f} s after the reader had left")


# ------------------------------------------------------------------------------------------- HTTP

HTTP = {
    "FastAPI and Starlette": on_uvicorn,
    "FastAPI and Starlette, on hypercorn": on_hypercorn,
    "aiohttp": on_aiohttp,
    "Litestar": on_uvicorn,
    "Quart": on_hypercorn,
    "Django": on_django,
}


async def post(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Ask, as a reader who may leave at any moment."""
    host, port = url.removeprefix("http://").rstrip("/").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = msgspec.json.encode({"messages": QUESTION})
    head = f"POST /chat HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    return reader, writer


@pytest.mark.parametrize("when", ["before the first word", "after it"])
@pytest.mark.parametrize("recipe", HTTP)
async def test_handler_of_http_answers_and_notices_who_leaves(
    recipe: str, when: str, chat_server: ChatServer, recipe_module: ModuleType
) -> None:
    before = when == "before the first word"
    server = chat_server
    async with AsyncChat(server.base_url, model="m", max_retries=0) as client:
        names = define(
            recipe_module, "docs/howto/http-streaming.md", recipe.partition(",")[0], client
        )
        async with HTTP[recipe](names) as url:
            server.say("One two.")
            reader, writer = await post(url)
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"200" in head.splitlines()[0]
            assert b"content-type: text/event-stream" in head.lower()
            assert b"x-accel-buffering: no" in head.lower()
            await reader.readuntil(b"data: [DONE]\n\n")
            writer.transport.abort()
            for _ in range(TRIES):
                count = len(server.requests)
                server.stall(after="headers" if before else 2)
                reader, writer = await post(url)
                await server.wait_for_requests(count + 1)
                if not before:
                    await reader.readuntil(b'"content":"One"')
                left_at = asyncio.get_running_loop().time()
                writer.transport.abort()
                seconds = (await server.wait_for_disconnect()).at - left_at
                if seconds < SECONDS:
                    return
            pytest.fail(f"the request was closed {seconds:.3f} s after the reader had left")


@pytest.mark.parametrize("recipe", HTTP)
async def test_handler_of_http_notices_who_leaves_while_it_takes_nothing(
    recipe: str, recipe_module: ModuleType
) -> None:
    """The framework then waits in a send of its own, and has to let go of the body."""
    async with Flood(64 * 2**20) as flood:
        page, heading = "docs/howto/http-streaming.md", recipe.partition(",")[0]
        names = define(recipe_module, page, heading, flood.client)
        async with HTTP[recipe](names) as url:
            _, writer = await post(url)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            await flood.wait_until_stuck()
            writer.transport.abort()
            await flood.wait_until_left()
    assert flood.sent < flood.size
