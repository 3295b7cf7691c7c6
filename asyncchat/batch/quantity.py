"""How numbers and foreign words are written where a person reads them.

Not here: what they say, and where. Times are in seconds; numbers have three digits that count.
"""

from math import ceil

__all__ = ["UNKNOWN", "amount", "duration", "mebibytes", "number", "printable", "share", "span"]

UNKNOWN = "\N{EN DASH}"

_UNITS = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def number(value: float | None) -> str:
    """Return a count: `12,345`."""
    return UNKNOWN if value is None else f"{value:,.0f}"


def amount(value: float | None) -> str:
    """Return how much there is of something: `1.52`, `97.4 k`, `12.3 M`."""
    if value is None:
        return UNKNOWN
    for unit in ("", " k", " M"):
        if value < 999.5:
            return (f"{value:.0f}" if not unit and value == int(value) else _three(value)) + unit
        value /= 1000
    return f"{_three(value)} G"


def mebibytes(value: int) -> str:
    """Return a number of bytes: `46 MiB`."""
    return f"{value / 2**20:,.0f} MiB"


def duration(seconds: float | None) -> str:
    """Return a time: `182 ms`, `1.24 s`, `12 min 3 s`, `3 h 5 min`, `2 d 4 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds <= 0:
        return "0 s"
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} \N{MICRO SIGN}s"
    if seconds < 0.9995:
        return f"{_three(seconds * 1000)} ms"
    if seconds < 99.5:
        return f"{_three(seconds)} s"
    size, unit, step, small = next(u for u in _UNITS if seconds >= u[0] - u[2] / 2)
    whole, rest = divmod(round(seconds / step), size // step)
    return f"{whole} {unit} {rest} {small}" if rest else f"{whole} {unit}"


def span(low: float, high: float) -> str:
    """Return how long something may take, at least and at most: `6-8 min`."""
    size, unit = next((u[:2] for u in _UNITS if high >= 2 * u[0]), (1, "s"))
    least, most = int(low / size), max(1, ceil(high / size))
    return f"{most} {unit}" if least == most else f"{least}-{most} {unit}"


def share(some: float, whole: float) -> str:
    """Return a part in per cent. Only what is all is 100 %, and only nothing is 0 %."""
    if not whole or some <= 0:
        return "0 %"
    if some >= whole:
        return "100 %"
    percent = min(max(100 * some / whole, 0.1), 99.9)
    return f"{percent:.1f} %"


def printable(text: str, longest: int = 200) -> str:
    """Return foreign text in one line, without what moves a cursor or turns letters around."""
    if len(text) > longest:
        text = text[: longest - 1] + "…"
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def _three(value: float) -> str:
    """Return three digits that count, without an exponent."""
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
