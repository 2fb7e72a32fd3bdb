"""The local step of a composed method, in pieces: a lane takes it for one client, a flock for many at once.

Slots are filled before a visit, the loss is made of the network's and every correction's, gradients are edited in
turn, the optimizer moves; at the end everything is collected.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedstrata.client.batches import Course
from fedstrata.core.client_parts import Batch, Buffers, Done, Local, LocalPart, Visit
from fedstrata.core.flat_model import Space
from fedstrata.core.messages import Report, Tensors, Value, prefixed, tensor_bytes, value_bytes
from fedstrata.core.records import revised

Slots = Mapping[str, Tensors]  # of each part


def fill(local: Local, space: Space, own: Slots, buf: Buffers, course: Course) -> Course:
    """Let every part write this visit's values into its slots."""
    keep = {
        f"{name}/{slot}": torch.zeros(s.shape, dtype=s.dtype or local.dtype, device=buf.w.device)
        for name, part in local.chain.items()
        for slot, s in part.keep(space).items()
    }
    visit = revised(
        course.visit,
        keep={**keep, **course.visit.keep},
        planned=int(course.batches.sizes.max(initial=0)),
        steps=len(course.batches),
        rate_sum=float(course.batches.rates.sum()),
    )
    for name, part in local.chain.items():
        part.fill(own[name], buf, visit.scoped(name))
    return revised(course, visit=visit)


def objective(
    parts: Mapping[str, LocalPart],
    own: Slots,
    buf: Buffers,
    x: Tensor,
    y: Tensor,
    weight: Tensor,
    features: Tensor,
    logits: Tensor,
) -> tuple[Tensor, Batch]:
    """Give the loss of a batch under all corrections."""
    for name, part in parts.items():
        logits = part.logits(own[name], buf, logits)
    # One by one what `cross_entropy` does, without its search for labels to ignore, which costs more than all this.
    each = -logits.log_softmax(-1).gather(-1, y.unsqueeze(-1)).squeeze(-1)
    batch = Batch(x, y, weight, features, logits, each)
    loss = (each * weight).sum()
    for name, part in parts.items():
        extra = part.loss(own[name], buf, batch)
        if extra is not None:
            loss = loss + extra
    return loss, batch


def observe(parts: Mapping[str, LocalPart], own: Slots, buf: Buffers, batch: Batch) -> None:
    """Let every part see what the batch gave."""
    buf.loss.add_((batch.each * (batch.weight > 0)).sum())
    for name, part in parts.items():
        part.observe(own[name], buf, batch)


def move(parts: Mapping[str, LocalPart], own: Slots, buf: Buffers, rate: Tensor) -> None:
    """Let every part edit the gradient; the optimizer, which is last, moves the weights."""
    for name, part in parts.items():
        part.grad(own[name], buf, rate)


class Common(NamedTuple):
    """What every visit gives back, of one client or of several at once."""

    summed: Tensors
    drift: Tensor  # length of the update
    finite: Tensor
    loss: Tensor  # sum over the samples

    def of(self, seat: int) -> Common:
        """Give one client's."""
        summed = {name: t[seat] for name, t in self.summed.items()}
        return Common(summed, self.drift[seat], self.finite[seat], self.loss[seat])


def common(space: Space, buf: Buffers) -> Common:
    """Collect it; the last axis is that of the model."""
    summed = {"update": buf.w - buf.w0} | ({"buffers": buf.b - buf.b0} if space.Q else {})
    loss = buf.loss.clone()
    finite = loss.isfinite()
    for tensor in summed.values():
        finite = finite & all_finite(tensor, -1)
    return Common(summed, summed["update"].norm(dim=-1), finite, loss)


def finish(
    local: Local, own: Slots, buf: Buffers, course: Course, every: Common, looked: float
) -> tuple[Report, Tensors]:
    """Collect what a visit gives back: its report, and the client's new state."""
    visit, order, samples = course.visit, course.order, len(course.batches.rows)
    ends = {name: part.finish(own[name], buf, visit.scoped(name)) for name, part in local.chain.items()}
    done = Done(
        meta=_merged([order.meta, *(end.meta for end in ends.values())]),
        summed={**every.summed, **_owned({name: end.summed for name, end in ends.items()})},
        shown=_owned({name: end.shown for name, end in ends.items()}),
        keep=copies(order.keep) | _owned({name: end.keep for name, end in ends.items()}),
        samples=order.samples,
        loss=every.loss / max(samples, 1),
        work=samples,
    )
    return report(visit, done, every, looked), {**visit.keep, **done.keep}


def report(visit: Visit, done: Done, every: Common | None = None, looked: float = 0.0) -> Report:
    """Write down what a visit gave; `every` holds what was found out already, `looked` is work beside training."""
    more = [t for name, t in done.summed.items() if every is None or name not in every.summed]
    finite = _all_finite([*more, *done.shown.values()], done.loss if every is None else every.finite)
    drift = done.summed["update"].norm() if every is None and "update" in done.summed else 0.0
    return Report(
        client=visit.client.id,
        samples=visit.client.samples if done.samples is None else done.samples,
        steps=visit.steps,
        loss=done.loss,
        drift=drift if every is None else every.drift,
        meta=done.meta,
        summed=done.summed,
        shown=done.shown,
        work=done.work + looked,
        finite=finite,
        nbytes=tensor_bytes(done.summed) + tensor_bytes(done.shown) + value_bytes(done.meta),
    )


def all_finite(tensor: Tensor, axis: int | None = None) -> Tensor:
    """Say whether all numbers are finite, in one pass: in a sum, what is not finite stays, and nothing overflows."""
    return tensor.sum(axis, dtype=torch.float64).isfinite()


def _all_finite(tensors: Sequence[Tensor], known: Tensor | float) -> Tensor:
    """Check tensors; `known` is a number that must be finite, or whether all others are."""
    finite = torch.as_tensor(known)
    finite = finite if finite.dtype == torch.bool else finite.isfinite()
    for tensor in tensors:
        finite = finite.to(tensor.device) & all_finite(tensor)
    return finite


def _merged(metas: Sequence[Mapping[str, Value | Tensor]]) -> dict[str, Value | Tensor]:
    merged: dict[str, Value | Tensor] = {}
    for meta in metas:
        if twice := merged.keys() & meta.keys():
            raise ValueError(f"two parts report {sorted(twice)}; give one of them another name")
        merged |= {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in meta.items()}
    return merged


def _owned(of_parts: Mapping[str, Tensors]) -> dict[str, Tensor]:
    """Put what parts gave back under their names."""
    return {k: v for name, tensors in of_parts.items() for k, v in prefixed(copies(tensors), name).items()}


def copies(tensors: Tensors) -> dict[str, Tensor]:
    """Copy out at once: a lane's buffers serve the next client."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}
