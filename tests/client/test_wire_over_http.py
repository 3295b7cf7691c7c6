"""What servers really send, through the real client over HTTP: the same cases as `tests/protocol/test_wire.py`."""

from typing import Any

import pytest

from asyncchat import APIStatusError, AsyncChat, AsyncChatError, Chunk, Completion
from asyncchat.errors import RateLimit
from asyncchat.testing import ChatServer
from tests.client.conftest import assert_nothing_is_left
from tests.wire import WireCase, check, check_error, cut, same_text, wire_cases

CASES = wire_cases()


def whole(case: WireCase) -> bool:
    """Whether a request that is not streamed gets this body: it says so, or the body is JSON."""
    return case.request.get("stream") is False or case.body.lstrip()[:1] in (b"{", b"[")


every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
whole_case = pytest.mark.parametrize("case", [c for c in CASES if whole(c)], ids=lambda c: c.name)


def serve(server: ChatServer, case: WireCase) -> None:
    pieces = cut(case.body, case.split_at) if case.body else []
    server.raw(*pieces).status(case.status).headers(case.headers).headers(
        {"Content-Type": case.headers.get("content-type", "text/event-stream")}
    )


def request_of(case: WireCase) -> dict[str, Any]:
    return {"n": case.request["n"]} if "n" in case.request else {}


async def judge(
    case: WireCase, completion: Completion | None, error: AsyncChatError | None
) -> None:
    check(case.expect, completion, error)
    if case.status != 200:
        assert isinstance(error, APIStatusError)
        assert error.status_code == case.status


@every_case
async def test_case_reads_as_events(case: WireCase, server: ChatServer, client: AsyncChat) -> None:
    serve(server, case)
    completion, error = None, None
    try:
        async with client.chat.stream("a", **request_of(case)) as stream:
            async for _ in stream:
                pass
        completion = stream.completion
    except AsyncChatError as caught:
        error = caught
    await judge(case, completion, error)
    await assert_nothing_is_left(client, server)


@every_case
async def test_case_reads_to_its_end(
    case: WireCase, server: ChatServer, client: AsyncChat
) -> None:
    serve(server, case)
    completion, error = None, None
    try:
        completion = await client.chat.stream("a", **request_of(case)).final()
    except AsyncChatError as caught:
        error = caught
    await judge(case, completion, error)
    await assert_nothing_is_left(client, server)


@every_case
async def test_case_reads_as_chunks(case: WireCase, server: ChatServer, client: AsyncChat) -> None:
    serve(server, case)
    completion, error, chunks = None, None, list[Chunk]()
    try:
        stream = await client.chat.completions.create(
            messages="a", stream=True, **request_of(case)
        )
        async for chunk in stream:
            chunks.append(chunk)
        completion = stream.completion
    except AsyncChatError as caught:
        error = caught
    await judge(case, completion, error)
    told = completion if error is None else error.partial
    if told is not None and "204" not in case.name:  # which says everything twice; chunks show it
        said = "".join(
            choice.delta.content or ""
            for chunk in chunks
            for choice in chunk.choices
            if not choice.index
        )
        assert same_text(said, told.message.content)
    await assert_nothing_is_left(client, server)


@whole_case
async def test_case_reads_as_one_answer(
    case: WireCase, server: ChatServer, client: AsyncChat
) -> None:
    serve(server, case)
    completion, error = None, None
    try:
        completion = await client.chat("a", **request_of(case))
    except AsyncChatError as caught:
        error = caught
    await judge(case, completion, error)
    await assert_nothing_is_left(client, server)


async def test_limits_that_a_server_reports_are_on_the_error(
    server: ChatServer, client: AsyncChat
) -> None:
    (case,) = (case for case in CASES if case.name.startswith("719"))
    serve(server, case)
    with pytest.raises(APIStatusError) as caught:
        await client.chat("a")
    check_error(case.expect, caught.value)
    assert caught.value.rate_limits == {
        "requests": RateLimit(60, 0, 62.5),
        "tokens": RateLimit(150000, 149000, 0.006),
    }


def test_cases_are_there() -> None:
    assert len(CASES) == 82
    assert sum(case.status != 200 for case in CASES) >= 5
    assert sum(map(whole, CASES)) >= 7
