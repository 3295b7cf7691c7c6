"""What turns a call into a request: here, what a batch asks with."""

from typing import Any

import msgspec
import pytest

from asyncchat import Timeout
from asyncchat.client.core import Asker, both
from asyncchat.protocol.schema import output_type
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import MakeClient

SAID = [{"role": "user", "content": "?"}]


def asker_of(make_client: MakeClient, model: str | None = "m", **options: Any) -> Asker:
    given: dict[str, Any] = {
        "stream": True,
        "timeout": Timeout(),
        "output": None,
        "system": None,
        "fields": {},
        **options,
    }
    return Asker(make_client(model=model)._core, **given)


def weather(city: str) -> str:
    """Current weather."""
    return city


def test_what_is_the_same_in_every_request_is_described_as_json(make_client: MakeClient) -> None:
    asker = asker_of(
        make_client,
        output=output_type(int),
        system="Be brief.",
        fields={"stop": ("a",), "logit_bias": {5: 1}, "top_p": None, "tools": [weather]},
    )
    made = asker.described()
    assert (made["model"], made["system"]) == ("m", "Be brief.")
    assert (made["stop"], made["logit_bias"]) == (["a"], {"5": 1})
    assert made["tools"][0]["function"]["name"] == "weather"
    assert made["response_format"]["type"] == "json_schema"
    assert "top_p" not in made
    assert asker_of(make_client, model=None).described() == {}


def test_body_wins_over_what_every_request_has(make_client: MakeClient) -> None:
    asker = asker_of(make_client, system="Be brief.", fields={"temperature": 0, "seed": 1})
    made = asker.complete({"messages": SAID, "temperature": 1, "model": "n"})
    assert made == {
        "model": "n",
        "temperature": 1,
        "seed": 1,
        "messages": [{"role": "system", "content": "Be brief."}, *SAID],
    }
    assert len(SAID) == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_one_attempt_is_one_request_with_the_key_it_was_given(
    make_client: MakeClient, server: ChatServer, stream: bool
) -> None:
    asker = asker_of(make_client, stream=stream, output=output_type(int))
    server.queue(Reply().say("7"))
    body = msgspec.json.encode({"messages": SAID, "stream": not stream})
    answer, raw, is_json = await asker(body, "key-1")
    assert answer.text == "7"
    assert raw.startswith(b"{") is is_json is not stream
    server.fail(500)
    with pytest.raises(Exception, match="told to fail"):
        await asker(body, "key-2")
    first, second = server.requests
    assert [request.headers["Idempotency-Key"] for request in (first, second)] == [
        "key-1",
        "key-2",
    ]
    assert first.streaming is stream
    assert "response_format" in first.body


async def test_what_cannot_be_sent_is_a_value_error(make_client: MakeClient) -> None:
    with pytest.raises(ValueError, match="messages"):
        await asker_of(make_client)(b"{}", "key")


def test_second_of_two_sets_of_headers_wins() -> None:
    assert both({"a": "1", "b": "1"}, {"b": "2"}) == {"a": "1", "b": "2"}
    assert both({"a": "1"}, None) == both(None, {"a": "1"}) == {"a": "1"}
    assert both(None, None) is None
