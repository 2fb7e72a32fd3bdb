"""Hugging Face `datasets` by name: a folder of `save_to_disk`, or a name on the Hub.

What is on the Hub is downloaded by `datasets` itself, into its own cache and with the user's own settings; no code of a
data set is run. Labels get the names that the data set has for them; a column may name the client of a sample.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.core.options import BelowOne, LocalPath
from fedstrata.core.rng import Streams
from fedstrata.data.items import LABEL, SAMPLE, read_dataset
from fedstrata.data.partitions.base import hold_out
from fedstrata.data.scaling import Scale
from fedstrata.data.sets.base import Arrays, DataSet

TEST = 0.2


@dataclass(frozen=True)
class HuggingFace(DataSet):
    """A Hugging Face data set (extra `hf`): a folder of `save_to_disk`, or a name on the Hub."""

    licence: ClassVar[str] = "that of the data set"

    path: LocalPath | None = None  # a folder that `save_to_disk` wrote
    hub: str | None = None  # instead of it, a name on the Hub: "ylecun/mnist"
    config: str | None = None  # of several versions on the Hub
    train: str = "train"  # split
    test_split: str | None = None  # "test", where there is one
    test: BelowOne | None = None  # share to hold out where there is no test split; 0.2
    sample: str | None = None  # column of samples; found by its name if not given
    label: str | None = None  # column of labels; found by its name if not given
    client: str | None = None  # column that names who holds a sample

    @property
    def names_clients(self) -> bool:
        """Whether a column says who holds a sample."""
        return self.client is not None

    def load(self) -> Arrays:
        """Read the splits."""
        splits = self._splits()
        if self.train not in splits:
            raise RequestError(f'data.train = "{self.train}" is no split; there are {", ".join(splits)}')
        if self.test_split is not None and self.test_split not in splits:
            raise RequestError(f'data.test_split = "{self.test_split}" is no split; there are {", ".join(splits)}')
        x, y, groups = self._read(splits[self.train])
        named = self.test_split or ("test" if "test" in splits and self.train != "test" else None)
        if named is not None:
            if self.test is not None:
                raise RequestError(f"data.test = {self.test}: there is a split {named} to test with; leave it out")
            test_x, test_y, _ = self._read(splits[named])
            groups, test_groups = self._groups(groups, splits[named])
            return Arrays(x, y, test_x, test_y, groups, test_groups, scale=_scale(x))
        codes = np.unique(y, return_inverse=True)[1]
        share = TEST if self.test is None else self.test
        kept, held = hold_out(np.arange(len(y)), codes, share, Streams(0)("hold-out"))
        owners, test_owners = (None, None) if groups is None else (groups[kept], groups[held])
        return Arrays(x[kept], y[kept], x[held], y[held], owners, test_owners, scale=_scale(x))

    def _splits(self) -> Mapping[str, Any]:
        if (self.path is None) == (self.hub is None):
            raise RequestError('data.name = "hf" needs data.path, a folder, or data.hub, a name on the Hub')
        try:
            datasets: Any = import_module("datasets")
        except ModuleNotFoundError as error:
            raise RequestError(
                f"data.name = \"hf\" needs {error.name}; get it with: pip install 'fedstrata[hf]'"
            ) from None
        if self.path is not None and not Path(self.path).expanduser().is_dir():
            raise RequestError(f'data.path = "{self.path}" is no folder; write one with dataset.save_to_disk')
        try:
            if self.hub is not None:
                found = datasets.load_dataset(self.hub, self.config)
            else:
                found = datasets.load_from_disk(str(Path(str(self.path)).expanduser()))
        except Exception as error:  # of the network, the Hub, or a file that is none
            where = f'data.hub = "{self.hub}"' if self.hub is not None else f'data.path = "{self.path}"'
            raise RequestError(f"{where} cannot be loaded: {' '.join(str(error).split())[:300]}") from error
        return found if isinstance(found, Mapping) else {self.train: found}

    def _read(self, split: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        columns = list(split.column_names)
        for key, column in (("sample", self.sample), ("label", self.label), ("client", self.client)):
            if column is not None and column not in columns:
                raise RequestError(f'data.{key} = "{column}" is no column; there are {", ".join(columns)}')
        names = [self.sample or _only(columns, SAMPLE), self.label or _only(columns, LABEL)]
        renamed = {name: new for name, new in zip(names, ("x", "y"), strict=True) if name is not None}
        chosen = split.select_columns(list(renamed)) if len(renamed) == 2 else split
        x, y = read_dataset(chosen.rename_columns(renamed) if len(renamed) == 2 else chosen)
        return x.numpy(), y, None if self.client is None else np.asarray(split[self.client][:]).astype(str)

    def _groups(self, groups: np.ndarray | None, test: Any) -> tuple[np.ndarray | None, np.ndarray | None]:
        """Return who holds what in both splits, where both say so."""
        if groups is None or self.client is None:
            return None, None
        if self.client not in test.column_names:
            raise RequestError(f'data.client = "{self.client}": the test split has no such column')
        return groups, np.asarray(test[self.client][:]).astype(str)


def _only(columns: list[str], known: tuple[str, ...]) -> str | None:
    found = [column for column in columns if column.lower() in known]
    return found[0] if len(found) == 1 else None


def _scale(x: np.ndarray) -> Scale | None:
    """Bring images and rows of features to one scale, as other own data; other arrays are as they should be."""
    return "federated" if x.dtype == np.uint8 or x.ndim == 2 else None
