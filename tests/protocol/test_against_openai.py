"""The same chunks through openai's own accumulation: equal where both are right, and a list of where they are not.

Its state is fed with plain JSON of each `data:` line, so what it cannot frame is not held against it.
"""

import json
import warnings
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from openai import ContentFilterFinishReasonError, LengthFinishReasonError
from openai._models import construct_type
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletionChunk

from asyncchat.protocol.response import Completion
from tests.wire import RECORDINGS, plain_body, read, wire_cases


class Recording(NamedTuple):
    name: str
    body: bytes
    n: int


# About framing, which a plain reading of `data:` lines knows nothing of.
FRAMING = {
    "601-no-space-after-colon",
    "604-bom",
    "609-multi-line-data",
    "613-two-objects-in-one-data",
    "615-ndjson",
    "616-json-body-although-streaming",
    "622-unicode-line-separators",
    "624-invalid-utf8",
}


def recordings() -> list[Recording]:
    found = [
        Recording(
            f"{path.parent.name}/{path.stem}", path.read_bytes(), 2 if "_n2" in path.stem else 1
        )
        for folder in ("aimock", "litellm", "llama_cpp")
        for path in sorted((RECORDINGS / folder).glob("*.sse"))
    ]
    found.extend(
        Recording(case.name, plain_body(case), case.request.get("n", 1))
        for case in wire_cases()
        if case.name not in FRAMING and case.expect["outcome"] != "error"
    )
    return found


NO_INDEX = "it needs an integer index on each fragment and each choice, and raises without"
GLUED = "it adds up what repeats: ids and names of two calls under one index become one"
UNASKED = "it looks for usage beside the choices only, under OpenAI's names"
NO_DELTA = "it needs a delta in each choice"
ORDER = "its list of choices is indexed by the choice's index in order of arrival"
NOT_FRAMED = (
    "the plain reading of data lines finds no chunk in it; its own decoder fares no better"
)

DISAGREEMENTS = {
    "101-index-missing-whole-call": NO_INDEX,
    "103-index-missing-one-list": NO_INDEX,
    "104-fragments-follow-last-opened": NO_INDEX,
    "106-index-zero-empty-id-fragments": GLUED,
    "107-head-and-tail-index-differ": GLUED,
    "109-index-minus-one-object-arguments": "arguments that come as an object stay one",
    "112-id-never-sent": "a call without an id gets none",
    "113-id-name-type-on-every-delta": GLUED,
    "118-null-arguments-beside-a-sibling": "null arguments fail an assertion of its",
    "119-empty-object-then-real-arguments": "the empty object before the arguments stays there",
    "121-arguments-sent-twice": GLUED,
    "122-two-objects-under-one-call": "two objects under one call stay one text that is no JSON",
    "125-empty-tool-call-noise": "a hollow call fails an assertion of its",
    "130-index-zero-id-on-every-fragment": GLUED,
    "203-message-instead-of-delta": NO_DELTA,
    "204-last-chunk-repeats-everything": NO_DELTA,
    "206-content-as-list-of-parts": "content is text to it",
    "403-usage-inside-the-choice": UNASKED,
    "404-x-groq-usage": UNASKED,
    "406-data-after-done": "fed like this it does not see the end mark",
    "410-input-output-tokens-no-total": UNASKED,
    "512-odd-metadata": NO_INDEX,
    "513-answer-split-over-choices": "choices beyond the one asked for are choices",
    "607-null-empty-and-crowded-data": "choices: null fails",
    "litellm/stream_n2": ORDER,
    "llama_cpp/stream_n2": ORDER,
    "llama_cpp/tools_prefill_auto_midstream_error": "an error in mid-stream is a chunk without choices",
    "llama_cpp/tools_twoshot_n2": ORDER,
}
AGREED = [one for one in recordings() if one.name not in DISAGREEMENTS]
KNOWN = [one for one in recordings() if one.name in DISAGREEMENTS]


def theirs(body: bytes) -> Any:
    """What openai makes of a body; its errors about `length` and filters bring what it has."""
    state: ChatCompletionStreamState[None] = ChatCompletionStreamState()
    for line in body.decode().splitlines():
        if line.startswith("data: {"):
            chunk = construct_type(type_=ChatCompletionChunk, value=json.loads(line[6:]))
            with suppress(LengthFinishReasonError, ContentFilterFinishReasonError):
                state.handle_chunk(chunk)  # type: ignore[arg-type]  # made without validation, as its client does
    return state.current_completion_snapshot


def facts(completion: Any) -> list[Any]:
    """What both must agree on, in one shape."""
    usage = completion.usage
    return [
        *(
            {
                "index": choice.index,
                "content": choice.message.content or None,
                "refusal": getattr(choice.message, "refusal", None) or None,
                "calls": [
                    (call.id, call.function.name, call.function.arguments)
                    for call in choice.message.tool_calls or []
                ],
                "finish_reason": choice.finish_reason or None,
            }
            for choice in completion.choices
        ),
        None
        if usage is None
        else [
            None if count is None else int(count)
            for count in (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens)
        ],
    ]


def ours(recording: Recording) -> Completion:
    completion = read([recording.body], n=recording.n)[1]
    assert completion is not None
    return completion


@pytest.mark.parametrize("recording", AGREED, ids=lambda recording: recording.name)
def test_recorded_stream_reads_as_openai_reads_it(recording: Recording) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of pydantic, about types it did not expect
        wanted = facts(theirs(recording.body))
    assert facts(ours(recording)) == wanted


@pytest.mark.parametrize("recording", KNOWN, ids=lambda recording: recording.name)
def test_known_disagreement_is_still_one(recording: Recording) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            got = facts(theirs(recording.body))
        except Exception as error:  # noqa: BLE001  whatever it raises, it does not agree
            got = [error]
    assert got != facts(ours(recording))


def test_list_of_disagreements_names_recordings_that_there_are() -> None:
    assert set(DISAGREEMENTS) <= {one.name for one in recordings()}
