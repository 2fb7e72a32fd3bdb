"""A user's own module, ready for training: what cannot work is refused with the reason, lazy layers get weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fedstrata.client.network import TRIED, logits_of
from fedstrata.core.errors import RequestError
from fedstrata.core.rng import seed_torch

Problem = Callable[[nn.Module], bool]


def _has_layer(*kinds: type[nn.Module]) -> Problem:
    return lambda module: any(isinstance(layer, kinds) for layer in module.modules())


def _sparse(module: nn.Module) -> bool:
    return any(getattr(layer, "sparse", False) is True for layer in module.modules())


def _is_quantized(module: nn.Module) -> bool:
    return any(".quantized" in type(layer).__module__ for layer in module.modules())


def _weights(holds: Callable[[Tensor], bool]) -> Problem:
    return lambda module: any(not _is_lazy(p) and holds(p) for p in (*module.parameters(), *module.buffers()))


REFUSED: tuple[tuple[Problem, str], ...] = (
    (_has_layer(torch.jit.ScriptModule), "script modules hide their layers; pass the module that was scripted"),
    (lambda m: hasattr(m, "_orig_mod"), "its layers are compiled; pass the module that was given to torch.compile"),
    (
        _has_layer(nn.DataParallel, DistributedDataParallel),
        "it spreads batches over devices itself; pass the module inside, `model.module`",
    ),
    (_sparse, "sparse gradients cannot be summed over clients; leave out sparse=True"),
    (_is_quantized, "quantized layers cannot be trained; pass the module before it was quantized"),
    (_weights(lambda t: t.is_meta), "its weights are on the meta device, where they have no values"),
    (_weights(lambda t: t.is_complex()), "complex weights are not supported; keep real and imaginary parts apart"),
)


def take_module(module: nn.Module, sample: Tensor, seed: int) -> nn.Module:
    """Return a copy of a user's module, whose lazy layers were given weights; the user's own is left as it was."""
    kind = type(module).__name__
    for holds, why in REFUSED:
        if holds(module):
            raise RequestError(f"model: {kind} cannot be trained here: {why}")
    try:
        own = copy.deepcopy(module, _lazy_buffers(module))
    except Exception as error:
        raise RequestError(f"model: {kind} cannot be copied, and every client needs a copy: {error}") from error
    fill_lazy(own, sample, seed)
    if not any(p.requires_grad for p in own.parameters()):
        raise RequestError(f"model: {kind} has nothing to train: no parameter has requires_grad")
    return own


def fill_lazy(module: nn.Module, sample: Tensor, seed: int) -> None:
    """Draw the weights of lazy layers, whose shapes a first sample tells, from the run's seed."""
    if not any(map(_is_lazy, (*module.parameters(), *module.buffers()))):
        return
    x = sample.float() if sample.is_floating_point() else sample
    training = module.training
    try:
        with seed_torch(seed), torch.no_grad():
            module.eval()(x)
    except TRIED as error:
        shape = tuple(sample.shape[1:])
        raise RequestError(f"model: its lazy layers cannot take samples of shape {shape}: {error}") from error
    finally:
        module.train(training)
    if left := [name for name, p in module.named_parameters() if _is_lazy(p)]:
        raise RequestError(f"model: {left[0]} has no shape yet: the forward pass does not use this lazy layer")


def check_gradient(module: nn.Module, sample: Tensor) -> None:
    """Refuse a module whose answers do not depend on its weights, or that answers a single sample otherwise."""
    training = module.training
    try:
        logits = logits_of(module.eval()(sample))
        single = logits[:1]
        with suppress(*TRIED):  # batch norms without running statistics take no single sample
            single = logits_of(module(sample[:1]))
    finally:
        module.train(training)
    if not logits.requires_grad:
        raise RequestError(
            "model: its answers carry no gradient: its forward pass runs without, or gives classes instead of logits"
        )
    if single.shape != logits[:1].shape:
        raise RequestError(
            f"model: it answers one sample with shape {tuple(single.shape)}, not {tuple(logits[:1].shape)}; "
            "does it squeeze()? Say which dimension, as in flatten(1)"
        )


def _lazy_buffers(module: nn.Module) -> dict[int, Any]:
    """Return copies of lazy buffers for `copy.deepcopy`, which torch does not teach it."""
    lazy: Any = nn.parameter.UninitializedBuffer
    return {id(b): lazy(device=b.device, dtype=b.dtype) for b in module.buffers() if _is_lazy(b)}


def _is_lazy(tensor: Tensor) -> bool:
    return bool(nn.parameter.is_lazy(tensor))
