"""Two real llama.cpp servers behind one client, one of which is stopped while it answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from asyncchat import (
    AsyncChat,
    ContentDelta,
    Endpoint,
    Fact,
    Resumed,
    StreamCut,
    Timeout,
)
from asyncchat.local import LocalServer, local_server
from asyncchat.protocol.facts import AnswerStarted, RequestStarted
from tests.client.conftest import start

pytestmark = pytest.mark.local

SEA = "Write two sentences about the sea."
PATIENT = Timeout(connect=60, first=100, idle=100, total=110)


@pytest_asyncio.fixture
async def two() -> AsyncIterator[tuple[LocalServer, LocalServer]]:
    """Two servers of one model, with two slots each; a test may stop either."""
    servers = [local_server(parallel=2, context=1024, threads=1) for _ in range(2)]
    async with AsyncExitStack() as stack:
        loading = [start(server.__aenter__()) for server in servers]
        for server, loaded in zip(servers, loading, strict=True):
            await loaded
            stack.push_async_exit(server)
        one, other = servers
        yield one, other


async def stop(server: LocalServer) -> None:
    """End the process; that can be done twice."""
    await server.__aexit__(None, None, None)


def of(*servers: LocalServer) -> list[Endpoint]:
    return [Endpoint(server.base_url, model=server.model) for server in servers]


async def test_stopped_server_loses_nobody_who_had_not_had_a_first_event(
    two: tuple[LocalServer, LocalServer],
) -> None:
    one, other = two
    streams: set[int] = set()
    answered: list[str] = []
    cut: list[tuple[StreamCut, str]] = []
    its_time = asyncio.Event()

    def watch(fact: Fact) -> None:
        if isinstance(fact, RequestStarted) and fact.stream:
            streams.add(fact.request)
        if (
            isinstance(fact, AnswerStarted)
            and fact.request in streams
            and fact.endpoint == one.base_url
            and len(answered) >= 4
        ):
            its_time.set()

    async def call(client: AsyncChat, number: int) -> None:
        fields: dict[str, Any] = {"max_tokens": 3, "temperature": 0, "ignore_eos": True}
        if number % 4 == 0:
            answered.append((await client.chat("Hi", **fields)).text)
            return
        said = ""
        try:
            async with client.chat.stream("Hi", **fields) as stream:
                async for piece in stream.text():
                    said += piece
        except StreamCut as error:
            cut.append((error, said))
        else:
            answered.append(stream.completion.text)

    endpoints = of(one, other)
    async with AsyncChat(
        endpoints=endpoints, timeout=PATIENT, observers=[watch], trust_env=False
    ) as client:
        tasks = [start(call(client, number)) for number in range(40)]
        async with asyncio.timeout(60):
            await its_time.wait()
        await stop(one)
        for task in tasks:
            await task
        statistics = client.statistics()
    assert len(answered) + len(cut) == 40
    assert all(answered)
    assert 1 <= len(cut) <= 4  # who was in one of its two slots; those behind them went elsewhere
    for error, said in cut:
        assert error.endpoint == one.base_url
        assert error.partial is not None
        assert error.partial.text == said
    assert (statistics.in_flight, statistics.waiting) == (0, 0)
    assert statistics.endpoints[1].sent >= 16


async def test_answer_of_a_stopped_server_is_continued_by_the_other(
    two: tuple[LocalServer, LocalServer],
) -> None:
    one, other = two
    fields: dict[str, Any] = {"max_tokens": 20, "temperature": 0}
    async with AsyncChat(endpoints=of(one, other), timeout=PATIENT, trust_env=False) as client:
        whole = (await client.chat.stream(SEA, **fields).final()).text
        await client.chat(
            "Hi", max_tokens=1
        )  # the other one's turn, so that the next is the first's
        events = []
        before = ""
        async with client.chat.stream(SEA, resume="continue", **fields) as stream:
            async for event in stream:
                events.append(event)
                if isinstance(event, ContentDelta) and len(events) == 8:
                    before = stream.snapshot.text
                    await stop(one)
        answer = stream.completion
    [resumed] = [event for event in events if isinstance(event, Resumed)]
    assert resumed.mode == "continue"
    said = "".join(event.delta for event in events if isinstance(event, ContentDelta))
    assert answer.text == said
    assert 0 < len(before) < len(whole)
    assert answer.text.startswith(before)
    # It goes on in the middle of the sentence, and does not begin again.
    assert answer.text.startswith(whole)
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.resumed) == (2, 1)
    assert answer.timing.endpoint == other.base_url
