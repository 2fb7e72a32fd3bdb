"""InCo: later layers learn from the first layer of their stage."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from combining import close, run_of
from quadratic import f64
from torch import nn

from fedstrata import Federation
from fedstrata.core import registry
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.methods.combiners.inco import InCo, mix_reference, references
from fedstrata.models.resnet import BasicBlock
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing.tiny import same, session_of


def kernels(*values):
    """Return one kernel of one row."""
    return f64(*values).view(1, 1, 1, -1)


def test_inco_oracle():
    g0, g = kernels(3.0, 4.0), kernels(0.0, 1.0)
    close(mix_reference(g, g0, clamp=1e9).flatten(), f64(0.288, 3.384), atol=1e-6)  # sigma = .16, but for 1e-7
    assert mix_reference(g, g0, clamp=0.1).flatten().tolist() == [0.1, 0.1]
    assert mix_reference(-g, -g0, clamp=0.1).flatten().tolist() == [-0.1, -0.1]


def test_inco_bounds_the_share_of_the_reference():
    """<g0, g> / ||g0||^2 = 1000 is taken for 5: (1 + 5) (.01 + 10) / 2 in the first place."""
    found = mix_reference(kernels(10.0, 0.0), kernels(0.01, 0.0), clamp=1e9)
    close(found.flatten(), f64(6 * 10.01 / 2, 0.0), atol=1e-9)


def test_inco_works_kernel_by_kernel_and_leaves_kernels_that_did_not_move():
    torch.manual_seed(0)
    g, g0 = torch.randn(4, 3, 3, 3).double(), torch.randn(4, 3, 3, 3).double()
    g[1, 2], g0[2, 0] = 0.0, 0.0
    found = mix_reference(g, g0, clamp=1e9)
    for i, j in product(range(4), range(3)):
        own, first = g[i, j], g0[i, j]
        if (i, j) in ((1, 2), (2, 0)):
            assert torch.equal(found[i, j], own)
            continue
        sigma = min(float((own * first).sum().abs() / (first.norm() ** 2 + 1e-7)), 5.0)
        by_hand = (own / own.norm() + sigma * first / first.norm()) * (own.norm() + first.norm()) / 2
        close(found[i, j], by_hand)


def space_of(name, shape=(3, 32, 32)):
    """Lay a model out without its weights."""
    with torch.device("meta"):
        module = registry.build("models", name, {}, "model").build(shape, 10)
    return ParameterSpace.of(module, "head")


def learns(space):
    return {place.name: reference.name for place, reference in references(space)}


@pytest.mark.parametrize(
    ("model", "blocks", "layers"),
    [("resnet20", (3, 3, 3), (1, 2)), ("resnet18", (2, 2, 2, 2), (1, 2)), ("resnet50", (3, 4, 6, 3), (2,))],
)
def test_inco_lets_later_blocks_of_a_stage_learn_from_its_first(model, blocks, layers):
    expected = {
        f"stages.{stage}.{block}.conv{layer}.weight": f"stages.{stage}.0.conv2.weight"
        for stage, depth in enumerate(blocks)
        for block in range(1, depth)
        for layer in layers
    }
    assert learns(space_of(model)) == expected


def test_inco_knows_the_names_of_torchvision():
    def block():
        return nn.ModuleDict({name: nn.Conv2d(4, 4, 3) for name in ("conv1", "conv2", "downsample")})

    module = nn.ModuleDict({"layer1": nn.Sequential(block(), block()), "head": nn.Linear(4, 2)})
    expected = {f"layer1.1.conv{i}.weight": "layer1.0.conv2.weight" for i in (1, 2)}
    assert learns(ParameterSpace.of(module, "head")) == expected


@pytest.mark.parametrize("model", sorted(set(registry.names("models")) - {"resnet20", "resnet18", "resnet50", "timm"}))
def test_inco_finds_nothing_in_models_without_stages_of_blocks(model):
    """ResNet-9 is one of them: its stages begin with a single convolution that widens, and no block follows another."""
    natural = registry.build("models", model, {}, "model").natural
    assert learns(space_of(model, natural)) == {}


class Staged(nn.Module):
    """The smallest network with a stage of two residual blocks."""

    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(nn.Sequential(*(BasicBlock(2, 2, 1, nn.Conv2d(2, 2, 3, padding=1)) for _ in "ab")))
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def image_work(combine):
    """Return a run of it on a few tiny images."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 2, 4, 4)).astype(np.float32), np.arange(16) % 2
    torch.manual_seed(0)
    federation, module = Federation.from_arrays(x, y, [np.arange(4), np.arange(4, 16)], test=(x[:4], y[:4])), Staged()
    asked = {"train.epochs": 1, "train.batch_size": 6, "train.clients_per_round": "all", "engine.precision": "fp64"}
    return build_session(
        describe_experiment(None, None, {**asked, "method.combiner": combine}, federation, module), federation, module
    )


@pytest.mark.parametrize("by", ["size", "uniform"])
def test_inco_mixes_after_averaging_and_touches_no_other_layer(by):
    """One client has three times as many samples as the other."""
    plain, mixed = (run_of(image_work(combine)) for combine in (by, {"kind": "inco", "by": by}))
    space, before = plain.work.plan.space, plain.work.initial_state().model.params
    mean = plain.state.model.params - before
    pairs = {place.name: reference for place, reference in references(space)}
    assert list(pairs) == ["stages.0.1.conv1.weight", "stages.0.1.conv2.weight"]
    for place in space.params:
        now = place.of(mixed.state.model.params)
        if place.name not in pairs:
            assert torch.equal(now, place.of(plain.state.model.params)), place.name
            continue
        close(now - place.of(before), mix_reference(place.of(mean), pairs[place.name].of(mean), 0.1))
        assert not torch.allclose(now, place.of(plain.state.model.params))
        assert float((now - place.of(before)).abs().max()) <= 0.1 + 1e-12
    assert torch.equal(plain.state.model.buffers, mixed.state.model.buffers)
    assert mixed.notes == []


@pytest.mark.parametrize(("by", "used"), [("size", "the mean by size"), ("uniform", "the plain mean")])
def test_inco_without_stages_is_fedavg_and_says_so(by, used):
    plain, mixed = (
        run_of(session_of({"method.combiner": combine}), rounds=3) for combine in (by, {"kind": "inco", "by": by})
    )
    assert same(plain.state, mixed.state)
    why = "the model has no stages of residual blocks"
    assert mixed.notes == [{"event": "fallback", "what": "inco", "used": used, "why": why}]


def test_the_recipe_averages_plainly_as_the_authors_do():
    assert session_of({"method.name": "inco"}).plan.combiner == InCo(by="uniform")
