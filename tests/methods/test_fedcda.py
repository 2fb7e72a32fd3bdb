"""FedCDA: of each client's last models the one that fits the others, by brute force and over rounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from combining import Told, close, moving_work, normed_work, run_of, view_of
from quadratic import f64

from fedstrata import RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.storage.stored import Stored
from fedstrata.methods.combiners import client_models, fedcda
from fedstrata.methods.combiners.fedcda import FedCda, Fixed, Kept
from fedstrata.runs.checkpoints import Checkpoints
from fedstrata.server.loop import run_round
from fedstrata.testing.tiny import in_process, run_rounds, same, session_of


def objective(models, losses, smoothness):
    """Write FedCDA's objective down as it stands, models as rows."""
    models = np.array(models)
    apart = (models**2).sum(1).mean() - (models.mean(0) ** 2).sum()
    return np.mean(losses) + smoothness / 2 * apart


def kept(models, losses, chosen=0):
    return Kept([Stored(torch.tensor(m, dtype=torch.float64)) for m in models], list(losses), chosen)


def chosen_of(clients):
    return [k.models[k.chosen].read() for k in clients]


def fixed_at(clients, width=2):
    return Fixed(len(clients), sum(chosen_of(clients), torch.zeros(width).double()))


def test_fedcda_oracle():
    clients = [kept([(1, 0), (0, 0)], (0.3, 0.4)), kept([(0, 1), (2, 2)], (0.2, 0.1))]
    options = [[(m.read().tolist(), loss) for m, loss in zip(k.models, k.losses, strict=True)] for k in clients]
    found = [objective(*zip(*pair, strict=True), 1.0) for pair in product(*options)]
    assert found == pytest.approx([0.5, 0.825, 0.425, 1.25], abs=1e-12)
    FedCda().choose(clients, fixed_at([]), f64(7.0, -3.0))
    assert [k.chosen for k in clients] == [1, 0]
    close(torch.stack(chosen_of(clients)).mean(0), f64(0.0, 0.5))


@pytest.mark.parametrize("seed", range(12))
def test_fedcda_chooses_by_brute_force_with_all_others_fixed(monkeypatch, seed):
    monkeypatch.setattr(fedcda, "WIDTH", 3)  # products are summed over two parts of a model
    rng = np.random.default_rng(seed)
    counts, width, smoothness = [3, 1, 2, 3, 3, 2], 4, float(rng.choice([0.5, 1.0, 2.0]))
    clients = [kept(5 + rng.normal(size=(n, width)), 8 * rng.random(n), int(rng.integers(n))) for n in counts]
    before, group = [k.chosen for k in clients], [5, 0, 3]
    others = [k for client, k in enumerate(clients) if client not in group]
    origin = torch.full((width,), 5.0).double()
    FedCda(smoothness=smoothness).choose([clients[c] for c in group], fixed_at(others, width), origin)
    best = min(
        product(*(range(counts[client]) for client in group)),
        key=lambda combo: _objective_of(
            clients, {**dict(enumerate(before)), **dict(zip(group, combo, strict=True))}, smoothness
        ),
    )
    assert tuple(clients[client].chosen for client in group) == best
    assert all(k.chosen == before[client] for client, k in enumerate(clients) if client not in group)


def _objective_of(clients, chosen, smoothness):
    models = [clients[client].models[place].read().numpy() for client, place in chosen.items()]
    return objective(models, [clients[client].losses[place] for client, place in chosen.items()], smoothness)


def test_fedcda_takes_the_newest_of_equals():
    clients = [kept([(1, 0)] * 3, (0.5,) * 3, chosen=2), kept([(0, 1)] * 3, (0.5,) * 3, chosen=2)]
    FedCda().choose(clients, fixed_at([]), f64(0.0, 0.0))
    assert [k.chosen for k in clients] == [0, 0]


def cda_round(part, state, view, models, losses, here=(0.0, 0.0)):
    """Let clients report models; give the next one."""
    here = f64(*here)
    metrics = [{"last_epoch_loss": losses[client]} for client in models]
    told = Told([f64(*m) - here for m in models.values()], clients=list(models), metrics=metrics)
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
    close(torch.stack([m.read() for m in state.clients[0].models]), f64(-3.0, 0.0, 1.0, 0.0).view(2, 2))
    assert state.clients[0].chosen == 1
    close(third, f64(2.5, 0.0))
    assert sorted(state.clients) == [0, 2]


def test_fedcda_remembers_models_while_it_warms_up():
    part, view = FedCda(models=3, warmup=5), view_of((1, 1))
    state = part.init(view)
    for round in range(5):
        here = cda_round(part, state, replace(view, round=round), {0: (float(round), 0.0), 1: (1.0, 1.0)}, {0: 1, 1: 1})
        close(here, f64((round + 1) / 2, 0.5))
    assert [float(m.read()[0]) for m in state.clients[0].models] == [4.0, 3.0, 2.0]
    assert state.clients[0].chosen == 0


@pytest.mark.parametrize(("warmup", "rounds", "differs_from"), [(2, 4, 2), (0.5, 4, 2), (0, 4, 0), (0.25, 4, 1)])
def test_fedcda_warms_up_as_plain_averaging(warmup, rounds, differs_from):
    asked = {"train.rounds": rounds, "method.combiner": {"kind": "fedcda", "warmup": warmup}}
    for round in range(1, rounds + 1):
        plain, _ = run_rounds(session_of({**asked, "method.combiner": "uniform"}), rounds=round)
        state, _ = run_rounds(session_of(asked), rounds=round)
        gap = float((plain.model.params - state.model.params).abs().max())
        assert (gap < 1e-12) == (round <= max(differs_from, 1)), round  # in one round there is nothing to choose


@pytest.mark.parametrize("seed", range(6))
def test_fedcda_leaves_groups_out_whose_turn_has_not_come(seed):
    """By hand: those that are absent are fixed, each group joins them once it has chosen."""
    rng = np.random.default_rng(seed)
    part, view = FedCda(groups=3, warmup=0), view_of([1] * 9)
    state = part.init(view)
    for _ in range(3):
        told = {client: tuple(2 * rng.normal(size=2)) for client in range(9)}
        cda_round(part, state, view, told, {client: float(rng.random()) for client in told})
    fixed = {client: state.clients[client].models[state.clients[client].chosen].read() for client in (7, 8)}
    told = {client: tuple(2 * rng.normal(size=2)) for client in range(7)}
    mean = cda_round(part, state, view, told, {client: float(rng.random()) for client in told})
    for group in np.array_split(view.rng("combine").permutation(list(range(7))), 3):
        options = [
            [(m.read().numpy(), loss) for m, loss in zip(k.models, k.losses, strict=True)]
            for k in (state.clients[c] for c in group.tolist())
        ]
        rest = [(m.numpy(), 0.0) for m in fixed.values()]
        best = min(product(*options), key=lambda combo: objective(*zip(*rest, *combo, strict=True), 1.0))
        fixed |= {client: torch.from_numpy(m) for client, (m, _) in zip(group.tolist(), best, strict=True)}
    close(torch.stack(chosen_of(state.clients[c] for c in range(9))), torch.stack([fixed[c] for c in range(9)]))
    close(mean, torch.stack(list(fixed.values())).mean(0))


def test_fedcda_reads_the_loss_of_the_last_epoch():
    """Clients of a real run train two epochs; F_n is no mean of both."""
    asked = {"method.name": "fedcda", "train.epochs": 2, "train.clients_per_round": "all"}
    seen = run_of(session_of(asked))
    (outcome,) = seen.rounds[0]
    kept_losses = {client: k.losses[0] for client, k in seen.state.combiner.clients.items()}
    assert kept_losses == {r.client: r.metrics["last_epoch_loss"] for r in outcome.reports}
    assert all(r.metrics["last_epoch_loss"] < r.loss for r in outcome.reports)  # they learn


def test_fedcda_lays_its_models_down_in_the_checkpoint_and_keeps_none_in_memory(tmp_path):
    """Each model is written once; of those that no client has any more, the file is gone."""
    asked = {"method.name": "fedcda", "method.combiner.warmup": 0, "method.combiner.models": 2, "train.rounds": 5}
    work = session_of({**asked, "train.clients_per_round": 2})
    state, engine, checkpoints = work.initial_state(), in_process(work), Checkpoints(tmp_path)
    written = set()
    for round in range(5):
        run_round(work.plan, state, work.plan.view(work.client_info, round, lambda *_, **__: None), engine)
        state.round += 1
        checkpoints.write(state.round, state, {}, {})
        stored = [m for k in state.combiner.clients.values() for m in k.models]
        assert all(m._held is None and m.folder == tmp_path for m in stored)
        files = {m.entry["file"] for m in stored}
        there = {path.name for path in tmp_path.glob("*-*.safetensors")}
        assert there == files
        assert len(files - written) == 2  # only what the two clients of the round sent
        written |= files
    assert len(written) == 10


def test_fedcda_warns_of_many_models_and_refuses_none(monkeypatch):
    monkeypatch.setattr(client_models, "LARGE", 1000)
    notes = []
    session_of({"method.combiner": "fedcda"}).initial_state(lambda kind, **fields: notes.append((kind, fields)))
    assert [(kind, fields["what"]) for kind, fields in notes] == [("warning", "fedcda")]


def test_fedcda_makes_groups_smaller_where_they_have_too_many_combinations(monkeypatch):
    monkeypatch.setattr(fedcda, "COMBINATIONS", 9)  # 3^2: two clients a group
    asked = {"method.combiner": {"kind": "fedcda", "warmup": 0, "groups": 2}, "train.clients_per_round": "all"}
    notes = run_of(session_of(asked)).notes
    assert notes == [
        {"event": "fallback", "what": "fedcda", "used": "3 groups", "why": "larger ones have too many combinations"}
    ]
    monkeypatch.setattr(fedcda, "COMBINATIONS", 27)
    assert run_of(session_of(asked)).notes == []


def test_fedcda_leaves_out_reports_that_are_lost_or_not_finite():
    moves = [(1.0, 0.0), (np.inf, 0.0), (0.0, 1.0)]
    work = moving_work(moves, {"method.combiner": {"kind": "fedcda", "warmup": 0}})
    seen = run_of(work, rounds=2, weights=(0.0, 0.0))
    assert sorted(seen.state.combiner.clients) == [0, 2]
    assert torch.isfinite(seen.state.model.params).all()


def test_fedcda_chooses_norm_statistics_with_the_model():
    work = normed_work({"method.combiner": {"kind": "fedcda", "warmup": 0, "models": 2}, "train.rounds": 3})
    seen = run_of(work, rounds=3)
    mean = torch.stack(chosen_of(seen.state.combiner.clients.values())).mean(0)
    close(torch.cat([seen.state.model.params, seen.state.model.buffers]), mean)
    assert any(k.chosen for k in seen.state.combiner.clients.values())


def test_fedcda_resumes_with_its_models(tmp_path):
    asked = {"method.name": "fedcda", "method.combiner.warmup": 1, "system.stragglers.rate": 0.3, "train.rounds": 6}
    whole, _ = run_rounds(session_of(asked), rounds=6)
    for cut in (1, 3, 5):
        resumed, _ = run_rounds(session_of(asked), rounds=6, cut=cut)
        assert same(whole, resumed)
        assert list(whole.combiner.clients) == list(resumed.combiner.clients)


@pytest.mark.parametrize("method", ["sfl", "stratify-single", "stratify-batch"])
def test_fedcda_wants_models_that_were_trained_side_by_side(method):
    with pytest.raises(RequestError, match=r"method\.(combiner|driver) does not fit this plan"):
        session_of({"method.name": method, "method.combiner": "fedcda"})
