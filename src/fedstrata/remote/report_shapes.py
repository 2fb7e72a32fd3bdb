"""What the tensors of a report are called, and their shapes: a site makes them so, and the server checks them."""

from __future__ import annotations

import torch

from fedstrata.core.compression import Compression
from fedstrata.core.plan import Plan
from fedstrata.methods.drivers.sync import GlobalBatches

MOVES = {"update": "params", "buffers": "buffers"}  # what a report says of them is the way from what a task brought


def expected_shapes(plan: Plan, kind: str) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of what a training report sums, by name; None where the kind of task decides."""
    if kind == "gradient":
        return {name: shape for name, (shape, _) in gradient_shapes(plan).items()}
    if kind != "train":
        return None
    space = plan.space
    shapes: dict[str, tuple[int, ...]] = {"update": (space.P,)}
    if space.Q:
        shapes["buffers"] = (space.Q,)
    for name, part in plan.local.chain.items():
        shapes |= {f"{name}/{slot}": tuple(s.shape) for slot, s in part.declare_aggregated(space).items()}
    return dict(sorted(shapes.items()))


def gradient_shapes(plan: Plan) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shapes and types of a gradient, as it travels."""
    return compression_of(plan).shapes("update", plan.space.P, plan.local.dtype)


def compression_of(plan: Plan) -> Compression:
    """Return how a gradient is made shorter on its way to the server."""
    return plan.driver.up if isinstance(plan.driver, GlobalBatches) else Compression()
