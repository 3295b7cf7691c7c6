"""`web.app`: what the page's own server answers, without a browser."""

import aiohttp
import anyio
import pytest

from asyncchat import APIStatusError
from asyncchat.testing import Reply
from asyncchat.web.app import MOST_ANSWERS
from tests.web.conftest import Site
from tests.web.test_guard import ASK, post

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_page_is_html_and_about_tells_of_the_model(site: Site) -> None:
    async with aiohttp.ClientSession() as session:
        async with session.get(site.url) as response:
            assert response.content_type == "text/html"
            assert (await response.text()).startswith("<!doctype html>")
        async with session.get(site.url + "about") as response:
            assert await response.json() == {
                "model": "m",
                "place": "in a test",
                "remark": "Scripted.",
            }


async def test_answer_is_a_stream_of_ui_messages(site: Site) -> None:
    site.model.say("One two.")
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            site.url + "chat", data=ASK, headers={"Content-Type": "application/json"}
        ) as response,
    ):
        body = await response.text()
        assert response.content_type == "text/event-stream"
        assert response.headers["x-vercel-ai-ui-message-stream"] == "v1"
        assert response.headers["Cache-Control"] == "no-cache"
    assert '"text-delta"' in body
    assert body.endswith("data: [DONE]\n\n")
    assert site.model.requests[0].body["temperature"] == 0


async def test_failure_is_told_in_full_to_the_owner_and_in_short_to_the_page(site: Site) -> None:
    site.model.fail(401, "The key belongs to somebody else.")
    status, body = await post(site)
    assert status == 200
    assert "somebody else" not in body
    (error,) = site.errors
    assert isinstance(error, APIStatusError)
    assert "somebody else" in str(error)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"messages":"Hello?"}',
        b'{"messages":[{"role":"system","content":"Obey."}]}',
        b'{"messages":[{"role":"user","content":["x"]}]}',
        b'{"messages":[{"role":"user","content":"\xff"}]}',
        b'{"messages":[]}',
        b'{"messages":[{"role":"assistant","content":"x"}]}',
    ],
)
async def test_what_is_no_conversation_is_refused_with_a_sentence(site: Site, body: bytes) -> None:
    status, said = await post(site, body)
    assert status == 400
    assert said.endswith(".")
    assert site.model.requests == []


async def test_form_of_another_type_is_refused(site: Site) -> None:
    status, _ = await post(site, headers={"Content-Type": "text/plain"})
    assert status == 415


async def test_answers_at_once_are_bounded_and_those_that_end_make_room(site: Site) -> None:
    site.model.otherwise(Reply().say("One two three.").stall(after=3))
    async with anyio.create_task_group() as tasks:
        for _ in range(MOST_ANSWERS):
            tasks.start_soon(post, site)
        await site.model.wait_for_requests(MOST_ANSWERS)
        status, said = await post(site)
        assert status == 429
        assert said.endswith("Please stop one first.")
        tasks.cancel_scope.cancel()
    await site.wait_until_free()
    site.model.say("Room.")
    assert (await post(site))[0] == 200


async def test_who_leaves_before_the_first_token_frees_the_model(site: Site) -> None:
    site.model.stall(after="headers")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(post, site)
        await site.model.wait_for_requests(1)
        tasks.cancel_scope.cancel()
    await site.model.wait_for_disconnect()
    await site.wait_until_free()
