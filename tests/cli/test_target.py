"""`cli.target`: which options name one server and one model."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from asyncchat.cli.target import Opened, Sampling, Target, open_target
from asyncchat.cli.terminal import UsageError


async def opened(target: Target, sampling: Sampling | None = None) -> Opened:
    async with AsyncExitStack() as stack:
        return await open_target(target, sampling or Sampling(), stack)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        (Target(), "No server chosen: say --local"),
        (Target(base_url="http://h/v1"), "No model chosen"),
        (Target(base_url="h:80/v1", model="m"), "--base-url starts with http"),
        (Target(base_url="http://h/v1", local=True), "choose one"),
        (Target(local=True, model="gpt"), "names a GGUF file"),
        (Target(base_url="http://h/v1", model="m", api_key_env="NOT_SET"), "NOT_SET"),
    ],
)
async def test_options_that_name_no_one_server_are_one_sentence(
    target: Target, words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        await opened(target)


async def test_options_win_over_our_variables_and_these_over_openais(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://openai.example/v1")
    monkeypatch.setenv("ASYNCCHAT_MODEL", "ours")
    assert (await opened(Target())).base_url == "http://openai.example/v1"
    monkeypatch.setenv("ASYNCCHAT_BASE_URL", "http://ours.example/v1")
    found = await opened(Target())
    assert (found.base_url, found.model) == ("http://ours.example/v1", "ours")
    found = await opened(Target(base_url="http://said.example/v1", model="said"))
    assert (found.base_url, found.model) == ("http://said.example/v1", "said")


async def test_key_alone_means_the_default_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-of-mine")
    found = await opened(Target(model="m", api_key_env="MY_KEY"))
    assert found.base_url == ""
    assert "sk-of-mine" not in repr(found)


def test_only_given_fields_are_sent() -> None:
    assert Sampling().fields() == {}
    assert Sampling(temperature=0.0, stop=["\n"]).fields() == {"temperature": 0.0, "stop": ["\n"]}


@pytest.mark.local
async def test_local_server_asks_for_a_key_that_only_this_command_has() -> None:
    from asyncchat import AsyncChat, AuthenticationError

    async with AsyncExitStack() as stack:
        found = await open_target(Target(local=True), Sampling(max_tokens=4), stack)
        assert found.fields == {"max_tokens": 4}
        assert (await found.client.chat("Hello", max_tokens=4)).text
        async with AsyncChat(base_url=found.base_url, api_key="other", model="m") as stranger:
            with pytest.raises(AuthenticationError):
                await stranger.chat("Hello", max_tokens=4)


@pytest.mark.local
async def test_local_server_takes_a_gguf_file_and_bounds_the_answer() -> None:
    from asyncchat.local import find_model

    path = find_model()
    assert path, "asyncchat local install"
    found = await opened(Target(local=True, model=str(path)))
    assert found.model == Path(path).stem
    assert found.fields == {"max_tokens": 512}
