"""One server as a user describes it, checked when it is described.

Not here: how it is doing (`lane`), connections.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from math import inf
from typing import Any, Literal, cast

import msgspec

from asyncchat.policy.credentials import Secret, checked_base_url, checked_headers
from asyncchat.policy.limits import checked_bound

__all__ = ["Endpoint", "Key", "KeySource"]

KeySource = str | Callable[[], str | Awaitable[str]]
"""A key, or a function (async or not) that is asked for one before each request."""

Key = Secret | Callable[[], str | Awaitable[str]]


class Endpoint(msgspec.Struct, frozen=True):
    """One server, and how much of it may be used.

    ```python
    Endpoint("https://a.example/v1", api_key=[KEY_1, KEY_2], model="large", rpm=500)
    Endpoint("https://name.openai.azure.com/openai/deployments/large", api_key=KEY, key_header="api-key",
             query={"api-version": "2024-10-21"})
    ```

    Args:
        url: up to and with `/v1`.
        api_key: a str, a function (async or not) that is asked before each request, or a list of these: each key has
            limits of its own, and one that is refused is left alone for a while. None sends none; the environment is
            not asked.
        model: what this server calls the model. A request that names no model takes this one. One that names a model
            goes to the endpoints of that name if there are any, else to those without one, else to all.
        weight: its share among endpoints that are equally busy.
        rpm: requests per minute and key.
        tpm: tokens per minute and key, estimated before a request and corrected by its usage.
        in_flight: requests at once, for each key.
        spare: used only while all the others are down.
        headers: sent with each request.
        query: put into each URL.
        key_header: what carries the key. `Authorization` gets `Bearer` before it; any other the key alone.
        dialect: how schemas are sent: `strict` as OpenAI wants them, `json_schema` as they are, `json_object` in words in
            the system message, for servers that know no schema.

    Raises:
        ValueError: a URL, key, header, weight or bound that cannot be right.
        TypeError: one of a wrong type.
    """

    url: str
    api_key: KeySource | Sequence[KeySource] | None = None
    model: str | None = None
    weight: float = 1.0
    rpm: int | None = None
    tpm: int | None = None
    in_flight: int | None = None
    spare: bool = False
    headers: Mapping[str, str] | None = None
    query: Mapping[str, str] | None = None
    key_header: str = "Authorization"
    dialect: Literal["strict", "json_schema", "json_object"] = "strict"

    def __post_init__(self) -> None:
        for name in ("rpm", "tpm", "in_flight"):
            bound: object = getattr(self, name)
            if bound is not None:
                checked_bound("Endpoint", name, bound)
        weight: object = self.weight
        if (
            isinstance(weight, bool)
            or not isinstance(weight, (int, float))
            or not 0 < weight < inf
        ):
            raise ValueError(f"Endpoint(weight={weight!r}): a weight is a number above 0.")
        for name, kind in (("model", str), ("spare", bool)):
            value: object = getattr(self, name)
            if value is not None and not isinstance(value, kind):
                raise TypeError(
                    f"Endpoint({name}={value!r}): it is a {kind.__name__}, not a {type(value).__name__}."
                )
        for name in ("headers", "query"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, Mapping):
                raise TypeError(
                    f"Endpoint({name}=...) is a {type(value).__name__}; it has to be a dict."
                )
        _check_query(self.query or {})
        if self.dialect not in ("strict", "json_schema", "json_object"):
            raise ValueError(
                f"Endpoint(dialect={self.dialect!r}): it is 'strict', 'json_schema' or 'json_object'."
            )
        checked_headers({self.key_header: ""})
        for name, checked in (
            ("url", checked_base_url(self.url, "url", "query", "headers")),
            ("headers", checked_headers(self.headers or {})),
            ("api_key", _keys(self.api_key)),
        ):
            msgspec.structs.force_setattr(self, name, checked)

    def __repr__(self) -> str:
        shown = [
            f", {name}={getattr(self, name)!r}"
            for name, default in _SHOWN.items()
            if getattr(self, name) != default
        ]
        many = f", {len(self.keys)} keys" if len(self.keys) > 1 else ""
        return f"Endpoint({self.url!r}{''.join(shown)}{many})"

    def __hash__(self) -> int:
        return hash((self.url, self.model))

    @property
    def keys(self) -> tuple[Key, ...]:
        """The keys: each a `Secret`, or a function that gives one."""
        return cast("tuple[Key, ...]", self.api_key)  # since it was checked


def _check_query(query: Mapping[Any, Any]) -> None:
    for key, value in query.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"Endpoint(query=...): {key!r} and its value have to be str.")


_SHOWN: dict[str, object] = {
    "model": None,
    "weight": 1.0,
    "rpm": None,
    "tpm": None,
    "in_flight": None,
    "spare": False,
}


def _keys(given: object) -> tuple[Key, ...]:
    if given is None:
        return ()
    many: Sequence[object] = given if isinstance(given, (list, tuple)) else (given,)
    return tuple(_key(key) for key in many if not isinstance(key, str) or key.strip())


def _key(given: object) -> Key:
    if isinstance(given, str):
        return Secret(given)
    if isinstance(given, Secret):
        return given
    if callable(given):
        return cast("Key", given)  # what it gives is checked when it does
    raise TypeError(
        f"api_key is a {type(given).__name__}; it has to be a str, a function, or a list of these."
    )
