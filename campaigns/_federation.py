"""Sites in this process, with a few samples each; only the network between them and the server is not real."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.config.experiment import Experiment
from fedstrata.core.wire import unpack_task
from fedstrata.data.federation import Federation
from fedstrata.privacy.frames import split
from fedstrata.remote.credentials import Credentials
from fedstrata.remote.server.session import run_at_sites
from fedstrata.remote.site.site_server import SiteServer
from fedstrata.remote.site.source import only
from fedstrata.runs.folder import Run
from fedstrata.runs.journal import Watch

SMALL = {
    "data.clients": 4,
    "model.hidden": (5,),
    "train.rounds": 3,
    "train.epochs": 1,
    "train.batch_size": 8,
    "train.clients_per_round": "all",
    "engine.precision": "fp64",
}


def make_hosts(
    federation: Federation, names: Sequence[str], keys: Path | None, folder: Path | None
) -> dict[str, SiteServer]:
    """Return sites that hold a client's samples each."""

    def make(number: int, name: str) -> SiteServer:
        own = only(federation, number)
        credentials = None if keys is None else Credentials.load(keys / "sites" / name)
        return SiteServer(name, lambda: own, credentials, None if folder is None else folder / name)

    return {name: make(number, name) for number, name in enumerate(names)}


class Here:
    """Sites in this process: all that a transport says of who is there. How they are asked, others say."""

    longest = 1 << 31

    def __init__(self, hosts: Mapping[str, Any]):
        self._hosts = hosts

    def names(self) -> list[str]:
        """Return all of them."""
        return sorted(self._hosts)

    def reachable(self) -> list[str]:
        """Return all of them."""
        return self.names()

    def invite(self, sites: Collection[str]) -> None:
        """Do nothing: they are here."""

    def awaited(self) -> list[str]:
        """Return nobody."""
        return []

    def close(self) -> None:
        """Do nothing."""


class Direct(Here):
    """Carries requests to sites in this process, and notes on the disk what each gave for which step."""

    def __init__(self, hosts: Mapping[str, SiteServer], given: Path | None = None):
        super().__init__(hosts)
        self._given, self._steps = given, dict[str, tuple[int, int]]()

    def exchange(
        self, requests: Mapping[str, bytes], deadline: float | None = None, enough: int | None = None
    ) -> dict[str, bytes]:
        """Ask one after another."""
        told = {}
        for name, request in requests.items():
            told[name] = self._hosts[name].answer(request)
            self._note(name, request, told[name])
        return told

    def _note(self, name: str, request: bytes, reply: bytes) -> None:
        outer = split(request)
        kind, *fields = split(outer[2]) if outer[0] == b"in" else outer
        if kind == b"task":
            task = unpack_task(fields[0])
            self._steps[name] = task.round, task.step
        what = b"masked" if kind == b"sum" and fields[0] == b"masked" else kind
        if self._given is None or what not in (b"masked", b"task") or split(reply)[0] != b"done":
            return
        with self._given.open("ab") as file:
            file.write(b"%s %s %d %d\n" % (what, name.encode(), *self._steps[name]))
            os.fsync(file.fileno())


def begin_or_resume(
    transport: Any,
    overrides: Mapping[str, Any],
    out: Path,
    sites: int,
    credentials: Credentials | None = None,
    watch: Watch | None = None,
) -> Run:
    """Begin a run at sites, or go on with it."""
    resumed = (out / "experiment.toml").exists()
    experiment = Experiment.of(None, **{**SMALL, **overrides})
    return run_at_sites(transport, experiment, out, sites, resumed, credentials=credentials, watch=watch)
