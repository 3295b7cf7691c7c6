"""One scenario under way: its clients, what they said, what the server saw of them.

Not here: what a caller does (`callers`), what must come out (`scenarios`, `play`).
"""

import asyncio
import itertools
import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import msgspec

from asyncchat import AsyncChat
from tests.faults.exchange import PROMPT_MARK, SECRET_MARK, TEXT
from tests.faults.server import AUTHORITY, HOST, Ports, State

PROMPT = f"{PROMPT_MARK} please count"
KEY = f"sk-{SECRET_MARK}-0123456789abcdef"

Way = Literal["events", "chunks"]
"""How a stream is read: `chat.stream` under `async with`, or `create(stream=True)` as written for `AsyncOpenAI`."""

Each = Callable[[int], Awaitable[None]]

_SETTLE_SECONDS = (
    1.0  # for what goes on in the server and in the kernel; the client itself gets no time at all
)
_numbers = itertools.count()


class Run:
    """A scenario under way, in one of the two ways to read a stream."""

    def __init__(
        self,
        ports: Ports,
        behaviour: str,
        *,
        port: str = "http",
        host: str = HOST,
        options: dict[str, Any] | None = None,
        trusts_authority: bool = False,
        way: Way = "events",
    ) -> None:
        self.name = f"{os.getpid()}-{next(_numbers)}"
        self.ports = ports
        self.way = way
        scheme = "https" if port.startswith("tls") else "http"
        number: int = getattr(ports, port)
        self.base_url = f"{scheme}://{host}:{number}/s/{behaviour}/{self.name}/v1"
        self.parts: list[str] = []
        self.clients: list[AsyncChat] = []
        self.kept: list[object] = []
        """What a caller goes on holding."""
        self._options = {"api_key": KEY, "model": "m", **(options or {})}
        if trusts_authority:
            self._options["ssl_context"] = ssl.create_default_context(cafile=AUTHORITY)
        self._tasks = asyncio.all_tasks()

    # ---------------------------------------------------------------------------------- the client

    def make(self, **changes: object) -> AsyncChat:
        """Make a client, which is closed with the run."""
        self.clients.append(AsyncChat(self.base_url, **{**self._options, **changes}))
        return self.clients[-1]

    @property
    def client(self) -> AsyncChat:
        """The client, made when it is first asked for."""
        return self.clients[-1] if self.clients else self.make()

    @property
    def text(self) -> str:
        """What the caller got."""
        return "".join(self.parts)

    async def read(
        self,
        into: list[str] | None = None,
        *,
        model: str | None = None,
        prompt: str = PROMPT,
        each: Each | None = None,
    ) -> None:
        """Read a stream to its end; `each` is awaited after each piece, with their number."""
        parts = self.parts if into is None else into
        if self.way == "events":
            async with self.client.chat.stream(prompt, model=model) as stream:
                async for text in stream.text():
                    parts.append(text)
                    if each is not None:
                        await each(len(parts))
            assert stream.completion.text == "".join(parts)
        else:
            async for chunk in await self.create(model=model, prompt=prompt):
                if chunk.choices and chunk.choices[0].delta.content:
                    parts.append(chunk.choices[0].delta.content)
                    if each is not None:
                        await each(len(parts))

    async def create(self, *, model: str | None = None, prompt: str = PROMPT) -> Any:
        """Open a stream by OpenAI's names."""
        messages = [{"role": "user", "content": prompt}]
        return await self.client.chat.completions.create(
            messages=messages, stream=True, model=model
        )

    async def read_two(self) -> object:
        """Open a stream and leave it after two pieces without closing it; return it."""
        stream = await self.create()
        count = 0
        async for _ in stream:
            count += 1
            if count == 2:
                break
        return stream

    async def probe(self, count: int = 1) -> None:
        """Whether the client is as good as new: so many good calls at once, each in time."""
        texts: list[list[str]] = [[] for _ in range(count)]
        async with asyncio.timeout(3), asyncio.TaskGroup() as group:
            for text in texts:
                group.create_task(self.read(text, model="fault:ok_stream"))
        assert ["".join(text) for text in texts] == [TEXT] * count

    # ------------------------------------------------------------------------------------ the state

    async def state(self) -> State:
        """Ask the server what it saw."""
        reader, writer = await asyncio.open_connection(HOST, self.ports.control)
        writer.write(f"{self.name}\n".encode())
        state = msgspec.json.decode(await reader.read(), type=State)
        writer.close()
        await writer.wait_closed()
        return state

    async def until_requested(self, count: int) -> None:
        """Wait until the server has so many requests of this run."""

        async def have_come() -> bool:
            return len((await self.state()).requests) >= count

        await _soon(have_come, "the request did not come")

    async def assert_nothing_is_left(self) -> None:
        """No place taken and nobody in line, now; no task, and no exchange that goes on, in a moment."""
        for client in self.clients:
            statistics = client.statistics()
            assert (statistics.in_flight, statistics.waiting) == (0, 0)
        await _soon(self._tasks_are_over, "tasks are left")
        await _soon(self._server_is_idle, "the server still answers somebody")

    async def _tasks_are_over(self) -> bool:
        return not (asyncio.all_tasks() - self._tasks - {asyncio.current_task()})

    async def _server_is_idle(self) -> bool:
        return not (await self.state()).answering

    async def close(self, sockets: int) -> None:
        """Close the clients, and see that no more sockets are open than there were."""
        for client in self.clients:
            await client.close()

        async def are_closed() -> bool:
            return open_sockets() <= sockets

        await _soon(are_closed, "sockets are left")


async def _soon(holds: Callable[[], Awaitable[bool]], complaint: str) -> None:
    end = asyncio.get_running_loop().time() + _SETTLE_SECONDS
    while not await holds():
        assert asyncio.get_running_loop().time() < end, complaint
        await asyncio.sleep(0.01)


def open_sockets() -> int:
    """How many sockets this process has open."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:  # the listing's own
            continue
    return count
