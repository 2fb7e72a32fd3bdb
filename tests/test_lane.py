"""A client update of the worker against textbook PyTorch, and what a user's module may rely on."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedstrata.client.local_step import RING
from fedstrata.client.network import find_head
from fedstrata.client.trainer import Trainer
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Task
from fedstrata.data.federation import Federation
from fedstrata.models.lenet5 import LeNet5
from fedstrata.models.mlp import Mlp
from fedstrata.runs.session import Session
from fedstrata.runs.training import describe_experiment

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


def build_federation(sizes=(9, 3, 17), shape=(4,), ones=False):
    rng, stops = np.random.default_rng(1), np.cumsum(sizes)
    rows = [np.arange(stop - n, stop) for stop, n in zip(stops, sizes, strict=True)]
    x = np.ones((stops[-1], *shape)) if ones else rng.normal(size=(stops[-1], *shape))
    y = np.arange(stops[-1]) % 3
    return Federation.from_arrays(x.astype(np.float32), y, rows, test=(x[:3].astype(np.float32), y[:3]))


def session_of(module, federation=None, **overrides):
    federation = federation or build_federation()
    asked = {"train.epochs": 2, "train.batch_size": 4, "train.lr": 0.1, "engine.precision": "fp64"}
    overrides = {key.replace("__", "."): value for key, value in overrides.items()}
    return Session(describe_experiment(None, None, {**asked, **overrides}, federation, module), federation, module)


def lane_of(work, pad=False):
    data = work.federation.train
    return Trainer(work.plan.local, data.x, data.y, int(work.federation.train_split.sizes.max()), pad=pad)


def context(trainer, work, client=0, round=0):
    down = work.initial_state().model.wire()
    return trainer.run_task(work.federation.client(client), Task(client, round, 0, down=down), {})[0]


def batches_of(work, client, round=0):
    """Return the batches of a client update, from the same streams."""
    local, rows = work.plan.local, work.federation.train_split[client]
    for epoch in range(local.epochs):
        order = rows[local.streams(f"epoch-{epoch}", round=round, client=client).permutation(len(rows))]
        yield from (order[i : i + local.batch_size] for i in range(0, len(rows), local.batch_size))


def textbook(work, client, optimizer, round=0, skip_single=False):
    """Train as any tutorial does; give the module, and the mean loss over the samples trained on."""
    module, data, losses = work.plan.local.build().double(), work.federation.train, []
    steps = optimizer([p for p in module.parameters() if p.requires_grad])
    for rows in batches_of(work, client, round):
        if skip_single and len(rows) == 1:
            continue
        module.train()
        steps.zero_grad()
        each = cross_entropy(module(data.x[rows].double()), data.y[rows], reduction="none")
        each.mean().backward()
        steps.step()
        losses += each.tolist()
    return module, np.mean(losses)


def trained(work, report):
    """Return the client's model by name."""
    start = work.initial_state().model
    moved = start.params + report.aggregated["update"]
    return work.plan.space.named(FlatModel(moved, start.buffers + report.aggregated.get("buffers", 0)))


def normed():
    """Return a network with a norm layer.

    A bias before it would have no gradient but rounding, which Adam scales up.
    """
    torch.manual_seed(3)
    first = nn.Linear(4, 6, bias=False)
    return nn.Sequential(OrderedDict(fc=first, norm=nn.BatchNorm1d(6), act=nn.ReLU(), head=nn.Linear(6, 3)))


def dropping(p=0.5, width=4):
    torch.manual_seed(4)
    return nn.Sequential(OrderedDict(drop=nn.Dropout(p), head=nn.Linear(width, 3)))


# ---- against textbook PyTorch ----------------------------------------------------------------------------------------

MODELS = {
    "mlp": (lambda: Mlp(hidden=(6, 5)).build((4,), 3), (4,)),
    "lenet5": (lambda: LeNet5().build((1, 8, 8), 3), (1, 8, 8)),
    "norm": (normed, (4,)),
}
OPTIMIZERS = {
    "sgd": ({"kind": "sgd"}, partial(torch.optim.SGD, lr=0.1)),
    "momentum": (
        {"kind": "sgd", "momentum": 0.9, "weight_decay": 0.01},
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.01),
    ),
    "adam": ({"kind": "adam"}, partial(torch.optim.Adam, lr=0.1)),
    "adam with decay": (
        {"kind": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.02},
        partial(torch.optim.Adam, lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.02),
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_visit_is_textbook_training(model, optimizer):
    (build, shape), (asked, reference) = MODELS[model], OPTIMIZERS[optimizer]
    torch.manual_seed(0)
    work = session_of(build(), build_federation(shape=shape), train__optimizer=asked)
    trainer = lane_of(work)
    for client, round in ((2, 0), (0, 1), (1, 0)):  # 17, 9 and 3 samples in batches of 4; 17 and 9 leave a single one
        report = context(trainer, work, client, round)
        module, loss = textbook(work, client, reference, round, skip_single=model == "norm")
        end, own = trained(work, report), module.state_dict()
        for name in end:
            close(end[name], own[name])
        assert float(report.loss) == pytest.approx(loss, abs=1e-12)
        assert float(report.update_norm) == pytest.approx(float(report.aggregated["update"].norm()), abs=1e-12)
    assert any("running_var" in name for name in end) == (model == "norm")


def test_a_visit_reports_samples_and_steps():
    work = session_of(normed())
    reports = [context(lane_of(work), work, client) for client in range(3)]
    assert [r.samples for r in reports] == [9, 3, 17]
    assert [r.steps for r in reports] == [4, 2, 8]  # two epochs, singles left out
    assert [context(lane_of(session_of(dropping())), session_of(dropping()), c).steps for c in range(3)] == [6, 2, 10]


def test_more_batches_than_the_ring_holds():
    federation = build_federation(sizes=(RING + 7, 5))
    work = session_of(Mlp(hidden=(3,)).build((4,), 3), federation, train__batch_size=1)
    reference = partial(torch.optim.SGD, lr=0.1)
    for pad in (False, True):
        report = context(lane_of(work, pad), work)
        module, loss = textbook(work, 0, reference)
        close(
            work.initial_state().model.params + report.aggregated["update"],
            parameters_to_vector(module.parameters()).detach(),
        )
        assert report.steps == 2 * (RING + 7)
        assert float(report.loss) == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "lenet5", "dropout"])
def test_a_padded_lane_equals_an_exact_one(model, optimizer):
    build, shape = {**MODELS, "dropout": (dropping, (4,))}[model]
    work = session_of(build(), build_federation(shape=shape), train__optimizer=OPTIMIZERS[optimizer][0])
    exact, padded = lane_of(work), lane_of(work, pad=True)
    for client in (2, 1, 0):
        one, other = context(exact, work, client), context(padded, work, client)
        close(one.aggregated["update"], other.aggregated["update"])
        assert float(one.loss) == pytest.approx(float(other.loss), abs=1e-12)
        assert one.steps == other.steps


def test_the_step_size_follows_the_schedule():
    module = Mlp(hidden=()).build((4,), 3)
    halved = {"kind": "step", "every": 1, "by": 0.5}
    work = session_of(module, train__lr_schedule=halved, train__epochs=1, train__batch_size=99)
    trainer = lane_of(work)
    first, third = (context(trainer, work, round=r).aggregated["update"] for r in (0, 2))
    close(third, first / 4)


# ---- norm layers -----------------------------------------------------------------------------------------------------


def test_a_single_sample_that_is_all_there_is_trains_on_running_statistics():
    work = session_of(normed(), build_federation(sizes=(1, 6)), train__epochs=1)
    trainer = lane_of(work)
    context(trainer, work, 1)
    report = context(trainer, work, 0)
    module, data = work.plan.local.build().double().eval(), work.federation.train
    cross_entropy(module(data.x[:1].double()), data.y[:1]).backward()
    close(report.aggregated["update"], -0.1 * parameters_to_vector(p.grad for p in module.parameters()))
    assert report.steps == 1
    assert report.aggregated["buffers"].tolist() == [0.0] * 12


def test_norm_layers_train_again_after_a_single_sample():
    work = session_of(normed(), build_federation(sizes=(1, 6)))
    used, fresh = lane_of(work), lane_of(work)
    context(used, work, 0)
    for name, tensor in context(fresh, work, 1).aggregated.items():
        assert torch.equal(context(used, work, 1).aggregated[name], tensor)
        assert tensor.abs().max() > 0


def test_cumulative_statistics_count_from_the_start_of_every_visit():
    module = normed()
    module.norm.momentum = None  # the running mean is then a plain mean over the batches counted so far
    work = session_of(module)
    trainer = lane_of(work)
    context(trainer, work, 0)
    report = context(trainer, work, 2)
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1), skip_single=True)
    close(trained(work, report)["norm.running_mean"], by_hand.norm.running_mean)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def masks_of(work, client=0, round=0, before=()):
    """Return what a dropout layer let through of ones, step by step."""
    trainer, seen = lane_of(work), []
    for other in before:
        context(trainer, work, other)
    trainer.network.module.drop.register_forward_hook(lambda _m, _a, out: seen.append(out.detach().clone()))
    context(trainer, work, client, round)
    return torch.stack(seen)


@pytest.fixture
def ones():
    return build_federation(sizes=(40, 40, 40), shape=(50,), ones=True)


@pytest.mark.parametrize("p", [0.2, 0.5])
def test_dropout_has_the_right_rate_and_scale(ones, p):
    through = masks_of(session_of(dropping(p, 50), ones, train__batch_size=20))
    assert through.shape == (4, 20, 50)
    assert set(through.unique().tolist()) == {0.0, 1 / (1 - p)}
    share, cells = (through == 0).double().mean().item(), through.numel()
    assert abs(share - p) < 4 * (p * (1 - p) / cells) ** 0.5  # four standard errors
    for axis in ((0, 1), (0, 2)):  # no column and no row is favoured
        spread = (through == 0).double().mean(axis) - p
        assert spread.abs().max() < 5 * (p * (1 - p) / 80) ** 0.5


def test_dropout_depends_on_the_visit_and_on_nothing_else(ones):
    work = session_of(dropping(0.5, 50), ones, train__batch_size=20)
    masks = masks_of(work)
    torch.manual_seed(99)
    assert torch.equal(masks, masks_of(work, before=(1, 2)))
    others = [*masks[1:], masks_of(work, client=1)[0], masks_of(work, round=1)[0]]
    others.append(masks_of(session_of(dropping(0.5, 50), ones, train__batch_size=20, train__seed=1))[0])
    for other in others:
        assert 0.4 < (other == masks[0]).double().mean().item() < 0.6  # independent bits agree half of the time


class Twice(nn.Module):
    """Dropout in two places of the same width, as most residual and recurrent networks have it."""

    def __init__(self, how):
        super().__init__()
        self.how, self.drop, self.head = how, nn.Dropout(0.5), nn.Linear(50, 3)
        self.again = self.drop if how == "one layer under two names" else nn.Dropout(0.5)

    def forward(self, x):
        again = self.drop if self.how == "one layer called twice" else self.again
        self.masks = [self.drop(x), again(x)]
        return self.head(sum(self.masks))


@pytest.mark.parametrize("how", ["two layers", "one layer under two names", "one layer called twice"])
def test_every_use_of_dropout_has_bits_of_its_own(ones, how):
    work = session_of(Twice(how), ones, train__batch_size=20)
    trainer = lane_of(work)
    context(trainer, work)
    one, other = trainer.network.module.masks
    assert 0.4 < (one == other).double().mean().item() < 0.6


@pytest.mark.parametrize("how", ["two layers", "one layer under two names"])
def test_no_dropout_layer_is_left_to_the_global_generator(ones, how):
    layers = lane_of(session_of(Twice(how), ones)).network.modules()
    assert not any(isinstance(layer, nn.Dropout) for layer in layers)


def test_dropout_of_whole_channels():
    module = nn.Sequential(OrderedDict(drop=nn.Dropout2d(0.5), flat=nn.Flatten(), head=nn.Linear(8 * 3 * 3, 3)))
    through = masks_of(session_of(module, build_federation(sizes=(8, 8), shape=(8, 3, 3), ones=True)))
    flat = through.flatten(3)
    assert (flat == flat[..., :1]).all()
    assert set(flat.unique().tolist()) == {0.0, 2.0}


class Functional(nn.Module):
    """Draws from torch's global generator."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        self.last = functional.dropout(x, 0.5, training=self.training)
        return self.head(self.last)


def test_functional_dropout_is_tied_to_the_visit_too():
    work = session_of(Functional())
    used, fresh = lane_of(work), lane_of(work)
    context(used, work, 2)
    torch.manual_seed(99)
    report = context(used, work, 0)
    torch.manual_seed(7)
    assert torch.equal(report.aggregated["update"], context(fresh, work, 0).aggregated["update"])
    assert not torch.equal(report.aggregated["update"], context(fresh, work, 0, round=1).aggregated["update"])
    assert (fresh.network.module.last == 0).any()


@pytest.mark.parametrize("build", [Functional, dropping, normed])
def test_a_visit_leaves_the_callers_generator_alone(build):
    work = session_of(build())
    trainer = lane_of(work)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    context(trainer, work)
    looking(trainer, work).score_samples()
    assert torch.equal(torch.get_rng_state(), before)


def looking(trainer, work):
    return trainer.make_context(work.federation.client(0), Task(0, 0, 0, down=work.initial_state().model.wire()), {})


# ---- looking without training ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [normed, dropping, Functional, lambda: Mlp(hidden=(6,)).build((4,), 3)])
def test_at_is_the_modules_own_forward_pass_in_eval_mode(build):
    work = session_of(build())
    trainer, x = lane_of(work), torch.randn(7, 4, dtype=torch.float64)
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
def test_peek_tells_loss_and_probabilities_of_the_received_model(monkeypatch, chunk):
    monkeypatch.setattr("fedstrata.client.probe.CHUNK", chunk)
    work = session_of(normed())
    trainer = lane_of(work)
    context(trainer, work, 2)
    context(trainer, work, 1)  # training moved the worker's weights; the received model is what counts
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
    trainer = lane_of(work)
    report = context(trainer, work, 2)
    assert [p.name for p in work.plan.space.params] == ["head.weight", "head.bias"]
    assert report.aggregated["update"].numel() == work.plan.space.P == 6 * 3 + 3
    close(trainer.network.module.layer0.weight, module.layer0.weight.double())
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1))
    close(trained(work, report)["head.weight"], by_hand.head.weight.detach())


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
    trainer = lane_of(work)
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
    report = context(lane_of(work), work, 2)
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1))
    close(trained(work, report)["head.weight"], by_hand.head.weight.detach())
    assert report.aggregated.get("buffers", torch.zeros(1)).abs().max() == 0


def test_what_is_trained_does_not_depend_on_the_client_before():
    work = session_of(normed(), train__optimizer={"kind": "adam"})
    used, fresh = lane_of(work), lane_of(work)
    context(used, work, 2)
    one, other = context(used, work, 0), context(fresh, work, 0)
    assert torch.equal(one.aggregated["update"], other.aggregated["update"])
    assert torch.equal(one.aggregated["buffers"], other.aggregated["buffers"])


def test_a_report_does_not_change_when_the_lane_goes_on():
    work = session_of(normed())
    trainer = lane_of(work)
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
    context(lane_of(work), work)
