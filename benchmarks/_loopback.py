"""Flower on this machine: a SuperLink, and SuperNodes with a process of a site behind each.

The SuperNodes are Flower's own, not those of `deploy client`, because they also have to run an app that is not ours.
All have the environment that `deploy` gives them, which looks for work ten times as often as Flower by itself would.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import tomli_w

from benchmarks._ports import free_port
from fedstrata.core.errors import FedstrataError
from fedstrata.deploy import flower
from fedstrata.deploy.asking import ask
from fedstrata.deploy.logs import tail
from fedstrata.deploy.processes import Household
from fedstrata.deploy.run_app import pyproject
from fedstrata.deploy.served import HEALTH
from fedstrata.deploy.server.federation_server import FederationServer

UP = 600.0  # seconds in which Flower must be there, also on a machine that has much else to do
OFTEN = 0.5  # seconds between two looks at what has come of an app
ROOT = Path(__file__).parents[1]


class Loopback:
    """A federation on this machine, as whoever measures sees it."""

    def __init__(self, household: Household, sites: int):
        self._household, self._folder, self._sites = household, household.folder, sites

    def told_by(self, app: str, client: str, seconds: float, quick: bool) -> dict[str, Any]:
        """Run an app (the `server` of a module in this folder, and what runs at clients); give what it measured."""
        place, out = self._folder / app.strip("_"), self._folder / f"{app}.json"
        place.mkdir()
        described = pyproject()
        described["tool"]["flwr"]["app"] |= {
            "components": {"serverapp": f"benchmarks.{app}:server", "clientapp": client},
            "config": {"out": str(out), "sites": self._sites, "quick": quick},
        }
        (place / "pyproject.toml").write_text(tomli_w.dumps(described))
        number = str(flower.flwr(self._folder, ["run", str(place), flower.CONNECTION])["run-id"])
        until = time.monotonic() + seconds
        while not out.exists():
            if (gone := self._household.gone()) is not None:
                raise FedstrataError(f"{gone} ended by itself:\n{tail(self._folder / f'{gone}.log')}")
            if time.monotonic() > until:
                raise FedstrataError(f"{app} measured nothing:\n{flower.log_of(self._folder, number)[-3000:]}")
            time.sleep(OFTEN)
        told: dict[str, Any] = json.loads(out.read_text())
        if failed := told.get("failed"):
            raise FedstrataError(f"{app} failed:\n{failed}")
        return told


@contextmanager
def loopback(sites: Collection[str]) -> Iterator[Loopback]:
    """Start everything; end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="sites-") as name, importable():
        folder = Path(name)
        port = free_port()
        server = FederationServer(flower.LOOPBACK, port, None, flower.LOOPBACK, None)
        flower.configure(folder, server.address, None)
        around = flower.environment(folder)
        household = Household(folder, "this benchmark")

        def start(name: str, *command: str) -> None:
            household.start(name, command, folder / f"{name}.log", around, folder)

        try:
            where = ("--host", flower.LOOPBACK, "--port", str(port), "--insecure")
            start("superlink", "flower-superlink", *where, "--disable-runtime-dependency-installation")
            for i, site in enumerate(sites):
                socket = folder / site / "s"
                start(f"site-{site}", sys.executable, "-m", "benchmarks._site", site, str(socket), str(i))
                node = ("--host", flower.LOOPBACK, "--port", str(free_port()), "--insecure")
                config = ("--superlink", server.address, "--node-config", f"site='{site}' socket='{socket}'")
                start(f"node-{site}", "flower-supernode", *node, *config)
            _wait(server, household)
            yield Loopback(household, len(sites))
        finally:
            household.close()


@contextmanager
def importable() -> Iterator[None]:
    """Let every process that is started meanwhile import this package, wherever it works.

    Flower's own commands too: `flwr run` imports the app that it is to send.
    """
    places = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with patch.dict(os.environ, PYTHONPATH=os.pathsep.join(places)):
        yield


def _wait(server: FederationServer, household: Household) -> None:
    """Wait until Flower answers."""
    until = time.monotonic() + UP
    while time.monotonic() < until and household.gone() is None:
        with suppress(OSError):
            if ask(server.address, HEALTH, None) == 200:
                return
        time.sleep(OFTEN)
    log = household.folder / f"{household.gone() or 'superlink'}.log"
    raise FedstrataError(f"Flower is not up:\n{tail(log)}")
