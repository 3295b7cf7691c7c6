"""The pytest plugin: the fixture `chat_server`.

Not here: any import of weight. pytest loads this module in every run of every project that has
asyncchat installed, so the server, and aiohttp with it, is imported when a test asks for it.
"""

from collections.abc import AsyncIterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from asyncchat.testing.server import ChatServer

# pytest-asyncio in strict mode runs only fixtures that its own decorator made. Without it the
# plugin that comes with anyio runs the plain one.
if TYPE_CHECKING or find_spec("pytest_asyncio"):
    from pytest_asyncio import fixture as _async_fixture
else:
    _async_fixture = pytest.fixture

__all__ = ["chat_server"]


@_async_fixture
async def chat_server() -> AsyncIterator["ChatServer"]:
    """Give a started `ChatServer`, and close it after the test.

    It runs in the event loop of fixtures, so tests and fixtures must have the same loop scope.
    """
    from asyncchat.testing.server import ChatServer

    # Not `async with`: a yield inside one may run its end in another task.
    server = ChatServer()
    await server.start()
    try:
        yield server
    finally:
        await server.close()
