"""What a format is, and the formats by their names.

Not here: any of them, I/O. A format writes what a stream brings as messages, each of which fits a websocket frame or a
`data:` line. It is pure, and belongs to one answer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, get_args

from asyncchat.bridges.failure import Failure
from asyncchat.bridges.openai_chunks import OpenAIChunks
from asyncchat.bridges.plain import JSONEvents, PlainText
from asyncchat.bridges.ui_messages import UIMessages
from asyncchat.client.stream import ChatStream
from asyncchat.protocol.response import Completion

__all__ = ["BODY_FORMATS", "FRAME_FORMATS", "BodyFormat", "Format", "FrameFormat", "format_for"]

FrameFormat: TypeAlias = Literal["text", "events", "openai", "ui"]
"""What a websocket can be sent."""

BodyFormat: TypeAlias = Literal["openai", "ui", "agui"]
"""What a streaming HTTP response can consist of, as server-sent events."""

FRAME_FORMATS: tuple[str, ...] = get_args(FrameFormat)
BODY_FORMATS: tuple[str, ...] = get_args(BodyFormat)


class Format(Protocol):
    """Writes one answer. Every method returns messages, in the order they are to be sent."""

    reads: ClassVar[Literal["events", "chunks"]]
    """What `feed` takes."""
    after_last: ClassVar[bytes | None]
    """What the last `data:` line of a streaming HTTP response says, where that is no message of its own."""
    headers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """What a streaming HTTP response says in its headers beside what all of them say."""
    may_restart: ClassVar[bool]
    """Whether it can say that everything so far is void."""

    def begin(self) -> list[bytes]:
        """Write what comes before the first token."""
        ...

    def feed(self, item: Any) -> list[bytes]:  # noqa: ANN401  what `reads` says
        """Write an event, or a chunk."""
        ...

    def end(self, answer: Completion) -> list[bytes]:
        """Write the end of an answer that is whole."""
        ...

    def abort(self) -> list[bytes]:
        """Write the end of an answer that its reader has stopped."""
        ...

    def fail(self, failure: Failure) -> list[bytes]:
        """Write the end of an answer that failed."""
        ...


def format_for(
    stream: ChatStream[Any],
    name: str,
    allowed: tuple[str, ...],
    *,
    message_id: str | None = None,
    thread_id: str | None = None,
    run_id: str | None = None,
) -> Format:
    """Return a format by its name, for one answer.

    Raises:
        ValueError: there is no such format, or the stream may begin anew and the format cannot say so.
        ImportError: `agui` without its extra.
    """
    if name not in allowed:
        raise ValueError(f"format={name!r}: it is one of {', '.join(allowed)}.")
    made: Format
    match name:
        case "text":
            made = PlainText()
        case "events":
            made = JSONEvents()
        case "openai":
            made = OpenAIChunks()
        case "ui":
            made = UIMessages(message_id)
        case _:
            from asyncchat.bridges.agui import AGUIEvents

            made = AGUIEvents(thread_id, run_id, message_id)
    if stream.may_restart and not made.may_restart:
        raise ValueError(
            "resume='restart' makes what came before void, which this format cannot say: "
            "use resume='continue', or format='events'."
        )
    return made
