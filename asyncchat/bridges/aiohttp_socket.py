"""A websocket of aiohttp: of its server, or of its client.

Not here: piping.
"""

import sys
from typing import Any

from asyncchat.bridges.sockets import Socket

__all__ = ["aiohttp_socket"]


def aiohttp_socket(ws: Any) -> Socket | None:  # noqa: ANN401  any object; it is told by its class
    """Return what a pipe needs of aiohttp's websocket, None if it is none."""
    from aiohttp import ClientWebSocketResponse, WSMsgType

    classes: list[type] = [ClientWebSocketResponse]
    if server := sys.modules.get("aiohttp.web_ws"):  # else nobody has such a websocket
        classes.append(server.WebSocketResponse)
    if not any(isinstance(ws, of) for of in classes):
        return None

    async def receive() -> str | bytes | None:
        message = await ws.receive()
        if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            said: str | bytes = message.data
            return said
        return None  # closing, closed, or an error after which it is closed

    return Socket(ws.send_str, receive)
