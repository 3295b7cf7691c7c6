"""`asyncchat batch run --procs N` and `--ray`: the same output, records and exit codes as with one process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest

from asyncchat.cli import main
from tests.batch.counting import Counting


@pytest.fixture
def counting() -> Iterator[Counting]:
    with Counting() as server:
        yield server


def command(tmp_path: Path, *more: str, inputs: int = 60) -> list[str]:
    lines = [{"custom_id": f"k{n}", "prompt": f"q{n}"} for n in range(inputs)]
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    return [
        *("batch", "run", str(source), str(tmp_path / "out.jsonl"), "--no-stream"),
        *("--progress", "none", "--model", "m", *more),
    ]


def start(arguments: list[str], **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "asyncchat", *arguments],
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0", **environment},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def answers(tmp_path: Path) -> dict[str, Any]:
    lines = (tmp_path / "out.jsonl").read_bytes().splitlines()
    found = [msgspec.json.decode(line) for line in lines]
    return {
        one["custom_id"]: one["response"]["body"]["choices"][0]["message"]["content"]
        for one in found
    }


EXPECTED = {f"k{n}": f"you said: q{n}" for n in range(60)}


def test_several_processes_write_what_one_would(tmp_path: Path, counting: Counting) -> None:
    endpoint = f"{counting.base_url},key-env=MY_KEY,model=m2,rpm=1000"
    given = command(tmp_path, "--procs", "2", "--endpoint", endpoint, "--concurrency", "8")
    with start(given, MY_KEY="sk-1") as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert "60" in said
    assert answers(tmp_path) == EXPECTED
    assert counting.keys == {"bearer sk-1"}
    assert counting.most_in_flight <= 8
    with start(given, MY_KEY="sk-1") as process:
        _, said = process.communicate(timeout=60)
    assert (process.returncode, counting.requests) == (0, 60)
    assert "60 inputs are recorded already" in said


@pytest.mark.slow
def test_interrupted_processes_finish_what_is_in_flight_and_go_on(
    tmp_path: Path, counting: Counting
) -> None:
    counting.latency = 0.1
    given = command(
        tmp_path, "--procs", "2", "--base-url", counting.base_url, "--concurrency", "4"
    )
    with start(given) as process:
        counting.wait_for(10)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130, said
    assert counting.requests < 60
    counting.latency = 0.0
    with start(given) as process:
        _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert answers(tmp_path) == EXPECTED
    assert set(counting.asked.values()) == {1}


def test_number_of_processes_that_is_none_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = command(tmp_path, "--procs", "0", "--base-url", "http://127.0.0.1:9/v1")
    assert main(given) == 2
    assert "from 1 up" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_ray_writes_what_one_process_would(tmp_path: Path, counting: Counting) -> None:
    given = command(tmp_path, "--ray", "local", "--base-url", counting.base_url)
    with start(given) as process:
        _, said = process.communicate(timeout=150)
    assert process.returncode == 0, said
    assert answers(tmp_path) == EXPECTED
    assert counting.requests == 60
