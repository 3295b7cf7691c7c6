"""What a reader is told of a failure."""

import pytest

from asyncchat import (
    APIConnectionError,
    APITimeoutError,
    AuthenticationError,
    BadRequestError,
    LineFull,
    RateLimitError,
    StreamCut,
    StreamStalled,
)
from asyncchat.bridges.failure import Failure

SECRET = "sk-secret at https://user:pass@host.example/v1?key=1, said the server"

ERRORS: list[tuple[type[Exception], str, str | None]] = [
    (RateLimitError, "rate_limit_error", "rate_limit_exceeded"),
    (LineFull, "rate_limit_error", "rate_limit_exceeded"),
    (APITimeoutError, "server_error", "timeout"),
    (StreamStalled, "server_error", "timeout"),
    (StreamCut, "server_error", "stream_cut"),
    (BadRequestError, "invalid_request_error", None),
    (AuthenticationError, "server_error", None),
    (APIConnectionError, "server_error", None),
    (RuntimeError, "server_error", None),
]


@pytest.mark.parametrize(("kind", "type_", "code"), ERRORS)
def test_kind_is_told_and_not_a_word_of_the_error(
    kind: type[Exception], type_: str, code: str | None
) -> None:
    told = Failure.of(kind(SECRET))
    assert (told.type, told.code) == (type_, code)
    assert told.message.endswith(".")
    for word in ("sk-secret", "host.example", "said the server"):
        assert word not in repr(told)


def test_server_that_is_not_there_is_told_from_one_that_is_late() -> None:
    assert Failure.of(APIConnectionError(SECRET)).message == "The model cannot be reached."
    assert Failure.of(StreamStalled(SECRET)).message == "The model did not answer in time."
