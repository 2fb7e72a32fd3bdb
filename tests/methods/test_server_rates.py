"""Adaptive server steps that set their own rate: by hand, as the same run with that rate given, and over a resume."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from quadratic import Given, f64, given_work, run_from, start

from fedstrata import train
from fedstrata.core.flat_model import FlatModel
from fedstrata.methods.server_steps.adaptive import ServerAdagrad, ServerAdam, ServerYogi
from fedstrata.testing.tiny import alike, run_rounds, same, session_of, tiny_federation

close = partial(torch.testing.assert_close, rtol=0)
KINDS = ("adagrad", "adam", "yogi")


class Noted:
    """A view of which only the round and the notes are asked for."""

    def __init__(self):
        self.round, self.notes = 0, []

    def note(self, event, **about):
        self.notes.append((event, about))


def moved(server, *updates):
    """Return the models, the state and the notes after these updates, one a round."""
    model, view = FlatModel(f64(1.0, 1.0), f64()), Noted()
    state, models = server.init(view, model), []
    for view.round, update in enumerate(updates):
        model = server.step(state, view, model, FlatModel(model.params + f64(*update), model.buffers), None)
        models.append(model.params)
    return models, state, view.notes


@pytest.mark.parametrize(
    ("server", "lr", "first"),
    [  # |d| = .223607; |m / (sqrt(v) + tau)| = 1.403656, 1.313001, 1.312965
        (ServerAdagrad(), 0.503761, (1.498748, 0.498752)),  # .707107 long, sqrt(10) times |d|
        (ServerAdam(), 0.170302, (1.154128, 0.837998)),
        (ServerYogi(), 0.170307, (1.154125, 0.837996)),
    ],
)
def test_the_first_step_by_hand(server, lr, first):
    push = Given(curve=0.0, slope=(-0.1, 0.2))  # every client moves by (.1, -.2)
    work = given_work((1, 2), {"method.corrections": [push], "method.server_step": server, "train.rounds": 1})
    state = start(work, 1.0, 1.0)
    run_from(work, state)
    assert state.server_steps["server_step"].lr == pytest.approx(lr, abs=1e-6)
    close(state.model.params, f64(*first), atol=1e-6)


@pytest.mark.parametrize("scale", [1e-4, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("server", [ServerAdam(), ServerYogi(), ServerAdam(beta1=0.0, beta2=0.5, tau=0.1)])
def test_the_first_step_is_as_long_as_fedavg_s_whatever_the_size_of_updates(server, scale):
    (first,), _, _ = moved(server, (0.1 * scale, -0.2 * scale))
    assert float((first - 1).norm()) == pytest.approx(0.05**0.5 * scale)


def test_adagrad_s_tenth_step_is_as_long_as_fedavg_s():
    models, _, _ = moved(ServerAdagrad(tau=1e-9), *[(0.1, -0.2)] * 10)
    steps = torch.stack(models).diff(dim=0).norm(dim=1)
    assert float(steps[-1]) == pytest.approx(0.05**0.5)
    assert (steps.diff() < 0).all()


def test_the_rate_is_set_once_by_the_first_update_that_moves_anything():
    models, state, notes = moved(ServerYogi(), (0.0, 0.0), (0.1, -0.2), (3.0, 5.0))
    assert models[0].tolist() == [1.0, 1.0]
    assert notes == [("server_lr", {"round": 2, "lr": state.lr})]
    assert float((models[1] - 1).norm()) == pytest.approx(0.05**0.5)
    assert moved(ServerYogi(lr=0.1), (0.1, -0.2))[2] == []  # a rate that is given is nothing to tell


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_run_with_the_rate_that_was_told(kind, tmp_path):
    def run_of(lr):
        overrides = {"method.server_step": {"kind": kind, "lr": lr}, "train.rounds": 3}
        run = train(federation=tiny_federation(), overrides=overrides, out=tmp_path / str(lr))
        return dict(sorted(run.model().items())), [event for event in run.events() if event["event"] == "server_lr"]

    found, (told,) = run_of("auto")
    assert told["round"] == 1
    assert alike(found, run_of(told["lr"])[0])
    assert not alike(found, run_of(2 * told["lr"])[0])


@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_run_keeps_the_rate(kind):
    asked = {"method.server_step": kind, "system.stragglers.rate": 0.3}
    whole, _ = run_rounds(session_of(asked), rounds=6)
    for cut in (1, 3):
        resumed, _ = run_rounds(session_of(asked), rounds=6, cut=cut)
        assert same(whole, resumed)
        assert resumed.server_steps["server_step"].lr == whole.server_steps["server_step"].lr > 0
