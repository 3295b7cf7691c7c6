"""Everything that can go wrong, as plain data.

Not here: sockets, requests, sessions, anything that could hold a key. Every error pickles, because batch
work carries errors across processes. Names in common with `openai` mean the same thing.

    AsyncChatError
    ├── APIError                        the server, or the way to it
    │   ├── APIConnectionError          no answer came
    │   │   └── APITimeoutError         a bound of `Timeout` ran out; `.phase` says which
    │   │       └── StreamStalled       ... after the first event
    │   ├── APIStatusError              a status that is no answer; `.status_code`
    │   │   └── BadRequestError (400) … InternalServerError (5xx)
    │   ├── StreamCut                   the answer ended without an end mark
    │   └── ProtocolError               the bytes are no chat completion
    │       └── LimitExceeded           more than `Limits` lets a server make us hold
    ├── OutputMismatch                  the answer does not fit the type asked for
    ├── LengthFinishReasonError         the model ran out of tokens where something had to be parsed
    ├── ContentFilterFinishReasonError  a content filter ended the answer
    ├── RefusalError                    the model refused where something had to be parsed
    ├── MaxTurnsReached                 the model still calls tools after as many turns as it may have
    ├── PoolClosed                      the client was closed
    ├── LineFull                        more requests wait than `Limits` allows
    ├── JournalError                    the record of a batch cannot be used
    │   ├── JournalLocked               another process runs this batch
    │   └── JournalMismatch             the record is of another input, or of other options
    └── SourceError                     the input of a batch cannot be read, or not to its end
"""

from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncchat.protocol.response import Completion

__all__ = [
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "APITimeoutError",
    "AsyncChatError",
    "AuthenticationError",
    "BadRequestError",
    "ConflictError",
    "ContentFilterFinishReasonError",
    "InternalServerError",
    "JournalError",
    "JournalLocked",
    "JournalMismatch",
    "LengthFinishReasonError",
    "LimitExceeded",
    "LineFull",
    "MaxTurnsReached",
    "NotFoundError",
    "OutputMismatch",
    "PermissionDeniedError",
    "PoolClosed",
    "ProtocolError",
    "RateLimit",
    "RateLimitError",
    "RefusalError",
    "SourceError",
    "StreamCut",
    "StreamStalled",
    "UnprocessableEntityError",
    "printable",
    "status_error",
]

_LONGEST_MESSAGE = 500
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429})
_FOR_GOOD = frozenset({"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"})


def printable(text: str, longest: int = _LONGEST_MESSAGE) -> str:
    r"""Return a server's words fit for a log or a terminal: one line, bounded, no control characters.

    A server must not be able to forge a log line or move a cursor: `"a\nb"` becomes `"a\\nb"`.
    """
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class AsyncChatError(Exception):
    """Base of everything this package raises about a server, an answer or a batch.

    `retryable` says whether the same request may succeed later; `retry_after` (seconds) is the wait the server
    asked for; `partial` is the answer so far, on every error raised after the first byte of one.
    """

    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        retryable: bool | None = None,
        retry_after: float | None = None,
        partial: "Completion | None" = None,
    ) -> None:
        super().__init__(f"{message.rstrip('.')}. {hint}" if hint else message)
        self.message = message
        self.hint = hint
        self.retry_after = retry_after
        self.partial = partial
        if retryable is not None:
            self.retryable = retryable

    # `args` keeps only the text, so the default pickling (class, args, __dict__) needs no more than this:
    # every other parameter of every class below is optional and lives in __dict__.


class APIError(AsyncChatError):
    """The server said no, said nothing, or said something that is no answer.

    `code`, `type` and `param` are the server's own words; `body` is its decoded answer, with keys redacted.
    """

    def __init__(
        self,
        message: str,
        *,
        code: str | int | None = None,
        type: str | None = None,  # noqa: A002  OpenAI's name for it
        param: str | None = None,
        body: object = None,
        request_id: str | None = None,
        endpoint: str = "",
        hint: str = "",
        retryable: bool | None = None,
        retry_after: float | None = None,
        partial: "Completion | None" = None,
    ) -> None:
        super().__init__(
            message, hint=hint, retryable=retryable, retry_after=retry_after, partial=partial
        )
        self.code = code
        self.type = type
        self.param = param
        self.body = body
        self.request_id = request_id
        self.endpoint = endpoint


class APIConnectionError(APIError):
    """No answer came: refused, unresolved, reset, or ended before its first event.

    `was_sent` is False where no connection was made: then the server cannot have seen the request.
    """

    retryable = True
    was_sent: bool = True


class APITimeoutError(APIConnectionError):
    """A bound of `Timeout` ran out. `phase` is `line`, `connect`, `first`, `idle` or `total`."""

    phase: str = "total"


class StreamStalled(APITimeoutError):
    """A bound ran out after the first event; `partial` holds what had come."""

    retryable = False
    phase = "idle"


class APIStatusError(APIError):
    """The server answered with a status that is no answer.

    `rate_limits` holds what its headers say of limits, by kind (`requests`, `tokens`).
    """

    status_code: int = 0
    rate_limits: "Mapping[str, RateLimit]" = MappingProxyType({})


class RateLimit(msgspec.Struct, frozen=True):
    """One limit as the server reports it; None where it reports nothing. `reset` is in seconds from now."""

    limit: int | None = None
    remaining: int | None = None
    reset: float | None = None


class BadRequestError(APIStatusError):
    """400: the request is wrong."""

    status_code = 400


class AuthenticationError(APIStatusError):
    """401: no key, or not a good one."""

    status_code = 401


class PermissionDeniedError(APIStatusError):
    """403: the key may not do this."""

    status_code = 403


class NotFoundError(APIStatusError):
    """404: no such path or model."""

    status_code = 404


class ConflictError(APIStatusError):
    """409: at odds with another request."""

    status_code = 409
    retryable = True


class UnprocessableEntityError(APIStatusError):
    """422: understood and refused."""

    status_code = 422


class RateLimitError(APIStatusError):
    """429, by status or by code, also in the middle of a stream. `retry_after` is the wait asked for."""

    status_code = 429
    retryable = True


class InternalServerError(APIStatusError):
    """5xx: the server failed."""

    status_code = 500
    retryable = True


class StreamCut(APIError):
    """The answer ended without `[DONE]` and without a finish_reason; `partial` holds what had come."""


class ProtocolError(APIError):
    """The bytes are no chat completion: bad JSON, a web page, no choice at all."""


class LimitExceeded(ProtocolError):
    """The server sent more than `Limits` allows to hold."""


class OutputMismatch(AsyncChatError):
    """The answer is complete and does not fit the type that was asked for."""


class LengthFinishReasonError(AsyncChatError):
    """The model ran out of tokens before the answer could be parsed; `partial` holds it."""


class ContentFilterFinishReasonError(AsyncChatError):
    """A content filter ended the answer before it could be parsed; `partial` holds it."""


class RefusalError(AsyncChatError):
    """The model refused where something had to be parsed; `partial.message.refusal` has its words."""


class MaxTurnsReached(AsyncChatError):
    """The model still calls tools after as many turns as it may have; `messages` is the conversation so far."""

    messages: "tuple[object, ...]" = ()


class PoolClosed(AsyncChatError):
    """The client was closed while the request waited or ran."""


class LineFull(AsyncChatError):
    """As many requests wait in line as `Limits(waiting=...)` allows; this one was not sent."""

    retryable = True


class JournalError(AsyncChatError):
    """The record of a batch cannot be read or written; what is in it is safe."""


class JournalLocked(JournalError):
    """Another process runs this batch; `pid` says which, where that is known."""

    pid: int | None = None


class JournalMismatch(JournalError):
    """The record of a batch is of another input, or was made with other options."""


class SourceError(AsyncChatError, ValueError):
    """The input of a batch cannot be read, or not to its end: missing, packed and cut short, damaged."""


_BY_STATUS: dict[int, type[APIStatusError]] = {
    400: BadRequestError,
    401: AuthenticationError,
    403: PermissionDeniedError,
    404: NotFoundError,
    409: ConflictError,
    422: UnprocessableEntityError,
    429: RateLimitError,
}


def status_error(
    status: int,
    message: str,
    *,
    code: str | int | None = None,
    type: str | None = None,  # noqa: A002  OpenAI's name for it
    param: str | None = None,
    body: object = None,
    hint: str = "",
    request_id: str | None = None,
    endpoint: str = "",
    retry_after: float | None = None,
    should_retry: bool | None = None,
) -> APIStatusError:
    """Return the error that stands for an HTTP status.

    `should_retry` is the server's own word (`x-should-retry`) and wins; a spent quota is never retried.
    """
    retryable = status in _RETRYABLE_STATUS or status >= 500
    if code in _FOR_GOOD or type in _FOR_GOOD:
        retryable = False
    elif should_retry is not None:
        retryable = should_retry
    cls = _BY_STATUS.get(status) or (InternalServerError if status >= 500 else APIStatusError)
    error = cls(
        message,
        code=code,
        type=type,
        param=param,
        body=body,
        hint=hint,
        request_id=request_id,
        endpoint=endpoint,
        retryable=retryable,
        retry_after=retry_after,
    )
    error.status_code = status
    return error
