"""Server-sent events out of bytes cut anywhere.

Not here: JSON, chat, I/O, time. Source: WHATWG HTML, "Interpreting an event stream", with one addition: a field
named `error` counts as data of an event of that name, since a server that sends one means it.
Law: however the bytes are cut, `feed` yields the same payloads, and time is linear in the bytes.
"""

import re
from collections.abc import Iterator

from asyncchat.errors import LimitExceeded

__all__ = ["MAX_EVENT_BYTES", "SSEParser"]

MAX_EVENT_BYTES = 16 * 2**20

_BOM = b"\xef\xbb\xbf"
_BLANKS = re.compile(rb"[\r\n]*")
_LF, _CR, _COLON, _SPACE = b"\n\r: "


class SSEParser:
    """Turns bytes into the payloads of events, without copying them.

    ```python
    parser = SSEParser()
    for data in pieces_of_the_body:
        for payload in parser.feed(data):      # a memoryview of `data`, wherever one read holds the event
            print(parser.event or "message", bytes(payload))
    ```

    Args:
        max_event_bytes: the most that one event may take while it is incomplete; beyond it `LimitExceeded`.
    """

    __slots__ = (
        "_after_cr",
        "_data",
        "_held",
        "_name",
        "_owned",
        "_piece",
        "_started",
        "event",
        "last_event_id",
        "max_event_bytes",
        "retry",
    )

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self.max_event_bytes = max_event_bytes
        self.event = ""
        """Name of the event whose payload was yielded last; `""` means `message`."""
        self.last_event_id = ""
        self.retry: int | None = None
        """The reconnection time that the server asked for, in milliseconds."""
        self._name = ""
        self._data: list[bytes | memoryview] = []  # the data lines of the event being read
        self._piece: list[bytes] = []  # the line being read, as far as earlier reads held it
        self._owned = 0  # how many of these are copies
        self._held = 0  # bytes in both
        self._after_cr = False  # a CR ended the last line: an LF right after it belongs to it
        self._started = False  # the first line, which may bear a byte order mark, is over

    def feed(self, data: bytes) -> Iterator[memoryview]:  # noqa: C901, PLR0912  the hot path, in one place
        """Yield the payload of each event that `data` completes; take all of them before feeding more.

        `event` and `last_event_id` speak of the payload yielded last.

        Raises:
            LimitExceeded: an event grew beyond `max_event_bytes`.
        """
        view = memoryview(data)
        size = len(data)
        position = 0
        if self._after_cr and size:
            self._after_cr = False
            position = data[0] == _LF
        find, startswith = data.find, data.startswith
        # Absent from almost every stream; one scan of the read says so, and lines then end at LF alone.
        next_cr = _found(find(b"\r", position), size)
        next_lf = -1
        while position < size:
            if next_cr == size and not self._held and not self._name:
                # What nearly every server sends, and nothing else: one data line and a blank one.
                self.event = ""
                while startswith(b"data: ", position):
                    end = find(b"\n", position)
                    if end < 0 or end + 1 == size or data[end + 1] != _LF:
                        break
                    self._started = True
                    yield view[position + 6 : end]
                    position = end + 2
                if position == size:
                    return
            # Each is sought again only once it lies behind: without that, a stream of CRs is quadratic.
            if next_lf < position:
                next_lf = _found(find(b"\n", position), size)
            if next_cr < position:
                next_cr = _found(find(b"\r", position), size)
            end = min(next_lf, next_cr)
            if end == size:
                self._keep(data[position:])
                return
            if end == position and not self._held and not self._name:
                position = _blank_lines(data, position)  # at the speed of the wire, however many
                self._after_cr = position == size and data[position - 1] == _CR
                continue
            payload = self._line(data, view, position, end)
            position = end + 1
            if data[end] == _CR:
                if position == size:
                    self._after_cr = True
                elif data[position] == _LF:
                    position += 1
            if payload is not None:
                yield payload
        self._own()

    @property
    def is_between(self) -> bool:
        """Whether no event has begun: the next byte begins a line of another."""
        return not (self._held or self._name or self._after_cr or self._piece or self._data)

    def flush(self) -> memoryview | None:
        """Return the payload of the event that the end of the body left open, or None.

        The standard drops such an event; its caller decides whether what it holds is whole.
        """
        if self._piece:
            line = b"".join(self._piece)
            self._line(b"", memoryview(b""), 0, 0, line)
        return self._dispatch()

    # ------------------------------------------------------------------------------------ lines

    def _keep(self, piece: bytes) -> None:
        self._piece.append(piece)
        self._own()
        self._grow(len(piece))

    def _own(self) -> None:
        """Keep the lines of an event that goes on: views of a read must not outlive it, and each is copied once."""
        while self._owned < len(self._data):
            self._data[self._owned] = bytes(self._data[self._owned])
            self._owned += 1

    def _grow(self, size: int) -> None:
        self._held += size
        if self._held > self.max_event_bytes:
            raise LimitExceeded(
                f"one event is larger than {self.max_event_bytes} bytes",
                hint="Raise Limits(max_event_bytes=...) if the server is right to send it.",
            )

    def _line(
        self, data: bytes, view: memoryview, start: int, end: int, whole: bytes | None = None
    ) -> memoryview | None:
        """Take in the line `data[start:end]`; return a payload where the line ends an event."""
        if self._piece or whole is not None:
            # Joined once per line: a growing prefix is quadratic when a large event comes in small reads.
            self._held -= sum(map(len, self._piece))
            if whole is None:
                self._piece.append(data[start:end])
                whole = b"".join(self._piece)
            self._piece.clear()
            data, view, start, end = whole, memoryview(whole), 0, len(whole)
        if not self._started:
            self._started = True
            start += 3 * data.startswith(_BOM, start, end)
        if start == end:
            return self._dispatch()
        self._field(data, view, start, end)
        return None

    def _field(self, data: bytes, view: memoryview, start: int, end: int) -> None:
        colon = data.find(b":", start, end)
        if colon == start:
            return  # a comment
        name = data[start : colon if colon > 0 else end]
        value = end
        if colon > 0:
            value = colon + 1
            value += value < end and data[value] == _SPACE
        if name == b"data" or name == b"error":
            self._data.append(view[value:end])
            self._grow(end - value + 1)
            if name == b"error":
                self._name = "error"
        elif name == b"event":
            self._name = str(view[value:end], "utf-8", "replace")
        elif name == b"id":
            if b"\0" not in data[value:end]:
                self.last_event_id = str(view[value:end], "utf-8", "replace")
        elif name == b"retry":
            digits = data[value:end]
            if digits.isdigit():
                self.retry = int(digits[:15])

    def _dispatch(self) -> memoryview | None:
        lines, self._data, self._held, self._owned = self._data, [], 0, 0
        self.event, self._name = self._name, ""
        if not lines:
            return None
        if len(lines) == 1:
            return memoryview(lines[0])
        return memoryview(b"\n".join(lines))


def _found(position: int, size: int) -> int:
    return position if position >= 0 else size


def _blank_lines(data: bytes, position: int) -> int:
    """Return where a row of blank lines ends."""
    found = _BLANKS.match(data, position)
    return found.end() if found else position
