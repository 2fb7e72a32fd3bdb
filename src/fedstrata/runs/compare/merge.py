"""Put the cells that several machines made into one folder.

Folders must hold the same comparison. A cell goes by its hash: what is not the same cell is refused, what is there is
never written over, and of a cell that two folders have, the one that is finished counts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.files import write_atomically, writing_to
from fedstrata.runs.compare import design as designs
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.layout import Planner, read_folder
from fedstrata.runs.compare.optuna_search import JOURNAL
from fedstrata.runs.compare.search import FOLDER, is_trial
from fedstrata.runs.folder import Run, finite
from fedstrata.runs.training import drop_changeable, name_differences

SAME = ("version", *designs.KEYS)

Line = Mapping[str, Any]  # of a cell, as comparison.json has it


def merge_folders(out: Path, folders: Sequence[Path], planner: Planner) -> None:
    """Put the cells of several folders of one comparison into one; all is checked before anything is written."""
    if not folders:
        raise RequestError("merge needs folders whose runs it puts together")
    there = read_folder(out)
    known = {**({} if there is None else {out: there}), **{folder: _read(folder) for folder in folders}}
    (first, one), *others = known.items()
    for folder, other in others:
        _refuse_another(first, one, folder, other)
    lines = _lines(known)
    _refuse_strange(Design.from_json(one), lines, planner)
    moves = {run: folder / run for run, (folder, _) in lines.items() if _comes(out / run, folder / run)}
    moves |= _journals(out, [folder for folder in known if folder != out])
    with writing_to(out):
        out.mkdir(parents=True, exist_ok=True)
        with Run(out).locked():
            for run, source in moves.items():
                _copy(source, out / run)
            written = [{**line, "run_dir": run} for run, (_, line) in lines.items()]
            cells, trials = ([line for line in written if is_trial(line) is tried] for tried in (False, True))
            about = {**one, "cells": cells, "trials": trials, "rows": [], "remarks": []}
            write_atomically(out / "comparison.json", (json.dumps(finite(about), indent=2) + "\n").encode())


def _read(folder: Path) -> dict[str, Any]:
    known = read_folder(folder)
    if known is None:
        raise RequestError(f"{folder} is not the folder of a comparison: it has no comparison.json")
    if Run(folder).running:
        raise RequestError(f"another process is running in {folder}")
    return known


def _names(rows: Any) -> Any:
    """Return rows or conditions by their names, which say more than what they set."""
    named = isinstance(rows, list) and all(isinstance(row, Mapping) and "name" in row for row in rows)
    return [row["name"] for row in rows] if named else rows


def _refuse_another(first: Path, one: Mapping[str, Any], folder: Path, other: Mapping[str, Any]) -> None:
    for key in SAME:
        if one[key] != other[key]:
            named = _names(one[key]), _names(other[key])
            edits = name_differences(*(named if named[0] != named[1] else (one[key], other[key])), key)
            raise RequestError(f"{first} and {folder} do not hold the same comparison ({edits:.300}); merge what does")


def _lines(known: Mapping[Path, Mapping[str, Any]]) -> dict[str, tuple[Path, Line]]:
    """Return every cell once, with the folder that has most of it."""
    lines: dict[str, tuple[Path, Line]] = {}
    for folder, about in known.items():
        for line in (*about["cells"], *about["trials"]):
            run = line["run_dir"]
            if run not in lines:
                lines[run] = folder, line
                continue
            before, theirs = lines[run]
            if theirs["hash"] != line["hash"]:
                what = "data" if theirs["data"] != line["data"] else "experiments"
                raise RequestError(f"{run} in {before} and in {folder} are not the same run: their {what} differ")
            if _progress(folder / run) > _progress(before / run):
                lines[run] = folder, line
    return lines


def _refuse_strange(design: Design, lines: Mapping[str, tuple[Path, Line]], planner: Planner) -> None:
    """Refuse runs that are not what the comparison would make of the data that are here."""
    conditions = {condition.name: condition for condition in design.conditions}
    entries = {entry.name: entry for entry in design.entries}
    for run, (folder, line) in sorted(lines.items(), key=lambda own: own[1][1]["seed"]):  # data are built once a seed
        place = line["condition"], line["method"]
        if place[0] not in conditions or place[1] not in entries:
            continue  # of an earlier request: it comes along, and has no part in the table
        setting, more = line.get("set", {}), design.tune.overrides if is_trial(line) else None
        experiment = design.experiment(conditions[place[0]], entries[place[1]], setting, more)
        cell = planner.cell(place, line["seed"], experiment, folder, setting)
        if cell.hash != line["hash"]:
            raise RequestError(f"{folder / run} was made with other data or first weights than those that are here")
        file = folder / run / "experiment.toml"
        if file.exists() and (
            edits := name_differences(
                drop_changeable(cell.experiment.dump()), drop_changeable(Experiment.of(file).dump())
            )
        ):
            raise RequestError(f"{file} is not that of the comparison ({edits:.300})")


def _progress(run: Path) -> int:
    """Say how far a run is: nothing, begun, finished."""
    return (run / "experiment.toml").exists() + (run / "summary.json").exists()


def _comes(target: Path, source: Path) -> bool:
    """Say whether a run has to be copied; one that is begun in both places is left as it is."""
    return target != source and _progress(source) > 0 and _progress(target) == 0


def _journals(out: Path, folders: Sequence[Path]) -> dict[str, Path]:
    """Find what Optuna wrote; two machines cannot both have searched for one row."""
    found: dict[str, Path] = {}
    for folder in (out, *folders):
        for file in sorted(folder.glob(f"{FOLDER}/**/{JOURNAL}")):
            name = str(file.relative_to(folder))
            if name in found and found[name].read_bytes() != file.read_bytes():
                raise RequestError(
                    f"{found[name]} and {file} are two searches for one row; they cannot be put together"
                )
            found.setdefault(name, file)
    return {name: file for name, file in found.items() if file != out / name}


def _copy(source: Path, target: Path) -> None:
    """Copy a folder or a file under another name first: what has its name is whole."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    if source.is_dir():
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(source, part)
    else:
        shutil.copyfile(source, part)
    part.rename(target)
