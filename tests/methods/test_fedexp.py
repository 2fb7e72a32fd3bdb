"""FedExP: how far a step goes where updates disagree, and which model is scored."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from combining import close, moving_work, normed_work, run_of
from light import LIGHT
from quadratic import f64

from fedstrata import Experiment, train
from fedstrata.config.build import build_federation
from fedstrata.methods.server_steps.fedexp import FedExp
from fedstrata.runs.session import build_session
from fedstrata.server.loop import model_to_evaluate
from fedstrata.testing import check_server_step

DELTAS = [(1.0, 0.0), (0.0, 1.0), (-0.5, 0.5)]


def fedexp(by, combine="uniform", rounds=1, overrides=None, sizes=None, **options):
    """Return what a run with FedExP did, and its step lengths."""
    server = {"kind": "fedexp", **options}
    work = moving_work(
        by, {"method.combiner": {"kind": combine}, "method.server_step": server, **(overrides or {})}, sizes
    )
    seen = run_of(work, rounds=rounds, weights=(0.0, 0.0))
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
    asked = {**LIGHT, "method.name": "fedexp", "train.rounds": 3, "data.clients": 6}
    run = train(overrides=asked, out=tmp_path / "run")
    assert run.summary["rounds"] == 3
    manifest = run.checkpoints.manifest()
    experiment = Experiment.of(run.path / "experiment.toml")
    work = build_session(experiment, build_federation(experiment), None)
    state, _ = run.checkpoints.read(manifest, like=work.initial_state())
    mean = (state.server_steps["server_step"].before.params + state.model.params) / 2
    assert not torch.equal(state.server_steps["server_step"].before.params, state.model.params)
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
    asked = {"method.combiner": "uniform", "train.lr": 0.5}
    longer, plain = (run_of(normed_work(asked | {"method.server_step": step})) for step in ("fedexp", "sgd"))
    assert longer.notes[0]["eta"] > 1
    assert torch.equal(longer.state.model.buffers, plain.state.model.buffers)
    assert not torch.equal(longer.state.model.params, plain.state.model.params)


def test_fedexp_conforms():
    check_server_step(FedExp(eps=0.1, eps_each=True))
