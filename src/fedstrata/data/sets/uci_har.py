"""Anguita et al., A Public Domain Dataset for Human Activity Recognition Using Smartphones, 2013.

The folder "UCI HAR Dataset" of UCI's zip: 561 features computed from each window of 2.56 s, or the nine signals
themselves; or a pack, which holds six of the nine. Subjects of the test set are not in the training set.

`test = "within"` holds a fifth of each activity of every subject out instead, always the same, so that a client that
is a subject is tested on what it trains on. Windows overlap by half: such a test is easier than the published one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.files import Files
from fedstrata.data.formats.tabular import read_numbers
from fedstrata.data.packs import read_npz
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Source
from fedstrata.data.statistics import standardise

SIGNALS = [f"{kind}_{axis}" for kind in ("body_gyro", "total_acc", "body_acc") for axis in "xyz"]  # the pack: first six
TEST_SUBJECTS = (2, 4, 9, 10, 12, 13, 18, 20, 24)
ACTIVITIES = ("WALKING", "WALKING_UPSTAIRS", "WALKING_DOWNSTAIRS", "SITTING", "STANDING", "LAYING")
HELD_OUT = 0.2  # of every subject, with test = "within"


@dataclass(frozen=True)
class UciHar(Published):
    """Six activities from a phone's motion sensors, 7,352 and 2,947 windows, 30 subjects as groups."""

    paper: ClassVar[str] = "Anguita et al., 2013"
    licence: ClassVar[str] = "CC BY 4.0"
    name: ClassVar[str] = "uci-har"
    sources: ClassVar[tuple[Source, ...]] = (
        Source("https://archive.ics.uci.edu/static/public/240/human+activity+recognition+using+smartphones.zip"),
    )
    counts: ClassVar[Mapping[Any, int]] = dict(enumerate((1226, 1073, 986, 1286, 1374, 1407)))
    test_counts: ClassVar[Mapping[Any, int]] = dict(enumerate((496, 471, 420, 491, 532, 537)))

    form: Literal["features", "signals"] = "features"  # 561 features a window, or signals of 9 channels x 128
    test: Literal["official", "within"] = "official"  # within: a fifth of every subject, not subjects of its own

    @property
    def label_names(self) -> Mapping[Any, str]:
        """As in `activity_labels.txt`, which counts from 1."""
        return dict(enumerate(ACTIVITIES))

    @property
    def key(self) -> str:
        """Both forms and both splits may be stored."""
        form = "" if self.form == "features" else f"-{self.form}"
        return self.name + form + ("" if self.test == "official" else f"-{self.test}")

    def expected(self) -> tuple[Mapping[Any, int], Mapping[Any, int]]:
        """Return the published counts; of both sets together where they are split anew."""
        if self.test == "official":
            return self.counts, self.test_counts
        return {label: count + self.test_counts[label] for label, count in self.counts.items()}, {}

    def outline(self) -> tuple[tuple[int, ...], int, int]:
        """Return the shape of a window, which follows the form, and how many there are."""
        return (561,) if self.form == "features" else (len(SIGNALS), 128), *super().outline()[1:]

    def decode(self, files: Files) -> Arrays | None:
        """Read the folder, or the pack. Features are scaled to [-1, 1] as published, signals are standardised."""
        pack = read_npz(files, "uci_har_6ch_int16.npz.xz")
        if pack is not None:
            if self.form == "features":
                raise RequestError(f"{files.path} holds signals, not the 561 features; fetch with --set form=signals")
            test = np.isin(pack["subject"], TEST_SUBJECTS)
            x = pack["x"] * pack["scale"].astype(np.float32)
            y, subjects = pack["y"].astype(np.int64), pack["subject"].astype(np.int64)
            parts = [(x[rows], y[rows], subjects[rows]) for rows in (~test, test)]
        else:
            files = files.reach("y_train.txt")
            if files.one("y_train.txt") is None:
                return None
            parts = [self._read(files, part) for part in ("train", "test")]
        if self.test == "within":
            x, y, subjects = (np.concatenate(pair) for pair in zip(*parts, strict=True))
            cells = subjects * len(self.counts) + y
            split = hold_out(np.arange(len(y)), cells, HELD_OUT, Streams(0)(self.name))
            parts = [(x[rows], y[rows], subjects[rows]) for rows in split]
        (x, y, subjects), (test_x, test_y, test_subjects) = parts
        done = None
        if self.form == "signals":
            x, test_x, done = standardise(x, test_x, axes=(0, 2))
        return Arrays(x, y, test_x, test_y, subjects, test_subjects, preprocessing=done)

    def check(self, arrays: Arrays, path: Path) -> bool:
        """Check the shape too; the six channels of the pack are only a part."""
        shape = tuple(arrays.x.shape[1:])
        known = [(561,)] if self.form == "features" else [(9, 128), (6, 128)]
        if shape not in known:
            raise RequestError(f"{path}: samples have shape {shape}, {self.name} has {known[0]}")
        if self.test == "within":
            arrays = replace(arrays, y=np.concatenate([arrays.y, arrays.test_y]))
        return super().check(arrays, path) or shape == (6, 128)

    def _read(self, files: Files, part: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        y, subjects = (_table(files, f"{part}/{kind}_{part}.txt", np.int64)[:, 0] for kind in ("y", "subject"))
        if self.form == "features":
            x = _table(files, f"{part}/X_{part}.txt", np.float32)
        else:
            named = [f"{part}/Inertial Signals/{signal}_{part}.txt" for signal in SIGNALS]
            signals = [_table(files, name, np.float32) for name in named]
            if len(shapes := {signal.shape for signal in signals}) > 1:
                raise RequestError(f"{files.path}: the signals of {part} have different shapes: {sorted(shapes)}")
            x = np.stack(signals, axis=1)
        if not len(x) == len(y) == len(subjects):
            raise RequestError(f"{files.path}: {len(x)} windows, {len(y)} labels, {len(subjects)} subjects in {part}")
        return x, y - 1, subjects


def _table(files: Files, pattern: str, kind: type) -> np.ndarray:
    name = files.one(pattern)
    if name is None:
        raise RequestError(f"{files.path} lacks {pattern}")
    return read_numbers(files, name, kind)
