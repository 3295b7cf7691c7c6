"""Joins what waits to be sent: pieces of one text that follow each other become one piece.

Not here: waiting, sending. Law: the texts, and the order of everything else, are the same afterwards. Linear in the items.
"""

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec

from asyncchat.protocol.events import (
    ContentDelta,
    LogprobsDelta,
    ReasoningDelta,
    RefusalDelta,
    ToolCallDelta,
)
from asyncchat.protocol.response import Chunk, ChunkChoice, Delta

__all__ = ["coalesce", "weight"]

_TEXT = (ContentDelta, ReasoningDelta, RefusalDelta)
_EMPTY = 64  # about what an item holds beside its text


def coalesce(items: Iterable[Any]) -> list[Any]:
    """Return events, or chunks, with those joined that only go on with the text of the one before."""
    made: list[Any] = []
    for key, run in groupby(items, _belongs_to):
        if key is None:
            made += run
            continue
        first, *rest = run
        made.append(_joined(first, rest) if rest else first)
    return made


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
        (choice,) = item.choices
        plain = Chunk(
            id=item.id,
            object=item.object,
            created=item.created,
            model=item.model,
            system_fingerprint=item.system_fingerprint,
            service_tier=item.service_tier,
            choices=[ChunkChoice(index=choice.index, delta=Delta(content=choice.delta.content))],
        )
        if choice.delta.content and plain == item:
            return Chunk, item.id, choice.index
    return None


def _joined(first: Any, rest: list[Any]) -> Any:  # noqa: ANN401
    run = [first, *rest]
    if isinstance(first, ToolCallDelta):
        pieces = "".join(item.arguments_delta for item in run)
        return msgspec.structs.replace(first, arguments_delta=pieces)
    if isinstance(first, Chunk):
        text = "".join(item.choices[0].delta.content for item in run)
        choice = ChunkChoice(index=first.choices[0].index, delta=Delta(content=text))
        return msgspec.structs.replace(first, choices=[choice])
    return msgspec.structs.replace(first, delta="".join(item.delta for item in run))
