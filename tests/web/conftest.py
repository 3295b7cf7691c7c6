"""What the tests of the page share: the page, served before a scripted model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest_asyncio

from asyncchat import AsyncChat
from asyncchat.testing import ChatServer
from asyncchat.web import About, PageServer, listen, make_app


@dataclass
class Site:
    """The page, the model behind it, and what the page's owner has heard of failures."""

    server: PageServer
    model: ChatServer
    client: AsyncChat
    errors: list[Exception]

    @property
    def url(self) -> str:
        return self.server.url

    async def wait_until_free(self) -> None:
        """Wait until nothing is asked of the model: bounded, and without a look at the clock by the test."""
        await self.model.wait_until_idle()
        for _ in range(1000):
            if not self.client.statistics().in_flight:
                return
            await asyncio.sleep(0)
        raise AssertionError(self.client.statistics())


@pytest_asyncio.fixture(loop_scope="session")
async def site() -> AsyncIterator[Site]:
    async with AsyncExitStack() as stack:
        model = await stack.enter_async_context(ChatServer())
        client = AsyncChat(model.base_url, model="m", max_retries=0)
        await stack.enter_async_context(client)
        about = About(model="m", place="in a test", remark="Scripted.")
        errors: list[Exception] = []
        app = make_app(client, about, fields={"temperature": 0}, on_error=errors.append)
        server = await stack.enter_async_context(PageServer(app, listen()))
        yield Site(server, model, client, errors)
