"""Weights of torchvision's networks as `model.init`: their names and their head differ from ours."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fedstrata
from fedstrata.config.build import initial_model
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.models.densenet import DenseNet121
from fedstrata.models.resnet import ResNet18
from fedstrata.runs.session import build_session

SHAPE = (3, 32, 32)
MODEL = {"model.name": "resnet18", "model.stem": "7x7"}


def torchvisions(classes=1000):
    """Return weights under the names that torchvision's ResNet-18 has, written down from its source."""
    torch.manual_seed(3)
    ours = ResNet18(stem="7x7").build(SHAPE, classes).state_dict()
    stage = re.compile(r"^stages\.(\d)\.")
    return {
        stage.sub(lambda m: f"layer{int(m[1]) + 1}.", name).replace("head.", "fc."): tensor
        for name, tensor in ours.items()
    }


@pytest.fixture(scope="module")
def federation():
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(8, *SHAPE)).astype(np.float32), np.arange(8) % 4) for _ in range(2)]
    return fedstrata.Federation.from_clients(clients)


def session_of(federation, init, **more):
    asked = {**MODEL, "model.init": str(init), "train.rounds": 1, "train.clients_per_round": "all", **more}
    given = {"name": "given", "clients": 2, "fingerprint": federation.fingerprint}
    return build_session(Experiment.of({"data": given}, **asked), federation)


def start(federation, init, **more):
    """Return the tensors of the first model, and what was said of them."""
    session, said = session_of(federation, init, **more), []
    model = initial_model(session.plan, str(init), log=lambda kind, **fields: said.append((kind, fields)))
    return session.plan.space.named(model), said


def test_names_are_those_of_torchvision():
    names = set(torchvisions())
    assert {"conv1.weight", "bn1.running_mean", "layer1.0.conv1.weight", "fc.weight", "fc.bias"} <= names
    assert {"layer2.0.downsample.0.weight", "layer2.0.downsample.1.num_batches_tracked"} <= names
    assert len(names) == 122  # as many as torchvision's resnet18 has


@pytest.mark.parametrize("ending", ["pth", "safetensors"])
@pytest.mark.parametrize("wrap", ["", "module."])
def test_torchvisions_weights_are_ours_but_for_the_head(federation, ending, wrap, tmp_path):
    weights, file = torchvisions(), tmp_path / f"resnet18.{ending}"
    named = {f"{wrap}{name}": tensor for name, tensor in weights.items()}
    save_file(named, file) if ending == "safetensors" else torch.save({"state_dict": named, "epoch": 3}, file)
    tensors, said = start(federation, file)
    assert torch.equal(tensors["stages.3.1.conv2.weight"], weights["layer4.1.conv2.weight"])
    assert torch.equal(tensors["stages.1.0.downsample.0.weight"], weights["layer2.0.downsample.0.weight"])
    assert torch.equal(tensors["bn1.running_var"], weights["bn1.running_var"])
    fresh = session_of(federation, file).plan.local.build()
    assert torch.equal(tensors["head.weight"], fresh.head.weight)
    why = "the last layer, head, starts afresh: that of the file is for 1000 labels"
    assert said == [("fallback", {"what": "model.init", "why": why})]


def test_a_head_for_as_many_labels_is_kept(federation, tmp_path):
    weights = torchvisions(classes=4)
    torch.save(weights, tmp_path / "w.pth")
    tensors, said = start(federation, tmp_path / "w.pth")
    assert torch.equal(tensors["head.bias"], weights["fc.bias"])
    assert said == []


def test_a_run_starts_from_them_and_says_what_starts_afresh(federation, tmp_path):
    torch.save(torchvisions(), tmp_path / "w.pth")
    how = {**MODEL, "model.init": str(tmp_path / "w.pth"), "train.rounds": 1, "train.lr": 1e-9, "engine.workers": 1}
    run = fedstrata.train(federation=federation, overrides=how, out=tmp_path / "run")
    assert run.summary["remarks"][0].startswith("model.init: the last layer, head, starts afresh")
    trained = load_file(tmp_path / "run" / "model.safetensors")
    torch.testing.assert_close(trained["conv1.weight"], torchvisions()["conv1.weight"], rtol=0, atol=1e-6)
    again = {**how, "model.init": str(tmp_path / "run" / "model.safetensors")}  # our own file: nothing is renamed
    assert fedstrata.train(federation=federation, overrides=again).summary["remarks"] == []


@pytest.mark.parametrize(
    ("change", "more", "said"),
    [
        (lambda w: w, {"model.stem": "3x3"}, r'conv1.weight needs shape .* model.stem = "7x7" has the stem'),
        (
            lambda w: {**w, "layer1.2.conv1.weight": w["conv1.weight"]},
            {},
            "is of another model: it has stages.0.2.conv1",
        ),
        (lambda w: {k: v for k, v in w.items() if k != "bn1.weight"}, {}, "bn1.weight needs .* nothing like it"),
        (lambda w: {"weights": [1, 2]}, {}, "holds no weights; save them with torch.save"),
        (
            lambda w: nn.Linear(2, 2),
            {},
            "cannot be read: Weights only load failed, because .*save them with",
        ),  # whole objects are code
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(federation, change, more, said, tmp_path):
    torch.save(change(torchvisions()), tmp_path / "w.pth")
    asked = {**MODEL, "model.init": str(tmp_path / "w.pth"), "train.rounds": 1, **more}
    with pytest.raises(RequestError, match=rf"(?s)model.init = .*{said}"):
        fedstrata.train(federation=federation, overrides=asked, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["w.pth", "run/model.safetensors"])
def test_frozen_layers_are_those_of_the_module_that_is_given(name, tmp_path):
    def build():
        net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
        net[0].requires_grad_(False)
        return net

    clients = [(np.eye(4, dtype=np.float32).repeat(3, 0), np.arange(12) % 3)] * 2
    given = {"federation": fedstrata.Federation.from_clients(clients, test=clients[0])}
    run = fedstrata.train(model=build(), overrides={"train.rounds": 1}, out=tmp_path / "run", **given)
    torch.save(run.model(), tmp_path / "w.pth")
    asked = {"train.rounds": 1, "train.lr": 1e-12, "model.init": str(tmp_path / name)}
    with pytest.raises(RequestError, match=r"0.weight is frozen and has other values in the file.*load_state_dict"):
        fedstrata.train(model=build(), overrides=asked, **given)
    same = build()
    same[0].load_state_dict({key: run.model()[f"0.{key}"] for key in ("weight", "bias")})
    again = fedstrata.train(model=same, overrides=asked, **given)
    for key, tensor in run.model().items():
        torch.testing.assert_close(again.model()[key], tensor)


def test_a_file_that_is_not_there_or_no_file_of_weights_is_refused(federation, tmp_path):
    (tmp_path / "text.pth").write_text("no weights")
    (tmp_path / "text.safetensors").write_text("no weights")
    for name in ("none.pth", "none.safetensors", "text.pth", "text.safetensors"):
        with pytest.raises(RequestError, match=rf"model.init = .*{name}\" cannot be read"):
            start(federation, tmp_path / name)
    assert not Path("runs").exists()


def test_densenets_of_both_ages_fit(federation, tmp_path):
    torch.manual_seed(0)
    ours = DenseNet121().build(SHAPE, 1000).state_dict()
    old = {
        re.sub(r"(denselayer\d+\.(?:norm|conv))(\d)", r"\1.\2", name).replace("head.", "classifier."): tensor
        for name, tensor in ours.items()
    }
    assert "features.denseblock1.denselayer1.norm.1.weight" in old
    torch.save(old, tmp_path / "w.pth")
    session_model = {"model.name": "densenet121", "model.stem": "auto"}
    tensors, said = start(federation, tmp_path / "w.pth", **session_model)
    name = "features.denseblock4.denselayer16.conv2.weight"
    assert torch.equal(tensors[name], ours[name])
    assert len(said) == 1
