"""Kills over real Flower: a server, a site and its stream, in the middle of runs of three sites on this machine."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import torch

from campaigns._table import Table
from fedstrata.runs.folder import Run
from fedstrata.runs.training import train

TESTS = Path(__file__).parents[1] / "tests"  # whose federation of real processes this is
KILLS = 10  # of each
ROUNDS = 24
INTERNET = (socket.AF_INET, socket.AF_INET6)
PIDFD_GETFD = 438  # the system call that borrows a socket of another process
ASKED = {
    "data.clients": 3,
    "model.hidden": (8,),
    "method.name": "scaffold",
    "train.rounds": ROUNDS,
    "train.epochs": 1,
    "train.batch_size": 64,
    "train.clients_per_round": "all",
    "engine.precision": "fp64",
    "trust.clip": "none",
    "trust.samples": "none",
}


def crashed_over_flower(folder: Path, table: Table) -> None:
    """Fill a row for each of the three; a quick campaign leaves that to the tests of real sites."""
    if table.quick or find_spec("flwr") is None:
        return
    sys.path += [str(TESTS), str(TESTS / "sites")]
    from staging import Federation  # noqa: PLC0415 - a module of the tests

    os.environ |= {"FEDSTRATA_STATE": str(folder / "state"), "FEDSTRATA_WISHES": str(folder / "wishes")}
    whole = train(overrides=ASKED, out=folder / "whole", progress=False)
    federation, rows = Federation(folder), {what: table.row(f"over Flower: {what}") for what in WAYS}
    try:
        federation.start()
        for row, (number, what) in table.left((rows[what], (n, what)) for n, what in product(range(KILLS), WAYS)):
            federation.mend()
            moment = Random(f"over Flower, {what} {number}")  # its own, so that a later call goes on as one would have
            row.note(_attempt(federation, folder / f"{what}-{number}", whole, WAYS[what], moment))
    finally:
        federation.close()


def _attempt(federation: Any, out: Path, whole: Run, kill: Callable[..., str | None], rng: Random) -> str | None:
    """Disturb a run at a moment that is drawn; give what went wrong."""
    at, later = rng.randint(1, ROUNDS // 2), rng.random() * 0.2
    where = f"{out.name}, {later:.2f} s after round {at}"
    try:
        with federation.running(out, ASKED, stream=True) as run:
            run.reaches("round", round=at)
            time.sleep(later)  # the moment of the kill, not a wait for anything
            problem = kill(federation, run, whole)
    except AssertionError as error:
        return f"{where}: {str(error).splitlines()[0][:200]}"
    return None if problem is None else f"{where}: {problem}"


def _kill_server(federation: Any, run: Any, whole: Run) -> str | None:
    """Kill all of it; it goes on from its checkpoint, with the sites that waited for it."""
    federation.commands["server"].kill()
    federation.start_server()
    if not run.over():
        federation.call("run", "--resume", str(run.result.path), "--stream", "--server", federation.address)
    return _other(run.result, whole)


def _break_stream(federation: Any, run: Any, whole: Run) -> str | None:
    """Cut the connection of a site; it comes back, and nothing is done twice."""
    cut = _cut_connections(federation, "b")
    done = run.ends()
    return _other(done, whole) if cut else "there was no connection to cut"


def _kill_site(federation: Any, run: Any, whole: Run) -> str | None:
    """Kill who holds the data; the others go on, and every round without it says so."""
    federation.commands["b"].kill_site()
    done = run.ends()
    events = done.events()
    missing = {e["round"] for e in events if e["event"] == "round" and 1 not in e["steps"][0]["clients"]}
    told = {e.get("round") for e in events if e["event"] in ("dropped", "site_refused", "no_update")}
    told |= {e["round"] for e in events if e["event"] == "round" and e.get("refused")}
    away = [e for e in events if e["event"] == "site_away"]
    if done.summary["rounds"] != ROUNDS:
        return f"it ended after {done.summary['rounds']} rounds"
    if missing and not away and not missing <= told:
        return f"nothing says that the site is missing in rounds {sorted(missing - told)}"
    return None if all(torch.isfinite(t).all() for t in done.model().values()) else "its model is not finite"


def _other(done: Run, whole: Run) -> str | None:
    ours, theirs = done.model(), whole.model()
    far = max(float((ours[name] - theirs[name]).abs().max()) for name in theirs)
    return None if far < 1e-9 else f"its model is {far:.3g} away from the undisturbed one"


def _cut_connections(federation: Any, site: str) -> int:
    """Cut every connection to the stream's port that a process of a site has; give their number."""
    port, cut = federation.there.stream_port, 0
    for pid, _ in federation.commands[site].family():
        with suppress(OSError):
            process = os.pidfd_open(pid)
            for number in map(int, os.listdir(f"/proc/{pid}/fd")):
                with suppress(OSError):
                    cut += _cut(process, number, port)
            os.close(process)
    return cut


def _cut(process: int, number: int, port: int) -> bool:
    copy = ctypes.CDLL(None, use_errno=True).syscall(PIDFD_GETFD, process, number, 0)
    if copy < 0:
        return False
    try:
        with socket.socket(fileno=copy) as connection:
            if connection.family not in INTERNET or connection.getpeername()[1] != port:
                return False
            connection.shutdown(socket.SHUT_RDWR)
            return True
    except OSError:
        with suppress(OSError):
            os.close(copy)
        return False


WAYS = {"server": _kill_server, "stream": _break_stream, "site": _kill_site}
