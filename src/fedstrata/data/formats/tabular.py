"""Tables with a column of labels, optionally one of clients, and numbers in the others: CSV and Parquet."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.core.errors import DamagedError, RequestError
from fedstrata.data.files import Files
from fedstrata.data.preprocessing import MISSING, is_number

Table = tuple[np.ndarray, np.ndarray, np.ndarray | None]  # features, labels, clients


def read_csv(path: Path, label: str, client: str | None) -> Table:
    """Read a CSV file whose first line names the columns; `;` and tabs may separate them too."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is not text in UTF-8: {error}") from None
    first = text.split("\n", 1)[0]
    if not first.strip():
        raise RequestError(f"{path} is empty, or its first line is: it must name the columns")
    mark = max("\t;,", key=first.count)
    columns = [name.strip() for name in next(csv.reader([first.rstrip("\r")], delimiter=mark))]
    features = _chosen(columns, label, client, path)
    how: dict[str, Any] = {"delimiter": mark, "quotechar": '"', "comments": None, "skiprows": 1, "ndmin": 2}
    if not text[len(first) :].strip():
        raise RequestError(f"{path} has no rows")
    named = [columns.index(name) for name in (label, client) if name is not None]
    try:
        x = np.loadtxt(io.StringIO(text), dtype=np.float64, usecols=[columns.index(f) for f in features], **how)
        rest = np.loadtxt(io.StringIO(text), dtype=str, usecols=named, **how)
        sound, said = bool(np.isfinite(x).all()) and _is_even(text, mark, len(columns)), "its rows are of unlike length"
    except ValueError as error:
        sound, said = False, str(error)
    if not sound:  # once more, slowly, to say where
        raise _explained(text, mark, columns, features, path) or RequestError(f"{path} cannot be read: {said}")
    return x, np.char.strip(rest[:, 0]), np.char.strip(rest[:, 1]) if client is not None else None


def _is_even(text: str, mark: str, width: int) -> bool:
    """Say whether all rows have as many fields as there are columns; numpy lets longer ones pass."""
    if '"' in text:
        return all(len(row) in (0, width) for row in csv.reader(io.StringIO(text), delimiter=mark))
    return all(line.count(mark) == width - 1 for line in text.split("\n") if line)


def read_parquet(path: Path, label: str, client: str | None) -> Table:
    """Read a Parquet file; needs pyarrow."""
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise RequestError(f"{path}: Parquet needs pyarrow; get it with: pip install 'fedstrata[parquet]'") from None
    try:
        table = parquet.read_table(path)
    except Exception as error:  # whatever pyarrow raises for a file that is none
        raise RequestError(f"{path} cannot be read as Parquet: {error}") from None
    features = _chosen(table.column_names, label, client, path)
    if empty := [name for name in table.column_names if table.column(name).null_count]:
        raise RequestError(f"{path}: values are missing in {_some(empty)}; drop those rows or fill them in")
    columns = {name: np.asarray(table.column(name).to_numpy()) for name in table.column_names}
    if text := [name for name in features if columns[name].dtype.kind not in "biuf"]:
        raise _not_numbers(text, path)
    if not len(table):
        raise RequestError(f"{path} has no rows")
    x = np.stack([columns[name].astype(np.float64) for name in features], axis=1)
    if gaps := [name for name, column in zip(features, x.T, strict=True) if not np.isfinite(column).all()]:
        raise RequestError(f"{path}: values are missing in {_some(gaps)}; drop those rows or fill them in")
    return x, _plain(columns[label]), None if client is None else _plain(columns[client])


def read_numbers(files: Files, name: str, kind: type, mark: str | None = None, titled: bool = False) -> np.ndarray:
    """Read a table of numbers alone as a publisher writes it; `titled`: its first line may name the columns."""
    data = files.read(name)
    skipped = int(titled and data[:1].isalpha())
    try:
        return np.loadtxt(io.BytesIO(data), dtype=kind, delimiter=mark, skiprows=skipped, ndmin=2)
    except ValueError as error:
        raise DamagedError(f"{files.path}: {name} is not a table of numbers: {error}") from None


def _plain(column: np.ndarray) -> np.ndarray:
    return column if column.dtype.kind in "biuf" else column.astype(str)


def _chosen(columns: Sequence[str], label: str, client: str | None, path: Path) -> list[str]:
    """Return the columns that are features."""
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise RequestError(f"{path} has {_some(twice)} more than once; every column needs a name of its own")
    for option, name in (("label", label), ("client", client)):
        if name is not None and name not in columns:
            raise RequestError(
                f'data.{option} = "{name}" is not a column of {path}; its columns: {", ".join(columns[:40])}'
                + (f" and {len(columns) - 40} more" if len(columns) > 40 else "")
            )
    if label == client:
        raise RequestError(f'data.label and data.client are both "{label}"; they must be different columns')
    features = [name for name in columns if name not in (label, client)]
    if not features:
        raise RequestError(f"{path} has no columns beside {label}{f' and {client}' if client else ''}: no features")
    return features


def _explained(text: str, mark: str, columns: list[str], features: list[str], path: Path) -> RequestError | None:
    """Find out why the features of a CSV file are not numbers; None if they are."""
    words: set[str] = set()
    gaps: Counter[str] = Counter()
    rows = csv.reader(io.StringIO(text), delimiter=mark)
    next(rows)
    for row in rows:
        if not row:
            continue
        if len(row) != len(columns):
            return RequestError(f"{path}: line {rows.line_num} has {len(row)} fields instead of {len(columns)}")
        for name, value in zip(columns, row, strict=True):
            if name in features and not is_number(value):
                if value.strip().lower() in MISSING | {"inf", "-inf"}:
                    gaps[name] += 1
                else:
                    words.add(name)
    if words:
        return _not_numbers([name for name in features if name in words], path)
    if not gaps:
        return None
    return RequestError(
        f"{path}: {gaps.total()} values are missing, in {_some(list(gaps))}; drop those rows or fill them in"
    )


def _not_numbers(names: list[str], path: Path) -> RequestError:
    return RequestError(
        f"{path}: features must be numbers, but {_some(names)} {'are' if len(names) > 1 else 'is'} not; "
        "leave out what is no feature, and turn the rest into numbers"
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"column{'s' if len(names) > 1 else ''} {', '.join(names[:5])}{more}"
