"""What a batch is asked: one item for each input, or the reason why an input is none.

Not here: files (`source`), sending.
"""

from hashlib import blake2b
from typing import Any

import msgspec

__all__ = ["BadItem", "Item", "canonical", "identity"]


class Item(msgspec.Struct):
    """One input that can be asked. `n` counts the inputs from 1; `key` names it for good; `body` holds the request's fields."""

    n: int
    key: str
    body: dict[str, Any]


class BadItem(msgspec.Struct, frozen=True):
    """One input that cannot be asked; `code` and `message` say why. It becomes an error record, and the batch goes on."""

    n: int
    key: str
    code: str
    message: str


def canonical(body: dict[str, Any]) -> bytes:
    """Return a body as JSON that is the same for the same fields in any order.

    Raises:
        TypeError: it holds what JSON cannot.
    """
    return _sorted(body)


def identity(whole: bytes) -> str:
    """Return the 128-bit hash of a canonical body, in hex."""
    return blake2b(whole, digest_size=16).hexdigest()


_sorted = msgspec.json.Encoder(order="deterministic").encode
