"""What all benchmarks share: rounds, tables, goals, machine facts, JSON.

Not here: anything that is measured. Times are CPU time of the measured process; sizes are bytes.
The verdict on a goal uses the ratio of the two minima: whatever else runs on the machine only adds.
"""

import argparse
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
_PACKAGES = ("asyncchat", "aiohttp", "msgspec", "jiter", "openai", "httpx2", "pydantic", "uvloop")

MICROSECONDS = "\N{MICRO SIGN}s"
Key = tuple[str, str]  # (case, row)


@dataclass(frozen=True)
class Goal:
    """`top / bottom` is asked to be at most, or at least, `bound`; then `later`."""

    text: str
    top: Key
    bottom: Key
    bound: float
    later: float | None = None
    at_least: bool = False

    def verdict(self, ratio: float) -> str:
        sign = "≥" if self.at_least else "≤"
        words = f"goal {sign} {self.bound:g}: {self._judge(ratio, self.bound)}"
        if self.later is None:
            return words
        return f"{words}; then {sign} {self.later:g}: {self._judge(ratio, self.later)}"

    def _judge(self, ratio: float, bound: float) -> str:
        if ratio >= bound if self.at_least else ratio <= bound:
            return "met"
        return f"missed by {abs(ratio / bound - 1):.1%}"


@dataclass
class Case:
    """One table: a row per peer, a value per round."""

    title: str
    base: str | None = None  # the row that the others are compared with
    unit: str = MICROSECONDS
    rows: dict[str, list[float]] = field(default_factory=dict)


class Report:
    """Collects values by case and row, prints them, judges goals, writes JSON."""

    def __init__(self, name: str, options: argparse.Namespace) -> None:
        self.name = name
        self.options = options
        self.cases: dict[str, Case] = {}
        self.verdicts: list[dict[str, object]] = []
        self.versions = versions()
        self.notes: dict[str, str] = {}  # by row: why it is missing

    def case(
        self, key: str, title: str, base: str | None = None, unit: str = MICROSECONDS
    ) -> Case:
        return self.cases.setdefault(key, Case(title, base, unit))

    def add(self, key: str, row: str, value: float) -> None:
        self.cases[key].rows.setdefault(row, []).append(value)

    def rounds(
        self, key: str, measures: dict[str, Callable[[], float]], slow: Container[str] = ()
    ) -> None:
        """Run every measure once per round, starting with another one each round; seconds become microseconds.

        One round more runs first and is thrown away. Rows in `slow` sit out every second round.
        """
        order = list(measures)
        for row in order:
            self.cases[key].rows.setdefault(row, [])
        for i in range(self.options.rounds + 1):
            for row in order:
                if row in slow and i % 2 == 0 and i:
                    continue
                value = measures[row]()
                if i:
                    self.add(
                        key, row, value * 1e6 if self.cases[key].unit == MICROSECONDS else value
                    )
            order = order[1:] + order[:1]

    # ------------------------------------------------------------------------------------ printing

    def print_head(self) -> None:
        facts = machine()
        print(f"{self.name}: {facts['cpu']}, {facts['cores']} cores, Python {facts['python']}")
        print(", ".join(f"{name} {found}" for name, found in self.versions.items()))
        print(f"{self.options.rounds} rounds, interleaved; CPU time of the client process")

    def print_case(self, key: str) -> None:
        case = self.cases[key]
        base = min(case.rows[case.base]) if case.base in case.rows else None
        width = max(40, *(len(row) for row in case.rows))
        print(f"\n{case.title}")
        head = f"  {'':{width}} {'min':>10} {'median':>10}"
        print(head + (f"   ÷ {case.base}" if base else ""))
        for row, values in case.rows.items():
            line = f"  {row:{width}} {_number(min(values)):>10} {_number(statistics.median(values)):>10}"
            print(
                line
                + (f" {min(values) / base:10.2f}" if base else "")
                + f"  {case.unit}" * (not base)
            )

    def print_goals(self, goals: Iterable[Goal]) -> None:
        known = [goal for goal in goals if self._row(goal.top) and self._row(goal.bottom)]
        if not known:
            return
        width = max(len(goal.text) for goal in known)
        print(f"\n{'Ratios':{width + 2}} {'of minima':>10} {'of medians':>11}")
        for goal in known:
            top, bottom = self._row(goal.top), self._row(goal.bottom)
            ratio = min(top) / min(bottom)
            median = statistics.median(top) / statistics.median(bottom)
            verdict = goal.verdict(ratio)
            print(f"  {goal.text:{width}} {ratio:10.2f} {median:11.2f}   {verdict}")
            self.verdicts.append(
                {"goal": goal.text, "ratio": ratio, "of_medians": median, "verdict": verdict}
            )

    def _row(self, key: Key) -> list[float]:
        case = self.cases.get(key[0])
        return case.rows.get(key[1], []) if case else []

    # ------------------------------------------------------------------------------------- writing

    def save(self) -> Path:
        """Write what was measured; a quick or partial run does not replace a full one."""
        self.options.results.mkdir(parents=True, exist_ok=True)
        partial = self.options.only or self.options.without
        kind = ".quick" if self.options.quick else ".part" if partial else ""
        path: Path = self.options.results / f"{self.name}{kind}.json"
        document = {
            "benchmark": self.name,
            "command": shlex.join(["python", "-m", f"benchmarks.{self.name}", *sys.argv[1:]]),
            "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "rounds": self.options.rounds,
            "machine": machine(),
            "versions": self.versions,
            "notes": self.notes,
            "cases": {
                key: {
                    "title": case.title,
                    "unit": case.unit,
                    "rows": {
                        row: {
                            "min": min(values),
                            "median": statistics.median(values),
                            "values": values,
                        }
                        for row, values in case.rows.items()
                    },
                }
                for key, case in self.cases.items()
            },
            "goals": self.verdicts,
        }
        path.write_bytes(msgspec.json.format(msgspec.json.encode(document)) + b"\n")
        print(f"\nwritten: {path}")
        return path


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}" if value < 1 else f"{value:.4g}"


def options(name: str, argv: Sequence[str] | None = None, rounds: int = 5) -> argparse.Namespace:
    """The command line that every benchmark has."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--quick", action="store_true", help="small and imprecise: a smoke test")
    parser.add_argument("--rounds", type=int, help=f"how often each row is measured ({rounds})")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="these cases only")
    parser.add_argument("--without", nargs="+", metavar="PEER", default=[], help="leave peers out")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for the JSON")
    found = parser.parse_args(argv)
    found.rounds = found.rounds or (1 if found.quick else rounds)
    return found


def pin(core: int | None) -> None:
    """Keep this process on one core, where the system can do that."""
    if core is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})


def cores() -> tuple[int | None, int | None]:
    """One core for the server and another for the client; none where there are not two."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return (allowed[0], allowed[1]) if len(allowed) > 1 else (None, None)


def versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, object]:
    model = platform.processor() or platform.machine()
    facts = Path("/proc/cpuinfo")
    if facts.exists():
        for line in facts.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.platform(),
    }
