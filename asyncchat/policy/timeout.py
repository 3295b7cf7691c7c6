"""How long to wait for what.

Not here: a clock. The bounds are plain numbers; `client.session` watches them.
"""

import msgspec

__all__ = ["Timeout"]


class Timeout(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds in seconds; None is no bound.

    Args:
        connect: name lookup, TCP and TLS together.
        first: from sending the request to the first event of the answer.
        idle: between two reads. `first` and `idle` run only while we wait for the network: a slow reader of the
            stream never makes a server late.
        total: the whole request, with its waiting in line, its retries and their waits. It also ends a server that only pings. What has
            arrived when it strikes is still given out, so a slow reader sees the end later than that.
        line: waiting in line for a place among the requests in flight, each time that one is needed.
        keepalive_is_life: whether comments (`: ping`) show that a server is alive. Without it, only events do.

    Raises:
        ValueError: a bound is negative or no number.
    """

    connect: float | None = 10.0
    first: float | None = 600.0
    idle: float | None = 120.0
    total: float | None = 1800.0
    line: float | None = None
    keepalive_is_life: bool = True

    def __post_init__(self) -> None:
        for name in ("connect", "first", "idle", "total", "line"):
            bound: object = getattr(self, name)
            if bound is None:
                continue
            if isinstance(bound, bool) or not isinstance(bound, (int, float)) or not bound > 0:
                raise ValueError(
                    f"Timeout({name}={bound!r}): a bound is a number above 0, or None."
                )

    @classmethod
    def of(cls, value: "Timeout | float | None", default: "Timeout") -> "Timeout":
        """Return `value` as bounds: a number is `total`, None is `default`."""
        if value is None:
            return default
        if isinstance(value, cls):
            return value
        if isinstance(value, (int, float)):
            return msgspec.structs.replace(default, total=value)
        raise TypeError(
            f"timeout is a {type(value).__name__}; pass a number of seconds or a Timeout."
        )
