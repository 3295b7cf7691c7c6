"""What reaches the socket and how it breaks: a bare client sees what an HTTP client hides."""

import asyncio
import gc
import socket
import ssl
import warnings
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
import pytest

from asyncchat.testing import ChatServer

ASK = {"model": "m", "messages": [{"role": "user", "content": "Hello there"}]}
STREAM = {**ASK, "stream": True}

pytestmark = pytest.mark.timeout(20)


@pytest.fixture
def server(chat_server: ChatServer) -> ChatServer:
    return chat_server


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    client = aiohttp.ClientSession()
    yield client
    await client.close()


def post(
    client: aiohttp.ClientSession, server: ChatServer, body: object = STREAM, **options: Any
) -> Any:
    return client.post(f"{server.base_url}/chat/completions", json=body, **options)


async def read_events(response: aiohttp.ClientResponse, count: int) -> bytes:
    """Read exactly so many events: one HTTP chunk each."""
    return b"".join([(await response.content.readchunk())[0] for _ in range(count)])


async def said(client: aiohttp.ClientSession, server: ChatServer) -> str:
    async with post(client, server) as response:
        body = await response.read()
    return "".join(
        msgspec.json.decode(event)["choices"][0]["delta"].get("content", "")
        for event in body.replace(b"data: ", b"").split(b"\n\n")[:-2]
    )


def port_of(server: ChatServer) -> int:
    return int(server.base_url.split(":")[2].split("/")[0])


class BareClient:
    """A client that sends one request and sees the bytes and the end of the connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, server: ChatServer) -> "BareClient":
        return cls(*await asyncio.open_connection("127.0.0.1", port_of(server)))

    def ask(self, body: object = STREAM) -> None:
        encoded = msgspec.json.encode(body)
        self.writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
            % (len(encoded), encoded)
        )

    async def head(self) -> bytes:
        return await self.reader.readuntil(b"\r\n\r\n")

    async def close(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


@pytest.fixture
async def bare(server: ChatServer) -> AsyncIterator[BareClient]:
    bare = await BareClient.connect(server)
    yield bare
    bare.writer.close()


# --------------------------------------------------------------------------------- how it is sent
async def test_each_event_is_one_http_chunk(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.say("a b")
    async with post(client, server) as response:
        chunks = [chunk async for chunk, _ in response.content.iter_chunks() if chunk]
    assert len(chunks) == 5
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)


async def test_a_split_body_arrives_in_reads_of_its_own(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.raw(b"abcdefgh").split(every=1)
    async with post(client, server) as response:
        reads = [read async for read in response.content.iter_any()]
    assert reads == [bytes([byte]) for byte in b"abcdefgh"]


async def test_a_split_of_the_servers_own_words_loses_none(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.split("Grüße 🌍", every=1)
    server.split(at=[5])
    assert await said(client, server) == "Grüße 🌍"
    assert (await said(client, server)).startswith("One two")


async def test_drip_and_delay_pause_without_losing_anything(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    loop = asyncio.get_running_loop()
    server.say("a b").drip(0.002).delay(0.01)
    began = loop.time()
    assert await said(client, server) == "a b"
    assert loop.time() - began >= 0.01 + 4 * 0.002


async def test_close_after_ends_the_connection_unannounced(
    server: ChatServer, bare: BareClient
) -> None:
    server.say("a").close_after()
    bare.ask()
    assert b"close" not in (await bare.head()).lower()
    assert (await bare.reader.read()).endswith(b"[DONE]\n\n\r\n0\r\n\r\n")
    await server.wait_for_connections(0)
    assert server.gone == []


# -------------------------------------------------------------------------------- what goes wrong
async def test_a_cut_ends_the_body_without_its_last_chunk(
    server: ChatServer, bare: BareClient
) -> None:
    server.cut(after=3)
    bare.ask()
    await bare.head()
    body = await bare.reader.read()
    assert body.count(b"data: ") == 3
    assert body.endswith(b"}\n\n\r\n")
    await server.wait_until_idle()
    assert server.gone == []


@pytest.mark.parametrize("body", [ASK, STREAM])
async def test_a_cut_before_the_headers_sends_nothing(
    server: ChatServer, bare: BareClient, body: object
) -> None:
    server.cut(after=0)
    bare.ask(body)
    assert await bare.reader.read() == b""


async def test_a_cut_after_the_headers_sends_only_them(
    server: ChatServer, bare: BareClient
) -> None:
    server.cut(after="headers")
    bare.ask()
    head = await bare.head()
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert await bare.reader.read() == b""


async def test_a_cut_document_is_shorter_than_it_said(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.cut(after=3)
    async with post(client, server, ASK) as response:
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_reset_is_no_end_of_file(server: ChatServer, bare: BareClient) -> None:
    server.reset(after=2)
    bare.ask()
    await bare.head()
    with pytest.raises(ConnectionResetError):
        await bare.reader.read()
    await server.wait_until_idle()
    assert server.gone == []


async def test_a_stall_is_silent_until_resumed(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.stall(after=3)
    async with post(client, server) as response:
        seen = await read_events(response, 3)
        assert len(server.active) == 1
        server.resume()
        rest = await response.read()
    assert (seen + rest).count(b"data: ") == 11


async def test_a_stall_before_the_headers_sends_nothing_until_resumed(
    server: ChatServer, bare: BareClient
) -> None:
    server.stall(after=0).ping(every=0.001)
    bare.ask(ASK)
    await server.wait_for_requests(1)
    server.resume()
    assert (await bare.head()).startswith(b"HTTP/1.1 200 OK")


async def test_a_stall_can_be_followed_by_a_cut(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.stall(after=1).cut(after=2)
    async with post(client, server) as response:
        await read_events(response, 1)
        server.resume()
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_stall_with_pings_sends_comments_only(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.stall(after=1).ping(every=0.001)
    async with post(client, server) as response:
        await read_events(response, 1)
        assert await read_events(response, 2) == b": ping\n\n" * 2


# ------------------------------------------------------------------------------- a client leaves
@pytest.mark.parametrize("after", [0, "headers", 3])
async def test_a_client_that_leaves_a_stall_is_noticed(
    server: ChatServer, bare: BareClient, after: Any
) -> None:
    server.stall(after=after)
    bare.ask()
    await server.wait_for_requests(1)
    left_at = asyncio.get_running_loop().time()
    await bare.close()
    disconnect = await server.wait_for_disconnect()
    assert disconnect.request is server.requests[0]
    assert 0 <= disconnect.at - left_at < 0.1
    assert server.gone == [disconnect]
    assert server.active == ()


async def test_a_client_that_leaves_a_drip_is_noticed(
    server: ChatServer, bare: BareClient
) -> None:
    server.say("a b c").drip(30)
    bare.ask()
    await bare.head()
    await bare.close()
    await server.wait_for_disconnect()


async def test_a_client_that_leaves_a_torrent_is_noticed(
    server: ChatServer, bare: BareClient
) -> None:
    server.raw(*[b"x" * 1_000_000] * 100)
    bare.ask()
    await bare.head()
    await bare.close()
    await server.wait_for_disconnect()


# ------------------------------------------------------------------------------------- the end
async def test_closing_ends_everything_at_once_and_leaves_nothing() -> None:
    loop = asyncio.get_running_loop()
    before = asyncio.all_tasks()
    server = ChatServer()
    await server.start()
    server.stall(after=0)
    server.stall(after=2).ping(every=0.001)
    server.say("a b").drip(60)
    server.raw(*[b"x" * 1_000_000] * 100)
    bares = [await BareClient.connect(server) for _ in range(5)]  # the last one asks nothing
    for number, bare in enumerate(bares[:4], start=1):
        bare.ask()
        await server.wait_for_requests(number)
    began = loop.time()
    await server.close()
    assert loop.time() - began < 0.5
    await server.close()
    assert asyncio.all_tasks() == before
    assert (server.active, server.open_connections, server.gone) == ((), 0, [])
    for bare in bares:
        bare.writer.close()
    del server
    with warnings.catch_warnings(record=True) as caught:
        gc.collect()
    assert caught == []


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_made_while_closing_is_aborted(turns: int) -> None:
    before = asyncio.all_tasks()
    async with ChatServer() as server:
        with socket.create_connection(("127.0.0.1", port_of(server))):
            for _ in range(turns):
                await asyncio.sleep(0)
            await server.close()
            assert asyncio.all_tasks() == before
            assert server.open_connections == 0


def anonymous_tls(protocol: int) -> ssl.SSLContext:
    """Make a context that needs no certificate, so the tests need no file and no clock."""
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    return context


async def test_tls_is_served_and_broken_with_the_given_context() -> None:
    connector = aiohttp.TCPConnector(ssl=anonymous_tls(ssl.PROTOCOL_TLS_CLIENT))
    server = ChatServer(tls=anonymous_tls(ssl.PROTOCOL_TLS_SERVER))
    async with server, aiohttp.ClientSession(connector=connector) as client:
        assert server.base_url.startswith("https://127.0.0.1:")
        assert await said(client, server) == "Hello there"
        for faulty in (server.cut, server.reset):
            faulty(after=2)
            async with post(client, server) as response:
                await read_events(response, 2)
                with pytest.raises(aiohttp.ClientError):
                    await response.read()
        server.stall(after=1)
        async with post(client, server) as response:
            await read_events(response, 1)
            response.close()
        await server.wait_for_disconnect()
