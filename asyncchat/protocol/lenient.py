"""JSON by forgiving rules, for the frames that the typed decode refuses.

Not here: what the values mean. Slower than msgspec by an order of magnitude and reached only after it said no:
lone surrogates, NaN, 1e400, raw control characters, invalid UTF-8, several values in one payload, end marks in
odd spellings, comments and field names that a gateway wrapped in `data:` once more.
"""

import json  # noqa: TID251  msgspec refuses what this module exists to read
import re
from typing import TypeVar, cast

__all__ = [
    "END_MARK",
    "NotJSON",
    "dump",
    "is_json",
    "mend_surrogates",
    "mend_value",
    "read_values",
    "split_json",
]

_T = TypeVar("_T")

END_MARK = object()
"""Stands for `[DONE]` among the values."""

_LONGEST_INTEGER = (
    4000  # digits; beyond it Python itself refuses, and nobody's count is that large
)
_DONE = re.compile(r"""["']?\s*\[\s*done\s*\]\s*["']?\s*(?=\n|\Z)""", re.IGNORECASE)
_NOISE = re.compile(r"(?:\s+|data:|:[^\n]*|\ufeff)+")
# A keepalive that forgot to be a comment: `data: ping`. No JSON begins so, and no sentence is one bare word.
_WORD = re.compile(
    r"(?!null\b|true\b|false\b)(?:[A-Za-z][\w.-]{0,31}|(?i:keep[ -]?alive|heart[ -]?beat))\s*\Z"
)
# What may stand at the end of JSON that was cut inside a number, a word or an escape.
_CUT = re.compile(
    r"(?:-?\d*\.?\d*(?:[eE][+-]?)?\d*|t(?:ru?)?|f(?:a(?:ls?)?)?|n(?:ul?)?|Na?|-?I[a-z]*|\\?u[0-9a-fA-F]{0,4})\s*\Z"
)


class NotJSON(ValueError):
    """The text is no JSON. `at_end` tells whether it stopped short rather than went wrong."""

    def __init__(self, reason: str, *, at_end: bool) -> None:
        super().__init__(reason)
        self.at_end = at_end


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) <= _LONGEST_INTEGER else float("inf")


_DECODER = json.JSONDecoder(strict=False, parse_int=_integer)


def read_values(payload: bytes | bytearray | memoryview) -> tuple[list[object], NotJSON | None]:
    """Return the JSON values in a payload, `END_MARK` for an end mark, and what stopped the reading, if anything.

    `null`, comments and bare words that can only be a keepalive are left out. Nothing follows an end mark.
    """
    text = str(payload, "utf-8", "replace")
    values: list[object] = []
    position = 0
    while True:
        if noise := _NOISE.match(text, position):
            position = noise.end()
        if position >= len(text) or _WORD.match(text, position):
            return values, None
        if _DONE.match(text, position):
            return [*values, END_MARK], None
        try:
            value, position = _DECODER.raw_decode(text, position)
        except json.JSONDecodeError as error:
            unterminated = error.msg.startswith("Unterminated")
            at_end = unterminated or _CUT.match(text, error.pos) is not None
            return values, NotJSON(error.msg, at_end=at_end)
        except RecursionError:
            return values, NotJSON("nested too deep", at_end=False)
        if isinstance(value, str) and _DONE.fullmatch(value):
            return [*values, END_MARK], None
        if value is not None and value != "":
            values.append(value)


def mend_surrogates(text: str, *, more_may_come: bool = False) -> tuple[str, str]:
    """Return text that encodes, and a trailing half that a later piece may complete.

    A pair that came as two JSON escapes in two pieces becomes its character, a half without partner U+FFFD.
    """
    held = ""
    if more_may_come and text and "\ud800" <= text[-1] <= "\udbff":
        text, held = text[:-1], text[-1]
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"), held


def mend_value(value: _T, but: frozenset[str] = frozenset()) -> _T:
    """Return a decoded value whose every string encodes, but for those under the keys in `but`."""
    made: object = value
    if isinstance(value, str):
        made = value if value.isascii() else mend_surrogates(value)[0]
    elif isinstance(value, list):
        made = [mend_value(item, but) for item in value]
    elif isinstance(value, dict):
        made = {
            mend_value(key): item
            if key in but and isinstance(item, str)
            else mend_value(item, but)
            for key, item in value.items()
        }
    return cast("_T", made)


def dump(value: object) -> str:
    """Return JSON text of a decoded value, with its keys in the order they came."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text if text.isascii() else mend_surrogates(text)[0]


def is_json(text: str) -> bool:
    """Tell whether `text` is one whole JSON value. Raw control characters in strings are allowed."""
    values = split_json(text)
    return values is not None and len(values) == 1


def split_json(text: str) -> list[tuple[str, object]] | None:
    """Return the JSON values that `text` is a row of, each with its own text, or None where it is no such row."""
    values: list[tuple[str, object]] = []
    position, text = 0, text.strip()
    while position < len(text):
        try:
            value, end = _DECODER.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError):
            return None
        values.append((text[position:end], value))
        while end < len(text) and text[end].isspace():
            end += 1
        position = end
    return values
