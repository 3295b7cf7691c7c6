"""Types and tools against the real llama.cpp: its grammar keeps to our schemas, its calls run our functions."""

from typing import Annotated, Any, Literal

import anyio
import msgspec
import pytest

from asyncchat import (
    AsyncChat,
    LengthFinishReasonError,
    MaxTurnsReached,
    ToolFinished,
    ToolStarted,
    TurnFinished,
)
from tests.local.conftest import ASK_PARIS

pytestmark = pytest.mark.local

Short = Annotated[str, msgspec.Meta(max_length=12)]


class Address(msgspec.Struct):
    city: Short
    country: Literal["Norway", "Italy"]


class Person(msgspec.Struct):
    name: Short
    age: Annotated[int, msgspec.Meta(ge=1, le=99)]
    address: Address


class Pet(msgspec.Struct):
    kind: Literal["cat", "dog"]
    name: Short


# ------------------------------------------------------------------------------------------ types
async def test_nested_struct_comes_by_its_schema(client: AsyncChat) -> None:
    person = await client.chat.parse(
        "Ann of Oslo, aged 30.", Person, dialect="json_schema", max_tokens=64, temperature=0
    )
    assert type(person) is Person
    assert type(person.address) is Address
    assert 1 <= person.age <= 99
    assert person.address.country in ("Norway", "Italy")


async def test_answer_that_is_cut_is_no_value(client: AsyncChat) -> None:
    with pytest.raises(LengthFinishReasonError) as caught:
        await client.chat.parse("Ann of Oslo.", Person, max_tokens=5, temperature=0)
    assert caught.value.partial is not None
    assert caught.value.partial.text.startswith("{")


async def test_elements_of_a_list_come_one_by_one(client: AsyncChat) -> None:
    sizes: list[int] = []
    pets: list[Pet] = []
    three = Annotated[list[Pet], msgspec.Meta(min_length=3, max_length=3)]

    class Pets(msgspec.Struct):
        value: three

    async with client.chat.stream(
        "Three pets.",
        response_format=list[Pet],
        # the schema of the same list, which ends after three
        extra_body={
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "pets", "schema": msgspec.json.schema(Pets)},
            }
        },
        max_tokens=120,
        temperature=0,
    ) as stream:
        async for pet in stream.items():
            pets.append(pet)
            sizes.append(len(stream.snapshot.text))
        assert stream.parsed == pets
    assert len(pets) == 3
    assert all(type(pet) is Pet for pet in pets)
    assert sizes[0] < sizes[1] < sizes[2]  # each was there before the next was written


# ------------------------------------------------------------------------------------------ tools
async def test_function_is_called_and_its_result_is_in_the_answer(
    client: AsyncChat,
) -> None:
    asked: list[str] = []

    async def get_weather(city: str) -> str:
        """Weather of a city."""
        asked.append(city)
        return "rainy"

    async with client.chat.run_stream(
        ASK_PARIS,
        [get_weather],
        dialect="json_schema",
        eager=True,
        max_turns=3,
        max_tokens=32,
        temperature=0,
    ) as run:
        seen = [event async for event in run]
    kinds = [
        type(one) for one in seen if isinstance(one, (ToolStarted, ToolFinished, TurnFinished))
    ]
    assert asked == ["Paris"]
    assert sorted(kind.__name__ for kind in kinds) == [
        "ToolFinished",
        "ToolStarted",
        "TurnFinished",
        "TurnFinished",
    ]
    assert kinds[-1] is TurnFinished
    assert "rain" in run.text.lower()
    assert run.turns == 2
    assert run.tool_calls[0].error is None
    assert run.usage is not None


async def test_two_calls_of_one_turn_run_side_by_side_and_are_told_in_order(
    client: AsyncChat,
) -> None:
    """A model this small makes two calls only where it copies them."""

    def copied(*cities: str) -> list[dict[str, object]]:
        arguments = [f'{{"city": "{city}"}}' for city in cities]
        texts = [
            f'<tool_call>\n{{"name": "get_weather", "arguments": {one}}}\n</tool_call>'
            for one in arguments
        ]
        calls = [
            {
                "id": city,
                "type": "function",
                "function": {"name": "get_weather", "arguments": one},
            }
            for city, one in zip(cities, arguments, strict=True)
        ]
        return [
            {"role": "user", "content": "Say:\n" + "\n".join(texts)},
            {"role": "assistant", "content": None, "tool_calls": calls},
        ]

    running = most = 0

    async def get_weather(city: str) -> str:
        """Weather of a city."""
        nonlocal running, most
        running += 1
        most = max(most, running)
        await anyio.sleep(0.01)
        running -= 1
        return f"rain in {city}"

    run = client.chat.run_stream(
        [*copied("Rome", "Oslo"), copied("Paris", "London")[0]],
        [get_weather],
        dialect="json_schema",
        parallel_tool_calls=True,
        max_turns=1,
        max_tokens=64,
        temperature=0,
    )
    with pytest.raises(MaxTurnsReached):
        await run.final()
    assert most == 2
    assert sorted(record.content or "" for record in run.tool_calls) == [
        "rain in London",
        "rain in Paris",
    ]
    asked = run.completion.message.tool_calls
    assert asked is not None
    told: list[Any] = run.messages[-2:]
    assert [said["tool_call_id"] for said in told] == [call.id for call in asked]
    assert len({call.id for call in asked}) == 2
