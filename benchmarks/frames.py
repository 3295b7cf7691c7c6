"""The bytes that all benchmarks eat: events and answers as OpenAI's servers send them.

Not here: sockets, clocks, parsers. Shapes copied from recorded streams; the words come from a fixed list, so every run sees the same bytes.
"""

import msgspec

WORDS = (
    (
        " the moon of Jupiter called Europa keeps a salty ocean under its cracked ice and Titan has"
        " lakes of methane while Io glows with sulphur from more than four hundred live volcanoes"
    )
    .replace(" ", "| ")
    .split("|")[1:]
)

DONE = b"data: [DONE]\n\n"

_FACTS = {
    "id": "chatcmpl-BqQ3W6dWmA0TbL7yJ5cXkPz8RvNe2",
    "object": "chat.completion.chunk",
    "created": 1751470000,
    "model": "gpt-4o-mini-2024-07-18",
    "service_tier": "default",
    "system_fingerprint": "fp_34a54ae93c_prod0425_b7",
}
USAGE = {
    "prompt_tokens": 19,
    "completion_tokens": 64,
    "total_tokens": 83,
    "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
}


def frame(
    delta: dict[str, object] | None,
    finish: str | None = None,
    *,
    beside_delta: dict[str, object] | None = None,
    **beside_choices: object,
) -> bytes:
    """One event, `data: {...}` and a blank line; about 320 bytes for one word of content."""
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    choices = [] if delta is None else [choice | (beside_delta or {})]
    chunk = {**_FACTS, "choices": choices, "usage": None, **beside_choices}
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


def wrap(deltas: list[bytes], finish: str = "stop") -> list[bytes]:
    """Put what a server sends around the deltas: role chunk, finish chunk, usage chunk, end mark."""
    role = frame({"role": "assistant", "content": "", "refusal": None})
    return [role, *deltas, frame({}, finish), frame(None, usage=USAGE), DONE]


def content_deltas(tokens: int) -> list[bytes]:
    """`tokens` events with one word of content each."""
    made = [frame({"content": word}) for word in WORDS]
    return [made[i % len(made)] for i in range(tokens)]


def sized_content_deltas(count: int, size: int) -> list[bytes]:
    """`count` events with exactly `size` bytes of content each."""
    return [frame({"content": "x" * (size - 1) + " "})] * count


def reasoning_deltas(tokens: int) -> list[bytes]:
    """`tokens` events that think aloud, in the field that most servers use."""
    made = [frame({"reasoning_content": word, "content": None}) for word in WORDS]
    return [made[i % len(made)] for i in range(tokens)]


def tool_deltas(tokens: int) -> list[bytes]:
    """One tool call whose arguments arrive in `tokens` pieces that join to valid JSON."""
    function = {"name": "look_up", "arguments": ""}
    opening = {"index": 0, "id": "call_8sZ3NnG4h1Yb", "type": "function", "function": function}
    pieces = ['{"words":["', *(WORDS[i % len(WORDS)] for i in range(tokens - 2)), '"]}']
    made = {
        piece: frame({"tool_calls": [{"index": 0, "function": {"arguments": piece}}]})
        for piece in set(pieces)
    }
    return [frame({"tool_calls": [opening]}), *(made[piece] for piece in pieces)]


def padded_deltas(tokens: int) -> list[bytes]:
    """Content events as OpenAI's own servers send them now, with random padding beside the choices."""
    made = [frame({"content": word}, obfuscation="mZ3k9QxT") for word in WORDS]
    return [made[i % len(made)] for i in range(tokens)]


def unknown_field_deltas(tokens: int) -> list[bytes]:
    """Content events with fields that the format does not have, beside the delta and beside the choices.

    Azure sends the first on every chunk, and other servers something of their own.
    """
    verdict = {"filtered": False, "severity": "safe"}
    filters = {"content_filter_results": {"hate": verdict, "violence": verdict}}
    made = [frame({"content": word}, beside_delta=filters, shard=7) for word in WORDS]
    return [made[i % len(made)] for i in range(tokens)]


def answer(tokens: int) -> bytes:
    """A finished answer with `tokens` words, as one JSON document."""
    text = "".join(WORDS[i % len(WORDS)] for i in range(tokens))
    message: dict[str, object] = {
        "role": "assistant",
        "content": text,
        "refusal": None,
        "annotations": [],
    }
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    facts = {**_FACTS, "object": "chat.completion", "choices": [choice], "usage": USAGE}
    return msgspec.json.encode(facts)
