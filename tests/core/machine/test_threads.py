"""Threads are the user's: what torch was told, what a container is given and what the engine is asked for all hold."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedstrata import Federation, Optimizer, train
from fedstrata.core.machine import threads as of_threads
from fedstrata.core.machine.threads import container_cores, cores, keeping_to, one_thread, spare, threads

V1, V2 = ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"), ("cpu.max",)


def given(folder, quotas, own="0::/"):
    """Return what is read where groups have such files, by name below the folder."""
    for name, content in quotas.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    (folder / "own").write_text(own)
    return container_cores(str(folder), str(folder / "own"))


@pytest.mark.parametrize(
    ("names", "content", "expected"),
    [
        (V2, ("200000 100000\n",), 2),
        (V2, ("150000 100000\n",), 2),
        (V2, ("50000 100000\n",), 1),
        (V2, ("max 100000\n",), None),
        (V1, ("300000\n", "100000\n"), 3),
        (V1, ("-1\n", "100000\n"), None),
        (V2, ("nonsense\n",), None),
    ],
)
def test_a_container_says_how_many_cores_it_is_given(names, content, expected, tmp_path):
    assert given(tmp_path, dict(zip(names, content, strict=True))) == expected


def test_the_least_of_a_service_and_what_is_around_it_counts(tmp_path):
    quotas = {"system.slice/cpu.max": "500000 100000", "system.slice/a.service/cpu.max": "max 100000"}
    assert given(tmp_path, quotas, "1:name=systemd:/\n0::/system.slice/a.service\n") == 5
    tighter = quotas | {"system.slice/a.service/cpu.max": "200000 100000"}
    assert given(tmp_path / "tighter", tighter, "0::/system.slice/a.service\n") == 2
    assert given(tmp_path / "other", tighter, "0::/user.slice\n") is None
    first = {
        f"cpu/docker/1/{name}": text for name, text in (("cpu.cfs_quota_us", "300000"), ("cpu.cfs_period_us", "100000"))
    }
    assert given(tmp_path / "first", first, "3:cpuacct,cpu:/docker/1\n0::/\n") == 3


def test_where_nothing_is_said_there_is_no_limit(tmp_path):
    assert container_cores(str(tmp_path / "none"), str(tmp_path / "none")) is None


def test_a_container_bounds_the_cores(monkeypatch):
    monkeypatch.setattr(of_threads, "container_cores", lambda: 1)
    assert cores() == 1


def test_torch_is_never_given_more_threads_than_the_user_gave_it(monkeypatch):
    monkeypatch.setattr(of_threads, "cores", lambda: 8)
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with one_thread():  # as in every run
            assert spare() == 3
            with threads(spare()):
                assert torch.get_num_threads() == 3
            with keeping_to(2), keeping_to(5):
                assert spare() == 2
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_the_environment_is_respected():
    code = "from fedstrata.core.machine.threads import one_thread, spare\nwith one_thread(): print(spare())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "1"


SEEN: list[int] = []


@dataclass(frozen=True)
class Counts(Optimizer):
    """Notes how many threads its step has."""

    def step(self, own, w, g, rate):
        SEEN.append(torch.get_num_threads())
        w.sub_(g.mul_(rate))


def images():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, 1, 28, 28)).astype(np.float32), np.arange(48) % 3
    return Federation.from_arrays(x, y, np.array_split(np.arange(48), 3), test=0.2)


@pytest.mark.parametrize(
    ("method", "workers", "expected"),
    [("stratify-batch", "auto", 2), ("stratify-batch", 1, 1), ("stratify-single", "auto", 1)],
)
def test_large_batches_share_the_cores_and_single_samples_do_not(method, workers, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(of_threads, "cores", lambda: 2)
    SEEN.clear()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    asked = {"train.rounds": 1, "train.batch_size": 16, "model.name": "cnn-mcmahan", "engine.workers": workers}
    try:
        train(method=method, overrides=asked | {"train.optimizer": Counts()}, federation=images(), out=tmp_path / "r")
    finally:
        torch.set_num_threads(before)
    assert set(SEEN) == {expected}


class Watched(torch.nn.Module):
    """Notes how many threads it is evaluated with."""

    def __init__(self, width):
        super().__init__()
        self.fc, self.head = torch.nn.Linear(784, width), torch.nn.Linear(width, 3)

    def forward(self, x):
        if not self.training:
            SEEN.append(torch.get_num_threads())
        return self.head(self.fc(x.flatten(1)))


@pytest.mark.parametrize(("width", "expected"), [(4, 1), (2000, 2)])
def test_a_tiny_model_is_evaluated_with_one_thread(width, expected, tmp_path, monkeypatch):
    monkeypatch.setattr(of_threads, "cores", lambda: 2)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    asked = {"train.rounds": 1, "train.clients_per_round": 1, "engine.vmap": "never"}

    def watch(event):
        if event["event"] == "engine":  # what looked at the model before has nothing to do with it
            SEEN.clear()

    try:
        train(overrides=asked, federation=images(), model=Watched(width), out=tmp_path / "r", watch=watch)
    finally:
        torch.set_num_threads(before)
    assert SEEN[-1] == expected
