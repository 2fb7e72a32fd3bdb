"""A step taken both ways, plain and compiled: how far apart they come out, and which tensor came out wrong.

Compilers make mistakes, and have made this one: the gradient of one convolution was zero. Over all weights together
that drowns in the tensors that are right, and so each tensor is looked at for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import torch
from torch import Tensor

from fedstrata.client.trainer import Trainer
from fedstrata.core.flat_model import ParameterSpace

CHECKED = 2  # steps that are taken both ways
LAST_DIGITS = 10  # of a weight: as many roundings as a change must be larger than


@dataclass(frozen=True)
class Tolerance:
    """What rounding may do to a step at some precision.

    Attributes
    ----------
    apart
        How far all that a step changes may be apart, over how far it moved.
    faint
        A tensor's gradient below this share of the whole gradient, each as its root mean square, is rounding: the bias
        before a norm has none, but for what sums leave.
    cosine
        What a gradient that is not faint has at least with the plain one, tensor by tensor.
    """

    apart: float
    faint: float
    cosine: float


# Measured on a CPU over 15 models with their norms, fresh and after 40 steps, batches of 4 and 32, SGD and Adam (tf32
# by rounding what products and convolutions are given):
#
#   of 6,184 gradients of a tensor             bf16 against fp32    tf32 against fp32
#   least cosine of those that are not faint   0.75                 0.97
#   share of the 48 that are rounding alone    up to 0.0045         up to 0.0006         (up to 1e-6 in fp32)
#   least share of all others                  0.0035, 27 < 0.02    0.0035
#
# A gradient that is zero, or has the other sign, has a cosine of 0 or less. Honest steps in bf16 that Inductor compiled
# (LeNet-5, CNN, ResNet-9, ResNet-20) had 0.89 or more with the plain ones, and were up to 0.48 apart: the first step of
# Adam moves every weight by its rate, however faint the gradient whose sign was rounded. No step at all is 1 apart.
TOLERANCES = {
    "fp64": Tolerance(1e-9, 1e-14, 0.999),
    "fp32": Tolerance(0.02, 5e-6, 0.99),
    "tf32": Tolerance(0.5, 0.003, 0.8),
    "bf16": Tolerance(0.6, 0.02, 0.5),
}


@dataclass(frozen=True)
class Compared:
    """How far two ways were apart at most, and what is wrong with the first tensor that is, if any."""

    apart: float = 0.0
    wrong: str | None = None


def compare(
    trainer: Trainer,
    tensors: Sequence[Tensor],
    run: Callable[[Sequence[Tensor]], None],
    width: int,
    tolerance: Tolerance,
) -> Compared:
    """Take steps both ways from where a trainer is, and say how they differ; the trainer is left as it was."""
    buf, apart = trainer.buf, [0.0]
    with taken_back(trainer):
        for _ in range(CHECKED):
            if int(buf.t) >= len(buf.weight) or not buf.weight[int(buf.t)].any():  # no batch is left
                break
            start = [t.clone() for t in trainer.state]
            with taken_back(trainer):
                trainer.step(width)
                plain = [t.clone() for t in trainer.state]
                gradient, moved = buf.g.clone(), buf.w - start[0]
            run(tensors)
            apart += [_apart(*three) for three in zip(trainer.state, start, plain, strict=True)]
            wrong = wrong_tensor(trainer.space, start[0], (gradient, buf.g), (moved, buf.w - start[0]), tolerance)
            if wrong is not None:
                return Compared(_largest(apart), wrong)
    return Compared(_largest(apart))


def wrong_tensor(
    space: ParameterSpace,
    weights: Tensor,
    gradients: tuple[Tensor, Tensor],
    changes: tuple[Tensor, Tensor],
    tolerance: Tolerance,
) -> str | None:
    """Say what is wrong with the first tensor whose gradient or change is not the same both ways, the plain one first.

    What is faint both ways is rounding, and so is whatever an optimizer makes of it.
    """
    faint = tolerance.faint * _size(gradients[0])
    last_digits = LAST_DIGITS * torch.finfo(weights.dtype).eps
    for part in space.params:
        plain, other = (part.of(g) for g in gradients)
        if not plain.isfinite().all():  # the run's own doing, whichever way it is computed
            continue
        if _size(plain) <= faint and _size(other) <= faint:  # what is not a number is not small
            continue
        if said := _unlike(plain, other, tolerance.cosine):
            return f"the gradient of {part.name} {said}"
        plain, other = (part.of(c) for c in changes)
        rounding = last_digits * _size(part.of(weights))
        if _size(plain) <= rounding and _size(other) <= rounding:
            continue
        # Under Adam rounding turned six of a norm's sixteen numbers round: only what goes the other way is wrong.
        if said := _unlike(plain, other, 0.0):
            return f"the change of {part.name} {said}"
    return None


@contextmanager
def taken_back(trainer: Trainer) -> Iterator[None]:
    """Take back whatever a trainer's steps change meanwhile, also where one fails half-way."""
    before = [t.clone() for t in trainer.state]
    try:
        yield
    finally:
        for now, old in zip(trainer.state, before, strict=True):
            now.copy_(old)


def _unlike(plain: Tensor, other: Tensor, least: float) -> str | None:
    if not other.isfinite().all():
        return "is not finite"
    if bool(plain.any()) != bool(other.any()):
        return "is zero" if plain.any() else "is not zero"
    one, two = plain.double().flatten(), other.double().flatten()
    cosine = float(one @ two / (one.norm() * two.norm()))
    return None if cosine >= least else f"has a cosine of {cosine:.2f} with it"


def _size(t: Tensor) -> float:
    return float(t.double().norm()) / sqrt(max(t.numel(), 1))


def _apart(now: Tensor, old: Tensor, plain: Tensor) -> float:
    if not now.is_floating_point() or not now.numel():
        return 0.0 if torch.equal(now, plain) else inf
    # What a step hardly moves is compared with what it is: rounding is all that is left of it.
    moved = max(float((plain - old).norm()), 1e-3 * float(plain.norm()), 1e-30)
    return float((now - plain).norm()) / moved


def _largest(apart: Sequence[float]) -> float:
    return max(apart) if all(map(isfinite, apart)) else inf
