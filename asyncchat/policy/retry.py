"""How long before another attempt, or give up; and the wait a server asks for, in all its spellings.

Not here: sleeping, a clock, chance: `now` and `rand` are parameters. Source: RFC 9110 (Retry-After), and the
headers that OpenAI, Azure and Groq send.
"""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite

import msgspec

from asyncchat.errors import AsyncChatError, RateLimit, RateLimitError

__all__ = ["RetryBudget", "RetryPolicy", "rate_limits", "requested_wait"]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed request is sent again. Only before its first event has come, and only what may succeed.

    Args:
        max_retries: attempts after the first.
        initial_delay: bound of the first wait, in seconds; it doubles from try to try. A wait is drawn evenly
            from the whole range below its bound, so that clients that failed together do not return together.
        max_delay: where the doubling ends.
        max_retry_after: the longest wait a server may ask for; one that asks for more is not waited for, and
            its error says when to come back (`retry_after`).

    Raises:
        ValueError: a number is negative.
    """

    max_retries: int = 2
    initial_delay: float = 0.5
    max_delay: float = 8.0
    max_retry_after: float = 60.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(
                    f"RetryPolicy({name}={value!r}): it has to be a number from 0 up."
                )

    def delay(
        self, error: AsyncChatError, attempts: int, rand: float, remaining: float | None = None
    ) -> float | None:
        """Return how many seconds to wait before the next attempt, or None to give up.

        Args:
            error: what the last attempt met.
            attempts: how many there have been.
            rand: a random number in [0, 1).
            remaining: seconds until the request's total bound; a wait beyond it would be in vain.
        """
        if not error.retryable or attempts > self.max_retries:
            return None
        asked = error.retry_after
        if asked is not None and asked > 0:
            if asked > self.max_retry_after:
                return None
            wait = asked * (1 + rand / 10)
        else:
            bound = min(self.max_delay, self.initial_delay * 2 ** min(attempts - 1, 30))
            wait = bound * max(rand, 0.1)  # an evenly drawn wait, but never a busy loop
        return None if remaining is not None and wait >= remaining else wait


class RetryBudget:
    """What keeps an outage from being multiplied: retries may add a share to the requests, not a factor.

    Each request earns `share` of a retry, and a retry spends one; `most` are saved up. A rate limit spends nothing: there
    the server itself says when to come back.

    Args:
        most: retries at hand in quiet times.
        share: retries that a request earns.
    """

    __slots__ = ("_left", "_most", "_share")

    def __init__(self, most: float = 20.0, share: float = 0.1) -> None:
        self._most = most
        self._share = share
        self._left = most

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._most, self._left + self._share)

    def spend(self, error: AsyncChatError) -> bool:
        """Take a retry for `error` out of the budget, and say whether there was one."""
        if isinstance(error, RateLimitError):
            return True
        if self._left < 1 - 1e-9:  # ten tenths are one
            return False
        self._left -= 1
        return True


def rate_limits(headers: Mapping[str, str]) -> dict[str, RateLimit]:
    """Return the limits in `x-ratelimit-*` headers, by kind (`requests`, `tokens`). Names in lower case."""
    found: dict[str, RateLimit] = {}
    for kind in ("requests", "tokens"):
        limit, remaining, reset = (
            headers.get(f"x-ratelimit-{what}-{kind}") for what in ("limit", "remaining", "reset")
        )
        if limit or remaining or reset:
            found[kind] = RateLimit(_count(limit), _count(remaining), _duration(reset))
    return found


def requested_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Return the seconds that a server asks to wait, or None where it asks for nothing that makes sense.

    The finer header wins: `retry-after-ms`, then `Retry-After` as a number or as a date (against the server's own
    `Date`, whose clock may be off), then the reset of the limit that is used up.

    Args:
        headers: of the answer, names in lower case.
        now: wall-clock time in seconds since the epoch, for a date without a `Date` beside it.
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        milliseconds = _positive(headers.get(name))
        if milliseconds is not None:
            return milliseconds / 1000
    after = headers.get("retry-after")
    if after is not None:
        seconds = _positive(after)
        wait = seconds if seconds is not None else _until(after, headers.get("date"), now)
        if wait is not None:
            return wait
    limits = rate_limits(headers).values()
    spent = [one.reset for one in limits if one.reset is not None and not one.remaining]
    return max(spent, default=None)


def _until(date: str, server_date: str | None, now: float) -> float | None:
    target = _timestamp(date)
    if target is None:
        return None
    current = _timestamp(server_date) if server_date else None
    wait = target - (now if current is None else current)
    return wait if wait > 0 else None


def _timestamp(date: str) -> float | None:
    try:
        parsed = parsedate_to_datetime(date)
    except (ValueError, OverflowError):
        return None
    # HTTP dates are in GMT, whether they say so or not.
    return (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).timestamp()


def _positive(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if isfinite(number) and number >= 0 else None


def _count(text: str | None) -> int | None:
    number = _positive(text)
    return None if number is None else int(number)


_UNITS = {"us": 1e-6, "\u00b5s": 1e-6, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(us|\u00b5s|ms|s|m|h|d)")


def _duration(text: str | None) -> float | None:
    """`1m2.5s`, `6ms`, or seconds as a bare number."""
    if not text:
        return None
    if _PART.sub("", text) == "":
        return sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    return _positive(text)
