"""The programs that are compared on a batch job, each written the way its users write; one of them in a process of its own.

Every one reads a file of OpenAI batch lines, asks a server for each, at most so many at once, and writes a file (or a folder of files)
with one JSON line per input, which has its `custom_id` and the text of the answer.

Not here: measuring, judging. Run in an environment of its own, which may lack everything but what the peer needs: so third parties are
imported where they are used, and JSON is the standard library's.
"""

import asyncio
import gc
import importlib
import importlib.util
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, TextIO


@dataclass(frozen=True)
class Job:
    """One batch: `lines` inputs in the file `source`; answers go to `target`, a path that does not exist."""

    base_url: str
    source: str
    target: str
    lines: int
    at_once: int
    stream: bool


@dataclass(frozen=True)
class Spent:
    """What a job took: seconds and bytes, of this process alone."""

    cpu: float
    wall: float
    memory: int
    cores: list[int]  # it may run on; none where the system does not say
    versions: dict[str, str]


class Peer:
    """One program. `__init__` does what comes before the first request of its life, `run` the job."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def run(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """What comes after the job, and is not measured."""


def _lines(path: str) -> list[dict[str, Any]]:
    with Path(path).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


# ------------------------------------------------------------------------------------------ by hand


class ByHand(Peer):
    """aiohttp and msgspec for one honest server: as many workers as requests at once, answers written as they come, nothing else.

    No retry, no limit, no resume, no record that outlives a crash.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import msgspec

        from benchmarks import peers

        class Line(msgspec.Struct):
            custom_id: str
            body: msgspec.Raw

        self._line = msgspec.json.Decoder(Line).decode
        self._completion = msgspec.json.Decoder(peers.Completion).decode
        self._chunk = msgspec.json.Decoder(peers.Chunk).decode
        self._encode = msgspec.json.Encoder().encode

    def run(self) -> None:
        with (
            Path(self.job.source).open("rb") as source,
            Path(self.job.target).open("wb") as target,
        ):
            asyncio.run(self._answer(source, target))

    async def _answer(self, source: BinaryIO, target: BinaryIO) -> None:
        import aiohttp

        job = self.job
        url = f"{job.base_url}/chat/completions"
        headers = {"content-type": "application/json", "authorization": "Bearer k"}
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), cookie_jar=aiohttp.DummyCookieJar()
        )

        async def plain() -> None:
            for text in source:
                line = self._line(text)
                async with session.post(url, data=bytes(line.body), headers=headers) as answer:
                    answer.raise_for_status()
                    body = await answer.read()
                self._completion(body)
                name = self._encode(line.custom_id)
                target.write(b'{"custom_id":%b,"response":%b}\n' % (name, body))

        async def streamed() -> None:
            for text in source:
                line = self._line(text)
                # The last brace makes way for what a stream needs.
                asked = bytes(line.body).rstrip()[:-1]
                asked += b',"stream":true,"stream_options":{"include_usage":true}}'
                async with session.post(url, data=asked, headers=headers) as answer:
                    answer.raise_for_status()
                    got = await self._read(answer.content.iter_any())
                row = {"custom_id": line.custom_id, "text": got}
                target.write(self._encode(row) + b"\n")

        work = streamed if job.stream else plain
        async with session:
            await asyncio.gather(*(work() for _ in range(job.at_once)))

    async def _read(self, reads: Any) -> str:
        pieces: list[str] = []
        tail = b""
        async for data in reads:
            *frames, tail = (tail + data if tail else data).split(b"\n\n")
            for frame in frames:
                payload = frame[6:]
                if payload == b"[DONE]":
                    break
                chunk = self._chunk(payload)
                if chunk.choices:
                    piece = chunk.choices[0].delta.content
                    if piece:
                        pieces.append(piece)
        return "".join(pieces)


# --------------------------------------------------------------------------------------- asyncchat


class Asyncchat(Peer):
    """`client.batch` as it comes: its records, each on disk before it is given out, are the file of answers."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        from asyncchat import AsyncChat
        from asyncchat.batch.source import open_source

        self._client = AsyncChat(job.base_url, "k", "m")
        self._batch = self._client.batch(job.target, concurrency=job.at_once, stream=job.stream)
        self._source = open_source(job.source)

    def run(self) -> None:
        asyncio.run(self._answer())

    async def _answer(self) -> None:
        async with self._client, self._batch as batch:
            async for record in batch.run(self._source):
                len(record.text)  # whoever runs a batch looks at what it gives


class AsyncchatRare(Asyncchat):
    """The same in a program that lets Python's collector of cycles look seldom, as docs/explanation/speed.md says."""

    def run(self) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(10_000, 50, 100)
        super().run()


_OF_THE_COMMAND = (  # which it imports when it runs
    "asyncchat.cli.batch",
    "asyncchat.cli.batch_run",
    "asyncchat.client.client",
    "asyncchat.batch.engine",
    "asyncchat.batch.summary",
    "rich.console",
)


class AsyncchatCommand(Peer):
    """`asyncchat batch run`: the same with the command line, progress, the file of answers and the report."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        os.environ["OPENAI_API_KEY"] = "k"
        from asyncchat.cli import main

        for module in _OF_THE_COMMAND:
            importlib.import_module(module)

        self._main = main

    def run(self) -> None:
        job = self.job
        stream = "--stream" if job.stream else "--no-stream"
        arguments = ["--base-url", job.base_url, "--model", "m", "--concurrency", str(job.at_once)]
        code = self._main(["batch", "run", job.source, job.target, stream, *arguments])
        if code:
            raise RuntimeError(f"asyncchat batch run ended with {code}")


# ------------------------------------------------------------------------------------ openai, litellm


class _Gathered(Peer):
    """A semaphore and `gather`, as most scripts have it."""

    def run(self) -> None:
        with Path(self.job.target).open("w", encoding="utf-8") as target:
            asyncio.run(self.answer(target))

    async def answer(self, target: TextIO) -> None:
        semaphore = asyncio.Semaphore(self.job.at_once)

        async def one(line: dict[str, Any]) -> None:
            async with semaphore:
                text = await self.ask(line["body"])
            row = {"custom_id": line["custom_id"], "text": text}
            target.write(json.dumps(row) + "\n")

        await asyncio.gather(
            *(one(line) for line in _lines(self.job.source)), return_exceptions=True
        )

    async def ask(self, body: dict[str, Any]) -> str:
        call = self.call()
        if not self.job.stream:
            return (await call(**body)).choices[0].message.content
        usage = {"include_usage": True}
        stream = await call(**body, stream=True, stream_options=usage)
        return "".join(
            [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        )

    def call(self) -> Callable[..., Any]:
        raise NotImplementedError


class Openai(_Gathered):
    """AsyncOpenAI as it comes."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import openai

        self._client = openai.AsyncOpenAI(base_url=job.base_url, api_key="k")

    def call(self) -> Callable[..., Any]:
        return self._client.chat.completions.create


class OpenaiAiohttp(_Gathered):
    """AsyncOpenAI on its aiohttp transport, which has to be made inside the loop."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        import openai

        self._openai = openai

    async def answer(self, target: TextIO) -> None:
        http = self._openai.DefaultAioHttpClient()
        async with self._openai.AsyncOpenAI(
            base_url=self.job.base_url, api_key="k", http_client=http
        ) as self._client:
            await super().answer(target)

    def call(self) -> Callable[..., Any]:
        return self._client.chat.completions.create


class Litellm(_Gathered):
    """`litellm.acompletion`."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it fetches a price list
        import litellm

        litellm.suppress_debug_info = True
        self._litellm = litellm

    def call(self) -> Callable[..., Any]:
        def complete(model: str, **body: Any) -> Any:
            return self._litellm.acompletion(
                model=f"openai/{model}", api_base=self.job.base_url, api_key="k", **body
            )

        return complete


# ----------------------------------------------------------------------------------------- curator


class Curator(Peer):
    """`curator.LLM` with its limits out of the way; it has no streams."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        home = Path(job.target).with_suffix(".curator")
        litellm = importlib.util.find_spec("litellm")
        assert litellm is not None
        assert litellm.origin is not None
        tokens = Path(litellm.origin).parent / "litellm_core_utils" / "tokenizers"
        os.environ |= {
            "CURATOR_CACHE_DIR": str(home),
            "HF_HOME": str(home),
            "TIKTOKEN_CACHE_DIR": str(tokens),  # else it fetches a tokenizer
            "CURATOR_DISABLE_RICH_DISPLAY": "1",
            "TELEMETRY_ENABLED": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "OPENAI_API_KEY": "k",
        }
        from bespokelabs import curator

        class Asker(curator.LLM):
            def prompt(self, row: dict[str, Any]) -> list[dict[str, str]]:
                return row["messages"]

            def parse(self, row: dict[str, Any], response: str) -> dict[str, str]:
                return {"custom_id": row["custom_id"], "text": response}

        self._ask = Asker(
            # A model it knows: of another it expects answers of 4,096 tokens, and waits.
            model_name="gpt-4o-mini",
            backend="openai",
            backend_params={
                "base_url": job.base_url,
                "max_requests_per_minute": 10**7,
                "max_tokens_per_minute": 10**11,
                "max_concurrent_requests": job.at_once,
            },
        )

    def run(self) -> None:
        rows = [
            {"custom_id": line["custom_id"], "messages": line["body"]["messages"]}
            for line in _lines(self.job.source)
        ]
        self._ask(rows).dataset.to_json(self.job.target)


# --------------------------------------------------------------------------------------------- ray


class _OnRay(Peer):
    """A cluster on this machine: four workers and what they need beside them."""

    WORKERS = 4
    # One keeps up with either. Each takes more than a second of CPU before its first row, for imports.
    WRITERS = 1

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DEDUP_LOGS": "1"}
        import ray
        import ray.data

        self._home = tempfile.TemporaryDirectory(prefix="r", ignore_cleanup_errors=True)
        ray.init(
            address="local",
            num_cpus=self.WORKERS + 2,
            include_dashboard=False,
            object_store_memory=100 << 20,
            log_to_driver=False,
            _temp_dir=self._home.name,
        )
        ray.data.DataContext.get_current().enable_progress_bars = False
        self.ray = ray

    def close(self) -> None:
        self.ray.shutdown()
        self._home.cleanup()


class RayHttp(_OnRay):
    """Ray's own processor for HTTP servers; it has no streams."""

    def run(self) -> None:
        from ray.data.llm import HttpRequestProcessorConfig, build_processor

        processor = build_processor(
            HttpRequestProcessorConfig(
                url=f"{self.job.base_url}/chat/completions",
                headers={"Authorization": "Bearer k"},
                concurrency=(self.WORKERS, self.WORKERS),  # a number would begin with one
            ),
            preprocess=lambda row: {"custom_id": row["custom_id"], "payload": row["body"]},
            postprocess=lambda row: {
                "custom_id": row["custom_id"],
                "text": row["http_response"]["choices"][0]["message"]["content"],
            },
        )
        # Blocks of a batch: else there are fewer blocks than workers.
        blocks = max(self.WORKERS, self.job.lines // 64)
        data = self.ray.data.from_items(_lines(self.job.source), override_num_blocks=blocks)
        processor(data).write_json(self.job.target, concurrency=self.WRITERS)


class RayBridge(_OnRay):
    """`asyncchat.bridges.ray` on the same cluster; its journal is on.

    Two workers, as its page says: each has hundreds of requests in flight.
    """

    def run(self) -> None:
        from asyncchat.bridges import ray

        os.environ["OPENAI_API_KEY"] = "k"
        job = self.job
        # Of two batches: each block is a task of a worker and one of the writer.
        blocks = max(self.WORKERS, job.lines // 512)
        data = self.ray.data.from_items(_lines(job.source), override_num_blocks=blocks)
        ray.run(
            data,
            journal=f"{job.target}.job",
            model="m",
            base_url=job.base_url,
            workers=2,
            concurrency=job.at_once,
            stream=job.stream,
        ).write_json(job.target, concurrency=self.WRITERS)


# ----------------------------------------------------------------------------------------- the child


PEERS: dict[str, type[Peer]] = {
    "msgspec": ByHand,
    "asyncchat": Asyncchat,
    "asyncchat-rare": AsyncchatRare,
    "asyncchat-command": AsyncchatCommand,
    "openai": Openai,
    "openai-aiohttp": OpenaiAiohttp,
    "litellm": Litellm,
    "curator": Curator,
    "ray": RayHttp,
    "ray-bridge": RayBridge,
}
_PACKAGES = ("aiohttp", "openai", "litellm", "bespokelabs-curator", "ray", "pyarrow", "pydantic")


def _most_memory() -> int:
    """Not `ru_maxrss` where there is better: that one survives exec, and tells the size of the parent."""
    status = Path("/proc/self/status")
    if status.exists():
        text = status.read_text(encoding="ascii")
        return int(text.partition("VmHWM:")[2].split()[0]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split(maxsplit=1)[0]}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    """Prepare, say so, wait for a line, run, say what it took, wait for the end of stdin."""
    name, core, told = sys.argv[1:]
    if core != "any":
        os.sched_setaffinity(0, {int(core)})
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # a peer that prints disturbs nobody
    peer = PEERS[name](Job(**json.loads(told)))
    print(json.dumps({"cpu": time.process_time()}), file=answers, flush=True)
    sys.stdin.readline()
    cpu, start = time.process_time(), time.perf_counter()
    peer.run()
    wall = time.perf_counter() - start
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    spent = Spent(time.process_time() - cpu, wall, _most_memory(), cores, _versions())
    print(json.dumps(asdict(spent)), file=answers, flush=True)
    sys.stdin.readline()
    peer.close()


if __name__ == "__main__":
    main()
