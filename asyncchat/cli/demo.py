"""`asyncchat demo`: a real model on this machine answers, one question first and then eight at once.

Not here: the terminal (`terminal`), the choice of server (`target`), the page of `--web` (`web`). The report goes to stdout, so that a
piped demo reads like the one on the screen; the bar goes to stderr.
"""

import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import anyio
from cyclopts import Parameter

from asyncchat.cli.target import Fields, Opened, Sampling, Target, open_target
from asyncchat.cli.terminal import Flow, UsageError, consoles, note, run, without_controls
from asyncchat.cli.web import PageOptions, serve_page
from asyncchat.errors import AsyncChatError, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from asyncchat.protocol.response import Completion

__all__ = ["command"]

_QUESTION = "Write two sentences about the sea."
_QUESTIONS = (
    "Why is the sky blue?",
    "What is a lighthouse?",
    "Why do we sleep?",
    "What is tea?",
    "Why do ships float?",
    "What is a river?",
    "What is snow?",
    "Finish: Once upon a time",
)
_MAX_TOKENS_ALONE = 60
_MAX_TOKENS_TOGETHER = 40


@dataclass(frozen=True, kw_only=True)
class _Answer:
    question: str
    completion: "Completion | None" = None
    error: AsyncChatError | None = None

    @property
    def tokens(self) -> int:
        usage = self.completion.usage if self.completion else None
        return (usage.completion_tokens or 0) if usage else 0


def command(
    *,
    target: Target = Target(),  # noqa: B008  frozen
    sampling: Sampling = Sampling(),  # noqa: B008  frozen
    web: Annotated[
        bool, Parameter(help="Show a page in the browser, to talk with the model.", negative=())
    ] = False,
    page: PageOptions = PageOptions(),  # noqa: B008  frozen
) -> int:
    """Watch a real model on this machine answer: one question, then eight at once.

    With --web it is a page in the browser; with --base-url and --model, a server of yours answers.
    """
    if not target.base_url:
        target = replace(target, local=True)
    if web:
        return serve_page(target, sampling, page)
    if page != PageOptions():
        raise UsageError("--port, --host and --open are for the page: say --web as well.")
    return run(_show(target, sampling))


async def _show(target: Target, sampling: Sampling) -> int:
    out, _ = consoles()
    given = {"temperature": 0.0, **sampling.fields()}
    async with AsyncExitStack() as stack:
        if target.local:
            note("Starting a small model on this machine ...")
        began = time.perf_counter()
        opened = await open_target(target, sampling, stack, parallel=len(_QUESTIONS))
        _introduce(opened, target, time.perf_counter() - began)

        out.print(f"\n[bold]One question[/bold], each word as it comes\n\n  > {_QUESTION}\n")
        alone = await _ask_aloud(opened, {"max_tokens": _MAX_TOKENS_ALONE, **given})
        out.print(f"\n  {_facts(alone)}", style="dim", markup=False)

        out.print("\n[bold]Eight questions[/bold] at once\n")
        began = time.perf_counter()
        answers = await _ask_all(opened, {"max_tokens": _MAX_TOKENS_TOGETHER, **given})
        took = time.perf_counter() - began
        out.print(_table(answers))
        out.print(f"\n  {_sum(answers, took, alone)}", style="dim", markup=False)
        if target.local:
            out.print(
                "\nTalk with it yourself: [bold]asyncchat chat --local[/bold], "
                "or in the browser: [bold]asyncchat demo --web[/bold]"
            )
    failed = sum(answer.error is not None for answer in answers)
    return 0 if not failed else 1 if failed == len(answers) else 3


def _introduce(opened: Opened, target: Target, took: float) -> None:
    out, _ = consoles()
    if target.local:
        out.print(f"[bold]{opened.model}[/bold], served on this machine by llama.cpp")
        out.print(f"{opened.base_url}, ready after {took:.1f} s", style="dim")
        out.print("A very small model: fluent, and often wrong.", style="dim")
    else:
        out.print(f"[bold]{opened.model}[/bold] at {opened.base_url}")


async def _ask_aloud(opened: Opened, fields: Fields) -> "Completion":
    flow = Flow()
    async with opened.client.chat.stream(_QUESTION, **fields) as stream:
        try:
            async for piece in stream.text():
                flow.write(piece)
        finally:
            flow.end()
    return stream.completion


async def _ask_all(opened: Opened, fields: Fields) -> list[_Answer]:
    """Ask every question at once; one that fails leaves the others alone."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    _, aside = consoles()
    answers = [_Answer(question=question) for question in _QUESTIONS]
    limiter = anyio.CapacityLimiter(len(_QUESTIONS))
    share: int = fields["max_tokens"]
    bar = Progress(
        TextColumn(" "),
        BarColumn(40),
        TextColumn("{task.completed:.0f} tokens"),
        TimeElapsedColumn(),
        console=aside,
        disable=not aside.is_terminal,
        transient=True,
    )

    async def ask(index: int) -> None:
        async with limiter:
            answers[index] = await _ask_quietly(
                opened, _QUESTIONS[index], fields, lambda: bar.advance(task)
            )

    with bar:
        task = bar.add_task("", total=share * len(_QUESTIONS))
        async with anyio.create_task_group() as tasks:
            for index in range(len(_QUESTIONS)):
                tasks.start_soon(ask, index)
    return answers


async def _ask_quietly(
    opened: Opened, question: str, fields: Fields, advance: "Callable[[], None]"
) -> _Answer:
    try:
        async with opened.client.chat.stream(question, **fields) as stream:
            async for _ in stream.text():
                advance()
    except AsyncChatError as error:
        return _Answer(question=question, error=error)
    return _Answer(question=question, completion=stream.completion)


def _facts(completion: "Completion") -> str:
    usage = completion.usage
    pace = _pace(completion)
    facts = [
        f"first token after {_first(completion)}",
        f"{pace} tokens/s" if pace else "",
        f"finish_reason {_finish(completion)}",
        f"usage {usage.prompt_tokens} in, {usage.completion_tokens} out"
        if usage
        else "usage not sent",
    ]
    return " · ".join(filter(None, facts))


def _table(answers: list[_Answer]) -> "Table":
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_edge=False, expand=True, padding=(0, 2, 0, 0))
    table.add_column("  question", no_wrap=True)
    table.add_column("answer", no_wrap=True, ratio=1, overflow="ellipsis")
    for name in ("first", "tokens", "tok/s"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("finish", no_wrap=True)
    for answer in answers:
        question = f"  {answer.question}"
        if answer.completion is None:
            reason = printable(str(answer.error))
            table.add_row(question, Text(reason), "", "", "", Text("failed", style="red"))
            continue
        table.add_row(
            question,
            Text(" ".join(without_controls(answer.completion.text).split())),
            _first(answer.completion),
            str(answer.tokens),
            _pace(answer.completion),
            _finish(answer.completion),
        )
    return table


def _sum(answers: list[_Answer], took: float, alone: "Completion") -> str:
    answered = sum(answer.completion is not None for answer in answers)
    tokens = sum(answer.tokens for answer in answers)
    text = f"{answered} of {len(answers)} answered in {took:.1f} s"
    if tokens:
        text += f" · {tokens} tokens, {tokens / took:.0f} per second together"
        text += f" ({pace} for one alone)" if (pace := _pace(alone)) else ""
    return text


def _pace(completion: "Completion") -> str:
    between = completion.timing.itl if completion.timing else None
    return f"{1 / between:.0f}" if between else ""  # all of it came in one piece


def _first(completion: "Completion") -> str:
    seconds = completion.timing.ttft if completion.timing else None
    return "?" if seconds is None else f"{seconds:.2f} s"


def _finish(completion: "Completion") -> str:
    return completion.finish_reason or "none"
