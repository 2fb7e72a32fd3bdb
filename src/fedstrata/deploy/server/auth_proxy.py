"""A SuperLink with a gate: other machines reach only what node keys guard.

Flower serves three interfaces on one port. Fleet, for the sites, asks for a registered node key. Control (start a run,
which is any program, on the server and at all sites; register a key; stop a run) and Runtime (take over a run's task)
ask for nothing. So whoever could open the port would own the federation, with TLS and node keys on. The gate answers
404 to every path but Fleet's, unless the caller is on this machine and no browser. It decides by headers alone: of who
is not signed as a site that may connect, no body is read, and of nobody one that is longer than any of ours.

`python -m fedstrata.deploy.server.auth_proxy OPTIONS` is `flower-superlink OPTIONS` behind it.
"""

from __future__ import annotations

import asyncio
import asyncio.constants
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import Any

from fedstrata import __version__
from fedstrata.core.machine.parent_line import end_with_parent
from fedstrata.core.web_limits import CONNECTIONS, WITHIN, impatient
from fedstrata.deploy import site_reports
from fedstrata.deploy.flower import run_command
from fedstrata.deploy.node_signature import KnownKeys
from fedstrata.deploy.served import HEALTH, MODELS
from fedstrata.deploy.server.long_poll import LongPoll
from fedstrata.deploy.server.model_shelf import ModelShelf
from fedstrata.deploy.server.one_port import serve_on_one_port
from fedstrata.deploy.server.run_launcher import RunLauncher
from fedstrata.deploy.server.web_app import App, Receive, Scope, Send
from fedstrata.deploy.site_reports import ReportBook, SiteReport
from fedstrata.remote.protocol_version import PROTOCOL

FLEET = "/v1/fleet/"
GATE = "/fedstrata-gate"  # answered by the gate itself: that is how one knows that it is there
NODES = "nodes.json"  # beside the database: which site has which node id and key
BODY = 16 << 20  # bytes of a request: Flower sends objects one by one, and ours have half of that at most
SILENCE = 30.0  # seconds between two pieces of a body
BROWSERS = ("origin", "sec-fetch-site")  # what they send with every request that could do harm, and Flower never does
STREAM = "FEDSTRATA_STREAM"  # the socket to which streams are passed on; without it they have a port of their own
TAKEN = 204  # what a report is answered with
NOT_YET = 503  # ... by a server that has yet to tell the gate which keys count: nobody is refused for good
CLOCK = 412  # ... to a site whose key counts, and whose clock does not
UP = "server.json"  # beside the database, once it has
KEPT = 3 * round(site_reports.EVERY)  # seconds that a connection is kept for its next request; sites report on theirs
FAREWELL = 2  # seconds in which requests under way are ended, when the server is

VERSIONS = (
    (site_reports.VERSION.encode(), __version__.encode()),
    (site_reports.PROTOCOL.encode(), str(PROTOCOL).encode()),
)


def own_names(*more: str) -> frozenset[str]:
    """Return the names by which callers on this machine may know it."""
    return frozenset(name.lower() for name in ("localhost", socket.gethostname(), socket.getfqdn(), *more))


@dataclass
class Gate:
    """Stands before a web application (ASGI)."""

    app: App
    keys: KnownKeys | None = None  # of the sites that may connect; None: insecure
    names: frozenset[str] = field(default_factory=own_names)  # of this machine, as its own callers know it
    reports: ReportBook | None = None  # what sites say of themselves
    settled: Callable[[], bool] = lambda: True  # whether it is known whose keys count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, or answer it here."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
        elif (status := self.refusal(scope)) is None:
            await self.app(scope, _awake(receive), send)
        else:
            report = scope["path"] == site_reports.PATH
            headers = list(VERSIONS) if report else []
            if not report or status != TAKEN:  # what else the caller sends is not read
                headers.append((b"connection", b"close"))
            await send({"type": "http.response.start", "status": status, "headers": headers})
            await send({"type": "http.response.body", "body": b""})

    def refusal(self, scope: Scope) -> int | None:
        """Return the status with which a request is answered here; None: it may go on.

        Everything is decided by its headers. A page in a browser on this machine could call us, too, also under a name
        of its own that leads here: what comes from browsers is refused, and who comes from here must know our names.
        """
        path, headers = scope["path"], _headers(scope)
        fleet = path.startswith((FLEET, MODELS))  # what node keys guard
        if path == GATE:
            return 204
        if path == site_reports.PATH:
            return self._hear(headers)
        if path != HEALTH and not fleet and not from_here(scope):
            return 404
        if any(name in headers for name in BROWSERS) or not (self._named(headers) or self._of_site(scope)):
            return 403
        if fleet and self.keys is not None and not self.keys.signed(headers):
            return 404  # upon 401 and 403 a SuperNode would leave without a word
        return None if not fleet else too_long(headers)

    def _hear(self, headers: Mapping[str, str]) -> int:
        """Take in what a site says of itself; with keys, of itself alone."""
        report = SiteReport.read(headers.get(site_reports.HEADER, ""))
        if report is None or any(name in headers for name in BROWSERS) or self.reports is None:
            return 404
        if self.keys is not None and self.keys.signer(headers) != report.site:
            if self.keys.mistimed(headers):
                return CLOCK
            return 404 if self.settled() else NOT_YET
        self.reports.take(report)
        return TAKEN

    def _named(self, headers: Mapping[str, str]) -> bool:
        """Say whether the caller calls us by an address, which no other name can stand for, or by one of our names."""
        found = re.fullmatch(r"(\[[^\[\]]+\]|[^\[\]:]+)(:\d*)?", headers.get("host", ""))
        return found is not None and (_address((found[1].strip("[]"),)) is not None or found[1].lower() in self.names)

    def _of_site(self, scope: Scope) -> bool:
        """Say whether a request is one that a name cannot make dangerous: signed, or from another machine."""
        return scope["path"] == HEALTH or (
            scope["path"].startswith((FLEET, MODELS)) and (self.keys is not None or not from_here(scope))
        )


def too_long(headers: Mapping[str, str]) -> int | None:
    """Return the status for a body that is longer than any of ours, or does not say how long it is."""
    if "transfer-encoding" in headers:
        return 411
    length = headers.get("content-length", "0").lstrip("0") or "0"  # parsers read on after any number of zeros
    return None if length.isascii() and length.isdigit() and len(length) < 20 and int(length) <= BODY else 413


def from_here(scope: Scope) -> bool:
    """Say whether the caller is on this machine: on loopback, or under the very address it called."""
    caller, called = (_address(scope.get(end)) for end in ("client", "server"))
    return caller is not None and (caller.is_loopback or caller == called)


def _awake(receive: Receive) -> Receive:
    """Give callers up who fall silent in the middle of a body."""
    whole = False

    async def take() -> MutableMapping[str, Any]:
        nonlocal whole
        try:
            message = await (receive() if whole else asyncio.wait_for(receive(), SILENCE))
        except TimeoutError:
            return {"type": "http.disconnect"}
        whole = message["type"] != "http.request" or not message.get("more_body", False)
        return message

    return take


def _headers(scope: Scope) -> dict[str, str]:
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope.get("headers", ())}


def _address(end: Any) -> Any:
    try:
        address = ip_address(str(end[0]).split("%")[0])
    except (TypeError, ValueError, IndexError):
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _way_back(words: Sequence[str]) -> list[str]:
    """Return the options with which a run of this machine reaches the server."""
    host, port = (words[words.index(option) + 1] for option in ("--host", "--port"))
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    trust = (
        ["--insecure"]
        if "--insecure" in words
        else ["--root-certificates", words[words.index("--ssl-ca-certfile") + 1]]
    )
    return ["--runtime-api-address", f"[{here}]:{port}" if ":" in here else f"{here}:{port}", *trust]


def main() -> None:
    """Run Flower's own command with the gate before what it serves."""
    end_with_parent()
    uvicorn, auto = import_module("uvicorn"), import_module("uvicorn.protocols.http.auto")
    serve, words = uvicorn.run, sys.argv[1:]
    secure = "--enable-supernode-auth" in words
    database = Path(words[words.index("--database") + 1])
    keys = KnownKeys(database.with_name(NODES)) if secure else None
    reports = ReportBook(database.with_name(site_reports.FILE))
    settled = database.with_name(UP).exists
    names = own_names(words[words.index("--host") + 1])
    asyncio.constants.SSL_HANDSHAKE_TIMEOUT = WITHIN

    def signer(scope: Scope) -> str | None:
        return None if keys is None else keys.signer(_headers(scope)) or ""

    def guarded(app: Any, **options: Any) -> None:
        limits = {"http": impatient(auto.AutoHTTPProtocol), "limit_concurrency": CONNECTIONS}
        limits["timeout_graceful_shutdown"] = FAREWELL  # requests that are held
        limits["timeout_keep_alive"] = KEPT
        logging.getLogger("uvicorn.access").addFilter(lambda line: site_reports.PATH not in line.getMessage())
        poll = LongPoll(app)
        runs = RunLauncher(poll, _way_back(words), poll.announce, database.parent.name)
        runs.watch(app.state.linkstate_factory.state)
        shelf = ModelShelf(runs, database.parent, signer)
        options |= limits | {"proxy_headers": False}  # nobody says where he is from
        if stream := os.environ.get(STREAM):
            serve_on_one_port(uvicorn, Gate(shelf, keys, names, reports, settled), stream, **options)
        else:
            serve(Gate(shelf, keys, names, reports, settled), **options)

    uvicorn.run = guarded  # type: ignore[attr-defined]
    run_command("flower-superlink")


if __name__ == "__main__":
    main()
