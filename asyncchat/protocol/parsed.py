"""An answer read as a value of a type; everything that keeps it from being one is an error of its own.

Not here: schemas and decoding (`schema`), asking again.
"""

from typing import Any, TypeVar

from asyncchat.errors import (
    ContentFilterFinishReasonError,
    LengthFinishReasonError,
    OutputMismatch,
    RefusalError,
)
from asyncchat.protocol.response import Completion, Usage
from asyncchat.protocol.schema import OutputType

__all__ = ["check_whole", "read_value", "sum_usage"]

_T = TypeVar("_T")


def read_value(output: OutputType[_T], answer: Completion) -> _T:
    """Return the value in an answer's first choice, and keep it there as `message.parsed`.

    Raises:
        RefusalError: the model refused.
        LengthFinishReasonError: the answer was cut at its token limit, whatever of it could be read.
        ContentFilterFinishReasonError: a filter ended it.
        OutputMismatch: it does not fit. Each carries the answer in `partial`.
    """
    check_whole(answer, output.name)
    message = answer.message
    try:
        value = output.decode(message.content or "")
    except OutputMismatch as error:
        error.partial = answer
        raise
    message.parsed = value
    return value


def check_whole(answer: Completion, name: str) -> None:
    """Check that an answer is the whole of what the model had to say, whatever it is.

    Raises:
        RefusalError: the model refused.
        LengthFinishReasonError: it was cut at its token limit before it was a whole `name`.
        ContentFilterFinishReasonError: a filter ended it.
    """
    reason = answer.finish_reason
    if answer.message.refusal:
        raise RefusalError("the model refused to answer", partial=answer)
    if reason == "length":
        raise LengthFinishReasonError(
            f"the answer was cut at the token limit before it was a whole {name}",
            hint="Raise max_tokens.",
            partial=answer,
        )
    if reason == "content_filter":
        raise ContentFilterFinishReasonError("a content filter ended the answer", partial=answer)


def sum_usage(usages: "list[Usage | None]") -> Usage | None:
    """Return what several answers have cost together, or None where that of one is unknown."""
    known = [usage for usage in usages if usage is not None]
    if not known or len(known) < len(usages):
        return None

    def total(name: str) -> Any:  # noqa: ANN401  int or None
        counts = [getattr(usage, name) for usage in known]
        return None if None in counts else sum(counts)

    names = ("prompt_tokens", "completion_tokens", "total_tokens")
    return Usage(**{name: total(name) for name in names})
