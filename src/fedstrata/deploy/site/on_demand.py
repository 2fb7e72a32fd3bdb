"""The process that holds a site's data is there while somebody needs it.

It takes hundreds of megabytes (torch, the data), and most of the time nobody asks it for anything. So the door of the
site is kept by the command itself, which is small: it starts the process when a run is announced or its first word
comes, hands requests on, and ends it when it had nothing to do for a while. What the process has to remember lies on
the disk; a server whose run goes on after such a rest tells it of the run again, as after a restart. It is started
anew, too, where a run begins and the files that it read have changed: who was taken out of them is in no later run.

An announcement is answered here: nothing of it reaches the process, so it asks for nothing that the site's policy would
have to allow. After one of which nothing came, no other is heeded until somebody asks: whoever announces runs all day
costs a site one start.
"""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedstrata.core.errors import FedstrataError
from fedstrata.deploy.logs import note
from fedstrata.privacy.frames import join
from fedstrata.remote.flower.invitation import STREAM
from fedstrata.remote.site.private_socket import LONGEST_WAIT, WAKE, ask, look

EXPECTED = 30.0  # seconds that a process waits at least for what was announced
REST = 60.0  # seconds without a request after which the process ends; a run over a stream is one long request
BETWEEN = 3600.0  # the same, where requests come as messages, with hours of others' work between them
LOADING = 3600.0  # seconds that reading the data may take
ENDING = 15.0  # seconds that a process has to end by itself
OPENING = (STREAM, join([b"introduce"]))  # how requests begin with which a run does; an announcement comes before them

Start = Callable[[], subprocess.Popen[bytes]]


class SiteOnDemand:
    """Answers for a process that is started, asked at a socket of its own, and ended when nobody needs it.

    `start` starts it; `forget` is told when it was ended on purpose; `look` gives what is another thing as soon as the
    data on the disk are.
    """

    def __init__(
        self,
        start: Start,
        socket: Path,
        forget: Callable[[], None],
        rest: float = REST,
        look: Callable[[], Any] = lambda: None,
    ):
        self._start, self._socket, self._forget, self._rest, self._look = start, socket, forget, rest, look
        self._read: Any = None  # what `look` gave before the process read its data
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()  # around starting, counting and ending
        self._busy = 0  # requests under way
        self._until = 0.0  # when the process may rest, if nobody asks before
        self._asked = True  # whether anything came of the last announcement

    @property
    def awake(self) -> bool:
        """Whether the process is there."""
        return self._child is not None

    def answer(self, request: bytes) -> bytes:
        """Hand a request to the process, which is started where it is not there."""
        with self._lock:
            if request == WAKE or request.startswith(OPENING):
                self._let_go_of_old_data()
            if request == WAKE:
                self._expect()
                return b""
            child = self._there()
            self._asked = True
            self._busy += 1
        try:
            self._wait(child)
            return ask(self._socket, request, LONGEST_WAIT)
        finally:
            with self._lock:
                self._busy -= 1
                rest = self._rest if request.startswith(STREAM) else max(self._rest, BETWEEN)
                self._until = time.monotonic() + rest

    def begin(self) -> None:
        """Start the process now and wait until it has read the data, so that what is wrong is said at once."""
        with self._lock:
            self._until = time.monotonic() + self._rest
            child = self._there()
        self._wait(child)

    def turn(self) -> None:
        """End the process if it has nothing to do; to be called now and then."""
        with self._lock:
            child = self._child
            if child is None or child.poll() is not None or self._busy or time.monotonic() < self._until:
                return
            self._end(child)
            note("process_rests")

    def _let_go_of_old_data(self) -> None:
        """End a process that has read what is not there any more, unless something is under way."""
        child = self._child
        if child is None or child.poll() is not None or self._busy or self._look() == self._read:
            return
        self._end(child)
        note("data_changed")

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        self._child = None
        child.terminate()
        try:
            child.wait(ENDING)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        self._forget()

    def _expect(self) -> None:
        """Have the process there for a request that is announced, unless none came since the last announcement."""
        if self._asked:
            self._asked = False
            self._there()
            self._until = max(self._until, time.monotonic() + max(self._rest, EXPECTED))

    def _there(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            self._read = self._look()  # first: what is written while it reads is read again
            self._child = self._start()
            note("process_started")
        return self._child

    def _wait(self, child: subprocess.Popen[bytes]) -> None:
        """Wait until the process can be asked."""
        deadline = time.monotonic() + LOADING
        while not self._served():
            if child.poll() is not None:
                raise FedstrataError("the site's data cannot be served; its own log says why")
            if time.monotonic() > deadline:
                raise FedstrataError(f"the site has not read its data after {LOADING:.0f} s")
            time.sleep(0.05)

    def _served(self) -> bool:
        try:
            look(self._socket)
        except FedstrataError:
            return False
        return True
