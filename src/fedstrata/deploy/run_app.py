"""The Flower app of every run: a pyproject that points into the installed package, and nothing else.

It is the same for every run. The server submits it (`server/run_launcher.py`) when `deploy run` tells it how a run is
configured: Flower's own command line would import for a second what the server has in memory.
"""

from __future__ import annotations

import json
from functools import cache
from hashlib import sha256
from importlib import import_module
from typing import Any

import tomli_w

from fedstrata import __version__
from fedstrata.remote.flower.app_config import BLANK

COMPONENTS = {
    "serverapp": "fedstrata.remote.flower.server_app:app",
    "clientapp": "fedstrata.remote.flower.client_app:app",
}
APP = "fedstrata-run"  # Flower takes letters, digits and hyphens


def pyproject() -> dict[str, Any]:
    """Return the whole app."""
    return {
        "project": {
            "name": APP,
            "version": __version__,
            "description": "A fedstrata run; the code is in the installed package",
            "license": {"text": "Apache-2.0"},
            "dependencies": [],
        },
        "tool": {
            "flwr": {
                "app": {
                    "publisher": "fedstrata",
                    "components": COMPONENTS,
                    "config": BLANK,
                }
            }
        },
    }


@cache
def bundle() -> bytes:
    """Return the app as Flower sends it."""
    files = {"pyproject.toml": tomli_w.dumps(pyproject()).encode()}
    return bytes(import_module("flwr.cli.build").build_fab_from_files(files)[0])


def start_request(config: bytes) -> bytes:
    """Return Flower's request to start a run, whose configuration is given as JSON; ValueError where it is none."""
    told = json.loads(config)
    if not isinstance(told, dict) or set(told) != set(BLANK):
        raise ValueError("the configuration of a run has other keys than it should")
    control, fab = (import_module(f"flwr.proto.{name}_pb2") for name in ("control", "fab"))
    values = import_module("flwr.common.serde").user_config_to_proto(told)
    app = fab.Fab(hash_str=sha256(bundle()).hexdigest(), content=bundle())
    return bytes(control.StartRunRequest(fab=app, override_config=values).SerializeToString())


def run_number(answer: bytes) -> str:
    """Read Flower's number of a run from the answer; empty where there is none."""
    told = import_module("flwr.proto.control_pb2").StartRunResponse.FromString(answer)
    return str(told.run_id) if told.HasField("run_id") else ""
