"""A server that goes wrong at random, counts what it is asked, and knows what it must not be asked again.

Not here: checks.
"""

import asyncio
import random
from collections import Counter
from typing import Any

import msgspec
from aiohttp import web

_CHUNK = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"%s"},"finish_reason":%s}]}\n\n'
)


class Faulty:
    """Answers with what it was asked, or goes wrong: a share of `faults` of the time."""

    def __init__(self, seed: int, faults: float) -> None:
        self._rand = random.Random(seed)
        self._faults = faults
        self.requests: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}
        self.is_forbidden: set[str] = set()
        """Prompts whose answer is on record."""
        self.repeated: list[str] = []

    async def serve(self) -> tuple[web.ServerRunner, int]:
        runner = web.ServerRunner(web.Server(self._answer, access_log=None))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, int(runner.addresses[0][1])

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        body: Any = msgspec.json.decode(await request.read())
        prompt = str(body["messages"][-1]["content"])
        self.requests[prompt] += 1
        self.keys.setdefault(prompt, set()).add(request.headers["Idempotency-Key"])
        if prompt in self.is_forbidden:
            self.repeated.append(prompt)
        luck = self._rand.random() / self._faults if self._faults else 1.0
        if luck < 0.3:
            return web.json_response({"error": {"message": "broken"}}, status=500)
        if luck < 0.31:  # rarely: after each of them the client begins slowly again
            headers = {"Retry-After-Ms": "5"}
            return web.json_response({"error": {"message": "slow"}}, status=429, headers=headers)
        if luck < 0.7 and request.transport is not None:
            request.transport.abort()
            raise asyncio.CancelledError  # which aiohttp does not call an error of ours
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        said = b"<%s>" % prompt.encode()
        await response.write(_CHUNK % (said, b"null"))
        if luck < 1.0 and request.transport is not None:
            request.transport.close()
            return response
        await response.write(_CHUNK % (b"", b'"stop"') + b"data: [DONE]\n\n")
        return response
