"""What happens to a request, told to observers: one frozen struct for each thing, made for `match`.

Not here: what is in an answer (`events`), anything per token, prompts, answers, keys. `request` is the same number in all facts of
one request, and no other request of this process has it.
"""

from typing import TypeAlias

import msgspec

from asyncchat.errors import AsyncChatError
from asyncchat.protocol.response import Timing, Usage

__all__ = [
    "AnswerStarted",
    "AttemptDropped",
    "AttemptFailed",
    "AttemptStarted",
    "Fact",
    "RequestFailed",
    "RequestFinished",
    "RequestLeft",
    "RequestStarted",
]


class RequestStarted(msgspec.Struct, frozen=True, tag="request.started"):
    """A request was asked for; it may have to wait in line. `model` is None where each endpoint has its own."""

    request: int
    model: str | None
    stream: bool


class AttemptStarted(msgspec.Struct, frozen=True, tag="attempt.started"):
    """It is sent to an endpoint. `waited` is the seconds since it was asked for, `is_hedge` whether another runs."""

    request: int
    attempt: int
    endpoint: str
    waited: float
    is_hedge: bool = False


class AnswerStarted(msgspec.Struct, frozen=True, tag="answer.started"):
    """The first event of a stream came, or a whole plain answer; `seconds` after it was sent."""

    request: int
    attempt: int
    endpoint: str
    seconds: float


class AttemptFailed(msgspec.Struct, frozen=True, tag="attempt.failed"):
    """An attempt failed before its answer began, or in it where it is taken up again (`resume=`). `wait` is the seconds until the next one, None where there is none.

    `blame` says what the failure is put down to: `request`, `limited`, `key`, `model`, `gone`, `overloaded` or `broken`.
    """

    request: int
    attempt: int
    endpoint: str
    error: AsyncChatError
    blame: str
    wait: float | None


class AttemptDropped(msgspec.Struct, frozen=True, tag="attempt.dropped"):
    """Of two attempts that ran side by side the other one was quicker."""

    request: int
    attempt: int
    endpoint: str


class RequestFinished(msgspec.Struct, frozen=True, tag="request.finished"):
    """The whole answer is there. `model` and `id` are the server's words; `usage` is None where it sent none."""

    request: int
    endpoint: str
    timing: Timing
    model: str | None = None
    id: str | None = None
    usage: Usage | None = None
    finish_reasons: tuple[str | None, ...] = ()


class RequestFailed(msgspec.Struct, frozen=True, tag="request.failed"):
    """The request has ended with an error, which its caller gets; `error.partial` holds what had come."""

    request: int
    error: AsyncChatError
    seconds: float


class RequestLeft(msgspec.Struct, frozen=True, tag="request.left"):
    """Its caller did not want it any more: cancelled, or its stream was closed before the end."""

    request: int
    seconds: float


Fact: TypeAlias = (
    RequestStarted
    | AttemptStarted
    | AnswerStarted
    | AttemptFailed
    | AttemptDropped
    | RequestFinished
    | RequestFailed
    | RequestLeft
)
