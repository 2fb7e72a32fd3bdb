"""FedCDA: of each client's last models the one that fits the others, by brute force and over rounds."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import torch
from combining import Told, close, moving_work, normed_work, played, view_of
from quadratic import f64

from fedstrata import RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.methods.combiners import fedcda
from fedstrata.methods.combiners.fedcda import Cache, FedCda, Kept
from fedstrata.testing.tiny import play, same, session_of


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
        session_of({"method.combiner": "fedcda"}).initial_state()
    monkeypatch.setattr(fedcda, "MEMORY", 4 * 43 * 3 * 6)  # 43 numbers of 4 bytes, 3 models, 6 clients
    session_of({"method.combiner": "fedcda"}).initial_state()


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
        assert list(whole.combiner.clients) == list(resumed.combiner.clients)


@pytest.mark.parametrize("method", ["sfl", "stratify-single", "stratify-batch"])
def test_fedcda_wants_models_that_were_trained_side_by_side(method):
    with pytest.raises(RequestError, match=r"method\.combiner does not fit this plan"):
        session_of({"method.name": method, "method.combiner": "fedcda"})
