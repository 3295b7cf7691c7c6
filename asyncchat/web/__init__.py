"""The demo page: a chat in the browser, served on this machine.

Not here: the command that starts it (`cli.web`), the format of the stream (`bridges`).
Names only; aiohttp's server is imported when they are used.
"""

from asyncchat.web.app import About, make_app
from asyncchat.web.server import PageServer, listen

__all__ = ["About", "PageServer", "listen", "make_app"]
