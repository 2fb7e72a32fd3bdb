"""Write a correction of your own: hooks inside the local step, with buffers that you declare.

Run it with `python examples/own_correction.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

import fedstrata
from fedstrata.clientside import Buffers, Done, LocalPart, Visit
from fedstrata.messages import Slot, Tensors
from fedstrata.options import Positive
from fedstrata.space import Space
from fedstrata.testing import check_local_part


@dataclass(frozen=True)
class ClipGradient(LocalPart):
    """A gradient longer than `norm` is cut to that length; clients tell how often that happened."""

    norm: Positive = 1.0

    def lane(self, space: Space) -> Mapping[str, Slot]:
        return {"cuts": Slot()}

    def fill(self, own: Tensors, buf: Buffers, visit: Visit) -> None:
        own["cuts"].zero_()

    def grad(self, own: Tensors, buf: Buffers, rate: Tensor) -> None:
        length = buf.g.norm()
        own["cuts"].add_((length > self.norm).to(buf.g.dtype))
        buf.g.mul_((self.norm / (length + 1e-12)).clamp(max=1.0))

    def finish(self, own: Tensors, buf: Buffers, visit: Visit) -> Done:
        return Done(meta={"cut_steps": own["cuts"].clone()})


if __name__ == "__main__":
    check_local_part(ClipGradient())  # one trace, no host read, nothing leaks from client to client
    for correct in ([], [ClipGradient(norm=0.5)], [ClipGradient(norm=0.5), {"kind": "prox", "mu": 0.1}]):
        run = fedstrata.train(overrides={"method.correct": correct, "train.lr": 0.5})
        print(f"{run.summary['accuracy']:.4f} accuracy with {correct}: {run.path}")
