"""A connection of the package websockets, of its server or of its client.

Not here: piping.
"""

import sys

from asyncchat.bridges.sockets import Socket

__all__ = ["websockets_socket"]


def websockets_socket(ws: object) -> Socket | None:
    """Return what a pipe needs of a connection, None if it is none of that package's."""
    if "websockets.asyncio.connection" not in sys.modules:
        return None  # nobody has such a connection
    from websockets.asyncio.connection import Connection
    from websockets.exceptions import ConnectionClosed

    return Socket(ws.send, ws.recv, (ConnectionClosed,)) if isinstance(ws, Connection) else None
