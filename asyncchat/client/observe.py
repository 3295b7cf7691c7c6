"""Who hears of what happens to requests: the observers, and the log.

Not here: what happens. An observer that fails is logged, and never harms a request.
"""

import logging
import os
from collections.abc import Callable, Iterable

from asyncchat.protocol.facts import (
    AnswerStarted,
    AttemptDropped,
    AttemptFailed,
    AttemptStarted,
    Fact,
    RequestFailed,
    RequestFinished,
    RequestLeft,
    RequestStarted,
)

__all__ = ["Observer", "Observers", "log_as_the_environment_says"]

Observer = Callable[[Fact], object]
"""A plain function: it is called at once, in the loop, and has to be quick."""

_log = logging.getLogger("asyncchat")
_LOUD = (AttemptFailed, RequestFailed)  # for INFO; the other facts are for DEBUG


class Observers:
    """The observers of one client, and the logger `asyncchat`."""

    __slots__ = ("_observers",)

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)
        for observer in self._observers:
            if not callable(observer):
                raise TypeError(
                    f"observers holds a {type(observer).__name__}; each has to be a function of one fact."
                )

    @property
    def listen(self) -> bool:
        """Whether anybody wants to hear everything; failures are told in any case."""
        return bool(self._observers) or _log.isEnabledFor(logging.DEBUG)

    def tell(self, fact: Fact) -> None:
        """Tell everybody."""
        level = logging.INFO if isinstance(fact, _LOUD) else logging.DEBUG
        if _log.isEnabledFor(level):
            extra = {"request": fact.request}
            _log.log(level, "request %d: %s", fact.request, _line(fact), extra=extra)
        for observer in self._observers:
            try:
                observer(fact)
            except Exception:  # noqa: BLE001  an observer may raise what it likes
                _log.exception("an observer failed")


def _line(fact: Fact) -> str:
    """Return what the log says of a fact. No prompt, no answer, no key."""
    match fact:
        case RequestStarted():
            kind = "stream" if fact.stream else "answer"
            text = f"{kind} asked for, model {fact.model or 'of the endpoint'}"
        case AttemptStarted():
            hedge = " beside the one before" if fact.is_hedge else ""
            text = f"attempt {fact.attempt} at {fact.endpoint}{hedge}"
        case AnswerStarted():
            text = f"answer began after {fact.seconds:.3f} s"
        case AttemptFailed():
            then = "no other" if fact.wait is None else f"next in {fact.wait:.2f} s"
            where = f"attempt {fact.attempt} at {fact.endpoint}"
            text = f"{where} failed ({fact.blame}), {then}: {fact.error.message}"
        case AttemptDropped():
            text = f"attempt {fact.attempt} at {fact.endpoint} was the slower one"
        case RequestFinished():
            text = f"finished after {fact.timing.total:.3f} s at {fact.endpoint}"
        case RequestFailed():
            where = "in mid-answer " if fact.error.partial is not None else ""
            text = f"failed {where}after {fact.seconds:.3f} s: {type(fact.error).__name__}"
        case RequestLeft():
            text = f"left by its caller after {fact.seconds:.3f} s"
    return text


def log_as_the_environment_says() -> None:
    """Write the log to stderr where `ASYNCCHAT_LOG` names a level. Without, logging is the application's affair."""
    name = os.environ.get("ASYNCCHAT_LOG", "").upper()
    level = logging.getLevelNamesMapping().get(name)
    if level is None or any(isinstance(handler, _Stderr) for handler in _log.handlers):
        return
    handler = _Stderr()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    _log.addHandler(handler)
    _log.setLevel(level)


class _Stderr(logging.StreamHandler):  # type: ignore[type-arg]
    """The handler of ours, to be known again."""
