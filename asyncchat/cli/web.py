"""`asyncchat demo --web`: the demo as a page in the browser.

Not here: the page and its server (`asyncchat.web`), the choice of model (`target`).
"""

import errno
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

from asyncchat.cli.target import Opened, Sampling, Target, open_target
from asyncchat.cli.terminal import UsageError, complain, note, run, show

if TYPE_CHECKING:
    import socket

    from asyncchat.web import About

__all__ = ["PageOptions", "serve_page"]

_LOOPBACK = "127.0.0.1"
_PARALLEL = 4  # as many answers as the page asks for at once


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """Where the page is served. All of it is for `--web`."""

    port: Annotated[int | None, Parameter(help="With --web. Default a free one.")] = None
    host: Annotated[
        str | None,
        Parameter(help="With --web. Default 127.0.0.1, which only this machine reaches."),
    ] = None
    open: Annotated[
        bool, Parameter(help="With --web: open the page in your browser.", negative=())
    ] = False


def serve_page(target: Target, sampling: Sampling, options: PageOptions) -> int:
    """Serve the page until Ctrl-C.

    Raises:
        UsageError: The port is no port, or cannot be listened on.
        LocalError: There is no local model here.
    """
    host, port = options.host or _LOOPBACK, options.port or 0
    if not 0 <= port <= 65535:
        raise UsageError("--port is a number from 0 to 65535.")
    from asyncchat.web import listen

    try:
        listener = listen(
            host, port
        )  # first: what is wrong here is known before a model is loaded
    except OSError as error:
        raise UsageError(_why_not(error, host, port)) from error
    with listener:
        return run(_serve(target, sampling, options, listener))


async def _serve(
    target: Target, sampling: Sampling, options: PageOptions, listener: "socket.socket"
) -> int:
    from asyncchat.web import PageServer, make_app

    async with AsyncExitStack() as stack:
        if target.local:
            note("Starting a small model on this machine ...")
        opened = await open_target(target, sampling, stack, parallel=_PARALLEL)
        host = options.host or _LOOPBACK
        app = make_app(
            opened.client,
            _about(opened, target),
            host=host,
            fields=opened.fields,
            on_error=lambda error: complain(str(error)),
        )
        server = await stack.enter_async_context(PageServer(app, listener))
        show(f"{server.url}\n")
        note(f"The page above talks with {opened.model}. Ctrl-C ends it.")
        if host != _LOOPBACK:
            note("Everybody who reaches this address can use the model.")
        if options.open:
            import webbrowser

            if not await anyio.to_thread.run_sync(webbrowser.open, server.url):
                complain("No browser was found; open the address above yourself.")
        await anyio.sleep_forever()
    return 0


def _about(opened: Opened, target: Target) -> "About":
    from asyncchat.web import About

    if target.local:
        return About(
            model=opened.model,
            place="served on this machine by llama.cpp",
            remark="It is a very small model on this machine: fluent, and often wrong.",
        )
    return About(model=opened.model, place=f"at {opened.base_url}" if opened.base_url else "")


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"Port {port} is in use: choose another with --port, or none to get a free one."
    if error.errno == errno.EACCES:
        return f"Port {port} is not for everybody: choose one from 1024 up with --port."
    reason = str(error.strerror or error).partition(" (while")[0]
    return f"Cannot listen on {host}, port {port}: {reason}."
