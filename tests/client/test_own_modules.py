"""What a user's module may rely on: what it looks at without training, tied and frozen weights, its last layer."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from by_hand import Functional, close, context, dropping, looking, normed, session_of, textbook, trained, trainer_of
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedstrata.client.network import find_head
from fedstrata.core.errors import RequestError
from fedstrata.models.mlp import Mlp

# ---- looking without training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [normed, dropping, Functional, lambda: Mlp(hidden=(6,)).build((4,), 3)])
def test_at_is_the_modules_own_forward_pass_in_eval_mode(build):
    work = session_of(build())
    trainer, x = trainer_of(work), torch.randn(7, 4, dtype=torch.float64)
    context(trainer, work, 2)  # whatever was trained before
    model = work.initial_state().model
    params, buffers = model.params + 0.1, model.buffers + 0.2
    features, logits = trainer.buf.at(params, buffers, x)
    module, inputs = work.plan.local.build().double().eval(), []
    work.plan.space.bind(module, params, buffers)
    module.get_submodule("head").register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    close(logits, module(x).detach())
    close(features, inputs[0].detach())
    assert not logits.requires_grad
    assert trainer.network.training


@pytest.mark.parametrize("chunk", [2, 1024])
def test_a_probe_tells_loss_and_probabilities_of_the_received_model(monkeypatch, chunk):
    monkeypatch.setattr("fedstrata.client.probe.CHUNK", chunk)
    work = session_of(normed())
    trainer = trainer_of(work)
    context(trainer, work, 2)
    context(trainer, work, 1)  # training moved the trainer's weights; the received model is what counts
    losses, probabilities = looking(trainer, work).score_samples()
    module, data = work.plan.local.build().double().eval(), work.federation.train
    with torch.no_grad():
        logits = module(data.x[:9].double())
    np.testing.assert_allclose(losses, cross_entropy(logits, data.y[:9], reduction="none"), rtol=0, atol=1e-12)
    np.testing.assert_allclose(probabilities, logits.softmax(1), rtol=0, atol=1e-12)


# ---- modules of one's own -------------------------------------------------------------------------------------------


def test_frozen_parameters_stay_and_do_not_travel():
    torch.manual_seed(0)
    module = Mlp(hidden=(6,)).build((4,), 3)
    module.layer0.requires_grad_(False)
    work = session_of(module)
    trainer = trainer_of(work)
    report = context(trainer, work, 2)
    assert [p.name for p in work.plan.space.params] == ["head.weight", "head.bias"]
    assert report.aggregated["update"].numel() == work.plan.space.P == 6 * 3 + 3
    close(trainer.network.module.layer0.weight, module.layer0.weight.double())
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1))
    close(trained(work, report)["head.weight"], by_hand.head.weight.detach())


class FrozenNorm(nn.Module):
    """A norm that keeps its statistics, as beside layers that were trained before."""

    def __init__(self):
        super().__init__()
        self.fc, self.norm, self.head = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.norm.running_mean.fill_(0.3)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.head(self.norm(self.fc(x)).relu())


@pytest.mark.parametrize("pad", [False, True])
def test_a_norm_that_a_module_keeps_in_eval_mode_keeps_its_statistics(pad):
    torch.manual_seed(0)
    work = session_of(FrozenNorm())
    report = context(trainer_of(work, pad), work, 2)  # 17 samples in fours: the last batch of one is trained on too
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1))
    model = trained(work, report)
    for name, tensor in by_hand.state_dict().items():
        if name in model:
            close(model[name], tensor)


class Louder(nn.Module):
    """Does something of its own in training."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(2 * x if self.training else x)


def test_a_module_that_is_given_in_eval_mode_is_trained_in_train_mode():
    torch.manual_seed(0)
    work = session_of(Louder().eval())
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1))
    close(trained(work, context(trainer_of(work), work, 2))["head.weight"], by_hand.head.weight.detach())


class Tied(nn.Module):
    """One matrix, used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(self.first(x).tanh()))


def test_tied_weights_are_one_tensor_and_train_as_one():
    torch.manual_seed(0)
    work = session_of(Tied(), train__optimizer={"kind": "sgd", "momentum": 0.9})
    trainer = trainer_of(work)
    report = context(trainer, work, 2)
    assert work.plan.space.P == 4 * 4 + 4 + 4 + 4 * 3 + 3
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1, momentum=0.9))
    close(
        work.initial_state().model.params + report.aggregated["update"],
        parameters_to_vector(by_hand.parameters()).detach(),
    )
    assert trainer.network.module.first.weight is trainer.network.module.second.weight
    x = torch.randn(3, 4, dtype=torch.float64)
    moved = work.initial_state().model.params + report.aggregated["update"]
    close(trainer.buf.at(moved, work.initial_state().model.buffers, x)[1], by_hand(x).detach())


class Scaled(nn.Module):
    """Standardises its input by a constant that is not saved with the model."""

    def __init__(self, persistent):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=persistent)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(x / self.scale)


@pytest.mark.parametrize("persistent", [True, False])
def test_constant_buffers_stay_as_they_are(persistent):
    work = session_of(Scaled(persistent))
    report = context(trainer_of(work), work, 2)
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1))
    close(trained(work, report)["head.weight"], by_hand.head.weight.detach())
    assert report.aggregated.get("buffers", torch.zeros(1)).abs().max() == 0


def test_what_is_trained_does_not_depend_on_the_client_before():
    work = session_of(normed(), train__optimizer={"kind": "adam"})
    used, fresh = trainer_of(work), trainer_of(work)
    context(used, work, 2)
    one, other = context(used, work, 0), context(fresh, work, 0)
    assert torch.equal(one.aggregated["update"], other.aggregated["update"])
    assert torch.equal(one.aggregated["buffers"], other.aggregated["buffers"])


def test_a_report_does_not_change_when_the_trainer_goes_on():
    work = session_of(normed())
    trainer = trainer_of(work)
    report = context(trainer, work, 0)
    before = {name: t.clone() for name, t in report.aggregated.items()}, float(report.loss), float(report.update_norm)
    context(trainer, work, 2)
    assert all(torch.equal(report.aggregated[name], t) for name, t in before[0].items())
    assert (float(report.loss), float(report.update_norm)) == before[1:]


# ---- the head --------------------------------------------------------------------------------------------------------

X = torch.zeros(2, 4)


@pytest.mark.parametrize(
    ("module", "named", "expected"),
    [
        (Mlp().build((4,), 3), None, "head"),
        (nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)), None, "2"),
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)), None, "2"),  # two candidates: the last one run
        (nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 3)), "0", "0"),
        (nn.Sequential(OrderedDict(head=nn.Linear(4, 5), out=nn.Linear(5, 3))), "out", "out"),
        (nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)), None, "0"),
        (nn.Sequential(nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3)), nn.Identity()), None, "0.1"),
    ],
)
def test_the_head_is_found_or_named(module, named, expected):
    assert find_head(module, X, 3, named) == expected
    assert module.training


@pytest.mark.parametrize(
    ("module", "named", "said"),
    [
        (nn.Linear(4, 5), None, r"outputs of shape \(5,\) but the data has 3 classes"),
        (nn.Linear(4, 1), None, r"its last layer must have 3 outputs"),
        (nn.Identity(), None, r"shape \(4,\)"),
        (nn.Linear(7, 3), None, r"cannot take samples of shape \(4,\)"),
        (nn.Sequential(nn.Linear(4, 3)), "last", r'model.head = "last" is not a layer of the model; layers: 0'),
        (nn.Sequential(nn.Linear(4, 1), nn.Upsample(3)), None, "cannot take samples"),
        (nn.Sequential(nn.Linear(4, 6), nn.Unflatten(1, (3, 2)), nn.AvgPool1d(2), nn.Flatten()), None, "name it with"),
    ],
)
def test_a_model_without_a_head_for_the_classes_is_refused(module, named, said):
    with pytest.raises(RequestError, match=said):
        find_head(module, X, 3, named)


@pytest.mark.parametrize(
    ("module", "head", "start", "stop"),
    [
        (Mlp(hidden=(5,)).build((4,), 3), "head", 4 * 5 + 5, 4 * 5 + 5 + 5 * 3 + 3),
        (nn.Linear(4, 3), "", 0, 4 * 3 + 3),  # the whole model is its own last layer
    ],
)
def test_the_place_of_the_head_inside_the_weights(module, head, start, stop):
    work = session_of(module)
    space = work.plan.space
    assert work.plan.local.head == head
    assert space.head == slice(start, stop)
    assert space.head_weight == slice(start, stop - 3)
    assert space.head_bias == slice(stop - 3, stop)
    context(trainer_of(work), work)
