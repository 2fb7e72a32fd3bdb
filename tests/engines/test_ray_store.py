"""Rounds that carry more than the object store holds: they go to the disk, and where that is full, an error says so."""

from __future__ import annotations

import pytest

pytest.importorskip("ray")

import fedstrata

pytestmark = [
    pytest.mark.extended,
    pytest.mark.xdist_group("ray"),
    pytest.mark.filterwarnings("ignore::ResourceWarning:ray"),
]
ASKED = {
    "method.name": "scaffold",  # state of three clients, 17 MB each, beside two sums of 33 MB
    "model.hidden": (2000, 2000),
    "data.clients": 20,
    "train.rounds": 2,
    "train.clients_per_round": 3,
    "train.batch_size": 64,
    "train.epochs": 1,
}
ON_A_CLUSTER = {"engine.kind": "ray", "engine.object_store": 80}  # about the least that Ray starts with


def test_a_full_object_store_spills(tmp_path):
    here = fedstrata.train(overrides=ASKED, out=tmp_path / "here").model()
    there = fedstrata.train(overrides=ASKED | ON_A_CLUSTER, out=tmp_path / "there").model()
    for name, tensor in here.items():
        assert (tensor - there[name]).abs().max() < 1e-5


def test_a_full_disk_behind_it_is_an_error_that_says_what_to_enlarge(tmp_path, monkeypatch):
    monkeypatch.setenv("RAY_local_fs_capacity_threshold", "0")  # Ray takes the disk for full
    with pytest.raises(fedstrata.FedstrataError, match=r"engine\.object_store") as error:
        fedstrata.train(overrides=ASKED | ON_A_CLUSTER, out=tmp_path / "full")
    assert "\n" not in str(error.value)
    assert not fedstrata.Run(tmp_path / "full").summary
