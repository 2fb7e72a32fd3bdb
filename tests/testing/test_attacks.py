"""Attackers: each says what its name says, and a run with them is as repeatable as any."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedstrata import Experiment, RequestError, testing, train
from fedstrata.core.messages import Report
from fedstrata.testing.attacks import ATTACKS, LIES, STRENGTHS, Attackers, flip_labels, lie
from fedstrata.testing.tiny import run_rounds, same, session_of, tiny_federation

OWN = Report(0, 50, aggregated={"update": torch.tensor([3.0, 4.0]), "buffers": torch.tensor([1.0])}, update_norm=5.0)
HONEST = [replace(OWN, client=i, aggregated={"update": torch.tensor([1.0, float(i)])}) for i in (1, 3)]


def started(work):
    return work.start_engine(lambda *_, **__: None)


@pytest.mark.parametrize(
    ("attack", "strength", "update"),
    [
        ("sign-flip", None, [-15.0, -20.0]),
        ("sign-flip", 2.0, [-6.0, -8.0]),
        ("scaling", None, [30.0, 40.0]),
        ("label-flip", None, [3.0, 4.0]),
        ("inner-product", None, [-5.0, -10.0]),  # the honest mean is (1, 2)
        ("inner-product", 0.5, [-0.5, -1.0]),
        ("lying-counts", None, [-3.0, -4.0]),
        ("free-rider", None, [0.0, 0.0]),
    ],
)
def test_what_an_attacker_sends(attack, strength, update):
    told = lie(attack, OWN, HONEST, strength)
    assert told.aggregated["update"].tolist() == update
    assert told.update_norm == pytest.approx(np.linalg.norm(update))
    assert told.samples == (10**15 if attack == "lying-counts" else 50)
    assert torch.equal(told.aggregated["buffers"], OWN.aggregated["buffers"])


def test_noise_is_as_long_as_it_is_said_and_the_same_in_the_same_place():
    one, same_place, other = (lie("gaussian", OWN, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert one.update_norm == pytest.approx(50.0)
    assert torch.equal(one.aggregated["update"], same_place.aggregated["update"])
    assert not torch.equal(one.aggregated["update"], other.aggregated["update"])


def test_every_attack_has_a_lie_but_for_wrong_labels():
    assert set(ATTACKS) == {*LIES, "label-flip"}
    assert set(STRENGTHS) < set(LIES)


def test_labels_are_the_other_way_round_at_attackers_alone():
    clean = tiny_federation()
    flipped = flip_labels(clean, [1, 3])
    for client in range(len(clean)):
        before, after = (f.client(client).labels for f in (clean, flipped))
        assert after.tolist() == (2 - before if client in (1, 3) else before).tolist()
    assert torch.equal(clean.test.y, flipped.test.y)


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_run_with_attackers_is_another_one_and_can_be_cut_and_repeated(attack):
    asked = {"engine": Attackers(attack=attack, share=0.34, precision="fp64"), "train.rounds": 4}
    plain = {"engine.precision": "fp64", "train.rounds": 4}
    whole, again, cut = (run_rounds(session_of(asked), 4, started, cut=at)[0] for at in (None, None, 2))
    assert same(whole, again)
    assert same(whole, cut)
    assert not same(whole, run_rounds(session_of(plain), 4, started)[0])
    assert torch.isfinite(whole.model.params).all()


def test_without_attackers_it_is_the_local_engine():
    testing.check_engine(Attackers(share=0.0, workers=1))


def test_more_attackers_are_the_same_and_others():
    streams = session_of().plan.streams
    few, more, most = (set(Attackers(share=share).who(streams, 20)) for share in (0.1, 0.2, 0.3))
    assert few < more < most
    assert list(map(len, (few, more, most))) == [2, 4, 6]


def test_attackers_stand_in_an_experiment_file(tmp_path):
    path = tmp_path / "attacked.toml"
    path.write_text(
        '[engine]\nkind = "fedstrata.testing.attacks:Attackers"\nattack = "inner-product"\nshare = 0.3\n'
        "[train]\nrounds = 1\n"
    )
    run = train(path, out=tmp_path / "run")
    (told,) = [e["wall"] for e in run.events() if e["event"] == "engine" and "attackers" in e["wall"]]
    assert told["remark"] == "6 of 20 clients attack (inner-product)"
    assert len(told["attackers"]) == 6
    assert Experiment.of(run.path / "experiment.toml").engine.make().share == 0.3


@pytest.mark.parametrize(("key", "value"), [("attack", "sign"), ("share", 1.0), ("strength", 0.0)])
def test_wrong_options_are_refused(key, value):
    with pytest.raises(RequestError, match=f"engine.{key}"):
        session_of({"engine": {"kind": "fedstrata.testing.attacks:Attackers", key: value}})


def test_schedules_are_run_by_messages_and_attackers_lie_about_gradients():
    asked = {"method.name": "stratify-batch", "train.batch_size": 8, "engine.precision": "fp64"}
    liars = {"engine": Attackers(attack="scaling", share=0.34, precision="fp64")}
    honest, attacked = (run_rounds(session_of({**asked, **more}), 1, started)[0] for more in ({}, liars))
    assert not same(honest, attacked)
