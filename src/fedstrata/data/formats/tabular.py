"""Tables with a column of labels, optionally one of clients, and features in the others: CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata.core.errors import DamagedError, RequestError, near
from fedstrata.data.files import Files
from fedstrata.data.preprocessing import MISSING, Column, Place, at_row, is_number
from fedstrata.data.unpacking import most_bytes, refuse

MOST_VALUES = 100  # of a categorical column: more are names or numbers, not categories
FEW_VALUES = 20  # up to so many may be categories even where nearly every row has its own
COMMA = re.compile(r"\d+,\d+|\d{1,3}(,\d{3})+(\.\d+)?|\d{1,3}(\.\d{3})+,\d+")  # 50,3 or 1,250.5 or 1.250,5
QUANTITY = re.compile(r"[+-]?([\d.,]*\d)(\s*)([^\W\d_]+[23²³]?(?:/[^\W\d_]+[23²³]?)?|%|°[CF]?)?")
DATE = re.compile(r"(\d{4}([-/.])\d{1,2}\2\d{1,2}|\d{1,2}([-/.])\d{1,2}\3\d{4})([T ]+\d{1,2}:\d{2}.*)?")
LARGEST = float(np.finfo(np.float32).max)
Columns = dict[str, np.ndarray]  # numbers with NaN where one is missing, or text with "" there


@dataclass(frozen=True)
class FeatureTable:
    """A table's features by name, its labels, who holds each row, and where it stands in the file."""

    features: Columns
    labels: np.ndarray
    clients: np.ndarray | None
    place: Place = at_row


def read_table(path: Path, label: str, client: str | None, drop: Sequence[str] = ()) -> FeatureTable:
    """Read a CSV or Parquet file."""
    read = _read_parquet if path.suffix in (".parquet", ".pq") else _read_csv
    return read(path, label, client, drop)


def settle_columns(
    table: FeatureTable, fill: float | str | None, path: Path, dropped: Sequence[str] = ()
) -> tuple[Column, ...]:
    """Say what each column becomes: numbers stay, text is one-hot; refuse what is neither, and gaps nobody fills."""
    gaps: dict[str, int] = {}
    unfit: dict[str, str] = {}
    columns = []
    for name, found in table.features.items():
        if found.dtype.kind != "f":
            columns.append(Column(name, values := _values(name, found, path, table.place)))
            if why := _no_feature(found, values):
                unfit[name] = why
            continue  # where text is missing, all of its features are 0
        if (huge := np.abs(found) > LARGEST).any():
            said = f"holds {huge.sum()} infinite values, or such that float32 cannot hold"
            raise RequestError(f"{path}: column {name} {said}, the first at {table.place(int(huge.argmax()))}")
        columns.append(Column(name, fill=fill))
        if (missing := np.isnan(found)).any():
            gaps[name] = int(missing.sum())
    if unfit:
        said = ", ".join(f"column {name} {why}" for name, why in unfit.items())
        raise RequestError(
            f"{path}: {said}: names, numbers of patients and dates are no features; make numbers of what tells "
            "something (years, days since), and leave the others out with data.drop = "
            f"{json.dumps([*dropped, *unfit], ensure_ascii=False)}"
        )
    if gaps and fill is None:
        raise RequestError(
            f"{path}: {sum(gaps.values())} values are missing, in {some(list(gaps))}; drop those rows, or fill them "
            'in with data.fill = "median" or a number'
        )
    return tuple(columns)


def encode_table(table: FeatureTable, columns: Sequence[Column], path: Path) -> np.ndarray:
    """Return features [n, ...] as columns say; gaps stay NaN, because what stands in for them is not known yet."""
    names, known = set(table.features), {column.name for column in columns}
    if names != known:
        lacking, more = sorted(known - names), sorted(names - known)
        said = f"lacks {some(lacking)}" if lacking else f"has {some(more)} beside those of the training data"
        raise RequestError(f"{path} {said}; both tables need the same columns")
    parts = []
    for column in columns:
        found = table.features[column.name]
        if column.values is None and found.dtype.kind != "f":
            raise RequestError(f"{path}: column {column.name} holds text; in the training data it holds numbers")
        if column.values is None and column.fill is None and np.isnan(found).any():
            raise RequestError(f"{path}: {np.isnan(found).sum()} values are missing in column {column.name}")
        parts.append(found[:, None] if column.values is None else _one_hot(column, found, path))
    return np.concatenate(parts, axis=1)


def _one_hot(column: Column, found: np.ndarray, path: Path) -> np.ndarray:
    try:
        return column.encode(found)
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None


def _values(name: str, found: np.ndarray, path: Path, place: Place) -> tuple[str, ...]:
    """Return the values of a categorical column, in order."""
    there = found[found != ""].tolist()
    values = sorted(set(there))
    _refuse_quantities(name, values, path)
    numbers = sum(map(is_number, there))
    if numbers > 0 and numbers * 2 >= len(there):
        row = next((i for i, word in enumerate(found.tolist()) if word and not is_number(word)), 0)
        raise RequestError(
            f'{path}: column {name} holds numbers, but "{found[row]}" at {place(row)}; correct or drop it'
        )
    return tuple(values)


def _no_feature(found: np.ndarray, values: Sequence[str]) -> str:
    """Say why a column of text is no feature: it holds dates, or nearly every row has a value of its own."""
    if 2 * len(dates := [value for value in values if DATE.fullmatch(value)]) > len(values):
        return f'holds dates, such as "{dates[0]}"'
    rows = np.count_nonzero(found != "")
    if len(values) > FEW_VALUES and 2 * len(values) > rows:
        return f"is text with {len(values)} different values in {rows} rows"
    return f"is text with {len(values)} different values, more than {MOST_VALUES}" if len(values) > MOST_VALUES else ""


def _refuse_quantities(name: str, values: Sequence[str], path: Path) -> None:
    """Refuse text of which most would be numbers, were it not for decimal commas or a unit; nobody guesses values."""
    units: dict[str, list[str]] = {}  # what is a number but for its form, by unit
    for value in values:
        found = None if is_number(value) else QUANTITY.fullmatch(value)
        if found is None or not (is_number(found[1]) or COMMA.fullmatch(found[1])):
            continue
        code = len(values) <= FEW_VALUES and found[1].isdigit() and len(found[1]) < 3 and not found[2]
        if not (code and len(found[3] or "") == 1 and found[3].isalpha()):  # 1A and 2b are wards and grades
            units.setdefault((found[3] or "").casefold(), []).append(value)
    commas = units.pop("", [])
    united = max(units.values(), key=len, default=[])
    if 5 * len(united) < 4 * sum(map(len, units.values())):
        united = []  # several units: codes
    odd = max(commas, united, key=len)
    if odd and 2 * (len(commas) + len(united) + sum(map(is_number, values))) > len(values):
        how = "with a unit behind them" if odd is united else "with a comma in them"
        raise RequestError(
            f'{path}: column {name} looks like numbers {how}, such as "{odd[0]}"; write them with a decimal point, '
            "without commas and units, in the same unit in all rows; values that are names must begin with a letter"
        )


def _read_csv(path: Path, label: str, client: str | None, drop: Sequence[str]) -> FeatureTable:
    """Read a CSV file whose first line names the columns; `;` and tabs may separate them too."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RequestError(
            f"{path} is not text in UTF-8: {error}; save it as UTF-8 (in a spreadsheet: CSV UTF-8), or convert it: "
            f"iconv -f latin1 -t utf-8 {shlex.quote(str(path))} > utf-8.csv"
        ) from None
    first = text.split("\n", 1)[0]
    if not first.strip():
        raise RequestError(f"{path} is empty, or its first line is: it must name the columns")
    mark = max("\t;,", key=first.count)
    columns = [name.strip() for name in next(csv.reader([first.rstrip("\r")], delimiter=mark))]
    features = _chosen(columns, label, client, drop, path)
    how: dict[str, Any] = {"delimiter": mark, "quotechar": '"', "comments": None, "skiprows": 1, "ndmin": 2}
    if not text[len(first) :].strip():
        raise RequestError(f"{path} has no rows")
    named = [name for name in (label, client) if name is not None]
    try:  # numbers alone are read ten times as fast
        x = np.loadtxt(io.StringIO(text), dtype=np.float64, usecols=[columns.index(f) for f in features], **how)
        rest = np.loadtxt(io.StringIO(text), dtype=str, usecols=[columns.index(name) for name in named], **how)
        sound = _is_even(text, mark, len(columns))
    except ValueError:
        sound = False
    if sound:
        found = dict(zip(features, x.T, strict=True))
        told = {name: np.char.strip(column) for name, column in zip(named, rest.T, strict=True)}
    else:
        raw = _read_words(text, mark, columns, path)
        found = {name: _read_column(raw[name]) for name in features}
        told = {name: np.array(raw[name]) for name in named}
    return FeatureTable(found, told[label], told[client] if client is not None else None, in_lines(text, mark))


def in_lines(text: str, mark: str) -> Place:
    """Return what says in which line of a CSV file a row stands, as an editor counts them: the names are in line 1."""

    def place(row: int) -> str:
        rows = csv.reader(io.StringIO(text), delimiter=mark)
        next(rows)
        begins, line = list[int](), rows.line_num + 1
        for found in rows:  # lines without anything are no rows, and text in quotes may go over several
            begins += [line] if found else []
            line = rows.line_num + 1
        return f"line {begins[row]}"

    return place


def _read_words(text: str, mark: str, columns: Sequence[str], path: Path) -> dict[str, list[str]]:
    rows = csv.reader(io.StringIO(text), delimiter=mark)
    next(rows)
    found: list[list[str]] = []
    for row in rows:
        if row and len(row) != len(columns):
            raise RequestError(f"{path}: line {rows.line_num} has {len(row)} fields instead of {len(columns)}")
        if row:
            found.append([word.strip() for word in row])
    return {name: [row[i] for row in found] for i, name in enumerate(columns)}


def _read_column(words: Sequence[str]) -> np.ndarray:
    """Return numbers, with NaN where one is missing, or text, with "" there."""
    known = ["" if word.lower() in MISSING else word for word in words]
    if all(word == "" or is_number(word) or word.lower().lstrip("+-") in ("inf", "infinity") for word in known):
        return np.array([word or "nan" for word in known]).astype(np.float64)
    return np.array(known)


def _is_even(text: str, mark: str, width: int) -> bool:
    """Say whether all rows have as many fields as there are columns; numpy lets longer ones pass."""
    if '"' in text:
        return all(len(row) in (0, width) for row in csv.reader(io.StringIO(text), delimiter=mark))
    return all(line.count(mark) == width - 1 for line in text.split("\n") if line)


def _read_parquet(path: Path, label: str, client: str | None, drop: Sequence[str]) -> FeatureTable:
    """Read a Parquet file; needs pyarrow."""
    table = open_parquet(path)
    features = _chosen(table.column_names, label, client, drop, path)
    if not len(table):
        raise RequestError(f"{path} has no rows")
    for name in filter(None, (label, client)):
        if count := table.column(name).null_count:
            raise RequestError(f"{path}: {count} values are missing in column {name}; drop those rows")
    found = {}
    for name in features:
        column = np.asarray(table.column(name).to_numpy())
        if column.dtype.kind in "biuf":
            found[name] = column.astype(np.float64)
            continue
        values = table.column(name).to_pylist()
        if strange := [value for value in values if value is not None and not isinstance(value, str | int | float)]:
            raise RequestError(
                f"{path}: column {name} holds {type(strange[0]).__name__}, which is neither a number nor text; leave "
                f'it out with data.drop = ["{name}"]'
            )
        found[name] = _read_column(["" if value is None else str(value).strip() for value in values])
    told = {name: _plain(np.asarray(table.column(name).to_numpy())) for name in filter(None, (label, client))}
    return FeatureTable(found, told[label], None if client is None else told[client])


def open_parquet(path: Path) -> Any:
    """Open a Parquet file as a pyarrow table."""
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise RequestError(f"{path}: Parquet needs pyarrow; get it with: pip install 'fedstrata[parquet]'") from None
    try:
        about, most = parquet.read_metadata(path), most_bytes(path.stat().st_size)
        if 8 * about.num_rows * about.num_columns > most:  # a column of one value takes no room in the file
            raise refuse(path, most)
        return parquet.read_table(path)
    except DamagedError:
        raise
    except Exception as error:  # whatever pyarrow raises for a file that is none
        raise RequestError(f"{path} cannot be read as Parquet: {error}") from None


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


def _chosen(columns: Sequence[str], label: str, client: str | None, drop: Sequence[str], path: Path) -> list[str]:
    """Return the columns that are features."""
    if twice := [name for name, count in Counter(columns).items() if count > 1]:
        raise RequestError(f"{path} has {some(twice)} more than once; every column needs a name of its own")
    for option, name in (("label", label), ("client", client), *(("drop", name) for name in drop)):
        if name is not None and name not in columns:
            raise RequestError(
                f'data.{option} = "{name}" is not a column of {path}{near(name, columns)}; its columns: '
                f"{', '.join(columns[:40])}" + (f" and {len(columns) - 40} more" if len(columns) > 40 else "")
            )
        if option == "drop" and name in (label, client):
            raise RequestError(f'data.drop = "{name}" is the column of {"labels" if name == label else "clients"}')
    if label == client:
        raise RequestError(f'data.label and data.client are both "{label}"; they must be different columns')
    features = [name for name in columns if name not in (label, client, *drop)]
    if not features:
        raise RequestError(f"{path} has no columns beside {label}{f' and {client}' if client else ''}: no features")
    return features


def some(names: Sequence[str], what: str = "column") -> str:
    """Name some columns, or other things."""
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names[:5])}{more}"
