"""A websocket of an ASGI framework: Starlette and FastAPI, Litestar.

Not here: piping. Source: the ASGI specification, "WebSocket". Both frameworks give its messages by `receive` and `send`.
"""

import sys
from typing import Any

from asyncchat.bridges.sockets import Socket

__all__ = ["asgi_socket"]

_WEBSOCKETS = (("starlette.websockets", "WebSocket"), ("litestar.connection", "WebSocket"))
_GONE = (
    ("starlette.websockets", "WebSocketDisconnect"),
    ("starlette.websockets", "WebSocketDisconnected"),  # who had left before
    ("litestar.exceptions", "WebSocketDisconnect"),
)


def asgi_socket(ws: Any) -> Socket | None:  # noqa: ANN401  any object; it is told by its class
    """Return what a pipe needs of an ASGI framework's websocket, None if it is none."""
    if not isinstance(ws, _loaded(_WEBSOCKETS)):
        return None

    async def receive() -> str | bytes | None:
        message = await ws.receive()
        if message["type"] == "websocket.disconnect":
            return None
        text, data = message.get("text"), message.get("bytes")
        said: str | bytes = text if text is not None else (data or b"")
        return said

    async def send(text: str) -> None:
        await ws.send({"type": "websocket.send", "text": text})

    return Socket(send, receive, (OSError, *_loaded(_GONE)))


def _loaded(names: tuple[tuple[str, str], ...]) -> tuple[type[Any], ...]:
    """Return those classes whose modules are there: of the others no object exists."""
    modules = [(sys.modules.get(module), name) for module, name in names]
    return tuple(getattr(module, name) for module, name in modules if hasattr(module, name))
