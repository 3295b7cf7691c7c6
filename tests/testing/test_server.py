"""The script and what is observed, as an HTTP client meets them."""

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import msgspec
import pytest

from asyncchat.testing import ChatServer, ReceivedRequest, Reply

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


async def text_of(client: aiohttp.ClientSession, server: ChatServer, body: object = ASK) -> str:
    async with post(client, server, body) as response:
        raw = await response.read()
    if response.content_type == "application/json":
        return str(msgspec.json.decode(raw)["choices"][0]["message"]["content"])
    return "".join(
        msgspec.json.decode(event)["choices"][0]["delta"].get("content", "")
        for event in raw.replace(b"data: ", b"").split(b"\n\n")[:-2]
    )


# -------------------------------------------------------------------------------------- replies
async def test_a_reply_is_streamed_or_whole_as_the_request_asked(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.say("One two.")
    server.say("One two.")
    assert await text_of(client, server, STREAM) == "One two."
    assert await text_of(client, server, ASK) == "One two."


async def test_replies_are_given_in_the_order_they_were_queued(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.reply(times=2).say("first")
    server.queue(Reply().say("second"))
    assert server.queued == 3
    assert [await text_of(client, server) for _ in range(3)] == ["first", "first", "second"]
    assert server.queued == 0


async def test_an_exhausted_script_repeats_the_last_user_message(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    assert await text_of(client, server) == "Hello there"


async def test_otherwise_is_a_reply_or_a_function_that_makes_one(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.otherwise(Reply().say("always"))
    assert [await text_of(client, server) for _ in range(2)] == ["always", "always"]
    server.otherwise(lambda request: Reply().say(request.body["model"]))
    assert await text_of(client, server) == "m"

    async def later(request: ReceivedRequest) -> Reply:
        await asyncio.sleep(0)
        return Reply().say(request.path)

    server.otherwise(later)
    assert await text_of(client, server) == "/v1/chat/completions"


async def test_a_route_answers_each_request_it_holds_for_before_the_queue(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.say("queued")
    server.when(lambda request: request.body["model"] == "b").say("routed")
    server.when(lambda request: request.body["model"] == "c", Reply().say("given"))
    asked = [{**ASK, "model": model} for model in "bacb"]
    said = [await text_of(client, server, body) for body in asked]
    assert said == ["routed", "queued", "given", "routed"]


async def test_short_forms_queue_one_reply_each(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.think("hm", field="reasoning").say("yes")
    server.call_tool("f", {"x": 1})
    server.raw(b'{"choices": []}', content_type="application/json")
    answers = []
    for _ in range(3):
        async with post(client, server, ASK) as response:
            answers.append(await response.json())
    message, call = (answer["choices"][0]["message"] for answer in answers[:2])
    assert (message["reasoning"], message["content"]) == ("hm", "yes")
    assert call["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"x":1}'}
    assert answers[2] == {"choices": []}


async def test_a_failure_is_given_so_many_times(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.fail(429, "Slow down.", headers={"Retry-After": "1"}, code="rate_limited", times=2)
    server.say("now")
    for _ in range(2):
        async with post(client, server) as response:
            assert (response.status, response.headers["Retry-After"]) == (429, "1")
            assert (await response.json())["error"]["code"] == "rate_limited"
    assert await text_of(client, server) == "now"


async def test_many_requests_are_answered_at_once(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.otherwise(lambda request: Reply().say(request.last_text).stall(after=2))

    async def ask(number: int) -> None:
        body = {**STREAM, "messages": [{"role": "user", "content": f"a {number}"}]}
        said[number] = await text_of(client, server, body)

    said: dict[int, str] = {}
    async with anyio.create_task_group() as group:
        for number in range(50):
            group.start_soon(ask, number)
        await server.wait_for_requests(50)
        assert len(server.active) == 50
        server.resume()
    assert said == {number: f"a {number}" for number in range(50)}


# --------------------------------------------------------------------------- not for the script
async def test_models_are_listed() -> None:
    server = ChatServer(models=["a", "b"])
    async with server, aiohttp.ClientSession() as client:
        response = await client.get(f"{server.base_url}/models")
        listed = await response.json()
    assert [model["id"] for model in listed["data"]] == ["a", "b"]


async def test_another_path_is_a_404_that_uses_up_no_reply(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.say("kept")
    async with client.post(f"{server.base_url}/completions?a=b", json={}) as response:
        assert response.status == 404
        assert (await response.json())["error"]["code"] == "unknown_url"
    assert server.queued == 1
    assert server.requests[0].query == {"a": "b"}


async def test_a_body_that_is_no_object_is_a_400(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    async with post(client, server, [1]) as response:
        assert response.status == 400
    assert (server.requests[0].body, server.requests[0].raw) == ({}, b"[1]")


async def test_a_wrong_key_is_a_401() -> None:
    async with ChatServer(require_key="right") as server, aiohttp.ClientSession() as client:
        for key, status in [("right", 200), ("wrong", 401)]:
            headers = {"Authorization": f"Bearer {key}"}
            async with post(client, server, headers=headers) as response:
                assert response.status == status
                await response.read()
        async with post(client, server) as response:
            assert (await response.json())["error"]["code"] == "invalid_api_key"


async def test_a_large_body_is_taken(server: ChatServer, client: aiohttp.ClientSession) -> None:
    body = {**ASK, "messages": [{"role": "user", "content": "x" * 3_000_000}]}
    data = io.BytesIO(msgspec.json.encode(body))
    async with client.post(f"{server.base_url}/chat/completions", data=data) as response:
        assert response.status == 200
    assert server.requests[0].body == body


# ------------------------------------------------------------------------------ what is observed
async def test_a_request_is_recorded_with_its_connection(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    await text_of(client, server)
    await text_of(client, server)
    async with aiohttp.ClientSession() as other:
        response = await post(other, server, headers={"X-Test": "y"})
        await response.read()
    assert [request.connection for request in server.requests] == [1, 1, 2]
    last = server.requests[-1]
    assert (last.method, last.path) == ("POST", "/v1/chat/completions")
    assert (last.body, last.streaming, last.headers["x-test"]) == (STREAM, True, "y")
    await server.wait_for_connections(1)
    assert server.open_connections == 1


async def test_each_wait_gives_the_next_disconnect(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    for count in (1, 2):
        server.stall(after="headers")
        async with post(client, server) as response:
            response.close()
        assert await server.wait_for_disconnect() is server.gone[-1]
        assert len(server.gone) == count
    assert server.gone[0].request is server.requests[0]


async def test_a_client_that_leaves_after_its_answer_is_no_disconnect(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    await text_of(client, server)
    await client.close()
    await server.wait_for_connections(0)
    assert server.gone == []


async def test_waiting_in_vain_says_what_is(
    server: ChatServer, client: aiohttp.ClientSession
) -> None:
    server.stall(after="headers")
    async with post(client, server):
        with pytest.raises(TimeoutError, match=r"after 0 s 1 of 2 requests arrived"):
            await server.wait_for_requests(2, 0)
        with pytest.raises(TimeoutError, match="no client left, 1 are being answered"):
            await server.wait_for_disconnect(0)
        with pytest.raises(TimeoutError, match="1 requests are still being answered"):
            await server.wait_until_idle(0)
        with pytest.raises(TimeoutError, match="1 connections are open, not 0"):
            await server.wait_for_connections(0, 0)


async def test_a_function_that_fails_answers_500_and_logs(
    server: ChatServer, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    server.otherwise(lambda request: request.body["absent"])
    async with post(client, server) as response:
        assert response.status == 500
    assert "KeyError: 'absent'" in caplog.text
    assert server.active == ()


# --------------------------------------------------------------------------------------- its life
async def test_a_closed_server_refuses_connections(client: aiohttp.ClientSession) -> None:
    async with ChatServer() as server:
        await text_of(client, server)
    with pytest.raises(aiohttp.ClientConnectorError):
        await text_of(client, server)


async def test_a_cancelled_block_closes_its_server() -> None:
    before = asyncio.all_tasks()
    with anyio.CancelScope() as scope:
        async with ChatServer() as server, aiohttp.ClientSession() as client:
            server.stall(after="headers")
            async with post(client, server):
                scope.cancel()
                await anyio.sleep_forever()
    assert asyncio.all_tasks() == before
    assert server.open_connections == 0


async def test_a_port_that_is_taken_is_an_error(server: ChatServer) -> None:
    port = int(server.base_url.split(":")[2].split("/")[0])
    second = ChatServer(port=port)
    with pytest.raises(OSError, match="in use"):
        await second.start()
    await second.close()


async def test_another_server_can_take_the_port() -> None:
    async with ChatServer() as server:
        port = int(server.base_url.split(":")[2].split("/")[0])
    async with ChatServer(port=port) as again:
        assert again.base_url == server.base_url


async def test_a_server_is_started_once_and_has_no_address_before() -> None:
    server = ChatServer()
    with pytest.raises(RuntimeError, match="before it is started"):
        _ = server.base_url
    assert server.open_connections == 0
    await server.close()
    async with server:
        with pytest.raises(RuntimeError, match="started once"):
            await server.start()


def test_misuse_leaves_the_queue_as_it_was() -> None:
    server = ChatServer()
    with pytest.raises(ValueError, match="times must be 1 or more"):
        server.reply(times=0)
    with pytest.raises(ValueError, match="after must be"):
        server.cut(after=-1)
    with pytest.raises(ValueError, match="split needs"):
        server.split()
    assert server.queued == 0


async def test_clients_that_leave_before_the_headers_are_nothing_to_complain_of(
    server: ChatServer, client: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    server.otherwise(Reply().say("Too late."))
    for turns in range(20):  # one of them meets the moment between the request and its answer
        asking = asyncio.ensure_future(post(client, server).__aenter__())
        await server.wait_for_requests(turns + 1)
        for _ in range(turns % 4):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
    await server.wait_until_idle()
    assert caplog.records == []
