"""What a format is: it writes what a stream brings as messages, each of which fits a websocket frame or a `data:` line.

Not here: any format itself, I/O. A format is pure and belongs to one answer.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

from asyncchat.bridges.failure import Failure
from asyncchat.protocol.response import Completion

__all__ = ["Format"]


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
