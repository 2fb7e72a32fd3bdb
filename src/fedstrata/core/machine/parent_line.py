"""A process that does not outlive the one that started it, however that ends: also by a kill that nobody can catch.

The child holds the end of a pipe to read from, whose other end only its parent has. Nothing is ever written there; the
system closes it with the parent, and the child ends. Unlike Linux's PR_SET_PDEATHSIG it works on every POSIX system,
and where the thread that started the child ends before the parent does.
"""

from __future__ import annotations

import os
import signal
import threading
import time

LINE = "FEDSTRATA_PARENT_LINE"  # the environment variable that tells a child the number of its end
FAREWELL = 5.0  # seconds in which it may end in order


def end_with_parent() -> None:
    """End this process as soon as the one that started it is gone; do nothing where that left no line."""
    number = os.environ.pop(LINE, "")  # what this process starts has another parent
    if number:
        os.set_inheritable(int(number), False)
        threading.Thread(target=_watch, args=(int(number),), name="parent", daemon=True).start()


def _watch(line: int) -> None:
    while os.read(line, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(FAREWELL)
    os._exit(1)
