"""Tensors that never change are written once, lie in the checkpoint's files, and come back from there."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
import torch

from fedstrata import RequestError, resume, train
from fedstrata.core.storage.stored import Stored
from fedstrata.runs.checkpoints import Checkpoints

SMALL = {"train.rounds": 5, "data.clients": 6, "train.clients_per_round": 2, "method.combiner": "fedcda"}


@dataclass
class Shelf:
    """A state that holds some."""

    named: dict[str, Stored] = field(default_factory=dict)


def files(path):
    return {file.name for file in path.glob("*-*.safetensors")}


def test_each_is_written_once_and_goes_when_the_state_drops_it(tmp_path):
    checkpoints, shelf = Checkpoints(tmp_path), Shelf({"a": Stored(torch.arange(3.0))})
    checkpoints.write(1, shelf, {}, {})
    (first,) = files(tmp_path)
    before = (tmp_path / first).stat().st_mtime_ns
    shelf.named["b"] = Stored(torch.arange(3.0))  # equal, and yet another one
    checkpoints.write(2, shelf, {}, {})
    assert (tmp_path / first).stat().st_mtime_ns == before
    assert len(files(tmp_path)) == 2
    del shelf.named["a"]
    checkpoints.write(3, shelf, {}, {})
    assert len(files(tmp_path)) == 1
    assert first not in files(tmp_path)
    assert shelf.named["b"].read().tolist() == [0.0, 1.0, 2.0]


def test_memory_is_let_go_of_once_a_checkpoint_is_safe_and_not_before(tmp_path, monkeypatch):
    shelf, one = Shelf(), Stored(torch.ones(2))
    shelf.named["a"] = one
    checkpoints = Checkpoints(tmp_path)
    snapshot = checkpoints.take(1, shelf, {}, {})
    assert one._held is not None
    checkpoints.put(snapshot)
    assert one._held is None
    assert one.read().tolist() == [1.0, 1.0]


def test_they_come_back_and_are_read_when_somebody_asks(tmp_path):
    Checkpoints(tmp_path).write(1, Shelf({"a": Stored(torch.arange(4))}), {}, {})
    checkpoints = Checkpoints(tmp_path)
    shelf, _ = checkpoints.read(checkpoints.manifest(), like=Shelf())
    assert shelf.named["a"]._held is None
    assert shelf.named["a"].read().tolist() == [0, 1, 2, 3]
    checkpoints.write(2, shelf, {}, {})
    assert shelf.named["a"].read().tolist() == [0, 1, 2, 3]


def test_they_are_copied_into_another_folder_of_checkpoints(tmp_path):
    shelf = Shelf({"a": Stored(torch.ones(1))})
    Checkpoints(tmp_path / "one").write(1, shelf, {}, {})
    Checkpoints(tmp_path / "other").write(1, shelf, {}, {})
    assert len(files(tmp_path / "other")) == 1


def test_a_damaged_file_is_found_out(tmp_path):
    shelf = Shelf({"a": Stored(torch.ones(5))})
    Checkpoints(tmp_path).write(1, shelf, {}, {})
    (name,) = files(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[-1] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(RequestError, match="is damaged"):
        shelf.named["a"].read()


def test_a_run_that_was_stopped_goes_on_with_them(tmp_path):
    whole = train(overrides=SMALL, out=tmp_path / "whole")

    def watch(event):
        if event["event"] == "round" and event["round"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(overrides=SMALL, out=tmp_path / "cut", watch=watch)
    cut = resume(tmp_path / "cut")
    assert {k: v.tolist() for k, v in cut.model().items()} == {k: v.tolist() for k, v in whole.model().items()}
    assert files(cut.path / "checkpoint")
