"""Paired comparisons: every method on the same partition, first model and draws, under conditions and over seeds."""

from fedstrata.runs.compare.comparison import Comparison, reopen
from fedstrata.runs.compare.prepare import compare, prepare
from fedstrata.runs.compare.request import Request

__all__ = ["Comparison", "Request", "compare", "prepare", "reopen"]
