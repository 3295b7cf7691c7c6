"""Whether a server is worth asking: not while it fails every time, and then with one request first.

Not here: a clock, chance (both are parameters), what counts as a failure.
"""

from typing import Literal

__all__ = ["Breaker", "State"]

State = Literal["closed", "open", "half-open"]

_FAILURES = 5  # in a row
_FIRST_SECONDS = 1.0
_LONGEST_SECONDS = 30.0


class Breaker:
    """Closed: all may pass. Open: nobody, for a while that doubles. Half-open: one, whose fate decides."""

    __slots__ = ("_cuts", "_failures", "_opened", "_until", "is_probing")

    def __init__(self) -> None:
        self._failures = 0  # before the first event
        self._cuts = 0  # after it
        self._opened = 0  # times in a row
        self._until = 0.0
        self.is_probing = False

    def state(self, now: float) -> State:
        """Return the state."""
        if not self._opened:
            return "closed"
        return "open" if now < self._until or self.is_probing else "half-open"

    @property
    def is_open(self) -> bool:
        """Whether it is not closed."""
        return self._opened > 0

    @property
    def is_well(self) -> bool:
        """Whether nothing has failed since the last good answer."""
        return not (self._opened or self._failures or self._cuts)

    def is_shut(self, now: float) -> bool:
        """Whether a request should go elsewhere."""
        return bool(self._opened) and (self.is_probing or now < self._until)

    @property
    def until(self) -> float:
        """When the next request may try."""
        return self._until

    def pass_one(self, now: float) -> bool:
        """Note that a request is sent; return whether it is the one that probes, and has to tell what became of it."""
        if self._opened and not self.is_probing and now >= self._until:
            self.is_probing = True
            return True
        return False

    def finished(self) -> None:
        """Note an answer that is whole."""
        self._cuts = 0

    def succeeded(self) -> None:
        """Close: the server answers."""
        self._failures = self._opened = 0
        self._until = 0.0
        self.is_probing = False

    def failed(
        self,
        now: float,
        rand: float,
        *,
        at_once: bool = False,
        is_probe: bool = True,
        is_cut: bool = False,
    ) -> None:
        """Count a failure, and open if it was one too many.

        Args:
            now: the time.
            rand: in [0, 1): many clients that lost a server together should not come back together.
            at_once: the server is not there at all; no need to see that five times.
            is_cut: the answer had begun. Answers that begin do not make up for those that break off; only whole ones do.
            is_probe: whether this was the one that tried; once open, the fate of others tells nothing new.
        """
        if is_cut:
            self._cuts += 1
        else:
            self._failures += 1
        if self._opened and (now < self._until or not is_probe):
            return
        if at_once or self._opened or max(self._failures, self._cuts) >= _FAILURES:
            seconds = min(_FIRST_SECONDS * 2.0 ** min(self._opened, 10), _LONGEST_SECONDS)
            self._until = now + seconds * (0.75 + rand / 2)
            self._opened += 1
            self.is_probing = False

    def gave_no_answer(self) -> None:
        """The probe ended without showing anything, cancelled perhaps: the next request probes."""
        self.is_probing = False
