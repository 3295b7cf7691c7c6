"""The client against the real llama.cpp: habits of a server that we did not write.

Every request sets max_tokens and temperature 0, under
which this model's answers do not change; where that is not promised, only what must hold is asserted.
"""

import time
from typing import Any

import anyio
import msgspec
import pytest

from asyncchat import (
    APIError,
    AsyncChat,
    BadRequestError,
    Completion,
    ContentDelta,
    Finish,
    NotFoundError,
    ToolCallDelta,
    ToolCallDone,
    ToolCallStarted,
    UsageReport,
)
from asyncchat.local import LocalServer
from tests.local.conftest import ASK_PARIS

pytestmark = pytest.mark.local

SEA = "Write two sentences about the sea."
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
PERSON = {
    "type": "json_schema",
    "json_schema": {
        "name": "person",
        "schema": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 10},
                "age": {"type": "integer", "minimum": 1, "maximum": 99},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        },
    },
}
# Left alone the model writes "<tool_call>" and then no call that the grammar knows.
PREFILLED = [
    {"role": "user", "content": "What is the weather in Paris?"},
    {"role": "assistant", "content": "<tool_call>\n"},
]


class Person(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    age: int


async def ask(client: AsyncChat, prompt: str, streamed: bool, /, **fields: Any) -> Completion:
    if streamed:
        return await client.chat.stream(prompt, **fields).final()
    return await client.chat(prompt, **fields)


# ------------------------------------------------------------------------------------- one answer
async def test_stream_gives_words_then_finish_usage_and_timing(client: AsyncChat) -> None:
    pieces: list[str] = []
    finish: Finish | None = None
    usage: UsageReport | None = None
    async with client.chat.stream(SEA, max_tokens=16, temperature=0) as stream:
        async for event in stream:
            match event:
                case ContentDelta():
                    pieces.append(event.delta)
                case Finish():
                    finish = event
                case UsageReport():
                    usage = event
                case _:
                    pass
    answer = stream.completion
    assert answer.text == "".join(pieces)
    assert answer.text.startswith("The sea is")
    assert len(pieces) > 10
    assert finish is not None
    assert usage is not None
    assert finish.reason == answer.finish_reason
    assert answer.finish_reason in {"stop", "length"}
    assert answer.usage is not None
    assert answer.usage.completion_tokens is not None
    assert answer.usage.completion_tokens > 10
    assert answer.http is not None
    assert answer.http.status == 200
    assert answer.timing is not None
    assert answer.timing.ttft is not None
    assert answer.timing.itl is not None
    assert 0 < answer.timing.ttft <= answer.timing.total
    assert answer.timing.attempts == 1


async def test_plain_answer_says_the_same_as_the_stream(client: AsyncChat) -> None:
    plain = await client.chat(SEA, max_tokens=10, temperature=0)
    streamed = await client.chat.stream(SEA, max_tokens=10, temperature=0).final()
    assert plain.text == streamed.text
    assert plain.finish_reason == streamed.finish_reason == "length"
    assert plain.usage is not None
    assert streamed.usage is not None
    assert plain.usage.completion_tokens == streamed.usage.completion_tokens == 10


async def test_usage_is_none_only_where_it_was_not_asked_for(client: AsyncChat) -> None:
    answer = await client.chat.stream(
        "Hi", max_tokens=4, temperature=0, stream_options={"include_usage": False}
    ).final()
    assert answer.usage is None


@pytest.mark.parametrize("streamed", [True, False])
async def test_end_at_the_token_limit_is_no_error(client: AsyncChat, streamed: bool) -> None:
    answer = await ask(client, SEA, streamed, max_tokens=3, temperature=0)
    assert answer.finish_reason == "length"
    assert answer.text


async def test_stop_text_ends_the_answer_and_is_not_in_it(client: AsyncChat) -> None:
    answer = await client.chat.stream(SEA, max_tokens=48, temperature=0, stop=[" vast"]).final()
    assert answer.finish_reason == "stop"
    assert "vast" not in answer.text


@pytest.mark.parametrize("streamed", [True, False])
async def test_two_choices_are_kept_apart(client: AsyncChat, streamed: bool) -> None:
    answer = await ask(client, SEA, streamed, n=2, max_tokens=8, temperature=0.9, seed=7)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert all(choice.message.content for choice in answer.choices)
    assert all(choice.finish_reason in {"stop", "length"} for choice in answer.choices)
    assert answer.choices[0].message.content != answer.choices[1].message.content


@pytest.mark.parametrize("streamed", [True, False])
async def test_logprobs_cover_every_token_of_the_text(client: AsyncChat, streamed: bool) -> None:
    answer = await ask(
        client, SEA, streamed, logprobs=True, top_logprobs=2, max_tokens=6, temperature=0
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(token.token for token in logprobs.content) == answer.text
    assert all((token.logprob or 0) <= 0 for token in logprobs.content)
    assert all(len(token.top_logprobs or []) == 2 for token in logprobs.content)


@pytest.mark.parametrize("streamed", [True, False])
async def test_json_schema_is_kept(client: AsyncChat, streamed: bool) -> None:
    answer = await ask(
        client, "A person.", streamed, response_format=PERSON, max_tokens=48, temperature=0
    )
    assert answer.finish_reason == "stop"
    person = msgspec.json.decode(answer.text, type=Person)
    assert 1 <= person.age <= 99
    assert len(person.name) <= 10


async def test_letters_of_many_bytes_arrive_whole(client: AsyncChat) -> None:
    pieces: list[str] = []
    prompt = "Repeat: 日本語 🙂 שלום né"
    async with client.chat.stream(prompt, max_tokens=16, temperature=0) as stream:
        async for piece in stream.text():
            piece.encode()  # no half of a surrogate pair
            pieces.append(piece)
    assert "".join(pieces) == stream.completion.text
    assert not stream.completion.text.isascii()
    assert "\ufffd" not in stream.completion.text


async def test_answer_goes_back_in_as_a_message(client: AsyncChat) -> None:
    first = await client.chat("My name is Ann.", max_tokens=6, temperature=0)
    second = await client.chat(
        [
            {"role": "user", "content": "My name is Ann."},
            first.choices[0].message,
            {"role": "user", "content": "What is my name?"},
        ],
        max_tokens=6,
        temperature=0,
    )
    assert second.text


# ------------------------------------------------------------------------------------------ tools
@pytest.mark.parametrize("choice", ["auto", "required"])
async def test_tool_call_arrives_in_fragments_and_is_whole_at_the_end(
    client: AsyncChat, choice: str
) -> None:
    names: list[str] = []
    fragments: list[str] = []
    done: list[str] = []
    async with client.chat.stream(
        ASK_PARIS, tools=[WEATHER], tool_choice=choice, max_tokens=48, temperature=0
    ) as stream:
        async for event in stream:
            match event:
                case ToolCallStarted():
                    names.append(event.name)
                case ToolCallDelta():
                    fragments.append(event.arguments_delta)
                case ToolCallDone():
                    done.append(event.arguments)
                case _:
                    pass
    answer = stream.completion
    assert answer.finish_reason == "tool_calls"
    assert names == ["get_weather"]
    assert len(fragments) > 1
    assert done == ["".join(fragments)]
    assert msgspec.json.decode(done[0]) == {"city": "Paris"}
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].id
    assert calls[0].function.arguments == done[0]


async def test_plain_tool_call_and_its_result_make_a_conversation(client: AsyncChat) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "max_tokens": 32, "temperature": 0}
    answer = await client.chat(ASK_PARIS, **fields)
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert msgspec.json.decode(calls[0].function.arguments) == {"city": "Paris"}
    result = {"role": "tool", "tool_call_id": calls[0].id, "content": "rainy"}
    last = await client.chat([*ASK_PARIS, answer.choices[0].message, result], **fields)
    assert "rain" in last.text.lower()


async def test_tool_call_cut_at_the_token_limit_keeps_its_fragments(client: AsyncChat) -> None:
    answer = await client.chat.stream(
        PREFILLED, tools=[WEATHER], tool_choice="required", max_tokens=20, temperature=0
    ).final()
    assert answer.finish_reason == "length"
    calls = answer.choices[0].message.tool_calls
    assert calls is not None
    assert calls[0].function.name == "get_weather"


async def test_failure_named_inside_a_stream_that_began_well_is_raised(client: AsyncChat) -> None:
    with pytest.raises(APIError, match="does not match the expected") as caught:
        await client.chat.stream(
            PREFILLED, tools=[WEATHER], tool_choice="auto", max_tokens=12, temperature=0
        ).final()
    assert caught.value.code == 500
    assert caught.value.partial is not None


# ----------------------------------------------------------------------------------- bad requests
@pytest.mark.parametrize("streamed", [True, False])
async def test_prompt_that_is_too_long_is_refused_with_the_servers_words(
    client: AsyncChat, streamed: bool
) -> None:
    with pytest.raises(BadRequestError, match="exceeds the available context") as caught:
        await ask(client, "word " * 3000, streamed, max_tokens=4)
    assert caught.value.status_code == 400
    assert caught.value.type == "exceed_context_size_error"
    assert not caught.value.retryable
    assert "word word" not in str(caught.value)


async def test_schema_that_is_none_is_refused_before_the_stream(client: AsyncChat) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nonsense"}}}
    with pytest.raises(BadRequestError, match="unrecognized type"):
        await client.chat.stream("Hi", response_format=schema, max_tokens=4).final()


async def test_logprobs_with_tools_are_refused(client: AsyncChat) -> None:
    with pytest.raises(BadRequestError, match="not supported"):
        await client.chat.stream(ASK_PARIS, tools=[WEATHER], logprobs=True, max_tokens=4).final()


async def test_wrong_path_is_not_found(llama: LocalServer) -> None:
    async with AsyncChat(
        base_url=f"{llama.base_url}/none", model=llama.model, max_retries=0, trust_env=False
    ) as client:
        with pytest.raises(NotFoundError):
            await client.chat("Hi", max_tokens=4)


# -------------------------------------------------------------------------- slots and connections
async def busy_slots(llama: LocalServer) -> int:
    import aiohttp

    address = llama.base_url.removesuffix("/v1")
    async with aiohttp.ClientSession() as session, session.get(f"{address}/slots") as reply:
        return sum(slot["is_processing"] for slot in await reply.json())


async def seconds_until_idle(llama: LocalServer) -> float:
    began = time.perf_counter()
    while await busy_slots(llama):
        assert time.perf_counter() - began < 60
        await anyio.sleep(0.005)
    return time.perf_counter() - began


@pytest.mark.parametrize("way", ["leaving the block", "cancellation", "aclose"])
async def test_abandoned_stream_frees_its_slot_within_100_ms(
    client: AsyncChat, llama: LocalServer, way: str
) -> None:
    best = 60.0
    for _ in range(
        5
    ):  # the machine may be busy with something else; the server's work must end each time
        await seconds_until_idle(llama)
        stream = client.chat.stream("Count to a thousand.", max_tokens=1500, ignore_eos=True)
        with anyio.CancelScope() as scope:
            async with stream:
                async for _piece in stream.text():
                    assert await busy_slots(llama) == 1
                    if way == "cancellation":
                        scope.cancel()
                        await anyio.sleep_forever()
                    if way == "aclose":
                        await stream.aclose()
                    break
        best = min(best, await seconds_until_idle(llama))
        if best < 0.1:
            break
    assert best < 0.1


@pytest.mark.parametrize("count", [30, pytest.param(300, marks=pytest.mark.slow)])
async def test_streams_in_sequence_fail_not_once(client: AsyncChat, count: int) -> None:
    # The server closes after each streamed answer without a word; a client that is not ready for that loses
    # every second request.
    for _ in range(count):
        answer = await client.chat.stream("Hi", max_tokens=1, temperature=0).final()
        assert answer.finish_reason == "length"


async def test_streams_and_plain_answers_in_turn_fail_not_once(client: AsyncChat) -> None:
    for _ in range(10):
        assert (await client.chat("Hi", max_tokens=1, temperature=0)).finish_reason == "length"
        answer = await client.chat.stream("Hi", max_tokens=1, temperature=0).final()
        assert answer.finish_reason == "length"


async def test_more_streams_at_once_than_slots_all_end_well(client: AsyncChat) -> None:
    answers: list[str | None] = []

    async def ask() -> None:
        answer = await client.chat.stream("Hi", max_tokens=2, temperature=0).final()
        answers.append(answer.finish_reason)

    async with anyio.create_task_group() as tasks:
        for _ in range(16):
            tasks.start_soon(ask)
    assert answers == ["length"] * 16
