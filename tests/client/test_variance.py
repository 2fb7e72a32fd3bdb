"""How much a client's samples differ under the model it received: in their losses, in their gradients."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata.client import probe
from fedstrata.client.trainer import Trainer
from fedstrata.core.machine.threads import one_thread
from fedstrata.core.messages import Task
from fedstrata.data.federation import Federation
from fedstrata.methods.corrections.prox import Prox
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing.tiny import run_rounds, same, session_of

OF = ["loss", "gradient", "head-gradient"]
ALL = {"train.clients_per_round": "all"}


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def work_with(module, x, y, rows=None, **overrides):
    """Prepare a run of one's own network on one's own samples; one client holds them all, unless told otherwise."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y)
    rows = [np.arange(len(y))] if rows is None else rows
    federation = Federation.from_arrays(x, y, rows, test=(x[:1], y[:1]))
    asked = {"engine.precision": "fp64", "train.batch_size": 4, "train.epochs": 2, **ALL, **overrides}
    return build_session(describe_experiment(None, None, asked, federation, module), federation, module)


def looking(work, client=0, down=None):
    """Let a client look at its samples with the received model, as a client update does."""
    data, local = work.federation.train, work.plan.local
    trainer = Trainer(local, data.x, data.y, int(work.federation.train_split.sizes.max()))
    task = Task(client, 0, 0, down=down or work.initial_state().model.wire())
    context = trainer.make_context(work.federation.client(client), task, {})
    trainer.load(task.down)
    return trainer, context


# ---- oracles ---------------------------------------------------------------------------------------------------------


def bare(weight, inputs=1):
    """Return a network that is a last layer and nothing else."""
    module = nn.Sequential(OrderedDict(head=nn.Linear(inputs, 2, bias=False)))
    module.head.weight.data = torch.tensor(weight)
    return module


def test_variance_of_four_losses():
    """With logits (x, 0) and label 0, a loss l is log(1 + e^-x)."""
    losses = np.array([0.2, 0.4, 1.4, 2.0])
    x = -np.log(np.expm1(losses))
    work = work_with(bare([[1.0], [0.0]]), np.append(x, 5.0)[:, None], [0, 0, 0, 0, 1], [np.arange(4), [4]])
    _, context = looking(work)
    assert context.score_samples().losses == pytest.approx(losses, abs=1e-12)
    assert context.sample_variance("loss", None) == pytest.approx(0.54, abs=1e-12)
    assert context.batch_variance("loss") == pytest.approx(0.54, abs=1e-12)  # one batch of four is everything


@pytest.mark.parametrize("of", ["gradient", "head-gradient"])
def test_variance_of_four_gradients(of):
    """Of gradients (1, 0), (3, 0), (1, 2), (3, 2): mean (2, 1), variance 2.

    At weights 0 a sample's gradient is (-x/2, x/2) in the rows of both labels: as long as u for x = sqrt(2) u.
    """
    u = np.array([(1, 0), (3, 0), (1, 2), (3, 2), (7, 7)])
    work = work_with(bare([[0.0, 0.0], [0.0, 0.0]], 2), np.sqrt(2) * u, [0, 0, 0, 0, 1], [np.arange(4), [4]])
    _, context = looking(work)
    assert context.sample_variance(of, None) == pytest.approx(2.0, abs=1e-12)


# ---- against a plain loop of autograd --------------------------------------------------------------------------------


def conv():
    layers = OrderedDict(
        conv=nn.Conv2d(1, 3, 3), act=nn.ReLU(), pool=nn.MaxPool2d(2), flat=nn.Flatten(), fc=nn.Linear(12, 5)
    )
    return nn.Sequential(layers | {"tanh": nn.Tanh(), "head": nn.Linear(5, 3)})


def normed():
    norm = nn.BatchNorm2d(3)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    layers = OrderedDict(conv=nn.Conv2d(1, 3, 3), norm=norm, act=nn.PReLU(), flat=nn.Flatten())
    return nn.Sequential(layers | {"head": nn.Linear(48, 3, bias=False)})


def dropping():
    layers = OrderedDict(flat=nn.Flatten(), fc=nn.Linear(36, 6), act=nn.ReLU(inplace=True), drop=nn.Dropout(0.5))
    return nn.Sequential(layers | {"head": nn.Linear(6, 3)})


def layered_head():
    """A last layer that is not linear: a norm and what comes before it."""

    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(3, 6)), nn.Parameter(torch.randn(3))

        def forward(self, x):
            return self.scale * torch.tanh(x @ self.weight.T)

    return nn.Sequential(OrderedDict(flat=nn.Flatten(), fc=nn.Linear(36, 6), head=Scaled()))


def frozen_below():
    module = dropping()
    module.fc.requires_grad_(False)
    return module


def frozen_in_the_head():
    module = dropping()
    module.head.weight.requires_grad_(False)
    return module


NETWORKS = {f.__name__: f for f in (conv, normed, dropping, layered_head, frozen_below, frozen_in_the_head)}


def images(network, **overrides):
    torch.manual_seed(5)
    rng = np.random.default_rng(6)
    module = NETWORKS[network]()
    return work_with(module, rng.normal(size=(11, 1, 6, 6)), np.arange(11) * 2 % 3, **overrides)


def gradients_by_hand(work, head_only):
    """Return one gradient a sample, in eval mode, by plain autograd."""
    module, data = work.plan.local.build().double().eval(), work.federation.train
    params = list((module.head if head_only else module).parameters())
    params = [p for p in params if p.requires_grad]
    each = []
    for x, y in zip(data.x.double(), data.y, strict=True):
        grads = torch.autograd.grad(cross_entropy(module(x[None]), y[None]), params)
        each.append(torch.cat([g.flatten() for g in grads]))
    return torch.stack(each)


def mean_square_distance(gradients):
    return (gradients - gradients.mean(0)).square().sum(1).mean().item()


@pytest.mark.parametrize("of", ["gradient", "head-gradient"])
@pytest.mark.parametrize("network", NETWORKS)
def test_gradients_are_those_of_single_samples_in_eval_mode(network, of):
    work = images(network)
    expected = mean_square_distance(gradients_by_hand(work, of == "head-gradient"))
    _, context = looking(work)
    assert expected > 1e-3
    assert context.sample_variance(of, None) == pytest.approx(expected, rel=1e-10)
    some = np.array([0, 3, 4, 9])
    expected = mean_square_distance(gradients_by_hand(work, of == "head-gradient")[some])
    assert context.sample_variance(of, some) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("of", OF)
@pytest.mark.parametrize("network", ["conv", "normed"])
def test_samples_that_do_not_fit_at_once_are_taken_some_at_a_time(network, of, monkeypatch):
    work = images(network)
    whole = looking(work)[1].sample_variance(of, None)
    monkeypatch.setattr(probe, "CHUNK", 4)
    monkeypatch.setattr(probe, "GRADIENTS", 3 * work.plan.space.P)
    assert looking(work)[1].sample_variance(of, None) == pytest.approx(whole, rel=1e-12)


@pytest.mark.parametrize(("name", "shape"), [("lenet5", (1, 8, 8)), ("resnet20", (3, 8, 8))])
def test_networks_by_name_give_gradients_of_single_samples(name, shape):
    x = np.random.default_rng(1).normal(size=(3, *shape)).astype(np.float32)
    federation = Federation.from_arrays(x, np.arange(3), [np.arange(3)], test=(x[:1], np.zeros(1, dtype=int)))
    asked = {"model.name": name, "engine.precision": "fp64"}
    work = build_session(describe_experiment(None, None, asked, federation, None), federation, None)
    expected = mean_square_distance(gradients_by_hand(work, head_only=False))
    assert looking(work)[1].sample_variance("gradient", None) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("of", OF)
def test_one_sample_has_no_variance_and_neither_have_copies_of_it(of):
    rng = np.random.default_rng(0)
    x = np.repeat(rng.normal(size=(3, 1, 6, 6)), (1, 5, 3), axis=0)
    torch.manual_seed(0)
    work = work_with(conv(), x, np.repeat(np.arange(3), (1, 5, 3)), [[0], np.arange(1, 6), np.arange(6, 9)])
    for client in range(3):
        assert looking(work, client)[1].batch_variance(of) == pytest.approx(0.0, abs=1e-12)


# ---- which model, which batch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", OF)
def test_it_is_the_received_model_that_looks_whatever_was_trained_before(of):
    work = images("normed")
    trainer, context = looking(work)
    before = context.sample_variance(of, None)
    trainer.run_task(
        work.federation.client(0), Task(0, 0, 0, down=work.initial_state().model.wire()), {}
    )  # moves weights, statistics
    fresh = trainer.make_context(work.federation.client(0), Task(0, 0, 0, down=work.initial_state().model.wire()), {})
    assert fresh.sample_variance(of, None) == before
    other = {**work.initial_state().model.wire(), "params": work.initial_state().model.params * 1.5}
    assert looking(work, down=other)[1].sample_variance(of, None) != pytest.approx(before)


@pytest.mark.parametrize("of", OF)
def test_what_is_told_after_training_is_of_before_it(of):
    work = session_of({"method.corrections": [Prox(when="unstable", gate=of)], "train.batch_size": 50, **ALL})
    ((outcome,),) = run_rounds(work, 1)[1]
    name = f"{of}-variance".replace("-", "_")
    for report in outcome.reports:
        expected = looking(work, report.client)[1].sample_variance(of, None)
        assert report.metrics[name] == pytest.approx(expected, rel=1e-12)


def test_a_batch_is_drawn_without_replacement_and_no_larger_than_the_client():
    work = session_of({"train.batch_size": 4})
    for client, n in enumerate(work.federation.train_split.sizes):
        batch = looking(work, client)[1].batch()
        assert len(np.unique(batch)) == len(batch) == min(4, n)
        assert (batch >= 0).all()
        assert (batch < n).all()


@pytest.mark.parametrize("layers", ["all", "last"])
def test_probe_and_training_look_at_the_same_batch(layers):
    """What a client told when it was probed is what it tells when it trains: same model, same batch."""
    by = {"all": "gradient", "last": "head-gradient"}[layers]
    asked = {"method.selector": {"kind": "sur", "layers": layers}, "method.combiner": {"kind": "soft", "by": by}}
    _, rounds = run_rounds(session_of(asked))
    for probing, train in rounds:
        probed = {r.client: r.metrics["gradient_variance"] for r in probing.reports}
        for report in train.reports:
            assert report.metrics[f"{by}-variance".replace("-", "_")] == probed[report.client]


def test_batches_differ_between_rounds_and_clients():
    work = session_of({"train.batch_size": 4})
    trainer, _ = looking(work)
    down = work.initial_state().model.wire()
    drawn = {
        (client, round): trainer.make_context(
            work.federation.client(client), Task(client, round, 0, down=down), {}
        ).batch()
        for client in (2, 4)
        for round in range(3)
    }
    assert len({tuple(batch) for batch in drawn.values()}) == 6


# ---- it costs what it must and disturbs nothing ----------------------------------------------------------------------


def forwards(trainer):
    """Count forward passes of a trainer's network."""
    seen = []
    trainer.network.module.register_forward_hook(lambda *_: seen.append(1))
    return seen


@pytest.mark.parametrize("of", OF)
def test_what_was_seen_once_is_not_computed_again(of):
    trainer, context = looking(images("conv"))
    seen = forwards(trainer)
    first = context.batch_variance(of)
    passes, work = len(seen), context.probe_work.samples
    assert context.batch_variance(of) == context.sample_variance(of, context.batch()) == first
    assert len(seen) == passes > 0
    assert context.probe_work.samples == work


def test_after_a_look_at_everything_losses_of_a_batch_cost_nothing():
    trainer, context = looking(images("conv"))
    seen = forwards(trainer)
    score_samples = context.score_samples()
    passes, work = len(seen), context.probe_work.samples
    some = np.array([1, 5, 7])
    assert context.sample_variance("loss", some) == pytest.approx(score_samples.losses[some].var(), rel=1e-12)
    assert context.score_samples(some).losses.tolist() == score_samples.losses[some].tolist()
    assert (len(seen), context.probe_work.samples) == (passes, work)


def test_a_look_at_some_samples_is_not_taken_for_a_look_at_all():
    _, context = looking(images("conv"))
    some = np.array([1, 5])
    assert len(context.score_samples(some).losses) == 2
    assert len(context.score_samples().losses) == 11
    assert context.sample_variance("loss", some) != context.sample_variance("loss", None)


@pytest.mark.parametrize(("of", "cost"), [("loss", 1 / 3), ("head-gradient", 1 / 3), ("gradient", 1.0)])
def test_looking_is_charged_as_work(of, cost):
    """Forward and back is one; forward alone a third of it."""
    probed, plain = (
        run_rounds(session_of({"method.corrections": parts, **ALL}), 1)[1][0][0].reports
        for parts in ([Prox(mu=0.0, when="unstable", gate=of)], [])
    )
    for one, other in zip(probed, plain, strict=True):
        batch = min(4, one.samples)
        assert other.work == 2 * one.samples
        assert one.work == pytest.approx(other.work + cost * batch)


def test_a_probe_is_charged_as_work():
    for layers, cost in (("all", 1.0), ("last", 1 / 3)):
        _, ((probe, _), *_) = run_rounds(session_of({"method.selector": {"kind": "sur", "layers": layers}}), 1)
        assert [r.work for r in probe.reports] == pytest.approx([cost * min(4, r.samples) for r in probe.reports])


@pytest.mark.parametrize("of", OF)
@pytest.mark.parametrize("network", ["normed", "dropping"])
def test_looking_disturbs_neither_norm_statistics_nor_what_dropout_draws(network, of):
    """With mu = 0 a client that looks trains as one that does not, bit for bit."""
    probed, plain = (
        run_rounds(images(network, **{"method.corrections": parts}), 2)[0]
        for parts in ([Prox(mu=0.0, when="unstable", gate=of)], [])
    )
    assert same(probed, plain)


@pytest.mark.filterwarnings("ignore:features are not on one scale")
def test_a_loss_that_is_not_finite_has_no_variance():
    """The client will be dropped; until then nothing may fail."""
    x = np.array([1.0, 1e308, -1e308, 2.0])[:, None]
    work = work_with(bare([[1.0], [-1.0]]), x, [0, 1, 0, 1])
    _, context = looking(work)
    with np.errstate(all="ignore"):
        assert not np.isfinite(context.sample_variance("loss", None))
