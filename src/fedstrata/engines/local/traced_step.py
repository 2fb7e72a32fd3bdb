"""A vmapped trainer's step as a list of plain operations: traced once, then run without what finding them out costs.

On a CPU, mapping a step over clients and differentiating it takes longer than the arithmetic of a tiny model. What
comes out is always the same list of operations over the same buffers, so it is kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedstrata.client.local_step import Slots
from fedstrata.client.vmapped import VmappedTrainer
from fedstrata.core.messages import Tensors

PATIENCE = 8  # steps for some number of replicas before they are traced: a short run, or a first round, does not wait


class Tracer:
    """Runs the traced step of a vmapped trainer, for some number of replicas.

    A step that cannot be traced is taken as it is.
    """

    def __init__(self, vmapped: VmappedTrainer, give_up: Callable[[str], None]):
        self._vmapped, self._give_up, self._able = vmapped, give_up, True
        self._why: str | None = None  # a reason that was not told yet
        self._traced: dict[int, tuple[Any, Any]] = {}  # the operations, and what they work on
        self._taken: Counter[int] = Counter()  # steps by number of replicas

    def __call__(self, replicas: int) -> None:
        """Take a step."""
        self._taken[replicas] += 1
        if self._able and replicas not in self._traced and self._taken[replicas] > PATIENCE:
            self._trace(replicas)
        if replicas not in self._traced:
            self._vmapped.step(replicas)  # may fail for the same reason, and then that is what there is to say
            if self._why is not None:
                self._give_up(self._why)
                self._why = None
            return
        operations, in_use = self._traced[replicas]
        with torch.no_grad():
            operations(*in_use)

    def _trace(self, replicas: int) -> None:
        """Trace in the middle of a client update: what the trial step changes is put back."""
        from torch.fx.experimental.proxy_tensor import make_fx  # noqa: PLC0415  it takes a second, and is not always needed

        before = [t.clone() for t in self._vmapped.state]
        in_use = self._vmapped.in_use(replicas)

        def step(state: Tensors, own: Slots, rings: Tensors, t: Tensor) -> None:  # what traces wants no method
            self._vmapped.take_step(state, own, rings, t)

        try:
            self._traced[replicas] = _plain(make_fx(step)(*in_use)), in_use
        except Exception as error:  # whatever tracing cannot follow
            self._able = False
            self._why = f"steps are not traced: {str(error).strip().splitlines()[0]}"
        for now, old in zip(self._vmapped.state, before, strict=True):
            now.copy_(old)


def _plain(traced: Any) -> Any:
    """Leave out what gives back its input, and what nobody needs."""
    same_shape = {torch.ops.aten.expand.default, torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}
    for node in traced.graph.nodes:
        if node.target in same_shape and node.meta["tensor_meta"] == node.args[0].meta.get("tensor_meta"):
            node.replace_all_uses_with(node.args[0])
    traced.graph.eliminate_dead_code()
    traced.recompile()
    return traced
