"""One reply of the test server, written down as it should happen.

Not here: bytes (`wire`) and sockets (`server`). A reply is what a test says a server did; it holds
no state of being answered, so one reply can answer many requests at once.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, Self

import msgspec

from asyncchat.testing.wire import Call, Event, Fault, Fields, Script, Text, error_body

__all__ = ["Reply"]

# A word with the blanks before it, as most tokenizers cut; blanks at the end are a piece too.
_WORDS = re.compile(r"\s*\S+|\s+")
_FRAGMENT_CHARACTERS = 8

_ERROR_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


class Reply:
    """One reply, built by a chain of calls: `Reply().think("Hm.").say("Yes.").stall(after=3)`.

    What is *said* goes out as chat chunks when the request asked for `stream`, and as one JSON
    object when it did not. `choice` names the index that says it; without it all of them do, and
    the choices of `n > 1` take turns, one chunk each. What *goes wrong* counts events: each
    `data:` event is one, the opening role and `[DONE]` included, comments not. A reply with fewer
    events goes wrong at its end, before the body is closed; a reply that is one document (JSON,
    an error) goes wrong in its middle.

    Raises:
        ValueError: In any method, where an argument makes no sense.
    """

    __slots__ = ("script",)

    def __init__(self) -> None:
        self.script = Script()

    def __repr__(self) -> str:
        return f"Reply({self.script!r})"

    # ---------------------------------------------------------------------------- what is said
    def say(
        self,
        text: str | Sequence[str],
        *,
        usage: bool | None = None,
        choice: int | None = None,
    ) -> Self:
        """Say `text`: a str goes out word by word, a list piece by piece.

        `usage` True or False sends the token counts or not, whatever the request asked.
        """
        if usage is not None:
            self.script.usage = usage
        return self._text("content", text, choice)

    def think(
        self,
        text: str | Sequence[str],
        *,
        field: str = "reasoning_content",
        choice: int | None = None,
    ) -> Self:
        """Reason before, between or after the text, in the delta's `field`."""
        if not field:
            raise ValueError("field must name a field of the delta, such as 'reasoning'")
        return self._text(field, text, choice)

    def refuse(self, text: str | Sequence[str], *, choice: int | None = None) -> Self:
        """Refuse, in the field `refusal`."""
        return self._text("refusal", text, choice)

    def call_tool(
        self,
        name: str,
        arguments: Mapping[str, object] | str | Sequence[str] = "{}",
        *,
        id: str | None = None,  # noqa: A002  the format's own word
        choice: int | None = None,
    ) -> Self:
        """Call a tool; called again, call another in parallel.

        `arguments` as a mapping is written as JSON; a str goes out as it is, broken or not, in
        fragments of eight characters; a list is sent fragment by fragment.
        """
        if isinstance(arguments, Mapping):
            arguments = msgspec.json.encode(dict(arguments)).decode()
        if isinstance(arguments, str):
            starts = range(0, len(arguments), _FRAGMENT_CHARACTERS)
            arguments = [arguments[start : start + _FRAGMENT_CHARACTERS] for start in starts]
        call = Call(name, tuple(arguments), id, _index(choice))
        self.script.parts.append(call)
        return self

    def delta(self, fields: Mapping[str, object], *, choice: int | None = None) -> Self:
        """Send one delta exactly so; not streamed, its keys are keys of the message."""
        self.script.parts.append(Fields(dict(fields), _index(choice)))
        return self

    def event(self, data: bytes | Mapping[str, object]) -> Self:
        """Send one event of the stream exactly so, as bytes or as the JSON of a mapping."""
        encoded = data if isinstance(data, bytes) else msgspec.json.encode(data)
        self.script.parts.append(Event(encoded))
        return self

    def finish(self, reason: str | None, *, choice: int | None = None) -> Self:
        """Finish for `reason` (default "tool_calls" or "stop"); None leaves the reason out."""
        if not isinstance(reason, str | None):
            raise TypeError(f"reason must be a str or None, not {reason!r}")
        self.script.finish[_index(choice)] = reason
        return self

    def usage(
        self,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
        **fields: object,
    ) -> Self:
        """Send the token counts, asked for or not; those not given are counted in words."""
        self.script.usage = True
        named = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens}
        self.script.usage_fields = {
            **{name: count for name, count in named.items() if count is not None},
            **fields,
        }
        return self

    def without_usage(self) -> Self:
        """Send no token counts, though they were asked for."""
        self.script.usage = False
        return self

    def without_done(self) -> Self:
        """End the stream without `[DONE]`."""
        self.script.done = False
        return self

    def error_event(
        self,
        message: str = "The server had an error.",
        *,
        type: str = "server_error",  # noqa: A002  the format's own word
        code: str | int | None = None,
    ) -> Self:
        """End the stream with an error object in place of finish, usage and `[DONE]`.

        Not streamed, the error is the body, and the status stays 200.
        """
        self.script.error = error_body(message, type=type, code=code)
        return self

    # ------------------------------------------------------------------------ instead of an answer
    def fail(
        self,
        status: int,
        message: str = "The test server was told to fail.",
        *,
        code: str | int | None = None,
        type: str | None = None,  # noqa: A002  the format's own word
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Refuse with an HTTP status and an error in OpenAI's format."""
        if not 400 <= status <= 599:
            raise ValueError(f"a failure's status is from 400 to 599, not {status!r}")
        fallback = "server_error" if status >= 500 else "invalid_request_error"
        kind = type or _ERROR_TYPES.get(status, fallback)
        body = msgspec.json.encode(error_body(message, type=kind, code=code, param=param))
        self.raw(body, content_type="application/json", status=status, headers=headers)
        self.script.whole = True
        return self

    def raw(
        self,
        *pieces: bytes,
        content_type: str = "text/event-stream",
        status: int = 200,
        headers: Mapping[str, str] | None = None,
    ) -> Self:
        """Send exactly these bytes as the body, each piece in a write and counted as an event."""
        self.script.pieces = pieces
        self.script.content_type = content_type
        self.script.whole = False
        return self.status(status).headers(headers or {})

    def status(self, status: int) -> Self:
        """Answer with this HTTP status, whatever the body says."""
        if not 200 <= status <= 599:
            raise ValueError(f"status must be from 200 to 599, not {status!r}")
        self.script.status = status
        return self

    def headers(self, headers: Mapping[str, str]) -> Self:
        """Add HTTP headers to the answer."""
        self.script.headers.update(headers)
        return self

    # ------------------------------------------------------------------------- how it is sent
    def split(self, *, every: int | None = None, at: Sequence[int] | None = None) -> Self:
        """Cut the body into writes at these bytes, instead of one write for each event."""
        if (every is None) == (at is None):
            raise ValueError("split needs either every=<bytes> or at=[<byte offsets>]")
        if every is not None:
            self.script.cut_every, self.script.cut_at = _whole(every, "every", 1), None
        if at is not None:
            offsets = tuple(_whole(offset, "at", 0) for offset in at)
            self.script.cut_every, self.script.cut_at = None, offsets
        return self

    def delay(self, seconds: float) -> Self:
        """Wait before the headers are sent."""
        self.script.delay_seconds = _seconds(seconds)
        return self

    def drip(self, seconds: float) -> Self:
        """Pause between writes."""
        self.script.drip_seconds = _seconds(seconds)
        return self

    def comments(self, text: str = "keep-alive", *, every: int = 1) -> Self:
        """Put an SSE comment before each event, or before each `every`-th."""
        self.script.comment, self.script.comment_every = text, _whole(every, "every", 1)
        return self

    def ping(self, *, every: float) -> Self:
        """Send an SSE comment each `every` seconds while the reply is stalled in its body."""
        if _seconds(every) == 0:
            raise ValueError("every must be more than 0 seconds")
        self.script.ping_seconds = every
        return self

    # --------------------------------------------------------------------------- what goes wrong
    def cut(self, *, after: int | Literal["headers"]) -> Self:
        """End the connection with FIN after `after` events, inside the body.

        0 is before the headers, which is what a request meets on a connection that the server
        has just given up; "headers" is after them, before any event.
        """
        return self._fault("cut", after)

    def reset(self, *, after: int | Literal["headers"]) -> Self:
        """End the connection with RST after `after` events; 0 and "headers" as in `cut`."""
        return self._fault("reset", after)

    def stall(self, *, after: int | Literal["headers"]) -> Self:
        """Go silent after `after` events; 0 and "headers" as in `cut`.

        The silence ends when the client leaves, the server closes, or at `ChatServer.resume`.
        """
        return self._fault("stall", after)

    def close_after(self) -> Self:
        """Close the connection after the answer without announcing it, as llama.cpp does.

        A client that keeps the connection finds it dead at its next request, or meets its end
        while sending it; `cut(after=0)` as the next reply makes the second case certain.
        """
        self.script.closes_after = True
        return self

    # -------------------------------------------------------------------------------------- private
    def _text(self, field: str, text: str | Sequence[str], choice: int | None) -> Self:
        pieces = _WORDS.findall(text) if isinstance(text, str) else text
        self.script.parts.append(Text(field, tuple(pieces), _index(choice)))
        return self

    def _fault(
        self, kind: Literal["cut", "reset", "stall"], after: int | Literal["headers"]
    ) -> Self:
        if after != "headers":
            _whole(after, "after", 0)
        self.script.faults.append(Fault(kind, after))
        return self


def _whole(value: object, name: str, least: int) -> int:
    if type(value) is not int or value < least:
        raise ValueError(f"{name} must be a whole number from {least} up, not {value!r}")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"seconds must be a number from 0 up, not {value!r}")
    return value


def _index(choice: int | None) -> int | None:
    return None if choice is None else _whole(choice, "choice", 0)
