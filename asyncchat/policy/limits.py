"""How much at once, and how much a server may make us hold.

Not here: the line itself (`client.pool`), counting.
"""

import msgspec

__all__ = ["Limits", "checked_bound"]


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on one client.

    Args:
        in_flight: requests at once; the rest wait in line, first come first served. None is no bound. A stream
            holds its place until it ends.
        rpm: requests per minute, over all endpoints. Those of one endpoint are set there.
        tpm: tokens per minute, over all endpoints: estimated before a request, corrected by its usage.
        waiting: requests that may wait in line; one more is refused with `LineFull`. None is no bound.
        adaptive: find out how many requests at once each key of each endpoint bears, up to `in_flight`: more while
            answers begin as quickly as before, half as many when the server says that it has too much to do.
        max_event_bytes: one event of a stream, or one JSON answer.
        max_answer_bytes: one whole answer, comments included.
        max_error_bytes: how much of an error's body is read.

    Raises:
        ValueError: a bound is below 1.
    """

    in_flight: int | None = 1000
    rpm: int | None = None
    tpm: int | None = None
    waiting: int | None = None
    adaptive: bool = False
    max_event_bytes: int = 16 * 2**20
    max_answer_bytes: int = 256 * 2**20
    max_error_bytes: int = 64 * 2**10

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            bound: object = getattr(self, name)
            if name == "adaptive":
                if not isinstance(bound, bool):
                    raise ValueError(f"Limits(adaptive={bound!r}): it is True or False.")
            elif bound is not None or name not in _OPTIONAL:
                checked_bound("Limits", name, bound)


_OPTIONAL = frozenset({"in_flight", "rpm", "tpm", "waiting"})


def checked_bound(where: str, name: str, bound: object) -> None:
    """Check that a bound is one.

    Raises:
        ValueError: it is no whole number from 1 up.
    """
    if isinstance(bound, bool) or not isinstance(bound, int) or bound < 1:
        raise ValueError(f"{where}({name}={bound!r}): a bound is a whole number from 1 up.")
