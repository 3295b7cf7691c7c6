"""How often Python's collector of cycles looks, in a process that is there for a batch.

Not here: `client.batch`. How often it looks in a process of somebody else's is theirs to say.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager

__all__ = ["rare_collections"]

_THRESHOLDS = 10_000, 50, 100


@contextmanager
def rare_collections() -> Generator[None]:
    """Let the collector look seldom: a batch makes no cycles, and has so much alive that each look is dear."""
    before = gc.get_threshold()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
