"""FedGA, greedy: only models that lower the loss at the server are taken; and the samples that it holds for that."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from combining import Told, model_of, run_of, view_of
from light import LIGHT
from quadratic import f64
from torch.nn.functional import cross_entropy

from fedstrata import Experiment, Federation, RequestError, train
from fedstrata.config.build import build_federation
from fedstrata.data.partitions.iid import Iid
from fedstrata.methods.combiners.fedga_greedy import FedGaGreedy
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.runs.session import build_session
from fedstrata.testing.tiny import same, session_of

# ---- FedGA, greedy ---------------------------------------------------------------------------------------------------


def greedy(models, samples=None, loss=lambda w: (w - 1.5) ** 2, here=10.0, **known):
    """Return the model that greedy aggregation makes of scalar models."""
    view = view_of([1] * len(models), proxy=lambda model: loss(float(model.params)), **known)
    told = Told([f64(m - here) for m in models], samples=samples or [1] * len(models))
    return here + float(FedGaGreedy().combine(None, view, model_of(here), told).total["update"])


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ((0.0, 2.5, 5.0), 1.25),  # 2.5 is best; with 0 it is 1.25, better; with 5 it would be 2.5
        ((0.0, 2.0, 5.0), 2.0),  # with 0 it would be 1, as good as 2: not taken
        ((5.0, 0.0, 2.5), 1.25),  # order of arrival does not matter
        ((1.5, 1.5, 1.5), 1.5),
        ((4.0,), 4.0),
    ],
)
def test_greedy_oracles(models, expected):
    assert greedy(models) == pytest.approx(expected, abs=1e-12)


def test_greedy_weighs_those_taken_by_size():
    """2.5 with three samples and 0 with one: 1.875 (.14) is better than 2.5 (1); then 1 with one: 1.7 (.04)."""
    assert greedy((0.0, 2.5, 5.0), samples=[1, 3, 1]) == pytest.approx(1.875, abs=1e-12)
    assert greedy((0.0, 2.5, 5.0), samples=[9, 1, 1]) == pytest.approx(2.5, abs=1e-12)  # .25 would be worse


def test_greedy_leaves_out_models_without_a_finite_loss():
    def loss(w):
        return float("nan") if w in (0.25, 9.0) else (w - 1.5) ** 2

    for models in ((9.0, 0.0, 2.5), (0.0, 9.0, 2.5), (2.5, 0.0, 9.0)):
        assert greedy(models, loss=loss) == pytest.approx(1.25, abs=1e-12)


def test_greedy_takes_equal_models_by_their_key():
    """Of two equally good models the lower key comes first, and the other is not taken: 1 and 2, both at .25."""
    told = Told([f64(1.0), f64(2.0)])
    for key, expected in (((0, 1), 1.0), ((1, 0), 2.0)):
        view = view_of((1, 1), proxy=lambda model: abs(abs(float(model.params) - 1.5) - 0.5))
        view = replace(view, client_info=replace(view.client_info, key=np.array(key)))
        sums = FedGaGreedy().combine(None, view, model_of(0.0), told)
        assert float(sums.total["update"]) == expected


def test_greedy_without_samples_at_the_server_is_the_mean_by_size_and_says_so():
    plain, unable = (run_of(session_of({"method.combiner": combine}), rounds=3) for combine in ("size", "fedga-greedy"))
    assert same(plain.state, unable.state)
    assert [note["what"] for note in unable.notes] == ["fedga-greedy"]
    assert "data.proxy" in unable.notes[0]["why"]


def proxied(proxy=12, clients=5, **how):
    rng = np.random.default_rng(4)
    y = rng.integers(0, 3, 120)
    x = (np.eye(3)[y] * 2 + rng.normal(size=(120, 3))).astype(np.float32)
    how = {"partition": Iid()} | how if isinstance(clients, int) else how
    return Federation.from_arrays(x, y, clients, proxy=proxy, **how), x, y


def test_greedy_in_the_loop_lowers_the_loss_at_the_server():
    federation, *_ = proxied()
    asked = {"method.name": "fedga-greedy", "train.clients_per_round": "all", "train.epochs": 1, "train.lr": 0.5}
    work = session_of(asked, federation)
    seen = run_of(work)
    proxy, (weights,) = work.client_info.proxy, seen.weights
    module = work.plan.local.build().double()
    work.plan.space.bind(module, seen.state.model.params, seen.state.model.buffers)
    with torch.no_grad():
        by_hand = cross_entropy(module(federation.proxy.x.double()), federation.proxy.y)
    assert proxy(seen.state.model) == pytest.approx(float(by_hand), abs=1e-9)
    alone = [proxy(_combined(work, {other: float(other == client) for other in weights})) for client in weights]
    assert proxy(seen.state.model) <= min(alone) + 1e-12
    assert weights[int(np.argmin(alone))] > 0
    assert sum(weights.values()) == pytest.approx(1.0)


def _combined(work, weights):
    """Return the model that fixed weights make of a first round."""

    @dataclass(frozen=True)
    class Fixed(SizeWeighted):
        def weights(self, arrived):
            return np.array([weights[r.client] for r in arrived.reports])

    again = build_session(work.experiment, work.federation, work.model)
    again = replace(again, plan=replace(again.plan, combiner=Fixed()))
    return run_of(again).state.model


@pytest.mark.parametrize("method", ["stratify-batch"])
def test_greedy_wants_models_not_gradients(method):
    with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan"):
        session_of({"method.name": method, "method.combiner": "fedga-greedy"})


# ---- samples that the server holds -----------------------------------------------------------------------------------


def rows_of(x, samples):
    """Find samples among rows that are all different."""
    places = {row.tobytes(): i for i, row in enumerate(x)}
    return {places[row.tobytes()] for row in samples.numpy()}


@pytest.mark.parametrize(
    "clients",
    [5, [np.arange(0, 50), np.arange(50, 110)], np.arange(120) % 4],
    ids=["dealt out", "rows a client", "an owner a sample"],
)
def test_the_servers_samples_are_nobody_elses(clients):
    federation, x, _ = proxied(proxy=13, clients=clients)
    plain, *_ = proxied(proxy=0, clients=clients)
    at_server, tested = rows_of(x, federation.proxy.x), rows_of(x, federation.test.x)
    held = set(federation.train_split.rows.tolist())
    assert len(at_server) == len(federation.proxy) == 13
    assert not at_server & held
    assert not at_server & tested
    assert tested == rows_of(x, plain.test.x)  # what is tested does not depend on the server's samples
    if isinstance(clients, list):
        assert held == set(range(110)) - tested - at_server
        assert federation.left_out == len(set(range(110, 120)) - tested - at_server)
    else:
        assert held | at_server | tested == set(range(120))
        assert federation.left_out == 0


def test_a_given_test_set_is_left_alone():
    federation, x, _ = proxied(proxy=10, test=(np.zeros((4, 3), dtype=np.float32), np.array([0, 1, 2, 0])))
    assert len(federation.test) == 4
    assert len(federation.train_split.rows) == 110
    assert not rows_of(x, federation.proxy.x) & set(federation.train_split.rows.tolist())


@pytest.mark.parametrize("proxy", [1, 3, 9, 10, 60])
def test_the_servers_samples_are_even_over_the_labels(proxy):
    y = np.repeat([0, 1, 2], [60, 50, 10])
    x = np.random.default_rng(0).normal(size=(120, 2)).astype(np.float32)
    federation = Federation.from_arrays(x, y, 3, partition=Iid(), test=(x[:3], y[[0, 60, 110]]), proxy=proxy)
    counts = np.bincount(federation.proxy.y.numpy(), minlength=3)
    assert counts.sum() == proxy
    common = counts[:2] if proxy == 60 else counts  # of the last label there are only ten
    assert np.ptp(common) <= 1
    assert counts[2] == min(10, counts[2])
    assert np.array_equal(np.sort(y[sorted(rows_of(x, federation.proxy.x))]), np.sort(federation.proxy.y.numpy()))


def test_the_servers_samples_follow_the_seed():
    held = [rows_of(proxied()[1], proxied(seed=seed)[0].proxy.x) for seed in (0, 0, 1)]
    assert held[0] == held[1] != held[2]
    assert proxied(proxy=0)[0].proxy is None


@pytest.mark.parametrize("proxy", [96, 120, 1000])
def test_clients_need_samples_too(proxy):
    with pytest.raises(RequestError, match=rf"data\.proxy = {proxy}: there are 96 training samples"):
        proxied(proxy=proxy)
    assert len(proxied(proxy=95, clients=1)[0].train_split.rows) == 1


def test_the_servers_samples_in_an_experiment(tmp_path):
    asked = {**LIGHT, "method.name": "fedga-greedy", "data.proxy": 100, "data.clients": 5, "train.rounds": 1}
    run = train(overrides=asked, out=tmp_path / "run")
    begun = next(e for e in run.events() if e["event"] == "start")
    plain = build_federation(Experiment.of(None, **{**asked, "data.proxy": 0}))
    assert begun["samples"] == len(plain.train_split.rows) - 100
    assert begun["test_samples"] == len(plain.test)
    assert not [e for e in run.events() if e["event"] == "fallback"]


def test_noise_does_not_reach_the_servers_samples():
    class Wrong:
        def apply(self, x, y, clients, classes, streams):
            return x + 100, (y + 1) % classes

    federation, *_ = proxied()
    noisy = federation.with_noise([Wrong()])
    assert torch.equal(noisy.proxy.x, federation.proxy.x)
    assert torch.equal(noisy.proxy.y, federation.proxy.y)
