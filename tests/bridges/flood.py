"""A model's server that has much to say, says it as fast as it is taken, and knows how much was.

Not here: assertions.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Self

from aiohttp import web

from asyncchat import AsyncChat, ChatStream, Limits

__all__ = ["Flood"]

_TEXT = "x" * 2000
_EVENT = b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % _TEXT.encode()
_BLOCK = _EVENT * 16
_STUCK_SECONDS = 0.2


class Flood:
    """Sends `size` bytes to each who asks, then ends well. `sent` counts the bytes of all."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0
        self.left_at: float | None = None
        self.asked = 0
        self._writing_since: float | None = None
        self._client: AsyncChat | None = None

    async def __aenter__(self) -> Self:
        self._server = web.Server(self._answer, handler_cancellation=True, access_log=None)
        self._listener = await asyncio.get_running_loop().create_server(
            self._server, "127.0.0.1", 0
        )
        port = self._listener.sockets[0].getsockname()[1]
        limits = Limits(max_answer_bytes=2**40)
        self._client = AsyncChat(
            f"http://127.0.0.1:{port}/v1", model="m", limits=limits, max_retries=0
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._client is not None
        await self._client.close()
        self._listener.close()
        await self._server.shutdown(0.1)

    @property
    def client(self) -> AsyncChat:
        """A client that does not mind how much comes."""
        assert self._client is not None
        return self._client

    def stream(self, **options: Any) -> ChatStream[Any]:
        return self.client.chat.stream("Hi.", **options)

    async def wait_until_stuck(self) -> None:
        """Wait until one write has not gone through for a while: everything on the way is full."""
        now = asyncio.get_running_loop().time
        await self._until(
            lambda: (
                self._writing_since is not None and now() - self._writing_since > _STUCK_SECONDS
            )
        )

    async def wait_until_sent(self, count: int) -> None:
        await self._until(lambda: self.sent >= count)

    async def wait_until_left(self) -> None:
        await self._until(lambda: self.left_at is not None)

    async def _until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                await asyncio.sleep(0.01)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        await request.read()
        self.asked += 1
        loop = asyncio.get_running_loop()
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        try:
            await response.prepare(request)
            sent = 0
            while sent < self.size:
                self._writing_since = loop.time()
                await response.write(_BLOCK)
                self._writing_since = None
                sent += len(_BLOCK)
                self.sent += len(_BLOCK)
            await response.write(b"data: [DONE]\n\n")
            await response.write_eof()
        except (asyncio.CancelledError, ConnectionError):
            self.left_at = loop.time()
            raise asyncio.CancelledError from None
        finally:
            self._writing_since = None
        return response
