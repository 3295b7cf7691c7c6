"""A scripted Chat Completions server for tests, and a pytest fixture that starts one.

Not here: code. The names load on first use, because pytest imports this package in every run (`plugin`).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncchat.testing.reply import Reply
    from asyncchat.testing.server import ChatServer, Disconnect
    from asyncchat.testing.wire import ReceivedRequest

__all__ = ["ChatServer", "Disconnect", "ReceivedRequest", "Reply"]

_HOMES = {
    "ChatServer": "asyncchat.testing.server",
    "Disconnect": "asyncchat.testing.server",
    "ReceivedRequest": "asyncchat.testing.wire",
    "Reply": "asyncchat.testing.reply",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
