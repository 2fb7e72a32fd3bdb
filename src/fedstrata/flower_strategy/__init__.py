"""For those who have a Flower app already: our selectors, combiners and server steps as a strategy of theirs."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedstrata.flower_strategy.client import describe, utility
    from fedstrata.flower_strategy.strategy import Strategy

_HOME = {"Strategy": "strategy", "describe": "client", "utility": "client"}  # clients need no torch

__all__ = ["Strategy", "describe", "utility"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'fedstrata.flower_strategy' has no attribute {name!r}")
    return getattr(import_module(f"fedstrata.flower_strategy.{_HOME[name]}"), name)
