"""The proximal term, and the gate of FedPBS that puts it on unstable clients."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from correcting import EVERYBODY, own_work
from quadratic import Given, given_work, run_from, start
from torch import nn

from fedstrata.core.messages import Report
from fedstrata.methods.corrections.prox import Prox
from fedstrata.testing.tiny import in_process, run_rounds, session_of, tiny_federation

FEDPBS = {"method.name": "fedpbs", **EVERYBODY}


# ---- prox, and the gate of FedPBS ------------------------------------------------------------------------------------


def looking(batch, v, told=(np.inf, np.nan), nominal=64):
    """Return a client update whose batch and variance are known."""
    down = {"told": torch.tensor(told, dtype=torch.float64)}
    return SimpleNamespace(planned=batch, batch_size=nominal, down=down, batch_variance=lambda _: v)


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
        ({"over": "all"}, 0.5),
    ],
    ids=str,
)
def test_the_threshold_is_what_clients_told_in_the_last_round(options, level):
    work = session_of({**FEDPBS, **{f"method.corrections.0.{key}": value for key, value in options.items()}})
    gate = f"{options.get('gate', 'loss')}_variance{'_of_all' if 'over' in options else ''}"
    _, rounds = run_rounds(work)
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


def test_the_variance_may_be_that_of_all_samples():
    """As Equation 8 says. By hand: of the losses that the received model has on all of a client's samples."""
    work = session_of({**FEDPBS, "method.corrections.0.over": "all"})
    ((outcome,),) = run_rounds(work, rounds=1)[1]
    data, network = work.federation.train, work.plan.local.build().double()
    with torch.no_grad():
        losses = nn.functional.cross_entropy(network(data.x.double()), data.y, reduction="none").numpy()
    for report in outcome.reports:
        own = losses[work.federation.client(report.client).rows]
        assert report.metrics["loss_variance_of_all"] == pytest.approx(own.var(), rel=1e-9)
        assert len(own) > 2
    one_batch = run_rounds(session_of(FEDPBS), rounds=1)[1][0][0]
    assert any(
        a.metrics["loss_variance_of_all"] != b.metrics["loss_variance"]
        for a, b in zip(outcome.reports, one_batch.reports, strict=True)
    )


@pytest.mark.parametrize("weight", np.linspace(0.1, 2.0, 9))
def test_with_equal_variances_everybody_passes_the_median(weight):
    """All clients hold the same two samples, and the model stands still."""
    still = Given(curve=0.0)
    work = given_work((2,) * 4, {"method.corrections": [still, Prox(when="unstable")], "train.batch_size": 2})
    state = start(work, weight, -0.3)
    engine = in_process(work)
    for _ in range(3):
        ((outcome,),) = run_from(work, state, engine)
        assert len({r.metrics["loss_variance"] for r in outcome.reports}) == 1
        assert [r.metrics["mu"] for r in outcome.reports] == [0.0] * 4
    assert outcome.reports[0].metrics["loss_variance"] > 0


def test_the_gate_is_about_the_batch_that_is_really_used():
    """A slow device gets batches of 8, a small client one of all its samples; the nominal batch is 10."""
    federation = replace(tiny_federation(), speeds=np.array([1.0, 0.5, 1.0, 2.0, 0.1, 1.0]))
    assert federation.train_split.sizes.tolist() == [3, 10, 17, 9, 16, 8]
    ((outcome,),) = run_rounds(session_of({**FEDPBS, "train.batch_size": 10}, federation), rounds=1)[1]
    assert [r.metrics["mu"] for r in outcome.reports] == [0.01, 0.01, 0.0, 0.01, 0.01, 0.01]


def test_a_round_that_nobody_finishes_leaves_the_threshold_alone():
    work = session_of({**FEDPBS, "system.stragglers.rate": 1.0})
    told = run_rounds(work, rounds=2)[0].server_steps["prox"]
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
    ((outcome,),) = run_from(work, start(work, 1.0, 1.0))
    assert [r.update_norm for r in outcome.reports] == pytest.approx([0.36 * 2**0.5, 0.34 * 2**0.5], abs=1e-12)


def test_norm_statistics_are_not_pulled():
    torch.manual_seed(0)
    module = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(4, affine=False), head=nn.Linear(4, 3)))
    pulled, free = (
        run_rounds(own_work(module, {"method.corrections": [Prox(mu=mu)], **EVERYBODY}), 1)[0] for mu in (5.0, 0.0)
    )
    assert torch.equal(pulled.model.buffers, free.model.buffers)  # they do not depend on the head
    assert not torch.equal(pulled.model.params, free.model.params)
