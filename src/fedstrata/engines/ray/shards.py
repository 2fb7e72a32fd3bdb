"""Samples on their way to the nodes: each gets those of its own clients, once.

Workers of a node map the same piece of shared memory. Where nodes share a folder, samples are written there once and
mapped by path; nothing of them goes through the object store. Where data move between clients, everybody gets all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.core.index import Split
from fedstrata.data.drift import Moves
from fedstrata.data.federation import Federation
from fedstrata.data.reading import Label, Samples
from fedstrata.engines.ray.packing import map_array


@dataclass(frozen=True)
class Outline:
    """What every worker knows of a federation: all but the samples."""

    classes: tuple[Label, ...]
    speeds: np.ndarray | None
    moves: Moves | None
    test_split: Split
    largest: int  # samples of the largest client, wherever it is: the same buffers at every worker

    @classmethod
    def of(cls, federation: Federation) -> Outline:
        """Outline a federation."""
        largest = int(federation.train_split.sizes.max())
        tests = Split.nothing(len(federation)) if federation.moves is None else federation.test_split
        return cls(federation.classes, federation.speeds, federation.moves, tests, largest)

    def fill(self, shard: SampleShard) -> Federation:
        """Return the federation as a worker sees it: clients whose samples are elsewhere hold nothing."""
        x, y = shard.read()
        nothing = Samples(x[:0], y[:0])
        split = Split(shard.rows, shard.starts)
        samples = Samples(x, y)
        return Federation(samples, nothing, split, self.test_split, self.classes, speeds=self.speeds, moves=self.moves)


@dataclass(frozen=True)
class SampleShard:
    """Samples of some clients: arrays, or a folder that holds those of all."""

    arrays: Mapping[str, np.ndarray]
    folder: str
    rows: np.ndarray
    starts: np.ndarray

    def read(self) -> Any:
        """Return features and labels; raises FileNotFoundError where the folder is not seen."""
        if not self.folder:
            return map_array(self.arrays["x"]), map_array(self.arrays["y"])
        x = np.load(Path(self.folder) / "x.npy", mmap_mode="r")
        return map_array(x), map_array(np.load(Path(self.folder) / "y.npy"))

    @property
    def nbytes(self) -> int:
        """What goes through the object store."""
        return sum(array.nbytes for array in (*self.arrays.values(), self.rows, self.starts))


def cut_shard(federation: Federation, chosen: np.ndarray, folder: str = "") -> SampleShard:
    """Return the samples of the clients that a mask chooses; with a folder, only where they lie."""
    split, train = federation.train_split, federation.train
    if federation.moves is not None:
        chosen = np.ones(len(split), dtype=bool)
    sizes = np.where(chosen, split.sizes, 0)
    rows = split.rows[np.repeat(chosen, split.sizes)]
    starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    if folder:
        return SampleShard({}, folder, rows, starts)
    if chosen.all():
        return SampleShard({"x": train.x.numpy(), "y": train.y.numpy()}, "", rows, starts)
    own = np.unique(rows)
    arrays = {"x": train.x.numpy()[own], "y": train.y.numpy()[own]}
    return SampleShard(arrays, "", np.searchsorted(own, rows), starts)


def write_samples(federation: Federation, shared: str) -> str:
    """Write samples to a folder that nodes share, unless they are there; return where they lie."""
    place = Path(shared) / f"fedstrata-{federation.fingerprint[:16]}"
    if not (place / "y.npy").exists():
        place.mkdir(parents=True, exist_ok=True)
        for name, tensor in (("x", federation.train.x), ("y", federation.train.y)):  # labels last: they say it is whole
            aside = place / f"{name}-{os.getpid()}.part"
            with aside.open("wb") as file:
                np.save(file, tensor.numpy())
            aside.replace(place / f"{name}.npy")
    return str(place.resolve())
