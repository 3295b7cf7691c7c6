"""The line, the attempts and the retries, against a server that fails on command. Waits are recorded, not waited."""

import asyncio
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from asyncchat import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncChat,
    BadRequestError,
    Limits,
    PoolClosed,
    RateLimitError,
    RetryPolicy,
    StreamCut,
    Timeout,
)
from asyncchat.testing import ChatServer, Reply
from tests.client.conftest import MakeClient, Waits, start

USAGE_REFUSED = "Unknown field: stream_options"


# ---------------------------------------------------------------------------------------- the line


async def test_requests_beyond_the_limit_are_sent_in_the_order_they_came(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    tasks = [start(client.chat(str(number))) for number in range(20)]
    for task in tasks:
        await task
    assert [r.last_text for r in server.requests] == [str(number) for number in range(20)]


async def test_never_more_than_the_limit_are_in_flight(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=3))
    most = 0

    def respond(_: object) -> Reply:
        nonlocal most
        most = max(most, len(server.active))
        return Reply().say("x")

    server.otherwise(respond)
    for task in [start(client.chat("a")) for _ in range(20)]:
        await task
    assert most == 3


async def test_stream_holds_its_place_until_it_has_ended(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a"):
        waiter = start(client.chat("b"))
        await asyncio.sleep(0)
        assert client.statistics().waiting == 1
        server.resume()
    assert (await waiter).text == "b"
    assert client.statistics().in_flight == 0


async def test_stream_read_to_its_end_frees_its_place_inside_the_block(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    async with client.chat.stream("a") as stream:
        await stream.final()
        assert (await client.chat("b")).text == "b"


async def test_cancelled_waiter_leaves_no_trace(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a"):
        waiters = [start(client.chat(name)) for name in "bcd"]
        await asyncio.sleep(0)
        waiters[1].cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiters[1]
        assert client.statistics().waiting == 2
    await waiters[0]
    await waiters[2]
    assert [r.last_text for r in server.requests] == ["a", "b", "d"]
    assert client.statistics().in_flight == 0


async def test_place_that_was_given_to_a_waiter_in_the_moment_it_was_cancelled_passes_on(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    stream = client.chat.stream("a")
    await stream.start()
    first, second = start(client.chat("b")), start(client.chat("c"))
    await asyncio.sleep(0)
    stream.close()  # the place is the first one's now
    first.cancel()
    assert (await second).text == "c"
    with pytest.raises(asyncio.CancelledError):
        await first
    assert client.statistics().in_flight == 0


async def test_waiting_in_line_is_part_of_the_total_bound(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a"):
        with pytest.raises(APITimeoutError, match="in line") as caught:
            await client.chat("b", timeout=0.05)
        assert caught.value.phase == "total"
        assert client.statistics().waiting == 0
    assert len(server.requests) == 1


async def test_waiting_in_line_is_part_of_the_timing(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.reply().delay(0.1).say("x")
    first, second = start(client.chat("a")), start(client.chat("b", timeout=Timeout(total=None)))
    await first
    answer = await second
    assert answer.timing is not None
    assert answer.timing.total > 0.1


async def test_failed_request_gives_its_place_back(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.fail(400, times=3)
    for _ in range(3):
        with pytest.raises(BadRequestError):
            await client.chat("a")
    assert client.statistics().in_flight == 0


# ----------------------------------------------------------------------------------------- closing


async def test_closing_ends_who_waits_in_line(server: ChatServer, make_client: MakeClient) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a"):
        waiters = [start(client.chat("b")) for _ in range(3)]
        await asyncio.sleep(0)
        await client.close()
        for waiter in waiters:
            with pytest.raises(PoolClosed):
                await waiter
    assert client.statistics().waiting == 0
    assert client.statistics().in_flight == 0


async def test_closing_ends_who_waits_for_headers(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(max_retries=2)
    server.stall(after=0)
    task = start(client.chat("a"))
    await server.wait_for_requests(1)
    await client.close()
    with pytest.raises(PoolClosed):
        await task
    assert len(server.requests) == 1


async def test_closing_ends_who_waits_before_a_retry(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(max_retries=1)
    server.fail(429, headers={"Retry-After": "30"})
    task = start(client.chat("a"))
    await server.wait_for_requests(1)
    await server.wait_until_idle()
    await asyncio.sleep(0.02)
    await client.close()
    with pytest.raises(PoolClosed):
        async with asyncio.timeout(0.5):
            await task


async def test_request_after_closing_is_refused_even_when_the_line_is_full(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    stream = client.chat.stream("a")
    await stream.start()
    await client.close()
    with pytest.raises(PoolClosed):
        async with asyncio.timeout(0.5):
            await client.chat("b")
    stream.close()


# ----------------------------------------------------------------------------------------- retries


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 529])
async def test_status_that_may_pass_is_tried_again(
    status: int, server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=2)
    waits = record_waits(client)
    server.fail(status, times=2)
    answer = await client.chat("a")
    assert answer.text == "a"
    assert answer.timing is not None
    assert answer.timing.attempts == 3
    assert len(waits.seconds) == 2


@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 422])
async def test_status_that_stands_is_not_tried_again(
    status: int, server: ChatServer, make_client: MakeClient
) -> None:
    server.fail(status)
    with pytest.raises(APIStatusError) as caught:
        await make_client(max_retries=2).chat("a")
    assert caught.value.status_code == status
    assert not caught.value.retryable
    assert len(server.requests) == 1


async def test_stream_is_retried_until_its_first_event(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=3)
    waits = record_waits(client)
    server.fail(503)
    server.cut(after="headers")
    server.reset(after="headers")
    answer = await client.chat.stream("a").final()
    assert answer.text == "a"
    assert answer.timing is not None
    assert answer.timing.attempts == 4
    assert len(waits.seconds) == 3


async def test_nothing_is_retried_after_the_first_event(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.reset(after=3)
    with pytest.raises(StreamCut) as caught:
        await make_client(max_retries=2).chat.stream("a").final()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "One two"
    assert len(server.requests) == 1


async def test_failure_told_inside_the_stream_after_an_event_is_not_retried(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.reply().say("One").error_event("Slow down.", code="rate_limit_exceeded")
    with pytest.raises(RateLimitError) as caught:
        await make_client(max_retries=2).chat.stream("a").final()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "One"
    assert len(server.requests) == 1


async def test_failure_told_as_the_very_first_event_is_retried_and_the_answer_read_whole(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    record_waits(client)
    server.reply().error_event("Slow down.", code="rate_limit_exceeded")
    server.say("One two three.")
    async with client.chat.stream("a") as stream:
        assert client.statistics().in_flight == 1
        assert "".join([piece async for piece in stream.text()]) == "One two three."
    assert stream.completion.text == "One two three."
    assert client.statistics().finished == 1
    assert client.statistics().in_flight == 0


async def test_failure_told_as_the_very_first_event_is_raised_where_it_stands(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.reply().error_event("Bad image.", type="invalid_request_error", code="bad_image")
    with pytest.raises(APIError, match="Bad image"):
        await make_client(max_retries=2).chat.stream("a").final()
    assert len(server.requests) == 1


async def test_spent_quota_is_not_retried(server: ChatServer, make_client: MakeClient) -> None:
    server.fail(429, code="insufficient_quota", headers={"x-should-retry": "true"})
    with pytest.raises(RateLimitError) as caught:
        await make_client(max_retries=2).chat("a")
    assert not caught.value.retryable
    assert len(server.requests) == 1


async def test_server_that_says_so_is_not_asked_again(
    server: ChatServer, make_client: MakeClient
) -> None:
    server.fail(500, headers={"x-should-retry": "false"})
    with pytest.raises(APIStatusError):
        await make_client(max_retries=2).chat("a")
    assert len(server.requests) == 1


async def test_server_that_says_so_is_asked_again(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    record_waits(client)
    server.fail(400, headers={"x-should-retry": "true"})
    assert (await client.chat("a")).text == "a"


async def test_retries_end_with_the_last_error(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=2)
    waits = record_waits(client)
    server.fail(503, "first", times=2)
    server.fail(503, "last")
    with pytest.raises(APIStatusError, match="last"):
        await client.chat("a")
    assert len(waits.seconds) == 2
    assert client.statistics().attempts == 3


async def test_refused_connection_is_tried_again(
    make_client: MakeClient, record_waits: type[Waits], unused_port: int
) -> None:
    client = make_client(f"http://127.0.0.1:{unused_port}/v1", max_retries=2)
    waits = record_waits(client)
    with pytest.raises(APIConnectionError, match="Is the server running"):
        await client.chat("a")
    assert len(waits.seconds) == 2


async def test_waits_double_and_are_drawn_below_their_bound(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    policy = RetryPolicy(max_retries=4, initial_delay=1, max_delay=4)
    client = make_client(retry=policy)
    waits = record_waits(client, rand=0.5)
    server.fail(503, times=4)
    await client.chat("a")
    assert waits.seconds == [0.5, 1.0, 2.0, 2.0]


# ------------------------------------------------------------------------- what the server asks for


def _ahead(seconds: int, *, of: datetime | None = None) -> str:
    return format_datetime((of or datetime.now(UTC)) + timedelta(seconds=seconds), usegmt=True)


async def _wait_after(
    headers: dict[str, str], server: ChatServer, client: AsyncChat, waits: Waits
) -> float:
    server.fail(429, headers=headers)
    await client.chat("a")
    (seconds,) = waits.seconds
    return seconds


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": "0.25"}, 0.25),
        ({"Retry-After": "60", "retry-after-ms": "1250"}, 1.25),
        ({"x-ms-retry-after-ms": "1500"}, 1.5),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "2.5s"}, 2.5),
    ],
)
async def test_wait_that_the_server_asks_for_is_kept(
    headers: dict[str, str],
    seconds: float,
    server: ChatServer,
    make_client: MakeClient,
    record_waits: type[Waits],
) -> None:
    client = make_client(max_retries=1)
    assert await _wait_after(headers, server, client, record_waits(client)) == seconds


async def test_date_that_the_server_names_is_waited_for(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    headers = {"Retry-After": _ahead(30)}
    assert 28 <= await _wait_after(headers, server, client, record_waits(client)) <= 30


async def test_date_is_read_against_the_servers_own_clock(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    wrong = datetime.now(UTC) + timedelta(hours=1)
    headers = {"Date": _ahead(0, of=wrong), "Retry-After": _ahead(2, of=wrong)}
    assert await _wait_after(headers, server, client, record_waits(client)) == 2


@pytest.mark.parametrize("value", ["soon", "-5", "nan", "inf", "0", "Mon, 99 Foo 2026"])
async def test_wait_that_makes_no_sense_is_replaced_by_our_own(
    value: str, server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    headers = {"Retry-After": value}
    assert 0.05 <= await _wait_after(headers, server, client, record_waits(client)) <= 0.5


async def test_wait_that_is_too_long_is_raised_at_once_with_its_length(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=2)
    waits = record_waits(client)
    server.fail(429, headers={"Retry-After": "7200"})
    with pytest.raises(RateLimitError) as caught:
        await client.chat("a")
    assert caught.value.retry_after == 7200
    assert waits.seconds == []


async def test_wait_beyond_the_total_bound_is_not_begun(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=2, timeout=5)
    waits = record_waits(client)
    server.fail(429, headers={"Retry-After": "6"})
    with pytest.raises(RateLimitError):
        await client.chat("a")
    assert waits.seconds == []


async def test_total_bound_spans_the_retries(server: ChatServer, make_client: MakeClient) -> None:
    policy = RetryPolicy(max_retries=1000, initial_delay=0.01, max_delay=0.01)
    server.fail(503, times=1000)
    with pytest.raises((APIStatusError, APITimeoutError)):
        async with asyncio.timeout(2):
            await make_client(retry=policy, timeout=0.2).chat("a")
    assert 2 < len(server.requests) < 900


# ------------------------------------------------------------------------------------------- usage


async def test_streams_ask_for_their_usage(server: ChatServer, client: AsyncChat) -> None:
    answer = await client.chat.stream("a").final()
    assert server.requests[0].body["stream_options"] == {"include_usage": True}
    assert answer.usage is not None
    assert answer.usage.total_tokens


async def test_plain_requests_say_nothing_of_stream_options(
    server: ChatServer, client: AsyncChat
) -> None:
    await client.chat("a", stream_options={"include_usage": True})
    assert "stream_options" not in server.requests[0].body
    assert "stream" not in server.requests[0].body


@pytest.mark.parametrize("status", [400, 422])
async def test_server_that_refuses_stream_options_is_asked_without_and_never_with_them_again(
    status: int, server: ChatServer, client: AsyncChat
) -> None:
    server.fail(status, USAGE_REFUSED)
    assert (await client.chat.stream("a").final()).text == "a"
    assert (await client.chat.stream("b").final()).text == "b"
    assert ["stream_options" in r.body for r in server.requests] == [True, False, False]


async def test_streams_that_are_refused_together_are_all_asked_again(
    server: ChatServer, client: AsyncChat
) -> None:
    server.when(lambda r: "stream_options" in r.body, Reply().fail(400, USAGE_REFUSED))
    tasks = [start(client.chat.stream("a").final()) for _ in range(5)]
    assert [(await task).text for task in tasks] == ["a"] * 5


async def test_refused_stream_options_cost_no_retry(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    record_waits(client)
    server.fail(400, USAGE_REFUSED)
    server.fail(503)
    assert (await client.chat.stream("a").final()).text == "a"


async def test_other_refusals_are_not_taken_for_one_of_usage(
    server: ChatServer, client: AsyncChat
) -> None:
    server.fail(400, "Your message is too long.")
    with pytest.raises(BadRequestError):
        await client.chat.stream("a").final()
    assert len(server.requests) == 1


async def test_stream_options_of_the_callers_win(server: ChatServer, client: AsyncChat) -> None:
    answer = await client.chat.stream("a", stream_options={"include_usage": False}).final()
    assert server.requests[0].body["stream_options"] == {"include_usage": False}
    assert answer.usage is None


async def test_stream_options_of_the_callers_that_are_refused_are_the_callers_error(
    server: ChatServer, client: AsyncChat
) -> None:
    server.fail(400, USAGE_REFUSED)
    with pytest.raises(BadRequestError):
        await client.chat.stream("a", stream_options={"include_usage": True}).final()
    assert len(server.requests) == 1


async def test_stream_options_of_the_callers_are_sent_to_a_server_that_refused_ours(
    server: ChatServer, client: AsyncChat
) -> None:
    server.fail(400, USAGE_REFUSED)
    await client.chat.stream("a").final()
    await client.chat.stream("b", stream_options={"include_usage": True}).final()
    assert server.requests[-1].body["stream_options"] == {"include_usage": True}


# -------------------------------------------------------------------------------------- statistics


async def test_statistics_count_what_runs_and_what_has_been(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a") as stream:
        waiter = start(client.chat("b"))
        await asyncio.sleep(0)
        during = client.statistics()
        server.resume()
        await stream.final()
    await waiter
    after = client.statistics()
    assert (during.in_flight, during.waiting, during.finished, during.attempts) == (1, 1, 0, 1)
    assert (after.in_flight, after.waiting, after.finished, after.attempts) == (0, 0, 2, 2)


async def test_frames_that_only_forgiving_rules_could_read_are_counted(
    server: ChatServer, client: AsyncChat
) -> None:
    server.raw(
        b'data: {"choices":[{"index":0,"delta":{"content":"a\x01"}}]}\n\n', b"data: [DONE]\n\n"
    )
    await client.chat.stream("a").final()
    assert client.statistics().lenient_decodes == 1


async def test_stream_that_was_left_early_is_not_counted_as_finished(
    server: ChatServer, client: AsyncChat
) -> None:
    server.stall(after=3)
    async with client.chat.stream("a"):
        pass
    assert client.statistics().finished == 0


async def test_repr_tells_the_server_and_how_full_it_is(
    server: ChatServer, make_client: MakeClient
) -> None:
    client = make_client(limits=Limits(in_flight=1))
    server.stall(after=3)
    async with client.chat.stream("a"):
        waiter = start(client.chat("b"))
        await asyncio.sleep(0)
        assert f"{server.base_url!r}, 1/1 in flight, 1 waiting" in repr(client)
        assert "∞" in repr(make_client(limits=Limits(in_flight=None)))
    await waiter


async def test_all_attempts_at_one_request_bear_one_idempotency_key(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=1)
    record_waits(client)
    server.fail(503, message="busy")
    await client.chat("hi")
    await client.chat("again")
    first, second, other = (r.headers["Idempotency-Key"] for r in server.requests)
    assert first == second
    assert second != other


async def test_outage_is_not_multiplied(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=2)
    record_waits(client)
    server.otherwise(Reply().fail(503, message="down"))
    for _ in range(60):
        with pytest.raises(APIStatusError):
            await client.chat("hi")
    assert len(server.requests) <= 60 * 1.5


async def test_rate_limits_do_not_spend_the_budget_of_retries(
    server: ChatServer, make_client: MakeClient, record_waits: type[Waits]
) -> None:
    client = make_client(max_retries=2)
    record_waits(client)
    server.otherwise(Reply().fail(429, message="slow down"))
    for _ in range(40):
        with pytest.raises(RateLimitError):
            await client.chat("hi")
    assert len(server.requests) == 40 * 3
