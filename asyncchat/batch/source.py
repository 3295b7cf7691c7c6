"""Where the inputs of a batch come from, and how a row becomes a request."""

from collections.abc import Mapping

import msgspec

from asyncchat.batch.item import BadItem, Item

__all__ = ["Layout", "item_of"]


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How rows become requests."""

    format: str | None = None
    prompt: str | None = None
    system: str | None = None
    messages_column: str | None = None
    id_column: str | None = None
    max_body: int = 20 * 2**20


def item_of(n: int, value: object, layout: Layout) -> Item | BadItem:
    """Return the item of one value."""
    del layout
    key = f"line-{n}"
    if isinstance(value, str):
        return Item(n, key, {"messages": [{"role": "user", "content": value}]})
    if isinstance(value, list):
        return Item(n, key, {"messages": value})
    if isinstance(value, Mapping):
        fields = {**value}
        key = str(fields.pop("custom_id", key))
        if "body" in fields:
            return Item(n, key, fields["body"])
        if "prompt" in fields:
            said = fields.pop("prompt")
            return Item(n, key, {"messages": [{"role": "user", "content": said}], **fields})
        return Item(n, key, fields)
    return BadItem(n, key, "invalid_line", "it is no prompt")
