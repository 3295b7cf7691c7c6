"""`chat.completions` behaves as code written for `AsyncOpenAI` expects, and a message that came out goes back in."""

import json
from typing import Any

import pytest

from asyncchat import (
    Assistant,
    AsyncChat,
    Chunk,
    Completion,
    Developer,
    ImagePart,
    System,
    TextPart,
    ToolResult,
    User,
)
from asyncchat.testing import ChatServer
from tests.client.conftest import MakeClient

MESSAGES = [{"role": "user", "content": "Hi."}]


# ---------------------------------------------------------------------------------------- create()


async def test_create_gives_the_answer(server: ChatServer, client: AsyncChat) -> None:
    answer = await client.chat.completions.create(model="other", messages=MESSAGES)
    assert answer.choices[0].message.content == "Hi."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.object == "chat.completion"
    assert server.requests[0].body == {"messages": MESSAGES, "model": "other"}


@pytest.mark.parametrize("stream", [False, None])
async def test_create_without_stream_streams_nothing(
    stream: Any, server: ChatServer, client: AsyncChat
) -> None:
    answer = await client.chat.completions.create(messages=MESSAGES, stream=stream)
    assert isinstance(answer, Completion)
    assert "stream" not in server.requests[0].body


async def test_create_with_stream_gives_chunks(server: ChatServer, client: AsyncChat) -> None:
    server.say("One two.")
    text = ""
    async for chunk in await client.chat.completions.create(messages=MESSAGES, stream=True):
        assert isinstance(chunk, Chunk)
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
    assert text == "One two."
    assert server.requests[0].body["stream"] is True


async def test_create_with_stream_fails_where_it_is_awaited(
    server: ChatServer, client: AsyncChat
) -> None:
    server.fail(400, "No.")
    with pytest.raises(Exception, match="No"):
        await client.chat.completions.create(messages=MESSAGES, stream=True)


async def test_create_takes_what_chat_takes(server: ChatServer, client: AsyncChat) -> None:
    for stream in (False, True):
        made = await client.chat.completions.create(
            messages=MESSAGES,
            stream=stream,
            system="Be brief.",
            top_k=3,
            timeout=5,
            extra_headers={"x-a": "1"},
            extra_query={"v": "1"},
            extra_body={"seed": 7},
        )
        if not isinstance(made, Completion):
            await made.final()
    for request in server.requests:
        assert request.messages[0] == {"role": "system", "content": "Be brief."}
        assert (request.body["top_k"], request.body["seed"]) == (3, 7)
        assert (request.headers["x-a"], request.query["v"]) == ("1", "1")
        assert {"system", "timeout", "extra_body"}.isdisjoint(request.body)


async def test_stream_of_completions_is_the_one_of_chat(
    server: ChatServer, client: AsyncChat
) -> None:
    async with client.chat.completions.stream(messages=MESSAGES) as stream:
        assert {event.type for event in [event async for event in stream]} >= {
            "content.delta",
            "content.done",
            "usage",
            "finish",
        }
    assert stream.completion.text == "Hi."


# ------------------------------------------------------------------------------------------ dumps


async def answer_with_extras(server: ChatServer, client: AsyncChat) -> Completion:
    body = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "provider": "p",
        "choices": [
            {
                "index": 0,
                "finish_reason": "stop",
                "native_finish_reason": "eos",
                "message": {
                    "role": "assistant",
                    "content": "Hi.",
                    "refusal": None,
                    "mood": {"calm": [1, None]},
                },
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "cost": 0.5},
    }
    server.raw(json.dumps(body).encode(), content_type="application/json")
    return await client.chat("a")


async def test_unknown_fields_are_attributes_and_in_model_extra(
    server: ChatServer, client: AsyncChat
) -> None:
    answer = await answer_with_extras(server, client)
    assert answer.provider == "p"
    assert answer.model_extra == {"provider": "p"}
    assert answer.choices[0].native_finish_reason == "eos"
    assert answer.choices[0].message.mood == {"calm": [1, None]}
    assert answer.usage is not None
    assert answer.usage.cost == 0.5
    with pytest.raises(AttributeError, match="none was sent"):
        _ = answer.nothing


async def test_unknown_fields_are_on_chunks_and_on_the_message_they_make(
    server: ChatServer, client: AsyncChat
) -> None:
    server.reply().delta({"content": "Hi.", "mood": "calm"}).event(
        {"provider": "p", "choices": [{"index": 0, "delta": {"content": "!"}, "tokens": [1]}]}
    )
    async with await client.chat.completions.create(messages=MESSAGES, stream=True) as stream:
        chunks = [chunk async for chunk in stream]
    (moody,) = [c for c in chunks if c.choices and "mood" in c.choices[0].delta.model_extra]
    assert moody.choices[0].delta.mood == "calm"
    (provided,) = [c for c in chunks if "provider" in c.model_extra]
    assert provided.provider == "p"
    assert provided.choices[0].tokens == [1]
    assert stream.completion.choices[0].message.mood == "calm"
    assert stream.completion.choices[0].message.content == "Hi.!"


async def test_dump_holds_what_the_server_sent_and_nothing_of_ours(
    server: ChatServer, client: AsyncChat
) -> None:
    answer = await answer_with_extras(server, client)
    whole = answer.model_dump()
    lean = answer.model_dump(exclude_none=True)
    assert whole["choices"][0]["message"]["refusal"] is None
    assert "refusal" not in lean["choices"][0]["message"]
    assert lean == answer.model_dump(exclude_unset=True) == answer.to_dict()
    assert lean["choices"][0]["message"]["mood"] == {"calm": [1, None]}
    assert lean["provider"] == "p"
    assert not any("(" in key or key in ("timing", "http") for key in whole)


async def test_json_dumps_are_the_dumps(server: ChatServer, client: AsyncChat) -> None:
    answer = await answer_with_extras(server, client)
    assert json.loads(answer.model_dump_json()) == answer.model_dump()
    assert json.loads(answer.model_dump_json(exclude_none=True)) == answer.to_dict()
    assert json.loads(answer.to_json()) == answer.to_dict()
    assert "\n" not in answer.model_dump_json()
    assert answer.to_json().startswith('{\n  "id"')


async def test_chunk_dumps_as_the_server_sent_it(server: ChatServer, client: AsyncChat) -> None:
    sent = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": {"content": "Hi."}}],
    }
    server.reply().event(sent)
    async with client.chat.stream("a") as stream:
        chunks = [chunk async for chunk in stream.chunks()]
    assert chunks[0].to_dict() == sent
    assert json.loads(chunks[0].to_json()) == sent


async def test_repr_of_an_answer_shows_its_fields(server: ChatServer, client: AsyncChat) -> None:
    server.say("Hi.")
    shown = repr(await client.chat("a"))
    assert shown.startswith("Completion(id='chatcmpl-1'")
    assert "content='Hi.'" in shown


# ----------------------------------------------------------------------------- out, and in again


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("spelling", ["reasoning", "reasoning_content"])
async def test_message_goes_back_in_with_its_reasoning_in_the_servers_own_spelling(
    spelling: str, streamed: bool, server: ChatServer, client: AsyncChat
) -> None:
    server.think("Hm. Yes.", field=spelling).say("Hi.")
    answer = await (client.chat.stream("a").final() if streamed else client.chat("a"))
    message = answer.choices[0].message
    assert message.reasoning == message.reasoning_content == "Hm. Yes."
    await client.chat([*MESSAGES, message])
    assert server.requests[1].messages[1] == {
        "role": "assistant",
        "content": "Hi.",
        spelling: "Hm. Yes.",
    }


@pytest.mark.parametrize("streamed", [False, True])
async def test_message_goes_back_in_with_its_calls_and_their_extra_fields(
    streamed: bool, server: ChatServer, client: AsyncChat
) -> None:
    call = {
        "index": 0,
        "id": "c1",
        "type": "function",
        "function": {"name": "f", "arguments": '{"a":1}'},
        "extra_content": {"google": {"thought_signature": "s"}},
    }
    server.reply().delta({"tool_calls": [call]}).finish("tool_calls")
    answer = await (client.chat.stream("a").final() if streamed else client.chat("a"))
    messages = [*MESSAGES, answer.choices[0].message, ToolResult("3", "c1")]
    await client.chat(messages)
    said = server.requests[1].messages[1]
    (sent,) = said["tool_calls"]
    assert sent["id"] == "c1"
    assert sent["type"] == "function"
    assert sent["function"] == {"name": "f", "arguments": '{"a":1}'}
    assert sent["extra_content"] == {"google": {"thought_signature": "s"}}
    assert server.requests[1].messages[2] == {
        "role": "tool",
        "content": "3",
        "tool_call_id": "c1",
    }


async def test_message_goes_back_in_with_reasoning_details_untouched(
    server: ChatServer, client: AsyncChat
) -> None:
    details = [{"type": "reasoning.encrypted", "data": "x", "index": 0, "id": None}]
    server.reply().delta({"content": "Hi.", "reasoning_details": details})
    answer = await client.chat("a")
    await client.chat([*MESSAGES, answer.message])
    assert server.requests[1].messages[1]["reasoning_details"] == details


async def test_empty_message_goes_back_in_with_content(
    server: ChatServer, client: AsyncChat
) -> None:
    server.reply()
    answer = await client.chat("a")
    await client.chat([*MESSAGES, answer.message])
    assert server.requests[1].messages[1] == {"role": "assistant", "content": ""}


class Dumping:
    """Stands for a pydantic model, as `openai` returns them."""

    def model_dump(self, *, exclude_none: bool = False) -> dict[str, object]:
        return {"role": "assistant", "content": "x", **({} if exclude_none else {"refusal": None})}


async def test_messages_may_be_dicts_structs_and_objects_that_dump_themselves(
    server: ChatServer, client: AsyncChat
) -> None:
    picture = ImagePart.from_bytes(b"\x89PNG", detail="low")
    await client.chat(
        [
            System("s"),
            Developer("d"),
            User([TextPart("t"), picture]),
            Assistant("x"),
            Dumping(),
            {"role": "user", "content": "u"},
        ]
    )
    sent = server.requests[0].messages
    assert [message["role"] for message in sent] == [
        "system",
        "developer",
        "user",
        "assistant",
        "assistant",
        "user",
    ]
    assert sent[2]["content"] == [
        {"type": "text", "text": "t"},
        {
            "type": "image_url",
            "image_url": {"url": "data:image/png;base64,iVBORw==", "detail": "low"},
        },
    ]
    assert sent[3] == {"role": "assistant", "content": "x"}
    assert sent[4] == {"role": "assistant", "content": "x"}


# ----------------------------------------------------------------------------------- side by side


async def test_openais_own_client_reads_the_same_answer(
    server: ChatServer, make_client: MakeClient
) -> None:
    openai = pytest.importorskip("openai")
    client = make_client()
    server.otherwise(server.say("One two.").think("Hm."))
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as theirs:
        for stream in (False, True):
            fields: dict[str, Any] = {"model": "m", "messages": MESSAGES, "stream": stream}
            one = await theirs.chat.completions.create(**fields)
            other = await client.chat.completions.create(**fields)
            if stream:
                dumps = [[c.to_dict() async for c in made] for made in (one, other)]
                # Theirs keeps null apart from what was not sent, and sends `include_usage` only when told to.
                texts = [
                    [c["choices"][0]["delta"].get("content") for c in dump if c["choices"]]
                    for dump in dumps
                ]
                assert texts[0] == texts[1]
            else:
                assert one.choices[0].message.content == other.choices[0].message.content
                assert one.usage.total_tokens == other.usage.total_tokens
