"""The clients that are compared, each written the way its users write.

Not here: measuring. Every call returns the number of characters of text that it saw (bytes, where nothing is parsed), so that
nobody is fast by leaving something out. A peer lives in one event loop and speaks to one base URL; its connections stay open.
"""

import asyncio
import importlib.util
from collections.abc import Callable
from typing import Protocol

import aiohttp
import msgspec

QUESTION = "Name three moons."
_JSON = {"content-type": "application/json", "authorization": "Bearer k"}


class Peer(Protocol):
    """One client at one base URL. A peer may lack any of the calls."""

    async def events(self) -> int: ...  # a stream, looked at event by event
    async def text(self) -> int: ...  # a stream, as pieces of text
    async def final(self) -> int: ...  # a stream, as one answer at its end
    async def request(self) -> int: ...  # one answer, not streamed
    async def close(self) -> None: ...


# ------------------------------------------------------------------------------------------- floor


class _Counter(asyncio.Protocol):
    """Counts bytes until the last chunk, or until a body of known length is whole."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: asyncio.Transport = transport

    def ask(self, request: bytes, end: bytes) -> "asyncio.Future[int]":
        self.end = end
        self.count = 0
        self.answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self.answered

    def data_received(self, data: bytes) -> None:
        self.count += len(data)
        if data.endswith(self.end):
            self.answered.set_result(self.count)


class Floor:
    """A bare `asyncio.Protocol` that counts bytes: what the event loop alone costs."""

    def __init__(self, base_url: str) -> None:
        scheme, _, rest = base_url.partition("://")
        assert scheme == "http"
        address, _, path = rest.partition("/")
        host, _, port = address.partition(":")
        self._address = (host, int(port))
        body = msgspec.json.encode(_body(stream=True))
        head = f"POST /{path}/chat/completions HTTP/1.1\r\nhost: {address}\r\n"
        lines = [f"{name}: {value}\r\n" for name, value in _JSON.items()]
        length = f"content-length: {len(body)}\r\n\r\n"
        self._request = (head + "".join(lines) + length).encode() + body
        self._idle: list[_Counter] = []

    async def _ask(self, end: bytes) -> int:
        if self._idle:
            connection = self._idle.pop()
        else:
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Counter, *self._address)
        count = await connection.ask(self._request, end)
        self._idle.append(connection)
        return count

    async def events(self) -> int:
        return await self._ask(b"\r\n0\r\n\r\n")

    async def request(self) -> int:
        return await self._ask(b"}")

    async def close(self) -> None:
        for connection in self._idle:
            connection.transport.close()


# ----------------------------------------------------------------------------------------- aiohttp


def _body(*, stream: bool) -> dict[str, object]:
    body: dict[str, object] = {"model": "m", "messages": [{"role": "user", "content": QUESTION}]}
    return body | {"stream": True, "stream_options": {"include_usage": True}} if stream else body


class BareAiohttp:
    """aiohttp that reads the body and parses nothing."""

    def __init__(self, base_url: str) -> None:
        self._url = f"{base_url}/chat/completions"
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
        )

    def _post(self, *, stream: bool) -> "aiohttp.client._RequestContextManager":
        body = msgspec.json.encode(_body(stream=stream))
        return self._session.post(self._url, data=body, headers=_JSON)

    async def events(self) -> int:
        count = 0
        async with self._post(stream=True) as response:
            async for data in response.content.iter_any():
                count += len(data)
        return count

    async def request(self) -> int:
        async with self._post(stream=False) as response:
            return len(await response.read())

    async def close(self) -> None:
        await self._session.close()


class Delta(msgspec.Struct):
    role: str | None = None
    content: str | None = None


class ChunkChoice(msgspec.Struct):
    index: int
    delta: Delta
    finish_reason: str | None = None


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Chunk(msgspec.Struct):
    """What a hand-written loop declares of an event."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: Usage | None = None


class Message(msgspec.Struct):
    role: str
    content: str | None = None


class Choice(msgspec.Struct):
    index: int
    message: Message
    finish_reason: str | None = None


class Completion(msgspec.Struct):
    """What a hand-written loop declares of an answer."""

    id: str
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class HandWritten(BareAiohttp):
    """The loop that a careful programmer writes on aiohttp and msgspec for one honest server, and no more."""

    _chunk = msgspec.json.Decoder(Chunk)
    _completion = msgspec.json.Decoder(Completion)

    async def events(self) -> int:
        decode = self._chunk.decode
        pieces: list[str] = []
        tail = b""
        async with self._post(stream=True) as response:
            response.raise_for_status()
            async for data in response.content.iter_any():
                *frames, tail = (tail + data if tail else data).split(b"\n\n")
                for frame in frames:
                    payload = frame[6:]
                    if payload == b"[DONE]":
                        break
                    chunk = decode(payload)
                    if chunk.choices:
                        piece = chunk.choices[0].delta.content
                        if piece:
                            pieces.append(piece)
        return len("".join(pieces))

    text = final = events

    async def request(self) -> int:
        async with self._post(stream=False) as response:
            response.raise_for_status()
            answer = self._completion.decode(await response.read())
        return len(answer.choices[0].message.content or "")


# --------------------------------------------------------------------------------------- asyncchat


class Asyncchat:
    """The client of this repository."""

    def __init__(self, base_url: str) -> None:
        from asyncchat import AsyncChat

        self._client = AsyncChat(base_url=base_url, api_key="k", model="m")

    async def events(self) -> int:
        count = 0
        async with self._client.chat.stream(QUESTION) as stream:
            async for event in stream:
                if event.type == "content.delta":
                    count += len(event.delta)
        return count

    async def text(self) -> int:
        count = 0
        async with self._client.chat.stream(QUESTION) as stream:
            async for piece in stream.text():
                count += len(piece)
        return count

    async def final(self) -> int:
        return len((await self._client.chat.stream(QUESTION).final()).text)

    async def request(self) -> int:
        return len((await self._client.chat(QUESTION)).text)

    async def close(self) -> None:
        await self._client.close()


# ------------------------------------------------------------------------------------------ openai


class Openai:
    """AsyncOpenAI as it comes."""

    def __init__(self, base_url: str) -> None:
        import openai

        self._client = openai.AsyncOpenAI(
            base_url=base_url, api_key="k", http_client=self._transport()
        )
        self._messages = [{"role": "user", "content": QUESTION}]

    def _transport(self) -> object:
        return None

    async def events(self) -> int:
        count = 0
        stream = await self._client.chat.completions.create(
            model="m",
            messages=self._messages,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in stream:
            if chunk.choices:
                count += len(chunk.choices[0].delta.content or "")
        return count

    async def text(self) -> int:
        """The helper that makes events of chunks and gathers the answer on the way."""
        count = 0
        async with self._stream() as stream:
            async for event in stream:
                if event.type == "content.delta":
                    count += len(event.delta)
        return count

    async def final(self) -> int:
        async with self._stream() as stream:
            answer = await stream.get_final_completion()
        return len(answer.choices[0].message.content)

    def _stream(self) -> object:
        return self._client.chat.completions.stream(
            model="m", messages=self._messages, stream_options={"include_usage": True}
        )

    async def request(self) -> int:
        answer = await self._client.chat.completions.create(model="m", messages=self._messages)
        return len(answer.choices[0].message.content)

    async def close(self) -> None:
        await self._client.close()


class OpenaiAiohttp(Openai):
    """AsyncOpenAI on its aiohttp transport."""

    def _transport(self) -> object:
        import openai

        return openai.DefaultAioHttpClient()


PEERS: dict[str, Callable[[str], Peer]] = {
    "floor": Floor,
    "aiohttp": BareAiohttp,
    "msgspec": HandWritten,
    "asyncchat": Asyncchat,
    "openai": Openai,
    "openai-aiohttp": OpenaiAiohttp,
}
LABELS = {
    "floor": "floor (counts bytes)",
    "aiohttp": "bare aiohttp",
    "msgspec": "aiohttp + msgspec",
    "asyncchat": "asyncchat",
    "openai": "openai",
    "openai-aiohttp": "openai[aiohttp]",
}


def usable(name: str) -> bool:
    """Whether a peer is installed here."""
    if name.startswith("asyncchat"):
        return hasattr(importlib.import_module("asyncchat"), "AsyncChat")
    needs = {
        "openai": ["openai"],
        "openai-aiohttp": ["openai", "openai._vendor.httpx_aiohttp"],
        "ray-bridge": ["asyncchat.bridges.ray"],
    }
    try:
        return all(importlib.util.find_spec(module) for module in needs.get(name, ()))
    except ModuleNotFoundError:
        return False
