"""One server over HTTP: connections, keys, redirects, proxies, and what foreign errors become."""

import asyncio
import logging
import pickle
import socket
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import aiohttp
import pytest

from asyncchat import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncChat,
    AsyncChatError,
    AuthenticationError,
    Limits,
    PoolClosed,
    ProtocolError,
    Timeout,
)
from asyncchat.client.session import Session
from asyncchat.policy.endpoint import Endpoint
from asyncchat.testing import ChatServer, Reply
from tests.client.bare import END, EVENT, HEAD, bare_server, chunked, read_request
from tests.client.conftest import KEY, MakeClient, Waits, start

# ------------------------------------------------------------------------------------- connections


async def test_plain_requests_one_after_the_other_use_one_connection(
    server: ChatServer, client: AsyncChat
) -> None:
    for _ in range(5):
        await client.chat("a")
    assert {request.connection for request in server.requests} == {1}


async def test_streams_read_to_their_end_give_their_connection_back(
    server: ChatServer, client: AsyncChat
) -> None:
    for _ in range(5):
        async with client.chat.stream("a") as stream:
            async for _ in stream:
                pass
        await asyncio.sleep(0.02)  # the terminator comes shortly after `[DONE]`
    assert {request.connection for request in server.requests} == {1}


async def test_stream_whose_terminator_comes_in_the_same_write_gives_its_connection_back_at_once(
    make_client: MakeClient,
) -> None:
    connections = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await read_request(reader)
            head = HEAD + b"transfer-encoding: chunked\r\n\r\n"
            writer.write(head + chunked(EVENT + END) + b"0\r\n\r\n")

    async with bare_server(answer) as url:
        client = make_client(url)
        for _ in range(5):
            await client.chat.stream("a").final()
        await client.close()
    assert connections == 1


async def test_connection_whose_body_goes_on_after_the_end_mark_is_closed(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(EVENT + END, b": and on").stall(after=1)
    await client.chat.stream("a").final()
    await server.wait_for_disconnect(1)
    await client.chat("b")
    assert [request.connection for request in server.requests] == [1, 2]


async def test_client_closed_between_the_end_mark_and_the_end_of_the_body_closes_the_connection(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(EVENT + END, b": and on").stall(after=1)
    await client.chat.stream("a").final()
    await client.close()
    await server.wait_for_connections(0, 0.1)


async def test_stream_that_was_left_early_does_not_give_its_connection_back(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    async with client.chat.stream("a"):
        pass
    await server.wait_for_connections(0, 0.1)


async def test_server_that_closes_after_each_stream_costs_no_failure_and_no_retry(
    server: ChatServer, client: AsyncChat
) -> None:
    server.otherwise(Reply().say("Hi.").close_after())
    for _ in range(50):
        assert (await client.chat.stream("a").final()).text == "Hi."
    assert client.statistics().attempts == 50


async def test_kept_connection_that_dies_under_a_request_is_replaced_at_once(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.chat("a")
    server.cut(after=0)
    answer = await client.chat("b")
    assert answer.text == "b"
    assert answer.timing is not None
    assert answer.timing.attempts == 1
    assert [request.connection for request in server.requests] == [1, 1, 2]


async def test_server_that_closed_after_a_stream_is_asked_to_say_so_from_then_on(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.chat.stream("a").final()
    await asyncio.sleep(0.02)
    server.cut(after=0)
    for _ in range(2):
        await client.chat.stream("b").final()
    closes = [request.headers.get("Connection") == "close" for request in server.requests]
    assert closes == [False, False, True, True]


async def test_plain_requests_keep_their_connection_where_streams_do_not(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.chat.stream("a").final()
    await asyncio.sleep(0.02)
    server.cut(after=0)
    await client.chat.stream("b").final()
    await client.chat("c")
    assert "Connection" not in server.requests[-1].headers


async def test_fresh_connection_that_dies_is_not_sent_to_again(
    server: ChatServer, client: AsyncChat
) -> None:
    server.cut(after=0)
    with pytest.raises(APIConnectionError, match="lost before an answer came") as caught:
        await client.chat("a")
    assert caught.value.retryable
    assert len(server.requests) == 1


async def test_server_that_closes_kept_connections_again_and_again_is_given_up(
    server: ChatServer, client: AsyncChat
) -> None:
    for count in range(8):  # eight connections to keep
        server.reply().delay(0.05).say(str(count))
    tasks = [start(client.chat("a")) for _ in range(8)]
    for task in tasks:
        await task
    server.otherwise(Reply().say("x").cut(after=0))
    with pytest.raises(APIConnectionError):
        await client.chat("b")
    assert len(server.requests) <= 8 + 7


# --------------------------------------------------------------------------------- what is no answer


async def test_what_is_no_http_is_a_protocol_error(make_client: MakeClient) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"220 mail.example ESMTP\r\n\r\n")

    async with bare_server(answer) as url:
        with pytest.raises(ProtocolError, match="is no HTTP"):
            await make_client(url).chat("a")


async def test_headers_without_end_are_refused(make_client: MakeClient) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nx-long: " + b"x" * 200_000)
        await reader.read()

    async with bare_server(answer) as url:
        with pytest.raises(ProtocolError):
            async with asyncio.timeout(2):
                await make_client(url).chat("a")


async def test_header_lines_up_to_64_kb_are_read(server: ChatServer, client: AsyncChat) -> None:
    server.say("Hi.").headers({"x-long": "x" * 60_000})
    assert (await client.chat("a")).text == "Hi."


async def test_compressed_rubbish_is_a_protocol_error(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(b"no gzip").headers({"Content-Encoding": "gzip"})
    with pytest.raises(ProtocolError):
        await client.chat.stream("a").final()


async def test_error_whose_body_is_compressed_rubbish_is_still_that_error(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(b"no gzip").status(401).headers({"Content-Encoding": "gzip"})
    with pytest.raises(AuthenticationError):
        await client.chat("a")


async def test_error_whose_body_breaks_off_is_still_that_error(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(b'{"error":', b'"x"}').status(401).reset(after=1)
    with pytest.raises(AuthenticationError):
        await client.chat("a")


async def test_error_whose_body_never_comes_is_still_that_error(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.raw(b"x").status(401).stall(after="headers")
    with pytest.raises(AuthenticationError):
        async with asyncio.timeout(1):
            await make_client(timeout=Timeout(first=0.1)).chat("a")


async def test_error_body_without_end_is_read_up_to_its_bound(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.raw(*[b"x" * 10_000] * 200).status(500)
    client = make_client(limits=Limits(max_error_bytes=20_000))
    with pytest.raises(APIStatusError) as caught:
        await client.chat("a")
    assert isinstance(caught.value.body, str)
    assert len(caught.value.body) == 20_000
    assert len(str(caught.value)) < 1000


async def test_unresolved_host_is_named_by_its_url(make_client: MakeClient) -> None:
    with pytest.raises(
        APIConnectionError, match=r"cannot be resolved\. Is base_url right"
    ) as caught:
        await make_client("http://nowhere.invalid/v1").chat("a")
    assert not isinstance(caught.value, APITimeoutError)


async def test_refused_connection_says_what_to_look_at(
    make_client: MakeClient, unused_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_port}/v1"
    with pytest.raises(APIConnectionError, match="Is the server running") as caught:
        await make_client(url).chat("a")
    assert caught.value.endpoint == url


async def test_tls_to_a_server_without_it_is_an_error_of_ours(
    server: ChatServer, make_client: MakeClient
) -> None:
    url = server.base_url.replace("http:", "https:")
    with pytest.raises(APIConnectionError) as caught:
        await make_client(url).chat("a")
    assert "http" in str(caught.value)


# --------------------------------------------------------------------------------------- redirects


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_not_followed_and_only_its_origin_is_named(
    status: int, server: ChatServer, client: AsyncChat, chat_server: ChatServer
) -> None:
    async with ChatServer() as other:
        target = f"{other.base_url}/secret-path?token=abc"
        server.raw(b"").status(status).headers({"Location": target})
        with pytest.raises(APIStatusError) as caught:
            await client.chat("a")
        assert other.requests == []
        assert other.base_url.removesuffix("/v1") in str(caught.value)
    assert "secret-path" not in str(caught.value)
    assert "abc" not in str(caught.value)
    assert "base_url" in str(caught.value)


async def test_redirect_within_the_server_is_an_error_too(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(b"").status(308).headers({"Location": "/v2/chat"})
    with pytest.raises(APIStatusError, match="another path"):
        await client.chat("a")


async def test_cookie_is_not_sent_back(server: ChatServer, client: AsyncChat) -> None:
    server.say("x").headers({"Set-Cookie": "tenant=1"})
    await client.chat("a")
    await client.chat("b")
    assert "Cookie" not in server.requests[1].headers


# ---------------------------------------------------------------------------------------- the key


async def test_key_is_sent_as_a_bearer_token(server: ChatServer, client: AsyncChat) -> None:
    await client.chat("a")
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"


async def test_without_a_key_no_authorization_is_sent(
    server: ChatServer, make_client: MakeClient
) -> None:
    await make_client(api_key="").chat("a")
    assert "Authorization" not in server.requests[0].headers


async def test_netrc_does_not_replace_the_key(
    server: ChatServer,
    make_client: MakeClient,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("home") / "netrc"
    path.write_text("machine 127.0.0.1 login user password other\n")
    monkeypatch.setenv("NETRC", str(path))
    await make_client().chat("a")
    await make_client(api_key="").chat("a")
    assert server.requests[0].headers["Authorization"] == f"Bearer {KEY}"
    assert "Authorization" not in server.requests[1].headers


async def test_key_function_is_asked_before_each_request(
    server: ChatServer, make_client: MakeClient
) -> None:
    keys: Iterator[str] = iter(["one", "two"])
    client = make_client(api_key=lambda: next(keys))
    await client.chat("a")
    await client.chat("a")
    sent = [request.headers["Authorization"] for request in server.requests]
    assert sent == ["Bearer one", "Bearer two"]


async def test_key_function_may_be_async(server: ChatServer, make_client: MakeClient) -> None:
    async def key() -> str:
        await asyncio.sleep(0)
        return "late"

    await make_client(api_key=key).chat("a")
    assert server.requests[0].headers["Authorization"] == "Bearer late"


async def test_key_function_that_fails_raises_its_own_error_and_nothing_is_sent(
    server: ChatServer, make_client: MakeClient
) -> None:
    def key() -> str:
        raise LookupError("no vault")

    client = make_client(api_key=key)
    with pytest.raises(LookupError, match="no vault"):
        await client.chat("a")
    assert server.requests == []
    assert client.statistics().in_flight == 0


@pytest.mark.parametrize("given", [None, 3, b"key"])
async def test_key_function_that_gives_no_str_is_told_so(
    given: object, server: ChatServer, make_client: MakeClient
) -> None:
    with pytest.raises(TypeError, match="api_key"):
        await make_client(api_key=lambda: given).chat("a")
    assert server.requests == []


async def test_key_function_that_gives_nothing_sends_none(
    server: ChatServer, make_client: MakeClient
) -> None:
    await make_client(api_key=lambda: "").chat("a")
    assert "Authorization" not in server.requests[0].headers


async def test_key_function_that_hangs_is_ended_by_the_total_bound(
    server: ChatServer, make_client: MakeClient
) -> None:
    async def key() -> str:
        await asyncio.get_running_loop().create_future()
        return ""

    client = make_client(api_key=key, timeout=0.1)
    with pytest.raises(APITimeoutError) as caught:
        async with asyncio.timeout(1):
            await client.chat("a")
    assert caught.value.phase == "total"


# ----------------------------------------------------------------------- what nobody else may read


def frames_of(traceback: TracebackType | None) -> Iterator[dict[str, Any]]:
    while traceback is not None:
        yield dict(traceback.tb_frame.f_locals)
        traceback = traceback.tb_next


def everything_of(error: BaseException) -> str:
    """All that a crash report could show of an error, the locals of our own frames included."""
    seen = [str(error), repr(error), repr(error.__dict__), repr(error.args)]
    traceback = error.__traceback__
    frames = list(frames_of(traceback))[1:]  # without the test's own
    seen += [repr(value) for frame in frames for value in frame.values()]
    for other in (error.__cause__, error.__context__):
        if other is not None:
            seen.append(everything_of(other))
    return "\n".join(seen)


def echo(server: ChatServer) -> None:
    server.fail(401, f"Incorrect API key: {KEY}.", code=KEY)


def echo_as_text(server: ChatServer) -> None:
    server.raw(f"<p>{KEY}</p>".encode(), content_type="text/html").status(500)


def echo_in_stream(server: ChatServer) -> None:
    server.reply().say("x").error_event(f"Incorrect API key: {KEY}.", code=KEY)


def echo_as_first_event(server: ChatServer) -> None:
    server.reply().error_event(f"Incorrect API key: {KEY}.")


def cut_off(server: ChatServer) -> None:
    server.cut(after=3)


def refused(server: ChatServer) -> None:
    server.cut(after=0)


def html(server: ChatServer) -> None:
    server.raw(b"<html>", content_type="text/html")


@pytest.mark.parametrize(
    "go_wrong", [echo, echo_as_text, echo_in_stream, echo_as_first_event, cut_off, refused, html]
)
async def test_key_is_nowhere_in_an_error(
    go_wrong: Callable[[ChatServer], None], server: ChatServer, client: AsyncChat
) -> None:
    go_wrong(server)
    with pytest.raises(AsyncChatError) as caught:
        await client.chat.stream("a").final()
    assert KEY not in everything_of(caught.value)
    assert KEY.encode() not in pickle.dumps(caught.value)


async def test_key_is_nowhere_in_an_error_of_a_plain_request(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(f'{{"error":{{"message":"bad {KEY}"}}}}'.encode(), content_type="application/json")
    with pytest.raises(APIError) as caught:
        await client.chat("a")
    assert KEY not in str(caught.value) + repr(caught.value.__dict__)


@pytest.mark.parametrize("name", ["Authorization", "api-key", "X-Api-Key"])
async def test_key_that_was_given_as_a_header_is_nowhere_in_an_error(
    name: str, server: ChatServer, make_client: MakeClient
) -> None:
    echo(server)
    client = make_client(api_key="", default_headers={name: KEY})
    with pytest.raises(AuthenticationError) as caught:
        await client.chat("a")
    assert KEY not in everything_of(caught.value)


async def test_key_and_prompt_are_in_no_log(
    server: ChatServer, client: AsyncChat, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server.fail(401)
    with pytest.raises(AuthenticationError):
        await client.chat("my secret prompt")
    await client.chat.stream("my secret prompt").final()
    assert KEY not in caplog.text
    assert "secret prompt" not in caplog.text


async def test_key_is_in_no_repr(client: AsyncChat) -> None:
    await client.chat("a")
    pool = client._core.pool
    shown = [
        repr(part)
        for part in (client, client.chat, pool, pool.sessions[0], vars(pool.sessions[0]))
    ]
    assert KEY not in "".join(shown)


async def test_prompt_is_nowhere_in_an_error(server: ChatServer, client: AsyncChat) -> None:
    server.fail(400, "Bad.")
    with pytest.raises(APIStatusError) as caught:
        await client.chat("my secret prompt")
    error = caught.value
    assert "secret prompt" not in str(error) + repr(error.__dict__)
    assert b"secret prompt" not in pickle.dumps(error)


# ----------------------------------------------------------------------------------------- proxies


async def test_proxy_of_the_environment_is_not_used_for_this_machine(
    server: ChatServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ChatServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.base_url.removesuffix("/v1"))
        monkeypatch.setenv("http_proxy", proxy.base_url.removesuffix("/v1"))
        assert (await make_client().chat("a")).text == "a"
        assert proxy.requests == []


async def test_proxy_of_the_environment_is_used_for_other_hosts(
    server: ChatServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.base_url.removesuffix("/v1"))
    assert (await make_client("http://server.example/v1").chat("a")).text == "a"
    assert server.requests[0].headers["Host"] == "server.example"


async def test_proxy_of_the_environment_is_not_used_without_trust(
    server: ChatServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", server.base_url.removesuffix("/v1"))
    with pytest.raises(APIConnectionError):
        await make_client("http://server.invalid/v1", trust_env=False).chat("a")
    assert server.requests == []


async def test_proxy_that_refuses_to_connect_is_told_from_the_server(
    server: ChatServer, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    async with bare_server(answer) as url:
        monkeypatch.setenv("https_proxy", url.removesuffix("/v1"))
        with pytest.raises(APIConnectionError, match="the proxy answered 403"):
            await make_client("https://server.example/v1").chat("a")


# -------------------------------------------------------------------------- a session of the user's


async def test_session_of_the_users_is_used_and_not_closed(
    server: ChatServer, make_client: MakeClient
) -> None:
    async with aiohttp.ClientSession(headers={"x-mine": "1"}) as http:
        client = make_client(session=http)
        assert (await client.chat("a")).text == "a"
        await client.close()
        assert not http.closed
    assert server.requests[0].headers["x-mine"] == "1"


async def test_session_of_the_users_that_is_closed_is_told_so(make_client: MakeClient) -> None:
    http = aiohttp.ClientSession()
    await http.close()
    with pytest.raises(PoolClosed, match="session="):
        await make_client(session=http).chat("a")


async def test_kept_connection_that_dies_in_a_session_of_the_users_is_replaced(
    server: ChatServer, make_client: MakeClient
) -> None:
    async with aiohttp.ClientSession() as http:
        client = make_client(session=http)
        await client.chat("a")
        server.cut(after=0)
        assert (await client.chat("b")).text == "b"


async def test_closing_a_client_with_a_session_of_the_users_ends_who_waits_for_headers(
    server: ChatServer, make_client: MakeClient
) -> None:
    async with aiohttp.ClientSession() as http:
        client = make_client(session=http)
        server.stall(after=0)
        task = start(client.chat("a"))
        await server.wait_for_requests(1)
        await client.close()
        with pytest.raises(PoolClosed):
            async with asyncio.timeout(0.5):
                await task


# --------------------------------------------------------------------------------------- what is sent


async def test_large_body_arrives_whole(server: ChatServer, client: AsyncChat) -> None:
    text = "x" * 3_000_000
    await client.chat(text)
    assert server.requests[0].body["messages"][0]["content"] == text


async def test_large_body_is_sent_again_whole(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    record_waits(client)
    server.fail(503)
    await client.chat("x" * 3_000_000)
    assert server.requests[0].raw == server.requests[1].raw


async def test_server_that_does_not_read_the_body_is_left_at_the_total_bound(
    make_client: MakeClient,
) -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        with pytest.raises(APITimeoutError):
            async with asyncio.timeout(2):
                await make_client(url, timeout=0.2).chat("x" * 8_000_000)


async def test_stream_asks_for_events_and_a_plain_request_for_json(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.chat("a")
    await client.chat.stream("a").final()
    assert [request.headers["Accept"] for request in server.requests] == [
        "application/json",
        "text/event-stream",
    ]
    assert {request.headers["Accept-Encoding"] for request in server.requests} == {"identity"}
    assert server.requests[0].headers["User-Agent"].startswith("asyncchat/")


# -------------------------------------------------------------------------------------- the session


def test_session_needs_no_loop_and_opens_nothing() -> None:
    session = Session(Endpoint("http://127.0.0.1:1/v1"))
    assert repr(session) == "Session('http://127.0.0.1:1/v1')"
    assert not session.has_key


@pytest.mark.parametrize(
    ("options", "has_key"),
    [
        ({}, False),
        ({"api_key": ""}, False),
        ({"api_key": "k"}, True),
        ({"api_key": lambda: "k"}, True),
        ({"headers": {"authorization": "Basic x"}}, True),
    ],
)
def test_session_knows_whether_it_has_a_key(options: dict[str, Any], has_key: bool) -> None:
    assert Session(Endpoint("http://server.example/v1", **options)).has_key is has_key


async def test_closing_twice_is_closing_once(server: ChatServer, client: AsyncChat) -> None:
    await client.chat("a")
    await client.close()
    await client.close()
    await server.wait_for_connections(0, 0.5)
    with pytest.raises(PoolClosed, match="closed"):
        await client.chat("b")
