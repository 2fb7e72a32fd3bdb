"""fedstrata: federated learning on skewed data, as one plan whose stages can be swapped and combined."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedstrata.config.experiment import Experiment
    from fedstrata.core.errors import FedstrataError, RequestError
    from fedstrata.data.federation import Federation
    from fedstrata.inspection import Inspection, inspect
    from fedstrata.runs.compare import compare
    from fedstrata.runs.folder import Run
    from fedstrata.runs.replay import Record, Replay, replay
    from fedstrata.runs.trace import Followed, client_updates, follow
    from fedstrata.runs.training import resume, train

_HOME = {  # imported when first used: torch takes seconds
    "Experiment": "config.experiment",
    "Federation": "data.federation",
    "FedstrataError": "core.errors",
    "Followed": "runs.trace",
    "Inspection": "inspection",
    "Record": "runs.replay",
    "Replay": "runs.replay",
    "RequestError": "core.errors",
    "Run": "runs.folder",
    "compare": "runs.compare",
    "follow": "runs.trace",
    "inspect": "inspection",
    "replay": "runs.replay",
    "resume": "runs.training",
    "train": "runs.training",
    "client_updates": "runs.trace",
}

__all__ = [
    "Experiment",
    "Federation",
    "FedstrataError",
    "Followed",
    "Inspection",
    "Record",
    "Replay",
    "RequestError",
    "Run",
    "__version__",
    "client_updates",
    "compare",
    "follow",
    "inspect",
    "replay",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedstrata' has no attribute {name!r}")
    return getattr(import_module(f"fedstrata.{_HOME[name]}"), name)
