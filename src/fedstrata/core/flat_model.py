"""A model as two flat vectors: where each tensor of a module lies inside them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn


class Segment(NamedTuple):
    """A named tensor inside a flat vector.

    Attributes
    ----------
    name
        As in the module's `state_dict`.
    shape
        Of the tensor.
    start
        Index of its first element.
    """

    name: str
    shape: tuple[int, ...]
    start: int

    @property
    def stop(self) -> int:
        """Index after the last element."""
        return self.start + math.prod(self.shape)

    def of(self, flat: Tensor) -> Tensor:
        """View this tensor inside a flat vector."""
        return flat[self.start : self.stop].view(self.shape)


class Norm(NamedTuple):
    """A batch norm's running statistics inside `buffers`."""

    name: str
    mean: Segment
    var: Segment
    momentum: float


@dataclass(frozen=True)
class ParameterSpace:
    """Places of a module's trainable tensors in `params` and of its float buffers in `buffers`.

    Frozen parameters and integer buffers (counters, tables) are part of the architecture: they do not travel.

    Attributes
    ----------
    params
        Name, shape and start of every trainable tensor.
    buffers
        The same of every float buffer.
    head
        The last layer, inside `params`.
    head_weight, head_bias
        Its tensors, likewise.
    norms
        Batch norms with running statistics.
    normed
        Whether there are batch norms at all.

    Examples
    --------
    >>> from torch import nn
    >>> from fedstrata import ParameterSpace
    >>> space = ParameterSpace.of(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)), head="2")
    >>> space.P, space.head, space.classes
    (23, slice(15, 23, None), 2)
    """

    params: tuple[Segment, ...]
    buffers: tuple[Segment, ...]
    head: slice
    head_weight: slice
    head_bias: slice
    norms: tuple[Norm, ...] = ()
    normed: bool = False

    @property
    def P(self) -> int:
        """Trainable numbers."""
        return self.params[-1].stop if self.params else 0

    @property
    def classes(self) -> int:
        """Rows of the last layer; 0 where it has no weights that are trained."""
        return next((p.shape[0] for p in self.params if p.start == self.head_weight.start < self.head_weight.stop), 0)

    @property
    def featureless(self) -> bool:
        """Whether nothing is trained before the last layer."""
        return bool(self.head.stop - self.head.start == self.P)

    @property
    def Q(self) -> int:
        """Buffer numbers."""
        return self.buffers[-1].stop if self.buffers else 0

    @classmethod
    def of(cls, module: nn.Module, head: str) -> ParameterSpace:
        """Lay a module out.

        Parameters
        ----------
        module
            Any module.
        head
            The name of its last layer.

        Returns
        -------
        ParameterSpace
        """
        params = _places([(n, p) for n, p in module.named_parameters() if p.requires_grad])
        buffers = _places([(n, b) for n, b in module.named_buffers() if b.is_floating_point()])

        def span(prefix: str) -> slice:
            own = [p for p in params if p.name == prefix or p.name.startswith(f"{prefix}." if prefix else "")]
            return slice(own[0].start, own[-1].stop) if own else slice(0, 0)

        inside = f"{head}." if head else ""
        heads = span(head), span(f"{inside}weight"), span(f"{inside}bias")
        normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules())
        return cls(params, buffers, *heads, _norms(module, buffers), normed)

    def bind(self, module: nn.Module, params: Tensor, buffers: Tensor, grads: Tensor | None = None) -> None:
        """Make the module's tensors views into the flat vectors.

        Parameters
        ----------
        module
            The one that was laid out, or one like it.
        params, buffers
            Flat vectors of `P` and `Q` numbers.
        grads
            Likewise for the gradients; None: they stay as they are.
        """
        own_params, modules = dict(module.named_parameters()), dict(module.named_modules())
        for place in self.params:
            own_params[place.name].data = place.of(params)
            if grads is not None:
                own_params[place.name].grad = place.of(grads)
        for place in self.buffers:
            owner, _, name = place.name.rpartition(".")
            modules[owner]._buffers[name] = place.of(buffers)

    def named(self, model: FlatModel) -> dict[str, Tensor]:
        """Return the model's tensors by name.

        Parameters
        ----------
        model
            A model of this space.

        Returns
        -------
        dict
            Views into the flat vectors.
        """
        params = {p.name: p.of(model.params) for p in self.params}
        return params | {b.name: b.of(model.buffers) for b in self.buffers}

    def flatten(self, named: Mapping[str, Tensor], dtype: torch.dtype, params: bool = True) -> FlatModel:
        """Collect a model from tensors by name; the inverse of `named`.

        Parameters
        ----------
        named
            Tensors, such as a `state_dict`.
        dtype
            Of the flat vectors.
        params
            False: the buffers alone.

        Returns
        -------
        FlatModel
        """

        def join(places: tuple[Segment, ...]) -> Tensor:
            flat = [named[p.name].detach().to("cpu", dtype).reshape(-1) for p in places]
            return torch.cat(flat) if flat else torch.zeros(0, dtype=dtype)

        return FlatModel(join(self.params if params else ()), join(self.buffers))


@dataclass(frozen=True)
class FlatModel:
    """A model's numbers, flat. Never changed in place: a new model is a new object.

    Attributes
    ----------
    params
        Trainable numbers, [P]; `ParameterSpace` says which is which.
    buffers
        Norm statistics and other float buffers, [Q].
    """

    params: Tensor
    buffers: Tensor

    def wire(self, buffers: bool = True) -> dict[str, Tensor]:
        """Return what travels to a client.

        Parameters
        ----------
        buffers
            With norm statistics.

        Returns
        -------
        dict
            "params" and, where there are any, "buffers".
        """
        return {"params": self.params} | ({"buffers": self.buffers} if buffers and self.buffers.numel() else {})


def _norms(module: nn.Module, buffers: tuple[Segment, ...]) -> tuple[Norm, ...]:
    own = {place.name: place for place in buffers}
    layers = [(n, m) for n, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    return tuple(
        Norm(name, own[f"{name}.running_mean"], own[f"{name}.running_var"], layer.momentum or 0.0)
        for name, layer in layers
        if f"{name}.running_mean" in own
    )


def _places(tensors: list[tuple[str, Tensor]]) -> tuple[Segment, ...]:
    places, start = [], 0
    for name, tensor in tensors:
        places.append(Segment(name, tuple(tensor.shape), start))
        start = places[-1].stop
    return tuple(places)
