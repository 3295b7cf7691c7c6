"""What a user holds: making one, its defaults, what it refuses before sending, and derived clients."""

import pickle
from typing import Any

import pytest

from asyncchat import (
    APIConnectionError,
    AsyncChat,
    Limits,
    ProtocolError,
    RetryPolicy,
    Timeout,
    User,
)
from asyncchat.testing import ChatServer
from tests.client.conftest import KEY, MakeClient

# ------------------------------------------------------------------------------------------ making


def test_making_a_client_needs_no_loop_and_no_key() -> None:
    client = AsyncChat("http://127.0.0.1:1/v1")
    assert client.base_url == "http://127.0.0.1:1/v1"


def test_without_a_url_the_server_is_openais() -> None:
    assert AsyncChat().base_url == "https://api.openai.com/v1"


def test_url_key_and_model_are_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a.example/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ASYNCCHAT_MODEL", "m")
    client = AsyncChat()
    assert client.base_url == "http://a.example/v1"
    assert client._core.pool.sessions[0].has_key
    assert "model='m'" in repr(client)


def test_our_own_variable_wins_over_openais(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://a.example/v1")
    monkeypatch.setenv("ASYNCCHAT_BASE_URL", "http://b.example/v1")
    assert AsyncChat().base_url == "http://b.example/v1"


def test_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCCHAT_BASE_URL", "http://b.example/v1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    client = AsyncChat("http://c.example/v1", api_key="")
    assert client.base_url == "http://c.example/v1"
    assert not client._core.pool.sessions[0].has_key


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"base_url": "a.example/v1"}, ValueError, "http://"),
        ({"base_url": "https://u:p@a.example/v1"}, ValueError, "api_key"),
        ({"base_url": "https://a.example/v1?x=1"}, ValueError, "default_query"),
        ({"api_key": "a\nb"}, ValueError, "api_key"),
        ({"api_key": b"abc"}, TypeError, "api_key"),
        ({"api_key": 3}, TypeError, "api_key"),
        ({"default_headers": {"x": "a\nb"}}, ValueError, "'x'"),
        ({"default_headers": {"x": 1}}, TypeError, "'x'"),
        ({"default_headers": {"Host": "x"}}, ValueError, "transport"),
        ({"timeout": 0}, ValueError, "above 0"),
        ({"timeout": -1}, ValueError, "above 0"),
        ({"timeout": float("nan")}, ValueError, "above 0"),
        ({"timeout": "10"}, TypeError, "Timeout"),
        ({"max_retries": -1}, ValueError, "max_retries"),
        ({"max_retries": "2"}, ValueError, "max_retries"),
    ],
)
def test_client_that_cannot_work_is_refused_when_it_is_made(
    options: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        AsyncChat(**options)


def test_bounds_that_cannot_be_right_are_refused() -> None:
    for made in (
        lambda: Limits(in_flight=0),
        lambda: Timeout(idle=0),
        lambda: RetryPolicy(max_delay=-1),
    ):
        with pytest.raises(ValueError, match=r"in_flight|idle|max_delay"):
            made()


def test_client_is_not_pickled_with_its_key() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(AsyncChat("http://a.example/v1", api_key=KEY))


# ------------------------------------------------------------------------------ what is not sent


async def by_chat(client: AsyncChat, messages: Any, fields: dict[str, Any]) -> None:
    await client.chat(messages, **fields)


async def by_stream(client: AsyncChat, messages: Any, fields: dict[str, Any]) -> None:
    await client.chat.stream(messages, **fields).final()


async def by_create(client: AsyncChat, messages: Any, fields: dict[str, Any]) -> None:
    async for _ in await client.chat.completions.create(messages=messages, stream=True, **fields):
        pass


WAYS = {"chat": by_chat, "stream": by_stream, "create": by_create}


def say(content: object = "hi", role: object = "user") -> list[dict[str, object]]:
    return [{"role": role, "content": content}]


@pytest.mark.parametrize(
    ("messages", "fields", "error", "says"),
    [
        ([], {}, ValueError, "at least one message"),
        (say(role="robot"), {}, ValueError, "none of assistant"),
        (say(role=None), {}, ValueError, "role None"),
        ([{"content": "hi"}], {}, ValueError, "role None"),
        (None, {}, TypeError, "a str or a list"),
        (3, {}, TypeError, "a str or a list"),
        (b"hi", {}, TypeError, "a str or a list"),
        ({"role": "user", "content": "hi"}, {}, TypeError, "a str or a list"),
        (User("hi"), {}, TypeError, "a str or a list"),
        ([3], {}, TypeError, r"messages\[0\]"),
        (["hi"], {}, TypeError, r"messages\[0\]"),
        ("hi", {"temperature": "hot"}, TypeError, "temperature"),
        ("hi", {"temperature": True}, TypeError, "temperature"),
        ("hi", {"temperature": float("nan")}, ValueError, "finite"),
        ("hi", {"max_tokens": float("inf")}, ValueError, "finite"),
        ("hi", {"n": "2"}, TypeError, "n is a str"),
        ("hi", {"model": 3}, TypeError, "model"),
        ("hi", {"tools": object()}, TypeError, "tools"),
        (say(object()), {}, TypeError, "messages"),
        (say("\ud800"), {}, ValueError, "messages"),
        ("hi", {"timeout": 0}, ValueError, "above 0"),
        ("hi", {"timeout": "1"}, TypeError, "Timeout"),
        ("hi", {"extra_headers": {"x": "a\nb"}}, ValueError, "'x'"),
        ("hi", {"extra_headers": {"x": 3}}, TypeError, "'x'"),
        ("hi", {"extra_headers": {"content-length": "3"}}, ValueError, "transport"),
    ],
)
@pytest.mark.parametrize("way", WAYS)
async def test_request_that_cannot_be_right_is_refused_and_not_sent(
    way: str,
    messages: Any,
    fields: dict[str, Any],
    error: type[Exception],
    says: str,
    server: ChatServer,
    client: AsyncChat,
) -> None:
    with pytest.raises(error, match=says):
        await WAYS[way](client, messages, fields)
    assert server.requests == []
    assert client.statistics().in_flight == 0


async def test_request_without_a_model_is_refused_with_what_to_do(
    server: ChatServer, make_client: MakeClient
) -> None:
    with pytest.raises(ValueError, match="ASYNCCHAT_MODEL"):
        await make_client(model=None).chat("a")
    assert server.requests == []


async def test_request_to_openai_without_a_key_is_refused_with_what_to_do() -> None:
    with pytest.raises(ValueError, match="OPENAI_API_KEY"):
        await AsyncChat(model="m").chat("a")


async def test_wrong_path_is_answered_with_a_hint_at_the_url(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(server.base_url.removesuffix("/v1"))
    with pytest.raises(Exception, match="base_url end in /v1") as caught:
        await client.chat("a")
    assert type(caught.value).__name__ == "NotFoundError"


async def test_missing_key_is_answered_with_a_hint_at_it(make_client: MakeClient) -> None:
    async with ChatServer(require_key=KEY) as server:
        for key, hint in (("", "OPENAI_API_KEY"), ("wrong", "Is the key right")):
            with pytest.raises(Exception, match=hint) as caught:
                await make_client(server.base_url, api_key=key).chat("a")
            assert type(caught.value).__name__ == "AuthenticationError"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<!DOCTYPE html><html>Welcome", "text/html"),
        (b"\n<html>", "application/json"),
        (b"", "text/event-stream"),
        (b"", "application/json"),
        (b"OK", "text/plain"),
        (b"[]", "application/json"),
        (b"{}", "application/json"),
        (b'{"choices":[]}', "application/json"),
        (b"3", "application/json"),
    ],
)
async def test_answer_that_is_no_completion_is_a_protocol_error_with_a_hint(
    way: str, body: bytes, content_type: str, server: ChatServer, client: AsyncChat
) -> None:
    server.raw(body, content_type=content_type)
    with pytest.raises(ProtocolError, match="base_url end in /v1"):
        await WAYS[way](client, "a", {})
    assert client.statistics().in_flight == 0


# --------------------------------------------------------------------------------------- the answer


async def test_answer_carries_text_usage_timing_and_http(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("Io, Europa.")
    answer = await client.chat("Name two moons.", system="Be brief.", temperature=0)
    assert answer.text == "Io, Europa."
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert answer.timing is not None
    assert answer.timing.attempts == 1
    assert answer.timing.endpoint == server.base_url
    assert answer.timing.total > 0
    assert answer.http is not None
    assert (answer.http.status, answer.http.request_id) == (200, "req_1")
    assert answer.http.headers["content-type"].startswith("application/json")
    assert server.requests[0].body == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Name two moons."},
        ],
        "temperature": 0,
    }


async def test_answer_without_usage_has_none(server: ChatServer, client: AsyncChat) -> None:
    server.say("x", usage=False)
    assert (await client.chat("a")).usage is None


async def test_plain_request_that_is_answered_by_events_is_read_all_the_same(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(
        b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{"content":"b"},"finish_reason":"stop"}]}\n\n',
        b"data: [DONE]\n\n",
    )
    assert (await client.chat("x")).text == "ab"


async def test_stream_that_is_answered_by_json_is_read_all_the_same(
    server: ChatServer, client: AsyncChat
) -> None:
    body = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"ab"},"finish_reason":"stop"}]}'
    for _ in range(2):
        server.raw(body, content_type="application/json")
    async with client.chat.stream("x") as stream:
        assert "".join([piece async for piece in stream.text()]) == "ab"
    made = await client.chat.completions.create(messages="x", stream=True)
    assert [chunk.choices[0].delta.content async for chunk in made] == ["ab"]


async def test_json_answer_that_breaks_off_is_an_error_and_no_short_answer(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(b'{"choices":[{"index":0,"message":{"content":"ab', content_type="application/json")
    with pytest.raises(Exception, match="inside its JSON"):
        await client.chat("x")


async def test_json_answer_whose_connection_is_cut_is_a_connection_error(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("One two three.").cut(after=1)
    with pytest.raises(APIConnectionError):
        await client.chat("x")


# ------------------------------------------------------------------------------------- parameters


async def test_parameters_reach_the_server_as_they_are_known_or_not(
    server: ChatServer, client: AsyncChat
) -> None:
    fields: dict[str, Any] = {
        "top_k": 40,
        "chat_template_kwargs": {"enable_thinking": False},
        "guided_json": {"type": "object"},
        "n": 1,
    }
    await client.chat("a", **fields)
    body = server.requests[0].body
    assert {name: body[name] for name in fields} == fields


async def test_parameter_that_is_none_is_not_sent_and_null_goes_by_extra_body(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.chat("a", temperature=None, extra_body={"seed": None, "model": "other"})
    body = server.requests[0].body
    assert "temperature" not in body
    assert body["seed"] is None
    assert body["model"] == "other"


async def test_extra_headers_and_query_are_sent_with_one_request(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(default_headers={"x-a": "1", "x-b": "1"}, default_query={"v": "1"})
    await client.chat("a", extra_headers={"X-B": "2"}, extra_query={"w": "2"})
    await client.chat("a")
    first, second = server.requests
    assert (first.headers["x-a"], first.headers.getall("x-b")) == ("1", ["2"])  # type: ignore[attr-defined]
    assert dict(first.query) == {"v": "1", "w": "2"}
    assert second.headers["x-b"] == "1"
    assert dict(second.query) == {"v": "1"}


async def test_model_of_the_call_wins_over_the_clients(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.chat("a", model="other")
    await client.chat("a")
    assert [request.body["model"] for request in server.requests] == ["other", "m"]


async def test_think_tags_are_split_where_the_client_is_told_to(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say("<think>Hm.</think>Yes.").split(every=5)
    answer = await make_client(split_think_tags=True).chat.stream("a").final()
    assert answer.text == "Yes."
    assert answer.message.reasoning == "Hm."


async def test_answer_larger_than_its_bound_is_refused(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.say("x" * 5000)
    server.say(["x" * 100] * 100)
    client = make_client(limits=Limits(max_event_bytes=1000, max_answer_bytes=2000))
    for answer in (client.chat("a"), client.chat.stream("a").final()):
        with pytest.raises(Exception, match="larger than") as caught:
            await answer
        assert type(caught.value).__name__ == "LimitExceeded"
    await server.wait_until_idle(0.5)


# --------------------------------------------------------------------------------- derived clients


async def test_derived_client_has_other_defaults_on_the_same_connections(
    server: ChatServer, client: AsyncChat
) -> None:
    derived = client.with_options(
        model="other", default_headers={"x-a": "1"}, default_query={"v": "2"}
    )
    await client.chat("a")
    await derived.chat("a")
    first, second = server.requests
    assert (first.body["model"], second.body["model"]) == ("m", "other")
    assert "x-a" not in first.headers
    assert (second.headers["x-a"], second.query["v"]) == ("1", "2")
    assert first.connection == second.connection
    assert derived.statistics() == client.statistics()


async def test_derived_client_retries_and_waits_as_it_is_told(
    server: ChatServer, client: AsyncChat
) -> None:
    derived = client.with_options(max_retries=1, retry=RetryPolicy(initial_delay=0.001))
    server.fail(503)
    assert (await derived.chat("a")).text == "a"
    server.stall(after=0)
    with pytest.raises(Exception, match=r"within 0\.05 s"):
        await client.with_options(timeout=0.05).chat("a")


async def test_derived_client_of_a_subclass_is_of_that_class(server: ChatServer) -> None:
    class Mine(AsyncChat):
        pass

    assert type(Mine(server.base_url).with_options(model="x")) is Mine


async def test_leaving_the_block_closes_the_client(server: ChatServer) -> None:
    async with AsyncChat(server.base_url, model="m") as client:
        await client.chat("a")
    with pytest.raises(Exception, match="closed"):
        await client.chat("a")
    await server.wait_for_connections(0, 0.5)


async def test_messages_may_be_read_from_any_iterable(
    server: ChatServer, make_client: MakeClient, record_waits: Any
) -> None:
    client = make_client(max_retries=1)
    record_waits(client)
    server.fail(503)
    await client.chat(iter([User("a"), {"role": "user", "content": "b"}]))
    assert [len(request.messages) for request in server.requests] == [2, 2]
