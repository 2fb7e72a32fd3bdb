"""The door of a site's own process: a Unix socket in a folder that only its owner can enter.

    request: length (8 bytes) | bytes
    reply:   0 or 1 (1 byte) | length (8 bytes) | the reply, or in words why there is none

One request a connection. Several may be under way at once; the one who answers sees to their order.
"""

from __future__ import annotations

import os
import socket
import stat
import struct
import threading
from contextlib import suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingMixIn, UnixStreamServer
from types import TracebackType

from fedstrata.core.errors import FedstrataError, RequestError
from fedstrata.remote.transport import LONGEST, Answer, Failure, attempt

ASKED, TOLD = struct.Struct("<Q"), struct.Struct("<BQ")
WAKE = b""  # a request that wants no answer: somebody will ask soon
LONGEST_PATH = 103  # bytes that every system has room for
ASKING = 60.0  # seconds in which a caller says what he wants, and takes its answer
LONGEST_WAIT = 2_000_000.0  # seconds (23 days): the most that a socket can be told to wait


def serve(answer: Answer, path: Path) -> None:
    """Answer whatever comes in at the door, until the process ends."""
    with Door(answer, path) as door:
        door.wait()


def ask(path: Path, request: bytes, timeout: float | None = None) -> bytes:
    """Hand a request in and wait for the reply, for so many seconds."""
    if len(request) > LONGEST:
        raise FedstrataError(f"a request of {len(request)} bytes is too long; allowed: {LONGEST}")
    with _connected(path, 10.0) as line:
        line.settimeout(None if timeout is None else max(min(timeout, LONGEST_WAIT), 0.001))
        try:
            line.sendall(ASKED.pack(len(request)))
            if request:  # who is asked nothing may have answered and gone by now
                line.sendall(request)
            failed, size = TOLD.unpack(_read(line, TOLD.size))
            if size > LONGEST:
                raise FedstrataError(f"the site's process announces a reply of {size} bytes")
            reply = _read(line, size)
        except TimeoutError:
            raise FedstrataError(f"the site's process did not answer within {timeout:g} seconds") from None
        except (OSError, EOFError):
            raise FedstrataError("the site's process ended before it answered") from None
    if failed:
        raise FedstrataError(reply.decode(errors="replace"))
    return reply


def look(path: Path) -> None:
    """Raise where nobody is behind the door."""
    _connected(path, 10.0).close()


class Door:
    """A listening socket; inside a `with` block it answers, each connection in a thread of its own."""

    def __init__(self, answer: Answer, path: Path):
        self._path = Path(path)
        make_private(self._path.parent)
        if len(os.fsencode(self._path)) > LONGEST_PATH:
            raise RequestError(f"socket = {self._path} is too long; allowed: at most {LONGEST_PATH} bytes")
        _clear(self._path)
        self._server = _Server(answer, self._path)
        self._path.chmod(0o600)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.5,), daemon=True)

    def __enter__(self) -> Door:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._path.unlink(missing_ok=True)

    def wait(self) -> None:
        """Stay until the process ends."""
        self._thread.join()


class _Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, answer: Answer, path: Path):
        self.answer = answer
        super().__init__(str(path), _Caller)


class _Caller(BaseRequestHandler):
    server: _Server
    request: socket.socket

    def handle(self) -> None:
        """Answer one request; who goes away before the reply is not followed."""
        self.request.settimeout(ASKING)
        with suppress(OSError, EOFError):
            (size,) = ASKED.unpack(_read(self.request, ASKED.size))
            if size > LONGEST:
                reply: bytes | Failure = Failure(f"a request of {size} bytes is too long; allowed: {LONGEST}")
            else:
                reply = attempt(self.server.answer, _read(self.request, size))
            failed = isinstance(reply, Failure)
            told = reply.reason.encode() if isinstance(reply, Failure) else reply
            self.request.sendall(TOLD.pack(failed, len(told)))
            self.request.sendall(told)


def _connected(path: Path, timeout: float) -> socket.socket:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    line.settimeout(timeout)
    try:
        line.connect(str(path))
    except OSError as error:
        line.close()
        raise FedstrataError(f"the site's process is not there ({error.strerror or error})") from None
    return line


def _read(line: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:  # grows with what arrives, not with what is announced
        part = line.recv(min(size - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


def make_private(folder: Path) -> None:
    """Make a folder for sockets, if it is not there; refuse one that others can enter."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.stat()
    if about.st_uid != os.getuid() or stat.S_IMODE(about.st_mode) & 0o077:
        raise RequestError(f"{folder} can be entered by others; the socket's folder must be your own, with mode 700")


def _clear(path: Path) -> None:
    """Take away what a process left that was killed, but not what a living one uses."""
    if not path.exists():
        return
    if not path.is_socket():
        raise RequestError(f"socket = {path} is a file already")
    try:
        look(path)
    except FedstrataError:
        path.unlink(missing_ok=True)
    else:
        raise RequestError(f"another process already serves {path}")
