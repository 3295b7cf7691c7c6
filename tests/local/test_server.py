"""`local.server`: the life of the child process, with small stand-ins for it wherever that is enough."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from asyncchat.local import LocalError, find_model, local_server
from asyncchat.local import server as module

READ = "import json, sys, time; options = json.loads(sys.stdin.readline()); "
SAY = "print(json.dumps({'type': 'ready', 'address': 'http://127.0.0.1:9'}), flush=True); "
WAIT = "sys.stdin.read()"

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="looks at POSIX process ids")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(b"GGUF")
    return path


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    monkeypatch.setattr(module, "require_engine", lambda: None)

    def use(code: str) -> None:
        monkeypatch.setattr(module, "_CHILD", ("-c", code))

    return use


def is_alive(pid: int) -> bool:
    """Also true for a zombie, so False means: ended and reaped."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def children() -> list[str]:
    """Zombies included. A thread that ends while we look has none."""
    found: list[str] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += (task / "children").read_text().split()
    return found


def open_files() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


async def test_leaving_the_block_ends_and_reaps_the_child(
    weights: Path, child: Callable[[str], None]
) -> None:
    child(READ + SAY + WAIT)
    async with local_server(weights) as server:
        assert server.base_url == "http://127.0.0.1:9/v1"
        assert server.model == "tiny"
        assert server.is_running
        assert is_alive(server.pid)
    assert not server.is_running
    assert not is_alive(server.pid)


async def test_options_reach_the_child_by_stdin_and_never_as_arguments(
    weights: Path, tmp_path: Path, child: Callable[[str], None]
) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    seen = tmp_path / "seen"
    child(READ + f"open({str(seen)!r}, 'w').write(repr([options, sys.argv])); " + SAY + WAIT)
    async with local_server(
        weights, api_key="secret", template=tmp_path / "t.jinja", parallel=2, threads=3
    ):
        options, arguments = eval(seen.read_text())
    assert arguments == ["-c"]
    assert options == {
        "model": str(weights),
        "name": "tiny",
        "port": 0,
        "parallel": 2,
        "context": 8192,
        "threads": 3,
        "template": "{{ messages }}",
        "api_key": "secret",
        "ping_seconds": 30,
    }


async def test_error_in_the_block_ends_the_child(
    weights: Path, child: Callable[[str], None]
) -> None:
    child(READ + SAY + WAIT)
    server = local_server(weights)
    with pytest.raises(ZeroDivisionError):
        async with server:
            raise ZeroDivisionError
    assert not is_alive(server.pid)


async def test_cancellation_in_the_block_ends_the_child(
    weights: Path, child: Callable[[str], None]
) -> None:
    child(READ + SAY + WAIT)
    server = local_server(weights)
    with anyio.move_on_after(5) as scope:
        async with server:
            scope.cancel()
            await anyio.sleep_forever()
    assert not is_alive(server.pid)


async def test_cancellation_while_the_model_loads_ends_the_child(
    weights: Path, child: Callable[[str], None]
) -> None:
    child(READ + "time.sleep(100)")
    server = local_server(weights)
    with anyio.move_on_after(0.3) as scope:
        async with server:
            pytest.fail("it never became ready")
    assert scope.cancelled_caught
    assert server.pid
    assert not is_alive(server.pid)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="counts children in /proc")
async def test_cancellation_at_any_moment_leaves_no_child_and_no_file(
    weights: Path, child: Callable[[str], None]
) -> None:
    child(READ + "time.sleep(0.02); " + SAY + WAIT)
    async with local_server(weights):
        pass  # what the loop opens once and keeps
    before, others = open_files(), children()
    for step in range(20):
        with anyio.move_on_after(step * 0.006):
            async with local_server(weights):
                await anyio.sleep_forever()
        assert children() == others
    gc.collect()
    assert open_files() == before


async def test_child_that_ignores_the_polite_signal_is_killed(
    weights: Path, child: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_GRACE_SECONDS", 0.1)
    child(
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        + READ
        + SAY
        + "time.sleep(100)"
    )
    async with local_server(weights) as server:
        pass
    assert not is_alive(server.pid)


async def test_child_that_is_too_slow_is_ended_with_one_sentence(
    weights: Path, child: Callable[[str], None]
) -> None:
    child(READ + "time.sleep(100)")
    server = local_server(weights, start_seconds=0.2)
    with pytest.raises(LocalError, match="did not load the model within 0 s"):
        await server.__aenter__()
    assert not is_alive(server.pid)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise SystemExit('no such library')", "no such library"),
        ("pass", "ended without a word"),
        (READ + "print(json.dumps({'type': 'failed', 'reason': 'out of luck'}))", "out of luck"),
        ("import os; os.write(2, b'bad \\x1b[31m news\\n')", r"bad \\x1b\[31m news"),
    ],
)
async def test_child_that_fails_gives_its_reason_in_one_line(
    weights: Path, child: Callable[[str], None], code: str, words: str
) -> None:
    child(code)
    with pytest.raises(LocalError, match=f"did not start: .*{words}") as caught:
        await local_server(weights).__aenter__()
    assert "\n" not in str(caught.value)


async def test_child_that_dies_later_is_seen(weights: Path, child: Callable[[str], None]) -> None:
    child(READ + SAY + "sys.exit(7)")
    async with local_server(weights) as server:
        assert await server.wait() == 7
        assert not server.is_running


async def test_many_starts_and_stops_leave_no_file_open(
    weights: Path, child: Callable[[str], None]
) -> None:
    child(READ + SAY + WAIT)
    async with local_server(weights):
        pass  # what the loop opens once and keeps
    before = open_files()
    for _ in range(5):
        async with local_server(weights):
            pass
        with pytest.raises(LocalError):
            await local_server(weights, start_seconds=0).__aenter__()
    gc.collect()  # a forgotten pipe would warn here, and warnings are errors
    assert open_files() == before


async def test_entering_twice_is_misuse(weights: Path, child: Callable[[str], None]) -> None:
    child(READ + SAY + WAIT)
    async with local_server(weights) as server:
        with pytest.raises(RuntimeError, match="already running"):
            await server.__aenter__()
        assert is_alive(server.pid)
    with pytest.raises(RuntimeError, match="not running"):
        await server.wait()


async def test_one_object_can_serve_again(weights: Path, child: Callable[[str], None]) -> None:
    child(READ + SAY + WAIT)
    server = local_server(weights)
    async with server:
        first = server.pid
    async with server:
        assert server.pid != first


async def test_missing_files_are_named(
    tmp_path: Path, weights: Path, child: Callable[[str], None]
) -> None:
    child("raise SystemExit('never started')")
    with pytest.raises(LocalError, match=r"no model at .*none\.gguf"):
        await local_server(tmp_path / "none.gguf").__aenter__()
    with pytest.raises(LocalError, match=r"template .*none\.jinja cannot be read"):
        await local_server(weights, template=tmp_path / "none.jinja").__aenter__()


@pytest.mark.parametrize(
    "options",
    [
        {"port": 65536},
        {"port": -1},
        {"parallel": 0},
        {"parallel": 9, "context": 8},
        {"threads": 0},
    ],
)
def test_numbers_out_of_range_are_misuse(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be"):
        local_server(**options)  # type: ignore[arg-type]  # every one of them is a number


async def test_platform_without_the_engine_is_one_sentence_that_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("platform.system", lambda: "Plan9")
    monkeypatch.setattr("platform.machine", lambda: "mips")
    with pytest.raises(LocalError) as caught:
        await local_server().__aenter__()
    text = str(caught.value)
    assert text.startswith("No local model here: xllamacpp is not installed for Plan9 mips.")
    assert "pip install 'asyncchat[local]'" in text
    assert "--base-url" in text


@pytest.mark.local
async def test_real_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = (
        "import anyio\nfrom asyncchat.local import local_server\n"
        "async def main():\n"
        "    async with local_server() as server:\n"
        "        print(server.pid, flush=True)\n"
        "        await anyio.sleep_forever()\n"
        "anyio.run(main)\n"
    )
    parent = await anyio.open_process([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    pid = int(await parent.stdout.receive())
    parent.send_signal(signal.SIGKILL)
    await parent.aclose()
    until = time.monotonic() + 30
    while _runs(pid) and time.monotonic() < until:
        await anyio.sleep(0.02)
    assert not _runs(pid)


@pytest.mark.local
async def test_real_child_says_what_is_wrong_with_its_model(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model at all")
    with pytest.raises(LocalError, match=r"did not start: .*bad\.gguf is no GGUF model"):
        await local_server(bad).__aenter__()
    bad.write_bytes(b"GGUF and then nothing of use")
    with pytest.raises(LocalError, match=r"did not start: llama\.cpp cannot load bad\.gguf"):
        await local_server(bad).__aenter__()


@pytest.mark.local
async def test_real_child_says_that_a_port_is_taken() -> None:
    assert find_model(), "asyncchat local install"
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        with pytest.raises(LocalError, match=f"port {port} is taken"):
            await local_server(port=port).__aenter__()


@pytest.mark.local
async def test_real_child_survives_the_terminals_interrupt() -> None:
    async with local_server(context=512, parallel=1) as server:
        os.kill(server.pid, signal.SIGINT)
        with anyio.move_on_after(0.3):
            await server.wait()
        assert server.is_running


def _runs(pid: int) -> bool:
    """Whether it runs; an orphan that no init reaps stays as a zombie here, which is not ours to mend."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
