"""The example `aiohttp_page`, served as its last line does it."""

from collections.abc import AsyncIterator

import aiohttp
import pytest
import pytest_asyncio
from playwright.async_api import Page, expect

from asyncchat.testing import ChatServer
from asyncchat.web import PageServer, listen
from examples.aiohttp_page import make_app

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest_asyncio.fixture(loop_scope="session")
async def model() -> AsyncIterator[ChatServer]:
    async with ChatServer() as model:
        yield model


@pytest_asyncio.fixture(loop_scope="session")
async def url(model: ChatServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[str]:
    for name, value in {"BASE_URL": model.base_url, "API_KEY": "none"}.items():
        monkeypatch.setenv(f"OPENAI_{name}", value)
    monkeypatch.setenv("MODEL", "m")
    async with PageServer(make_app(), listen()) as server:
        yield server.url


@pytest.mark.browser
async def test_words_come_one_by_one_and_stop_frees_the_model(
    tab: Page, url: str, model: ChatServer
) -> None:
    model.say("One <b>two</b> three.").stall(after=3)
    await tab.goto(url)
    await tab.keyboard.type("Count.")
    await tab.keyboard.press("Enter")
    answer = tab.locator("p")
    await expect(answer).to_have_text("One <b>two</b>")
    await tab.get_by_role("button", name="Stop").click()
    await model.wait_for_disconnect()
    await expect(answer).to_have_text("One <b>two</b>")
    model.fail(400)
    await tab.get_by_role("button", name="Ask").click()
    await expect(answer).to_have_text("The model refused the request.")


async def test_form_of_another_site_is_refused(url: str, model: ChatServer) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.post(url + "ask", data=b'{"prompt":"Hi."}') as response,
    ):
        assert response.status == 415
    assert model.requests == []
