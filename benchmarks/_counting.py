"""A wire that counts: whatever connects here is connected on to another port, and what passes is added up."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

PIECE = 1 << 18  # bytes


class Counting:
    """Stands before a port of this machine; `carried` is what TCP delivered, in both directions."""

    def __init__(self, port: int):
        self._port = port
        self._door = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.address = f"127.0.0.1:{self._door.getsockname()[1]}"
        self.carried = 0

    def __enter__(self) -> Counting:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._door.close()

    def _accept(self) -> None:
        with suppress(OSError):  # the door was closed
            while True:
                near, _ = self._door.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(source, sink), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while piece := source.recv(PIECE):
                with self._lock:
                    self.carried += len(piece)
                sink.sendall(piece)
        for end in (source, sink):  # one side has gone
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
