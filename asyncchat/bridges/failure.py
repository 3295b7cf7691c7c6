"""What a reader is told when the answer fails: which kind of failure, in words of our own.

Not here: the shape that each format gives it. A reader is somebody else than the caller: nothing that the server said, no
URL and no key goes out, only what follows from the class of the error. The caller gets the error itself.
"""

import msgspec

from asyncchat.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    BadRequestError,
    LineFull,
    RateLimitError,
    StreamCut,
)

__all__ = ["Failure"]


class Failure(msgspec.Struct, frozen=True):
    """A failure as its reader may know it; `type` and `code` are words of OpenAI's."""

    message: str
    type: str
    code: str | None = None

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Return what may be told of an error."""
        for kinds, told in _TOLD:
            if isinstance(error, kinds):
                return told
        return _ANY


_TOLD: tuple[tuple[type[Exception] | tuple[type[Exception], ...], Failure], ...] = (
    (
        (RateLimitError, LineFull),
        Failure("The model is busy. Try again later.", "rate_limit_error", "rate_limit_exceeded"),
    ),
    (APITimeoutError, Failure("The model did not answer in time.", "server_error", "timeout")),
    (APIConnectionError, Failure("The model cannot be reached.", "server_error")),
    (StreamCut, Failure("The answer broke off.", "server_error", "stream_cut")),
    (BadRequestError, Failure("The model refused the request.", "invalid_request_error")),
    (APIStatusError, Failure("The model cannot be asked at the moment.", "server_error")),
)
"""The first that an error is one of counts."""
_ANY = Failure("The answer failed.", "server_error")
