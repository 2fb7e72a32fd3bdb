"""Paired comparisons: every method on the same partition, first model and draws, under conditions and over seeds."""

from fedstrata.runs.compare.comparison import Comparison
from fedstrata.runs.compare.prepare import compare, prepare
from fedstrata.runs.compare.request import ComparisonRequest

__all__ = ["Comparison", "ComparisonRequest", "compare", "prepare"]
