"""Data that move, samples that stay small until the step, images that change by chance: all of it by the seed alone."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from light import LIGHT

from fedstrata import Federation, RequestError, resume, train
from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.counter_rng import Clock
from fedstrata.core.inputs import Inputs
from fedstrata.core.rng import Streams
from fedstrata.data.drift import Drift, Stream
from fedstrata.data.partitions.dirichlet import DirichletClass
from fedstrata.engines.local.engine import LocalEngine
from fedstrata.engines.local.processes import ProcessPool
from fedstrata.testing import WireEngine, tiny_federation
from fedstrata.testing.tiny import run_rounds, same, session_of

MOVES = {"drift": Drift((2, 4), 0.7), "stream": Stream(0.4, 4)}


def moved(**how):
    return tiny_federation().moving(**how)


def test_drift_moves_label_mixes_at_its_rounds_and_loses_nothing():
    fed = moved(drift=Drift((3, 5), share=0.5))
    counts = [fed.at(r).counts for r in range(6)]
    changed = [int((a != b).any(1).sum()) for a, b in pairwise(counts)]
    assert changed[0] == changed[2] == changed[4] == 0
    assert 0 < changed[1] <= 3
    assert 0 < changed[3] <= 3
    for now in counts:
        assert sorted(map(tuple, now.tolist())) == sorted(map(tuple, counts[0].tolist()))


def test_with_drift_test_data_go_with_the_training_data():
    fed = moved(drift=Drift((2,), share=1.0))
    old = {fed.at(0).train_split[i].tobytes(): fed.at(0).test_split[i].tobytes() for i in range(6)}
    assert all(old[fed.at(1).train_split[i].tobytes()] == fed.at(1).test_split[i].tobytes() for i in range(6))


def test_a_changed_copy_does_not_answer_with_what_the_first_one_was_asked():
    fed = moved(drift=Drift((2,), share=1.0))
    before = fed.at(0)
    turned = fed.relabel(np.array([2, 0, 1]))
    assert turned.at(0).labels.tolist() == turned.labels.tolist() != before.labels.tolist()
    assert fed.with_devices(np.full(len(fed), 2.0), None).at(0).speeds.tolist() == [2.0] * len(fed)
    still = fed.moving(stream=Stream(0.5, 4)).at(0)
    assert still.train_split.sizes.sum() < before.train_split.sizes.sum()


def test_a_stream_starts_with_a_share_and_ends_with_everything():
    x, y = np.zeros((1000, 2), dtype=np.float32), np.arange(1000) % 2
    fed = Federation.from_arrays(x, y, np.array_split(np.arange(1000), 10), test=(x, y)).moving(stream=Stream(0.2, 11))
    sizes = [int(fed.at(r).train_split.sizes.sum()) for r in range(12)]
    assert abs(sizes[0] - 200) < 50  # four standard errors
    assert sizes == sorted(sizes)
    assert sizes[10] == sizes[11] == 1000
    assert abs(sizes[5] - 600) < 62


def test_old_samples_expire():
    fed = moved(stream=Stream(0.0, 5, window=2))
    arrivals = Stream(0.0, 5, window=2).arrivals(len(fed.train), Streams(0))
    for r in range(2, 6):
        here = np.sort(fed.at(r).train_split.rows)
        assert here.tolist() == np.flatnonzero((arrivals <= r) & (arrivals > r - 2)).tolist()


def test_the_server_sees_what_clients_hold_now():
    fed = moved(drift=Drift((2,), share=1.0))
    client_info = fed.client_info(frozenset({"sizes", "counts"}), Streams(0))
    assert (client_info.at(0).counts == fed.at(0).counts).all()
    assert (client_info.at(1).counts != client_info.at(0).counts).any()


@pytest.mark.usefixtures("quick_processes")
@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_moving_data_is_the_same_on_every_engine_and_after_a_resume(method):
    def work():
        return session_of({"method.name": method, "train.clients_per_round": "all"}, moved(**MOVES))

    whole, outcomes = run_rounds(work())
    assert same(whole, run_rounds(work(), cut=2)[0])
    assert same(whole, run_rounds(work(), engine=lambda w: WireEngine(w.plan.local, w.federation))[0])
    engines = []
    workers, _ = run_rounds(
        work(), engine=lambda w: engines.append(LocalEngine(ProcessPool(w.plan.local, w.federation, 2))) or engines[0]
    )
    engines[0].close()
    assert same(whole, workers)
    assert len({tuple(r.samples for r in o[0].reports) for o in outcomes}) > 1


def test_drift_and_stream_by_name_and_resumed(tmp_path):
    asked = {
        "data.clients": 6,
        "data.drift": {"at": [2, 3], "share": 0.5},
        "data.stream": {"start": 0.5, "until": 4},
        "train.rounds": 4,
        "train.clients_per_round": "all",
        **LIGHT,
    }
    whole = train(overrides=asked, out=tmp_path / "whole")

    def watch(event):
        if event.get("round") == 2 and event["event"] == "round":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=asked, out=tmp_path / "cut", watch=watch)
    assert resume(tmp_path / "cut").events(wall=False) == whole.events(wall=False)
    with pytest.raises(RequestError, match=r"data\.drift\.shares is not an option"):
        train(overrides=asked | {"data.drift": {"shares": 1}})


# ---- images --------------------------------------------------------------------------------------------------------


def images(seed=0, size=12):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (60, 3, size, size), dtype=np.uint8), np.arange(60) % 3


def test_pixels_stay_small_until_the_step_and_normalisation_is_by_channel():
    x, y = images()
    fed = Federation.from_arrays(
        x, y, 4, partition=DirichletClass(alpha=1.0, min_size=2), inputs=Inputs(255.0, (0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
    )
    assert fed.train.x.dtype == torch.uint8
    seen = fed.inputs(fed.train.x[:5], torch.float64)
    by_hand = (x[:5] / 255 - np.array([0.5, 0.4, 0.3])[:, None, None]) / np.array([0.2, 0.2, 0.1])[:, None, None]
    np.testing.assert_allclose(seen.numpy(), by_hand, rtol=1e-12)
    assert Federation.from_arrays(x, y, 4, partition=DirichletClass(alpha=1.0, min_size=2)).inputs.scale == 255


def clock(key=1, t=0):
    return Clock(torch.tensor([key + 1_000_003 * t]))


def test_a_cropped_image_is_a_window_of_the_padded_one_and_a_flipped_one_its_mirror():
    x = torch.arange(2 * 1 * 6 * 6, dtype=torch.float64).view(2, 1, 6, 6) + 1
    seen = {(True, True): 0, (True, False): 0, (False, True): 0}
    for t in range(40):
        (out,) = Inputs(crop=2, flip=True).augment(x[:1], clock(t=t))
        wide = torch.nn.functional.pad(x[0], (2, 2, 2, 2))
        windows = [wide[:, i : i + 6, j : j + 6] for i in range(5) for j in range(5)]
        plain = any(torch.equal(out, w) for w in windows)
        mirrored = any(torch.equal(out, w.flip(2)) for w in windows)
        assert plain or mirrored
        seen[plain, mirrored] += 1
    assert seen[True, False] > 5
    assert seen[False, True] > 5


def test_augmentation_draws_from_the_clock_alone():
    x = torch.rand(8, 3, 9, 9)
    state = torch.get_rng_state()
    change = Inputs(crop=3, flip=True)
    again = [change.augment(x, clock(5, 2)) for _ in range(2)]
    assert torch.equal(*again)
    assert not torch.equal(again[0], change.augment(x, clock(5, 3)))
    assert not torch.equal(again[0], change.augment(x, clock(6, 2)))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(x, Inputs().augment(x, clock()))


def test_augmented_training_runs_is_resumable_and_differs(tmp_path):
    x, y = images()
    fed = Federation.from_arrays(x, y, np.array_split(np.arange(60), 4), test=0.2)
    asked = {"model.name": "lenet5", "train.rounds": 2, "train.clients_per_round": "all", **LIGHT}
    plain = train(federation=fed, overrides=asked, out=tmp_path / "plain")
    change = asked | {"train.augment": {"crop": 2, "flip": True}}
    one, two = (train(federation=fed, overrides=change, out=tmp_path / str(i)) for i in range(2))
    assert one.events(wall=False) == two.events(wall=False)
    assert one.curve("loss_train") != plain.curve("loss_train")
    assert replace(fed, speeds=np.ones(4)).fingerprint != fed.fingerprint


# ---- noise ---------------------------------------------------------------------------------------------------------


def test_noise_by_name_keeps_the_true_labels(tmp_path):

    clean = build_federation(Experiment.of())
    noisy = build_federation(Experiment.of(None, **{"data.noise": {"labels": 0.3, "features": 0.5}}))
    wrong = noisy.labels != noisy.true_labels
    assert (noisy.true_labels == clean.labels).all()
    assert [int(wrong[noisy.train_split[i]].sum()) for i in range(20)] == [
        round(0.3 * len(clean.train_split[i])) for i in range(20)
    ]
    assert torch.equal(noisy.test.x, clean.test.x)
    assert not torch.equal(noisy.train.x, clean.train.x)
    run = train(overrides={"data.noise.labels": 0.3, "train.rounds": 1, **LIGHT}, out=tmp_path / "run")
    assert 'kind = "label-noise"' in (run.path / "experiment.toml").read_text()
    with pytest.raises(RequestError, match=r"data\.noise\.label is not an option \(did you mean \"labels\""):
        Experiment.of(None, **{"data.noise": {"label": 0.3}})


def test_a_stream_that_runs_dry_is_an_event_and_not_the_end(tmp_path):
    asked = {"data.clients": 5, "data.stream": {"start": 0.2, "until": 3, "window": 2}, "train.rounds": 6, **LIGHT}
    run = train(overrides=asked, out=tmp_path / "run")
    assert run.summary["rounds"] == 6
    assert [e["round"] for e in run.events() if e["event"] == "no_update"] == [5, 6]
    late = train(
        overrides=asked | {"data.stream": {"start": 0.0, "until": 3}, "method.name": "power-of-choice"},
        out=tmp_path / "late",
    )
    assert [e["round"] for e in late.events() if e["event"] == "no_update"] == [1]


def test_two_noises_of_a_kind_draw_different_numbers_and_the_truth_stays_known():
    noises = [{"kind": "label-noise", "rate": 0.3}] * 2
    noisy = build_federation(Experiment.of(None, **{"data.noise": noises}))
    share = (noisy.labels != noisy.true_labels).mean()
    assert 0.42 < share < 0.52  # 0.3 + 0.3 - 0.09 - what a second flip puts right
    clean = build_federation(Experiment.of())
    assert (noisy.true_labels == clean.labels).all()


def test_mapped_files_are_not_copied(tmp_path):
    x = np.zeros((500, 3, 8, 8), dtype=np.uint8)
    np.save(tmp_path / "x.npy", x)
    for mode in ("r", "c"):
        mapped = np.load(tmp_path / "x.npy", mmap_mode=mode)
        fed = Federation.from_arrays(mapped, np.arange(500) % 5, np.arange(500) % 10, test=(x[:10], np.arange(10) % 5))
        assert fed.train.x.data_ptr() == mapped.ctypes.data
    assert len(fed) == 10


def test_there_is_no_client_before_the_first():
    with pytest.raises(IndexError, match="no client -1 among 6"):
        tiny_federation().client(-1)
