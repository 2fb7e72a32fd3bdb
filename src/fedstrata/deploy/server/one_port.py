"""One port for everything that sites connect to: Flower's interface, and the stream of a run.

Whoever connects speaks first, and says in his first bytes what he wants: a stream's are the hello of TLS that offers
HTTP/2 and nothing else, Flower's that of any other (without keys: no TLS at all). They are looked at, not taken: the
connection itself goes to the web server, which so sees the caller's own address, as the gate must; the bytes of a
stream are passed on to the run, still encrypted, for its certificate is the run's own. The run listens at a Unix socket
in a folder of the server's: a port could be somebody else's, now or when the run is over.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from fedstrata.core.web_limits import CONNECTIONS, WITHIN

HELLO, ALPN = 0x16, 16  # a TLS record of a handshake; the extension that names protocols
LONGEST = 5 + (1 << 14)  # bytes of a record
PIECE = 1 << 20  # bytes that are passed on at once
TICK = 0.5  # seconds between two looks whether the server should end
AGAIN, SELDOM = 0.01, 0.5  # seconds until a hello that is not whole is looked at again: first, and at the most


def wants_stream(first: bytes, secure: bool) -> bool:
    """Say whether first bytes are those of a stream."""
    if not first or first[0] != HELLO:
        return False
    offered = protocols(first)
    return not secure or (b"h2" in offered and b"http/1.1" not in offered)


def protocols(hello: bytes) -> list[bytes]:
    """Return the protocols that the hello of a TLS client offers; none where it cannot be read."""
    try:
        at = 5 + 4 + 2 + 32  # record, handshake, version, random
        at += 1 + hello[at]  # session
        at += 2 + int.from_bytes(hello[at : at + 2])  # ciphers
        at += 1 + hello[at]  # compression
        end = at + 2 + int.from_bytes(hello[at : at + 2])
        at += 2
        while at + 4 <= min(end, len(hello)):
            kind, size = int.from_bytes(hello[at : at + 2]), int.from_bytes(hello[at + 2 : at + 4])
            if kind == ALPN:
                return _names(hello[at + 6 : at + 4 + size])
            at += 4 + size
    except IndexError:
        pass
    return []


def _names(data: bytes) -> list[bytes]:
    names = []
    while data:
        names.append(data[1 : 1 + data[0]])
        data = data[1 + data[0] :]
    return names


class OnePort:
    """Listens, and gives each connection to whom it is for; has what uvicorn wants of a server."""

    def __init__(
        self,
        listener: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
        stream: str,  # the socket at which a run listens
    ):
        self.sockets = [listener]
        self._listener, self._protocol, self._tls, self._stream = listener, protocol, tls, stream
        self._open: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Take no more connections, and end streams."""
        self._accepting.cancel()
        for task in self._open:
            task.cancel()
        self._listener.close()

    async def wait_closed(self) -> None:
        """Wait until nothing is left."""
        await asyncio.gather(self._accepting, *self._open, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                caller, _ = await self._loop.sock_accept(self._listener)
            except OSError:  # too many files are open, or the caller is gone already
                await asyncio.sleep(AGAIN)
                continue
            if len(self._open) >= CONNECTIONS:
                caller.close()
                continue
            task = self._loop.create_task(self._sort(caller))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

    async def _sort(self, caller: socket.socket) -> None:
        given = False
        try:
            caller.setblocking(False)
            first = await asyncio.wait_for(self._first(caller), WITHIN)
            if wants_stream(first, self._tls is not None):
                await self._pass_on(caller)
            elif first:
                given = True  # from here on, asyncio closes it
                await self._loop.connect_accepted_socket(
                    self._protocol, caller, ssl=self._tls, **({"ssl_handshake_timeout": WITHIN} if self._tls else {})
                )
        except (OSError, TimeoutError):  # of TLS too: whoever speaks something else
            pass
        finally:
            if not given:
                caller.close()

    async def _first(self, caller: socket.socket) -> bytes:
        """Look at the first bytes, as many as tell what they are; none where the caller leaves.

        The longer they take, the more seldom: a thousand callers who stay silent must not keep a core busy.
        """
        pause = AGAIN
        while True:
            try:
                first = caller.recv(LONGEST, socket.MSG_PEEK)
            except BlockingIOError:
                first = None
            if first is not None:
                whole = not first or first[0] != HELLO
                whole = whole or (len(first) >= 5 and len(first) >= min(5 + int.from_bytes(first[3:5]), LONGEST))
                if whole:
                    return first
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, SELDOM)

    async def _pass_on(self, caller: socket.socket) -> None:
        here = await asyncio.open_unix_connection(self._stream, limit=PIECE)
        there = await asyncio.open_connection(sock=caller, limit=PIECE)
        try:
            await asyncio.gather(_flow(here[0], there[1]), _flow(there[0], here[1]))
        finally:
            for _, out in (here, there):
                out.close()


async def _flow(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while piece := await source.read(PIECE):
        sink.write(piece)
        await sink.drain()
    with suppress(OSError):
        sink.write_eof()


def serve_on_one_port(uvicorn: Any, app: Any, stream: str, **options: Any) -> None:
    """Do what `uvicorn.run` does, on a port that streams share."""

    class Server(uvicorn.Server):  # type: ignore[misc]
        """Listens by itself."""

        async def startup(self, sockets: Any = None) -> None:
            await self.lifespan.startup()
            if self.lifespan.should_exit:
                self.should_exit = True
                return
            about = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
            listener = listen(self.config.host, self.config.port, self.config.backlog)
            protocol = lambda: self.config.http_protocol_class(**about)  # noqa: E731
            self.servers = [OnePort(listener, protocol, self.config.ssl, stream)]
            self._log_started_message([listener])
            self.started = True

        async def main_loop(self) -> None:  # uvicorn's looks ten times a second whether it should end
            while not await self.on_tick(0):
                await asyncio.sleep(TICK)

    Server(uvicorn.Config(app, **options)).run()


def listen(host: str, port: int, backlog: int) -> socket.socket:
    """Return a socket that listens at an address."""
    kind, _, _, _, at = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    listener = socket.create_server(at[:2], family=kind, backlog=backlog)
    listener.setblocking(False)
    return listener
