"""The kinds of websocket servers that are tested, each run for real in the test's own loop.

Not here: what is done with a websocket once it is accepted.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import anyio

Handle = Callable[[Any], Awaitable[None]]
"""What a test does with an accepted websocket."""


def free_port() -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound


@asynccontextmanager
async def aiohttp_web(handle: Handle) -> AsyncIterator[str]:
    from aiohttp import web

    async def accept(request: web.Request) -> web.WebSocketResponse:
        ws = web.WebSocketResponse(timeout=0.1)
        await ws.prepare(request)
        await handle(ws)
        return ws

    app = web.Application()
    app.router.add_get("/", accept)
    async with aiohttp_app(app) as url:
        yield url.replace("http", "ws", 1)


@asynccontextmanager
async def aiohttp_app(app: Any, **options: Any) -> AsyncIterator[str]:
    from aiohttp import web

    runner = web.AppRunner(app, shutdown_timeout=0.1, **options)
    await runner.setup()
    bound = free_port()
    await web.SockSite(runner, bound).start()
    try:
        yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def uvicorn_app(app: Any) -> AsyncIterator[str]:
    """Any ASGI application on uvicorn; gives an http URL."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="critical",
        lifespan="off",
        ws="websockets-sansio",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore[method-assign,assignment]  # signals are the test run's
    bound = free_port()
    async with anyio.create_task_group() as group:
        group.start_soon(server.serve, [bound])
        while not server.started:
            await asyncio.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            server.should_exit = True


@asynccontextmanager
async def hypercorn_app(app: Any) -> AsyncIterator[str]:
    """Any ASGI application on hypercorn; gives an http URL."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    config = Config()
    bound = free_port()
    bound.listen()
    config.bind = [f"fd://{bound.fileno()}"]
    config.loglevel = "CRITICAL"
    config.errorlog = None
    config.graceful_timeout = config.shutdown_timeout = 0.2
    config.websocket_ping_interval = None
    ended = asyncio.Event()
    async with anyio.create_task_group() as group:

        async def run() -> None:
            await serve(app, config, shutdown_trigger=ended.wait)

        group.start_soon(run)
        try:
            yield f"http://127.0.0.1:{bound.getsockname()[1]}/"
        finally:
            ended.set()
            bound.detach()  # hypercorn has taken the descriptor over


def fastapi_app(handle: Handle) -> Any:
    import fastapi

    app = fastapi.FastAPI()

    async def accept(ws: fastapi.WebSocket) -> None:
        await ws.accept()
        await handle(ws)

    app.websocket("/")(accept)
    return app


@asynccontextmanager
async def fastapi_on_uvicorn(handle: Handle) -> AsyncIterator[str]:
    async with uvicorn_app(fastapi_app(handle)) as url:
        yield url.replace("http", "ws", 1)


@asynccontextmanager
async def fastapi_on_hypercorn(handle: Handle) -> AsyncIterator[str]:
    async with hypercorn_app(fastapi_app(handle)) as url:
        yield url.replace("http", "ws", 1)


@asynccontextmanager
async def litestar_on_uvicorn(handle: Handle) -> AsyncIterator[str]:
    import litestar

    async def accept(socket: litestar.WebSocket) -> None:  # type: ignore[type-arg]
        await socket.accept()
        await handle(socket)

    accept.__annotations__ = {"socket": litestar.WebSocket, "return": None}
    app = litestar.Litestar(
        [litestar.websocket("/")(accept)], openapi_config=None, logging_config=None
    )
    async with uvicorn_app(app) as url:
        yield url.replace("http", "ws", 1)


@asynccontextmanager
async def websockets_server(handle: Handle) -> AsyncIterator[str]:
    from websockets.asyncio.server import serve

    async with serve(handle, "127.0.0.1", 0, close_timeout=0.1) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        yield f"ws://127.0.0.1:{port}/"


KINDS = {
    "aiohttp.web": aiohttp_web,
    "FastAPI on uvicorn": fastapi_on_uvicorn,
    "FastAPI on hypercorn": fastapi_on_hypercorn,
    "Litestar on uvicorn": litestar_on_uvicorn,
    "websockets": websockets_server,
}
