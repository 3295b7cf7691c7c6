"""Everything that can go wrong, as plain data: the tree, what each class says, and that all of it pickles."""

import inspect
import pickle
from typing import Any

import openai
import pytest

from asyncchat import errors
from asyncchat.errors import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncChatError,
    AuthenticationError,
    BadRequestError,
    ConflictError,
    ContentFilterFinishReasonError,
    InternalServerError,
    JournalError,
    JournalLocked,
    JournalMismatch,
    LengthFinishReasonError,
    LimitExceeded,
    LineFull,
    MaxTurnsReached,
    NotFoundError,
    OutputMismatch,
    PermissionDeniedError,
    PoolClosed,
    ProtocolError,
    RateLimit,
    RateLimitError,
    RefusalError,
    SourceError,
    StreamCut,
    StreamStalled,
    UnprocessableEntityError,
    printable,
    status_error,
)
from asyncchat.protocol.response import Choice, Completion, Message

CLASSES = [
    cls
    for cls in vars(errors).values()
    if inspect.isclass(cls) and issubclass(cls, AsyncChatError)
]
# class: (its parent, whether the same request may succeed later)
TREE: dict[type[AsyncChatError], tuple[type[Exception], bool]] = {
    AsyncChatError: (Exception, False),
    APIError: (AsyncChatError, False),
    APIConnectionError: (APIError, True),
    APITimeoutError: (APIConnectionError, True),
    StreamStalled: (APITimeoutError, False),
    APIStatusError: (APIError, False),
    BadRequestError: (APIStatusError, False),
    AuthenticationError: (APIStatusError, False),
    PermissionDeniedError: (APIStatusError, False),
    NotFoundError: (APIStatusError, False),
    ConflictError: (APIStatusError, True),
    UnprocessableEntityError: (APIStatusError, False),
    RateLimitError: (APIStatusError, True),
    InternalServerError: (APIStatusError, True),
    StreamCut: (APIError, False),
    ProtocolError: (APIError, False),
    LimitExceeded: (ProtocolError, False),
    OutputMismatch: (AsyncChatError, False),
    LengthFinishReasonError: (AsyncChatError, False),
    ContentFilterFinishReasonError: (AsyncChatError, False),
    PoolClosed: (AsyncChatError, False),
    LineFull: (AsyncChatError, True),
    RefusalError: (AsyncChatError, False),
    MaxTurnsReached: (AsyncChatError, False),
    JournalError: (AsyncChatError, False),
    JournalLocked: (JournalError, False),
    JournalMismatch: (JournalError, False),
    SourceError: (AsyncChatError, False),
}


def name(cls: type) -> str:
    return cls.__name__


# ---------------------------------------------------------------------------------------------- the tree


def test_every_class_has_its_place_in_the_tree() -> None:
    assert {cls: cls.__base__ for cls in CLASSES} == {cls: TREE[cls][0] for cls in TREE}


def test_every_class_is_a_public_name() -> None:
    assert {cls.__name__ for cls in CLASSES} <= set(errors.__all__)


@pytest.mark.parametrize("cls", TREE, ids=name)
def test_class_says_whether_the_request_may_succeed_later(cls: type[AsyncChatError]) -> None:
    assert cls("x").retryable is TREE[cls][1]


@pytest.mark.parametrize("cls", [cls for cls in TREE if hasattr(openai, cls.__name__)], ids=name)
def test_class_with_a_name_of_openais_has_its_place_in_their_tree(
    cls: type[AsyncChatError],
) -> None:
    theirs = {base.__name__ for base in getattr(openai, cls.__name__).__mro__}
    ours = {base.__name__ for base in cls.__mro__}
    assert theirs - {"OpenAIError", "ValueError"} <= ours


# ------------------------------------------------------------------------------------------ what one says


def test_text_is_the_message_and_the_hint() -> None:
    error = AsyncChatError("It broke.", hint="Mend it.")
    assert str(error) == "It broke. Mend it."
    assert (error.message, error.hint) == ("It broke.", "Mend it.")


def test_text_without_a_hint_is_the_message() -> None:
    assert str(AsyncChatError("It broke.")) == "It broke."


@pytest.mark.parametrize("cls", TREE, ids=name)
@pytest.mark.parametrize("word", [True, False])
def test_word_about_trying_again_wins_over_the_class(
    cls: type[AsyncChatError], word: bool
) -> None:
    assert cls("x", retryable=word).retryable is word


@pytest.mark.parametrize(
    ("cls", "phase"), [(APITimeoutError, "total"), (StreamStalled, "idle")], ids=str
)
def test_bound_that_ran_out_has_a_name(cls: type[APITimeoutError], phase: str) -> None:
    assert cls("late").phase == phase


def test_facts_that_nobody_told_are_none() -> None:
    error = APIError("x")
    assert (error.code, error.type, error.param, error.body, error.request_id, error.endpoint) == (
        None, None, None, None, None, "",
    )  # fmt: skip
    assert (error.retry_after, error.partial) == (None, None)


def test_limits_that_nobody_told_are_none_and_cannot_be_written_to() -> None:
    limits: Any = APIStatusError("x").rate_limits
    assert limits == {}
    with pytest.raises(TypeError):
        limits["requests"] = RateLimit()


# ----------------------------------------------------------------------------------------------- pickling


PARTIAL = Completion(
    id="c1",
    choices=[Choice(message=Message(content="Hel", extra_={"weight": 1}))],
    extra_={"provider": "p"},
)


def pickled(error: AsyncChatError) -> Any:
    return pickle.loads(pickle.dumps(error))


@pytest.mark.parametrize("cls", TREE, ids=name)
def test_error_of_every_class_pickles_with_all_it_knows(cls: type[AsyncChatError]) -> None:
    facts: dict[str, Any] = {
        "hint": "h",
        "retryable": True,
        "retry_after": 1.5,
        "partial": PARTIAL,
    }
    if issubclass(cls, APIError):
        facts |= {"code": 7, "type": "t", "param": "p", "body": {"x": [1]}}
        facts |= {"request_id": "r", "endpoint": "e"}
    error: Any = cls("m", **facts)
    for extra, value in (("phase", "first"), ("status_code", 418)):
        if hasattr(cls, extra):
            setattr(error, extra, value)
    if isinstance(error, APIStatusError):
        error.rate_limits = {"requests": RateLimit(5, 0, 1.0)}
    again = pickled(error)
    assert type(again) is cls
    assert vars(again) == vars(error)
    assert str(again) == str(error) == "m. h"
    assert again.partial == PARTIAL


@pytest.mark.parametrize("cls", TREE, ids=name)
def test_error_that_knows_nothing_pickles(cls: type[AsyncChatError]) -> None:
    error = cls("m")
    again = pickled(error)
    assert (type(again), str(again), vars(again)) == (cls, "m", vars(error))
    assert again.retryable is cls.retryable


# --------------------------------------------------------------------------------------------- by status


@pytest.mark.parametrize(
    ("status", "cls", "retryable"),
    [
        (302, APIStatusError, False),
        (400, BadRequestError, False),
        (401, AuthenticationError, False),
        (402, APIStatusError, False),
        (403, PermissionDeniedError, False),
        (404, NotFoundError, False),
        (408, APIStatusError, True),
        (409, ConflictError, True),
        (413, APIStatusError, False),
        (422, UnprocessableEntityError, False),
        (425, APIStatusError, True),
        (429, RateLimitError, True),
        (500, InternalServerError, True),
        (503, InternalServerError, True),
        (529, InternalServerError, True),
        (599, InternalServerError, True),
    ],
)
def test_status_has_its_class_and_may_pass_or_not(
    status: int, cls: type[APIStatusError], retryable: bool
) -> None:
    error = status_error(status, "m")
    assert (type(error), error.status_code, error.retryable) == (cls, status, retryable)


@pytest.mark.parametrize(("status", "word"), [(400, True), (429, False), (500, False)])
def test_word_of_the_server_about_trying_again_wins(status: int, word: bool) -> None:
    assert status_error(status, "m", should_retry=word).retryable is word


@pytest.mark.parametrize("where", ["code", "type"])
@pytest.mark.parametrize(
    "said", ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"]
)
def test_quota_that_is_spent_is_not_tried_again_whatever_the_server_says(
    where: str, said: str
) -> None:
    error = status_error(429, "m", should_retry=True, **{where: said})  # type: ignore[arg-type]  # code or type
    assert type(error) is RateLimitError
    assert not error.retryable


def test_facts_of_a_status_are_on_its_error() -> None:
    facts: dict[str, Any] = {
        "code": "c",
        "type": "t",
        "param": "p",
        "body": {"x": 1},
        "hint": "h",
        "request_id": "r",
        "endpoint": "e",
        "retry_after": 1.5,
    }
    error = status_error(404, "m", **facts)
    assert {fact: getattr(error, fact) for fact in facts} == facts


# ----------------------------------------------------------------------------------------------- printable


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("plain", "plain"),
        ("\u00e9\U0001f600", "\u00e9\U0001f600"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("\x1b[2J", "\\x1b[2J"),
        ("a\x00b", "a\\x00b"),
        ("a\u2028b\u202ec", "a\\u2028b\\u202ec"),
        ("\ud83d", "\\ud83d"),
        ("", ""),
    ],
    ids=ascii,
)
def test_words_of_a_server_fit_on_one_line(text: str, printed: str) -> None:
    assert printable(text) == printed
    assert printable(text).isprintable()


def test_words_of_a_server_are_bounded() -> None:
    assert printable("x" * 500) == "x" * 500
    assert printable("x" * 501) == "x" * 499 + "\u2026"


def test_bound_may_be_another() -> None:
    assert printable("abcdef", longest=4) == "abc\u2026"
