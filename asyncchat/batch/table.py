"""Millions of names, remembered in a few bytes each.

Not here: names themselves: a table maps 64-bit hashes to 64-bit numbers. It costs 22 to 43 bytes an entry, where a dict takes 100 and
more, and grows in steps so small that nobody waits for them.
"""

from array import array
from hashlib import blake2b

__all__ = ["Table", "hash_of"]

_SHARDS = 1024
_SMALLEST = 8
_FULLEST = 0.75


def hash_of(name: str) -> int:
    """Return the 64-bit hash of a name; never 0."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") or 1


class Table:
    """64-bit hashes, not 0, to numbers below 2**64."""

    __slots__ = ("_counts", "_keys", "_values")

    def __init__(self) -> None:
        self._keys: list[array[int] | None] = [None] * _SHARDS
        self._values: list[array[int] | None] = [None] * _SHARDS
        self._counts = array("Q", bytes(8 * _SHARDS))

    def __len__(self) -> int:
        return sum(self._counts)

    def get(self, key: int) -> int | None:
        """Return what stands at `key`, or None."""
        keys = self._keys[key % _SHARDS]
        if keys is None:
            return None
        slot = _slot(keys, key)
        values = self._values[key % _SHARDS]
        assert values is not None
        return values[slot] if keys[slot] else None

    def put(self, key: int, value: int) -> None:
        """Set what stands at `key`."""
        shard = key % _SHARDS
        keys, values = self._keys[shard], self._values[shard]
        if keys is None or values is None or self._counts[shard] >= len(keys) * _FULLEST:
            keys, values = self._grow(shard)
        slot = _slot(keys, key)
        if not keys[slot]:
            keys[slot] = key
            self._counts[shard] += 1
        values[slot] = value

    def _grow(self, shard: int) -> "tuple[array[int], array[int]]":
        old, old_values = self._keys[shard], self._values[shard]
        size = _SMALLEST if old is None else len(old) * 2
        keys, values = array("Q", bytes(8 * size)), array("Q", bytes(8 * size))
        if old is not None and old_values is not None:
            for key, value in zip(old, old_values, strict=True):
                if key:
                    slot = _slot(keys, key)
                    keys[slot], values[slot] = key, value
        self._keys[shard], self._values[shard] = keys, values
        return keys, values


def _slot(keys: "array[int]", key: int) -> int:
    """Return where `key` stands, or would."""
    mask = len(keys) - 1
    slot = (key // _SHARDS) & mask
    while (there := keys[slot]) and there != key:
        slot = (slot + 1) & mask
    return slot
