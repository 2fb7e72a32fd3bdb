"""Soft weights and FedBS: clients whose samples disagree count less."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from combining import Told, close, model_of, run_of, variances, view_of, weighed
from quadratic import f64
from torch.nn.functional import cross_entropy

from fedstrata.core.flat_model import FlatModel
from fedstrata.methods.combiners.soft import Soft, soft_weights
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.testing.tiny import session_of

RAW = (0.610975, 0.370575, 0.01845)


@pytest.mark.parametrize(("normalise", "expected"), [("none", RAW), ("mean", (0.523693, 0.398688, 0.077619))])
def test_soft_weights_oracle(normalise, expected):
    weights = soft_weights(np.array([0.5, 1.0, 4.0]), 1.0, normalise)
    assert weights == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("combiner", "expected"),
    [(Uniform(), (5 / 3, 5 / 3)), (Soft(normalise="none"), (0.684774, 0.444374))],
)
def test_soft_mean_of_three_models(combiner, expected):
    models, here = [f64(1.0, 0.0), f64(0.0, 1.0), f64(4.0, 4.0)], f64(-1.0, 2.0)
    told = Told([m - here for m in models], metrics=variances(0.5, 1.0, 4.0))
    sums = combiner.combine(None, view_of((1, 1, 1)), FlatModel(here, f64()), told)
    close(here + sums.total["update"], f64(*expected), atol=1e-6)


def soft_of(told, **options):
    """Return the weights that the combiner asks for, of clients that told these variances."""
    return weighed(Soft(**options), metrics=variances(*told)).numpy()


@pytest.mark.parametrize("clients", [1, 2, 3, 5, 6, 7, 49])
@pytest.mark.parametrize("normalise", ["mean", "none"])
def test_soft_weights_without_temperature_or_of_equal_variances_are_exactly_uniform(clients, normalise):
    uniform = np.ones(clients) / clients
    rng = np.random.default_rng(clients)
    assert soft_of(rng.random(clients), tau=0.0, normalise=normalise).tolist() == uniform.tolist()
    for value in (0.0, 0.3, 1e-300, 1e300):
        assert soft_of([value] * clients, normalise=normalise).tolist() == uniform.tolist()


def test_soft_weights_of_huge_variances_do_not_overflow():
    assert soft_of([1e300, 2e300], normalise="none") == pytest.approx([1.0, 0.0])
    assert soft_of([1e4, 1e4 + 1], normalise="none") == pytest.approx(soft_weights(np.array([0.0, 1.0]), 1.0, "none"))
    assert soft_of([1.0, 1e9]) == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(2))], abs=1e-6)


def test_normalised_soft_weights_do_not_depend_on_the_unit():
    variances = np.array([0.2, 1.0, 3.0, 0.7])
    assert soft_of(variances) == pytest.approx(soft_of(1e4 * variances), abs=1e-12)
    assert soft_of(variances, normalise="none") != pytest.approx(soft_of(10 * variances, normalise="none"), abs=1e-2)
    assert (np.argsort(soft_of(variances)) == np.argsort(-variances)).all()


@pytest.mark.parametrize("broken", [np.nan, np.inf])
@pytest.mark.parametrize("normalise", ["mean", "none"])
def test_a_client_whose_variance_is_not_finite_does_not_count(broken, normalise):
    found = soft_of([0.5, broken, 4.0], normalise=normalise)
    assert found[[0, 2]] == pytest.approx(soft_weights(np.array([0.5, 4.0]), 1.0, normalise), abs=1e-12)
    assert found[1] == 0.0
    assert soft_of([broken] * 4).tolist() == [0.25] * 4  # nobody told anything


def test_variances_that_are_not_finite_are_an_event():
    notes = []
    view = view_of((1, 1, 1), note=lambda kind, **fields: notes.append((kind, fields["clients"])))
    Soft().combine(None, view, model_of(), Told([f64(0.0)] * 3, metrics=variances(0.5, np.nan, np.inf)))
    assert notes == [("fallback", [1, 2])]


def test_soft_weights_count_a_client_drawn_twice_twice():
    close(weighed(Soft(), weights=[2, 1], metrics=variances(1.0, 1.0)), f64(2 / 3, 1 / 3))


def variance_by_hand(work, model, client, of):
    """Return the spread of a client's probe batch, from one backward pass a sample (Eq. 8)."""
    module, data = work.plan.local.build().double().eval(), work.federation.train
    work.plan.space.bind(module, model.params.clone(), model.buffers.clone())
    rows = work.federation.train_split[client]
    drawn = work.plan.streams("probe", round=0, step=0, client=client).choice(len(rows), min(4, len(rows)), False)
    tensors = list((module if of == "gradient" else module.get_submodule(work.plan.local.head)).parameters())
    each = []
    for row in rows[np.sort(drawn)]:
        loss = cross_entropy(module(data.x[row][None].double()), data.y[row][None])
        each.append(
            loss[None] if of == "loss" else torch.cat([g.flatten() for g in torch.autograd.grad(loss, tensors)])
        )
    stacked = torch.stack(each).detach()
    return float((stacked - stacked.mean(0)).square().sum(1).mean())


@pytest.mark.parametrize("of", ["gradient", "head-gradient", "loss"])
def test_soft_weights_in_the_loop_follow_each_clients_own_variance(of):
    work = session_of({"method.combiner": {"kind": "soft", "by": of}, "train.clients_per_round": "all"})
    model = work.initial_state().model
    (weights,) = run_of(work).weights
    variances = np.array([variance_by_hand(work, model, client, of) for client in range(6)])
    assert len(set(variances.round(9))) > 3
    assert list(weights.values()) == pytest.approx(soft_weights(variances, 1.0, "mean"), abs=1e-9)


def test_fedbs_trains_the_stable_and_weighs_them_by_the_variance_they_told():
    work = session_of({"method.name": "fedbs", "train.clients_per_round": 3})
    seen = run_of(work, rounds=3)
    for (probe, trained), weights in zip(seen.rounds, seen.weights, strict=True):
        told = {r.client: r.metrics["gradient_variance"] for r in probe.reports}
        assert sorted(told) == list(range(6))
        assert [a.client for a in trained.step.asks] == sorted(sorted(told, key=told.get)[:3])
        again = {r.client: r.metrics["gradient_variance"] for r in trained.reports}
        assert again == {client: told[client] for client in again}  # one batch, one variance
        expected = soft_weights(np.array(list(again.values())), 1.0, "mean")
        assert list(weights.values()) == pytest.approx(expected, abs=1e-12)
        assert max(weights, key=weights.get) == min(told, key=told.get)
    first = {r.client: r.metrics["gradient_variance"] for r in seen.rounds[0][0].reports}
    model = work.initial_state().model
    for client, value in first.items():
        assert value == pytest.approx(variance_by_hand(work, model, client, "gradient"), rel=1e-9)


def test_fedbs_pays_for_its_probes():
    work = session_of({"method.name": "fedbs", "engine.precision": "fp32", "train.clients_per_round": 2})
    seen = run_of(work)
    P, traffic = work.plan.space.P, seen.state.traffic
    assert traffic.bytes_down == (6 + 2) * 4 * P
    assert traffic.bytes_up == 6 * 8 + 2 * (4 * P + 8)
