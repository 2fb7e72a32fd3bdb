"""For those who have a Flower app already: our selectors, combiners and server steps as a strategy, our partitions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedstrata.flower_strategy.client import describe, utility
    from fedstrata.flower_strategy.partitioner import FedstrataPartitioner
    from fedstrata.flower_strategy.strategy import Strategy

_HOME = {  # clients need no torch
    "FedstrataPartitioner": "partitioner",
    "Strategy": "strategy",
    "describe": "client",
    "utility": "client",
}

__all__ = ["FedstrataPartitioner", "Strategy", "describe", "utility"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedstrata.flower_strategy' has no attribute {name!r}")
    return getattr(import_module(f"fedstrata.flower_strategy.{_HOME[name]}"), name)
