"""Any torch module as a network with a known head, and dropout that draws from the client's own stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.errors import RequestError


class Network(nn.Module):
    """A module whose forward pass also gives the features: what goes into its head."""

    def __init__(self, module: nn.Module, head: str):
        super().__init__()
        self.module = module
        self._features: Tensor | None = None
        module.get_submodule(head).register_forward_pre_hook(self._remember)

    def _remember(self, _: nn.Module, args: tuple[Any, ...]) -> None:
        self._features = args[0].flatten(1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Give features and logits."""
        logits = self.module(x)
        assert self._features is not None
        features, self._features = self._features, None
        return features, logits


def find_head(module: nn.Module, x: Tensor, classes: int, named: str | None = None) -> str:
    """Give the name of the last layer, and check that the module answers with one number a class.

    A layer called `head` is taken at its word; otherwise it is the last layer run whose output has one
    column a class. `model.head` names it where that guess is wrong.
    """
    seen: list[tuple[str, Tensor]] = []
    hooks = [
        layer.register_forward_hook(lambda _m, _a, out, name=name: seen.append((name, out)))
        for name, layer in module.named_modules()
        if any(True for _ in layer.parameters(recurse=False))
    ]
    was_training = module.training
    try:
        with torch.no_grad():
            out = module.eval()(x)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        hint = "" if x.is_floating_point() else "; the samples are whole numbers: convert them to float"
        raise RequestError(f"the model cannot take samples of shape {tuple(x.shape[1:])}: {error}{hint}") from error
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    if not isinstance(out, Tensor) or out.ndim != 2 or out.shape[1] != classes:
        width = tuple(out.shape[1:]) if isinstance(out, Tensor) else type(out).__name__
        raise RequestError(
            f"the model gives outputs of width {width} but the data has {classes} classes; "
            f"its last layer must have {classes} outputs"
        )
    names = [name for name, _ in module.named_modules()]
    if named is not None and named not in names:
        raise RequestError(f'model.head = "{named}" is not a layer of the model; layers: {", ".join(names[1:])}')
    if named is not None and named not in [name for name, _ in seen]:
        raise RequestError(f'model.head = "{named}" has no weights, or the model does not run it')
    if named is not None:
        return named
    candidates = [name for name, t in seen if isinstance(t, Tensor) and t.shape[1:] == (classes,)]
    if "head" in names and "head" in [name for name, _ in seen]:
        return "head"
    if not candidates:
        raise RequestError("the model's last layer could not be found; name it with model.head")
    return candidates[-1]


@dataclass
class DropoutClock:
    """What dropout bits are made of: the visit's key, the local step, and how often dropout was used in this step."""

    key: Tensor
    t: Tensor
    uses: int = 0


class KeyedDropout(nn.Module):
    """Dropout whose bits are a hash of (key, step, use, element): no generator, the same on every engine."""

    def __init__(self, p: float, channels: bool, clock: DropoutClock):
        super().__init__()
        self.p, self.channels, self.clock = p, channels, clock

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements, or whole channels, and scale up what is left."""
        if not self.training or self.p == 0.0:
            return x
        clock = self.clock
        clock.uses += 1
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channels else x.shape
        cell = torch.arange(shape.numel(), device=x.device)
        uniform = _uniform(_mix(_mix(clock.key + clock.t * 1_000_003 + clock.uses * 7_919) + cell)).view(shape)
        return x * (uniform >= self.p).to(x.dtype) / max(1.0 - self.p, 1e-12)


def key_dropout(module: nn.Module, clock: DropoutClock) -> None:
    """Replace every dropout layer of a module by one that draws from the visit's key."""
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                parent._modules[name] = KeyedDropout(child.p, not isinstance(child, nn.Dropout), clock)


def as_input(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Give samples as a network takes them: pixels and features as floats, tokens as they are."""
    return x.to(dtype) if x.is_floating_point() or x.dtype == torch.uint8 else x


def _mix(z: Tensor) -> Tensor:
    """Splitmix64's finaliser on int64 tensors, whose arithmetic wraps."""
    z = z + -7046029254386353131
    z = (z ^ _shift(z, 30)) * -4658895280553007687
    z = (z ^ _shift(z, 27)) * -7723592293110705685
    return z ^ _shift(z, 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch shifts in the sign; a logical shift does not


def _uniform(z: Tensor) -> Tensor:
    return _shift(z, 11).to(torch.float64) * 2.0**-53
