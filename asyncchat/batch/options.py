"""How a batch is run: what a user may set, checked when it is set.

Not here: carrying it out.
"""

from typing import TYPE_CHECKING, Literal, Self

import msgspec

from asyncchat.batch.record import Trace
from asyncchat.policy.timeout import Timeout

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["BatchOptions", "Price", "Share", "Spending", "kinds_of", "most_in_flight"]

_MILLION = 1e6
_MOST = 1024  # in flight, where nobody says how many

OnChange = Literal["error", "rerun", "keep"]


class Price(msgspec.Struct, frozen=True):
    """What a million tokens cost: of prompts, of answers, of prompts that the server had cached (else as other prompts)."""

    prompt: float
    completion: float
    cached: float | None = None

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value: object = getattr(self, name)
            if value is not None and (not isinstance(value, (int, float)) or not value >= 0):
                raise ValueError(f"Price({name}={value!r}): it is a number from 0 up.")

    @classmethod
    def read(cls, text: str) -> Self:
        """Return the price that `"0.15,0.6"` or `"0.15,0.6,0.075"` stands for.

        Raises:
            ValueError: it is neither.
        """
        try:
            return cls(*(float(part) for part in text.split(",")))
        except (TypeError, ValueError):
            raise ValueError(
                f"{text!r} is no price: it is 'prompt,completion' or 'prompt,completion,cached', each for a million tokens."
            ) from None

    def cost(self, tokens: tuple[int, int, int]) -> float:
        """Return what an answer costs; `tokens` are its prompt's, its own, and the cached ones among the prompt's."""
        prompt, completion, cached = tokens
        cheap = self.prompt if self.cached is None else self.cached
        paid = (prompt - cached) * self.prompt + cached * cheap + completion * self.completion
        return paid / _MILLION


class Share(msgspec.Struct, frozen=True):
    """So many, or so many of a hundred."""

    number: float
    is_percent: bool = False

    @classmethod
    def read(cls, given: "Share | int | str") -> "Share":
        """Return what `20` or `"5%"` stands for.

        Raises:
            ValueError: it is neither.
        """
        if isinstance(given, Share):
            return given
        text = str(given).strip()
        try:
            number = float(text.removesuffix("%"))
        except ValueError:
            number = -1.0
        if isinstance(given, bool) or not number >= 0:
            raise ValueError(f"{given!r}: it is a number such as 20, or a share such as '5%'.")
        return cls(number, text.endswith("%"))

    def is_reached(self, part: int, whole: int) -> bool:
        """Whether `part` of `whole` is as much. A share means nothing of the first twenty."""
        if self.is_percent:
            return whole >= _FEWEST and part * 100 >= self.number * whole and part > 0
        return part >= max(self.number, 1)


_FEWEST = 20


class BatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """See `AsyncChat.batch`.

    Raises:
        ValueError: an option that cannot be right.
    """

    concurrency: int | Literal["auto"] = "auto"
    stream: bool = True
    timeout: Timeout = Timeout(connect=10.0, first=120.0, idle=60.0, total=600.0)
    retries: int = 5
    retry_finish: tuple[str, ...] = ()
    retry_errors: bool | frozenset[str] = False
    on_change: OnChange = "error"
    dedupe: bool = False
    repairs: int = 1
    price: Price | None = None
    max_cost: float | None = None
    max_tokens_total: int | None = None
    max_items: int | None = None
    max_failures: Share | None = None
    max_wait: float = 3600.0
    fsync: Literal["always", "1s", "never"] = "1s"

    def __post_init__(self) -> None:
        concurrency: object = self.concurrency
        if concurrency != "auto":
            _check("concurrency", concurrency, 1, whole=True)
        for name in ("retries", "repairs"):
            _check(name, getattr(self, name), 0, whole=True)
        for name in ("max_tokens_total", "max_items"):
            _check(name, getattr(self, name), 1, whole=True, optional=True)
        _check("max_cost", self.max_cost, 0, optional=True)
        _check("max_wait", self.max_wait, 0)
        if self.max_cost is not None and self.price is None:
            raise ValueError("max_cost needs a price: there is no list of prices in here.")
        for name, known in (
            ("on_change", ("error", "rerun", "keep")),
            ("fsync", ("always", "1s", "never")),
        ):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: it is one of {', '.join(known)}."
                )

    def asks_again(self, code: str) -> bool:
        """Whether an input that an earlier run recorded as failed is asked for again."""
        if isinstance(self.retry_errors, bool):
            return self.retry_errors
        return code in self.retry_errors


def _check(
    name: str, value: object, least: float, *, whole: bool = False, optional: bool = False
) -> None:
    if value is None and optional:
        return
    kind = "whole number" if whole else "number"
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not value >= least:
        raise ValueError(f"{name}={value!r}: it is a {kind} from {least:g} up.")


class Spending:
    """What a batch has cost and how much of it failed, held against its caps. What is in flight counts as the mean."""

    __slots__ = ("_answered", "_asked", "_done", "_failed", "_options", "cost", "tokens")

    def __init__(self, options: BatchOptions) -> None:
        self._options = options
        self.cost = 0.0
        self.tokens = 0
        self._answered = self._failed = self._done = self._asked = 0

    def asked(self) -> None:
        """Count an input that is taken up."""
        self._asked += 1

    def noted(self, trace: Trace, *, ok: bool) -> None:
        """Count an outcome."""
        self._done += 1
        self._failed += not ok
        self.paid(trace)

    def paid(self, trace: Trace) -> None:
        """Count what an answer has cost, also one of an earlier run."""
        if trace.tokens is not None and trace.reused is None:
            self._answered += 1
            self.tokens += trace.tokens[0] + trace.tokens[1]
            self.cost += trace.cost or 0.0

    def full(self, in_flight: int) -> str | None:
        """Return which cap another request would exceed, in words; None where there is room."""
        caps = self._options
        if caps.max_items is not None and self._asked >= caps.max_items:
            return f"the cap of {caps.max_items} inputs"
        if caps.max_failures is not None and caps.max_failures.is_reached(
            self._failed, self._done
        ):
            return f"the cap on failures, with {self._failed} of {self._done}"
        with_those = 1 + in_flight / self._answered if self._answered else 1.0
        if caps.max_cost is not None and self.cost * with_those >= caps.max_cost:
            return f"the cost cap of {caps.max_cost:g}"
        most = caps.max_tokens_total
        if most is not None and self.tokens * with_those >= most:
            return f"the cap of {most} tokens"
        return None


def most_in_flight(concurrency: int | Literal["auto"]) -> int:
    """Return how many requests are ever in flight."""
    return _MOST if concurrency == "auto" else concurrency


def kinds_of(given: "bool | str | Iterable[str]") -> bool | frozenset[str]:
    """Return which kinds of errors are meant: all, none, or some by name."""
    if isinstance(given, bool):
        return given
    names = given.split(",") if isinstance(given, str) else given
    return frozenset(name.strip() for name in names if name.strip())
