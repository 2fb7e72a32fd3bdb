"""FedPBS, arXiv 2603.13909: how much a client's samples differ under the model it received.

Equation 8 sums over all of a client's samples; Algorithms 3 and 4 of the same paper look at one mini-batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fedstrata.core.client_context import Buffers, ClientContext, Done, Of
from fedstrata.core.client_parts import Correction
from fedstrata.core.messages import Report, Tensors

Over = Literal["batch", "all"]  # one batch, or all of a client's samples


@dataclass(frozen=True)
class Variance(Correction):
    """Tells how much a client's samples differ, in their losses or in their gradients (Eq. 8)."""

    of: Of = "loss"
    over: Over = "batch"

    @property
    def name(self) -> str:
        """Under which it is told."""
        return f"{self.of}-variance{'-of-all' if self.over == 'all' else ''}".replace("-", "_")

    def look(self, context: ClientContext) -> float:
        """Return it; what was seen once is not computed again."""
        return context.batch_variance(self.of) if self.over == "batch" else context.sample_variance(self.of, None)

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Look before training."""
        self.look(context)

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Tell what was seen."""
        return Done(metrics={self.name: self.look(context)})

    def read(self, report: Report) -> float:
        """Find it in a report."""
        return float(report.metrics[self.name])  # type: ignore[arg-type]
