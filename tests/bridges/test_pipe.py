"""Piping to a reader whose moves the test makes. Real servers and libraries are in `test_sockets`."""

import asyncio
from typing import Any

import msgspec
import pytest

from asyncchat import (
    APIError,
    AsyncChat,
    AuthenticationError,
    StreamCut,
)
from asyncchat.bridges.pipe import socket_for
from asyncchat.bridges.sockets import Socket
from asyncchat.testing import ChatServer, Reply
from tests.bridges.conftest import KEY
from tests.bridges.fakes import Reader, start
from tests.bridges.flood import Flood

SAID = "One two three four five."


@pytest.fixture
def reader() -> Reader:
    return Reader()


async def test_whole_answer_is_sent_and_returned(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.say(SAID)
    answer = await client.chat.stream("Hi.").pipe(reader.pair)
    assert (answer.text, answer.ending, answer.finish_reason) == (SAID, "finished", "stop")
    assert answer.usage is not None
    assert "".join(reader.got) == SAID
    await server.wait_until_idle()


async def test_stream_that_was_started_in_a_block_is_sent_from_its_beginning(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.say(SAID)
    async with client.chat.stream("Hi.") as stream:
        answer = await stream.pipe(reader.pair, "openai")
    assert answer.text == SAID
    assert reader.got[-1] == "[DONE]"
    chunks = [msgspec.json.decode(message) for message in reader.got[:-1]]
    texts = [one["delta"].get("content", "") for chunk in chunks for one in chunk["choices"]]
    assert "".join(texts) == SAID


async def test_first_words_go_out_at_once_and_what_comes_meanwhile_in_one_piece(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.queue(Reply().say(SAID).stall(after=2))
    sending = start(client.chat.stream("Hi.").pipe(reader.pair, every=3600))
    await reader.wait_for(1)
    server.resume()
    answer = await sending  # the end is not kept waiting for an hour
    assert answer.text == SAID
    assert reader.got == ["One", " two three four five."]


@pytest.mark.parametrize("name", ["events", "openai", "ui"])
async def test_slow_reader_gets_fewer_and_longer_messages_and_every_word(
    client: AsyncChat, server: ChatServer, name: Any
) -> None:
    words = [f"w{number} " for number in range(300)]
    server.say(words)
    slow = Reader(reads=False)
    sending = start(client.chat.stream("Hi.").pipe(slow.pair, name, every=0))
    await server.wait_for_requests(1)
    await server.wait_until_idle()
    slow.ready.set()
    answer = await sending
    assert answer.text == "".join(words)
    assert len(slow.got) < 15
    for word in words:
        assert sum(word in message for message in slow.got if "done" not in message) == 1


async def test_reader_who_leaves_ends_the_request_and_the_partial_says_so(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.queue(Reply().say(SAID).stall(after=3))
    sending = start(client.chat.stream("Hi.").pipe(reader.pair, every=0))
    await reader.wait_for(2)
    reader.leave()
    answer = await sending
    assert (answer.text, answer.ending, answer.finish_reason) == ("One two", "left", None)
    await server.wait_for_disconnect()


async def test_reader_who_leaves_before_the_answer_began_ends_the_request(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.queue(Reply().say(SAID).stall(after=0))
    sending = start(client.chat.stream("Hi.").pipe(reader.pair))
    await server.wait_for_requests(1)
    reader.leave()
    answer = await sending
    assert (answer.text, answer.ending) == ("", "left")
    await server.wait_for_disconnect()


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError, EOFError])
async def test_send_that_fails_says_that_the_reader_has_left(
    client: AsyncChat, server: ChatServer, reader: Reader, error: type[Exception]
) -> None:
    server.queue(Reply().say(SAID).stall(after=3))

    async def send(text: str) -> None:
        raise error

    answer = await client.chat.stream("Hi.").pipe((send, reader.receive))
    assert answer.ending == "left"
    await server.wait_for_disconnect()


@pytest.mark.parametrize(
    ("name", "last"),
    [("text", "One"), ("events", '{"type":"abort"}'), ("openai", "[DONE]"), ("ui", '"stopped"}')],
)
async def test_abort_stops_the_answer_and_keeps_what_there_is(
    client: AsyncChat, server: ChatServer, reader: Reader, name: Any, last: str
) -> None:
    server.queue(Reply().say(SAID).stall(after=2))
    sending = start(client.chat.stream("Hi.").pipe(reader.pair, name))
    while not any("One" in message for message in reader.got):
        await reader.wait_for(len(reader.got) + 1)
    reader.say(b'{"type": "abort"}')
    answer = await sending
    assert (answer.text, answer.ending) == ("One", "aborted")
    assert reader.got[-1].endswith(last)
    await server.wait_for_disconnect()


async def test_reader_who_takes_nothing_is_given_up(flood: Flood) -> None:
    stuck = Reader(reads=False)
    answer = await flood.stream().pipe(stuck.pair, send_timeout=0.05)
    assert answer.ending == "stalled"
    assert stuck.got == []
    await flood.wait_until_left()
    assert flood.sent < flood.size / 2


async def test_slow_reader_is_waited_for_without_a_bound_if_none_is_set(flood: Flood) -> None:
    slow = Reader(reads=False)
    sending = start(flood.stream().pipe(slow.pair, send_timeout=None))
    await flood.wait_until_stuck()
    assert not sending.done()
    assert flood.sent < flood.size / 2
    slow.leave()
    assert (await sending).ending == "left"


@pytest.mark.parametrize("name", ["events", "openai", "ui"])
async def test_failure_is_raised_and_told_without_the_servers_words(
    client: AsyncChat, server: ChatServer, reader: Reader, name: Any
) -> None:
    server.queue(Reply().say(SAID).error_event(f"key {KEY} at {server.base_url}"))
    with pytest.raises(APIError) as caught:
        await client.chat.stream("Hi.").pipe(reader.pair, name)
    assert caught.value.partial is not None
    assert caught.value.partial.text == SAID
    said = "".join(reader.got)
    assert "five" in said
    assert "rror" in reader.got[-1]
    assert KEY not in said
    assert "127.0.0.1" not in said


async def test_refusal_before_the_answer_is_raised_and_told(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.fail(401)
    with pytest.raises(AuthenticationError):
        await client.chat.stream("Hi.").pipe(reader.pair, "events")
    assert reader.types == ["error"]


async def test_cut_answer_is_raised_after_the_words_that_came(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.cut(after=3)
    with pytest.raises(StreamCut):
        await client.chat.stream("Hi.").pipe(reader.pair, "events")
    assert reader.types[-1] == "error"
    assert reader.types[0] == "content.delta"


async def test_other_messages_go_to_who_listens_for_them(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.queue(Reply().say(SAID).stall(after=3))
    heard: list[str | bytes] = []

    async def hear(message: str | bytes) -> None:
        heard.append(message)
        if len(heard) == len(others):
            server.resume()

    others: list[str | bytes] = [
        "not JSON",
        '{"type": "typing"}',
        b"\xff",
        "[" * 1000,
        '"abort"',
        '{"type": "abort"}' + " " * 2000,
    ]
    sending = start(client.chat.stream("Hi.").pipe(reader.pair, on_message=hear))
    await reader.wait_for(1)
    for message in others:
        reader.say(message)
    assert (await sending).ending == "finished"
    assert heard == others


async def test_other_messages_are_dropped_where_nobody_listens(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.say(SAID)
    reader.say("hello?")
    assert (await client.chat.stream("Hi.").pipe(reader.pair)).ending == "finished"


async def test_error_of_the_callers_own_code_comes_out_as_it_is(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.stall(after=2)

    async def hear(message: str | bytes) -> None:
        raise ZeroDivisionError(message)

    sending = start(client.chat.stream("Hi.").pipe(reader.pair, on_message=hear))
    await reader.wait_for(1)
    reader.say("x")
    with pytest.raises(ZeroDivisionError):
        await sending
    await server.wait_for_disconnect()

    async def send(text: bytes) -> None:
        raise TypeError("a str, not bytes")

    server.stall(after=2)
    with pytest.raises(TypeError, match="a str"):
        await client.chat.stream("Hi.").pipe((send, reader.receive))
    await server.wait_for_disconnect()


async def test_cancelling_closes_the_request(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.stall(after=2)
    sending = start(client.chat.stream("Hi.").pipe(reader.pair))
    await reader.wait_for(1)
    sending.cancel()
    await server.wait_for_disconnect()
    with pytest.raises(asyncio.CancelledError):
        await sending


async def test_websocket_is_left_open_and_takes_the_next_answer(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    for said in ("One.", "Two."):
        server.say(said)
        assert (await client.chat.stream("Hi.").pipe(reader.pair)).text == said
    assert reader.got == ["One.", "Two."]


async def test_answer_that_is_taken_up_again_is_told_in_events(
    client: AsyncChat, server: ChatServer, reader: Reader
) -> None:
    server.cut(after=3)
    server.say(SAID)
    answer = await client.chat.stream("Hi.", resume="restart").pipe(reader.pair, "events")
    assert answer.text == SAID
    assert "resumed" in reader.types


def test_what_is_no_websocket_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="int is no websocket"):
        socket_for(1)
    with pytest.raises(TypeError, match="pair of functions"):
        socket_for((1, 2))


def test_pair_of_functions_is_a_socket() -> None:
    reader = Reader()
    made = socket_for(reader.pair)
    assert (made.send, made.receive) == reader.pair
    assert socket_for(made) is made
    assert isinstance(made, Socket)
