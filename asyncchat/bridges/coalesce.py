"""Joins what waits to be sent: pieces of one text that follow each other become one piece.

Not here: waiting, sending. Law: the texts, and the order of everything else, are the same afterwards. Every piece is
joined once for each time it is taken, however many there are.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec

from asyncchat.protocol.events import (
    ContentDelta,
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
)
from asyncchat.protocol.response import Chunk, ChunkChoice, Delta

__all__ = ["START", "Place", "Tape", "coalesce", "weight"]

Place: TypeAlias = tuple[int, int]
"""How far a reader of a tape is: entries, and pieces of the last one."""

START: Place = (0, 0)

_TEXT = (ContentDelta, ReasoningDelta, RefusalDelta)
_EMPTY = 64  # about what an item holds beside its text


class _Entry:
    """One item, or the pieces of a text that began with it."""

    __slots__ = ("first", "key", "pieces")

    def __init__(self, first: Any, key: object) -> None:  # noqa: ANN401  an Event or a Chunk
        self.first = first
        self.key = key
        self.pieces: list[str] = []


class Tape:
    """Events, or chunks, for readers each of whom is somewhere else on it.

    A piece of text costs one slot in a list, since the answer itself holds the same string.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: list[_Entry] = []

    def put(self, item: Any) -> None:  # noqa: ANN401  an Event or a Chunk
        """Add an item at the end."""
        key = _belongs_to(item)
        if key is None or not self._entries or self._entries[-1].key != key:
            self._entries.append(_Entry(item, key))
        if key is not None:
            self._entries[-1].pieces.append(_text_of(item))

    @property
    def end(self) -> Place:
        """The place of a reader who has taken everything."""
        return (len(self._entries), len(self._entries[-1].pieces)) if self._entries else START

    def since(self, place: Place) -> list[Any]:
        """Return what is new to a reader, joined where it can be."""
        entries, pieces = place
        made: list[Any] = []
        if entries and (new := self._entries[entries - 1].pieces[pieces:]):
            made.append(_with_text(self._entries[entries - 1].first, new))
        made += [
            _with_text(entry.first, entry.pieces) if len(entry.pieces) > 1 else entry.first
            for entry in self._entries[entries:]
        ]
        return made


def coalesce(items: Iterable[Any]) -> list[Any]:
    """Return events, or chunks, with those joined that only go on with the text of the one before."""
    tape = Tape()
    for item in items:
        tape.put(item)
    return tape.since(START)


def weight(item: Any) -> int:  # noqa: ANN401  an Event or a Chunk
    """Return about how many bytes an item holds."""
    if isinstance(item, _TEXT):
        return _EMPTY + len(item.delta)
    if isinstance(item, ToolCallDelta):
        return _EMPTY + len(item.arguments_delta)
    if isinstance(item, LogprobsDelta):
        return _EMPTY * (1 + 32 * len(item.content))  # each with up to 20 alternatives
    if isinstance(item, Chunk):
        return _EMPTY * 4 + sum(map(_choice_weight, item.choices))
    return _EMPTY


def _choice_weight(choice: ChunkChoice) -> int:
    delta = choice.delta
    size = len(delta.content or "") + len(delta.reasoning_content or "")
    for call in delta.tool_calls or ():
        size += len((call.function and call.function.arguments) or "")
    if choice.logprobs is not None:
        size += _EMPTY * 32 * len(choice.logprobs.content or ())
    return size


def _belongs_to(item: Any) -> object:  # noqa: ANN401
    """Return what tells the text that an item goes on with; None for what stands alone."""
    if isinstance(item, _TEXT):
        return type(item), item.choice
    if isinstance(item, ToolCallDelta):
        return ToolCallDelta, item.choice, item.index
    if isinstance(item, Chunk) and len(item.choices) == 1:
        index, content = item.choices[0].index, item.choices[0].delta.content
        if content and item == _with_content(item, index, content):
            return Chunk, item.id, item.system_fingerprint, item.service_tier, index
    return None


def _text_of(item: Any) -> str:  # noqa: ANN401
    made: str
    if isinstance(item, ToolCallDelta):
        made = item.arguments_delta
    elif isinstance(item, Chunk):
        made = item.choices[0].delta.content or ""
    else:
        made = item.delta
    return made


def _with_text(item: Any, pieces: list[str]) -> Any:  # noqa: ANN401
    text = "".join(pieces)
    if isinstance(item, ToolCallDelta):
        return msgspec.structs.replace(item, arguments_delta=text)
    if isinstance(item, Chunk):
        return _with_content(item, item.choices[0].index, text)
    return msgspec.structs.replace(item, delta=text)


def _with_content(chunk: Chunk, index: int | None, text: str) -> Chunk:
    """Return a chunk that says nothing but `text`, in an envelope like this one's."""
    return Chunk(
        id=chunk.id,
        object=chunk.object,
        created=chunk.created,
        model=chunk.model,
        system_fingerprint=chunk.system_fingerprint,
        service_tier=chunk.service_tier,
        choices=[ChunkChoice(index=index, delta=Delta(content=text))],
    )
