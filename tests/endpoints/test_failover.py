"""Several servers behind one client: where a request goes, what each failure is held against, and who is asked next.

The clock of the limits stands still, so that what happens at all happens without waiting, unless a test says otherwise.
"""

import asyncio
import itertools
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from asyncchat import (
    APIConnectionError,
    APIError,
    APIStatusError,
    APITimeoutError,
    AsyncChat,
    AsyncChatError,
    AuthenticationError,
    BadRequestError,
    Endpoint,
    InternalServerError,
    Limits,
    ProtocolError,
    RateLimitError,
    RetryPolicy,
    StreamCut,
    Timeout,
)
from asyncchat.testing import ChatServer, ReceivedRequest, Reply
from tests.client.conftest import start
from tests.endpoints.conftest import (
    BLAME_AFTER,
    Clock,
    MakeClient,
    MakeServers,
    ask,
    at,
    counts,
    keys_at,
    until,
)

both_ways = pytest.mark.parametrize("streamed", [False, True], ids=["plain", "stream"])


# ------------------------------------------------------------------------------- model and endpoint


async def test_each_endpoint_is_asked_for_its_own_model(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, model="large"), at(b, model="large-2"))
    for _ in range(4):
        await client.chat("a")
    assert counts(a, b) == [2, 2]
    assert {request.body["model"] for request in a.requests} == {"large"}
    assert {request.body["model"] for request in b.requests} == {"large-2"}


async def test_request_that_names_a_model_goes_to_the_endpoints_of_that_name(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(at(a, model="small"), at(b, model="large"), at(c, model="large"))
    for _ in range(4):
        await client.chat("a", model="large")
    await client.chat("a", extra_body={"model": "small"})
    await client.with_options(model="small").chat("a")
    assert counts(a, b, c) == [2, 2, 2]
    assert [request.body["model"] for request in b.requests] == ["large", "large"]


async def test_name_that_no_endpoint_has_goes_to_those_that_name_none(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, model="large"), at(b, model=None))
    for _ in range(3):
        await client.chat("a", model="other")
    assert counts(a, b) == [0, 3]
    assert {request.body["model"] for request in b.requests} == {"other"}


async def test_name_that_no_endpoint_has_goes_to_all_where_all_name_another(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, model="one"), at(b, model="two"))
    for _ in range(4):
        await client.chat("a", model="other")
    assert counts(a, b) == [2, 2]
    assert {request.body["model"] for request in (*a.requests, *b.requests)} == {"other"}


async def test_model_of_the_client_is_that_of_endpoints_without_one(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, model=None), at(b, model="own"), model="shared")
    for _ in range(4):
        await client.chat("a")
    assert {request.body["model"] for request in a.requests} == {"shared"}
    assert {request.body["model"] for request in b.requests} == {"own"}


async def test_request_without_any_model_is_refused_before_anything_is_sent(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    with pytest.raises(ValueError, match="model"):
        await make_client(at(a, model=None)).chat("a")
    assert counts(a) == [0]


async def test_failure_of_a_named_model_goes_only_to_endpoints_of_that_name(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(at(a, model="large"), at(b, model="large"), at(c, model="small"))
    clock = Clock(client)
    for server in (a, b):
        server.otherwise(Reply().fail(401))
    with pytest.raises(AuthenticationError):
        await client.chat("a", model="large")
    assert counts(a, b, c) == [1, 1, 0]
    assert clock.waits == []


# ------------------------------------------------------------------------------------------- weights


async def test_equal_endpoints_take_turns(servers: MakeServers, make_client: MakeClient) -> None:
    a, b, c = await servers(3)
    client = make_client(a, b, c)
    for _ in range(30):
        await client.chat("a")
    assert counts(a, b, c) == [10, 10, 10]


async def test_requests_one_by_one_are_shared_out_by_weight(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a), at(b, weight=2))
    for _ in range(30):
        await client.chat("a")
    assert counts(a, b) == [10, 20]


async def test_requests_at_once_are_shared_out_by_weight(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a), at(b, weight=2))
    for server in (a, b):
        server.otherwise(Reply().say("x").stall(after=0))
    tasks = [start(client.chat("a")) for _ in range(30)]
    await until(lambda: sum(counts(a, b)) == 30)
    assert counts(a, b) == [10, 20]
    a.resume()
    b.resume()
    for task in tasks:
        await task


async def test_least_busy_endpoint_is_asked_first(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    a.stall(after=3)
    async with client.chat.stream("a"):
        for _ in range(5):
            await client.chat("b")
    assert counts(a, b) == [1, 5]


async def test_full_endpoint_leaves_the_rest_to_the_other(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, in_flight=1, weight=100), at(b))
    for server in (a, b):
        server.otherwise(Reply().say("x").stall(after=0))
    tasks = [start(client.chat("a")) for _ in range(5)]
    await until(lambda: sum(counts(a, b)) == 5)
    assert counts(a, b) == [1, 4]
    for server in (a, b):
        server.resume()
    for task in tasks:
        await task


# -------------------------------------------------------------------------------- keys of one endpoint


async def test_keys_of_one_endpoint_take_turns(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    client = make_client(at(a, ["k1", "k2", "k3"]))
    for _ in range(9):
        await client.chat("a")
    assert sorted(keys_at(a)) == ["k1"] * 3 + ["k2"] * 3 + ["k3"] * 3


async def test_each_key_has_a_limit_of_its_own(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    client = make_client(at(a, ["k1", "k2"], rpm=2))
    clock = Clock(client)
    tasks = [start(client.chat("a")) for _ in range(5)]
    for task in tasks[:4]:
        await task
    assert sorted(keys_at(a)) == ["k1", "k1", "k2", "k2"]
    assert client.statistics().waiting == 1
    await clock.pass_(62)
    await tasks[4]
    assert counts(a) == [5]


KEY_TROUBLES: dict[str, Callable[[], Reply]] = {
    "401": lambda: Reply().fail(401),
    "402": lambda: Reply().fail(402),
    "429": lambda: Reply().fail(429, headers={"Retry-After": "20"}),
    "429 without a wait": lambda: Reply().fail(429),
    "spent quota": lambda: Reply().fail(429, code="insufficient_quota"),
    "spent quota by type": lambda: Reply().fail(429, type="insufficient_quota"),
}


@both_ways
@pytest.mark.parametrize("max_retries", [0, 2])
@pytest.mark.parametrize("trouble", KEY_TROUBLES)
async def test_key_in_trouble_is_left_alone_and_the_other_used_at_once(
    trouble: str,
    max_retries: int,
    streamed: bool,
    servers: MakeServers,
    make_client: MakeClient,
) -> None:
    [a] = await servers(1)
    client = make_client(at(a, ["k1", "k2"]), max_retries=max_retries)
    clock = Clock(client)
    a.queue(KEY_TROUBLES[trouble]())
    for _ in range(4):
        assert (await ask(client, streamed=streamed)).text == "a"
    assert keys_at(a) == ["k1", "k2", "k2", "k2", "k2"]
    assert clock.waits == []


@pytest.mark.parametrize(
    ("trouble", "seconds"), [("401", 60), ("spent quota", 60), ("429", 20), ("402", 60)]
)
async def test_key_that_was_left_alone_is_tried_again_after_a_while(
    trouble: str, seconds: float, servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    client = make_client(at(a, ["k1", "k2"]))
    clock = Clock(client)
    a.queue(KEY_TROUBLES[trouble]())
    await client.chat("a")
    await clock.pass_(seconds - 1)
    await client.chat("a")
    await client.chat("a")
    assert keys_at(a) == ["k1", "k2", "k2", "k2"]
    await clock.pass_(1.01)
    for _ in range(4):
        await client.chat("a")
        await clock.pass_(0.5)
    assert "k1" in keys_at(a)[4:]


async def test_key_that_stays_refused_is_left_alone_for_longer_each_time(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    a.when(lambda request: "k1" in request.headers["Authorization"], Reply().fail(401))
    client = make_client(at(a, ["k1", "k2"]))
    clock = Clock(client)
    tried_at = []
    for _ in range(600):
        before = keys_at(a).count("k1")
        await client.chat("a")
        if keys_at(a).count("k1") > before:
            tried_at.append(clock.now)
        await clock.pass_(1)
    pauses = [later - sooner for sooner, later in itertools.pairwise(tried_at)]
    assert pauses == [60, 120, 240]


async def test_trouble_of_one_key_is_not_held_against_its_server(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    a.when(lambda request: "k1" in request.headers["Authorization"], Reply().fail(401))
    client = make_client(at(a, ["k1", "k2"]))
    Clock(client)
    for _ in range(20):
        await client.chat("a")
    [endpoint] = client.statistics().endpoints
    assert endpoint.state == "closed"
    assert (endpoint.sent, endpoint.failed) == (21, 1)


async def test_all_keys_refused_the_last_refusal_is_the_error(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    a.fail(401, "not the first")
    a.fail(401, "nor the second")
    client = make_client(at(a, ["k1", "k2"]))
    clock = Clock(client)
    with pytest.raises(AuthenticationError, match="nor the second"):
        await client.chat("a")
    assert (keys_at(a), clock.waits) == (["k1", "k2"], [])
    await client.chat("a")  # asked all the same, though both are out
    assert counts(a) == [3]


# --------------------------------------------------------------------------------- every kind of trouble


Trouble = Callable[[ChatServer], object]

UNTOUCHED: dict[str, Trouble] = {
    "401": lambda server: server.fail(401),
    "402": lambda server: server.fail(402),
    "403": lambda server: server.fail(403),
    "404 model": lambda server: server.fail(404, code="model_not_found"),
    "400 model": lambda server: server.fail(400, code="model_not_found"),
    "429": lambda server: server.fail(429),
    "429 with Retry-After": lambda server: server.fail(429, headers={"Retry-After": "30"}),
    "429 with a long Retry-After": lambda server: server.fail(429, headers={"Retry-After": "999"}),
    "spent quota": lambda server: server.fail(429, code="insufficient_quota"),
}
"""What no server has begun to work on."""

BROKEN: dict[str, Trouble] = {
    "500": lambda server: server.fail(500),
    "503": lambda server: server.fail(503),
    "503 with Retry-After": lambda server: server.fail(503, headers={"Retry-After": "30"}),
    "529": lambda server: server.fail(529),
    "reset before the headers": lambda server: server.reset(after=0),
    "cut before the headers": lambda server: server.cut(after=0),
    "reset before the first event": lambda server: server.reset(after="headers"),
    "cut before the first event": lambda server: server.cut(after="headers"),
}


@both_ways
@pytest.mark.parametrize("max_retries", [0, 2])
@pytest.mark.parametrize("trouble", UNTOUCHED)
async def test_what_no_server_has_begun_to_work_on_goes_elsewhere_at_once(
    trouble: str,
    max_retries: int,
    streamed: bool,
    servers: MakeServers,
    make_client: MakeClient,
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, max_retries=max_retries)
    clock = Clock(client)
    UNTOUCHED[trouble](a)
    answer = await ask(client, streamed=streamed)
    assert answer.text == "a"
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.endpoint) == (2, b.base_url)
    assert (counts(a, b), clock.waits) == ([1, 1], [])


@both_ways
@pytest.mark.parametrize("trouble", BROKEN)
async def test_what_a_server_failed_at_goes_elsewhere_at_once(
    trouble: str, streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    BROKEN[trouble](a)
    answer = await ask(client, streamed=streamed)
    assert answer.text == "a"
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.endpoint) == (2, b.base_url)
    assert (counts(a, b), clock.waits) == ([1, 1], [])


@both_ways
@pytest.mark.parametrize("trouble", BROKEN)
async def test_what_a_server_failed_at_is_the_callers_error_where_retries_are_not_wanted(
    trouble: str, streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, max_retries=0)
    BROKEN[trouble](a)
    with pytest.raises(APIError):
        await ask(client, streamed=streamed)
    assert counts(a, b) == [1, 0]


@both_ways
async def test_web_page_in_place_of_an_answer_goes_elsewhere_at_once(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    a.raw(b"<html>Sign in</html>", content_type="text/html")
    assert (await ask(client, streamed=streamed)).text == "a"
    assert (counts(a, b), clock.waits) == ([1, 1], [])


@both_ways
async def test_web_page_is_the_callers_error_where_retries_are_not_wanted(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, max_retries=0)
    a.raw(b"<html>Sign in</html>", content_type="text/html")
    with pytest.raises(ProtocolError):
        await ask(client, streamed=streamed)
    assert counts(a, b) == [1, 0]


@both_ways
async def test_web_page_from_everywhere_ends_after_each_was_asked_once(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(a, b, c)
    clock = Clock(client)
    for server in (a, b, c):
        server.otherwise(Reply().raw(b"<html>Sign in</html>", content_type="text/html"))
    with pytest.raises(ProtocolError, match="web page"):
        await ask(client, streamed=streamed)
    assert (counts(a, b, c), clock.waits) == ([1, 1, 1], [])


@both_ways
@pytest.mark.parametrize("max_retries", [0, 2])
async def test_refused_connection_goes_elsewhere_at_once(
    max_retries: int,
    streamed: bool,
    servers: MakeServers,
    make_client: MakeClient,
    unused_port: int,
) -> None:
    [b] = await servers(1)
    gone = Endpoint(f"http://127.0.0.1:{unused_port}/v1", "key", "m")
    client = make_client(gone, b, max_retries=max_retries)
    clock = Clock(client)
    for _ in range(3):
        assert (await ask(client, streamed=streamed)).text == "a"
    assert (counts(b), clock.waits) == ([3], [])
    assert client.statistics().attempts == 4  # the first request found out for all


@pytest.mark.parametrize("max_retries", [0, 2])
async def test_connection_that_takes_too_long_goes_elsewhere_at_once(
    max_retries: int, servers: MakeServers, make_client: MakeClient, black_hole: int
) -> None:
    [b] = await servers(1)
    endpoint = Endpoint(f"http://127.0.0.1:{black_hole}/v1", "key", "m")
    client = make_client(endpoint, b, max_retries=max_retries, timeout=Timeout(connect=0.05))
    clock = Clock(client)
    for _ in range(3):
        assert (await client.chat("a")).text == "a"
    assert (counts(b), clock.waits) == ([3], [])
    assert client.statistics().attempts == 4


@both_ways
async def test_first_event_that_takes_too_long_goes_elsewhere(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, timeout=Timeout(first=0.05))
    clock = Clock(client)
    a.stall(after=0)
    assert (await ask(client, streamed=streamed)).text == "a"
    assert (counts(a, b), clock.waits) == ([1, 1], [])
    await a.wait_for_disconnect()


@both_ways
@pytest.mark.parametrize("status", [400, 405, 413, 422])
async def test_what_would_be_refused_anywhere_goes_nowhere_else(
    status: int, streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    a.fail(status)
    with pytest.raises(APIStatusError) as caught:
        await ask(client, streamed=streamed)
    assert caught.value.status_code == status
    assert counts(a, b) == [1, 0]
    [first, _] = client.statistics().endpoints
    assert (first.failed, first.limited, first.state) == (0, 0, "closed")


async def test_answer_that_is_too_large_goes_nowhere_else(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, limits=Limits(max_event_bytes=1000))
    a.say("x" * 5000)
    with pytest.raises(AsyncChatError, match="larger"):
        await client.chat("a")
    assert counts(a, b) == [1, 0]


@both_ways
async def test_failure_told_as_the_first_event_goes_elsewhere_at_once(
    streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    a.reply().error_event("Slow down.", code="rate_limit_exceeded")
    assert (await ask(client, streamed=streamed)).text == "a"
    assert (counts(a, b), clock.waits) == ([1, 1], [])


async def test_nothing_goes_elsewhere_after_the_first_event(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    a.reset(after=3)
    with pytest.raises(StreamCut) as caught:
        await client.chat.stream("a").final()
    assert caught.value.partial is not None
    assert caught.value.partial.text == "One two"
    assert counts(a, b) == [1, 0]


async def test_refusal_of_usage_is_learned_for_that_endpoint_alone(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, max_retries=0)
    refusal = Reply().fail(400, "Unknown field: stream_options")
    a.when(lambda request: "stream_options" in request.body, refusal)
    for _ in range(6):
        assert (await client.chat.stream("a").final()).text == "a"
    assert ["stream_options" in request.body for request in a.requests].count(True) == 1
    assert all("stream_options" in request.body for request in b.requests)
    assert len(b.requests) >= 3
    [first, _] = client.statistics().endpoints
    assert (first.failed, first.state) == (0, "closed")


async def test_one_request_bears_one_idempotency_key_wherever_it_goes(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    Clock(client)
    a.fail(503)
    await client.chat("a")
    assert a.requests[0].headers["Idempotency-Key"] == b.requests[0].headers["Idempotency-Key"]


async def test_request_goes_on_from_one_to_the_next_until_one_answers(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(a, b, c)
    clock = Clock(client)
    a.fail(401)
    b.fail(503)
    answer = await client.chat("a")
    assert answer.timing is not None
    assert (answer.timing.attempts, answer.timing.endpoint) == (3, c.base_url)
    assert (counts(a, b, c), clock.waits) == ([1, 1, 1], [])


async def test_no_request_goes_to_one_server_twice_while_another_is_untried(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(at(a, weight=50), b, c)
    clock = Clock(client)
    for server in (a, b, c):
        server.otherwise(Reply().fail(500))
    with pytest.raises(InternalServerError):
        await client.chat("a")
    assert (counts(a, b, c), clock.waits) == ([1, 1, 1], [])


async def test_retries_that_come_round_again_wait_first(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, max_retries=4)
    clock = Clock(client, rand=0.5)
    for server in (a, b):
        server.fail(500, times=2)
    assert (await client.chat("a")).text == "a"
    assert sum(counts(a, b)) == 5
    assert len(clock.waits) >= 2  # nowhere is untried any more
    assert all(seconds > 0 for seconds in clock.waits)


# ------------------------------------------------------------------------------ what is left alone


async def test_missing_model_is_not_asked_for_again_for_a_while(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, model=None), at(b, model=None))
    clock = Clock(client)
    missing = Reply().fail(404, code="model_not_found")
    a.when(lambda request: request.body["model"] == "x", missing)
    for _ in range(4):
        await client.chat("a", model="x")
    assert counts(a, b) == [1, 4]
    for _ in range(4):
        await client.chat("a", model="y")
    assert len(a.requests) > 1  # other models are there
    asked = len(a.requests)
    await clock.pass_(61)
    for _ in range(2):
        await client.chat("a", model="x")
    assert len(a.requests) == asked + 1


async def test_one_403_is_not_held_against_the_endpoint_and_three_in_a_row_are(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, weight=100), b)
    Clock(client)
    a.otherwise(Reply().fail(403))
    for number in range(1, 4):
        assert (await client.chat("a")).text == "a"
        assert counts(a, b) == [number, number]
    for _ in range(10):
        assert (await client.chat("a")).text == "a"
    assert counts(a, b) == [3, 13]


async def test_limited_endpoint_is_left_alone_for_as_long_as_it_asked(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    a.fail(429, headers={"Retry-After": "7"})
    await client.chat("a")
    await clock.pass_(6.9)
    for _ in range(3):
        await client.chat("a")
    assert counts(a, b) == [1, 4]
    await clock.pass_(0.2)
    await client.chat("a")
    await client.chat("a")
    assert len(a.requests) >= 2
    assert clock.waits == []


# ------------------------------------------------------------------------------------- the breaker


async def open_breaker(client: AsyncChat, a: ChatServer) -> None:
    """Let the first endpoint fail as often as it takes."""
    a.fail(500, times=BLAME_AFTER)
    while len(a.requests) < BLAME_AFTER:
        await client.chat("a")
    assert client.statistics().endpoints[0].state == "open"


async def test_endpoint_that_fails_every_time_is_left_alone(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    Clock(client)
    await open_breaker(client, a)
    for _ in range(10):
        await client.chat("a")
    assert len(a.requests) == BLAME_AFTER


async def test_success_in_between_keeps_the_breaker_closed(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    Clock(client)
    for _ in range(3):
        a.fail(500, times=BLAME_AFTER - 1)
        a.say("x")
    while a.queued:
        await client.chat("a")
    assert client.statistics().endpoints[0].state == "closed"


async def test_refusals_that_are_no_failures_do_not_open_the_breaker(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    Clock(client)
    a.fail(400, times=10)
    while a.queued:
        with suppress(BadRequestError):
            await client.chat("a")
    assert client.statistics().endpoints[0].state == "closed"


async def test_open_breaker_lets_one_request_probe_and_closes_when_that_is_answered(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    await open_breaker(client, a)
    await clock.pass_(1.01)
    assert client.statistics().endpoints[0].state == "half-open"
    a.reply().say("x").stall(after=0)
    tasks = [start(client.chat("a")) for _ in range(6)]
    await a.wait_for_requests(BLAME_AFTER + 1)
    await until(lambda: sum(task.done() for task in tasks) == 5)
    assert len(a.requests) == BLAME_AFTER + 1
    a.resume()
    for task in tasks:
        await task
    assert client.statistics().endpoints[0].state == "closed"
    before = len(a.requests)
    for _ in range(4):
        await client.chat("a")
    assert len(a.requests) > before


async def test_probe_that_fails_opens_the_breaker_for_twice_as_long_and_its_caller_is_answered(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    await open_breaker(client, a)
    opened_for = []
    for _ in range(7):
        a.fail(500)
        seconds = 0.0
        while client.statistics().endpoints[0].state == "open":
            await clock.pass_(0.25)
            seconds += 0.25
        opened_for.append(seconds)
        while a.queued:
            assert (await client.chat("a")).text == "a"
    assert opened_for == [1, 2, 4, 8, 16, 30, 30]
    assert clock.waits == []


async def test_probe_that_is_cancelled_lets_the_next_request_probe(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    await open_breaker(client, a)
    await clock.pass_(1.01)
    a.stall(after=0)
    tasks = [start(client.chat("a")) for _ in range(2)]
    await a.wait_for_requests(BLAME_AFTER + 1)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    for _ in range(2):
        await client.chat("a")
    assert len(a.requests) == BLAME_AFTER + 2
    assert client.statistics().endpoints[0].state == "closed"


@pytest.mark.parametrize("status", [400, 401, 404, 429])
async def test_probe_that_is_refused_shows_that_the_server_is_there(
    status: int, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, ["k1", "k2"]), b)
    clock = Clock(client)
    await open_breaker(client, a)
    await clock.pass_(1.01)
    a.fail(status)
    while a.queued:
        with suppress(BadRequestError):
            await client.chat("a")
    assert client.statistics().endpoints[0].state == "closed"


async def test_breaker_belongs_to_the_server_and_not_to_one_of_its_keys(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, ["k1", "k2"]), b)
    Clock(client)
    a.fail(500, times=BLAME_AFTER)
    for _ in range(30):
        await client.chat("a")
    assert len(a.requests) == BLAME_AFTER
    assert set(keys_at(a)) == {"k1", "k2"}


async def test_server_failure_does_not_try_the_other_keys_of_that_server_first(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, ["k1", "k2", "k3"]), b)
    Clock(client)
    a.fail(503)
    await client.chat("a")
    assert counts(a, b) == [1, 1]


# --------------------------------------------------------------------------------------- all down


@pytest.mark.parametrize("max_retries", [0, 2])
async def test_all_down_the_error_is_the_real_one(
    max_retries: int, make_client: MakeClient, unused_port: int
) -> None:
    gone = [Endpoint(f"http://127.0.0.1:{unused_port}/v{n}", "key", "m") for n in (1, 2)]
    client = make_client(*gone, max_retries=max_retries)
    clock = Clock(client)
    with pytest.raises(APIConnectionError, match="Is the server running"):
        await client.chat("a")
    assert len(clock.waits) == max_retries
    assert client.statistics().attempts == 2 + max_retries


async def test_all_down_the_next_request_is_sent_all_the_same(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, max_retries=0)
    clock = Clock(client)
    for server in (a, b):
        server.fail(503, "really busy", times=BLAME_AFTER)
    for _ in range(2 * BLAME_AFTER):
        with pytest.raises(InternalServerError, match="really busy"):
            await client.chat("a")
    assert [one.state for one in client.statistics().endpoints] == ["open", "open"]
    assert (await client.chat("a")).text == "a"  # both have recovered; nobody had to wait to see
    assert clock.waits == []


async def test_outage_is_not_multiplied_by_the_number_of_endpoints(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, max_retries=4)
    Clock(client)
    for server in (a, b):
        server.otherwise(Reply().fail(500))
    for _ in range(200):
        with pytest.raises(InternalServerError):
            await client.chat("a")
    # One each; a tenth more; and twenty that each endpoint had saved.
    assert 200 <= sum(counts(a, b)) <= 200 * 1.1 + 2 * 20


async def test_total_bound_spans_all_endpoints(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(a, b, c, timeout=Timeout(first=0.1, total=0.25), max_retries=9)
    Clock(client, rand=0.0)
    for server in (a, b, c):
        server.otherwise(Reply().stall(after=0))
    with pytest.raises(APITimeoutError) as caught:
        async with asyncio.timeout(5):
            await client.chat("a")
    assert caught.value.phase == "total"
    assert counts(a, b, c) == [1, 1, 1]


@both_ways
@pytest.mark.parametrize(("asked", "total"), [(30, 20.0), (999, 1800.0)])
async def test_wait_that_is_too_long_for_the_request_does_not_keep_it_from_a_free_server(
    asked: int, total: float, streamed: bool, servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b, timeout=total)
    clock = Clock(client)
    a.fail(503, headers={"Retry-After": str(asked)})
    assert (await ask(client, streamed=streamed)).text == "a"
    assert (counts(a, b), clock.waits) == ([1, 1], [])


async def test_own_wait_that_does_not_fit_into_the_bound_keeps_nobody_from_a_free_server(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    retry = RetryPolicy(initial_delay=100, max_delay=100)
    client = make_client(a, b, timeout=20, retry=retry)
    clock = Clock(client)
    a.fail(500)
    assert (await client.chat("a")).text == "a"
    assert (counts(a, b), clock.waits) == ([1, 1], [])


# ----------------------------------------------------------------------------------------- spares


async def test_spare_is_not_used_while_another_is_up_however_busy(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, in_flight=1), at(b, spare=True))
    a.stall(after=3)
    async with client.chat.stream("a"):
        waiter = start(client.chat("b"))
        await asyncio.sleep(0)
        assert client.statistics().waiting == 1
    assert (await waiter).text == "b"
    assert counts(a, b) == [2, 0]


async def test_spare_is_used_while_the_others_are_down_and_left_when_they_are_back(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, spare = await servers(2)
    client = make_client(at(a), at(spare, spare=True))
    clock = Clock(client)
    port = int(a.base_url.split(":")[2].split("/")[0])
    await client.chat("a")
    await a.close()
    for _ in range(3):
        assert (await client.chat("a")).text == "a"
    assert counts(a, spare) == [1, 3]
    [again] = await servers(1, port=port)
    await clock.pass_(1.01)
    for _ in range(3):
        await client.chat("a")
    assert counts(again, spare) == [3, 3]
    assert clock.waits == []


async def test_spares_share_out_among_themselves(
    servers: MakeServers, make_client: MakeClient, unused_port: int
) -> None:
    b, c = await servers(2)
    gone = Endpoint(f"http://127.0.0.1:{unused_port}/v1", "key", "m")
    client = make_client(gone, at(b, spare=True), at(c, spare=True))
    Clock(client)
    for _ in range(6):
        await client.chat("a")
    assert counts(b, c) == [3, 3]


async def test_limited_server_is_not_down_and_its_spare_not_used(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, spare = await servers(2)
    client = make_client(at(a), at(spare, spare=True))
    clock = Clock(client)
    a.fail(429, headers={"Retry-After": "2"})
    task = start(client.chat("a"))
    while not task.done():  # in line, or before its next attempt
        await asyncio.wait([task], timeout=0.01)
        await clock.pass_(2.1)
    assert (await task).text == "a"
    assert counts(a, spare) == [2, 0]


async def test_limited_server_that_has_a_spare_is_asked_as_often_as_one_that_has_none(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, spare = await servers(2)
    client = make_client(at(a), at(spare, spare=True), max_retries=2)
    clock = Clock(client)
    a.otherwise(Reply().fail(429, headers={"Retry-After": "2"}))
    task = start(client.chat("a"))
    while not task.done() and len(a.requests) < 10:
        await asyncio.wait([task], timeout=0.01)
        await clock.pass_(2.1)
    assert counts(a, spare) == [3, 0]
    with pytest.raises(RateLimitError):
        await task


async def test_server_that_failed_once_and_has_a_spare_is_asked_again_after_a_wait(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, spare = await servers(2)
    client = make_client(at(a), at(spare, spare=True), max_retries=2)
    clock = Clock(client)
    a.fail(500, times=2)
    assert (await client.chat("a")).text == "a"
    assert counts(a, spare) == [3, 0]
    assert clock.waits == [0.25, 0.5]


# ------------------------------------------------------------------------------ who is told what


async def test_redirect_to_another_server_is_not_followed(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, elsewhere = await servers(3)
    client = make_client(a, b)
    target = f"{elsewhere.base_url}/chat/completions"
    a.raw(b"").status(307).headers({"Location": target})
    with pytest.raises(APIStatusError, match="redirect"):
        await client.chat("a")
    assert counts(a, b, elsewhere) == [1, 0, 0]


async def test_environment_adds_neither_a_server_nor_a_key(
    servers: MakeServers, make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, elsewhere = await servers(3)
    monkeypatch.setenv("OPENAI_BASE_URL", elsewhere.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "from-the-environment")
    client = make_client(at(a, None), at(b))
    Clock(client)
    a.fail(401)
    for _ in range(5):
        await client.chat("a")
    assert (keys_at(a), set(keys_at(b))) == ([""], {"key"})
    assert counts(elsewhere) == [0]
    for server in (a, b):
        server.otherwise(Reply().fail(503))
    with pytest.raises(InternalServerError):
        await client.chat("a")
    assert counts(elsewhere) == [0]


async def test_headers_and_query_of_an_endpoint_go_to_it_alone(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(
        at(a, headers={"X-Team": "a"}, query={"api-version": "1"}),
        at(b),
        default_headers={"X-All": "yes"},
        default_query={"trace": "on"},
    )
    for _ in range(2):
        await client.chat("a", extra_headers={"X-Once": "now"}, extra_query={"once": "now"})
    [to_a], [to_b] = a.requests, b.requests
    assert [to_a.headers.get(name) for name in ("X-Team", "X-All", "X-Once")] == [
        "a",
        "yes",
        "now",
    ]
    assert [to_b.headers.get(name) for name in ("X-Team", "X-All", "X-Once")] == [
        None,
        "yes",
        "now",
    ]
    assert dict(to_a.query) == {"api-version": "1", "trace": "on", "once": "now"}
    assert dict(to_b.query) == {"trace": "on", "once": "now"}


async def test_key_in_another_header_goes_without_bearer(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    endpoint = at(a, "secret-key", key_header="api-key", query={"api-version": "2024-10-21"})
    await make_client(endpoint).chat("a")
    [request] = a.requests
    assert request.headers["api-key"] == "secret-key"
    assert "Authorization" not in request.headers
    assert dict(request.query) == {"api-version": "2024-10-21"}
    assert request.path == "/v1/chat/completions"


async def test_key_in_another_header_is_not_in_what_the_server_echoes(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    a.fail(400, "Access denied for secret-key.")
    with pytest.raises(APIStatusError) as caught:
        await make_client(at(a, "secret-key", key_header="api-key")).chat("a")
    assert "secret-key" not in f"{caught.value!r} {caught.value.body}"


async def test_functions_are_asked_for_the_key_of_their_own_endpoint_before_each_request(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    numbers = itertools.count(1)

    def sync_key() -> str:
        return f"a-{next(numbers)}"

    async def async_key() -> str:
        await asyncio.sleep(0)
        return f"b-{next(numbers)}"

    client = make_client(at(a, sync_key), at(b, [async_key, "b-fixed"]), at(c, lambda: ""))
    for _ in range(12):
        await client.chat("a")
    assert len(keys_at(a)) >= 3
    assert all(key.startswith("a-") for key in keys_at(a))
    assert all(key.startswith("b-") for key in keys_at(b))
    assert len(set(keys_at(a))) == len(a.requests)
    assert "b-fixed" in keys_at(b)
    assert all("Authorization" not in request.headers for request in c.requests)


async def test_function_whose_key_is_refused_is_left_alone_like_any_key(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)

    async def stale() -> str:
        return "stale"

    client = make_client(at(a, [stale, "good"]))
    clock = Clock(client)
    a.when(lambda request: "stale" in request.headers["Authorization"], Reply().fail(401))
    for _ in range(4):
        assert (await client.chat("a")).text == "a"
    assert keys_at(a) == ["stale", "good", "good", "good", "good"]
    assert clock.waits == []


async def test_function_that_raises_raises_in_its_callers_request_and_frees_the_place(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)

    def broken() -> str:
        raise ZeroDivisionError

    client = make_client(at(a, broken), b)
    with pytest.raises(ZeroDivisionError):
        await client.chat("a")
    assert client.statistics().in_flight == 0
    assert (await client.chat("b")).text == "b"


TROUBLES = [
    lambda: Reply().fail(401),
    lambda: Reply().fail(403),
    lambda: Reply().fail(404),
    lambda: Reply().fail(429),
    lambda: Reply().fail(500),
    lambda: Reply().fail(503),
    lambda: Reply().say("One two three.").cut(after=3),
    lambda: Reply().reset(after=0),
    lambda: Reply().raw(b"<html></html>", content_type="text/html"),
]


async def test_each_key_ever_reaches_its_own_endpoint_alone(
    servers: MakeServers, make_client: MakeClient
) -> None:
    """A thousand calls of all kinds, half of the attempts in trouble of all kinds."""
    a, b, c, d = await servers(4)
    chance = random.Random(7)

    def answer(_: ReceivedRequest) -> Reply:
        good = chance.random() < 0.5
        return Reply().say("One two three.") if good else chance.choice(TROUBLES)()

    for server in (a, b, c, d):
        server.otherwise(answer)

    async def key_of_c() -> str:
        return f"c-{chance.randrange(10)}"

    client = make_client(
        at(a, ["a-1", "a-2", "a-3"]),
        at(b, ["b-1", "b-2"], key_header="api-key"),
        at(c, key_of_c),
        at(d, None, spare=True),
        retry=RetryPolicy(max_retries=3, hedge=0.001),
    )
    clock = Clock(client)
    outcomes = {"answered": 0, "failed": 0}

    async def call(number: int) -> None:
        try:
            match number % 4:
                case 0:
                    await client.chat("a")
                case 1:
                    await client.chat.stream("a").final()
                case 2:
                    await client.chat.stream("a", resume="restart").final()
                case _:
                    async with client.chat.stream("a") as stream:
                        async for _ in stream:
                            break
        except APIError:
            outcomes["failed"] += 1
        else:
            outcomes["answered"] += 1

    numbers = iter(range(1000))

    async def caller() -> None:
        for number in numbers:
            await call(number)

    async def tick() -> None:
        """Where all wait for the end of a pause, somebody has to let time pass."""
        while True:
            await clock.pass_(chance.random() * 5)
            await asyncio.sleep(0.001)

    ticking = start(tick())
    async with asyncio.TaskGroup() as group:
        for _ in range(20):
            group.create_task(caller())
    ticking.cancel()
    await asyncio.wait([ticking])
    for server, prefix in ((a, "a-"), (c, "c-")):
        assert len(server.requests) > 100
        assert all(key.startswith(prefix) for key in keys_at(server))
        assert all("api-key" not in request.headers for request in server.requests)
    assert len(b.requests) > 100
    assert {request.headers["api-key"] for request in b.requests} == {"b-1", "b-2"}
    assert all("Authorization" not in request.headers for request in (*b.requests, *d.requests))
    assert set(keys_at(a)) == {"a-1", "a-2", "a-3"}
    assert sum(outcomes.values()) == 1000
    assert outcomes["answered"] > 500
    statistics = client.statistics()
    assert (statistics.in_flight, statistics.waiting) == (0, 0)


# ------------------------------------------------------------------------------ statistics and repr


async def test_statistics_tell_of_each_endpoint_what_it_does_and_has_done(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b, c = await servers(3)
    client = make_client(
        at(a, ["k1", "k2"], model="a", in_flight=3),
        at(b, model="b"),
        at(c, model="c", in_flight=1),
    )
    clock = Clock(client)
    a.fail(500)
    a.fail(401)
    a.fail(429, headers={"Retry-After": "9"})
    for _ in range(2):
        with pytest.raises(APIStatusError):
            await client.with_options(max_retries=0).chat("a", model="a")
    headers = {
        "x-ratelimit-limit-requests": "100",
        "x-ratelimit-remaining-requests": "42",
        "x-ratelimit-reset-requests": "30s",
        "x-ratelimit-remaining-tokens": "5000",
    }
    b.say("x").headers(headers)
    await client.chat("a", model="b")
    c.stall(after=3)
    async with client.chat.stream("a", model="c"):
        waiters = [start(client.chat("a", model="c")) for _ in range(2)]
        await asyncio.sleep(0)
        of_a, of_b, of_c = client.statistics().endpoints
        assert [one.url for one in (of_a, of_b, of_c)] == [a.base_url, b.base_url, c.base_url]
        assert [one.model for one in (of_a, of_b, of_c)] == ["a", "b", "c"]
        assert [one.in_flight for one in (of_a, of_b, of_c)] == [0, 0, 1]
        assert [one.waiting for one in (of_a, of_b, of_c)] == [0, 0, 2]
        assert [one.sent for one in (of_a, of_b, of_c)] == [len(a.requests), 1, 1]
        assert [one.most for one in (of_a, of_b, of_c)] == [6, None, 1]
        assert (of_a.failed, of_a.limited) == (2, 1)
        assert (of_b.failed, of_b.limited, of_b.paused) == (0, 0, 0)
        assert (of_b.rates["requests"].limit, of_b.rates["requests"].remaining) == (100, 42)
        assert of_b.rates["requests"].reset == 30
        assert of_b.rates["tokens"].remaining == 5000
        assert of_a.rates == of_c.rates == {}
    for waiter in waiters:
        await waiter
    assert clock.waits == []


async def test_statistics_tell_how_long_a_limited_endpoint_is_left_alone(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)
    a.fail(429, headers={"Retry-After": "9"})
    await client.chat("a")
    await clock.pass_(2)
    assert client.statistics().endpoints[0].paused == pytest.approx(7)
    assert client.statistics().endpoints[0].state == "closed"
    await clock.pass_(8)
    assert client.statistics().endpoints[0].paused == 0


async def test_statistics_tell_the_state_of_a_breaker(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(a, b)
    clock = Clock(client)

    def state() -> str:
        return client.statistics().endpoints[0].state

    await open_breaker(client, a)
    assert client.statistics().endpoints[0].failed == BLAME_AFTER
    await clock.pass_(1.01)
    assert state() == "half-open"
    while state() == "half-open":
        await client.chat("a")
    assert state() == "closed"


async def test_endpoint_all_of_whose_keys_are_refused_is_told_to_be_open(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, ["k1", "k2"]), b)
    Clock(client)
    a.fail(401, times=2)
    await client.chat("a")
    await client.chat("a")
    assert client.statistics().endpoints[0].state == "open"


async def test_repr_tells_the_servers_and_their_states_and_no_key(
    servers: MakeServers, make_client: MakeClient
) -> None:
    a, b = await servers(2)
    client = make_client(at(a, ["secret-1", "secret-2"]), at(b, "secret-3"))
    Clock(client)
    assert a.base_url in repr(client)
    assert b.base_url in repr(client)
    assert "open" not in repr(client)
    await open_breaker(client, a)
    assert f"{a.base_url!r} (open)" in repr(client)
    assert f"{b.base_url!r} (" not in repr(client)
    shown = (
        f"{client!r} {client.statistics()!r} {client._core.pool.sessions!r} {at(a, 'secret-1')!r}"
    )
    assert "secret" not in shown


def test_repr_of_an_endpoint_tells_what_was_set_and_how_many_keys() -> None:
    endpoint = Endpoint("https://a.example/v1", ["secret-1", "secret-2"], "m", rpm=500, spare=True)
    shown = repr(endpoint)
    for part in ("https://a.example/v1", "model='m'", "rpm=500", "spare=True", "2 keys"):
        assert part in shown
    assert "secret" not in shown
    assert "weight" not in shown


def test_endpoints_and_a_base_url_together_are_refused() -> None:
    with pytest.raises(ValueError, match="endpoints"):
        AsyncChat("http://127.0.0.1/v1", endpoints=[Endpoint("http://127.0.0.1/v1")])


def test_no_endpoint_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="endpoints"):
        AsyncChat(endpoints=[])


def test_what_is_no_endpoint_is_refused() -> None:
    endpoints: Any = ["http://127.0.0.1/v1"]
    with pytest.raises(TypeError, match="Endpoint"):
        AsyncChat(endpoints=endpoints)


async def test_spent_quota_of_the_only_key_is_raised_at_once(
    servers: MakeServers, make_client: MakeClient
) -> None:
    [a] = await servers(1)
    client = make_client(a)
    clock = Clock(client)
    a.fail(429, code="insufficient_quota")
    with pytest.raises(RateLimitError):
        await client.chat("a")
    assert (counts(a), clock.waits) == ([1], [])
