"""Runs become processes: the server itself submits and starts them, as soon as somebody on its machine asks for one.

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
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.deploy.run_app import run_number, start_request
from fedstrata.deploy.server.run_place import refuse_unusable
from fedstrata.deploy.server.web_app import App, Receive, Scope, Send, answer, ask_app, whole

SOON = "/fedstrata-soon"  # somebody on this machine is about to submit a run
SUBMIT = "/fedstrata-run"  # a run, as its configuration in JSON
UNUSABLE = 422  # what a run is answered with that the server could not write down
SUBMITTED = "/v1/control/start-run"
PROTOBUF = b"application/protobuf"
ACQUIRE = "/v1/runtime/acquire-task"
FIRST, LOOK = 5.0, 60.0  # seconds until looks for runs that nobody announced: those from before a restart, and others
PROCESS = [sys.executable, "-P", "-m", "fedstrata.deploy.server.run_process"]


class RunLauncher:
    """Stands before Flower's web application (ASGI), behind the gate.

    `words` say how a run reaches the server; `announce` is called when one was submitted; processes of runs bear the
    server's `name`, so that a list of processes says whose they are.
    """

    def __init__(
        self, app: App, words: Sequence[str], announce: Callable[[], None] = lambda: None, name: str = "server"
    ):
        self._announce, self._name = announce, name
        self._app, self._words = app, [*words, "--parent-pid", str(os.getpid())]
        self._called = threading.Event()
        self._warm: subprocess.Popen[bytes] | None = None
        self._started: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request through, and see whether a run came with it."""
        path = scope["path"] if scope["type"] == "http" else ""
        if path == SOON:
            self.warm_up()
            await answer(send, 204)
        elif path == ACQUIRE:
            await answer(send, 404)
        elif path == SUBMIT:
            await answer(send, *await self._submit(scope, receive))
        else:
            await self._app(scope, receive, send)
        if path in (SUBMIT, SUBMITTED):
            self._called.set()

    async def _submit(self, scope: Scope, receive: Receive) -> tuple[int, bytes]:
        """Let Flower start a run; give its number, or what Flower says."""
        try:
            config = await whole(receive) or b""
            request = start_request(config)
            refuse_unusable(json.loads(config))
        except RequestError as error:
            return UNUSABLE, str(error).encode()
        except (ValueError, TypeError) as error:
            return 400, str(error).encode()
        kind = [(b"content-type", PROTOBUF), (b"accept", PROTOBUF), (b"content-length", b"%d" % len(request))]
        host = [(name, value) for name, value in scope["headers"] if name == b"host"]
        about = {**scope, "method": "POST", "path": SUBMITTED, "raw_path": SUBMITTED.encode(), "headers": host + kind}
        said = await ask_app(self._app, about, request)
        status, body = said[0]["status"], b"".join(part.get("body", b"") for part in said[1:])
        if status != 200:
            return status, body
        if not (number := run_number(body)):
            return 500, b"Flower started no run"
        self._announce()
        return 200, number.encode()

    def warm_up(self) -> None:
        """Start a process for the next run, unless one waits already."""
        with self._lock:
            self._started = [child for child in self._started if child.poll() is None]
            if self._warm is None or self._warm.poll() is not None:
                self._warm = self._new()

    def watch(self, state: Any) -> None:
        """Look for runs in Flower's state, from a thread of its own.

        A look that fails, as on a full disk, is tried again: no later run would ever begin.
        """
        handlers = import_module("flwr.superlink.servicer.runtime.runtime_handlers")
        asked = handlers.AcquireTaskRequest(supported_task_types=[handlers.TaskType.SERVER_APP])

        def look() -> None:
            pause, failing = FIRST, False
            while True:
                self._called.wait(pause)
                self._called.clear()
                try:
                    while (given := handlers.acquire_task(asked, state())).token:
                        self.launch(given.token)
                    pause, failing = LOOK, False
                except Exception as error:
                    if not failing:
                        print(f"runs cannot be started for now, which is tried again: {error}", flush=True)
                    pause, failing = FIRST, True

        threading.Thread(target=look, name="runs", daemon=True).start()

    def launch(self, token: str) -> None:
        """Give a run to the process that waits, or to a new one."""
        line = (json.dumps([*self._words, "--token", token]) + "\n").encode()
        with self._lock:
            child, self._warm = self._warm, None
        if child is None or not _told(child, line):
            _told(self._new(), line)

    def _new(self) -> subprocess.Popen[bytes]:
        child = subprocess.Popen([*PROCESS, self._name], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
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
