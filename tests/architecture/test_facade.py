"""The facade, and what holds for every module: names, docstrings, mirrors, and a light import."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import asyncchat

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "asyncchat"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("aiohttp", "anyio", "asyncio", "msgspec", "openai", "pydantic", "rich", "yarl")

# As API.md and the README name them: to add one is a decision, to lose one a break.
NAMES = [
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "APITimeoutError",
    "AsyncChatError",
    "AuthenticationError",
    "BadRequestError",
    "ConflictError",
    "ContentFilterFinishReasonError",
    "InternalServerError",
    "JournalError",
    "JournalLocked",
    "JournalMismatch",
    "Batch",
    "BatchError",
    "BatchRecord",
    "BatchRun",
    "Layout",
    "open_source",
    "Price",
    "Stop",
    "Trace",
    "LengthFinishReasonError",
    "LimitExceeded",
    "LineFull",
    "MaxTurnsReached",
    "RefusalError",
    "SourceError",
    "OutputType",
    "MapEvent",
    "MapProgress",
    "MapResult",
    "Mapped",
    "RunEvent",
    "SchemaError",
    "Tool",
    "ToolFinished",
    "ToolRecord",
    "ToolRun",
    "ToolStarted",
    "TurnFinished",
    "tool",
    "NotFoundError",
    "OutputMismatch",
    "PermissionDeniedError",
    "PoolClosed",
    "ProtocolError",
    "RateLimit",
    "RateLimitError",
    "StreamCut",
    "StreamStalled",
    "UnprocessableEntityError",
    "AsyncChat",
    "ChatStream",
    "Endpoint",
    "EndpointStatistics",
    "Limits",
    "Observer",
    "Resume",
    "RetryPolicy",
    "Statistics",
    "Timeout",
    "ContentDelta",
    "ContentDone",
    "Event",
    "Finish",
    "LogprobsDelta",
    "ReasoningDelta",
    "ReasoningDone",
    "RefusalDelta",
    "RefusalDone",
    "ToolCallDelta",
    "ToolCallDone",
    "ToolCallStarted",
    "Resumed",
    "UsageReport",
    "AnswerStarted",
    "AttemptDropped",
    "AttemptFailed",
    "AttemptStarted",
    "Fact",
    "RequestFailed",
    "RequestFinished",
    "RequestLeft",
    "RequestStarted",
    "Assistant",
    "AudioPart",
    "Developer",
    "ImagePart",
    "System",
    "TextPart",
    "ToolResult",
    "User",
    "Choice",
    "Chunk",
    "Completion",
    "Delta",
    "Function",
    "HTTP",
    "Logprobs",
    "Message",
    "Timing",
    "ToolCall",
    "Usage",
    "Broadcast",
    "SSEBody",
    "broadcast",
    "sse",
    "AnswerReader",
    "Assembler",
    "SSEParser",
    "__version__",
]


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT).with_suffix("")).replace("/", ".").removesuffix(".__init__")


every_module = pytest.mark.parametrize("path", MODULES, ids=name_of)
# Those with something in them: not the lists of names at the doors.
ROOMS = [p for p in MODULES if p.name not in ("__init__.py", "__main__.py", "_version.py")]
every_room = pytest.mark.parametrize("path", ROOMS, ids=name_of)


# -------------------------------------------------------------------------------------- the facade


def test_names_are_the_documented_ones() -> None:
    assert sorted(asyncchat.__all__) == sorted(NAMES)
    assert sorted(dir(asyncchat)) == sorted(NAMES)


def test_every_name_is_the_one_of_its_home() -> None:
    for home, names in asyncchat._HOMES.items():
        module = importlib.import_module(home)
        for name in names:
            assert getattr(asyncchat, name) is getattr(module, name)
            assert name in module.__all__


def test_names_that_type_checkers_see_are_those_that_load() -> None:
    (block,) = (
        node
        for node in tree(PACKAGE / "__init__.py").body
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING"
    )
    seen = {
        (node.module, alias.name, alias.asname)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {
        (home, name, name) for home, names in asyncchat._HOMES.items() for name in names
    }


def test_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Nothing"):
        _ = asyncchat.Nothing


def test_star_import_brings_every_name() -> None:
    space: dict[str, object] = {}
    exec("from asyncchat import *", space)
    assert set(NAMES) <= set(space)


def loaded_by(statement: str) -> list[str]:
    code = f"import sys; {statement}; print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return [str(name) for name in ast.literal_eval(done.stdout)]


def test_importing_the_package_loads_nothing_of_weight() -> None:
    assert loaded_by("import asyncchat") == []


def test_importing_an_error_loads_no_transport() -> None:
    assert "aiohttp" not in loaded_by("from asyncchat import APIError")


def test_importing_the_client_loads_no_rival_and_no_command_line() -> None:
    loaded = loaded_by("from asyncchat import AsyncChat")
    assert {"openai", "pydantic", "rich"}.isdisjoint(loaded)


def test_importing_the_test_server_by_its_plugin_loads_no_transport() -> None:
    assert "aiohttp" not in loaded_by("import asyncchat.testing.plugin")


# ---------------------------------------------------------------------------------- every module


@every_module
def test_module_says_what_it_is_for(path: Path) -> None:
    said = ast.get_docstring(tree(path))
    assert said
    assert said.splitlines()[0].endswith((".", "?", "!"))


@every_room
def test_module_says_what_may_not_be_in_it(path: Path) -> None:
    assert "Not here" in (ast.get_docstring(tree(path)) or "")


@every_room
def test_module_lists_its_public_names(path: Path) -> None:
    body = tree(path).body
    public = [
        node.name
        for node in body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not node.decorator_list  # a command's own: called by its decorator
    ]
    listed = next(
        (
            ast.literal_eval(node.value)
            for node in body
            if isinstance(node, ast.Assign)
            and isinstance(node.value, ast.List)
            and any(getattr(target, "id", "") == "__all__" for target in node.targets)
        ),
        None,
    )
    assert set(public) <= set(listed or [])
    assert (listed or []) == sorted(listed or [], key=_as_ruff_sorts)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[0].isupper() else 2
    return kind, name


@every_room
def test_module_has_a_mirror_among_the_tests(path: Path) -> None:
    where = path.parent.relative_to(PACKAGE)
    assert (ROOT / "tests" / where / f"test_{path.stem}.py").exists()


@every_module
def test_module_imports_by_absolute_names(path: Path) -> None:
    relative = [
        node for node in ast.walk(tree(path)) if isinstance(node, ast.ImportFrom) and node.level
    ]
    assert not relative


def test_nothing_received_is_ever_run() -> None:
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), path
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert names.isdisjoint({"pickle", "marshal", "shelve", "yaml"}), path


def test_marker_of_typed_packages_is_there() -> None:
    assert (PACKAGE / "py.typed").exists()
