"""A server in a thread that answers at once and counts: every item, and how many came in any minute, by its own clock."""

import asyncio
import threading
import time
from collections import Counter, deque
from types import TracebackType
from typing import Self

import msgspec


class _Message(msgspec.Struct):
    content: str = ""


class _Request(msgspec.Struct):
    messages: list[_Message] = []


class Counting:
    """Answers `you said: ...` in one piece, after `latency` seconds. Runs beside whatever a test does.

    Over `rpm` in a sliding minute it says 429 with the wait that is enough.
    """

    def __init__(self, latency: float = 0.0, rpm: int | None = None) -> None:
        self.latency = latency
        self.rpm = rpm
        self.asked: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.refused = 0
        self.keys: set[str] = set()
        self.most_in_a_minute = self.in_flight = self.most_in_flight = 0
        self._minute: deque[float] = deque()
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self.base_url = ""

    @property
    def requests(self) -> int:
        """How many there were."""
        return sum(self.asked.values())

    def wait_for(self, answers: int, seconds: float = 60.0) -> None:
        """Wait until so many were answered."""
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(self.answered.values()) >= answers, timeout=seconds
            ), f"only {sum(self.answered.values())} answers"

    def __enter__(self) -> Self:
        with self._changed:
            self._thread.start()
            assert self._changed.wait_for(lambda: self.base_url, timeout=10)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._loop is not None
        assert self._end is not None
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join(10)

    async def _serve(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        port = server.sockets[0].getsockname()[1]
        with self._changed:
            self.base_url = f"http://127.0.0.1:{port}/v1"
            self._changed.notify_all()
        await self._end.wait()
        server.close()
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
            await asyncio.wait([task])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                fields = dict(
                    line.lower().split(": ", 1)
                    for line in head.decode().split("\r\n")
                    if ": " in line
                )
                body = await reader.readexactly(int(fields["content-length"]))
                self.keys.add(fields.get("authorization", ""))
                writer.write(await self._answer(body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except asyncio.CancelledError:
            pass
        finally:
            writer.close()

    async def _answer(self, body: bytes) -> bytes:
        said = msgspec.json.decode(body, type=_Request).messages[-1].content
        self.asked[said] += 1
        now = time.monotonic()
        while self._minute and self._minute[0] <= now - 60.0:
            self._minute.popleft()
        if self.rpm is not None and len(self._minute) >= self.rpm:
            self.refused += 1
            wait = self._minute[0] + 60.0 - now
            return _response(429, b'{"error":{"message":"slow"}}', b"Retry-After: %.2f\r\n" % wait)
        self._minute.append(now)
        self.most_in_a_minute = max(self.most_in_a_minute, len(self._minute))
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        try:
            if said.startswith("refuse"):
                return _response(400, b'{"error":{"message":"no"}}')
            await asyncio.sleep(self.latency)
        finally:
            self.in_flight -= 1
        with self._changed:
            self.answered[said] += 1
            self._changed.notify_all()
        answer = {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "m",
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": f"you said: {said}"},
                    "finish_reason": "stop",
                }
            ],
            "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
        }
        return _response(200, msgspec.json.encode(answer))


def _response(status: int, body: bytes, more: bytes = b"") -> bytes:
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%bContent-Length: %d\r\n\r\n"
    return head % (status, more, len(body)) + body
