"""The format `openai`: a chunk goes out as it came. That OpenAI's own client reads it is in `test_sse`."""

from typing import Any

import msgspec
import pytest

from asyncchat import APIError, Completion
from asyncchat.bridges.failure import Failure
from asyncchat.bridges.openai_chunks import OpenAIChunks
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.response import chunk_from
from tests.bridges.recorded import Recorded, recorded, written

CHUNKS: list[dict[str, Any]] = [
    {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []},
    {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "provider": "p",  # unknown fields go with it
        "choices": [
            {
                "index": 0,
                "delta": {"role": "assistant", "content": "", "x_signature": [1]},
                "finish_reason": "stop",
            }
        ],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "cost": 0.1},
    },
]


@pytest.mark.parametrize("chunk", CHUNKS)
def test_chunk_keeps_every_field(chunk: dict[str, Any]) -> None:
    read: Any = chunk_from(msgspec.json.decode(msgspec.json.encode(chunk)))
    (message,) = OpenAIChunks().feed(read)
    assert msgspec.json.decode(message) == chunk


@pytest.mark.parametrize("case", recorded(), ids=lambda case: case.name)
def test_short_way_of_writing_a_chunk_writes_the_same(case: Recorded) -> None:
    reader = AnswerReader(**case.options)
    for chunk in [*reader.feed_chunks(case.body), *reader.end_chunks()]:
        chunk.id, chunk.model = chunk.id or "c", chunk.model or "m"
        (message,) = OpenAIChunks().feed(chunk)
        assert msgspec.json.decode(message) == msgspec.json.decode(
            msgspec.json.encode(chunk.to_dict())
        )


def test_text_that_looks_like_unknown_fields_is_text() -> None:
    said = {"index": 0, "delta": {"content": '"(extra)"'}}
    chunk: Any = chunk_from({"id": "c", "model": "m", "choices": [said]})
    (message,) = OpenAIChunks().feed(chunk)
    assert msgspec.json.decode(message)["choices"] == [said]


def test_end_mark_comes_after_an_answer_and_not_after_a_failure() -> None:
    made = OpenAIChunks()
    assert made.begin() == []
    assert made.end(Completion()) == made.abort() == [b"[DONE]"]
    (failed,) = made.fail(Failure("Busy.", "rate_limit_error", "rate_limit_exceeded"))
    error = {"message": "Busy.", "type": "rate_limit_error", "param": None}
    assert msgspec.json.decode(failed) == {"error": {**error, "code": "rate_limit_exceeded"}}


@pytest.mark.parametrize("case", recorded(), ids=lambda case: case.name)
def test_what_servers_really_sent_reads_the_same_once_more(case: Recorded) -> None:
    messages, answer = written(case, OpenAIChunks)
    reader = AnswerReader(n=case.options["n"])
    reader.feed(b"".join(b"data: %b\n\n" % message for message in messages))
    if answer is None:
        with pytest.raises(APIError):
            reader.finish()
        return
    again = reader.finish()
    for mine, theirs in zip(again.choices, answer.choices, strict=True):
        assert mine.finish_reason == theirs.finish_reason
        assert mine.message == theirs.message
    assert again.usage == answer.usage
