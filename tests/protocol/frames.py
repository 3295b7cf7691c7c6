"""Bodies for the tests of this floor: chunks and calls as plain dicts, framed as server-sent events."""

import json
from collections.abc import Iterable
from typing import Any

from asyncchat.errors import AsyncChatError
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.events import Event
from asyncchat.protocol.response import Completion


def chunk(delta: Any = None, finish: Any = None, index: Any = 0, **top: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta or {}, "finish_reason": finish}
    return {
        "id": "c1",
        "object": "chat.completion.chunk",
        "model": "m",
        "choices": [choice],
        **top,
    }


def say(text: Any) -> dict[str, Any]:
    return chunk({"content": text})


def call(
    index: Any = None, call_id: Any = None, name: Any = None, arguments: Any = None, **extra: Any
) -> dict[str, Any]:
    made: dict[str, Any] = {"index": index, "id": call_id}
    function = {"name": name, "arguments": arguments}
    made = {key: value for key, value in made.items() if value is not None}
    return {**made, "function": {k: v for k, v in function.items() if v is not None}, **extra}


def calling(*fragments: dict[str, Any]) -> bytes:
    """A stream with one fragment in each chunk."""
    chunks = [chunk({"tool_calls": [fragment]}) for fragment in fragments]
    return sse(*chunks, chunk(finish="tool_calls"))


def sse(*frames: Any, done: bool = True) -> bytes:
    texts = [f if isinstance(f, bytes) else json.dumps(f).encode() for f in frames]
    return b"".join(b"data: %b\n\n" % text for text in [*texts, *[b"[DONE]"] * done])


STOP = chunk(finish="stop")
HELLO = sse(say("Hel"), say("lo"), STOP)
WHOLE = {
    "id": "c1",
    "object": "chat.completion",
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}
    ],
}


def read_events(
    pieces: Iterable[bytes], **options: Any
) -> tuple[list[Event], Completion | None, AsyncChatError | None]:
    """The events of a body, the answer it holds, and the error where there is one."""
    reader = AnswerReader(**options)
    told: list[Event] = []
    for piece in pieces:
        told += reader.feed(piece)
    try:
        told += reader.close()
    except AsyncChatError as error:
        return told, error.partial, error
    return told, reader.completion, None


def read_chunks(pieces: Iterable[bytes], **options: Any) -> AnswerReader:
    """A reader in chunk mode that has been fed a body."""
    reader = AnswerReader(**options)
    for piece in pieces:
        reader.feed_chunks(piece)
    return reader


def finished(reader: AnswerReader) -> tuple[Completion | None, AsyncChatError | None]:
    """What a reader ends with: the answer, whole or partial, and the error where there is one."""
    try:
        return reader.finish(), None
    except AsyncChatError as error:
        return error.partial, error
