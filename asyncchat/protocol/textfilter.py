"""Two opt-in readings of content: `<think>` tags as reasoning, and deltas that repeat the text so far.

Not here: the default, which is to keep every character as it came. A guess would eat letters of honest servers,
so each of these is the caller's word about one server.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import Literal

__all__ = ["TextFilter"]

_OPEN, _CLOSE = "<think>", "</think>"
_Piece = tuple[Literal["content", "reasoning"], str]


class TextFilter:
    """The reading of one choice's content."""

    __slots__ = ("_cumulative", "_inside", "_seen", "_split", "_tail")

    def __init__(self, split: bool, cumulative: bool) -> None:
        self._split = split
        self._cumulative = cumulative
        self._seen = ""
        self._tail = ""  # what may be the head of a tag
        self._inside = False

    @staticmethod
    def factory(split: bool, cumulative: bool) -> "defaultdict[int, TextFilter] | None":
        """Return a filter for each choice, or None where nothing was asked for."""
        if not (split or cumulative):
            return None
        return defaultdict(lambda: TextFilter(split, cumulative))

    def feed(self, text: str) -> Iterator[_Piece]:
        """Yield what a delta adds."""
        if self._cumulative:
            if text.startswith(self._seen):
                text, self._seen = text[len(self._seen) :], text
            else:
                self._seen += text
        if self._split:
            yield from self._parts(text)
        elif text:
            yield "content", text

    def flush(self) -> Iterator[_Piece]:
        """Yield what was held back, since no more of a tag can come."""
        text, self._tail = self._tail, ""
        if text:
            yield ("reasoning" if self._inside else "content"), text

    def _parts(self, text: str) -> Iterator[_Piece]:
        text, self._tail = self._tail + text, ""
        while text:
            tag = _CLOSE if self._inside else _OPEN
            before, found, after = text.partition(tag)
            if not found:
                keep = _head_length(text, tag)
                before, self._tail = text[: len(text) - keep], text[len(text) - keep :]
            if before:
                yield ("reasoning" if self._inside else "content"), before
            if found:
                self._inside = not self._inside
            text = after


def _head_length(text: str, tag: str) -> int:
    """Return how much of `tag`'s beginning `text` ends with."""
    return next((n for n in range(len(tag) - 1, 0, -1) if text.endswith(tag[:n])), 0)
