"""`asyncchat batch run --procs N` and `--ray ADDRESS`: the same job, by several workers.

Not here: the workers (`asyncchat.batch.procs`, `asyncchat.bridges.ray`), what is around a run (`batch_run`).
"""

from typing import TYPE_CHECKING, Any

import msgspec

from asyncchat.batch.plan import Plan as SharedPlan
from asyncchat.batch.procs import Processes
from asyncchat.cli.terminal import UsageError

if TYPE_CHECKING:
    from asyncchat.bridges.ray import RayProcesses
    from asyncchat.cli.batch_run import Plan
    from asyncchat.cli.target import Opened

__all__ = ["workers_for"]

_ON_RAY = 2  # workers, where nobody says how many: each answers thousands at once


def workers_for(
    plan: "Plan", opened: "Opened", about: dict[str, Any], again: dict[str, Any]
) -> "Processes | RayProcesses":
    """Return the workers that a command line asks for, to be entered and read.

    Raises:
        UsageError: they cannot do this.
    """
    running = plan.running
    if plan.target.local:
        raise UsageError("--local is one server for one process: leave --procs and --ray out.")
    options = {name: value for name, value in plan.options.items() if name != "concurrency"}
    try:
        shared = SharedPlan(
            job=str(plan.job),
            base_url=None if plan.named else opened.base_url or None,
            api_key_env=plan.target.api_key_env,
            model=opened.model or None,
            endpoints=plan.named or None,
            concurrency=plan.options["concurrency"],
            rpm=running.rpm,
            tpm=running.tpm,
            batch=msgspec.to_builtins({**opened.fields, **options}),
            layout=plan.layout,
            source=plan.source,
            about=about,
            again=again,
        )
        if running.ray is None:
            return Processes(shared, running.procs)
        from asyncchat.bridges.ray import RayProcesses

        count = running.procs if running.procs > 1 else _ON_RAY
        return RayProcesses(shared, count, address=running.ray)
    except (ValueError, TypeError, ImportError) as error:
        raise UsageError(str(error)) from error
