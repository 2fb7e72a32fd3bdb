"""Write a correction of your own: hooks inside the local step, with buffers that you declare.

Run it with `python examples/own_correction.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

import fedstrata
from fedstrata import Buffers, ClientContext, Correction, Count, Done, ParameterSpace, Slot, Tensors


@dataclass(frozen=True)
class SmallTrainHead(Correction):
    """Clients with few samples train the last layer only: they cannot spoil features that others learn."""

    least: Count = 40  # samples of a client that trains everything

    def declare_slots(self, space: ParameterSpace) -> Mapping[str, Slot]:
        return {"moves": Slot((space.P,))}  # of each weight: 1 if it is trained, 0 if not

    def fill(self, own: Tensors, buf: Buffers, context: ClientContext) -> None:
        # Here one client may be told from another; the step below must be the same for all.
        own["moves"].fill_(1.0 if context.client.samples >= self.least else 0.0)
        own["moves"][buf.head] = 1.0

    def edit_gradient(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        buf.g.mul_(own["moves"])

    def finish(self, own: Tensors, buf: Buffers, context: ClientContext) -> Done:
        return Done(metrics={"trained_share": own["moves"].mean()})  # in events.jsonl, by client


if __name__ == "__main__":
    fedstrata.check_correction(SmallTrainHead(least=10))  # one trace, no host read, nothing leaks from client to client
    for corrections in ([], [SmallTrainHead()], [{"kind": "prox", "mu": 0.1}, SmallTrainHead()]):
        run = fedstrata.train(overrides={"method.corrections": corrections, "train.rounds": 30})
        print(f"{run.summary['accuracy']:.4f} accuracy with {corrections}: {run.path}")
