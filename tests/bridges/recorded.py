"""What servers really sent, as the events or chunks that a format is fed with.

Not here: assertions.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from asyncchat.bridges.failure import Failure
from asyncchat.bridges.formats import Format
from asyncchat.errors import AsyncChatError
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.response import Completion
from tests.wire import RECORDINGS, plain_body, wire_cases

__all__ = ["Recorded", "recorded", "written"]


class Recorded(NamedTuple):
    """A body that was answered with."""

    name: str
    body: bytes
    options: dict[str, Any]


def recorded() -> list[Recorded]:
    """Every recorded stream and every case of the wire."""
    made = [
        Recorded(f"{path.parent.name}/{path.stem}", path.read_bytes(), {"n": 2})
        for path in sorted(RECORDINGS.glob("*/*.sse"))
    ]
    for case in wire_cases():
        content_type = case.headers.get("content-type", "")
        options = {"n": case.request.get("n", 1), "content_type": content_type}
        if case.status == 200:
            made.append(Recorded(case.name, plain_body(case), options))
    return made


def written(case: Recorded, make: Callable[[], Format]) -> tuple[list[bytes], Completion | None]:
    """What a format writes for it, and the answer, None where it failed."""
    made, reader = make(), AnswerReader(**case.options)
    chunks = made.reads == "chunks"
    items: list[Any] = [*(reader.feed_chunks if chunks else reader.feed)(case.body)]
    items += reader.end_chunks() if chunks else reader.end()
    try:
        items += reader.close_chunks(None) if chunks else reader.close(None)
        answer = reader.completion
    except AsyncChatError:
        answer = None
    messages = made.begin() + [message for item in items for message in made.feed(item)]
    messages += made.fail(Failure("x", "y")) if answer is None else made.end(answer)
    return messages, answer
