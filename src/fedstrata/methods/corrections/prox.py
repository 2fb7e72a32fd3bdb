"""Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020 (FedProx); FedPBS, arXiv 2603.13909.

Adds mu/2 ||w - w0||^2 to the local loss: a pull of mu (w - w0) back to the received model. Norm statistics
are left alone. FedProx pulls always.

FedPBS (Algorithm 4) pulls where a client is unstable: its batch is smaller than B_th, or its samples' losses vary by
more than V_th under the received model. `v_th = "quantile"` takes V_th from what clients told in the last round; before
that only the batch counts. With `adaptive`, each client has its own mu_q = mu V_q / median V, within a factor of 4
(Eq. 12-14 write mu_q and say no more). Eq. 12 lacks the factor 1/2 that its own gradient, Eq. 13, needs.

The prose of the paper's section 4 is another method than its Algorithm 4, which the recipe `fedpbs` follows:

=============  ===================================  ===============================================================
what           Algorithm 4                          section 4, and the options that give it
=============  ===================================  ===============================================================
who trains     a random subset                      ranked by SUR (Eq. 9): method.selector = "sur"
who is pulled  small batch, or high loss variance   high gradient variance alone (Eq. 8): gate = "gradient", b_th = 1
variance of    one mini-batch                       all samples of the client: over = "all"
threshold      V_th, not told                       delta, "predefined", not told: v_th
aggregation    plain mean                           soft weights (Eq. 11): method.combiner = "soft"
=============  ===================================  ===============================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_context import Buffers, ClientContext, Done, Of
from fedstrata.core.client_parts import Correction, LocalPart
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Slot, Sums, Tensors
from fedstrata.core.options import Fraction, Natural, NonNegative
from fedstrata.core.server_parts import ServerStep
from fedstrata.core.steps import View
from fedstrata.methods.variance import Over, Variance


@dataclass
class Told:
    """What clients' variances were in the last round."""

    v_th: Tensor  # infinite before anybody told
    median: Tensor  # NaN likewise


f64 = partial(torch.tensor, dtype=torch.float64)  # a threshold that was rounded down would flag who is at it


@dataclass(frozen=True)
class Prox(Correction, ServerStep):
    """A proximal term keeps the local model near the one received: always, or where a client is unstable."""

    paper: ClassVar[str] = "Li et al., MLSys 2020; FedPBS, arXiv 2603.13909"

    mu: NonNegative = 0.01
    when: Literal["always", "unstable"] = "always"
    adaptive: bool = False  # mu in proportion to a client's variance
    gate: Of = "loss"  # of what the variance is
    over: Over = "batch"  # of one batch (Algorithm 4), or of all samples of a client (Equation 8)
    v_th: NonNegative | Literal["quantile"] = "quantile"  # above it a client is unstable
    quantile: Fraction = 0.5
    b_th: Natural = 0  # smallest batch of a stable client; 0: train.batch_size

    @property
    def looks(self) -> bool:
        """Whether variances are needed."""
        return self.when == "unstable" or self.adaptive

    @property
    def variance(self) -> Variance:
        """What clients tell."""
        return Variance(self.gate, self.over)

    # ---- client half

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold mu in a buffer, so that it may differ between clients."""
        return {"mu": Slot()}

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Set mu."""
        own["mu"].fill_(self.mu_of(context) if self.looks else self.mu)

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Add mu (w - w0)."""
        buf.g.add_(own["mu"] * (buf.w - buf.w0))

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Tell mu, where it differs between clients."""
        return Done(metrics={"mu": self.mu_of(context)}) if self.looks else Done()

    def mu_of(self, context: ClientContext) -> float:
        """Return this client's mu: none, where it is stable."""
        v, (told, median) = self.variance.look(context), context.down["told"].tolist()
        v_th = told if self.v_th == "quantile" else self.v_th
        stable = context.planned >= (self.b_th or context.batch_size) and v <= v_th
        if self.when == "unstable" and stable:
            return 0.0
        if self.adaptive and median > 0:
            return float(self.mu * np.clip(v / median, 0.25, 4.0))
        return self.mu

    # ---- server half

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Clients tell their variance."""
        return (self.variance,) if self.looks else ()

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read them."""
        return (self.variance.name,) if self.looks and kind == "train" else ()

    @property
    def reads(self) -> str | None:
        """Read variances where they are asked for."""
        return "how much each client's samples vary" if self.looks else None

    def init(self, view: View, model: FlatModel) -> Told | None:
        """Know nothing."""
        return Told(f64(torch.inf), f64(torch.nan)) if self.looks else None

    def broadcast(self, state: Told | None) -> Tensors:
        """Send threshold and median with the model."""
        return {} if state is None else {"told": torch.stack([state.v_th, state.median])}

    def step(self, state: Told | None, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Find the next round's threshold; the proposal stays as it is."""
        told = [] if state is None else [self.variance.read(r) for r in sums.reports]
        known = [v for v in told if np.isfinite(v)]
        if state is not None and known:
            state.v_th, state.median = (f64(float(np.quantile(known, q))) for q in (self.quantile, 0.5))
        return proposal
