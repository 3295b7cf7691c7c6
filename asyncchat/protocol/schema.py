"""Python types and functions as JSON Schema, and JSON checked against them.

Not here: sending, running tools, values that are still growing (`partial`). Schemas come from msgspec, for its structs,
dataclasses, TypedDicts, NamedTuples, enums and `Annotated`; pydantic models are known by their methods and never imported.
Source: JSON Schema 2020-12, and what OpenAI's structured outputs accept of it.
"""

import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

import msgspec

from asyncchat.errors import OutputMismatch, printable
from asyncchat.protocol.partial import PartialJSON, fields_of, partial_type

__all__ = [
    "Dialect",
    "OutputType",
    "SchemaError",
    "Tool",
    "output_type",
    "problems_of",
    "schema_of",
    "strict",
    "tool",
]

_T = TypeVar("_T")
_Schema = dict[str, Any]

Dialect = Literal["strict", "json_schema", "json_object"]
"""How a schema is sent: rewritten to what OpenAI's strict mode takes, as it is, or in words in the system message."""


class SchemaError(ValueError):
    """A type or function has no schema in the dialect asked for. `problems` has all of them, each with its JSON path."""

    def __init__(self, name: str, problems: Sequence[str]) -> None:
        listed = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"{name} cannot be sent as a schema:{listed}")
        self.problems = list(problems)


# ------------------------------------------------------------------------------------------- schemas


def schema_of(type_: Any) -> _Schema:  # noqa: ANN401  whatever stands in an annotation
    """Return the JSON Schema of a type, its root inlined, its definitions under `$defs`.

    Raises:
        SchemaError: the type has none.
    """
    try:
        if _is_pydantic(type_):
            made = cast("_Schema", type_.model_json_schema())
        else:
            made = msgspec.json.schema(type_, schema_hook=_schema_hook)
    except (TypeError, RuntimeError, NameError) as error:
        raise SchemaError(_name_of(type_), [f"$: {error}"]) from None
    return _settled(made)


def _is_pydantic(type_: object) -> bool:
    return isinstance(type_, type) and hasattr(type_, "model_json_schema")


def _schema_hook(type_: type) -> _Schema:
    if _is_pydantic(type_):
        return cast("_Schema", cast("Any", type_).model_json_schema())
    raise NotImplementedError


def _decode_hook(type_: type, value: object) -> object:
    if _is_pydantic(type_):
        # In JSON's mode, where a date is text even for a strict model.
        return cast("Any", type_).model_validate_json(msgspec.json.encode(value))
    raise TypeError(f"a {type_.__name__} cannot be read from JSON")


def _settled(schema: _Schema) -> _Schema:
    """Bring definitions to the root, and the root's own one into its place."""
    defs: dict[str, _Schema] = {}
    root = cast("_Schema", _without_defs(schema, defs))
    while "$ref" in root and _target(root["$ref"]) in defs:
        beside = {key: value for key, value in root.items() if key != "$ref"}
        root = {**defs[_target(root["$ref"])], **beside}
    used = _reachable(root, defs)
    if used:
        root["$defs"] = {name: defs[name] for name in defs if name in used}
    return root


def _without_defs(node: object, defs: dict[str, _Schema]) -> object:
    if isinstance(node, Mapping):
        inner = node.get("$defs")
        names: dict[str, str] = {}
        if isinstance(inner, Mapping):
            for name in inner:
                names[name] = name if name not in defs else _free(name, defs)
                defs[names[name]] = {}
            for name, definition in inner.items():
                renamed = _renamed(definition, names)
                defs[names[name]] = cast("_Schema", _without_defs(renamed, defs))
        rest = {key: value for key, value in node.items() if key != "$defs"}
        return {
            key: {name: _without_defs(inner, defs) for name, inner in value.items()}
            if key == "properties"  # whose keys are names, be they what they may
            else _without_defs(value, defs)
            for key, value in cast("_Schema", _renamed(rest, names)).items()
        }
    if isinstance(node, list):
        return [_without_defs(item, defs) for item in node]
    return node


def _free(name: str, defs: Mapping[str, object]) -> str:
    number = 2
    while f"{name}_{number}" in defs:
        number += 1
    return f"{name}_{number}"


def _renamed(node: object, names: Mapping[str, str]) -> object:
    """Point references at what their definitions are called now."""
    if all(old == new for old, new in names.items()):
        return node
    if isinstance(node, Mapping):
        return {
            key: _renamed_ref(value, names)
            if isinstance(value, str) and value.startswith("#/$defs/")
            else _renamed(value, names)
            for key, value in node.items()
        }
    if isinstance(node, list):
        return [_renamed(item, names) for item in node]
    return node


def _renamed_ref(ref: str, names: Mapping[str, str]) -> str:
    return f"#/$defs/{names.get(_target(ref), _target(ref))}"


def _target(ref: str) -> str:
    return ref.removeprefix("#/$defs/")


def _reachable(
    node: object, defs: Mapping[str, _Schema], seen: set[str] | None = None
) -> set[str]:
    found = set() if seen is None else seen
    if isinstance(node, Mapping):
        ref = node.get("$ref")
        if isinstance(ref, str) and _target(ref) in defs and _target(ref) not in found:
            found.add(_target(ref))
            _reachable(defs[_target(ref)], defs, found)
        for value in node.values():
            _reachable(value, defs, found)
    elif isinstance(node, list):
        for item in node:
            _reachable(item, defs, found)
    return found


# -------------------------------------------------------------------------------------- strict dialect

_DROPPED = frozenset(
    {
        "title",
        "examples",
        "default",
        "discriminator",
        "uniqueItems",
        "contentEncoding",
        "contentMediaType",
    }
    | {"$schema", "$id", "$comment", "deprecated", "readOnly", "writeOnly"}
)
_KEPT = frozenset(
    {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "items",
        "enum",
        "const",
        "anyOf",
        "$ref",
        "$defs",
    }
    | {"description", "pattern", "format", "multipleOf", "minimum", "maximum", "exclusiveMinimum"}
    | {"exclusiveMaximum", "minItems", "maxItems"}
)
_FORMATS = frozenset(
    {"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}
)
_IN_WORDS = {"minLength": "at least {} characters", "maxLength": "at most {} characters"}
_MOST_PROPERTIES, _MOST_LEVELS, _MOST_CHARACTERS, _MOST_VALUES = 5000, 10, 120_000, 1000
_LARGE_ENUM, _LARGE_ENUM_CHARACTERS = 250, 15_000


def strict(schema: _Schema) -> _Schema:
    """Return a schema as strict mode wants it: every property required, no other allowed, no keyword it does not know.

    What cannot be said there is left as it is, for `problems_of` to find.
    """
    defs = schema.get("$defs", {})
    made = cast("_Schema", _strict_node({k: v for k, v in schema.items() if k != "$defs"}, defs))
    if defs:
        rewritten = {
            name: cast("_Schema", _strict_node(node, defs)) for name, node in defs.items()
        }
        used = _reachable(made, rewritten)
        if used:
            made["$defs"] = {name: node for name, node in rewritten.items() if name in used}
    return made


def _strict_node(node: object, defs: Mapping[str, _Schema]) -> object:
    if not isinstance(node, Mapping):
        return node
    if "$ref" in node and len(node) > 1:
        node = _beside_ref(node, defs)
    if "allOf" in node and len(node["allOf"]) == 1:
        node = {
            **node["allOf"][0],
            **{key: value for key, value in node.items() if key != "allOf"},
        }
    made: _Schema = {}
    words: list[str] = []
    for key, value in node.items():
        if key in _IN_WORDS:
            words.append(_IN_WORDS[key].format(value))
        elif key not in _DROPPED and not (key == "format" and value not in _FORMATS):
            made["anyOf" if key == "oneOf" else key] = _strict_value(key, value, defs)
    if words:
        made["description"] = ", ".join(filter(None, [made.get("description"), *words]))
    if "type" not in made and ("enum" in made or "const" in made):
        made = _with_type(made)
    if made.get("type") == "object":
        made.setdefault("properties", {})
        made.setdefault("additionalProperties", False)
        made["required"] = list(made["properties"])
    return made


def _strict_value(key: str, value: Any, defs: Mapping[str, _Schema]) -> Any:  # noqa: ANN401  JSON
    if key == "properties":
        return {name: _strict_node(inner, defs) for name, inner in value.items()}
    if key in ("anyOf", "oneOf"):
        return [_strict_node(inner, defs) for inner in value]
    return _strict_node(value, defs) if key in ("items", "additionalProperties") else value


def _beside_ref(node: Mapping[str, Any], defs: Mapping[str, _Schema]) -> Mapping[str, Any]:
    """A reference stands alone: put the definition in its place, or drop what stands beside it where it is recursive."""
    name = _target(node["$ref"])
    if name not in defs or name in _reachable(defs[name], defs):
        return {"$ref": node["$ref"]}
    return {**defs[name], **{key: value for key, value in node.items() if key != "$ref"}}


_TYPES: tuple[tuple[type, str], ...] = (
    (bool, "boolean"),
    (str, "string"),
    (int, "integer"),
    (float, "number"),
    (type(None), "null"),
)


def _with_type(node: _Schema) -> _Schema:
    """Say of what type the values of an enum are."""
    values = node["enum"] if "enum" in node else [node["const"]]
    by_type: dict[str, list[Any]] = {}
    for value in values:
        name = next((name for type_, name in _TYPES if isinstance(value, type_)), "object")
        by_type.setdefault(name, []).append(value)
    if len(by_type) == 1:
        return {"type": next(iter(by_type)), **node}
    rest = {key: value for key, value in node.items() if key not in ("enum", "const")}
    return {"anyOf": [{"type": name, "enum": some} for name, some in by_type.items()], **rest}


# --------------------------------------------------------------------------------------------- linter


def problems_of(schema: _Schema) -> list[str]:
    """Return everything that strict mode would refuse in a schema, each with its JSON path."""
    linter = _Linter()
    if schema.get("type") != "object":
        linter.found.append("$: the root has to be an object")
    linter.walk({key: value for key, value in schema.items() if key != "$defs"}, "$", 1)
    for name, node in schema.get("$defs", {}).items():
        linter.name(name)
        linter.walk(node, f"$.$defs.{name}", 1)
    linter.totals()
    return linter.found


class _Linter:
    def __init__(self) -> None:
        self.found: list[str] = []
        self._properties = self._values = self._characters = 0

    def walk(self, node: object, path: str, level: int) -> None:
        if not isinstance(node, Mapping):
            self.found.append(f"{path}: {node!r} is no schema")
            return
        if level > _MOST_LEVELS:
            self.found.append(f"{path}: nested deeper than {_MOST_LEVELS} levels")
            return
        if "$ref" in node:
            if len(node) > 1:
                self.found.append(f"{path}: nothing may stand beside $ref")
            return
        for key in node:
            if key not in _KEPT:
                self.found.append(f"{path}: {_REASONS.get(key, f'{key} is not known')}")
        if not {"type", "anyOf", "enum", "const"} & set(node):
            self.found.append(f"{path}: any value may stand here; say of what type it is")
        self._enum(node, path)
        if node.get("type") == "object":
            self._object(node, path, level)
        is_list = node.get("type") == "array" and "prefixItems" not in node
        if is_list and not isinstance(node.get("items"), Mapping):
            self.found.append(f"{path}: say of what the elements are (list[T])")
        if isinstance(node.get("items"), Mapping):
            self.walk(node["items"], f"{path}.items", level + 1)
        for number, inner in enumerate(node.get("anyOf", ())):
            self.walk(inner, f"{path}.anyOf[{number}]", level)

    def name(self, name: str) -> None:
        """Count the name of a definition."""
        self._characters += len(name)

    def _object(self, node: Mapping[str, Any], path: str, level: int) -> None:
        properties = node.get("properties", {})
        self._properties += len(properties)
        self._characters += sum(map(len, properties))
        if node.get("additionalProperties") is not False:
            self.found.append(
                f"{path}: an object with keys of any name (dict[str, ...]) cannot be said; "
                "use a list of objects with a key and a value"
            )
        missing = [name for name in properties if name not in node.get("required", ())]
        if missing:
            self.found.append(f"{path}: {', '.join(missing)} has to be required")
        for name, inner in properties.items():
            self.walk(inner, f"{path}.{name}", level + 1)

    def _enum(self, node: Mapping[str, Any], path: str) -> None:
        values = node.get("enum", [node["const"]] if "const" in node else [])
        size = sum(len(value) for value in values if isinstance(value, str))
        self._values += len(values)
        self._characters += size
        if len(values) > _LARGE_ENUM and size > _LARGE_ENUM_CHARACTERS:
            self.found.append(
                f"{path}: an enum of more than {_LARGE_ENUM} values may have {_LARGE_ENUM_CHARACTERS} characters"
            )

    def totals(self) -> None:
        for count, most, what in (
            (self._properties, _MOST_PROPERTIES, "properties"),
            (self._values, _MOST_VALUES, "values in enums"),
            (self._characters, _MOST_CHARACTERS, "characters in names and values"),
        ):
            if count > most:
                self.found.append(f"$: {count} {what}; {most} are allowed")


_REASONS = {
    "prefixItems": "a tuple of several types cannot be said; use an object, or tuple[T, ...]",
    "allOf": "allOf cannot be said",
    "not": "not cannot be said",
    "patternProperties": "keys by pattern cannot be said",
}


# ---------------------------------------------------------------------------------------- answers of a type


class OutputType(Generic[_T]):
    """What an answer has to be: a type, as schemas for servers and as a decoder for what they send.

    The root of a schema is always an object: a list, a union or a number is sent as `{"value": ...}` and taken out again.

    Args:
        type_: a Struct, dataclass, TypedDict, NamedTuple, pydantic model, or anything made of these and JSON's own types.
        name: what the schema is called.

    Raises:
        SchemaError: the type has no schema.
    """

    __slots__ = (
        "_decode",
        "_decode_bare",
        "_is_wrapped",
        "_schema",
        "_schemas",
        "_twin",
        "name",
        "wanted",
    )

    def __init__(self, type_: type[_T] | Any, name: str | None = None) -> None:  # noqa: ANN401  annotations are no types
        self.wanted = type_
        self.name = (
            re.sub(r"[^A-Za-z0-9_-]+", "_", name or _name_of(type_)).strip("_")[:64] or "answer"
        )
        schema = schema_of(type_)
        self._is_wrapped = schema.get("type") != "object"
        self._decode = self._decode_bare = self._bare_decoder()
        if self._is_wrapped:
            wrapped = msgspec.defstruct("Answer", [("value", type_)])
            # The model is to write nothing else, but what it wrote all the same harms nobody.
            schema = {**schema_of(wrapped), "additionalProperties": False}
            decode = _decoder_of(wrapped).decode
            self._decode = lambda text: decode(text).value
        self._schema = schema
        self._schemas: dict[Dialect, _Schema] = {}
        self._twin: Any = None

    def __repr__(self) -> str:
        return f"OutputType({self.name})"

    @property
    def is_wrapped(self) -> bool:
        """Whether the value stands under `value` in the JSON that the model writes."""
        return self._is_wrapped

    def schema(self, dialect: Dialect = "strict") -> _Schema:
        """Return the schema.

        Raises:
            SchemaError: strict mode cannot say it; with every reason.
        """
        made = self._schemas.get(dialect)
        if made is None:
            made = self._schema
            if dialect == "strict":
                made = strict(made)
                root = "$.value" if self._is_wrapped else "$"
                found = [*_unset_fields(self.wanted, root), *problems_of(made)]
                if found:
                    raise SchemaError(_name_of(self.wanted), found)
            self._schemas[dialect] = made
        return made

    def response_format(self, dialect: Dialect = "strict") -> dict[str, Any]:
        """Return what the field `response_format` of a request holds."""
        if dialect == "json_object":
            return {"type": "json_object"}
        schema: dict[str, Any] = {"name": self.name, "schema": self.schema(dialect)}
        if dialect == "strict":
            schema["strict"] = True
        return {"type": "json_schema", "json_schema": schema}

    def instructions(self, dialect: Dialect = "strict") -> str | None:
        """Return what the system message has to say, for servers that know no schema."""
        if dialect != "json_object":
            return None
        text = msgspec.json.encode(self.schema(dialect)).decode()
        return (
            f"Answer with one JSON object, and nothing else, that fits this JSON Schema:\n{text}"
        )

    def decode(self, text: str | bytes) -> _T:
        """Return the value that JSON text holds.

        Raises:
            OutputMismatch: it is no JSON, or does not fit; the message has the path.
        """
        try:
            return self._decode(text)
        except _UNREADABLE as error:
            raise _mismatch(f"the answer does not fit {self.name}", error) from None

    @property
    def is_list(self) -> bool:
        """Whether it is a list of something."""
        return get_origin(self.wanted) is list

    def element_decoder(self) -> Callable[[str], Any]:
        """Return what reads one element of the list that it is; raises `OutputMismatch` as `decode` does."""
        return output_type(get_args(self.wanted)[0]).decode_bare

    def decode_bare(self, text: str | bytes) -> _T:
        """Return the value that JSON text holds without the object that `decode` expects around it."""
        try:
            return self._decode_bare(text)
        except _UNREADABLE as error:
            raise _mismatch(f"the answer does not fit {self.name}", error) from None

    def partial(self, growing: PartialJSON) -> Any:  # noqa: ANN401  a twin of the type, or plain values
        """Return the value so far, or None where there is none yet."""
        try:
            value = growing.value()
        except ValueError:
            return None
        if self._is_wrapped:
            value = value.get("value") if isinstance(value, dict) else None
        if value is None:
            return None
        if self._twin is None:
            self._twin = partial_type(self.wanted)
        try:
            return msgspec.convert(value, self._twin, strict=False)
        except msgspec.ValidationError:
            return None  # what tells of which type it is has not come yet

    def _bare_decoder(self) -> Callable[[str | bytes], _T]:
        if _is_pydantic(self.wanted):
            validate: Callable[[str | bytes], _T] = cast("Any", self.wanted).model_validate_json
            return validate
        decode: Callable[[str | bytes], _T] = _decoder_of(self.wanted).decode
        return decode


_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)
"""What decoding raises for text that is no JSON or does not fit."""


def _mismatch(what: str, error: Exception) -> OutputMismatch:
    reason = printable(" ".join(str(error).split()))
    return OutputMismatch(f"{what}: {reason}")


def _decoder_of(type_: Any) -> msgspec.json.Decoder[Any]:  # noqa: ANN401  whatever stands in an annotation
    return msgspec.json.Decoder(type_, dec_hook=_decode_hook)


@lru_cache(maxsize=256)
def _known_output(type_: Any) -> OutputType[Any]:  # noqa: ANN401
    return OutputType(type_)


def output_type(type_: type[_T] | Any) -> OutputType[_T]:  # noqa: ANN401
    """Return the `OutputType` of a type, made once."""
    if isinstance(type_, OutputType):
        return type_
    try:
        return cast("OutputType[_T]", _known_output(cast("Any", type_)))
    except TypeError:  # an annotation that cannot be hashed
        return OutputType(type_)


def _name_of(type_: object) -> str:
    name = getattr(type_, "__name__", None)
    args = get_args(type_)
    if isinstance(name, str) and not args:
        return name
    origin = get_origin(type_)
    if origin is Annotated:
        return _name_of(args[0])
    if not args:
        return str(type_)
    parts = [name if isinstance(name, str) else "Union", *(_name_of(arg) for arg in args)]
    return "_".join(parts)


def _unset_fields(type_: object, root: str = "$") -> list[str]:
    """Fields that may be absent: strict mode makes a model fill every one, so None has to stand for nothing."""
    found: list[str] = []
    seen: set[object] = set()

    def walk(type_: object, path: str) -> None:
        inner = f"{path}.items" if get_origin(type_) in (list, set, frozenset, tuple) else path
        for arg in get_args(type_):
            walk(arg, inner)
        kind = get_origin(type_) or type_
        if not isinstance(kind, type) or kind in seen:
            return
        seen.add(kind)
        hints = get_type_hints(kind, include_extras=True) if is_typeddict(kind) else {}
        fields = fields_of(kind) or [(name, name, hint) for name, hint in hints.items()]
        for _, name, field in fields:
            if _may_be_unset(field):
                found.append(f"{path}.{name}: it may be absent (UNSET); use T | None instead")
            walk(field, f"{path}.{name}")

    walk(type_, root)
    return found


def _may_be_unset(type_: object) -> bool:
    args = get_args(type_)
    return msgspec.UnsetType in args or (get_origin(type_) is Annotated and _may_be_unset(args[0]))


# ---------------------------------------------------------------------------------------------- tools


class Tool:
    """A function that a model may call.

    Its signature is the schema: every parameter needs an annotation, and has its description from the docstring (Google,
    NumPy or Sphinx style, or plain `name: text` lines) or from `Annotated[T, msgspec.Meta(description=...)]`.

    Args:
        function: async or not. One that is not runs in a thread.
        name: what the model calls it; the function's own name otherwise.
        description: what the model is told; the docstring otherwise.
        timeout: seconds that one call may take.
        confirm: whether a run pauses before it calls it.

    Raises:
        SchemaError: a parameter without annotation, or with one that has no schema.
    """

    __slots__ = (
        "_arguments",
        "_decoder",
        "_schemas",
        "confirm",
        "description",
        "function",
        "name",
        "timeout",
    )

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        timeout: float | None = None,
        confirm: bool = False,
    ) -> None:
        self.function = function
        bare = _bare(function) if isinstance(function, functools.partial) else function
        self.name: str = name or str(getattr(bare, "__name__", type(bare).__name__))
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.name):
            raise SchemaError(self.name, ["a tool's name has 1 to 64 letters, digits, _ and -"])
        self.timeout = timeout
        self.confirm = confirm
        import docstring_parser  # only those who have tools pay for it

        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise SchemaError(self.name, [f"$: {error}"]) from None
        documented = docstring_parser.parse(inspect.getdoc(_bare(function)) or "")
        about, parameters = _described(documented, _names_of(function, signature))
        self.description = description if description is not None else about
        self._arguments, self._decoder = _arguments_of(function, signature, self.name, parameters)
        self._schemas: dict[bool, _Schema] = {}

    def __repr__(self) -> str:
        return f"Tool({self.name})"

    def definition(self, dialect: Dialect = "strict") -> dict[str, Any]:
        """Return what stands in the field `tools` of a request."""
        function: dict[str, Any] = {"name": self.name, "parameters": self.schema(dialect)}
        if self.description:
            function["description"] = self.description
        if dialect == "strict":
            function["strict"] = True
        return {"type": "function", "function": function}

    def schema(self, dialect: Dialect = "strict") -> _Schema:
        """Return the schema of its parameters.

        Raises:
            SchemaError: strict mode cannot say it; with every reason.
        """
        is_strict = dialect == "strict"
        made = self._schemas.get(is_strict)
        if made is None:
            made = schema_of(self._arguments)
            made.pop("title", None)
            if is_strict:
                made = strict(made)
                found = [*_unset_fields(self._arguments), *problems_of(made)]
                if found:
                    raise SchemaError(self.name, found)
            self._schemas[is_strict] = made
        return made

    def decode(self, arguments: str | bytes) -> dict[str, Any]:
        """Return the arguments that JSON text holds, checked, by parameter.

        Raises:
            OutputMismatch: it is no JSON, or does not fit; the message has the path.
        """
        try:
            decoded = self._decoder.decode(arguments or b"{}")
        except _UNREADABLE as error:
            raise _mismatch(f"the arguments do not fit {self.name}", error) from None
        return {name: getattr(decoded, name) for name in decoded.__struct_fields__}

    @property
    def is_async(self) -> bool:
        """Whether calling it gives something to await."""
        call = getattr(self.function, "__call__", None)  # noqa: B004  the method, not whether it can be called
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  the function's own
        """Call the function."""
        return self.function(*args, **kwargs)


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    confirm: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
    confirm: bool = False,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a function a `Tool`, with or without options: `@tool` and `@tool(confirm=True)` both do."""

    def make(function: Callable[..., Any]) -> Tool:
        return Tool(function, name=name, description=description, timeout=timeout, confirm=confirm)

    return make if function is None else make(function)


def _names_of(function: Callable[..., Any], signature: inspect.Signature) -> set[str]:
    """Return the names of all parameters, those that a partial has bound among them."""
    names = set(signature.parameters)
    while isinstance(function, functools.partial):
        function = function.func
        names |= set(inspect.signature(function).parameters)
    return names


def _described(documented: Any, names: set[str]) -> tuple[str, dict[str, str]]:  # noqa: ANN401  the parser's own
    """Return what a docstring says of a function, and of each of its parameters."""
    parameters = {
        one.arg_name: " ".join((one.description or "").split()) for one in documented.params
    }
    lines: list[str] = []
    for line in (documented.description or "").splitlines():
        name, colon, text = line.strip().partition(":")
        if colon and name in names and name not in parameters:
            parameters[name] = text.strip()
        else:
            lines.append(line)
    return "\n".join(lines).strip(), parameters


def _arguments_of(
    function: Callable[..., Any],
    signature: inspect.Signature,
    name: str,
    described: Mapping[str, str],
) -> tuple[type[msgspec.Struct], msgspec.json.Decoder[Any]]:
    """Return a struct with a field for each parameter of a function, and what decodes one."""
    hints = _hints_of(function, name)
    found: list[str] = []
    fields: list[tuple[str, Any, Any]] = []
    for parameter in signature.parameters.values():
        by_place = (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY)
        if parameter.kind in by_place:
            found.append(
                f"$.{parameter.name}: a model names each argument; it cannot be positional, * or **"
            )
            continue
        if parameter.name not in hints:
            found.append(f"$.{parameter.name}: it needs an annotation")
            continue
        kind = hints[parameter.name]
        text = described.get(parameter.name)
        if text and not _has_description(kind):
            kind = Annotated[kind, msgspec.Meta(description=text)]
        needed = parameter.default is parameter.empty
        default = msgspec.NODEFAULT if needed else _default(parameter.default)
        fields.append((parameter.name, kind, default))
    if found:
        raise SchemaError(name, found)
    try:
        made = msgspec.defstruct(
            name.replace("-", "_"), fields, forbid_unknown_fields=True, kw_only=True
        )
        return made, _decoder_of(made)
    except (TypeError, ValueError, RuntimeError, NameError) as error:
        raise SchemaError(name, [f"$: {error}"]) from None


def _bare(function: Any) -> Any:  # noqa: ANN401  whatever can be called
    """Return what holds the annotations and the docstring: a function, a method, or an object's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def _hints_of(function: Callable[..., Any], name: str) -> dict[str, Any]:
    """Return the annotations of a function's parameters. What it returns need not be known."""
    bare = inspect.unwrap(_bare(function))
    try:
        try:
            return get_type_hints(bare, include_extras=True)
        except NameError:
            stand_in: Any = functools.partial(bare)
            stand_in.__annotations__ = {
                key: kind for key, kind in bare.__annotations__.items() if key != "return"
            }
            return get_type_hints(
                stand_in, getattr(bare, "__globals__", None), include_extras=True
            )
    except (TypeError, NameError, AttributeError) as error:
        raise SchemaError(name, [f"$: {error}"]) from None


_PLAIN = (str, int, float, bool, bytes, tuple, frozenset, Enum, type(None))


def _default(value: object) -> Any:  # noqa: ANN401
    """A default for a field: msgspec takes others than plain ones only from a function."""
    return value if isinstance(value, _PLAIN) else msgspec.field(default_factory=lambda: value)


def _has_description(kind: object) -> bool:
    return get_origin(kind) is Annotated and any(
        isinstance(meta, msgspec.Meta) and meta.description for meta in get_args(kind)[1:]
    )
