"""Inputs as people have them, for a model that is trained: files, folders of images, data frames, arrays.

Training reads data to learn what they are like (`sets/own.py`); here that is known, and inputs must fit it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.errors import RequestError
from fedstrata.data.files import DAMAGE, Files
from fedstrata.data.fitting import SampleForm
from fedstrata.data.formats.arrays import standard_name
from fedstrata.data.formats.images import SUFFIXES, Picture, pictures, read_images, size_of
from fedstrata.data.formats.tabular import in_lines, open_parquet
from fedstrata.data.items import is_data_set, read_dataset
from fedstrata.data.preprocessing import Place, Preprocessing, as_words, at_row
from fedstrata.data.reading import Label, read_features
from fedstrata.data.unpacking import check_npz, most_bytes

KINDS = ".csv, .tsv, .parquet, .npz, .npy, an image, or a folder of images"


@dataclass(frozen=True)
class RawInputs:
    """Samples as a model takes them, the name of each where it has one, its label where it is known, and remarks."""

    x: Tensor
    names: Sequence[str]
    labels: Sequence[Any] | None = None
    notes: Sequence[str] = ()
    filled: Sequence[str] = ()  # those of columns that hold nothing

    def __len__(self) -> int:
        return len(self.x)


def read_inputs(raw: Any, preprocessing: Preprocessing, form: SampleForm, label: str | None = None) -> RawInputs:
    """Read whatever holds samples of a form; `label` names the column of a table that holds their labels."""
    file = isinstance(raw, str | PathLike)
    found = _from_file(Path(raw), form, label) if file else _Found(raw)
    if preprocessing.columns and (isinstance(raw, Mapping) or hasattr(raw, "columns")):
        found = _with_labels(raw, at_row, label)
    if not preprocessing.columns and is_data_set(raw):
        x, y = read_dataset(raw)
        found = _Found(x, labels=y.tolist())
    if _lists_images(raw):
        found = _from_pictures([Picture(Files(Path(one).parent), Path(one).name) for one in raw], form, "the list")
    try:
        x = _as_trained(found, preprocessing, form)
    except RequestError as error:
        raise RequestError(f"{raw}: {error}" if file else str(error)) from None
    names = [str(row) for row in range(len(x))] if found.names is None else found.names
    filled = _filled_wholly(found.samples, preprocessing)
    return RawInputs(x, names, found.labels, [*found.notes, *filled], filled)


def class_indices(labels: Sequence[Any], classes: Sequence[Label], names: Sequence[str] = ()) -> np.ndarray:
    """Return the class index of every label, or of what it is called; "3" and 3.0 are the class 3."""
    index = {**{name: i for i, name in enumerate(names)}, **{str(label): i for i, label in enumerate(classes)}}
    found = [index.get(text := str(label).strip(), index.get(_without_point(text))) for label in labels]
    if strange := sorted({str(label) for label, at in zip(labels, found, strict=True) if at is None}):
        known = ", ".join(map(str, classes[:20]))
        raise RequestError(f'"{strange[0]}" is no class of the model; it knows {known}')
    return np.array(found, dtype=np.int64)


def _without_point(text: str) -> str:
    """Return 3 for 3.0: so do tables write whole numbers beside gaps."""
    try:
        return str(int(float(text))) if float(text).is_integer() else text
    except (ValueError, OverflowError):
        return text


@dataclass(frozen=True)
class _Found:
    """Samples as they were found, their names and labels, where a row stands, and what was done to them."""

    samples: Any
    names: Sequence[str] | None = None
    labels: Sequence[Any] | None = None
    place: Place = at_row
    notes: Sequence[str] = ()


def _as_trained(found: _Found, preprocessing: Preprocessing, form: SampleForm) -> Tensor:
    """Return samples in the shape and the numbers that the model was trained on; refuse those that do not fit."""
    samples, labels = found.samples, found.labels
    if preprocessing.columns:
        x = torch.from_numpy(preprocessing.encode(samples, found.place))
    elif isinstance(samples, Mapping) or hasattr(samples, "columns"):
        raise RequestError(f"the model was trained on arrays of shape {form.shape}, not on a table with names")
    else:
        x = form.fit(read_features(samples, alone=True))
    if not len(x):
        raise RequestError("there are no samples")
    bad = (~x.flatten(1).isfinite().all(1)).nonzero().flatten().tolist() if x.is_floating_point() else []
    if bad:
        raise RequestError(f"{len(bad)} samples hold missing or infinite values, the first at {found.place(bad[0])}")
    if labels is not None and len(labels) != len(x):
        raise RequestError(f"{len(x)} samples but {len(labels)} labels")
    return x


def _filled_wholly(samples: Any, preprocessing: Preprocessing) -> list[str]:
    """Name the columns that are empty in all rows: what stands in for their values says nothing of any of them."""
    if not isinstance(samples, Mapping) and not hasattr(samples, "columns"):
        return []
    empty = [column for column in preprocessing.columns if not any(as_words(samples[column.name]))]
    return [
        f"column {column.name} is empty in all rows; "
        + ("all of its features are 0" if column.fill is None else f"{column.fill} stands in for it")
        for column in empty
    ]


def _from_file(path: Path, form: SampleForm, label: str | None) -> _Found:
    path = path.expanduser()
    if not path.exists():
        raise RequestError(f"{path} does not exist")
    kind = path.suffix.lower()
    try:
        if path.is_dir():
            return _from_pictures(pictures(Files(path)), form, path)
        if kind in SUFFIXES:
            return _from_pictures([Picture(Files(path.parent), path.name)], form, path)
        if kind in (".csv", ".tsv", ".txt"):
            return _with_labels(*_read_columns(path), label)
        if kind in (".parquet", ".pq"):
            return _with_labels(_read_parquet(path), at_row, label)
        if kind in (".npz", ".npy"):
            return _read_arrays(path)
    except (ValueError, TypeError, AttributeError, MemoryError, OverflowError, csv.Error, *DAMAGE) as error:
        raise RequestError(f"{path} cannot be read: {error}") from None
    raise RequestError(f"{path} is not of a known kind; allowed: {KINDS}")


def _with_labels(columns: Any, place: Place, label: str | None) -> _Found:
    return _Found(columns, labels=columns.get("label" if label is None else label), place=place)


def _read_columns(path: Path) -> tuple[dict[str, list[str]], Place]:
    text = path.read_text(encoding="utf-8-sig")
    first = text.split("\n", 1)[0]
    mark = max("\t;,", key=first.count)
    header, *rows = [row for row in csv.reader(io.StringIO(text), delimiter=mark) if row] or [[]]
    if not rows:
        raise ValueError("it has no rows under the line that names the columns")
    place = in_lines(text, mark)
    if odd := [at for at, row in enumerate(rows) if len(row) != len(header)]:
        raise ValueError(f"{place(odd[0])} has {len(rows[odd[0]])} fields instead of {len(header)}, as the first line")
    return {name.strip(): [row[i] for row in rows] for i, name in enumerate(header)}, place


def _read_parquet(path: Path) -> dict[str, Any]:
    table = open_parquet(path)
    return {name: np.asarray(table.column(name).to_numpy()) for name in table.column_names}


def _read_arrays(path: Path) -> _Found:
    """Read samples; of a file with a test set, the test set."""
    check_npz(path, path, most_bytes(path.stat().st_size))
    held = np.load(path, allow_pickle=False)
    if isinstance(held, np.ndarray):
        return _Found(held)
    with held:
        known = {standard_name(key): key for key in held.files}
        part = "test_" if "test_x" in known else ""
        if f"{part}x" not in known:
            raise ValueError(f"it has no array x; it has: {', '.join(held.files)}")
        return _Found(held[known[f"{part}x"]], labels=held[known[f"{part}y"]] if f"{part}y" in known else None)


def _lists_images(raw: Any) -> bool:
    return isinstance(raw, list | tuple) and bool(raw) and all(isinstance(one, str | PathLike) for one in raw)


def _from_pictures(found: Sequence[Picture], form: SampleForm, place: Any) -> _Found:
    """Read images in the channels and the size that the model takes; those of other sizes are scaled to it."""
    if not form.is_image:
        raise RequestError(f"{place}: the model takes samples of shape {form.shape}, not images")
    if not found:
        raise RequestError(f"{place} holds no images")
    channels, height, width = form.shape
    notes, sizes = [], [size_of(picture) for picture in found]
    if others := [at for at, size in enumerate(sizes) if size != (width, height)]:
        first, (own_width, own_height) = found[others[0]].name, sizes[others[0]]
        notes.append(
            f"{place}: {len(others)} of {len(found)} images were scaled to {width} x {height} pixels, which the model "
            f"takes; the first, {first}, has {own_width} x {own_height}"
        )
    (x,) = read_images(found, size=(width, height), channels=channels)
    folders, names = [picture.folder() for picture in found], [picture.name for picture in found]
    return _Found(form.fit_pixels(x), names, folders if all(folders) else None, notes=notes)
