"""Combiners and FedExP, against their papers' rules: numbers worked out by hand, brute force, and the real loop.

`Told` stands for the reports of a step, whatever they say. `Moves` lets every client of a real run send the update we
choose: one step of length 1 along it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from quadratic import f64, given_work
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata import Experiment, Federation, RequestError, train
from fedstrata.config.build import build_federation
from fedstrata.core import registry
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import Correction
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import Report, Slot, weighted_sum
from fedstrata.core.rng import Streams
from fedstrata.core.server_parts import View
from fedstrata.data.partitions.iid import Iid
from fedstrata.engines.local.engine import InProcessPool, LocalEngine
from fedstrata.methods.combiners import fedcda, robust
from fedstrata.methods.combiners.fedcda import Cache, FedCda, Kept
from fedstrata.methods.combiners.fedga_greedy import FedGaGreedy
from fedstrata.methods.combiners.fednova import FedNova
from fedstrata.methods.combiners.inco import crossed, references
from fedstrata.methods.combiners.inverse_probability import InverseProbability
from fedstrata.methods.combiners.robust import Median, NormClip, TrimmedMean
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.combiners.soft import Soft, soft_weights
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.methods.corrections.feddyn import FedDyn
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.corrections.scaffold import Scaffold
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.methods.selectors.random import Random
from fedstrata.methods.selectors.size import SelectBySize as BySize
from fedstrata.methods.selectors.size import chances_by_size, draw_by_size
from fedstrata.methods.server_steps.fedexp import FedExp
from fedstrata.models.resnet import BasicBlock
from fedstrata.runs.session import Session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import model_to_evaluate, play_round
from fedstrata.testing import check_server_step, tiny_federation
from fedstrata.testing.tiny import play, same, session_of

close = partial(torch.testing.assert_close, rtol=0, atol=1e-12)


class Told:
    """The reports of a step: an update a client, and what it says beside."""

    def __init__(self, updates, clients=None, weights=None, chances=None, beside=None, **numbers):
        self._whole = {}
        for i, update in enumerate(updates):
            report = Report(i if clients is None else clients[i], 1, 1, update_norm=float(update.norm()))
            aggregated = {"update": update, **{name: each[i] for name, each in (beside or {}).items()}}
            told = {name: each[i] for name, each in numbers.items()}
            self._whole[report.client] = replace(report, aggregated=aggregated, **told)
        self.reports = [report.open() for report in self._whole.values()]
        self.weights = np.ones(len(updates)) if weights is None else np.array(weights, dtype=float)
        self.chances = np.full(len(updates), np.nan) if chances is None else np.array(chances)

    def sum(self, weights):
        return weighted_sum(self._whole, dict(zip(self._whole, map(float, weights), strict=True)))

    def each(self):
        return list(self._whole.values())


def weighed(combiner, **told):
    """Return the weights that a combiner asks for: client k sends the k-th unit vector."""
    n = max(map(len, told.values()))
    view = view_of([1] * n)
    return combiner.combine(None, view, model_of(), Told(list(torch.eye(n).double()), **told)).total["update"]


def variances(*values):
    return [{"gradient_variance": v} for v in values]


def view_of(sizes, k=1, round=0, note=lambda *_, **__: None, P=2, Q=0, **known):
    """Return what parts at the server see of clients of these sizes."""
    client_info = ClientInfo(
        len(sizes), 2, np.flatnonzero(sizes), np.arange(len(sizes)), {"sizes": np.array(sizes)}, **known
    )
    space = SimpleNamespace(P=P, Q=Q)
    return View(round, 10, k, client_info.holders, client_info, space, partial(Streams(0), round=round), note)


def model_of(*weights):
    return FlatModel(f64(*weights), f64())


@dataclass(frozen=True)
class Moves(Correction):
    """Replaces the gradient, so that each step of length 1 moves a client by its own vector."""

    by: tuple[tuple[float, ...], ...]

    def declare_slots(self, space):
        return {"by": Slot((space.P,))}

    def fill(self, own, buf, context):
        own["by"].copy_(torch.tensor(self.by[context.client.id], dtype=torch.float64))

    def edit_gradient(self, own, buf, rate):
        buf.g.copy_(-own["by"])


def moving_work(by, overrides, sizes=None):
    """Return a run of two weights in which every client moves as told, once a batch."""
    moves = {"method.corrections": [Moves(tuple(map(tuple, by)))], "train.rounds": 4}
    return given_work(sizes or [2] * len(by), {**moves, **overrides})


class Watched(LocalEngine):
    """The local engine, which remembers the weights that it was asked for."""

    def __init__(self, pool):
        super().__init__(pool)
        self.asked = []

    def collect(self, weights):
        self.asked.append(dict(weights))
        return super().collect(weights)


def played(work, rounds=1, weights=None):
    """Play rounds from given weights; the state, the outcomes, the events and the weights of every step."""
    notes: list[dict] = []

    def note(kind, **fields):
        notes.append({"event": kind, **fields})

    state, engine, outcomes = work.initial_state(note), Watched(InProcessPool(work.plan.local, work.federation)), []
    if weights is not None:
        state = replace(state, model=FlatModel(f64(*weights), state.model.buffers))
    for round in range(rounds):
        outcomes.append(play_round(work.plan, state, work.plan.view(work.client_info, round, note), engine))
        state.round += 1
    return SimpleNamespace(state=state, rounds=outcomes, notes=notes, weights=engine.asked, work=work)


def normed_work(overrides, seed=0):
    """Return a run of a network with norm statistics."""
    torch.manual_seed(0)
    layers = OrderedDict(fc=nn.Linear(4, 5), norm=nn.BatchNorm1d(5), relu=nn.ReLU(), head=nn.Linear(5, 3))
    federation, module = tiny_federation(seed=seed), nn.Sequential(layers)
    asked = {"train.batch_size": 4, "train.epochs": 1, "train.clients_per_round": "all", "engine.precision": "fp64"}
    return Session(describe_experiment(None, None, {**asked, **overrides}, federation, module), federation, module)


COMBINERS = sorted(registry.names("combiners"))


@pytest.mark.parametrize("name", COMBINERS)
def test_every_combiner_goes_with_scaffold_and_norm_statistics(name):
    work = normed_work({"method.combiner": name, "method.corrections": [Scaffold()]})
    seen = played(work, rounds=2)
    for tensor in (seen.state.model.params, seen.state.model.buffers, seen.state.server_steps["scaffold"].c):
        assert torch.isfinite(tensor).all()
        assert tensor.abs().sum() > 0
    variances = [norm.var.of(seen.state.model.buffers) for norm in work.plan.space.norms]
    assert all((v > 0).all() for v in variances)


@pytest.mark.parametrize("name", COMBINERS)
def test_every_combiner_leaves_the_model_alone_where_nobody_moved(name):
    work = session_of({"method.combiner": name})
    still, combiner = torch.zeros(work.plan.space.P, dtype=torch.float64), work.plan.combiner
    told = Told([still] * 3, chances=[0.5] * 3, metrics=[{"a": 0.0, "gradient_variance": 0.0}] * 3, samples=[1, 0, 5])
    view, state = work.plan.view(work.client_info, 0, lambda *_, **__: None), work.initial_state()
    assert torch.equal(combiner.combine(state.combiner, view, state.model, told).total["update"], still)


# ---- soft weights, FedBS ---------------------------------------------------------------------------------------------

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
    (weights,) = played(work).weights
    variances = np.array([variance_by_hand(work, model, client, of) for client in range(6)])
    assert len(set(variances.round(9))) > 3
    assert list(weights.values()) == pytest.approx(soft_weights(variances, 1.0, "mean"), abs=1e-9)


def test_fedbs_trains_the_stable_and_weighs_them_by_the_variance_they_told():
    work = session_of({"method.name": "fedbs", "train.clients_per_round": 3})
    seen = played(work, rounds=3)
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
    seen = played(work)
    P, traffic = work.plan.space.P, seen.state.traffic
    assert traffic.bytes_down == (6 + 2) * 4 * P
    assert traffic.bytes_up == 6 * 8 + 2 * (4 * P + 8)


# ---- inverse probability ---------------------------------------------------------------------------------------------


def test_equal_chances_make_weights_by_size_exactly():
    samples = [3, 7, 1, 12, 5]
    by_size = weighed(SizeWeighted(), samples=samples).tolist()
    for chance in (1.0, *(k / n for n in range(2, 12) for k in range(1, n)), 1e-6):
        assert weighed(InverseProbability(), samples=samples, chances=[chance] * 5).tolist() == by_size


def test_what_was_unlikely_to_be_asked_counts_more():
    found = weighed(InverseProbability(), samples=[2, 2, 4], chances=[0.5, 0.25, 0.5])
    close(found, f64(0.2, 0.4, 0.4))
    doubled = weighed(InverseProbability(), samples=[2, 2, 4], chances=[0.5, 0.25, 0.5], weights=[2, 1, 1])
    close(doubled, f64(2 / 6, 2 / 6, 2 / 6))


def test_chances_that_follow_sizes_make_nearly_equal_weights():
    sizes = np.random.default_rng(0).integers(10, 100, 200)
    chances = chances_by_size(sizes.astype(float), 10)
    weights = weighed(InverseProbability(), samples=sizes.tolist(), chances=chances).numpy()
    assert weights == pytest.approx(
        1 / 200, rel=0.05
    )  # where few of many are drawn, chances are in proportion to sizes
    assert np.corrcoef(weights, sizes)[0, 1] > 0.9  # less than that for large clients, which cannot be drawn twice


@pytest.mark.parametrize("selector", [Random(), BySize()])
def test_the_weighted_mean_is_that_of_all_clients_on_average(selector):
    """A quantity that grows with a client's size: its mean by size over everybody is what is wanted."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 30, 40)
    values = f64(*(sizes + rng.normal(size=40)))[:, None]
    truth = float((sizes / sizes.sum()) @ values[:, 0].numpy())
    means = {InverseProbability: [], Uniform: [], SizeWeighted: []}
    for round in range(500):
        view = view_of(sizes, k=10, round=round)
        asks = selector.select(None, view)
        drawn = [a.client for a in asks]
        told = Told(list(values[drawn]), samples=sizes[drawn].tolist(), chances=[a.chance for a in asks])
        for kind, seen in means.items():
            seen.append(float(kind().combine(None, view, model_of(0.0), told).total["update"]))
    error = {kind: abs(np.mean(seen) - truth) for kind, seen in means.items()}
    assert error[InverseProbability] < 0.03 * truth
    assert max(error.values()) > 0.1 * truth  # other weights are biased for one of the two selectors


@pytest.mark.parametrize("count", [1, 3, 10, 25])
def test_chances_by_size_are_those_of_the_draws(count):
    sizes, draws = np.random.default_rng(2).integers(1, 40, 30), 2000
    drawn = np.concatenate([draw_by_size(view_of(sizes, round=r), count) for r in range(draws)])
    share, chances = np.bincount(drawn, minlength=30) / draws, chances_by_size(sizes.astype(float), count)
    assert chances.sum() == pytest.approx(count, abs=1e-9)
    assert np.abs(share - chances).max() < 0.015 + 4 * np.sqrt(0.25 / draws)  # the formula is for many clients
    assert (np.diff(chances[np.argsort(sizes)]) >= 0).all()


@pytest.mark.parametrize(
    ("sizes", "count", "expected"),
    [((4, 4, 4, 4), 2, (0.5,) * 4), ((3, 1, 9), 3, (1, 1, 1)), ((3, 0, 9), 2, (1, 0, 1)), ((3, 1), 5, (1, 1))],
)
def test_chances_that_are_known_without_a_formula(sizes, count, expected):
    assert chances_by_size(np.array(sizes, dtype=float), count) == pytest.approx(expected, abs=1e-12)


def test_chances_of_one_client_that_holds_nearly_everything():
    chances = chances_by_size(np.array([1e9, 1.0, 1.0, 1.0]), 2)
    assert chances == pytest.approx([1, 1 / 3, 1 / 3, 1 / 3], abs=1e-6)


@pytest.mark.parametrize("name", sorted(registry.names("selectors")))
def test_inverse_probability_asks_for_selectors_that_tell_chances(name):
    asked = {"method.selector": name, "method.combiner": "inverse-probability"}
    if name not in ("random", "size", "everyone"):
        with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan: it needs the chance"):
            session_of(asked)
        return
    seen = played(session_of(asked))
    assert all(0 < ask.chance <= 1 for ask in seen.rounds[0][0].step.asks)
    assert sum(seen.weights[0].values()) == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["stratify-single", "stratify-batch"])
def test_inverse_probability_does_not_follow_a_schedule(method):
    with pytest.raises(RequestError, match="side by side"):
        session_of({"method.name": method, "method.combiner": "inverse-probability"})


# ---- FedNova ---------------------------------------------------------------------------------------------------------


def nova(told, **options):
    return 1.0 + float(FedNova(**options).combine(None, view_of([1] * 9), model_of(1.0), told).total["update"])


def test_fednova_oracle():
    told = Told([f64(-0.4), f64(-0.6)], steps=[2, 6], metrics=[{"a": 2.0}, {"a": 6.0}])
    assert nova(told) == pytest.approx(0.4, abs=1e-12)
    assert 1 + float(SizeWeighted().combine(None, None, None, told).total["update"]) == pytest.approx(0.5, abs=1e-12)


def test_fednova_in_the_loop():
    """Gradients .2 and .1, 2 and 6 steps, p = 1/4 and 3/4: tau_eff = 5, mean d = .125."""
    for combine, expected in (("fednova", 0.375), ("size", 0.45)):
        work = moving_work(
            [(-0.2, -0.2), (-0.1, -0.1)], {"method.combiner": combine, "train.batch_size": 1}, sizes=(2, 6)
        )
        close(played(work, weights=(1.0, 1.0)).state.model.params, f64(expected, expected))


@pytest.mark.parametrize(("effective", "expected"), [("normalised", 2.75), ("steps", 4.0)])
def test_fednova_with_steps_that_add_up_to_less(effective, expected):
    """With a proximal term a_k is below the number of steps; the authors' code takes steps for tau_eff."""
    told = Told([f64(-0.3), f64(-0.4)], steps=[2, 6], metrics=[{"a": 1.5}, {"a": 4.0}])
    assert nova(told, effective=effective) == pytest.approx(1 - expected * (0.2 + 0.1) / 2, abs=1e-12)


def test_fednova_ignores_who_took_no_step():
    both = [{"a": 2.0}, {"a": 6.0}]
    told = Told([f64(-0.4), f64(-0.6), f64(0.0)], steps=[2, 6, 0], samples=[1, 1, 50], metrics=[*both, {"a": 0.0}])
    assert nova(told) == pytest.approx(0.4, abs=1e-12)
    nobody = Told([f64(0.0)] * 2, steps=[0, 0], metrics=[{"a": 0.0}] * 2)
    assert nova(nobody) == 1.0


def test_fednova_averages_norm_statistics():
    told = Told(
        [f64(-0.4), f64(-0.6)], steps=[2, 6], metrics=[{"a": 2.0}, {"a": 6.0}], beside={"buffers": [f64(1.0), f64(1.0)]}
    )
    sums = FedNova().combine(None, view_of((1, 1)), model_of(1.0), told)
    close(sums.mean("buffers"), f64(1.0))


def test_fednova_counts_momentum_and_proximal_terms():
    """rho = .9: 1, 2.9, 5.61 after three steps; eta mu = .5: 1, 1.5, 1.75."""
    asked = {"method.combiner": "fednova", "train.lr": 0.5, "train.batch_size": 1}
    still = [(0.0, 0.0)] * 2
    momentum = moving_work(still, {**asked, "train.optimizer": {"kind": "sgd", "momentum": 0.9}}, sizes=(3, 1))
    told = [r.metrics["a"] for r in played(momentum).rounds[0][0].reports]
    assert told == pytest.approx([5.61, 1.0], abs=1e-12)
    prox = moving_work(still, {**asked, "method.corrections": [Moves(tuple(still)), Prox(mu=1.0)]}, sizes=(3, 1))
    told = [r.metrics["a"] for r in played(prox).rounds[0][0].reports]
    assert told == pytest.approx([1.75, 1.0], abs=1e-12)


@pytest.mark.parametrize(
    "beside",
    [
        {"train.optimizer": "adam"},
        {"train.optimizer": Sgd(momentum=0.9, state="kept")},
        {"method.corrections": [FedDyn()]},
        {"method.corrections": [Prox(when="unstable")]},
    ],
)
def test_fednova_refuses_steps_that_it_cannot_count(beside):
    with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan: it counts steps"):
        session_of({"method.combiner": "fednova", **beside})


def test_momentum_of_one_is_refused():
    with pytest.raises(RequestError, match=r"momentum = 1\.0 is not valid"):
        session_of({"method.combiner": "fednova", "train.optimizer": {"kind": "sgd", "momentum": 1.0}})


# ---- FedCDA ----------------------------------------------------------------------------------------------------------


def objective(models, losses, smoothness):
    """Write FedCDA's objective down as it stands, models as rows."""
    models = np.array(models)
    apart = (models**2).sum(1).mean() - (models.mean(0) ** 2).sum()
    return np.mean(losses) + smoothness / 2 * apart


def kept(models, losses, chosen=0):
    return Kept(torch.tensor(models, dtype=torch.float64), list(losses), chosen)


def cached():
    """Return the oracle's two clients."""
    return Cache({0: kept([(1, 0), (0, 0)], (0.3, 0.4)), 1: kept([(0, 1), (2, 2)], (0.2, 0.1))})


def test_fedcda_oracle():
    state = cached()
    options = [[(m.tolist(), loss) for m, loss in zip(k.models, k.losses, strict=True)] for k in state.clients.values()]
    found = [objective(*zip(*pair, strict=True), 1.0) for pair in product(*options)]
    assert found == pytest.approx([0.5, 0.825, 0.425, 1.25], abs=1e-12)
    FedCda(groups=1).choose(state, view_of((1, 1)), [0, 1], f64(7.0, -3.0))
    assert [k.chosen for k in state.clients.values()] == [1, 0]
    close(torch.stack([k.model for k in state.clients.values()]).mean(0), f64(0.0, 0.5))


@pytest.mark.parametrize("seed", range(12))
def test_fedcda_chooses_by_brute_force_with_all_others_fixed(seed):
    rng = np.random.default_rng(seed)
    counts, width, smoothness = [3, 1, 2, 3, 3, 2], 4, float(rng.choice([0.5, 1.0, 2.0]))
    state = Cache(
        {
            client: kept(5 + rng.normal(size=(n, width)), 8 * rng.random(n), int(rng.integers(n)))
            for client, n in enumerate(counts)
        }
    )
    before = {client: k.chosen for client, k in state.clients.items()}
    group = [5, 0, 3]
    FedCda(smoothness=smoothness, groups=1).choose(
        state, view_of([1] * 6, P=width), group, torch.full((4,), 5.0).double()
    )
    best = min(
        product(*(range(counts[client]) for client in group)),
        key=lambda combo: _objective_of(state, {**before, **dict(zip(group, combo, strict=True))}, smoothness),
    )
    assert tuple(state.clients[client].chosen for client in group) == best
    assert all(k.chosen == before[client] for client, k in state.clients.items() if client not in group)


def _objective_of(state, chosen, smoothness):
    models = [state.clients[client].models[place].numpy() for client, place in chosen.items()]
    return objective(models, [state.clients[client].losses[place] for client, place in chosen.items()], smoothness)


def test_fedcda_chooses_group_after_group():
    """Each group sees what the groups before it chose."""
    rng = np.random.default_rng(3)
    state = Cache({client: kept(rng.normal(size=(3, 2)), rng.random(3)) for client in range(7)})
    by_hand = Cache({client: replace(k) for client, k in state.clients.items()})
    part, view = FedCda(groups=3), view_of([1] * 7)
    part.choose(state, view, list(range(7)), f64(0.0, 0.0))
    for group in np.array_split(view.rng("combine").permutation(list(range(7))), 3):
        FedCda(groups=1).choose(by_hand, view, group.tolist(), f64(0.0, 0.0))
    assert [k.chosen for k in state.clients.values()] == [k.chosen for k in by_hand.clients.values()]


def test_fedcda_takes_the_newest_of_equals():
    state = Cache({0: kept([(1, 0)] * 3, (0.5,) * 3), 1: kept([(0, 1)] * 3, (0.5,) * 3)})
    for k in state.clients.values():
        k.chosen = 2
    FedCda().choose(state, view_of((1, 1)), [0, 1], f64(0.0, 0.0))
    assert [k.chosen for k in state.clients.values()] == [0, 0]


def cda_round(part, state, view, models, losses, here=(0.0, 0.0)):
    """Let clients report models; give the next one."""
    here = f64(*here)
    told = Told([f64(*m) - here for m in models.values()], clients=list(models), loss=[losses[c] for c in models])
    return here + part.combine(state, view, FlatModel(here, f64()), told).total["update"]


def test_fedcda_over_rounds():
    """Who is absent stays in the mean with its chosen model; who was never seen is in no mean."""
    part, view = FedCda(models=2, warmup=1, groups=1), view_of([1] * 4, round=0)
    state = part.init(view)
    first = cda_round(part, state, view, {0: (0.0, 0.0), 2: (4.0, 0.0)}, {0: 0.4, 2: 0.2})
    close(first, f64(2.0, 0.0))  # warm-up: the plain mean of those that arrived
    later = replace(view, round=1)
    second = cda_round(part, state, later, {0: (1.0, 0.0)}, {0: 0.3}, here=first)
    # (1, 0) costs .15 + .1 + .5 (8.5 - 6.25) = 1.375, (0, 0) costs .2 + .1 + .5 (8 - 4) = 2.3
    close(second, f64(2.5, 0.0))
    assert (state.clients[0].chosen, state.clients[0].losses) == (0, [0.3, 0.4])
    third = cda_round(part, state, later, {0: (-3.0, 0.0)}, {0: 0.25}, here=second)
    # now (1, 0) is the older of two, and nearer to client 2's (4, 0); (0, 0) is forgotten
    close(state.clients[0].models, f64(-3.0, 0.0, 1.0, 0.0).view(2, 2))
    assert state.clients[0].chosen == 1
    close(third, f64(2.5, 0.0))
    assert sorted(state.clients) == [0, 2]


def test_fedcda_remembers_models_while_it_warms_up():
    part, view = FedCda(models=3, warmup=5), view_of((1, 1))
    state = part.init(view)
    for round in range(5):
        here = cda_round(part, state, replace(view, round=round), {0: (float(round), 0.0), 1: (1.0, 1.0)}, {0: 1, 1: 1})
        close(here, f64((round + 1) / 2, 0.5))
    assert state.clients[0].models[:, 0].tolist() == [4.0, 3.0, 2.0]
    assert state.clients[0].chosen == 0


@pytest.mark.parametrize(("warmup", "rounds", "differs_from"), [(2, 4, 2), (0.5, 4, 2), (0, 4, 0), (0.25, 4, 1)])
def test_fedcda_warms_up_as_plain_averaging(warmup, rounds, differs_from):
    asked = {"train.rounds": rounds, "method.combiner": {"kind": "fedcda", "warmup": warmup}}
    for round in range(1, rounds + 1):
        plain, _ = play(session_of({**asked, "method.combiner": "uniform"}), rounds=round)
        state, _ = play(session_of(asked), rounds=round)
        gap = float((plain.model.params - state.model.params).abs().max())
        assert (gap < 1e-12) == (round <= max(differs_from, 1)), round  # in one round there is nothing to choose


def test_fedcda_refuses_to_keep_more_than_it_may(monkeypatch):
    monkeypatch.setattr(fedcda, "MEMORY", 1000)
    with pytest.raises(RequestError, match=r"use a smaller method\.combiner\.models, fewer clients or a smaller model"):
        session_of({"method.combiner": "fedcda"}).fresh()
    monkeypatch.setattr(fedcda, "MEMORY", 4 * 43 * 3 * 6)  # 43 numbers of 4 bytes, 3 models, 6 clients
    session_of({"method.combiner": "fedcda"}).fresh()


def test_fedcda_makes_groups_smaller_where_they_have_too_many_combinations(monkeypatch):
    monkeypatch.setattr(fedcda, "COMBINATIONS", 9)  # 3^2: two clients a group
    asked = {"method.combiner": {"kind": "fedcda", "warmup": 0, "groups": 2}, "train.clients_per_round": "all"}
    notes = played(session_of(asked)).notes
    assert notes == [
        {"event": "fallback", "what": "fedcda", "used": "3 groups", "why": "larger ones have too many combinations"}
    ]
    monkeypatch.setattr(fedcda, "COMBINATIONS", 27)
    assert played(session_of(asked)).notes == []


def test_fedcda_leaves_out_reports_that_are_lost_or_not_finite():
    moves = [(1.0, 0.0), (np.inf, 0.0), (0.0, 1.0)]
    work = moving_work(moves, {"method.combiner": {"kind": "fedcda", "warmup": 0}})
    seen = played(work, rounds=2, weights=(0.0, 0.0))
    assert sorted(seen.state.combiner.clients) == [0, 2]
    assert torch.isfinite(seen.state.model.params).all()


def test_fedcda_chooses_norm_statistics_with_the_model():
    work = normed_work({"method.combiner": {"kind": "fedcda", "warmup": 0, "models": 2}, "train.rounds": 3})
    seen = played(work, rounds=3)
    mean = torch.stack([k.model for k in seen.state.combiner.clients.values()]).mean(0)
    close(torch.cat([seen.state.model.params, seen.state.model.buffers]), mean)
    assert any(k.chosen for k in seen.state.combiner.clients.values())


def test_fedcda_resumes_with_its_models(tmp_path):
    asked = {"method.name": "fedcda", "method.combiner.warmup": 1, "system.stragglers.rate": 0.3, "train.rounds": 6}
    whole, _ = play(session_of(asked), rounds=6)
    for cut in (1, 3, 5):
        resumed, _ = play(session_of(asked), rounds=6, cut=cut)
        assert same(whole, resumed)
        assert list(whole.combine.clients) == list(resumed.combine.clients)


@pytest.mark.parametrize("method", ["sfl", "stratify-single", "stratify-batch"])
def test_fedcda_wants_models_that_were_trained_side_by_side(method):
    with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan"):
        session_of({"method.name": method, "method.combiner": "fedcda"})


# ---- InCo ------------------------------------------------------------------------------------------------------------


def kernels(*values):
    """Return one kernel of one row."""
    return f64(*values).view(1, 1, 1, -1)


def test_inco_oracle():
    g0, g = kernels(3.0, 4.0), kernels(0.0, 1.0)
    close(crossed(g, g0, clamp=1e9).flatten(), f64(0.288, 3.384), atol=1e-6)  # sigma = .16, but for 1e-7
    assert crossed(g, g0, clamp=0.1).flatten().tolist() == [0.1, 0.1]
    assert crossed(-g, -g0, clamp=0.1).flatten().tolist() == [-0.1, -0.1]


def test_inco_bounds_the_share_of_the_reference():
    """<g0, g> / ||g0||^2 = 1000 is taken for 5: (1 + 5) (.01 + 10) / 2 in the first place."""
    found = crossed(kernels(10.0, 0.0), kernels(0.01, 0.0), clamp=1e9)
    close(found.flatten(), f64(6 * 10.01 / 2, 0.0), atol=1e-9)


def test_inco_works_kernel_by_kernel_and_leaves_kernels_that_did_not_move():
    torch.manual_seed(0)
    g, g0 = torch.randn(4, 3, 3, 3).double(), torch.randn(4, 3, 3, 3).double()
    g[1, 2], g0[2, 0] = 0.0, 0.0
    found = crossed(g, g0, clamp=1e9)
    for i, j in product(range(4), range(3)):
        own, first = g[i, j], g0[i, j]
        if (i, j) in ((1, 2), (2, 0)):
            assert torch.equal(found[i, j], own)
            continue
        sigma = min(float((own * first).sum().abs() / (first.norm() ** 2 + 1e-7)), 5.0)
        by_hand = (own / own.norm() + sigma * first / first.norm()) * (own.norm() + first.norm()) / 2
        close(found[i, j], by_hand)


def space_of(name, shape=(3, 32, 32)):
    """Lay a model out without its weights."""
    with torch.device("metrics"):
        module = registry.build("models", name, {}, "model").build(shape, 10)
    return ParameterSpace.of(module, "head")


def learns(space):
    return {place.name: reference.name for place, reference in references(space)}


@pytest.mark.parametrize(
    ("model", "blocks", "layers"),
    [("resnet20", (3, 3, 3), (1, 2)), ("resnet18", (2, 2, 2, 2), (1, 2)), ("resnet50", (3, 4, 6, 3), (2,))],
)
def test_inco_lets_later_blocks_of_a_stage_learn_from_its_first(model, blocks, layers):
    expected = {
        f"stages.{stage}.{block}.conv{layer}.weight": f"stages.{stage}.0.conv2.weight"
        for stage, depth in enumerate(blocks)
        for block in range(1, depth)
        for layer in layers
    }
    assert learns(space_of(model)) == expected


def test_inco_knows_the_names_of_torchvision():
    def block():
        return nn.ModuleDict({name: nn.Conv2d(4, 4, 3) for name in ("conv1", "conv2", "downsample")})

    module = nn.ModuleDict({"layer1": nn.Sequential(block(), block()), "head": nn.Linear(4, 2)})
    expected = {f"layer1.1.conv{i}.weight": "layer1.0.conv2.weight" for i in (1, 2)}
    assert learns(ParameterSpace.of(module, "head")) == expected


@pytest.mark.parametrize("model", sorted(set(registry.names("models")) - {"resnet20", "resnet18", "resnet50"}))
def test_inco_finds_nothing_in_models_without_stages_of_blocks(model):
    """ResNet-9 is one of them: its stages begin with a single convolution that widens, and no block follows another."""
    natural = registry.build("models", model, {}, "model").natural
    assert learns(space_of(model, natural)) == {}


class Staged(nn.Module):
    """The smallest network with a stage of two residual blocks."""

    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(nn.Sequential(*(BasicBlock(2, 2, 1, nn.Conv2d(2, 2, 3, padding=1)) for _ in "ab")))
        self.head = nn.Linear(2, 2)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def image_work(combine):
    """Return a run of it on a few tiny images."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(16, 2, 4, 4)).astype(np.float32), np.arange(16) % 2
    torch.manual_seed(0)
    federation, module = Federation.from_arrays(x, y, [np.arange(4), np.arange(4, 16)], test=(x[:4], y[:4])), Staged()
    asked = {"train.epochs": 1, "train.batch_size": 6, "train.clients_per_round": "all", "engine.precision": "fp64"}
    return Session(
        describe_experiment(None, None, {**asked, "method.combiner": combine}, federation, module), federation, module
    )


def test_inco_mixes_after_averaging_and_touches_no_other_layer():
    plain, mixed = (played(image_work(combine)) for combine in ("size", "inco"))
    space, before = plain.work.plan.space, plain.work.initial_state().model.params
    mean = plain.state.model.params - before
    pairs = {place.name: reference for place, reference in references(space)}
    assert list(pairs) == ["stages.0.1.conv1.weight", "stages.0.1.conv2.weight"]
    for place in space.params:
        now = place.of(mixed.state.model.params)
        if place.name not in pairs:
            assert torch.equal(now, place.of(plain.state.model.params)), place.name
            continue
        close(now - place.of(before), crossed(place.of(mean), pairs[place.name].of(mean), 0.1))
        assert not torch.allclose(now, place.of(plain.state.model.params))
        assert float((now - place.of(before)).abs().max()) <= 0.1 + 1e-12
    assert torch.equal(plain.state.model.buffers, mixed.state.model.buffers)
    assert mixed.notes == []


def test_inco_without_stages_is_fedavg_and_says_so():
    plain, mixed = (played(session_of({"method.combiner": combine}), rounds=3) for combine in ("size", "inco"))
    assert same(plain.state, mixed.state)
    why = "the model has no stages of residual blocks"
    assert mixed.notes == [{"event": "fallback", "what": "inco", "used": "the mean by size", "why": why}]


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
    plain, unable = (played(session_of({"method.combiner": combine}), rounds=3) for combine in ("size", "fedga-greedy"))
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
    seen = played(work)
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

    again = Session(work.experiment, work.federation, work.model)
    again.plan = replace(again.plan, combine=Fixed())
    return played(again).state.model


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
    asked = {"method.name": "fedga-greedy", "data.proxy": 100, "data.clients": 5, "train.rounds": 1, "train.epochs": 1}
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


# ---- robust combiners ------------------------------------------------------------------------------------------------


def trimmed(stacked, share):
    """Write the trimmed mean down with numpy."""
    n = len(stacked)
    cut = int(share * n + 1e-9)
    return np.sort(stacked, 0)[cut : n - cut].mean(0)


RULES = {
    "median": (Median(), partial(np.median, axis=0)),
    "trimmed-mean": (TrimmedMean(trim=0.2), partial(trimmed, share=0.2)),
    "trimmed-mean of 45 %": (TrimmedMean(trim=0.45), partial(trimmed, share=0.45)),
    "trimmed-mean without trimming": (TrimmedMean(trim=0.0), partial(np.mean, axis=0)),
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
        beside={"scaffold/dc": list(torch.from_numpy(controls))},
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


@pytest.mark.parametrize(("trim", "clients", "left"), [(0.1, 30, 24), (0.1, 9, 9), (0.29, 100, 42), (0.49, 3, 1)])
def test_how_many_are_trimmed(trim, clients, left):
    """Of n clients int(trim n) go at either end; .1 x 30 and .29 x 100 are whole numbers."""
    values = torch.zeros(clients, 1, dtype=torch.float64)
    values[-1] = 1.0
    update = (
        TrimmedMean(trim=trim).combine(None, view_of([1] * clients), model_of(), Told(list(values))).total["update"]
    )
    assert float(update) == pytest.approx(1 / left if left == clients else 0.0)
    ranks = torch.arange(clients, dtype=torch.float64)[:, None] ** 2
    update = TrimmedMean(trim=trim).combine(None, view_of([1] * clients), model_of(), Told(list(ranks))).total["update"]
    gone = (clients - left) // 2
    assert float(update) == pytest.approx(float(ranks[gone : clients - gone].mean()))


@pytest.mark.parametrize("trim", [0.5, -0.1, 1.0])
def test_half_of_the_clients_cannot_be_trimmed_at_either_end(trim):
    with pytest.raises(RequestError, match=r"trim"):
        session_of({"method.combiner": {"kind": "trimmed-mean", "trim": trim}})


@pytest.mark.parametrize("bound", [None, 0.5, 3.0, 1e6])
@pytest.mark.parametrize("clients", [1, 4, 5])
def test_long_updates_are_shortened(bound, clients):
    rng = np.random.default_rng(clients)
    updates = rng.normal(size=(clients, 6)) * rng.lognormal(0, 1, (clients, 1))
    samples = rng.integers(1, 20, clients)
    lengths = np.linalg.norm(updates, axis=1)
    most = np.median(lengths) if bound is None else bound
    shortened = updates * np.minimum(1, most / lengths)[:, None]
    told = Told(list(torch.from_numpy(updates)), samples=samples.tolist())
    update = NormClip(bound=bound).combine(None, view_of([1] * clients), model_of(), told).total["update"]
    assert update.numpy() == pytest.approx((samples / samples.sum()) @ shortened, abs=1e-12)


def test_norm_clipping_measures_lengths_itself():
    told = Told([f64(3.0, 4.0), f64(0.3, 0.4)], update_norm=[1e-3, 1e-3])  # the first client lies
    update = NormClip(bound=0.5).combine(None, view_of((1, 1)), model_of(), told).total["update"]
    close(update, f64(0.3, 0.4))


def test_norm_clipping_leaves_norm_statistics_a_mean():
    told = Told([f64(3.0, 4.0), f64(0.3, 0.4)], beside={"buffers": [f64(1.0), f64(1.0)]})
    sums = NormClip(bound=0.5).combine(None, view_of((1, 1)), model_of(), told)
    close(sums.mean("buffers"), f64(1.0))


HONEST = [(1.0, -1.0), (1.1, -0.9), (0.9, -1.1), (1.0, -1.0)]


@pytest.mark.parametrize("combine", ["median", {"kind": "trimmed-mean", "trim": 0.2}, "norm-clip"])
@pytest.mark.parametrize("far", [1e6, -1e6])
def test_one_client_far_out_does_not_move_the_result(combine, far):
    work = moving_work([*HONEST, (far, far)], {"method.combiner": combine})
    found = played(work, weights=(0.0, 0.0)).state.model.params
    assert (found - f64(1.0, -1.0)).abs().max() < 0.5
    naive = moving_work([*HONEST, (far, far)], {"method.combiner": "uniform"})
    assert (played(naive, weights=(0.0, 0.0)).state.model.params - f64(1.0, -1.0)).abs().max() > 1e5


@pytest.mark.parametrize("combine", ["median", {"kind": "trimmed-mean", "trim": 0.2}])
def test_one_client_far_out_does_not_move_controls_or_norm_statistics(combine):
    """Its samples are a million times too large: so are its gradients, its controls and its statistics."""
    asked = {"method.combiner": combine, "method.corrections": [Scaffold()], "train.lr": 1e-3}
    honest = normed_work(asked)
    x = honest.federation.train.x.clone()
    x[torch.from_numpy(honest.federation.train_split[1])] *= 1e6
    federation = replace(honest.federation, train=replace(honest.federation.train, x=x))
    attacked = Session(honest.experiment, federation, honest.model)
    found, usual = (played(work).state for work in (attacked, honest))
    assert (found.model.params - usual.model.params).abs().max() < 0.1
    assert (found.model.buffers - usual.model.buffers).abs().max() < 10
    assert (found.server_steps["scaffold"].c - usual.server_steps["scaffold"].c).abs().max() < 10


def test_robust_combiners_in_global_batches_keep_running_statistics():
    """Where a batch spans clients, norms agree on statistics that no client sends as its own."""
    asked = {"method.name": "stratify-batch", "engine.execution": "messages", "train.batch_size": 8}
    found, usual = (played(normed_work({**asked, "method.combiner": combine})).state for combine in ("median", "size"))
    assert (found.model.buffers - normed_work(asked).fresh().model.buffers).abs().max() > 0.1
    assert found.model.buffers.shape == usual.model.buffers.shape


# ---- FedExP ----------------------------------------------------------------------------------------------------------

DELTAS = [(1.0, 0.0), (0.0, 1.0), (-0.5, 0.5)]


def fedexp(by, combine="uniform", rounds=1, overrides=None, sizes=None, **options):
    """Return what a run with FedExP did, and its step lengths."""
    server = {"kind": "fedexp", **options}
    work = moving_work(by, {"method.combiner": {"kind": combine, "server": server}, **(overrides or {})}, sizes)
    seen = played(work, rounds=rounds, weights=(0.0, 0.0))
    return seen, [note["eta"] for note in seen.notes if note["event"] == "extrapolated"]


@pytest.mark.parametrize(("eps_each", "expected"), [(False, 1.494619), (True, 1.483973)])
def test_fedexp_oracle(eps_each, expected):
    seen, (eta,) = fedexp(DELTAS, eps_each=eps_each)
    assert eta == pytest.approx(expected, abs=1e-6)
    close(seen.state.model.params, eta * f64(1 / 6, 0.5), atol=1e-12)


@pytest.mark.parametrize(("options", "expected"), [({}, 100.0), ({"eps": 0.1}, 5.0), ({"eta_max": 7.0}, 7.0)])
def test_fedexp_where_updates_cancel(options, expected):
    """d = 0: eta = 1 / (2 eps), which is finite, up to a bound; the model stays where it is."""
    seen, (eta,) = fedexp([(1.0, 0.0), (-1.0, 0.0)], **options)
    assert eta == pytest.approx(expected)
    assert seen.state.model.params.tolist() == [0.0, 0.0]


def test_fedexp_of_one_client_or_of_clients_that_agree_is_fedavg():
    for by in ([(3.0, 4.0)], [(3.0, 4.0)] * 5):
        seen, (eta,) = fedexp(by)
        assert eta == 1.0
        close(seen.state.model.params, f64(3.0, 4.0))


def test_fedexp_where_nobody_moves():
    seen, (eta,) = fedexp([(0.0, 0.0)] * 3)
    assert eta == 1.0
    assert seen.state.model.params.tolist() == [0.0, 0.0]


def test_fedexp_weighs_lengths_as_the_combiner_weighs_updates():
    """p = (.6, .2, .2): sum p ||Delta||^2 = .6 + .2 + .1, and d = (.5, .3)."""
    _, (eta,) = fedexp(DELTAS, combine="size", sizes=(3, 1, 1))
    assert eta == pytest.approx(0.9 / (2 * (0.34 + 1e-3)), abs=1e-12)


def test_fedexp_counts_those_that_arrived():
    seen, (eta,) = fedexp([*DELTAS, (np.inf, 0.0)], eps_each=True)
    assert [note["event"] for note in seen.notes] == ["dropped", "extrapolated"]
    assert eta == pytest.approx(1.483973, abs=1e-6)


def test_fedexp_evaluates_the_mean_of_the_last_two_iterates():
    iterates = [f64(0.0, 0.0)]
    for rounds in (1, 2, 3):
        seen, _ = fedexp(DELTAS, rounds=rounds)
        iterates.append(seen.state.model.params)
        close(model_to_evaluate(seen.work.plan, seen.state).params, (iterates[-2] + iterates[-1]) / 2)
        assert not torch.allclose(iterates[-2], iterates[-1])


def test_fedexp_scores_that_mean_in_a_run(tmp_path):
    asked = {"method.name": "fedexp", "train.rounds": 3, "train.epochs": 1, "data.clients": 6}
    run = train(overrides=asked, out=tmp_path / "run")
    assert run.summary["rounds"] == 3
    manifest = run.checkpoints.manifest()
    experiment = Experiment.of(run.path / "experiment.toml")
    work = Session(experiment, build_federation(experiment), None)
    state, _ = run.checkpoints.read(manifest, like=work.initial_state())
    mean = (state.server_steps["server"].before.params + state.model.params) / 2
    assert not torch.equal(state.server_steps["server"].before.params, state.model.params)
    written = work.plan.space.flatten(run.model(), torch.float32).params
    assert torch.equal(written, mean)


def test_the_eps_of_fedexp_falls_with_the_square_of_the_step_size():
    """Half the step size, a quarter of eps: with updates that halve too, the length of the step stays as it is."""
    schedule = {"train.lr_schedule": {"kind": "step", "every": 1, "by": 0.5}}
    _, etas = fedexp(DELTAS, rounds=4, overrides=schedule, eps=0.1)
    assert etas == pytest.approx([0.8333333333 / (2 * (0.2777777778 + 0.1))] * 4, abs=1e-9)
    _, halved = fedexp([tuple(0.5 * v for v in d) for d in DELTAS], eps=0.1)
    assert halved[0] < etas[1] - 0.1  # smaller updates under the same eps


def test_fedexp_does_not_extrapolate_norm_statistics():
    uniform = {"kind": "uniform", "server": {"kind": "fedexp"}}
    longer, plain = (played(normed_work({"method.combiner": c, "train.lr": 0.5})) for c in (uniform, "uniform"))
    assert longer.notes[0]["eta"] > 1
    assert torch.equal(longer.state.model.buffers, plain.state.model.buffers)
    assert not torch.equal(longer.state.model.params, plain.state.model.params)


def test_fedexp_conforms():
    check_server_step(FedExp(eps=0.1, eps_each=True))
