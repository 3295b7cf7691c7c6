"""Which server a command talks to, and how it asks: options that mean the same in every command.

Not here: the asking.
"""

import os
import secrets
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from cyclopts import Parameter

from asyncchat.cli.terminal import UsageError, fetch_model

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncchat import AsyncChat, Endpoint, Limits

__all__ = ["Fields", "Opened", "Sampling", "Target", "open_target"]

# Request fields on their way into keywords of the client, where each has a type of its own.
Fields: TypeAlias = dict[str, Any]

_LOCAL_MAX_TOKENS = 512  # left alone, a model this small often rambles to the end of its context


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Target:
    """A server and a model."""

    base_url: Annotated[
        str | None,
        Parameter(
            help="The server, up to and with /v1. Else ASYNCCHAT_BASE_URL, OPENAI_BASE_URL."
        ),
    ] = None
    model: Annotated[
        str | None,
        Parameter(help="The model. Else ASYNCCHAT_MODEL. With --local: a GGUF file of your own."),
    ] = None
    api_key_env: Annotated[
        str | None,
        Parameter(help="The environment variable that holds the key. Else OPENAI_API_KEY."),
    ] = None
    local: Annotated[
        bool, Parameter(help="Start a small model on this machine and ask that.", negative=())
    ] = False


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How the model picks its words. What is left out is left to the server."""

    max_tokens: Annotated[int | None, Parameter(help="Stop after so many tokens.")] = None
    temperature: Annotated[float | None, Parameter(help="0 is the likeliest word each time.")] = (
        None
    )
    top_p: Annotated[float | None, Parameter(help="Keep the likeliest words up to this sum.")] = (
        None
    )
    seed: Annotated[
        int | None, Parameter(help="The same seed, the same answer, where supported.")
    ] = None
    stop: Annotated[
        list[str] | None,
        Parameter(help="End the answer before this text; repeatable.", negative=()),
    ] = None

    def fields(self) -> Fields:
        """Return the request fields that were given."""
        given = {
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "seed": self.seed,
            "stop": self.stop,
        }
        return {name: value for name, value in given.items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A client for the target, with what a person wants to know about it."""

    client: "AsyncChat"
    base_url: str
    model: str
    fields: Fields


async def open_target(
    target: Target,
    sampling: Sampling,
    stack: AsyncExitStack,
    *,
    parallel: int = 1,
    limits: "Limits | None" = None,
    endpoints: "Sequence[Endpoint]" = (),
) -> Opened:
    """Open what `target` names, to be closed by `stack`: the local server first, if there is to be one.

    Args:
        target: A server and a model.
        sampling: Fields of every request.
        stack: Closes what is opened.
        parallel: How many answers the local server writes at once.
        limits: On requests at once and a minute.
        endpoints: Servers instead of the one in `target`.

    Raises:
        UsageError: The options do not name one server and one model.
        LocalError: There is no local model here.
    """
    fields = sampling.fields()
    if target.local:
        if endpoints:
            raise UsageError("--local and --endpoint name several servers; choose one.")
        fields.setdefault("max_tokens", _LOCAL_MAX_TOKENS)
        client, base_url, model = await _start_local(target, stack, parallel, limits)
    elif endpoints:
        client, base_url, model = _several(target, endpoints, limits)
    else:
        key = _key(target)
        base_url, model = _base_url(target, key), _model(target)
        from asyncchat import AsyncChat

        try:
            client = AsyncChat(base_url=base_url or None, api_key=key, model=model, limits=limits)
        except ValueError as error:
            raise UsageError(str(error)) from error
    await stack.enter_async_context(client)
    return Opened(client=client, base_url=base_url, model=model, fields=fields)


def _several(
    target: Target, endpoints: "Sequence[Endpoint]", limits: "Limits | None"
) -> "tuple[AsyncChat, str, str]":
    from asyncchat import AsyncChat

    if target.base_url or target.api_key_env:
        raise UsageError(
            "--endpoint stands for --base-url and --api-key-env: say one or the other."
        )
    model = target.model or os.environ.get("ASYNCCHAT_MODEL")
    if not model and not all(endpoint.model for endpoint in endpoints):
        raise UsageError("No model chosen: say --model NAME, or model=NAME in each --endpoint.")
    try:
        client = AsyncChat(endpoints=endpoints, model=model, limits=limits)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return client, endpoints[0].url, model or endpoints[0].model or ""


async def _start_local(
    target: Target, stack: AsyncExitStack, parallel: int, limits: "Limits | None"
) -> "tuple[AsyncChat, str, str]":
    path = _local_path(target)
    from asyncchat.local import local_server, require_engine

    require_engine()  # before 93 MB are fetched for nothing
    if path is None:
        await fetch_model()
    # A key of its own: nobody else on this machine can use the server, and the user's key stays home.
    key = secrets.token_urlsafe(24)
    server = await stack.enter_async_context(local_server(path, parallel=parallel, api_key=key))
    from asyncchat import AsyncChat

    client = AsyncChat(
        base_url=server.base_url, api_key=key, model=server.model, limits=limits, trust_env=False
    )
    return client, server.base_url, server.model


def _local_path(target: Target) -> Path | None:
    if target.base_url:
        raise UsageError("--local and --base-url name two servers; choose one.")
    if target.model is None:
        return None
    path = Path(target.model)
    if path.suffix != ".gguf":
        raise UsageError("With --local, --model names a GGUF file on this machine.")
    return path


def _key(target: Target) -> str | None:
    if target.api_key_env is None:
        return None
    key = os.environ.get(target.api_key_env)
    if not key:
        raise UsageError(
            f"The environment variable {target.api_key_env} (--api-key-env) is not set."
        )
    return key


def _base_url(target: Target, key: str | None) -> str:
    base_url = (
        target.base_url
        or os.environ.get("ASYNCCHAT_BASE_URL")
        or os.environ.get("OPENAI_BASE_URL")
        or ""
    )
    if not base_url and not key and not os.environ.get("OPENAI_API_KEY"):
        raise UsageError(
            "No server chosen: say --local for a small model on this machine, --base-url URL --model NAME "
            "for a server of your own, or set OPENAI_API_KEY."
        )
    if base_url and not base_url.startswith(("http://", "https://")):
        raise UsageError("--base-url starts with http:// or https://, and usually ends in /v1.")
    return base_url


def _model(target: Target) -> str:
    model = target.model or os.environ.get("ASYNCCHAT_MODEL")
    if not model:
        raise UsageError("No model chosen: say --model NAME or set ASYNCCHAT_MODEL.")
    return model
