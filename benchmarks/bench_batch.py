"""A batch job from a file to a file, beside its peers. `python -m benchmarks.bench_batch`.

plain    5,000 inputs, answers of 64 tokens after 20 ms, 256 at once
streams  2,000 inputs, answers streamed in 64 events, 256 at once
slow     the two programs on Ray: answers of 64 tokens after 1 s, about what a model takes, 256 at once

Every value comes from a fresh process. Heavy peers get virtual environments of their own, `.venv/bench-PEER`, made when first needed;
`--without` leaves them out. CPU is of the whole process tree, from the first request of the program to the last answer in the file.
"""

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from benchmarks import batch_server, frames, peers, process_tree, report

HAND, OPENAI, RAY = "aiohttp + msgspec", "openai", "ray.data.llm"
BRIDGE = "asyncchat.bridges.ray"
OURS, COMMAND = "client.batch", "asyncchat batch run"
TOKENS = 64
AT_ONCE = 256
QUICK_LINES = 48
_PATIENCE_SECONDS = 600
_INSTALL_SECONDS = 900


@dataclass(frozen=True)
class Home:
    """An environment, by name, and what is in it."""

    name: str
    needs: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """One program: its name in `batch_peers`, and how many inputs it gets of each workload. What is printed is per input."""

    peer: str
    plain: int
    streams: int = 0
    slow: int = 0
    home: "Home | None" = None  # its own environment, else this one
    is_quick: bool = False
    is_slow: bool = False  # measured in the first round only
    is_cluster: bool = False  # starts processes of its own, which takes a good part of the job


LITELLM, CURATOR = Home("litellm", ("litellm",)), Home("curator", ("bespokelabs-curator",))
# The extra `data` does not bring all that `ray.data.llm` imports.
CLUSTER = Home(
    "ray", ("ray[data]", "typing_extensions", "pydantic", "aiohttp", f"-e{report.ROOT}")
)
ROWS = {
    HAND: Row("msgspec", 5000, 2000, is_quick=True),
    OURS: Row("asyncchat", 5000, 2000, is_quick=True),
    "with rare collections": Row("asyncchat-rare", 5000, 2000),
    COMMAND: Row("asyncchat-command", 5000, 2000),
    OPENAI: Row("openai", 1000, 256),
    "openai[aiohttp]": Row("openai-aiohttp", 1000, 256, is_slow=True),
    "litellm": Row("litellm", 500, 256, home=LITELLM, is_slow=True),
    "curator": Row("curator", 1000, home=CURATOR, is_slow=True),
    RAY: Row("ray", 2048, slow=512, home=CLUSTER, is_slow=True, is_cluster=True),
    BRIDGE: Row("ray-bridge", 20_000, 2000, 5000, home=CLUSTER, is_slow=True, is_cluster=True),
}


class Workload(NamedTuple):
    """What is asked: after how many milliseconds an answer begins, and what it is like."""

    milliseconds: int
    title: str


WORKLOADS = {
    "plain": Workload(20, f"answers of {TOKENS} tokens after 20 ms"),
    "streams": Workload(20, f"answers streamed in {TOKENS} events, the first after 20 ms"),
    "slow": Workload(1000, f"answers of {TOKENS} tokens after 1 s"),
}


class NotHereError(Exception):
    """A peer cannot be installed or run on this machine."""


# ---------------------------------------------------------------------------------- environments


def python_for(row: Row) -> str:
    """The interpreter that has what a row needs; makes its environment where there is none."""
    if not peers.usable(row.peer):
        raise NotHereError("not installed")
    if row.home is None:
        return sys.executable
    folder = report.ROOT / ".venv" / f"bench-{row.home.name}"
    python = folder / "bin" / "python"
    made = folder / "bench-needs.txt"
    needs = "\n".join(row.home.needs)
    if made.exists() and made.read_text(encoding="utf-8") == needs:
        return str(python)
    print(f"installing {', '.join(row.home.needs)} in {folder}", flush=True)
    venv.create(folder, clear=True, with_pip=True)
    # Nothing is built: a peer without a wheel for this Python would take a quarter of an hour, or a compiler.
    command = [python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"]
    try:
        subprocess.run(
            [*command, *row.home.needs],
            check=True,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NotHereError(f"pip took more than {_INSTALL_SECONDS} s") from None
    except subprocess.CalledProcessError as error:
        raise NotHereError(_last_line(error.stderr) or "pip failed") from None
    made.write_text(needs, encoding="utf-8")
    return str(python)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1][:200]


# -------------------------------------------------------------------------------------- the input


def write_source(path: Path, lines: int) -> None:
    """A file of OpenAI batch lines, no two alike."""
    with path.open("wb") as file:
        for n in range(lines):
            message = {"role": "user", "content": f"{peers.QUESTION} Number {n}."}
            line = {
                "custom_id": f"item-{n}",
                "method": "POST",
                "url": "/v1/chat/completions",
                "body": {"model": "m", "messages": [message]},
            }
            file.write(msgspec.json.encode(line) + b"\n")


class _Named(msgspec.Struct):
    custom_id: str = ""
    id: str = ""  # in rows of the bridge to Ray


def answered(target: Path) -> int:
    """How many inputs have a line with the whole text of the answer."""
    text = "".join(frames.WORDS[i % len(frames.WORDS)] for i in range(TOKENS)).encode()
    paths = [path for path in target.rglob("*") if path.is_file()] if target.is_dir() else [target]
    named: set[str] = set()
    for path in paths if target.exists() else ():
        for line in path.read_bytes().splitlines():
            if text in line:
                line_of = msgspec.json.decode(line, type=_Named)
                named.add(line_of.custom_id or line_of.id)
    return len(named)


# ------------------------------------------------------------------------------------ one process


class Ready(msgspec.Struct):
    """CPU seconds before the first request: imports, clients, clusters."""

    cpu: float


class Spent(msgspec.Struct):
    """What the job took, as the process itself knows it."""

    cpu: float
    wall: float
    memory: int
    cores: list[int]
    versions: dict[str, str]


class Result(msgspec.Struct):
    """What is known of one run."""

    spent: Spent
    start_cpu: float
    failed: int
    processes: int
    counts: batch_server.Counts


def run(
    row: Row, python: str, server: str, workload: str, lines: int, core: int | None = None
) -> Result:
    """Have one job done in a fresh process on a core, and end what it leaves behind."""
    with tempfile.TemporaryDirectory(prefix="bench-batch-") as folder:
        source, target = Path(folder) / "in.jsonl", Path(folder) / "out.jsonl"
        write_source(source, lines)
        told = {
            "base_url": f"{server}/batch/{TOKENS}/{WORKLOADS[workload].milliseconds}/v1",
            "source": str(source),
            "target": str(target),
            "lines": lines,
            "at_once": AT_ONCE,
            "stream": workload == "streams",
        }
        command = [python, "-m", "benchmarks.batch_peers", row.peer]
        command += ["any" if core is None else str(core), msgspec.json.encode(told).decode()]
        with (Path(folder) / "stderr").open("w+", encoding="utf-8", errors="replace") as errors:
            try:
                measured = _measure(command, errors.fileno(), server)
            except EOFError:
                errors.seek(0)
                raise NotHereError(_last_line(errors.read()) or "ended early") from None
        # Beside the server on one core a client costs half as much again.
        assert core is None or measured.spent.cores == [core]
        measured.failed = lines - answered(target)
    return measured


def _measure(command: list[str], errors: int, server: str) -> Result:
    watch = process_tree.Watch(leave=set(process_tree.below(os.getpid())))
    process = subprocess.Popen(
        command, cwd=report.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors
    )
    assert process.stdin is not None
    assert process.stdout is not None
    impatience = threading.Timer(_PATIENCE_SECONDS, watch.end)
    impatience.start()
    try:
        with watch.looking():
            ready = _next(process.stdout.readline(), Ready)
            others = watch.cpu_seconds(without=process.pid)
            batch_server.take_counts(server)
            process.stdin.write(b"\n")
            process.stdin.flush()
            spent = _next(process.stdout.readline(), Spent)
            ready.cpu += others
            spent.cpu += watch.cpu_seconds(without=process.pid) - others
        spent.memory = max(spent.memory, watch.most_memory)
        counts = batch_server.take_counts(server)
        return Result(spent, ready.cpu, 0, max(1, watch.most_processes), counts)
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        impatience.cancel()
        watch.end()
        process.wait()
        process.stdout.close()


_Told = TypeVar("_Told")


def _next(line: bytes, kind: type[_Told]) -> _Told:
    if not line:
        raise EOFError
    return msgspec.json.decode(line, type=kind)


# ------------------------------------------------------------------------------------- the parent


def main(argv: list[str] | None = None) -> None:
    options = report.options("bench_batch", argv, rounds=3)
    bench = report.Report("bench_batch", options)
    bench.print_head()
    print(f"here: of the whole process tree; a fresh process each time; {AT_ONCE} at once")
    process_tree.adopt_orphans()
    pythons: dict[str, str] = {}
    for name, row in ROWS.items():
        if name in options.without or row.peer in options.without:
            continue
        if options.quick and not row.is_quick:
            continue
        try:
            pythons[name] = python_for(row)
        except NotHereError as reason:
            bench.notes[name] = f"not here: {reason}"
    server_core, core = report.cores()
    report.pin(server_core)  # what looks at the clients does not share their core
    with batch_server.running(server_core) as server:
        for workload in WORKLOADS:
            if options.quick and workload == "slow":
                continue  # none of its rows is quick
            if not options.only or workload in options.only:
                measure(bench, pythons, server, workload, core)
                print_table(bench, workload, pythons)
    bench.print_goals(GOALS)
    for name, note in bench.notes.items():
        print(f"{name}: {note}")
    bench.save()


def measure(
    bench: report.Report, pythons: dict[str, str], server: str, workload: str, core: int | None
) -> None:
    for measure, unit in MEASURES.items():
        title = f"{workload}, {measure}: {WORKLOADS[workload].title}"
        bench.case(f"{workload}, {measure}", title, RAY if workload == "slow" else HAND, unit)
    for name in _in_turn(bench, pythons, workload):
        row = ROWS[name]
        lines = QUICK_LINES if bench.options.quick else getattr(row, workload)
        try:
            found = run(row, pythons[name], server, workload, lines, core)
        except NotHereError as reason:
            bench.notes[name] = f"{workload}: did not run: {reason}"
            continue
        for package, version in found.spent.versions.items():
            bench.versions.setdefault(package, version)
        values = {
            "inputs": lines,
            "CPU": found.spent.cpu / lines * 1e6,
            "time": found.spent.wall / lines * 1e6,
            "between": found.counts.span / lines * 1e6,
            "start": found.start_cpu,
            "memory": found.spent.memory / 1e6,
            "processes": found.processes,
            "at once": found.counts.most,
            "again": found.counts.requests - found.counts.inputs,
            "failed": found.failed,
        }
        for measure, value in values.items():
            bench.add(f"{workload}, {measure}", name, value)


MEASURES = {
    "inputs": "",
    "CPU": report.MICROSECONDS,  # per input, from the beginning of the job to the end
    "time": report.MICROSECONDS,  # the same on the clock
    "between": report.MICROSECONDS,  # the same from the first request to the end of the last answer
    "start": "s",  # CPU before the job: imports, clients, clusters
    "memory": "MB",  # at most
    "processes": "",
    "at once": "",  # requests, at most, as the server saw it
    "again": "",  # requests beyond the first of an input
    "failed": "",
}


def _in_turn(bench: report.Report, names: Iterable[str], workload: str) -> Iterator[str]:
    """Every row once per round, each round begun with another; slow ones in the first only."""
    order = [name for name in names if getattr(ROWS[name], workload)]
    for i in range(bench.options.rounds):
        yield from (name for name in order if i == 0 or not ROWS[name].is_slow)
        order = order[1:] + order[:1]


def print_table(bench: report.Report, workload: str, names: Iterable[str]) -> None:
    heads = ("inputs", "a second", "CPU \N{MICRO SIGN}s", "median", "\N{DIVISION SIGN} hand")
    heads += ("MB", "at once", "again", "failed", "start s")
    print(f"\n{workload}: {WORKLOADS[workload].title}")
    print(f"  {'':22}" + "".join(f"{head:>9}" for head in heads))
    for name in names:
        values = {
            measure: bench.cases[f"{workload}, {measure}"].rows.get(name, [])
            for measure in MEASURES
        }
        if not values["CPU"]:
            continue
        base = bench.cases[f"{workload}, CPU"].rows.get(HAND)
        cells = (
            f"{max(values['inputs']):,.0f}",
            f"{1e6 / min(values['time']):,.0f}",
            f"{min(values['CPU']):,.0f}",
            f"{statistics.median(values['CPU']):,.0f}",
            f"{min(values['CPU']) / min(base):.1f}" if base else "",
            f"{max(values['memory']):,.0f}",
            f"{max(values['at once']):.0f}",
            f"{sum(values['again']):.0f}",
            f"{sum(values['failed']):.0f}",
            f"{min(values['start']):.1f}",
        )
        print(f"  {name:22}" + "".join(f"{cell:>9}" for cell in cells))
        if ROWS[name].is_cluster:
            running = 1e6 / min(values["between"])
            processes = max(values["processes"])
            print(
                f"  {'':22} {processes:.0f} processes; {running:,.0f} a second"
                " between the first request and the last answer"
            )


GOALS = [
    *(
        report.Goal(
            f"{name} \N{DIVISION SIGN} {HAND}: {workload}, CPU",
            (f"{workload}, CPU", name),
            (f"{workload}, CPU", HAND),
            1.6,
        )
        for workload in ("plain", "streams")
        for name in (OURS, COMMAND)
    ),
    *(
        report.Goal(
            f"{OPENAI} \N{DIVISION SIGN} {OURS}: {workload}, CPU",
            (f"{workload}, CPU", OPENAI),
            (f"{workload}, CPU", OURS),
            8,
            at_least=True,
        )
        for workload in ("plain", "streams")
    ),
    *(
        report.Goal(
            f"{RAY} \N{DIVISION SIGN} {BRIDGE}: {workload}, time between first and last",
            (f"{workload}, between", RAY),
            (f"{workload}, between", BRIDGE),
            20,
            at_least=True,
        )
        for workload in ("plain", "slow")
    ),
]


if __name__ == "__main__":
    main()
