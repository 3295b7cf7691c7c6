"""Reading ahead, within a bound."""

import asyncio
from typing import Any

import pytest

from asyncchat import AsyncChat, ContentDelta, StreamCut, Timeout
from asyncchat.bridges.openai_chunks import OpenAIChunks
from asyncchat.bridges.pump import MOST_WAITING, Pump
from asyncchat.testing import ChatServer
from tests.bridges.fakes import start
from tests.bridges.flood import Flood


async def test_what_came_is_taken_in_one_go(client: AsyncChat, server: ChatServer) -> None:
    server.say("One two three.")
    pump = Pump(client.chat.stream("Hi."), "events")
    await pump.run()
    assert pump.is_over
    assert pump.error is None
    taken = pump.take()
    assert [item.delta for item in taken if isinstance(item, ContentDelta)] == [
        "One",
        " two",
        " three.",
    ]
    assert pump.take() == []
    assert pump.last(OpenAIChunks()) == [b"[DONE]"]


async def test_failure_is_kept_beside_what_came_before_it(
    client: AsyncChat, server: ChatServer
) -> None:
    server.cut(after=3)
    pump = Pump(client.chat.stream("Hi."), "chunks")
    await pump.run()
    assert isinstance(pump.error, StreamCut)
    assert len(pump.take()) == 3
    (failed,) = pump.last(OpenAIChunks())
    assert b"stream_cut" in failed


async def test_reader_who_takes_nothing_stops_the_reading(flood: Flood) -> None:
    pump = Pump(flood.stream(), "events")
    task = start(pump.run())
    await flood.wait_until_stuck()
    sent = flood.sent
    waiting = sum(len(item.delta) for item in pump.take() if isinstance(item, ContentDelta))
    assert (
        MOST_WAITING - 4096 <= waiting <= MOST_WAITING + 4096
    )  # the rest is in the kernel's buffers
    while flood.sent == sent:  # and it goes on
        await pump.wait()
        pump.take()
    task.cancel()
    await asyncio.wait([task])
    await flood.wait_until_left()


async def test_slow_reader_is_no_silent_server(flood: Flood) -> None:
    """The bound of silence runs only while the server is waited for."""
    pump = Pump(flood.stream(timeout=Timeout(idle=0.05)), "events")
    task = start(pump.run())
    await flood.wait_until_stuck()  # far longer than that
    assert pump.error is None
    pump.take()
    await pump.wait()
    assert pump.error is None
    assert pump.take()
    task.cancel()
    await asyncio.wait([task])


async def test_cancelling_closes_the_stream(client: AsyncChat, server: ChatServer) -> None:
    server.stall(after="headers")
    pump: Any = Pump(client.chat.stream("Hi."), "events")
    task = start(pump.run())
    await server.wait_for_requests(1)
    task.cancel()
    await server.wait_for_disconnect()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert pump.is_over
