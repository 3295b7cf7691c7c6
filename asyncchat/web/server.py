"""The page on a socket: from listening to the end of the last answer.

Not here: what is served (`app`).
"""

import socket
from types import TracebackType
from typing import Self

import anyio
from aiohttp import web

__all__ = ["PageServer", "listen"]

_SHUTDOWN_SECONDS = (
    0.1  # for answers on their way, which are then cancelled: who pressed Ctrl-C waits for none
)


def listen(host: str = "127.0.0.1", port: int = 0) -> socket.socket:
    """Return a socket that listens; who connects waits until a `PageServer` answers.

    Raises:
        OSError: the port is in use or not allowed, or `host` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


class PageServer:
    """Serves an application on a listening socket, which it closes.

    ```python
    async with PageServer(app, listen()) as server:
        print(server.url)
        await anyio.sleep_forever()
    ```
    Cancellation: safe anywhere; leaving the block cancels the answers on their way.
    """

    def __init__(self, app: web.Application, listener: socket.socket) -> None:
        host, port = listener.getsockname()[:2]
        self._url = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        self._listener = listener
        self._runner = web.AppRunner(
            app,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )

    @property
    def url(self) -> str:
        """The address for a browser."""
        return self._url

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with anyio.CancelScope(shield=True):  # bounded by the time for shutting down
            await self._runner.cleanup()
