"""Parse and assemble alone: no socket, no loop. `python -m benchmarks.bench_parse`.

Rows: msgspec skipping everything (the floor), msgspec into typed structs, asyncchat with and without event objects, and openai's own
decoder, models and accumulator. Pathological cases check that cost grows with the bytes and no faster.
"""

import gc
import statistics
import time
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from benchmarks import frames, report
from benchmarks.peers import Chunk

FLOOR = "msgspec, skipping everything"
TYPED = "msgspec, typed"
EVENTS = "asyncchat, with events"
SILENT = "asyncchat, without events"
DECODER = "openai, decoder and models"
OPENAI = "openai, with accumulator"
SLOW = {DECODER, OPENAI}
READ = 16384
KINDS = {
    "content": "content",
    "reasoning": "reasoning",
    "tools": "arguments of a tool call",
    "padded": "content with OpenAI's padding on every chunk",
    "unknown": "content with unknown fields on every chunk",
}


class Nothing(msgspec.Struct):
    """Decoding into it validates the JSON and keeps none of it."""


Run = Callable[[list[bytes]], int]  # reads in, number of characters of text out


# --------------------------------------------------------------------------------------------- runs


def _frames(reads: list[bytes]) -> Iterator[bytes]:
    """The least that can be called framing: right for these bytes, wrong for many servers."""
    tail = b""
    for read in reads:
        *whole, tail = (tail + read if tail else read).split(b"\n\n")
        yield from whole


def run_floor(reads: list[bytes]) -> int:
    decode = msgspec.json.Decoder(Nothing).decode
    for frame in _frames(reads):
        payload = frame[6:]
        if payload != b"[DONE]":
            decode(payload)
    return 0


def run_typed(reads: list[bytes]) -> int:
    decode = msgspec.json.Decoder(Chunk).decode
    for frame in _frames(reads):
        payload = frame[6:]
        if payload != b"[DONE]":
            decode(payload)
    return 0


def asyncchat_runs() -> dict[str, Run]:
    try:
        from asyncchat.protocol.answer import AnswerReader
    except ImportError:
        return {}

    def read(reads: list[bytes], *, events: bool) -> int:
        reader = AnswerReader(n=1, events=events)
        for data in reads:
            for _ in reader.feed(data):
                pass
        return _size(reader.finish())

    return {
        EVENTS: lambda reads: read(reads, events=True),
        SILENT: lambda reads: read(reads, events=False),
    }


def openai_runs() -> dict[str, Run]:
    try:
        from openai._models import construct_type
        from openai._streaming import SSEDecoder
        from openai.lib.streaming.chat import ChatCompletionStreamState
        from openai.types.chat import ChatCompletionChunk
    except ImportError:
        return {}

    def decode(reads: list[bytes]) -> Iterator[ChatCompletionChunk]:
        for event in SSEDecoder().iter_bytes(iter(reads)):
            if event.data.startswith("[DONE]"):
                return
            yield construct_type(type_=ChatCompletionChunk, value=event.json())

    def decode_only(reads: list[bytes]) -> int:
        for _ in decode(reads):
            pass
        return 0

    def accumulate(reads: list[bytes]) -> int:
        state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
        for chunk in decode(reads):
            for _ in state.handle_chunk(chunk):
                pass
        return _size(state.get_final_completion())

    return {DECODER: decode_only, OPENAI: accumulate}


def _size(completion: object) -> int:
    """Characters of text in the answer: all that was sent has to be there."""
    message = completion.choices[0].message
    calls = message.tool_calls or ()
    reasoning = getattr(message, "reasoning_content", None) or ""
    return (
        len(message.content or "")
        + len(reasoning)
        + sum(len(call.function.arguments) for call in calls)
    )


# --------------------------------------------------------------------------------------- measuring


def timed(run: Run, reads: list[bytes], units: float, repeat: int, want: int) -> float:
    """CPU seconds per unit."""
    gc.collect()
    start = time.process_time()
    for _ in range(repeat):
        got = run(reads)
    spent = time.process_time() - start
    assert got in {0, want}, f"{got} characters arrived, {want} were sent"
    return spent / units / repeat


def cut(body: bytes, size: int) -> list[bytes]:
    return [body[i : i + size] for i in range(0, len(body), size)]


def peak(run: Run, events: list[bytes]) -> Callable[[], float]:
    """Most bytes alive at once during a run, on top of what was alive before it.

    Only what is made while reading counts: the bytes that came from the socket existed before.
    """

    def measure() -> float:
        run(events)
        tracemalloc.start()
        before = tracemalloc.get_traced_memory()[0]
        run(events)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return float(most - before)

    return measure


def peak_per_event(deltas: list[bytes]) -> dict[str, float]:
    """Bytes that reading one event allocates at its worst moment, and bytes it leaves behind until the end."""
    try:
        from asyncchat.protocol.answer import AnswerReader
    except ImportError:
        return {}
    found = {}
    for row, events in ((EVENTS, True), (SILENT, False)):
        reader = AnswerReader(n=1, events=events)
        for data in deltas[:64]:
            reader.feed(data)
        rest = deltas[64:]
        peaks = array("q", bytes(8 * len(rest)))  # made before: what it holds is not counted
        tracemalloc.start()
        start = tracemalloc.get_traced_memory()[0]
        for i, data in enumerate(rest):
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            reader.feed(data)
            peaks[i] = tracemalloc.get_traced_memory()[1] - before
        left = tracemalloc.get_traced_memory()[0] - start
        tracemalloc.stop()
        found[f"{row}: peak"] = statistics.median(peaks)
        found[f"{row}: kept"] = left / len(peaks)
    return found


def main(argv: list[str] | None = None) -> None:
    options = report.options("bench_parse", argv, rounds=7)
    report.pin(report.cores()[1])
    bench = report.Report("bench_parse", options)
    bench.print_head()
    own = asyncchat_runs()
    everyone = {FLOOR: run_floor, TYPED: run_typed} | own | openai_runs()
    kept = {row: run for row, run in everyone.items() if row.split(",")[0] not in options.without}
    gc.collect()
    gc.freeze()  # the peers' modules shall not be walked while others are measured
    wanted = set(options.only or (*KINDS, "linear", "memory"))
    events = 200 if options.quick else 1000
    for name, deltas in (
        ("content", frames.content_deltas(events)),
        ("reasoning", frames.reasoning_deltas(events)),
        ("tools", frames.tool_deltas(events)),
        ("padded", frames.padded_deltas(events)),
        ("unknown", frames.unknown_field_deltas(events)),
    ):
        if name in wanted:
            stream(bench, kept, name, deltas)
    if own and "linear" in wanted:
        linear(bench, own, options.quick)
    if own and "memory" in wanted:
        memory(bench, own, frames.content_deltas(events))
    bench.print_goals(GOALS)
    bench.save()


def stream(bench: report.Report, runs: dict[str, Run], name: str, deltas: list[bytes]) -> None:
    """One kind of stream, an event per read and many per read."""
    sent = frames.wrap(deltas)
    want = text_size(deltas)
    size = statistics.mean(map(len, deltas))
    for how, reads in (("single", sent), ("bunched", cut(b"".join(sent), READ))):
        key = f"{name}, {how}"
        per_read = "one event per read" if how == "single" else f"reads of {READ:,} bytes"
        bench.case(key, f"{KINDS[name]}: events of {size:.0f} bytes, {per_read}; per event", FLOOR)
        measures = {
            row: partial(timed, run, reads, len(sent), 1 if row in SLOW else 10, want)
            for row, run in runs.items()
        }
        bench.rounds(key, measures)
        bench.print_case(key)


def text_size(deltas: list[bytes]) -> int:
    """Characters of text in `deltas`, read independently of all that is measured."""
    total = 0
    for event in deltas:
        delta = msgspec.json.decode(event[6:])["choices"][0]["delta"]
        total += len(delta.get("content") or "") + len(delta.get("reasoning_content") or "")
        total += sum(len(call["function"]["arguments"]) for call in delta.get("tool_calls", ()))
    return total


def linear(bench: report.Report, own: dict[str, Run], quick: bool) -> None:
    """The same work in a small and a large size; the cost per unit has to stay."""
    large = 20_000 if quick else 100_000
    bench.case("deltas", "deltas of 10 bytes, one event per read: per event")
    bench.case("drip", "one event in reads of 100 bytes: per kB")
    deltas, drips = {}, {}
    for row, run in own.items():
        for count in (1000, large):
            reads = frames.wrap(frames.sized_content_deltas(count, 10))
            repeat = max(1, 20_000 // count)
            deltas[f"{row}, {count * 10:,} bytes"] = partial(
                timed, run, reads, len(reads), repeat, count * 10
            )
        for size in (60_000, 600_000):
            reads = cut(b"".join(frames.wrap(frames.sized_content_deltas(1, size))), 100)
            drips[f"{row}, {size:,} bytes"] = partial(
                timed, run, reads, size / 1000, 3_000_000 // size, size
            )
    for key, measures in (("deltas", deltas), ("drip", drips)):
        bench.rounds(key, measures)
        bench.print_case(key)
    for row in own:
        GOALS.append(
            report.Goal(
                f"{row}: answer of {large * 10:,} bytes ÷ 10,000 bytes, per event",
                ("deltas", f"{row}, {large * 10:,} bytes"),
                ("deltas", f"{row}, 10,000 bytes"),
                1.5,
            )
        )
        GOALS.append(
            report.Goal(
                f"{row}: event of 600,000 bytes ÷ 60,000 bytes, per kB",
                ("drip", f"{row}, 600,000 bytes"),
                ("drip", f"{row}, 60,000 bytes"),
                1.5,
            )
        )


def memory(bench: report.Report, own: dict[str, Run], deltas: list[bytes]) -> None:
    """Evidence for "zero copy": reading a large event makes its text and nothing else of that size."""
    size = 600_000
    bench.case("memory", "bytes allocated per event of 320 bytes, one per read", unit="bytes")
    for row, value in peak_per_event(deltas).items():
        bench.add("memory", row, value)
    bench.print_case("memory")
    bench.case("copies", "one event of 600 kB in one read: peak ÷ size of its text", unit="times")
    reads = [b"".join(frames.wrap(frames.sized_content_deltas(1, size)))]
    for row, run in ({FLOOR: run_floor, TYPED: run_typed} | own | openai_runs()).items():
        bench.add("copies", row, peak(run, reads)() / size)
    bench.print_case("copies")


GOALS = [
    report.Goal(f"{row} ÷ {FLOOR}: {case}", (case, row), (case, FLOOR), 2.5)
    for case in ("content, single", "content, bunched")
    for row in (EVENTS, SILENT)
] + [
    report.Goal(f"{OPENAI} ÷ {EVENTS}: {case}", (case, OPENAI), (case, EVENTS), 150, at_least=True)
    for case in ("content, single", "content, bunched")
]


if __name__ == "__main__":
    main()
