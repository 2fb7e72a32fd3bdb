"""Single samples followed through a run: positions of events become rows again, also where data move."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedstrata import Federation, RequestError, Run, client_updates, follow, train
from fedstrata.data.drift import Drift, Stream
from fedstrata.data.noise import LabelNoise
from fedstrata.runs.trace import ClientUpdate, Sides
from fedstrata.runs.training import describe_experiment
from fedstrata.testing import tiny_federation

NOISY = tiny_federation().with_noise([LabelNoise(rate=0.3)])
FOLLOWED = {"method.sampler.follow": True, "method.sampler.warmup": 1, "train.epochs": 2}


def written(path, federation: Federation, rounds: list[dict[int, tuple[int, ...]]]) -> Run:
    """Write a run by hand: in each round, the positions of some clients' biased samples."""
    experiment = describe_experiment(None, "fedbss", FOLLOWED, federation, None)
    run = Run.create(path, experiment.to_toml())
    run.log("start", fingerprint=federation.fingerprint)
    for i, told in enumerate(rounds):
        metrics = {str(c): {"cut": 0.5, "biased": 0.1, "biased_samples": list(p)} for c, p in told.items()}
        update_norm = {str(c): 1.0 + c for c in told}
        probe = {"kind": "probe", "clients": [5], "metrics": {"5": {"probed_loss": 1.0}}}
        run.log(
            "round",
            round=i + 1,
            steps=[probe, {"kind": "train", "clients": [*told], "update_norm": update_norm, "metrics": metrics}],
        )
    return run


def test_positions_of_client_updates_become_counts_of_samples(tmp_path):
    run = written(tmp_path / "run", NOISY, [{1: (0, 9), 2: (4,)}, {1: (0,)}])
    got = follow(run, NOISY)
    first, second = NOISY.train_split[1], NOISY.train_split[2]
    expected = {int(first[0]): 2, int(first[9]): 1, int(second[4]): 1}
    assert {int(row): int(n) for row, n in zip(got.rows, got.biased, strict=True) if n} == expected
    assert [got.ranked[got.clients == c].tolist() for c in (0, 1, 2)] == [[0] * 3, [2] * 10, [1] * 17]
    wrong = NOISY.labels != NOISY.true_labels
    assert 0 < got.wrong.sum() == wrong[NOISY.train_split.rows].sum()
    here = np.concatenate([first, second])
    found = int(wrong[[first[0], first[9], second[4]]].sum())
    assert got.rounds == [
        Sides(1, 27, int(wrong[here].sum()), 3, found),
        Sides(2, 10, int(wrong[first].sum()), 1, int(wrong[first[0]])),
    ]
    assert got.rounds[0].chance == wrong[here].mean()
    assert got.rounds[0].share == found / 3
    assert client_updates(run)[1] == ClientUpdate(1, 2, 3.0, 0.5, 0.1, (4,))


def test_a_round_without_biased_samples_has_no_share(tmp_path):
    (sides,) = follow(written(tmp_path / "run", NOISY, [{1: ()}]), NOISY).rounds
    assert (sides.biased, sides.chance) == (0, 0.3)
    assert np.isnan(sides.share)


def test_a_sample_is_on_the_biased_side_where_its_loss_is_beyond_the_cut_of_its_client(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    asked = FOLLOWED | {"method.sampler.warmup": 0, "train.rounds": 1, "train.clients_per_round": "all"}
    run = train(method="fedbss", federation=NOISY, model=model, overrides=asked, out=tmp_path / "run")
    got, cuts = follow(run, NOISY), {v.client: v.cut for v in client_updates(run)}
    with torch.no_grad():
        losses = cross_entropy(model(NOISY.train.x), NOISY.train.y, reduction="none").numpy()
    beyond = losses[got.rows] > np.array([cuts[c] for c in got.clients.tolist()]) + 1e-6
    assert 0 < beyond.sum() < len(beyond)
    assert got.biased.tolist() == beyond.tolist()
    assert (got.ranked == 1).all()


@pytest.mark.parametrize("how", [{"drift": Drift(at=(2, 3), share=1.0)}, {"stream": Stream(start=0.3, until=4)}])
def test_samples_are_found_where_data_move(tmp_path, how):
    moving = NOISY.moving(**how)
    asked = FOLLOWED | {"train.rounds": 4, "train.clients_per_round": "all"}
    run = train(method="fedbss", federation=moving, overrides=asked, out=tmp_path / "run")
    got, seen = follow(run, moving), [v for v in client_updates(run) if v.cut is not None]
    assert {v.round for v in seen} == {2, 3, 4}
    assert got.biased.sum() == sum(len(v.positions) for v in seen) > 0
    held = [len(moving.at(v.round - 1).train_split[v.client]) for v in seen]
    assert got.ranked.sum() == sum(held)
    assert [round(v.biased * n) for v, n in zip(seen, held, strict=True)] == [len(v.positions) for v in seen]
    assert (got.biased <= got.ranked).all()


def test_data_by_name_are_dealt_out_again_and_wrong_labels_gather_on_the_biased_side(tmp_path):
    asked = {"data.noise": {"labels": 0.3}, "train.rounds": 12, "system.speed.kind": "tiers"}
    asked |= {"engine.vmap": "never"}
    run = train(method="fedbss", overrides=asked | FOLLOWED | {"method.sampler.warmup": 6}, out=tmp_path / "run")
    got = follow(run)
    assert [sides.round for sides in got.rounds] == [*range(7, 13)]
    assert all(sides.chance == pytest.approx(0.3, abs=0.02) for sides in got.rounds)
    assert sum(s.found for s in got.rounds) > 1.2 * 0.3 * sum(s.biased for s in got.rounds)
    assert [v.cut is None for v in client_updates(run)] == [v.round <= 6 for v in client_updates(run)]
    assert all(v.update_norm > 0 for v in client_updates(run))


def test_curves_need_no_names_of_samples_but_following_does(tmp_path):
    asked = FOLLOWED | {"method.sampler.follow": False, "train.rounds": 2}
    run = train(method="fedbss", federation=NOISY, overrides=asked, out=tmp_path / "run")
    assert {v.round for v in client_updates(run) if v.cut is not None} == {2}
    with pytest.raises(RequestError, match=r"method\.sampler\.follow = true"):
        follow(run, NOISY)


def test_other_data_are_refused(tmp_path):
    run = written(tmp_path / "run", NOISY, [{1: (0,)}])
    with pytest.raises(RequestError, match="not those that"):
        follow(run, tiny_federation())
    with pytest.raises(RequestError, match="came from Python"):
        follow(run)
