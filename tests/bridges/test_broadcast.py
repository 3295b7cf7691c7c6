"""One answer to many readers, whose moves the test makes."""

import asyncio
import gc
from typing import Any

import pytest

from asyncchat import AsyncChat, StreamCut, broadcast
from asyncchat.testing import ChatServer, Reply
from tests.bridges.fakes import Reader, start
from tests.bridges.flood import Flood

SAID = "One two three four five."


async def test_every_reader_gets_all_of_one_answer(client: AsyncChat, server: ChatServer) -> None:
    server.queue(Reply().say(SAID).stall(after=2))
    room = broadcast(client.chat.stream("Hi."), "text")
    readers = [Reader() for _ in range(5)]
    sending = [start(room.pipe(reader.pair)) for reader in readers]
    for reader in readers:
        await reader.wait_for(1)
    assert room.readers == 5
    server.resume()
    answers = [await one for one in sending]
    assert ["".join(reader.got) for reader in readers] == [SAID] * 5
    assert {(answer.text, answer.ending) for answer in answers} == {(SAID, "finished")}
    assert len(server.requests) == 1
    assert room.is_over
    assert room.readers == 0


async def test_readers_who_keep_up_wake_together_for_the_same_pieces(
    client: AsyncChat, server: ChatServer
) -> None:
    server.queue(Reply().say(SAID).stall(after=2))
    room = broadcast(client.chat.stream("Hi."), "text", every=3600)
    readers = [Reader() for _ in range(3)]
    sending = [start(room.pipe(reader.pair)) for reader in readers]
    for reader in readers:
        await reader.wait_for(1)
    server.resume()
    for one in sending:
        await one
    assert [reader.got for reader in readers] == [["One", " two three four five."]] * 3


async def test_late_reader_gets_the_text_so_far_in_one_piece_first(
    client: AsyncChat, server: ChatServer
) -> None:
    server.queue(Reply().think("Hm. So.").say(SAID).stall(after=6))
    room = broadcast(client.chat.stream("Hi."), every=0)
    early, late = Reader(), Reader()
    sending = [start(room.pipe(early.pair))]
    while (
        "".join(p["delta"] for p in early.parts if p["type"] == "content.delta") != "One two three"
    ):
        await early.wait_for(len(early.got) + 1)
    sending.append(start(room.pipe(late.pair)))
    await late.wait_for(2)
    assert [(part["type"], part["delta"]) for part in late.parts[:2]] == [
        ("reasoning.delta", "Hm. So."),
        ("content.delta", "One two three"),
    ]
    server.resume()
    for one in sending:
        assert (await one).text == SAID
    assert late.types[-1] == "finish"


async def test_reader_after_the_end_gets_the_whole_answer(
    client: AsyncChat, server: ChatServer
) -> None:
    server.say(SAID)
    room = broadcast(client.chat.stream("Hi."), "ui")
    await room.pipe(Reader().pair)
    late = Reader()
    answer = await room.pipe(late.pair, message_id="m-2")
    assert (answer.text, answer.ending) == (SAID, "finished")
    assert late.parts[0] == {"type": "start", "messageId": "m-2"}
    assert [part["delta"] for part in late.parts if part["type"] == "text-delta"] == [SAID]
    assert len(server.requests) == 1


async def test_slow_reader_gets_longer_pieces_and_keeps_nobody_waiting(
    client: AsyncChat, server: ChatServer
) -> None:
    words = [f"w{number} " for number in range(200)]
    server.say(words)
    room = broadcast(client.chat.stream("Hi."), "text", every=0)
    quick, slow = Reader(), Reader(reads=False)
    sending = start(room.pipe(slow.pair))
    assert (await room.pipe(quick.pair)).ending == "finished"
    assert slow.got == []
    slow.ready.set()
    assert (await sending).ending == "finished"
    assert "".join(slow.got) == "".join(quick.got) == "".join(words)
    assert len(slow.got) <= 2


async def test_last_reader_who_leaves_ends_the_request(
    client: AsyncChat, server: ChatServer
) -> None:
    server.queue(Reply().say(SAID).stall(after=3))
    room = broadcast(client.chat.stream("Hi."), "text", every=0)
    readers = [Reader() for _ in range(3)]
    sending = [start(room.pipe(reader.pair)) for reader in readers]
    for reader in readers:
        await reader.wait_for(1)
    readers[0].leave()
    readers[1].say('{"type": "abort"}')  # its own reading and nobody else's
    assert [(await one).ending for one in sending[:2]] == ["left", "aborted"]
    assert len(server.active) == 1
    assert not room.is_over
    readers[2].leave()
    assert (await sending[2]).ending == "left"
    await server.wait_for_disconnect()


async def test_reader_who_stalls_is_given_up_and_the_others_go_on(
    client: AsyncChat, server: ChatServer
) -> None:
    server.queue(Reply().say(SAID).stall(after=3))
    room = broadcast(client.chat.stream("Hi."), "text", send_timeout=0.05)
    stuck, quick = Reader(reads=False), Reader()
    sending = start(room.pipe(quick.pair))
    assert (await room.pipe(stuck.pair)).ending == "stalled"
    server.resume()
    assert (await sending).text == SAID


async def test_even_the_fastest_reader_slows_the_server(flood: Flood) -> None:
    room = broadcast(flood.stream(), "text", send_timeout=None)
    readers = [Reader(reads=False) for _ in range(2)]
    sending = [start(room.pipe(reader.pair)) for reader in readers]
    await flood.wait_until_stuck()
    assert flood.sent < flood.size / 2
    for reader in readers:
        reader.leave()
    for one in sending:
        await one
    await flood.wait_until_left()


async def test_who_comes_after_all_have_left_gets_what_there_is(
    client: AsyncChat, server: ChatServer
) -> None:
    server.queue(Reply().say(SAID).stall(after=2))
    room = broadcast(client.chat.stream("Hi."))
    first, late = Reader(), Reader()
    sending = start(room.pipe(first.pair))
    await first.wait_for(1)
    first.leave()
    await sending
    answer = await room.pipe(late.pair)
    assert (answer.text, answer.ending) == ("One", "aborted")
    assert late.types == ["content.delta", "abort"]


async def test_closing_ends_the_answer_for_all(client: AsyncChat, server: ChatServer) -> None:
    server.queue(Reply().say(SAID).stall(after=2))
    room = broadcast(client.chat.stream("Hi."))
    reader = Reader()
    sending = start(room.pipe(reader.pair))
    await reader.wait_for(1)
    room.close()
    room.close()
    assert (await sending).ending == "aborted"
    assert reader.types[-1] == "abort"
    await server.wait_for_disconnect()


async def test_failure_is_told_to_each_and_raised_to_each(
    client: AsyncChat, server: ChatServer
) -> None:
    server.queue(Reply().say(SAID).cut(after=3))
    room = broadcast(client.chat.stream("Hi."))
    readers = [Reader() for _ in range(2)]
    sending = [start(room.pipe(reader.pair)) for reader in readers]
    errors: list[Any] = []
    for one in sending:
        with pytest.raises(StreamCut) as caught:
            await one
        errors.append(caught.value)
    assert errors[0] is not errors[1]
    assert errors[0].partial.text == errors[1].partial.text == "One two"
    assert [reader.types[-1] for reader in readers] == ["error", "error"]


async def test_cancelling_the_last_reader_ends_the_request_and_leaves_no_task(
    client: AsyncChat, server: ChatServer
) -> None:
    server.stall(after="headers")
    room = broadcast(client.chat.stream("Hi."))
    sending = start(room.pipe(Reader().pair))
    await server.wait_for_requests(1)
    sending.cancel()
    await asyncio.wait([sending])
    await server.wait_for_disconnect()
    names = {task.get_coro().__qualname__ for task in asyncio.all_tasks()}  # type: ignore[union-attr]
    assert not any("Recording" in name for name in names)


async def test_broadcast_that_nobody_reads_asks_nothing(
    client: AsyncChat, server: ChatServer
) -> None:
    room = broadcast(client.chat.stream("Hi."))
    assert repr(room) == "Broadcast('events', 0 readers)"
    del room
    gc.collect()
    assert server.requests == []


async def test_unknown_format_is_refused_at_once(client: AsyncChat) -> None:
    wrong: Any = "agui"
    with pytest.raises(ValueError, match="it is one of text"):
        broadcast(client.chat.stream("Hi."), wrong)
