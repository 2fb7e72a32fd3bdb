"""Label counts from a CSV file: a row a client, a column a label."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from fedstrata.core.errors import RequestError
from fedstrata.data.label_table import LabelTable


def read_counts(path: str | Path) -> LabelTable:
    """Read a table of counts.

    A first line that is not all numbers names the columns; a first column named "client", or not named, names the
    clients. Everything else is a whole number from 0.
    """
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            lines = [[cell.strip() for cell in line] for line in csv.reader(file) if any(cell.strip() for cell in line)]
    except FileNotFoundError:
        raise RequestError(f"{path} cannot be read: there is no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RequestError(f"{path} cannot be read: {error}") from None
    if not lines:
        raise RequestError(f"{path} is empty; it should hold a row of label counts for each client")
    header = None if all(_number(cell) is not None for cell in lines[0]) else lines.pop(0)
    named = header is not None and header[0].lower() in ("", "client")
    width = len(header or lines[0])
    counts = np.zeros((len(lines), width - named))
    for i, line in enumerate(lines):
        at = i + 1 + (header is not None)
        if len(line) != width:
            raise RequestError(f"{path}, line {at}: {len(line)} cells, but the first line has {width}")
        for j, cell in enumerate(line[named:]):
            number = _number(cell)
            if number is None or number < 0 or number != int(number):
                label = header[j + named] if header else str(j)
                raise RequestError(f'{path}, line {at}, label {label}: "{cell}"; allowed: whole numbers from 0')
            counts[i, j] = number
    if not lines:
        raise RequestError(f"{path} names labels but holds no client")
    labels = None if header is None else header[named:]
    return LabelTable.of(counts, labels, [line[0] for line in lines] if named else None)


def _number(cell: str) -> float | None:
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if np.isfinite(number) else None
