"""Each benchmark runs in its quick form and prints its ratios. What they say is for a quiet machine to judge."""

import os
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
SLOW = partial(pytest.param, marks=pytest.mark.slow)
PARSE = "asyncchat, with events ÷ msgspec, skipping everything"
BATCH = "client.batch ÷ aiohttp + msgspec: streams, CPU"
LIST = "asyncchat, .items(): an answer of 40 kB ÷ 20 kB"


def run(module: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"benchmarks.{module}", *arguments]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONUTF8": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("module", "options", "ratio"),
    [
        ("bench_parse", ["--only", "content"], PARSE),
        ("bench_structured", ["--without", "openai"], LIST),
        ("bench_batch", ["--only", "streams"], BATCH),
        SLOW("bench_parse", [], PARSE),
        SLOW("bench_structured", [], LIST),
        SLOW("bench_request", [], "asyncchat ÷ aiohttp + msgspec"),
        SLOW("bench_stream", [], "asyncchat, events ÷ bare aiohttp"),
        SLOW("bench_pool", [], "asyncchat, a request with 10,000 in line ÷ with 100"),
        SLOW("bench_memory", [], "asyncchat ÷ bare aiohttp: an open stream"),
    ],
    ids=[
        "one case of parse",
        "structured without openai",
        "batch by hand and ours",
        "parse",
        "structured",
        "request",
        "stream",
        "pool",
        "memory",
    ],
)
def test_quick_run_prints_ratios_beside_their_goals(
    tmp_path: Path, module: str, options: list[str], ratio: str
) -> None:
    printed = run(module, "--quick", *options, "--results", str(tmp_path))
    line = next(line for line in printed.partition("Ratios")[2].splitlines() if ratio in line)
    assert "goal" in line
    assert "met" in line or "missed by" in line
    document = msgspec.json.decode((tmp_path / f"{module}.quick.json").read_bytes())
    assert document["machine"]["cores"] == os.cpu_count()
    assert "aiohttp" in document["versions"]
    assert document["cases"]
    assert f"benchmarks.{module} --quick" in document["command"]


def test_batch_finds_every_answer_and_counts_what_is_at_once(tmp_path: Path) -> None:
    run("bench_batch", "--quick", "--only", "plain", "--results", str(tmp_path))
    document = msgspec.json.decode((tmp_path / "bench_batch.quick.json").read_bytes())
    found = {name: case["rows"] for name, case in document["cases"].items()}
    for row in ("aiohttp + msgspec", "client.batch"):
        lines = found["plain, inputs"][row]["min"]
        assert found["plain, failed"][row]["values"] == [0]
        assert found["plain, again"][row]["values"] == [0]
        assert 1 < found["plain, at once"][row]["min"] <= lines
        assert found["plain, CPU"][row]["min"] > 0
        assert found["plain, memory"][row]["min"] > 5  # MB


def test_batch_program_that_cannot_run_is_named_with_its_reason() -> None:
    bench_batch = import_module("benchmarks.bench_batch")
    row = bench_batch.Row("no such program", plain=1)
    with pytest.raises(bench_batch.NotHereError, match="KeyError: 'no such program'"):
        bench_batch.run(row, sys.executable, "http://127.0.0.1:9", "plain", 1)


def test_batch_answers_count_only_where_the_text_is_whole(tmp_path: Path) -> None:
    bench_batch = import_module("benchmarks.bench_batch")
    frames = import_module("benchmarks.frames")
    text = "".join(frames.WORDS[i % len(frames.WORDS)] for i in range(bench_batch.TOKENS))
    lines = [{"custom_id": "a", "text": text}, {"custom_id": "b", "text": text[:-1]}]
    answers = b"".join(msgspec.json.encode(line) + b"\n" for line in [*lines, lines[0]])
    (tmp_path / "answers.jsonl").write_bytes(answers)
    assert bench_batch.answered(tmp_path) == 1
    assert bench_batch.answered(tmp_path / "answers.jsonl") == 1
    assert bench_batch.answered(tmp_path / "nothing") == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_process_tree_counts_and_ends_who_lost_its_parent() -> None:
    script = """
import os, subprocess, sys
from benchmarks import process_tree
process_tree.adopt_orphans()
watch = process_tree.Watch(leave=set())
grandchild = "import sys; sum(range(10**7)); print('', flush=True); sys.stdin.read()"
child = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {grandchild!r}])"
read, write = os.pipe()
kept, _ = os.pipe()
subprocess.run([sys.executable, "-c", child], stdin=kept, stdout=write, check=True)
os.read(read, 1)
print(len(watch.pids()), watch.cpu_seconds(without=0) > 0)
watch.end()
print(len(watch.pids()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["1", "True", "0"], done.stderr


def test_plot_of_results_is_well_formed_and_names_the_peers(tmp_path: Path) -> None:
    rows = {"bare aiohttp": 9.5, "asyncchat, events": 12.5, "openai, create(stream=True)": 150.0}
    case = {"rows": {row: {"min": value} for row, value in rows.items()}}
    document = {"cases": {"bunched, asyncio": case}}
    (tmp_path / "bench_stream.json").write_bytes(msgspec.json.encode(document))
    run("plot", str(tmp_path / "plot.svg"), "--results", str(tmp_path))
    drawn = ET.parse(tmp_path / "plot.svg").getroot()
    texts = {element.text for element in drawn.iter() if element.tag.endswith("text")}
    assert {"asyncchat", "openai", "150 \N{MICRO SIGN}s"} <= texts
