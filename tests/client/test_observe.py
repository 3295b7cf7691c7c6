"""What observers and the log hear: each thing once, in order, and never a prompt, an answer or a key."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from asyncchat import (
    APIStatusError,
    AsyncChat,
    AsyncChatError,
    BadRequestError,
    Endpoint,
    InternalServerError,
    Limits,
    LineFull,
    PoolClosed,
    RateLimitError,
    RetryPolicy,
    StreamCut,
)
from asyncchat.client import observe
from asyncchat.protocol.facts import (
    AnswerStarted,
    AttemptDropped,
    AttemptFailed,
    AttemptStarted,
    Fact,
    RequestFailed,
    RequestFinished,
    RequestLeft,
    RequestStarted,
)
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import KEY, MakeClient, Waits, start

PROMPT = "prompt-of-the-user"
ANSWER = "Quixotic vermilion zephyrs"


@pytest.fixture
def facts() -> list[Fact]:
    return []


@pytest.fixture
async def other() -> Any:
    """A second server."""
    server = ChatServer()
    await server.start()
    try:
        yield server
    finally:
        await server.close()


def kinds(facts: list[Fact]) -> list[type[Fact]]:
    return [type(fact) for fact in facts]


def only(facts: list[Fact], kind: type[Any]) -> list[Any]:
    return [fact for fact in facts if isinstance(fact, kind)]


GOOD = [RequestStarted, AttemptStarted, AnswerStarted, RequestFinished]


# ------------------------------------------------------------------------------- what is told, when


@pytest.mark.parametrize("streamed", [False, True])
async def test_good_request_is_told_in_four_facts(
    streamed: bool, server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    server.say("One two.").usage(3, 2)
    answer = await (client.chat.stream("a").final() if streamed else client.chat("a"))
    started, attempt, began, finished = facts
    assert isinstance(started, RequestStarted)
    assert isinstance(attempt, AttemptStarted)
    assert isinstance(began, AnswerStarted)
    assert isinstance(finished, RequestFinished)
    assert len({fact.request for fact in facts}) == 1
    assert (started.model, started.stream) == ("m", streamed)
    assert (attempt.attempt, attempt.endpoint, attempt.is_hedge) == (1, server.base_url, False)
    assert (began.attempt, began.endpoint) == (1, server.base_url)
    assert attempt.waited >= 0
    assert 0 < began.seconds <= finished.timing.total
    assert (finished.endpoint, finished.model) == (server.base_url, "m")
    assert finished.id == answer.id == "chatcmpl-1"
    assert finished.finish_reasons == ("stop",)
    assert finished.usage is not None
    assert finished.usage.total_tokens == 5
    assert answer.timing is not None
    assert finished.timing.attempts == answer.timing.attempts == 1


async def test_each_choice_has_its_reason_and_usage_is_none_where_there_is_none(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    reply = server.reply().say("x").finish("length", choice=0).finish("stop", choice=1)
    reply.without_usage()
    await client.chat("a", n=2)
    finished = facts[-1]
    assert isinstance(finished, RequestFinished)
    assert finished.finish_reasons == ("length", "stop")
    assert finished.usage is None


async def test_no_two_requests_have_the_same_number(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    clients = [make_client(observers=[facts.append]) for _ in range(2)]
    for client in clients * 5:
        await client.chat("a")
    numbers = [fact.request for fact in only(facts, RequestStarted)]
    assert len(set(numbers)) == 10
    assert numbers == sorted(numbers)


async def test_retried_request_tells_each_failure_and_the_wait_after_it(
    server: ChatServer,
    make_client: MakeClient,
    facts: list[Fact],
    record_waits: type[Waits],
) -> None:
    client = make_client(max_retries=2, observers=[facts.append])
    waits = record_waits(client, rand=0.5)
    server.fail(500)
    server.fail(429, headers={"Retry-After": "2"})
    await client.chat("a")
    assert kinds(facts) == [
        RequestStarted,
        AttemptStarted,
        AttemptFailed,
        AttemptStarted,
        AttemptFailed,
        AttemptStarted,
        AnswerStarted,
        RequestFinished,
    ]
    first, second = only(facts, AttemptFailed)
    assert (first.attempt, first.endpoint, first.blame) == (1, server.base_url, "broken")
    assert (second.attempt, second.blame) == (2, "limited")
    assert isinstance(first.error, InternalServerError)
    assert isinstance(second.error, RateLimitError)
    assert [first.wait, second.wait] == waits.seconds == [0.25, pytest.approx(2.1)]
    assert [fact.attempt for fact in only(facts, AttemptStarted)] == [1, 2, 3]
    assert facts[-1].timing.attempts == 3  # type: ignore[union-attr]  # that it is a RequestFinished is asserted above


async def test_request_that_fails_for_good_tells_its_last_failure_and_its_end(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    server.fail(400)
    with pytest.raises(BadRequestError) as caught:
        await client.chat("a")
    assert kinds(facts) == [RequestStarted, AttemptStarted, AttemptFailed, RequestFailed]
    _, _, attempt, request = facts
    assert isinstance(attempt, AttemptFailed)
    assert isinstance(request, RequestFailed)
    assert (attempt.blame, attempt.wait) == ("request", None)
    assert attempt.error is request.error is caught.value
    assert request.seconds > 0


async def test_request_that_failed_over_tells_where_and_that_nobody_waited(
    server: ChatServer, other: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = two(server, other, facts)
    server.fail(503)
    async with client:
        await client.chat("a")
    assert kinds(facts) == [
        RequestStarted,
        AttemptStarted,
        AttemptFailed,
        AttemptStarted,
        AnswerStarted,
        RequestFinished,
    ]
    assert facts[0].model is None  # type: ignore[union-attr]  # each endpoint has its own
    [failed] = only(facts, AttemptFailed)
    assert (failed.endpoint, failed.blame, failed.wait) == (server.base_url, "overloaded", 0.0)
    assert [fact.endpoint for fact in only(facts, AttemptStarted)] == [
        server.base_url,
        other.base_url,
    ]
    assert facts[-1].endpoint == other.base_url  # type: ignore[union-attr]


def two(server: ChatServer, other: ChatServer, facts: list[Fact], **options: Any) -> AsyncChat:
    """A client of two servers, which asks the first one first."""
    endpoints = [Endpoint(server.base_url, KEY, "m"), Endpoint(other.base_url, KEY, "m")]
    return AsyncChat(endpoints=endpoints, observers=[facts.append], **options)


@pytest.mark.parametrize("streamed", [False, True])
async def test_hedged_request_tells_of_the_second_attempt_and_of_the_slower_one(
    streamed: bool, server: ChatServer, other: ChatServer, facts: list[Fact]
) -> None:
    server.stall(after=0)
    async with two(server, other, facts, retry=RetryPolicy(hedge=0.01)) as client:
        await (client.chat.stream("a").final() if streamed else client.chat("a"))
    assert len(only(facts, RequestStarted)) == len(only(facts, RequestFinished)) == 1
    first, second = only(facts, AttemptStarted)
    assert (first.attempt, first.endpoint, first.is_hedge) == (1, server.base_url, False)
    assert (second.attempt, second.endpoint, second.is_hedge) == (2, other.base_url, True)
    [began] = only(facts, AnswerStarted)
    assert (began.attempt, began.endpoint) == (2, other.base_url)
    [dropped] = only(facts, AttemptDropped)
    assert (dropped.attempt, dropped.endpoint) == (1, server.base_url)
    assert only(facts, AttemptFailed) == only(facts, RequestLeft) == []
    assert only(facts, RequestFinished)[0].timing.attempts == 2


@pytest.mark.parametrize("streamed", [False, True])
async def test_end_of_a_hedged_request_is_the_last_that_is_told_of_it(
    streamed: bool, server: ChatServer, other: ChatServer, facts: list[Fact]
) -> None:
    server.stall(after=0)
    async with two(server, other, facts, retry=RetryPolicy(hedge=0.01)) as client:
        await (client.chat.stream("a").final() if streamed else client.chat("a"))
    assert isinstance(facts[-1], RequestFinished)


async def test_stream_cut_in_the_middle_tells_of_its_end_with_the_answer_so_far(
    server: ChatServer, make_client: MakeClient
) -> None:
    seen: list[tuple[Fact, str]] = []

    def look(fact: Fact) -> None:
        error = getattr(fact, "error", None)
        seen.append((fact, error.partial.text if error is not None and error.partial else ""))

    client = make_client(max_retries=2, observers=[look])
    server.cut(after=3)
    with pytest.raises(StreamCut) as caught:
        await client.chat.stream("a").final()
    assert kinds([fact for fact, _ in seen]) == [
        RequestStarted,
        AttemptStarted,
        AnswerStarted,
        RequestFailed,
    ]
    failed, partial = seen[-1]
    assert isinstance(failed, RequestFailed)
    assert failed.error is caught.value
    assert partial == "One two"


@pytest.mark.parametrize("way", ["break", "block", "aclose", "dropped iterator"])
async def test_stream_left_early_tells_that_its_caller_left_and_nothing_more(
    way: str, server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    server.stall(after=3)
    if way == "dropped iterator":
        async for _ in await client.chat.completions.create(messages="a", stream=True):
            break
    else:
        async with client.chat.stream("a") as stream:
            if way == "break":
                async for _ in stream:
                    break
            if way == "aclose":
                await stream.aclose()
                await stream.aclose()
    assert kinds(facts) == [RequestStarted, AttemptStarted, AnswerStarted, RequestLeft]
    assert facts[-1].seconds > 0  # type: ignore[union-attr]


async def test_cancelled_request_tells_that_its_caller_left(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append], limits=Limits(in_flight=1))
    server.stall(after=0)
    task, waiting = start(client.chat("a")), start(client.chat("b"))
    await server.wait_for_requests(1)
    for one in (waiting, task):
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    in_flight, in_line = (fact.request for fact in only(facts, RequestStarted))
    told = {
        number: kinds([fact for fact in facts if fact.request == number])
        for number in (in_flight, in_line)
    }
    assert told == {
        in_flight: [RequestStarted, AttemptStarted, RequestLeft],
        in_line: [RequestStarted, RequestLeft],
    }


async def test_cancelled_while_it_is_read_a_stream_tells_that_its_caller_left(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    server.stall(after=3)
    task = start(client.chat.stream("a").final())
    await server.wait_for_requests(1)
    while client.statistics().attempts and len(facts) < 3:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert kinds(facts) == [RequestStarted, AttemptStarted, AnswerStarted, RequestLeft]


@pytest.mark.parametrize("mode", ["restart", "continue"])
async def test_resumed_stream_stays_one_request(
    mode: str, server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    server.cut(after=3)
    server.say(" three")
    async with client.chat.stream("a", resume=mode) as stream:
        await stream.final()
    assert kinds(facts) == [
        RequestStarted,
        AttemptStarted,
        AnswerStarted,
        AttemptFailed,
        AttemptStarted,
        AnswerStarted,
        RequestFinished,
    ]
    assert len({fact.request for fact in facts}) == 1
    [failed] = only(facts, AttemptFailed)
    assert (failed.attempt, failed.blame, failed.wait) == (1, "broken", 0.0)
    assert isinstance(failed.error, StreamCut)
    assert [fact.attempt for fact in only(facts, AttemptStarted)] == [1, 2]
    timing = facts[-1].timing  # type: ignore[union-attr]
    assert (timing.attempts, timing.resumed) == (2, 1)


async def test_stream_that_cannot_be_resumed_tells_its_end_once_with_the_answer_so_far(
    server: ChatServer, make_client: MakeClient
) -> None:
    seen: list[tuple[Fact, str]] = []

    def look(fact: Fact) -> None:
        error = getattr(fact, "error", None)
        seen.append((fact, error.partial.text if error is not None and error.partial else ""))

    client = make_client(observers=[look])
    server.cut(after=3)
    server.fail(400)
    with pytest.raises(BadRequestError):
        await client.chat.stream("a", resume="restart").final()
    assert kinds([fact for fact, _ in seen])[-2:] == [AttemptFailed, RequestFailed]
    assert len([fact for fact, _ in seen if isinstance(fact, RequestFailed)]) == 1
    assert seen[-1][1] == "One two"


async def test_request_that_finds_the_line_full_tells_that_it_failed(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append], limits=Limits(in_flight=1, waiting=1))
    server.stall(after=3)
    async with client.chat.stream("a"):
        waiter = start(client.chat("b"))
        await asyncio.sleep(0)
        facts.clear()
        with pytest.raises(LineFull):
            await client.chat("c")
    await waiter
    number = facts[0].request
    assert kinds([fact for fact in facts if fact.request == number]) == [
        RequestStarted,
        RequestFailed,
    ]


async def test_stream_whose_client_is_closed_tells_that_it_failed(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    server.stall(after=3)
    async with client.chat.stream("a") as stream:
        await client.close()
        with pytest.raises(PoolClosed):
            await stream.final()
    assert kinds(facts) == [RequestStarted, AttemptStarted, AnswerStarted, RequestFailed]
    assert isinstance(facts[-1].error, PoolClosed)  # type: ignore[union-attr]


async def test_time_in_line_is_told_with_the_attempt(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append], limits=Limits(in_flight=1))
    server.reply().delay(0.05).say("x")
    first, second = start(client.chat("a")), start(client.chat("b"))
    await first
    await second
    waited = [fact.waited for fact in only(facts, AttemptStarted)]
    assert waited[0] < 0.05 <= waited[1]


async def test_nothing_is_told_for_each_token(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    server.say(["x "] * 2000)
    async with client.chat.stream("a") as stream:
        assert len([piece async for piece in stream.text()]) == 2000
    assert kinds(facts) == GOOD


async def test_tokens_are_not_told_to_the_log_either(
    server: ChatServer, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "asyncchat")
    client = make_client()
    server.say(["x "] * 2000)
    await client.chat.stream("a").final()
    assert len(ours(caplog)) == len(GOOD)


# --------------------------------------------------------------------------------- who is told how


async def test_observers_are_called_in_their_order_and_at_once(
    server: ChatServer, make_client: MakeClient
) -> None:
    told: list[tuple[str, Fact]] = []
    observers = [lambda fact: told.append(("a", fact)), lambda fact: told.append(("b", fact))]
    client = make_client(observers=iter(observers))
    await client.chat("a")
    assert [name for name, _ in told] == ["a", "b"] * 4
    assert all(one[1] is other[1] for one, other in zip(told[::2], told[1::2], strict=True))


@pytest.mark.parametrize("streamed", [False, True])
async def test_observer_that_raises_harms_neither_the_request_nor_the_others(
    streamed: bool,
    server: ChatServer,
    make_client: MakeClient,
    facts: list[Fact],
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(_: Fact) -> None:
        raise ZeroDivisionError

    client = make_client(max_retries=1, observers=[broken, facts.append])
    server.fail(408, headers={"retry-after-ms": "1"})
    answer = await (client.chat.stream("a").final() if streamed else client.chat("a"))
    assert answer.text == "a"
    assert len(facts) == 6
    assert client.statistics().in_flight == 0
    complaints = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(complaints) == 6
    assert all("observer" in record.message for record in complaints)


async def test_observer_that_raises_when_a_stream_is_left_does_not_keep_its_place(
    server: ChatServer, make_client: MakeClient
) -> None:
    def broken(_: Fact) -> None:
        raise ZeroDivisionError

    client = make_client(observers=[broken])
    server.stall(after=3)
    async with client.chat.stream("a"):
        pass
    assert client.statistics().in_flight == 0


def test_observer_that_cannot_be_called_is_refused_when_the_client_is_made() -> None:
    observers: Any = ["print"]
    with pytest.raises(TypeError, match="observers"):
        AsyncChat("http://127.0.0.1/v1", model="m", observers=observers)


async def test_derived_client_tells_the_same_observers(
    server: ChatServer, make_client: MakeClient, facts: list[Fact]
) -> None:
    client = make_client(observers=[facts.append])
    await client.with_options(model="n").chat("a")
    assert kinds(facts) == GOOD
    assert facts[0].model == "n"  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------- what is kept


async def good(client: AsyncChat, server: ChatServer) -> None:
    await client.chat(PROMPT)


async def streamed(client: AsyncChat, server: ChatServer) -> None:
    async with client.chat.stream(PROMPT) as stream:
        async for _ in stream:
            pass


async def retried(client: AsyncChat, server: ChatServer) -> None:
    server.fail(429, f"Slow down, {KEY}.", headers={"retry-after-ms": "1"})
    await client.chat(PROMPT)


async def refused(client: AsyncChat, server: ChatServer) -> None:
    server.fail(401, f"Incorrect API key provided: {KEY}.", code=KEY)
    await client.chat(PROMPT)


async def no_server(client: AsyncChat, server: ChatServer) -> None:
    await server.close()
    await client.chat(PROMPT)


async def cut(client: AsyncChat, server: ChatServer) -> None:
    server.cut(after=3, text=ANSWER)
    await client.chat.stream(PROMPT).final()


async def failed_inside(client: AsyncChat, server: ChatServer) -> None:
    server.reply().say(ANSWER).error_event(
        f"Key {KEY} is out of money.", code="insufficient_quota"
    )
    await client.chat.stream(PROMPT).final()


async def no_answer(client: AsyncChat, server: ChatServer) -> None:
    server.raw(f"<html>{ANSWER}</html>".encode(), content_type="text/html")
    await client.chat(PROMPT)


async def left(client: AsyncChat, server: ChatServer) -> None:
    server.stall(after=3, text=ANSWER)
    async with client.chat.stream(PROMPT) as stream:
        async for _ in stream.text():
            break


async def resumed(client: AsyncChat, server: ChatServer) -> None:
    server.cut(after=3, text=ANSWER)
    await client.chat.stream(PROMPT, resume="continue").final()


Scenario = Callable[[AsyncChat, ChatServer], Awaitable[None]]
SCENARIOS: list[Scenario] = [
    good,
    streamed,
    retried,
    refused,
    no_server,
    cut,
    failed_inside,
    no_answer,
    left,
    resumed,
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
async def test_no_prompt_answer_or_key_is_in_any_fact_or_line_of_the_log(
    scenario: Scenario,
    server: ChatServer,
    make_client: MakeClient,
    facts: list[Fact],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    retry = RetryPolicy(max_retries=1, initial_delay=0.001)
    client = make_client(retry=retry, observers=[facts.append])
    server.otherwise(Reply().say(ANSWER))
    try:
        await scenario(client, server)
    except AsyncChatError as error:
        told = [repr(error), str(error)]
    else:
        told = []
    told += [repr(fact) for fact in facts]
    told += [caplog.handler.format(record) for record in caplog.records]
    told += [repr(vars(record)) for record in ours(caplog)]
    assert len(facts) >= 3
    assert len(ours(caplog)) >= len(facts)
    for secret in (PROMPT, KEY, *ANSWER.split()):
        assert not [line for line in told if secret in line]


# ------------------------------------------------------------------------------------------ the log


def ours(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == "asyncchat"]


async def test_every_fact_is_a_line_of_the_log_that_bears_the_number_of_its_request(
    server: ChatServer,
    make_client: MakeClient,
    facts: list[Fact],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "asyncchat")
    client = make_client(max_retries=1, observers=[facts.append])
    server.fail(503, headers={"retry-after-ms": "1"})
    await client.chat("a")
    lines = [(vars(record)["request"], record.message) for record in ours(caplog)]
    assert [number for number, _ in lines] == [fact.request for fact in facts]
    assert all(message.startswith(f"request {number}: ") for number, message in lines)


async def test_failures_are_told_at_info_and_everything_else_at_debug(
    server: ChatServer, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "asyncchat")
    client = make_client(max_retries=1)
    server.fail(503, headers={"retry-after-ms": "1"})
    server.fail(400)
    with pytest.raises(BadRequestError):
        await client.chat("a")
    levels = [record.levelname for record in ours(caplog)]
    assert levels == ["DEBUG", "DEBUG", "INFO", "DEBUG", "INFO", "INFO"]


async def test_good_requests_say_nothing_at_info(
    server: ChatServer, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asyncchat")
    client = make_client()
    await client.chat("a")
    await client.chat.stream("a").final()
    assert ours(caplog) == []


async def test_line_that_nobody_reads_is_not_written(
    make_client: MakeClient,
    facts: list[Fact],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level(logging.INFO, "asyncchat")
    monkeypatch.setattr(observe, "_line", lambda fact: pytest.fail(f"{fact} is put into words"))
    client = make_client(observers=[facts.append])
    await client.chat("a")
    assert kinds(facts) == GOOD


async def test_failure_is_logged_with_its_wait_though_nobody_observes(
    server: ChatServer, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asyncchat")
    client = make_client(max_retries=1)
    server.fail(503, "busy", headers={"retry-after-ms": "20"})
    await client.chat("a")
    [record] = ours(caplog)
    assert "attempt 1" in record.message
    assert server.base_url in record.message
    assert "next in 0.02 s" in record.message
    assert "busy" in record.message


async def test_line_breaks_that_a_server_sends_make_no_lines_of_the_log(
    server: ChatServer, make_client: MakeClient, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "asyncchat")
    server.fail(400, "bad\nrequest 1: finished")
    with pytest.raises(APIStatusError):
        await make_client().chat("a")
    assert all("\n" not in record.message for record in ours(caplog))


@pytest.fixture
def bare_log() -> Iterator[logging.Logger]:
    """The logger as an application finds it that has set nothing up."""
    log = logging.getLogger("asyncchat")
    handlers, level = list(log.handlers), log.level
    for handler in handlers:
        log.removeHandler(handler)
    log.setLevel(logging.NOTSET)
    yield log
    for handler in list(log.handlers):
        log.removeHandler(handler)
    for handler in handlers:
        log.addHandler(handler)
    log.setLevel(level)


@pytest.mark.parametrize(
    ("level", "lines"), [("debug", 6), ("DEBUG", 6), ("Info", 1), ("warning", 0)]
)
async def test_environment_sets_the_level_of_a_log_on_stderr(
    level: str,
    lines: int,
    server: ChatServer,
    make_client: MakeClient,
    bare_log: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("ASYNCCHAT_LOG", level)
    client = make_client(max_retries=1)
    make_client()  # a second client does not double the lines
    server.fail(503, headers={"retry-after-ms": "1"})
    await client.chat("a")
    said = capsys.readouterr()
    assert said.out == ""
    written = said.err.splitlines()
    assert len(written) == lines
    assert all(" asyncchat: request " in line for line in written)


@pytest.mark.parametrize("level", [None, "", "loud"])
async def test_environment_that_names_no_level_leaves_the_log_to_the_application(
    level: str | None,
    server: ChatServer,
    make_client: MakeClient,
    bare_log: logging.Logger,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if level is None:
        monkeypatch.delenv("ASYNCCHAT_LOG", raising=False)
    else:
        monkeypatch.setenv("ASYNCCHAT_LOG", level)
    client = make_client(max_retries=1)
    server.fail(503, headers={"retry-after-ms": "1"})
    await client.chat("a")
    assert bare_log.handlers == []
    assert bare_log.level == logging.NOTSET
    assert capsys.readouterr().err == ""
