"""Streams end to end over loopback: CPU of the client per event. `python -m benchmarks.bench_stream`.

The server is always far from its limit, and always the same bytes arrive; what differs is how many events one read brings:

flood     a thousand events at once, hundreds per read: what is left is decoding
firehose  one event per write, as fast as a server can that serves others too; how many a read brings depends on the reader
bunched   four events per read, 64 streams, a write every 16 ms
paced     one event per read, 200 streams with 30 ms between events; some thirty are ready at a time, as one server's are
alone     the same, but every event wakes the client by itself

In the last three the cost of starting a stream is taken out: a short run is subtracted from a long one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import frames, peers, report, token_server
from benchmarks.worker import Hired, Order, hired

EVENTS, TEXT, FINAL = "asyncchat, events", "asyncchat, .text()", "asyncchat, .final()"
BARE, OPENAI = "bare aiohttp", "openai, create(stream=True)"
ROWS = {
    "floor, counts bytes": ("floor", "events"),
    BARE: ("aiohttp", "events"),
    "aiohttp + msgspec": ("msgspec", "events"),
    EVENTS: ("asyncchat", "events"),
    TEXT: ("asyncchat", "text"),
    FINAL: ("asyncchat", "final"),
    OPENAI: ("openai", "events"),
    "openai, .stream()": ("openai", "text"),
    "openai[aiohttp], create(stream=True)": ("openai-aiohttp", "events"),
}
_FRAMING = 3  # role, finish and usage chunks; [DONE] is not counted


@dataclass(frozen=True)
class Scene:
    """How events arrive. `tokens` long, and `short` where a short run is subtracted."""

    title: str
    path: str  # of the server, with a place for the number of tokens
    tokens: int
    short: int = 0
    streams: int = 1
    repeat: int = 1
    rows: tuple[str, ...] = tuple(ROWS)


_EACH = tuple(row for row in ROWS if row not in {TEXT, FINAL, "openai, .stream()"})
SCENES = {
    "flood": Scene("flood: hundreds of events per read", "flood/{}/16", 1000, repeat=8),
    "firehose": Scene("firehose: one event per write, no pause", "fast/{}/1", 1000, repeat=8),
    "bunched": Scene("bunched: 4 events per read, 64 streams", "paced/{}/4/16/4", 160, 32, 64),
    "paced": Scene(
        "paced: one event per read, 200 streams, 30 ms apart",
        "paced/{}/1/30/5",
        32,
        6,
        200,
        rows=_EACH,
    ),
    "alone": Scene(
        "alone: as paced, but every event wakes the client by itself",
        "paced/{}/1/30/0",
        32,
        6,
        200,
        rows=_EACH,
    ),
}
DEFAULT = ("firehose", "bunched", "paced", "flood")  # `alone` on request
SLOW = {row for row, (peer, _) in ROWS.items() if peer.startswith("openai")}
UVLOOP = {"floor", "aiohttp", "msgspec", "asyncchat"}
QUICK = {
    "firehose": Scene("firehose, quick", "fast/{}/1", 200),
    "paced": Scene("paced, quick: 20 streams, 10 ms apart", "paced/{}/1/10/5", 40, 8, 20),
}


def measure(
    team: Mapping[str, Hired], server: str, scene: Scene, row: str, loop: str
) -> Callable[[], float]:
    name, call = ROWS[row]
    slow = name.startswith("openai")

    def order(tokens: int) -> Order:
        return Order(
            base_url=f"{server}/{scene.path.format(tokens)}/v1",
            call=call,
            want=sum(len(frames.WORDS[i % len(frames.WORDS)]) for i in range(tokens)),
            streams=scene.streams,
            repeat=1 if slow else scene.repeat,
            loop=loop,
        )

    def once() -> float:
        long = order(scene.tokens)
        spent = team[name].run(long).cpu
        if not scene.short:
            return spent / (scene.tokens + _FRAMING) / long.repeat
        spent -= team[name].run(order(scene.short)).cpu
        return spent / (scene.tokens - scene.short) / scene.streams

    return once


def main(argv: list[str] | None = None) -> None:
    options = report.options("bench_stream", argv)
    bench = report.Report("bench_stream", options)
    bench.print_head()
    server_core, client_core = report.cores()
    names = [name for name in peers.PEERS if name not in options.without]
    scenes = QUICK if options.quick else SCENES
    with token_server.running(server_core) as server, hired(names, client_core) as team:
        for loop in ("asyncio", "uvloop"):
            if loop == "uvloop" and (options.quick or "uvloop" not in report.versions()):
                continue
            for name, scene in scenes.items():
                key = f"{name}, {loop}"
                if not {name, key} & set(options.only or DEFAULT):
                    continue
                rows = [row for row in scene.rows if ROWS[row][0] in team]
                if loop == "uvloop":
                    rows = [row for row in rows if ROWS[row][0] in UVLOOP]
                bench.case(key, f"{scene.title}; {loop}; CPU per event", BARE)
                measures = {row: measure(team, server, scene, row, loop) for row in rows}
                bench.rounds(key, measures, slow=SLOW)
                bench.print_case(key)
    bench.print_goals(GOALS)
    bench.save()


def _goals(
    key: str, row: str, bare: float, openai: float | None = None, later: float | None = None
) -> list[report.Goal]:
    case = f"{key}, asyncio"
    goals = [report.Goal(f"{row} ÷ {BARE}: {case}", (case, row), (case, BARE), bare)]
    if openai is not None:
        text = f"openai ÷ {row}: {case}"
        goals.append(report.Goal(text, (case, OPENAI), (case, row), openai, later, at_least=True))
    return goals


GOALS = [
    *_goals("firehose", EVENTS, 1.6, 15, 20),
    *_goals("firehose", FINAL, 1.4),
    *_goals("bunched", EVENTS, 1.6, 15, 20),
    *_goals("bunched", FINAL, 1.4),
    *_goals("paced", EVENTS, 1.3, 8, 10),
]


if __name__ == "__main__":
    main()
