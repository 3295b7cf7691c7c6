"""The format `openai`: the chunks of Chat Completions, as OpenAI's own API streams them.

Not here: I/O. Source: the API reference of Chat Completions, "Streaming". Chunks go out with every field they came with.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, Literal

import msgspec

from asyncchat.bridges.failure import Failure
from asyncchat.protocol.response import Chunk, Completion

__all__ = ["OpenAIChunks"]

_encode = msgspec.json.Encoder().encode
_DONE = b"[DONE]"
_OBJECT = "chat.completion.chunk"
_HEAD = b'{"object":"chat.completion.chunk",'
_EXTRA = b'"(extra)"'  # unknown fields, somewhere; in a text the quotes would be escaped


class OpenAIChunks:
    """Writes chunks, and `[DONE]` after them."""

    __slots__ = ()

    reads: ClassVar[Literal["events", "chunks"]] = "chunks"
    after_last: ClassVar[bytes | None] = None
    headers: ClassVar[Mapping[str, str]] = MappingProxyType({})
    may_restart: ClassVar[bool] = False

    def begin(self) -> list[bytes]:
        """Nothing comes before the first chunk."""
        return []

    def feed(self, item: Chunk) -> list[bytes]:
        """Write a chunk."""
        if item.id and item.model and item.choices and item.object == _OBJECT:
            plain = _encode(
                item
            )  # which leaves out what has its default, of which only `object` is wanted
            if _EXTRA not in plain:
                return [_HEAD + plain[1:]]
        return [_encode(item.to_dict())]

    def end(self, answer: Completion) -> list[bytes]:
        """Write the end mark."""
        return [_DONE]

    def abort(self) -> list[bytes]:
        """Write the end mark: the reader knows what it has stopped."""
        return [_DONE]

    def fail(self, failure: Failure) -> list[bytes]:
        """Write an error object, after which no end mark comes, as OpenAI's servers do."""
        told = {
            "message": failure.message,
            "type": failure.type,
            "param": None,
            "code": failure.code,
        }
        return [_encode({"error": told})]
