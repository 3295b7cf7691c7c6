"""A list of objects, read while it is being written: CPU by the length of the answer. `python -m benchmarks.bench_structured`.

Every peer gets the same events with 10 bytes of JSON each, one per read and all in memory: no socket. asyncchat's rows are its real
`ChatStream` over a reply that never waits. openai is its decoder and the accumulator behind its `.stream()`, which parses the whole
text at every event; so do the rows that parse with jiter, the second as instructor does. These grow with the square of the answer
and stop at the first size. `partials` stays linear by giving fewer values in a long answer: a table says how many everyone gives.
Tables have the whole answer in ms, beside reading it for its text alone.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial

import msgspec

from benchmarks import frames, report
from benchmarks.peers import Chunk

ITEMS, PARTIALS = "asyncchat, .items()", "asyncchat, .partials(every=0)"
FINAL, PARSED = "asyncchat, .final()", "asyncchat, .final(), then .parsed"
OPENAI = "openai, with accumulator"
JITER, PYDANTIC = "jiter at every event", "jiter and pydantic at every event"
SQUARE = {OPENAI, JITER, PYDANTIC}  # their cost grows with the square
SLOW = SQUARE | {PARTIALS}
SIZES = (100_000, 250_000, 500_000, 1_000_000)
QUICK = (4_000, 10_000, 20_000, 40_000)
ELEMENT = 100  # bytes, its comma included
DELTA = 10
_ENOUGH = 500_000  # bytes to be read for one value, which is then above the noise

# Reads in; out come the number of elements of the list (of characters where none are made) and of values that were seen.
Run = Callable[[list[bytes]], tuple[int, int]]


class Event(msgspec.Struct):
    """One element of the list."""

    when: str
    kind: str
    place: str
    crew: int
    note: str


# -------------------------------------------------------------------------------------------- bytes


def answer(count: int) -> str:
    """A list of `count` elements as a server with a schema writes it: an object is the root."""
    words = "".join(frames.WORDS)
    elements = []
    for i in range(count):
        event = Event(f"2031-07-{i % 28 + 1:02}", "landing", "Europa", i % 9, 'ice, "')
        event.note += words[i % 60 :][: ELEMENT - 1 - len(msgspec.json.encode(event))]
        elements.append(msgspec.json.encode(event).decode())
    return f'{{"value":[{",".join(elements)}]}}'


def events_of(text: str) -> list[bytes]:
    pieces = [text[i : i + DELTA] for i in range(0, len(text), DELTA)]
    return frames.wrap([frames.frame({"content": piece}) for piece in pieces])


# --------------------------------------------------------------------------------------------- runs


def asyncchat_runs() -> dict[str, Run]:
    try:
        from asyncchat.client.stream import ChatStream, Opened
        from asyncchat.protocol.answer import AnswerReader
        from asyncchat.protocol.response import HTTP, Timing
        from asyncchat.protocol.schema import output_type
    except ImportError:
        return {}

    class Reply:
        """A body that is there already."""

        content_type = "text/event-stream"
        counts_events = True
        arrived_at = 0.0
        http = HTTP()

        def __init__(self, reads: list[bytes]) -> None:
            self._reads = iter(reads)

        async def read(self) -> bytes:
            return next(self._reads, b"")

        def alive(self) -> None: ...
        def done(self) -> None: ...
        def close(self) -> None: ...

    class Lease:
        """A place that nobody else wants."""

        def timing(self, first: float | None = None, itl: float | None = None) -> Timing:
            return Timing(first, itl)

        def began(self, reply: object) -> None: ...
        def finished(self, reader: object, answer: object) -> None: ...
        def failed(self, error: object, reader: object, *, goes_on: bool) -> None: ...
        def left(self, reader: object = None) -> None: ...

    def opened(reads: list[bytes], *, typed: bool = True) -> ChatStream:
        async def start(stream: ChatStream) -> Opened:
            return await stream.begin(Reply(reads), Lease())

        def reader(content_type: str) -> AnswerReader:
            return AnswerReader(n=1, content_type=content_type)

        return ChatStream(start, reader, output=output_type(list[Event]) if typed else None)

    async def items(reads: list[bytes]) -> tuple[int, int]:
        count = 0
        async with opened(reads) as stream:
            async for event in stream.items():
                assert type(event) is Event
                count += 1
        return count, count

    async def partials(reads: list[bytes]) -> tuple[int, int]:
        count = seen = 0
        async with opened(reads) as stream:
            async for value in stream.partials(every=0):
                count, seen = len(value), seen + 1
        return count, seen

    async def final(reads: list[bytes]) -> tuple[int, int]:
        completion = await opened(reads, typed=False).final()
        return len(completion.text), 0

    async def parsed(reads: list[bytes]) -> tuple[int, int]:
        stream = opened(reads)
        await stream.final()
        return len(stream.parsed), 1

    rows = {FINAL: final, PARSED: parsed, ITEMS: items, PARTIALS: partials}
    return {row: partial(_finish, way) for row, way in rows.items()}


def _finish(
    way: Callable[[list[bytes]], Coroutine[None, None, tuple[int, int]]], reads: list[bytes]
) -> tuple[int, int]:
    with asyncio.Runner() as runner:
        return runner.run(way(reads))


def openai_runs() -> dict[str, Run]:
    try:
        from openai._models import construct_type
        from openai._streaming import SSEDecoder
        from openai.lib.streaming.chat import ChatCompletionStreamState
        from openai.types.chat import ChatCompletionChunk
    except ImportError:
        return {}
    model = _models()[0]

    def accumulate(reads: list[bytes]) -> tuple[int, int]:
        state, seen = ChatCompletionStreamState(response_format=model), 0
        for event in SSEDecoder().iter_bytes(iter(reads)):
            if event.data.startswith("[DONE]"):
                break
            chunk = construct_type(type_=ChatCompletionChunk, value=event.json())
            for told in state.handle_chunk(chunk):
                seen += told.type == "content.delta" and told.parsed is not None
        return len(state.get_final_completion().choices[0].message.parsed.value), seen

    return {OPENAI: accumulate}


def hand_runs() -> dict[str, Run]:
    """What is written by hand for one honest server, with everything so far parsed whenever more comes."""
    try:
        from jiter import from_json
    except ImportError:
        return {}

    def grown(reads: list[bytes]) -> Iterator[object]:
        decode = msgspec.json.Decoder(Chunk).decode
        text = ""
        for event in reads:
            payload = event[6:-2]
            if payload == b"[DONE]":
                return
            chunk = decode(payload)
            if chunk.choices and chunk.choices[0].delta.content:
                text += chunk.choices[0].delta.content
                yield from_json(text.encode(), partial_mode="trailing-strings")

    def plain(reads: list[bytes]) -> tuple[int, int]:
        for seen, value in enumerate(grown(reads), 1):  # noqa: B007  the last one is whole
            pass
        return len(value["value"]), seen

    def checked(reads: list[bytes], partial_model: type) -> tuple[int, int]:
        for seen, value in enumerate(grown(reads), 1):  # noqa: B007
            model = partial_model.model_validate(value)
        return len(model.value), seen

    runs: dict[str, Run] = {JITER: plain}
    with contextlib.suppress(ImportError):
        runs[PYDANTIC] = partial(checked, partial_model=_models()[1])
    return runs


def _models() -> tuple[type, type]:
    """The answer as a pydantic model, and with every field optional."""
    from pydantic import create_model

    kinds = {field.name: field.type for field in msgspec.structs.fields(Event)}
    whole = create_model("Event", **kinds)
    growing = create_model(
        "PartialEvent", **{name: (kind | None, None) for name, kind in kinds.items()}
    )
    return (
        create_model("Events", value=(list[whole], ...)),
        create_model("PartialEvents", value=(list[growing] | None, None)),
    )


# --------------------------------------------------------------------------------------- measuring


def timed(run: Run, reads: list[bytes], repeat: int, want: set[int], seen: list[int]) -> float:
    """CPU milliseconds of one answer. `seen` takes the number of values."""
    gc.collect()
    start = time.process_time()
    for _ in range(repeat):
        got, values = run(reads)
    spent = time.process_time() - start
    assert got in want, f"{got} elements or characters arrived, one of {want} was sent"
    seen[:] = [values]
    return spent * 1e3 / repeat


def main(argv: list[str] | None = None) -> None:
    options = report.options("bench_structured", argv)
    report.pin(report.cores()[1])
    bench = report.Report("bench_structured", options)
    bench.print_head()
    peers = {"asyncchat": asyncchat_runs, "openai": openai_runs, "jiter": hand_runs}
    kept: dict[str, Run] = {}
    for peer, runs in peers.items():
        if peer not in options.without:
            kept |= runs()
    sizes = QUICK if options.quick else SIZES
    gc.collect()
    gc.freeze()  # the peers' modules shall not be walked while others are measured
    bench.case("element", "the same per element of 100 bytes")
    bench.case("values", "values that the reader gets to see", unit="values")
    for size in sizes:
        if _key(size) in (options.only or map(_key, sizes)):
            read_list(bench, kept, size, everybody=size == sizes[0])
    for key in ("element", "values"):
        if bench.cases[key].rows:
            bench.print_case(key)
    bench.print_goals(goals(sizes))
    bench.save()


def read_list(bench: report.Report, runs: dict[str, Run], size: int, *, everybody: bool) -> None:
    """One length of answer; where not `everybody`, without those that would take minutes."""
    count, key = size // ELEMENT, _key(size)
    text = answer(count)
    reads = events_of(text)
    title = f"an answer of {key}, {count:,} elements, {len(reads):,} events: ms in all"
    bench.case(key, title, FINAL, unit="ms")
    kept = {row: run for row, run in runs.items() if everybody or row not in SQUARE}
    seen: dict[str, list[int]] = {row: [] for row in kept}
    want = {count, len(text)}
    measures = {}
    for row, run in kept.items():
        repeat = 1 if row in SLOW or bench.options.quick else max(1, _ENOUGH // size)
        measures[row] = partial(timed, run, reads, repeat, want, seen[row])
    bench.rounds(key, measures, slow=SLOW)
    bench.print_case(key)
    for row, values in bench.cases[key].rows.items():
        bench.add("values", f"{row}, {key}", seen[row][0])
        for value in values:
            bench.add("element", f"{row}, {key}", value * 1e3 / count)


def _key(size: int) -> str:
    return f"{size // 1000} kB"


def goals(sizes: tuple[int, ...]) -> list[report.Goal]:
    first, *_ = keys = [_key(size) for size in sizes]
    growth = [
        report.Goal(f"{row}: an answer of {long} ÷ {short}", (long, row), (short, row), 2.3)
        for row in (ITEMS, PARTIALS)
        for short, long in ((keys[2], keys[3]), (keys[1], keys[2]))
    ]
    extra = [
        report.Goal(f"{ITEMS} ÷ {FINAL}: {keys[-1]}", (keys[-1], ITEMS), (keys[-1], FINAL), 3)
    ]
    return (
        growth
        + extra
        + [
            report.Goal(
                f"{peer} ÷ {row}: {first}", (first, peer), (first, row), bound, at_least=True
            )
            for row, peers in (
                (ITEMS, {OPENAI: 20, JITER: 10, PYDANTIC: 20}),
                (PARTIALS, {OPENAI: 2, JITER: 2, PYDANTIC: 2}),
            )
            for peer, bound in peers.items()
        ]
    )


if __name__ == "__main__":
    main()
