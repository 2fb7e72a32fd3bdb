"""Runs become processes: the server itself starts them, as soon as they are submitted.

Flower would keep a process beside the server that asks it for work all the time, over an interface (AcquireTask) which
gives the task of any run to whoever asks first. Here the gate looks into the server's own state when a run was
submitted, starts its process, and shuts that interface for everybody.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from fedstrata.deploy.long_poll import App, Receive, Scope, Send

SOON = "/fedstrata-soon"  # somebody on this machine is about to submit a run
SUBMITTED = "/v1/control/start-run"
ACQUIRE = "/v1/runtime/acquire-task"
FIRST, LOOK = 5.0, 60.0  # seconds until looks for runs that nobody announced: those from before a restart, and others
PROCESS = [sys.executable, "-P", "-m", "fedstrata.deploy.run_process"]


class RunLauncher:
    """Stands before Flower's web application (ASGI), behind the gate; `words` say how a run reaches the server."""

    def __init__(self, app: App, words: Sequence[str]):
        self._app, self._words = app, [*words, "--parent-pid", str(os.getpid())]
        self._called = threading.Event()
        self._warm: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, and see whether a run came with it."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path in (SOON, ACQUIRE):
            if path == SOON:
                self.warm_up()
            await send({"type": "http.response.start", "status": 204 if path == SOON else 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)
        if path == SUBMITTED:
            self._called.set()

    def warm_up(self) -> None:
        """Start a process for the next run, unless one waits already."""
        with self._lock:
            self._started = [child for child in self._started if child.poll() is None]
            if self._warm is None or self._warm.poll() is not None:
                self._warm = self._new()

    def watch(self, state: Any) -> None:
        """Look for runs in Flower's state, from a thread of its own."""
        handlers = import_module("flwr.superlink.servicer.runtime.runtime_handlers")
        asked = handlers.AcquireTaskRequest(supported_task_types=[handlers.TaskType.SERVER_APP])

        def look() -> None:
            pause = FIRST
            while True:
                self._called.wait(pause)
                self._called.clear()
                pause = LOOK
                while (given := handlers.acquire_task(asked, state())).token:
                    self.launch(given.token)

        threading.Thread(target=look, name="runs", daemon=True).start()

    def launch(self, token: str) -> None:
        """Give a run to the process that waits, or to a new one."""
        line = (json.dumps([*self._words, "--token", token]) + "\n").encode()
        with self._lock:
            child, self._warm = self._warm, None
        if child is None or not _told(child, line):
            _told(self._new(), line)

    def _new(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen(PROCESS, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self._started.append(child)  # or else they stay as zombies
        return child


def _told(child: subprocess.Popen[bytes], line: bytes) -> bool:
    """Hand a line to a process; False where it has ended."""
    assert child.stdin is not None
    try:
        with child.stdin:
            if child.poll() is not None:
                return False
            child.stdin.write(line)
    except OSError:
        return False
    return True
