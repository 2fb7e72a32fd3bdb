"""`check_model` catches what would go wrong later, at other clients or on other devices."""

from __future__ import annotations

import random
from collections import OrderedDict
from dataclasses import dataclass
from math import prod

import numpy as np
import pytest
import torch
from torch import nn

from fedstrata.core.errors import PartError, RequestError
from fedstrata.models.architecture import Architecture
from fedstrata.testing import check_model


class Net(nn.Module):
    """Two layers; what is odd about it is added by those below."""

    def __init__(self, shape, classes):
        super().__init__()
        self.body, self.head = nn.Linear(prod(shape), 6), nn.Linear(6, classes)

    def forward(self, x):
        return self.head(self.between(self.body(x.flatten(1)).relu()))

    def between(self, features):
        return features


@dataclass(frozen=True)
class Sound(Architecture):
    """Does everything right."""

    natural = (4,)
    net = Net

    def build(self, shape, classes):
        return self.net(shape, classes)


def test_a_sound_model_passes_with_any_shape():
    check_model(Sound())
    check_model(Sound(), (2, 3, 3), classes=2)


@dataclass(frozen=True)
class WithEverything(Architecture):
    """Has norms, dropout and convolutions."""

    natural = (1, 6, 6)

    def build(self, shape, classes):
        layers = OrderedDict(conv=nn.Conv2d(shape[0], 3, 3), norm=nn.BatchNorm2d(3), relu=nn.ReLU(), flat=nn.Flatten())
        return nn.Sequential(layers | OrderedDict(drop=nn.Dropout(0.3), head=nn.Linear(3 * 16, classes)))


def test_a_model_with_norms_and_dropout_passes():
    check_model(WithEverything(), classes=3)


@dataclass(frozen=True)
class NoModule(Sound):
    """Gives a function."""

    def build(self, shape, classes):
        return lambda x: x


@dataclass(frozen=True)
class DrawsFromNumpy(Sound):
    """Scales its weights by numpy's global generator."""

    def build(self, shape, classes):
        net = Net(shape, classes)
        net.body.weight.data *= np.random.random()  # noqa: NPY002  that is the point
        return net


@dataclass(frozen=True)
class DrawsFromPython(Sound):
    """Scales its weights by Python's global generator."""

    def build(self, shape, classes):
        net = Net(shape, classes)
        net.body.weight.data *= random.random()
        return net


@dataclass(frozen=True)
class DrawsAfresh(Sound):
    """Scales its weights by a generator without a seed."""

    def build(self, shape, classes):
        net = Net(shape, classes)
        net.body.weight.data *= float(np.random.default_rng().random())
        return net


@dataclass(frozen=True)
class Lazy(Sound):
    """Waits for the first sample."""

    def build(self, shape, classes):
        return nn.Sequential(OrderedDict(flat=nn.Flatten(), head=nn.LazyLinear(classes)))


class Bare(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.scale = torch.ones(6)

    def between(self, features):
        return features * self.scale


class ListOfLayers(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.layers = [nn.Linear(6, 6)]

    def between(self, features):
        return self.layers[0](features)


class FixedType(Net):
    def forward(self, x):
        return super().forward(x).float()


class NotFlat(Net):
    def forward(self, x):
        return super().forward(x)[:, None]


class OverTheBatch(Net):
    def between(self, features):
        return features - features.mean(0)


class NoisyWhenEvaluated(Net):
    def between(self, features):
        return features + torch.rand(6).to(features)


class NoisyInTraining(Net):
    def between(self, features):
        return features * (random.random() if self.training else 1.0)


class CountsCalls(Net):
    calls = 0

    def between(self, features):
        self.calls += self.training
        return features * (1 + self.calls)


class Copies(Net):
    """Answers with a copy of its weights that it made in the beginning."""

    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.copied = (self.body.weight.tolist(), self.head.weight.tolist())

    def forward(self, x):
        body, head = (torch.tensor(w, dtype=x.dtype) for w in self.copied)
        return 0 * super().forward(x) + (x.flatten(1) @ body.T).relu() @ head.T


class Remembers(Net):
    """Keeps a number of its last batch in an attribute, and uses it in the next one."""

    last = 1.0

    def between(self, features):
        if not self.training:
            return features
        now, self.last = self.last, 1.0 + 1.0 / len(features)
        return features * now


class UnequalBatches(Net):
    def between(self, features):
        return features / len(features) if self.training else features


class Frozen(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.requires_grad_(False)


class FrozenHead(Net):
    def __init__(self, shape, classes):
        super().__init__(shape, classes)
        self.head.requires_grad_(False)


class Infinite(Net):
    def between(self, features):
        return features / 0.0 if self.training else features


def of(net):
    """Return a part of this network; it stands here because experiments find parts by their path."""
    about = {"net": net, "__doc__": "Odd.", "__module__": __name__}
    part = dataclass(frozen=True)(type(f"Of{net.__name__}", (Sound,), about))
    globals()[part.__name__] = part
    return part()


@pytest.mark.parametrize(
    ("part", "said"),
    [
        (DrawsFromNumpy(), "DrawsFromNumpy: `build` draws from numpy's global generator"),
        (DrawsFromPython(), "DrawsFromPython: `build` draws from Python's global generator"),
        (DrawsAfresh(), "DrawsAfresh: `build` gave another body.weight from the same seed"),
        (Lazy(), "Lazy: head.weight has no shape before the first sample"),
        (of(Bare), "scale is a bare tensor; use register_buffer"),
        (of(ListOfLayers), "layers holds layers that torch does not see; use nn.ModuleList"),
        (of(FixedType), "gives torch.float32 with weights of float64"),
        (of(OverTheBatch), "a sample's answer depends on the others of its batch"),
        (of(NoisyWhenEvaluated), "in eval mode draws from torch's global generator"),
        (of(NoisyInTraining), "in training mode draws from Python's global generator"),
        (of(CountsCalls), "the same batch and seed gave another answer"),
        (of(Copies), "does not follow its parameters: it keeps copies"),
        (of(Remembers), "what the client before left in the model changed"),
        (of(UnequalBatches), "samples of weight 0, which fill up, changed"),
        (of(Frozen), "has nothing to train"),
        (of(FrozenHead), "nothing of `head` is trained"),
        (of(Infinite), "gives numbers that are not finite"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_a_broken_model_is_caught(part, said):
    with pytest.raises(AssertionError, match=said):
        check_model(part)


def test_a_part_that_builds_no_module_or_another_shape_is_refused():
    with pytest.raises(PartError, match=r"NoModule: `build` gave .*; allowed: a torch.nn.Module"):
        check_model(NoModule())
    with pytest.raises(RequestError, match=r"gives outputs of shape \(1, 10\) but the data has 10 classes"):
        check_model(of(NotFlat))
