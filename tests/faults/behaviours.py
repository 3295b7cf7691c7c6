"""What the fault server can do to a client: one function per behaviour, named as the table of scenarios names it.

Not here: sockets that listen; what a client should make of it (`scenarios`). A behaviour gets an `Exchange` and says whether
the connection can be kept.
"""

import asyncio
import email.utils
import functools
import json
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from typing import NoReturn

from tests.faults.exchange import (
    DONE,
    MIB,
    ODD_TOKENS,
    TOKENS,
    Exchange,
    completion,
    event,
    finish,
    pieces,
    token,
    tokens,
    whole,
    with_choices,
)

Behaviour = Callable[[Exchange], Awaitable[bool]]

BEHAVIOURS: dict[str, Behaviour] = {}
UNREAD: set[str] = set()
"""Behaviours that find the body of the request unread."""

FLOOD_BYTES = (
    260 * MIB
)  # what a flood sends before it falls silent: more than the largest bound of a client
BOMB_BYTES = 64 * MIB  # what a compression bomb becomes: more than a client may hold


def behaviour(make: Behaviour) -> Behaviour:
    BEHAVIOURS[getattr(make, "__name__")] = make  # noqa: B009  a Callable has no name, a function has
    return make


# -------------------------------------------------------------------------------- A: legal streams


@behaviour
async def ok_stream(x: Exchange) -> bool:
    return await x.ok()


@behaviour
async def ok_json(x: Exchange) -> bool:
    return await x.json(completion())


@behaviour
async def ok_trickle(x: Exchange) -> bool:
    """Each byte in an HTTP chunk of its own."""
    await x.head()
    data = whole()
    for at in range(len(data)):
        x.writer.write(b"1\r\n%s\r\n" % data[at : at + 1])
        await asyncio.sleep(0)
    return await x.end()


@behaviour
async def ok_split_utf8(x: Exchange) -> bool:
    """Cut before each byte that goes on with a character."""
    said = b"".join(event(token(text, bare=True)) for text in ODD_TOKENS)
    said += event(finish(bare=True)) + DONE
    inside = [at for at, byte in enumerate(said) if byte & 0xC0 == 0x80]
    return await x.in_segments(pieces(said, inside))


@behaviour
async def ok_u2028(x: Exchange) -> bool:
    return await x.ok(ODD_TOKENS)


@behaviour
async def ok_crlf(x: Exchange) -> bool:
    return await x.stream(whole(b"\r\n"))


@behaviour
async def ok_crlf_split(x: Exchange) -> bool:
    """Cut after each CR and after each LF."""
    said = b"".join(event(token(text, bare=True), b"\r\n") for text in TOKENS)
    said += event(finish(bare=True), b"\r\n") + b"data: [DONE]\r\n\r\n"
    after = [at + 1 for at, byte in enumerate(said) if byte in b"\r\n"]
    return await x.in_segments(pieces(said, after))


@behaviour
async def ok_cr_only(x: Exchange) -> bool:
    return await x.stream(whole(b"\r"))


@behaviour
async def ok_bom(x: Exchange) -> bool:
    return await x.stream(b"\xef\xbb\xbf" + whole())


@behaviour
async def ok_comments(x: Exchange) -> bool:
    await x.head()
    await x.chunk(b": PROCESSING\n\n")
    for text in TOKENS:
        await x.chunk(b": keep-alive\n\n" + tokens(text) + b":\n\n")
    await x.chunk(event(finish()) + DONE)
    return await x.end()


@behaviour
async def ok_multiline_data(x: Exchange) -> bool:
    await x.head()
    for text in TOKENS:
        before, after = json.dumps(token(text)).split('"choices"')
        await x.chunk(f'data: {before}\ndata: "choices"{after}\n\n'.encode())
    await x.chunk(event(finish()) + DONE)
    return await x.end()


@behaviour
async def ok_no_space(x: Exchange) -> bool:
    return await x.stream(whole(prefix=b"data:"))


@behaviour
async def ok_meta_fields(x: Exchange) -> bool:
    await x.head()
    await x.chunk(b"retry: 3000\n\n")
    for number, text in enumerate(TOKENS):
        await x.chunk(b"id: %d\nevent: message\nunknown: x\n" % number + tokens(text))
    await x.chunk(event(finish()) + DONE)
    return await x.end()


@behaviour
async def ok_no_final_blank(x: Exchange) -> bool:
    return await x.stream(whole().rstrip())


@behaviour
async def ok_last_token_no_blank(x: Exchange) -> bool:
    """The last event has the finish reason, and ends with the body instead of a blank line."""
    choice = {"index": 0, "delta": {"content": TOKENS[-1]}, "finish_reason": "stop"}
    return await x.stream(tokens(*TOKENS[:-1]) + event(with_choices([choice]))[:-1])


@behaviour
async def ok_close_delimited(x: Exchange) -> bool:
    await x.head_until_close()
    await x.write(whole())
    return False


@behaviour
async def ok_http10(x: Exchange) -> bool:
    await x.head_until_close("1.0")
    await x.write(whole())
    return False


@behaviour
async def ok_1xx(x: Exchange) -> bool:
    await x.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    await x.sleep(0.05)
    await x.write(b"HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n")
    await x.sleep(0.05)
    return await x.ok()


@behaviour
async def ok_gzip(x: Exchange) -> bool:
    """Flushed after each event, so that a client can have each when it comes."""
    await x.head(extra=[("content-encoding", "gzip")])
    packer = zlib.compressobj(6, zlib.DEFLATED, 31)
    for text in TOKENS:
        await x.chunk(packer.compress(tokens(text)) + packer.flush(zlib.Z_SYNC_FLUSH))
        await x.sleep(0.01)
    await x.chunk(packer.compress(event(finish()) + DONE) + packer.flush())
    return await x.end()


@behaviour
async def ok_usage_chunk(x: Exchange) -> bool:
    filtered = {**with_choices([]), "id": "", "model": "", "prompt_filter_results": [{}]}
    role = {"index": 0, "delta": {"role": "assistant", "content": None}, "finish_reason": None}
    usage = {"prompt_tokens": 1, "completion_tokens": 8, "total_tokens": 9}
    return await x.stream(
        event(filtered)
        + event(with_choices([role]))
        + tokens(*TOKENS)
        + event(finish())
        + event({**with_choices([]), "usage": usage})
        + DONE
    )


@behaviour
async def ok_big_event(x: Exchange) -> bool:
    return await x.stream(tokens("x" * (2 * MIB)) + event(finish()) + DONE)


@behaviour
async def ok_chunk_extensions(x: Exchange) -> bool:
    await x.head(extra=[("trailer", "x-sum")])
    for data in (*(tokens(text) for text in TOKENS), event(finish()), DONE):
        await x.write(b'%x;sig=abc;q="1"\r\n%s\r\n' % (len(data), data))
    await x.write(b"0\r\nx-sum: 1\r\n\r\n")
    return True


@behaviour
async def ok_big_header(x: Exchange) -> bool:
    return await x.stream(whole(), extra=[("content-security-policy", "x" * 12_000)])


@behaviour
async def ok_no_reason(x: Exchange) -> bool:
    await x.head("200")
    await x.chunk(whole())
    return await x.end()


@behaviour
async def ok_done_lingers(x: Exchange) -> bool:
    await x.head()
    await x.chunk(whole())
    await x.hold()


@behaviour
async def ok_after_done(x: Exchange) -> bool:
    return await x.stream(whole() + b"data: {garbage\n\n" + tokens("MORE"))


@behaviour
async def ok_ping_then_tokens(x: Exchange) -> bool:
    await x.head()
    for _ in range(8):
        await x.chunk(b": ping\n\n")
        await x.sleep(0.1)
    await x.chunk(whole())
    return await x.end()


@behaviour
async def json_for_stream(x: Exchange) -> bool:
    """A server that does not know `stream`."""
    return await x.json(completion())


# ----------------------------------------------------------------------- B: truncated and malformed


@behaviour
async def trunc_chunked_fin(x: Exchange) -> bool:
    await x.some()
    return False


@behaviour
async def trunc_chunked_rst(x: Exchange) -> bool:
    await x.some()
    await x.sleep(0.05)
    return x.reset()


@behaviour
async def trunc_clean_chunked(x: Exchange) -> bool:
    await x.some()
    return await x.end()


@behaviour
async def trunc_close_delimited(x: Exchange) -> bool:
    await x.head_until_close()
    await x.write(tokens(*TOKENS[:3]))
    return False


@behaviour
async def trunc_without_notice(x: Exchange) -> bool:
    await x.head_until_close()
    await x.write(tokens(*TOKENS[:3]))
    x.end_without_notice()
    await x.hold()


@behaviour
async def trunc_mid_event(x: Exchange) -> bool:
    await x.some()
    await x.chunk(tokens(TOKENS[3])[:-20])
    return await x.end()


@behaviour
async def trunc_content_length(x: Exchange) -> bool:
    body = tokens(*TOKENS[:3])
    await x.head(length=len(body) + 500)
    await x.write(body)
    return False


@behaviour
async def finish_no_done(x: Exchange) -> bool:
    return await x.stream(whole().removesuffix(DONE))


@behaviour
async def finish_no_done_close(x: Exchange) -> bool:
    await x.head_until_close()
    await x.write(whole().removesuffix(DONE))
    return False


@behaviour
async def trunc_in_tool_args(x: Exchange) -> bool:
    await x.head()
    for piece in ('{"cmd": "rm -r', "f ./build"):
        function = {"name": "run", "arguments": piece}
        call = {"index": 0, "id": "t", "type": "function", "function": function}
        choice = {"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}
        await x.chunk(event(with_choices([choice])))
    return await x.end()


async def _then(x: Exchange, *events: bytes) -> bool:
    """Some tokens, some events, and an end as if nothing had been wrong."""
    await x.some()
    for one in events:
        await x.chunk(one)
    await x.chunk(event(finish()) + DONE)
    return await x.end()


@behaviour
async def bad_json_event(x: Exchange) -> bool:
    return await _then(x, b'data: {"choices": [{"delta": {"content": "x"\n\n')


@behaviour
async def bad_utf8(x: Exchange) -> bool:
    return await _then(x, tokens("XX").replace(b"XX", b"a\xff\xfeb"))


@behaviour
async def lone_surrogate(x: Exchange) -> bool:
    return await _then(x, tokens("XX").replace(b"XX", b"\\ud83d"))


@behaviour
async def split_surrogates(x: Exchange) -> bool:
    """One emoji as a pair of JSON escapes, each half in an event of its own."""
    halves = (b"\\ud83d", b"\\ude80")
    return await _then(x, *(tokens("XX").replace(b"XX", half) for half in halves))


@behaviour
async def sse_for_json(x: Exchange) -> bool:
    """A server that always streams."""
    return await x.ok()


async def _bad_chunk(x: Exchange, size: bytes) -> bool:
    await x.some()
    await x.sleep(0.1)
    await x.write(size + b"\r\nhello\r\n")
    await x.hold()


@behaviour
async def bad_chunk_size(x: Exchange) -> bool:
    return await _bad_chunk(x, b"ZZZ")


@behaviour
async def huge_chunk_size(x: Exchange) -> bool:
    return await _bad_chunk(x, b"F" * 20)


@behaviour
async def bad_status_line(x: Exchange) -> bool:
    await x.write(b"\x00\x01\x02SSH-2.0-OpenSSH_9\r\n\r\n")
    return False


@behaviour
async def html_200(x: Exchange) -> bool:
    page = b"<html><body>Please sign in to the wifi</body></html>"
    await x.head(kind="text/html", length=len(page))
    await x.write(page)
    return True


@behaviour
async def empty_200(x: Exchange) -> bool:
    await x.head(length=0)
    return True


@behaviour
async def only_done(x: Exchange) -> bool:
    return await x.stream(DONE)


@behaviour
async def empty_close(x: Exchange) -> bool:
    return False


async def _error_event(x: Exchange, said: bytes) -> bool:
    await x.some()
    await x.chunk(said)
    await x.chunk(DONE)
    return await x.end()


@behaviour
async def error_event(x: Exchange) -> bool:
    error = {"message": "upstream died", "type": "server_error", "code": "boom"}
    return await _error_event(x, event({"error": error}))


@behaviour
async def error_event_named(x: Exchange) -> bool:
    await x.some()
    error = {"message": "upstream died", "type": "server_error"}
    await x.chunk(b"event: error\n" + event(error))
    return await x.end()


@behaviour
async def error_event_vllm(x: Exchange) -> bool:
    error = {"object": "error", "message": "EngineCore died", "type": "InternalServerError"}
    return await _error_event(x, event({**error, "param": None, "code": 500}))


@behaviour
async def error_event_string(x: Exchange) -> bool:
    return await _error_event(x, event({"error": "rate limited"}))


@behaviour
async def error_in_200_json(x: Exchange) -> bool:
    error = {"message": "model crashed", "type": "server_error", "code": 500}
    return await x.json({"error": error})


@behaviour
async def finish_reason_error(x: Exchange) -> bool:
    return await _error_event(x, event(finish("error")))


@behaviour
async def deep_json(x: Exchange) -> bool:
    deep = b"[" * 100_000 + b"]" * 100_000
    return await _then(x, b'data: {"choices": ' + deep + b"}\n\n")


@behaviour
async def big_int_json(x: Exchange) -> bool:
    return await _then(x, b'data: {"choices": [], "created": ' + b"9" * 10_000 + b"}\n\n")


@behaviour
async def choices_null(x: Exchange) -> bool:
    return await _then(x, event(with_choices(None)))


@behaviour
async def wrong_types(x: Exchange) -> bool:
    return await _then(x, event(with_choices("oops")))


@behaviour
async def top_level_array(x: Exchange) -> bool:
    return await _then(x, b"data: [1,2,3]\n\n")


@behaviour
async def json_trunc(x: Exchange) -> bool:
    return await x.json(json.dumps(completion()).encode()[:-30])


@behaviour
async def json_empty(x: Exchange) -> bool:
    return await x.json(b"")


@behaviour
async def json_length_short(x: Exchange) -> bool:
    body = json.dumps(completion()).encode()
    await x.head(kind="application/json", length=len(body) + 50)
    await x.write(body)
    return False


@behaviour
async def json_no_choices(x: Exchange) -> bool:
    return await x.json({**completion(), "choices": []})


@behaviour
async def length_and_chunked(x: Exchange) -> bool:
    """Two lengths of one body: what request smuggling is made of."""
    await x.head(extra=[("content-length", "5")])
    await x.chunk(whole())
    return await x.end()


async def _unasked(x: Exchange, gap: float) -> bool:
    await x.ok()
    if x.attempt == 1:
        await x.sleep(gap)
        poison = tokens("POISON") + event(finish()) + DONE
        await x.head(length=len(poison))
        await x.write(poison)
    return True


@behaviour
async def unasked_answer(x: Exchange) -> bool:
    """A second answer right after the first, which nobody has asked for."""
    return await _unasked(x, 0)


@behaviour
async def unasked_answer_late(x: Exchange) -> bool:
    """The same, when the connection is back in the client's pool."""
    return await _unasked(x, 0.02)


# ------------------------------------------------------------------------------------------ C: time


@behaviour
async def stall_headers(x: Exchange) -> bool:
    await x.hold()


@behaviour
async def stall_mid(x: Exchange) -> bool:
    await x.some()
    await x.hold()


@behaviour
async def drip_headers(x: Exchange) -> bool:
    await x.write(b"HTTP/1.1 200 OK\r\nx-drip: ")
    while True:
        await x.write(b"a")
        await x.sleep(0.1)


@behaviour
async def drip_body(x: Exchange) -> bool:
    """An unfinished event, a byte at a time: never idle, never done."""
    await x.some()
    await x.chunk(b"data: ")
    while True:
        await x.chunk(b" ")
        await x.sleep(0.1)


@behaviour
async def ping_forever(x: Exchange) -> bool:
    await x.head()
    while True:
        await x.chunk(b": ping\n\n")
        await x.sleep(0.1)


@behaviour
async def tokens_forever(x: Exchange) -> bool:
    """A token every 20 ms: also what the lifecycle rows leave, cancel and drop."""
    await x.head()
    number = 0
    while True:
        await x.chunk(tokens(f"t{number} "))
        number += 1
        await x.sleep(0.02)


@behaviour
async def flood_tokens(x: Exchange) -> bool:
    await x.head()
    while True:
        await x.chunk(tokens("x ") * 200)


@behaviour
async def continue_forever(x: Exchange) -> bool:
    while True:
        await x.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        await x.sleep(0.1)


@behaviour
async def no_read_body(x: Exchange) -> bool:
    transport = x.writer.transport
    assert isinstance(transport, asyncio.ReadTransport)
    transport.pause_reading()
    await asyncio.sleep(0.8)  # blind: a reader that is paused cannot see its client go
    return False


@behaviour
async def early_413(x: Exchange) -> bool:
    """The refusal comes before the body has been read; only then is it read, as RFC 9112, 9.6 wants it."""
    closes = [("connection", "close")]
    await x.refuse("413 Payload Too Large", "too big", extra=closes)
    try:
        async with asyncio.timeout(2):
            while await x.reader.read(65_536):
                pass
    except TimeoutError:
        pass
    return False


UNREAD |= {"no_read_body", "early_413"}


# ---------------------------------------------------------------------------------------- D: retries


def _refuses(
    status: str, times: int, *, extra: Iterable[tuple[str, str]] = (), kind: str = "server_error"
) -> Behaviour:
    async def answer(x: Exchange) -> bool:
        if x.attempt <= times:
            return await x.refuse(status, kind=kind, extra=list(extra))
        return await x.ok()

    return answer


_ALWAYS = 2**31

for _status in (
    "500 Internal Server Error",
    "502 Bad Gateway",
    "503 Service Unavailable",
    "529 Overloaded",
    "408 Request Timeout",
    "409 Conflict",
    "425 Too Early",
    "429 Too Many Requests",
):
    BEHAVIOURS[f"e{_status[:3]}_then_ok"] = _refuses(_status, 1)

for _status in (
    "400 Bad Request",
    "401 Unauthorized",
    "403 Forbidden",
    "404 Not Found",
    "422 Unprocessable Entity",
    "429 Too Many Requests",
    "503 Service Unavailable",
):
    BEHAVIOURS[f"e{_status[:3]}"] = _refuses(_status, _ALWAYS)

BEHAVIOURS["e429_fifty_times"] = _refuses("429 Too Many Requests", 50)

for _name, _headers in {
    "ra_seconds": {"retry-after": "1"},
    "ra_ms": {"retry-after-ms": "400", "retry-after": "60"},
    "ra_x_ms": {"x-ms-retry-after-ms": "400"},
    "ra_garbage": {"retry-after": "soon"},
    "ra_negative": {"retry-after": "-5"},
    "ra_nan": {"retry-after": "nan"},
    "ra_infinite": {"retry-after": "1e999"},
    "ra_zero": {"retry-after": "0"},
    "ra_huge": {"retry-after": "9" * 400},
    "ra_reset": {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "0.4s",
        "x-ratelimit-reset-tokens": "20ms",
    },
}.items():
    BEHAVIOURS[_name] = _refuses("429 Too Many Requests", 1, extra=_headers.items())

for _name, _headers in {
    "ra_hours": {"retry-after": "7200"},
    "ra_30": {"retry-after": "30"},
}.items():
    BEHAVIOURS[_name] = _refuses("429 Too Many Requests", _ALWAYS, extra=_headers.items())

BEHAVIOURS["should_not_retry"] = _refuses(
    "500 Internal Server Error", _ALWAYS, extra=[("x-should-retry", "false")]
)


async def _retry_after_date(x: Exchange, clock: float) -> bool:
    """Dates have whole seconds: a second apart, so that the wait is a second whatever the time is."""
    if x.attempt > 1:
        return await x.ok()
    dates = {"date": time.time() + clock, "retry-after": time.time() + clock + 1}
    extra = [(name, email.utils.formatdate(at, usegmt=True)) for name, at in dates.items()]
    return await x.refuse("503 Service Unavailable", extra=extra)


@behaviour
async def ra_date(x: Exchange) -> bool:
    return await _retry_after_date(x, 0)


@behaviour
async def ra_date_skewed(x: Exchange) -> bool:
    """The server's clock is an hour ahead."""
    return await _retry_after_date(x, 3600)


@behaviour
async def quota(x: Exchange) -> bool:
    message, spent = "You exceeded your current quota", "insufficient_quota"
    return await x.refuse("429 Too Many Requests", message, code=spent, kind=spent)


@behaviour
async def rst_then_ok(x: Exchange) -> bool:
    return x.reset() if x.attempt == 1 else await x.ok()


@behaviour
async def close_then_ok(x: Exchange) -> bool:
    return False if x.attempt == 1 else await x.ok()


@behaviour
async def stale_fin(x: Exchange) -> bool:
    """Closed right after a good answer that did not announce it."""
    await x.ok()
    return False


@behaviour
async def stale_race(x: Exchange) -> bool:
    """Kept after the first answer, and reset by the next request."""
    x.connection.served += 1
    return await x.ok() if x.connection.served == 1 else x.reset()


@behaviour
async def stale_race_fin(x: Exchange) -> bool:
    x.connection.served += 1
    return x.connection.served == 1 and await x.ok()


@behaviour
async def rst_mid_then_ok(x: Exchange) -> bool:
    if x.attempt > 1:
        return await x.ok()
    return await trunc_chunked_rst(x)


@behaviour
async def err_html(x: Exchange) -> bool:
    page = (
        f"<html><head><title>502 Bad Gateway</title></head><body>{'nginx ' * 2000}</body></html>"
    )
    await x.head("502 Bad Gateway", "text/html", length=len(page))
    await x.write(page.encode())
    return True


@behaviour
async def err_body_huge(x: Exchange) -> bool:
    await x.head("500 Internal Server Error", "application/json")
    return await _flood(x, b"z" * (256 * 1024))


@behaviour
async def err_body_stall(x: Exchange) -> bool:
    await x.head("500 Internal Server Error", "application/json", length=500)
    await x.write(b'{"error": ')
    await x.hold()


@behaviour
async def err_body_bad_gzip(x: Exchange) -> bool:
    body, packed = b"not gzip at all!!!!!", [("content-encoding", "gzip")]
    await x.head("400 Bad Request", "application/json", length=len(body), extra=packed)
    await x.write(body)
    return True


@behaviour
async def err_body_rst(x: Exchange) -> bool:
    await x.head("400 Bad Request", "application/json", length=500)
    await x.write(b'{"error": ')
    await x.sleep(0.05)
    return x.reset()


# -------------------------------------------------------------------------------------- E: lifecycle


@behaviour
async def fast_big(x: Exchange) -> bool:
    """40 MiB of tokens as fast as the client takes them."""
    await x.head()
    several = tokens("y" * 4000) * 16
    for _ in range(40 * MIB // len(several)):
        await x.chunk(several)
    await x.chunk(event(finish()) + DONE)
    return await x.end()


@behaviour
async def ok_64(x: Exchange) -> bool:
    await x.head()
    for _ in range(64):
        await x.chunk(tokens("tok "))
        await asyncio.sleep(0.002)
    await x.chunk(event(finish()) + DONE)
    return await x.end()


# --------------------------------------------------------------------------------------- F: security


def _redirects(status: str) -> Behaviour:
    async def answer(x: Exchange) -> bool:
        await x.head(status, None, length=0, extra=[("location", x.elsewhere)])
        return True

    return answer


for _status in (
    "301 Moved Permanently",
    "302 Found",
    "303 See Other",
    "307 Temporary Redirect",
    "308 Permanent Redirect",
):
    BEHAVIOURS[f"redirect_{_status[:3]}"] = _redirects(_status)


@behaviour
async def redirect_loop(x: Exchange) -> bool:
    here = [("location", x.request.target)]
    await x.head("307 Temporary Redirect", None, length=0, extra=here)
    return True


@behaviour
async def redirect_same_origin(x: Exchange) -> bool:
    if "/moved/" in x.request.target:
        return await x.ok()
    there = [("location", x.request.target.replace("/v1/", "/moved/v1/"))]
    await x.head("308 Permanent Redirect", None, length=0, extra=there)
    return True


@behaviour
async def set_cookie(x: Exchange) -> bool:
    return await x.stream(whole(), extra=[("set-cookie", "sid=tenantA; Path=/")])


@behaviour
async def err_echo_key(x: Exchange) -> bool:
    key = x.request.headers.get("authorization", "").removeprefix("Bearer ")
    return await x.refuse("401 Unauthorized", f"Incorrect API key provided: {key}")


@behaviour
async def err_ansi(x: Exchange) -> bool:
    forged = "bad \x1b[2J\x1b]0;pwned\x07 thing\r\nINFO fake log line"
    return await x.refuse("400 Bad Request", forged)


@functools.cache
def _bomb() -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    pieces = [packer.compress(b"data: ")]
    pieces += [packer.compress(b"a" * MIB) for _ in range(BOMB_BYTES // MIB)]
    return b"".join((*pieces, packer.flush()))


@behaviour
async def gzip_bomb(x: Exchange) -> bool:
    await x.head(extra=[("content-encoding", "gzip")])
    bomb = await asyncio.to_thread(_bomb)
    for at in range(0, len(bomb), 16_384):
        await x.chunk(bomb[at : at + 16_384])
    return await x.end()


@behaviour
async def gzip_bomb_json(x: Exchange) -> bool:
    packed = [("content-encoding", "gzip")]
    bomb = await asyncio.to_thread(_bomb)
    await x.head(kind="application/json", length=len(bomb), extra=packed)
    await x.write(bomb)
    return True


async def _flood(x: Exchange, data: bytes, *, chunked: bool = True) -> NoReturn:
    """Send the same again and again, and then nothing: an end would be a way out."""
    for _ in range(FLOOD_BYTES // len(data)):
        await (x.chunk(data) if chunked else x.write(data))
    await x.hold()


@behaviour
async def flood_line(x: Exchange) -> bool:
    await x.some()
    await x.chunk(b"data: ")
    await _flood(x, b"a" * 65_536)


@behaviour
async def flood_event(x: Exchange) -> bool:
    await x.some()
    await _flood(x, (b"data: " + b"a" * 57 + b"\n") * 1024)


@behaviour
async def flood_comments(x: Exchange) -> bool:
    await x.some()
    await _flood(x, (b": " + b"a" * 59 + b"\n") * 1024)


@behaviour
async def flood_blank(x: Exchange) -> bool:
    await x.some()
    await _flood(x, b"\n" * 65_536)


@behaviour
async def flood_json(x: Exchange) -> bool:
    await x.head(kind="application/json")
    await x.chunk(b'{"a":"')
    await _flood(x, b"a" * 65_536)


@behaviour
async def flood_headers(x: Exchange) -> bool:
    await x.write(b"HTTP/1.1 200 OK\r\n")
    await _flood(x, (b"x-h: " + b"v" * 200 + b"\r\n") * 300, chunked=False)


@behaviour
async def flood_header_line(x: Exchange) -> bool:
    await x.write(b"HTTP/1.1 200 OK\r\nx-a: ")
    await _flood(x, b"v" * 65_536, chunked=False)


@behaviour
async def flood_chunk_extension(x: Exchange) -> bool:
    await x.some()
    await x.write(b"5;x=")
    await _flood(x, b"v" * 65_536, chunked=False)


@behaviour
async def flood_trailers(x: Exchange) -> bool:
    await x.some(len(TOKENS))
    await x.chunk(event(finish()))
    await x.sleep(0.1)  # so that the answer is whole before it begins
    await x.write(b"0\r\n")
    await _flood(x, (b"x-t: " + b"v" * 200 + b"\r\n") * 300, chunked=False)


@behaviour
async def flood_continue(x: Exchange) -> bool:
    await _flood(x, b"HTTP/1.1 100 Continue\r\n\r\n" * 1000, chunked=False)
