"""Who may use the page: requests of its own origin, whole bodies of bounded size, and what a browser may do with it.

Not here: what is served. A server on loopback is reached by every web site that its user visits: by a form or a fetch
that another origin sends (they carry a foreign `Origin`), and by a name whose owner lets it point at 127.0.0.1 (they
carry a foreign `Host`; "DNS rebinding"). Both are refused before anything is read.
"""

import base64
import hashlib
import re
from ipaddress import ip_address

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

__all__ = ["MAX_BODY_BYTES", "guard", "protect", "secure_page"]

MAX_BODY_BYTES = 256 * 1024

_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def guard(own_host: str) -> Middleware:
    """Return the middleware that refuses, with 403, what does not come from the page or by its address.

    Args:
        own_host: What is listened on. Besides it, `localhost` and loopback addresses name this server; and if it is no
            loopback address, so does every numeric one, which no foreign site can claim for its own.
    """
    only_loopback = _is_loopback(own_host)

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = _name(request.headers.get("Host", ""))
        if not (
            name == own_host or _is_loopback(name) or (_is_number(name) and not only_loopback)
        ):
            raise web.HTTPForbidden(text="This address is not one of the demo's own.")
        origin = request.headers.get("Origin")
        is_foreign = origin is not None and origin != f"http://{request.headers['Host']}"
        if is_foreign or request.headers.get("Sec-Fetch-Site", "none") in (
            "cross-site",
            "same-site",
        ):
            raise web.HTTPForbidden(text="Another site may not use the demo.")
        try:
            return await handler(request)
        except web.HTTPRequestEntityTooLarge as error:
            raise web.HTTPRequestEntityTooLarge(
                max_size=MAX_BODY_BYTES,
                text="The conversation has become too long. Please start a new one.",
            ) from error

    return check


async def protect(_: web.Request, response: web.StreamResponse) -> None:
    """Add to any response what keeps other sites, caches and content sniffing away from it."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers.setdefault(
        "Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"
    )


def secure_page(html: str) -> web.Response:
    """Return the page under a policy by which nothing runs, loads or is drawn but what is in it now.

    Its script and style are named by their hashes, so that none which a model writes would run, and text cannot be made
    into HTML at all where the browser knows trusted types.
    """
    script, style = (_hashes(html, element) for element in ("script", "style"))
    policy = (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    )
    return web.Response(
        text=html, content_type="text/html", headers={"Content-Security-Policy": policy}
    )


def _hashes(html: str, element: str) -> str:
    bodies = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
    digests = [
        base64.b64encode(hashlib.sha256(body.encode()).digest()).decode() for body in bodies
    ]
    return " ".join(f"'sha256-{digest}'" for digest in digests)


def _name(host: str) -> str:
    """The host of a `Host` header, without its port; a port that is forwarded may be another than ours."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _is_loopback(name: str) -> bool:
    return name == "localhost" or (_is_number(name) and ip_address(name).is_loopback)
