"""The user's own samples: arrays in an `.npz`, a table (CSV, Parquet), or a folder of images.

    samples.npz    x, y; optionally client (or groups), test_x, test_y, test_client
    table.csv      columns of numbers, one of labels, optionally one that names the client; .tsv and .parquet too
    images/        CLASS/image.png or CLIENT/CLASS/image.png; both may stand under train/ and test/

The client of a sample is its group: the partition `natural` gives every client its own. What `fedstrata data import`
has stored is loaded by its name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.options import BelowOne, Count, LocalPath
from fedstrata.core.rng import Streams
from fedstrata.data import store
from fedstrata.data.files import DAMAGE
from fedstrata.data.formats.image_folder import list_folder, read_folder
from fedstrata.data.formats.images import Picture
from fedstrata.data.formats.tabular import MISSING, read_csv, read_parquet
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.reading import read_labels
from fedstrata.data.scaling import brightness, standardise
from fedstrata.data.sets.base import Arrays, DataSet

TEST = 0.2
KEY = "own-"  # before the name, in the data folder: no import hides a data set of that name


@dataclass(frozen=True)
class FilePart:
    """Samples as they were found, not yet looked at; images of a folder not even read."""

    x: np.ndarray | list[Picture]
    y: np.ndarray
    client: np.ndarray | None = None

    def at(self, rows: np.ndarray) -> FilePart:
        """Return some of the samples."""
        x = [self.x[row] for row in rows.tolist()] if isinstance(self.x, list) else self.x[rows]
        return FilePart(x, self.y[rows], None if self.client is None else self.client[rows])


@dataclass(frozen=True)
class Own(DataSet):
    """Your own samples: .npz, CSV, Parquet, a folder of images, or what `fedstrata data import` has stored."""

    licence: ClassVar[str] = "yours"

    path: LocalPath = ""  # of the file or folder, or the name that was given to `fedstrata data import`
    label: str | None = None  # column of a table that holds the class; "label" if not given
    client: str | None = None  # column of a table that names the client
    size: Count | None = None  # pixels to scale images to; without it all must have the same size
    test: BelowOne | None = None  # share to hold out, the same samples for every seed; 0.2 if there is no test set

    def load(self) -> Arrays:
        """Load what was imported under this name, or read the file or folder."""
        if not self.path:
            raise RequestError('data.path is required for data.name = "own": a file, a folder, or an imported name')
        if re.fullmatch(r"[\w.-]+", self.path) and (arrays := store.get(KEY + self.path)) is not None:
            for option in ("label", "client", "size", "test"):
                if getattr(self, option) is not None:
                    raise RequestError(
                        f'data.{option}: data.path = "{self.path}" was imported, which settled it; import it again, '
                        f"or write ./{self.path} for a file of that name"
                    )
            return arrays
        return self.read()

    def read(self) -> Arrays:
        """Read the file or folder, check it, and hold a test set out where there is none."""
        path = Path(self.path).expanduser()
        if not path.exists():
            raise self._nowhere()
        table = path.is_file() and path.suffix != ".npz"
        if not table and (self.label or self.client):
            raise RequestError(f"data.label and data.client name columns of a table; {path} is not one")
        if self.size is not None and not path.is_dir():
            raise RequestError(f"data.size = {self.size} scales the images of a folder; {path} is not one")
        try:
            train, test = self._split(path, table)
            y, test_y = train.y, test.y
            if len(np.unique(y)) < 2:
                said = y[0] if len(y) else "missing"
                raise RequestError(f"{path}: all labels are {said}; at least 2 classes are needed")
            if isinstance(train.x, list) and isinstance(test.x, list):
                x, test_x = read_folder(train.x, test.x, size=self.size)
            else:
                x, test_x = np.asarray(train.x), _samples(np.asarray(test.x), path, exact=table)
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error}") from None
        if x.shape[1:] != test_x.shape[1:]:
            raise RequestError(f"{path}: training samples have shape {x.shape[1:]}, test samples {test_x.shape[1:]}")
        if table:
            x, test_x = standardise(x, test_x)
        normal: Any = brightness(x) if x.dtype == np.uint8 else (None, None)
        return Arrays(x, y, test_x, test_y, train.client, test.client, *normal)

    def _split(self, path: Path, table: bool) -> tuple[FilePart, FilePart]:
        """Return training and test samples; labels and clients are checked."""
        train, test = self._parts(path)
        if isinstance(train.x, np.ndarray):  # before rows are chosen, so that a bad one is found where it stands
            train = replace(train, x=_samples(train.x, path, exact=table))
        train = replace(train, y=_labels(train.y, path), client=_clients(train.client, path))
        if test is None:
            share = TEST if self.test is None else self.test
            rows, held = hold_out(np.arange(len(train.y)), train.y, share, Streams(0)("own"))
            train, test = train.at(rows), train.at(held)
        elif self.test is not None:
            raise RequestError(f"data.test = {self.test}, but {path} has a test set of its own; leave it out")
        else:
            test = replace(test, y=_labels(test.y, path), client=_test_clients(test.client, train.client, path))
        return train, test

    def _parts(self, path: Path) -> tuple[FilePart, FilePart | None]:
        if path.is_dir():
            train, test = list_folder(path)
            return FilePart(*train), None if test is None else FilePart(*test)
        if path.suffix == ".npz":
            return _read_npz(path)
        if path.suffix in (".parquet", ".pq"):
            return FilePart(*read_parquet(path, self.label or "label", self.client)), None
        if path.suffix in (".csv", ".tsv", ".txt"):
            return FilePart(*read_csv(path, self.label or "label", self.client)), None
        raise RequestError(f"{path} is not of a known kind; allowed: .npz, .csv, .tsv, .parquet, or a folder of images")

    def _nowhere(self) -> RequestError:
        imported = [name.removeprefix(KEY) for name in store.names() if name.startswith(KEY)]
        if not imported or "/" in self.path:
            return RequestError(f'data.path = "{self.path}" does not exist, and no data was imported under that name')
        return unknown_name("data.path", self.path, imported)


def keep(name: str, own: Own) -> Path:
    """Store own data under a name in the data folder."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.-]*", name):
        raise RequestError(f'NAME = "{name}" is not valid; allowed: letters, digits, ".", "-" and "_"')
    store.prepare()
    about = {
        "name": "own",
        "options": {"path": name},
        "source": str(Path(own.path).expanduser().absolute()),
        "verified": False,
        "complete": True,
        "licence": Own.licence,
    }
    return store.put(KEY + name, own.read(), about)


def _read_npz(path: Path) -> tuple[FilePart, FilePart | None]:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:  # numpy leaves broken ones open
            arrays = {key: archive[key] for key in archive.files}
    except (ValueError, EOFError, *DAMAGE) as error:
        said = "it holds Python objects instead of plain arrays" if "pickle" in str(error) else str(error)
        raise RequestError(f"{path} cannot be read: {said}") from None
    if lacking := [key for key in ("x", "y") if key not in arrays]:
        raise RequestError(f"{path} has no array {lacking[0]}; it has: {', '.join(arrays)}")
    if ("test_x" in arrays) != ("test_y" in arrays):
        raise RequestError(f"{path} needs test_x and test_y, or neither")
    client, test_client = (arrays.get(f"{p}client", arrays.get(f"{p}groups")) for p in ("", "test_"))
    train = FilePart(arrays["x"], arrays["y"], client)
    test = FilePart(arrays["test_x"], arrays["test_y"], test_client) if "test_x" in arrays else None
    for prefix, named in (("", client), ("test_", test_client)):
        found = [a for a in (arrays.get(f"{prefix}x"), arrays.get(f"{prefix}y"), named) if a is not None]
        lengths = {len(a) if a.ndim else 0 for a in found}
        if len(lengths) > 1 or (f"{prefix}y" in arrays and arrays[f"{prefix}y"].ndim != 1):
            raise RequestError(f"{path}: x, y and client must have an entry a sample; they have {sorted(lengths)}")
    return train, test


def _samples(x: np.ndarray, path: Path, exact: bool = False) -> np.ndarray:
    """Images stay uint8 [n, channels, height, width]; everything else becomes float32, or stays as exact as it is."""
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise RequestError(f"{path}: x must hold numbers, [n, ...]; it has type {x.dtype} and shape {x.shape}")
    if x.dtype == np.uint8 and x.ndim in (3, 4):
        if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
            raise RequestError(
                f"{path}: x has shape {x.shape}, but images are [n, channels, height, width]; transpose(0, 3, 1, 2)"
            )
        return x[:, None] if x.ndim == 3 else x
    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused
        short = x.astype(np.float32)
    bad = np.flatnonzero(~np.isfinite(short).all(tuple(range(1, x.ndim))))
    if len(bad):
        raise RequestError(f"{path}: {len(bad)} samples hold missing or infinite values, the first at row {bad[0]}")
    return x.astype(np.float64, copy=False) if exact else short


def _labels(y: np.ndarray, path: Path) -> np.ndarray:
    """Labels that all look like whole numbers are numbers, the rest is text; missing ones are refused."""
    if y.dtype.kind == "U":
        _refuse_missing(y, "labels", path)
        if all(re.fullmatch(r"[+-]?\d{1,18}(\.0*)?", label) for label in np.unique(y).tolist()):
            y = y.astype(np.float64) if any("." in label for label in np.unique(y).tolist()) else y.astype(np.int64)
    try:
        return read_labels(y)
    except (RequestError, ValueError) as error:
        raise RequestError(f"{path}: {error}") from None


def _clients(clients: np.ndarray | None, path: Path) -> np.ndarray | None:
    if clients is None:
        return None
    _check_clients(clients, path)
    if len(found := np.unique(clients)) < 2:
        raise RequestError(
            f"{path} names one client, {found[0] if len(found) else 'none'}; at least 2 are needed. "
            "To deal the samples out by a partition, leave the client out"
        )
    return clients


def _test_clients(clients: np.ndarray | None, train: np.ndarray | None, path: Path) -> np.ndarray | None:
    if clients is None and train is None:
        return None
    if clients is None or train is None:
        raise RequestError(f"{path}: training and test samples must both name their clients, or neither")
    _check_clients(clients, path)
    if (clients.dtype.kind == "U") != (train.dtype.kind == "U"):
        raise RequestError(f"{path}: clients of training and test samples must both be text or both be numbers")
    return clients


def _check_clients(clients: np.ndarray, path: Path) -> None:
    if clients.ndim != 1:
        raise RequestError(f"{path}: clients must have an entry a sample; they have shape {clients.shape}")
    if clients.dtype.kind == "U":
        _refuse_missing(clients, "clients", path)
    elif clients.dtype.kind not in "biuf" or not np.isfinite(clients).all():
        raise RequestError(f"{path}: clients must be numbers or text, and none may be missing")


def _refuse_missing(column: np.ndarray, what: str, path: Path) -> None:
    rows: Sequence[int] = np.flatnonzero([value.strip().lower() in MISSING for value in column.tolist()]).tolist()
    if rows:
        raise RequestError(f"{path}: {len(rows)} {what} are missing, the first at row {rows[0]}; drop those rows")
