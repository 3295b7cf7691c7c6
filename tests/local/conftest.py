"""One real server for the whole run, for every test that carries the marker `local`, and what those tests ask it."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from asyncchat import AsyncChat, Timeout
from asyncchat.local import LocalServer, local_server

TEMPLATE = Path(__file__).with_name("tools_chatml.jinja")


def example(city: str, weather: str) -> list[dict[str, object]]:
    """One worked tool turn: a model this small calls a tool only after it has seen two."""
    call = {
        "id": city,
        "type": "function",
        "function": {"name": "get_weather", "arguments": f'{{"city": "{city}"}}'},
    }
    return [
        {"role": "user", "content": f"What is the weather in {city}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": city, "content": weather},
        {"role": "assistant", "content": f"It is {weather} in {city}."},
    ]


ASK_PARIS = [
    *example("Rome", "sunny"),
    *example("Oslo", "cold"),
    {"role": "user", "content": "What is the weather in Paris?"},
]


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


@pytest_asyncio.fixture
async def client(llama: LocalServer) -> AsyncIterator[AsyncChat]:
    # No retries: what fails once must be seen.
    client = AsyncChat(
        base_url=llama.base_url,
        model=llama.model,
        max_retries=0,
        timeout=Timeout(connect=60, first=100, idle=100, total=110),
        trust_env=False,
    )
    yield client
    await client.close()
