"""The embedded default: a real model served on loopback by llama.cpp, no key and no account.

Not here: the client.
Names only; nothing third-party is imported before it is needed.
"""

from asyncchat.local.model import (
    SMOLLM2,
    LocalError,
    ModelFile,
    cache_directory,
    find_model,
    install_model,
)
from asyncchat.local.server import LocalServer, local_server, require_engine

__all__ = [
    "SMOLLM2",
    "LocalError",
    "LocalServer",
    "ModelFile",
    "cache_directory",
    "find_model",
    "install_model",
    "local_server",
    "require_engine",
]
