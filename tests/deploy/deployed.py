"""A server as it describes itself, the sites that Flower knows, its gate, and run folders as its runs leave them."""

from __future__ import annotations

from pathlib import Path

from looping import run_loop

from fedstrata.config.experiment import Experiment
from fedstrata.deploy.server import federation_server
from fedstrata.deploy.server.auth_proxy import Gate
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


def node(number: str, how: str, **times: str) -> dict[str, object]:
    return {"node-id": number, "status": how, "online-at": "N/A", "offline-at": "N/A"} | times


def through(path: str, caller: str | None, called: str = "10.0.0.1", kind: str = "http", keys=None, **headers) -> str:
    """Send a request to the gate; give who answered, and how."""
    sent = []

    async def app(scope, receive, send):
        sent.append({"type": "app"})

    async def send(message):
        sent.append(message)

    scope = {"type": kind, "path": path, "client": None if caller is None else (caller, 5), "server": (called, 8000)}
    said = {"host": "127.0.0.1:8000"} | {name.replace("_", "-"): value for name, value in headers.items()}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in said.items()]
    run_loop(Gate(app, keys)(scope, None, send))
    first = sent[0]
    return "app" if first["type"] == "app" else f"{first['type']} {first.get('status', '')}".strip()
