"""`asyncchat batch`: everything in a file is asked, and nothing is lost whatever happens.

Not here: the running itself (`batch_run`), what a record is (`asyncchat.batch`). Exit codes: 0 all answered, 1 some inputs failed,
2 usage, input or options that do not go together, 3 the server refuses for good, 4 the job runs already, 5 the disk, 6 a cap was
reached, 130 and 143 interrupted; after all but 0 to 2 the same command goes on.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Group, Parameter

from asyncchat.cli.progress import ProgressStyle
from asyncchat.cli.target import Sampling, Target
from asyncchat.cli.terminal import ARGUMENTS, TYPED, UsageError, note, run, show

__all__ = ["Caps", "Outputs", "Rows", "Running", "arguments_to_run_again", "command"]

command = App(name="batch", help="Ask everything in a file, and lose nothing whatever happens.")


def _no_option(_kind: object, value: str) -> None:
    if value.startswith("-") and value != "-":
        raise ValueError(f"There is no such option; a file of this name is ./{value}.")


_SERVER = Parameter(name="*", group=Group("Server", sort_key=0))
_DASH = Parameter(allow_leading_hyphen=True, validator=_no_option)


@Parameter(name="*", group=Group("Inputs", sort_key=1))
@dataclass(frozen=True, kw_only=True)
class Rows:
    """How inputs become requests."""

    format: Annotated[
        Literal["jsonl", "csv", "parquet"] | None,
        Parameter(help="What the input is. Else by its suffix; .gz and .zst may follow."),
    ] = None
    prompt: Annotated[
        str | None, Parameter(help="A template over columns: 'Classify: {text}'.")
    ] = None
    system: Annotated[
        str | None, Parameter(help="A system message before each; a template as well.")
    ] = None
    messages_col: Annotated[str | None, Parameter(help="The column that holds messages.")] = None
    id_col: Annotated[str | None, Parameter(help="The column that names an input.")] = None
    max_body: Annotated[int, Parameter(help="The largest request, in bytes; default 20 MiB.")] = (
        20 * 2**20
    )
    strict: Annotated[
        bool,
        Parameter(help="Read all inputs first, and ask nothing if one is wrong.", negative=()),
    ] = False


@Parameter(name="*", group=Group("How it is asked", sort_key=2))
@dataclass(frozen=True, kw_only=True)
class Running:
    """How it is run."""

    concurrency: Annotated[
        str,
        Parameter(
            help="Requests at once: a number, or auto, the default, to find out what is borne."
        ),
    ] = "auto"
    stream: Annotated[
        bool, Parameter(help="Stream answers underneath, so that stalls are noticed.")
    ] = True
    endpoint: Annotated[
        list[str] | None,
        Parameter(
            help="A server among several; repeatable. A URL, and after commas any of model=M, key-env=NAME, weight=2, rpm=N, tpm=N, in-flight=N, spare.",
            negative=(),
        ),
    ] = None
    rpm: Annotated[int | None, Parameter(help="Requests a minute, in all.")] = None
    tpm: Annotated[int | None, Parameter(help="Tokens a minute, in all.")] = None
    body: Annotated[
        str | None, Parameter(help="More fields for every request, as a JSON object.")
    ] = None
    schema: Annotated[
        Path | None, Parameter(help="A JSON Schema that every answer has to fit.")
    ] = None
    repairs: Annotated[
        int,
        Parameter(help="Ask so often again, with the error, where one does not fit; default 1."),
    ] = 1
    retries: Annotated[int, Parameter(help="Attempts after the first; default 5.")] = 5
    retry_finish: Annotated[
        list[str] | None,
        Parameter(
            help="A finish_reason that is no answer, such as length; repeatable.", negative=()
        ),
    ] = None
    retry_failed: Annotated[
        bool, Parameter(help="Ask again for what failed in an earlier run.", negative=())
    ] = False
    retry_kinds: Annotated[
        str | None, Parameter(help="Likewise, but only for these kinds: timeout,server.")
    ] = None
    on_change: Annotated[
        Literal["error", "rerun", "keep"],
        Parameter(help="What to do with answered inputs that have changed since; default error."),
    ] = "error"
    dedupe: Annotated[
        bool, Parameter(help="Ask once where several inputs ask the same.", negative=())
    ] = False
    fsync: Annotated[
        Literal["always", "1s", "never"],
        Parameter(help="When records are made safe against a power cut; default 1s."),
    ] = "1s"
    procs: Annotated[int, Parameter(help="Processes that share the work and the limits.")] = 1
    ray: Annotated[str | None, Parameter(help="Run on a Ray cluster: its address, or auto.")] = (
        None
    )


@Parameter(name="*", group=Group("When to stop", sort_key=3))
@dataclass(frozen=True, kw_only=True)
class Caps:
    """When to stop early. What is in flight is finished."""

    price: Annotated[
        str | None,
        Parameter(help="Of a million tokens: prompt,completion[,cached]. Makes costs known."),
    ] = None
    max_cost: Annotated[
        float | None, Parameter(help="Stop before it costs more; needs --price.")
    ] = None
    max_tokens_total: Annotated[
        int | None, Parameter(help="Stop at so many tokens, in all runs.")
    ] = None
    max_items: Annotated[int | None, Parameter(help="Ask for so many inputs in this run.")] = None
    max_failures: Annotated[
        str | None, Parameter(help="Stop at so many failures: a number, or a share such as 5%.")
    ] = None
    max_wait: Annotated[
        float, Parameter(help="Seconds without any answer after which it stops; default 3600.")
    ] = 3600.0
    grace: Annotated[
        float, Parameter(help="Seconds that Ctrl-C leaves to what is in flight; default 60.")
    ] = 60.0


@Parameter(name="*", group=Group("Outputs", sort_key=4))
@dataclass(frozen=True, kw_only=True)
class Outputs:
    """What is written where."""

    job: Annotated[Path | None, Parameter(help="The directory of the records. Else OUT.job.")] = (
        None
    )
    errors: Annotated[
        Path | None, Parameter(help="A file for failed inputs. Else they are in OUT.")
    ] = None
    flat: Annotated[
        bool, Parameter(help="One flat object a line instead of OpenAI's format.", negative=())
    ] = False
    ordered: Annotated[bool, Parameter(help="In the order of the inputs.", negative=())] = False
    report: Annotated[
        Path | None, Parameter(help="Write the report as an HTML page with plots.")
    ] = None
    summary: Annotated[Path | None, Parameter(help="Write the report's numbers as JSON.")] = None
    progress: Annotated[
        ProgressStyle,
        Parameter(
            help="How to show progress on stderr; default auto: plain lines where there is no terminal."
        ),
    ] = "auto"


@command.command(name="run")
def _run(
    input: Annotated[  # noqa: A002
        str, _DASH, Parameter(help="A file of inputs, or - for stdin.")
    ],
    output: Annotated[str, _DASH, Parameter(help="The file of answers, or - for stdout.")],
    /,
    *,
    target: Annotated[Target, _SERVER] = Target(),  # noqa: B008  frozen
    sampling: Annotated[Sampling, _SERVER] = Sampling(),  # noqa: B008  frozen
    rows: Rows = Rows(),
    running: Running = Running(),
    caps: Caps = Caps(),
    outputs: Outputs = Outputs(),
) -> int:
    """Ask everything in a file. The same command again goes on where it stopped."""
    from asyncchat.cli.batch_run import Plan, run_batch

    plan = Plan.of(
        input,
        output,
        target,
        sampling,
        rows,
        running,
        caps,
        outputs,
        arguments_to_run_again(),
        TYPED.get(),
    )
    return run(run_batch(plan))


@command.command(name="status")
def _status(job: Annotated[Path, Parameter(help="The directory of a job.")], /) -> int:
    """Say how far a job is. It may be running."""
    from asyncchat.batch.job import status_of

    with _looking_at(job):
        status = status_of(job)
    state = f"running, process {status.pid}" if status.pid is not None else "not running"
    kinds = ", ".join(f"{number:,} {kind}" for kind, number in status.failures.items())
    why = f" ({kinds})" if kinds else ""
    show(f"{status.ok:,} answered, {status.failed:,} failed{why}; {state}\n")
    sample = status.sample
    if status.pid is not None and sample is not None:
        pause = f", paused for {sample.pause:.0f} s" if sample.pause else ""
        show(f"{sample.in_flight:,} in flight of {sample.limit:,}{pause}\n")
    return 0


@command.command(name="report")
def _report(
    job: Annotated[Path, Parameter(help="The directory of a job.")],
    /,
    *,
    html: Annotated[Path | None, Parameter(help="Write an HTML page with plots.")] = None,
    summary: Annotated[Path | None, Parameter(help="Write the numbers as JSON.")] = None,
) -> int:
    """Show what became of a job, over all its runs."""
    from asyncchat.batch.job import report_of

    with _looking_at(job):
        report = report_of(job)
        show(report.text())
        if html is not None:
            report.html(html, title=job.resolve().name.removesuffix(".job"))
        if summary is not None:
            summary.write_bytes(report.json())
    return 0


@command.command(name="export")
def _export(
    jobs: Annotated[list[Path], Parameter(help="Directories of jobs.", negative=())],
    output: Annotated[str, _DASH, Parameter(help="The file of answers, or - for stdout.")],
    /,
    *,
    errors: Annotated[Path | None, Parameter(help="A file for failed inputs.")] = None,
    flat: Annotated[bool, Parameter(help="One flat object a line.", negative=())] = False,
    ordered: Annotated[bool, Parameter(help="In the order of the inputs.", negative=())] = False,
) -> int:
    """Write the records of one job, or of several, to a file."""
    from asyncchat.batch.export import export
    from asyncchat.cli.batch_run import written

    out = None if output == "-" else Path(output)
    if errors is not None and out is not None and errors.resolve() == out.resolve():
        raise UsageError("--errors is another file than that of the answers.")
    with _looking_at(*jobs):
        found = export(
            jobs,
            out or sys.stdout.buffer,
            errors=errors,
            flat=flat,
            ordered=ordered,
        )
        sys.stdout.flush()
    note(written(found, out, errors))
    return 0


@command.command(name="retry")
def _retry(
    job: Annotated[Path, Parameter(help="The directory of a job.")],
    /,
    *,
    kinds: Annotated[
        str | None, Parameter(help="Only these kinds of failures: timeout,server.")
    ] = None,
) -> int:
    """Ask again for what failed, with the command that made the job."""
    from asyncchat.batch.journal import read_job
    from asyncchat.cli import main
    from asyncchat.cli.batch_run import known_kinds

    with _looking_at(job):
        made = read_job(job)
    arguments = None if made is None else made.run.get("arguments")
    if made is None or not isinstance(arguments, list):
        raise UsageError(f"{job} is not the job of an `asyncchat batch run`.")
    if kinds is not None:
        try:
            known_kinds("--kinds", kinds)
        except ValueError as error:
            raise UsageError(str(error)) from error
    directory = str(made.run.get("directory"))
    try:
        os.chdir(directory)
    except OSError as error:
        raise UsageError(
            f"{directory}, where the job was started, cannot be entered: {error.strerror}"
        ) from error
    again = ["--retry-failed"] if kinds is None else ["--retry-kinds", kinds]
    command, given = arguments[:2], arguments[2:]  # ... before any `--`
    return main([*command, *again, *given], typed=TYPED.get())


@contextmanager
def _looking_at(*jobs: Path) -> Generator[None]:
    """Make what can go wrong with jobs and files a sentence."""
    from asyncchat.batch.journal import read_job
    from asyncchat.errors import JournalError

    try:
        for job in jobs:
            if read_job(job) is None:
                raise UsageError(
                    f"There is no job in {job}. A job is the directory beside its output: OUT.job."
                )
        yield
    except ImportError as error:
        raise UsageError(str(error)) from error
    except BrokenPipeError:
        raise
    except OSError as error:
        raise JournalError(
            f"{error.filename or 'the output'} cannot be written: {error.strerror}"
        ) from error


def arguments_to_run_again() -> list[str]:
    """Return what was typed, but for what asks for failures again."""
    kept: list[str] = []
    given = iter(ARGUMENTS.get())
    for one in given:
        if one == "--retry-kinds":
            next(given, None)
        elif one != "--retry-failed" and not one.startswith("--retry-kinds="):
            kept.append(one)
    return kept
