"""Warnings for those who use fedstrata from Python: they stand at the line of theirs that gave rise to them."""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn_caller(said: str) -> None:
    """Warn whoever called the package, at that line."""
    frame: FrameType | None = sys._getframe()
    level = 1
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("fedstrata."):
        frame, level = frame.f_back, level + 1
    warnings.warn(said, stacklevel=level)
