"""One picture of the results, for the README: `python -m benchmarks.plot docs/benchmark.svg`.

Reads what `bench_stream` and `bench_request` wrote. Not here: measuring, or any plotting library.
"""

import argparse
from collections.abc import Iterator
from math import ceil, floor, log10
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import msgspec

from benchmarks import report

# panel: (benchmark, case, heading, {row: label})
PANELS = (
    (
        "bench_stream",
        "bunched, asyncio",
        "one streamed event, four per read",
        {
            "bare aiohttp": "bare aiohttp, parses nothing",
            "asyncchat, events": "asyncchat",
            "openai, create(stream=True)": "openai",
            "openai, .stream()": "openai, .stream()",
        },
    ),
    (
        "bench_stream",
        "paced, asyncio",
        "one streamed event, 200 streams, 30 ms apart",
        {
            "bare aiohttp": "bare aiohttp, parses nothing",
            "asyncchat, events": "asyncchat",
            "openai, create(stream=True)": "openai",
        },
    ),
    (
        "bench_request",
        "parallel, asyncio",
        "one plain request, 64-token answer, 32 at once",
        {
            "aiohttp + msgspec": "aiohttp + msgspec, by hand",
            "asyncchat": "asyncchat",
            "openai": "openai",
        },
    ),
)
WIDTH, LEFT, RIGHT, ROW, BAR = 760, 215, 70, 26, 16
# One neutral set of colours per theme; the reader's system picks.
STYLE = """
  .text { font: 13px system-ui, sans-serif; fill: #3d444d }
  .head { font-weight: 600; fill: #1f2328 }
  .faint { fill: #848d97; font-size: 11px }
  .grid { stroke: #d8dee4; stroke-width: 1 }
  .bar { fill: #afb8c1 }
  .ours { fill: #2f6f9f }
  @media (prefers-color-scheme: dark) {
    .text { fill: #b1bac4 } .head { fill: #e6edf3 } .faint { fill: #848d97 }
    .grid { stroke: #30363d } .bar { fill: #57606a } .ours { fill: #6cb0e0 }
  }
"""

Panel = tuple[str, list[tuple[str, float]]]


def load(results: Path) -> dict[str, Any]:
    """What the benchmarks wrote, by name; those that have not run are absent."""
    names = {benchmark for benchmark, *_ in PANELS}
    paths = {name: results / f"{name}.json" for name in sorted(names)}
    return {
        name: msgspec.json.decode(path.read_bytes())
        for name, path in paths.items()
        if path.exists()
    }


def panels(documents: dict[str, Any]) -> Iterator[Panel]:
    """Heading and bars of each panel that was measured; least CPU of all rounds, in microseconds."""
    for benchmark, case, heading, labels in PANELS:
        cases = documents[benchmark]["cases"] if benchmark in documents else {}
        rows = cases.get(case, {}).get("rows", {})
        bars = [(label, rows[row]["min"]) for row, label in labels.items() if row in rows]
        if bars:
            yield heading, bars


def source(documents: dict[str, Any]) -> str:
    """Where the numbers come from: the machine and versions that were measured, not those that draw."""
    first = next(iter(documents.values()))
    facts, found = first.get("machine", {}), first.get("versions", {})
    versions = [f"{name} {found[name]}" for name in ("aiohttp", "openai") if name in found]
    parts = [str(facts.get("cpu", "")), f"Python {facts.get('python', '')}", *versions]
    return f"{', '.join(parts)}; benchmarks/{', '.join(documents)}"


def draw(drawn: list[Panel], footer: str) -> str:
    """An SVG of horizontal bars on one logarithmic axis."""
    values = [value for _, bars in drawn for _, value in bars]
    low, high = floor(log10(min(values))), ceil(log10(max(values)))

    def x(value: float) -> float:
        return LEFT + (log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    body: list[str] = []
    y = 42
    for heading, bars in drawn:
        body.append(f'<text class="text head" x="16" y="{y + 12}">{escape(heading)}</text>')
        y += 24
        for label, value in bars:
            ours = " ours" if label == "asyncchat" else ""
            bold = " head" if ours else ""
            middle = y + BAR - 4
            body.append(
                f'<text class="text{bold}" x="{LEFT - 10}" y="{middle}" text-anchor="end">{escape(label)}</text>'
                f'<rect class="bar{ours}" x="{LEFT}" y="{y}" width="{x(value) - LEFT:.1f}" height="{BAR}" rx="2"/>'
                f'<text class="text{bold}" x="{x(value) + 7:.1f}" y="{middle}">{_microseconds(value)}</text>'
            )
            y += ROW
        y += 14
    ticks = [10.0**power for power in range(low, high + 1)]
    grid = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="36" y2="{y - 8}"/>'
        f'<text class="text faint" x="{x(tick):.1f}" y="{y + 8}" text-anchor="middle">{_microseconds(tick)}</text>'
        for tick in ticks
    ]
    height = y + 42
    title = "CPU time of the client, logarithmic; shorter is better"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
        f"<style>{STYLE}</style>"
        f'<text class="text head" x="16" y="22">{title}</text>'
        + "".join(grid + body)
        + f'<text class="text faint" x="16" y="{height - 10}">{escape(footer)}</text></svg>\n'
    )


def _microseconds(value: float) -> str:
    micro = "\N{MICRO SIGN}s"
    if value >= 1000:
        return f"{value / 1000:.3g} ms"
    return f"{value:.3g} {micro}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.plot")
    parser.add_argument("path", type=Path, help="the SVG to write")
    parser.add_argument("--results", type=Path, default=report.RESULTS)
    options = parser.parse_args()
    documents = load(options.results)
    drawn = list(panels(documents))
    if not drawn:
        parser.error("nothing measured yet: run bench_stream and bench_request first")
    options.path.parent.mkdir(parents=True, exist_ok=True)
    options.path.write_text(draw(drawn, source(documents)), encoding="utf-8")
    print(f"written: {options.path}")


if __name__ == "__main__":
    main()
