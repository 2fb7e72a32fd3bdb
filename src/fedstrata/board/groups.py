"""Comparisons in the list: one entry each, with a mean and an interval for every method, and no best seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from fedstrata.board.index import Row
from fedstrata.runs.compare.paired import interval

MARK = "comparison.json"  # what makes a folder that of a comparison
TRIALS = "tuning"  # where a comparison keeps its trials, which are no results


@dataclass(frozen=True)
class ComparedMethod:
    """The runs of one method, under one condition where there are several."""

    name: str
    runs: tuple[str, ...]
    finished: int
    mean: float | None
    interval: tuple[float, float] | None


@dataclass(frozen=True)
class Group:
    """A comparison: methods by their mean, the best first."""

    path: str
    methods: tuple[ComparedMethod, ...]
    running: int
    changed: float


def group_rows(root: Path, rows: Mapping[str, Row]) -> list[Group]:
    """Return the comparisons among the runs below a folder."""
    inside: dict[str, list[Row]] = {}
    held: dict[str, bool] = {}  # folders, and whether each is that of a comparison
    for row in rows.values():
        for folder in map(str, PurePosixPath(row.path).parents):
            if folder not in held:
                held[folder] = (root / folder / MARK).is_file()
            if held[folder]:
                inside.setdefault(folder, []).append(row)
                break
    return [_group(path, found) for path, found in inside.items()]


def _group(path: str, rows: Iterable[Row]) -> Group:
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        below = PurePosixPath(row.path).relative_to(path).parent
        if below.parts[:1] != (TRIALS,):
            by_method.setdefault(str(below), []).append(row)
    methods = sorted((_method(name, found) for name, found in by_method.items()), key=_best_first)
    found = [row for rows in by_method.values() for row in rows]
    running = sum(row.state == "running" for row in found)
    return Group(path, tuple(methods), running, max((row.changed for row in found), default=0.0))


def _method(name: str, rows: list[Row]) -> ComparedMethod:
    done: list[float | None] = [row.accuracy for row in rows if row.state == "finished"]
    told: dict[str, Any] = interval(done)
    ends = None if told["interval"] is None else (told["interval"][0], told["interval"][1])
    return ComparedMethod(name, tuple(row.path for row in rows), len(done), told["mean"], ends)


def _best_first(method: ComparedMethod) -> tuple[float, str]:
    return (1.0 if method.mean is None else -method.mean, method.name)
