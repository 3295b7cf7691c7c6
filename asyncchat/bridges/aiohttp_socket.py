"""A websocket of aiohttp: of its server, or of its client.

Not here: piping.
"""

import sys

from asyncchat.bridges.sockets import Socket

__all__ = ["aiohttp_socket"]


def aiohttp_socket(ws: object) -> Socket | None:
    """Return what a pipe needs of aiohttp's websocket, None if it is none."""
    if "aiohttp" not in sys.modules:
        return None
    from aiohttp import ClientWebSocketResponse, WSMsgType
    from aiohttp.web import WebSocketResponse

    if not isinstance(ws, (WebSocketResponse, ClientWebSocketResponse)):
        return None

    async def receive() -> str | bytes | None:
        message = await ws.receive()
        if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
            said: str | bytes = message.data
            return said
        return None  # closing, closed, or an error after which it is closed

    return Socket(ws.send_str, receive)
