"""Every combiner with what stands beside it in a plan; combiners that do not trust every update, against numpy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from combining import Told, close, model_of, moving_work, normed_work, run_of, view_of
from quadratic import f64

from fedstrata import RequestError
from fedstrata.core import registry
from fedstrata.methods.combiners import robust
from fedstrata.methods.combiners.robust import Median, NormClip, TrimmedMean
from fedstrata.methods.corrections.scaffold import Scaffold
from fedstrata.runs.session import build_session
from fedstrata.testing.tiny import session_of

COMBINERS = sorted(registry.names("combiners"))


@pytest.mark.parametrize("name", COMBINERS)
def test_every_combiner_goes_with_scaffold_and_norm_statistics(name):
    work = normed_work({"method.combiner": name, "method.corrections": [Scaffold()]})
    seen = run_of(work, rounds=2)
    for tensor in (seen.state.model.params, seen.state.model.buffers, seen.state.server_steps["scaffold"].c):
        assert torch.isfinite(tensor).all()
        assert tensor.abs().sum() > 0
    variances = [norm.var.of(seen.state.model.buffers) for norm in work.plan.space.norms]
    assert all((v > 0).all() for v in variances)


@pytest.mark.parametrize("name", COMBINERS)
def test_every_combiner_leaves_the_model_alone_where_nobody_moved(name):
    work = session_of({"method.combiner": name})
    still, combiner = torch.zeros(work.plan.space.P, dtype=torch.float64), work.plan.combiner
    metrics = dict.fromkeys(combiner.metrics_read("train"), 0.0)
    told = Told([still] * 3, chances=[0.5] * 3, metrics=[metrics] * 3, samples=[1, 0, 5])
    view, state = work.plan.view(work.client_info, 0, lambda *_, **__: None), work.initial_state()
    assert torch.equal(combiner.combine(state.combiner, view, state.model, told).total["update"], still)


# ---- robust combiners ------------------------------------------------------------------------------------------------


def trimmed(stacked, share):
    """Write the trimmed mean down with numpy."""
    n = len(stacked)
    cut = min(max(int(share * n + 1e-9), 1), (n - 1) // 2)
    return np.sort(stacked, 0)[cut : n - cut].mean(0)


RULES = {
    "median": (Median(), partial(np.median, axis=0)),
    "trimmed-mean": (TrimmedMean(trim=0.2), partial(trimmed, share=0.2)),
    "trimmed-mean of 45 %": (TrimmedMean(trim=0.45), partial(trimmed, share=0.45)),
    "trimmed-mean of less than one": (TrimmedMean(trim=0.01), partial(trimmed, share=0.01)),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("clients", [1, 2, 3, 5, 6, 10, 11])
@pytest.mark.parametrize("cells", [1, 40, 2**21])
def test_coordinates_are_combined_as_numpy_does(rule, clients, cells, monkeypatch):
    monkeypatch.setattr(robust, "CELLS", cells)
    rng = np.random.default_rng(clients)
    updates, controls = rng.normal(size=(clients, 17)), rng.normal(size=(clients, 3, 2))
    told = Told(
        list(torch.from_numpy(updates)),
        samples=rng.integers(1, 50, clients).tolist(),
        others={"scaffold/dc": list(torch.from_numpy(controls))},
    )
    combiner, by_numpy = RULES[rule]
    sums = combiner.combine(None, view_of([1] * clients), model_of(), told)
    assert sums.total["update"].numpy() == pytest.approx(by_numpy(updates), abs=1e-12)
    assert sums.mean("scaffold/dc").numpy() == pytest.approx(by_numpy(controls), abs=1e-12)
    assert sums.count == clients


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_median_keeps_the_precision_of_the_updates(dtype):
    told = Told(list(torch.randn(4, 3).to(dtype)))
    assert Median().combine(None, view_of([1] * 4), model_of(), told).total["update"].dtype == dtype


@pytest.mark.parametrize(("trim", "clients", "left"), [(0.1, 30, 24), (0.1, 9, 7), (0.29, 100, 42), (0.49, 3, 1)])
def test_how_many_are_trimmed(trim, clients, left):
    """Of n clients int(trim n) go at either end, and at least one; .1 x 30 and .29 x 100 are whole numbers."""
    values = torch.zeros(clients, 1, dtype=torch.float64)
    values[-1] = 1.0
    update = (
        TrimmedMean(trim=trim).combine(None, view_of([1] * clients), model_of(), Told(list(values))).total["update"]
    )
    assert float(update) == 0.0
    ranks = torch.arange(clients, dtype=torch.float64)[:, None] ** 2
    update = TrimmedMean(trim=trim).combine(None, view_of([1] * clients), model_of(), Told(list(ranks))).total["update"]
    gone = (clients - left) // 2
    assert float(update) == pytest.approx(float(ranks[gone : clients - gone].mean()))


@pytest.mark.parametrize("trim", [0.5, -0.1, 1.0, 0.0])
def test_half_of_the_clients_or_none_cannot_be_trimmed_at_either_end(trim):
    with pytest.raises(RequestError, match=r"trim"):
        session_of({"method.combiner": {"kind": "trimmed-mean", "trim": trim}})


@pytest.mark.parametrize("bound", [None, 0.5, 3.0, 1e6])
@pytest.mark.parametrize("clients", [1, 4, 5])
def test_long_updates_are_shortened(bound, clients):
    rng = np.random.default_rng(clients)
    updates = rng.normal(size=(clients, 6)) * rng.lognormal(0, 1, (clients, 1))
    samples = rng.integers(1, 20, clients)
    lengths = np.linalg.norm(updates, axis=1)
    most = np.sort(lengths)[(clients - 1) // 2] if bound is None else bound
    shortened = updates * np.minimum(1, most / lengths)[:, None]
    told = Told(list(torch.from_numpy(updates)), samples=samples.tolist())
    update = NormClip(bound=bound).combine(None, view_of([1] * clients), model_of(), told).total["update"]
    assert update.numpy() == pytest.approx((samples / samples.sum()) @ shortened, abs=1e-12)


COMPARING = ["trimmed-mean", "krum", "multi-krum", "geometric-median"]  # they leave clients out, or nearly


@pytest.mark.parametrize("combine", COMPARING)
def test_two_clients_cannot_be_compared(combine):
    for few in (2, 0.4):
        with pytest.raises(RequestError, match=r"clients_per_round gives 2; .* at least 3 clients a round"):
            session_of({"method.combiner": combine, "train.clients_per_round": few})
    with pytest.raises(RequestError, match=r"method.combiner does not fit this plan: it compares at least 3"):
        session_of({"method.combiner": combine, "method.driver": "chain"})


@pytest.mark.parametrize("combine", COMPARING)
def test_where_two_of_three_reports_come_no_model_is_made_and_everybody_hears_why(combine):
    work = session_of({"method.combiner": combine, "system.stragglers.rate": 0.34})
    seen = run_of(work)
    assert torch.equal(seen.state.model.params, work.initial_state().model.params)
    lost, few, none = seen.notes
    assert (lost["why"], none["event"]) == ("late", "no_update")
    assert few["event"] == "dropped"
    assert len(few["clients"]) == 2
    assert few["why"] == "2 came, and the combiner compares at least 3"


def test_norm_clipping_says_whose_update_was_shortened():
    seen = run_of(moving_work([(1.0, 0.0), (0.0, 1.0), (3.0, 4.0)], {"method.combiner": "norm-clip"}))
    (note,) = seen.notes
    assert (note["event"], note["clients"], note["lengths"], note["to"]) == ("clipped", [2], [5.0], 1.0)


def test_norm_clipping_measures_lengths_itself():
    told = Told([f64(3.0, 4.0), f64(0.3, 0.4)], update_norm=[1e-3, 1e-3])  # the first client lies
    update = NormClip(bound=0.5).combine(None, view_of((1, 1)), model_of(), told).total["update"]
    close(update, f64(0.3, 0.4))


def test_norm_clipping_leaves_norm_statistics_a_mean():
    told = Told([f64(3.0, 4.0), f64(0.3, 0.4)], others={"buffers": [f64(1.0), f64(1.0)]})
    sums = NormClip(bound=0.5).combine(None, view_of((1, 1)), model_of(), told)
    close(sums.mean("buffers"), f64(1.0))


HONEST = [(1.0, -1.0), (1.1, -0.9), (0.9, -1.1), (1.0, -1.0)]


@pytest.mark.parametrize(
    "combine", ["median", {"kind": "trimmed-mean", "trim": 0.2}, "norm-clip", "krum", "multi-krum", "geometric-median"]
)
@pytest.mark.parametrize("far", [1e6, -1e6])
def test_one_client_far_out_does_not_move_the_result(combine, far):
    work = moving_work([*HONEST, (far, far)], {"method.combiner": combine})
    found = run_of(work, weights=(0.0, 0.0)).state.model.params
    assert (found - f64(1.0, -1.0)).abs().max() < 0.5
    naive = moving_work([*HONEST, (far, far)], {"method.combiner": "uniform"})
    assert (run_of(naive, weights=(0.0, 0.0)).state.model.params - f64(1.0, -1.0)).abs().max() > 1e5


@pytest.mark.parametrize("combine", ["median", {"kind": "trimmed-mean", "trim": 0.2}, "krum", "multi-krum"])
def test_one_client_far_out_does_not_move_controls_or_norm_statistics(combine):
    """Its samples are a million times too large: so are its gradients, its controls and its statistics."""
    asked = {"method.combiner": combine, "method.corrections": [Scaffold()], "train.lr": 1e-3}
    honest = normed_work(asked)
    x = honest.federation.train.x.clone()
    x[torch.from_numpy(honest.federation.train_split[1])] *= 1e6
    federation = replace(honest.federation, train=replace(honest.federation.train, x=x))
    attacked = build_session(honest.experiment, federation, honest.model)
    found, usual = (run_of(work).state for work in (attacked, honest))
    assert (found.model.params - usual.model.params).abs().max() < 0.1
    assert (found.model.buffers - usual.model.buffers).abs().max() < 10
    assert (found.server_steps["scaffold"].c - usual.server_steps["scaffold"].c).abs().max() < 10


def test_robust_combiners_in_global_batches_keep_running_statistics():
    """Where a batch spans clients, norms agree on statistics that no client sends as its own."""
    asked = {"method.name": "stratify-batch", "engine.execution": "messages", "train.batch_size": 8}
    found, usual = (run_of(normed_work({**asked, "method.combiner": combine})).state for combine in ("median", "size"))
    assert (found.model.buffers - normed_work(asked).initial_state().model.buffers).abs().max() > 0.1
    assert found.model.buffers.shape == usual.model.buffers.shape
