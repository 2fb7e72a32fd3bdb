"""Who may look: this machine without further ado, others with a token; only the board's own page may write."""

from __future__ import annotations

import ipaddress
import re
from hmac import compare_digest
from urllib.parse import urlencode

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


def loopback(host: str) -> bool:
    """Say whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _name(host: str) -> str:
    """Return the name in a Host header, without the port."""
    found = re.fullmatch(r"(\[[^\[\]]+\]|[^\[\]:]+)(:\d*)?", host)
    return found[1] if found else ""


def _from_here(request: Request) -> bool:
    """Say whether the board's own page asks: other pages cannot set this type without asking, nor name our origin."""
    origin = request.headers.get("origin", "").partition("://")[2]
    json_body = request.headers.get("content-type", "").startswith("application/json")
    return json_body and origin != "" and origin == request.headers.get("host")


WRITES = ("/notes", "/orders")


class Auth:
    """Stands before the pages.

    A token comes once, in the address; from then on a cookie carries it, so that addresses can be copied without it.
    On loopback, names of other hosts are refused: a page elsewhere could let its own name point here.
    """

    def __init__(self, app: ASGIApp, token: str | None = None, only_this_machine: bool = True):
        self.app, self.token, self.only_this_machine = app, token, only_this_machine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        answer = self._refusal(scope)
        await (answer or self.app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        request = Request(scope)
        if request.method != "GET" and (request.method != "POST" or request.url.path not in WRITES):
            return PlainTextResponse("the board only reads, but for notes and orders", 405, {"Allow": "GET"})
        if request.method == "POST" and not _from_here(request):
            return PlainTextResponse("notes and orders are taken from the board's own page", 403)
        if self.only_this_machine and not loopback(_name(request.headers.get("host", ""))):
            return PlainTextResponse("the board answers to localhost only", 403)
        if self.token is None:
            return None
        name = f"fedstrata-board-{request.url.port}"  # cookies do not tell ports apart
        query = request.query_params.multi_items()
        if any(key == "token" and self._is(value) for key, value in query):
            answer = RedirectResponse(f"/?{urlencode([pair for pair in query if pair[0] != 'token'])}", 303)
            answer.set_cookie(name, self.token, httponly=True, samesite="lax")
            return answer
        if self._is(request.cookies.get(name, "")):
            return None
        return PlainTextResponse("open the address with the token that `fedstrata board` printed", 401)

    def _is(self, told: str) -> bool:
        return self.token is not None and compare_digest(told.encode(), self.token.encode())
