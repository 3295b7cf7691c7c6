"""How long before another attempt, or give up; and the wait a server asks for, in all its spellings.

Not here: sleeping, a clock, chance: `now` and `rand` are parameters. Source: RFC 9110 (Retry-After), and the
headers that OpenAI, Azure and Groq send.
"""

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from typing import Literal

import msgspec

from asyncchat.errors import AsyncChatError, ProtocolError, RateLimit, RateLimitError

__all__ = ["Resume", "RetryBudget", "RetryPolicy", "rate_limits", "requested_wait"]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When a failed request is sent again. Only before its first event has come, and only what may succeed.

    Args:
        max_retries: attempts after the first.
        initial_delay: bound of the first wait, in seconds; it doubles from try to try. A wait is drawn evenly
            from the whole range below its bound, so that clients that failed together do not return together.
        max_delay: where the doubling ends.
        max_retry_after: the longest wait a server may ask for; one that asks for more is not waited for, and
            its error says when to come back (`retry_after`).
        hedge: after so many seconds without a first event, ask another endpoint too; the first event wins, and the
            other answer is closed. `"p95"` takes the time within which 95 of 100 of the latest answers began. None,
            the default, asks one at a time.

    Raises:
        ValueError: a number is negative.
    """

    max_retries: int = 2
    initial_delay: float = 0.5
    max_delay: float = 8.0
    max_retry_after: float = 60.0
    hedge: float | Literal["p95"] | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if name == "hedge" and (value is None or value == "p95"):
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise ValueError(
                    f"RetryPolicy({name}={value!r}): it has to be a number from 0 up."
                )

    def allows(self, error: AsyncChatError, attempts: int) -> bool:
        """Whether a request may be sent again somewhere, however long the wait at the same place would be.

        An answer that is none (`ProtocolError`) is not asked for again where it came from, but may be elsewhere.
        """
        may_pass = error.retryable or isinstance(error, ProtocolError)
        return may_pass and attempts <= self.max_retries

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


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a stream that breaks off after its first event, if its caller wants more than an error.

    Args:
        mode: `"restart"` asks for the whole answer anew: what had come is void, and a `Resumed` event says so.
            `"continue"` sends what had come as the beginning of the assistant's message, and the answer goes on there.
            Many servers take that up (llama.cpp, DeepSeek, Mistral, OpenRouter; vLLM with `fields`); one that does not
            begins a new message instead. Only text is continued: an answer with calls is not.
        most: how often, for one answer.
        fields: what the body of a continued request has besides, such as
            `{"continue_final_message": True, "add_generation_prompt": False}` for vLLM.
        prefix: what the message that is continued has besides, such as `{"prefix": True}` for DeepSeek and Mistral.
    """

    mode: Literal["restart", "continue"]
    most: int = 2
    fields: Mapping[str, object] = {}
    prefix: Mapping[str, object] = {}

    @classmethod
    def of(cls, value: object) -> "Resume | None":
        """Return what a caller's `resume=` stands for.

        Raises:
            ValueError: it is no mode.
        """
        if value is None or isinstance(value, cls):
            return value
        if value == "restart":
            return cls(mode="restart")
        if value == "continue":
            return cls(mode="continue")
        raise ValueError(f"resume={value!r}: it is 'restart', 'continue', or a Resume.")


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

    @property
    def has_one(self) -> bool:
        """Whether there is a retry left."""
        return self._left >= 1 - 1e-9  # ten tenths are one

    def earn(self) -> None:
        """Count a request."""
        self._left = min(self._most, self._left + self._share)

    def spend(self, error: AsyncChatError) -> bool:
        """Take a retry for `error` out of the budget, and say whether there was one."""
        if isinstance(error, RateLimitError):
            return True
        if not self.has_one:
            return False
        self.spend_one()
        return True

    def spend_one(self) -> None:
        """Take a retry out."""
        self._left -= 1


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
