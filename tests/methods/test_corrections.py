"""Corrections: SCAFFOLD and clipping by hand, what they send, and clients that break, are lost or lopsided."""

from __future__ import annotations

import copy
import signal
import sys
from collections import OrderedDict
from dataclasses import dataclass, replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from correcting import EVERYBODY, close, one_client, own_work
from quadratic import Given, f64, given_work, run_from, start
from sweeping import sweep
from torch import nn

from fedstrata.cli import main
from fedstrata.core import registry
from fedstrata.core.client_parts import Correction
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Slot
from fedstrata.core.system import System
from fedstrata.data.federation import Federation
from fedstrata.methods.corrections.clip import Clip
from fedstrata.methods.corrections.scaffold import Control, Scaffold
from fedstrata.methods.optimizers.adam import Adam
from fedstrata.methods.optimizers.sgd import Sgd
from fedstrata.server.loop import model_to_evaluate, run_round
from fedstrata.testing.tiny import alike, in_process, run_rounds, same, session_of

# ---- scaffold --------------------------------------------------------------------------------------------------------


def test_raw_gradients_are_what_plain_steps_add_up_to():
    states = [
        run_rounds(session_of({"method.name": "scaffold", "method.corrections.0.gradients": g}))[0]
        for g in ("raw", "update")
    ]
    close(states[0].model.params, states[1].model.params, atol=1e-10)
    close(states[0].server_steps["scaffold"].c, states[1].server_steps["scaffold"].c, atol=1e-10)
    assert states[0].server_steps["scaffold"].c.norm() > 0.1


def test_scaffold_with_momentum_keeps_the_mean_of_raw_gradients():
    """f = v^2, x = 1, c = .1, c_k = .3, eta = .1, momentum .9.

    Step 1: g = 2, v = 1.8, w = .82. Step 2: g = 1.64, v = .9 * 1.8 + 1.44 = 3.06, w = .514. c_k' = (2 + 1.64) / 2.
    """
    parts = [Given(curve=2.0), Scaffold(gradients="raw")]
    work, state, engine = one_client(parts, {"train.optimizer": {"kind": "sgd", "momentum": 0.9}})
    state.server_steps["scaffold"] = Control(f64(0.1, 0.1))
    engine.restore({k: ((0, 0), {"scaffold/c": f64(0.3, 0.3)}) for k in range(10)})
    ((outcome,),) = run_from(work, state, engine)
    close(state.model.params, f64(0.514, 0.514), atol=1e-12)
    close(engine.client_states()[outcome.reports[0].client][1]["scaffold/c"], f64(1.82, 1.82), atol=1e-12)
    close(state.server_steps["scaffold"].c, f64(0.252, 0.252), atol=1e-12)


@pytest.mark.parametrize("optimizer", [Sgd(momentum=0.9), Adam()], ids=["momentum", "adam"])
def test_scaffold_reads_controls_off_plain_steps_only(optimizer):
    asked = {"method.name": "scaffold", "train.optimizer": optimizer}
    with pytest.raises(RequestError, match=r"\(scaffold\) does not fit .* without momentum, or gradients = \"raw\""):
        session_of(asked)
    state, _ = run_rounds(session_of({**asked, "method.corrections.0.gradients": "raw"}))
    assert state.model.params.isfinite().all()
    assert state.server_steps["scaffold"].c.norm() > 0


def test_controls_may_be_averaged_plainly_beside_models_by_size():
    """NIID-Bench. By hand: c grows by |S|/N times the plain mean, with 2, 6 and 1 samples; models go by size."""
    parts = [Given(curve=2.0), Scaffold(controls="plain")]
    asked = {"train.lr": 0.1, "train.batch_size": 1, "train.epochs": 1}
    work = given_work((2, 6, 1), {"method.corrections": parts, **asked})
    state, engine = start(work, 1.0, 1.0), in_process(work)
    run_from(work, state, engine)
    # v shrinks by .8 a step, so that Delta = .8^n - 1, and c_k = -Delta / (n .1)
    controls = [(1 - 0.8**n) / (0.1 * n) for n in (2, 6, 1)]
    close(state.server_steps["scaffold"].c, f64(*[sum(controls) / 3] * 2), atol=1e-12)
    by_size = 1 + (2 * (0.8**2 - 1) + 6 * (0.8**6 - 1) + (0.8 - 1)) / 9
    close(state.model.params, f64(by_size, by_size), atol=1e-12)
    for client, control in enumerate(controls):
        close(engine.client_states()[client][1]["scaffold/c"], f64(control, control), atol=1e-12)


def test_plain_controls_are_those_of_a_plain_mean():
    """With rates so small that models do not matter, weights by size and none give the same controls."""
    asked = {"method.name": "scaffold", "train.lr": 1e-9, **EVERYBODY}
    plain = run_rounds(session_of(asked), 1)[0].server_steps["scaffold"].c
    overrides = {"method.combiner": "size", "method.corrections.0.controls": "plain"}
    by_size = run_rounds(session_of(asked | overrides), 1)[0].server_steps["scaffold"].c
    close(by_size, plain, atol=1e-5)
    weighed = run_rounds(session_of(asked | {"method.combiner": "size"}), 1)[0].server_steps["scaffold"].c
    assert float((weighed - plain).abs().max()) > 1e-3


def test_plain_controls_need_weights_by_size():
    with pytest.raises(RequestError, match="takes back weights by size"):
        session_of({"method.name": "scaffold", "method.corrections.0.controls": "plain"})


def test_weight_decay_is_part_of_a_plain_gradient():
    asked = {"method.name": "scaffold", "train.optimizer": Sgd(weight_decay=0.1)}
    assert run_rounds(session_of(asked))[0].model.params.isfinite().all()


# ---- clip ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gradient", "expected"),
    [((30.0, 40.0), (6.0, 8.0)), ((6.0, 8.0), (6.0, 8.0)), ((0.3, -0.4), (0.3, -0.4)), ((0.0, 0.0), (0.0, 0.0))],
)
def test_clip_shortens_what_is_longer_than_its_bound(gradient, expected):
    buf = SimpleNamespace(g=f64(*gradient))
    Clip().edit_gradient({}, buf, None)
    close(buf.g, f64(*expected), atol=1e-12)


def test_corrections_act_in_the_order_of_the_list():
    """A gradient of 2, and a control of 3: cut to 1 before or after the control is added."""
    push, ends = Given(curve=0.0, slope=(2.0, 0.0)), {}
    for name, parts in {
        "before": [push, Clip(norm=1.0), Scaffold()],
        "after": [push, Scaffold(), Clip(norm=1.0)],
    }.items():
        work, state, engine = one_client(parts, {"train.batch_size": 2})
        state.server_steps["scaffold"] = Control(f64(3.0, 0.0))
        run_from(work, state, engine)
        ends[name] = state.model.params[0].item()
    assert ends == pytest.approx({"before": 1 - 0.1 * (1 + 3), "after": 1 - 0.1 * 1})


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
    traffic, client_updates = run_rounds(work)[0].traffic, 4 * 3
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
    """Run three rounds in which a client's training breaks once, and three in which its report is lost instead."""
    asked = {"method.name": name, **EVERYBODY, "engine.precision": "fp32"}
    if name not in ("scaffold", "fednova"):  # a local optimizer with a memory of its own
        asked["train.optimizer"] = {"kind": "adam", "state": "kept"}
    recipe = list(session_of(asked).experiment.method.corrections)
    for breaks in (Breaks(factor=float(factor)), Breaks(factor=1.0)):
        work = session_of({**asked, "method.corrections": [*recipe, breaks]})
        if breaks.factor == 1.0:
            work = replace(work, plan=replace(work.plan, system=Loses()))
        engine, state, notes, kept = in_process(work), work.initial_state(), [], []
        for round in range(3):
            view = work.plan.view(work.client_info, round, lambda kind, **fields: notes.append((kind, fields)))  # noqa: B023
            outcomes = run_round(work.plan, state, view, engine)
            kept.append(copy.deepcopy(dict(engine.client_states())))
        yield state, notes, kept, outcomes


@sweep(lambda case: case.startswith("nan") or "scaffold" in case, case=BREAKING)
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


@pytest.mark.filterwarnings("ignore:features are not on one scale")
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
    (outcome,) = run_round(work.plan, work.initial_state(), view, in_process(work))
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
    state, rounds = run_rounds(work, 2)
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
