"""Answers of a type: read whole, element by element, or while they grow; and how each server is told of the type."""

import asyncio
import dataclasses
import pickle
from collections.abc import AsyncIterator
from typing import Any, Literal

import anyio
import msgspec
import pydantic
import pytest
from typing_extensions import TypedDict

from asyncchat import (
    AsyncChat,
    AsyncChatError,
    ContentDelta,
    ContentFilterFinishReasonError,
    Endpoint,
    InternalServerError,
    LengthFinishReasonError,
    OutputMismatch,
    OutputType,
    RefusalError,
    SchemaError,
    StreamCut,
    Usage,
)
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import KEY, MakeClient, assert_nothing_is_left, start


class Person(msgspec.Struct):
    """Somebody."""

    name: str
    age: int = 0


class Event(msgspec.Struct):
    title: str
    people: list[Person]


@dataclasses.dataclass
class Pair:
    a: int
    b: str


class Typed(TypedDict):
    a: int


class Modelled(pydantic.BaseModel):
    name: str
    tags: list[str] = []


class Red(msgspec.Struct, tag="red"):
    depth: int


class Blue(msgspec.Struct, tag="blue"):
    height: int


class Anything(msgspec.Struct):
    """Of which strict mode cannot speak."""

    values: dict[str, int]


ANN = Person("Ann", 30)
ANN_JSON = '{"name":"Ann","age":30}'
EVENT_JSON = f'{{"title":"Tea","people":[{ANN_JSON}]}}'


def sent(server: ChatServer, request: int = -1) -> list[dict[str, Any]]:
    """The messages of a request."""
    messages: Any = server.requests[request].body["messages"]
    return list(messages)


def format_of(server: ChatServer, request: int = -1) -> dict[str, Any]:
    """The field `response_format` of a request."""
    wanted: Any = server.requests[request].body["response_format"]
    return dict(wanted)


# ----------------------------------------------------------------------------------------- parse
@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (Person, ANN_JSON, ANN),
        (Event, EVENT_JSON, Event("Tea", [ANN])),
        (Pair, '{"a":1,"b":"x"}', Pair(1, "x")),
        (Typed, '{"a":1}', {"a": 1}),
        (Modelled, '{"name":"Ann","tags":["x"]}', Modelled(name="Ann", tags=["x"])),
        (list[Person], f'{{"value":[{ANN_JSON}]}}', [ANN]),
        (list[Modelled], '{"value":[{"name":"Ann","tags":[]}]}', [Modelled(name="Ann")]),
        (Red | Blue, '{"value":{"type":"blue","height":3}}', Blue(3)),
        (int, '{"value":3}', 3),
        (Literal["yes", "no"], '{"value":"yes"}', "yes"),
        (Person | None, '{"value":null}', None),
    ],
    ids=str,
)
async def test_answer_is_a_value_of_the_type(
    output: Any, text: str, value: object, server: ChatServer, client: AsyncChat
) -> None:
    server.say([text])
    got: object = await client.chat.parse("a", output)
    assert got == value
    assert type(got) is type(value)
    wanted = format_of(server)
    assert wanted["type"] == "json_schema"
    assert wanted["json_schema"]["strict"] is True
    schema = wanted["json_schema"]["schema"]
    assert schema["type"] == "object"
    assert schema["additionalProperties"] is False
    assert schema["required"] == list(schema["properties"])
    assert "stream" not in server.requests[0].body


async def test_fields_of_a_call_go_along(server: ChatServer, client: AsyncChat) -> None:
    server.say([ANN_JSON])
    await client.chat.parse(
        [{"role": "user", "content": "a"}],
        Person,
        system="Be exact.",
        model="other",
        temperature=0,
        timeout=5,
        extra_headers={"X-Mine": "1"},
    )
    assert [said["role"] for said in sent(server)] == ["system", "user"]
    assert server.requests[0].body["model"] == "other"
    assert server.requests[0].body["temperature"] == 0
    assert server.requests[0].headers["X-Mine"] == "1"
    assert not {"reask", "dialect", "timeout"} & set(server.requests[0].body)


async def test_completions_parse_gives_the_whole_answer_with_its_value(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say([ANN_JSON]).usage(3, 4)
    answer = await client.chat.completions.parse(messages="a", response_format=Person)
    assert answer.choices[0].message.parsed == ANN
    assert answer.text == ANN_JSON
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert answer.http is not None


async def test_value_does_not_go_back_to_the_server(server: ChatServer, client: AsyncChat) -> None:
    server.say([ANN_JSON])
    answer = await client.chat.completions.parse(messages="a", response_format=Person)
    await client.chat([answer.message, {"role": "user", "content": "b"}])
    assert sent(server)[0] == {"role": "assistant", "content": ANN_JSON}


async def test_output_type_that_was_made_before_can_be_asked_for(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say([ANN_JSON])
    assert await client.chat.parse("a", OutputType(Person, "somebody")) == ANN  # type: ignore[arg-type]
    assert format_of(server)["json_schema"]["name"] == "somebody"


async def test_chat_with_a_type_sends_its_schema_and_reads_nothing(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say("no JSON at all")
    answer = await client.chat("a", response_format=Person)
    assert answer.text == "no JSON at all"
    assert answer.message.parsed is None
    assert format_of(server)["json_schema"]["name"] == "Person"


@pytest.mark.parametrize("streamed", [True, False])
async def test_response_format_as_a_dict_is_sent_as_it_is(
    streamed: bool, server: ChatServer, client: AsyncChat
) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    server.say("not even JSON")
    if streamed:
        async with client.chat.stream("a", response_format=wanted) as stream:
            assert "".join([piece async for piece in stream.text()]) == "not even JSON"
            with pytest.raises(ValueError, match="no type was asked for"):
                _ = stream.parsed
    else:
        assert (await client.chat("a", response_format=wanted)).text == "not even JSON"
    assert format_of(server) == wanted
    assert [said["role"] for said in sent(server)] == ["user"]


# ------------------------------------------------------------------------------ what goes wrong
FAILURES = [
    pytest.param(Reply().say("Ann, 30"), OutputMismatch, "Person", id="no JSON"),
    pytest.param(Reply().say(['{"name":3,"age":3}']), OutputMismatch, r"\$\.name", id="type"),
    pytest.param(Reply().say(['{"age":3}']), OutputMismatch, "name", id="missing"),
    pytest.param(Reply().say([""]), OutputMismatch, "Person", id="empty"),
    pytest.param(Reply().refuse("I will not."), RefusalError, "refused", id="refusal"),
    pytest.param(
        Reply().say([ANN_JSON]).finish("length"), LengthFinishReasonError, "cut", id="length"
    ),
    pytest.param(
        Reply().say([ANN_JSON]).finish("content_filter"),
        ContentFilterFinishReasonError,
        "filter",
        id="filter",
    ),
]


@pytest.mark.parametrize(("reply", "kind", "says"), FAILURES)
@pytest.mark.parametrize("streamed", [True, False])
async def test_answer_that_is_no_value_is_an_error_which_carries_it(
    streamed: bool,
    reply: Reply,
    kind: type[AsyncChatError],
    says: str,
    server: ChatServer,
    client: AsyncChat,
) -> None:
    server.queue(reply)

    async def read() -> None:
        if streamed:
            async with client.chat.stream("a", response_format=Person) as stream:
                await stream.final()
                _ = stream.parsed
        else:
            await client.chat.parse("a", Person)

    with pytest.raises(kind, match=says) as caught:
        await read()
    error = caught.value
    assert type(error) is kind
    assert error.partial is not None
    assert error.partial.message.parsed is None
    assert error.partial.finish_reason
    if kind is RefusalError:
        assert error.partial.message.refusal == "I will not."
    assert type(pickle.loads(pickle.dumps(error))) is kind
    await assert_nothing_is_left(client, server)


async def test_type_without_a_schema_is_an_error_before_anything_is_sent(
    server: ChatServer, client: AsyncChat
) -> None:
    with pytest.raises(SchemaError, match=r"\$\.values") as caught:
        await client.chat.parse("a", Anything)
    assert caught.value.problems
    with pytest.raises(SchemaError):
        await client.chat.parse("a", object)
    with pytest.raises(SchemaError):
        client.chat.stream("a", response_format=Anything)
    with pytest.raises(SchemaError):
        client.chat.stream("a", response_format=list[Anything])
    assert server.requests == []


async def test_what_strict_mode_cannot_say_another_dialect_can(
    server: ChatServer, client: AsyncChat
) -> None:
    for _ in range(2):
        server.say(['{"values":{"a":1}}'])
    assert await client.chat.parse("a", Anything, dialect="json_schema") == Anything({"a": 1})
    assert await client.chat.parse("a", Anything, dialect="json_object") == Anything({"a": 1})


# ------------------------------------------------------------------------------------------ reask
async def test_reask_asks_again_with_what_was_wrong(server: ChatServer, client: AsyncChat) -> None:
    server.say(['{"name":3}']).usage(10, 2, total_tokens=12)
    server.say(["still no JSON"]).usage(20, 3, total_tokens=23)
    server.say([ANN_JSON]).usage(30, 4, total_tokens=34)
    said = [{"role": "user", "content": "a"}]
    answer = await client.chat.parse_completion(said, Person, reask=2, system="Be exact.")
    assert answer.message.parsed == ANN
    assert said == [{"role": "user", "content": "a"}]
    assert [one["role"] for one in sent(server, 1)] == ["system", "user", "assistant", "user"]
    assert sent(server, 1)[2]["content"] == '{"name":3}'
    assert "$.name" in sent(server, 1)[3]["content"]
    assert len(sent(server, 2)) == 6
    assert [format_of(server, n)["type"] for n in range(3)] == ["json_schema"] * 3
    assert answer.usage == Usage(prompt_tokens=60, completion_tokens=9, total_tokens=69)


@pytest.mark.parametrize("reask", [0, 1, 2])
async def test_reask_asks_at_most_so_often(
    reask: int, server: ChatServer, client: AsyncChat
) -> None:
    server.otherwise(Reply().say(["{}"]).usage(1, 1, total_tokens=2))
    with pytest.raises(OutputMismatch) as caught:
        await client.chat.parse("a", Person, reask=reask)
    assert len(server.requests) == 1 + reask
    assert caught.value.partial is not None
    assert caught.value.partial.usage is not None
    assert caught.value.partial.usage.total_tokens == 2 * (1 + reask)


async def test_usage_over_attempts_is_none_where_that_of_one_is_unknown(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say(["{}"]).without_usage()
    server.say([ANN_JSON]).usage(1, 1)
    answer = await client.chat.completions.parse(messages="a", response_format=Person, reask=1)
    assert answer.usage is None


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply().refuse("No."), RefusalError),
        (Reply().say(["{"]).finish("length"), LengthFinishReasonError),
        (Reply().say(["{"]).finish("content_filter"), ContentFilterFinishReasonError),
        (Reply().fail(400, "No."), AsyncChatError),
    ],
    ids=["refusal", "length", "filter", "status"],
)
async def test_reask_is_only_for_answers_that_do_not_fit(
    reply: Reply, kind: type[AsyncChatError], server: ChatServer, client: AsyncChat
) -> None:
    server.queue(reply)
    with pytest.raises(kind):
        await client.chat.parse("a", Person, reask=3)
    assert len(server.requests) == 1


@pytest.mark.parametrize("reask", [-1, 1.5, True, "2", None])
async def test_reask_that_is_no_count_is_a_mistake(
    reask: Any, server: ChatServer, client: AsyncChat
) -> None:
    with pytest.raises((ValueError, TypeError), match="reask"):
        await client.chat.parse("a", Person, reask=reask)
    assert server.requests == []


# ---------------------------------------------------------------------------------------- dialects
async def test_dialect_of_a_call_decides_how_the_schema_is_sent(
    server: ChatServer, client: AsyncChat
) -> None:
    server.otherwise(Reply().say([ANN_JSON]))
    await client.chat.parse("a", Person, dialect="strict")
    assert format_of(server)["json_schema"]["schema"]["required"] == ["name", "age"]
    await client.chat.parse("a", Person, dialect="json_schema")
    assert "strict" not in format_of(server)["json_schema"]
    assert format_of(server)["json_schema"]["schema"]["required"] == ["name"]
    await client.chat.parse("a", Person, dialect="json_object")
    assert format_of(server) == {"type": "json_object"}


async def test_unknown_dialect_is_a_mistake(server: ChatServer, client: AsyncChat) -> None:
    odd: Any = "xml"
    with pytest.raises(ValueError, match="dialect"):
        await client.chat.parse("a", Person, dialect=odd)
    with pytest.raises(ValueError, match="dialect"):
        Endpoint(server.base_url, dialect=odd)
    assert server.requests == []


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("role", [None, "system", "developer"])
async def test_json_object_puts_the_schema_into_the_system_message(
    role: str | None, streamed: bool, server: ChatServer, client: AsyncChat
) -> None:
    server.say([ANN_JSON])
    said = [{"role": "user", "content": "a"}]
    if role is not None:
        said.insert(0, {"role": role, "content": "Be exact."})
    if streamed:
        await client.chat.stream(said, response_format=Person, dialect="json_object").final()
    else:
        await client.chat.parse(said, Person, dialect="json_object")
    first, last = sent(server)
    assert first["role"] == (role or "system")
    assert first["content"].startswith("Be exact." if role else "Answer with one JSON object")
    schema = first["content"][first["content"].index("{") :]
    assert msgspec.json.decode(schema)["properties"].keys() == {"name", "age"}
    assert last == {"role": "user", "content": "a"}
    assert said[0]["content"] in ("a", "Be exact.")  # the caller's own is as it was


async def test_json_object_keeps_a_system_message_that_is_made_of_parts(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say([ANN_JSON])
    parts = [{"type": "text", "text": "Be exact."}]
    said: list[Any] = [{"role": "system", "content": parts}, {"role": "user", "content": "a"}]
    await client.chat.parse(said, Person, dialect="json_object")
    first = sent(server)[0]
    text = msgspec.json.encode(first["content"]).decode()
    assert "Be exact." in text
    assert "JSON Schema" in text
    assert parts == [{"type": "text", "text": "Be exact."}]


@pytest.fixture
async def second() -> AsyncIterator[ChatServer]:
    async with ChatServer() as server:
        yield server


async def test_each_endpoint_gets_the_form_that_it_prefers(
    server: ChatServer, second: ChatServer
) -> None:
    endpoints = [
        Endpoint(server.base_url, api_key=KEY, model="m", dialect="json_schema"),
        Endpoint(second.base_url, api_key=KEY, model="m", dialect="json_object"),
    ]
    async with AsyncChat(endpoints=endpoints, max_retries=2) as client:
        server.otherwise(Reply().fail(503))
        second.otherwise(Reply().say([ANN_JSON]))
        for _ in range(3):
            assert await client.chat.parse("a", Person) == ANN  # whoever is asked first
        assert "strict" not in format_of(server)["json_schema"]
        assert [said["role"] for said in sent(server)] == ["user"]
        assert format_of(second) == {"type": "json_object"}
        assert [said["role"] for said in sent(second)] == ["system", "user"]


async def test_type_has_to_be_sayable_to_every_endpoint_before_anything_is_sent(
    server: ChatServer, second: ChatServer
) -> None:
    endpoints = [
        Endpoint(server.base_url, api_key=KEY, model="m", dialect="json_object"),
        Endpoint(second.base_url, api_key=KEY, model="m"),
    ]
    async with AsyncChat(endpoints=endpoints) as client:
        with pytest.raises(SchemaError):
            await client.chat.parse("a", Anything)
    assert server.requests == []
    assert second.requests == []


async def test_tools_go_to_each_endpoint_in_its_own_form(server: ChatServer) -> None:
    async def f(x: int = 3) -> None:
        """Do it."""

    async with AsyncChat(
        endpoints=[Endpoint(server.base_url, api_key=KEY, model="m", dialect="json_schema")]
    ) as client:
        await client.chat.run("a", [f])
        await client.chat.run("a", [f], dialect="strict")
    loose: Any = server.requests[0].body["tools"]
    firm: Any = server.requests[1].body["tools"]
    assert "strict" not in loose[0]["function"]
    assert firm[0]["function"]["strict"] is True


# ------------------------------------------------------------------------------------------ items
PEOPLE = [Person(f"p{n}", n) for n in range(4)]
LIST_JSON = msgspec.json.encode({"value": PEOPLE}).decode()


async def collect(client: AsyncChat, got: list[Person]) -> None:
    """Read the people of an answer, into a list that is kept when the answer fails."""
    async with client.chat.stream("a", response_format=list[Person]) as stream:
        async for item in stream.items():
            got.append(item)  # noqa: PERF401  each as it comes


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
async def test_items_are_the_elements_of_the_list_however_it_is_cut(
    size: int, server: ChatServer, client: AsyncChat
) -> None:
    server.say([LIST_JSON[at : at + size] for at in range(0, len(LIST_JSON), size)])
    async with client.chat.stream("a", response_format=list[Person]) as stream:
        assert [item async for item in stream.items()] == PEOPLE
        assert stream.parsed == PEOPLE
    assert stream.completion.message.parsed == PEOPLE
    await assert_nothing_is_left(client, server)


@pytest.mark.parametrize("every", [1, 5])
async def test_items_come_whole_though_the_bytes_are_torn(
    every: int, server: ChatServer, client: AsyncChat
) -> None:
    said = ['{"value":["é🙂",', '"}],\\"","', '日本"', "]}"]
    server.say(said).split(every=every)
    async with client.chat.stream("a", response_format=list[str]) as stream:
        assert [item async for item in stream.items()] == ["é🙂", '}],"', "日本"]


async def test_element_is_given_as_soon_as_it_is_closed(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say(['{"value":[{"name":"a"', "},", '{"name":"b"', "}]}"]).stall(after=3)
    async with client.chat.stream("a", response_format=list[Person]) as stream:
        items = stream.items()
        with anyio.fail_after(1):
            assert await anext(items) == Person("a")
        assert server.active  # and goes on
        with pytest.raises(RuntimeError, match="not read to its end"):
            _ = stream.parsed
        server.resume()
        assert [item async for item in items] == [Person("b")]


@pytest.mark.parametrize(
    ("output", "text", "items"),
    [
        (list[int], '{"value": [1, 2 ,3]}', [1, 2, 3]),
        (list[int], '{"value": []}', []),
        (list[list[int]], '{"value": [[1],[],[2,3]]}', [[1], [], [2, 3]]),
        (list[Red | Blue], '{"value": [{"type":"red","depth":1}]}', [Red(1)]),
        (list[Pair], '{"value": [{"a":1,"b":"x"}]}', [Pair(1, "x")]),
        (list[Modelled], '{"value": [{"name":"x","tags":[]}]}', [Modelled(name="x")]),
        (list[str | None], '{"value": ["[", null, "]"]}', ["[", None, "]"]),
    ],
    ids=str,
)
async def test_items_may_be_of_any_type(
    output: Any, text: str, items: list[object], server: ChatServer, client: AsyncChat
) -> None:
    server.say(text)
    async with client.chat.stream("a", response_format=output) as stream:
        assert [item async for item in stream.items()] == items
        assert stream.parsed == items


@pytest.mark.parametrize(
    "pieces",
    [1, 3],
)
async def test_element_that_does_not_fit_ends_the_items_after_those_that_do(
    pieces: int, server: ChatServer, client: AsyncChat
) -> None:
    said = ['{"value":[{"name":"a"},', '{"name":3},', '{"name":"c"}]}']
    server.say(said if pieces == 3 else ["".join(said)])
    got: list[Person] = []
    with pytest.raises(OutputMismatch, match=r"\$\.name"):
        await collect(client, got)
    assert got == [Person("a")]
    await assert_nothing_is_left(client, server)


async def test_element_that_does_not_fit_carries_the_answer_so_far(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say(['{"value":[{"name":3},', '{"name":"c"}]}'])
    with pytest.raises(OutputMismatch) as caught:
        async with client.chat.stream("a", response_format=list[Person]) as stream:
            _ = [item async for item in stream.items()]
    assert caught.value.partial is not None
    assert caught.value.partial.text.startswith('{"value":[{"name":3}')


@pytest.mark.parametrize(
    ("reply", "kind", "before"),
    [
        (
            Reply().say(['{"value":[{"name":"a"},', '{"na']).finish("length"),
            LengthFinishReasonError,
            1,
        ),
        (
            Reply().say(['{"value":[{"name":"a"}', "]}"]).finish("length"),
            LengthFinishReasonError,
            1,
        ),
        (
            Reply().say(['{"value":[{"name":"a"},']).finish("content_filter"),
            ContentFilterFinishReasonError,
            1,
        ),
        (Reply().refuse("No."), RefusalError, 0),
        (Reply().say("I cannot do that."), OutputMismatch, 0),
        (Reply().say(['{"value":[{"name":"a"},']), OutputMismatch, 1),
        (Reply().say(['{"value":3}']), OutputMismatch, 0),
        (Reply().say(['{"value":[{"name":"a"},', '{"na']).cut(after=3), StreamCut, 1),
    ],
    ids=["cut", "whole but cut", "filter", "refusal", "words", "unclosed", "no list", "lost"],
)
async def test_list_that_does_not_end_well_raises_after_its_elements(
    reply: Reply, kind: type[AsyncChatError], before: int, server: ChatServer, client: AsyncChat
) -> None:
    server.queue(reply)
    got: list[Person] = []
    with pytest.raises(kind) as caught:
        await collect(client, got)
    assert type(caught.value) is kind
    assert got == [Person("a")] * before
    assert caught.value.partial is not None
    await assert_nothing_is_left(client, server)


async def test_other_lists_of_the_answer_are_not_taken_for_its_elements(
    server: ChatServer, client: AsyncChat
) -> None:
    """A server that keeps to no schema may put something before the value."""
    server.say(['{"thoughts":[7,8],"value":[1,2]}'])
    async with client.chat.stream("a", response_format=list[int], dialect="json_object") as stream:
        assert [item async for item in stream.items()] == [1, 2]
        assert stream.parsed == [1, 2]


@pytest.mark.parametrize("wanted", [None, Person, int, {"type": "json_object"}], ids=str)
async def test_items_want_a_list_to_come(
    wanted: Any, server: ChatServer, client: AsyncChat
) -> None:
    stream = client.chat.stream("a", response_format=wanted)
    with pytest.raises(ValueError, match="response_format"):
        stream.items()
    assert server.requests == []


@pytest.mark.parametrize("way", ["items", "partials"])
async def test_values_that_grow_refuse_an_answer_that_may_begin_anew(
    way: str, server: ChatServer, client: AsyncChat
) -> None:
    stream = client.chat.stream("a", response_format=list[Person], resume="restart")
    with pytest.raises(ValueError, match="restart"):
        getattr(stream, way)()
    assert server.requests == []


async def test_items_go_on_over_an_answer_that_was_taken_up_again(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say(['{"value":[{"name":"a"},', '{"na']).cut(after=3)
    server.say(['me":"b"}', "]}"])
    async with client.chat.stream("a", response_format=list[Person], resume="continue") as stream:
        assert [item async for item in stream.items()] == [Person("a"), Person("b")]
    assert format_of(server)["json_schema"]["name"] == "list_Person"


@pytest.mark.parametrize("way", ["items", "partials"])
async def test_leaving_early_frees_the_place(
    way: str, server: ChatServer, client: AsyncChat
) -> None:
    for managed in (True, False):
        server.say(['{"value":[{"name":"a"},', '{"name":"b"}', "]}"]).stall(after=3)
        stream = client.chat.stream("a", response_format=list[Person])
        if managed:
            async with stream:
                async for _ in getattr(stream, way)():
                    break
        else:
            async for _ in getattr(stream, way)():
                break
        await server.wait_for_disconnect(0.2)
        await assert_nothing_is_left(client, server)


async def test_cancelled_between_two_elements_the_answer_is_closed(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say(['{"value":[{"name":"a"},', '{"name":"b"}', "]}"]).stall(after=3)
    first = asyncio.Event()

    async def read() -> None:
        async with client.chat.stream("a", response_format=list[Person]) as stream:
            async for _ in stream.items():
                first.set()

    task = start(read())
    await first.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await server.wait_for_disconnect(0.2)
    await assert_nothing_is_left(client, server)


async def test_items_of_a_stream_that_is_read_as_chunks(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say([LIST_JSON])
    async with await client.chat.completions.create(
        messages="a", stream=True, response_format=list[Person]
    ) as stream:
        assert [item async for item in stream.items()] == PEOPLE


async def test_only_the_first_choice_is_read_as_elements(
    server: ChatServer, client: AsyncChat
) -> None:
    reply = server.reply()
    reply.say(['{"value":[1', ",2]}"], choice=0).say(['{"value":[8', ",9]}"], choice=1)
    async with client.chat.stream("a", response_format=list[int], n=2) as stream:
        assert [item async for item in stream.items()] == [1, 2]


async def test_long_list_costs_what_its_length_costs(
    server: ChatServer, client: AsyncChat
) -> None:
    people = [Person(f"p{n}", n) for n in range(3000)]
    text = msgspec.json.encode({"value": people}).decode()
    server.say([text[at : at + 100] for at in range(0, len(text), 100)])
    async with client.chat.stream("a", response_format=list[Person]) as stream:
        with anyio.fail_after(3):
            assert [item async for item in stream.items()] == people


# --------------------------------------------------------------------------------------- partials
async def test_partials_grow_and_the_last_one_is_whole_and_checked(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say([EVENT_JSON[at : at + 3] for at in range(0, len(EVENT_JSON), 3)])
    async with client.chat.stream("a", response_format=Event) as stream:
        seen = [value async for value in stream.partials(every=0)]
    assert len(seen) > 8
    assert seen[-1] == Event("Tea", [ANN])
    assert type(seen[-1]) is Event
    titles = [value.title or "" for value in seen]
    assert all("Tea".startswith(title) for title in titles)
    assert titles == sorted(titles)
    counts = [len(value.people or []) for value in seen]
    assert counts == sorted(counts)
    assert {0, 1} == set(counts)


async def test_partial_values_have_the_fields_of_the_type_and_none_where_nothing_has_come(
    server: ChatServer, client: AsyncChat
) -> None:
    server.say(['{"title":"T', 'ea","people":[{"name":"A', 'nn","age":30}', "]}"]).stall(after=3)
    async with client.chat.stream("a", response_format=Event) as stream:
        values = stream.partials(every=0)
        first = await anext(values)
        assert (first.title, first.people) == ("T", None)
        then = await anext(values)
        assert then.title == "Tea"
        assert (then.people[0].name, then.people[0].age) == ("A", None)
        server.resume()
        assert [value async for value in values][-1] == Event("Tea", [ANN])


@pytest.mark.parametrize(
    ("output", "text", "value"),
    [
        (list[Person], LIST_JSON, PEOPLE),
        (Pair, '{"a":1,"b":"xyz"}', Pair(1, "xyz")),
        (Typed, '{"a":123}', {"a": 123}),
        (Modelled, '{"name":"Ann","tags":["x","y"]}', Modelled(name="Ann", tags=["x", "y"])),
        (Red | Blue, '{"value":{"type":"blue","height":3}}', Blue(3)),
        (str, '{"value":"a b c d"}', "a b c d"),
        (int, '{"value":12345}', 12345),
    ],
    ids=str,
)
async def test_partials_of_any_type_end_with_the_value(
    output: Any, text: str, value: object, server: ChatServer, client: AsyncChat
) -> None:
    server.say(list(text))
    async with client.chat.stream("a", response_format=output) as stream:
        seen = [one async for one in stream.partials(every=0)]
        assert seen[-1] == stream.parsed == value
    assert len(seen) > 1
    assert type(seen[-1]) is type(value)


async def test_partials_are_no_closer_than_every(server: ChatServer, client: AsyncChat) -> None:
    server.say(list(EVENT_JSON))
    async with client.chat.stream("a", response_format=Event) as stream:
        seen = [value async for value in stream.partials(every=60)]
    assert len(seen) == 2  # the first one, and the whole
    assert seen[-1] == Event("Tea", [ANN])


async def test_partials_of_a_long_answer_cost_what_its_length_costs(
    server: ChatServer, client: AsyncChat
) -> None:
    text = msgspec.json.encode(Event("Tea", [Person(f"p{n}", n) for n in range(2000)])).decode()
    server.say([text[at : at + 40] for at in range(0, len(text), 40)])
    async with client.chat.stream("a", response_format=Event) as stream:
        with anyio.fail_after(4):
            seen = [value async for value in stream.partials(every=0)]
    assert len(seen[-1].people) == 2000


@pytest.mark.parametrize(("reply", "kind", "says"), FAILURES)
async def test_partials_end_with_the_error_of_the_whole(
    reply: Reply,
    kind: type[AsyncChatError],
    says: str,
    server: ChatServer,
    client: AsyncChat,
) -> None:
    server.queue(reply)
    stream = client.chat.stream("a", response_format=Person)
    with pytest.raises(kind, match=says) as caught:
        _ = [value async for value in stream.partials(every=0)]
    assert caught.value.partial is not None
    await assert_nothing_is_left(client, server)


@pytest.mark.parametrize("wanted", [None, {"type": "json_object"}], ids=str)
async def test_partials_want_a_type_to_come(
    wanted: Any, server: ChatServer, client: AsyncChat
) -> None:
    stream = client.chat.stream("a", response_format=wanted)
    with pytest.raises(ValueError, match="response_format"):
        stream.partials()
    assert server.requests == []


# ------------------------------------------------------------------------------------------ parsed
async def test_parsed_is_there_once_the_stream_has_ended_however_it_was_read(
    server: ChatServer, client: AsyncChat
) -> None:
    server.otherwise(Reply().say([ANN_JSON]))
    stream = client.chat.stream("a", response_format=Person)
    with pytest.raises(RuntimeError, match="not read to its end"):
        _ = stream.parsed
    await stream.final()
    assert stream.parsed == ANN
    async with client.chat.stream("a", response_format=Person) as stream:
        assert ContentDelta(ANN_JSON) in [event async for event in stream]
    assert stream.parsed == ANN
    async with client.chat.stream("a", response_format=Person) as stream:
        assert [piece async for piece in stream.text()] == [ANN_JSON]
    assert stream.parsed is stream.completion.message.parsed or stream.parsed == ANN
    assert stream.completion.message.parsed == ANN


async def test_type_is_kept_through_retries(server: ChatServer, make_client: MakeClient) -> None:
    client = make_client(max_retries=1)
    server.fail(503, headers={"Retry-After": "0"})
    server.say([ANN_JSON])
    assert await client.chat.parse("a", Person) == ANN
    assert format_of(server, 0) == format_of(server, 1)


async def test_status_error_of_parse_is_itself(server: ChatServer, client: AsyncChat) -> None:
    server.fail(500, "Down.")
    with pytest.raises(InternalServerError, match=r"Down\."):
        await client.chat.parse("a", Person, reask=2)
    assert len(server.requests) == 1
