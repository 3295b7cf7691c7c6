"""The fixture in pytest runs of its own, as a user has them: another process, warnings are errors."""

import subprocess
import sys

import pytest

from asyncchat.testing import ChatServer

pytest_plugins = ["pytester"]

TEST = """
import pytest

{mark}
async def test_it_serves(chat_server):
    import aiohttp
    chat_server.say("Hello.")
    async with aiohttp.ClientSession() as client:
        body = {{"messages": []}}
        async with client.post(f"{{chat_server.base_url}}/chat/completions", json=body) as answer:
            assert (await answer.json())["choices"][0]["message"]["content"] == "Hello."
    chat_server.stall(after=0)
"""


async def test_the_fixture_gives_a_started_server(chat_server: ChatServer) -> None:
    assert chat_server.base_url.endswith("/v1")
    assert chat_server.queued == 0


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        ("", ["-o", "asyncio_mode=auto"]),
        ("@pytest.mark.asyncio", ["-o", "asyncio_mode=strict"]),
        ("@pytest.mark.anyio", ["-p", "no:asyncio"]),
    ],
    ids=["auto", "strict", "without pytest-asyncio"],
)
def test_the_fixture_works_in_every_mode(
    pytester: pytest.Pytester, mark: str, options: list[str]
) -> None:
    pytester.makepyfile(TEST.format(mark=mark))
    pytester.makeconftest("import pytest\n@pytest.fixture\ndef anyio_backend(): return 'asyncio'")
    if "no:asyncio" not in options:
        options = [*options, "-o", "asyncio_default_fixture_loop_scope=function"]
    without = ("-p", "no:cacheprovider", "-p", "no:hypothesispytest")  # slow to begin
    result = pytester.runpytest_subprocess("-W", "error", *without, *options)
    result.assert_outcomes(passed=1)


def test_loading_the_plugin_imports_no_server() -> None:
    code = (
        "import sys, asyncchat.testing.plugin;"
        "heavy = {'aiohttp', 'anyio', 'msgspec', 'asyncchat.testing.server'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_knows_its_names_and_no_others() -> None:
    import asyncchat.testing

    assert dir(asyncchat.testing) == ["ChatServer", "Disconnect", "ReceivedRequest", "Reply"]
    assert asyncchat.testing.ChatServer is ChatServer
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = asyncchat.testing.Server
