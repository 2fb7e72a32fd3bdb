"""From folders to trails: single runs, and comparisons with a run for every method and seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.report.run_data import Trail


@dataclass
class Gathered:
    """Runs to show together, and what a reader must know before comparing them."""

    trails: list[Trail] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # of comparisons: one a method
    remarks: list[str] = field(default_factory=list)  # what a reader of the rows should not miss
    warnings: list[str] = field(default_factory=list)

    @property
    def firsts(self) -> list[Trail]:
        """One run of each group."""
        return list({trail.group: trail for trail in reversed(self.trails)}.values())[::-1]


def gather(paths: Sequence[str | Path]) -> Gathered:
    """Read run folders and folders of comparisons."""
    if not paths:
        raise RequestError("name at least one run folder")
    found, seen = Gathered(), set()
    for path in map(Path, paths):
        if path.resolve() in seen:
            raise RequestError(f"{path} is named twice")
        seen.add(path.resolve())
        if not path.is_dir():
            raise RequestError(f"{path} is not a folder; name a run folder, such as runs/fedavg-1")
        if (path / "experiment.toml").exists():
            found.trails.append(Trail.read(path))
        elif cells := list(_cells(path)):
            of = f"{path.resolve().name}/" if len(paths) > 1 else ""  # methods of two comparisons are not the same
            rows, remarks = _compared(path)
            found.remarks += [remark for remark in remarks if remark not in found.remarks]
            found.rows += [{**row, "method": f"{of}{row['method']}"} for row in rows]
            order = [row["method"] for row in rows]
            cells.sort(key=lambda cell: order.index(cell[0]) if cell[0] in order else len(order))
            found.trails += [Trail.read(run, f"{of}{method}, {run.name}", f"{of}{method}") for method, run in cells]
        else:
            raise RequestError(f"{path} is not a run folder: it has no experiment.toml, and no runs below it")
    _name_apart(found.trails)
    found.warnings = list(_warnings(found.trails))
    return found


def _cells(path: Path) -> Iterator[tuple[str, Path]]:
    """Give the runs of a comparison, finished or not: they lie in METHOD/seed-N."""
    for experiment in sorted(path.glob("*/*/experiment.toml"), key=lambda p: (p.parts[-3], len(p.parts[-2]), p.parts)):
        if (experiment.parent / "events.jsonl").exists():
            yield experiment.parts[-3], experiment.parent


def _compared(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the rows and remarks of a comparison; while it goes on there are none."""
    told = path / "comparison.json"
    if not told.exists():
        return [], []
    try:
        known = json.loads(told.read_text())
        rows = [row for row in known["rows"] if isinstance(row["method"], str)]
        return rows, [str(remark) for remark in known.get("remarks", ())]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RequestError(f"{told} cannot be read: {error!r}") from None


def _name_apart(trails: Sequence[Trail]) -> None:
    """Runs of one name are told apart by their folders."""
    same = Counter(trail.name for trail in trails)
    for trail in trails:
        if same[trail.name] > 1:
            apart = trail.path.name if "seed-" not in trail.path.name else str(trail.path)
            alone = trail.group == trail.name
            trail.name = f"{trail.name} ({apart})"
            trail.group = trail.name if alone else trail.group


def _warnings(trails: Sequence[Trail]) -> Iterator[str]:
    for trail in trails:
        finished = bool(trail.summary)  # which may find that it is damaged
        yield from (f"{trail.name}: {said}" for said in trail.warnings)
        if not finished:
            planned = trail.asked("train", "rounds")
            yield f"{trail.name} is not finished: {len(trail)} of {planned} rounds are there"
    yield from unlike(trails)


def unlike(trails: Sequence[Trail]) -> Iterator[str]:
    """Say what forbids to compare these runs."""
    by_seed: dict[Any, dict[Any, str]] = {}
    for trail in trails:
        by_seed.setdefault(trail.asked("train", "seed"), {}).setdefault(trail.start.get("fingerprint"), trail.name)
    data = {json.dumps(trail.asked("data"), sort_keys=True, default=str): trail.name for trail in trails}
    clash = next((list(own.values()) for own in by_seed.values() if len(own) > 1), None)
    if len(data) > 1 or clash:
        one, other, *_ = clash or data.values()
        yield f"{one} and {other} were trained on different data: their figures cannot be compared"
    elif len(by_seed) > 1 and len({trail.group for trail in trails}) > 1 and not _paired(trails):
        yield "these runs have different seeds, and so different partitions and draws: they are not paired"


def _paired(trails: Sequence[Trail]) -> bool:
    """Say whether every group has the same seeds."""
    seeds: dict[str, set[Any]] = {}
    for trail in trails:
        seeds.setdefault(trail.group, set()).add(trail.asked("train", "seed"))
    return len({frozenset(own) for own in seeds.values()}) == 1
