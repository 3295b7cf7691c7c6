"""The pages of the documentation as data: their code blocks, links and anchors.

Not here: tests.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["DOCS", "PAGES", "ROOT", "Block", "anchors", "blocks", "links", "name", "prose"]

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]

_FENCE = re.compile(r"```(\w*)$")
_SERVER = re.compile(r"<!-- server: (.*?) -->\s*\Z", re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """One fenced block; `line` is where its first line stands, from 1."""

    language: str
    code: str
    line: int
    server: str
    """What the comment `<!-- server: ... -->` right above lets the server say, as Python calls."""
    output: str | None
    """The `text` block right below, if there is one."""


def name(page: Path) -> str:
    """The page's path from the root."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    """Every fenced block of a page, in order."""
    found = list(_fences(page.read_text(encoding="utf-8")))
    after = [*found[1:], ("", "", 0, "")]
    made: list[Block] = []
    for (language, code, line, before), (next_language, next_code, _, between) in zip(
        found, after, strict=False
    ):
        comment = _SERVER.search(before)
        is_output = next_language == "text" and not between.strip()
        made.append(
            Block(
                language,
                code,
                line,
                comment.group(1) if comment else "",
                next_code if is_output else None,
            )
        )
    return made


def _fences(text: str) -> Iterator[tuple[str, str, int, str]]:
    """Language, code, first line, and the text between this block and the one before."""
    between: list[str] = []
    opened: tuple[str, int] | None = None
    code: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        fence = _FENCE.match(line)
        if opened is None and fence:
            opened, code = (fence.group(1), number + 1), []
        elif opened is not None and line == "```":
            yield opened[0], "\n".join(code) + "\n", opened[1], "\n".join(between)
            opened, between = None, []
        else:
            (between if opened is None else code).append(line)
    if opened is not None:
        raise ValueError(f"the block that begins in line {opened[1] - 1} has no end")


def prose(page: Path) -> str:
    """The page without its blocks and code."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    return re.sub(r"`[^`\n]*`", "`code`", text)


def links(page: Path) -> list[str]:
    """Where the page links to, other than other hosts."""
    return [target for target in _LINK.findall(prose(page)) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    text = re.sub(
        r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
