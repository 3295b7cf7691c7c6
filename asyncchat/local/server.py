"""A local chat server as an async context: started, healthy, and gone when the block ends.

Not here: what the child does (`serve`), where the model comes from (`model`).
Law: when the block is left in any way, the child has ended and been reaped, and no pipe is open. Should this
process die without leaving the block, the child sees its stdin end and leaves by itself.
"""

import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import anyio
import msgspec
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from asyncchat.errors import printable
from asyncchat.local.model import SMOLLM2, LocalError, find_model, install_model
from asyncchat.local.serve import Failed, Options, Ready

__all__ = ["LocalServer", "local_server", "require_engine"]

# -P: a file called `random.py` in the user's directory must not become the child's.
_CHILD = ("-P", "-m", "asyncchat.local.serve")
_GRACE_SECONDS = 5.0
_LONGEST_LINE = 65536


def local_server(
    model: Path | str | None = None,
    *,
    port: int = 0,
    parallel: int = 4,
    context: int = 8192,
    threads: int | None = None,
    template: Path | str | None = None,
    api_key: str | None = None,
    ping_seconds: int = 30,
    start_seconds: float = 300.0,
) -> "LocalServer":
    """Return an async context that serves a model on 127.0.0.1.

        async with local_server() as server:
            client = AsyncChat(base_url=server.base_url, model=server.model)

    Args:
        model: A GGUF file; default SmolLM2-135M-Instruct out of the user's cache, fetched there if missing.
        port: Default a free one.
        parallel: How many answers are written at once; further requests wait in the server.
        context: Tokens of context in all, shared equally by `parallel` slots.
        threads: Default one per usable core but one; more are faster only where nothing else runs.
        template: A file with a chat template (Jinja) instead of the model's own.
        api_key: What the server asks for; default nothing.
        ping_seconds: How often a silent stream sends a comment.
        start_seconds: How long loading may take.

    Raises:
        LocalError: On entry: no llama.cpp for this platform, no model, or the server did not start.
        ValueError: At once: a number out of range.
    """
    if not 0 <= port <= 65535:
        raise ValueError(f"port must be 0 to 65535, not {port}")
    if parallel < 1 or context < parallel:
        raise ValueError("parallel must be at least 1, and context at least parallel")
    if threads is not None and threads < 1:
        raise ValueError(f"threads must be at least 1, not {threads}")
    return LocalServer(
        model=Path(model).absolute() if model else None,
        template=Path(template) if template else None,
        options=Options(
            model="",
            name=Path(model).stem if model else SMOLLM2.name,
            port=port,
            parallel=parallel,
            context=context,
            threads=threads or 0,
            api_key=api_key or "",
            ping_seconds=ping_seconds,
        ),
        start_seconds=start_seconds,
    )


class LocalServer:
    """A running server. `base_url` ends in /v1; `model` is the name to ask for; `pid` is the child's."""

    __slots__ = (
        "_log",
        "_model_path",
        "_options",
        "_process",
        "_start_seconds",
        "_template",
        "base_url",
        "model",
        "pid",
    )

    def __init__(
        self, *, model: Path | None, template: Path | None, options: Options, start_seconds: float
    ) -> None:
        self.base_url = ""
        self.model = options.name
        self.pid = 0
        self._model_path = model
        self._template = template
        self._options = options
        self._start_seconds = start_seconds
        self._process: Process | None = None
        self._log: IO[bytes] | None = None

    async def __aenter__(self) -> Self:
        if self._process is not None:
            raise RuntimeError("this local server is already running")
        require_engine()
        options = await self._complete_options()
        # A file, not a pipe: nobody has to drain it, and it is read only when the child fails.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115  closed by _stop
        try:
            # Shielded for its few milliseconds: cancelled in the middle, asyncio kills the child and may not reap it.
            with anyio.CancelScope(shield=True):
                self._process = await _spawn(self._log)
            assert self._process is not None
            self.pid = self._process.pid
            self.base_url = f"{await self._greet(self._process, options)}/v1"
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._stop()

    @property
    def is_running(self) -> bool:
        """Whether the child lives."""
        return self._process is not None and self._process.returncode is None

    async def wait(self) -> int:
        """Return the child's exit code once it has ended, which it does by itself only on a crash."""
        if self._process is None:
            raise RuntimeError("this local server is not running")
        return await self._process.wait()

    async def _complete_options(self) -> Options:
        path = self._model_path or find_model() or await install_model()
        if not path.is_file():
            raise LocalError(f"There is no model at {path}.")
        template = ""
        if self._template is not None:
            try:
                template = await anyio.Path(self._template).read_text(encoding="utf-8")
            except (OSError, ValueError) as error:
                raise LocalError(f"The chat template {self._template} cannot be read.") from error
        return msgspec.structs.replace(self._options, model=str(path), template=template)

    async def _greet(self, process: Process, options: Options) -> str:
        """Tell the child what to serve; return its address once it answers there."""
        assert process.stdin is not None
        assert process.stdout is not None
        with anyio.move_on_after(self._start_seconds):
            with suppress(anyio.BrokenResourceError, OSError):  # dead already: its log says why
                await process.stdin.send(msgspec.json.encode(options) + b"\n")
            try:
                line = await BufferedByteReceiveStream(process.stdout).receive_until(
                    b"\n", _LONGEST_LINE
                )
            except (anyio.IncompleteRead, anyio.EndOfStream) as error:
                raise LocalError(
                    f"The local server did not start: {self._last_words()}."
                ) from error
            message = msgspec.json.decode(line, type=Ready | Failed)
            if isinstance(message, Failed):
                raise LocalError(f"The local server did not start: {printable(message.reason)}.")
            return message.address
        raise LocalError(
            f"The local server did not load the model within {self._start_seconds:.0f} s.",
            hint="Close other programs, or allow more with start_seconds.",
        )

    def _last_words(self) -> str:
        assert self._log is not None
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return printable(lines[-1].rstrip(".")) if lines else "the child ended without a word"

    async def _stop(self) -> None:
        process, self._process = self._process, None
        log, self._log = self._log, None
        # Shielded, and short: SIGTERM ends the child at once even in the middle of loading, for it installs no
        # handler; the kill is for a machine so busy that this takes seconds.
        with anyio.CancelScope(shield=True):
            try:
                if process is not None:
                    await _end(process)
            finally:
                if log is not None:
                    log.close()


def require_engine() -> None:
    """Raise one sentence where llama.cpp is not installed.

    Raises:
        LocalError: Says for which platform, and what to do instead.
    """
    from importlib.util import find_spec

    if find_spec("xllamacpp") is None:
        import platform

        where = f"{platform.system() or sys.platform} {platform.machine()}".strip()
        raise LocalError(
            f"No local model here: xllamacpp is not installed for {where}.",
            hint="Install it with: pip install 'asyncchat[local]' (wheels exist for Linux x86_64 and aarch64, "
            "macOS arm64, Windows x64), or point --base-url (or OPENAI_BASE_URL) at a running server.",
        )


async def _spawn(log: IO[bytes]) -> Process:
    return await anyio.open_process(
        [sys.executable, *_CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        # Away from the terminal's Ctrl-C: stopping one answer must not stop the server under it.
        start_new_session=True,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


async def _end(process: Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.terminate()
        with anyio.move_on_after(_GRACE_SECONDS):
            await process.wait()
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
    await process.aclose()
