"""How far the server believes a report: lengths and counts beside those of the others, in simulated runs."""

from __future__ import annotations

import pytest
import torch
from combining import close, moving_work, normed_work
from quadratic import f64

from fedstrata import RequestError, train
from fedstrata.core.flat_model import FlatModel
from fedstrata.privacy import protected_engine
from fedstrata.server.loop import run_round
from fedstrata.testing.attacks import Attackers
from fedstrata.testing.tiny import session_of

HONEST = [(1.0, 0.0), (0.0, 2.0), (0.0, -1.0)]


def run_of(work, rounds=1):
    """Run rounds from zero with the engine that a run has; gives the state and the events."""
    notes = []

    def note(kind, **fields):
        if kind != "engine":
            notes.append({"event": kind, **fields})

    state, engine = work.initial_state(note), work.start_engine(note)
    state.model = FlatModel(torch.zeros_like(state.model.params), state.model.buffers)
    for round in range(rounds):
        run_round(work.plan, state, work.plan.view(work.client_info, round, note), engine)
        state.round += 1
    return state, notes


def moved(by, sizes=None, **trust):
    keys = {f"trust.{name}": value for name, value in trust.items()}
    work = moving_work(by, {"train.batch_size": 100, "train.clients_per_round": "all", **keys}, sizes)
    return run_of(work)


def test_a_simulation_believes_everything():
    state, notes = moved([*HONEST, (30.0, 40.0)])
    close(state.model.params, f64(31 / 4, 41 / 4))
    assert notes == []


def test_updates_are_shortened_to_the_median_length_and_everybody_hears_whose():
    """Lengths 1, 2, 1 and 50: of the two in the middle the smaller one counts."""
    state, notes = moved([*HONEST, (30.0, 40.0)], clip="median")
    close(state.model.params, f64(1.6 / 4, 0.8 / 4))
    (note,) = notes
    assert (note["event"], note["what"], note["clients"], note["to"]) == ("clipped", "update", [1, 3], 1.0)
    assert note["lengths"] == [2.0, 50.0]
    assert (note["round"], note["step"]) == (1, 0)


def test_updates_are_shortened_to_a_given_length():
    state, notes = moved([*HONEST, (30.0, 40.0)], clip=5.0)
    close(state.model.params, f64(4 / 4, 5 / 4))
    assert [note["clients"] for note in notes] == [[3]]


def test_one_liar_of_two_does_not_set_the_length():
    state, _ = moved([(1.0, 0.0), (0.0, 1e6)], clip="median")
    close(state.model.params, f64(0.5, 0.5))


def test_who_sends_nothing_does_not_set_it_either():
    state, _ = moved([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 0.0)], clip="median")
    close(state.model.params, f64(0.25, 0.0))


def test_nobody_counts_for_more_samples_than_a_multiple_of_the_median():
    """Of 2, 3, 5 and 90 samples the median is 3: the last counts for 6 of 16."""
    state, notes = moved([(0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (1.0, 0.0)], [2, 3, 5, 90], samples=2.0)
    close(state.model.params, f64(6 / 16, 0.0))
    (note,) = notes
    assert (note["event"], note["clients"], note["said"], note["to"]) == ("samples_bounded", [3], [90], 6)


@pytest.mark.parametrize("clip", ["median", 1e6, "none"])
def test_bounds_that_nobody_reaches_change_nothing(clip):
    same = [(1.0, 0.0), (0.0, 1.0), (0.6, 0.8)]
    plain, _ = moved(same, [1, 2, 2])
    bounded, notes = moved(same, [1, 2, 2], clip=clip, samples=2.0)
    close(bounded.model.params, plain.model.params)
    assert notes == []


@pytest.mark.parametrize("combiner", ["uniform", "median", "fednova"])
def test_norm_statistics_and_controls_are_shortened_by_their_own_medians(combiner):
    """What a client sends beside its update can spoil a model, too."""
    asked = {"method.combiner": combiner, "method.corrections": ["scaffold"], "trust.clip": "median"}
    state, notes = run_of(normed_work({**asked, "train.lr": 1e-3}))
    assert {note["what"] for note in notes} == {"update", "buffers", "scaffold/dc"}
    assert torch.isfinite(state.model.buffers).all()


def test_global_batches_and_chains_stay_as_they_are():
    for method in ("stratify-batch", "sfl"):
        asked = {"method.name": method, "engine.execution": "messages"}
        plain, bounded = (
            run_of(session_of({**asked, **more}), 2) for more in ({}, {"trust.clip": "median", "trust.samples": 1.0})
        )
        assert torch.equal(plain[0].model.params, bounded[0].model.params)
        assert not [note for note in bounded[1] if note["event"] in ("clipped", "samples_bounded")]


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"trust.clip": "median", "privacy.aggregate": "masked"}, r"nobody sees the lengths of single updates"),
        ({"trust.clip": 1e6, "privacy.aggregate": "masked"}, r"trust.clip = 1e\+06, and privacy.encoding holds"),
        ({"trust.clip": "median", "privacy.dp.noise": 1.0}, r"does not fit privacy.dp, which clips by itself"),
        ({"trust.clip": 0.0}, r"trust.clip = 0.0 is not valid"),
        ({"trust.clip": "mean"}, r"trust.clip = .mean. is not valid"),
        ({"trust.samples": 0.5}, r"trust.samples = 0.5 is not valid"),
        ({"trust.clips": 1.0}, r'trust.clips is not an option \(did you mean "clip"\?\)'),
    ],
)
def test_what_is_refused(asked, why):
    with pytest.raises(RequestError, match=why):
        session_of(asked)


# ---- under masks


MASKED = {"privacy.aggregate": "masked", "train.clients_per_round": "all"}


def test_under_masks_clients_keep_to_a_length():
    work = moving_work([*HONEST, (30.0, 40.0)], {**MASKED, "train.batch_size": 100, "trust.clip": 5.0})
    state, notes = run_of(work)
    assert (state.model.params - f64(1.0, 1.25)).abs().max() < 1e-5
    (note,) = notes  # nobody knows whose update was shortened, only that they are 13.5 long on average
    assert (note["event"], note["clients"], note["to"]) == ("clipped", [], 5.0)
    assert note["mean"] == pytest.approx((1 + 2 + 1 + 50) / 4, abs=1e-4)


@pytest.mark.parametrize(("length", "poisoned"), [(1.0, False), (30.0, True)])
def test_a_sum_that_is_longer_than_clients_agreed_on_is_an_event_and_not_used(length, poisoned, monkeypatch):
    """A client that does not keep to the length, as a site could: it multiplies its update behind the clipping."""
    honestly = protected_engine.protect_update

    def protect(tensors, *how):
        return honestly(tensors, *how) * (length if float(tensors["update"][0]) == 3.0 else 1.0)

    monkeypatch.setattr(protected_engine, "protect_update", protect)
    work = moving_work([*HONEST, (3.0, 4.0)], {**MASKED, "train.batch_size": 100, "trust.clip": 5.0})
    state, notes = run_of(work)
    assert bool((state.model.params == 0).all()) == poisoned
    assert [note["event"] for note in notes] == (["poisoned_sum", "no_update"] if poisoned else [])
    if poisoned:
        assert "nobody can say whose" in notes[0]["why"]
        assert notes[0]["clients"] == [0, 1, 2, 3]


@pytest.mark.parametrize("where", ["server", "local"])
def test_noise_under_masks_poisons_no_sum(where):
    asked = {**MASKED, "privacy.dp.noise": 2.0, "privacy.dp.where": where, "privacy.encoding.bits": 64}
    _, notes = run_of(session_of(asked), 4)
    assert notes == []


# ---- with attackers


FEW = {"data.clients": 10, "data.partition": "iid", "train.rounds": 6, "train.clients_per_round": "all"}


@pytest.mark.parametrize(("attack", "strength"), [("sign-flip", 10.0), ("scaling", 1e6), ("lying-counts", None)])
def test_an_attacker_that_owns_the_model_owns_it_no_more(tmp_path, attack, strength):
    liars = {"engine": Attackers(attack=attack, share=0.1, strength=strength)}
    owned = train(overrides=FEW | liars, out=tmp_path / "owned")
    bounds = {"trust.clip": "median", "trust.samples": 2.0}
    held = train(overrides=FEW | liars | bounds, out=tmp_path / "held")
    assert owned.summary["accuracy"] < 0.5
    assert held.summary["accuracy"] > 0.7
    attackers = Attackers(share=0.1).who(session_of().plan.streams, 10)
    named = {c for e in held.events() if e["event"] in ("clipped", "samples_bounded") for c in e["clients"]}
    assert set(attackers) <= named
