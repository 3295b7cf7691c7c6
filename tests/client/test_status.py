"""What a status becomes: class, code, words, wait. By aioresponses, since no byte of it is about streams."""

import pickle
from typing import Any

import pytest

import asyncchat
from asyncchat import APIStatusError, AsyncChat, InternalServerError
from tests.client.conftest import Statuses

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def client() -> AsyncChat:
    return AsyncChat("http://server.example/v1", api_key="k", model="m", max_retries=0)


async def refusal(client: AsyncChat) -> APIStatusError:
    async with client:
        with pytest.raises(APIStatusError) as caught:
            await client.chat("a")
    return caught.value


@pytest.mark.parametrize(
    ("status", "name", "retryable"),
    [
        (400, "BadRequestError", False),
        (401, "AuthenticationError", False),
        (402, "APIStatusError", False),
        (403, "PermissionDeniedError", False),
        (404, "NotFoundError", False),
        (408, "APIStatusError", True),
        (409, "ConflictError", True),
        (413, "APIStatusError", False),
        (422, "UnprocessableEntityError", False),
        (425, "APIStatusError", True),
        (429, "RateLimitError", True),
        (500, "InternalServerError", True),
        (502, "InternalServerError", True),
        (503, "InternalServerError", True),
        (529, "InternalServerError", True),
        (201, "APIStatusError", False),
        (204, "APIStatusError", False),
        (302, "APIStatusError", False),
    ],
)
async def test_status_has_its_class(
    status: int, name: str, retryable: bool, statuses: Statuses, client: AsyncChat
) -> None:
    statuses.answer(status, b'{"error":{"message":"No."}}')
    error = await refusal(client)
    assert type(error) is getattr(asyncchat, name)
    assert error.status_code == status
    assert error.retryable is retryable
    assert error.endpoint == "http://server.example/v1"


@pytest.mark.parametrize(
    ("body", "says", "code", "kind", "param"),
    [
        (
            b'{"error":{"message":"No model.","type":"t","param":"model","code":"c"}}',
            "No model.",
            "c",
            "t",
            "model",
        ),
        (b'{"error":"No model."}', "No model.", None, None, None),
        (b'{"error":{"message":"No model.","code":404}}', "No model.", 404, None, None),
        (b'[{"error":{"message":"No model.","code":429}}]', "No model.", 429, None, None),
        (b'{"error":["No model."]}', "No model.", None, None, None),
        (
            b'{"object":"error","message":"No model.","type":"t","param":null,"code":40301}',
            "No model.",
            40301,
            "t",
            None,
        ),
        (b'{"message":"No model."}', "No model.", None, None, None),
        (b'{"msg":"No model."}', "No model.", None, None, None),
        (b'{"detail":"No model."}', "No model.", None, None, None),
        (
            b'{"detail":[{"loc":["body","n"],"msg":"No int.","type":"int"},{"msg":"No model."}]}',
            "No int.; No model.",
            None,
            None,
            None,
        ),
        (b'{"error":{"message":""}}', "400", None, None, None),
        (b'{"error":null}', "400", None, None, None),
        (b"{}", "400", None, None, None),
        (b"[]", "400", None, None, None),
        (b"null", "null", None, None, None),
        (b'"No model."', "No model.", None, None, None),
        (b"No model.", "No model.", None, None, None),
        (b"", "an empty body", None, None, None),
        (b"\xff\xfe\x00 rubbish", "rubbish", None, None, None),
        (b'{"error":{"message":"No mod', "No mod", None, None, None),
        (b'{"error":{"message":3,"code":true,"type":[1],"param":{}}}', "400", None, None, None),
    ],
)
async def test_body_of_any_shape_gives_its_words(
    body: bytes,
    says: str,
    code: object,
    kind: object,
    param: object,
    statuses: Statuses,
    client: AsyncChat,
) -> None:
    statuses.answer(400, body)
    error = await refusal(client)
    assert says in str(error)
    assert str(error).startswith("400 from http://server.example/v1: ")
    assert (error.code, error.type, error.param) == (code, kind, param)


async def test_decoded_body_is_on_the_error(statuses: Statuses, client: AsyncChat) -> None:
    statuses.answer(400, b'{"error":{"message":"No.","extra":[1]}}')
    assert (await refusal(client)).body == {"error": {"message": "No.", "extra": [1]}}


async def test_web_page_is_named_as_one_and_cut_short(
    statuses: Statuses, client: AsyncChat
) -> None:
    page = "<html>\n<h1>502 Bad Gateway</h1>" + "<p>x</p>" * 2000
    statuses.answer(502, page, {"Content-Type": "text/html; charset=utf-8"})
    error = await refusal(client)
    assert isinstance(error, InternalServerError)
    assert "text/html" in str(error)
    assert "Bad Gateway" in str(error)
    assert len(str(error)) < 600
    assert "\n" not in str(error)


async def test_control_characters_of_a_server_are_shown_and_not_passed_on(
    statuses: Statuses, client: AsyncChat
) -> None:
    statuses.answer(400, rb'{"error":{"message":"a\u001b[31mred\nforged: line"}}')
    error = await refusal(client)
    assert "\x1b" not in str(error) + error.message
    assert "\n" not in str(error)
    assert r"a\x1b[31mred\nforged" in str(error)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"Retry-After": "7", "Retry-After-Ms": "1250"}, 1.25),
        ({"X-Ms-Retry-After-Ms": "1500"}, 1.5),
        (
            {
                "Date": "Mon, 30 Nov 2026 12:00:00 GMT",
                "Retry-After": "Mon, 30 Nov 2026 12:00:09 GMT",
            },
            9,
        ),
        ({"X-RateLimit-Remaining-Requests": "0", "X-RateLimit-Reset-Requests": "1m2s"}, 62),
        ({"X-RateLimit-Remaining-Tokens": "5", "X-RateLimit-Reset-Tokens": "1m2s"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
async def test_wait_that_a_server_asks_for_is_on_the_error(
    headers: dict[str, str], seconds: float | None, statuses: Statuses, client: AsyncChat
) -> None:
    statuses.answer(429, b"{}", {**JSON, **headers})
    assert (await refusal(client)).retry_after == seconds


async def test_limits_that_a_server_reports_are_on_the_error(
    statuses: Statuses, client: AsyncChat
) -> None:
    headers = {"X-RateLimit-Limit-Requests": "60", "X-RateLimit-Remaining-Requests": "0"}
    statuses.answer(429, b"{}", {**JSON, **headers})
    limit = (await refusal(client)).rate_limits["requests"]
    assert (limit.limit, limit.remaining, limit.reset) == (60, 0, None)


async def test_request_id_is_on_the_error(statuses: Statuses, client: AsyncChat) -> None:
    statuses.answer(500, b"{}", {**JSON, "X-Request-Id": "req_7"})
    assert (await refusal(client)).request_id == "req_7"


@pytest.mark.parametrize(
    ("word", "status", "retryable"), [("true", 400, True), ("false", 503, False), ("?", 503, True)]
)
async def test_servers_word_on_retries_is_on_the_error(
    word: str, status: int, retryable: bool, statuses: Statuses, client: AsyncChat
) -> None:
    statuses.answer(status, b"{}", {**JSON, "X-Should-Retry": word})
    assert (await refusal(client)).retryable is retryable


@pytest.mark.parametrize("field", ["code", "type"])
@pytest.mark.parametrize(
    "word", ["insufficient_quota", "billing_hard_limit_reached", "billing_not_active"]
)
async def test_spent_quota_is_for_good(
    field: str, word: str, statuses: Statuses, client: AsyncChat
) -> None:
    statuses.answer(429, f'{{"error":{{"message":"No.","{field}":"{word}"}}}}')
    assert not (await refusal(client)).retryable


@pytest.mark.parametrize(
    ("status", "headers", "hint"),
    [
        (401, {}, "Is the key right?"),
        (404, {}, "base_url end in /v1"),
        (308, {"Location": "https://b.example/v1/x?k=1"}, "redirects to https://b.example;"),
        (308, {"Location": "/elsewhere"}, "another path"),
        (308, {}, "another path"),
        (308, {"Location": "http://[bad"}, "another path"),
    ],
)
async def test_status_comes_with_what_to_do(
    status: int, headers: dict[str, str], hint: str, statuses: Statuses, client: AsyncChat
) -> None:
    statuses.answer(status, b"{}", {**JSON, **headers})
    assert hint in str(await refusal(client))


async def test_missing_key_is_what_a_401_without_one_says(statuses: Statuses) -> None:
    statuses.answer(401, b"{}")
    client = AsyncChat("http://server.example/v1", model="m", max_retries=0)
    assert "OPENAI_API_KEY" in str(await refusal(client))


async def test_error_survives_pickling_with_all_it_carries(
    statuses: Statuses, client: AsyncChat
) -> None:
    statuses.answer(
        429, b'{"error":{"message":"No.","code":"c","type":"t"}}', {**JSON, "Retry-After": "3"}
    )
    error = await refusal(client)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    names = ("message", "status_code", "code", "type", "param", "body", "request_id", "endpoint")
    for name in (*names, "retry_after", "retryable", "partial", "hint", "rate_limits"):
        wanted: Any = getattr(error, name)
        assert getattr(copy, name) == wanted
