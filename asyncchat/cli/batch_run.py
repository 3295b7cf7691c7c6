"""One run of `asyncchat batch run`: options into a batch, signals, progress, and what is written at the end.

Not here: the options' names (`batch`), the batch itself (`asyncchat.batch`).
"""

import asyncio
import math
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread
import msgspec

from asyncchat.batch.export import export
from asyncchat.batch.item import BadItem, Item, Layout
from asyncchat.batch.job import report_of
from asyncchat.batch.meter import BatchProgress
from asyncchat.batch.options import Price
from asyncchat.batch.plan import EndpointPlan
from asyncchat.batch.source import Source, count_items, open_source
from asyncchat.cli.progress import show_progress
from asyncchat.cli.target import Sampling, Target, open_target
from asyncchat.cli.terminal import UsageError, complain, note
from asyncchat.errors import JournalError, JournalLocked, JournalMismatch, SourceError
from asyncchat.policy.endpoint import Endpoint
from asyncchat.policy.limits import Limits

if TYPE_CHECKING:
    from asyncchat.batch.engine import Batch, Stop
    from asyncchat.batch.report import Report
    from asyncchat.cli.batch import Caps, Outputs, Rows, Running
    from asyncchat.cli.target import Opened

__all__ = ["Plan", "run_batch"]

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
    arguments: list[str]

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
        arguments: list[str],
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
                arguments=arguments,
            )
        except (ValueError, TypeError, OSError) as error:
            raise UsageError(str(error)) from error

    @property
    def name(self) -> str:
        """What to call the job."""
        return self.job.name.removesuffix(".job")


def _concurrency(text: str) -> int | str:
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"--concurrency {text}: it is auto, or a whole number from 1 up.")
    return int(text)


def _options(running: "Running", caps: "Caps", concurrency: int | str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if running.body is not None:
        try:
            fields = msgspec.json.decode(running.body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ValueError(f"--body is no JSON object: {error}") from error
    schema = None
    if running.schema is not None:
        try:
            schema = msgspec.json.decode(running.schema.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise ValueError(f"{running.schema} is no JSON Schema: {error}") from error
    return {
        **fields,
        "concurrency": concurrency,
        "stream": running.stream,
        "retries": running.retries,
        "retry_errors": running.retry_kinds or running.retry_failed,
        "retry_finish": running.retry_finish or (),
        "on_change": running.on_change,
        "dedupe": running.dedupe,
        "schema": schema,
        "repairs": running.repairs,
        "price": None if caps.price is None else Price.read(caps.price),
        "max_cost": caps.max_cost,
        "max_tokens_total": caps.max_tokens_total,
        "max_items": caps.max_items,
        "max_failures": caps.max_failures,
        "max_wait": caps.max_wait,
        "fsync": running.fsync,
    }


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
        elif name in _NUMBERS:
            fields[name] = _NUMBERS[name](value)
        else:
            raise ValueError(
                f"--endpoint {url}: {name!r} is not known; it takes model, key-env, weight, rpm, tpm, in-flight, spare."
            )
    return EndpointPlan(url=url, **fields)


def _with_keys(named: EndpointPlan) -> Endpoint:
    try:
        return named.endpoint(1)
    except ValueError as error:
        raise ValueError(f"--endpoint {named.url}: {error}") from error


async def run_batch(plan: Plan) -> int:
    """Run a batch and return its exit code."""
    try:
        return await _run(plan)
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
        return _DISK


async def _run(plan: Plan) -> int:
    async with AsyncExitStack() as stack:
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
            raise UsageError(str(error)) from error
        if plan.running.procs == 1 and plan.running.ray is None:
            async with batch as job:
                interrupted = await _work(plan, job)
                stopped = job.stopped
        else:
            interrupted, stopped = await _work_together(plan, opened, batch)
    report = await anyio.to_thread.run_sync(report_of, plan.job)
    await _write(plan, report, is_whole=stopped is None or stopped.reason == "cap")
    if stopped is not None:
        complain(stopped.message)
        note(f"To go on: {shlex.join(['asyncchat', *plan.arguments])}")
    if interrupted is not None:
        return 128 + interrupted
    if stopped is not None:
        return _ENDS[stopped.reason]
    return _FAILED if report.failed else 0


async def _work(plan: Plan, job: "Batch") -> int | None:
    """Run it to its end; return the signal that ended it early, if one did."""
    about = _about(plan)
    await _check(plan, job, about)
    source = await anyio.to_thread.run_sync(_open, plan)

    def progress(total: int | None) -> BatchProgress:
        done = source.position / source.size if source.size else None
        return job.progress(total=total, position=done)

    async def work() -> None:
        async for _ in job.run(source, layout=plan.layout, about=about, again=_again(plan)):
            pass

    return await _attend(plan, job, work, progress)


async def _work_together(
    plan: Plan, opened: "Opened", batch: "Batch"
) -> "tuple[int | None, Stop | None]":
    """Let several workers run it; return the signal that ended it early, and why it stopped, if it did."""
    from asyncchat.cli.batch_workers import workers_for

    about = _about(plan)
    workers = workers_for(plan, opened, about, _again(plan))
    async with batch as job:
        await _check(plan, job, about)
    async with workers as together:

        def progress(total: int | None) -> BatchProgress:
            return together.progress(total=total)

        async def work() -> None:
            async for _ in together:
                pass

        interrupted = await _attend(plan, together, work, progress)
    return interrupted, together.stopped


async def _check(plan: Plan, job: "Batch", about: dict[str, Any]) -> None:
    """Hold the inputs against what is recorded, before anything is sent."""
    for warning in job.warnings:
        note(warning)
    if plan.strict:
        await anyio.to_thread.run_sync(_refuse_bad_lines, plan)
    if job.input not in (None, about) and plan.running.on_change == "error":
        await _refuse_changes(plan, job)
    if job.recorded:
        note(f"{job.recorded} inputs are recorded already")


def _again(plan: Plan) -> dict[str, Any]:
    return {"arguments": plan.arguments, "directory": str(Path.cwd())}


async def _attend(
    plan: Plan,
    job: "_Job",
    work: Callable[[], Awaitable[None]],
    progress: Callable[[int | None], BatchProgress],
) -> int | None:
    """Show progress and heed signals while it runs; return the signal that ended it early, if one did."""
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
    with _Interrupts(job, plan.caps.grace) as interrupts:
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            group.start_soon(show_progress, show, plan.outputs.progress)
            with interrupts.scope:
                try:
                    await work()
                except (JournalError, SourceError, ValueError) as error:
                    errors.append(error)
            group.cancel_scope.cancel()
    if errors and not (isinstance(errors[0], JournalError) and interrupts.number):
        raise errors[0]
    return interrupts.number


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


def _read_all(plan: Plan) -> Iterator[Item | BadItem]:
    source = _open(plan)
    try:
        while items := source.read():
            yield from items
    finally:
        source.close()


def _refuse_bad_lines(plan: Plan) -> None:
    if plan.source == "-":
        raise UsageError(
            "--strict reads the inputs twice, which stdin does not allow: name a file."
        )
    bad = [item for item in _read_all(plan) if isinstance(item, BadItem)]
    if bad:
        for item in bad[:_SHOWN]:
            note(item.message)
        raise UsageError(f"{len(bad)} of the inputs cannot be asked. Nothing was sent.")


async def _refuse_changes(plan: Plan, job: "Batch") -> None:
    if plan.source == "-":
        return  # they are compared as they come
    differences = await anyio.to_thread.run_sync(lambda: job.compare(_read_all(plan)))
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
    """Signals: the first one drains, the second cancels, the third is the end."""

    def __init__(self, job: "_Job", grace: float) -> None:
        self._job = job
        self._grace = grace
        self._count = 0
        self.number: int | None = None
        self.scope = anyio.CancelScope()

    def __enter__(self) -> "_Interrupts":
        self._loop = asyncio.get_running_loop()
        self._numbers = [
            getattr(signal, name)
            for name in ("SIGINT", "SIGTERM", "SIGHUP")
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

    def _strike(self, number: int) -> None:
        self._count += 1
        self.number = self.number or number
        if self._count == 1:
            in_flight, _, _ = self._job.load()
            note(f"finishing the {in_flight} in flight; again to leave them")
            self._job.drain()
            if math.isfinite(self._grace):
                self.scope.deadline = anyio.current_time() + self._grace
        elif self._count == 2:
            self.scope.cancel()
        else:
            os._exit(128 + number)


async def _write(plan: Plan, report: "Report", *, is_whole: bool) -> None:
    """Write what is wanted of a run that has ended."""
    outputs = plan.outputs

    def write() -> None:
        if is_whole:
            export(
                [plan.job],
                plan.out or sys.stdout.buffer,
                errors=outputs.errors,
                flat=outputs.flat,
                ordered=outputs.ordered,
            )
        if outputs.report is not None:
            report.html(outputs.report, title=plan.name)
        if outputs.summary is not None:
            outputs.summary.write_bytes(report.json())

    sys.stderr.write(report.text())
    sys.stderr.flush()
    try:
        await anyio.to_thread.run_sync(write)
    except OSError as error:
        raise JournalError(
            f"{error.filename or 'the output'} cannot be written: {error.strerror}",
            hint=f"The records are safe in {plan.job}: make room and run `asyncchat batch export`.",
        ) from error
    if not is_whole:
        where = shlex.join(["asyncchat", "batch", "export", str(plan.job), str(plan.out or "OUT")])
        note(f"What there is so far: {where}")
