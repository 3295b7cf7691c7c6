"""What a batch writes down: one line for each input, with its answer or its error.

Not here: files. A line starts with `custom_id` and ends with `x`, what asyncchat adds to OpenAI's output format; `x` ends with
the checksum of all that stands before it. So who looks only for names, outcomes and times need not read the answers.
"""

import re
import zlib
from typing import Literal

import msgspec

from asyncchat.errors import (
    APIConnectionError,
    APIStatusError,
    APITimeoutError,
    AsyncChatError,
    AuthenticationError,
    ContentFilterFinishReasonError,
    LengthFinishReasonError,
    NotFoundError,
    OutputMismatch,
    PermissionDeniedError,
    ProtocolError,
    RateLimitError,
    RefusalError,
    StreamCut,
)
from asyncchat.protocol.answer import AnswerReader
from asyncchat.protocol.response import Completion

__all__ = [
    "Attempt",
    "BatchError",
    "BatchRecord",
    "Kind",
    "Outcome",
    "Sample",
    "SessionNote",
    "Trace",
    "decode_attempt",
    "decode_note",
    "decode_outcome",
    "decode_record",
    "encode_record",
    "is_sound",
    "kind_of",
]

Kind = Literal[
    "invalid_line",
    "duplicate_id",
    "timeout",
    "connection",
    "server",
    "rate_limit",
    "quota",
    "auth",
    "not_found",
    "bad_request",
    "cut",
    "protocol",
    "mismatch",
    "length",
    "content_filter",
    "refusal",
    "other",
]
"""What a failure is put down to: the `code` of an error record, and what `batch retry --kinds` chooses by."""


class BatchError(msgspec.Struct, omit_defaults=True):
    """Why an input has no answer. `text` is the last thing the model said, where that is what was wrong."""

    code: str
    message: str
    status_code: int | None = None
    type: str | None = None
    text: str | None = None


class Trace(msgspec.Struct, omit_defaults=True):
    """How one input fared. Times are in seconds; `t_end` is the time of day (Unix time) of the record.

    `n` counts inputs from 1; `hash` is the identity of the request; `attempts` counts requests that were sent, `refused` those
    among them that were only told to come back later; `t_queue` is until the first was sent, `t_first` from the last one to the first token, `t_itl`
    the mean time between tokens, `t_total` from taking the input up to the record. `tokens` are prompt, completion and cached
    ones as the server counted, those of answers that were not good enough included, None where it did not. `reused` names the input whose answer this is, where the same was asked before.
    """

    n: int
    hash: str = ""
    attempts: int = 0
    refused: int = 0
    t_end: float = 0.0
    t_queue: float | None = None
    t_first: float | None = None
    t_itl: float | None = None
    t_total: float | None = None
    tokens: tuple[int, int, int] | None = None
    cost: float | None = None
    endpoint: str | None = None
    reused: str | None = None


class Outcome(msgspec.Struct):
    """A record without its answer: what counting and reporting need."""

    custom_id: str
    trace: Trace
    error: BatchError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.error is None


class BatchRecord(msgspec.Struct):
    """What became of one input, for good: an answer or an error. It is written down before anybody gets it."""

    custom_id: str
    trace: Trace
    completion: Completion | None = None
    error: BatchError | None = None

    @property
    def ok(self) -> bool:
        """Whether there is an answer."""
        return self.error is None

    @property
    def text(self) -> str:
        """What the answer says; `""` where there is none."""
        return "" if self.completion is None else self.completion.text

    @property
    def n(self) -> int:
        """The place of its input, from 1."""
        return self.trace.n


class Attempt(msgspec.Struct, omit_defaults=True, tag_field="what", tag="attempt"):
    """One failed attempt, as `attempts.jsonl` has it: for the report, never for resuming. `t` is Unix time."""

    t: float
    custom_id: str
    attempt: int
    kind: str
    status: int | None = None
    wait: float | None = None
    endpoint: str | None = None


class Sample(msgspec.Struct, omit_defaults=True, tag_field="what", tag="sample"):
    """How the batch stood at `t` (Unix time): requests in flight, the bound on them, seconds of pause that a server asked for, lag of the event loop."""

    t: float
    in_flight: int = 0
    limit: int | None = None
    pause: float = 0.0
    lag: float = 0.0


class SessionNote(msgspec.Struct, omit_defaults=True, tag_field="what", tag="session"):
    """The beginning (`end` is None) or the end of one run of the process, for the report."""

    start: float
    end: float | None = None
    reason: str = ""
    cpu: float = 0.0
    rss: int = 0


class _Response(msgspec.Struct):
    status_code: int
    request_id: str | None
    body: msgspec.Raw


class _Line(msgspec.Struct):
    custom_id: str
    response: _Response | None = None
    error: BatchError | None = None
    x: Trace | None = None


_encode = msgspec.json.Encoder().encode
_decode_line = msgspec.json.Decoder(_Line).decode
_decode_completion = msgspec.json.Decoder(Completion).decode
_decode_trace = msgspec.json.Decoder(Trace).decode
_decode_id = msgspec.json.Decoder(str).decode
_decode_error = msgspec.json.Decoder(BatchError).decode
decode_attempt = msgspec.json.Decoder(Attempt).decode
decode_note = msgspec.json.Decoder(Sample | SessionNote).decode
_ID = re.compile(rb'\{"custom_id":("(?:[^"\\]|\\.)*"),')
_CRC = b',"crc":'
_X = b',"x":'
_NO_ERROR = b',"error":null'


def encode_record(
    custom_id: str,
    trace: Trace,
    *,
    body: bytes | None = None,
    request_id: str | None = None,
    error: BatchError | None = None,
) -> bytes:
    """Return the line of one record, with its newline. `body` is the answer as JSON."""
    response = (
        b"null"
        if body is None
        else b'{"status_code":200,"request_id":%b,"body":%b}' % (_encode(request_id), body)
    )
    line = b'{"custom_id":%b,"response":%b,"error":%b,"x":%b' % (
        _encode(custom_id),
        response,
        b"null" if error is None else _encode(error),
        _encode(trace)[:-1],
    )
    return b'%b,"crc":%d}}\n' % (line, zlib.crc32(line))


def is_sound(line: bytes) -> bool:
    """Whether a line is whole and as it was written."""
    cut = line.rfind(_CRC)
    if cut < 0 or not line.endswith(b"}}\n"):
        return False
    digits = line[cut + len(_CRC) : -3]
    return digits.isdigit() and int(digits) == zlib.crc32(line[:cut])


def decode_outcome(line: bytes) -> Outcome:
    """Return what a sound line says, but for the answer, which is not read.

    Raises:
        ValueError: it is no line of ours.
    """
    found = _ID.match(line)
    cut = line.rfind(_X)
    if found is None or cut < 0:
        raise ValueError("not a record")
    custom_id = _decode_id(found[1])
    trace = _decode_trace(line[cut + len(_X) : -2])
    if line.endswith(_NO_ERROR, 0, cut):
        return Outcome(custom_id, trace)
    start = line.rfind(b',"error":{', 0, cut) + len(b',"error":')
    return Outcome(custom_id, trace, _decode_error(line[start:cut]))


def decode_record(line: bytes) -> BatchRecord:
    """Return the record of a sound line.

    Raises:
        ValueError: it is no line of ours.
        AsyncChatError: its answer is none.
    """
    found = _decode_line(line)
    if found.x is None:
        raise ValueError("not a record")
    completion = None
    if found.response is not None:
        completion = _answer_in(found.response.body)
    return BatchRecord(found.custom_id, found.x, completion, found.error)


def _answer_in(body: msgspec.Raw) -> Completion:
    """Read an answer as the client did: it may be as the server sent it, with fields and types of its own."""
    try:
        return _decode_completion(body)
    except msgspec.ValidationError:
        found = msgspec.json.decode(body)
        choices = found.get("choices") if isinstance(found, dict) else None
        reader = AnswerReader(len(choices) if isinstance(choices, list) else 1, events=False)
        return reader.read_whole(bytes(body))


def kind_of(error: BaseException) -> Kind:
    """Return what a failure is put down to."""
    if isinstance(error, APIStatusError):
        return _kind_of_status(error)
    for cls, kind in _KINDS:
        if isinstance(error, cls):
            return kind
    return "other"


def _kind_of_status(error: APIStatusError) -> Kind:
    if isinstance(error, RateLimitError):
        return "rate_limit" if error.retryable else "quota"
    if isinstance(error, (AuthenticationError, PermissionDeniedError)):
        return "auth"
    if isinstance(error, NotFoundError):
        return "not_found"
    if error.status_code == 402:
        return "quota"
    if error.status_code in (408, 504):
        return "timeout"
    return "server" if error.status_code >= 500 else "bad_request"


_KINDS: tuple[tuple[type[AsyncChatError], Kind], ...] = (
    (APITimeoutError, "timeout"),
    (APIConnectionError, "connection"),
    (StreamCut, "cut"),
    (ProtocolError, "protocol"),
    (OutputMismatch, "mismatch"),
    (LengthFinishReasonError, "length"),
    (ContentFilterFinishReasonError, "content_filter"),
    (RefusalError, "refusal"),
)
