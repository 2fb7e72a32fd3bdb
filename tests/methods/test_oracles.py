"""Numbers worked out by hand, from the papers' own rules, against the real parts in the real loop.

Clients follow quadratics (`quadratic.py`), whose steps can be computed on paper.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from quadratic import Given, f64, given_work, run_from, start, weights_after_steps
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Report, Sums
from fedstrata.core.plan import per_round
from fedstrata.core.rng import Streams
from fedstrata.core.steps import Outcome, View
from fedstrata.core.system import System
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.corrections.scaffold import Control, Scaffold
from fedstrata.methods.optimizers.sgd import Sgd as LocalSgd
from fedstrata.methods.selectors.power_of_choice import PowerOfChoice
from fedstrata.methods.selectors.size import SelectBySize as BySize
from fedstrata.methods.server_steps.adaptive import ServerAdagrad, ServerAdam, ServerYogi
from fedstrata.methods.server_steps.sgd import ServerSgd
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process, run_rounds, session_of, tiny_federation

close = partial(torch.testing.assert_close, rtol=0)


@dataclass(frozen=True)
class Loses(System):
    """Loses the reports of one client."""

    client: int

    def find_lost(self, view, at, step, reports):
        return {self.client}


def view_of(sizes, k, round=0, key=None):
    """Return what a selector sees of clients of these sizes."""
    known = {"sizes": np.array(sizes)}
    tiebreak = np.array(key) if key else np.arange(len(sizes))
    client_info = ClientInfo(len(sizes), 2, np.flatnonzero(sizes), tiebreak, known)
    rng = partial(Streams(0), round=round)
    return View(round, 1, min(k, len(client_info.holders)), client_info.holders, client_info, None, rng, print)


# ---- combining and server steps --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("combiner", "expected"), [("size", (3.0, 3.5)), ("uniform", (3.0, 8 / 3))])
def test_mean_of_three_models(combiner, expected):
    models = Given(targets=((1.0, 2.0), (3.0, 6.0), (5.0, 0.0)))  # one step of length 1 reaches the target
    work = given_work((1, 2, 1), {"method.corrections": [models], "method.combiner": {"kind": combiner}})
    state = start(work, 0.25, -4.0)
    run_from(work, state)
    close(state.model.params, f64(*expected), atol=1e-12)


@pytest.mark.parametrize(
    ("server", "rounds", "m", "v"),
    [
        (ServerAdagrad(lr=0.1), [(1.099005, 0.900499), (1.169217, 0.830038)], (0.1, -0.2), (0.020001, 0.080001)),
        (ServerAdam(lr=0.1), [(1.090503, 0.904874), (1.215986, 0.774874)], (0.019, -0.038), (0.0002, 0.000797)),
        (ServerYogi(lr=0.1), [(1.090499, 0.904875), (1.215685, 0.775191)], (0.019, -0.038), (0.000201, 0.000801)),
    ],
)
def test_adaptive_server_over_two_rounds(server, rounds, m, v):
    push = Given(curve=0.0, slope=(-0.1, 0.2))  # every client moves by (.1, -.2)
    work = given_work((1, 2), {"method.corrections": [push], "method.server_step": server, "train.rounds": 2})
    state = start(work, 1.0, 1.0)
    for expected in rounds:
        run_from(work, state)
        close(state.model.params, f64(*expected), atol=1e-6)
    close(state.server_steps["server_step"].m, f64(*m), atol=1e-12)
    close(state.server_steps["server_step"].v, f64(*v), atol=1e-6)


@pytest.mark.parametrize(
    ("server", "rounds"),
    [
        (ServerSgd(lr=0.5, momentum=0.9), [(1.05, 0.9), (1.145, 0.71)]),  # v: .1, .19 and -.2, -.38
        (ServerSgd(lr=0.5), [(1.05, 0.9), (1.1, 0.8)]),
        (ServerSgd(), [(1.1, 0.8), (1.2, 0.6)]),
    ],
)
def test_server_sgd_over_two_rounds(server, rounds):
    push = Given(curve=0.0, slope=(-0.1, 0.2))
    work = given_work((1, 2), {"method.corrections": [push], "method.server_step": server})
    state = start(work, 1.0, 1.0)
    for expected in rounds:
        run_from(work, state)
        close(state.model.params, f64(*expected), atol=1e-12)


def test_adaptive_server_leaves_norm_statistics_to_the_mean():
    server, model = ServerYogi(lr=0.1), FlatModel(f64(1.0, 1.0), f64(5.0))
    moved = server.step(server.init(None, model), None, model, FlatModel(f64(1.1, 0.8), f64(7.0)), None)
    assert moved.buffers.tolist() == [7.0]


def test_an_empty_round_changes_neither_model_nor_server_state():
    late = {"system.stragglers.rate": 1.0, "method.server_step": ServerAdam()}
    work = given_work((1, 2), {"method.corrections": [Given(slope=(1.0, 1.0))], **late})
    state, notes = start(work, 1.0, 1.0), []
    view = work.plan.view(work.client_info, 0, lambda kind, **_: notes.append(kind))
    (outcome,) = run_round(work.plan, state, view, in_process(work))
    assert state.model.params.tolist() == [1.0, 1.0]
    assert state.server_steps["server_step"].m.tolist() == [0.0, 0.0]
    assert notes == ["dropped", "no_update"]
    assert outcome.missing == (0, 1)


# ---- corrections -----------------------------------------------------------------------------------------------------


def test_prox_step():
    w, rate = f64(1.0, 2.0), f64(0.01)
    buf = SimpleNamespace(w=w, w0=f64(0.5, 2.5), g=f64(0.2, -0.4))
    own, prox = {"mu": f64(0.0)}, Prox(mu=0.1)
    prox.fill(own, buf, None)
    prox.edit_gradient(own, buf, rate)
    LocalSgd().edit_gradient({}, buf, rate)
    close(w, f64(0.9975, 2.0045), atol=1e-12)


def test_prox_over_two_steps_of_the_trainer():
    # f = v^2, mu = 1, eta = .1: 1 -> .8 -> .8 - .1 (1.6 + (.8 - 1)) = .66
    parts = [Given(curve=2.0), Prox(mu=1.0)]
    work = given_work((2, 2), {"method.corrections": parts, "train.batch_size": 1, "train.lr": 0.1})
    state = start(work, 1.0, 1.0)
    run_from(work, state)
    close(state.model.params, f64(0.66, 0.66), atol=1e-12)


def test_scaffold_in_the_loop(monkeypatch):
    """f = v^2, x = 1, c = .1, c_k = .3, eta = .1, two steps, one of ten clients."""
    overrides = {
        "method.name": "scaffold",
        "method.corrections": [Given(curve=2.0), Scaffold()],
        "train.batch_size": 1,
        "train.lr": 0.1,
        "train.clients_per_round": 1,
    }
    work = given_work((2,) * 10, overrides)
    state, engine = start(work, 1.0, 1.0), in_process(work)
    state.server_steps["scaffold"] = Control(f64(0.1, 0.1))
    engine.restore({k: ((0, 0), {"scaffold/c": f64(0.3, 0.3)}) for k in range(10)})
    seen = weights_after_steps(monkeypatch)
    ((outcome,),) = run_from(work, state, engine=engine)

    assert seen == pytest.approx([0.82, 0.676], abs=1e-12)
    close(state.model.params, f64(0.676, 0.676), atol=1e-12)
    close(state.server_steps["scaffold"].c, f64(0.252, 0.252), atol=1e-12)
    (asked,) = outcome.step.asks
    for client, (_, client_state) in engine.client_states().items():
        close(client_state["scaffold/c"], f64(*[1.82 if client == asked.client else 0.3] * 2), atol=1e-12)


def test_scaffold_halves_by_hand():
    part = Scaffold()
    buf = SimpleNamespace(w=f64(0.676), w0=f64(1.0))
    context = SimpleNamespace(steps=2, rate_sum=0.2, down={"c": f64(0.1)}, client_state={"c": f64(0.3)})
    done = part.finish({}, buf, context)
    close(done.client_state["c"], f64(1.82), atol=1e-12)
    close(done.aggregated["dc"], f64(1.52), atol=1e-12)

    control, view = Control(f64(0.1)), view_of((1,) * 10, k=2)
    total = {"dc": f64(1.52) * 0.5 + f64(-0.52) * 0.5}  # two clients arrived: mean .5, and 2/10 of it counts
    proposal = FlatModel(f64(7.0), f64())
    assert part.step(control, view, FlatModel(f64(1.0), f64()), proposal, Sums(total, 1.0, 2)) is proposal
    close(control.c, f64(0.2), atol=1e-12)


def test_scaffold_without_a_step_keeps_its_control():
    context = SimpleNamespace(steps=0, rate_sum=0.0, down={"c": f64(0.1)}, client_state={"c": f64(0.3)})
    done = Scaffold().finish({}, SimpleNamespace(w=f64(1.0), w0=f64(1.0)), context)
    assert done.client_state == {}
    assert done.aggregated["dc"].tolist() == [0.0]


def test_scaffold_of_a_straggler_keeps_its_control():
    overrides = {
        "method.name": "scaffold",
        "method.corrections": [Given(curve=2.0), Scaffold()],
        "train.lr": 0.1,
        "system.stragglers.rate": 0.5,
    }
    work = given_work((2, 2), overrides)
    engine = in_process(work)
    ((outcome,),) = run_from(work, start(work, 1.0, 1.0), engine=engine)
    assert len(outcome.missing) == 1
    assert list(engine.client_states()) == [r.client for r in outcome.reports]


# ---- drivers ---------------------------------------------------------------------------------------------------------


def test_chain_of_two_clients_in_both_orders():
    """f_1 = (v - 1)^2, f_2 = (v + 1)^2, eta = .25, one step each, from 0."""
    parts, ends = [Given(targets=((1.0, 1.0), (-1.0, -1.0)), curve=2.0)], {}
    for seed in range(8):
        work = given_work(
            (1, 2), {"method.name": "sfl", "method.corrections": parts, "train.lr": 0.25, "train.seed": seed}
        )
        state = start(work, 0.0, 0.0)
        (outcomes,) = run_from(work, state)
        order = tuple(a.client for o in outcomes for a in o.step.asks)
        ends[order] = state.model.params.tolist()
    assert ends == {(0, 1): [-0.25, -0.25], (1, 0): [0.25, 0.25]}


def test_chain_skips_who_is_lost():
    work = given_work((1, 1, 1), {"method.name": "sfl", "method.corrections": [Given(slope=(1.0, 2.0), curve=0.0)]})
    work = replace(work, plan=replace(work.plan, system=Loses(client=1)))
    state = start(work, 0.0, 0.0)
    (outcomes,) = run_from(work, state)
    assert [o.missing for o in outcomes if o.step.asks[0].client == 1] == [(1,)]
    assert state.model.params.tolist() == [-2.0, -4.0]  # two hops counted


# ---- selectors -------------------------------------------------------------------------------------------------------


def probed(selector, view, losses):
    """Answer a selector's probe; give who was asked and who was chosen."""
    steps = selector.select(None, view)
    step = next(steps)
    asked = [a.client for a in step.asks]
    reports = tuple(Report(i, 1, metrics={"probed_loss": losses[i]}) for i in asked)
    with pytest.raises(StopIteration) as end:
        steps.send(Outcome(step, 0, reports, ()))
    return asked, end.value.value


@pytest.mark.parametrize(
    ("losses", "expected"),
    [
        ({0: 0.5, 2: 1.4, 3: 0.9}, [2, 3]),
        ({0: 0.5, 2: float("nan"), 3: 0.9}, [3, 0]),
        ({0: float("nan"), 2: float("nan"), 3: 0.1}, [3, 2]),  # of two NaN, the lower key
        ({0: 0.7, 2: 0.7, 3: 0.7}, [3, 2]),
        ({0: 0.7, 2: 0.5, 3: 0.5}, [0, 3]),
    ],
)
def test_power_of_choice_takes_the_highest_losses(losses, expected):
    view = view_of((3, 0, 1, 2), k=2, key=(9, 8, 5, 1))  # client 1 holds nothing
    asked, chosen = probed(PowerOfChoice(candidates=99), view, losses)
    assert asked == [0, 2, 3]
    assert chosen == expected


@pytest.mark.parametrize(("candidates", "expected"), [(0, 4), (1, 2), (3, 3), (6, 6), (50, 6)])
def test_power_of_choice_candidates(candidates, expected):
    asked, chosen = probed(PowerOfChoice(candidates), view_of((5,) * 6, k=2), dict.fromkeys(range(6), 1.0))
    assert len(asked) == len(set(asked)) == expected
    assert len(chosen) == 2


def test_power_of_choice_in_the_loop_trains_the_highest_losses():
    work = session_of({"method.name": "power-of-choice", "method.selector.candidates": 4, "train.clients_per_round": 2})
    model = work.initial_state().model
    _, (outcomes, *_) = run_rounds(work)
    probe, train = outcomes
    assert len(probe.reports) == 4
    module = work.plan.local.build().double()
    work.plan.space.bind(module, model.params, model.buffers)
    data = work.federation.train
    losses = {}
    for report in probe.reports:
        rows = torch.from_numpy(work.federation.train_split[report.client])
        with torch.no_grad():
            losses[report.client] = cross_entropy(module(data.x[rows].double()), data.y[rows]).item()
        assert report.metrics["probed_loss"] == pytest.approx(losses[report.client], abs=1e-12)
    worst = sorted(losses, key=lambda i: -losses[i])[:2]
    assert sorted(worst) == [a.client for a in train.step.asks]


def test_selection_by_size_draws_in_proportion():
    """Sizes 1, 2, 0, 1. Of one: 1/4, 1/2, 0, 1/4. Of two: 7/12, 5/6, 0, 7/12 (draws one after another)."""
    draws, exact = 4000, {1: (1 / 4, 1 / 2, 0, 1 / 4), 2: (7 / 12, 5 / 6, 0, 7 / 12)}
    for k, expected in exact.items():
        asks = [ask for r in range(draws) for ask in BySize().select(None, view_of((1, 2, 0, 1), k, round=r))]
        drawn = [ask.client for ask in asks]
        share = np.bincount(drawn, minlength=4) / draws
        assert np.abs(share - expected).max() < 4 * np.sqrt(0.25 / draws)  # four standard errors
        assert share[2] == 0


@pytest.mark.parametrize(
    ("asked", "clients", "expected"),
    [(0.29, 100, 29), (0.2, 200, 40), (0.15, 200, 30), (0.001, 10, 1), ("all", 7, 7), (20, 6, 20), (1.0, 6, 6)],
)
def test_clients_of_a_round(asked, clients, expected):
    assert per_round(asked, clients) == expected


@pytest.mark.parametrize(
    ("rate", "clients", "lost"), [(0.1, 40, 4), (0.5, 5, 2), (0.99, 3, 2), (1.0, 3, 3), (0.9, 1, 0)]
)
def test_stragglers_of_a_round(rate, clients, lost):
    work = given_work((1,) * max(clients, 2), {"system.stragglers.rate": rate, "train.clients_per_round": clients})
    ((outcome,),) = run_from(work, start(work, 0.0, 0.0))
    assert len(outcome.missing) == lost
    assert len(outcome.reports) == clients - lost


# ---- FedSGD ----------------------------------------------------------------------------------------------------------


def test_fedsgd_is_a_gradient_step_on_the_union_of_all_data():
    work = session_of({"method.name": "fedsgd", "train.lr": 0.3})
    module, data = work.plan.local.build().double(), work.federation.train
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    for _ in range(3):
        optimizer.zero_grad()
        cross_entropy(module(data.x.double()), data.y).backward()
        optimizer.step()
    state, _ = run_rounds(work, rounds=3)
    close(state.model.params, nn.utils.parameters_to_vector(module.parameters()).detach(), atol=1e-12)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def bytes_of(method, **overrides):
    """Return P and the bytes up, down and between peers after two rounds of three of six clients, in fp32."""
    asked = {"method.name": method, "engine.precision": "fp32", "train.clients_per_round": 3}
    work = session_of({**asked, **overrides})
    traffic = run_rounds(work, rounds=2)[0].traffic
    return work.plan.space.P, traffic.bytes_up, traffic.bytes_down, traffic.bytes_p2p


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fedadam"])
def test_bytes_of_one_model_down_and_one_update_up(method):
    P, up, down, between = bytes_of(method)
    assert P == 43  # 4 x 5 + 5 + 5 x 3 + 3
    assert (up, down, between) == (2 * 4 * P * 3, 2 * 4 * P * 3, 0)


def test_bytes_of_scaffold_are_twice_those_of_fedavg():
    P, up, down, between = bytes_of("scaffold")
    assert (up, down, between) == (2 * 8 * P * 3, 2 * 8 * P * 3, 0)


def test_bytes_of_double_precision_are_twice_those_of_single():
    P, up, down, _ = bytes_of("fedavg", **{"engine.precision": "fp64"})
    assert (up, down) == (2 * 8 * P * 3, 2 * 8 * P * 3)


def test_bytes_of_a_chain_are_one_transfer_a_client_and_one_more():
    P, up, down, between = bytes_of("sfl")
    assert (up, down, between) == (2 * 4 * P, 2 * 4 * P, 2 * 4 * P * 2)


def test_bytes_of_everyone():
    P, up, down, _ = bytes_of("fedsgd")
    assert (up, down) == (2 * 4 * P * 6, 2 * 4 * P * 6)


def test_bytes_of_a_probe_are_charged():
    P, up, down, between = bytes_of("power-of-choice", **{"method.selector.candidates": 5})
    assert down == 2 * (5 + 3) * 4 * P
    assert up == 2 * (5 * 8 + 3 * 4 * P)
    assert between == 0


def test_bytes_told_before_the_first_round():
    federation = tiny_federation()
    assert session_of({"method.name": "power-of-choice"}, federation).client_info.setup_bytes == 8 * 6
    assert session_of({"method.name": "fedavg"}, federation).client_info.setup_bytes == 0


def test_norm_statistics_are_charged_with_the_model():
    layers = OrderedDict(fc=nn.Linear(4, 5), norm=nn.BatchNorm1d(5), head=nn.Linear(5, 3))
    federation, module = tiny_federation(), nn.Sequential(layers)
    asked = {"engine.precision": "fp32", "train.clients_per_round": 3, "train.batch_size": 4}
    work = build_session(describe_experiment(None, None, asked, federation, module), federation, module)
    traffic = run_rounds(work, rounds=1)[0].traffic
    floats = 4 * 5 + 5 + 2 * 5 + 5 * 3 + 3 + 2 * 5  # the last: running mean and variance
    assert traffic.bytes_up == traffic.bytes_down == 3 * 4 * floats
