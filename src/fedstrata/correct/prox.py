"""Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (FedProx).

Adds mu/2 ||w - w0||^2 to the local loss: a pull of mu (w - w0) back to the received model. Norm statistics
are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from fedstrata.clientside import Buffers, LocalPart, Visit
from fedstrata.messages import Slot, Tensors
from fedstrata.options import NonNegative
from fedstrata.space import Space


@dataclass(frozen=True)
class Prox(LocalPart):
    """A proximal term keeps the local model near the one received."""

    paper: ClassVar[str] = "Li et al., MLSys 2020"

    mu: NonNegative = 0.01

    def lane(self, space: Space) -> Mapping[str, Slot]:
        """Hold mu in a buffer, so that it may differ between clients."""
        return {"mu": Slot()}

    def fill(self, own: Tensors, buf: Buffers, visit: Visit) -> None:
        """Set mu."""
        own["mu"].fill_(self.mu)

    def grad(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Add mu (w - w0)."""
        buf.g.add_(own["mu"] * (buf.w - buf.w0))
