"""A server and its sites as `fedstrata deploy` starts them, with keys: what they cost while they rest.

And how long a run takes from the command to its first finished round.

Memory is the resident memory of all processes that a command started, itself included; what processes share counts as
often as it is mapped, so the sum is on the high side. The idle time begins when what a site read for its last run has
been given back.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks._ports import free_port
from fedstrata.core.errors import FedstrataError
from fedstrata.deploy import keys
from fedstrata.deploy.logs import tail
from fedstrata.deploy.processes import everybody, family

UP = 600.0  # seconds in which a command must be ready, also on a machine that has much else to do
REST = 30  # seconds without a request after which a site's process ends: long enough to meet one that has not
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Command:
    """A `fedstrata deploy` command and everything that it started."""

    def __init__(self, folder: Path, name: str, *words: str):
        self._log = folder / f"{name}.txt"
        with self._log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "fedstrata", "deploy", *words],
                cwd=folder,
                stdout=file,
                stderr=file,
                env={**_installed(), "FEDSTRATA_STATE": str(folder / "state")},
            )

    def says(self, text: str) -> None:
        """Wait for words."""
        until = time.monotonic() + UP
        while text not in self._log.read_text():
            if self.process.poll() is not None or time.monotonic() > until:
                raise FedstrataError(f"{text!r} was not said:\n{tail(self._log)}")
            time.sleep(0.05)

    def members(self) -> list[int]:
        """Return the ids of its processes."""
        there = everybody()
        return [pid for pid, _ in family([(self.process.pid, there[self.process.pid][1])])]

    def seconds(self) -> dict[int, float]:
        """Return the processor time of each process."""
        return {pid: _seconds(pid) for pid in self.members()}

    def megabytes(self) -> float:
        """Return the resident memory of all of them."""
        return sum(map(_pages, self.members())) * PAGE / 1e6

    def end(self) -> None:
        """End it as Ctrl-C does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


def _installed() -> dict[str, str]:
    """Return the environment as an installed package has it: its byte code is kept, as pip writes it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure_idle(sites: tuple[str, ...], seconds: float, rest: int = REST) -> dict[str, Any]:
    """Return the cost of a server and of a site at rest, and the seconds of two runs to their first round.

    The first run meets sites that were started just now; the second one such as have given their memory back.
    """
    with _federation(sites, rest) as (folder, server, clients):
        soon = _first_round(folder, "soon", len(sites))
        _wait_for_rest(folder, len(sites))
        told: dict[str, Any] = {"soon": soon, **_cost(server, clients, seconds)}
        told["rested"] = _first_round(folder, "rested", len(sites))
    return told


def _wait_for_rest(folder: Path, sites: int) -> None:
    """Wait until every site has logged that its process rests, and nothing of another start."""
    until = time.monotonic() + UP
    while sum(_rests(log.read_text()) for log in folder.glob("state/site-*/log.jsonl")) < sites:
        if time.monotonic() > until:
            raise FedstrataError("the processes of sites do not end")
        time.sleep(0.5)


def _rests(log: str) -> bool:
    return log.rfind('"process_rests"') > log.rfind('"process_started"')


def _cost(server: Command, clients: list[Command], seconds: float) -> dict[str, Any]:
    before = [command.seconds() for command in (server, *clients)]
    began = time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    after = [command.seconds() for command in (server, *clients)]
    shares = [
        100 * sum(late - early.get(pid, 0.0) for pid, late in now.items()) / took
        for early, now in zip(before, after, strict=True)
    ]
    return {
        "server cpu": shares[0],
        "site cpu": sum(shares[1:]) / len(clients),
        "server mb": server.megabytes(),
        "site mb": max(client.megabytes() for client in clients),
        "server processes": len(server.members()),
        "site processes": max(len(client.members()) for client in clients),
    }


def _first_round(folder: Path, name: str, sites: int) -> float:
    """Return the seconds from the command to the event of its first round."""
    port = json.loads(next(folder.glob("state/server-*/server.json")).read_text())["port"]
    began = time.monotonic()
    wish = ("--set", "train.rounds=1", "--set", "model.hidden=[8]", "--set", "data.name=digits")
    run = Command(folder, name, "run", "--sites", str(sites), "--server", f"127.0.0.1:{port}", "--out", name, *wish)
    events = folder / name / "events.jsonl"
    while '"event": "round"' not in (events.read_text() if events.exists() else ""):
        if run.process.poll() not in (None, 0) or time.monotonic() - began > UP:
            raise FedstrataError(f"no round was finished:\n{tail(folder / f'{name}.txt')}")
        time.sleep(0.02)
    took = time.monotonic() - began
    if run.process.wait(UP) != 0:
        raise FedstrataError(f"the run failed:\n{tail(folder / f'{name}.txt')}")
    return took


@contextmanager
def _federation(sites: tuple[str, ...], rest: int) -> Iterator[tuple[Path, Command, list[Command]]]:
    with tempfile.TemporaryDirectory(prefix="idle-") as name:
        folder, started = Path(name), list[Command]()
        keys.make(folder / "keys", list(sites))
        port = free_port()
        try:
            server = Command(folder, "server", "server", "--keys", "keys/server", "--port", str(port))
            started.append(server)
            server.says("the server is up")
            for i, site in enumerate(sites):
                who = ("--site", site, "--keys", f"keys/sites/{site}", "--server", f"127.0.0.1:{port}")
                data = ("--data", "digits", "--partition", f"{i}/{len(sites)}", "--rest", str(rest))
                started.append(Command(folder, site, "client", *who, *data))
            for site, client in zip(sites, started[1:], strict=True):
                client.says(f"site {site}: connected")
            yield folder, server, started[1:]
        finally:
            for command in reversed(started):
                command.end()


def _pages(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:  # it has ended meanwhile
        return 0


def _seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / TICKS
