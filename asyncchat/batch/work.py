"""One input after the other: asked until there is an answer or no point in asking, and written down.

Not here: which one is next (`agenda`), who reads the records (`engine`).
"""

import asyncio
import random
import time
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec

from asyncchat.batch.check import Check
from asyncchat.batch.health import Health
from asyncchat.batch.item import BadItem, Item, canonical, identity
from asyncchat.batch.ledger import Ledger
from asyncchat.batch.meter import Meter
from asyncchat.batch.options import BatchOptions
from asyncchat.batch.record import Attempt, BatchError, BatchRecord, Kind, Trace, kind_of
from asyncchat.client.core import Asker
from asyncchat.errors import (
    APIError,
    APIStatusError,
    AsyncChatError,
    JournalMismatch,
    PoolClosed,
    printable,
)
from asyncchat.protocol.response import Completion

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Todo", "Work"]

_HELD: frozenset[Kind] = frozenset({"auth", "quota", "not_found"})
_RETRYABLE: frozenset[Kind] = frozenset({"connection", "timeout", "server", "cut", "protocol"})
_SAID: frozenset[Kind] = frozenset({"mismatch", "length", "content_filter", "refusal", "cut"})
_HELD_SECONDS, _MOST_HELD = 0.5, 5
_FIRST_WAIT, _LONGEST_WAIT = 0.5, 60.0
_REFUSED_SECONDS = 0.05  # the pool knows for how long; this only lets others pass

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode
_is_json = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Todo:
    """One input on its way."""

    __slots__ = (
        "attempts",
        "bad",
        "body",
        "failed_at",
        "followers",
        "hash",
        "held",
        "is_begun",
        "is_follower",
        "is_in_line",
        "key",
        "n",
        "place",
        "refused",
        "repairs",
        "sent",
        "since",
        "tokens",
        "unfit",
    )

    def __init__(self, n: int, key: str, body: bytes, hash_: str) -> None:
        self.n = n
        self.key = key
        self.body = body  # as it is sent
        self.hash = hash_
        self.place = 0  # among the records of this run
        self.bad: BadItem | None = None
        self.is_begun = self.is_follower = False
        self.is_in_line = False  # or on its way there: nothing is sent yet
        self.followers: list[Todo] | None = None  # which ask the same
        self.sent = self.attempts = self.refused = self.repairs = self.held = 0
        self.unfit = 0  # answers that were not good enough
        self.tokens: tuple[int, int, int] | None = None  # of all its answers
        self.since = self.failed_at = 0.0

    @property
    def size(self) -> int:
        """What it takes while it waits, in bytes."""
        return len(self.body)

    def is_sent(self) -> None:
        """Note that it waits in line no more."""
        self.is_in_line = False


class Work:
    """What becomes of the inputs of one run.

    Args:
        ledger: what is known and written.
        asker: who is asked.
        options: of the batch.
        check: holds answers against a type.
        meter: counts for who looks on.
    """

    def __init__(
        self,
        ledger: Ledger,
        asker: Asker,
        options: BatchOptions,
        check: Check | None,
        meter: Meter,
    ) -> None:
        self._ledger = ledger
        self._asker = asker
        self._options = options
        self._check = check
        self._meter = meter
        self._leaders: dict[str, Todo] = {}
        self.clock = asyncio.get_running_loop().time
        self.rand: Callable[[], float] = random.random
        self.health = Health(options.max_wait)
        self.ends_outage = False
        self.give: Callable[[Todo, BatchRecord], None] = lambda _todo, _record: None

    @property
    def is_crowded(self) -> bool:
        """Whether requests wait in line already, so that more of them would not be answered sooner."""
        return self._asker.pool.line.waiting > 0

    def cap(self, todo: Todo, in_flight: int) -> str | None:
        """Return which cap an input would exceed; counts it where there is none."""
        if todo.bad is not None:
            return None
        found = self._ledger.spending.full(in_flight)
        if found is None:
            self._ledger.spending.asked()
        return found

    # ---------------------------------------------------------------------------------- taking up

    def take(self, item: Item | BadItem) -> Todo | None:
        """Return what is to be done for an input, or None where it has its record.

        Raises:
            JournalMismatch: its record is of another request, and the options do not say what to do.
        """
        if isinstance(item, BadItem):
            todo = Todo(item.n, item.key, b"", "")
            todo.bad = item
        else:
            body = self._asker.complete(item.body)
            try:
                # In the order it was given: a schema means its own. Bytes, since they wait long and are looked at by nobody.
                todo = Todo(item.n, item.key, _encode(body), identity(canonical(body)))
            except (TypeError, ValueError) as error:
                todo = Todo(item.n, item.key, b"", "")
                todo.bad = BadItem(item.n, item.key, "invalid_line", f"it cannot be sent: {error}")
        standing = self._ledger.standing(todo.key, todo.hash)
        if standing == "twice":
            while standing == "twice":  # another one may be called that already
                todo.key = self._ledger.name_for_double(item.key)
                standing = self._ledger.standing(todo.key, "")
            todo.body, todo.hash = b"", ""
            todo.bad = BadItem(
                item.n,
                todo.key,
                "duplicate_id",
                f"another input before it is called {item.key!r} too",
            )
        if standing == "changed":
            if self._options.on_change == "error":
                raise JournalMismatch(
                    f"input {item.n} ({item.key!r}) says something else than when it was recorded",
                    hint="on_change='rerun' asks for what has changed, 'keep' keeps the old answers; "
                    "or use another job directory.",
                )
            standing = "new" if self._options.on_change == "rerun" else "recorded"
        if standing == "recorded":
            return None
        if self._options.dedupe and todo.bad is None:
            leader = self._leaders.setdefault(todo.hash, todo)
            if leader is not todo:
                todo.is_follower = True
                leader.followers = leader.followers or []
                leader.followers.append(todo)
        return todo

    # -------------------------------------------------------------------------------------- asking

    async def ask(self, todo: Todo) -> float | None:
        """Ask once. Return None when there is a record, else the seconds after which to ask again.

        Raises:
            JournalError: the record cannot be written.
            PoolClosed: the client was closed.
        Cancellation: safe; there is no record then, and the server's work is lost.
        """
        self.ends_outage = False
        if todo.bad is not None:
            self._fail(todo, BatchError(todo.bad.code, todo.bad.message))
            return None
        if self._options.dedupe and not todo.sent:
            known = self._ledger.answer_to(todo.hash)
            if known is not None and known.completion is not None:
                answer = known.completion
                body = _line_of(answer, b"", is_json=False)
                self._reuse([todo, *self._followers(todo)], answer, body, known.custom_id)
                return None
        at = self.clock()
        if not todo.since:
            todo.since = at
        self.health.sent(at)
        todo.sent += 1
        todo.is_in_line = True
        try:
            answer, raw, is_json = await self._asker(todo.body, self._key(todo), todo.is_sent)
            self.ends_outage = self.health.answered(at)
            is_wanted = answer.finish_reason not in self._options.retry_finish
            if self._check is not None and is_wanted:
                self._check(answer)
        except PoolClosed:
            raise
        except AsyncChatError as error:
            return self._judge(todo, error, at)
        except (ValueError, TypeError) as error:
            todo.sent -= 1
            self._fail(todo, BatchError("bad_request", printable(str(error))))
            return None
        _count(todo, answer)
        if is_wanted:
            self._answer(todo, answer, _line_of(answer, raw, is_json=is_json))
            return None
        todo.unfit += 1
        wait = self._again(todo)
        if wait is None:
            reason = answer.finish_reason
            code: Kind = "content_filter" if reason == "content_filter" else "length"
            message = f"the answer ended with {reason!r} each time"
            self._fail(todo, BatchError(code, message, text=answer.text or None))
        return wait

    def _key(self, todo: Todo) -> str:
        """Return an idempotency key: the same for the same input of the same job, in each run.

        After an answer that was not good enough it is another one, or a server that knows the header would repeat it.
        """
        name = f"{self._ledger.job.id}/{todo.key}/{todo.hash}/{todo.unfit}"
        return blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()

    def _judge(self, todo: Todo, error: AsyncChatError, sent_at: float) -> float | None:
        now, kind = self.clock(), kind_of(error)
        if error.partial is not None:
            _count(todo, error.partial)
        self.ends_outage |= self.health.failed(now, kind, sent_at)
        wait = self._wait(todo, kind, error, now)
        if kind == "rate_limit":
            self._meter.refused(now)
        elif wait is not None:
            self._meter.retried(now, kind)
        status = error.status_code if isinstance(error, APIStatusError) else None
        endpoint = error.endpoint if isinstance(error, APIError) else None
        self._ledger.note(
            Attempt(time.time(), todo.key, todo.sent, kind, status, wait, endpoint or None)
        )
        if wait is None:
            said = error.partial.text if kind in _SAID and error.partial is not None else None
            type_ = error.type if isinstance(error, APIError) else None
            message = printable(error.message)
            self._fail(todo, BatchError(kind, message, status, type_, said or None), endpoint)
        return wait

    def _wait(self, todo: Todo, kind: Kind, error: AsyncChatError, now: float) -> float | None:
        """Return the seconds until another attempt, or None where there is to be none."""
        if kind == "rate_limit":
            todo.refused += 1
            return _REFUSED_SECONDS
        if kind in _HELD:
            return self._hold(todo, kind, now)
        if kind == "mismatch":
            return self._repair(todo, error)
        if error.retryable or (kind in _RETRYABLE and kind != "server"):
            return self._again(todo, error.retry_after)
        return None

    def _hold(self, todo: Todo, kind: Kind, now: float) -> float | None:
        """Let others show whose fault it is: what is refused while they are answered is to blame itself."""
        if todo.held and self.health.worked_since(todo.failed_at):
            return None
        todo.failed_at = todo.failed_at or now
        todo.held += 1
        if todo.held >= _MOST_HELD:
            if kind == "not_found" and self.health.has_worked:
                return None  # one of the last, and there are no others
            self.health.give_up()
        return _HELD_SECONDS

    def _again(self, todo: Todo, asked: float | None = None) -> float | None:
        if not self.health.is_out:  # in an outage no input is to blame
            todo.attempts += 1
        if todo.attempts > self._options.retries:
            return None
        bound = min(_LONGEST_WAIT, _FIRST_WAIT * 2.0 ** max(todo.attempts - 1, 0))
        return max(bound * self.rand(), min(asked or 0.0, _LONGEST_WAIT))

    def _repair(self, todo: Todo, error: AsyncChatError) -> float | None:
        """Ask once more, with what was wrong."""
        if todo.repairs >= self._options.repairs:
            return None
        todo.repairs += 1
        todo.unfit += 1
        said = "" if error.partial is None else error.partial.text
        body = _decode(todo.body)
        body["messages"] += [
            {"role": "assistant", "content": said},
            {
                "role": "user",
                "content": f"This does not fit: {error.message}. Answer again, with nothing but what fits.",
            },
        ]
        todo.body = _encode(body)
        return 0.0

    # -------------------------------------------------------------------------------- writing down

    def _trace(self, todo: Todo, answer: Completion | None, endpoint: str | None) -> Trace:
        trace = Trace(todo.n, todo.hash, todo.sent, todo.refused, round(time.time(), 3))
        trace.endpoint = endpoint
        if todo.since:
            trace.t_total = round(self.clock() - todo.since, 4)
        trace.tokens = todo.tokens
        if todo.tokens is not None and self._options.price is not None:
            trace.cost = round(self._options.price.cost(todo.tokens), 8)
        if answer is None:
            return trace
        timing = answer.timing
        if timing is not None:
            trace.endpoint = timing.endpoint
            queued = (trace.t_total or 0.0) - timing.total + timing.waited
            trace.t_queue = round(max(queued, 0.0), 4)
            if timing.ttft is not None:
                trace.t_first = round(timing.ttft - timing.waited, 4)
            if timing.itl is not None:
                trace.t_itl = round(timing.itl, 5)
        return trace

    def _answer(self, todo: Todo, answer: Completion, body: bytes) -> None:
        trace = self._trace(todo, answer, None)
        request_id = None if answer.http is None else answer.http.request_id
        self._ledger.write(todo.key, trace, body=body, request_id=request_id)
        self._give(todo, BatchRecord(todo.key, trace, answer))
        if followers := self._followers(todo):
            self._reuse(followers, answer, body, todo.key)

    def _reuse(self, todos: list[Todo], answer: Completion, body: bytes, key: str) -> None:
        """Write down an answer to the same request for other inputs."""
        for todo in todos:
            trace = Trace(todo.n, todo.hash, t_end=round(time.time(), 3), reused=key)
            self._ledger.write(todo.key, trace, body=body)
            self._give(todo, BatchRecord(todo.key, trace, answer))

    def _fail(self, todo: Todo, error: BatchError, endpoint: str | None = None) -> None:
        trace = self._trace(todo, None, endpoint)
        self._ledger.write(todo.key, trace, error=error)
        self._give(todo, BatchRecord(todo.key, trace, error=error))
        for follower in self._followers(todo):
            self._fail(follower, error)

    def _give(self, todo: Todo, record: BatchRecord) -> None:
        """Let everybody know of what is written down."""
        error = record.error
        self._meter.noted(self.clock(), record.trace, None if error is None else error.code)
        self.give(todo, record)

    def _followers(self, todo: Todo) -> list[Todo]:
        if self._leaders.get(todo.hash) is todo:
            del self._leaders[todo.hash]
        followers, todo.followers = todo.followers, None
        return followers or []


def _count(todo: Todo, answer: Completion) -> None:
    """Add the tokens of an answer: it is paid for, whether it is of use or not."""
    usage = answer.usage
    if usage is None or usage.prompt_tokens is None:
        return
    details = usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    before = todo.tokens or (0, 0, 0)
    todo.tokens = (
        before[0] + usage.prompt_tokens,
        before[1] + (usage.completion_tokens or 0),
        before[2] + cached,
    )


def _line_of(answer: Completion, raw: bytes, *, is_json: bool) -> bytes:
    """Return an answer as JSON on one line: as it came, where that was JSON in one piece."""
    if is_json or raw[:1] == b"{":
        try:
            if not is_json:
                _is_json(raw)
            if not raw.isascii():
                raw.decode()
        except ValueError:
            pass
        else:
            return msgspec.json.format(raw, indent=-1) if b"\n" in raw or b"\r" in raw else raw
    return answer.model_dump_json(exclude_unset=True).encode()
