"""What a user holds: `AsyncChat`, with `chat(...)`, `chat.stream(...)` and OpenAI's `chat.completions`.

Not here: anything that awaits the network itself. `chat.completions` is thin aliases over `chat`, so that code written
against `AsyncOpenAI` runs with another import.
"""

import functools
import os
import ssl
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

import msgspec

from asyncchat.client.core import OPENAI, Asker, Core, Settings, both
from asyncchat.client.many import Mapped, MapProgress, MapResult, Prompt
from asyncchat.client.observe import Observer, Observers, log_as_the_environment_says
from asyncchat.client.pool import SessionPool, Statistics
from asyncchat.client.run import Plan, ToolRecord, ToolRun
from asyncchat.client.session import Session
from asyncchat.client.stream import ChatStream
from asyncchat.errors import OutputMismatch
from asyncchat.policy.credentials import checked_base_url
from asyncchat.policy.endpoint import Endpoint, KeySource
from asyncchat.policy.limits import Limits
from asyncchat.policy.retry import Resume, RetryPolicy
from asyncchat.policy.timeout import Timeout
from asyncchat.protocol.events import Event
from asyncchat.protocol.parsed import read_value, sum_usage
from asyncchat.protocol.request import Messages
from asyncchat.protocol.response import Chunk, Completion, Usage
from asyncchat.protocol.schema import Dialect, Tool, output_type

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from asyncchat.batch.engine import Batch
    from asyncchat.batch.options import Price

__all__ = ["AsyncChat", "Chat", "Completions"]

_T = TypeVar("_T")


class AsyncChat:
    """A client of one Chat Completions server, or of several that stand in for each other.

    ```python
    async with AsyncChat(base_url="http://127.0.0.1:8000/v1", model="m") as client:
        answer = await client.chat("Name three moons.")
        print(answer.text, answer.usage)
    ```

    Making one opens nothing and needs no running loop. It can be used in several loops one after the other, and by any
    number of tasks at once.

    Args:
        base_url: of the server, up to and with `/v1`; else `ASYNCCHAT_BASE_URL`, `OPENAI_BASE_URL`, OpenAI's own.
        api_key: sent as `Authorization: Bearer`. A str, or a function (async or not) asked before each request; else
            `OPENAI_API_KEY`; `""` sends none.
        model: for calls that name none; else `ASYNCCHAT_MODEL`.
        endpoints: instead of `base_url` and `api_key`: servers to choose from, each with its keys, limits and model.
        timeout: bounds; a number is the bound of a whole request in seconds.
        retry: what is tried again before its first event, and when to ask elsewhere too.
        max_retries: short for `retry=RetryPolicy(max_retries=...)`.
        limits: requests at once and a minute, over all endpoints, and how much a server may make us hold.
        default_headers: sent with each request.
        default_query: put into each URL.
        ssl_context: for certificates the system does not know.
        trust_env: whether `HTTP_PROXY` and its kin are honoured; never for this machine.
        session: an aiohttp session of your own. It is used as it is, and not closed.
        observers: functions that are called with what happens to requests (`asyncchat.Fact`), at once and in the loop.
        split_think_tags: read `<think>...</think>` in content as reasoning.
        cumulative_content: for servers whose deltas repeat the text so far.

    Raises:
        ValueError: a URL, key, header or bound that cannot be right. Nothing is sent.
        TypeError: one of a wrong type.
    """

    __slots__ = ("_core", "chat")

    def __init__(
        self,
        base_url: str | None = None,
        api_key: KeySource | None = None,
        model: str | None = None,
        *,
        endpoints: Sequence[Endpoint] | None = None,
        timeout: Timeout | float | None = None,
        retry: RetryPolicy | None = None,
        max_retries: int | None = None,
        limits: Limits | None = None,
        default_headers: Mapping[str, str] | None = None,
        default_query: Mapping[str, str] | None = None,
        ssl_context: ssl.SSLContext | None = None,
        trust_env: bool = True,
        session: "ClientSession | None" = None,
        observers: Iterable[Observer] = (),
        split_think_tags: bool = False,
        cumulative_content: bool = False,
    ) -> None:
        limits = limits or Limits()
        model = model or _env("ASYNCCHAT_MODEL")
        if endpoints is None:
            url = base_url or _env("ASYNCCHAT_BASE_URL") or _env("OPENAI_BASE_URL") or OPENAI
            key = _env("OPENAI_API_KEY") if api_key is None else api_key
            url = checked_base_url(url)  # here, to speak of it as `base_url`
            chosen = [Endpoint(url, key, headers=default_headers, query=default_query)]
        else:
            if base_url is not None or api_key is not None:
                raise ValueError(
                    "endpoints= stands for base_url and api_key: pass one or the other."
                )
            chosen = _completed(endpoints, model, default_headers, default_query)
            model = None  # each has its own
        settings = Settings(
            model=model,
            timeout=Timeout.of(timeout, Timeout()),
            retry=_retry(retry, max_retries, RetryPolicy()),
            headers=None,
            query=None,
            limits=limits,
            split_think_tags=split_think_tags,
            cumulative_content=cumulative_content,
        )
        sessions = [
            Session(
                endpoint, ssl_context=ssl_context, trust_env=trust_env, http=session, limits=limits
            )
            for endpoint in chosen
        ]
        pool = SessionPool(sessions, limits, Observers(observers))
        log_as_the_environment_says()
        self._core = Core(pool, settings)
        self.chat = Chat(self._core)

    def __repr__(self) -> str:
        return f"AsyncChat({self._core.pool!r}, model={self._core.settings.model!r})"

    @property
    def base_url(self) -> str:
        """The server, up to and with `/v1`; the first of several."""
        return self._core.pool.sessions[0].base_url

    def with_options(
        self,
        *,
        model: str | None = None,
        timeout: Timeout | float | None = None,
        retry: RetryPolicy | None = None,
        max_retries: int | None = None,
        default_headers: Mapping[str, str] | None = None,
        default_query: Mapping[str, str] | None = None,
    ) -> Self:
        """Return a client with other defaults on the same connections. Cheap; closing either closes both."""
        mine = self._core.settings
        settings = msgspec.structs.replace(
            mine,
            model=model or mine.model,
            timeout=Timeout.of(timeout, mine.timeout),
            retry=_retry(retry, max_retries, mine.retry),
            headers=both(mine.headers, default_headers),
            query=both(mine.query, default_query),
        )
        made = type(self).__new__(type(self))
        core = Core(self._core.pool, settings)
        made._core, made.chat = core, Chat(core)  # noqa: SLF001  another of our own
        return made

    def map(
        self,
        prompts: Iterable[Prompt] | AsyncIterable[Prompt],
        *,
        limit: int = 64,
        ordered: bool = True,
        stream: bool = False,
        on_progress: Callable[[MapProgress], object] | None = None,
        **fields: Any,
    ) -> Mapped:
        """Return the answers to many prompts, for `async with` and `async for`: see `Mapped`.

        Args:
            prompts: any iterable or async iterable, read lazily. A prompt is a str, a list of messages, or a dict of the
                fields of its request, with `messages` or `prompt` among them.
            limit: how many are alive at once.
            ordered: whether results come in the order of the prompts, or as they are complete.
            stream: give the events of all answers as they come, each as a `MapEvent`, and a `MapResult` at each end.
            on_progress: called after each result with a `MapProgress`.
            fields: of every request, as for `chat(...)`.

        Raises:
            ValueError: `limit` is none.
            TypeError: `prompts` is no iterable of prompts. What is wrong with one prompt is in its result.
        """
        ask = functools.partial(self.chat.answer_to, fields=fields)
        return Mapped(ask, prompts, limit, ordered=ordered, stream=stream, on_progress=on_progress)

    async def gather(
        self,
        prompts: Iterable[Prompt] | AsyncIterable[Prompt],
        *,
        limit: int = 64,
        on_progress: Callable[[MapProgress], object] | None = None,
        **fields: Any,
    ) -> list[MapResult]:
        """Return the answers to many prompts, in their order, failures among them. Arguments as `map`."""
        found: list[MapResult] = []
        mapped = self.map(prompts, limit=limit, ordered=False, on_progress=on_progress, **fields)
        async with mapped as results:
            async for result in results:
                found.append(result)  # noqa: PERF401  an async comprehension reads worse
        return sorted(found, key=lambda result: result.index)

    def batch(
        self,
        job: "str | os.PathLike[str]",
        *,
        concurrency: int | Literal["auto"] = "auto",
        stream: bool = True,
        timeout: Timeout | float | None = None,
        retries: int = 5,
        retry_errors: bool | Iterable[str] = False,
        retry_finish: Iterable[str] = (),
        on_change: Literal["error", "rerun", "keep"] = "error",
        dedupe: bool = False,
        response_format: Any = None,
        schema: Mapping[str, Any] | None = None,
        system: str | None = None,
        repairs: int = 1,
        price: "Price | None" = None,
        max_cost: float | None = None,
        max_tokens_total: int | None = None,
        max_items: int | None = None,
        max_failures: int | str | None = None,
        max_wait: float = 3600.0,
        fsync: Literal["always", "1s", "never"] = "1s",
        shard: str = "",
        **fields: Any,
    ) -> "Batch":
        """Return a batch that survives its process, for `async with`: see `Batch`.

        Args:
            job: the directory of its records, made if need be. The same directory with the same inputs goes on.
            concurrency: requests in flight, at most; `"auto"` finds out how many the servers bear.
            stream: stream answers underneath, so that stalls are noticed and the time to the first token is known.
            timeout: bounds of one attempt; waiting in line is in none of them. Else connect 10, first 120, idle 60, total 600.
            retries: attempts after the first. Being told to come back later is no attempt, and neither is a failure in an outage.
            retry_errors: ask again for inputs that an earlier run recorded as failed: all, or those with these codes.
            retry_finish: finish reasons that are no answer, such as `["length"]`.
            on_change: what to do where an input says something else than when it was recorded.
            dedupe: ask once where several inputs ask exactly the same.
            response_format: as for `chat(...)`. With a type, every answer is checked against it.
            schema: a JSON Schema: sent as `response_format`, and every answer is checked against it (extra `schema`).
            system: a system message to put first.
            repairs: how often to ask again, with the error, where an answer does not fit.
            price: of a million tokens; makes costs known.
            max_cost: stop where the next requests would cost more, those of earlier runs included.
            max_tokens_total: likewise, in tokens.
            max_items: inputs that are asked for in this run.
            max_failures: stop at so many failures, or at such a share (`"5%"`).
            max_wait: seconds without any answer after which the batch stops.
            fsync: when records are made safe against a power cut. A killed process loses none in any case.
            shard: for one of several processes that work on the same job: a name for its files.
            fields: of every request, as for `chat(...)`.

        Raises:
            ValueError: an option that cannot be right.
            SchemaError: a type that has no schema.
        """
        from asyncchat.batch.check import by_schema, by_type
        from asyncchat.batch.engine import Batch
        from asyncchat.batch.options import BatchOptions, Share, kinds_of

        options = BatchOptions(
            concurrency=concurrency,
            stream=stream,
            timeout=Timeout.of(timeout, BatchOptions().timeout),
            retries=retries,
            retry_finish=(retry_finish,) if isinstance(retry_finish, str) else tuple(retry_finish),
            retry_errors=kinds_of(retry_errors),
            on_change=on_change,
            dedupe=dedupe,
            repairs=repairs,
            price=price,
            max_cost=max_cost,
            max_tokens_total=max_tokens_total,
            max_items=max_items,
            max_failures=None if max_failures is None else Share.read(max_failures),
            max_wait=max_wait,
            fsync=fsync,
        )
        output = check = None
        if schema is not None:
            if response_format is not None:
                raise ValueError("schema= and response_format= are two ways to say one thing.")
            check = by_schema(schema)
            response_format = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": dict(schema)},
            }
        if response_format is not None and not isinstance(response_format, Mapping):
            output = output_type(response_format)
            check = by_type(output)
            response_format = None
        asker = Asker(
            self._core,
            stream=stream,
            timeout=options.timeout,
            output=output,
            system=system,
            fields={**fields, "response_format": response_format},
        )
        return Batch(asker, Path(job), options, check=check, shard=shard)

    def statistics(self) -> Statistics:
        """Return what the client is doing and has done."""
        return self._core.pool.statistics()

    async def close(self) -> None:
        """Close every connection. Who still waits or reads gets `PoolClosed`. Idempotent."""
        await self._core.pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


class Chat:
    """`client.chat`: one answer, or a stream of it.

    Every parameter of the Chat Completions format is a keyword here, known to us or not: `temperature`, `tools`,
    `response_format`, `top_k`, `chat_template_kwargs` ... go into the body as they are, and None is not sent.
    Beside them: `model`; `system`, a system message to put first; `timeout`, a `Timeout` or seconds for the whole
    request; `extra_headers`, `extra_query`, and `extra_body`, whose fields go in last and may be null.
    """

    __slots__ = ("_core",)

    def __init__(self, core: Core) -> None:
        self._core = core

    @property
    def completions(self) -> "Completions":
        """OpenAI's names for the same."""
        return Completions(self)  # made when asked for: kept, the two would keep each other alive

    async def __call__(
        self, messages: Messages, *, system: str | None = None, **fields: Any
    ) -> Completion:
        """Return the answer to `messages`: a str is one user message, a list is a conversation.

        Raises:
            ValueError: no model, no message, an unknown role; nothing is sent.
            TypeError: a message or parameter that cannot be sent.
            APIStatusError: the server refused, after the retries that made sense.
            APITimeoutError: a bound of `Timeout` ran out; `.phase` says which.
            APIConnectionError: no connection, or it was lost.
            ProtocolError: what came is no chat completion.
        Cancellation: safe anywhere; the connection is closed. Many servers go on working on an answer that is not
            streamed: `await chat.stream(...).final()` stops them too.
        """
        core = self._core
        call = core.call(fields)
        if fields.pop("resume", None) is not None:
            raise ValueError("resume= is for streams: await chat.stream(..., resume=...).final().")
        answer, _, _ = await core.whole(core.request(messages, system, fields), call)
        return answer

    def stream(
        self, messages: Messages, *, system: str | None = None, **fields: Any
    ) -> ChatStream[Event]:
        """Return the answer as a stream of events, which is opened by `async with` or by `await ....final()`.

        Raises:
            ValueError: as `chat(...)`; nothing is sent.
            TypeError: as `chat(...)`.
        """
        return self.open(messages, system, fields, mode="events")

    def open(
        self,
        messages: Messages,
        system: str | None,
        fields: dict[str, Any],
        *,
        mode: Literal["events", "chunks"],
    ) -> ChatStream[Any]:
        """Return a stream that iterates events or chunks, not yet started. What `stream` and `create` share."""
        core = self._core
        call = core.call(fields)
        resumes = Resume.of(fields.pop("resume", None))
        return core.stream(
            core.request(messages, system, fields), call, mode=mode, resumes=resumes
        )

    def answer_to(self, prompt: Prompt, fields: Mapping[str, Any]) -> ChatStream[Event]:
        """Return the stream that answers one prompt of many."""
        if not isinstance(prompt, Mapping):
            return self.stream(prompt, **fields)
        own = {**fields, **prompt}
        messages = own.pop("messages", None)
        said = own.pop("prompt", None)
        if (messages is None) == (said is None):
            raise ValueError("a prompt that is a dict has either `messages` or `prompt` in it.")
        return self.stream(said if messages is None else messages, **own)

    # ------------------------------------------------------------------------------ types and tools

    async def parse(
        self,
        messages: Messages,
        output: "type[_T]",
        *,
        system: str | None = None,
        reask: int = 0,
        dialect: Dialect | None = None,
        **fields: Any,
    ) -> _T:
        """Return the answer as a value of a type.

        Args:
            messages: as for `chat(...)`.
            output: a Struct, dataclass, TypedDict, pydantic model, or anything made of these and JSON's own types.
            system: as for `chat(...)`.
            reask: how often to ask again, with the error, where the answer does not fit.
            dialect: how the schema is sent; else as the endpoint prefers.
            fields: as for `chat(...)`.

        Raises:
            SchemaError: the type has no schema in the dialect; nothing is sent.
            OutputMismatch: the answer does not fit; `partial` holds it.
            RefusalError: the model refused.
            LengthFinishReasonError: the answer was cut at its token limit, and is never taken for a whole one.
            ContentFilterFinishReasonError: a filter ended it. And what `chat(...)` raises.
        Cancellation: as `chat(...)`.
        """
        answer = await self.parse_completion(
            messages, output, system=system, reask=reask, dialect=dialect, **fields
        )
        value: _T = answer.message.parsed
        return value

    async def parse_completion(
        self,
        messages: Messages,
        output: Any,
        *,
        system: str | None = None,
        reask: int = 0,
        dialect: Dialect | None = None,
        **fields: Any,
    ) -> Completion:
        """Return the whole answer, with the value in `message.parsed`. As `parse` otherwise; `usage` is that of all attempts."""
        given: object = reask
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ValueError(f"reask={given!r}: it is a whole number from 0 up.")
        wanted = output_type(output)
        asked = _listed(messages)
        usages: list[Usage | None] = []
        while True:
            answer = await self(
                asked, system=system, response_format=wanted, dialect=dialect, **fields.copy()
            )
            usages.append(answer.usage)
            answer.usage = sum_usage(usages) if len(usages) > 1 else answer.usage
            try:
                read_value(wanted, answer)
            except OutputMismatch as error:
                if len(usages) > reask:
                    raise
                again = f"That does not fit: {error.message}. Answer again, with JSON that fits."
                asked += [answer.message, {"role": "user", "content": again}]
            else:
                return answer

    def run_stream(
        self,
        messages: Messages,
        tools: Iterable[Callable[..., Any] | Tool],
        *,
        system: str | None = None,
        max_turns: int = 10,
        parallel: int = 8,
        eager: bool = False,
        confirm: Callable[[ToolRecord], Any] | None = None,
        **fields: Any,
    ) -> ToolRun:
        """Return a conversation in which the model calls tools, as events: see `ToolRun`.

        Args:
            messages: as for `chat(...)`.
            tools: functions, async or not, or `Tool`s made of them. Those that are not async run in threads.
            system: as for `chat(...)`.
            max_turns: how many answers the model may give; `MaxTurnsReached` beyond.
            parallel: how many tools may run at once.
            eager: begin a call as soon as it is whole, while the answer still comes.
            confirm: asked before a tool that wants confirmation runs; gives True, False, or what to tell the model instead.
                Without it the run pauses there, and `run.resume(...)` goes on.
            fields: as for `chat(...)`; with `response_format=T` the last answer is read into `run.output`.

        Raises:
            SchemaError: a function has no schema in the dialect; nothing is sent.
            ValueError: two tools of one name, or as `chat(...)`.
        """
        toolbox: dict[str, Tool] = {}
        for given in tools:
            made = given if isinstance(given, Tool) else Tool(given)
            if made.name in toolbox:
                raise ValueError(f"two tools are called {made.name!r}.")
            toolbox[made.name] = made
        if max_turns < 1 or parallel < 1:
            raise ValueError("max_turns and parallel are whole numbers from 1 up.")
        wanted = fields.get("response_format")
        typed = wanted is not None and not isinstance(wanted, Mapping)
        first: list[Any] = [] if system is None else [{"role": "system", "content": system}]
        first += _listed(messages)

        def ask(said: list[Any]) -> ChatStream[Event]:
            return self.stream(said, tools=list(toolbox.values()) or None, **fields.copy())

        self._core.request(first, None, {**fields, "tools": list(toolbox.values()) or None})
        return ToolRun(
            Plan(
                ask,
                toolbox,
                max_turns,
                parallel,
                eager,
                confirm,
                output_type(wanted) if typed else None,
            ),
            first,
        )

    async def run(
        self,
        messages: Messages,
        tools: Iterable[Callable[..., Any] | Tool],
        *,
        system: str | None = None,
        max_turns: int = 10,
        parallel: int = 8,
        eager: bool = False,
        confirm: Callable[[ToolRecord], Any] | None = None,
        **fields: Any,
    ) -> ToolRun:
        """Let the model call tools until it answers, and return the run. Arguments and errors as `run_stream`."""
        run = self.run_stream(
            messages,
            tools,
            system=system,
            max_turns=max_turns,
            parallel=parallel,
            eager=eager,
            confirm=confirm,
            **fields,
        )
        return await run.final()


class Completions:
    """`client.chat.completions`: the names that code written for `AsyncOpenAI` calls."""

    __slots__ = ("_chat",)

    def __init__(self, chat: Chat) -> None:
        self._chat = chat

    @overload
    async def create(
        self, *, messages: Messages, stream: Literal[True], **fields: Any
    ) -> ChatStream[Chunk]: ...
    @overload
    async def create(
        self, *, messages: Messages, stream: Literal[False] | None = None, **fields: Any
    ) -> Completion: ...
    @overload
    async def create(
        self, *, messages: Messages, stream: bool, **fields: Any
    ) -> ChatStream[Chunk] | Completion: ...
    async def create(
        self, *, messages: Messages, stream: bool | None = None, **fields: Any
    ) -> ChatStream[Chunk] | Completion:
        """Return the answer, or with `stream=True` an async iterable of chunks. As `chat(...)` otherwise.

        The stream closes at its end, on `aclose()`, at the end of its `async with` block, or when the loop over it
        is left.
        """
        if not stream:
            return await self._chat(messages, **fields)
        made: ChatStream[Chunk] = self._chat.open(
            messages, fields.pop("system", None), fields, mode="chunks"
        )
        await made.start()
        return made

    async def parse(
        self, *, messages: Messages, response_format: Any, **fields: Any
    ) -> Completion:
        """Return the answer, with its value in `choices[0].message.parsed`; errors as `chat.parse`."""
        return await self._chat.parse_completion(messages, response_format, **fields)

    def stream(self, *, messages: Messages, **fields: Any) -> ChatStream[Event]:
        """Return the answer as a stream of events; the same as `chat.stream`."""
        return self._chat.stream(messages, **fields)


def _listed(messages: Messages) -> list[Any]:
    """Return a conversation that can be gone on with."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    return list(messages)


def _env(name: str) -> str | None:
    return os.environ.get(name) or None


def _completed(
    endpoints: Sequence[Endpoint],
    model: str | None,
    headers: Mapping[str, str] | None,
    query: Mapping[str, str] | None,
) -> list[Endpoint]:
    """Return the endpoints with what the client has for those that have none of their own."""
    made = list(endpoints)
    if not made:
        raise ValueError("endpoints is empty: pass at least one Endpoint.")
    for endpoint in made:
        if not isinstance(endpoint, Endpoint):
            raise TypeError(
                f"endpoints holds a {type(endpoint).__name__}; each has to be an Endpoint."
            )
    return [
        msgspec.structs.replace(
            endpoint,
            model=endpoint.model or model,
            headers=both(headers, endpoint.headers),
            query=both(query, endpoint.query),
        )
        for endpoint in made
    ]


def _retry(
    retry: RetryPolicy | None, max_retries: int | None, default: RetryPolicy
) -> RetryPolicy:
    if max_retries is None:
        return retry or default
    return msgspec.structs.replace(retry or default, max_retries=max_retries)
