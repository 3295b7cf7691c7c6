"""How much at once, and how much a server may make us hold.

Not here: the line itself (`client.pool`), counting.
"""

import msgspec

__all__ = ["Limits"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one client.

    Args:
        in_flight: requests at once; the rest wait in line, first come first served. None is no bound. A stream
            holds its place until it ends.
        max_event_bytes: one event of a stream, or one JSON answer.
        max_answer_bytes: one whole answer, comments included.
        max_error_bytes: how much of an error's body is read.

    Raises:
        ValueError: a bound is below 1.
    """

    in_flight: int | None = 1000
    max_event_bytes: int = 16 * 2**20
    max_answer_bytes: int = 256 * 2**20
    max_error_bytes: int = 64 * 2**10

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            bound: object = getattr(self, name)
            if bound is None and name == "in_flight":
                continue
            if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
                raise ValueError(f"Limits({name}={bound!r}): a bound is a whole number from 1 up.")
