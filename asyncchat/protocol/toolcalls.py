"""Which call a fragment belongs to, and what a call is in the end.

Not here: text, choices, the rest of a message. A server may leave out indexes, repeat them, send ids late, early,
on every fragment or never, and cut names and arguments anywhere. The order of the rules below is their meaning:
id before index before position. "Open" is the call touched last.
"""

from asyncchat.protocol.events import Event, ToolCallDelta, ToolCallDone, ToolCallStarted
from asyncchat.protocol.lenient import dump, is_json, mend_surrogates, split_json
from asyncchat.protocol.response import Function, FunctionDelta, ToolCall, ToolCallFragment

__all__ = ["ToolCalls"]


class _Call:
    """One call as it grows: pieces of text, joined once."""

    __slots__ = (
        "announced",
        "done",
        "extra",
        "function_extra",
        "held",
        "id",
        "name",
        "pieces",
        "position",
        "type",
    )

    def __init__(self, position: int) -> None:
        self.position = position
        self.id = ""
        self.name = ""
        self.type = ""
        self.pieces: list[str] = []
        self.extra: dict[str, object] = {}
        self.function_extra: dict[str, object] = {}
        self.held = ""  # half of a surrogate pair, kept from the last event
        self.announced = False
        self.done = False

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def is_finished(self) -> bool:
        """Whether the arguments are whole JSON; the last character spares nearly every join."""
        return bool(self.pieces) and self.pieces[-1].rstrip()[-1:] in "}]" and is_json(self.text)


class ToolCalls:
    """The calls of one choice, in order of first appearance.

    Args:
        choice: the choice's index, for events.
        prefix: begins the ids made for calls that come without.
    """

    __slots__ = (
        "_by_id",
        "_by_index",
        "_calls",
        "_choice",
        "_left",
        "_open",
        "_origins",
        "_prefix",
    )

    def __init__(self, choice: int, prefix: str = "call_") -> None:
        self._choice = choice
        self._prefix = prefix
        self._calls: list[_Call] = []
        self._by_id: dict[str, _Call] = {}
        self._by_index: dict[int, _Call] = {}
        self._open: _Call | None = None
        self._left: list[_Call] = []  # calls that were open since the last one began
        self._origins: list[_Call] = []  # of each call that `final` gave, which one it grew from

    def __len__(self) -> int:
        return len(self._calls)

    def feed(
        self, fragment: ToolCallFragment, out: list[Event] | None, *, whole: bool = False
    ) -> None:
        """Add one fragment; append what it tells to `out`, unless that is None.

        With `whole`, it comes out of a whole message, where each entry is a call of its own.
        """
        function = fragment.function or FunctionDelta()
        name, arguments = function.name or "", function.arguments or ""
        if name == "null" and self._has_name(fragment):
            name = ""
        if not (fragment.id or name or arguments):
            if (call := self._touched(fragment)) is not None:
                _keep(call.extra, fragment.extra_)
            return  # hollow: it opens nothing
        before, last = len(self._calls), self._open
        known = fragment.id in self._by_id
        call = self._new() if whole and not known else self._owner(fragment, name)
        self._touch(call)
        if out is not None and len(self._calls) > before:
            self._settle(out, [*self._left, last] if last is not None else self._left)
            self._left = []
        self._add(call, fragment, name)
        if arguments:
            call.pieces.append(arguments)
            if out is not None:
                self._tell(call, arguments, out)

    def piece(self, index: int, arguments: str, out: list[Event] | None) -> None:
        """Add a piece of arguments that names its call by a known index and says nothing else.

        Raises:
            KeyError: the index is not known, and nothing was added.
        """
        call = self._by_index[index]
        self._touch(call)
        if arguments:
            call.pieces.append(arguments)
            if out is not None:
                self._tell(call, arguments, out)

    # --------------------------------------------------------------------------------- routing

    def _touched(self, fragment: ToolCallFragment) -> _Call | None:
        if fragment.id and fragment.id in self._by_id:
            return self._by_id[fragment.id]
        if fragment.index is not None and fragment.index in self._by_index:
            return self._by_index[fragment.index]
        return self._open

    def _has_name(self, fragment: ToolCallFragment) -> bool:
        call = self._touched(fragment)
        return call is not None and bool(call.name)

    def _owner(self, fragment: ToolCallFragment, name: str) -> _Call:
        call_id, index, current = fragment.id or "", fragment.index, self._open
        if call_id in self._by_id:
            call = self._by_id[call_id]
        elif index is not None and index in self._by_index:
            call = self._at_known_index(self._by_index[index], call_id, name)
        elif current is None or (index is not None and not self._is_tail(current, call_id, name)):
            call = self._new()
        elif index is not None:
            call = current
        else:
            call = self._without_index(current, call_id, name)
        if index is not None and (call_id not in self._by_id or index not in self._by_index):
            self._by_index[index] = call
        return call

    def _touch(self, call: _Call) -> None:
        """Make a call the open one; who was open before is looked at when the next call begins."""
        if self._open is not None and self._open is not call:
            self._left.append(self._open)
        self._open = call

    def _at_known_index(self, call: _Call, call_id: str, name: str) -> _Call:
        if call_id and name:
            # Its own head may come late: then it has no id yet, and nothing that speaks against the name.
            late = not call.id and (not call.name or (call.name == name and not call.is_finished))
            return call if late else self._new()
        if name and call.name and name != call.name and call.is_finished:
            return self._new()
        return call

    @staticmethod
    def _is_tail(current: _Call, call_id: str, name: str) -> bool:
        return not call_id and not name and not current.is_finished

    def _without_index(self, current: _Call, call_id: str, name: str) -> _Call:
        if not name:
            return current
        another = bool(call_id and current.id)
        if not current.name and not another:
            return current
        repeats = name == current.name and not current.is_finished
        return current if repeats and not another else self._new()

    def _new(self) -> _Call:
        call = _Call(len(self._calls))
        self._calls.append(call)
        return call

    def _add(self, call: _Call, fragment: ToolCallFragment, name: str) -> None:
        if fragment.id:
            call.id = call.id or fragment.id
            self._by_id.setdefault(fragment.id, call)
        if not call.name:
            call.name = name
        elif name and name != call.name and not call.pieces:
            call.name += name  # a name in fragments; an equal one is a repeat
        call.type = call.type or fragment.type or ""
        _keep(call.extra, fragment.extra_)
        if fragment.function is not None:
            _keep(call.function_extra, fragment.function.extra_)

    # ---------------------------------------------------------------------------------- events

    def _tell(self, call: _Call, arguments: str, out: list[Event]) -> None:
        if not call.announced:
            if not call.name:
                return  # its name is still to come; what it said so far is told then
            self._announce(call, out)
            arguments = call.text
        if call.held or not arguments.isascii():
            arguments, call.held = mend_surrogates(call.held + arguments, more_may_come=True)
        if arguments:
            out.append(ToolCallDelta(call.position, arguments, self._choice))

    def _announce(self, call: _Call, out: list[Event]) -> None:
        call.announced = True
        out.append(ToolCallStarted(call.position, call.name, call.id, self._choice))

    def _settle(self, out: list[Event], calls: "list[_Call]") -> None:
        """Tell of the calls that something else has now followed: started, and done if whole."""
        for call in calls:
            if call.done or not (call.announced or call.name):
                continue  # one without a name is told of in the end
            if not call.announced:
                self._announce(call, out)
                if call.pieces:
                    self._tell(call, call.text, out)
            if call.is_finished:
                self._finish_call(call, mend_surrogates(call.text)[0], out)

    def _finish_call(self, call: _Call, arguments: str, out: list[Event]) -> None:
        call.done = True
        call.id = call.id or self._made_id(call.position)
        done = ToolCallDone(call.position, call.name, arguments, call.id, self._choice)
        out.append(done)

    def settle(self, out: list[Event]) -> None:
        """Tell of every call that is whole, since the choice has its finish_reason."""
        self._settle(out, self._calls)

    def finish(self, calls: list[ToolCall], out: list[Event]) -> None:
        """Tell what is still untold of `calls`, which `final` gave."""
        for call in self._calls:
            if not call.announced:
                self._announce(call, out)
                if call.pieces:
                    self._tell(call, call.text, out)
            if call.held:  # half of a pair that found no partner
                out.append(ToolCallDelta(call.position, "\ufffd", self._choice))
        for position, (origin, made) in enumerate(zip(self._origins, calls, strict=True)):
            if not origin.done and made.function.is_complete:
                name, arguments = made.function.name, made.function.arguments
                out.append(ToolCallDone(position, name, arguments, made.id, self._choice))

    # ----------------------------------------------------------------------------------- result

    @property
    def all_whole(self) -> bool:
        """Whether no call was cut in its arguments."""
        return all(not call.pieces or split_json(call.text) for call in self._calls)

    def final(self, *, ended: bool) -> list[ToolCall]:
        """Return the calls; once `ended`, with arguments mended where the rules allow it."""
        calls: list[ToolCall] = []
        self._origins = []
        for call in self._calls:
            text, _ = mend_surrogates(call.text, more_may_come=not ended)
            for number, one in enumerate(_mended(text) if ended else [text]):
                calls.append(self._made(call, one, first=number == 0))
                self._origins.append(call)
        for position, made in enumerate(calls):
            made.id = made.id or self._made_id(position, {other.id for other in calls})
        return calls

    def _made_id(self, position: int, taken: set[str] | None = None) -> str:
        """Make an id for a call that came without: the same at each asking, and nobody else's."""
        made = f"{self._prefix}{position}"
        while made in self._by_id or (taken and made in taken):
            made += "_"
        return made

    @staticmethod
    def _made(call: _Call, arguments: str, *, first: bool) -> ToolCall:
        made = ToolCall(
            id=call.id if first else "",
            type=call.type or "function",
            function=Function(name=call.name, arguments=arguments),
        )
        made.extra_ = dict(call.extra) or None
        made.function.extra_ = dict(call.function_extra) or None
        return made


def _mended(text: str) -> list[str]:
    """Return the argument texts in one call's text: nearly always that one text, untouched."""
    if not text.strip():
        return ["{}"]
    if is_json(text):
        return [text]
    values = split_json(text)
    if values is None:
        return [text]  # cut: kept as it is, and `Function.is_complete` says so
    while len(values) > 1 and values[0][1] == {}:
        values = values[1:]  # an empty object as a head start
    distinct: dict[str, str] = {}
    for one, value in values:
        distinct.setdefault(dump(value), one)  # as text, since 1 == True
    return list(distinct.values())  # what came twice was sent twice; any other is another call


def _keep(kept: dict[str, object], new: dict[str, object] | None) -> None:
    """Keep unknown fields; a null takes nothing away."""
    if new:
        kept.update({name: value for name, value in new.items() if value is not None})
