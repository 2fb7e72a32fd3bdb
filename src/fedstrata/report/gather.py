"""From folders to runs: single runs, and comparisons with a run for every method and seed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.core.errors import RequestError
from fedstrata.report.run_data import RunData
from fedstrata.report.settings import unlike_settings
from fedstrata.runs.compare.friedman import Friedman
from fedstrata.runs.compare.grid import BEST_OVER, conditions_of, metrics_in, standing
from fedstrata.runs.compare.search import FOLDER


@dataclass
class GatheredRuns:
    """Runs to show together, and what a reader must know before comparing them."""

    runs_data: list[RunData] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)  # of comparisons: one a method and condition
    remarks: list[str] = field(default_factory=list)  # what a reader of the rows should not miss
    warnings: list[str] = field(default_factory=list)
    tested: Friedman | None = None  # of a single comparison over conditions

    @property
    def firsts(self) -> list[RunData]:
        """One run of each group."""
        return list({run_data.group: run_data for run_data in reversed(self.runs_data)}.values())[::-1]

    def featured(self, most: int) -> list[RunData]:
        """Return runs to show one by one: of a comparison, the first method's and those of the best others."""
        firsts = self.firsts
        if len(firsts) <= most or not self.rows or self.unranked or conditions_of(self.rows):
            return firsts[:most]
        metric = metrics_in(self.rows)[0]
        ranked = sorted(self.rows[1:], key=lambda row: standing(row, metric) or (-1.0, 0.0), reverse=True)
        kept = {group_of(row) for row in (self.rows[0], *ranked[: most - 1])}
        return [run_data for run_data in firsts if run_data.group in kept]

    @property
    def unranked(self) -> str:
        """Why these runs must not be ranked; empty where they may be."""
        by_condition: dict[str, list[RunData]] = {}
        for run_data in self.runs_data:
            by_condition.setdefault(run_data.condition, []).append(run_data)
        said = next((said for own in by_condition.values() for said in unlike(own)), "")
        alone = all(run_data.group == run_data.name for run_data in self.runs_data)  # none is part of a comparison
        if not said and alone and (keys := unlike_settings(self.runs_data)):
            more = " and others" if len(keys) > 3 else ""
            said = f"they differ in {', '.join(keys[:3])}{more}, not only in the method"
        behind = [own for own in self.runs_data if not own.summary and len(own) < max(map(len, self.runs_data))]
        if not said and alone and behind:
            said = f"{behind[0].name} has come to round {len(behind[0])} only"
        return said


def gather(paths: Sequence[str | Path]) -> GatheredRuns:
    """Read run folders and folders of comparisons."""
    if not paths:
        raise RequestError("name at least one run folder")
    found, seen, singles = GatheredRuns(), set(), list[RunData]()
    for path in map(Path, paths):
        if path.resolve() in seen:
            raise RequestError(f"{path} is named twice")
        seen.add(path.resolve())
        if not path.is_dir():
            raise RequestError(f"{path} is not a folder; name a run folder, such as runs/fedavg-1")
        if (path / "experiment.toml").exists():
            found.runs_data.append(alone := RunData.read(path))
            singles.append(alone)
        elif cells := list(_cells(path)):
            of = f"{path.resolve().name}/" if len(paths) > 1 else ""  # methods of two comparisons are not the same
            rows, remarks = _compared(path)
            found.tested = _tested(path) if len(paths) == 1 else None
            found.remarks += [remark for remark in remarks if remark not in found.remarks]
            for row in rows:  # the best of several comparisons was not compared with all rows
                known = {key: value for key, value in row.items() if not (of and key.endswith(BEST_OVER))}
                found.rows.append({**known, "method": f"{of}{row['method']}"})
            order = [(row.get("condition", ""), row["method"]) for row in rows]
            cells = [cell for cell in cells if not rows or cell[:2] in order]  # else they were asked for before
            cells.sort(key=lambda cell: order.index(cell[:2]) if rows else 0)
            found.runs_data += [_read(run, condition, method, of) for condition, method, run in cells]
        else:
            raise RequestError(f"{path} is not a run folder: it has no experiment.toml, and no runs below it")
    _name_apart(found.runs_data)
    found.warnings = [*_warnings(found.runs_data), *(said for run_data in singles for said in _remarks(run_data))]
    return found


def group_of(row: Mapping[str, Any]) -> str:
    """Return the group of a row's runs: its method, under its condition where there are several."""
    return f"{row['condition']}/{row['method']}" if row.get("condition") else str(row["method"])


def _read(run: Path, condition: str, method: str, of: str) -> RunData:
    group = group_of({"condition": condition, "method": f"{of}{method}"})
    run_data = RunData.read(run, f"{group}, {run.name}", group)
    run_data.condition, run_data.method_row = condition, method
    return run_data


def _cells(path: Path) -> Iterator[tuple[str, str, Path]]:
    """Return condition, method and folder of the runs of a comparison, finished or not; trials of tuning are none."""
    known = _known(path)
    told = {line.get("run_dir"): line for line in known.get("cells", ()) or _of_parent(path)}
    chosen = {(row.get("condition", ""), row.get("method")): row.get("tuned") for row in known.get("rows", ())}
    runs = [file.parent for deep in ("*/*", "*/*/*", "*/*/*/*") for file in path.glob(f"{deep}/experiment.toml")]
    for run in sorted(runs, key=lambda p: (p.parts[:-1], len(p.name), p.name)):
        parts = run.relative_to(path).parts
        if not (run / "events.jsonl").exists() or (known.get("trials") and parts[0] == FOLDER):
            continue
        *condition, method, _ = parts
        line = told.get(str(Path(*parts)), {"condition": "".join(condition), "method": method})
        place = line.get("condition", ""), line["method"]
        if (tuned := chosen.get(place)) and tuned.get("set") != line.get("set"):  # chosen by an earlier search
            continue
        yield *place, run


def _of_parent(path: Path) -> list[dict[str, Any]]:
    """Return the cells of a condition's own folder, as the comparison above it lists them: without the condition."""
    if (path / "comparison.json").exists():
        return []
    inside = f"{path.resolve().name}/"
    lines = [line for line in _known(path.resolve().parent).get("cells", ()) if _is_in(line, inside)]
    return [{**line, "condition": "", "run_dir": line["run_dir"].removeprefix(inside)} for line in lines]


def _is_in(line: Mapping[str, Any], folder: str) -> bool:
    return bool(line.get("condition")) and str(line.get("run_dir", "")).startswith(folder)


def _compared(path: Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Read the rows and remarks of a comparison; while it goes on there are none."""
    known = _known(path)
    try:
        rows = [row for row in known["rows"] if isinstance(row["method"], str)] if known else []
        return rows, [str(remark) for remark in known.get("remarks", ())]
    except (KeyError, TypeError) as error:
        raise RequestError(f"{path / 'comparison.json'} cannot be read: {error!r}") from None


def _tested(path: Path) -> Friedman | None:
    """Read the test of a comparison over its conditions."""
    try:
        return Friedman.from_json(told) if (told := _known(path).get("friedman")) else None
    except TypeError as error:
        raise RequestError(f"{path / 'comparison.json'} cannot be read: {error!r}") from None


def _known(path: Path) -> dict[str, Any]:
    """Read what a comparison wrote down; empty before it wrote anything."""
    told = path / "comparison.json"
    if not told.exists():
        return {}
    try:
        known = json.loads(told.read_text())
    except (OSError, ValueError) as error:
        raise RequestError(f"{told} cannot be read: {error!r}") from None
    if not isinstance(known, dict):
        raise RequestError(f"{told} cannot be read: it holds no table")
    return known


def _name_apart(runs_data: Sequence[RunData]) -> None:
    """Tell runs of one name apart by their folders."""
    same = Counter(run_data.name for run_data in runs_data)
    for run_data in runs_data:
        if same[run_data.name] > 1:
            apart = run_data.path.name if "seed-" not in run_data.path.name else str(run_data.path)
            alone = run_data.group == run_data.name
            run_data.name = f"{run_data.name} ({apart})"
            run_data.group = run_data.name if alone else run_data.group


def _warnings(runs_data: Sequence[RunData]) -> Iterator[str]:
    for run_data in runs_data:
        finished = bool(run_data.summary)  # which may find that it is damaged
        yield from (f"{run_data.name}: {said}" for said in run_data.warnings)
        if not finished:
            planned = run_data.asked("train", "rounds")
            yield f"{run_data.name} is not finished: {len(run_data)} of {planned} rounds are there"
    by_condition: dict[str, list[RunData]] = {}
    for run_data in runs_data:
        by_condition.setdefault(run_data.condition, []).append(run_data)
    yield from dict.fromkeys(said for own in by_condition.values() for said in unlike(own))


def _remarks(run_data: RunData) -> Iterator[str]:
    """Return what a run remarks of itself or, while it goes on, what is wrong with its training."""
    wrong = [f"round {fault.round}: {fault.why}" for fault in run_data.faults if fault.kind == "training"]
    told = run_data.summary.get("remarks", ()) if run_data.summary else wrong
    yield from (f"{run_data.name}: {said}" for said in told)


def unlike(runs_data: Sequence[RunData]) -> Iterator[str]:
    """Say what forbids to compare these runs."""
    by_seed: dict[Any, dict[Any, str]] = {}
    for run_data in runs_data:
        by_seed.setdefault(run_data.asked("train", "seed"), {}).setdefault(
            run_data.start.get("fingerprint"), run_data.name
        )
    data = {json.dumps(run_data.asked("data"), sort_keys=True, default=str): run_data.name for run_data in runs_data}
    clash = next((list(own.values()) for own in by_seed.values() if len(own) > 1), None)
    if len(data) > 1 or clash:
        one, other, *_ = clash or data.values()
        yield f"{one} and {other} were trained on different data: their figures cannot be compared"
    elif len(by_seed) > 1 and len({run_data.group for run_data in runs_data}) > 1 and not _paired(runs_data):
        yield "these runs have different seeds, and so different partitions and draws: they are not paired"


def _paired(runs_data: Sequence[RunData]) -> bool:
    """Say whether every group has the same seeds."""
    seeds: dict[str, set[Any]] = {}
    for run_data in runs_data:
        seeds.setdefault(run_data.group, set()).add(run_data.asked("train", "seed"))
    return len({frozenset(own) for own in seeds.values()}) == 1
