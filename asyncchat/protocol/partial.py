"""JSON that is still being written: its elements as they close, and its value so far.

Not here: streams, schemas. Text goes in piece by piece, however it is cut. `Elements` looks at each character once;
`PartialJSON` parses from the beginning, and keeps the sum of that linear in the length of the text.
"""

import dataclasses
import re
import types
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

import msgspec

__all__ = ["Elements", "PartialJSON", "fields_of", "partial_type"]

_OUTSIDE = re.compile(r'["\[\]{},]')
_INSIDE = re.compile(r'["\\]')
_MOST_PARSED = 256  # characters parsed for each that came: what bounds the cost of a growing value


class Elements:
    """The elements of a list that is being written, each as soon as it is closed.

    Args:
        key: where the list stands: under this key of an object, or at the root where there is none.
    """

    __slots__ = (
        "_depth",
        "_escaped",
        "_in_string",
        "_key",
        "_level",
        "_name",
        "_parts",
        "_started",
        "ended",
    )

    def __init__(self, key: str | None = None) -> None:
        self._key = key
        self._level = 1 if key is None else 2  # how many brackets are open inside the list
        self._depth = 0
        self._in_string = self._escaped = self._started = False
        self._name = ""  # the last string before the list
        self._parts: list[str] = []
        self.ended = False
        """Whether the list is closed."""

    def feed(self, text: str) -> list[str]:
        """Take in text, and return the JSON of the elements that it closes."""
        out: list[str] = []
        at = 0  # from here on nothing was kept yet
        end = len(text)
        position = min(int(self._escaped), end)
        self._escaped = self._escaped and not end
        while position < end and not self.ended:
            found = (_INSIDE if self._in_string else _OUTSIDE).search(text, position)
            if found is None:
                break
            position, mark = found.end(), found.group()
            if self._in_string and mark == "\\":
                self._escaped = position == end
                position += 1
            elif self._in_string:
                self._in_string = False
                self._named(text[at : position - 1])
            elif mark == '"':
                self._in_string = True
                if not self._started:
                    at = position
            elif mark in "[{":
                self._depth += 1
                if mark == "[" and self._is_the_list:
                    self._started, at = True, position
            elif self._depth == self._level and self._started and mark in ",]":
                self._close(text[at : position - 1], out)
                at = position
                self.ended = mark == "]"
            elif mark in "]}":
                self._depth -= 1
        if (self._started and not self.ended) or (self._in_string and not self._started):
            self._parts.append(text[at:])
        return out

    def _named(self, last: str) -> None:
        """A string is over: before the list, it may be the key under which that stands."""
        if not self._started:
            self._name = "".join([*self._parts, last])
            self._parts = []

    @property
    def _is_the_list(self) -> bool:
        is_there = self._depth == self._level and not self._started
        return is_there and (self._key is None or self._name == self._key)

    def _close(self, last: str, out: list[str]) -> None:
        element = "".join([*self._parts, last]).strip() if self._parts else last.strip()
        self._parts = []
        if element:
            out.append(element)


class PartialJSON:
    """The value of JSON text that is still being written.

    What is not whole is left out, or cut where that keeps it true: a string is the beginning of the string to come. A
    number at the very end may still grow.
    """

    __slots__ = ("_allowance", "_parts", "_size")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._size = 0
        self._allowance = 0

    def feed(self, text: str) -> None:
        """Take in text."""
        self._parts.append(text)
        self._size += len(text)
        self._allowance += len(text) * _MOST_PARSED

    @property
    def may_parse(self) -> bool:
        """Whether parsing now keeps the whole cost linear."""
        return 0 < self._size <= self._allowance

    def value(self) -> object:
        """Return the value so far, or None where there is none yet.

        Raises:
            ValueError: the text is no beginning of any JSON, or of `true`, `false`, `null` or a number alone.
        """
        import jiter

        self._allowance -= self._size
        text = "".join(self._parts)
        self._parts = [text]
        if not text.strip():
            return None
        return cast(
            "object",
            jiter.from_json(
                text.encode("utf-8", "replace"),
                partial_mode="trailing-strings",
                allow_inf_nan=False,
            ),
        )


def partial_type(type_: Any) -> Any:  # noqa: ANN401  whatever stands in an annotation
    """Return a type for values that are not whole: every field may be None, and no bound of a value is checked.

    Structs and dataclasses become structs of the same field names; what holds itself is left as plain values in there.
    """
    return _twin(type_, frozenset())


def fields_of(type_: type) -> list[tuple[str, str, Any]] | None:
    """Return name, name in JSON and type of each field of a struct or dataclass, or None for another type."""
    if issubclass(type_, msgspec.Struct):
        return [(f.name, f.encode_name, f.type) for f in msgspec.structs.fields(type_)]
    if dataclasses.is_dataclass(type_):
        hints = get_type_hints(type_, include_extras=True)
        return [(f.name, f.name, hints[f.name]) for f in dataclasses.fields(type_)]
    return None


def _twin(type_: Any, inside: frozenset[Any]) -> Any:  # noqa: ANN401
    origin, args = get_origin(type_), get_args(type_)
    if origin is Annotated:
        return _twin(args[0], inside)
    twin: Any = Any
    if origin in (Union, types.UnionType):
        twin = Union[tuple(_twin(arg, inside) for arg in args)]  # noqa: UP007  made here
    elif origin is list:
        twin = list[_twin(args[0], inside)]  # type: ignore[misc]  # made here
    elif origin is dict:
        twin = dict[str, _twin(args[1], inside)]  # type: ignore[misc]  # made here
    elif type_ in (str, int, float, bool, type(None)):
        twin = type_
    elif isinstance(type_, type) and type_ not in inside:
        twin = _struct_twin(type_, inside)
    return twin


def _struct_twin(type_: type, inside: frozenset[Any]) -> Any:  # noqa: ANN401
    fields = fields_of(type_)
    if fields is None:
        return Any
    config = getattr(type_, "__struct_config__", None)
    return msgspec.defstruct(
        f"Partial{type_.__name__}",
        [(name, _twin(inner, inside | {type_}) | None, None) for name, _, inner in fields],
        rename={name: encoded for name, encoded, _ in fields},
        tag=getattr(config, "tag", None),
        tag_field=getattr(config, "tag_field", None),
    )
