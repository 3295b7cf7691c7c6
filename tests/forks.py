"""Programs in processes of their own, forked from one that has imported what takes long to import.

Not here: the programs. A fork ends as any process does: its interpreter takes everything apart and may complain of it.
Where nothing can fork, each program has an interpreter of its own from the start.

Run as a program, this is the process that forks: it executes its argument, and then a program for each line of its input.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

_ROOT = Path(__file__).parents[1]


class Done(NamedTuple):
    """How a program ended, and what it said."""

    returncode: int
    stdout: str
    stderr: str


class Forks:
    """Runs programs, one at a time: `imports` is executed once, before the first; `options` are the interpreter's."""

    def __init__(self, imports: str, *options: str) -> None:
        self._command = [sys.executable, *options]
        self._imports = imports

    def __enter__(self) -> Self:
        if hasattr(os, "fork"):
            command = [*self._command, "-m", "tests.forks", self._imports]
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_ROOT, bufsize=0
            )
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._asking, self._answering = self._process.stdin, self._process.stdout
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if hasattr(os, "fork"):
            self._process.communicate(timeout=10)

    def run(self, code: str, *arguments: str, seconds: float = 60) -> Done:
        """Run `code` as a program with these arguments in the environment of now.

        Raises:
            subprocess.TimeoutExpired: it did not end in time, and was killed.
        """
        if not hasattr(os, "fork"):
            command = [*self._command, "-c", code, *arguments]
            done = subprocess.run(
                command, cwd=_ROOT, capture_output=True, text=True, timeout=seconds, check=False
            )
            return Done(done.returncode, done.stdout, done.stderr)
        with tempfile.TemporaryDirectory() as directory:
            names = [os.path.join(directory, name) for name in ("stdout", "stderr")]
            program = [code, arguments, dict(os.environ), *names]
            self._asking.write(json.dumps(program).encode() + b"\n")
            pid = self._answer()
            if not select.select([self._answering], [], [], seconds)[0]:
                os.kill(pid, signal.SIGKILL)
                self._answer()
                raise subprocess.TimeoutExpired(code, seconds)
            return Done(self._answer(), *(Path(name).read_text() for name in names))

    def _answer(self) -> int:
        return int(self._answering.readline())


def _main() -> None:
    exec(sys.argv[1], {})
    for line in sys.stdin.buffer:
        code, arguments, environment, stdout, stderr = json.loads(line)
        if not (pid := os.fork()):
            return _become(code, arguments, environment, stdout, stderr)
        _say(pid)
        _say(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    return None


def _say(number: int) -> None:
    os.write(1, b"%d\n" % number)


def _become(
    code: str, arguments: list[str], environment: dict[str, str], stdout: str, stderr: str
) -> None:
    for number, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, stdout, os.O_CREAT | os.O_WRONLY),
        (2, stderr, os.O_CREAT | os.O_WRONLY),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, number)
        os.close(opened)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    # Among the names of the program, as with -c: what they hold lives until the interpreter ends.
    names: dict[str, Any] = vars(sys.modules["__main__"])
    exec(compile(code, "<string>", "exec"), names)


if __name__ == "__main__":
    _main()
