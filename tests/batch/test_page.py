"""`batch.page`: the report as one page, whatever others have written into it."""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from asyncchat.batch import page
from asyncchat.batch.record import BatchError, Outcome, Sample, SessionNote, Trace
from asyncchat.batch.report import Report
from tests.batch import simulated

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'><svg onload=alert(1)>",
    "</title></style><script>",
    "{{ 7 * 7 }}{% raw %}",
    "]]><!--",
    "javascript:alert(1)",
    "\u202egnirts\u0007\x1b[2J",
)
EMPTY = ("meta", "img")
# fmt: off
ALLOWED = {
    "html", "head", "meta", "title", "style", "body", "header", "main", "footer", "h1", "h2", "p", "div", "span", "b", "i",
    "small", "bdi", "dl", "dt", "dd", "ul", "li", "figure", "figcaption", "table", "caption", "tr", "th", "td", "svg", "rect", "path",
}
# fmt: on


class Reader(HTMLParser):
    """Takes a page apart, and refuses what is not closed or not in its place."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def hostile() -> Report:
    outcomes = [
        Outcome(
            text,
            Trace(n=i, attempts=1, t_end=float(i), t_first=0.1, t_total=1.0, endpoint=text),
            BatchError(code=text, message=text),
        )
        for i, text in enumerate(HOSTILE)
    ]
    return Report.of(outcomes, [], [])


def check_offline(read: Reader) -> None:
    assert read.tags <= ALLOWED
    for name, value in read.attributes:
        assert name not in ("src", "href", "action", "data", "xlink:href", "srcset")
        assert not name.startswith("on")
        assert "://" not in value
        assert "javascript:" not in value.lower()


REPORTS: dict[str, Callable[[], Report]] = {
    "simulated": simulated.report,
    "doubtful": lambda: simulated.report(lag=0.2),
    "hostile": hostile,
    "empty": lambda: Report.of([], [], []),
    "one": lambda: Report.of([Outcome("a", Trace(n=1, t_total=0.0))], [], []),
    "open": lambda: Report.of([], [], [SessionNote(0.0), Sample(1.0, in_flight=2)]),
}


@pytest.mark.parametrize("name", REPORTS)
def test_page_is_whole_and_needs_nothing_from_elsewhere(name: str) -> None:
    text = REPORTS[name]().html()
    check_offline(Reader(text))
    assert text.lstrip().startswith("<!doctype html>")
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    assert not re.search(r"\b(nan|inf|None|Undefined)\b", text.split("</style>")[1])


def test_foreign_words_are_text() -> None:
    read = Reader(hostile().html(title="<script>title</script>"))
    words = " ".join(read.words)
    for text in HOSTILE[:-1]:
        assert text in words
    assert "<script>title</script>" in words
    assert "49" not in words
    assert not set("\u202e\u0007\x1b") & set(words)


def test_page_shows_what_the_report_says() -> None:
    report = simulated.report()
    text = " ".join(" ".join(Reader(report.html(title="Reviews")).words).split())
    for words in (
        "Reviews",
        "40,000 inputs in 1 h 3 min, in 2 runs.",
        f"Why {report.failed} failed",
        report.failures[0].custom_id,
        report.failures[0].message,
        "Inputs per second",
        "Requests in flight",
        "7 h later",
        "Time to the first token",
        "http://10.0.0.7:8000/v1",
        report.slowest[0].custom_id,
        f"at most {report.resent_at_most} sent again after a kill",
    ):
        assert words in text


def test_warnings_are_on_the_page() -> None:
    assert "event loop lagged" in " ".join(Reader(simulated.report(lag=0.2).html()).words)
    assert "event loop lagged" not in simulated.report().html()


def test_page_of_an_empty_batch_has_no_plots() -> None:
    read = Reader(Report.of([], [], []).html())
    assert "svg" not in read.tags
    assert "table" not in read.tags


def test_plots_stay_within_their_frames() -> None:
    for text in (simulated.report().html(), hostile().html()):
        for name in ("x", "y", "width", "height"):
            for value in re.findall(rf'<rect[^>]* {name}="([^"]+)"', text):
                assert 0 <= float(value) <= 100.01
        for path in re.findall(r'd="([^"]+)"', text):
            assert all(-0.01 <= float(n) <= 100.01 for n in re.findall(r"[-\d.]+", path))


def test_page_is_written_where_it_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "report.html"
    assert Report.of([], [], []).html(file, title="né") == file.read_text(encoding="utf-8")
    assert "<title>né</title>" in file.read_text(encoding="utf-8")


def test_missing_library_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    page._template.cache_clear()
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(ImportError, match=r'pip install "asyncchat\[report\]"'):
        Report.of([], [], []).html()


@pytest.mark.browser
def test_browser_draws_the_page_and_runs_nothing(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("chromium is not installed")
    file = tmp_path / "report.html"
    hostile().html(file, title="hostile")
    done = subprocess.run(
        [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in done.stdout
    assert not re.search(r"<(script|img)\b", done.stdout)
    assert done.stdout.count("<svg") == hostile().html().count("<svg") > 0
