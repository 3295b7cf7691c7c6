"""What a user says of a server, checked before anything is sent: URL, key, headers.

Not here: the network. A key lives in a `Secret` from its first moment on.
"""

import re
from collections.abc import Mapping
from ipaddress import ip_address

from yarl import URL

__all__ = ["Secret", "checked_base_url", "checked_headers", "is_loopback"]


class Secret:
    """A key: readable by `reveal()`, and by nothing that prints, logs or pickles."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        value = value.strip()  # keys come out of files with a line end
        if not value.isascii() or not value.isprintable() or " " in value:
            raise ValueError(
                "api_key holds a character that no key has (a space, a line break, or one beyond ASCII)."
            )
        self._value = value

    def reveal(self) -> str:
        """Return the key itself."""
        return self._value

    def hide(self, text: str) -> str:
        """Return a text without the key."""
        return text.replace(self._value, "***")

    def __repr__(self) -> str:
        return "Secret(***)"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled")


def checked_base_url(
    text: str,
    name: str = "base_url",
    query: str = "default_query",
    headers: str = "default_headers",
) -> str:
    """Return a base URL without the path that we add ourselves.

    Args:
        text: the URL.
        name: what the caller calls it; `query` and `headers` are where else its parts could be given.
        query: see `name`.
        headers: see `name`.

    Raises:
        ValueError: it is no http(s) URL, or it holds a user name or password.
    """
    try:
        url = URL(text.strip())
    except (ValueError, AttributeError, TypeError):
        raise ValueError(f"{name} {text!r} is no URL; it looks like https://host/v1.") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise ValueError(
            f"{name} {text!r} needs http:// or https:// and a host, as in https://host/v1."
        )
    if url.user is not None or url.password is not None:
        raise ValueError(f"{name} holds a user name or password; pass api_key or {headers}.")
    if url.query_string or url.fragment:
        raise ValueError(f"{name} holds a query or fragment; pass {query} instead.")
    return str(url).rstrip("/").removesuffix("/chat/completions").rstrip("/")


_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_FORBIDDEN = frozenset({"host", "content-length", "transfer-encoding"})


def checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers that can be sent. A wrong one is named in the error; its value, which may be a key, is not.

    Raises:
        TypeError: a name or value is no str.
        ValueError: it holds what headers cannot, or belongs to the transport.
    """
    for name, value in headers.items():
        if not all(isinstance(part, str) for part in (name, value)):
            raise TypeError(f"header {name!r} has to be a str, and so has its value.")
        if name.lower() in _FORBIDDEN:
            raise ValueError(f"header {name!r} is set by the transport and cannot be given.")
        if not _TOKEN.fullmatch(name):
            raise ValueError(f"header {name!r} is no name that a header can have.")
        try:
            value.encode("latin-1")
        except UnicodeEncodeError:
            raise ValueError(f"header {name!r} holds a character that headers cannot.") from None
        if _CONTROL.search(value):
            raise ValueError(f"header {name!r} holds a line break or another control character.")
    return dict(headers)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine."""
    if host == "localhost":
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    return address.is_loopback or address.is_unspecified
