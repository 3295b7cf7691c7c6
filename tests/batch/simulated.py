"""A batch that never was, but might have been: for the tests of its report, and for the picture in the documentation.

`python -m tests.batch.simulated docs/batch-report.png` draws it with chromium; a name in `.html` gets the page itself.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from math import exp, sin
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

from asyncchat.batch.record import Attempt, BatchError, Kind, Outcome, Sample, SessionNote, Trace
from asyncchat.batch.report import Report

__all__ = ["attempts", "notes", "outcomes", "report", "screenshot"]

TITLE = "Reviews, one word each"
START = 1_790_000_000.0
FIRST, PAUSE, SECOND = (
    1500.0,
    7 * 3600.0,
    2300.0,
)  # a run that was killed, the night, a run to the end
ENDPOINTS = ("https://one.example/v1", "https://one.example/v1", "http://10.0.0.7:8000/v1")
MESSAGES: tuple[tuple[Kind, int, str], ...] = (
    ("timeout", 40, "no first token within 120 s"),
    ("server", 25, "500: internal server error"),
    ("content_filter", 18, "the answer was withheld (content_filter)"),
    ("length", 12, "the answer was cut at max_tokens"),
    ("bad_request", 4, "400: this model's maximum context length is 8192 tokens"),
    ("invalid_line", 1, "line 7312 is no JSON: unexpected end"),
)


def outcomes(n: int = 40_000, seed: int = 7) -> Iterator[Outcome]:
    """What became of `n` inputs, in the order in which they ended."""
    random = Random(seed)
    kinds, weights, _ = zip(*MESSAGES, strict=True)
    said = {kind: message for kind, _, message in MESSAGES}
    looks = [note for note in notes() if isinstance(note, Sample)]
    # As many end in a second as are on their way, in proportion.
    seconds = random.choices(looks, [look.in_flight for look in looks], k=n)
    for i, second in enumerate(sorted(seconds, key=lambda look: look.t), 1):
        end = second.t + random.random()
        endpoint = random.choice(ENDPOINTS)
        slow = 2.2 if endpoint == ENDPOINTS[2] else 1.0
        out = max(4, int(random.lognormvariate(5.3, 0.7)))
        ttft = slow * random.lognormvariate(-1.4, 0.45)
        if random.random() < 0.05:  # a cold cache
            ttft += random.lognormvariate(0.6, 0.5)
        itl = 0.011 * slow * random.lognormvariate(0, 0.12)
        tokens = (random.randint(180, 900), out, 128 if random.random() < 0.6 else 0)
        refused = random.random() < 0.02
        trace = Trace(
            n=i,
            attempts=1 + refused + (random.random() < 0.015),
            refused=int(refused),
            t_end=end,
            t_queue=random.expovariate(12),
            t_first=ttft,
            t_itl=itl,
            t_total=ttft + out * itl + random.expovariate(12),
            tokens=tokens,
            cost=tokens[0] * 15e-8 + out * 6e-7,
            endpoint=endpoint,
        )
        error = None
        if random.random() < 0.004:
            kind = random.choices(kinds, weights)[0]
            error = BatchError(code=kind, message=said[kind])
            if kind == "invalid_line":  # never sent
                trace = Trace(n=i, t_end=end)
            if kind in ("timeout", "server"):
                trace = Trace(
                    n=i,
                    attempts=6,
                    t_end=end,
                    t_queue=trace.t_queue,
                    t_total=random.uniform(30, 240),
                    endpoint=endpoint,
                )
        yield Outcome(f"review-{i:05}", trace, error)


def attempts(n: int = 900, seed: int = 8) -> Iterator[Attempt]:
    """Failed attempts."""
    random = Random(seed)
    for i in range(n):
        kind, status = random.choice((("rate_limit", 429), ("server", 500), ("timeout", None)))
        t = START + random.uniform(0, FIRST)
        yield Attempt(
            t, f"review-{i:05}", 1, kind, status, wait=1.0, endpoint=random.choice(ENDPOINTS)
        )


def notes(lag: float = 0.004, seed: int = 9) -> Iterator[Sample | SessionNote]:
    """A killed run that a server made pause twice, and one to the end."""
    random = Random(seed)
    for start, seconds in ((START, FIRST), (START + FIRST + PAUSE, SECOND)):
        yield SessionNote(start)
        for i in range(int(seconds)):
            paused = start == START and (400 <= i < 430 or 900 <= i < 960)
            cut = 0.7 if start == START and i > 430 else 1.0
            limit = cut * 128 * (1 - exp(-i / 60)) + 16 + 4 * sin(i / 40)
            yield Sample(
                t=start + i,
                in_flight=0 if paused else int(limit * random.uniform(0.93, 1)),
                limit=int(limit),
                pause=float(max(0, (430 if i < 430 else 960) - i)) if paused else 0.0,
                lag=random.expovariate(1 / lag),
            )
        if start != START:
            yield SessionNote(start, start + seconds, "finished", cpu=0.21 * seconds, rss=61 << 20)


@cache
def report(lag: float = 0.004) -> Report:
    """The report of all of it."""
    return Report.of(outcomes(), attempts(), notes(lag))


def screenshot(page: Path, picture: Path, width: int = 960, height: int = 1412) -> None:
    """Let chromium draw a page.

    Raises:
        FileNotFoundError: there is none.
    """
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        raise FileNotFoundError("chromium is not installed")
    subprocess.run(
        [
            chromium,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={width},{height}",
            f"--screenshot={picture}",
            page.resolve().as_uri(),
        ],
        check=True,
        capture_output=True,
        timeout=90,
    )


if __name__ == "__main__":
    wanted = Path(sys.argv[1])
    if wanted.suffix == ".html":
        report().html(wanted, title=TITLE)
    else:
        with TemporaryDirectory() as folder:
            page = Path(folder) / "page.html"
            report().html(page, title=TITLE)
            screenshot(page, wanted)
