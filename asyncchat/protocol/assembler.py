"""Chunks into events, and in the end into one `Completion`.

Not here: bytes, JSON, transport; which call a fragment belongs to (`toolcalls`). Text is kept as a list of pieces
and joined once; nothing here looks at the same text twice while it streams.

What is set and what is added up: text is joined; ids, roles and types are set once; lists in a delta extend;
values beside the choices replace; usage is merged field by field and never summed.
"""

import base64
import binascii
from collections.abc import Iterable
from typing import Any, Literal

from asyncchat.protocol.events import (
    ContentDelta,
    ContentDone,
    Event,
    Finish,
    LogprobsDelta,
    ReasoningDelta,
    ReasoningDone,
    RefusalDelta,
    RefusalDone,
    UsageReport,
)
from asyncchat.protocol.lean import CallChunk, PlainChunk, ThoughtChunk
from asyncchat.protocol.lenient import is_json, mend_surrogates, mend_value
from asyncchat.protocol.response import (
    Choice,
    Chunk,
    ChunkChoice,
    Completion,
    Delta,
    Function,
    FunctionDelta,
    Logprobs,
    Message,
    Timing,
    TokenLogprob,
    Usage,
    merge_usage,
)
from asyncchat.protocol.textfilter import TextFilter
from asyncchat.protocol.toolcalls import ToolCalls

__all__ = ["Assembler", "ChoiceState"]

_NO_USAGE = Usage()
_NO_DELTA = Delta()
_Kind = Literal["content", "refusal", "reasoning"]
_DELTA: dict[str, type[ContentDelta | RefusalDelta | ReasoningDelta]] = {
    "content": ContentDelta,
    "refusal": RefusalDelta,
    "reasoning": ReasoningDelta,
}
# A plain "stop" after one of these is a server tidying up; the earlier word says more.
_TELLING = frozenset({"tool_calls", "function_call", "length", "content_filter"})
_RUN_TEXT = ("text", "summary", "thinking")
_SEALED = frozenset({"reasoning.encrypted", "redacted_thinking"})


class ChoiceState:
    """One of the `n` answers as it grows."""

    __slots__ = (
        "annotations",
        "audio",
        "audio_data",
        "calls",
        "choice_extra",
        "content",
        "details",
        "finish_reason",
        "function",
        "function_arguments",
        "held",
        "index",
        "logprobs",
        "message_extra",
        "reasoning",
        "reasoning_name",
        "refusal",
        "role",
        "spoke",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.role = ""
        self.spoke = False  # deltas brought words or calls: whole messages then only repeat them
        self.content: list[str] = []
        self.refusal: list[str] = []
        self.reasoning: list[str] = []
        self.reasoning_name = ""
        self.details: list[Any] = []
        self.calls: ToolCalls | None = None
        self.function: str | None = None  # the older, single `function_call`
        self.function_arguments: list[str] = []
        self.annotations: list[Any] = []
        self.audio: dict[str, Any] = {}
        self.audio_data: list[str] = []
        self.logprobs: Logprobs | None = None
        self.finish_reason: str | None = None
        self.message_extra: dict[str, Any] = {}
        self.choice_extra: dict[str, Any] = {}
        self.held: dict[str, str] = {}  # halves of surrogate pairs, kept from the last event

    @property
    def has_said(self) -> bool:
        """Whether text, a call or audio has come."""
        return bool(
            self.content
            or self.refusal
            or self.reasoning
            or self.calls
            or self.function is not None
            or self.audio
        )

    def text(self, kind: _Kind, *, ended: bool) -> str:
        """Return the whole text of a kind, fit to encode."""
        pieces: list[str] = getattr(self, kind)
        text = "".join(pieces)
        return text if text.isascii() else mend_surrogates(text, more_may_come=not ended)[0]


class Assembler:
    """Gathers the chunks of one answer.

    ```python
    assembler = Assembler()
    for chunk in chunks:
        for event in assembler.feed(chunk, []): ...
    completion = assembler.snapshot()
    ```

    Args:
        n: how many answers were asked for. With one, every choice belongs to it, whatever index it bears.
        split_think_tags: take `<think>...</think>` in content for reasoning.
        cumulative_content: each delta repeats the text so far, as some servers do; keep what is new.
    """

    __slots__ = (
        "_filters",
        "_first",
        "_has_meta",
        "_meta",
        "_n",
        "_odd_text",
        "_states",
        "extra",
        "finish_error",
        "usage",
    )

    def __init__(
        self, n: int = 1, *, split_think_tags: bool = False, cumulative_content: bool = False
    ) -> None:
        self._n = n
        self._states: dict[int, ChoiceState] = {}
        self._first: ChoiceState | None = None
        self._meta: dict[str, Any] = {"id": "", "model": "", "created": None}
        self._has_meta = False
        self._odd_text = False  # text may hold halves of surrogate pairs
        self._filters = TextFilter.factory(split_think_tags, cumulative_content)
        self.usage: Usage | None = None
        self.extra: dict[str, Any] = {}
        self.finish_error = False
        """Whether a choice ended with finish_reason `error`."""

    # ------------------------------------------------------------------------------------- feed

    def plain(self, chunk: PlainChunk, out: list[Event] | None) -> None:
        """Take in a chunk that holds nothing but content: the hot path."""
        if not self._has_meta:
            self._take_meta(chunk)
        for choice in chunk.choices:
            state = self._first
            if state is None or self._n > 1:
                state = self._state(choice.index)
            delta = choice.delta
            text = delta.content
            if delta.role and not state.role:
                state.role = delta.role
            if text:
                state.spoke = True
                state.content.append(text)
                if out is not None:
                    if state.held:
                        self._tell_text(state, "content", text, out)
                    else:
                        out.append(ContentDelta(text, state.index))
        # Later values replace: said here, since a call for it would cost as much as all the rest.
        if chunk.system_fingerprint is not None:
            self._meta["system_fingerprint"] = chunk.system_fingerprint
        if chunk.service_tier is not None:
            self._meta["service_tier"] = chunk.service_tier
        if chunk.provider is not None:
            self.extra["provider"] = chunk.provider

    def thought(self, chunk: ThoughtChunk, out: list[Event] | None) -> None:
        """Take in a chunk that holds nothing but reasoning."""
        self._take_meta(chunk)
        for choice in chunk.choices:
            state, delta = self._state(choice.index), choice.delta
            text = delta.reasoning_content or delta.reasoning
            if delta.role and not state.role:
                state.role = delta.role
            if text:
                named = "reasoning_content" if delta.reasoning_content else "reasoning"
                state.reasoning_name = state.reasoning_name or named
                self._take_text(state, "reasoning", text, out)

    def piece(self, chunk: CallChunk, out: list[Event] | None) -> None:
        """Take in a chunk that holds nothing but a piece of the arguments of a call that has begun.

        Raises:
            KeyError: no such call has begun; nothing was taken in.
        """
        (choice,) = chunk.choices
        calls = self._state(choice.index).calls
        if calls is None:
            raise KeyError(choice.index)
        (piece,) = choice.delta.tool_calls
        calls.piece(piece.index, piece.function.arguments, out)
        self._take_meta(chunk)

    def feed(self, chunk: Chunk, out: list[Event] | None, *, odd_text: bool = False) -> None:
        """Take in a chunk of any kind; append what it tells to `out`, unless that is None.

        `odd_text` says that its strings may hold halves of surrogate pairs.
        """
        self._odd_text |= odd_text
        self._take_meta(chunk)
        filled: set[int] = set()  # choices that got words out of a whole message in this chunk
        for choice in chunk.choices:
            state = self._state(choice.index)
            self._take_choice(state, choice, out)
            if choice.message is not None and not state.spoke:
                self._take_message(state, choice.message, out, first=state.index not in filled)
                filled.add(state.index)
                if choice.delta == _NO_DELTA:  # to who reads chunks, what is new in it is one
                    choice.delta, choice.message = choice.message, None
        if chunk.usage is not None and chunk.usage != _NO_USAGE:
            self.usage = merge_usage(self.usage, chunk.usage)
            if out is not None:
                out.append(UsageReport(self.usage))

    def _state(self, index: int | None) -> ChoiceState:
        key = 0 if self._n == 1 else (index or 0)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = ChoiceState(key)
            self._first = self._first or state
        return state

    def _take_meta(self, chunk: Chunk | PlainChunk | ThoughtChunk | CallChunk) -> None:
        meta = self._meta
        if not self._has_meta:
            for name in ("id", "model", "created"):
                meta[name] = meta[name] or getattr(chunk, name)
            self._has_meta = bool(meta["id"] and meta["model"] and meta["created"])
        if chunk.system_fingerprint is not None:
            meta["system_fingerprint"] = chunk.system_fingerprint
        if chunk.service_tier is not None:
            meta["service_tier"] = chunk.service_tier
        extra = chunk.extra_
        if extra is not None:
            self.extra.update(
                {k: v for k, v in extra.items() if v is not None and k != "obfuscation"}
            )

    def _take_choice(
        self, state: ChoiceState, choice: ChunkChoice, out: list[Event] | None
    ) -> None:
        self._take_delta(state, choice.delta, out)
        if choice.logprobs is not None:
            self._take_logprobs(state, choice.logprobs, out)
        if choice.extra_:
            extra = choice.extra_
            state.choice_extra.update({k: v for k, v in extra.items() if v is not None})
        reason = choice.finish_reason
        if reason:
            self.finish_error |= reason == "error"
            if reason != "stop" or state.finish_reason not in _TELLING:
                state.finish_reason = reason
            if out is not None and state.calls is not None:
                state.calls.settle(out)

    def _take_message(
        self, state: ChoiceState, said: Delta, out: list[Event] | None, *, first: bool
    ) -> None:
        """A whole message in place of deltas. What it repeats of an earlier one is not taken twice.

        `first` is false for the second of several in one chunk, where the answer is split over choices.
        """
        said.content = _news(said.content, state.content, first=first)
        said.refusal = _news(said.refusal, state.refusal, first=first)
        for name in ("reasoning_content_", "reasoning_"):
            setattr(said, name, _news(getattr(said, name), state.reasoning, first=first))
        if state.reasoning:
            said.reasoning_details = None
        calls, said.tool_calls = said.tool_calls, None
        self._take_delta(state, said, out)
        whole = not state.calls
        for fragment in calls or []:
            self._calls(state).feed(fragment, out, whole=whole)
        said.tool_calls = calls
        state.spoke = False

    def _calls(self, state: ChoiceState) -> ToolCalls:
        if state.calls is None:
            completion_id = self._meta["id"]
            prefix = f"call_{completion_id}_" if completion_id else "call_"
            state.calls = ToolCalls(state.index, prefix)
        return state.calls

    def _take_delta(self, state: ChoiceState, delta: Delta, out: list[Event] | None) -> None:
        if delta.role and not state.role:
            state.role = delta.role
        if reasoning := self._reasoning_in(state, delta):
            self._take_text(state, "reasoning", reasoning, out)
        if delta.content:
            state.spoke = True
            self._take_content(state, delta.content, out)
        if delta.refusal:
            state.spoke = True
            self._take_text(state, "refusal", delta.refusal, out)
        if delta.tool_calls:
            state.spoke = True
            calls = self._calls(state)
            for fragment in delta.tool_calls:
                calls.feed(fragment, out)
        if delta.function_call is not None:
            self._take_function(state, delta.function_call)
        self._take_rest(state, delta)

    def _take_rest(self, state: ChoiceState, delta: Delta) -> None:
        if delta.annotations:
            state.annotations.extend(delta.annotations)
        if delta.audio:
            self._take_audio(state, delta.audio)
        if delta.extra_:
            _take_extra(state.message_extra, delta.extra_)

    # ------------------------------------------------------------------------------------- text

    def _take_content(self, state: ChoiceState, text: str, out: list[Event] | None) -> None:
        if self._filters is None:
            self._take_text(state, "content", text, out)
            return
        for kind, piece in self._filters[state.index].feed(text):
            self._take_text(state, kind, piece, out)

    def _take_text(
        self, state: ChoiceState, kind: _Kind, text: str, out: list[Event] | None
    ) -> None:
        getattr(state, kind).append(text)
        if out is not None:
            self._tell_text(state, kind, text, out)

    def _tell_text(self, state: ChoiceState, kind: _Kind, text: str, out: list[Event]) -> None:
        if state.held or self._odd_text:
            text, held = mend_surrogates(state.held.pop(kind, "") + text, more_may_come=True)
            if held:
                state.held[kind] = held
            if not text:
                return
        out.append(_DELTA[kind](text, state.index))

    def _reasoning_in(self, state: ChoiceState, delta: Delta) -> str:
        """One field per delta, however many carry the same words."""
        details = delta.reasoning_details
        if details:
            _join_runs(state.details, details)
        for name, text in (
            ("reasoning_content", delta.reasoning_content_),
            ("reasoning", delta.reasoning_),
            ("reasoning", _text_of(details) if details else None),
        ):
            if text:
                state.reasoning_name = state.reasoning_name or name
                return text
        return ""

    # ------------------------------------------------------------------------------- other parts

    @staticmethod
    def _take_function(state: ChoiceState, piece: FunctionDelta) -> None:
        if not (piece.name or piece.arguments):
            return
        if not state.function_arguments:
            name = state.function or ""
            state.function = name if piece.name == name else name + (piece.name or "")
        if piece.arguments:
            state.function_arguments.append(piece.arguments)

    @staticmethod
    def _take_audio(state: ChoiceState, piece: dict[str, Any]) -> None:
        for key, value in piece.items():
            if key == "data" and isinstance(value, str):
                state.audio_data.append(value)
                state.audio.setdefault("data", "")
            elif key == "transcript" and isinstance(value, str):
                state.audio[key] = state.audio.get(key, "") + value
            elif value is not None:
                state.audio.setdefault(key, value)

    @staticmethod
    def _take_logprobs(state: ChoiceState, new: Logprobs, out: list[Event] | None) -> None:
        content, refusal = new.content or [], new.refusal or []
        if state.logprobs is None:
            if not content and not refusal and not new.extra_:
                return
            state.logprobs = Logprobs()
        state.logprobs.content = _extended(state.logprobs.content, content)
        state.logprobs.refusal = _extended(state.logprobs.refusal, refusal)
        if new.extra_:
            state.logprobs.extra_ = {**state.logprobs.model_extra, **new.extra_}
        if out is not None and (content or refusal):
            out.append(LogprobsDelta(content, refusal, state.index))

    # --------------------------------------------------------------------------------- verdicts

    @property
    def has_choice(self) -> bool:
        """Whether any choice has come: an answer without one is no answer."""
        return bool(self._states)

    @property
    def has_said(self) -> bool:
        """Whether any choice holds text or a call."""
        return any(state.has_said for state in self._states.values())

    @property
    def is_finished(self) -> bool:
        """Whether every choice has a finish_reason."""
        states = self._states.values()
        return len(states) >= self._n and all(state.finish_reason for state in states)

    @property
    def has_cut_call(self) -> bool:
        """Whether a choice without finish_reason holds arguments that are not whole."""
        return any(
            (state.calls is not None and not state.calls.all_whole)
            or (bool(state.function_arguments) and not is_json("".join(state.function_arguments)))
            for state in self._states.values()
            if not state.finish_reason
        )

    # ----------------------------------------------------------------------------------- results

    def snapshot(self, *, ended: bool = False) -> Completion:
        """Return the answer so far, built now; its text is a prefix of what the finished one will hold."""
        meta = {key: value for key, value in self._meta.items() if value}
        states = sorted(self._states.values(), key=lambda state: state.index)
        made = Completion(
            **meta, choices=[self._choice(s, ended=ended) for s in states], usage=self.usage
        )
        if made.usage is not None:
            made.usage = _with_total(made.usage)
        if self.extra:
            made.extra_ = dict(self.extra)
        return self._mended(made) if self._odd_text else made

    @staticmethod
    def _mended(made: Completion) -> Completion:
        """Unknown fields can hold anything, running text that nobody joined included."""
        for holder in (made, *made.choices, *(choice.message for choice in made.choices)):
            holder.extra_ = mend_value(holder.extra_)
        for choice in made.choices:
            said = choice.message
            said.reasoning_details = mend_value(said.reasoning_details)
            said.annotations, said.audio = mend_value(said.annotations), mend_value(said.audio)
        return made

    def finish(self, out: list[Event] | None, timing: Timing | None = None) -> Completion:
        """Return the finished answer, and tell its last events."""
        for state in self._states.values():
            if self._filters is not None:
                for kind, piece in self._filters[state.index].flush():
                    self._take_text(state, kind, piece, out)
            if out is not None:  # a half that found no partner
                out.extend(_DELTA[name]("\ufffd", state.index) for name in state.held)
        made = self.snapshot(ended=True)
        made.timing = timing
        if out is not None:
            for choice in made.choices:
                self._tell_end(choice, made, out)
        return made

    def _tell_end(self, choice: Choice, made: Completion, out: list[Event]) -> None:
        message, index = choice.message, choice.index
        if message.reasoning_content:
            out.append(ReasoningDone(message.reasoning_content, index))
        if message.content:
            out.append(ContentDone(message.content, index))
        if message.refusal:
            out.append(RefusalDone(message.refusal, index))
        calls = self._states[index].calls
        if calls is not None:
            calls.finish(message.tool_calls or [], out)
        out.append(Finish(choice.finish_reason, made.usage, made.timing, index))

    def _choice(self, state: ChoiceState, *, ended: bool) -> Choice:
        made = Choice(
            index=state.index,
            message=self._message(state, ended=ended),
            finish_reason=state.finish_reason,
            logprobs=_copied(state.logprobs),
        )
        if state.choice_extra:
            made.extra_ = dict(state.choice_extra)
        return made

    def _message(self, state: ChoiceState, *, ended: bool) -> Message:
        made = Message(
            role=state.role or "assistant",
            content=state.text("content", ended=ended) or None,
            refusal=state.text("refusal", ended=ended) or None,
            reasoning_details=[
                dict(block) if isinstance(block, dict) else block for block in state.details
            ]
            or None,
            annotations=list(state.annotations) or None,
            audio=_audio(state) or None,
        )
        if reasoning := state.text("reasoning", ended=ended):
            if state.reasoning_name == "reasoning":
                made.reasoning_ = reasoning
            else:
                made.reasoning_content_ = reasoning
        if state.calls:
            made.tool_calls = state.calls.final(ended=ended) or None
        if state.function is not None:
            arguments = "".join(state.function_arguments)
            arguments, _ = mend_surrogates(arguments, more_may_come=not ended)
            made.function_call = Function(name=state.function, arguments=arguments)
        if state.message_extra:
            kept = state.message_extra.items()
            made.extra_ = {k: list(v) if isinstance(v, list) else v for k, v in kept}
        return made


def _extended(
    old: list[TokenLogprob] | None, new: list[TokenLogprob]
) -> list[TokenLogprob] | None:
    if not new:
        return old
    if old is None:
        return list(new)
    old.extend(new)
    return old


def _copied(logprobs: Logprobs | None) -> Logprobs | None:
    """A copy that does not go on growing."""
    if logprobs is None:
        return None
    content, refusal = logprobs.content, logprobs.refusal
    return Logprobs(
        content=None if content is None else list(content),
        refusal=None if refusal is None else list(refusal),
        extra_=logprobs.extra_,
    )


def _with_total(usage: Usage) -> Usage:
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    if usage.total_tokens is not None or prompt is None or completion is None:
        return usage
    return merge_usage(usage, Usage(total_tokens=prompt + completion))


def _news(text: str | None, known: list[str], *, first: bool) -> str | None:
    """Return what a whole message says beyond what is known."""
    if not text or not known:
        return text
    before = "".join(known)
    if text.startswith(before):
        return text[len(before) :]
    return text if first else None


def _take_extra(kept: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        run = kept.get(key)
        if isinstance(value, list) and (run is None or isinstance(run, list)):
            run = kept.setdefault(key, [])
            if key == "thinking_blocks":
                _join_runs(run, value)
            else:
                run.extend(value)
        elif value is not None:
            kept[key] = value


def _join_runs(kept: list[Any], new: Iterable[Any]) -> None:
    """Join reasoning blocks: a run of one type is one block, whatever index it bears.

    A new id begins a new block; a signature may come late and stays with the block it follows.
    """
    for block in new:
        if not isinstance(block, dict):
            kept.append(block)
            continue
        last = kept[-1] if kept and isinstance(kept[-1], dict) else None
        if last is None or not _is_one(last, block):
            kept.append(dict(block))
            continue
        for key, value in block.items():
            if key in _RUN_TEXT and isinstance(value, str) and isinstance(last.get(key), str):
                last[key] += value
            elif value is not None and value != "":
                last[key] = value


def _is_one(last: dict[str, Any], new: dict[str, Any]) -> bool:
    """Whether a block goes on in the next: a signature seals one, and so does its type."""
    if last.get("type") != new.get("type") or last.get("type") in _SEALED:
        return False
    if new.get("id") and last.get("id") and new["id"] != last["id"]:
        return False
    return not (last.get("signature") and any(new.get(name) for name in _RUN_TEXT))


def _text_of(blocks: list[Any]) -> str:
    texts: list[str] = []
    for block in blocks:
        if isinstance(block, dict):
            text = block.get("text") or block.get("summary") or block.get("thinking")
            if isinstance(text, str):
                texts.append(text)
    return "".join(texts)


def _audio(state: ChoiceState) -> dict[str, Any]:
    """Each piece may be padded on its own: then the pieces are decoded, joined and encoded again."""
    if not state.audio_data:
        return dict(state.audio)
    data = "".join(state.audio_data)
    if "=" in data.rstrip("="):
        try:
            raw = b"".join(base64.b64decode(piece, validate=True) for piece in state.audio_data)
            data = base64.b64encode(raw).decode()
        except binascii.Error:
            pass  # no base64 that could be mended: the text stays as it came
    return {**state.audio, "data": data}
