"""A client update of the trainer against textbook PyTorch: steps, norm layers, dropout."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import pytest
import torch
from by_hand import (
    Functional,
    build_federation,
    close,
    context,
    dropping,
    looking,
    normed,
    session_of,
    textbook,
    trained,
    trainer_of,
)
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector

from fedstrata.client.local_step import RING
from fedstrata.models.lenet5 import LeNet5
from fedstrata.models.mlp import Mlp

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
    "adamw": ({"kind": "adamw"}, partial(torch.optim.AdamW, lr=0.1)),
    "adamw, strong": ({"kind": "adamw", "weight_decay": 0.5}, partial(torch.optim.AdamW, lr=0.1, weight_decay=0.5)),
    "adam with decay": (
        {"kind": "adam", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6, "weight_decay": 0.02},
        partial(torch.optim.Adam, lr=0.1, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.02),
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", MODELS)
def test_a_client_update_is_textbook_training(model, optimizer):
    (build, shape), (asked, reference) = MODELS[model], OPTIMIZERS[optimizer]
    torch.manual_seed(0)
    work = session_of(build(), build_federation(shape=shape), train__optimizer=asked)
    trainer = trainer_of(work)
    for client, round in ((2, 0), (0, 1), (1, 0)):  # 17, 9 and 3 samples in batches of 4; 17 and 9 leave a single one
        report = context(trainer, work, client, round)
        module, loss = textbook(work, client, reference, round, skip_single=model == "norm")
        end, own = trained(work, report), module.state_dict()
        for name in end:  # Adam divides even the faintest gradient by its own size, and its rounding with it
            torch.testing.assert_close(end[name], own[name], rtol=0, atol=1e-11)
        assert float(report.loss) == pytest.approx(loss, abs=1e-12)
        assert float(report.update_norm) == pytest.approx(float(report.aggregated["update"].norm()), abs=1e-12)
    assert any("running_var" in name for name in end) == (model == "norm")


def test_a_client_update_reports_samples_and_steps():
    work = session_of(normed())
    reports = [context(trainer_of(work), work, client) for client in range(3)]
    assert [r.samples for r in reports] == [9, 3, 17]
    assert [r.steps for r in reports] == [4, 2, 8]  # two epochs, singles left out
    work = session_of(dropping())
    assert [context(trainer_of(work), work, client).steps for client in range(3)] == [6, 2, 10]


def test_more_batches_than_the_ring_holds():
    federation = build_federation(sizes=(RING + 7, 5))
    work = session_of(Mlp(hidden=(3,)).build((4,), 3), federation, train__batch_size=1)
    reference = partial(torch.optim.SGD, lr=0.1)
    for pad in (False, True):
        report = context(trainer_of(work, pad), work)
        module, loss = textbook(work, 0, reference)
        close(
            work.initial_state().model.params + report.aggregated["update"],
            parameters_to_vector(module.parameters()).detach(),
        )
        assert report.steps == 2 * (RING + 7)
        assert float(report.loss) == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("model", ["mlp", "lenet5", "dropout"])
def test_a_padded_trainer_equals_an_exact_one(model, optimizer):
    build, shape = {**MODELS, "dropout": (dropping, (4,))}[model]
    work = session_of(build(), build_federation(shape=shape), train__optimizer=OPTIMIZERS[optimizer][0])
    exact, padded = trainer_of(work), trainer_of(work, pad=True)
    for client in (2, 1, 0):
        one, other = context(exact, work, client), context(padded, work, client)
        close(one.aggregated["update"], other.aggregated["update"])
        assert float(one.loss) == pytest.approx(float(other.loss), abs=1e-12)
        assert one.steps == other.steps


class Laid(nn.Module):
    """Notes whether its images have their channels last; one that flattens with `view` cannot have them so."""

    def __init__(self, channels, views):
        super().__init__()
        self.conv, self.pool = nn.Conv2d(channels, 4, 3, padding=1), nn.MaxPool2d(2)
        self.head, self.views, self.seen = nn.Linear(4 * 4 * 4, 3), views, []

    def forward(self, x):
        x = self.pool(self.conv(x).relu())
        self.seen.append(x.is_contiguous(memory_format=torch.channels_last))
        return self.head(x.view(len(x), -1) if self.views else x.flatten(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_images_have_their_channels_last_where_the_module_takes_them_so(channels):
    made = []
    for views in (False, True):
        torch.manual_seed(0)
        work = session_of(Laid(channels, views), build_federation(shape=(channels, 8, 8)))
        trainer = trainer_of(work)
        update = context(trainer, work, 2).aggregated["update"]
        made.append((update, trainer.network.module.seen[-1]))
    (last, is_last), (first, is_not) = made
    assert is_last
    assert not is_not
    close(last, first)


def test_the_step_size_follows_the_schedule():
    module = Mlp(hidden=()).build((4,), 3)
    halved = {"kind": "step", "every": 1, "by": 0.5}
    work = session_of(module, train__lr_schedule=halved, train__epochs=1, train__batch_size=99)
    trainer = trainer_of(work)
    first, third = (context(trainer, work, round=r).aggregated["update"] for r in (0, 2))
    close(third, first / 4)


# ---- norm layers -----------------------------------------------------------------------------------------------------


def test_a_single_sample_that_is_all_there_is_trains_on_running_statistics():
    work = session_of(normed(), build_federation(sizes=(1, 6)), train__epochs=1)
    trainer = trainer_of(work)
    context(trainer, work, 1)
    report = context(trainer, work, 0)
    module, data = work.plan.local.build().double().eval(), work.federation.train
    cross_entropy(module(data.x[:1].double()), data.y[:1]).backward()
    close(report.aggregated["update"], -0.1 * parameters_to_vector(p.grad for p in module.parameters()))
    assert report.steps == 1
    assert report.aggregated["buffers"].tolist() == [0.0] * 12


def test_norm_layers_train_again_after_a_single_sample():
    work = session_of(normed(), build_federation(sizes=(1, 6)))
    used, fresh = trainer_of(work), trainer_of(work)
    context(used, work, 0)
    for name, tensor in context(fresh, work, 1).aggregated.items():
        assert torch.equal(context(used, work, 1).aggregated[name], tensor)
        assert tensor.abs().max() > 0


def test_cumulative_statistics_count_from_the_start_of_every_client_update():
    module = normed()
    module.norm.momentum = None  # the running mean is then a plain mean over the batches counted so far
    work = session_of(module)
    trainer = trainer_of(work)
    context(trainer, work, 0)
    report = context(trainer, work, 2)
    by_hand, _ = textbook(work, 2, partial(torch.optim.SGD, lr=0.1), skip_single=True)
    close(trained(work, report)["norm.running_mean"], by_hand.norm.running_mean)


# ---- dropout ---------------------------------------------------------------------------------------------------------


def masks_of(work, client=0, round=0, before=()):
    """Return what a dropout layer let through of ones, step by step."""
    trainer, seen = trainer_of(work), []
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


def test_dropout_depends_on_the_client_update_and_on_nothing_else(ones):
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
    trainer = trainer_of(work)
    context(trainer, work)
    one, other = trainer.network.module.masks
    assert 0.4 < (one == other).double().mean().item() < 0.6


@pytest.mark.parametrize("how", ["two layers", "one layer under two names"])
def test_no_dropout_layer_is_left_to_the_global_generator(ones, how):
    layers = trainer_of(session_of(Twice(how), ones)).network.modules()
    assert not any(isinstance(layer, nn.Dropout) for layer in layers)


def test_dropout_of_whole_channels():
    module = nn.Sequential(OrderedDict(drop=nn.Dropout2d(0.5), flat=nn.Flatten(), head=nn.Linear(8 * 3 * 3, 3)))
    through = masks_of(session_of(module, build_federation(sizes=(8, 8), shape=(8, 3, 3), ones=True)))
    flat = through.flatten(3)
    assert (flat == flat[..., :1]).all()
    assert set(flat.unique().tolist()) == {0.0, 2.0}


def test_functional_dropout_is_tied_to_the_client_update_too():
    work = session_of(Functional())
    used, fresh = trainer_of(work), trainer_of(work)
    context(used, work, 2)
    torch.manual_seed(99)
    report = context(used, work, 0)
    torch.manual_seed(7)
    assert torch.equal(report.aggregated["update"], context(fresh, work, 0).aggregated["update"])
    assert not torch.equal(report.aggregated["update"], context(fresh, work, 0, round=1).aggregated["update"])
    assert (fresh.network.module.last == 0).any()


@pytest.mark.parametrize("build", [Functional, dropping, normed])
def test_a_client_update_leaves_the_callers_generator_alone(build):
    work = session_of(build())
    trainer = trainer_of(work)
    torch.manual_seed(5)
    before = torch.get_rng_state()
    context(trainer, work)
    looking(trainer, work).score_samples()
    assert torch.equal(torch.get_rng_state(), before)
