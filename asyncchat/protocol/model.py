"""The base of every struct that crosses the wire: unknown fields survive, dumping speaks OpenAI's dialect.

Not here: any particular message. A struct refuses unknown fields when decoded directly, which is how the fast
decode learns at no cost that a frame has some; `build` then makes the same struct out of plain objects, by rules
that forgive, and keeps what it does not know in `model_extra`.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from asyncchat.protocol.lenient import mend_value

__all__ = ["ATOMS", "Model", "build", "mend_strings"]

_FieldReader = Callable[[object], object]
_M = TypeVar("_M", bound="Model")


class Model(
    msgspec.Struct, kw_only=True, gc=False, omit_defaults=True, forbid_unknown_fields=True
):
    """A struct whose unknown fields are readable as attributes and listed in `model_extra`.

    `None` stands for null and for absent alike; dumps leave out what is not there.
    """

    # The name holds characters that no field of an API has, so nothing on the wire can land here.
    extra_: dict[str, Any] | None = msgspec.field(default=None, name="(extra)")

    def __getattr__(self, name: str) -> object:
        """Read a field that the server sent and no struct knows."""
        extra = None if name == "extra_" else self.extra_
        if extra is not None and name in extra:
            return extra[name]
        raise AttributeError(f"{type(self).__name__} has no field {name!r}, and none was sent")

    def __repr__(self) -> str:
        shown = [f"{key}={value!r}" for key, value in self._items() if value is not None]
        return f"{type(self).__name__}({', '.join(shown)})"

    @property
    def model_extra(self) -> dict[str, Any]:
        """The fields that the server sent and no struct knows."""
        return self.extra_ or {}

    def _items(self) -> list[tuple[str, object]]:
        known = [(wire, getattr(self, name)) for name, wire in _names_in(type(self))]
        return known if self.extra_ is None else [*known, *self.extra_.items()]

    def model_dump(
        self,
        *,
        mode: str = "python",
        exclude_none: bool = False,
        exclude_unset: bool = False,
    ) -> dict[str, Any]:
        """Return plain dicts and lists, unknown fields included.

        `exclude_unset` and `exclude_none` both leave out fields that are None: what a server sent as null and
        what it did not send are one thing here. `mode` is accepted for the sake of code written for pydantic.
        """
        lean = exclude_none or exclude_unset
        return {
            key: value if type(value) in ATOMS else _plain(value, lean)
            for key, value in self._items()
            if not (lean and value is None)
        }

    def model_dump_json(
        self,
        *,
        indent: int | None = None,
        exclude_none: bool = False,
        exclude_unset: bool = False,
    ) -> str:
        """Return `model_dump` as JSON text."""
        data = msgspec.json.encode(
            self.model_dump(exclude_none=exclude_none, exclude_unset=exclude_unset)
        )
        return (msgspec.json.format(data, indent=indent) if indent else data).decode()

    def to_dict(self, *, exclude_unset: bool = True, exclude_none: bool = False) -> dict[str, Any]:
        """Return `model_dump` without the fields that were not sent."""
        return self.model_dump(exclude_unset=exclude_unset, exclude_none=exclude_none)

    def to_json(
        self,
        *,
        indent: int | None = 2,
        exclude_unset: bool = True,
        exclude_none: bool = False,
    ) -> str:
        """Return `to_dict` as JSON text."""
        return self.model_dump_json(
            indent=indent, exclude_unset=exclude_unset, exclude_none=exclude_none
        )


def mend_strings(model: Model, but: frozenset[str]) -> None:
    """Make every string in a struct encode, but for the fields in `but`, at any depth of structs."""
    for name in model.__struct_fields__:
        value: object = getattr(model, name)
        if isinstance(value, Model):
            mend_strings(value, but)
        elif isinstance(value, list) and value and isinstance(value[0], Model):
            for item in value:
                mend_strings(item, but)
        elif name not in but and isinstance(value, (str, list, dict)):
            setattr(model, name, mend_value(value))


ATOMS = frozenset({str, int, float, bool, type(None)})


@cache
def _names_in(cls: type[Model]) -> tuple[tuple[str, str], ...]:
    """Return the names of fields in Python and on the wire, but for what is ours."""
    names = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
    return tuple((name, wire) for name, wire in names if "(" not in wire)


def _plain(value: object, lean: bool) -> object:
    if isinstance(value, Model):
        return value.model_dump(exclude_none=lean)
    if isinstance(value, list):
        return [
            item.model_dump(exclude_none=lean) if isinstance(item, Model) else item
            for item in value
        ]
    if isinstance(value, msgspec.Struct):
        return msgspec.to_builtins(value)
    return value


# ------------------------------------------------------------------------- plain objects → structs


def build(cls: type[_M], source: Mapping[str, object]) -> _M:
    """Make a struct of `cls` out of a decoded JSON object, forgiving what a typed decode refuses.

    A number may come as text, an integer as `7.0`, a list of one as the object alone, anything as null; a value
    that fits in no way counts as absent. Unknown fields go to `model_extra`.
    """
    readers = _readers(cls)
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for key, value in source.items():
        reader = readers.get(key)
        if reader is None:
            extra[key] = value
        elif value is not None:
            name, read = reader
            made = read(value)
            if made is not None:
                known[name] = made
    return cls(**known, extra_=extra or None)


@cache
def _readers(cls: type[Model]) -> dict[str, tuple[str, _FieldReader]]:
    hints = get_type_hints(cls)
    names = zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True)
    return {wire: (name, _reader_for(hints[name])) for name, wire in names if name != "extra_"}


def _reader_for(hint: object) -> _FieldReader:
    for option in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        if option in _SCALARS:
            return _SCALARS[option]
        if get_origin(option) is list:
            return _list_reader(_reader_for(get_args(option)[0]))
        if get_origin(option) is dict:
            return _mapping
        if isinstance(option, type) and issubclass(option, Model):
            return partial(_struct, option)
    return _as_is


def _list_reader(read_item: _FieldReader) -> _FieldReader:
    def read(value: object) -> object:
        items = value if isinstance(value, list) else [value]
        return [made for item in items if (made := read_item(item)) is not None]

    return read


def _struct(cls: type[Model], value: object) -> object:
    return build(cls, value) if isinstance(value, dict) else None


def _mapping(value: object) -> object:
    return value if isinstance(value, dict) else None


def _as_is(value: object) -> object:
    return value


def _text(value: object) -> str | None:
    if isinstance(value, str):
        return value
    return None if isinstance(value, (dict, list, bool)) else str(value)


def _integer(value: object) -> int | None:
    number = _number(value)
    if isinstance(number, int):
        return number
    return int(number) if number is not None and number.is_integer() else None


def _number(value: object) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    if not isinstance(value, str):
        return value
    for read in (int, float):
        try:
            return read(value)
        except ValueError:
            continue
    return None


_SCALARS: dict[object, _FieldReader] = {str: _text, int: _integer, float: _number}
