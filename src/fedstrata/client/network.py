"""Any torch module as a network with a known head, and dropout that draws from the client's own stream."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fedstrata.core.counter_rng import Clock
from fedstrata.core.errors import RequestError

LOGITS = "logits"  # what they are called in an answer that holds more
TRIED = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError)  # what a forward pass may raise


class Network(nn.Module):
    """A module whose forward pass also gives the features: what goes into its head."""

    def __init__(self, module: nn.Module, head: str, half: bool = False):
        super().__init__()
        self.module, self._head, self._half = module, head, half
        self._features: Tensor | None = None
        self._channels_last: bool | None = None  # whether the module takes images so; None: not tried yet
        self.head.register_forward_pre_hook(self._remember, with_kwargs=True)

    @property
    def head(self) -> nn.Module:
        """The last layer."""
        return self.module.get_submodule(self._head)

    def _remember(self, _: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._features = next(iter((*args, *named.values()))).flatten(1)

    def to_preferred_layout(self, x: Tensor) -> Tensor:
        """Return images as convolutions like them best; on a GPU, where they are compiled, the compiler sees to it."""
        if x.ndim != 4 or x.is_cuda:
            return x
        if self._channels_last is None:
            self._channels_last = self._takes(with_channels_last(x[:1]))
        return with_channels_last(x) if self._channels_last else x

    def _takes(self, x: Tensor) -> bool:
        """Try: a module that flattens with `view` wants its images as they come."""
        if not any(isinstance(layer, nn.Conv2d) for layer in self.modules()):
            return False
        training = self.training
        try:
            with torch.no_grad():
                self.eval()(x)
        except RuntimeError:
            return False
        finally:
            self.train(training)
        return True

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return features and logits."""
        if self._half:
            with torch.autocast(x.device.type, torch.bfloat16):
                logits = logits_of(self.module(x)).float()
        else:
            logits = logits_of(self.module(x))
        assert self._features is not None
        features, self._features = self._features, None
        return features.to(logits.dtype), logits


def with_channels_last(x: Tensor) -> Tensor:
    """Lay images out so; where there is one channel, nothing moves, and strides alone tell convolutions what to do."""
    if x.shape[1] > 1:
        return x.contiguous(memory_format=torch.channels_last)
    height, width = x.shape[2:]
    return x.contiguous().as_strided(x.shape, (height * width, 1, width, 1))


def logits_of(answer: Any) -> Tensor:
    """Return the logits in what a module gives: a tensor, one called `logits`, the first of several, or the only one.

    Examples
    --------
    >>> import torch
    >>> logits = torch.zeros(2, 3)
    >>> all(logits_of(answer) is logits for answer in (logits, {"loss": 0, "logits": logits}, (logits, None), [logits]))
    True
    """
    if isinstance(answer, Tensor):
        return answer
    if hasattr(answer, LOGITS):
        return logits_of(getattr(answer, LOGITS))
    if isinstance(answer, Mapping) and (LOGITS in answer or len(answer) == 1):
        return logits_of(answer.get(LOGITS, next(iter(answer.values()))))
    if isinstance(answer, Sequence) and not isinstance(answer, str) and answer:
        return logits_of(answer[0])
    held = f" of {', '.join(map(str, answer))}" if isinstance(answer, Mapping) else ""
    raise RequestError(
        f"the model gives a {type(answer).__name__}{held}: no logits are found in it; give them as a tensor, as the "
        f"first of a tuple, or called `{LOGITS}`"
    )


def find_head(module: nn.Module, x: Tensor, classes: int, named: str | None = None) -> str:
    """Return the name of the last layer, and check that the module answers with one number a class.

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
            out = logits_of(module.eval()(x))
    except TRIED as error:
        hint = "" if x.is_floating_point() else "; the samples are whole numbers: convert them to float"
        raise RequestError(f"the model cannot take samples of shape {tuple(x.shape[1:])}: {error}{hint}") from error
    finally:
        module.train(was_training)
        for hook in hooks:
            hook.remove()
    if out.ndim != 2 or out.shape[1] != classes:
        raise RequestError(
            f"the model gives outputs of shape {tuple(out.shape[1:])} but the data has {classes} classes: it must give "
            f"{classes} numbers a sample, so its last layer must have {classes} outputs"
            f"{_advise(module, out, seen, classes)}"
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
        ran = ", ".join(f'"{name}"' for name in dict.fromkeys(name for name, _ in seen))
        raise RequestError(
            f"the model's last layer could not be found: none gives {classes} numbers a sample; name it with "
            f"model.head, one of those with weights: {ran}"
        )
    return candidates[-1]


def _advise(module: nn.Module, out: Tensor, seen: Sequence[tuple[str, Any]], classes: int) -> str:
    """Say how to change the last layer of a model that was made for other labels."""
    last = [name for name, t in seen if isinstance(t, Tensor) and t.shape[1:] == out.shape[1:]]
    layer = module.get_submodule(last[-1]) if last else None
    if not isinstance(layer, nn.Linear) or not last[-1]:
        return ""
    place = "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in last[-1].split("."))
    return f": model{place} = nn.Linear({layer.in_features}, {classes})"


def change_head(head: nn.Module, classes: int, projection: int, bias: bool) -> nn.Module:
    """Put a projection of two layers before the last one, as MOON's authors do; take its bias away, as FedRS' do."""
    if not isinstance(head, nn.Linear):
        key = "model.projection" if projection else "model.head_bias"
        raise RequestError(f"{key} needs a model that ends in a linear layer, not in {type(head).__name__}")
    changed = _project(head, projection, classes) if projection else head
    if not bias:
        last = changed[-1] if isinstance(changed, nn.Sequential) else changed
        last.register_parameter("bias", None)  # taken away afterwards: all other weights start as they do with it
    return changed


def _project(head: nn.Linear, width: int, classes: int) -> nn.Sequential:
    inputs = head.in_features
    first, second = nn.Linear(inputs, inputs), nn.Linear(inputs, width)
    return nn.Sequential(OrderedDict(first=first, relu=nn.ReLU(), second=second, last=nn.Linear(width, classes)))


class KeyedDropout(nn.Module):
    """Dropout that draws its bits from the client update's clock."""

    def __init__(self, p: float, channels: bool, clock: Clock):
        super().__init__()
        self.p, self.channels, self.clock = p, channels, clock

    def forward(self, x: Tensor) -> Tensor:
        """Drop elements, or whole channels, and scale up what is left."""
        if not self.training or self.p == 0.0:
            return x
        shape = x.shape[:2] + (1,) * (x.ndim - 2) if self.channels else x.shape
        return x * self.clock.at_least(self.p, *shape).to(x.dtype) / max(1.0 - self.p, 1e-12)


def key_dropout(module: nn.Module, clock: Clock) -> bool:
    """Replace every dropout layer of a module by one that draws from the client update's clock.

    Returns whether there was any.
    """
    found = False
    for parent in list(module.modules()):
        for name, child in parent._modules.items():
            if isinstance(child, nn.Dropout | nn.Dropout1d | nn.Dropout2d | nn.Dropout3d):
                parent._modules[name] = KeyedDropout(child.p, not isinstance(child, nn.Dropout), clock)
                found = True
    return found
