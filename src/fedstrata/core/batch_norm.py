"""Batch norm whose statistics are taken over the real samples of a padded batch, or over several clients that meet.

A module is not edited: its batch norms keep their parameters and buffers, and only ask here for their forward pass.
With m values a channel over all participants, Stratify (section III-E) and FedTAN exchange per layer

    forward:   sum x -> mean,  sum (x - mean)^2 -> variance        backward:  G = sum dxhat,  Gx = sum xhat dxhat

and every client then has dx = (dxhat - G / m - xhat Gx / m) / sqrt(variance + eps) from its own samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn.modules.batchnorm import _BatchNorm

By = Literal["samples", "clients"]  # every value counts the same (Stratify), or every client does (FedTAN)
Exchange = Callable[[str, Tensor, float], tuple[Tensor, float]]  # (what, values, count) -> average and count over all


@dataclass
class AllReduce:
    """A client's end of the exchanges that happen while it computes, with the bytes they take."""

    by: By
    exchange: Exchange
    up: int = 0
    down: int = 0
    counted: float = 0.0  # values of all participants in the last exchange

    def mean(self, what: str, total: Tensor, count: float, told: bool = True) -> Tensor:
        """Return the mean over all participants, from a total over own values; `told`: the count was sent before."""
        if self.by == "clients":
            return self._exchange(what, total / count, count)
        self.up += 0 if told else total.element_size()
        return self._exchange(what, total, count)

    def share(self, what: str, total: Tensor, count: float) -> Tensor:
        """Return each own value's share of a total over all participants: the derivative of `mean`."""
        average = self._exchange(what, total, count)
        return average / count if self.by == "clients" else average

    def _exchange(self, what: str, values: Tensor, count: float) -> Tensor:
        self.up += values.numel() * values.element_size()
        average, self.counted = self.exchange(what, values, count)
        self.down += average.numel() * average.element_size()
        return average


@dataclass
class Tally:
    """Bytes of the exchanges that a batch on one machine stands for, for each client that would have met.

    A step that was recorded does not come by here again, so what counts is the mean over the batches that did.
    """

    batches: int = 0
    up: int = 0
    down: int = 0

    def add(self, x: Tensor) -> None:
        """Count a norm's forward pass and, where its input has a gradient, its backward pass."""
        channels, size = x.shape[1], x.element_size()
        ways = 2 if x.requires_grad else 1
        self.up += size * (2 * channels * ways + 1)
        self.down += size * 2 * channels * ways

    @property
    def of_a_batch(self) -> tuple[int, int]:
        """Bytes up and down."""
        return self.up // max(self.batches, 1), self.down // max(self.batches, 1)


@dataclass
class Norms:
    """All batch norms of a module, and where their statistics come from at the moment."""

    layers: dict[str, _BatchNorm] = field(default_factory=dict)
    mask: Tensor | None = None  # [samples] 1 for real samples, 0 for padding
    all_reduce: AllReduce | None = None
    tally: Tally | None = None

    @classmethod
    def of(cls, module: nn.Module) -> Norms:
        """Find the batch norms of a module that was told to train, and let them ask here.

        Not those that it keeps in eval mode all the same, as one does beside frozen layers: they always use their
        running statistics, and are layers like any other.
        """
        norms = cls({name: m for name, m in module.named_modules() if isinstance(m, _BatchNorm) and m.training})
        for name, layer in norms.layers.items():
            layer.forward = _Forward(norms, name, layer)  # type: ignore[method-assign,assignment]
        return norms

    def __bool__(self) -> bool:
        return bool(self.layers)

    def train(self, on: bool) -> None:
        """Use statistics of the batch, or the running ones."""
        for layer in self.layers.values():
            layer.train(on)


@dataclass(frozen=True)
class _Forward:
    """The forward pass of one layer."""

    norms: Norms
    name: str
    layer: _BatchNorm

    def __call__(self, x: Tensor) -> Tensor:
        norms, layer = self.norms, self.layer
        if layer.training and norms.tally is not None:
            norms.tally.add(x)
        if not layer.training or (norms.mask is None and norms.all_reduce is None):
            return type(layer).forward(layer, x)
        spatial = x.shape[2:].numel()
        count = len(x) * spatial if norms.mask is None else norms.mask.sum() * spatial
        y, mean, variance = Normalise.apply(  # type: ignore[no-untyped-call]
            x, layer.weight, layer.bias, layer.eps, norms.mask, count, norms.all_reduce, self.name
        )
        of_all = count if norms.all_reduce is None else norms.all_reduce.counted
        with torch.no_grad():
            self._remember(mean, variance, torch.as_tensor(of_all, dtype=x.dtype, device=x.device))
        return y  # type: ignore[no-any-return]

    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        """Move the running statistics as torch does, with the unbiased variance; of one value there is none."""
        layer = self.layer
        if layer.running_mean is None or layer.running_var is None or layer.num_batches_tracked is None:
            return
        layer.num_batches_tracked.add_(1)
        momentum = layer.momentum
        factor: Any = 1 / layer.num_batches_tracked.to(mean.dtype) if momentum is None else momentum
        layer.running_mean.lerp_(mean, factor)
        layer.running_var.lerp_(variance * (count / (count - 1).clamp(min=1)), factor)


class Normalise(Function):
    """Normalise with given ways to average; the backward pass averages the same way."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        gamma: Tensor | None,
        beta: Tensor | None,
        eps: float,
        mask: Tensor | None,
        count: Any,
        all_reduce: AllReduce | None,
        name: str,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the output, and the mean and (biased) variance it was made with."""
        ctx.dims, ctx.shape = [0, *range(2, x.ndim)], (1, -1, *(1,) * (x.ndim - 2))
        ctx.mask = None if mask is None else mask.view(-1, *(1,) * (x.ndim - 1))
        ctx.count, ctx.all_reduce, ctx.name = count, all_reduce, name
        total = _total(ctx, x)
        mean = total / count if all_reduce is None else all_reduce.mean(f"{name}.mean", total, count, told=False)
        centred = x - mean.view(ctx.shape)
        total = _total(ctx, centred * centred)
        variance = total / count if all_reduce is None else all_reduce.mean(f"{name}.var", total, count)
        scale = (variance + eps).rsqrt()
        normal = centred * scale.view(ctx.shape)
        ctx.save_for_backward(normal, scale, gamma)
        ctx.mark_non_differentiable(mean, variance)
        # What is saved must not be what is given: the next layer may work in place.
        y = normal.clone() if gamma is None else normal * gamma.view(ctx.shape)
        return y if beta is None else y + beta.view(ctx.shape), mean, variance

    @staticmethod
    def backward(ctx: Any, dy: Tensor, *_: Any) -> Any:
        """Return the gradients of input, scale and shift."""
        normal, scale, gamma = ctx.saved_tensors
        if ctx.mask is not None:
            dy = dy * ctx.mask
        dx = None
        if ctx.needs_input_grad[0]:
            d = dy if gamma is None else dy * gamma.view(ctx.shape)
            sums = torch.stack([d.sum(ctx.dims), (d * normal).sum(ctx.dims)])
            all_reduce, what = ctx.all_reduce, f"{ctx.name}.back"
            share = sums / ctx.count if all_reduce is None else all_reduce.share(what, sums, ctx.count)
            dx = (d - share[0].view(ctx.shape) - normal * share[1].view(ctx.shape)) * scale.view(ctx.shape)
            dx = dx if ctx.mask is None else dx * ctx.mask
        dgamma = (dy * normal).sum(ctx.dims) if ctx.needs_input_grad[1] else None
        dbeta = dy.sum(ctx.dims) if ctx.needs_input_grad[2] else None
        return dx, dgamma, dbeta, None, None, None, None, None


def _total(ctx: Any, values: Tensor) -> Tensor:
    """Sum over all axes but the channels', without padding."""
    return (values if ctx.mask is None else values * ctx.mask).sum(ctx.dims)
