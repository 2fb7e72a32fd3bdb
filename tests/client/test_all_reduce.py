"""Norms that meet, the exact gradient of a global batch, and the place where clients meet; in double precision."""

from __future__ import annotations

import copy
from collections import OrderedDict
from functools import partial
from threading import Thread
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from meeting import NUMBER, build_federation, close, conv, dense, near, session_of, tensor
from torch import nn
from waiting import PATIENCE

from fedstrata.client.all_reduce import run_in_lockstep
from fedstrata.client.trainer import Trainer
from fedstrata.core.batch_norm import Norms
from fedstrata.core.client_context import Gradient
from fedstrata.core.client_parts import LearningRate
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Report, Task, weighted_sum
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.methods.lr_schedules import Constant
from fedstrata.methods.optimizers.at_server import AtServer, OptimizerMemory
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.methods.schedules.take import Take

# ---- the exact gradient of a global batch ----------------------------------------------------------------------------


def test_sums_of_gradients_give_the_centralised_step_and_means_of_client_means_do_not():
    w, lr, reports = tensor([0.2, -0.1]), 0.5, {}
    x, y = tensor([[1, 0], [0, 1], [1, 1], [2, 1]]), tensor([1, 0, 1, 0])
    for client, (held, expected) in enumerate([([0, 1, 2], [-1.7, -1.0]), ([3], [0.6, 0.3])]):
        total = x[held].T @ (x[held] @ w - y[held])  # of half the squared error
        client_state = {"held": torch.tensor(held), "ahead": torch.zeros(2, 3)}
        done = Take().gradient(
            SimpleNamespace(client_state=client_state, gradient=lambda _, g=total: Gradient(g, torch.zeros(())))
        )
        close(-done.aggregated["update"] * done.samples, tensor(expected))
        reports[client] = Report(client, done.samples, aggregated=done.aggregated)

    def gradient(combiner):
        arrived = SimpleNamespace(reports=list(reports.values()), weights=np.ones(2))
        arrived.sum = lambda weights: weighted_sum(reports, dict(enumerate(weights)))
        sums = combiner.combine(None, None, None, arrived)
        view, model = (
            SimpleNamespace(round=0, part=(0, 1), space=ParameterSpace((), (), *[slice(0)] * 3)),
            FlatModel(w, w[:0]),
        )
        server, proposal = AtServer(Sgd(), LearningRate(lr, Constant(), 1)), FlatModel(w + sums.total["update"], w[:0])
        return (w - server.step(OptimizerMemory({}), view, model, proposal, sums).params) / lr

    close(gradient(SizeWeighted()), tensor([-0.275, -0.175]))
    close(gradient(SizeWeighted()), x.T @ (x @ w - y) / 4)
    near(gradient(Uniform()), tensor([0.016667, -0.016667]))


# ---- norms that meet -------------------------------------------------------------------------------------------------


class Met(NamedTuple):
    y: torch.Tensor
    dx: torch.Tensor
    layer: nn.Module
    said: dict  # what was exchanged: own values and the average
    numbers: tuple  # up and down


def meet(layer, xs, dys, by="samples", masks=None):
    """Let clients run and differentiate a norm together: what each of them has, and the statistics of all."""

    def context(x, dy, mask, all_reduce):
        own, said, exchange = copy.deepcopy(layer), {}, all_reduce.exchange
        norms = Norms.of(nn.Sequential(OrderedDict(norm=own)))

        def spy(what, values, count):
            average, total = exchange(what, values, count)
            said[what] = values, average
            return average, total

        all_reduce.exchange, norms.all_reduce, norms.mask = spy, all_reduce, mask
        x = x.clone().requires_grad_()
        y = own(x)
        y.backward(dy)
        return Met(y.detach(), x.grad, own, said, (all_reduce.up // NUMBER, all_reduce.down // NUMBER))

    masks = masks or [None] * len(xs)
    met, place = run_in_lockstep([partial(context, *one) for one in zip(xs, dys, masks, strict=True)], by)
    return met, place.statistics(ParameterSpace.of(nn.Sequential(OrderedDict(norm=layer)), "norm"))


def oracle(by):
    layer = nn.BatchNorm1d(1).double()
    nn.init.constant_(layer.weight, 2.0)
    nn.init.constant_(layer.bias, 0.5)
    return meet(layer, [tensor([[1], [2], [3]]), tensor([[10]])], [tensor([[0.1], [-0.2], [0.3]]), tensor([[0.4]])], by)


def test_synchronised_batch_norm_has_the_numbers_of_the_specification():
    (a, b), statistics = oracle("samples")
    for name, sums, average in (("mean", [6, 10], 4), ("var", [14, 36], 12.5)):
        assert [float(c.said[f"norm.{name}"][0]) for c in (a, b)] == sums
        assert [float(c.said[f"norm.{name}"][1]) for c in (a, b)] == [average, average]
    near(torch.cat([c.said["norm.back"][0] for c in (a, b)], 1), tensor([[0.4, 0.8], [-0.113137, 1.357644]]))
    near(torch.cat([a.y, b.y])[:, 0], tensor([-1.197056, -0.631370, -0.065685, 3.894111]))
    near(torch.cat([a.dx, b.dx])[:, 0], tensor([0.046386, -0.148210, 0.109743, -0.007919]))
    near(a.layer.weight.grad + b.layer.weight.grad, tensor([0.622254]))
    near(a.layer.bias.grad + b.layer.bias.grad, tensor([0.6]))
    close(statistics.view(-1), tensor([4, 12.5 * 4 / 3]))
    assert a.numbers == b.numbers == (2 + 1 + 2, 2 + 2)


def test_fedtan_takes_the_mean_of_client_means():
    (a, b), _ = oracle("clients")
    assert a.said["norm.mean"][1].item() == 6
    assert a.said["norm.var"][1].item() == pytest.approx(((25 + 16 + 9) / 3 + 16) / 2)
    assert a.numbers == b.numbers == (2 + 2, 2 + 2)


NORMS = {
    "columns": (lambda: nn.BatchNorm1d(3), ()),
    "sequences": (lambda: nn.BatchNorm1d(3), (5,)),
    "images": (lambda: nn.BatchNorm2d(3, momentum=0.3, eps=1e-3), (2, 4)),
    "no scale": (lambda: nn.BatchNorm2d(3, affine=False), (2, 4)),
    "no running statistics": (lambda: nn.BatchNorm1d(3, track_running_stats=False), ()),
    "frozen scale": (lambda: nn.BatchNorm1d(3).requires_grad_(False), ()),
}


def a_norm(case, counts=(3, 1, 4)):
    """Return a norm with scales that are not 1, and what some clients put in and get back."""
    torch.manual_seed(7)
    layer, tail = NORMS[case][0]().double(), NORMS[case][1]
    for parameter in layer.parameters():
        parameter.data.normal_()
    return layer, *([torch.randn(n, 3, *tail).double() + 2 for n in counts] for _ in range(2))


@pytest.mark.parametrize("case", NORMS)
def test_norms_that_meet_are_the_layer_on_everybodys_samples(case):
    layer, xs, dys = a_norm(case)
    met, statistics = meet(layer, xs, dys)
    whole, x = copy.deepcopy(layer), torch.cat(xs).requires_grad_()
    y = whole(x)
    y.backward(torch.cat(dys))
    close(torch.cat([c.y for c in met]), y.detach())
    close(torch.cat([c.dx for c in met]), x.grad)
    for name, parameter in whole.named_parameters():
        own = [dict(c.layer.named_parameters())[name].grad for c in met]
        assert own == [None] * 3 if case == "frozen scale" else close(sum(own), parameter.grad) is None
    assert (statistics is not None) == layer.track_running_stats
    if layer.track_running_stats:
        moved = layer.momentum * statistics.view(2, 3) + (1 - layer.momentum) * tensor([[0], [1]])
        close(moved, torch.stack([whole.running_mean, whole.running_var]))


def test_running_statistics_of_norms_that_meet_are_identical_everywhere():
    layer, xs, dys = a_norm("columns")
    met, _ = meet(layer, xs, dys)
    layer(torch.cat(xs))
    for client in met:
        close(client.layer.running_mean, layer.running_mean)
        close(client.layer.running_var, layer.running_var)


@pytest.mark.parametrize("case", ["columns", "images"])
def test_fedtans_backward_pass_is_the_derivative_of_its_forward_pass(case):
    layer, xs, dys = a_norm(case)
    met, _ = meet(layer, xs, dys, by="clients")
    dims, shape, own = [0, *range(2, xs[0].ndim)], (1, -1, *(1,) * (xs[0].ndim - 2)), [x.requires_grad_() for x in xs]
    mean = sum(x.mean(dims) for x in own).view(shape) / 3
    variance = sum(((x - mean) ** 2).mean(dims) for x in own).view(shape) / 3
    scale = layer.weight.view(shape) / (variance + layer.eps).sqrt()
    ys = [(x - mean) * scale + layer.bias.view(shape) for x in own]
    sum((y * dy).sum() for y, dy in zip(ys, dys, strict=True)).backward()
    for client, x, y in zip(met, own, ys, strict=True):
        close(client.y, y.detach())
        close(client.dx, x.grad)
    close(sum(c.layer.weight.grad for c in met), layer.weight.grad)


def test_fedtan_with_equal_counts_is_the_form_by_sums():
    layer, xs, dys = a_norm("images", counts=(3, 3, 3))
    for one, other in zip(*(meet(layer, xs, dys, by)[0] for by in ("clients", "samples")), strict=True):
        close(one.y, other.y)
        close(one.dx, other.dx)
        close(one.layer.weight.grad, other.layer.weight.grad)


@pytest.mark.parametrize("pixels", [False, True])
def test_a_padded_trainer_with_batch_norm_equals_an_exact_one(pixels):
    module, federation = (
        conv(nn.BatchNorm2d(4)) if pixels else dense(nn.BatchNorm1d(6)),
        build_federation(pixels=pixels),
    )
    work = session_of(module, "fedavg", federation, train__augment={"crop": 1, "flip": True})
    data, down = federation.train, work.initial_state().model.wire()
    workers = [Trainer(work.plan.local, data.x, data.y, 17, pad=pad) for pad in (False, True)]
    for client in (2, 3, 0, 1):
        exact, padded = (
            trainer.run_task(federation.client(client), Task(client, 0, 0, down=down), {})[0] for trainer in workers
        )
        for name, moved in exact.aggregated.items():
            close(padded.aggregated[name], moved)
        assert exact.aggregated["update"].abs().max() > 0


# ---- the meeting place -----------------------------------------------------------------------------------------------


def in_time(client_updates, by="samples"):
    """Let client updates meet; give results or the error, and fail instead of waiting for ever."""
    ends = []

    def run():
        try:
            ends.append(run_in_lockstep(client_updates, by)[0])
        except Exception as error:
            ends.append(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert ends, "the members wait for each other"
    return ends[0]


def bring(*names, value=1.0, count=1.0):
    return lambda all_reduce: [all_reduce.exchange(name, torch.tensor([value]), count)[0].item() for name in names]


@pytest.mark.parametrize(("by", "average"), [("samples", 5 / 4), ("clients", 5 / 2)])
def test_everybody_leaves_with_the_average(by, average):
    assert in_time([bring("a", value=1.0, count=3.0), bring("a", value=4.0)], by) == [[average]] * 2


def test_the_others_go_on_without_a_member_that_is_done():
    client_updates = [bring("a", "b"), bring("a", value=3.0), bring(), bring("a", "b", value=5.0)]
    assert in_time(client_updates) == [[3, 3], [3], [], [3, 3]]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_member_that_fails_takes_the_meeting_down_with_its_own_error(place):
    def context(fails, all_reduce):
        bring("a")(all_reduce)
        if fails:
            raise KeyError("the cause")
        bring("b", "c")(all_reduce)

    error = in_time([partial(context, member == place) for member in range(3)])
    assert isinstance(error, KeyError)


def test_members_that_bring_different_things_do_not_average_them():
    assert isinstance(in_time([bring("a"), bring("b")]), RuntimeError)
