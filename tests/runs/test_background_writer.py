"""Checkpoints that are written behind a run's back hold what was true between two rounds, and are safe one by one."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from safetensors.torch import load

from fedstrata import RequestError, resume, train
from fedstrata.core.tensor_file import tensor_pieces
from fedstrata.runs import checkpoints as of_checkpoints
from fedstrata.runs.checkpoints import BackgroundWriter, Checkpoints

SMALL = {"train.rounds": 4, "data.clients": 6, "train.clients_per_round": 3, "method.name": "scaffold"}


@dataclass
class Memory:
    """A state with an array that changes in place."""

    values: torch.Tensor
    counts: np.ndarray


@pytest.fixture
def held(monkeypatch):
    """Hold the writer back until told."""
    go, put = threading.Event(), Checkpoints.put

    def waiting(self, snapshot):
        assert go.wait(30)
        put(self, snapshot)

    monkeypatch.setattr(Checkpoints, "put", waiting)
    return go


def test_what_changes_later_is_not_in_the_checkpoint(held, tmp_path):
    state = Memory(torch.arange(3.0), np.arange(4))
    checkpoints = Checkpoints(tmp_path / "checkpoint")
    writer = BackgroundWriter(checkpoints)
    writer.write(1, state, {2: ((0, 0), {"part/x": torch.ones(2)})}, {})
    state.values += 10
    state.counts += 10
    assert checkpoints.manifest() is None  # it is not there yet
    held.set()
    writer.close()
    saved, client_states = checkpoints.read(checkpoints.manifest(), like=Memory(torch.zeros(3), np.zeros(4, dtype=int)))
    assert saved.values.tolist() == [0.0, 1.0, 2.0]
    assert saved.counts.tolist() == [0, 1, 2, 3]
    assert client_states[2][1]["part/x"].tolist() == [1.0, 1.0]


def test_a_run_goes_on_while_a_checkpoint_is_written_but_is_never_two_ahead(tmp_path, monkeypatch):
    put, seen, rounds = Checkpoints.put, [], []

    def watched(self, snapshot):
        put(self, snapshot)
        seen.append((snapshot.round, max(rounds, default=0)))

    monkeypatch.setattr(Checkpoints, "put", watched)
    train(
        overrides=SMALL,
        out=tmp_path / "run",
        watch=lambda event: rounds.append(event["round"]) if event["event"] == "round" else None,
    )
    assert [written for written, _ in seen] == [0, 1, 2, 3, 4]
    assert all(done <= written + 1 for written, done in seen)


def test_what_goes_wrong_is_raised_by_the_next_call(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(of_checkpoints, "write_atomically", full)
    writer = BackgroundWriter(Checkpoints(tmp_path / "checkpoint"))
    writer.write(0, Memory(torch.zeros(1), np.zeros(1)), {}, {})
    with pytest.raises(RequestError, match="the disk is full"):
        writer.write(1, Memory(torch.zeros(1), np.zeros(1)), {}, {})
    writer.close()


def test_a_run_that_is_stopped_keeps_the_checkpoint_under_way(tmp_path):
    whole = train(overrides=SMALL, out=tmp_path / "whole")

    def watch(event):
        if event["event"] == "round" and event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=SMALL, out=tmp_path / "cut", watch=watch)
    assert Checkpoints(tmp_path / "cut" / "checkpoint").manifest()["round"] == 2
    cut = resume(tmp_path / "cut")
    assert {k: v.tolist() for k, v in cut.model().items()} == {k: v.tolist() for k, v in whole.model().items()}


def test_tensors_are_written_as_safetensors_reads_them():
    tensors = {
        "a": torch.arange(6.0, dtype=torch.float64).reshape(2, 3),
        "b": torch.tensor(7, dtype=torch.int64),
        "c": torch.zeros(0, 4),
        "d": torch.tensor([True, False, True]),
        "e": torch.arange(5, dtype=torch.float32).to(torch.bfloat16),
        "f": torch.arange(12.0).reshape(3, 4).T,
    }
    read = load(b"".join(bytes(piece) for piece in tensor_pieces(tensors)))
    assert set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        assert torch.equal(read[name], tensor)
