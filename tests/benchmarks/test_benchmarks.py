"""Each benchmark runs in its quick form and prints its ratios. What they say is for a quiet machine to judge."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
SLOW = partial(pytest.param, marks=pytest.mark.slow)
PARSE = "asyncchat, with events ÷ msgspec, skipping everything"
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


def test_plot_of_results_is_well_formed_and_names_the_peers(tmp_path: Path) -> None:
    rows = {"bare aiohttp": 9.5, "asyncchat, events": 12.5, "openai, create(stream=True)": 150.0}
    case = {"rows": {row: {"min": value} for row, value in rows.items()}}
    document = {"cases": {"bunched, asyncio": case}}
    (tmp_path / "bench_stream.json").write_bytes(msgspec.json.encode(document))
    run("plot", str(tmp_path / "plot.svg"), "--results", str(tmp_path))
    drawn = ET.parse(tmp_path / "plot.svg").getroot()
    texts = {element.text for element in drawn.iter() if element.tag.endswith("text")}
    assert {"asyncchat", "openai", "150 \N{MICRO SIGN}s"} <= texts
