"""One server over HTTP: a body out, a reply in, every foreign error mapped to ours.

Not here: retries by policy, events, what the bytes mean. With `reply` the only importer of aiohttp's client.

Nothing of aiohttp's escapes: its errors can hold the request with its key, so ours are built from scratch and raised
where no foreign error is being handled.
"""

import asyncio
import io
import logging
import ssl
import sys
import time
import urllib.request
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from weakref import WeakSet

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from asyncchat._version import __version__
from asyncchat.client.forks import forget_in_child, keep_for_parent
from asyncchat.client.reply import Reply, late, now
from asyncchat.client.tasks import Waits
from asyncchat.client.transport import Use, make_connector
from asyncchat.errors import (
    APIConnectionError,
    PoolClosed,
    ProtocolError,
    printable,
    status_error,
)
from asyncchat.policy.credentials import Secret, checked_headers, is_loopback
from asyncchat.policy.endpoint import Endpoint, Key
from asyncchat.policy.limits import Limits
from asyncchat.policy.retry import rate_limits, requested_wait
from asyncchat.policy.timeout import Timeout
from asyncchat.protocol.encoded import Request
from asyncchat.protocol.lenient import read_values
from asyncchat.protocol.response import fault_in

__all__ = ["Session"]

_log = logging.getLogger("asyncchat")

_SOON_SECONDS = 1.0  # a connection that dies this soon after its last answer was closed on purpose
_MOST_RESENDS = 2
_LARGE_BODY = 2**20  # aiohttp warns of larger bodies given as bytes
_HEADER_BYTES = 2**16

_HEADERS = {
    "Content-Type": "application/json",
    # Compression would hold tokens back, and a bomb costs more than the wire.
    "Accept-Encoding": "identity",
    "User-Agent": f"asyncchat/{__version__}",
}
_FOR_JSON = CIMultiDict(_HEADERS, Accept="application/json")
_FOR_EVENTS = CIMultiDict(_HEADERS, Accept="text/event-stream")


class _Open:
    """What a session has open in one event loop."""

    __slots__ = ("guard", "http", "replies", "sending")

    def __init__(self, http: aiohttp.ClientSession) -> None:
        self.http = http
        self.guard: AsyncGenerator[None, None] | None = None
        self.replies: set[Reply] = set()
        self.sending = Waits(asyncio.get_running_loop())

    def end(self) -> None:
        """Wake everybody who waits for this session."""
        self.sending.end()
        for reply in list(self.replies):
            reply.fail(PoolClosed("the client was closed while the answer was being read"))


class _Sent:
    """What has sent one request."""

    __slots__ = ("_opened", "_secret", "_session", "_use")

    def __init__(self, session: "Session", opened: _Open, use: Use, secret: Secret | None) -> None:
        self._session = session
        self._opened = opened
        self._use = use
        self._secret = secret

    def redact(self, text: str) -> str:
        return self._session.without_keys(text, self._secret)

    def ended(self, reply: Reply) -> None:
        self._use.ended_at = now()
        self._opened.replies.discard(reply)


async def _closed_with_its_loop(
    opened: _Open, ended: Callable[[], None]
) -> AsyncGenerator[None, None]:
    """Suspended for as long as the loop runs: asyncio closes it, and so the session, when the loop ends.

    Loops offer no other hook for that; without it a script that forgets `close()` ends in warnings.
    """
    try:
        yield
    finally:
        ended()
        opened.end()
        await opened.http.close()


class Session:
    """One server and the way to it.

    Cheap to make, and it needs no running loop: what it opens belongs to the loop it is used in, is opened there on
    first use, and closes with it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        ssl_context: ssl.SSLContext | None = None,
        trust_env: bool = True,
        http: aiohttp.ClientSession | None = None,
        limits: Limits | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.base_url = endpoint.url
        self.url = URL(f"{self.base_url}/chat/completions", encoded=False).update_query(
            endpoint.query or {}
        )
        self.limits = limits or Limits()
        self.asks_usage = True
        """Whether streams ask for their usage; off once the server has refused it."""
        self._given_keys: dict[Key, Secret] = {}  # what each function gave last
        self._extra_headers = endpoint.headers or {}
        self._bearer = "Bearer " if endpoint.key_header.lower() == "authorization" else ""
        self._ssl = ssl_context
        self._trust_env = trust_env
        self._given = http
        self._open: dict[asyncio.AbstractEventLoop, _Open] = {}
        self._ended: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
        forget_in_child(self)
        self._closes_streams = False  # the server ends connections after streams without saying so
        self.is_closed = False

    def forget(self) -> None:
        """Leave to the parent what it has open: this is a child."""
        keep_for_parent(self._open)
        for opened in self._open.values():
            for reply in opened.replies:
                keep_for_parent(reply.disown())
        self._open = {}

    def _end_loop(self) -> None:
        """The running loop is being closed: what was open in it is closed with it, and no more is opened."""
        loop = asyncio.get_running_loop()
        self._open.pop(loop, None)
        self._ended.add(loop)

    def __repr__(self) -> str:
        return f"Session({self.base_url!r})"

    @property
    def has_key(self) -> bool:
        """Whether requests will carry a credential."""
        return bool(self.endpoint.keys) or any(
            name.lower() == "authorization" for name in self._extra_headers
        )

    # -------------------------------------------------------------------------------------- send

    async def post(
        self,
        request: Request,
        *,
        stream: bool,
        timeout: Timeout,  # noqa: ASYNC109  bounds, not a cancel scope in disguise
        deadline: float | None,
        key: Key | None = None,
        idempotency_key: str = "",
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> "Reply":
        """Send a request and return the reply, its status good and its body unread.

        Args:
            request: what to send.
            stream: whether to ask for events.
            timeout: bounds of this attempt.
            deadline: when the whole request is over, on `reply.now`'s clock.
            key: one of the endpoint's.
            idempotency_key: the same for all attempts at one request.
            headers: beside those of the session.
            query: beside that of the session.

        Raises:
            APIStatusError: the status is no answer.
            APITimeoutError: `connect`, `first` or the deadline ran out.
            APIConnectionError: no connection, or one that ended before the answer.
            PoolClosed: the session was closed.
        Cancellation: safe anywhere; the connection is closed.
        """
        opened = self._at_hand() or await self._opened()
        secret = (
            key
            if key is None or isinstance(key, Secret)
            else await self._asked_for(key, timeout, deadline)
        )
        url = self.url.update_query(query) if query else self.url
        extra = checked_headers(headers) if headers else None
        for resends in range(_MOST_RESENDS + 1):
            sent_at = now()
            use = Use.of_this_request()
            failure: Exception
            try:
                with opened.sending.within(_shorter(deadline, timeout.first)):
                    response = await opened.http.post(
                        url,
                        data=self._body(request, stream=stream),
                        headers=self._headers(secret, idempotency_key, extra, stream=stream),
                        timeout=_timeouts(timeout.connect),
                        allow_redirects=False,
                    )
                break
            except (aiohttp.ClientError, OSError, RuntimeError) as error:
                failure = error
            if not self._may_resend(failure, use, resends):
                failure = self._mapped(failure, timeout, deadline)
                # Raised outside the `except`, so that it drags no foreign traceback along: its frames hold the key.
                try:
                    raise failure
                finally:
                    del failure  # else its own traceback keeps it alive
        else:
            raise APIConnectionError(
                f"{self.base_url} closed {_MOST_RESENDS} kept connections one after the other",
                endpoint=self.base_url,
            )

        spent = now() - sent_at
        reply = Reply(
            response,
            self.base_url,
            timeout,
            deadline,
            spent=spent,
            sender=_Sent(self, opened, use, secret),
        )
        opened.replies.add(reply)
        if reply.status != 200:
            await self._refuse(reply, secret)
        return reply

    def _body(self, request: Request, *, stream: bool) -> bytes | io.BytesIO:
        body = request.encode(
            stream=stream,
            ask_usage=self.asks_usage,
            model=self.endpoint.model,
            dialect=self.endpoint.dialect,
        )
        return body if len(body) < _LARGE_BODY else io.BytesIO(body)

    def without_keys(self, text: str, secret: Secret | None) -> str:
        """Return a server's words without the keys it was sent."""
        for name, value in self._extra_headers.items():
            if any(part in name.lower() for part in ("authorization", "key", "token", "secret")):
                text = text.replace(value.removeprefix("Bearer ") or value, "***")
        return text if secret is None else secret.hide(text)

    def _headers(
        self,
        secret: Secret | None,
        idempotency_key: str,
        extra: Mapping[str, str] | None,
        *,
        stream: bool,
    ) -> CIMultiDict[str]:
        headers: CIMultiDict[str] = CIMultiDict(_FOR_EVENTS if stream else _FOR_JSON)
        if secret is not None:
            headers[self.endpoint.key_header] = self._bearer + secret.reveal()
        if idempotency_key:
            headers["Idempotency-Key"] = idempotency_key
        if stream and self._closes_streams:
            headers["Connection"] = "close"
        if self._extra_headers:
            headers.update(self._extra_headers)
        if extra:
            headers.update(extra)
        return headers

    async def _asked_for(
        self,
        source: Callable[[], str | Awaitable[str]],
        timeout: Timeout,  # noqa: ASYNC109  bounds
        deadline: float | None,
    ) -> Secret | None:
        scope = asyncio.timeout(_shorter(deadline, None))
        try:
            async with scope:
                given = source()
                key = await given if isinstance(given, Awaitable) else given
        except TimeoutError:
            if not scope.expired():
                raise
        else:
            return self._made_secret(source, key)
        raise late("total", timeout.total, self.base_url)

    def _made_secret(self, source: Key, key: object) -> Secret | None:
        if not isinstance(key, str):
            raise TypeError(f"api_key() gave a {type(key).__name__}; it has to give a str.")
        if not key.strip():
            return None
        known = self._given_keys.get(source)
        if known is None or known.reveal() != key:
            known = self._given_keys[source] = Secret(key)
        return known

    def _may_resend(self, failure: Exception, use: Use, resends: int) -> bool:
        """Whether a connection kept from an earlier answer died before it carried a byte of this one."""
        died = isinstance(
            failure, (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError)
        ) and not isinstance(failure, aiohttp.ClientConnectorError)
        if not died or self.is_closed:
            return False
        if use.reused is None:  # a session of the user's: once, on the assumption
            return resends == 0
        ended_at = use.previous.ended_at if use.previous is not None else None
        if isinstance(failure, aiohttp.ServerDisconnectedError) and ended_at is not None:
            # Not a connection that sat idle too long, nor one that broke: this server closes after each stream.
            self._closes_streams |= now() - ended_at < _SOON_SECONDS
        return use.reused

    # ------------------------------------------------------------------------------------ errors

    def _mapped(self, failure: Exception, timeout: Timeout, deadline: float | None) -> Exception:
        """Our error for one of aiohttp's, holding nothing of it."""
        where = self.base_url
        if self.is_closed:
            return PoolClosed("the client was closed while the request was being sent")
        if isinstance(failure, aiohttp.ConnectionTimeoutError):
            error = late("connect", timeout.connect, where)
            error.was_sent = False
            return error
        if isinstance(failure, TimeoutError):
            over = deadline is not None and now() >= deadline
            return late(*(("total", timeout.total) if over else ("first", timeout.first)), where)
        if isinstance(failure, aiohttp.ClientResponseError):
            if isinstance(failure, aiohttp.ClientHttpProxyError):
                text = f"the proxy answered {failure.status} instead of connecting to {where}"
                return APIConnectionError(text, endpoint=where)
            text = f"what {where} answered is no HTTP: {printable(failure.message, 200)}"
            return ProtocolError(text, endpoint=where)
        text, hint = _why(failure, where)
        good = not isinstance(failure, aiohttp.ClientSSLError)  # a certificate stays what it is
        lost = APIConnectionError(text, hint=hint, endpoint=where, retryable=good)
        lost.was_sent = not isinstance(failure, aiohttp.ClientConnectorError)
        return lost

    async def _refuse(self, reply: "Reply", secret: Secret | None) -> None:
        """Raise the error that a status other than 200 stands for."""
        try:
            text = (await reply.read_some(self.limits.max_error_bytes)).decode("utf-8", "replace")
        finally:
            reply.close()
        text = self.without_keys(text, secret)
        values = read_values(text.encode("utf-8", "replace"))[0]
        decoded = values[0] if len(values) == 1 else text
        fault = fault_in(decoded, always=True) if isinstance(decoded, (dict, list)) else None
        message = fault.message if fault else _summary(text, reply.content_type)
        should_retry = {"true": True, "false": False}.get(reply.headers.get("x-should-retry", ""))
        status = reply.status
        error = status_error(
            status,
            printable(f"{status} from {self.base_url}: {message}"),
            code=fault.code if fault else None,
            type=fault.type if fault else None,
            param=fault.param if fault else None,
            body=decoded,
            hint=_hint(status, reply.headers, has_key=secret is not None),
            request_id=reply.http.request_id,
            endpoint=self.base_url,
            retry_after=requested_wait(reply.headers, time.time()),
            should_retry=should_retry,
        )
        error.rate_limits = rate_limits(reply.headers)
        try:
            raise error
        finally:
            del error  # else its own traceback keeps it alive

    # -------------------------------------------------------------------------------- open, close

    def _at_hand(self) -> _Open | None:
        """Return what is open in the running loop, if anything is."""
        if self.is_closed:
            raise PoolClosed("the client is closed", hint="Make a new AsyncChat.")
        opened = self._open.get(asyncio.get_running_loop())
        return None if opened is None or opened.http.closed else opened

    async def _opened(self) -> _Open:
        loop = asyncio.get_running_loop()
        if loop in self._ended:
            raise PoolClosed("the event loop is being closed")
        opened = self._open[loop] = await self._make()
        return opened

    async def _make(self) -> _Open:
        if self._given is not None:
            if self._given.closed:
                raise PoolClosed("the aiohttp session that was passed as session= is closed")
            return _Open(self._given)
        if self.has_key and self.url.scheme == "http" and not is_loopback(self.url.host or ""):
            _log.warning("the key for %s goes over plain http, readable on the way", self.base_url)
        connector = make_connector(self._ssl)
        http = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            proxy=self._proxy(),
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
        )
        opened = _Open(http)
        opened.guard = _closed_with_its_loop(opened, self._end_loop)
        await anext(opened.guard)
        return opened

    def _proxy(self) -> str | None:
        """The environment's proxy for this server: never for loopback, and .netrc is not read for it."""
        host, scheme = self.url.host or "", self.url.scheme
        if not self._trust_env or is_loopback(host) or urllib.request.proxy_bypass(host):
            return None
        proxies = urllib.request.getproxies()
        proxy = proxies.get(scheme) or proxies.get("all")
        return proxy if proxy and proxy.startswith(("http://", "https://")) else None

    async def close(self) -> None:
        """End every reply, wake their readers with `PoolClosed`, and close the connections. Idempotent."""
        self.is_closed = True
        opened = self._open.pop(asyncio.get_running_loop(), None)
        if opened is None:
            return
        opened.end()
        if opened.guard is not None:
            await opened.guard.aclose()


# ------------------------------------------------------------------------------------------ details


def _why(failure: Exception, where: str) -> tuple[str, str]:
    """Say what stood between us and a server, and what to look at."""
    if isinstance(failure, aiohttp.ClientSSLError):
        text = printable(str(getattr(failure, "os_error", None) or failure))
        hint = "Pass ssl_context=... for a private certificate authority."
        return f"TLS with {where} failed: {text}", hint
    if isinstance(failure, aiohttp.ClientConnectorDNSError):
        return f"the host of {where} cannot be resolved.", "Is base_url right?"
    if isinstance(failure, aiohttp.ClientConnectorError):
        text = printable(failure.os_error.strerror or str(failure.os_error))
        return f"cannot connect to {where}: {text}.", "Is the server running?"
    text = printable(str(failure), 200) or type(failure).__name__
    return f"the connection to {where} was lost before an answer came: {text}", ""


_TIMEOUTS: dict[float | None, aiohttp.ClientTimeout] = {}


def _timeouts(connect: float | None) -> aiohttp.ClientTimeout:
    """Bounds for aiohttp, which watches only the connecting: name lookup, TCP and TLS together."""
    made = _TIMEOUTS.get(connect)
    if made is None:
        made = aiohttp.ClientTimeout(total=None, connect=connect, ceil_threshold=sys.maxsize)
        if len(_TIMEOUTS) < 100:
            _TIMEOUTS[connect] = made
    return made


def _summary(text: str, content_type: str) -> str:
    kind = content_type.partition(";")[0] or "no type"
    first = " ".join(text.split())[:200]
    return f"a body of {kind}: {first}" if first else "an empty body"


def _hint(status: int, headers: Mapping[str, str], *, has_key: bool) -> str:
    if 300 <= status < 400:
        location = headers.get("location", "")
        try:
            origin = str(URL(location).origin())
        except ValueError:
            origin = "another path"
        return f"It redirects to {origin}; redirects are not followed. Set base_url to where it should go."
    if status == 401:
        return (
            "Is the key right?"
            if has_key
            else "It wants a key: pass api_key=... or set OPENAI_API_KEY."
        )
    if status == 404:
        return "Does base_url end in /v1, and does the server have this model?"
    return ""


def _shorter(deadline: float | None, bound: float | None) -> float | None:
    """Return the seconds until the sooner of a time and the end of a bound that begins now."""
    if deadline is None:
        return bound
    left = deadline - now()
    return left if bound is None else min(left, bound)
