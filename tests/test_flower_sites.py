"""Flower itself, on loopback: a SuperLink, three SuperNodes, our thin app at the sites, and an app that echoes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sysconfig
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

pytest.importorskip("flwr")
pytest.importorskip("grpc")

from fedstrata.engines.flower.joining import with_stream
from fedstrata.engines.sites.socket import Door
from fedstrata.errors import RequestError

pytestmark = pytest.mark.sites

SITES = ("aachen", "bonn", "cologne")
LIMIT = 180.0  # seconds for everything

PYPROJECT = """
[project]
name = "echoes"
version = "1.0.0"
description = "echoes"
license = { text = "Apache-2.0" }
dependencies = []

[tool.flwr.app]
publisher = "fedstrata"

[tool.flwr.app.components]
serverapp = "echoes.server:app"
clientapp = "fedstrata.engines.flower.client_app:app"

[tool.flwr.app.config]
out = ""
"""

SERVER = """
import json
from pathlib import Path
from time import perf_counter
from flwr.serverapp import ServerApp
from fedstrata.engines.flower.messages import Messages
from fedstrata.engines.flower.server_app import wait_for
from fedstrata.engines.flower.stream import open_stream
from fedstrata.engines.sites.transport import Failure

app = ServerApp()

def timed(transport, requests, *how):
    start = perf_counter()
    replies = transport.exchange(requests, *how)
    told = {site: r.reason if isinstance(r, Failure) else r == requests[site] for site, r in replies.items()}
    return told, perf_counter() - start

@app.main()
def main(grid, context):
    messages = Messages(grid, say=lambda text: print(text, flush=True))
    told = {"names": wait_for(messages, 3, 120.0)}
    everybody = lambda data: dict.fromkeys(told["names"], data)
    told["messages"], told["seconds"] = timed(messages, everybody(bytes(250_000)), 60.0)
    told["long"], _ = timed(messages, {"bonn": bytes(20_000_000)}, 60.0)
    told["failure"], _ = timed(messages, everybody(b"") | {"bonn": b"fail"}, 60.0)
    told["late"], told["waited"] = timed(messages, everybody(b"") | {"bonn": b"sleep"}, 20.0)
    start = perf_counter()
    stream = open_stream(messages, "127.0.0.1:0", str(context.run_id), say=lambda text: print(text, flush=True))
    told["open"] = perf_counter() - start
    times = [timed(stream, everybody(bytes(250_000)), 10.0) for _ in range(200)]
    told["stream"], told["exchange"] = times[-1][0], sorted(t for _, t in times)[100]
    start = perf_counter()
    stream.close()
    told["close"] = perf_counter() - start
    told["answers"] = stream.why_not()
    told["after"], _ = timed(messages, everybody(b"x"), 60.0)
    messages.close()
    Path(context.run_config["out"]).write_text(json.dumps(told))
"""


def free_ports(count):
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for free in sockets:
            free.bind(("127.0.0.1", 0))
        return [free.getsockname()[1] for free in sockets]


def answer(request):
    if request == b"fail":
        raise RequestError("as you wished")
    if request == b"sleep":
        time.sleep(22.0)
    return request


class Flower:
    """Flower's processes, ended when the test is."""

    def __init__(self, folder, stack):
        self.folder, self.stack = folder, stack
        scripts = sysconfig.get_path("scripts")
        self.env = os.environ | {
            "PATH": os.pathsep.join([scripts, os.environ["PATH"]]),
            "FLWR_HOME": str(folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1",
            "PYTHONUNBUFFERED": "1",
        }

    def start(self, name, *words):
        log = self.stack.enter_context((self.folder / f"{name}.log").open("wb"))
        process = subprocess.Popen(words, env=self.env, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        self.stack.callback(end, process)

    def call(self, *words):
        return subprocess.run(
            words, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=60, check=True
        )

    def said(self):
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"== {log.name}\n{log.read_text()[-3000:]}" for log in logs)


def end(process):
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10.0)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What the app saw; one run for all tests, because Flower takes its time."""
    folder, until = tmp_path_factory.mktemp("flower"), time.monotonic() + LIMIT
    private = folder / "s"
    private.mkdir(mode=0o700)
    port, *ports = free_ports(1 + len(SITES))
    app, out = folder / "echoes", folder / "told.json"
    (app / "echoes").mkdir(parents=True)
    (app / "pyproject.toml").write_text(PYPROJECT)
    (app / "echoes" / "__init__.py").write_text("")
    (app / "echoes" / "server.py").write_text(SERVER)
    (folder / "flwr").mkdir()
    local = f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (folder / "flwr" / "config.toml").write_text(local)
    with ExitStack() as stack:
        flower = Flower(folder, stack)
        address = ("--host", "127.0.0.1", "--port", str(port))
        flower.start(
            "superlink", "flower-superlink", "--insecure", *address, "--disable-runtime-dependency-installation"
        )
        for site, own in zip(SITES, ports, strict=True):
            path = private / site
            stack.enter_context(Door(with_stream(answer), path))
            config = ("--node-config", f"site='{site}' socket='{path}'")
            words = (
                "--insecure",
                "--superlink",
                f"127.0.0.1:{port}",
                "--host",
                "127.0.0.1",
                "--port",
                str(own),
                *config,
            )
            flower.start(site, "flower-supernode", *words)
        while True:
            with suppress(subprocess.CalledProcessError):
                flower.call("flwr", "run", str(app), "local", "--run-config", f"out='{out}'")
                break
            assert time.monotonic() < until, flower.said()
            time.sleep(1.0)
        while not out.exists() or not out.read_text():
            assert time.monotonic() < until, flower.said()
            time.sleep(0.5)
        time.sleep(1.0)
        yield json.loads(out.read_text())
    print(Path(out).read_text())


def test_sites_are_named_and_answer_by_messages(told):
    assert told["names"] == list(SITES)
    assert told["messages"] == told["after"] == dict.fromkeys(SITES, True)
    assert told["long"] == {"bonn": True}


def test_a_site_that_fails_or_is_late_keeps_nobody(told):
    assert told["failure"] == {"aachen": True, "bonn": "as you wished", "cologne": True}
    assert told["late"] == {"aachen": True, "cologne": True}
    assert 20.0 <= told["waited"] < 21.9


def test_the_stream_carries_what_messages_opened(told):
    assert told["stream"] == dict.fromkeys(SITES, True)
    assert told["answers"] == dict.fromkeys(SITES, "it left")
    assert told["exchange"] < told["seconds"] / 20
