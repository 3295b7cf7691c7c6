"""Whether an answer is what was asked for: a value of a type, or JSON that a schema allows.

Not here: asking again.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from asyncchat.errors import OutputMismatch
from asyncchat.protocol.parsed import check_whole, read_value
from asyncchat.protocol.response import Completion
from asyncchat.protocol.schema import OutputType

__all__ = ["Check", "by_schema", "by_type"]

Check: TypeAlias = Callable[[Completion], object]
"""What holds an answer against what was asked for.

Raises:
    OutputMismatch, LengthFinishReasonError, ContentFilterFinishReasonError, RefusalError: it is something else; with the
        answer in `partial`.
"""


def by_type(output: OutputType[Any]) -> Check:
    """Return what checks that an answer is a value of a type."""
    return functools.partial(read_value, output)


def by_schema(schema: Mapping[str, Any]) -> Check:
    """Return what checks that an answer is JSON that a JSON Schema allows.

    Raises:
        ValueError: it is no schema.
        ImportError: the package that knows schemas is not installed.
    """
    try:
        from jsonschema import exceptions, validators
        from referencing import Registry
    except ImportError as error:
        raise ImportError(
            'checking answers against a schema needs a package: pip install "asyncchat[schema]"'
        ) from error
    kind: Any = validators.validator_for(schema)
    try:
        kind.check_schema(schema)
    except exceptions.SchemaError as error:
        raise ValueError(f"schema: {error.message}") from error
    validator: Any = kind(schema, registry=Registry())  # else it would fetch what a $ref names

    def check(answer: Completion) -> None:
        check_whole(answer, "value that fits the schema")
        try:
            value = msgspec.json.decode(answer.text)
            wrong = exceptions.best_match(validator.iter_errors(value))
        except ValueError as error:
            raise OutputMismatch(f"the answer is no JSON: {error}", partial=answer) from error
        except RecursionError as error:
            raise OutputMismatch("the answer is nested too deep", partial=answer) from error
        if wrong is not None:
            raise OutputMismatch(
                f"the answer does not fit the schema at {wrong.json_path} ({wrong.validator})",
                partial=answer,
            )

    return check
