"""A batch over the machines of a Ray cluster: Ray reads, splits, places and restarts; all about requests stays with `batch`.

Not here: asking, the journal, how limits are shared. Each life of a worker writes a shard of its own into the job's directory,
which lies where all nodes see it; one actor without a CPU holds the limits of the whole job.
"""

import asyncio
import atexit
import queue
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec

from asyncchat.batch.engine import Batch, Prepared, Stop
from asyncchat.batch.garbage import rare_collections
from asyncchat.batch.item import BadItem, Item, Layout, item_of
from asyncchat.batch.meter import BatchProgress
from asyncchat.batch.part import Part, Standing, Tally
from asyncchat.batch.plan import EndpointPlan, Plan
from asyncchat.batch.record import BatchError, BatchRecord, Outcome, Trace
from asyncchat.batch.shards import Shards
from asyncchat.batch.source import open_source
from asyncchat.batch.table import Table, hash_of
from asyncchat.client.tasks import BlockTasks
from asyncchat.errors import JournalMismatch
from asyncchat.policy.lease import Lease, Renewal

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal
    from ray.data import Dataset

__all__ = ["RayProcesses", "run"]

_BATCH = 256
_CALLS = 8  # batches that overlap in one worker: none waits for the slowest item of another
_CPUS = 0.5
_FAREWELL_SECONDS = 5.0
_LOOK_SECONDS = 0.25

_encode = msgspec.json.Encoder().encode


def run(
    dataset: "Dataset",
    *,
    journal: str,
    model: str | None = None,
    base_url: str | None = None,
    api_key_env: str | None = None,
    endpoints: list[EndpointPlan | Mapping[str, Any]] | None = None,
    prompt: str | None = None,
    system: str | None = None,
    messages: str | None = None,
    id_column: str | None = None,
    workers: int | tuple[int, int] = (2, 8),
    concurrency: int | Literal["auto"] = 2048,
    rpm: int | None = None,
    tpm: int | None = None,
    batch_size: int = _BATCH,
    num_cpus: float = _CPUS,
    placement: Mapping[str, Any] | None = None,
    **options: Any,  # noqa: ANN401  the fields of a request are whatever a server understands
) -> "Dataset":
    """Return the answers to a dataset's rows, as a lazy dataset: nothing is sent before it is read or written.

    Columns: `id`; `response`, the answer as JSON, and `text`, what it says; `error`, as JSON (each of the three is `""` where
    there is none, never null); `prompt_tokens`, `completion_tokens`; `attempts`, `t_queue`, `t_first`, `t_total` (seconds). A row
    that fails is a row with an `error`. Rows come in any order.

    Running the same with the same `journal` goes on: what is recorded there is not asked for again. A worker or node that dies
    costs what it had in flight. The job is locked until the driver ends.

    Args:
        dataset: rows for `prompt` or `messages`, or lines of OpenAI's batch format.
        journal: a directory that all nodes see under this path.
        model: for rows that name none.
        base_url: of the server, instead of `endpoints`.
        api_key_env: the environment variable that holds the key, on each node; None is `OPENAI_API_KEY`. The key itself goes nowhere.
        endpoints: servers that stand in for each other. Their own limits are divided among the workers.
        prompt: a template of the user's message: `"Classify: {text}"`.
        system: likewise, of a message before it.
        messages: the column that holds messages, instead of `prompt`.
        id_column: the column that names a row, if it has no `custom_id`. Else a row is named by what it asks, and the same is asked once.
        workers: how many, or at least and at most how many.
        concurrency: requests in flight, of all workers together; `"auto"` finds out how many the servers bear.
        rpm: requests a minute, of all workers together.
        tpm: tokens a minute, of all workers together.
        batch_size: rows that a worker gets at once.
        num_cpus: of a worker; below 1, so that some are left for what reads.
        placement: other keywords of `map_batches`: `resources`, `label_selector`, `runtime_env`.
        options: other keywords of `client.batch`, and fields of every request. What cannot be JSON cannot be here.

    Raises:
        ImportError: Ray is not installed.
        ValueError, TypeError: an argument that cannot be right.
        JournalLocked: another driver runs the job.
        JournalMismatch: its records were made with other options.
    """
    ray = _ray()
    least, most = (workers, workers) if isinstance(workers, int) else workers
    if not 1 <= least <= most:
        raise ValueError(
            f"workers={workers!r}: they are at least 1, and no more at least than at most."
        )
    plan = _plan(
        journal,
        model=model,
        base_url=base_url,
        api_key_env=api_key_env,
        endpoints=None if endpoints is None else [_endpoint(one) for one in endpoints],
        layout=Layout(prompt=prompt, system=system, messages_column=messages, id_column=id_column),
        concurrency=concurrency,
        rpm=rpm,
        tpm=tpm,
        batch=options,
    )
    holder = _hold(plan)
    return dataset.map_batches(
        _Worker,
        fn_constructor_args=(_encode(plan), most, holder),
        batch_size=batch_size,
        batch_format="pyarrow",
        compute=ray.data.ActorPoolStrategy(
            min_size=least, max_size=most, max_concurrent_calls_per_actor=_CALLS
        ),
        num_cpus=num_cpus,
        **(placement or {}),
    )


def _ray() -> Any:  # noqa: ANN401  Ray is imported where it is needed
    try:
        import_module("ray.data")
    except ImportError as error:
        raise ImportError(
            'the bridge to Ray needs it: pip install "asyncchat[ray]"', name="ray"
        ) from error
    return import_module("ray")


def _endpoint(given: EndpointPlan | Mapping[str, Any]) -> EndpointPlan:
    if isinstance(given, EndpointPlan):
        return given
    if "api_key" in given:
        raise TypeError(_KEY)
    return msgspec.convert(dict(given), EndpointPlan)


_KEY = "a key would be seen in the plan and the logs of Ray: api_key_env names the variable that holds it on each node."


def _plan(journal: str, *, batch: dict[str, Any], **given: Any) -> Plan:  # noqa: ANN401  those of `Plan`
    if "api_key" in batch:
        raise TypeError(_KEY)
    if "://" in journal:
        raise ValueError(f"journal={journal!r}: it is a directory that all nodes see, not a URL.")
    plan = Plan(job=str(Path(journal).absolute()), batch=batch, **given)
    try:
        return msgspec.json.decode(_encode(plan), type=Plan)  # as the workers get it
    except TypeError as error:
        raise TypeError(f"an option cannot be sent to workers: {error}") from error


# ------------------------------------------------------------------------------------------ limits


class _Held(NamedTuple):
    """What a driver holds of a job, until it ends."""

    prepared: Prepared
    actor: Any


_HELD: dict[str, _Held] = {}


def _hold(plan: Plan) -> str:
    """Lock a job, make the actor that holds its limits, and return its name."""
    _let_go(plan.job)
    batch = plan.open(plan.client(with_keys=False))
    prepared = batch.prepare(layout=plan.layout, about=plan.about, again=plan.again)
    name = f"asyncchat-{secrets.token_hex(8)}"
    try:
        _HELD[plan.job] = _Held(prepared, _start_holder(name, plan))
    except BaseException:
        prepared.lock.close()
        raise
    return name


def _let_go(job: str) -> None:
    held = _HELD.pop(job, None)
    if held is not None:
        held.prepared.lock.close()


def _start_holder(name: str, plan: Plan, **where: Any) -> Any:  # noqa: ANN401  actors have no types
    """Start the actor that holds a job's limits. The driver owns it, so it is started anew wherever there is room until that ends."""
    ray = _ray()
    if not where:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # With the driver, which all depends on anyway.
        here = ray.get_runtime_context().get_node_id()
        where = {"scheduling_strategy": NodeAffinitySchedulingStrategy(here, soft=True)}
    actor = ray.remote(_Holder).options(
        name=name, get_if_exists=True, num_cpus=0, max_restarts=-1, **where
    )
    made = actor.remote(_encode(plan))
    made.begin.remote()
    return made


class _Holder:
    """The limits of a job. After the death of its node it is made again, and knows nothing of what was lent."""

    def __init__(self, plan: bytes) -> None:
        self._plan = msgspec.json.decode(plan, type=Plan)
        self._leases = self._plan.leases(secrets.token_hex(8), time.monotonic())
        self._standings: dict[str, bytes] = {}
        self._stop: bytes | None = None

    async def begin(self) -> None:
        """Be the first, as only the first is told: whoever takes its place has to mind what was lent before."""
        self._leases = self._plan.leases(secrets.token_hex(8))

    async def lease(
        self, worker: str, renewal: bytes, standing: bytes = b""
    ) -> tuple[bytes, bytes | None]:
        """Answer a worker, and tell it to stop if it should."""
        asked = msgspec.json.decode(renewal, type=Renewal)
        if standing:
            self._standings[worker] = standing
        return _encode(self._leases.lease(worker, time.monotonic(), asked)), self._stop

    async def standings(self, stop: bytes | None = None) -> dict[str, bytes]:
        """Tell the driver how the workers stand; from now on tell them to stop, if it says so."""
        self._stop = self._stop or stop
        return self._standings


# ----------------------------------------------------------------------------------------- workers


class _Worker:
    """What Ray makes of each actor of the pool: it answers batches of rows, several at once, on one engine."""

    def __init__(self, plan: bytes, workers: int, holder: str) -> None:
        ray = _ray()
        actor = ray.get_actor(holder)
        life = f"r-{secrets.token_hex(6)}"

        async def ask(renewal: Renewal) -> Lease | None:
            try:
                lease, _ = await actor.lease.remote(life, _encode(renewal))
            except ray.exceptions.RayError:  # it is being made again
                return None
            return msgspec.json.decode(lease, type=Lease)

        self._engine = _Engine(msgspec.json.decode(plan, type=Plan), workers, life, ask)

    async def __call__(self, rows: Any) -> Any:  # noqa: ANN401  tables; pyarrow has no types
        """Answer some rows."""
        records = await asyncio.wrap_future(self._engine.answer(rows.to_pylist()))
        return _table(records)


class _Feed:
    """Inputs on their way from batches of rows to the engine, which reads them in a thread."""

    def __init__(self) -> None:
        self._items: queue.SimpleQueue[list[Item | BadItem]] = queue.SimpleQueue()

    def put(self, items: list[Item | BadItem]) -> None:
        if items:
            self._items.put(items)

    def read(self) -> list[Item | BadItem]:
        return self._items.get()

    def close(self) -> None:
        self._items.put([])


class _Engine:
    """A batch that runs in a thread and a loop of its own, for as long as the worker lives.

    Args:
        plan: what it does.
        workers: how many there are at most.
        life: names this life of the worker, and its shard.
        ask: the holder of the limits.
    """

    def __init__(
        self,
        plan: Plan,
        workers: int,
        life: str,
        ask: Callable[[Renewal], Any] | None = None,
    ) -> None:
        self._plan = plan
        self._workers = workers
        self._life = life
        self._ask = ask
        self._feed = _Feed()
        self._shards = Shards(Path(plan.job))
        self._numbers = count(1)
        self._pending: dict[str, tuple[Item | BadItem, asyncio.Future[BatchRecord]]] = {}
        self._mine = Table()  # recorded in this life, and perhaps not yet in `_shards`
        self._batch: Batch | None = None
        self._stop: Stop | None = None
        self._portal: BlockingPortal | None = None
        started: Future[None] = Future()
        # No thread of a pool: those are waited for at the end of a process, and this one ends then.
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        started.result()
        atexit.register(self.close)

    def answer(self, rows: list[dict[str, Any]]) -> "Future[list[BatchRecord]]":
        """Return the records of some rows, in their order."""
        assert self._portal is not None
        return self._portal.start_task_soon(self._answer, rows)

    def close(self) -> None:
        """End it: close the connections and the shard. Idempotent."""
        portal, self._portal = self._portal, None
        if portal is not None:
            atexit.unregister(self.close)
            with suppress(RuntimeError):
                portal.start_task_soon(portal.stop, True)
            self._thread.join(_FAREWELL_SECONDS)

    # ------------------------------------------------------------------------------- in its thread

    def _run(self, started: "Future[None]") -> None:
        try:
            with rare_collections():
                anyio.run(self._live, started)
        except BaseException as error:  # noqa: BLE001  whoever made it gets it
            if not started.done():
                started.set_exception(error)

    async def _live(self, started: "Future[None]") -> None:
        plan = self._plan
        async with plan.client(self._workers) as client:
            self._batch = plan.open(client, self._life)
            if self._ask is not None:
                self._batch.share(self._ask)
            async with self._batch as job, anyio.from_thread.BlockingPortal() as portal:
                # After the batch has read them: what it passes over is found here.
                await anyio.to_thread.run_sync(self._catch_up)
                self._portal = portal
                tasks = BlockTasks()
                await tasks.open()
                tasks.start(self._hand_out, job)
                started.set_result(None)
                try:
                    await portal.sleep_until_stopped()
                finally:
                    await tasks.close()

    def _catch_up(self) -> None:
        for _ in self._shards.catch_up():
            pass

    async def _hand_out(self, job: Batch) -> None:
        """Give each record to those who wait for it."""
        plan = self._plan
        try:
            async for record in job.run(
                self._feed, layout=plan.layout, about=plan.about, again=plan.again
            ):
                self._mine.put(hash_of(record.custom_id), 1)
                _, waits = self._pending.pop(record.custom_id)
                waits.set_result(record)
        except JournalMismatch as error:
            self._stop = Stop("mismatch", str(error))
        except Exception as error:  # noqa: BLE001  the rows that are left get it
            self._stop = Stop("journal", f"{type(error).__name__}: {error}")
        finally:
            self._stop = self._stop or job.stopped or Stop("interrupted", "the worker ends")
            pending, self._pending = self._pending, {}
            for key, (_, waits) in pending.items():
                waits.set_result(_unrecorded(key, self._stop.reason, self._stop.message))

    async def _answer(self, rows: list[dict[str, Any]]) -> list[BatchRecord]:
        items = [self._item(row) for row in rows]
        is_repeated = any(self._is_mine(item.key) for item in items)
        if is_repeated or self._shards.is_behind:
            await anyio.to_thread.run_sync(self._catch_up)
        found = [self._take(item) for item in items]
        self._feed.put([item for item, (_, is_new) in zip(items, found, strict=True) if is_new])
        return [one if isinstance(one, BatchRecord) else await one for one, _ in found]

    def _is_mine(self, key: str) -> bool:
        return self._mine.get(hash_of(key)) is not None

    def _item(self, row: dict[str, Any]) -> Item | BadItem:
        number = next(self._numbers)
        item = item_of(number, row, self._plan.layout, "row")
        if item.key != f"line-{number}":
            return item
        # It has no name, and a number of this worker's would name another row the next time.
        if isinstance(item, Item):
            assert self._batch is not None
            return msgspec.structs.replace(item, key=self._batch.identity_of(item))
        return msgspec.structs.replace(item, key=f"{self._life}-{number}")

    def _take(
        self, item: Item | BadItem
    ) -> "tuple[BatchRecord | asyncio.Future[BatchRecord], bool]":
        """Return the record of an input, or what will be it; and whether it has to be asked for."""
        if self._stop is not None:
            return _unrecorded(item.key, self._stop.reason, self._stop.message), False
        # The batch hashes all it is given: here only those that meet another of their name.
        if item.key in self._pending:
            other, waits = self._pending[item.key]
            if self._hash_of(other) == self._hash_of(item):
                return waits, False
            return _unrecorded(item.key, "duplicate_id", "another row has the same name"), False
        known = self._shards.find(item.key)
        if known is not None and (settled := self._settled(item, known)) is not None:
            return settled, False
        waits = asyncio.get_running_loop().create_future()
        self._pending[item.key] = item, waits
        return waits, True

    def _hash_of(self, item: Item | BadItem) -> str:
        assert self._batch is not None
        return self._batch.identity_of(item) if isinstance(item, Item) else ""

    def _settled(self, item: Item | BadItem, known: BatchRecord) -> BatchRecord | None:
        """Return what a row gets of whose name there is a record; None where it has to be asked for."""
        assert self._batch is not None
        hash_, on_change = self._hash_of(item), self._batch.options.on_change
        if not self._stands(known, hash_):
            return None
        if known.trace.hash == hash_ or on_change == "keep":
            return known
        if on_change == "error":
            message = "it says something else than when it was recorded (on_change)"
            return _unrecorded(item.key, "changed", message)
        return None

    def _stands(self, known: BatchRecord, hash_: str) -> bool:
        """Whether a record is an answer to a row, as far as the batch is concerned that reads the journal."""
        assert self._batch is not None
        if not known.trace.hash and hash_:  # mended since
            return False
        if known.error is None or self._is_mine(known.custom_id):
            return True
        return not self._batch.options.asks_again(known.error.code)


def _unrecorded(key: str, code: str, message: str) -> BatchRecord:
    return BatchRecord(key, Trace(0), error=BatchError(code, message))


@cache
def _schema() -> Any:  # noqa: ANN401  pyarrow has no types
    import pyarrow as pa

    return pa.schema(
        [
            *((name, pa.string()) for name in ("id", "response", "text", "error")),
            *((name, pa.int64()) for name in ("prompt_tokens", "completion_tokens", "attempts")),
            *((name, pa.float64()) for name in ("t_queue", "t_first", "t_total")),
        ]
    )


def _table(records: list[BatchRecord]) -> Any:  # noqa: ANN401  pyarrow has no types
    """Return records as rows, of the same types whatever is in them."""
    import pyarrow as pa

    traces = [record.trace for record in records]
    tokens = [trace.tokens or (None, None) for trace in traces]
    columns: list[list[Any]] = [
        [record.custom_id for record in records],
        [_response(record) for record in records],
        [record.text for record in records],
        ["" if record.error is None else _encode(record.error).decode() for record in records],
        [of[0] for of in tokens],
        [of[1] for of in tokens],
        [trace.attempts for trace in traces],
        [trace.t_queue for trace in traces],
        [trace.t_first for trace in traces],
        [trace.t_total for trace in traces],
    ]
    return pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _schema(), strict=True)],
        schema=_schema(),
    )


def _response(record: BatchRecord) -> str:
    completion = record.completion
    return "" if completion is None else completion.model_dump_json(exclude_unset=True)


# --------------------------------------------------------------------------- a file, as a command does


class RayProcesses:
    """The outcomes of a batch whose workers Ray places: as `batch.procs.Processes`, on many machines.

    `plan.source` and `plan.job` are paths that all nodes see. Each worker has a part of the inputs; what a node that dies had is
    taken up by another one. Outcomes are read in the shards, so they come as soon as a node's writes are seen here.

    Args:
        plan: what the workers do.
        count: of workers.
        address: of a cluster, as for `ray.init`; None starts one on this machine. A Ray that is initialized is taken as it is.
        num_cpus: of a worker.
    """

    def __init__(
        self, plan: Plan, count: int, *, address: str | None = "auto", num_cpus: float = _CPUS
    ) -> None:
        self._plan = msgspec.structs.replace(
            plan,
            job=str(Path(plan.job).absolute()),
            source=str(Path(plan.file_for(count)).absolute()),
        )
        self._count = count
        self._address = address
        self._num_cpus = num_cpus
        self._ray = _ray()
        self._is_ours = False
        self._refs: list[Any] = []
        self._shards = Shards(Path(self._plan.job))
        self._standings: list[Standing] = []
        self._tally: Tally | None = None
        self.stopped: Stop | None = None
        self.warnings: list[str] = []

    @property
    def skipped(self) -> int:
        """Inputs that had a record already."""
        return sum(one.skipped for one in self._standings)

    def load(self) -> tuple[int, int, float]:
        """Return how many requests are in flight, how many may be, and for how many seconds more all have to wait."""
        assert self._tally is not None
        return self._tally.load(self._standings)

    def progress(
        self, *, total: int | None = None, position: float | None = None
    ) -> BatchProgress:
        """Return how the batch stands: as `Batch.progress`."""
        assert self._tally is not None
        return self._tally.progress(self._standings, total, position)

    def drain(self, message: str = "interrupted") -> None:
        """Begin nothing more; what is in flight is finished. Idempotent."""
        self.stopped = self.stopped or Stop("interrupted", message)

    async def __aenter__(self) -> Self:
        try:
            await anyio.to_thread.run_sync(self._begin)
        except BaseException:
            self._end()
            raise
        return self

    def _begin(self) -> None:
        ray, plan = self._ray, self._plan
        assert plan.source is not None
        open_source(plan.source, plan.layout).close()
        if not ray.is_initialized():
            ray.init(address=self._address, log_to_driver=False)
            self._is_ours = True
        name = _hold(plan)
        prepared = _HELD[plan.job].prepared
        self.warnings += prepared.warnings
        self._tally = Tally(plan, prepared.spending, time.monotonic)
        for _ in self._shards.catch_up():
            pass
        task = ray.remote(_work_part).options(
            num_cpus=self._num_cpus, max_retries=-1, scheduling_strategy="SPREAD"
        )
        encoded = _encode(plan)
        self._refs = [task.remote(encoded, part, self._count, name) for part in range(self._count)]

    async def __aexit__(self, *error: object) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._end)

    def _end(self) -> None:
        for ref in self._refs:
            self._ray.cancel(ref, force=True)
        _let_go(self._plan.job)
        if self._is_ours:
            self._is_ours = False
            self._ray.shutdown()

    async def __aiter__(self) -> AsyncIterator[Outcome]:
        assert self._tally is not None
        is_over = False
        while not is_over:
            # What is over before the shards are read is in them.
            is_over = await anyio.to_thread.run_sync(self._look)
            outcomes = await anyio.to_thread.run_sync(lambda: list(self._shards.catch_up()))
            for outcome in outcomes:
                cap = self._tally.noted(outcome, self.load()[0])
                if cap is not None:
                    self.stopped = self.stopped or Stop("cap", f"stopped at {cap}")
                yield outcome

    def _look(self) -> bool:
        """Hear of the holder and of the workers, for a moment; return whether all have ended."""
        ray = self._ray
        done, self._refs = ray.wait(self._refs, num_returns=len(self._refs), timeout=_LOOK_SECONDS)
        for ref in done:
            try:
                stop = msgspec.json.decode(ray.get(ref), type=Stop | None)
            except ray.exceptions.RayError as error:
                stop = Stop("endpoint", f"a worker has failed: {type(error).__name__}")
            self.stopped = self.stopped or stop
        said = None if self.stopped is None else _encode(self.stopped)
        with suppress(ray.exceptions.RayError):  # it is being made again
            asked = _HELD[self._plan.job].actor.standings.remote(said)
            standings: dict[str, bytes] = ray.get(asked, timeout=_LOOK_SECONDS)
            self._standings = [
                msgspec.json.decode(one, type=Standing) for one in standings.values()
            ]
        return not self._refs


def _work_part(plan: bytes, part: int, parts: int, holder: str) -> bytes:
    """Be a worker: a task of Ray's, which is started anew where its node dies."""
    ray = _ray()
    actor = ray.get_actor(holder)
    life = f"r{part}-{secrets.token_hex(4)}"
    stood = [Standing()]
    batches: list[Batch] = []

    async def ask(renewal: Renewal) -> Lease | None:
        try:
            lease, stop = await actor.lease.remote(life, _encode(renewal), _encode(stood[0]))
        except ray.exceptions.RayError:  # it is being made again
            return None
        if stop is not None:
            why = msgspec.json.decode(stop, type=Stop)
            for batch in batches:
                batch.stop(why.reason, why.message)
        return msgspec.json.decode(lease, type=Lease)

    async def note(outcome: Outcome) -> None:
        """It is in the shard, where the driver reads it."""

    def stand(standing: Standing) -> None:
        stood[0] = standing

    async def work() -> Stop | None:
        mine = Part(msgspec.json.decode(plan, type=Plan), part, parts, life)
        return await mine.work(ask, note, stand, batches.append)

    with rare_collections():
        return _encode(anyio.run(work))
