"""Every example of the documentation runs, and prints what its page says.

A `python` block that calls `asyncio.run` is a script and runs in a thread of its own. Any other block is a fragment with
`await` at its top level: it finds `client`, `server` and `messages`, every public name of asyncchat, and what the
blocks above it on the page have made. Functions `test_...` in it are run as tests.

`<!-- server: say("Hi."), fail(429) -->` above a block is what the server does in it, and all of it has to happen.
A `text` block right below is what the block prints. `http://127.0.0.1:8000/v1` in code means that server.
"""

import ast
import asyncio
import inspect
import io
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, redirect_stdout
from pathlib import Path
from types import CodeType, ModuleType, SimpleNamespace
from typing import Any

import pytest

import asyncchat
import asyncchat.local
from asyncchat import AsyncChat
from asyncchat.testing import ChatServer, Reply
from tests.docs.markdown import PAGES, ROOT, Block, blocks, name

URL = "http://127.0.0.1:8000/v1"


def pages_with(language: str) -> list[Path]:
    return [page for page in PAGES if any(b.language == language for b in blocks(page))]


def compiled(page: Path, block: Block, base_url: str) -> CodeType:
    code = "\n" * (block.line - 1) + block.code.replace(
        URL, base_url
    )  # so that tracebacks show the page's lines
    made: CodeType = compile(
        code, str(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True
    )
    return made


def script(server: ChatServer, calls: str) -> None:
    """Queue what a comment says: calls of the server's methods, separated by commas."""
    if calls:
        methods = {n: getattr(server, n) for n in dir(ChatServer) if not n.startswith("_")}
        eval(f"({calls},)", {**methods, "Reply": Reply})


async def run_block(page: Path, block: Block, base_url: str, names: dict[str, Any]) -> None:
    code = compiled(page, block, base_url)
    if "asyncio.run(" in block.code:
        await asyncio.to_thread(exec, code, {"__name__": "__main__"})
        return
    before = dict(names)
    running = eval(code, names)
    if inspect.iscoroutine(running):
        await running
    for key, made in names.items():
        if key.startswith("test_") and made is not before.get(key):
            async with ChatServer() as chat_server:
                await made(chat_server)


@pytest.fixture
async def stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[ChatServer]:
    """A scripted server, which also stands in for the local model."""
    async with ChatServer() as server:

        @asynccontextmanager
        async def local_server(*args: object, **options: object) -> AsyncIterator[object]:
            inspect.signature(real).bind(*args, **options)
            yield SimpleNamespace(base_url=server.base_url, model="smollm2-135m-instruct")

        real = asyncchat.local.local_server
        monkeypatch.setattr(asyncchat.local, "local_server", local_server)
        (tmp_path / "tests").symlink_to(ROOT / "tests")  # one page reads a recording
        monkeypatch.chdir(tmp_path)  # and others write
        yield server


@pytest.mark.parametrize("page", pages_with("python"), ids=name)
async def test_examples_run_and_print_what_the_page_says(
    page: Path, stand_in: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("page")  # frameworks look up where their handlers are defined
    monkeypatch.setitem(sys.modules, "page", module)
    names: dict[str, Any] = vars(module)
    names.update({n: getattr(asyncchat, n) for n in asyncchat.__all__})
    async with AsyncExitStack() as stack:
        for block in blocks(page):
            if block.language != "python":
                continue
            names["server"], names["messages"] = stand_in, [{"role": "user", "content": "Hi."}]
            names["client"] = await stack.enter_async_context(
                AsyncChat(stand_in.base_url, model="m")
            )
            script(stand_in, block.server)
            with redirect_stdout(io.StringIO()) as printed:
                await run_block(page, block, stand_in.base_url, names)
            for made in names.values():  # a page may leave its clients open; a test may not
                if isinstance(made, AsyncChat):
                    stack.push_async_callback(made.close)
            where = f"{name(page)}, line {block.line}"
            assert stand_in.queued == 0, f"{where}: a reply was not asked for"
            if block.output is not None:
                assert printed.getvalue().rstrip() == block.output.rstrip(), where


def test_block_carries_the_comment_above_and_the_output_below(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text('<!-- server: say("a") -->\n\n```python\nprint(1)\n```\n\n```text\n2\n```\n')
    first, second = blocks(page)
    assert (first.server, first.code, first.output, first.line) == (
        'say("a")',
        "print(1)\n",
        "2\n",
        4,
    )
    assert (second.language, second.output) == ("text", None)
