"""Paired comparisons: every method on the same partition, first model and draws, under conditions and over seeds."""

from fedstrata.runs.compare.comparison import Comparison, compare, prepare, reopen
from fedstrata.runs.compare.request import Request

__all__ = ["Comparison", "Request", "compare", "prepare", "reopen"]
