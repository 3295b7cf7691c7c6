"""The body of an answer, whatever its framing, into events and one `Completion`.

Not here: sockets, time, retries. This is the whole way of the data without the network, and can be used alone,
on a file or with another HTTP client:

```python
reader = AnswerReader()
for data in pieces_of_the_body:              # bytes, cut anywhere
    for event in reader.feed(data): ...
    if reader.done:
        break
completion = reader.finish()                 # raises if the answer was cut, refused or no answer
```

Framing is told by the first byte, not by the content type or by what was asked for: servers answer JSON to
`stream=true` and events to `stream=false`. Each frame is decoded by the cheapest decoder that takes it:
a lean struct that can hold one thing only, then the public `Chunk`, then forgiving rules.
"""

from copy import copy
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from asyncchat.errors import (
    APIError,
    AsyncChatError,
    LimitExceeded,
    ProtocolError,
    RateLimitError,
    StreamCut,
    printable,
)
from asyncchat.protocol.assembler import Assembler
from asyncchat.protocol.events import Event
from asyncchat.protocol.lean import decode_call, decode_plain, decode_thought
from asyncchat.protocol.lenient import END_MARK, NotJSON, mend_surrogates, read_values
from asyncchat.protocol.model import Model, mend_strings
from asyncchat.protocol.response import (
    Chunk,
    ChunkChoice,
    Completion,
    Delta,
    FunctionDelta,
    ServerFault,
    Timing,
    ToolCallFragment,
    chunk_from,
    chunk_with_extra,
    completion_with_extra,
    fault_in,
)
from asyncchat.protocol.sse import MAX_EVENT_BYTES, SSEParser

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["MAX_ANSWER_BYTES", "AnswerReader", "plain_answer"]

MAX_ANSWER_BYTES = 256 * 2**20

# A text nested too deep for the decoder is refused like any other that is wrong.
_REFUSED = (msgspec.DecodeError, RecursionError)
# ... and a piece of a call that has not begun is no lean frame either.
_NOT_LEAN = (*_REFUSED, KeyError)
# Running text: halves of surrogate pairs in it may find each other in a later frame.
_RUNNING = frozenset(
    {
        "content",
        "refusal",
        "reasoning_content_",
        "reasoning_",
        "arguments",
        "reasoning_details",
        "audio",
    }
)
_LF = 0x0A
_BLANK = b" \t\r\n\xef\xbb\xbf"


_decode_chunk = msgspec.json.Decoder(Chunk).decode
_decode_completion = msgspec.json.Decoder(Completion).decode
_decode_any = msgspec.json.Decoder().decode


class AnswerReader:
    """Reads one answer.

    Args:
        n: how many choices were asked for.
        events: whether `feed` makes events; without them it only assembles, which is cheaper.
        content_type: of the answer; told in errors where the body is no chat completion.
        max_event_bytes: bound on one event, `LimitExceeded` beyond it.
        max_answer_bytes: bound on the whole body, comments included.
        split_think_tags: see `Assembler`.
        cumulative_content: see `Assembler`.
    """

    __slots__ = (
        "_assembler",
        "_between",
        "_decode_lean",
        "_extras",
        "_framing",
        "_halves",
        "_held",
        "_held_size",
        "_is_over",
        "_lean",
        "_max_answer_bytes",
        "_max_event_bytes",
        "_n",
        "_parser",
        "_take_lean",
        "_try_lean",
        "completion",
        "content_type",
        "done",
        "error",
        "events",
        "frames",
        "lenient_decodes",
        "received",
    )

    def __init__(
        self,
        n: int = 1,
        *,
        events: bool = True,
        content_type: str = "",
        max_event_bytes: int = MAX_EVENT_BYTES,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
        split_think_tags: bool = False,
        cumulative_content: bool = False,
    ) -> None:
        self._n = n
        self._assembler = Assembler(
            n, split_think_tags=split_think_tags, cumulative_content=cumulative_content
        )
        self._parser = SSEParser(max_event_bytes)
        self._framing: Literal["", "sse", "lines", "json"] = ""
        self._held: list[bytes] = []  # of a body whose framing is not known yet, or that is JSON
        self._held_size = 0
        self._halves: dict[
            tuple[int, str, int], str
        ] = {}  # of surrogate pairs, in the view of chunks
        self._lean = not (split_think_tags or cumulative_content)
        self._try_lean = self._lean
        self._decode_lean: Callable[[bytes | memoryview], Any] = decode_plain
        self._take_lean: Callable[[Any, list[Event] | None], None] = self._assembler.plain
        self._between = False  # no event has begun, and lean ones are expected
        self._is_over = False
        self._extras = False  # whether the last frame had unknown fields
        self._max_event_bytes = max_event_bytes
        self._max_answer_bytes = max_answer_bytes
        self.events = events
        self.content_type = content_type
        self.done = False
        """Whether nothing more is to be read: the end mark has come, or an error."""
        self.error: AsyncChatError | None = None
        """What `finish` will raise; kept until then so that the events before it are not lost."""
        self.completion: Completion | None = None
        self.frames = 0
        """How many frames brought a chunk."""
        self.lenient_decodes = 0
        """How many frames only the forgiving rules could read."""
        self.received = 0
        """Bytes fed so far."""

    def continued(self, content_type: str) -> "AnswerReader":
        """Return a reader of another body that goes on where this one broke off: both add to one answer."""
        made = AnswerReader(
            self._n,
            events=self.events,
            content_type=content_type,
            max_event_bytes=self._max_event_bytes,
            max_answer_bytes=self._max_answer_bytes,
        )
        made._assembler = self._assembler
        made._lean = made._try_lean = self._lean
        made._take_lean = self._assembler.plain
        made.received = self.received
        return made

    # ------------------------------------------------------------------------------------- bytes

    def feed(self, data: bytes) -> list[Event]:
        """Take in bytes and return what they tell. Never raises: see `error`."""
        out: list[Event] = []
        told = out if self.events else None
        # One whole event and nothing else: what a server sends whose tokens come one at a time. The line end after the
        # JSON is white space to its decoder.
        if (
            self._between
            and data.find(b"\n") == len(data) - 2
            and data[-1] == _LF
            and data[:6] == b"data: "
            and data.find(b"\r") < 0
            and self.received < self._max_answer_bytes - len(data)
        ):
            try:
                self._take_lean(self._decode_lean(memoryview(data)[6:]), told)
            except _NOT_LEAN:
                pass
            else:
                self.received += len(data)
                self.frames += 1
                return out
        self._feed(data, told, None)
        lean = self._try_lean and self._framing == "sse" and not self.done
        self._between = lean and self._parser.is_between
        return out

    def feed_chunks(self, data: bytes) -> list[Chunk]:
        """Take in bytes and return the chunks in them as the server sent them."""
        chunks: list[Chunk] = []
        self._feed(data, None, chunks)
        return chunks

    def read_whole(self, body: bytes) -> Completion:
        """Read a body that is there in one piece, and return the answer. Raises as `finish` does.

        A well-made JSON answer, which is what `stream=false` nearly always gives, is decoded straight into the
        `Completion`; everything else goes the way of a stream.
        """
        if self._lean and len(body) <= self._max_event_bytes:
            made = plain_answer(body, self._n)
            if made is not None:
                self.completion = made
                self.done = True
                return made
        return self.assemble(body)

    def assemble(self, body: bytes) -> Completion:
        """Read a body that is there in one piece as if it were a stream. Raises as `finish` does."""
        self.events = False
        self.feed(body)
        return self.finish()

    def _feed(self, data: bytes, out: list[Event] | None, chunks: list[Chunk] | None) -> None:
        if self.done:
            return
        self.received += len(data)
        if self.received > self._max_answer_bytes:
            self._fail(
                LimitExceeded(
                    f"the answer is larger than {self._max_answer_bytes} bytes",
                    hint="Raise Limits(max_answer_bytes=...) if the server is right to send it.",
                )
            )
        elif self._framing == "sse":
            self._feed_sse(data, out, chunks)
        else:
            self._feed_unsure(data, out, chunks)

    def _feed_sse(self, data: bytes, out: list[Event] | None, chunks: list[Chunk] | None) -> None:
        parser = self._parser
        try:
            for payload in parser.feed(data):
                if self._try_lean and chunks is None and parser.event != "error":
                    try:
                        self._take_lean(self._decode_lean(payload), out)
                    except _NOT_LEAN:
                        pass
                    else:
                        self.frames += 1
                        continue
                self._payload(payload, parser.event, out, chunks)
                if self.done:
                    return
        except LimitExceeded as error:
            self._fail(error)
        except RecursionError:
            self._fail(self._no_answer("JSON nested too deep"))

    def _feed_unsure(
        self, data: bytes, out: list[Event] | None, chunks: list[Chunk] | None
    ) -> None:
        """The framing is not known yet, or is no SSE."""
        if not self._framing:
            data = data.lstrip(_BLANK)  # which means nothing in any framing
            if not data:
                return
            if data[0] in b"{[":
                self._framing = "lines"
            elif data[0] == 0x3C:  # "<"
                self._fail(self._no_answer("a web page"))
                return
            else:
                self._framing = "sse"
                self._feed_sse(data, out, chunks)
                return
        self._held.append(data)
        self._held_size += len(data)
        if self._held_size > self._max_event_bytes:
            self._fail(
                LimitExceeded(
                    f"the answer's JSON is larger than {self._max_event_bytes} bytes",
                    hint="Raise Limits(max_event_bytes=...) if the server is right to send it.",
                )
            )
            return
        if self._framing == "lines" and b"\n" in data:
            try:
                self._feed_lines(out, chunks)
            except RecursionError:
                self._fail(self._no_answer("JSON nested too deep"))

    def _feed_lines(self, out: list[Event] | None, chunks: list[Chunk] | None) -> None:
        """JSON lines, until a line turns out to be no value of its own: then it is one JSON text."""
        *lines, rest = b"".join(self._held).split(b"\n")
        for number, line in enumerate(lines):
            values, problem = read_values(line)
            if problem is not None and self.frames == 0:
                self._framing = "json"
                self._held = [b"\n".join([*lines[number:], rest])]
                return
            self._values(values, problem, "", out, chunks)
            if self.done:
                return
        self._held, self._held_size = [rest], len(rest)

    # ------------------------------------------------------------------------------------ frames

    def _payload(
        self, payload: memoryview, event: str, out: list[Event] | None, chunks: list[Chunk] | None
    ) -> None:
        """One frame that the lean decoder did not take."""
        if event == "error":
            self._error_event(payload, out, chunks)
            return
        chunk = self._decode(payload)
        if chunk is None or chunk.object == "error":
            self._values(*read_values(payload), event, out, chunks)
            return
        self._chunk(chunk, out, chunks)
        self._try_lean = self._lean and not self._extras
        if self._try_lean and len(chunk.choices) == 1:
            self._expect_more_of(chunk.choices[0].delta)

    def _expect_more_of(self, delta: Delta) -> None:
        """Content, reasoning and arguments come in runs: try the decoder first that fits more of the same."""
        if delta.tool_calls:
            self._decode_lean, self._take_lean = decode_call, self._assembler.piece
        elif delta.reasoning_content:
            self._decode_lean, self._take_lean = decode_thought, self._assembler.thought
        else:
            self._decode_lean, self._take_lean = decode_plain, self._assembler.plain

    def _error_event(
        self, payload: memoryview, out: list[Event] | None, chunks: list[Chunk] | None
    ) -> None:
        """An event named `error`: it is one, in JSON or in plain words."""
        values, _ = read_values(payload)
        self._values(values, None, "error", out, chunks)
        if self.error is None:
            text = str(payload, "utf-8", "replace").strip()
            words = text if text not in ("", "null") else "an error event without a word"
            self._fail(self._refused(ServerFault(words)))

    def _decode(self, payload: memoryview) -> Chunk | None:
        if not self._extras:
            try:
                return _decode_chunk(payload)
            except _REFUSED:
                pass
        try:
            source = _decode_any(payload)
        except _REFUSED:
            return None
        chunk = chunk_with_extra(source) if isinstance(source, dict) else None
        if chunk is not None:
            choices = chunk.choices
            self._extras = bool(chunk.extra_) or any(c.extra_ or c.delta.extra_ for c in choices)
        return chunk

    def _values(
        self,
        values: list[object],
        problem: NotJSON | None,
        event: str,
        out: list[Event] | None,
        chunks: list[Chunk] | None,
    ) -> None:
        """What the forgiving rules found in one frame."""
        for value in values:
            if value is END_MARK:
                self.done = True
                return
            for item in value if isinstance(value, list) else [value]:
                self._value(item, event, out, chunks)
                if self.done:
                    return
        if problem is not None:
            self._fail(self._no_answer(f"no JSON ({problem})"))

    def _value(
        self, value: object, event: str, out: list[Event] | None, chunks: list[Chunk] | None
    ) -> None:
        if fault := fault_in(value, event):
            if isinstance(value, dict) and value.get("choices"):
                self._object(value, out, chunks)  # the last words beside the failure
            self._fail(self._refused(fault))
        elif isinstance(value, dict):
            self.lenient_decodes += 1
            self._object(value, out, chunks)
        elif event in ("", "message"):  # under another name it is somebody's keepalive
            self._fail(self._no_answer("a JSON value that is no object"))

    def _object(
        self, source: dict[str, object], out: list[Event] | None, chunks: list[Chunk] | None
    ) -> None:
        try:
            chunk = chunk_from(source)
        except ValueError as error:
            self._fail(self._no_answer(str(error)))
            return
        mend_strings(chunk, but=_RUNNING)
        whole = self._framing != "sse" and any(choice.message for choice in chunk.choices)
        self._chunk(chunk, out, chunks, odd_text=True)
        if whole and self.error is None:
            self.done = True  # the brace that closes a whole answer is its end mark

    def _chunk(
        self,
        chunk: Chunk,
        out: list[Event] | None,
        chunks: list[Chunk] | None,
        *,
        odd_text: bool = False,
    ) -> None:
        self.frames += 1
        self._assembler.feed(chunk, out, odd_text=odd_text)
        if chunks is not None:
            if odd_text or self._halves:
                self._mend(chunk)
            chunks.append(chunk)
        if self._assembler.finish_error and self.error is None:
            self._fail(self._refused(ServerFault("the server ended the answer as failed")))

    def _mend(self, chunk: Chunk) -> None:
        """Make a chunk's running text encode: half of a pair is held back for the chunk that brings the other."""
        for choice in chunk.choices:
            said, index = choice.delta, choice.index or 0
            for name in ("content", "refusal", "reasoning_content_", "reasoning_"):
                self._join_halves(said, name, (index, name, 0))
            for position, call in enumerate(said.tool_calls or []):
                if call.function is not None:
                    key = (index, "tool_calls", position if call.index is None else call.index)
                    self._join_halves(call.function, "arguments", key)
            if said.function_call is not None:
                self._join_halves(said.function_call, "arguments", (index, "function_call", 0))
        mend_strings(chunk, but=frozenset())

    def _join_halves(self, holder: Model, name: str, key: tuple[int, str, int]) -> None:
        text: str | None = getattr(holder, name)
        if text:
            text, held = mend_surrogates(self._halves.pop(key, "") + text, more_may_come=True)
            setattr(holder, name, text)
            if held:
                self._halves[key] = held

    # ----------------------------------------------------------------------------------- the end

    def end(self) -> list[Event]:
        """Say that the body is over, and return the events that only its end completes. Never raises: see `error`."""
        out: list[Event] = []
        self._end(out if self.events else None, None)
        return out

    def end_chunks(self) -> list[Chunk]:
        """Say that the body is over, and return the chunks that only its end completes."""
        chunks: list[Chunk] = []
        self._end(None, chunks)
        return chunks

    def _end(self, out: list[Event] | None, chunks: list[Chunk] | None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if not self.done:
            self._end_of_body(out, chunks)
        if self.error is None:
            self._judge()
        if chunks is not None and self.error is None:
            chunks.extend(_lone_half(*key) for key in self._halves)

    def close(self, timing: Timing | None = None) -> list[Event]:
        """Say that the body is over, and return the last events; `completion` is then there.

        Raises:
            StreamCut: the answer ended without end mark and finish_reason, or inside an event or a call.
            ProtocolError: there was no answer in it.
            APIError: the server told of a failure.
        """
        out = self.end()
        self._conclude(out if self.events else None, timing)
        return out

    def close_chunks(self, timing: Timing | None = None) -> list[Chunk]:
        """Say that the body is over, and return the chunks that only its end completes. Raises as `close` does."""
        chunks = self.end_chunks()
        self._conclude(None, timing)
        return chunks

    def _conclude(self, out: list[Event] | None, timing: Timing | None) -> None:
        if self.error is not None:
            raise copy(
                self.error
            )  # a traceback on the one that is kept would keep all its frames alive
        self.completion = self._assembler.finish(out, timing)

    def finish(self, timing: Timing | None = None) -> Completion:
        """Say that the body is over, and return the answer. Raises as `close` does."""
        if self.completion is None:
            self.close(timing)
        assert self.completion is not None
        return self.completion

    def _end_of_body(self, out: list[Event] | None, chunks: list[Chunk] | None) -> None:
        """The connection ended without an end mark: take what is whole, and say what is not."""
        whole = self._framing in ("lines", "json")
        payload = b"".join(self._held) if whole else self._parser.flush()
        if payload is None:
            return
        values, problem = read_values(payload)
        cut = problem is not None and (problem.at_end or not whole)
        try:
            self._values(values, None if cut else problem, self._parser.event, out, chunks)
        except RecursionError:
            self._fail(self._no_answer("JSON nested too deep"))
        if cut and self.error is None:
            self._fail(self._cut("inside its JSON" if whole else "inside an event"))

    def _judge(self) -> None:
        assembler = self._assembler
        if not assembler.has_choice:
            what = "an answer without a choice" if self.received else "an empty body"
            self._fail(self._no_answer(what))
        elif not self.done and not assembler.is_finished:
            self._fail(self._cut("without finish_reason and end mark"))
        elif assembler.has_cut_call:
            self._fail(self._cut("inside the arguments of a call"))

    @property
    def has_said(self) -> bool:
        """Whether text or a call has come."""
        return self._assembler.has_said

    @property
    def is_finished(self) -> bool:
        """Whether every choice has its finish_reason, so that a lost connection loses no answer."""
        return self._assembler.is_finished and self.error is None

    def snapshot(self) -> Completion:
        """Return the answer so far, built now."""
        return self.completion or self._assembler.snapshot()

    # ------------------------------------------------------------------------------------ errors

    def _fail(self, error: AsyncChatError) -> None:
        error.partial = self._assembler.snapshot()
        self.error = error
        self.done = True

    def _refused(self, fault: ServerFault) -> APIError:
        limited = fault.is_rate_limit
        return (RateLimitError if limited else APIError)(
            printable(fault.message),
            code=fault.code,
            type=fault.type,
            param=fault.param,
            retryable=fault.may_pass,
        )

    def _no_answer(self, what: str) -> ProtocolError:
        kind = f" of type {self.content_type}" if self.content_type else ""
        return ProtocolError(
            f"the server sent {what} where a chat completion was due, in a body{kind}",
            hint="Does base_url end in /v1, and is it an OpenAI-compatible server?",
        )

    @staticmethod
    def _cut(where: str) -> StreamCut:
        return StreamCut(f"the answer ended {where}", hint="`partial` holds what had come.")


def _lone_half(choice: int, name: str, call: int) -> Chunk:
    """The chunk that tells of half of a surrogate pair that found no partner."""
    delta, lone = Delta(), "\ufffd"
    if name == "tool_calls":
        piece = ToolCallFragment(index=call, function=FunctionDelta(arguments=lone))
        delta.tool_calls = [piece]
    elif name == "function_call":
        delta.function_call = FunctionDelta(arguments=lone)
    else:
        setattr(delta, name, lone)
    return Chunk(choices=[ChunkChoice(index=choice, delta=delta)])


def plain_answer(body: bytes, n: int = 1) -> Completion | None:
    """Decode a JSON answer of `n` choices that needs none of the assembler's care, or return None."""
    made: Completion | None
    try:
        made = _decode_completion(body)
    except _REFUSED:
        try:
            source = _decode_any(body)
        except _REFUSED:
            return None
        made = completion_with_extra(source) if isinstance(source, dict) else None
    return made if made is not None and _is_well_made(made, n) else None


def _is_well_made(made: Completion, n: int) -> bool:
    usage = made.usage
    if made.object == "error" or not (usage is None or usage.total_tokens is not None):
        return False
    if len(made.choices) != n:
        return False
    for position, choice in enumerate(made.choices):
        message = choice.message
        plain = not (message.tool_calls or message.function_call or message.audio)
        ended = choice.finish_reason and choice.finish_reason != "error"
        if not (plain and ended and choice.index == position and message.role):
            return False
    return True
