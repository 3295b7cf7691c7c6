"""`web.guard`: who is refused, and what every response carries. No browser: headers as another site would send them."""

import base64
import gzip
import hashlib
import re
from collections.abc import Mapping

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from asyncchat.web.guard import MAX_BODY_BYTES, guard
from tests.web.conftest import Site

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASK = b'{"messages":[{"role":"user","content":"Hello?"}]}'


async def post(
    site: Site,
    body: bytes = ASK,
    *,
    url: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            url or site.url + "chat",
            data=body,
            headers={"Content-Type": "application/json", **(headers or {})},
        ) as response,
    ):
        return response.status, await response.text()


# ----------------------------------------------------------------------------------- Host and Origin


async def allows(own_host: str, **headers: str) -> bool:
    async def handler(_: web.Request) -> web.StreamResponse:
        return web.Response()

    try:
        await guard(own_host)(make_mocked_request("POST", "/chat", headers=headers), handler)
    except web.HTTPForbidden:
        return False
    return True


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1:8000", "127.0.0.1", "localhost:8000", "localhost", "[::1]:8000", "127.1.2.3:1"],
)
async def test_addresses_of_this_machine_are_its_own(host: str) -> None:
    assert await allows("127.0.0.1", Host=host)


@pytest.mark.parametrize(
    "host",
    [
        "rebound.example:8000",
        "rebound.example",
        "127.0.0.1.rebound.example:8000",
        "localhost.rebound.example",
        "rebound.example:127.0.0.1",
        "192.0.2.7:8000",
        "[2001:db8::1]:8000",
        "[",
        "",
    ],
)
async def test_foreign_name_that_points_here_is_refused(host: str) -> None:
    assert not await allows("127.0.0.1", Host=host)


async def test_request_without_a_host_is_refused() -> None:
    assert not await allows("127.0.0.1")


async def test_open_address_takes_numbers_and_its_own_name_but_no_other_name() -> None:
    assert await allows("0.0.0.0", Host="192.0.2.7:8000")
    assert await allows("::", Host="[2001:db8::1]:8000")
    assert await allows("box.example", Host="box.example:8000")
    assert not await allows("0.0.0.0", Host="rebound.example")
    assert not await allows("box.example", Host="rebound.example")


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://other.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:8001"},
        {"Origin": "https://127.0.0.1:8000"},
        {"Origin": "http://localhost:8000"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
async def test_another_origin_is_refused(headers: dict[str, str]) -> None:
    assert not await allows("127.0.0.1", Host="127.0.0.1:8000", **headers)


@pytest.mark.parametrize(
    "headers", [{}, {"Origin": "http://127.0.0.1:8000", "Sec-Fetch-Site": "same-origin"}], ids=str
)
async def test_own_page_and_programs_are_let_in(headers: dict[str, str]) -> None:
    assert await allows("127.0.0.1", Host="127.0.0.1:8000", **headers)


@pytest.mark.parametrize(
    "headers", [{"Host": "a.example"}, {"Origin": "http://a.example"}], ids=str
)
@pytest.mark.parametrize("path", ["", "about", "chat", "nothing"])
async def test_refusal_holds_for_every_path_and_asks_nothing_of_the_model(
    site: Site, headers: dict[str, str], path: str
) -> None:
    status, said = await post(site, ASK, url=site.url + path, headers=headers)
    assert status == 403
    assert said.endswith(".")
    assert site.model.requests == []


# ------------------------------------------------------------------------------------------- bodies


async def test_long_body_is_refused_with_a_sentence(site: Site) -> None:
    body = b'{"messages":[{"role":"user","content":"' + b"x" * MAX_BODY_BYTES + b'"}]}'
    assert await post(site, body) == (
        413,
        "The conversation has become too long. Please start a new one.",
    )
    assert site.model.requests == []


async def test_body_that_grows_when_it_is_unpacked_is_refused(site: Site) -> None:
    packed = gzip.compress(b" " * 50_000_000)
    assert len(packed) < MAX_BODY_BYTES
    status, _ = await post(site, packed, headers={"Content-Encoding": "gzip"})
    assert status == 413


# ------------------------------------------------------------------------------------------ headers


@pytest.mark.parametrize("path", ["", "about", "nothing"])
async def test_every_response_keeps_caches_sniffers_and_frames_away(site: Site, path: str) -> None:
    async with aiohttp.ClientSession() as session, session.get(site.url + path) as response:
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Referrer-Policy"] == "no-referrer"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; ")
        assert "frame-ancestors 'none'" in policy


async def test_policy_of_the_page_names_what_is_in_it_and_allows_nothing_else(site: Site) -> None:
    async with aiohttp.ClientSession() as session, session.get(site.url) as response:
        html = await response.text()
        policy = dict(
            directive.split(" ", 1)
            for directive in response.headers["Content-Security-Policy"].split("; ")
        )
    for element in ("script", "style"):
        (inline,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert policy[f"{element}-src"] == f"'sha256-{digest}'"
    assert policy["connect-src"] == "'self'"
    assert policy["img-src"] == "data:"
    assert policy["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in str(policy)
    assert "innerHTML" not in html
    assert not re.search(r"(src|href)=\"(?!data:)", html)
