"""Whole programs: a client in every state that it can be left in, every way to leave it, and forks.

Not here: checks from outside. `python -m tests.storms.programs URL CONTROL NAME [ENDING]` is one of them, and has to end with
code 0 and without a word.
"""

import asyncio
import gc
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from asyncchat import AsyncChat, ChatStream, Limits, PoolClosed, RetryPolicy, Timeout
from tests.faults.server import _full
from tests.storms.server import LONG, SHORT

kept: list[Any] = []
"""What lives until the interpreter ends."""


def let_go() -> None:
    """Forget all of that, where the interpreter goes on."""
    for one in kept:
        if isinstance(one, ChatStream):
            one.close()
        elif isinstance(one, list):
            for filler in one:
                filler.close()
    kept.clear()


# ----------------------------------------------------------------------------------------- states


def client_of(url: str, **options: Any) -> AsyncChat:
    client = AsyncChat(url, "key", "good", **options)
    kept.append(client)
    return client


def begin(work: Any) -> "asyncio.Task[Any]":
    task = asyncio.get_running_loop().create_task(work)
    kept.append(task)
    return task


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0.001)


async def reading(client: AsyncChat) -> "asyncio.Task[Any]":
    """Begin to read a stream that goes on, and return once it has said something."""
    came = asyncio.Event()

    async def read() -> None:
        async with client.chat.stream("a", model="held") as stream:
            async for _ in stream:
                came.set()

    task = begin(read())
    await came.wait()
    return task


async def unused(url: str) -> None:
    client_of(url)


async def idle(url: str) -> None:
    assert (await client_of(url).chat("a")).text == SHORT


async def in_midstream(url: str) -> None:
    await reading(client_of(url))


async def opened(url: str) -> None:
    """A stream that nobody reads, and that lives on."""
    stream = client_of(url).chat.stream("a", model="held")
    await stream.start()
    kept.append(stream)


async def left_by_break(url: str) -> None:
    stream = await client_of(url).chat.completions.create(messages="a", stream=True, model="held")
    kept.append(stream)
    async for _ in stream:
        break


async def waiting_in_line(url: str) -> None:
    client = client_of(url, limits=Limits(in_flight=1))
    await reading(client)
    begin(client.chat("a"))
    await until(lambda: client.statistics().waiting == 1)


async def before_the_head(url: str) -> None:
    client = client_of(url)
    begin(client.chat("a", model="silent"))
    await until(lambda: client.statistics().attempts == 1)
    await asyncio.sleep(0.05)


async def connecting(_: str) -> None:
    full = _full("127.0.0.1")
    kept.append(full)
    client = client_of(f"http://127.0.0.1:{full[0].getsockname()[1]}/v1")
    begin(client.chat("a"))
    await until(lambda: client.statistics().attempts == 1)
    await asyncio.sleep(0.05)


async def waiting_to_retry(url: str) -> None:
    client = client_of(url, retry=RetryPolicy(initial_delay=600, max_delay=600))
    begin(client.chat("a", model="refused"))
    await until(lambda: client.statistics().attempts == 1)
    await asyncio.sleep(0.05)


async def cancelled(url: str) -> None:
    task = await reading(client_of(url))
    task.cancel()
    await asyncio.wait([task])


async def being_cancelled(url: str) -> None:
    (await reading(client_of(url))).cancel()


async def closed(url: str) -> None:
    client = client_of(url)
    task = await reading(client)
    await client.close()
    await asyncio.wait([task])
    assert isinstance(task.exception(), PoolClosed)


STATES = {
    state.__name__: state
    for state in (
        unused,
        idle,
        in_midstream,
        opened,
        left_by_break,
        waiting_in_line,
        before_the_head,
        connecting,
        waiting_to_retry,
        cancelled,
        being_cancelled,
        closed,
    )
}

# ---------------------------------------------------------------------------------------- endings


def returns(state: Awaitable[None]) -> None:
    """The main coroutine returns, whatever else runs."""

    async def main() -> None:
        await state

    asyncio.run(main())


def exits(state: Awaitable[None]) -> None:
    """`sys.exit()` in the middle of it all."""

    async def main() -> None:
        await state
        sys.exit(0)

    asyncio.run(main())


def in_a_thread(state: Awaitable[None]) -> None:
    """The loop still runs in a daemon thread when the interpreter ends."""
    is_reached = threading.Event()

    async def main() -> None:
        await state
        is_reached.set()
        await asyncio.sleep(600)

    threading.Thread(target=asyncio.run, args=(main(),), daemon=True).start()
    assert is_reached.wait(20)


def closes(state: Awaitable[None]) -> None:
    """Everything is closed and awaited."""

    async def main() -> None:
        await state
        for one in kept:
            if isinstance(one, AsyncChat):
                await one.close()
        for one in kept:
            if isinstance(one, asyncio.Task):
                await asyncio.wait([one])
                assert one.cancelled() or isinstance(one.exception(), PoolClosed | None)

    asyncio.run(main())


def abandons(state: Awaitable[None]) -> None:
    """The loop is neither closed nor finished."""
    loop = asyncio.new_event_loop()
    kept.append(loop)

    async def main() -> None:
        await state

    loop.run_until_complete(main())


ENDINGS = {ending.__name__: ending for ending in (returns, exits, in_a_thread, closes, abandons)}

# ------------------------------------------------------------------------------------------ forks


async def release(control: int) -> None:
    """Let the held streams go on."""
    reader, writer = await asyncio.open_connection("127.0.0.1", control)
    writer.write(b"release\n")
    await reader.readline()
    writer.close()
    await writer.wait_closed()


async def forked(child: Callable[[], None]) -> int:
    """Fork, let the child do something, and return the code it ended with."""
    pid = os.fork()
    if not pid:
        code = 1
        try:
            child()
            code = 0
        except BaseException as error:  # noqa: BLE001  nothing of a child's may come up in the parent's frames
            sys.stderr.write(f"in the child: {error!r}\n")
        finally:
            os._exit(code)
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        await asyncio.sleep(0.01)


async def fork_in_midstream(
    url: str, control: int, child: Callable[[AsyncChat, Any], None]
) -> None:
    """Fork beside a stream and a kept connection: the parent goes on with both as if nothing had been."""
    client = AsyncChat(url, "key", "good", timeout=Timeout(total=3))
    stream = client.chat.stream("a", model="held")
    await stream.start()
    assert (await client.chat("a")).text == SHORT
    assert await forked(lambda: child(client, stream)) == 0
    await release(control)
    assert (await stream.final()).text == LONG
    assert (await client.chat("a")).text == SHORT
    await client.close()


def calls(client: AsyncChat, _: Any) -> None:
    """Uses the client in a loop of its own, and closes it."""

    async def main() -> None:
        for _ in range(2):
            assert (await client.chat("a")).text == SHORT
        assert (await client.chat.stream("a", model="slow").final()).text == SHORT
        await client.close()

    asyncio.run(main())
    gc.collect()


def leaves_the_stream(_: AsyncChat, stream: Any) -> None:
    """Closes what is the parent's, as the end of an `async with` block does."""
    stream.close()


def fork_between_loops(url: str, _: int) -> None:
    client = client_of(url)

    async def call() -> None:
        assert (await client.chat("a")).text == SHORT

    asyncio.run(call())
    code = asyncio.run(forked(lambda: asyncio.run(call())))
    assert code == 0
    asyncio.run(call())


def fork_and_call(url: str, control: int) -> None:
    asyncio.run(fork_in_midstream(url, control, calls))


def fork_and_leave(url: str, control: int) -> None:
    asyncio.run(fork_in_midstream(url, control, leaves_the_stream))


async def _fork_with_no_place_left(url: str) -> None:
    client = AsyncChat(url, "key", "good", limits=Limits(in_flight=1), timeout=Timeout(total=2))
    stream = client.chat.stream("a", model="held")
    await stream.start()

    def child() -> None:
        async def call() -> None:
            assert (await client.chat("a")).text == SHORT

        asyncio.run(call())

    assert await forked(child) == 0
    stream.close()
    await client.close()


def fork_with_no_place_left(url: str, _: int) -> None:
    """The place is the parent's: the child has its own."""
    asyncio.run(_fork_with_no_place_left(url))


FORKS = {
    fork.__name__: fork
    for fork in (fork_between_loops, fork_and_call, fork_and_leave, fork_with_no_place_left)
}

if __name__ == "__main__":
    base_url, port, name, *ending = sys.argv[1:]
    if ending:
        ENDINGS[ending[0]](STATES[name](base_url))
    else:
        FORKS[name](base_url, int(port))
