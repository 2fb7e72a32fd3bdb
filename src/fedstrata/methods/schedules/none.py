"""No schedule: what a client trains on is its sampler's business."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.core.server_parts import Schedule


@dataclass(frozen=True)
class Unscheduled(Schedule):
    """Labels come as the selected clients hold them."""
