"""The user's own samples: arrays in an `.npz`, a table (CSV, Parquet), a folder of images, or of LEAF or PFLlib.

    samples.npz    x, y (or x_train, y_train); optionally client (or groups), and test_x, test_y, test_client
    table.csv      columns of numbers and of text, one of labels, optionally one that names the client; .tsv, .parquet
    images/        CLASS/image.png or CLIENT/CLASS/image.png; both may stand under train/ and test/
    photos.parquet a column of encoded images, as Hugging Face publishes them
    clients/       train/*.json of LEAF, or train/0.npz, train/1.npz, ... of PFLlib, and the same under test/

The client of a sample is its group: the partition `natural`, which such data have unless another one is asked for,
gives every client its own. What `fedstrata data import` has stored is loaded by its name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np

from fedstrata.core.errors import RequestError, unknown_name
from fedstrata.core.options import BelowOne, ColumnName, Count, LocalPath
from fedstrata.core.rng import Streams
from fedstrata.data import store
from fedstrata.data.formats.arrays import FilePart, check_samples, npz_names_clients, read_npz
from fedstrata.data.formats.client_files import has_client_files, read_client_files
from fedstrata.data.formats.image_folder import has_client_folders, list_folder, read_folder
from fedstrata.data.formats.image_table import read_image_table
from fedstrata.data.formats.tabular import encode_table, read_table, settle_columns
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.preprocessing import Column, Preprocessing
from fedstrata.data.scaling import Scale
from fedstrata.data.sets.base import Arrays, DataSet
from fedstrata.data.sets.own_labels import check_clients, check_labels, check_test_clients

TEST = 0.2
KEY = "own-"  # before the name, in the data folder: no import hides a data set of that name
PARQUET = (".parquet", ".pq")
TABLES = (".csv", ".tsv", ".txt", *PARQUET)


@dataclass(frozen=True)
class Own(DataSet):
    """Your own samples: .npz, CSV, Parquet, a folder of images, or what `fedstrata data import` has stored."""

    licence: ClassVar[str] = "yours"

    path: LocalPath = ""  # of the file or folder, or the name that was given to `fedstrata data import`
    label: ColumnName | None = None  # column of a table that holds the class; "label" if not given
    client: ColumnName | None = None  # column of a table that names the client
    drop: tuple[ColumnName, ...] | None = None  # columns of a table that are no features
    fill: float | Literal["median"] | None = None  # what stands in for missing numbers; without it they are refused
    scale: Literal["federated", "per-client", "given", "none"] | None = None  # tables and images: "federated"
    mean: tuple[float, ...] | None = None  # of each feature, or channel on the scale of 0 to 1, for scale = "given"
    std: tuple[float, ...] | None = None
    size: Count | None = None  # pixels to scale images to; without it all must have the same size
    test: BelowOne | None = None  # share to hold out, the same samples for every seed; 0.2 if there is no test set
    test_path: LocalPath | None = None  # of the test set, where that is a file or folder of its own

    @property
    def names_clients(self) -> bool:
        """Whether a column, an array or a folder says who holds a sample; files that cannot be read say nothing."""
        if self.client is not None:
            return True
        path = Path(self.path).expanduser()
        try:
            if self.path and store.has_groups(KEY + self.path):
                return True
            if path.is_dir():
                return has_client_files(path) or has_client_folders(path)
        except OSError:
            return False
        return path.suffix == ".npz" and npz_names_clients(path)

    def load(self) -> Arrays:
        """Load what was imported under this name, or read the file or folder."""
        if not self.path:
            raise RequestError('data.path is required for data.name = "own": a file, a folder, or an imported name')
        if re.fullmatch(r"[\w.-]+", self.path) and (arrays := store.get(KEY + self.path)) is not None:
            for option in ("label", "client", "drop", "fill", "scale", "mean", "std", "size", "test", "test_path"):
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
        self._refuse_options(path, table)
        try:
            columns, train, test = self._split(path, table)
            table = bool(columns)  # or images in one
            y, test_y = train.y, test.y
            if not len(y):
                raise RequestError(f"{path}: there are no samples to train on")
            if isinstance(train.x, list) and isinstance(test.x, list):
                x, test_x = read_folder(train.x, test.x, size=self.size)
            else:
                x, test_x = np.asarray(train.x), np.asarray(test.x)
                if self.size is not None and x.dtype != np.uint8:
                    raise RequestError(f"data.size = {self.size} scales images; {path} holds none")
                if not table and (self.drop or self.fill is not None):
                    raise RequestError(f"data.drop and data.fill are about features of a table; {path} holds none")
        except OSError as error:
            raise RequestError(f"{path} cannot be read: {error}") from None
        if x.shape[1:] != test_x.shape[1:] or x.dtype != test_x.dtype:
            kinds = [f"{part.shape[1:]}, {part.dtype}" for part in (x, test_x)]
            raise RequestError(f"{path}: training samples have shape {kinds[0]}, test samples {kinds[1]}")
        asked = Preprocessing(columns, mean=self.mean, std=self.std)
        scale = self._scale(x, asked, path, table)
        return Arrays(
            x, y, test_x, test_y, train.client, test.client, preprocessing=asked if scale else None, scale=scale
        )

    def _refuse_options(self, path: Path, table: bool) -> None:
        for option in ("label", "client", "drop", "fill"):
            if not table and getattr(self, option) is not None:
                raise RequestError(f"data.{option} is about columns of a table; {path} is not one")
        if self.size is not None and not path.is_dir() and path.suffix not in PARQUET:
            raise RequestError(f"data.size = {self.size} scales the images of a folder; {path} is not one")
        given = self.mean is not None, self.std is not None
        if given != ((self.scale == "given"),) * 2:
            raise RequestError('data.scale = "given" needs data.mean and data.std, and they need it')

    def _scale(self, x: np.ndarray, asked: Preprocessing, path: Path, table: bool) -> Scale | None:
        """Say what is left to do once clients hold the samples."""
        if self.scale is None:
            return "federated" if table or x.dtype == np.uint8 else None
        for name, values in (("mean", self.mean), ("std", self.std)):
            if values is not None and (len(values) != x.shape[1] or not np.isfinite(values).all()):
                what = f"features: {', '.join(asked.features[:20])}" if table else "features or channels"
                raise RequestError(f"data.{name} has {len(values)} numbers; {path} has {x.shape[1]} {what}")
        if self.std is not None and min(self.std) <= 0:
            raise RequestError(f"data.std = {min(self.std)}; allowed: numbers > 0")
        return "none" if self.scale == "given" else self.scale

    def _split(self, path: Path, table: bool) -> tuple[tuple[Column, ...], FilePart, FilePart]:
        """Return columns, training and test samples; labels and clients are checked."""
        columns, train, test = self._parts(path, None)
        where = path
        if self.test_path is not None:
            where = Path(self.test_path).expanduser()
            if test is not None:
                raise RequestError(f"data.test_path: {path} has a test set of its own; leave one of them out")
            if not where.exists():
                raise RequestError(f'data.test_path = "{self.test_path}" does not exist')
            if where.is_dir() != path.is_dir() or (where.suffix == ".npz") != (path.suffix == ".npz"):
                raise RequestError(f"data.test_path = {where} must be of the kind of data.path = {path}")
            _, test, more = self._parts(where, columns)
            if more is not None:
                raise RequestError(
                    f"data.test_path = {where} has a training and a test set; give one that is a test set"
                )
        if isinstance(train.x, np.ndarray) and not table:  # before rows are chosen, so that a bad one is found
            train = replace(train, x=check_samples(train.x, path))
        y = check_labels(train.y, path, table=table, place=train.place)
        train = replace(train, y=y, client=check_clients(train.client, path, train.place))
        if test is None:
            share = TEST if self.test is None else self.test
            rows, held = hold_out(np.arange(len(train.y)), train.y, share, Streams(0)("own"))
            return columns, train.at(rows), train.at(held)
        if self.test is not None:
            raise RequestError(f"data.test = {self.test}, but {path} has a test set of its own; leave it out")
        if isinstance(test.x, np.ndarray) and not table:
            test = replace(test, x=check_samples(test.x, where))
        clients = check_test_clients(test.client, train.client, where, test.place)
        y = check_labels(test.y, where, few=True, place=test.place)
        return columns, train, replace(test, y=y, client=clients)

    def _parts(
        self, path: Path, known: tuple[Column, ...] | None
    ) -> tuple[tuple[Column, ...], FilePart, FilePart | None]:
        """Read a file or folder; `known` columns are those of the training table."""
        if path.is_dir():
            if (written := read_client_files(path)) is not None:
                return (), *written
            train, test = list_folder(path)
            return (), FilePart(*train), None if test is None else FilePart(*test)
        if path.suffix == ".npz":
            return (), *read_npz(path)
        if path.suffix in PARQUET:
            images = read_image_table(path, self.label or "label", self.client, self.size)
            if images is not None:
                return (), images, None
        if path.suffix in TABLES:
            table = read_table(path, self.label or "label", self.client, self.drop or ())
            columns = settle_columns(table, self.fill, path, self.drop or ()) if known is None else known
            x = encode_table(table, columns, path)
            return columns, FilePart(x, table.labels, table.clients, table.place), None
        raise RequestError(f"{path} is not of a known kind; allowed: .npz, .csv, .tsv, .parquet, or a folder of images")

    def _nowhere(self) -> RequestError:
        imported = imported_names()
        if not imported or "/" in self.path or Path(self.path).suffix in (".npz", *TABLES):
            return RequestError(f'data.path = "{self.path}" does not exist, and no data was imported under that name')
        return unknown_name("data.path", self.path, imported)


def imported_names() -> list[str]:
    """Return the names under which own data were imported."""
    return [name.removeprefix(KEY) for name in store.names() if name.startswith(KEY)]


def source_of(name: str) -> str | None:
    """Return where the data came from that were imported under a name; None: there are none."""
    return store.about(KEY + name).get("source")


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
