"""Connections: what aiohttp does with them when left alone, and asyncchat does not."""

import asyncio
import socket
from typing import Any

import aiohttp
import pytest

from asyncchat import APIError, AsyncChat, Timeout
from asyncchat.client.transport import Use, make_connector
from asyncchat.testing import ChatServer, Reply
from tests.client.bare import EVENT, HEAD, bare_server, chunked, json_answer, read_request
from tests.client.conftest import MakeClient


async def test_answer_that_nobody_asked_for_is_not_read_by_the_next_request(
    make_client: MakeClient,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            writer.write(json_answer(b"first" if b"one" in request else b"second"))
            await writer.drain()
            await asyncio.sleep(0.02)
            writer.write(json_answer(b"POISON"))

    async with bare_server(answer) as url:
        client = make_client(url)
        assert (await client.chat("one")).text == "first"
        await asyncio.sleep(0.06)
        assert (await client.chat("two")).text == "second"
        await client.close()


async def test_answer_that_nobody_asked_for_and_that_comes_with_the_first_is_not_read_either(
    make_client: MakeClient,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            request = await read_request(reader)
            text = b"first" if b"one" in request else b"second"
            writer.write(json_answer(text) + json_answer(b"POISON"))

    async with bare_server(answer) as url:
        client = make_client(url)
        assert (await client.chat("one")).text == "first"
        assert (await client.chat("two")).text == "second"
        await client.close()


@pytest.mark.parametrize("size", [b"no hex", b"f" * 20])
async def test_chunk_size_that_is_none_ends_the_stream_at_once_and_what_came_is_kept(
    size: bytes, make_client: MakeClient
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(HEAD + b"transfer-encoding: chunked\r\n\r\n" + chunked(EVENT))
        await asyncio.sleep(0.02)
        writer.write(size + b"\r\n" + EVENT)
        await reader.read()

    async with bare_server(answer) as url:
        client = make_client(url, timeout=Timeout(idle=5))
        with pytest.raises(APIError) as caught:
            async with asyncio.timeout(1):
                await client.chat.stream("a").final()
        assert caught.value.partial is not None
        assert caught.value.partial.text == "x"
        await client.close()


async def test_connections_are_probed_by_keepalive(
    server: ChatServer, client: AsyncChat, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_options: list[tuple[int, ...]] = []

    class Watched(socket.socket):
        def setsockopt(self, *args: Any) -> None:
            set_options.append(args)
            super().setsockopt(*args)

    monkeypatch.setattr(socket, "socket", Watched)
    await client.chat("a")
    assert (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1) in set_options


@pytest.mark.parametrize("name", ["_payload", "_buffer", "_tail", "_exception"])
async def test_aiohttp_that_is_built_otherwise_is_refused_with_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = aiohttp.client_proto.ResponseHandler.__init__

    def without(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        delattr(self, name)

    monkeypatch.setattr("aiohttp.client_proto.ResponseHandler.__init__", without)
    with pytest.raises(RuntimeError, match=r"aiohttp 3\.14"):
        make_connector(None)


async def test_requests_of_tasks_that_one_has_started_know_each_its_own_connection(
    client: AsyncChat, server: ChatServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.otherwise(Reply().say("x"))
    await client.chat("from the task that starts the others, which have its context")
    uses: list[Use] = []
    of_this_request = Use.of_this_request

    def noted() -> Use:
        uses.append(of_this_request())
        return uses[-1]

    monkeypatch.setattr(Use, "of_this_request", noted)
    await asyncio.gather(*(client.chat("one of three at once") for _ in range(3)))
    # One has the connection that was kept; each of the others opens one.
    assert sorted(str(use.reused) for use in uses) == ["False", "False", "True"]
