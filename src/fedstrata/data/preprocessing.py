"""What is done to raw inputs before a network sees them: kept with the data, so that a model's file can hold it too."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.errors import RequestError
from fedstrata.core.inputs import Inputs

Place = Callable[[int], str]  # where the row of so many rows before it stands, in words
MISSING = {"", "na", "n/a", "nan", "null", "none", "?"}  # how tables write that there is no value


def at_row(row: int) -> str:
    """Say where a row stands that is in no file of lines: rows of arrays count from 0."""
    return f"row {row}"


@dataclass(frozen=True)
class Column:
    """A column of a table, and what becomes of it.

    Attributes
    ----------
    name
        As the table names it.
    values
        Of a categorical column: each becomes a feature, 1 where it stands and 0 elsewhere. None: a column of numbers.
    fill
        What stands in for a missing value. None: in numbers a missing value is refused, among `values` it is all 0.
    """

    name: str
    values: tuple[str, ...] | None = None
    fill: float | str | None = None

    @property
    def width(self) -> int:
        """How many features it becomes."""
        return 1 if self.values is None else len(self.values)

    def encode(self, raw: Any, place: Place = at_row) -> np.ndarray:
        """Return its features.

        Parameters
        ----------
        raw
            One value a row.
        place
            Says where a row stands, for errors.

        Returns
        -------
        ndarray
            [n, width], float64.

        Raises
        ------
        RequestError
            If values are missing and nothing stands in for them, or are not of this column.
        """
        return self._numbers(raw, place) if self.values is None else self._one_hot(raw)

    def _numbers(self, raw: Any, place: Place) -> np.ndarray:
        try:
            found = as_numbers(raw)
        except ValueError as error:
            raise RequestError(f"column {self.name} holds numbers: {error}") from None
        gaps = np.isnan(found)
        if gaps.any() and self.fill is None:
            first = place(int(gaps.argmax()))
            raise RequestError(f"column {self.name}: {gaps.sum()} values are missing, the first at {first}")
        return np.where(gaps, np.nan if self.fill is None else float(self.fill), found)[:, None]

    def _one_hot(self, raw: Any) -> np.ndarray:
        assert self.values is not None
        instead = None if self.fill is None else str(self.fill)
        words = [instead if word is None else word for word in as_words(raw)]
        place = {value: i for i, value in enumerate(self.values)}
        if strange := sorted({word for word in words if word is not None and word not in place}):
            raise RequestError(
                f'column {self.name}: "{strange[0]}" did not occur in training; known: {", ".join(self.values[:20])}'
            )
        features = np.zeros((len(words), len(self.values)))
        for row, word in enumerate(words):
            if word is not None:
                features[row, place[word]] = 1.0
        return features


@dataclass(frozen=True)
class Preprocessing:
    """From raw inputs to what a network sees: columns encoded, gaps filled, features or pixels scaled.

    Attributes
    ----------
    columns
        Of a table, in order; those it does not name are no features. Empty: samples are arrays.
    shape
        Of a sample as the network sees it: (features,) or (channels, height, width). None: any.
    scale
        What numbers are divided by: 255 for images.
    mean, std
        Of each feature or channel, after `scale`: what is subtracted, and what the rest is divided by. None: nothing.
    per_client
        Every owner of data used its own mean and deviation, so new data are scaled by theirs.

    Examples
    --------
    >>> from fedstrata import Column, Preprocessing
    >>> columns = Column("age", fill=40.0), Column("smokes", values=("no", "yes"))
    >>> done = Preprocessing(columns, mean=(40.0, 0.5, 0.5), std=(20.0, 0.5, 0.5))
    >>> done.apply({"smokes": ["yes", "no"], "age": [60, None], "name": ["Ada", "Bo"]})
    tensor([[ 1., -1.,  1.],
            [ 0.,  1., -1.]])
    >>> Preprocessing.from_json(done.to_json()) == done
    True
    """

    columns: tuple[Column, ...] = ()
    shape: tuple[int, ...] | None = None
    scale: float = 1.0
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    per_client: bool = False

    @classmethod
    def of(cls, inputs: Inputs, shape: Sequence[int] | None = None) -> Preprocessing:
        """Describe arrays whose stored samples are the raw ones.

        Parameters
        ----------
        inputs
            What happens to stored samples.
        shape
            Of one.

        Returns
        -------
        Preprocessing
        """
        return cls((), None if shape is None else tuple(shape), inputs.scale, inputs.mean, inputs.std)

    def apply(self, raw: Any, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return raw inputs as the network takes them.

        Parameters
        ----------
        raw
            A table: a mapping of columns, a data frame, or an array with the columns in order. Else an array or tensor
            of samples; images are [n, channels, height, width] of the size the network was trained on.
        dtype
            Of the result; whole numbers that are not pixels (tokens) stay as they are.

        Returns
        -------
        Tensor

        Raises
        ------
        RequestError
            If a column is missing, a value cannot be encoded, or samples have another shape.
        """
        x = self.encode(raw) if self.columns else _array(raw)
        if self.shape is not None and x.shape[1:] != self.shape:
            raise RequestError(f"samples have shape {tuple(x.shape[1:])}; the model was trained on {self.shape}")
        if x.dtype.kind in "iub" and x.dtype != np.uint8:
            return torch.from_numpy(x)
        return torch.from_numpy(np.ascontiguousarray(self.scaled(x))).to(dtype)

    def scaled(self, x: np.ndarray) -> np.ndarray:
        """Return features or pixels on their scale.

        Parameters
        ----------
        x
            [n, features] or [n, channels, ...].

        Returns
        -------
        ndarray
            float64: 1.7e9 + 1 is no float32, and a time stamp is a feature like any other.
        """
        values = x.astype(np.float64) / self.scale
        mean, std = statistics_of(values) if self.per_client else (self.mean, self.std)
        if mean is None or std is None:
            return values
        along = (1, -1, *(1,) * (x.ndim - 2))
        scaled: np.ndarray = (values - np.reshape(mean, along)) / np.reshape(std, along)
        return scaled

    def encode(self, raw: Any, place: Place = at_row) -> np.ndarray:
        """Return a table's features before they are scaled.

        Parameters
        ----------
        raw
            As in `apply`.
        place
            Says where a row stands, for errors.

        Returns
        -------
        ndarray
            [n, features], float64.
        """
        if not isinstance(raw, Mapping) and not hasattr(raw, "columns"):
            table = np.asarray(raw.detach().cpu() if isinstance(raw, Tensor) else raw)
            if table.ndim != 2 or table.shape[1] != len(self.columns):
                names = ", ".join(column.name for column in self.columns[:20])
                raise RequestError(
                    f"a table of shape {table.shape} does not fit; {len(self.columns)} columns are needed: {names}"
                )
            raw = {column.name: table[:, i] for i, column in enumerate(self.columns)}
        if lacking := [column.name for column in self.columns if column.name not in raw]:
            raise RequestError(f"column {lacking[0]} is missing; there are: {', '.join(map(str, list(raw)[:40]))}")
        found = [column.encode(raw[column.name], place) for column in self.columns]
        if len({len(features) for features in found}) > 1:
            raise RequestError("the columns of a table have different lengths")
        return np.concatenate(found, axis=1)

    @property
    def fills(self) -> bool:
        """Whether something stands in for missing values."""
        return any(column.fill is not None for column in self.columns)

    @property
    def features(self) -> tuple[str, ...]:
        """Names of a table's features, such as "age" and "smokes = yes"; empty for arrays."""
        return tuple(
            name
            for column in self.columns
            for name in ([column.name] if column.values is None else [f"{column.name} = {v}" for v in column.values])
        )

    def to_json(self) -> str:
        """Write it down; what is at its default is left out.

        Returns
        -------
        str
        """
        plain = {key: value for key, value in asdict(self).items() if value != getattr(type(self), key)}
        return json.dumps(plain, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Preprocessing:
        """Read what `to_json` wrote.

        Parameters
        ----------
        text
            JSON.

        Returns
        -------
        Preprocessing
        """
        said = json.loads(text)
        columns = tuple(Column(**{**one, "values": _tuple(one["values"])}) for one in said.pop("columns", ()))
        lists = {key: _tuple(said.pop(key, None)) for key in ("shape", "mean", "std")}
        return cls(columns=columns, **lists, **said)


def statistics_of(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of every feature or channel of one owner's samples."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axes)
    return mean, usable(mean, x.std(axes))


def usable(mean: np.ndarray, std: np.ndarray) -> np.ndarray:
    """Return deviations to divide by: 1 where a feature is constant, up to how exactly its mean is known."""
    return np.where(std > 64 * np.finfo(np.float64).eps * np.abs(mean), std, 1.0)


def as_numbers(raw: Any) -> np.ndarray:
    """Read a column of numbers; what is missing becomes NaN."""
    column = _column(raw)
    if column.dtype.kind in "biuf":
        return column.astype(np.float64)
    words = as_words(column)
    if strange := [word for word in words if word is not None and not is_number(word)]:
        raise ValueError(f'"{strange[0]}" is none')
    return np.array([np.nan if word is None else float(word) for word in words], dtype=np.float64)


def as_words(raw: Any) -> list[str | None]:
    """Read a column of words; what is missing becomes None, and 1.0 the same word as 1."""
    found: list[str | None] = []
    for value in _column(raw).tolist():
        whole = isinstance(value, float) and value.is_integer()
        word = "" if value is None else str(int(value) if whole else value).strip()
        found.append(None if word.lower() in MISSING else word)
    return found


def is_number(word: str) -> bool:
    """Say whether a word is a finite number as tables write it: Python takes 1_000 and foreign digits too."""
    try:
        return "_" not in word and word.strip().isascii() and bool(np.isfinite(float(word)))
    except ValueError:
        return False


def _column(raw: Any) -> np.ndarray:
    column = np.asarray(raw.detach().cpu() if isinstance(raw, Tensor) else raw)
    if column.ndim != 1:
        raise RequestError(f"a column has one value a row; this one has shape {column.shape}")
    return column


def _array(raw: Any) -> np.ndarray:
    x = np.asarray(raw.detach().cpu() if isinstance(raw, Tensor) else raw)
    if x.dtype.kind not in "biuf" or x.ndim < 2:
        raise RequestError(f"samples must be numbers, [n, ...]; these have type {x.dtype} and shape {x.shape}")
    return x


def _tuple(values: Sequence[Any] | None) -> Any:
    return None if values is None else tuple(values)
