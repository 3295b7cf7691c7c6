"""`asyncchat chat`: one question, or a conversation.

Not here: the terminal (`terminal`), the choice of server (`target`).
Law: what the model has said stays on the screen, whatever ends the answer.
"""

import asyncio
import sys
from contextlib import AsyncExitStack, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from asyncchat.cli.target import Opened, Sampling, Target, open_target
from asyncchat.cli.terminal import complain, note, run, show
from asyncchat.errors import AsyncChatError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncchat.protocol.response import Completion

__all__ = ["command"]


def command(
    *prompt: Annotated[
        str, Parameter(help="What to ask. Else stdin; else, at a terminal, a talk.")
    ],
    target: Target = Target(),  # noqa: B008  frozen
    sampling: Sampling = Sampling(),  # noqa: B008  frozen
    system: Annotated[str | None, Parameter(help="What the model is to be or to heed.")] = None,
    json: Annotated[
        bool, Parameter(help="Print the whole completion as one JSON object.", negative=())
    ] = False,
    stream: Annotated[bool, Parameter(help="Show words as they come, or all at once.")] = True,
) -> int:
    """Ask a model; with no prompt, talk with it.

    In a talk, Ctrl-C stops the answer, /new forgets what was said, /quit or Ctrl-D ends.
    """
    start: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    if not prompt and sys.stdin.isatty():
        return _Talk(target, sampling, start).run()
    text = " ".join(prompt) if prompt else sys.stdin.read().strip()
    if not text:
        complain("There is nothing to ask: the prompt is empty.")
        return 2
    messages = [*start, {"role": "user", "content": text}]
    return run(_ask_once(target, sampling, messages, json=json, stream=stream))


async def _ask_once(
    target: Target,
    sampling: Sampling,
    messages: "Sequence[object]",
    *,
    json: bool,
    stream: bool,
) -> int:
    async with AsyncExitStack() as stack:
        opened = await open_target(target, sampling, stack)
        if json:
            completion = await _whole(opened, messages, stream=stream)
            show(completion.model_dump_json(exclude_unset=True) + "\n")
        elif stream:
            _remark(await _show_as_it_comes(opened, messages))
        else:
            completion = await _whole(opened, messages, stream=False)
            show(completion.text.removesuffix("\n") + "\n")
            _remark(completion)
    return 0


async def _whole(opened: Opened, messages: "Sequence[object]", *, stream: bool) -> "Completion":
    if stream:  # underneath, so that a stall is noticed and leaving stops the server's work
        return await opened.client.chat.stream(messages, **opened.fields).final()
    return await opened.client.chat(messages, **opened.fields)


async def _show_as_it_comes(
    opened: Opened, messages: "Sequence[object]", said: "list[str] | None" = None
) -> "Completion":
    """Show each piece when it arrives; what was shown is in `said` even if the answer is cut short."""
    said = [] if said is None else said
    try:
        async with opened.client.chat.stream(messages, **opened.fields) as stream:
            async for piece in stream.text():
                said.append(piece)
                show(piece)
    finally:
        if said and not said[-1].endswith("\n"):
            show("\n")
    return stream.completion


def _remark(completion: "Completion") -> None:
    """Say on stderr why an answer is shorter than the model meant it."""
    match completion.finish_reason:
        case "length":
            note("(cut at the token limit; --max-tokens sets it)")
        case "content_filter":
            note("(ended by the server's content filter)")
        case "tool_calls":
            note("(the model asks for a tool; see --json)")
        case _:
            pass


class _Talk:
    """A conversation at a terminal.

    The prompt is read outside the event loop and each answer is one run inside it, so that Ctrl-C means what
    it should in both places: there it ends the program, here it cancels the answer and nothing else.
    """

    def __init__(self, target: Target, sampling: Sampling, start: list[dict[str, object]]) -> None:
        self._target = target
        self._sampling = sampling
        self._start: list[object] = [*start]
        self._messages: list[object] = [*start]

    def run(self) -> int:
        """Talk until the person has had enough."""
        with suppress(ImportError):
            import_module("readline")  # arrow keys and history in input()
        stack = AsyncExitStack()
        with asyncio.Runner() as runner:
            try:
                opened = runner.run(open_target(self._target, self._sampling, stack))
                note(
                    f"{opened.model}{f' at {opened.base_url}' if opened.base_url else ''}. "
                    "Ctrl-C stops an answer, /new starts over, /quit or Ctrl-D ends."
                )
                while (line := _read_line()) is not None:
                    if line == "/new":
                        self._messages = [*self._start]
                        note("(forgotten)")
                    elif line:
                        self._take_turn(runner, opened, line)
            finally:
                runner.run(stack.aclose())
        return 0

    def _take_turn(self, runner: asyncio.Runner, opened: Opened, line: str) -> None:
        said: list[str] = []
        question = {"role": "user", "content": line}
        answer: object = None
        try:
            completion = runner.run(_show_as_it_comes(opened, [*self._messages, question], said))
            _remark(completion)
            answer = completion.message
        except KeyboardInterrupt:
            note("(stopped)")
        except AsyncChatError as error:
            complain(str(error))
        if answer is None and said:
            answer = {"role": "assistant", "content": "".join(said)}
        if answer is not None:
            self._messages += [question, answer]


def _read_line() -> str | None:
    """Return what the person typed, or None when that was the end."""
    prompt = "> "
    if not sys.stdout.isatty():  # input() would write its prompt among the results
        sys.stderr.write(prompt)
        sys.stderr.flush()
        prompt = ""
    try:
        line = input(prompt).strip()
    except (EOFError, KeyboardInterrupt) as end:
        sys.stderr.write("\n")
        if isinstance(end, KeyboardInterrupt):
            raise
        return None
    return None if line in {"/quit", "/exit"} else line
