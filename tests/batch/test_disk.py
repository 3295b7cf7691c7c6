"""Disks that are full, read-only or too small: the batch stops cleanly, and goes on where there is room."""

import asyncio
import contextlib
import errno
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncchat import BatchRecord, JournalError
from asyncchat.testing import Reply
from tests.batch.conftest import Served, lines_of, prompts, read_into, recorded, timeless

ROOT = Path(__file__).parents[2]


@timeless
async def test_full_disk_stops_the_batch_and_what_was_given_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = os.write, 5000

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        if not left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = real(fd, data[:left])
        left -= done
        return done

    async with Served(lambda _: Reply().say("x").delay(0.1)) as served:
        given: list[BatchRecord] = []
        with pytest.raises(JournalError, match="No space left on device") as caught:  # noqa: PT012  it may come at the end
            async with served.client.batch(tmp_path, concurrency=8, fsync="never") as job:
                with monkeypatch.context() as patch:
                    patch.setattr(os, "write", write)
                    await read_into(given, job.run(prompts(300)))
        assert "make room and run the same again" in str(caught.value)
        assert job.stopped is not None
        assert job.stopped.reason == "journal"
        kept = recorded(tmp_path)
        assert {record.custom_id for record in given} <= set(kept)
        assert given
        assert 0 < len(kept) < len(served.server.requests) <= len(kept) + 2 * 8
        rest = await served.run(tmp_path, prompts(300))
        assert len(rest) == 300 - len(kept)
        assert not list(tmp_path.glob("torn-*"))
        assert len(lines_of(tmp_path)) == 300


@contextlib.contextmanager
def largest_file(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@timeless
async def test_file_that_may_not_grow_stops_the_batch_and_another_run_begins_another(
    tmp_path: Path,
) -> None:
    async with Served() as served:
        for _ in range(40):
            with contextlib.suppress(JournalError), largest_file(4000):
                await served.run(tmp_path, prompts(50), concurrency=2)
                break
        else:
            pytest.fail("it never came to an end")
        assert len(recorded(tmp_path)) == 50
        assert not list(tmp_path.glob("torn-*"))
        assert len(list(tmp_path.glob("done-*"))) > 3


_PROGRAM = """
import asyncio, os, sys
import anyio._backends._asyncio, asyncchat.batch.engine  # nobody may not read what is imported later
from asyncchat import AsyncChat, JournalError
client = AsyncChat(sys.argv[1], "key", "m")
if os.getuid() == 0:
    os.setgid(65534); os.setuid(65534)
async def main():
    async with client, client.batch(sys.argv[2]) as job:
        print(len([record async for record in job.run(["a", "b"])]))
try: asyncio.run(main())
except JournalError as error: print(error)
"""


def as_nobody(url: str, job: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, url, str(job)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def _open_way(path: Path) -> None:
    """Let nobody come as far as the directory of the test."""
    for parent in [path, *path.parents]:
        if parent.stat().st_uid == os.getuid() and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)


@pytest.mark.parametrize("made", [False, True])
async def test_directory_that_may_not_be_written_is_said_before_anything_is_sent(
    tmp_path: Path, made: bool
) -> None:
    _open_way(tmp_path)
    job = tmp_path / "job"
    if made:
        job.mkdir()
        (job / "lock").write_text("")
        (job / "lock").chmod(0o666)
    (job if made else tmp_path).chmod(0o555)
    try:
        async with Served() as served:
            said = await asyncio.to_thread(as_nobody, served.server.base_url, job)
            assert "Permission denied" in said
            assert str(job) in said
            assert served.server.requests == []
    finally:
        tmp_path.chmod(0o755)
        if made:
            job.chmod(0o755)


@timeless
async def test_directory_below_a_file_is_an_error_before_anything_is_sent(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    async with Served() as served:
        with pytest.raises(JournalError, match="cannot be written"):
            await served.run(tmp_path / "file" / "job", prompts(3))
        assert served.server.requests == []


_MOUNTED = """
import asyncio, subprocess, sys
from asyncchat import AsyncChat, JournalError
size, url, place = sys.argv[1:]
done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place])
if done.returncode: sys.exit(77)
async def main():
    found = 0
    async with AsyncChat(url, "key", "m") as client, client.batch(f"{place}/job", concurrency=4) as job:
        try:
            async for record in job.run(f"p{n}" for n in range(500)): found += 1
        except JournalError as error:
            print(error)
        assert job.stopped.reason == "journal", job.stopped
    return found
found = asyncio.run(main())
from collections.abc import Iterator
from pathlib import Path
from tests.batch.conftest import recorded
kept = len(recorded(Path(place) / "job"))
assert 0 < found <= kept, (found, kept)
subprocess.run(["mount", "-o", "remount,size=64m", place], check=True)
async def again():
    async with AsyncChat(url, "key", "m") as client, client.batch(f"{place}/job") as job:
        return len([record async for record in job.run(f"p{n}" for n in range(500))])
assert asyncio.run(again()) == 500 - kept
assert len(recorded(Path(place) / "job")) == 500
print("right")
"""


async def test_small_disk_stops_the_batch_and_a_larger_one_lets_it_go_on(tmp_path: Path) -> None:
    """Where one may mount: in a namespace of its own, so that nothing is left."""

    def play(url: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [
                "unshare",
                "-m",
                "-U",
                "-r",
                sys.executable,
                "-c",
                _MOUNTED,
                "64k",
                url,
                str(tmp_path),
            ],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    async with Served() as served:
        done = await asyncio.to_thread(play, served.server.base_url)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("nobody may mount here; the tests above fill a disk without it")
    assert done.returncode == 0, done.stderr
    assert "No space left on device" in done.stdout
    assert done.stdout.endswith("right\n")
