"""What a batch is asked: one item for each input, or the reason why an input is none.

Not here: files (`source`), sending. What is wrong with an input is said without a word of it: only names of columns and fields
that the layout or the format has are told.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from hashlib import blake2b
from math import isfinite
from typing import Any, Literal, cast

import msgspec

from asyncchat.protocol.request import ChatRequest

__all__ = [
    "INVALID",
    "BadItem",
    "Item",
    "Layout",
    "bad_line",
    "canonical",
    "columns_of",
    "identity",
    "item_of",
    "item_of_row",
]

INVALID = "invalid_line"
"""The `code` of an input that cannot be asked."""

_LONGEST_KEY = 512
_END_OF_URL = "/chat/completions"
_BRACES = re.compile(r"\{\{|\}\}|\{([^{}]+)\}|[{}]")


class Item(msgspec.Struct):
    """One input that can be asked. `body` holds the request's fields.

    `n` is its place, from 1: the line of a text file (blank ones are counted), the record of a table, else the how-manieth it is.
    `key` names it for good.
    """

    n: int
    key: str
    body: dict[str, Any]


class BadItem(msgspec.Struct, frozen=True):
    """One input that cannot be asked; `code` and `message` say why. It becomes an error record, and the batch goes on."""

    n: int
    key: str
    code: str
    message: str


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """How inputs become requests.

    Without a word, an input is a line of OpenAI's batch format, a body with `messages`, or an object with a `prompt`, whose other
    fields go into the request.

    Args:
        format: of a file; None goes by its suffix, and takes what has none for `jsonl`.
        prompt: a template of the user's message over columns: `"Classify: {text}"`. `{{` and `}}` are braces; a value that is no
            text is written as JSON.
        system: likewise, of a message put before all others.
        messages_column: a column that holds the messages, as a list or as the JSON of one. Not together with `prompt`.
        id_column: a column that names the input, where it has no `custom_id`.
        max_body: the largest request, in bytes, and the longest line.

    Raises:
        ValueError: it says two things at once, or a template has a brace too few.
    """

    format: Literal["jsonl", "csv", "parquet"] | None = None
    prompt: str | None = None
    system: str | None = None
    messages_column: str | None = None
    id_column: str | None = None
    max_body: int = 20 * 2**20

    def __post_init__(self) -> None:
        if self.format not in {None, "jsonl", "csv", "parquet"}:
            raise ValueError(f"format is {self.format!r}; it has to be jsonl, csv or parquet.")
        if self.prompt is not None and self.messages_column is not None:
            raise ValueError(
                "prompt and messages_column both say what is asked: leave one of them out."
            )
        if self.prompt == "":
            raise ValueError("prompt is empty: write a template, such as '{text}'.")
        if self.max_body < 1:
            raise ValueError(f"max_body is {self.max_body}; it has to be at least 1 (bytes).")
        for template in (self.prompt, self.system):
            if template is not None:
                _parts(template)


_ANY = Layout()


def columns_of(layout: Layout) -> list[str]:
    """Return the columns that a layout names, each once."""
    named = [
        part
        for template in (layout.prompt, layout.system)
        if template is not None
        for is_column, part in _parts(template)
        if is_column
    ]
    named += [name for name in (layout.messages_column, layout.id_column) if name is not None]
    return list(dict.fromkeys(named))


def item_of(n: int, value: object, layout: Layout, kind: str = "input") -> Item | BadItem:
    """Return the item of one value of a program's: what a line may be, a row for the template, a str, or a list of messages.

    The item holds a copy, made of what JSON knows: message objects become dicts. `kind` is what a reason calls the input.
    """
    key = f"line-{n}"
    try:
        row = _as_row(value)
        key = _key(row, layout, key)
        body = _body(_plain(row, layout), layout)
    except _Unusable as error:
        return BadItem(n, key, INVALID, f"{kind} {n}: {error}")
    return Item(n, key, body)


def item_of_row(n: int, row: dict[str, Any], layout: Layout, kind: str) -> Item | BadItem:
    """Return the item of a decoded line or record, which is taken apart for it."""
    key = f"line-{n}"
    try:
        key = _key(row, layout, key)
        body = _body(row, layout)
    except _Unusable as error:
        return BadItem(n, key, INVALID, f"{kind} {n}: {error}")
    return Item(n, key, body)


def bad_line(n: int, reason: str, custom_id: object, kind: str) -> BadItem:
    """Return what stands for a line that could not be decoded. It is named by its `custom_id`, if that is one."""
    key = f"line-{n}"
    with suppress(_Unusable):
        key = _key({"custom_id": custom_id}, _ANY, key)
    return BadItem(n, key, INVALID, f"{kind} {n}: {reason}")


def canonical(body: dict[str, Any]) -> bytes:
    """Return a body as JSON that is the same for the same fields in any order.

    Raises:
        TypeError: it holds what JSON cannot.
    """
    return _sorted(body)


def identity(whole: bytes) -> str:
    """Return the 128-bit hash of a canonical body, in hex."""
    return blake2b(whole, digest_size=16).hexdigest()


_sorted = msgspec.json.Encoder(order="deterministic").encode


class _Unusable(Exception):
    """Why an input cannot be asked, as a clause after its number."""


# --------------------------------------------------------------------------------------------- keys


def _key(row: Mapping[str, Any], layout: Layout, otherwise: str) -> str:
    if "custom_id" in row:
        name, value = "custom_id", row["custom_id"]
    elif layout.id_column is None:
        return otherwise
    else:
        name = layout.id_column
        if name not in row:
            raise _Unusable(f"it has no {name!r} to be named by")
        value = row[name]
    if type(value) is int:
        return str(value)
    if not isinstance(value, str):
        raise _Unusable(f"its {name!r} is {_kind(value)}; it has to be text or a whole number")
    if not value:
        raise _Unusable(f"its {name!r} is empty")
    if len(value) > _LONGEST_KEY:
        raise _Unusable(f"its {name!r} is longer than {_LONGEST_KEY} characters")
    _check_text(value, name)
    return value


# ------------------------------------------------------------------------------------------- bodies


def _body(row: dict[str, Any], layout: Layout) -> dict[str, Any]:
    system = None if layout.system is None else _render(layout.system, row, layout)
    if layout.prompt is not None:
        body: dict[str, Any] = {"messages": _asked(_render(layout.prompt, row, layout))}
    elif layout.messages_column is not None:
        body = {"messages": _from_column(row, layout.messages_column)}
    elif "body" in row:
        body = _from_batch_line(row)
    elif "messages" in row:
        body = _fields(row, layout)
    elif "prompt" in row:
        body = _fields(row, layout)
        prompt = body.pop("prompt")
        body["messages"] = prompt if isinstance(prompt, list) else _asked(prompt)
    else:
        raise _Unusable("it has no messages and no prompt")
    messages = body.get("messages")
    _check_messages(messages)
    if system is not None:
        body["messages"] = [{"role": "system", "content": system}, *cast("list[Any]", messages)]
    return body


def _fields(row: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """Leave the fields of the request: what names the input is none."""
    row.pop("custom_id", None)
    if layout.id_column is not None:
        row.pop(layout.id_column, None)
    return row


def _from_batch_line(row: dict[str, Any]) -> dict[str, Any]:
    url, method, body = row.get("url"), row.get("method"), row["body"]
    if url is not None and not (isinstance(url, str) and url.endswith(_END_OF_URL)):
        raise _Unusable(f"its url does not end in {_END_OF_URL}, and nothing else can be asked")
    if method is not None and method != "POST":
        raise _Unusable("its method is not POST")
    if not isinstance(body, dict):
        raise _Unusable(f"its body is {_kind(body)}; it has to be an object")
    if "messages" not in body:
        raise _Unusable("its body has no messages")
    return body


def _from_column(row: dict[str, Any], column: str) -> object:
    value = _cell(row, column)
    if isinstance(value, str):
        try:
            return msgspec.json.decode(value)
        except (ValueError, RecursionError):
            raise _Unusable(f"its {column!r} is text that is not the JSON of messages") from None
    return value


def _asked(prompt: object) -> list[object]:
    if not isinstance(prompt, str):
        raise _Unusable(f"its prompt is {_kind(prompt)}; it has to be text or a list of messages")
    if not prompt:
        raise _Unusable("its prompt is empty")
    return [{"role": "user", "content": prompt}]


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list):
        raise _Unusable(f"its messages are {_kind(messages)}; they have to be a list")
    if not messages:
        raise _Unusable("its list of messages is empty")
    for position, message in enumerate(messages):
        if not isinstance(message, dict):
            raise _Unusable(f"messages[{position}] is {_kind(message)}; it has to be an object")
        if type(message.get("role")) is not str:
            raise _Unusable(f"messages[{position}] has no role")


# ---------------------------------------------------------------------------------------- templates


@lru_cache(maxsize=64)
def _parts(template: str) -> tuple[tuple[bool, str], ...]:
    """Return a template as texts and columns, in order; the bool tells a column."""
    made: list[tuple[bool, str]] = []
    end = 0
    for found in _BRACES.finditer(template):
        text, end = template[end : found.start()], found.end()
        token = found.group()
        if token in {"{", "}"}:
            raise ValueError(
                f"the template has a lone {token} at character {found.start() + 1}: "
                f"columns are written {{name}}, and a brace itself {token}{token}."
            )
        column = found.group(1)
        if column is None:
            text += token[0]
        if text:
            made.append((False, text))
        if column is not None:
            made.append((True, column))
    if rest := template[end:]:
        made.append((False, rest))
    return tuple(made)


def _render(template: str, row: dict[str, Any], layout: Layout) -> str:
    text = "".join(
        [
            _written(_cell(row, part), part) if is_column else part
            for is_column, part in _parts(template)
        ]
    )
    # A character takes four bytes at most, so that most texts need not be measured.
    if len(text) * 4 > layout.max_body and len(text.encode()) > layout.max_body:
        raise _too_large(layout.max_body)
    return text


def _cell(row: dict[str, Any], column: str) -> object:
    value = row.get(column)
    if value is None:
        raise _Unusable(f"its {column!r} is null" if column in row else f"it has no {column!r}")
    return value


def _written(value: object, column: str) -> str:
    if not isinstance(value, str):
        return msgspec.json.encode(value).decode()
    _check_text(value, column)
    return value


def _check_text(text: str, column: str) -> None:
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise _Unusable(f"its {column!r} {_why_no_text(error)}") from None


def _why_no_text(error: UnicodeEncodeError) -> str:
    # Python's way to carry bytes that are no UTF-8 ("surrogateescape") has this range for itself.
    is_byte = 0xDC80 <= ord(error.object[error.start]) <= 0xDCFF
    return "is not UTF-8" if is_byte else "has half of a surrogate pair"


# ------------------------------------------------------------------------------------ Python values


def _plain(row: Mapping[Any, Any], layout: Layout) -> dict[str, Any]:
    """Return a row as a dict of what JSON knows, a copy all through."""
    if layout.prompt is not None or layout.messages_column is not None:
        # Whatever else a row has, an image say, is not asked for and need not be sayable.
        row = {name: row[name] for name in ("custom_id", *columns_of(layout)) if name in row}
    try:
        for name in ("messages", "prompt", layout.messages_column):
            if name in row:
                row = {**row, name: _settled(row[name])}
        encoded = msgspec.json.encode(row, enc_hook=_dumped)
        made: dict[str, Any] = msgspec.json.decode(encoded)
    except UnicodeEncodeError as error:
        raise _Unusable(f"a text in it {_why_no_text(error)}") from None
    except RecursionError:
        raise _Unusable("it is nested too deep") from None
    except (TypeError, ValueError):
        raise _Unusable("it holds something that cannot be written as JSON") from None
    if len(encoded) > layout.max_body:
        raise _too_large(layout.max_body)
    # msgspec writes NaN and the infinities as null.
    if b"null" in encoded and not _is_finite(row):
        raise _Unusable("a number in it is not finite, which JSON has no form for")
    return made


def _as_row(value: object) -> Mapping[Any, Any]:
    if isinstance(value, str):
        return {"prompt": value}
    if isinstance(value, (list, tuple)):
        return {"messages": value}
    if isinstance(value, Mapping):
        return value
    raise _Unusable(
        f"it is a {type(value).__name__}; it has to be a dict, a str or a list of messages"
    )


def _settled(messages: object) -> object:
    """Return messages with each object among them as the dict that is sent for it."""
    if not isinstance(messages, (list, tuple)) or all(type(part) is dict for part in messages):
        return messages
    if not all(isinstance(part, (Mapping, msgspec.Struct)) or _dumps(part) for part in messages):
        return messages  # what is wrong with it is said where all messages are checked
    request = ChatRequest(messages, {}, needs_model=False)
    return msgspec.json.decode(request.encode(stream=False))["messages"]


def _dumps(value: object) -> bool:
    return callable(getattr(value, "model_dump", None))


def _dumped(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    for name in ("tolist", "model_dump"):  # numpy, and so pandas; pydantic
        dump = getattr(value, name, None)
        if callable(dump):
            return dump()
    raise TypeError


def _is_finite(value: object) -> bool:
    if isinstance(value, float):
        return isfinite(value)
    if isinstance(value, Mapping):
        return all(_is_finite(part) for part in value.values())
    if isinstance(value, (list, tuple)):
        return all(_is_finite(part) for part in value)
    return True


# -------------------------------------------------------------------------------------------- words


def _too_large(max_body: int) -> _Unusable:
    return _Unusable(f"it is larger than {max_body:,} bytes (max_body)")


def _kind(value: object) -> str:
    """Return what JSON calls a value, with its article."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case list():
            return "a list"
        case _:
            return "an object"
