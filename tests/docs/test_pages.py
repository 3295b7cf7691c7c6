"""What the pages say of files, commands, options, fields and defaults is so."""

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

import asyncchat
from asyncchat import AsyncChat, Endpoint, Limits, Resume, RetryPolicy, Timeout, errors
from asyncchat.cli import _app
from asyncchat.protocol import events, response
from asyncchat.testing import ChatServer, Reply
from tests.docs.markdown import DOCS, PAGES, ROOT, anchors, blocks, links, name, prose

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS = [
    (name(page), line.removeprefix("$ "))
    for page in PAGES
    for block in blocks(page)
    if block.language == "console"
    for line in block.code.splitlines()
    if line.startswith("$ ")
]


# ---------------------------------------------------------------------------------------- commands


def check_make(target: str) -> None:
    assert re.search(rf"^{re.escape(target)}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def check_asyncchat(*arguments: str) -> None:
    _app().parse_args(list(arguments), exit_on_error=False, print_error=False)


def check_pip(what: str, *arguments: str) -> None:
    assert what == "install"
    for extra in re.findall(r"\[(.+?)\]", " ".join(arguments)):
        for one in extra.split(","):
            assert one in PROJECT["project"]["optional-dependencies"]


def check_python(flag: str, module: str, *arguments: str) -> None:
    assert flag == "-m"
    match module:
        case "pip":
            check_pip(*arguments)
        case "pytest":
            check_pytest(*arguments)
        case "venv":
            pass
        case _:
            assert (ROOT / f"{module.replace('.', '/')}.py").exists()


def check_pytest(*arguments: str) -> None:
    markers = {
        line.partition(":")[0] for line in PROJECT["tool"]["pytest"]["ini_options"]["markers"]
    }
    for flag, value in zip(arguments[::2], arguments[1::2], strict=True):
        assert flag == "-m"
        assert value.removeprefix("not ") in markers


def check_export(assignment: str) -> None:
    assert re.fullmatch(
        r"(OPENAI_(API_KEY|BASE_URL)|ASYNCCHAT_(BASE_URL|MODEL|CACHE_DIR))=\S+", assignment
    )


CHECKS: dict[str, Any] = {
    "asyncchat": check_asyncchat,
    "export": check_export,
    "make": check_make,
    "pip": check_pip,
    "pytest": check_pytest,
    "python": check_python,
    "python3": check_python,
}


@pytest.mark.parametrize(("page", "command"), COMMANDS)
def test_command_exists(page: str, command: str) -> None:
    program, *arguments = shlex.split(command)
    CHECKS[program](*arguments)


# ------------------------------------------------------------------------------------------- pages


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_page_speaks_plainly_and_of_the_project_alone(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/(work|root|home|tmp)\b", text)
    assert not re.search(r"\b(simply|just|blazing|obviously|easily)\b", prose(page), re.IGNORECASE)
    assert not re.search(r"\bTODO\b", text)


def test_every_page_is_reached_from_the_index() -> None:
    seen: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            todo += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert set(PAGES) <= seen


def test_changelog_begins_with_unreleased_and_has_a_section_for_the_version() -> None:
    heads = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert heads[0] == "Unreleased"
    assert asyncchat.__version__ in heads


def test_decisions_are_numbered_without_gaps_and_listed() -> None:
    files = sorted(path.name for path in (DOCS / "decisions").glob("[0-9]*.md"))
    assert [int(file[:4]) for file in files] == list(range(1, len(files) + 1))
    assert [link for link in links(DOCS / "decisions/README.md") if link[0].isdigit()] == files
    for file in files:
        text = (DOCS / "decisions" / file).read_text()
        heads = re.findall(r"^## (.+)$", text, re.MULTILINE)
        assert heads == [
            "Context",
            "Decision",
            "Alternatives",
            "Consequences",
            "What would overturn it",
        ]
        assert text.startswith(f"# {file[:4]} ")


# --------------------------------------------------------------------------------------- reference


def reference(page: str) -> str:
    return (DOCS / "reference" / f"{page}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("struct", [Timeout, RetryPolicy, Resume, Endpoint, Limits])
def test_reference_gives_each_setting_with_its_default(struct: type[msgspec.Struct]) -> None:
    section = reference("configuration").split(f"\n## {struct.__name__}\n")[1].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? ?\|", section, re.MULTILINE))
    for field in msgspec.structs.fields(struct):
        assert field.name in rows
        if field.required:
            assert not rows[field.name]
            continue
        given = eval(
            rows[field.name].replace(" s", "").replace("MiB", "* 2**20").replace("KiB", "* 2**10")
        )
        default = field.default
        if default is msgspec.NODEFAULT:
            assert callable(field.default_factory)
            default = field.default_factory()
        assert given == default, field.name


def test_reference_names_each_error_event_and_field() -> None:
    for cls in errors.__all__:
        if cls[0].isupper():
            assert f"`{cls}`" in reference("errors"), cls
    for cls in events.__all__:
        if cls != "Event":
            made = getattr(events, cls)
            assert f"| `{cls}` | `{made.type}` |" in reference("stream-and-events"), cls
            for field in made.__struct_fields__:
                assert f"`{field}`" in reference("stream-and-events"), f"{cls}.{field}"
    for cls in (
        "Completion",
        "Choice",
        "Message",
        "ToolCall",
        "Function",
        "Usage",
        "Timing",
        "HTTP",
    ):
        for field in getattr(response, cls).__struct_fields__:
            assert f"`{field.rstrip('_')}`" in reference("completion") or field == "extra_", field


def test_reference_names_each_parameter_and_method() -> None:
    import inspect

    for parameter in list(inspect.signature(AsyncChat).parameters):
        assert f"| `{parameter}` |" in reference("client"), parameter
    for page, cls in (("client", AsyncChat), ("testing", ChatServer), ("testing", Reply)):
        for member in vars(cls):
            if not member.startswith("_") and member != "script":
                assert re.search(rf"`[^`\n]*\b{member}\b", reference(page)), (
                    f"{cls.__name__}.{member}"
                )


def test_reference_names_each_parameter_and_member_of_the_bridges() -> None:
    import inspect

    from asyncchat import Broadcast, ChatStream, SSEBody, broadcast, sse

    for made in (ChatStream.pipe, sse, broadcast, Broadcast.pipe):
        for parameter in inspect.signature(made).parameters.values():
            plain = parameter.default is inspect.Parameter.empty
            said = parameter.name if plain else f"{parameter.name}={parameter.default!r}"
            assert said == "self" or said.replace("'", '"') in reference("bridges"), said
    for cls in (SSEBody, Broadcast):
        for member in vars(cls):
            assert member.startswith("_") or re.search(
                rf"`[^`\n]*\b{member}\b", reference("bridges")
            )


def option_table(*path: str) -> str:
    """The table of a command's options, as the reference has it."""
    app = _app()
    for command in path:
        app = app[command]
    rows = [
        f"| {' '.join(f'`{n}`' for n in argument.names)} | {argument.parameter.help} |"
        for argument in app.assemble_argument_collection()
        if argument.show
    ]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


@pytest.mark.parametrize(
    "path",
    [
        ("batch", "run"),
        ("batch", "status"),
        ("batch", "report"),
        ("batch", "export"),
        ("batch", "retry"),
        ("chat",),
        ("demo",),
        ("local",),
        ("local", "install"),
    ],
    ids=" ".join,
)
def test_reference_of_the_command_line_is_its_help(path: tuple[str, ...]) -> None:
    wanted = option_table(*path)
    assert f"## asyncchat {' '.join(path)}\n" in reference("cli")
    assert wanted in reference("cli"), f"the table should be:\n{wanted}"
