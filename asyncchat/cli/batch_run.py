"""One run of `asyncchat batch run`: options into a batch, signals, progress, and what is written at the end.

Not here: the options' names (`batch`), the batch itself (`asyncchat.batch`).
"""

import asyncio
import inspect
import math
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

import anyio
import anyio.to_thread
import msgspec

from asyncchat.batch.export import Exported, export
from asyncchat.batch.garbage import rare_collections
from asyncchat.batch.item import BadItem, Item, Layout
from asyncchat.batch.job import report_of, report_without_outcomes
from asyncchat.batch.meter import BatchProgress
from asyncchat.batch.options import Price, kinds_of
from asyncchat.batch.plan import EndpointPlan
from asyncchat.batch.record import Kind
from asyncchat.batch.source import Source, count_items, open_source
from asyncchat.batch.table import Table, hash_of
from asyncchat.cli.progress import progress_line, show_progress
from asyncchat.cli.target import Sampling, Target, open_target
from asyncchat.cli.terminal import UsageError, command_line, complain, note
from asyncchat.errors import JournalError, JournalLocked, JournalMismatch, SourceError
from asyncchat.policy.endpoint import Endpoint
from asyncchat.policy.limits import Limits

if TYPE_CHECKING:
    from asyncchat.batch.engine import Batch, Stop
    from asyncchat.batch.report import Report
    from asyncchat.cli.batch import Caps, Outputs, Rows, Running
    from asyncchat.cli.target import Opened

__all__ = ["Plan", "known_kinds", "run_batch", "written"]

_FAILED, _USAGE, _REFUSED, _LOCKED, _DISK, _CAP = 1, 2, 3, 4, 5, 6
_ENDS = {
    "cap": _CAP,
    "endpoint": _REFUSED,
    "interrupted": _REFUSED,
    "journal": _DISK,
    "mismatch": _USAGE,
}
_LOCAL_PARALLEL = 4
_SHOWN = 5  # bad lines


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to be run, checked as far as it can be without opening anything."""

    source: str
    out: Path | None
    job: Path
    target: Target
    sampling: Sampling
    layout: Layout
    strict: bool
    running: "Running"
    caps: "Caps"
    outputs: "Outputs"
    limits: Limits
    endpoints: list[Endpoint]
    named: list[EndpointPlan]
    options: dict[str, Any]
    again: list[str]
    typed: list[str]

    @classmethod
    def of(  # noqa: D102  as the class says
        cls,
        source: str,
        output: str,
        target: Target,
        sampling: Sampling,
        rows: "Rows",
        running: "Running",
        caps: "Caps",
        outputs: "Outputs",
        again: list[str],
        typed: Iterable[str],
    ) -> "Plan":
        job = outputs.job
        if job is None:
            if output == "-":
                raise UsageError("With - for the answers, --job says where the records go.")
            job = Path(f"{output}.job")
        try:
            concurrency = _concurrency(running.concurrency)
            named = [_endpoint(text) for text in running.endpoint or ()]
            return cls(
                source=source,
                out=None if output == "-" else Path(output),
                job=job,
                target=target,
                sampling=sampling,
                layout=Layout(
                    format=rows.format,
                    prompt=rows.prompt,
                    system=rows.system,
                    messages_column=rows.messages_col,
                    id_column=rows.id_col,
                    max_body=rows.max_body,
                ),
                strict=rows.strict,
                running=running,
                caps=caps,
                outputs=outputs,
                limits=Limits(in_flight=None, rpm=running.rpm, tpm=running.tpm),
                endpoints=[_with_keys(one) for one in named],
                named=named,
                options=_options(running, caps, concurrency),
                again=again,
                typed=[*typed],
            )
        except (ValueError, TypeError) as error:
            raise UsageError(_as_typed(error)) from error

    @property
    def name(self) -> str:
        """What to call the job."""
        return self.job.name.removesuffix(".job")

    @property
    def files(self) -> list[Path]:
        """What is written, beside the records."""
        outputs = self.outputs
        return [
            path
            for path in (self.out, outputs.errors, outputs.report, outputs.summary)
            if path is not None
        ]

    @property
    def export(self) -> list[str]:
        """The command that writes the answers there are."""
        # `batch retry` has gone to another directory than the one where this is pasted.
        where = Path.resolve if "retry" in self.typed[:2] else Path
        outputs, command = self.outputs, ["batch", "export"]
        command += ["--errors", str(where(outputs.errors))] if outputs.errors else []
        command += ["--flat"] * outputs.flat + ["--ordered"] * outputs.ordered
        return [*command, str(where(self.job)), str(where(self.out)) if self.out else "-"]


def _as_typed(error: Exception) -> str:
    """Return what is wrong with an option, called as it is typed."""
    return re.sub(
        r"^([a-z_]+)=(\S+): ", lambda m: f"--{m[1].replace('_', '-')} {m[2]}: ", str(error)
    )


def _concurrency(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"--concurrency {text}: it is auto, or a whole number from 1 up.")
    return int(text)


def _options(running: "Running", caps: "Caps", concurrency: int | str) -> dict[str, Any]:
    if caps.max_cost is not None and caps.price is None:
        raise ValueError("--max-cost needs --price: there is no list of prices in here.")
    return {
        **({} if running.body is None else _fields(running.body)),
        "concurrency": concurrency,
        "stream": running.stream,
        "retries": running.retries,
        "retry_errors": running.retry_failed
        if running.retry_kinds is None
        else known_kinds("--retry-kinds", running.retry_kinds),
        "retry_finish": running.retry_finish or (),
        "on_change": running.on_change,
        "dedupe": running.dedupe,
        "schema": None if running.schema is None else _schema(running.schema),
        "repairs": running.repairs,
        "price": None if caps.price is None else Price.read(caps.price),
        "max_cost": caps.max_cost,
        "max_tokens_total": caps.max_tokens_total,
        "max_items": caps.max_items,
        "max_failures": caps.max_failures,
        "max_wait": caps.max_wait,
        "fsync": running.fsync,
    }


def _fields(text: str) -> dict[str, Any]:
    """Return the fields of `--body`."""
    from asyncchat import AsyncChat

    try:
        fields = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--body is no JSON object: {error}") from error
    ours = {"messages", *inspect.signature(AsyncChat.batch).parameters} - {"response_format"}
    for name in fields:
        if name in ours:
            raise ValueError(f"--body cannot hold {name!r}: the inputs or other options say it.")
    return fields


def _schema(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"--schema {path} is no JSON Schema: {error}") from error
    except OSError as error:
        raise ValueError(f"--schema {path} cannot be read: {error.strerror}") from error


def known_kinds(option: str, text: str) -> frozenset[str]:
    """Return kinds of failures.

    Raises:
        ValueError: there is no such kind.
    """
    kinds = kinds_of(text)
    assert isinstance(kinds, frozenset)
    if unknown := kinds - {*get_args(Kind)}:
        raise ValueError(
            f"{option}: {', '.join(sorted(unknown))} is not known; the kinds are {', '.join(get_args(Kind))}."
        )
    return kinds


_NUMBERS: dict[str, Callable[[str], float]] = {
    "weight": float,
    "rpm": int,
    "tpm": int,
    "in_flight": int,
}


def _endpoint(text: str) -> EndpointPlan:
    """Return the endpoint that `url,model=M,key-env=NAME,weight=2,spare` stands for."""
    url, *parts = text.split(",")
    fields: dict[str, Any] = {}
    for part in parts:
        name, has_value, value = part.partition("=")
        name = name.strip().replace("-", "_")
        if name == "key_env":
            fields["api_key_env"] = value
        elif name == "model":
            fields["model"] = value
        elif name == "spare" and not has_value:
            fields["spare"] = True
        elif name in _NUMBERS and has_value:
            try:
                fields[name] = _NUMBERS[name](value)
            except ValueError:
                raise ValueError(f"--endpoint {url}: {part} is no number.") from None
        else:
            raise ValueError(
                f"--endpoint {url}: {name!r} is not known; it takes model, key-env, weight, rpm, tpm, in-flight, spare."
            )
    return EndpointPlan(url=url, **fields)


def _with_keys(named: EndpointPlan) -> Endpoint:
    try:
        return named.endpoint(1)
    except (ValueError, TypeError) as error:
        raise ValueError(f"--endpoint {named.url}: {error}") from error


async def run_batch(plan: Plan) -> int:
    """Run a batch and return its exit code."""
    interrupts = _Interrupts(plan.caps.grace)
    try:
        with interrupts, rare_collections():
            with interrupts.scope:
                return await _run(plan, interrupts)
            assert interrupts.number is not None
            _say_how_to_go_on(plan)
            return 128 + interrupts.number
    except JournalLocked as error:
        complain(str(error))
        return _LOCKED
    except JournalMismatch as error:
        complain(str(error).replace("on_change='", "--on-change '"))
        return _USAGE
    except SourceError as error:
        complain(str(error))
        return _USAGE
    except JournalError as error:
        complain(str(error))
        if interrupts.has_begun:
            _say_how_to_go_on(plan)
        return _DISK


def _say_how_to_go_on(plan: Plan) -> None:
    same = " (with the same inputs on stdin)" if plan.source == "-" else ""
    note(f"To go on{same}: {command_line(plan.typed)}")


async def _run(plan: Plan, interrupts: "_Interrupts") -> int:
    about = _about(plan)
    _check_files(plan)
    async with AsyncExitStack() as stack:
        source = await anyio.to_thread.run_sync(_open, plan)
        stack.callback(source.close)
        if plan.strict:
            await anyio.to_thread.run_sync(_refuse_bad_lines, plan, interrupts)
        opened = await open_target(
            plan.target,
            plan.sampling,
            stack,
            parallel=_LOCAL_PARALLEL,
            limits=plan.limits,
            endpoints=plan.endpoints,
        )
        if plan.target.local and plan.options["concurrency"] == "auto":
            plan.options["concurrency"] = _LOCAL_PARALLEL
        try:
            batch = opened.client.batch(plan.job, **{**opened.fields, **plan.options})
        except (ValueError, TypeError, ImportError) as error:
            raise UsageError(_as_typed(error)) from error
        if plan.running.procs == 1 and plan.running.ray is None:
            async with batch as job:
                await _check(plan, job, about, interrupts)
                await _work(plan, job, source, about, interrupts)
                stopped, is_single = job.stopped, job.is_single
        else:
            stopped = await _work_together(plan, opened, batch, about, interrupts)
            is_single = False  # as far as is known here
    is_whole = stopped is None or stopped.reason == "cap"
    report = await _write(plan, is_whole=is_whole, is_single=is_single)
    if stopped is not None:
        complain(stopped.message)
        _say_how_to_go_on(plan)
    if not is_whole:
        note(f"What there is so far: {command_line(plan.export)}")
    if interrupts.number is not None:
        return 128 + interrupts.number
    if stopped is not None:
        return _ENDS[stopped.reason]
    return _FAILED if report.failed else 0


async def _work(
    plan: Plan, job: "Batch", source: Source, about: dict[str, Any], interrupts: "_Interrupts"
) -> None:
    """Run it to its end, or until it is interrupted."""

    def progress(total: int | None) -> BatchProgress:
        done = source.position / source.size if source.size else None
        return job.progress(total=total, position=done)

    async def work() -> None:
        async for _ in job.run(source, layout=plan.layout, about=about, again=_again(plan)):
            pass

    await _attend(plan, job, work, progress, interrupts)


async def _work_together(
    plan: Plan,
    opened: "Opened",
    batch: "Batch",
    about: dict[str, Any],
    interrupts: "_Interrupts",
) -> "Stop | None":
    """Let several workers run it; return why it stopped, if it did."""
    from asyncchat.cli.batch_workers import workers_for

    workers = workers_for(plan, opened, about, _again(plan))
    async with batch as job:
        await _check(plan, job, about, interrupts)
    async with workers as together:

        def progress(total: int | None) -> BatchProgress:
            return together.progress(total=total)

        async def work() -> None:
            async for _ in together:
                pass

        await _attend(plan, together, work, progress, interrupts)
    return together.stopped


async def _check(
    plan: Plan, job: "Batch", about: dict[str, Any], interrupts: "_Interrupts"
) -> None:
    """Hold the inputs against what is recorded, before anything is sent."""
    for warning in job.warnings:
        note(warning)
    if job.input not in (None, about) and plan.running.on_change == "error":
        await _refuse_changes(plan, job, interrupts)
    if job.recorded:
        note(f"{_inputs(job.recorded)} recorded already")


def _again(plan: Plan) -> dict[str, Any]:
    return {"arguments": plan.again, "directory": str(Path.cwd())}


async def _attend(
    plan: Plan,
    job: "_Job",
    work: Callable[[], Awaitable[None]],
    progress: Callable[[int | None], BatchProgress],
    interrupts: "_Interrupts",
) -> None:
    """Show progress and heed signals while it runs."""
    total: list[int] = []

    async def count() -> None:
        if plan.source != "-":
            with suppress(SourceError, ImportError):
                number = await anyio.to_thread.run_sync(
                    count_items, plan.source, plan.layout, abandon_on_cancel=True
                )
                total.extend(() if number is None else (number,))

    def show() -> BatchProgress:
        return progress(total[0] if total else None)

    errors: list[Exception] = []  # not through the group, which would wrap it
    async with anyio.create_task_group() as group:
        group.start_soon(count)
        group.start_soon(show_progress, show, plan.outputs.progress)
        with interrupts.draining(job, show):
            try:
                await work()
            except (JournalError, SourceError, ValueError) as error:
                errors.append(error)
        group.cancel_scope.cancel()
    if errors:
        raise errors[0]


def _inputs(number: int) -> str:
    return "1 input is" if number == 1 else f"{number:,} inputs are"


def _check_files(plan: Plan) -> None:
    """Refuse outputs that could not be written in the end, or would overwrite something that is needed."""
    if plan.outputs.report is not None and find_spec("jinja2") is None:
        raise UsageError('--report needs a package: pip install "asyncchat[report]"')
    taken = {} if plan.source == "-" else {Path(plan.source).resolve(): "the inputs"}
    for path in plan.files:
        real = path.resolve()
        if real in taken:
            raise UsageError(f"{path} cannot be written: {taken[real]} are to be there.")
        taken[real] = "other outputs"
        if real.is_dir():
            raise UsageError(f"{path} cannot be written: it is a directory.")
        if not real.parent.is_dir():
            raise UsageError(f"{path} cannot be written: there is no directory {path.parent}.")
        if not os.access(real.parent if real.is_file() or not real.exists() else real, os.W_OK):
            raise UsageError(f"{path} cannot be written: permission denied.")


def _about(plan: Plan) -> dict[str, Any]:
    """Return what tells this input from another."""
    if plan.source == "-":
        return {"name": "-"}
    try:
        stat = Path(plan.source).stat()
    except OSError as error:
        raise UsageError(f"{plan.source} cannot be read: {error.strerror}") from error
    return {
        "name": str(Path(plan.source).resolve()),
        "size": stat.st_size,
        "modified": stat.st_mtime_ns,
    }


def _open(plan: Plan) -> Source:
    try:
        return open_source(plan.source, plan.layout)
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error


def _read_all(plan: Plan, interrupts: "_Interrupts") -> Iterator[Item | BadItem]:
    source = _open(plan)
    try:
        while interrupts.number is None and (items := source.read()):
            yield from items
    finally:
        source.close()


def _refuse_bad_lines(plan: Plan, interrupts: "_Interrupts") -> None:
    if plan.source == "-":
        raise UsageError(
            "--strict reads the inputs twice, which stdin does not allow: name a file."
        )
    wrong, names = 0, Table()
    for item in _read_all(plan, interrupts):
        message = item.message if isinstance(item, BadItem) else None
        name = hash_of(item.key)
        if message is None and names.get(name) is not None:
            message = f"input {item.n}: another one before it is called {item.key!r} too"
        names.put(name, 1)
        if message is not None:
            wrong += 1
            if wrong <= _SHOWN:
                note(message)
    if wrong:
        more = f" {wrong - _SHOWN:,} more are not shown." if wrong > _SHOWN else ""
        raise UsageError(f"{_inputs(wrong)} wrong.{more} Nothing was sent.")


async def _refuse_changes(plan: Plan, job: "Batch", interrupts: "_Interrupts") -> None:
    if plan.source == "-":
        return  # they are compared as they come
    differences = await anyio.to_thread.run_sync(lambda: job.compare(_read_all(plan, interrupts)))
    if interrupts.number is not None:
        return  # not all has been read
    if differences.is_harmless:
        if differences.added:
            note(f"the input has changed since the last run: {differences}")
        return
    raise JournalMismatch(
        f"the input has changed since the last run: {differences}",
        hint="Nothing was sent. --on-change rerun asks for what has changed, --on-change keep keeps the old answers; "
        "--job begins anew in another directory.",
    )


class _Job(Protocol):
    """What can be interrupted: a batch, or the workers that run one."""

    def load(self) -> tuple[int, int, float]: ...
    def drain(self) -> None: ...


class _Interrupts:
    """Signals: the first one drains a batch that runs and ends all else, the second cancels, the third is the end."""

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._count = 0
        self._job: _Job | None = None
        self.number: int | None = None
        self.has_begun = False
        self.scope = self._inner = anyio.CancelScope()

    def __enter__(self) -> "_Interrupts":
        self._loop = asyncio.get_running_loop()
        self._numbers = [
            getattr(signal, name)
            for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
            if hasattr(signal, name)
        ]
        for number in self._numbers:
            with suppress(NotImplementedError, RuntimeError, ValueError):
                self._loop.add_signal_handler(number, self._strike, number)
        return self

    def __exit__(self, *error: object) -> None:
        for number in self._numbers:
            with suppress(NotImplementedError, RuntimeError, ValueError):
                self._loop.remove_signal_handler(number)

    @contextmanager
    def draining(self, job: _Job, progress: Callable[[], BatchProgress]) -> Generator[None]:
        """Let signals drain a batch."""
        self.has_begun = True
        self._job, self._progress = job, progress
        with anyio.CancelScope() as self._inner:
            try:
                yield
            finally:
                self._job = None
        self._inner = self.scope

    def _strike(self, number: int) -> None:
        if number == getattr(signal, "SIGUSR1", None):
            if self._job is not None:
                note(progress_line(self._progress()))
            return
        self._count += 1
        self.number = self.number or number
        if self._count > 2:
            os._exit(128 + number)
        if self._count == 2 or self._job is None:
            self._inner.cancel()
            return
        in_flight, _, _ = self._job.load()
        if in_flight:
            note(f"finishing the {in_flight} in flight; again to leave them")
        self._job.drain()
        if math.isfinite(self._grace):
            self._inner.deadline = self._loop.time() + self._grace


async def _write(plan: Plan, *, is_whole: bool, is_single: bool) -> "Report":
    """Write what is wanted of a run that has ended, and return its report."""
    outputs = plan.outputs

    def export_all() -> "tuple[Report, Exported]":
        count = report_without_outcomes(plan.job)
        found = export(
            [plan.job],
            plan.out or sys.stdout.buffer,
            errors=outputs.errors,
            flat=outputs.flat,
            ordered=outputs.ordered,
            is_single=is_single,
            look=count.outcome,
        )
        sys.stdout.flush()
        return count.report(), found

    def write() -> "Report":
        found = None
        if is_whole:
            try:
                report, found = export_all()
            except OSError:  # what became of the inputs is said all the same
                sys.stderr.write(report_of(plan.job).text())
                raise
        else:
            report = report_of(plan.job)
        sys.stderr.write(report.text())
        sys.stderr.flush()
        if found is not None:
            note(written(found, plan.out, outputs.errors))
        if outputs.report is not None:
            report.html(outputs.report, title=plan.name)
        if outputs.summary is not None:
            outputs.summary.write_bytes(report.json())
        return report

    try:
        return await anyio.to_thread.run_sync(write)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise JournalError(
            f"{error.filename or 'the output'} cannot be written: {error.strerror}",
            hint=f"The records are safe: make room, then {command_line(plan.export)}",
        ) from error


def written(found: Exported, out: Path | None, errors: Path | None) -> str:
    """Say what has been written where."""
    where = "stdout" if out is None else out
    if errors is None:
        return f"{found.ok:,} answers and {found.failed:,} errors written to {where}"
    return f"{found.ok:,} answers written to {where}, {found.failed:,} errors to {errors}"
