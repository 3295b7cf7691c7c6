"""The report of a batch as a table for a terminal: at most 80 columns, no colours.

Not here: what is counted (`report`), the page (`page`). Foreign words cannot move the cursor.
"""

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING

from asyncchat.batch.quantity import UNKNOWN, amount, duration, mebibytes, number, printable, share

if TYPE_CHECKING:
    from asyncchat.batch.report import Distribution, Report, Times

__all__ = ["as_text"]

_WIDTH = 80


def as_text(report: "Report") -> str:
    """Return the table, with a newline at its end."""
    sections = (
        _facts(report),
        _times("", report.times_ok),
        _times("failed", report.times_failed),
        _failures(report),
        _endpoints(report),
        _warnings(report),
    )
    written = ("\n".join(lines) for lines in map(list, sections) if lines)
    return "\n\n".join(written) + "\n"


def _facts(report: "Report") -> Iterator[str]:
    items = [
        number(report.items),
        f"ok {number(report.ok)} ({share(report.ok, report.items)})",
        f"failed {number(report.failed)}",
    ]
    if report.reused:
        items.append(f"copied {number(report.reused)}")
    yield _fact("inputs", items)
    resent = report.resent_at_most
    yield _fact(
        "requests",
        [
            number(report.requests),
            f"retries {number(report.retries)}",
            f"refused {number(report.refused)}",
            f"resent {f'at most {number(resent)}' if resent else '0'}",
        ],
    )
    runs = f" in {report.runs} runs" if report.runs > 1 else ""
    speed = report.items_per_second
    yield _fact("time", [duration(report.wall_seconds) + runs, f"{amount(speed)} inputs/s"])
    if report.prompt_tokens is None:
        yield _fact("tokens", ["unknown: no server counted them"])
    else:
        yield _fact(
            "tokens",
            [
                f"in {amount(report.prompt_tokens)} ({amount(report.prompt_tokens_per_second)}/s)",
                f"out {amount(report.completion_tokens)} ({amount(report.completion_tokens_per_second)}/s)",
                f"cached {amount(report.cached_tokens)}",
            ],
        )
    yield _fact("cost", ["unknown" if report.cost is None else f"{report.cost:,.4f}"])
    client = report.client
    yield _fact(
        "client",
        [
            f"loop lag p99 {duration(client.lag_p99_seconds)}",
            f"CPU {UNKNOWN if client.cpu_share is None else f'{100 * client.cpu_share:.0f} % of a core'}",
            f"memory {UNKNOWN if client.rss_bytes is None else mebibytes(client.rss_bytes)}",
        ],
    )


def _fact(name: str, values: list[str]) -> str:
    return f"{name:<9} {' · '.join(values)}"


def _times(name: str, times: "Times") -> Iterator[str]:
    rows: tuple[tuple[str, Distribution], ...] = (
        ("queue", times.queue),
        ("first token", times.ttft),
        ("per token", times.itl),
        ("total", times.total),
    )
    measured = [(head, row) for head, row in rows if row.count]
    if measured:
        yield f"{name:<12}" + "".join(
            f"{head:>13}" for head in ("p50", "p90", "p95", "p99", "max")
        )
    for head, row in measured:
        values = (row.p50, row.p90, row.p95, row.p99, row.max)
        yield f"{head:<12}" + "".join(f"{duration(value):>13}" for value in values)


def _failures(report: "Report") -> Iterator[str]:
    if report.failures:
        yield f"{'failures':<15}{'':>9}  first of them"
    for failure in report.failures:
        example = printable(f"{failure.custom_id}: {failure.message}", _WIDTH - 26)
        yield f"{printable(failure.kind, 14):<15}{number(failure.count):>9}  {example}"


def _endpoints(report: "Report") -> Iterator[str]:
    if len(report.endpoints) < 2:
        return
    yield f"{'endpoints':<42}{'ok':>11}{'failed':>9}{'p50':>9}{'p95':>9}"
    for endpoint in report.endpoints:
        yield (
            f"{printable(endpoint.endpoint, 42):<42}{number(endpoint.ok):>11}{number(endpoint.failed):>9}"
            f"{duration(endpoint.total_p50):>9}{duration(endpoint.total_p95):>9}"
        )


def _warnings(report: "Report") -> Iterator[str]:
    for warning in report.client.warnings:
        yield from wrap(f"warning: {warning}", _WIDTH)
    if report.is_open:
        yield "The last run has not noted its end: it goes on, or was killed."
