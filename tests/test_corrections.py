"""Corrections against the papers' rules: numbers worked out by hand, edge cases, refusals and bad input."""

from __future__ import annotations

import copy
import signal
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from quadratic import Given, f64, given_work, play_from, start
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy

from fedstrata.cli import main
from fedstrata.core import registry
from fedstrata.core.client_parts import Batch, Correction
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report, Slot
from fedstrata.core.server_parts import System
from fedstrata.core.threads import one_thread
from fedstrata.data.federation import Federation
from fedstrata.methods.corrections.clip import Clip
from fedstrata.methods.corrections.feddyn import FedDyn
from fedstrata.methods.corrections.fedlc import FedLc, margins
from fedstrata.methods.corrections.fedrs import FedRs, scales
from fedstrata.methods.corrections.moon import contrast
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.corrections.scaffold import Control, Scaffold
from fedstrata.methods.optimizers.adam import Adam
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.runs.session import Session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import model_to_evaluate, play_round
from fedstrata.testing.tiny import TINY, alike, in_process, play, same, session_of, tiny_federation

close = partial(torch.testing.assert_close, rtol=0)
EVERYBODY = {"train.clients_per_round": "all"}
FEDPBS = {"method.name": "fedpbs", **EVERYBODY}


@pytest.fixture(autouse=True)
def _one_thread():
    with one_thread():
        yield


def own_work(module, overrides, federation=None):
    """Prepare an experiment with a network of one's own on a tiny federation."""
    federation = federation or tiny_federation()
    usual = {key: value for key, value in TINY.items() if not key.startswith("model.")}
    return Session(describe_experiment(None, None, {**usual, **overrides}, federation, module), federation, module)


def one_visit(parts, overrides, n=2):
    """Let one of ten clients of n samples take a local step a sample; give the state, the engine and who it was."""
    alone = {"train.batch_size": 1, "train.lr": 0.1, "train.clients_per_round": 1, "method.combiner": "uniform"}
    work = given_work((n,) * 10, {"method.corrections": parts, **alone, **overrides})
    return work, start(work, 1.0, 1.0), in_process(work)


# ---- prox, and the gate of FedPBS ------------------------------------------------------------------------------------


def looking(batch, v, told=(np.inf, np.nan), nominal=64):
    """Return a client update whose batch and variance are known."""
    down = {"told": torch.tensor(told, dtype=torch.float64)}
    return SimpleNamespace(planned=batch, batch_size=nominal, down=down, variance=lambda _: v)


@pytest.mark.parametrize(("batch", "v", "mu"), [(64, 0.5, 0.0), (64, 4.0, 0.1), (16, 0.5, 0.1), (32, 1.5, 0.0)])
def test_gate_of_batch_and_loss_variance(batch, v, mu):
    assert Prox(mu=0.1, when="unstable", v_th=1.5, b_th=32).mu_of(looking(batch, v)) == mu


@pytest.mark.parametrize(("batch", "v", "mu"), [(64, 1e9, 0.0), (63, 0.0, 0.01), (1, 0.0, 0.01)])
def test_before_anybody_told_a_variance_only_the_batch_counts(batch, v, mu):
    """B_th is the nominal batch, mu .01; a client of one sample has V = 0 and a batch of 1."""
    assert Prox(when="unstable").mu_of(looking(batch, v)) == mu


@pytest.mark.parametrize(
    ("v", "mu"),
    [(2.0, 0.1), (1.0, 0.05), (6.0, 0.3), (0.1, 0.025), (0.0, 0.025), (8.0, 0.4), (99.0, 0.4)],
)
def test_adaptive_mu_follows_the_variance_within_a_factor_of_four(v, mu):
    assert Prox(mu=0.1, adaptive=True).mu_of(looking(64, v, told=(2.0, 2.0))) == pytest.approx(mu, abs=1e-15)


def test_adaptive_mu_is_mu_itself_while_no_median_is_known_or_it_is_zero():
    part = Prox(mu=0.1, adaptive=True)
    assert part.mu_of(looking(64, 3.0)) == 0.1
    assert part.mu_of(looking(64, 3.0, told=(0.0, 0.0))) == 0.1


def test_adaptive_mu_is_still_gated():
    part = Prox(mu=0.1, when="unstable", adaptive=True)
    assert part.mu_of(looking(64, 1.9, told=(2.0, 2.0))) == 0.0
    assert part.mu_of(looking(64, 3.0, told=(2.0, 2.0))) == pytest.approx(0.15)
    assert part.mu_of(looking(8, 1.0, told=(2.0, 2.0))) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("options", "level"),
    [
        ({}, 0.5),
        ({"quantile": 0.25}, 0.25),
        ({"quantile": 1.0}, 1.0),
        ({"gate": "gradient"}, 0.5),
        ({"v_th": 0.3}, None),
    ],
    ids=str,
)
def test_the_threshold_is_what_clients_told_in_the_last_round(options, level):
    work = session_of({**FEDPBS, **{f"method.corrections.0.{key}": value for key, value in options.items()}})
    gate = f"{options.get('gate', 'loss')}_variance"
    _, rounds = play(work)
    threshold, flagged = np.inf if level is not None else options["v_th"], []
    for (outcome,) in rounds:
        told = np.array([r.metrics[gate] for r in outcome.reports])
        batch = np.array([min(work.federation.train_split.sizes[r.client], 8) for r in outcome.reports])
        expected = np.where((batch >= 4) & (told <= threshold), 0.0, 0.01)
        assert [r.metrics["mu"] for r in outcome.reports] == expected.tolist()
        flagged += expected.tolist()
        threshold = np.quantile(told, level) if level is not None else threshold
    assert 0.0 in flagged
    assert 0.01 in flagged


@pytest.mark.parametrize("weight", np.linspace(0.1, 2.0, 9))
def test_with_equal_variances_everybody_passes_the_median(weight):
    """All clients hold the same two samples, and the model stands still."""
    still = Given(curve=0.0)
    work = given_work((2,) * 4, {"method.corrections": [still, Prox(when="unstable")], "train.batch_size": 2})
    state = start(work, weight, -0.3)
    engine = in_process(work)
    for _ in range(3):
        ((outcome,),) = play_from(work, state, engine)
        assert len({r.metrics["loss_variance"] for r in outcome.reports}) == 1
        assert [r.metrics["mu"] for r in outcome.reports] == [0.0] * 4
    assert outcome.reports[0].metrics["loss_variance"] > 0


def test_the_gate_is_about_the_batch_that_is_really_used():
    """A slow device gets batches of 8, a small client one of all its samples; the nominal batch is 10."""
    federation = replace(tiny_federation(), speeds=np.array([1.0, 0.5, 1.0, 2.0, 0.1, 1.0]))
    assert federation.train_split.sizes.tolist() == [3, 10, 17, 9, 16, 8]
    ((outcome,),) = play(session_of({**FEDPBS, "train.batch_size": 10}, federation), rounds=1)[1]
    assert [r.metrics["mu"] for r in outcome.reports] == [0.01, 0.01, 0.0, 0.01, 0.01, 0.01]


def test_a_round_that_nobody_finishes_leaves_the_threshold_alone():
    work = session_of({**FEDPBS, "system.stragglers.rate": 1.0})
    told = play(work, rounds=2)[0].server_steps["prox"]
    assert told.v_th == torch.inf
    assert told.median.isnan()


@pytest.mark.parametrize(
    ("variances", "v_th", "median"), [((1.0, 4.0, np.nan, 2.0), 2.0, 2.0), ((np.nan, np.inf), np.inf, np.nan)]
)
def test_a_variance_that_is_not_finite_does_not_move_the_threshold(variances, v_th, median):
    part = Prox(when="unstable")
    state, proposal = part.init(None, None), object()
    reports = [Report(i, 1, metrics={"loss_variance": v}) for i, v in enumerate(variances)]
    assert part.step(state, None, None, proposal, SimpleNamespace(reports=reports)) is proposal
    assert [state.v_th.item(), state.median.item()] == pytest.approx([v_th, median], nan_ok=True)


def test_mu_reaches_the_step_of_flagged_clients_only():
    """f = v^2, mu = 1, eta = .1: 1 -> .8 -> .64, or with the pull .8 -> .66. The second client's batch is small."""
    parts = [Given(curve=2.0), Prox(mu=1.0, when="unstable", b_th=2)]
    work = given_work((2, 1), {"method.corrections": parts, "train.epochs": 2, "train.lr": 0.1, "train.batch_size": 2})
    ((outcome,),) = play_from(work, start(work, 1.0, 1.0))
    assert [r.update_norm for r in outcome.reports] == pytest.approx([0.36 * 2**0.5, 0.34 * 2**0.5], abs=1e-12)


def test_norm_statistics_are_not_pulled():
    torch.manual_seed(0)
    module = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(4, affine=False), head=nn.Linear(4, 3)))
    pulled, free = (
        play(own_work(module, {"method.corrections": [Prox(mu=mu)], **EVERYBODY}), 1)[0] for mu in (5.0, 0.0)
    )
    assert torch.equal(pulled.model.buffers, free.model.buffers)  # they do not depend on the head
    assert not torch.equal(pulled.model.params, free.model.params)


# ---- scaffold --------------------------------------------------------------------------------------------------------


def test_raw_gradients_are_what_plain_steps_add_up_to():
    states = [
        play(session_of({"method.name": "scaffold", "method.corrections.0.gradients": g}))[0] for g in ("raw", "update")
    ]
    close(states[0].model.params, states[1].model.params, atol=1e-10)
    close(states[0].server_steps["scaffold"].c, states[1].server_steps["scaffold"].c, atol=1e-10)
    assert states[0].server_steps["scaffold"].c.norm() > 0.1


def test_scaffold_with_momentum_keeps_the_mean_of_raw_gradients():
    """f = v^2, x = 1, c = .1, c_k = .3, eta = .1, momentum .9.

    Step 1: g = 2, v = 1.8, w = .82. Step 2: g = 1.64, v = .9 * 1.8 + 1.44 = 3.06, w = .514. c_k' = (2 + 1.64) / 2.
    """
    parts = [Given(curve=2.0), Scaffold(gradients="raw")]
    work, state, engine = one_visit(parts, {"train.optimizer": {"kind": "sgd", "momentum": 0.9}})
    state.server_steps["scaffold"] = Control(f64(0.1, 0.1))
    engine.restore({k: ((0, 0), {"scaffold/c": f64(0.3, 0.3)}) for k in range(10)})
    ((outcome,),) = play_from(work, state, engine)
    close(state.model.params, f64(0.514, 0.514), atol=1e-12)
    close(engine.client_states()[outcome.reports[0].client][1]["scaffold/c"], f64(1.82, 1.82), atol=1e-12)
    close(state.server_steps["scaffold"].c, f64(0.252, 0.252), atol=1e-12)


@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9), Adam()], ids=["momentum", "adam"])
def test_scaffold_reads_controls_off_plain_steps_only(optimizer):
    asked = {"method.name": "scaffold", "train.optimizer": optimizer}
    with pytest.raises(RequestError, match=r"\(scaffold\) does not fit .* without momentum, or gradients = \"raw\""):
        session_of(asked)
    state, _ = play(session_of({**asked, "method.corrections.0.gradients": "raw"}))
    assert state.model.params.isfinite().all()
    assert state.server_steps["scaffold"].c.norm() > 0


def test_weight_decay_is_part_of_a_plain_gradient():
    asked = {"method.name": "scaffold", "train.optimizer": Sgd(weight_decay=0.1)}
    assert play(session_of(asked))[0].model.params.isfinite().all()


# ---- feddyn ----------------------------------------------------------------------------------------------------------


def test_feddyn_in_the_loop():
    """f = v^2, w = 1, a = .5, g_k = .2, eta = .1, two steps: .82, .685; one of four clients."""
    parts = [Given(curve=2.0), FedDyn(alpha=0.5)]
    asked = {"train.batch_size": 1, "train.lr": 0.1, "train.clients_per_round": 1, "method.combiner": "uniform"}
    work = given_work((2,) * 4, {"method.corrections": parts, **asked})
    state, engine, seen = start(work, 1.0, 1.0), in_process(work), []
    engine.restore({k: ((0, 0), {"feddyn/g": f64(0.2, 0.2)}) for k in range(4)})
    trainer = engine._pool._workers[0].trainer
    step = trainer.step
    trainer.step = lambda width: (step(width), seen.append(trainer.buf.w[0].item()))
    ((outcome,),) = play_from(work, state, engine)

    assert seen == pytest.approx([0.82, 0.685], abs=1e-12)
    close(state.server_steps["feddyn"].h, f64(0.039375, 0.039375), atol=1e-12)
    close(state.model.params, f64(0.60625, 0.60625), atol=1e-12)
    for client, (_, client_state) in engine.client_states().items():
        g = 0.3575 if client == outcome.reports[0].client else 0.2
        close(client_state["feddyn/g"], f64(g, g), atol=1e-12)


def test_feddyn_evaluates_the_mean_of_the_clients_if_asked():
    parts = [Given(curve=2.0), FedDyn(alpha=0.5, evaluate="mean")]
    work, state, engine = one_visit(parts, {"train.clients_per_round": "all"})
    play_from(work, state, engine)
    mean = 0.8 - 0.1 * (1.6 + 0.5 * -0.2)  # of ten equal clients
    close(model_to_evaluate(work.plan, state).params, f64(mean, mean), atol=1e-12)
    h = -0.5 * (mean - 1)  # everybody took part
    close(state.model.params, f64(mean - h / 0.5, mean - h / 0.5), atol=1e-12)

    plain = replace(work.plan, server_steps={**work.plan.server_steps, "feddyn": FedDyn(alpha=0.5)})
    assert model_to_evaluate(plain, state) is state.model


def test_feddyn_scales_alpha_by_the_size_of_a_client():
    """a_k = a / (N n_k / n): with 2 and 6 samples and a = .5, 1 and 1/3. Two steps a client from v = 1, f = v^2."""
    parts = [Given(curve=2.0), FedDyn(alpha=0.5, scale_alpha=True)]
    asked = {"train.epochs": 2, "train.lr": 0.1, "train.batch_size": 6, "method.combiner": "uniform"}
    work = given_work((2, 6), {"method.corrections": parts, **asked})
    state, engine = start(work, 1.0, 1.0), in_process(work)
    play_from(work, state, engine)
    moved = []
    for client, alpha in enumerate((1.0, 1 / 3)):
        moved.append(0.8 - 0.1 * (1.6 - 0.2 * alpha) - 1)
        close(engine.client_states()[client][1]["feddyn/g"], f64(*[-alpha * moved[-1]] * 2), atol=1e-12)
    h = -0.5 / 2 * sum(moved)
    close(state.server_steps["feddyn"].h, f64(h, h), atol=1e-12)
    close(state.model.params, f64(*[1 + sum(moved) / 2 - h / 0.5] * 2), atol=1e-12)


def test_feddyn_of_a_straggler_leaves_both_halves_alone():
    parts = [Given(curve=2.0), FedDyn()]
    work = given_work((2, 2), {"method.corrections": parts, "train.lr": 0.1, "system.stragglers.rate": 0.5})
    engine = in_process(work)
    state = start(work, 1.0, 1.0)
    ((outcome,),) = play_from(work, state, engine)
    assert list(engine.client_states()) == [r.client for r in outcome.reports]
    close(state.server_steps["feddyn"].h, f64(0.001, 0.001), atol=1e-12)  # a/N = .005, and one client moved by -.2

    work = given_work((2, 2), {"method.corrections": parts, "system.stragglers.rate": 1.0})
    state = start(work, 1.0, 1.0)
    play_from(work, state, engine := in_process(work))
    assert state.server_steps["feddyn"].h.tolist() == [0.0, 0.0]
    assert not engine.client_states()


def test_feddyn_needs_an_alpha():
    with pytest.raises(RequestError, match=r"alpha = 0\.0 .* a number > 0"):
        session_of({"method.name": "feddyn", "method.corrections.0.alpha": 0.0})


def test_feddyns_recipe_clips_what_feddyn_added():
    """The gradient is 6 and 8; with g_k = (-6, -8) it becomes 12 and 16, which is cut to a length of 10."""
    push = Given(curve=0.0, slope=(6.0, 8.0))
    recipe = list(session_of({"method.name": "feddyn"}).plan.local.parts.values())
    work, state, engine = one_visit([push, *recipe], {"train.batch_size": 2})
    engine.restore({k: ((0, 0), {"feddyn/g": f64(-6.0, -8.0)}) for k in range(10)})
    ((outcome,),) = play_from(work, state, engine)
    assert outcome.reports[0].update_norm == pytest.approx(0.1 * 10, abs=1e-12)


# ---- moon ------------------------------------------------------------------------------------------------------------


def test_contrast_of_three_features():
    z, glob, prev = (torch.tensor([v], dtype=torch.float64) for v in ((1.0, 0.0), (1.0, 1.0), (0.0, 1.0)))
    assert contrast(z, glob, prev, 0.5).item() == pytest.approx(0.217622, abs=1e-6)


@pytest.mark.parametrize("nothing", ["z", "glob", "prev", "all"])
def test_features_without_length_have_cosine_zero_and_no_gradient(nothing):
    given = {"z": (3.0, 4.0), "glob": (1.0, 1.0), "prev": (0.0, 1.0)}
    zeros = given.keys() if nothing == "all" else {nothing}
    z, glob, prev = (
        torch.tensor([(0.0, 0.0) if name in zeros else value], dtype=torch.float64) for name, value in given.items()
    )
    z.requires_grad_()
    loss = contrast(z, glob, prev, 0.5)
    loss.sum().backward()
    cos = {"z": (0.0, 0.0), "glob": (0.0, 0.8), "prev": (7 / 5 / 2**0.5, 0.0), "all": (0.0, 0.0)}[nothing]
    assert loss.item() == pytest.approx(np.log1p(np.exp((cos[1] - cos[0]) / 0.5)), abs=1e-12)
    assert z.grad.abs().max() < 1
    if nothing in ("z", "all"):
        assert z.grad.tolist() == [[0.0, 0.0]]


def normed():
    torch.manual_seed(1)
    layers = OrderedDict(fc=nn.Linear(4, 6), norm=nn.BatchNorm1d(6), act=nn.Tanh(), head=nn.Linear(6, 3))
    return nn.Sequential(layers)


def test_moon_is_off_at_a_clients_first_visit_and_on_at_its_second():
    asked = {"method.name": "moon", "method.corrections.0.mu": 5.0, **EVERYBODY}
    first, second = ([play(session_of({**EVERYBODY, **o}), rounds)[0] for o in ({}, asked)] for rounds in (1, 2))
    assert same(*first)
    assert not same(*second)


def test_moon_keeps_the_model_that_a_visit_ends_with():
    work = own_work(normed(), {"method.name": "moon", **EVERYBODY})
    engine = in_process(work)
    received = work.initial_state().model
    updates = []
    ask = engine.ask
    engine.ask = lambda step, tasks: (ask(step, tasks), updates.append(engine.each()))[0]
    play(work, 1, lambda _: engine)
    for client, (_, client_state) in engine.client_states().items():
        sent = updates[0][client].aggregated
        close(client_state["moon/params"], received.params + sent["update"], atol=1e-15)
        close(client_state["moon/buffers"], received.buffers + sent["buffers"], atol=1e-15)


def test_moon_trains_like_the_textbook():
    """Cross-entropy + mu * l_con, in which the global and the last model see every batch in eval mode."""
    mu, temperature, rate, federation = 2.0, 0.7, 0.1, tiny_federation()
    asked = {"method.name": "moon", "method.corrections.0": {"kind": "moon", "mu": mu, "temperature": temperature}}
    work = own_work(normed(), {**asked, "train.clients_per_round": "all", "train.lr": rate, "train.batch_size": 4})
    engine, state = in_process(work), work.initial_state()
    play_from(work, state, engine)
    before, kept = copy.deepcopy(state.model), engine.client_states()[2][1]
    seen = []
    ask = engine.ask
    engine.ask = lambda step, tasks: (ask(step, tasks), seen.append(engine.each()))[0]
    view = work.plan.view(work.client_info, 1, lambda *_, **__: None)
    play_round(work.plan, state, view, engine)

    def bound(params, buffers):
        module = normed().double()
        work.plan.space.bind(module, params.clone(), buffers.clone())
        return module

    glob, prev = (
        bound(*m).eval() for m in ((before.params, before.buffers), (kept["moon/params"], kept["moon/buffers"]))
    )
    local, rows, data = bound(before.params, before.buffers), federation.train_split[2], federation.train
    optimizer = torch.optim.SGD(local.parameters(), lr=rate)
    for epoch in range(2):
        order = work.plan.streams(f"epoch-{epoch}", round=1, client=2).permutation(len(rows))
        for batch in (rows[order][i : i + 4] for i in range(0, len(rows), 4)):
            if len(batch) == 1:
                continue  # one sample has no variance
            x = data.x[batch].double()
            z = local[:3](x)
            with torch.no_grad():
                z_glob, z_prev = glob[:3](x), prev[:3](x)
            near, far = (torch.exp(cosine_similarity(z, other) / temperature) for other in (z_glob, z_prev))
            contrastive = -torch.log(near / (near + far)).mean()
            optimizer.zero_grad()
            (cross_entropy(local.head(z), data.y[batch]) + mu * contrastive).backward()
            optimizer.step()
    by_hand = nn.utils.parameters_to_vector(local.parameters()).detach() - before.params
    close(seen[0][2].aggregated["update"], by_hand, atol=1e-12)


def test_moon_of_a_straggler_keeps_its_last_model():
    work = session_of({"method.name": "moon", "system.stragglers.rate": 0.5, **EVERYBODY})
    engine, state = in_process(work), work.initial_state()
    ((first,),) = play_from(work, state, engine)
    kept = {client: client_state["moon/params"].clone() for client, (_, client_state) in engine.client_states().items()}
    assert sorted(kept) == [r.client for r in first.reports]
    view = work.plan.view(work.client_info, 1, lambda *_, **__: None)
    (second,) = play_round(work.plan, state, view, engine)
    for client, (_, client_state) in engine.client_states().items():
        arrived = client in [r.client for r in second.reports]
        assert arrived != (client in kept and torch.equal(client_state["moon/params"], kept[client]))


def test_moon_is_refused_where_nothing_comes_before_the_last_layer():
    bare = nn.Sequential(OrderedDict(flat=nn.Flatten(), head=nn.Linear(4, 3)))
    with pytest.raises(RequestError, match=r"\(moon\) does not fit this plan: .* no layer before its last one"):
        own_work(bare, {"method.name": "moon"})


def test_moons_features_are_those_of_the_projection():
    work = session_of({"method.name": "moon", "model.projection": 7})
    trainer = in_process(work)._pool._workers[0].trainer
    features, _ = trainer.network(work.federation.train.x[:2].double())
    assert features.shape == (2, 7)
    assert play(work)[0].model.params.isfinite().all()


# ---- fedlc and fedrs -------------------------------------------------------------------------------------------------

Z, COUNTS = (2.0, 1.0, 1.0), (16, 1, 0)  # logits of a sample of label 1, at a client with so many of each label


def loss_under(part, slot, values):
    """Return the loss of one sample under a correction of logits."""
    own, y, weight = {slot: torch.from_numpy(values)}, torch.tensor([1]), f64(1.0)
    logits = part.edit_logits(own, None, torch.tensor([Z], dtype=torch.float64))
    each = cross_entropy(logits, y, reduction="none")
    extra = part.loss(own, None, Batch(None, y, weight, None, logits, each))
    return float((each * weight).sum() + (0.0 if extra is None else extra))


def test_fedlc_oracle():
    assert margins(np.array(COUNTS), 1.0) == pytest.approx([0.5, 1.0, 100.0])
    for part, expected in (
        (FedLc(), 1.701413),
        (FedLc(exclude_true=True), 1.5),
        (FedLc(temperature=0.0), 1.551445),
    ):
        lowered = margins(np.array(COUNTS), part.temperature)
        assert loss_under(part, "margin", lowered) == pytest.approx(expected, abs=1e-6)


def test_fedrs_oracle():
    assert scales(np.array(COUNTS), 0.5, soft=False).tolist() == [1.0, 1.0, 0.5]
    assert scales(np.array(COUNTS), 0.5, soft=True).tolist() == [1.0, 0.53125, 0.5]
    assert scales(np.array(COUNTS), 1.0, soft=False).tolist() == [1.0, 1.0, 1.0]
    hard = scales(np.array(COUNTS), 0.5, soft=False)
    assert loss_under(FedRs(), "scale", hard) == pytest.approx(1.464369, abs=1e-6)


def by_hand_loss(part, logits, y, counts):
    """Return the loss as the papers write it."""
    if isinstance(part, FedRs):
        share = counts / counts.sum()
        held = share / share.max() if part.soft else (share > 0).double()
        return cross_entropy(logits * ((1 - part.alpha) * held + part.alpha), y)
    calibrated = logits - part.temperature * counts.clamp(min=1e-8) ** -0.25
    if not part.exclude_true:
        return cross_entropy(calibrated, y)
    true = calibrated.gather(1, y[:, None])[:, 0]
    others = [calibrated[i][torch.arange(3) != label].exp().sum().log() for i, label in enumerate(y)]
    return (torch.stack(others) - true).mean()


@pytest.mark.parametrize(
    "part",
    [FedLc(), FedLc(temperature=0.3, exclude_true=True), FedRs(alpha=0.3), FedRs(alpha=0.2, soft=True)],
    ids=str,
)
def test_logits_are_corrected_by_the_clients_own_labels(part):
    """One step on all samples, at every client, against autograd on the papers' formulas."""
    work = session_of({"method.corrections": [part], "method.sampler": "full-batch", **EVERYBODY})
    engine, data, space = in_process(work), work.federation.train, work.plan.space
    start_model = work.initial_state().model
    ask, sent = engine.ask, {}
    engine.ask = lambda step, tasks: (ask(step, tasks), sent.update(engine.each()))[0]
    play(work, 1, lambda _: engine)
    for client, report in sent.items():
        rows = torch.from_numpy(work.federation.train_split[client])
        module = work.plan.local.build().double()
        space.bind(module, start_model.params.clone(), start_model.buffers)
        y = data.y[rows]
        counts = torch.bincount(y, minlength=3).double()
        by_hand_loss(part, module(data.x[rows].double()), y, counts).backward()
        step = -0.1 * torch.cat([p.grad.flatten() for p in module.parameters()])
        close(report.aggregated["update"], step, atol=1e-12)


@pytest.mark.parametrize(("method", "moves"), [("fedlc", False), ("fedrs", True), ("fedavg", True)])
def test_fedlc_takes_missing_labels_out(method, moves):
    """Client 0 has one label; under FedLC the rows of the others in the last layer stay where they are."""
    work = session_of({"method.name": method, **EVERYBODY})
    engine, sent = in_process(work), {}
    ask = engine.ask
    engine.ask = lambda step, tasks: (ask(step, tasks), sent.update(engine.each()))[0]
    play(work, 1, lambda _: engine)
    of_others = work.plan.space.head_weight.start + torch.arange(5, 15)
    assert (sent[0].aggregated["update"][of_others].abs().max() > 1e-12) == moves


# ---- clip ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [((30.0, 40.0), (6.0, 8.0)), ((6.0, 8.0), (6.0, 8.0)), ((0.3, -0.4), (0.3, -0.4)), ((0.0, 0.0), (0.0, 0.0))],
)
def test_clip_shortens_what_is_longer_than_its_bound(gradient, expected):
    buf = SimpleNamespace(g=f64(*gradient))
    Clip().grad({}, buf, None)
    close(buf.g, f64(*expected), atol=1e-12)


def test_corrections_act_in_the_order_of_the_list():
    """A gradient of 2, and a control of 3: cut to 1 before or after the control is added."""
    push, ends = Given(curve=0.0, slope=(2.0, 0.0)), {}
    for name, parts in {
        "before": [push, Clip(norm=1.0), Scaffold()],
        "after": [push, Scaffold(), Clip(norm=1.0)],
    }.items():
        work, state, engine = one_visit(parts, {"train.batch_size": 2})
        state.server_steps["scaffold"] = Control(f64(3.0, 0.0))
        play_from(work, state, engine)
        ends[name] = state.model.params[0].item()
    assert ends == pytest.approx({"before": 1 - 0.1 * (1 + 3), "after": 1 - 0.1 * 1})


# ---- fednova's counting ----------------------------------------------------------------------------------------------


def counted(steps, momentum=0.0, mu=0.0, rate=0.1):
    """Return what a client's steps add up to, and how far a constant gradient of 1 really came, over the step size."""
    parts = [Given(curve=0.0, slope=(-1.0, -1.0)), *([Prox(mu=mu)] if mu else [])]
    asked = {"method.combiner": "fednova", "train.optimizer": Sgd(momentum=momentum), "train.lr": rate}
    work = given_work((steps, 1), {"method.corrections": parts, "train.batch_size": 1, **asked})
    ((outcome,),) = play_from(work, start(work, 0.0, 0.0))
    report = outcome.reports[0]
    assert report.steps == steps
    return report.metrics["a"], report.update_norm / rate / 2**0.5


def closed_form(tau, momentum, mu, rate=0.1):
    """a with momentum, with a proximal term, or with both: then d = a - 1/m, m = eta mu, is a recurrence of order 2."""
    m = rate * mu
    if not m and not momentum:
        return tau
    if not m:
        return (tau - momentum * (1 - momentum**tau) / (1 - momentum)) / (1 - momentum)
    if not momentum:
        return (1 - (1 - m) ** tau) / m
    roots = np.roots([1, -(1 + momentum - m), momentum])
    weights = np.linalg.solve([[1, 1], roots], [-1 / m, 1 - 1 / m])  # a_0 = 0, a_1 = 1
    return 1 / m + (weights * roots**tau).sum().real


@pytest.mark.parametrize("mu", [0.0, 0.5, 3.0])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 3, 70])
def test_fednova_counts_steps_under_momentum_and_a_proximal_term(steps, momentum, mu):
    a, came = counted(steps, momentum, mu)
    assert a == pytest.approx(closed_form(steps, momentum, mu), rel=1e-10)
    assert a == pytest.approx(came, rel=1e-10)


def test_fednova_oracle_of_momentum():
    assert counted(3, momentum=0.9)[0] == pytest.approx(5.61, abs=1e-12)


def test_fednova_knows_all_proximal_terms_and_the_rate_of_the_round():
    """Two terms of .5 are one of 1; the rate falls from .1 to .05 in the second round."""
    parts = [Given(curve=0.0, slope=(-1.0, -1.0)), Prox(mu=0.5), Prox(mu=0.5)]
    decay = {"train.lr": 0.1, "train.lr_schedule": {"kind": "step", "every": 1, "by": 0.5}, "train.batch_size": 1}
    work = given_work((5, 1), {"method.corrections": parts, "method.combiner": "fednova", **decay})
    _, rounds = play(work, 2)
    for (outcome,), rate in zip(rounds, (0.1, 0.05), strict=True):
        assert outcome.reports[0].metrics["a"] == pytest.approx(closed_form(5, 0.0, 1.0, rate), rel=1e-12)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"train.optimizer": "adam"}, "counts steps of sgd"),
        ({"train.optimizer": {"kind": "sgd", "momentum": 0.5, "state": "kept"}}, "momentum starts afresh"),
        ({"method.corrections": ["feddyn"]}, "one proximal term for all"),
        ({"method.corrections": [{"kind": "prox", "when": "unstable"}]}, "one proximal term for all"),
        ({"method.corrections": [{"kind": "prox", "adaptive": True}]}, "one proximal term for all"),
        ({"train.optimizer": {"kind": "sgd", "momentum": 1.0}}, r"momentum = 1\.0 .* a number < 1"),
    ],
    ids=str,
)
def test_fednova_refuses_steps_it_cannot_count(asked, said):
    with pytest.raises(RequestError, match=said):
        session_of({"method.name": "fednova", **asked})


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "down", "up"),
    [
        ("feddyn", 0, 0),
        ("moon", 0, 0),
        ("fedlc", 0, 0),
        ("fedrs", 0, 0),
        ("fednova", 0, 8),  # a
        ("fedpbs", 16, 16),  # threshold and median; variance and mu
        ("fedbss", 0, 12),  # cut and share of biased samples, after one warm-up round of four
    ],
)
def test_bytes_beside_one_model_down_and_one_update_up(method, down, up):
    work = session_of({"method.name": method, "engine.precision": "fp32"})
    traffic, client_updates = play(work)[0].traffic, 4 * 3
    model = 4 * work.plan.space.P
    assert traffic.bytes_down == client_updates * (model + down)
    assert traffic.bytes_up == client_updates * (model + up)


# ---- bad input -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Breaks(Correction):
    """Makes the loss of one client not finite, in one round."""

    client: int = 2
    round: int = 1
    factor: float = float("nan")

    def declare_slots(self, space):
        return {"factor": Slot()}

    def fill(self, own, buf, context):
        broken = (context.client.id, context.task.round) == (self.client, self.round)
        own["factor"].fill_(self.factor if broken else 1.0)

    def edit_logits(self, own, buf, logits):
        return logits * own["factor"]


@dataclass(frozen=True)
class Loses(System):
    """Loses the report of one client in one round."""

    client: int = 2
    round: int = 1

    def find_lost(self, view, turn, step, reports):
        return {self.client} if step.combine and view.round == self.round else set()


BREAKING = {
    f"{factor} under {name}": (name, factor)
    for name in ("fedprox", "scaffold", "feddyn", "moon", "fedlc", "fedrs", "fedpbs", "fedbss", "fednova", "fedbs")
    for factor in ("nan", "inf")
}


def broken_or_lost(name, factor):
    """Play three rounds in which a client's training breaks once, and three in which its report is lost instead."""
    asked = {"method.name": name, **EVERYBODY, "engine.precision": "fp32"}
    if name not in ("scaffold", "fednova"):  # a local optimizer with a memory of its own
        asked["train.optimizer"] = {"kind": "adam", "state": "kept"}
    recipe = list(session_of(asked).experiment.method.corrections)
    for breaks in (Breaks(factor=float(factor)), Breaks(factor=1.0)):
        work = session_of({**asked, "method.corrections": [*recipe, breaks]})
        if breaks.factor == 1.0:
            work.plan = replace(work.plan, system=Loses())
        engine, state, notes, kept = in_process(work), work.initial_state(), [], []
        for round in range(3):
            view = work.plan.view(work.client_info, round, lambda kind, **fields: notes.append((kind, fields)))  # noqa: B023
            outcomes = play_round(work.plan, state, view, engine)
            kept.append(copy.deepcopy(dict(engine.client_states())))
        yield state, notes, kept, outcomes


@pytest.mark.parametrize("case", BREAKING)
def test_a_client_whose_loss_is_not_finite_is_dropped_and_the_round_goes_on(case):
    """What is left is what would be, had its report been lost: no state of client or server saw it."""
    (state, notes, kept, last), (as_lost, _, kept_as_lost, _) = broken_or_lost(*BREAKING[case])
    at = 1 if "fedbs" in case.split() else 0  # after a probe
    dropped = {"round": 2, "step": at, "clients": [2], "why": "not finite"}
    assert notes == [("dropped", dropped)]
    assert alike(kept[0].get(2), kept[1].get(2))
    if kept[0]:
        assert not alike(kept[0][3], kept[1][3])
        assert not alike(kept[1][2], kept[2][2])
    assert same(state, as_lost)
    assert alike(state.server_steps, as_lost.server_steps)
    assert alike(kept, kept_as_lost)
    assert state.participation.tolist() == [3, 3, 2, 3, 3, 3]
    assert last[-1].missing == ()


def test_an_infinite_loss_beside_a_finite_update_is_noticed():
    """Logits of +-3e38 and the wrong label: the difference overflows, the gradient does not."""
    x, y = np.ones((4, 1), dtype=np.float32), np.array([0, 1, 0, 1])
    x[2:] = 3e38
    federation = Federation.from_arrays(x, y, [np.arange(2), np.arange(2, 4)], test=(x[:2], y[:2]))
    module = nn.Sequential(OrderedDict(head=nn.Linear(1, 2, bias=False)))
    module.head.weight.data = torch.tensor([[1.0], [-1.0]])
    work = own_work(module, {**EVERYBODY, "engine.precision": "fp32", "train.lr": 1e-3, "train.epochs": 1}, federation)
    notes = []
    view = work.plan.view(
        work.client_info, 0, lambda kind, **fields: notes.append((kind, fields["clients"], fields["why"]))
    )
    (outcome,) = play_round(work.plan, work.initial_state(), view, in_process(work))
    assert notes == [("dropped", [1], "not finite")]
    assert [r.client for r in outcome.reports] == [0]


def lopsided():
    """Return clients with one sample, with one label, with fewer samples than a batch.

    And with enough of everything.
    """
    rng = np.random.default_rng(0)
    rows = np.split(np.arange(1 + 9 + 3 + 12), np.cumsum([1, 9, 3]))
    y = np.concatenate([[2], np.full(9, 1), [0, 1, 1], np.arange(12) % 3])
    x = rng.normal(size=(len(y), 4)).astype(np.float32)
    return Federation.from_arrays(x, y, rows, test=(x[-6:], y[-6:]))


CORRECTIONS = {name: {"kind": name} for name in sorted(registry.names("corrections"))} | {
    "prox where unstable": {"kind": "prox", "when": "unstable", "adaptive": True},
    "prox by gradients": {"kind": "prox", "when": "unstable", "gate": "gradient"},
    "scaffold, raw": {"kind": "scaffold", "gradients": "raw"},
    "feddyn, scaled": {"kind": "feddyn", "scale_alpha": True},
    "fedlc, literal": {"kind": "fedlc", "exclude_true": True},
    "fedrs, soft": {"kind": "fedrs", "soft": True},
}
SAMPLERS = {name: {"kind": name} for name in sorted(registry.names("samplers"))} | {
    "capacity": {"kind": "shuffle", "batch": "capacity"},
    "bias-aware from the start": {"kind": "bias-aware", "warmup": 0, "growth": "filter"},
}


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("correction", CORRECTIONS)
def test_every_correction_and_sampler_copes_with_lopsided_clients(correction, sampler):
    asked = {
        "method.corrections": [CORRECTIONS[correction]],
        "method.sampler": SAMPLERS[sampler],
        "model.norm": "batch",
    }
    work = session_of({**asked, "train.batch_size": 4, **EVERYBODY}, lopsided())
    state, rounds = play(work, 2)
    assert [[r.client for r in outcome.reports] for (outcome,) in rounds] == [[0, 1, 2, 3]] * 2
    assert model_to_evaluate(work.plan, state).params.isfinite().all()
    assert state.model.params.isfinite().all()
    assert all(r.update_norm > 0 for (outcome,) in rounds for r in outcome.reports if r.client > 1)


@pytest.mark.parametrize("kind", ["prox", "moon"])
def test_a_negative_mu_is_refused_with_exit_code_two(kind, capsys, monkeypatch):
    part = f'method.corrections=[{{kind = "{kind}", mu = -0.1}}]'
    monkeypatch.setattr(sys, "argv", ["fedstrata", "run", "--set", part])
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: method.corrections.0.mu = -0.1 is not valid; allowed: a number >= 0.0\n"
