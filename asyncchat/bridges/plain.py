"""The formats of our own: `text`, the bare words, and `events`, the events of a stream as JSON.

Not here: I/O.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

import msgspec

from asyncchat.bridges.failure import Failure
from asyncchat.protocol.events import ContentDelta, Event, Resumed
from asyncchat.protocol.response import Completion

__all__ = ["JSONEvents", "PlainText"]

_encode = msgspec.json.Encoder().encode


class PlainText:
    """Writes the text of the first choice and nothing else: neither an end nor a failure can be told."""

    __slots__ = ()

    reads: ClassVar[Literal["events", "chunks"]] = "events"
    after_last: ClassVar[bytes | None] = None
    headers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    may_restart: ClassVar[bool] = False

    def begin(self) -> list[bytes]:
        """Nothing comes before the text."""
        return []

    def feed(self, item: Event) -> list[bytes]:
        """Write the words of an event, if it has any."""
        if isinstance(item, ContentDelta) and not item.choice:
            return [item.delta.encode()]
        return []

    def end(self, answer: Completion) -> list[bytes]:
        """Text has no end mark."""
        return []

    def abort(self) -> list[bytes]:
        """Text has no end mark."""
        return []

    def fail(self, failure: Failure) -> list[bytes]:
        """Text cannot tell of a failure."""
        return []


class JSONEvents:
    """Writes each event as one JSON object with its `type`; `finish` is the last of them.

    An answer that was stopped ends with `{"type": "abort"}`, one that failed with `{"type": "error", "error": {...}}`.
    """

    __slots__ = ()

    reads: ClassVar[Literal["events", "chunks"]] = "events"
    after_last: ClassVar[bytes | None] = None
    headers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    may_restart: ClassVar[bool] = True

    def begin(self) -> list[bytes]:
        """Nothing comes before the first event."""
        return []

    def feed(self, item: Event) -> list[bytes]:
        """Write an event."""
        told = item.to_dict()
        if isinstance(told.get("timing"), dict):
            del told["timing"]["endpoint"]  # a reader need not know who was asked
        if isinstance(item, Resumed):
            told["error"] = "The answer broke off."  # the caller's words name the endpoint
        return [_encode(told)]

    def end(self, answer: Completion) -> list[bytes]:
        """The event `finish` has told it."""
        return []

    def abort(self) -> list[bytes]:
        """Write that the answer was stopped."""
        return [_encode({"type": "abort"})]

    def fail(self, failure: Failure) -> list[bytes]:
        """Write that the answer failed, and of what kind the failure was."""
        return [_encode({"type": "error", "error": failure})]
