"""The command line: what a person types, and what comes back.

Not here: anything the core would need. Results go to stdout, everything else to stderr. Exit codes: 0 ok,
1 failure, 2 usage, 3 some answers failed, 130 Ctrl-C; `batch` has more. Commands are imported when they are called, so that
`asyncchat --help` loads no HTTP library.
"""

import io
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from asyncchat._version import __version__
from asyncchat.cli.terminal import ARGUMENTS, TYPED, UsageError, complain
from asyncchat.errors import AsyncChatError, JournalError

__all__ = ["main"]

_COMMANDS = {
    "batch": "Ask everything in a file, and lose nothing whatever happens.",
    "chat": "Ask a model; with no prompt, talk with it.",
    "demo": "Watch a real model on this machine answer: one question, then eight at once.",
    "local": "Serve a small model on this machine; no key, no account.",
}


def main(arguments: Sequence[str] | None = None, *, typed: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code.

    Args:
        arguments: Default `sys.argv[1:]`.
        typed: What a person typed, where that was another command, which calls this one.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # a model may answer in letters the terminal lacks
    given = sys.argv[1:] if arguments is None else list(arguments)
    ARGUMENTS.set(tuple(given))
    TYPED.set(tuple(given if typed is None else typed))
    try:
        result = _app()(
            given,
            exit_on_error=False,
            print_error=False,
        )
    except CycloptsError as error:
        complain(f"{error} Try: asyncchat --help")
        return 2
    except UsageError as error:
        complain(str(error))
        return 2
    except AsyncChatError as error:
        complain(str(error))
        return 5 if isinstance(error, JournalError) else 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough: `asyncchat chat ... | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    return result if isinstance(result, int) else 0


def _app() -> App:
    app = App(
        name="asyncchat",
        help="The asyncio-first client for every server that speaks the OpenAI Chat Completions format.",
        version=__version__,
        version_flags=["--version"],
        help_format="plaintext",
        default_parameter=Parameter(show_default=False),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    for name, help_text in _COMMANDS.items():
        app.command(f"asyncchat.cli.{name}:command", name=name, help=help_text)
    return app
