"""What we say to a server: messages of every kind, parameters as they are, and misuse told at once."""

import json
from collections import OrderedDict
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import msgspec
import pydantic
import pytest

from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.request import (
    Assistant,
    AudioPart,
    ChatRequest,
    Developer,
    ImagePart,
    ImageURL,
    InputAudio,
    System,
    TextPart,
    ToolResult,
    User,
)
from asyncchat.protocol.response import Choice, Completion, Message, ToolCall
from asyncchat.protocol.schema import Dialect, SchemaError, Tool
from tests.protocol.frames import chunk, sse


def request(
    messages: Any = "Hi.", system: str | None = None, extra_body: Any = None, **fields: Any
) -> ChatRequest:
    return ChatRequest(messages, {"model": "m", **fields}, system=system, extra_body=extra_body)


def body(
    *args: Any, stream: bool = False, ask_usage: bool = True, **fields: Any
) -> dict[str, Any]:
    made = request(*args, **fields).encode(stream=stream, ask_usage=ask_usage)
    found: dict[str, Any] = json.loads(made)
    return found


def sent(messages: Any, system: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = body(messages, system)["messages"]
    return found


# ------------------------------------------------------------------------------------------- messages


def test_text_is_one_user_message() -> None:
    assert sent("Hi.") == [{"role": "user", "content": "Hi."}]


@pytest.mark.parametrize("messages", ["Hi.", [User("Hi.")]])
def test_system_message_comes_first(messages: Any) -> None:
    assert sent(messages, "Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi."},
    ]


@pytest.mark.parametrize(
    ("message", "wire"),
    [
        (System("a"), {"role": "system", "content": "a"}),
        (Developer("a", name="n"), {"role": "developer", "content": "a", "name": "n"}),
        (User("a"), {"role": "user", "content": "a"}),
        (Assistant("a"), {"role": "assistant", "content": "a"}),
        (
            Assistant(tool_calls=[{"id": "a"}], reasoning_content="hm"),
            {"role": "assistant", "tool_calls": [{"id": "a"}], "reasoning_content": "hm"},
        ),
        (ToolResult("4", "a"), {"role": "tool", "content": "4", "tool_call_id": "a"}),
        (
            User([TextPart("a"), ImagePart("https://x"), {"type": "odd", "x": 1}]),
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "a"},
                    {"type": "image_url", "image_url": {"url": "https://x"}},
                    {"type": "odd", "x": 1},
                ],
            },
        ),
        ({"role": "user", "content": None, "odd": [1]}, {"role": "user", "content": None, "odd": [1]}),
        ({"role": "function", "name": "f"}, {"role": "function", "name": "f"}),
        (OrderedDict(role="user", content="a"), {"role": "user", "content": "a"}),
        (MappingProxyType({"role": "user", "content": "a"}), {"role": "user", "content": "a"}),
        (Message(content="a"), {"role": "assistant", "content": "a"}),
        (Message(), {"role": "assistant", "content": ""}),
    ],
    ids=str,
)  # fmt: skip
def test_message_of_every_kind_goes_in(message: Any, wire: dict[str, Any]) -> None:
    assert sent([message]) == [wire]


def test_object_with_model_dump_goes_in_without_its_nones() -> None:
    class Theirs(pydantic.BaseModel):
        role: str = "user"
        content: str = "a"
        name: str | None = None

    assert sent([Theirs()]) == [{"role": "user", "content": "a"}]


def test_messages_may_come_from_any_iterable() -> None:
    assert [one["content"] for one in sent(User(text) for text in "ab")] == ["a", "b"]


def test_messages_of_a_generator_are_sent_again_by_a_retry() -> None:
    made = request(User(text) for text in "ab")
    assert made.encode(stream=False) == made.encode(stream=False)


def test_image_from_bytes_is_a_data_url() -> None:
    part = ImagePart.from_bytes(b"\x00\x01", "image/jpeg", detail="low")
    assert part == ImagePart(ImageURL("data:image/jpeg;base64,AAE=", "low"))


@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_audio_from_bytes_keeps_its_format(format: str) -> None:  # noqa: A002  OpenAI's name
    part = AudioPart.from_bytes(b"\x00\x01", format)
    assert part == AudioPart(InputAudio("AAE=", format))
    (wire,) = sent([User([part])])[0]["content"]
    assert wire == {"type": "input_audio", "input_audio": {"data": "AAE=", "format": format}}


# --------------------------------------------------------------------------------- what came out goes in


def answer(*deltas: dict[str, Any]) -> Completion:
    reader = AnswerReader()
    reader.feed(sse(*map(chunk, deltas), chunk(finish="stop")))
    return reader.finish()


@pytest.mark.parametrize(
    "said",
    [
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "a", "reasoning_content": "hm"},
        {"role": "assistant", "content": "a", "reasoning": "hm"},
        {"role": "assistant", "content": "a", "refusal": "no", "weight": 1, "annotations": [{"x": None}]},
        {
            "role": "assistant",
            "content": "a",
            "reasoning": "hm",
            "reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "S"}],
            "thinking_blocks": [{"type": "thinking", "thinking": "hm", "signature": "S"}],
        },
        {
            "role": "assistant",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}, "extra_content": {"x": "S"}},
                {"id": "b", "type": "function", "function": {"name": "g", "arguments": '{"x": 1}', "signature": "S"}},
            ],
        },
        {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}},
    ],
    ids=str,
)  # fmt: skip
def test_message_of_an_answer_goes_back_as_the_server_spelled_it(said: dict[str, Any]) -> None:
    assert sent([answer(said).message]) == [said]


def test_message_of_a_whole_answer_goes_back_as_the_server_spelled_it() -> None:
    said = {"role": "assistant", "content": "a", "weight": 1, "reasoning": "hm"}
    whole = {"choices": [{"index": 0, "message": said, "finish_reason": "stop"}], "x": 1}
    made = AnswerReader().read_whole(json.dumps(whole).encode())
    assert sent([made.message]) == [said]


def test_audio_of_an_answer_goes_back_as_its_id() -> None:
    made = answer({"audio": {"id": "au", "data": "AAE=", "transcript": "hey"}})
    assert sent([made.message]) == [{"role": "assistant", "audio": {"id": "au"}, "content": ""}]


def test_audio_without_an_id_does_not_go_back() -> None:
    assert sent([Message(content="a", audio={"data": "AAE="})]) == [
        {"role": "assistant", "content": "a"}
    ]


CALL = ToolCall(id="a", extra_={"extra_content": {"signature": "S"}})
CALL.function.name = "f"
WIRE_CALL = {
    "id": "a",
    "type": "function",
    "function": {"name": "f", "arguments": ""},
    "extra_content": {"signature": "S"},
}


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "assistant", "tool_calls": iter([CALL])},
        OrderedDict(role="assistant", tool_calls=[CALL]),
        Assistant(tool_calls=[CALL]),
        Message(tool_calls=[CALL]),
    ],
    ids=["dict", "iterator", "mapping", "Assistant", "Message"],
)
def test_calls_of_an_answer_go_in_as_the_server_spelled_them(message: Any) -> None:
    assert sent([message]) == [{"role": "assistant", "tool_calls": [WIRE_CALL]}]


def test_message_that_was_given_is_left_as_it_was() -> None:
    given: dict[str, Any] = {"role": "assistant", "tool_calls": [CALL]}
    sent([given])
    assert given == {"role": "assistant", "tool_calls": [CALL]}


@pytest.mark.parametrize(
    "place",
    [
        lambda value: {"tools": [value]},
        lambda value: {"odd": value},
        lambda value: {"odd": {"deep": [{"x": value}]}},
        lambda value: {"odd": (value,)},
        lambda value: {"odd": MappingProxyType({"x": value})},
        lambda value: {"extra_body": {"odd": [value]}},
        lambda value: {"extra_body": {"messages": [{"role": "x", "tool_calls": [value]}]}},
        lambda value: {"messages": [{"role": "user", "content": [value]}]},
    ],
    ids=[
        "tools",
        "bare",
        "in a dict",
        "in a tuple",
        "in a mapping",
        "extra_body",
        "messages in extra_body",
        "content",
    ],
)
def test_struct_anywhere_in_the_body_is_what_the_server_sent(place: Any) -> None:
    data = request(**place(CALL)).encode(stream=False)
    assert b"(extra)" not in data
    assert json.dumps(WIRE_CALL, separators=(",", ":")).encode() in data


# --------------------------------------------------------------------------------------------- parameters


def test_every_field_passes_known_or_not() -> None:
    fields: dict[str, Any] = {
        "temperature": 0,
        "top_p": 0.5,
        "n": 2,
        "stop": ["a"],
        "tools": [{"type": "function", "function": {"name": "f"}}],
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
        "logit_bias": {"50256": -100},
        "seed": 7,
        "user": "u",
        "metadata": {"a": "b"},
        "top_k": 5,
        "chat_template_kwargs": {"enable_thinking": False},
        "guided_json": {"type": "object"},
    }
    assert body(**fields) == {
        "messages": [{"role": "user", "content": "Hi."}],
        "model": "m",
        **fields,
    }


def test_field_that_is_none_is_not_sent() -> None:
    assert "stop" not in body(stop=None)


def test_none_in_extra_body_is_sent_as_null() -> None:
    assert body(extra_body={"stop": None})["stop"] is None


def test_extra_body_goes_in_last() -> None:
    assert body(temperature=0, extra_body={"temperature": 1, "messages": []}) == {
        "messages": [],
        "model": "m",
        "temperature": 1,
    }


def test_model_may_come_in_extra_body() -> None:
    assert ChatRequest("Hi.", {}, extra_body={"model": "m"}).encode(stream=False)


@pytest.mark.parametrize("fields", [{"stop": iter("ab")}, {"extra_body": {"stop": iter("ab")}}])
def test_parameter_of_a_generator_is_sent_again_by_a_retry(fields: dict[str, Any]) -> None:
    made = request(**fields)
    assert json.loads(made.encode(stream=False))["stop"] == ["a", "b"]
    assert json.loads(made.encode(stream=False))["stop"] == ["a", "b"]


def test_generator_inside_a_list_is_sent_again_by_a_retry() -> None:
    made = request(odd=[iter("ab")])
    assert made.encode(stream=False) == made.encode(stream=False)


@pytest.mark.parametrize(
    ("value", "wire"),
    [
        ((1, 2), [1, 2]),
        ({3}, [3]),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (range(2), [0, 1]),
        (10**30, 10**30),
    ],
    ids=str,
)
def test_parameter_of_any_sensible_type_is_sent(value: object, wire: object) -> None:
    assert body(odd=value)["odd"] == wire


def test_pydantic_object_is_sent_without_its_nones() -> None:
    class Theirs(pydantic.BaseModel):
        a: int = 1
        b: int | None = None

    assert body(odd=Theirs())["odd"] == {"a": 1}


@pytest.mark.parametrize(
    ("fields", "n"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": None}, 1),
        ({"extra_body": {"n": 4}}, 4),
        ({"n": 2, "extra_body": {"n": 4}}, 4),
        ({"n": 0}, 1),
        ({"n": 2.5}, 1),
        ({"extra_body": {"n": "many"}}, 1),
        ({"extra_body": {"n": None}}, 1),
    ],
    ids=str,
)
def test_number_of_answers_is_known(fields: dict[str, Any], n: int) -> None:
    assert request(**fields).n == n


# ------------------------------------------------------------------------------------------------ streams


def test_stream_is_asked_to_end_with_its_usage() -> None:
    made = body(stream=True)
    assert (made["stream"], made["stream_options"]) == (True, {"include_usage": True})


def test_stream_of_a_server_that_refuses_it_is_not_asked() -> None:
    assert "stream_options" not in body(stream=True, ask_usage=False)


def test_answer_in_one_piece_is_not_asked_for_a_stream() -> None:
    assert {"stream", "stream_options"}.isdisjoint(body(stream=False))


def test_option_of_the_caller_wins() -> None:
    options = {"include_usage": False, "include_obfuscation": False}
    made = request(stream_options=options)
    assert made.sets_stream_options
    assert json.loads(made.encode(stream=True))["stream_options"] == options


def test_options_of_the_caller_are_kept_where_usage_is_not_asked_for() -> None:
    made = request(stream_options={"include_obfuscation": False})
    assert json.loads(made.encode(stream=True, ask_usage=False))["stream_options"] == {
        "include_obfuscation": False
    }


def test_options_in_extra_body_go_in_as_they_are() -> None:
    made = request(extra_body={"stream_options": None})
    assert made.sets_stream_options
    assert json.loads(made.encode(stream=True))["stream_options"] is None


def test_options_are_not_set_where_nothing_was_said() -> None:
    assert not request().sets_stream_options


def test_options_that_were_given_are_left_as_they_were() -> None:
    options = {"x": 1}
    body(stream=True, stream_options=options)
    assert options == {"x": 1}


def test_stream_options_of_another_kind_are_a_type_error() -> None:
    with pytest.raises(TypeError, match="stream_options is a list"):
        request(stream_options=["include_usage"])


# ------------------------------------------------------------------------------------------------- misuse


@pytest.mark.parametrize("fields", [{"model": None}, {"model": ""}, {"extra_body": {"model": ""}}])
def test_request_without_a_model_says_how_to_name_one(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="no model"):
        request(**fields)


def test_model_of_another_type_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="model is a int"):
        request(model=7)


@pytest.mark.parametrize(
    "messages", [None, 7, b"Hi.", {"role": "user"}, User("Hi."), Completion()]
)
def test_messages_of_another_kind_are_a_type_error(messages: Any) -> None:
    with pytest.raises(TypeError, match="messages is a"):
        request(messages)


@pytest.mark.parametrize("system", [None, "Be brief."])
def test_no_message_at_all_is_a_value_error(system: str | None) -> None:
    with pytest.raises(ValueError, match="messages is empty"):
        request([], system)


@pytest.mark.parametrize("role", [None, "", "robot", "User", 7, ["user"], {}])
def test_unknown_role_is_a_value_error_that_says_where_and_which_there_are(role: object) -> None:
    with pytest.raises(
        ValueError, match=r"messages\[1\] has role .* assistant, developer.*extra_body"
    ):
        request([User("Hi."), {"role": role, "content": "a"}])


def test_mapping_without_a_role_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="role None"):
        request([MappingProxyType({"content": "a"})])


@pytest.mark.parametrize("message", [Completion(), Choice()])
def test_answer_instead_of_its_message_is_a_type_error_that_says_so(message: Any) -> None:
    with pytest.raises(TypeError, match=r"answer\.message"):
        request([message])


def test_messages_that_are_an_answer_say_so() -> None:
    with pytest.raises(TypeError, match=r"messages\[1\] is a Completion"):
        request([User("Hi."), answer({"content": "a"})])


@pytest.mark.parametrize("message", [7, None, "Hi.", object(), [User("Hi.")]])
def test_message_of_another_kind_is_a_type_error_that_says_where(message: object) -> None:
    with pytest.raises(TypeError, match=r"messages\[0\] is a"):
        request([message])


@pytest.mark.parametrize(
    "name", ["temperature", "top_p", "max_tokens", "n", "seed", "top_logprobs"]
)
@pytest.mark.parametrize("value", ["1", True, [1], {}])
def test_number_of_another_type_is_a_type_error(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} is a {type(value).__name__}"):
        request(**{name: value})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_number_that_is_none_is_a_value_error(value: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        request(temperature=value)


def test_odd_number_in_extra_body_is_the_callers_own() -> None:
    assert body(extra_body={"temperature": "hot"})["temperature"] == "hot"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"odd": object()}, TypeError),
        ({"odd": [object()]}, TypeError),
        ({"extra_body": {"odd": object()}}, TypeError),
        ({"odd": "\ud83d"}, ValueError),
    ],
    ids=["object", "in a list", "extra_body", "surrogate"],
)
def test_parameter_that_cannot_be_sent_is_named(
    fields: dict[str, Any], kind: type[Exception]
) -> None:
    with pytest.raises(kind, match="parameter 'odd' cannot be sent"):
        request(**fields).encode(stream=False)


def test_failure_that_does_not_repeat_is_raised_as_it_is() -> None:
    class Moody:
        asked = 0

        def model_dump(self, **_: bool) -> dict[str, int]:
            Moody.asked += 1
            if Moody.asked == 1:
                raise ValueError("not now")
            return {"x": 1}

    with pytest.raises(ValueError, match="not now"):
        request(odd=Moody()).encode(stream=False)


def test_message_that_cannot_be_sent_is_told_without_its_words() -> None:
    with pytest.raises(ValueError, match="parameter 'messages'") as caught:
        request("secret \ud83d").encode(stream=False)
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_parameter_that_holds_itself_is_a_value_error() -> None:
    odd: dict[str, Any] = {}
    odd["odd"] = odd
    with pytest.raises(ValueError, match="holds itself"):
        request(odd=odd).encode(stream=False)


# ------------------------------------------------------------------------------------------------- privacy


@pytest.mark.parametrize(
    "made",
    [
        request("secret", "secret", user="secret", extra_body={"x": "secret"}),
        User("secret"),
        System("secret"),
        Developer("secret"),
        Assistant("secret", reasoning_content="secret"),
        ToolResult("secret", "secret"),
        TextPart("secret"),
        ImagePart("https://secret"),
        ImageURL("https://secret"),
        AudioPart.from_bytes(b"secret"),
        InputAudio("secret", "wav"),
    ],
    ids=lambda made: type(made).__name__,
)
def test_no_word_of_a_prompt_is_in_a_repr(made: object) -> None:
    assert "secret" not in repr(made)
    assert "c2VjcmV0" not in repr(made)


def test_repr_of_a_request_tells_the_model_and_how_many_messages() -> None:
    assert repr(request([User("a"), User("b")])) == "ChatRequest(model='m', messages=<2>)"


def test_repr_of_a_message_tells_its_kind_and_size() -> None:
    assert repr(User("a")) == "User(<29 bytes>)"


@pytest.mark.parametrize("content", [object(), "\ud83d"])
def test_repr_of_a_message_that_cannot_be_sent_says_so(content: Any) -> None:
    assert repr(User(content)) == "User(<not to be sent>)"


def test_iterator_that_fails_is_the_callers_own_error() -> None:
    def broken() -> Iterator[User]:
        yield User("a")
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        request(broken())


# ------------------------------------------------------------------------------------- schemas and tools


class City(msgspec.Struct):
    name: str
    size: int = 0


def weather(city: str) -> str:
    """Current weather."""
    return city


STRICT_CITY = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer"}},
    "required": ["name", "size"],
    "additionalProperties": False,
}
PLAIN_CITY = {
    "title": "City",
    "type": "object",
    "properties": {"name": {"type": "string"}, "size": {"type": "integer", "default": 0}},
    "required": ["name"],
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Current weather.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
STRICT_WEATHER: dict[str, Any] = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
DIALECTS: tuple[Dialect, ...] = ("strict", "json_schema", "json_object")
AS_DICT = {"type": "function", "function": {"name": "other"}}


def in_dialect(made: ChatRequest, dialect: Dialect = "strict") -> dict[str, Any]:
    found: dict[str, Any] = json.loads(made.encode(stream=False, dialect=dialect))
    return found


def test_type_as_response_format_is_sent_as_its_schema() -> None:
    made = request(response_format=City)
    assert made.output is not None
    assert made.output.wanted is City
    assert body(response_format=City)["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "City", "schema": STRICT_CITY, "strict": True},
    }


@pytest.mark.parametrize("format_", [{"type": "json_object"}, {"type": "text"}])
def test_response_format_that_is_a_dict_is_sent_as_it_is(format_: dict[str, str]) -> None:
    made = request(response_format=format_)
    assert made.output is None
    for dialect in DIALECTS:
        assert in_dialect(made, dialect)["response_format"] == format_
        assert in_dialect(made, dialect)["messages"] == [{"role": "user", "content": "Hi."}]


def test_functions_are_sent_as_tools_beside_others() -> None:
    made = request(tools=[weather, Tool(weather, name="second"), AS_DICT])
    assert [type(one) for one in made.tools or ()] == [Tool, Tool, dict]
    second = {**STRICT_WEATHER, "function": {**STRICT_WEATHER["function"], "name": "second"}}
    assert in_dialect(made)["tools"] == [STRICT_WEATHER, second, AS_DICT]


def test_tools_that_are_all_dicts_are_sent_as_they_are() -> None:
    made = request(tools=[AS_DICT])
    assert made.tools is None
    assert in_dialect(made)["tools"] == [AS_DICT]


@pytest.mark.parametrize("is_own", [True, False], ids=["the request's", "the endpoint's"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_schemas_are_sent_in_the_dialect(dialect: Dialect, is_own: bool) -> None:
    fields = {"model": "m", "response_format": City, "tools": [weather]}
    made = ChatRequest("Hi.", fields, dialect=dialect if is_own else None)
    found = in_dialect(made, "strict" if is_own else dialect)
    schema: dict[str, Any] = {"name": "City", "schema": PLAIN_CITY}
    if dialect == "strict":
        schema = {"name": "City", "schema": STRICT_CITY, "strict": True}
    assert found["response_format"] == (
        {"type": "json_object"}
        if dialect == "json_object"
        else {"type": "json_schema", "json_schema": schema}
    )
    assert found["tools"] == [STRICT_WEATHER if dialect == "strict" else WEATHER]
    assert len(found["messages"]) == (2 if dialect == "json_object" else 1)


def test_dialect_of_the_request_goes_before_that_of_the_endpoint() -> None:
    made = ChatRequest("Hi.", {"model": "m", "response_format": City}, dialect="json_object")
    assert in_dialect(made, "strict")["response_format"] == {"type": "json_object"}


def test_unknown_dialect_is_a_value_error() -> None:
    odd: Any = "yaml"
    with pytest.raises(ValueError, match="dialect='yaml'"):
        ChatRequest("Hi.", {"model": "m"}, dialect=odd)


@pytest.mark.parametrize(
    ("messages", "roles", "begins"),
    [
        ("Hi.", ["system", "user"], "Answer with one JSON object"),
        ([System("Be."), User("Hi.")], ["system", "user"], "Be.\n\nAnswer with one JSON"),
        ([Developer("Be."), User("Hi.")], ["developer", "user"], "Be.\n\nAnswer with one JSON"),
        (
            [{"role": "system", "content": "Be."}, User("Hi.")],
            ["system", "user"],
            "Be.\n\nAnswer with one JSON",
        ),
        (
            [{"role": "developer", "content": "Be."}],
            ["developer"],
            "Be.\n\nAnswer with one JSON",
        ),
        ([User("Hi."), System("Be.")], ["system", "user", "system"], "Answer with one JSON"),
    ],
)
def test_json_object_has_its_schema_in_the_first_system_message(
    messages: Any, roles: list[str], begins: str
) -> None:
    made = request(messages, response_format=City)
    for _ in range(2):  # nothing of the request is changed by it
        found = in_dialect(made, "json_object")["messages"]
        assert [message["role"] for message in found] == roles
        assert found[0]["content"].startswith(begins)
        assert json.loads(found[0]["content"].rpartition("\n")[2]) == PLAIN_CITY
    assert len(in_dialect(made, "strict")["messages"]) == len(
        messages if messages != "Hi." else [messages]
    )


@pytest.mark.parametrize(
    "first",
    [
        System([TextPart("Be.")]),
        Developer([{"type": "text", "text": "Be."}]),
        {"role": "system", "content": [{"type": "text", "text": "Be."}]},
    ],
)
def test_system_message_of_parts_gets_a_part_more(first: Any) -> None:
    [message] = in_dialect(request([first], response_format=City), "json_object")["messages"]
    assert message["content"][0] == {"type": "text", "text": "Be."}
    [part] = message["content"][1:]
    assert part["type"] == "text"
    assert json.loads(part["text"].rpartition("\n")[2]) == PLAIN_CITY


def test_iterator_of_dicts_is_sent_as_it_is() -> None:
    assert in_dialect(request(tools=iter([AS_DICT])))["tools"] == [AS_DICT]


def test_system_argument_takes_the_schema_as_well() -> None:
    made = request("Hi.", "Be.", response_format=City)
    first, second = in_dialect(made, "json_object")["messages"]
    assert first["content"].startswith("Be.\n\nAnswer with one JSON object")
    assert second == {"role": "user", "content": "Hi."}


def test_caller_s_own_message_is_not_changed_by_the_schema() -> None:
    mine, first = System("Be."), {"role": "system", "content": "Be."}
    in_dialect(request([mine], response_format=City), "json_object")
    in_dialect(request([first], response_format=City), "json_object")
    assert mine == System("Be.")
    assert first == {"role": "system", "content": "Be."}


def test_type_without_schema_is_told_when_the_request_is_made() -> None:
    with pytest.raises(SchemaError, match="object"):
        request(response_format=object)
    with pytest.raises(SchemaError, match="needs an annotation"):
        request(tools=[AS_DICT, _untyped])


def _untyped(city):  # type: ignore[no-untyped-def]
    return city


def _loose(names: dict[str, int]) -> None: ...


@pytest.mark.parametrize(
    "fields", [{"response_format": dict[str, int]}, {"tools": [AS_DICT, _loose]}]
)
def test_check_says_what_a_dialect_cannot_before_anything_is_sent(fields: dict[str, Any]) -> None:
    made = request(**fields)
    made.check(["json_schema", "json_object"])
    with pytest.raises(SchemaError, match="keys of any name"):
        made.check(["json_schema", "strict"])
    made = ChatRequest("Hi.", {"model": "m", **fields}, dialect="json_schema")
    made.check(["strict"])
    made = ChatRequest("Hi.", {"model": "m", **fields}, dialect="strict")
    with pytest.raises(SchemaError, match="keys of any name"):
        made.check(["json_schema"])


def test_check_of_a_request_without_schemas_asks_for_nothing() -> None:
    request(tools=[AS_DICT], response_format={"type": "text"}).check(["strict"])


def test_continued_request_keeps_schemas_and_dialect() -> None:
    fields = {"model": "m", "response_format": City, "tools": [weather], "n": 2}
    made = ChatRequest("Hi.", fields, dialect="json_object", extra_body={"x": 1})
    longer = made.continued('{"na', fields={"y": 2}, prefix={"prefix": True})
    assert (longer.output, longer.tools) == (made.output, made.tools)
    assert (longer.dialect, longer.n) == ("json_object", 2)
    found, before = in_dialect(longer), in_dialect(made)
    assert found.pop("messages") == [
        *before.pop("messages"),
        {"role": "assistant", "content": '{"na', "prefix": True},
    ]
    assert found == {**before, "y": 2}


def test_schemas_count_among_the_characters() -> None:
    bare = request().characters
    assert request(response_format=City).characters > bare + 20
    assert request(tools=[weather]).characters > bare + 20


def test_field_in_extra_body_wins_over_the_type() -> None:
    made = request(response_format=City, extra_body={"response_format": {"type": "text"}})
    assert in_dialect(made)["response_format"] == {"type": "text"}


def test_iterator_of_functions_is_looked_into() -> None:
    assert in_dialect(request(tools=iter([weather])))["tools"] == [STRICT_WEATHER]
