"""Terraform: oracles of specification A5, edge cases, and that retraining does what it is for. SUR: oracle of A3."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from light import LIGHT
from sweeping import sweep
from torch.nn.functional import cross_entropy

from fedstrata import testing, train
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Outcome, drive_round
from fedstrata.data.federation import Federation
from fedstrata.methods.corrections.prox import Prox
from fedstrata.methods.corrections.scaffold import Scaffold
from fedstrata.methods.drivers.rounds import Rounds
from fedstrata.methods.drivers.terraform import Magnitude, Terraform, split, variances
from fedstrata.methods.selectors.power_of_choice import PowerOfChoice
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process, run_rounds, same, session_of, tiny_federation

RANGES = ("iqr", "all", "low", "high", "top")
SIGNALS = ("head", "bias", "weight", "loss")
TWICE = Terraform(min_clients=1, depth=2)


def brute_force(values, sizes, first, last, weight):
    """Return V(t) of the specification, by its own words."""
    share = sizes if weight == "size" else np.ones(len(values))
    return {
        t: (share[:t].sum() * values[:t].var() + share[t:].sum() * values[t:].var()) / share.sum()
        for t in range(first, last + 1)
    }


# ---- the split ------------------------------------------------------------------------------------------------------

FIRST = np.array([5, 1, 9, 2, 1.5, 8]), np.array([100, 300, 50, 200, 150, 200])
SECOND = np.array([1, 1.2, 1.3, 6, 6.5, 20])


@pytest.mark.parametrize(("weight", "expected"), [("size", (6.468, 4.1531, 1.1194)), ("count", (7.7, 5.0208, 1.5278))])
def test_first_oracle(weight, expected):
    magnitudes, sizes = FIRST
    cut = split(magnitudes, sizes, weight=weight)
    assert cut.order.tolist() == [1, 4, 3, 0, 5, 2]
    assert cut.allowed == (1, 3)
    assert cut.tau == 3
    assert cut.hard.tolist() == [0, 5, 2]
    assert split(magnitudes, sizes, within="all", weight=weight).tau == 3
    weights = sizes[cut.order] if weight == "size" else np.ones(6)
    found = variances(magnitudes[cut.order], weights) * np.ptp(magnitudes) ** 2
    np.testing.assert_allclose(found[:3], expected, atol=5e-5)


@pytest.mark.parametrize(
    ("sizes", "weight", "expected", "allowed", "tau"),
    [
        ([100] * 6, "size", (39.3967, 32.3917, 21.0356, 18.1154, 5.1967), (1, 4), 4),
        ([100] * 6, "count", (39.3967, 32.3917, 21.0356, 18.1154, 5.1967), (1, 4), 4),
        ([400] + [100] * 5, "size", (26.2644, 21.5978, 14.0289, 13.5409, 5.5431), (1, 3), 3),
        ([400] + [100] * 5, "count", (39.3967, 32.3917, 21.0356, 18.1154, 5.1967), (1, 3), 3),
    ],
)
def test_second_oracle(sizes, weight, expected, allowed, tau):
    sizes = np.array(sizes)
    cut = split(SECOND, sizes, weight=weight)
    assert (cut.allowed, cut.tau) == (allowed, tau)
    assert split(SECOND, sizes, within="all", weight=weight).tau == 5
    found = variances(SECOND, sizes if weight == "size" else np.ones(6)) * np.ptp(SECOND) ** 2
    np.testing.assert_allclose(found, expected, atol=5e-5)


@pytest.mark.parametrize("within", RANGES)
@pytest.mark.parametrize("weight", ["size", "count"])
def test_split_is_the_argmin_by_brute_force(within, weight):
    rng = np.random.default_rng(0)
    for n in (2, 3, 5, 17, 60):
        for offset in (0.0, 1e6):  # far from zero the squares would swallow the variance
            magnitudes, sizes = offset + rng.gamma(2, size=n), rng.integers(1, 500, n)
            cut = split(magnitudes, sizes, within=within, weight=weight)
            if cut is None:
                continue
            expected = brute_force(magnitudes[cut.order] - offset, sizes[cut.order], *cut.allowed, weight)
            assert cut.tau == min(expected, key=expected.get)


def test_split_does_not_depend_on_order_or_unit():
    rng = np.random.default_rng(1)
    magnitudes, sizes = rng.integers(0, 9, 40) / 10, rng.integers(1, 50, 40)
    hard = set(split(magnitudes, sizes, np.arange(40)).hard.tolist())
    mixed = rng.permutation(40)
    assert {int(mixed[i]) for i in split(magnitudes[mixed], sizes[mixed], mixed).hard} == hard
    for unit in (1e-300, 1e-7, 1e300):
        assert set(split(magnitudes * unit, sizes, np.arange(40)).hard.tolist()) == hard


def test_equal_magnitudes_are_ordered_by_key_and_equal_cuts_fall_to_the_first():
    cut = split(np.full(4, 0.1), np.ones(4), np.array([3, 1, 2, 0]))
    assert cut.order.tolist() == [3, 1, 2, 0]
    assert cut.tau == 1
    for unit in (0.1, 0.3, 0.7):  # V(1) = V(2) but for rounding
        assert split(unit * np.arange(3), np.ones(3), within="all").tau == 1


def test_nothing_to_split():
    assert split(np.zeros(0), np.zeros(0)) is None
    assert split(np.ones(1), np.ones(1)) is None
    assert split(np.arange(3.0), np.array([10, 1, 1])) is None  # the third quartile is the first client
    assert split(np.arange(3.0), np.array([10, 1, 1]), within="high").tau == 1
    assert split(np.arange(4.0), np.zeros(4), within="all").tau == 2  # nobody says how many samples it has


# ---- the meter ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("layer", "expected"), [("head", 1.3), ("weight", 0.5), ("bias", 1.2)])
def test_magnitude_oracle(layer, expected):
    from_head = torch.tensor([0.3, 0, 0, 0.4, 0, 1.2], dtype=torch.float64)  # dW row by row, then db
    w0 = torch.arange(9, dtype=torch.float64)
    w = w0 + torch.cat([torch.full((3,), 7.0, dtype=torch.float64), from_head])
    space = SimpleNamespace(head=slice(3, 9), head_weight=slice(3, 7), head_bias=slice(7, 9))
    meter = Magnitude(layer)
    own = {name: torch.full(slot.shape, np.nan, dtype=w.dtype) for name, slot in meter.declare_slots(space).items()}
    done = meter.finish(own, SimpleNamespace(w=w, w0=w0, head=space.head), None)
    assert float(done.metrics["magnitude"]) == pytest.approx(expected)


@sweep(lambda layer: layer == "head", layer=["head", "weight", "bias"])
def test_meter_conforms(layer):
    testing.check_correction(Magnitude(layer))


@pytest.mark.parametrize("signal", SIGNALS)
def test_signal_is_what_the_client_did(signal):
    """With one client a step, the combined update is that client's."""
    work = session_of({"method.driver": Terraform(signal=signal), "train.clients_per_round": 1})
    before, (state, ((outcome,),)) = work.initial_state().model, run_rounds(work, rounds=1)
    space, (report,) = work.plan.space, outcome.reports
    if signal == "loss":
        assert "magnitude" not in report.metrics
        assert Terraform(signal="loss").measure(None, [report])[1].tolist() == [report.loss]
        return
    where = {"head": space.head, "weight": space.head_weight, "bias": space.head_bias}[signal]
    moved = (state.model.params - before.params)[where]
    assert report.metrics["magnitude"] == pytest.approx(float(moved.norm()))


def test_a_head_without_bias_has_no_bias_to_measure():
    torch.manual_seed(0)
    layers = torch.nn.Sequential()
    layers.add_module("body", torch.nn.Linear(4, 5))
    layers.add_module("head", torch.nn.Linear(5, 3, bias=False))
    federation = tiny_federation()
    for signal in ("head", "weight", "loss"):
        plan_of(federation, layers, signal)
    with pytest.raises(RequestError, match="no bias"):
        plan_of(federation, layers, "bias")


def plan_of(federation, module, signal):
    asked = {"train.batch_size": 4, "train.rounds": 1, "method.driver": Terraform(signal=signal)}
    return build_session(describe_experiment(None, None, asked, federation, module), federation, module).plan


# ---- the driver -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Given(Selector):
    """Selects these."""

    clients: tuple[int, ...] = ()

    def select(self, state, view):
        return self.clients


def drive(driver, clients, answers):
    """Run one round by hand; `answers` gives the reports of a step, from the step and its number."""
    work = session_of(federation=tiny_federation(clients=16))
    events, asked = [], []
    view = work.plan.view(work.client_info, 0, lambda kind, **fields: events.append({"kind": kind, **fields}))
    steps, outcome = drive_round(driver, None, view, Given(tuple(clients)), None), None
    while True:
        try:
            step = steps.send(outcome)
        except StopIteration:
            return asked, events
        ids = [ask.client for ask in step.asks]
        reports = tuple(r for r in answers(ids, len(asked)) if r is not None)
        here = {r.client for r in reports}
        outcome = Outcome(step, len(asked), reports, tuple(i for i in ids if i not in here))
        asked.append(ids)


def by_id(ids, _):
    """The larger the id, the harder."""
    return [Report(i, 10, loss=float(i), metrics={"magnitude": float(i) ** 2}) for i in ids]


def test_hard_clients_train_again_until_few_are_left():
    asked, events = drive(Terraform(min_clients=2), range(16), by_id)
    assert asked[0] == list(range(16))
    for earlier, later in pairwise(asked):
        assert later == earlier[-len(later) :]
        assert 2 <= len(later) < len(earlier)
    assert [event["iteration"] for event in events] == list(range(1, len(asked) + 1))
    assert [event["clients"] for event in events] == asked
    assert [sorted(event["hard"]) for event in events[:-1]] == asked[1:]
    assert [event["over"] for event in events] == [None] * (len(asked) - 1) + ["min_clients"]
    assert [event["client_updates"] for event in events] == list(map(len, asked))
    assert {event["round"] for event in events} == {1}
    first = split(np.arange(16.0) ** 2, np.full(16, 10))
    assert events[0]["tau"] == first.tau
    assert events[0]["magnitudes"] == {"least": 0, "q1": 14.25, "median": 56.5, "q3": 126.75, "most": 225}


def test_five_clients_train_once():
    """The paper's scenarios with 5 clients a round equal random selection."""
    asked, (event,) = drive(Terraform(), range(5), by_id)
    assert len(asked) == 1
    assert event["over"] == "min_clients"


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_depth(depth):
    asked, events = drive(Terraform(min_clients=1, depth=depth), range(16), by_id)
    assert len(asked) == depth
    assert events[-1]["over"] == "depth"


def test_every_signal_is_read_where_it_stands():
    def against_each_other(ids, _):
        return [Report(i, 10, loss=float(-i), metrics={"magnitude": float(i)}) for i in ids]

    by_loss, _ = drive(replace(TWICE, signal="loss"), range(8), against_each_other)
    by_head, _ = drive(TWICE, range(8), against_each_other)
    assert by_head[1] == [4, 5, 6, 7]
    assert by_loss[1] == [0, 1, 2, 3]


def test_one_client_and_equal_clients():
    asked, (event,) = drive(Terraform(min_clients=1), [3], by_id)
    assert (asked, event["over"], event["tau"]) == ([[3]], "nothing to split", None)

    def alike(ids, _):
        return [Report(i, 10, metrics={"magnitude": 0.1}) for i in ids]

    asked, events = drive(Terraform(min_clients=1), range(8), alike)
    assert sum(map(len, asked)) <= 8 * 10
    assert events[0]["tau"] == 1  # V is 0 everywhere: the smallest index that is allowed
    assert len(asked[1]) == 7


def test_who_did_not_answer_is_not_hard():
    def the_hardest_are_late(ids, step):
        return [r if r.client < 12 or step else None for r in by_id(ids, step)]

    asked, events = drive(TWICE, range(16), the_hardest_are_late)
    assert max(asked[1]) == 11
    assert events[0]["missing"] == [12, 13, 14, 15]

    def one_is_late_the_second_time(ids, step):
        return [r if r.client < 15 or step != 1 else None for r in by_id(ids, step)]

    asked, events = drive(replace(TWICE, depth=3), range(16), one_is_late_the_second_time)
    assert (15 in asked[1], 15 in asked[2]) == (True, False)
    assert events[1]["missing"] == [15]
    asked, events = drive(TWICE, range(16), lambda ids, step: [])
    assert len(asked) == 1
    assert events[0]["over"] == "nothing to split"


@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_a_magnitude_that_is_not_finite_is_easy_and_an_event(broken):
    def one_broken(ids, _):
        return [Report(i, 10, metrics={"magnitude": broken if i == 15 else float(i)}) for i in ids]

    asked, events = drive(TWICE, range(16), one_broken)
    assert 15 not in asked[1]
    assert events[0]["kind"] == "fallback"
    assert events[0]["clients"] == [15]


def test_baseline_draws_as_many_from_the_rounds_clients():
    def two_late(ids, step):
        return [r if r.client > 1 or step else None for r in by_id(ids, step)]

    hard, told = drive(Terraform(min_clients=1), range(14), two_late)
    drawn, events = drive(Terraform(min_clients=1, baseline=True), range(14), two_late)
    assert list(map(len, drawn)) == list(map(len, hard))  # magnitudes that never change: equal to the end
    assert drawn[0] == hard[0]
    assert all(set(ids) <= set(range(2, 14)) for ids in drawn[1:])
    assert drawn[1:] != hard[1:]
    assert any(set(later) - set(earlier) for earlier, later in pairwise(drawn[1:]))
    assert [event["hard"] for event in events] == [event["hard"] for event in told]


@sweep(lambda precision: precision == "fp32", precision=["fp64", "fp32"])
@pytest.mark.parametrize(
    "others",
    [
        {},
        {"method.corrections": [Prox(mu=0.5)]},
        {"method.corrections": [Scaffold()], "method.combiner": "uniform"},
        {"method.selector": PowerOfChoice(), "method.server_step": "yogi"},
        {"system.stragglers.rate": 0.5},
    ],
)
def test_depth_one_is_the_base_algorithm_and_more_is_not(others, precision):
    others = {**others, "engine.precision": precision, "train.clients_per_round": 5}
    plain = run_rounds(session_of({**others, "method.driver": Rounds()}))[0]
    assert same(plain, run_rounds(session_of({**others, "method.driver": Terraform(min_clients=1, depth=1)}))[0])
    assert not same(plain, run_rounds(session_of({**others, "method.driver": Terraform(min_clients=1)}))[0])


@pytest.mark.parametrize(
    "driver",
    [
        pytest.param(Terraform(), marks=pytest.mark.extended),
        pytest.param(Terraform(min_clients=1), marks=pytest.mark.extended),
        Terraform(min_clients=1, baseline=True),
        Terraform(min_clients=1, signal="loss", range="all", split_weight="count"),
        pytest.param(Terraform(min_clients=2, signal="bias", range="low", depth=3), marks=pytest.mark.extended),
        pytest.param(Terraform(min_clients=2, signal="weight", range="high"), marks=pytest.mark.extended),
    ],
)
def test_driver_conforms(driver):
    testing.check_driver(driver)


# ---- what retraining is for -----------------------------------------------------------------------------------------


def uneven_federation(seed, clients=16):
    """Return clients most of which hold labels 0 and 1, and some of which hold what the others hardly see."""
    rng = np.random.default_rng(seed)
    centres, parts = 2 * rng.normal(size=(4, 6)), []
    for client in range(clients):
        rare = client % 3 == 0
        parts.append(rng.choice([2, 3] if rare else [0, 1], rng.integers(10, 30)))
    y = np.concatenate(parts)
    x = (centres[y] + 0.8 * rng.normal(size=(len(y), 6))).astype(np.float32)
    stops = np.cumsum([len(part) for part in parts])
    rows = [np.arange(stop - len(part), stop) for stop, part in zip(stops, parts, strict=True)]
    return Federation.from_arrays(x, y, rows)


def run_of(driver, seed, others=None, rounds=1):
    """Run rounds with everyone; give the work, the events, the state and the model before the last round."""
    asked = {"method.driver": driver, "method.selector": "everyone", "train.seed": seed, "train.lr": 0.05}
    work, events = session_of({**asked, **(others or {})}, uneven_federation(seed)), []
    state, engine = work.initial_state(), in_process(work)
    for round in range(rounds):
        before = state.model
        view = work.plan.view(work.client_info, round, lambda kind, **fields: events.append({"kind": kind, **fields}))
        run_round(work.plan, state, view, engine)
    return work, [event for event in events if event["kind"] == "terraform"], state, before


def loss_of(work, model, clients):
    """Return the mean loss of clients' samples."""
    module = work.plan.local.build().to(torch.float64)
    work.plan.space.bind(module, model.params.clone(), model.buffers.clone())
    rows = np.concatenate([work.federation.train_split[client] for client in clients])
    train = work.federation.train
    with torch.no_grad():
        return float(cross_entropy(module(train.x[rows].double()), train.y[rows]))


@pytest.mark.extended
def test_clients_called_hard_have_the_higher_loss():
    harder = 0
    for seed in range(10):
        work, told, _, model = run_of(Terraform(depth=1), seed, rounds=3)
        hard = told[-1]["hard"]
        easy = [client for client in range(16) if client not in hard]
        harder += loss_of(work, model, hard) > loss_of(work, model, easy)
    assert harder >= 8


@pytest.mark.parametrize(
    "others",
    [{}, pytest.param({"method.corrections": [Prox(mu=0.1)]}, marks=pytest.mark.extended)],
    ids=["alone", "prox"],
)
def test_retraining_helps_hard_clients_more_than_as_many_random_updates_do(others):
    gains = []
    for seed in range(10):
        work, told, retrained, _ = run_of(TWICE, seed, others)
        _, told_too, control, _ = run_of(replace(TWICE, baseline=True), seed, others)
        hard = told[0]["hard"]
        assert hard == told_too[0]["hard"]  # the first step is the same
        assert retrained.traffic.client_updates == control.traffic.client_updates > 16
        assert set(told_too[1]["clients"]) != set(hard)
        gains.append(loss_of(work, control.model, hard) - loss_of(work, retrained.model, hard))
    gains = np.array(gains)
    assert (gains > 0).sum() >= 9, gains
    assert gains.mean() > 2 * gains.std(ddof=1) / np.sqrt(len(gains)), gains


def test_what_every_iteration_cost_is_told(tmp_path):
    asked = {**LIGHT, "train.rounds": 2, "train.clients_per_round": 12, "system.stragglers.rate": 0.1}
    run = train(method="terraform", overrides=asked, out=tmp_path / "run")
    told = [event for event in run.events() if event["event"] == "terraform"]
    rounds = [event for event in run.events() if event["event"] == "round"]
    for name in ("bytes_up", "bytes_down", "client_updates"):
        assert sum(event[name] for event in told) == rounds[-1][name]
    assert sum(event["seconds"] for event in told) == pytest.approx(rounds[-1]["time"])
    assert len(told) > 2
