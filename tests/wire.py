"""Recorded bodies and what a careful user wants of them: loading, cutting, comparing.

Not here: tests. A case is a folder with `stream.sse` (the body's bytes), `expect.json`, `case.json` and perhaps
`response.json` (status, headers, where reads end).
"""

import gzip
import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from asyncchat.errors import APIError, AsyncChatError, ProtocolError, RateLimitError, StreamCut
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.response import Choice, Completion

RECORDINGS = Path(__file__).parent / "recordings"
EVERY_PLACE = bool(os.environ.get("ASYNCCHAT_EVERY_PLACE"))
"""Whether bodies are cut in two at every place, as `make test-slow` does, and not at every third."""


class WireCase(NamedTuple):
    """One case of `recordings/wire`."""

    name: str
    body: bytes
    expect: dict[str, Any]
    request: dict[str, Any]
    status: int
    headers: dict[str, str]
    split_at: list[int]


def wire_cases() -> list[WireCase]:
    """Every case, in order of its number."""
    return [_wire_case(folder) for folder in sorted((RECORDINGS / "wire").iterdir())]


def _wire_case(folder: Path) -> WireCase:
    case, expect = (
        json.loads((folder / f"{name}.json").read_text()) for name in ("case", "expect")
    )
    path = folder / "response.json"
    response = json.loads(path.read_text()) if path.exists() else {}
    headers = response.get("headers", {"content-type": "text/event-stream"})
    return WireCase(
        folder.name,
        (folder / "stream.sse").read_bytes(),
        expect,
        case.get("request", {}),
        response.get("status", 200),
        headers,
        response.get("split_at", []),
    )


def plain_body(case: WireCase) -> bytes:
    """The body without transfer encodings, which are the transport's business."""
    return gzip.decompress(case.body) if "content-encoding" in case.headers else case.body


def cut(body: bytes, at: Iterable[int]) -> list[bytes]:
    """The body in pieces that end at the given offsets."""
    ends = [*sorted({i for i in at if 0 < i < len(body)}), len(body)]
    return [body[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def places(body: bytes) -> list[int]:
    """Where to cut a body in two: at every third byte, and on each side of each byte of a line end."""
    step = 1 if EVERY_PLACE else 3
    ends = {at + side for at, byte in enumerate(body) if byte in b"\r\n" for side in (0, 1)}
    return sorted(ends.union(range(1, len(body), step)) - {0, len(body)})


def read(
    pieces: Iterable[bytes], **options: Any
) -> tuple[AnswerReader, Completion | None, AsyncChatError | None]:
    """Read an answer; return the reader, the completion, and the error where there is one."""
    reader = AnswerReader(**options)
    for piece in pieces:
        reader.feed(piece)
    try:
        return reader, reader.finish(), None
    except AsyncChatError as error:
        return reader, error.partial, error


def same_text(one: str | None, other: str | None) -> bool:
    return (one or None) == (other or None)


def check(
    expect: dict[str, Any], completion: Completion | None, error: AsyncChatError | None
) -> None:
    """Compare what came out with an `expect.json`."""
    if expect["outcome"] == "error":
        check_error(expect, error)
        return
    assert error is None, repr(error)
    assert completion is not None
    assert len(completion.choices) == expect["choices"]
    check_choice(expect, completion.choices[0])
    for wanted, got in zip(expect.get("all_choices", []), completion.choices, strict=False):
        assert got.index == wanted["index"]
        check_choice(wanted, got)
    check_usage(expect, completion)
    check_extras(expect, completion)


def check_choice(expect: dict[str, Any], choice: Choice) -> None:
    wanted, message = expect["message"], choice.message
    assert message.role == wanted.get("role", "assistant")
    assert same_text(message.content, wanted["content"])
    assert same_text(message.reasoning_content, wanted["reasoning"])
    assert message.reasoning == message.reasoning_content
    assert same_text(message.refusal, wanted["refusal"])
    check_calls(expect, wanted["tool_calls"], choice)
    assert (choice.finish_reason or None) == expect["finish_reason"]
    if "logprobs" in expect:
        assert choice.logprobs is not None
        got = [(t.token, t.logprob) for t in choice.logprobs.content or []]
        assert len(got) == len(expect["logprobs"]["content"])
        for (token, logprob), want in zip(got, expect["logprobs"]["content"], strict=True):
            assert token == want["token"]
            if want["logprob"] is None:
                assert logprob is None or not math.isfinite(logprob)
            else:
                assert logprob == want["logprob"]
    if "function_call" in expect:
        assert message.function_call is not None
        assert message.function_call.name == expect["function_call"]["name"]
        assert message.function_call.arguments == expect["function_call"]["arguments"]


def check_calls(expect: dict[str, Any], wanted: list[dict[str, Any]], choice: Choice) -> None:
    calls = choice.message.tool_calls or []
    assert [call.function.name for call in calls] == [want["name"] for want in wanted]
    ids = [call.id for call in calls]
    assert all(ids)
    assert len(set(ids)) == len(ids)
    for call, want in zip(calls, wanted, strict=True):
        assert want["id"] in ("*", call.id)
        assert call.type == "function"
        if expect.get("arguments_compare") == "json":
            assert json.loads(call.function.arguments) == json.loads(want["arguments"])
        else:
            assert call.function.arguments == want["arguments"]
        assert call.function.is_complete is expect.get("arguments_complete", True)


def check_usage(expect: dict[str, Any], completion: Completion) -> None:
    if expect["usage"] is None:
        assert completion.usage is None
        return
    assert completion.usage is not None
    for name, value in expect["usage"].items():
        assert getattr(completion.usage, name) == value
    for name, value in expect.get("usage_details", {}).items():
        assert getattr(completion.usage, name) == value


def check_extras(expect: dict[str, Any], completion: Completion) -> None:
    message = completion.choices[0].message
    for name, value in expect.get("extras", {}).items():
        if name == "tool_calls":
            for call, want in zip(message.tool_calls or [], value, strict=True):
                for key, inner in want.items():
                    assert getattr(call, key) == inner
            continue
        holders = [message, completion.choices[0], completion]
        assert value in [getattr(holder, name, None) for holder in holders]


def check_error(expect: dict[str, Any], error: AsyncChatError | None) -> None:
    assert error is not None, f"no error, where {expect['error_kind']} was due"
    kind = expect["error_kind"]
    if kind == "truncated":
        assert isinstance(error, StreamCut), repr(error)
    elif kind == "protocol_error":
        assert isinstance(error, ProtocolError), repr(error)
    elif kind == "rate_limit":
        assert isinstance(error, RateLimitError), repr(error)
    else:
        assert isinstance(error, APIError), repr(error)
        assert not isinstance(error, (StreamCut, ProtocolError, RateLimitError)), repr(error)
    assert expect.get("message_contains", "") in str(error)
    if "code" in expect:
        assert getattr(error, "code", None) == expect["code"]
    if "status" in expect:
        assert getattr(error, "status_code", None) == expect["status"]
    if "retry_after" in expect:
        assert error.retry_after == expect["retry_after"]
    if error.partial is None:
        assert not expect["partial"]["content"]
        assert not expect["partial"]["tool_calls"]
        return
    message = error.partial.message
    assert same_text(message.content, expect["partial"]["content"])
    got = [(c.id, c.function.name, c.function.arguments) for c in message.tool_calls or []]
    assert got == [(c["id"], c["name"], c["arguments"]) for c in expect["partial"]["tool_calls"]]
