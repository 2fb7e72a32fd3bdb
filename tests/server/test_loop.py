"""The loop's own duties: who is asked, who is missing, what counts, what is charged, what a part may see."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from fedstrata import Federation, train
from fedstrata.core.client_context import Done
from fedstrata.core.client_parts import Correction
from fedstrata.core.messages import Slot
from fedstrata.core.server_parts import Combiner, Selector, ServerStep
from fedstrata.core.steps import Ask, Step
from fedstrata.runs.session import build_session
from fedstrata.runs.training import describe_experiment
from fedstrata.testing import WireEngine, tiny_federation
from fedstrata.testing.tiny import in_process, run_rounds, same, session_of


def notes_of(work, rounds=2, engine=None):
    """Run rounds and collect what is noted."""
    found = []
    really = type(work.plan).view
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            type(work.plan),
            "view",
            lambda plan, client_info, r, _: really(plan, client_info, r, lambda k, **f: found.append((k, f))),
        )
        ran = run_rounds(work, rounds, **({"engine": engine} if engine else {}))
    return found, ran


@dataclass(frozen=True)
class NanMeter(Correction):
    """Sends NaN beside a sound update, from one client."""

    def declare_aggregated(self, space):
        return {"x": Slot()}

    def finish(self, own, buf, context):
        return Done(aggregated={"x": torch.full_like(buf.loss, float("nan") if context.client.id == 2 else 1.0)})


def test_a_report_with_anything_not_finite_is_left_out_and_said_so():
    work = session_of({"method.corrections": [NanMeter()], "train.clients_per_round": "all"})
    found, (state, rounds) = notes_of(work)
    assert found == [("dropped", {"round": r, "step": 0, "clients": [2], "why": "not finite"}) for r in (1, 2)]
    assert rounds[0][0].missing == (2,)
    assert state.participation.tolist() == [2, 2, 0, 2, 2, 2]


def test_a_client_that_does_not_answer_is_missing_and_said_so():
    class Deaf(WireEngine):
        def ask(self, step, tasks):
            return super().ask(step, [t for t in tasks if t.client != 3])

    work = session_of({"train.clients_per_round": "all"})
    found, (_, rounds) = notes_of(work, engine=lambda w: Deaf(w.plan.local, w.federation))
    assert ("dropped", {"round": 1, "step": 0, "clients": [3], "why": "no answer"}) in found
    assert rounds[0][0].missing == (3,)


def test_stragglers_break_hops_of_a_chain_too():
    work = session_of({"method.name": "sfl", "system.stragglers.rate": 0.5, "train.clients_per_round": "all"})
    _, rounds = run_rounds(work, rounds=10)
    lost = [len(o.missing) for outcomes in rounds for o in outcomes]
    assert 15 < sum(lost) < 45  # of 60


def test_a_probe_gets_the_model_alone():
    asked = {"method.selector": "power-of-choice", "train.clients_per_round": 2, "train.rounds": 1}
    plain, _ = run_rounds(session_of(asked), rounds=1)
    both, _ = run_rounds(session_of(asked | {"method.corrections": ["scaffold"]}), rounds=1)
    size = 8 * session_of().plan.space.P
    assert plain.traffic.bytes_down == (4 + 2) * size
    assert both.traffic.bytes_down == (4 + 2 * 2) * size


@dataclass(frozen=True)
class Twice(Selector):
    """Selects two clients; the second counts three times."""

    def select(self, state, view):
        return [Ask(0), Ask(3, weight=3.0)]


def test_a_selector_may_say_how_often_a_report_counts():
    def moved(select):
        work = session_of({"method.selector": select, "method.combiner": "uniform"})
        return run_rounds(work, rounds=1)[0].model.params - work.initial_state().model.params

    alone = {c: moved({"kind": f"{__name__}:Only", "client": c}) for c in (0, 3)}
    torch.testing.assert_close(moved(Twice()), 0.25 * alone[0] + 0.75 * alone[3])


@dataclass(frozen=True)
class Only(Selector):
    """Selects one client."""

    client: int = 0

    def select(self, state, view):
        return [self.client]


@dataclass
class Seen:
    lengths: list[float] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Looks(Selector):
    """Remembers how long each update was, and how well each client does."""

    individual: ClassVar[bool] = True

    def init(self, view):
        return Seen()

    def select(self, state, view):
        return [1, 4]

    def feedback(self, state, view, outcomes, scores):
        state.lengths += [float(r.aggregated["update"].norm()) for o in outcomes for r in o.reports]
        state.scores += [scores.clients[c] for c in (1, 4)] if scores.clients else []


def test_a_selector_that_says_so_sees_whole_updates_and_every_one_sees_scores(tmp_path):
    state, rounds = run_rounds(session_of({"method.selector": Looks()}), rounds=2)
    assert state.selector.lengths == pytest.approx([r.update_norm for outcomes in rounds for r in outcomes[0].reports])
    run = train(
        federation=tiny_federation(), overrides={"method.selector": Looks(), "train.rounds": 2}, out=tmp_path / "run"
    )
    assert run.summary["rounds"] == 2
    assert run_rounds(session_of())[1][0][0].reports[0].aggregated == {}


@dataclass(frozen=True)
class Peeps(Combiner):
    """Looks at single updates without saying so."""

    def combine(self, state, view, model, arrived):
        arrived.each()


def test_looking_at_single_updates_must_be_declared():
    with pytest.raises(RuntimeError, match="individual = True"):
        run_rounds(session_of({"method.combiner": Peeps()}))


@dataclass(frozen=True)
class HalfWork(type(session_of().plan.system)):
    """Asks client 1 for one epoch only."""

    def adapt(self, view, turn, step):
        return replace(step, asks=tuple(replace(a, config={"epochs": 1}) if a.client == 1 else a for a in step.asks))


def test_the_system_may_ask_for_less_work():
    work = session_of({"train.clients_per_round": "all", "train.epochs": 3})
    full = run_rounds(work, rounds=1)[1][0][0].reports
    work = replace(work, plan=replace(work.plan, system=HalfWork()))
    less = run_rounds(work, rounds=1)[1][0][0].reports
    assert [(a.steps, b.steps) for a, b in zip(full, less, strict=True) if a.steps != b.steps] == [(9, 3)]


@dataclass(frozen=True)
class MedianLoss(ServerStep):
    """Broadcasts the median of the losses it was told last."""

    def init(self, view, model):
        return Seen()

    def broadcast(self, state):
        return {"median": torch.tensor(float(np.median(state.lengths)) if state.lengths else 0.0)}

    def step(self, state, view, model, proposal, sums):
        state.lengths[:] = [r.loss for r in sums.reports]
        return proposal


def test_a_server_part_reads_the_open_reports_and_tells_the_clients():
    work = session_of({"method.server_step": MedianLoss(), "train.clients_per_round": 3})
    state, rounds = run_rounds(work, rounds=1)
    assert state.server_steps["server_step"].lengths == [r.loss for r in rounds[0][0].reports]


@dataclass(frozen=True)
class BlindProbe(Selector):
    """Looks at data without a model."""

    programs: ClassVar = {
        "blind": lambda context: Done(metrics={"loss0": float(context.score_samples().losses.mean())})
    }

    def select(self, state, view):
        yield Step((Ask(0),), kind="blind", model=False, combine=False)
        return [0]


def test_looking_without_a_model_is_refused_instead_of_using_the_last_clients():
    with pytest.raises(ValueError, match="sends no model"):
        run_rounds(session_of({"method.selector": BlindProbe()}))


def test_a_step_may_not_ask_a_client_twice():
    with pytest.raises(ValueError, match="asks a client twice"):
        Step((Ask(1), Ask(1)))


def test_scaffold_survives_rounds_in_which_nothing_moves():
    work = session_of({"method.name": "scaffold", "train.lr_schedule": {"kind": "one-cycle", "end": 0.0}})
    state, _ = run_rounds(work)
    assert torch.isfinite(state.server_steps["scaffold"].c).all()


def test_client_state_that_did_not_change_is_not_stored_again():
    work = session_of(
        {"method.corrections": ["scaffold"], "method.selector": "power-of-choice", "train.clients_per_round": 2}
    )
    engines = []
    run_rounds(work, rounds=1, engine=lambda w: engines.append(in_process(w)) or engines[0])
    assert {tag for tag, _ in engines[0].client_states().values()} == {(0, 1)}
    assert len(engines[0].client_states()) == 2


def test_one_sample_and_batch_norm_trains_every_epoch_on_running_statistics():
    x, y = np.random.default_rng(0).normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3
    net = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 3))
    fed = Federation.from_arrays(x, y, [[0], range(1, 12)], test=(x, y))
    asked = {"train.clients_per_round": "all", "train.epochs": 5, "train.batch_size": 4, "engine.precision": "fp64"}
    _, rounds = run_rounds(build_session(describe_experiment(None, None, asked, fed, net), fed, net), rounds=1)
    assert [r.steps for r in rounds[0][0].reports] == [5, 15]


def test_equal_runs_stay_equal_when_repeated():
    a, b = (run_rounds(session_of({"method.name": "scaffold"}))[0] for _ in range(2))
    assert same(a, b)
