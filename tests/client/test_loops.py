"""Several event loops one after the other, and scripts that end without closing anything."""

import asyncio
import threading
from collections.abc import Iterator
from textwrap import dedent

import pytest
from anyio.from_thread import start_blocking_portal

from asyncchat import AsyncChat
from asyncchat.testing import ChatServer
from tests.forks import Forks


@pytest.fixture
def server_elsewhere() -> Iterator[ChatServer]:
    """A server in a loop of its own, which outlives the loops of the test."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(ChatServer()) as server,
    ):
        yield server


def test_one_client_works_in_two_loops_one_after_the_other(server_elsewhere: ChatServer) -> None:
    client = AsyncChat(server_elsewhere.base_url, model="m", max_retries=0)

    async def ask() -> tuple[str, str]:
        plain = await client.chat("a")
        return plain.text, (await client.chat.stream("b").final()).text

    assert [asyncio.run(ask()) for _ in range(3)] == [("a", "b")] * 3
    assert client.statistics().in_flight == 0


def test_loop_that_ended_in_mid_stream_leaves_the_client_usable(
    server_elsewhere: ChatServer,
) -> None:
    client = AsyncChat(server_elsewhere.base_url, model="m", max_retries=0)
    server_elsewhere.stall(after=3)

    async def leave() -> None:
        async with client.chat.stream("a") as stream:
            async for _ in stream:
                return

    async def ask() -> str:
        return (await client.chat("b")).text

    asyncio.run(leave())
    assert asyncio.run(ask()) == "b"


def test_client_closed_in_one_loop_is_closed_in_the_next(server_elsewhere: ChatServer) -> None:
    client = AsyncChat(server_elsewhere.base_url, model="m", max_retries=0)

    async def ask_and_close() -> None:
        await client.chat("a")
        await client.close()

    asyncio.run(ask_and_close())
    with pytest.raises(Exception, match="closed"):
        asyncio.run(ask_and_close())
    asyncio.run(client.close())


def test_two_threads_may_each_have_a_client(server_elsewhere: ChatServer) -> None:
    answers: list[str] = []

    def work(name: str) -> None:
        async def ask() -> None:
            async with AsyncChat(server_elsewhere.base_url, model="m") as client:
                answers.append((await client.chat(name)).text)

        asyncio.run(ask())

    threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == ["a", "b"]


# ------------------------------------------------------------------------------------- silent exits

HEAD = """
import asyncio, sys
from asyncchat import AsyncChat
client = AsyncChat(sys.argv[1], model="m", max_retries=0)
"""

SCRIPTS = {
    "never used": "",
    "plain request, never closed": """
        async def main():
            print((await client.chat("Hi.")).text)
        asyncio.run(main())
    """,
    "stream, never closed": """
        async def main():
            print((await client.chat.stream("Hi.").final()).text)
        asyncio.run(main())
    """,
    "stream, closed at once": """
        async def main():
            async with client:
                print((await client.chat.stream("Hi.").final()).text)
        asyncio.run(main())
    """,
    "stream, closed before its body has ended": """
        async def main():
            async with client:
                print((await client.chat.stream("linger").final()).text)
        asyncio.run(main())
    """,
    "stream, never closed, and its body has not ended": """
        async def main():
            print((await client.chat.stream("linger").final()).text)
        asyncio.run(main())
    """,
    "two loops, never closed": """
        async def main():
            await client.chat("Hi.")
            await client.chat.stream("Hi.").final()
        asyncio.run(main())
        asyncio.run(main())
    """,
    "left in mid-stream": """
        async def main():
            async with client.chat.stream("stall") as stream:
                async for event in stream:
                    break
        asyncio.run(main())
    """,
    "created and left in mid-stream": """
        async def main():
            async for chunk in await client.chat.completions.create(messages="stall", stream=True):
                break
        asyncio.run(main())
    """,
    "returned out of a stream that has no block": """
        async def main():
            stream = await client.chat.completions.create(messages="stall", stream=True)
            async for chunk in stream:
                return
        asyncio.run(main())
    """,
    "many streams cancelled by the end of the loop": """
        async def one():
            async with client.chat.stream("stall") as stream:
                async for event in stream:
                    pass
        async def main():
            tasks = [asyncio.create_task(one()) for _ in range(10)]
            await asyncio.sleep(0.1)
        asyncio.run(main())
    """,
    "closed while streams are read": """
        from asyncchat import PoolClosed
        async def one():
            try:
                async with client.chat.stream("stall") as stream:
                    async for event in stream:
                        pass
            except PoolClosed:
                print("closed")
        async def main():
            async with asyncio.TaskGroup() as group:
                for _ in range(3):
                    group.create_task(one())
                await asyncio.sleep(0.1)
                await client.close()
        asyncio.run(main())
    """,
    "broken off in a task group": """
        async def one():
            async for chunk in await client.chat.completions.create(messages="stall", stream=True):
                break
        async def main():
            async with asyncio.TaskGroup() as group:
                for _ in range(5):
                    group.create_task(one())
        asyncio.run(main())
    """,
}


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks(HEAD.partition("client =")[0], "-X", "dev", "-W", "error") as forks:
        yield forks


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_ends_without_a_word_on_stderr(
    name: str, server_elsewhere: ChatServer, forks: Forks
) -> None:
    server = server_elsewhere
    stalling = server.when(lambda request: request.last_text == "stall")
    stalling.say("One two three.").stall(after=3)
    lingering = server.when(lambda request: request.last_text == "linger")
    lingering.say("One.").stall(after=5)  # after `[DONE]`
    done = forks.run(HEAD + dedent(SCRIPTS[name]), server.base_url, seconds=30)
    # asyncio's debug mode tells of slow callbacks, which is the machine's affair.
    said = [line for line in done.stderr.splitlines() if not line.startswith("Executing <")]
    assert (done.returncode, said) == (0, [])
