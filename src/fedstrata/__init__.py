"""fedstrata: federated learning on skewed data, as one plan whose stages can be swapped and combined."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedstrata import plots
    from fedstrata.api import *  # noqa: F403

__all__ = [  # noqa: F405  names of `fedstrata.api`, which a test compares; spelt out because torch takes seconds
    "STOP",
    "Accountant",
    "Architecture",
    "Arrays",
    "Arrived",
    "Ask",
    "Batch",
    "BelowOne",
    "Buffers",
    "Choice",
    "Client",
    "ClientContext",
    "ClientInfo",
    "Column",
    "Combiner",
    "Comparison",
    "Correction",
    "Count",
    "DataSet",
    "Deal",
    "DirichletClass",
    "Done",
    "Drift",
    "Driver",
    "Engine",
    "Experiment",
    "Federation",
    "FedstrataError",
    "FixedSize",
    "FlatModel",
    "Followed",
    "Fraction",
    "Iid",
    "Inputs",
    "Inspection",
    "LRSchedule",
    "Labelled",
    "LocalEngineOptions",
    "LocalPart",
    "LocalPath",
    "Metric",
    "Noise",
    "NonNegative",
    "Optimizer",
    "Order",
    "Outcome",
    "ParameterSpace",
    "Part",
    "PartError",
    "Partition",
    "Plan",
    "Positive",
    "Preprocessing",
    "Recipe",
    "Record",
    "Replay",
    "Report",
    "RequestError",
    "Run",
    "RunData",
    "Sampler",
    "Schedule",
    "Scores",
    "Select",
    "Selector",
    "ServerStep",
    "Situation",
    "Slot",
    "StageChoice",
    "Step",
    "Steps",
    "Stratified",
    "Stream",
    "Streams",
    "Sums",
    "Task",
    "Tensors",
    "TrackedRun",
    "Tracker",
    "View",
    "__version__",
    "check_combiner",
    "check_correction",
    "check_dataset",
    "check_driver",
    "check_engine",
    "check_lr_schedule",
    "check_metric",
    "check_model",
    "check_noise",
    "check_partition",
    "check_recipe",
    "check_sampler",
    "check_schedule",
    "check_selector",
    "check_server_step",
    "check_tracker",
    "client_updates",
    "compare",
    "follow",
    "inspect",
    "make_part",
    "options",
    "plots",
    "replay",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for: the public names live in `fedstrata.api`, figures in `fedstrata.plots`."""
    if name == "plots":
        return import_module("fedstrata.plots")
    if name not in __all__:
        raise AttributeError(f"module 'fedstrata' has no attribute {name!r}")
    return getattr(import_module("fedstrata.api"), name)


def __dir__() -> list[str]:
    return __all__
