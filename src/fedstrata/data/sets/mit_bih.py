"""Moody and Mark, The Impact of the MIT-BIH Arrhythmia Database, 2001; beats as Kachuee et al., 2018, cut them.

Three forms: Kaggle's `mitbih_train.csv` and `mitbih_test.csv` (187 values and the class; nothing says whose beat it
is); PhysioNet's 48 records (`.hea`, `.dat`, `.atr`), from which beats are cut here, with the record as group; a pack of
such beats.

Cut here: lead MLII (V5 where there is none), 360 to 125 Hz, 187 values round the annotated beat, scaled to [0, 1]. A
beat whose window leaves the record is left out. The test set is the second half of the records as de Chazal et al.,
2004, divide them, so nobody is in both; we depart from them for record 202, which is the person of 201 and stays
beside it, and for the four paced records, which they leave out and without which the class Q is all but empty: two
are on either side. `test = "within"` holds a fifth of each class of every record out instead, always the same, so that
a client that is a record is tested on what it trains on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.rng import Streams
from fedstrata.data.files import Files
from fedstrata.data.formats.tabular import read_numbers
from fedstrata.data.formats.wfdb import read_212, read_annotations, read_header
from fedstrata.data.packs import read_npz
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.published import Published
from fedstrata.data.sets.base import Arrays
from fedstrata.data.sources import Source

WIDTH, FREQUENCY = 187, 125
PACED = (102, 104, 107, 217)
TEST_RECORDS: tuple[int, ...] = (100, 103, 104, 105, 111, 113, 117, 121, 123)
TEST_RECORDS += (200, 210, 212, 213, 214, 217, 219, 221, 222, 228, 231, 232, 233, 234)
HELD_OUT = 0.2  # of every record, with test = "within"
# AAMI classes by WFDB code. N: N L R e j; S: A a J S; V: V E; F: F; Q: / f Q.
N, S, V, F, Q = range(5)
CLASSES = {1: N, 2: N, 3: N, 34: N, 11: N, 8: S, 4: S, 7: S, 9: S, 5: V, 10: V, 6: F, 12: Q, 38: Q, 13: Q}
ANNOTATED = {N: 90631, S: 2781, V: 7236, F: 803, Q: 8043}  # beats in all 48 records
ANNOTATED_UNPACED, LOST = 100_733, 3  # in 44 records; beats a record whose window may leave it


@dataclass(frozen=True)
class MitBih(Published):
    """Heart beats of 187 values, 5 classes (N, S, V, F, Q), about 109,000 samples, record as group."""

    paper: ClassVar[str] = "Moody and Mark, 2001"
    licence: ClassVar[str] = "ODC-By 1.0"
    name: ClassVar[str] = "mit-bih"
    shape: ClassVar[tuple[int, ...]] = (1, WIDTH)
    sources: ClassVar[tuple[Source, ...]] = (
        Source("https://physionet.org/static/published-projects/mitdb/mit-bih-arrhythmia-database-1.0.0.zip"),
    )
    counts: ClassVar[Mapping[Any, int]] = {N: 72471, S: 2223, V: 5788, F: 641, Q: 6431}  # of Kaggle's form
    test_counts: ClassVar[Mapping[Any, int]] = {N: 18118, S: 556, V: 1448, F: 162, Q: 1608}

    paced: bool = True  # false: without the four records of people with a pacemaker
    test: Literal["official", "within"] = "official"  # within: a fifth of every record, not records of its own

    @property
    def label_names(self) -> Mapping[Any, str]:
        """The classes of the AAMI."""
        return {N: "N (normal)", S: "S (supraventricular)", V: "V (ventricular)", F: "F (fusion)", Q: "Q (unknown)"}

    @property
    def key(self) -> str:
        """Beats with and without pacemaker may both be stored, and both splits."""
        return self.name + ("" if self.paced else "-unpaced") + ("" if self.test == "official" else f"-{self.test}")

    def decode(self, files: Files) -> Arrays | None:
        """Read whichever form there is."""
        if (pack := read_npz(files, "mitbih_beats.npz.xz")) is not None:
            x, y = pack["x"].astype(np.float32) / 255, pack["y"].astype(np.int64)
            return self._split(x, y, pack["record"].astype(np.int64))
        files = files.reach("mitbih_train.csv", "???.atr")
        tables = [files.one(f"mitbih_{part}.csv") for part in ("train", "test")]
        if all(tables):
            if not self.paced or self.test != "official":
                asked = f'test = "{self.test}"' if self.paced else "paced = false"
                raise RequestError(f"{files.path} does not say whose beats they are; {asked} needs the records")
            (x, y), (test_x, test_y) = (_read_table(files, name) for name in tables if name)
            return Arrays(x, y, test_x, test_y)
        if not (names := files.find("???.atr")):
            return None
        beats = [_read_beats(files, PurePosixPath(name)) for name in names]
        x, y, records = (np.concatenate(part) for part in zip(*beats, strict=True))
        return self._split(x, y, records)

    def check(self, arrays: Arrays, path: Path) -> bool:
        """Check the counts of the form that was read: only Kaggle's has a published split."""
        if arrays.groups is None:
            return super().check(arrays, path)
        assert arrays.test_groups is not None
        found = np.bincount(np.concatenate([arrays.y, arrays.test_y]), minlength=len(ANNOTATED)).tolist()
        for label, count in ANNOTATED.items():
            if found[label] > count:
                raise RequestError(f"{path}: {found[label]} samples of class {label}, {self.name} has {count}")
        records = 48 if self.paced else 44
        beats = sum(ANNOTATED.values()) if self.paced else ANNOTATED_UNPACED
        seen = len(np.union1d(arrays.groups, arrays.test_groups))
        return seen < records or sum(found) < beats - LOST * records

    def _split(self, x: np.ndarray, y: np.ndarray, records: np.ndarray) -> Arrays:
        kept = np.flatnonzero(self.paced | ~np.isin(records, PACED))
        if self.test == "within":
            train, test = hold_out(kept, records * len(ANNOTATED) + y, HELD_OUT, Streams(0)(self.name))
        else:
            apart = np.isin(records[kept], TEST_RECORDS)
            train, test = kept[~apart], kept[apart]
        return Arrays(x[train, None], y[train], x[test, None], y[test], records[train], records[test])


def _read_table(files: Files, name: str) -> tuple[np.ndarray, np.ndarray]:
    table = read_numbers(files, name, np.float32, ",")
    if table.shape[1] != WIDTH + 1:
        raise RequestError(f"{files.path}: {name} has {table.shape[1]} columns instead of {WIDTH} values and the class")
    return table[:, None, :-1], table[:, -1].astype(np.int64)


def _read_beats(files: Files, path: PurePosixPath) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut the beats of one record."""
    from scipy.signal import resample_poly  # noqa: PLC0415  slow to import, and only this needs it

    parts = {suffix: str(path.with_suffix(suffix)) for suffix in (".hea", ".dat", ".atr")}
    if missing := [part for part in parts.values() if part not in files.names]:
        raise RequestError(f"{files.path} lacks {missing[0]}, which {path.name} needs")
    header = read_header(files.read(parts[".hea"]), parts[".hea"])
    leads = [signal.lead for signal in header.signals]
    lead = next((lead for lead in ("MLII", "V5") if lead in leads), None)
    if lead is None or not path.stem.isdigit() or header.frequency != 360:
        raise RequestError(f"{files.path}: {path.stem} is not a record of the MIT-BIH Arrhythmia Database: {leads}")
    signal = read_212(files.read(parts[".dat"]), header, parts[".dat"])[:, leads.index(lead)]
    times, codes = read_annotations(files.read(parts[".atr"]), parts[".atr"])
    wave = resample_poly(signal.astype(np.float64), 25, 72)
    beats = np.isin(codes, list(CLASSES))
    starts = np.round(times[beats] * (FREQUENCY / 360)).astype(np.int64) - WIDTH // 2
    inside = (starts >= 0) & (starts + WIDTH <= len(wave))
    x = wave[starts[inside, None] + np.arange(WIDTH)]
    low, high = x.min(1, keepdims=True), x.max(1, keepdims=True)
    x = (x - low) / np.where(high > low, high - low, 1.0)
    y = np.array([CLASSES[code] for code in codes[beats][inside].tolist()], dtype=np.int64)
    return x.astype(np.float32), y, np.full(len(y), int(path.stem))
