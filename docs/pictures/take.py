"""Takes the pictures of the demo page anew: `python docs/pictures/take.py`, about half a minute.

Needs the `dev` extra, pillow, a Chromium, and the local model, whose real answers are seen. Set in Inter where that is
installed (Debian: `fonts-inter`), else in the system's own font. What the model says differs from machine to machine.
"""

import asyncio
import os
import shutil
import tempfile
from contextlib import AsyncExitStack
from io import BytesIO
from pathlib import Path
from typing import Literal, NamedTuple

from PIL import Image
from playwright.async_api import Browser, Page, async_playwright

from asyncchat import AsyncChat
from asyncchat.local import install_model, local_server
from asyncchat.web import About, PageServer, listen, make_app

HERE = Path(__file__).parent
COLOURS = 32  # the page has a handful, and the edges of its letters the rest
FONTS = """<?xml version="1.0"?><!DOCTYPE fontconfig SYSTEM "fonts.dtd">
<fontconfig>
  <match><edit name="family" mode="prepend" binding="strong"><string>Inter</string></edit></match>
  <include ignore_missing="yes">/etc/fonts/fonts.conf</include>
</fontconfig>
"""


class Picture(NamedTuple):
    """One picture: how large the window is, and how many answers are asked for."""

    name: str
    width: int
    height: int
    scheme: Literal["light", "dark"]
    answers: int


PICTURES = (
    Picture("demo-wide-light", 960, 640, "light", 2),
    Picture("demo-wide-dark", 960, 640, "dark", 2),
    Picture("demo-narrow-light", 360, 640, "light", 1),
    Picture("demo-narrow-dark", 360, 640, "dark", 1),
)
QUESTIONS = ("Write one sentence about the sea.", "And one about the wind.")


async def take(browser: Browser, url: str, picture: Picture) -> None:
    """Talk with the model in a window of its own, and keep what is seen at the end."""
    page = await browser.new_page(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.scheme
    )
    await page.goto(url)
    await page.get_by_role("radio", name=f"{picture.answers} answer").check()
    for question in QUESTIONS:
        await ask(page, question)
    shot = Image.open(BytesIO(await page.screenshot()))
    path = HERE / f"{picture.name}.png"
    few = shot.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(path, optimize=True)
    print(f"{path.name}: {path.stat().st_size:,} bytes")
    await page.close()


async def ask(page: Page, question: str) -> None:
    """Ask, and wait until every answer is complete."""
    await page.get_by_label("Your message").fill(question)
    await page.keyboard.press("Enter")
    await (
        page.get_by_role("status")
        .get_by_text("complete")
        .wait_for(state="attached", timeout=120_000)
    )


async def take_all(fonts: str) -> None:
    """Start the model, the page and the browser, and take every picture."""
    await install_model()
    async with AsyncExitStack() as stack:
        local = await stack.enter_async_context(local_server(parallel=2))
        client = AsyncChat(local.base_url, model=local.model)
        await stack.enter_async_context(client)
        about = About(model=local.model, place="served on this machine by llama.cpp")
        app = make_app(client, about, fields={"temperature": 0.5, "max_tokens": 75})
        server = await stack.enter_async_context(PageServer(app, listen()))
        playwright = await stack.enter_async_context(async_playwright())
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium") or shutil.which("google-chrome"),
            args=["--no-sandbox", "--disable-gpu", "--font-render-hinting=none"],
            env={**os.environ, "FONTCONFIG_FILE": fonts},
        )
        for picture in PICTURES:
            await take(browser, server.url, picture)
        await browser.close()


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as file:
        file.write(FONTS)
        file.flush()
        asyncio.run(take_all(file.name))
