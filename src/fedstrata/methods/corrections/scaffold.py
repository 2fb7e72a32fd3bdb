"""Karimireddy et al., SCAFFOLD: Stochastic Controlled Averaging for Federated Learning, ICML 2020, option II.

Client step: w <- w - eta (g - c_k + c). After tau steps: c_k' = c_k - c - Delta_k / (tau eta). Server:
c <- c + |S|/N mean_S(c_k' - c_k). The mean is the configured combiner's; the paper's, and the recipe's, is plain.
Where the step size changes, tau eta is the sum of step sizes. With momentum or Adam, Delta_k is not the mean gradient:
`gradients = "raw"` adds the gradients up as they come, before any correction that stands after this one in the list.

NIID-Bench weighs models by size, and controls not at all: `controls = "plain"` with method.combiner = "size". Clients
then send (c_k' - c_k) / n_k and 1 / n_k. The quotient of their sums, weighed by size, is the plain mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedstrata.core import registry
from fedstrata.core.client_context import Buffers, ClientContext, Done
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Slot, Sums, Tensors
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import ServerStep
from fedstrata.core.steps import View
from fedstrata.methods.optimizers.sgd import Sgd


@dataclass
class Control:
    """The server's control variate."""

    c: Tensor


@dataclass(frozen=True)
class Scaffold(Correction, ServerStep):
    """Control variates at server and clients cancel the drift of local steps."""

    paper: ClassVar[str] = "Karimireddy et al., ICML 2020"

    gradients: Literal["update", "raw"] = "update"  # read the mean gradient off the update, or add gradients up
    controls: Literal["combiner", "plain"] = "combiner"  # their mean: as the combiner weighs, or all alike
    frozen: bool = False  # keep all controls at zero: plain local steps, for tests and ablations

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse optimizers under which Delta / (tau eta) is not the mean gradient."""
        plain = isinstance(plan.local.optimizer, Sgd) and plan.local.optimizer.momentum == 0
        if self.gradients == "update" and not plain:
            return 'its controls read the mean gradient off the update; use sgd without momentum, or gradients = "raw"'
        if self.controls == "plain" and plan.combiner != registry.build("combiners", "size", {}, "method.combiner"):
            return 'controls = "plain" takes back weights by size; use method.combiner = "size", or leave it out'
        return None

    # ---- client half

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Hold the correction c - c_k, and the sum of gradients where they are added up."""
        slots = {"shift": Slot((space.P,))}
        return slots | ({"sum": Slot((space.P,))} if self.gradients == "raw" else {})

    def declare_client_state(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Keep c_k, zero at first."""
        return {"c": Slot((space.P,))}

    def declare_aggregated(self, space: ParameterSpace) -> Mapping[str, Slot]:
        """Send c_k' - c_k, and by what it is divided."""
        return {"dc": Slot((space.P,))} | ({"divided": Slot()} if self.controls == "plain" else {})

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        """Set the correction."""
        own["shift"].copy_(context.down["c"] - context.client_state["c"])
        if self.gradients == "raw":
            own["sum"].zero_()

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        """Add c - c_k."""
        if self.gradients == "raw":
            own["sum"].add_(buf.g)
        buf.g.add_(own["shift"])

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        """Compute the new control; a client that could not move keeps its old one."""
        if self.frozen or context.rate_sum == 0:
            return Done(aggregated=self.sent(torch.zeros_like(buf.w), context))
        if self.gradients == "raw":
            dc = own["sum"] / context.steps - context.client_state["c"].to(buf.w)
        else:
            dc = (buf.w0 - buf.w) / context.rate_sum - context.down["c"].to(buf.w)
        return Done(aggregated=self.sent(dc, context), client_state={"c": context.client_state["c"].to(buf.w) + dc})

    def sent(self, dc: Tensor, context: ClientContext) -> Tensors:
        """Return what the server gets of c_k' - c_k."""
        if self.controls == "combiner":
            return {"dc": dc}
        share = context.batch_size / max(context.client.samples, 1)  # not 1 / n_k: masked sums round small numbers
        return {"dc": share * dc, "divided": torch.full((), share, dtype=dc.dtype, device=dc.device)}

    # ---- server half

    def init(self, view: View, model: FlatModel) -> Control:
        """Start at zero."""
        return Control(torch.zeros_like(model.params))

    def broadcast(self, state: Control) -> Tensors:
        """Send c with the model."""
        return {"c": state.c}

    def step(self, state: Control, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Move c; the proposal stays as it is."""
        mean = sums.mean("dc") if self.controls == "combiner" else sums.total["dc"] / sums.total["divided"]
        state.c = state.c + sums.count / view.client_info.clients * mean
        return proposal
