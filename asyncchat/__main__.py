"""`asyncchat` and `python -m asyncchat`.

Not here: any command. This file has to run where the `cli` extra is missing, so that it can say so.
"""

import sys
from collections.abc import Sequence

__all__ = ["main"]

_EXTRA = frozenset({"cyclopts", "rich"})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; 2 with one sentence where the extra is missing."""
    try:
        from asyncchat.cli import main as run
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        sys.stderr.write(
            f"asyncchat: the command line needs {error.name}, which is not installed. "
            "Install it with: pip install 'asyncchat[cli]'\n"
        )
        return 2
    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
