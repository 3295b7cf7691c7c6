"""A websocket of an ASGI framework: Starlette and FastAPI, Litestar.

Not here: piping. Source: the ASGI specification, "WebSocket". Both frameworks give its messages by `receive` and `send`.
"""

import sys
from typing import Any

from asyncchat.bridges.sockets import Socket

__all__ = ["asgi_socket"]

_CLASSES = {
    "starlette.websockets": ("WebSocket", "WebSocketDisconnect"),
    "litestar.connection": ("WebSocket", ""),
    "litestar.exceptions": ("", "WebSocketDisconnect"),
}


def asgi_socket(ws: Any) -> Socket | None:  # noqa: ANN401  any object; it is told by its class
    """Return what a pipe needs of an ASGI framework's websocket, None if it is none."""
    gone: list[type[Exception]] = [OSError]
    is_one = False
    for module, (websocket, disconnect) in _CLASSES.items():
        loaded = sys.modules.get(module)  # an object of its class exists only after its import
        if loaded is not None and websocket:
            is_one |= isinstance(ws, getattr(loaded, websocket))
        if loaded is not None and disconnect:
            gone.append(getattr(loaded, disconnect))
    if not is_one:
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

    return Socket(send, receive, tuple(gone))
