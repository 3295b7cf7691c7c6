"""The demo page as an application of aiohttp: the page, what it says of the model, and answers as they come.

Not here: who may ask (`guard`), the socket (`server`), the format of the stream (`bridges`). The conversation is kept
by the page; the server holds nothing between two requests.
"""

from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Literal

import msgspec
from aiohttp import web

from asyncchat.bridges.sse import sse
from asyncchat.client.client import AsyncChat
from asyncchat.web.guard import MAX_BODY_BYTES, guard, protect, secure_page

__all__ = ["MOST_ANSWERS", "About", "make_app"]

MOST_ANSWERS = 16  # at once, for all tabs: a page asks for 4 at most


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What the page says of the model it talks with."""

    model: str
    place: str = ""
    remark: str = ""


class _Turn(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    content: str


class _Asked(msgspec.Struct, frozen=True):
    messages: list[_Turn]


def make_app(
    client: AsyncChat,
    about: About,
    *,
    host: str = "127.0.0.1",
    fields: Mapping[str, Any] | None = None,
    on_error: Callable[[Exception], None] | None = None,
) -> web.Application:
    """Return the application: `/` is the page, `/about` tells of the model, `/chat` streams an answer.

    It has to be run with `handler_cancellation=True`, as `PageServer` does: only then does a person who leaves free the
    model at once, and not at the next token.

    Args:
        client: asked for the answers; not closed.
        about: what the page says of the model.
        host: what is listened on, for the guard against foreign sites.
        fields: of every request to the model, such as `temperature`.
        on_error: called with what an answer failed with. The page is told no more than the kind of it.
    """
    app = web.Application(client_max_size=MAX_BODY_BYTES, middlewares=[guard(host)])
    app.on_response_prepare.append(protect)
    html = files("asyncchat.web").joinpath("page.html").read_text(encoding="utf-8")
    told = msgspec.json.encode(about)
    answers = 0

    async def page(_: web.Request) -> web.Response:
        return secure_page(html)

    async def tell(_: web.Request) -> web.Response:
        return web.Response(body=told, content_type="application/json")

    async def chat(request: web.Request) -> web.StreamResponse:
        nonlocal answers
        messages = await _read(request)
        if answers >= MOST_ANSWERS:
            raise web.HTTPTooManyRequests(
                text=f"{MOST_ANSWERS} answers are being written already. Please stop one first."
            )
        answers += 1
        try:
            stream = client.chat.stream(messages, **(fields or {}))
            async with sse(stream, "ui") as body:
                response = web.StreamResponse(headers=body.headers)
                await response.prepare(request)
                async for piece in body:
                    await response.write(piece)
            if body.error is not None and on_error is not None:
                on_error(body.error)
        finally:
            answers -= 1
        return response

    app.router.add_get("/", page)
    app.router.add_get("/about", tell)
    app.router.add_post("/chat", chat)
    return app


async def _read(request: web.Request) -> list[dict[str, str]]:
    # Any other type could be sent by a form of another site, without the browser asking first.
    if request.content_type != "application/json":
        raise web.HTTPUnsupportedMediaType(text="A request to the demo is JSON.")
    try:
        asked = msgspec.json.decode(await request.read(), type=_Asked)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise web.HTTPBadRequest(text="The demo could not read the request.") from error
    if not asked.messages or asked.messages[-1].role != "user":
        raise web.HTTPBadRequest(text="There is nothing to answer: the last message is not yours.")
    return [{"role": turn.role, "content": turn.content} for turn in asked.messages]
