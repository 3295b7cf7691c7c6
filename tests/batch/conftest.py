"""What the tests of batches share: a loop whose time is free, a server that counts, and what is left on disk.

Not here: a clock of the world. In a `Timeless` loop seconds pass only while nobody has anything to do, and take no time then.
"""

import asyncio
import functools
import selectors
from collections import Counter
from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, Self
from unittest import mock

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import current_default_thread_limiter

from asyncchat import AsyncChat, BatchRecord
from asyncchat.batch.journal import final_lines
from asyncchat.batch.record import decode_record
from asyncchat.testing import ChatServer, Reply
from asyncchat.testing.wire import ReceivedRequest

_P = ParamSpec("_P")

_TELL_THE_TIME = ("line", "pool", "reply", "session", "stream")  # modules of the client

KEY = "sk-test-0123456789abcdef"


class _Selector(selectors.DefaultSelector):
    """Waits for no timer: it lets the time pass, unless a worker thread is about to say something."""

    threads: CapacityLimiter | None = None
    passed = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        is_awaited = timeout is None or (self.threads is not None and self.threads.borrowed_tokens)
        ready: list[tuple[selectors.SelectorKey, int]] = super().select(
            timeout if is_awaited else 0
        )
        if not ready and timeout and not is_awaited:
            self.passed += timeout
        return ready


class Timeless(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to the next timer as soon as nothing else can happen: an hour of waiting takes no time."""

    def __init__(self) -> None:
        self.clockwork = _Selector()
        super().__init__(self.clockwork)

    def time(self) -> float:
        return 1e6 + self.clockwork.passed


def timeless(test: Callable[_P, Coroutine[Any, Any, None]]) -> Callable[_P, None]:
    """Run a test in a loop in which waiting takes no time. It can use no async fixtures."""

    async def main(loop: Timeless, *args: _P.args, **kwargs: _P.kwargs) -> None:
        loop.clockwork.threads = current_default_thread_limiter()
        await test(*args, **kwargs)

    @functools.wraps(test)
    def run(*args: _P.args, **kwargs: _P.kwargs) -> None:
        with asyncio.Runner(loop_factory=Timeless) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, Timeless)
            with ExitStack() as patches:
                for name in _TELL_THE_TIME:
                    patches.enter_context(mock.patch(f"asyncchat.client.{name}.now", loop.time))
                runner.run(main(loop, *args, **kwargs))

    return run


Answer = Callable[[ReceivedRequest], Reply | Awaitable[Reply]]


class Served:
    """A scripted server with a client of it, for `async with`: `asked` counts the last texts of the requests."""

    def __init__(self, answer: Answer | None = None, **options: Any) -> None:
        self.server = ChatServer()
        self._options = {"api_key": KEY, "model": "m", **options}
        self._answer = answer
        self.asked: Counter[str] = Counter()
        self.most_alive = 0

    async def __aenter__(self) -> Self:
        await self.server.start()
        self.server.otherwise(self._respond)
        self.client = AsyncChat(self.server.base_url, **self._options)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.client.close()
        await self.server.close()

    async def _respond(self, request: ReceivedRequest) -> Reply:
        self.asked[request.last_text] += 1
        self.most_alive = max(self.most_alive, len(self.server.active))
        if self._answer is None:
            return Reply().say(f"<{request.last_text}>")
        given = self._answer(request)
        return given if isinstance(given, Reply) else await given

    async def run(
        self, job: Path, requests: Any, *, ordered: bool = False, **options: Any
    ) -> list[BatchRecord]:
        """Run a batch to its end, and return what came; `self.job` is the batch."""
        options = {"fsync": "never", **options}
        records: list[BatchRecord] = []
        async with self.client.batch(job, **options) as self.job:
            async for record in self.job.run(requests, ordered=ordered):
                records.append(record)  # noqa: PERF401  an async comprehension reads worse
        return records


async def read_into(found: list[BatchRecord], records: AsyncIterable[BatchRecord]) -> None:
    """Read to the end, or to the error: what came before it is found."""
    async for record in records:
        found.append(record)  # noqa: PERF401  a comprehension would lose them


def prompts(count: int, start: int = 0) -> list[str]:
    return [f"p{number}" for number in range(start, start + count)]


def recorded(job: Path) -> dict[str, BatchRecord]:
    """The records of a job that count, by name: read from its files as anybody would."""
    found: dict[str, BatchRecord] = {}
    for outcome, line in final_lines(job):
        assert outcome.custom_id not in found, "two records count for one input"
        record = decode_record(line)
        assert (record.custom_id, record.trace, record.error) == (
            outcome.custom_id,
            outcome.trace,
            outcome.error,
        )
        found[outcome.custom_id] = record
    return found


def lines_of(job: Path) -> list[bytes]:
    """All lines of records of a job, in the order they were written."""
    return [
        line
        for path in sorted(job.glob("done-*.jsonl"))
        for line in path.read_bytes().splitlines(keepends=True)
    ]


def texts(records: Iterable[BatchRecord]) -> dict[str, str]:
    return {record.custom_id: record.text for record in records}


def codes(records: Iterable[BatchRecord]) -> Counter[str]:
    """How many records there are of each kind of error, and of answers under ""."""
    return Counter("" if record.error is None else record.error.code for record in records)


def completion(text: str = "yes", **fields: Any) -> dict[str, Any]:
    """An answer as a server sends it in one piece."""
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
        **fields,
    }


def document(body: Mapping[str, Any] | bytes) -> Reply:
    """A reply that is one JSON document."""
    raw = body if isinstance(body, bytes) else msgspec.json.encode(body)
    return Reply().raw(raw, content_type="application/json")
