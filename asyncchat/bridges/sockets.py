"""What a pipe needs of a websocket, whichever library it is of.

Not here: any library.
"""

from collections.abc import Awaitable, Callable

import msgspec

__all__ = ["Socket"]


class Socket(msgspec.Struct, frozen=True):
    """A websocket as two functions.

    `send` sends a text frame and returns when there is room for more. `receive` returns the next message, and None once the
    reader has left; it must be safe to cancel. An error out of `gone` says, from either, that the reader has left.
    """

    send: Callable[[str], Awaitable[object]]
    receive: Callable[[], Awaitable[str | bytes | None]]
    gone: tuple[type[Exception], ...] = (OSError, EOFError)
