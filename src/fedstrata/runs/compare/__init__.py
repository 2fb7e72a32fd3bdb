"""Paired comparisons: every method on the same partition, first model and draws, over several seeds."""

from fedstrata.runs.compare.comparison import Comparison, compare, prepare, reopen

__all__ = ["Comparison", "compare", "prepare", "reopen"]
