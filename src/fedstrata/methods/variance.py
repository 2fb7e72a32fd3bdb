"""FedPBS, arXiv 2603.13909: how much a client's samples differ under the model it received."""

from __future__ import annotations

from dataclasses import dataclass

from fedstrata.core.client_context import Buffers, ClientContext, Done, Of
from fedstrata.core.client_parts import Correction
from fedstrata.core.messages import Report, Tensors


@dataclass(frozen=True)
class Variance(Correction):
    """Tells how much the samples of one batch differ, in their losses or in their gradients (Eq. 8)."""

    of: Of = "loss"

    @property
    def name(self) -> str:
        """Under which it is told."""
        return f"{self.of}-variance".replace("-", "_")

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Look before training."""
        context.batch_variance(self.of)

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Tell what was seen."""
        return Done(metrics={self.name: context.batch_variance(self.of)})

    def read(self, report: Report) -> float:
        """Find it in a report."""
        return float(report.metrics[self.name])  # type: ignore[arg-type]
