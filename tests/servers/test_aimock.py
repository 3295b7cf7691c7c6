"""Against a second, independent implementation of the format, written by others in another language.

Needs node and the `@copilotkit/aimock` package, which `.ci/run` installs; skipped where they are missing.
"""

import shutil
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from asyncchat import AsyncChat, RateLimitError, StreamCut, ToolCallDone

HERE = Path(__file__).parent
SERVER = HERE.parents[1] / ".venv/node/node_modules/.bin/llmock"

pytestmark = pytest.mark.aimock


@pytest.fixture(scope="module")
def base_url() -> Iterator[str]:
    node = shutil.which("node")
    if node is None or not SERVER.exists():
        pytest.skip("node or aimock is not installed")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    options = [
        "-p",
        str(port),
        "-f",
        str(HERE / "aimock.json"),
        "--log-level",
        "silent",
        "--strict",
    ]
    command = [node, str(SERVER), *options]
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            wait_for_port(port, process)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        assert process.poll() is None, "aimock ended at once"
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise TimeoutError("aimock did not start")


@pytest.fixture
async def client(base_url: str) -> AsyncIterator[AsyncChat]:
    async with AsyncChat(base_url, "test", "gpt-5", max_retries=0, timeout=20) as made:
        yield made


async def test_text_comes_streamed_and_whole_alike(client: AsyncChat) -> None:
    whole = await client.chat("text")
    streamed = await client.chat.stream("text").final()
    assert whole.text == streamed.text == "A second implementation answers with several words."
    assert whole.finish_reason == streamed.finish_reason == "stop"
    assert streamed.usage is not None
    assert streamed.usage.total_tokens


async def test_reasoning_comes_beside_the_content(client: AsyncChat) -> None:
    streamed = await client.chat.stream("think").final()
    assert streamed.message.reasoning == "Two and two make four."
    assert streamed.text == "Four."


async def test_parallel_tool_calls_come_complete(client: AsyncChat) -> None:
    async with client.chat.stream("tools") as stream:
        done = [event async for event in stream if isinstance(event, ToolCallDone)]
    assert [(call.name, call.arguments) for call in done] == [
        ("weather", '{"city":"Oslo","days":3}'),
        ("clock", "{}"),
    ]
    calls = stream.completion.message.tool_calls or []
    assert [call.id for call in calls] == [call.id for call in done]


async def test_rate_limit_is_told_with_its_code(client: AsyncChat) -> None:
    with pytest.raises(RateLimitError) as caught:
        await client.chat("limit")
    assert caught.value.code == "rate_limit_exceeded"


async def test_truncated_stream_is_a_cut_with_what_had_come(client: AsyncChat) -> None:
    with pytest.raises(StreamCut) as caught:
        await client.chat.stream("cut").final()
    assert caught.value.partial is not None
    assert "This answer never comes to its end".startswith(caught.value.partial.text[:30])
    assert caught.value.partial.text


async def test_stream_ends_at_its_end_mark_though_the_server_holds_the_connection(
    client: AsyncChat,
) -> None:
    for _ in range(3):
        answer = await client.chat.stream("text").final()
        assert answer.timing is not None
        assert answer.timing.total < 3
