"""A server as it describes itself, and run folders as its runs leave them."""

from __future__ import annotations

from pathlib import Path

from fedstrata.config.experiment import Experiment
from fedstrata.deploy.server import federation_server
from fedstrata.runs.folder import Run


def a_server(**changes) -> federation_server.FederationServer:
    fields = {"host": "0.0.0.0", "port": 8000, "stream_port": 8001, "public": "h", "keys": None}
    return federation_server.FederationServer(**(fields | changes))


def a_run(path: Path, rounds: int) -> Run:
    run = Run.create(path, Experiment.of({"train": {"rounds": rounds}}).to_toml())
    run.log("start", clients=2)
    run.log("sites", wall={"sites": ["a", "b"]})
    for done in range(1, rounds + 1):
        clients = [0, 1] if done < rounds else [1]
        run.log("round", round=done, steps=[{"kind": "train", "clients": clients}], accuracy=0.5)
    return run
