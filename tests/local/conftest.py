"""One real server for the whole run, for every test that carries the marker `local`."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from asyncchat.local import LocalServer, local_server

TEMPLATE = Path(__file__).with_name("tools_chatml.jinja")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llama() -> AsyncIterator[LocalServer]:
    """SmolLM2 with a chat template that knows tools, four slots of 2,048 tokens.

    It holds no task group and no cancel scope, so it may begin in one task and end in another.
    """
    server = local_server(template=TEMPLATE, parallel=4, context=8192)
    await server.__aenter__()
    try:
        yield server
    finally:
        await server.__aexit__(None, None, None)
