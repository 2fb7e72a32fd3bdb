"""The server's end of the stream: one TLS connection a site for as long as a run lasts, thousands of exchanges on it.

Flower's messages take seconds; here an exchange takes milliseconds. Each site gets one long message with the address,
the authority to trust and a token of its own, and answers it when the stream ends, so that Flower still knows who takes
part. A token opens the stream to one site of one run. The first who brings it ties it to a secret of his own; from then
on it is worthless without that secret. A site whose connection broke can therefore come back, and nobody else can.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

import grpc  # type: ignore[import-untyped]

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.core.plain_text import WORDS
from fedstrata.privacy.frames import RefusedError
from fedstrata.remote.flower.certificate import make_certificate
from fedstrata.remote.flower.framing import ALIVE, FROM_SITE, METHOD, Kind, Parcel, parcels
from fedstrata.remote.flower.invitation import FORMS, Invitation
from fedstrata.remote.flower.messages import Messages
from fedstrata.remote.site.private_socket import make_private
from fedstrata.remote.transport import SMALL, Failure, Transport

UNIX = "unix:"  # how the address of a socket begins
MOST = 2048  # connections at once; each has a thread
STRANGERS = (  # who connects must come to the point: half-open connections are closed, and are never more than so many
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),  # without a call, which a site's stream is
    ("grpc.max_allowed_incoming_connections", MOST),
)
RETURNS = 20  # times that a site may come back with one token
PATIENCE = 90.0  # seconds in which an invitation is followed, or another one is sent
LOOK = 5.0  # seconds between two looks for sites to invite
FAREWELL = 15.0  # seconds in which sites that were told to go answer their long message

Say = Callable[[str], None]
Call = SimpleQueue[Parcel | None]  # what one connection has to send; None: nothing more comes


@dataclass
class Line:
    """One site's token, and the connection it opened."""

    token: str
    invited: float
    secret: str = ""  # of the one who came first
    came: int = 0  # times
    call: Call | None = None
    lost: float = 0.0  # when the connection broke
    shut: bool = False  # the site broke the rules, or has this key no more
    node: int | None = None  # as which its key was registered when it was invited; None: there are no keys
    answered: str | None = None  # what came of its long message
    long: threading.Thread | None = field(default=None, repr=False)

    def away(self, grace: float) -> bool:
        """Say whether the site is not connected, and has not been for too long."""
        return self.call is None and monotonic() >= self.lost + grace

    def there(self, grace: float) -> bool:
        """Say whether the site is connected, or may come back any moment."""
        return not self.shut and self.came > 0 and not self.away(grace)


class StreamServer:
    """A transport over the stream. Whoever opens it must close it."""

    def __init__(
        self,
        messages: Transport,
        address: str,
        run: str,
        listen: str | None = None,
        grace: float = 10.0,
        longest: int = SMALL,
        say: Say = lambda _: None,
    ):
        self._messages, self._run, self._grace, self.longest, self._say = messages, run, grace, longest, say
        self._lines: dict[str, Line] = {}
        self._asked: dict[str, Parcel] = {}  # requests of the present exchange that are not answered yet
        self._number = 0  # of the present exchange
        self._around: list[str] = []  # sites that messages reach
        self._inbox: SimpleQueue[tuple[int, str, bytes | Failure]] = SimpleQueue()  # 0: somebody came or went
        self._lock = threading.Lock()
        self._turn = threading.Lock()  # one exchange at a time
        self._over = threading.Event()
        if not re.fullmatch(FORMS["address"], address):
            raise RequestError(f'stream = "{address}" is not valid; allowed: HOST:PORT, as sites find the server')
        host, _, _ = address.rpartition(":")
        key, certificate, self._authority = make_certificate(host.strip("[]"))
        self._pool = ThreadPoolExecutor(MOST, "stream")
        options = (*ALIVE, *STRANGERS, ("grpc.so_reuseport", 0))  # without the last, two runs could share a port
        self._server = grpc.server(self._pool, options=options, maximum_concurrent_rpcs=MOST)
        service, _, method = METHOD.strip("/").partition("/")
        handlers = {method: grpc.stream_stream_rpc_method_handler(self._join)}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        if listen is not None and listen.startswith(UNIX):
            make_private(Path(listen.removeprefix(UNIX)).parent)  # whoever cleans up may have removed it meanwhile
        port = 0
        with suppress(RuntimeError):
            port = self._server.add_secure_port(listen or address, grpc.ssl_server_credentials([(key, certificate)]))
        if not port:
            raise RequestError(
                f"stream = {listen or address} cannot be listened at; allowed: an address of this machine"
            )
        self.address = f"{host}:{port}" if address.endswith(":0") else address
        self._server.start()
        self._keeper = threading.Thread(target=self._keep_inviting, daemon=True)
        self._keeper.start()

    # ---- the transport

    def names(self) -> list[str]:
        """Return the sites that are on the stream."""
        with self._lock:
            return sorted(site for site, line in self._lines.items() if line.there(self._grace))

    def awaited(self) -> list[str]:
        """Return the sites that have not answered yet."""
        with self._lock:
            return list(self._asked)

    def reachable(self) -> list[str]:
        """Return the sites that are on the stream or could be invited, as of the last look for them."""
        return sorted({*self.names(), *self._around})

    def exchange(
        self, requests: Mapping[str, bytes], deadline: float | None = None, enough: int | None = None
    ) -> dict[str, bytes | Failure]:
        """Ask sites; one whose connection breaks is waited for, but not longer than it may take to come back."""
        wanted = len(requests) if enough is None else enough
        until = float("inf") if deadline is None else monotonic() + deadline
        replies: dict[str, bytes | Failure] = {}
        with self._turn:
            self._ask(requests)
            try:
                while sum(isinstance(reply, bytes) for reply in replies.values()) < wanted:
                    wake = self._wake(until)
                    if wake is None:
                        break
                    number, site, reply = self._next(wake)
                    with self._lock:
                        if number == self._number and self._asked.pop(site, None) is not None:
                            replies[site] = reply
            finally:
                self._forget()
        return replies

    def close(self) -> None:
        """End the stream: sites are told, and their long messages are waited for a little."""
        self._over.set()
        with self._lock:
            connected = [line for line in self._lines.values() if line.call is not None]
            for line in connected:
                self._put(line, Parcel(Kind.END))
                self._put(line, None)
        until = monotonic() + FAREWELL
        for line in connected:
            if line.long is not None:
                line.long.join(max(until - monotonic(), 0.0))
        self._server.stop(1.0).wait()
        self._pool.shutdown()
        self._keeper.join(LOOK)

    # ---- an exchange

    def _ask(self, requests: Mapping[str, bytes]) -> None:
        with self._lock:
            self._number += 1
            there = {site for site, line in self._lines.items() if line.there(self._grace)}
            self._asked = {s: Parcel(Kind.REQUEST, self._number, body) for s, body in requests.items() if s in there}
            for site, parcel in self._asked.items():
                self._put(self._lines[site], parcel)

    def _wake(self, until: float) -> float | None:
        """Return the time at which something may have to be given up; None where there is nothing to wait for."""
        with self._lock:
            for site in [site for site in self._asked if self._lines[site].away(self._grace)]:
                del self._asked[site]
            away = [self._lines[s].lost + self._grace for s in self._asked if self._lines[s].call is None]
            return min([until, *away]) if self._asked and monotonic() < until else None

    def _next(self, wake: float) -> tuple[int, str, bytes | Failure]:
        try:
            return self._inbox.get(timeout=None if wake == float("inf") else max(wake - monotonic(), 0.0))
        except Empty:
            return 0, "", b""

    def _forget(self) -> None:
        """Tell those who did not answer that nobody waits for them."""
        with self._lock:
            for site in self._asked:
                self._put(self._lines[site], Parcel(Kind.FORGET, self._number))
            self._asked = {}

    @staticmethod
    def _put(line: Line, parcel: Parcel | None) -> None:
        if line.call is not None:
            line.call.put(parcel)

    # ---- connections

    def _join(self, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One site's connection, from when it comes to when it goes."""
        about = {name: str(value) for name, value in context.invocation_metadata()}
        site, call = about.get("fedstrata-site", ""), Call()
        try:
            line = self._admit(site, about, call)
        except RefusedError as error:
            self._say(f"the stream refused {context.peer()}, who says to be site {site[:80]!r}: {error}")
            context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        left = partial(self._left, line, call)
        if not context.add_callback(left):
            left()
        threading.Thread(target=self._hear, args=(site, line, frames, context), daemon=True).start()
        while (parcel := call.get()) is not None:
            if parcel.kind is not Kind.REQUEST or self._asked.get(site) is parcel:  # or else it was forgotten meanwhile
                yield from parcel.frames()

    def _admit(self, site: str, about: Mapping[str, str], call: Call) -> Line:
        """Let a caller in who has this run's token for this site, first of all or after a break."""
        run, token, secret = (about.get(f"fedstrata-{name}", "").encode() for name in ("run", "token", "secret"))
        with self._lock:
            line = self._lines.get(site)
            expected = secrets.token_hex(32) if line is None else line.token
            if not compare_digest(expected.encode(), token) or line is None or run != self._run.encode():
                raise RefusedError("the token is not this site's in this run")
            if len(secret) != 64 or (line.secret and not compare_digest(line.secret.encode(), secret)):
                raise RefusedError("the token was used before")
            if line.shut or line.came > RETURNS or self._over.is_set():
                raise RefusedError("the stream is over for this site")
            line.secret, before = secret.decode(), line.call
            line.came += 1
            line.call = call
            call.put(Parcel(Kind.WELCOME))
            if site in self._asked:
                call.put(self._asked[site])
        if before is not None:
            before.put(None)  # a connection that is dead without our knowing
        self._inbox.put((0, "", b""))
        return line

    def _left(self, line: Line, call: Call) -> None:
        with self._lock:
            if line.call is call:
                line.call, line.lost = None, monotonic()
        call.put(None)
        self._inbox.put((0, "", b""))

    def _hear(self, site: str, line: Line, frames: Iterator[bytes], context: Any) -> None:
        """Take in what a site says, until it goes; one that only listens from here on cannot answer, and is gone."""
        try:
            with suppress(grpc.RpcError):  # how the library says that the site is gone; `_left` hears of it as well
                for parcel in parcels(frames, FROM_SITE, self._most):
                    self._received(site, parcel)
            if not self._over.is_set():
                context.cancel()
        except RefusedError as error:
            line.shut = True
            self._say(f"site {site} broke the stream's rules and is out: {error}")
            self._inbox.put((self._number, site, Failure(f"it broke the stream's rules: {error}")))
            context.cancel()

    def _most(self, kind: Kind) -> int:
        return 4 * WORDS if kind is Kind.FAILURE else self.longest

    def _received(self, site: str, parcel: Parcel) -> None:
        with self._lock:
            number, awaited = self._number, site in self._asked
        if parcel.number > number or parcel.number == 0:
            raise RefusedError(f"it answers request {parcel.number} of {number}")
        if parcel.number < number or not awaited:
            return  # too late, or a second time
        failed = parcel.kind is Kind.FAILURE
        reply = Failure(parcel.body.decode(errors="replace")) if failed else parcel.body
        self._inbox.put((number, site, reply))

    # ---- invitations

    def invite(self, sites: Collection[str]) -> None:
        """Send the long message to sites that are not on the stream; one that does not follow it is asked again."""
        nodes = self._registrations() or {}
        for site in sites:
            with self._lock:
                line, now, node = self._lines.get(site), monotonic(), nodes.get(site)
                renewed = line is not None and line.shut and node not in (None, line.node)
                if line is not None and not renewed and (line.there(self._grace) or line.shut):
                    continue
                if line is not None and not renewed and line.answered is None and now < line.invited + PATIENCE:
                    continue
                line = self._lines[site] = Line(secrets.token_hex(32), now, node=node)
                line.long = threading.Thread(target=self._send_long, args=(site, line), daemon=True)
                line.long.start()

    def wait(self, sites: Collection[str], seconds: float) -> None:
        """Wait until sites are on the stream, or have said that they cannot be."""
        until = monotonic() + seconds
        with self._turn:
            while monotonic() < until:
                with self._lock:
                    lines = [self._lines[site] for site in sites]
                    if all(line.there(self._grace) or line.answered is not None for line in lines):
                        break
                self._next(until)

    def why_not(self) -> dict[str, str]:
        """Say what sites gave as the reason why they are not on the stream."""
        with self._lock:
            return {site: line.answered for site, line in self._lines.items() if line.answered is not None}

    def _send_long(self, site: str, line: Line) -> None:
        words = Invitation(self.address, self._authority.decode(), line.token, site, self._run, self._grace)
        try:
            reply = self._long({site: words.written()}).get(site, Failure("no answer"))
        except Exception as error:  # the carrier of messages is gone; the stream may well go on
            reply = Failure(f"{type(error).__name__}: {error}")
        line.answered = reply.reason if isinstance(reply, Failure) else "it left"
        if not self._over.is_set():
            self._say(f"site {site} is off the stream: {line.answered}")
        self._inbox.put((0, "", b""))

    def _long(self, requests: Mapping[str, bytes]) -> Mapping[str, bytes | Failure]:
        """Send messages that are answered when the stream ends; only Flower's carrier looks for replies by itself."""
        if isinstance(self._messages, Messages):
            return self._messages.exchange(requests, hurry=self._over)
        return self._messages.exchange(requests)

    def _keep_inviting(self) -> None:
        """Bring sites back that come to life again, and shut those out whose keys hold no more.

        A failure ends neither; it is said once, until a look succeeds.
        """
        failing = False
        while not self._over.wait(LOOK):
            try:
                self._shut_out(self._registrations())
                self._around = self._messages.names()
                self.invite([site for site in self._around if site in self._lines])
                failing = False
            except Exception as error:
                if not failing:
                    self._say(f"nobody is invited to the stream or shut out for now, which is tried again: {error}")
                failing = True

    def _registrations(self) -> Mapping[str, int] | None:
        known: Mapping[str, int] | None = getattr(self._messages, "registrations", lambda: None)()
        return known

    def _shut_out(self, nodes: Mapping[str, int] | None) -> None:
        """End the connections of sites whose keys were revoked, or renewed: who has the new ones is invited anew."""
        if nodes is None:
            return
        with self._lock:
            wrong = [(s, line) for s, line in self._lines.items() if not line.shut and nodes.get(s) != line.node]
            for _, line in wrong:
                line.shut = True
                self._put(line, None)
        for site, _ in wrong:
            why = f"its key was {'renewed' if site in nodes else 'revoked'}"
            self._say(f"site {site} is off the stream: {why}")
            self._inbox.put((self._number, site, Failure(why)))


def open_stream(
    messages: Transport,
    address: str,
    run: str,
    *,
    listen: str | None = None,
    sites: Collection[str] | None = None,
    patience: float = 120.0,
    grace: float = 10.0,
    longest: int = SMALL,
    say: Say = lambda _: None,
) -> StreamServer:
    """Invite sites (all that are there) to a stream, wait until they are on it, and give it.

    `address` is where sites find the server, HOST:PORT (port 0: any); `listen`, where that differs, what it binds.
    """
    invited = messages.names() if sites is None else sorted(sites)
    stream = StreamServer(messages, address, run, listen, grace, longest, say)
    try:
        stream.invite(invited)
        stream.wait(invited, patience)
        if not stream.names():
            why = "; ".join(f"{site}: {reason}" for site, reason in stream.why_not().items())
            raise FedstrataError(f"no site came onto the stream at {stream.address} ({why or 'none answered'})")
    except BaseException:
        stream.close()
        raise
    return stream
