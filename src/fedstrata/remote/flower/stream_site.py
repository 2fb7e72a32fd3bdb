"""A site's end of a stream: it connects, answers request after request, and goes when the server says so.

A connection that breaks is made again, with the same token and a secret that only this process knows. The server then
repeats what it still waits for: a request that was answered meanwhile is not done twice, its answer is sent again.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from time import monotonic, sleep
from typing import Any

import grpc  # type: ignore[import-untyped]

from fedstrata.core.errors import FedstrataError
from fedstrata.remote.flower.framing import ALIVE, FROM_SERVER, METHOD, Kind, Parcel, parcels
from fedstrata.remote.flower.invitation import Invitation
from fedstrata.remote.transport import LONGEST, Answer, Failure, attempt

PAUSE = 0.2  # seconds before the next attempt to connect
BACKOFF = tuple(
    (f"grpc.{which}_reconnect_backoff_ms", ms) for which, ms in [("initial", 200), ("min", 200), ("max", 2000)]
)

Outbox = SimpleQueue[Parcel | None]  # None: nothing more comes


class StreamSite:
    """Follows one invitation."""

    def __init__(self, invitation: Invitation, answer: Answer):
        self._invitation, self._answer = invitation, answer
        self._secret = secrets.token_hex(32)
        self._todo: SimpleQueue[Parcel | Exception | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._outbox: Outbox = SimpleQueue()  # of the present connection
        self._seen = 0  # the latest request that arrived
        self._forgotten = 0  # the latest one that nobody waits for
        self._done: Parcel | None = None  # the latest answer
        self._over = threading.Event()

    def run(self) -> int:
        """Serve until the stream ends; give how many requests were answered."""
        invited, answered = self._invitation, 0
        trust = grpc.ssl_channel_credentials(invited.authority.encode())
        channel = grpc.secure_channel(invited.address, trust, (*ALIVE, *BACKOFF))
        listener = threading.Thread(target=self._listen, args=(channel,), daemon=True)
        listener.start()
        try:
            while isinstance(request := self._todo.get(), Parcel):
                if request.number > self._forgotten:
                    self._send(request.number, attempt(self._answer, request.body))
                    answered += 1
        finally:
            self._over.set()
            channel.close()
        listener.join()
        if request is not None:
            raise request
        return answered

    def _send(self, number: int, reply: bytes | Failure) -> None:
        failed = isinstance(reply, Failure)
        body = reply.reason.encode() if isinstance(reply, Failure) else reply
        with self._lock:
            self._done = Parcel(Kind.FAILURE if failed else Kind.REPLY, number, body)
            self._outbox.put(self._done)

    def _listen(self, channel: Any) -> None:
        """Take in what the server says; the last word is that the stream is over, or why it broke."""
        try:
            self._todo.put(self._connected(channel))
        except Exception as error:
            self._todo.put(error)

    def _connected(self, channel: Any) -> FedstrataError | None:
        invited, join = self._invitation, channel.stream_stream(METHOD)
        about = {"run": invited.run, "site": invited.site, "token": invited.token, "secret": self._secret}
        until = monotonic() + invited.grace
        while not self._over.is_set():
            outbox: Outbox = SimpleQueue()
            with self._lock:
                self._outbox = outbox
            call = join(_frames(outbox), metadata=tuple((f"fedstrata-{name}", value) for name, value in about.items()))
            heard, ended, why = False, False, "the server closed it"
            try:
                for parcel in parcels(call, FROM_SERVER, lambda _: LONGEST):
                    heard = True
                    if parcel.kind is Kind.END:
                        ended = True
                        outbox.put(None)
                    else:
                        self._take(parcel, outbox)
            except grpc.RpcError as error:
                why = str(error.details())
                if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                    return FedstrataError(f"the stream at {invited.address} is closed to this site: {why}")
            finally:
                outbox.put(None)
                call.cancel()
            if ended:
                return None
            now = monotonic()
            until = now + invited.grace if heard else until
            if now >= until:
                return FedstrataError(f"the stream at {invited.address} cannot be reached: {why}")
            sleep(PAUSE)
        return None

    def _take(self, parcel: Parcel, outbox: Outbox) -> None:
        with self._lock:
            if parcel.kind is Kind.FORGET:
                self._forgotten = max(self._forgotten, parcel.number)
            elif parcel.kind is Kind.REQUEST and parcel.number > self._seen:
                self._seen = parcel.number
                self._todo.put(parcel)
            elif parcel.kind is Kind.REQUEST and self._done is not None and parcel.number == self._done.number:
                outbox.put(self._done)


def _frames(outbox: Outbox) -> Iterator[bytes]:
    while (parcel := outbox.get()) is not None:
        yield from parcel.frames()
