"""What servers really send, cut anywhere, through the reader alone. Status and headers are the client's tests."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.response import Completion
from tests.wire import RECORDINGS, WireCase, check, cut, places, plain_body, read, wire_cases

CASES = [case for case in wire_cases() if case.status == 200]
SMALL = [case for case in CASES if len(case.body) < 100_000]


def options(case: WireCase) -> dict[str, Any]:
    return {"n": case.request.get("n", 1), "content_type": case.headers.get("content-type", "")}


def is_sse(body: bytes) -> bool:
    return body.lstrip(b"\xef\xbb\xbf \r\n")[:1] not in (b"{", b"[", b"<")


# What is about its own line ends cannot be tried with others.
LF_ALONE = [c for c in SMALL if is_sse(plain_body(c)) and b"\r" not in plain_body(c)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_case_reads_as_a_careful_user_wants(case: WireCase) -> None:
    body = plain_body(case)
    for pieces in ([body], cut(body, case.split_at)):
        for events in (True, False):
            _, completion, error = read(pieces, events=events, **options(case))
            check(case.expect, completion, error)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_case_reads_the_same_cut_at_every_byte(case: WireCase) -> None:
    body = plain_body(case)
    _, completion, error = read(cut(body, range(len(body))), **options(case))
    check(case.expect, completion, error)
    for place in places(body):
        _, completion, error = read(cut(body, [place]), **options(case))
        check(case.expect, completion, error)


@pytest.mark.parametrize("case", LF_ALONE, ids=lambda case: case.name)
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
def test_case_reads_the_same_with_other_line_ends_and_comments(case: WireCase, end: bytes) -> None:
    body = plain_body(case)
    commented = body.replace(b"\n\n", b"\n\n: keepalive\n\n").replace(b"\n", end)
    for pieces in ([commented], cut(commented, range(len(commented)))):
        _, completion, error = read(pieces, **options(case))
        check(case.expect, completion, error)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_prefix_of_a_case_gives_a_prefix_of_the_text_and_is_never_longer(case: WireCase) -> None:
    body = plain_body(case)
    whole = read([body], **options(case))[1]
    text = (whole.text if whole is not None else "") or ""
    reader = AnswerReader(**options(case))
    for position in range(len(body)):
        reader.feed(body[position : position + 1])
        assert text.startswith(reader.snapshot().text)


@pytest.mark.parametrize(
    "case", [c for c in SMALL if c.expect.get("variants")], ids=lambda case: case.name
)
def test_case_reads_otherwise_when_asked_to(case: WireCase) -> None:
    body = plain_body(case)
    for asked, wanted in case.expect["variants"].items():
        option = asked.removesuffix("=true")
        for pieces in ([body], cut(body, range(len(body)))):
            _, completion, _ = read(pieces, **{option: True}, **options(case))
            assert completion is not None
            assert completion.text == wanted["content"]
            assert completion.message.reasoning == wanted.get("reasoning")


def test_there_are_as_many_cases_as_there_should_be() -> None:
    assert len(wire_cases()) == 82


# ------------------------------------------------------------------------------ recorded streams


def recorded() -> list[Path]:
    return sorted(
        p for f in ("llama_cpp", "litellm", "aimock") for p in (RECORDINGS / f).glob("*.sse")
    )


def naive(body: bytes) -> dict[int, dict[str, str]]:
    """What a plain reading of a well-formed stream gives: text per choice, argument text, last finish."""
    found: dict[int, dict[str, str]] = {}
    for line in body.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        for choice in json.loads(line[6:]).get("choices", []):
            mine = found.setdefault(
                choice["index"], {"content": "", "reasoning": "", "calls": "", "finish": ""}
            )
            delta = choice.get("delta", {})
            mine["content"] += delta.get("content") or ""
            mine["reasoning"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or []:
                mine["calls"] += call["function"].get("arguments") or ""
            mine["finish"] = choice.get("finish_reason") or mine["finish"]
    return found


def seen(completion: Completion) -> dict[int, dict[str, str]]:
    return {
        c.index: {
            "content": c.message.content or "",
            "reasoning": c.message.reasoning_content or "",
            "calls": "".join(call.function.arguments for call in c.message.tool_calls or []),
            "finish": c.finish_reason or "",
        }
        for c in completion.choices
    }


@pytest.mark.parametrize("path", recorded(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recorded_stream_reads_as_it_stands(path: Path) -> None:
    body = path.read_bytes()
    n = 2 if "_n2" in path.stem else 1
    whole_reader, whole, error = read([body], n=n)
    assert whole is not None
    wanted = naive(body)
    assert seen(whole) == wanted
    if error is not None:
        assert b"[DONE]" not in body
    for crlf in (False, True):
        varied = body.replace(b"\n\n", b"\n\n: ping\n\n")
        varied = varied.replace(b"\n", b"\r\n") if crlf else varied
        pieces = [varied[i : i + 7] for i in range(0, len(varied), 7)]
        _, other, other_error = read(pieces, n=n)
        assert other is not None
        assert seen(other) == wanted
        assert type(other_error) is type(error)
    assert whole_reader.frames == sum(b'"choices"' in line for line in body.splitlines())


# ------------------------------------------------------- streams recorded by other projects, not ours

PEERS = Path(os.environ.get("ASYNCCHAT_PEER_STREAMS", "../shared/cases/peer_streams"))


def peers() -> list[Path]:
    return sorted(PEERS.glob("*.sse")) if PEERS.is_dir() else []


@pytest.mark.parametrize("path", peers(), ids=lambda path: path.stem)
def test_peer_stream_reads_as_its_reference(path: Path) -> None:
    reference = json.loads(path.with_suffix(".json").read_text())["reference"]
    body = path.read_bytes()
    n = max(1, len(reference["choices"]))
    for pieces in ([body], [body[i : i + 11] for i in range(0, len(body), 11)]):
        _, completion, error = read(pieces, n=n)
        assert completion is not None
        assert (error is not None) is (b"event: error" in body), repr(error)
        check_reference(reference, completion)


def check_reference(reference: dict[str, Any], completion: Completion) -> None:
    assert {str(c.index) for c in completion.choices} == set(reference["choices"])
    for choice in completion.choices:
        wanted = reference["choices"][str(choice.index)]
        message = choice.message
        assert (message.content or None) == (wanted["content"] or None)
        if wanted["reasoning"]:  # the reference does not look into parts and details; we do
            assert message.reasoning == wanted["reasoning"]
        assert (message.refusal or None) == (wanted["refusal"] or None)
        assert choice.finish_reason == wanted["finish_reason"]
        calls = [
            {"id": c.id, "name": c.function.name, "arguments": c.function.arguments}
            for c in message.tool_calls or []
        ]
        assert [
            {k: c.get(k) for k in ("id", "name", "arguments")} for c in wanted["tool_calls"]
        ] == calls
    if reference["usage"] is not None:  # nor into x_groq
        assert completion.usage is not None
        for name, value in reference["usage"].items():
            if isinstance(value, int):
                assert getattr(completion.usage, name) == value
