"""Plain requests with an answer of 64 tokens over loopback: CPU of the client per request. `python -m benchmarks.bench_request`.

sequential  one after the other on one connection
parallel    32 at once
"""

from collections.abc import Callable, Mapping

from benchmarks import frames, peers, report, token_server
from benchmarks.worker import Hired, Order, hired

HAND, OPENAI = "aiohttp + msgspec", "openai"
ROWS = {
    "floor, counts bytes": "floor",
    "bare aiohttp": "aiohttp",
    HAND: "msgspec",
    "asyncchat": "asyncchat",
    OPENAI: "openai",
    "openai[aiohttp]": "openai-aiohttp",
}
TOKENS = 64
SCENES = {"sequential": (1, 640), "parallel": (32, 20)}  # streams at once, requests of each
UVLOOP = {"floor", "aiohttp", "msgspec", "asyncchat"}


def measure(
    team: Mapping[str, Hired], server: str, name: str, loop: str, streams: int, repeat: int
) -> Callable[[], float]:
    order = Order(
        base_url=f"{server}/plain/{TOKENS}/v1",
        call="request",
        want=sum(len(frames.WORDS[i % len(frames.WORDS)]) for i in range(TOKENS)),
        streams=streams,
        repeat=max(1, repeat // 5) if name.startswith("openai") else repeat,
        loop=loop,
    )
    return lambda: team[name].run(order).cpu / order.streams / order.repeat


def main(argv: list[str] | None = None) -> None:
    options = report.options("bench_request", argv, rounds=7)
    bench = report.Report("bench_request", options)
    bench.print_head()
    server_core, client_core = report.cores()
    names = [name for name in peers.PEERS if name not in options.without]
    with token_server.running(server_core) as server, hired(names, client_core) as team:
        for loop in ("asyncio", "uvloop"):
            if loop == "uvloop" and (options.quick or "uvloop" not in report.versions()):
                continue
            for scene, (streams, repeat) in SCENES.items():
                key = f"{scene}, {loop}"
                if options.only and scene not in options.only and key not in options.only:
                    continue
                rows = [row for row in ROWS if ROWS[row] in team]
                if loop == "uvloop":
                    rows = [row for row in rows if ROWS[row] in UVLOOP]
                each = max(1, repeat // 8) if options.quick else repeat
                bench.case(key, f"{scene}, {loop}: CPU per request", HAND)
                bench.rounds(
                    key,
                    {row: measure(team, server, ROWS[row], loop, streams, each) for row in rows},
                    slow={OPENAI, "openai[aiohttp]"},
                )
                bench.print_case(key)
    bench.print_goals(GOALS)
    bench.save()


GOALS = [
    goal
    for case in ("sequential, asyncio", "parallel, asyncio")
    for goal in (
        report.Goal(f"asyncchat ÷ {HAND}: {case}", (case, "asyncchat"), (case, HAND), 1.25),
        report.Goal(
            f"openai ÷ asyncchat: {case}",
            (case, OPENAI),
            (case, "asyncchat"),
            10,
            15,
            at_least=True,
        ),
    )
]


if __name__ == "__main__":
    main()
