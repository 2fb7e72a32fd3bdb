"""From a design to cells: everything is checked, and what a folder holds already is found, before anything is run.

OUT/comparison.json                  the design, every cell with its state, rows, remarks
OUT/METHOD/seed-N                    a run folder for each cell
OUT/CONDITION/METHOD/seed-N          the same where there are conditions
OUT/METHOD/SETTING/seed-N            the same with the setting that tuning chose
OUT/tuning/METHOD/SETTING/seed-N     a trial of tuning

A cell is known again by a hash of its experiment, its data and the versions that figures depend on.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.config.open_stages import open_stages
from fedstrata.core.errors import RequestError
from fedstrata.core.plan import per_round
from fedstrata.core.storage.files import PART
from fedstrata.data.federation import Federation
from fedstrata.engines.local.cost import Guess
from fedstrata.runs.compare import design as designs
from fedstrata.runs.compare.cells import VERSION, Cell, first_weights, identity
from fedstrata.runs.compare.design import Design, refuse_same_rows, resolved, with_seed
from fedstrata.runs.compare.settings import Condition, describe, folder_name
from fedstrata.runs.compare.shards import is_lock
from fedstrata.runs.session import as_asked, check_experiment
from fedstrata.runs.stage_choices import choose_stages
from fedstrata.runs.training import drop_changeable, name_differences

KEYS = (
    "version",
    *designs.KEYS,
    "metrics",
    "cells",
    "trials",
    "notes",
)  # of comparison.json; others come from the runs

Chosen = Mapping[tuple[str, str], Mapping[str, Any] | None]  # what tuning chose, by condition and row; None: not yet


class Planner:
    """Makes cells: checks that each experiment fits its data, and hashes what decides its figures."""

    def __init__(self, federation: Federation | None, model: nn.Module | None):
        self._given, self._model = federation, model
        self._last: tuple[str, Federation] | None = None  # data that were built last: neighbours share them
        self._prints: dict[str, str] = {}
        self._guesses: dict[str, float] = {}
        self._weights: dict[str | None, str | None] = {}

    def cell(
        self, place: tuple[str, str], seed: int, experiment: Experiment, root: Path, setting: Mapping[str, Any]
    ) -> Cell:
        """Return the cell of a row under a condition with one seed; its folder lies under the root."""
        one = with_seed(experiment, seed)
        named = [name for name in (*place, describe(setting)) if name]
        held = one.system.speed, one.system.bandwidth, one.train.evaluate.validation
        known = json.dumps([one.data.model_dump(mode="json"), seed, repr(held)])
        if known not in self._prints:
            self._prints[known] = as_asked(one, self._data(one)).fingerprint
        fits = resolved(experiment)
        if fits not in self._guesses:
            self._guesses[fits] = guess_seconds(", ".join(named), one, self._data(one), self._model)
        init = one.model.init
        if init not in self._weights:
            self._weights[init] = first_weights(init, self._model)
        if open_stages(one):
            one, _ = choose_stages(one, as_asked(one, self._data(one)), self._model)
        key = identity(one, self._prints[known], self._weights[init])
        path = root.joinpath(*map(folder_name, named), f"seed-{seed}")
        return Cell(*place, seed, one, path, self._prints[known], key, self._guesses[fits], dict(setting))

    def _data(self, experiment: Experiment) -> Federation:
        if self._given is not None:
            return self._given
        asked = json.dumps([experiment.data.model_dump(mode="json"), experiment.train.seed])
        if self._last is None or self._last[0] != asked:
            self._last = asked, build_federation(experiment)
        return self._last[1]


def plan_cells(design: Design, planner: Planner, root: Path, chosen: Chosen) -> list[Cell]:
    """Return all cells in the order of execution: by seed, and those that share data together, to build each once.

    A row that is tuned has its setting or, where that is not chosen yet, cells without a hash, which are not run.
    """
    cells = []
    for seed in design.seeds:
        for condition in order_by_data(design):
            for entry in design.entries:
                place = condition.name, entry.name
                setting = chosen.get(place, {})
                cell = planner.cell(place, seed, design.experiment(condition, entry, setting), root, setting or {})
                cells.append(replace(cell, hash="") if setting is None else cell)
    return cells


def refuse_same_choices(design: Design, cells: Sequence[Cell]) -> None:
    """Refuse a row whose recipe chose with every seed, by the data, what another row has."""
    if not any(map(open_stages, design.experiments.values())):
        return
    told: dict[tuple[str, str], str] = {}
    for cell in cells:
        place = cell.condition, cell.method
        told[place] = told.get(place, "") + resolved(with_seed(cell.experiment, 0)) + str(cell.seed)
    refuse_same_rows(told)


def find_state(cell: Cell, line: Mapping[str, Any] | None) -> None:
    """Give a cell the state in which it lies in the folder; `line` is what comparison.json says of it."""
    if line is not None:
        _refuse_changed(cell, line)
    cell.state = "finished" if cell.has_outcome else "waiting"


def find_states(cells: Sequence[Cell], lines: Sequence[dict[str, Any]], root: Path) -> list[dict[str, Any]]:
    """Do so for many; return the lines that are of none of them."""
    left = {line["run_dir"]: line for line in lines}
    for cell in cells:
        if cell.hash:
            find_state(cell, left.pop(str(cell.path.relative_to(root)), None))
    return list(left.values())


def order_by_data(design: Design) -> list[Condition]:
    """Put conditions that share their data together."""
    groups: dict[str, list[Condition]] = {}
    for condition in design.conditions:
        asked = design.experiments[condition.name, design.entries[0].name].data
        groups.setdefault(asked.model_dump_json(), []).append(condition)
    return [condition for group in groups.values() for condition in group]


def read_folder(path: Path) -> dict[str, Any] | None:
    """Read the comparison in a folder; None if it is empty or not there."""
    if path.is_file():
        raise RequestError(f"{path} is a file; a comparison needs a folder of its own")
    half_written = f"comparison.json{PART}"  # by one that was killed before there was anything
    if not path.is_dir() or all(is_lock(file.name) or file.name == half_written for file in path.iterdir()):
        return None
    try:
        known: dict[str, Any] = json.loads((path / "comparison.json").read_text())
        missing = [key for key in KEYS if key not in known]
    except FileNotFoundError:
        raise RequestError(f"{path} holds other files; a comparison needs a folder of its own") from None
    except ValueError as error:
        raise RequestError(f"{path}/comparison.json is damaged: {error}") from None
    if missing:
        raise RequestError(f"{path}/comparison.json has no {' and no '.join(missing)}; choose another folder")
    return known


def guess_seconds(name: str, experiment: Experiment, data: Federation, model: nn.Module | None) -> float:
    """Assemble a method as its runs will, and guess how long one takes on one core."""
    try:
        data, plan = check_experiment(experiment, data, model)
    except RequestError as error:
        raise RequestError(f"{name} cannot be compared: {error}") from error
    client_updates = plan.rounds * min(per_round(plan.clients_per_round, len(data)), len(data))
    return Guess.of(plan.local, data, client_updates).seconds


def refuse_another(path: Path, known: Mapping[str, Any], design: Design) -> None:
    """Refuse to go on with the comparison of another experiment or of another version."""
    if known["version"] != VERSION:
        raise RequestError(
            f"{path} was made by {known['version']}, and this is {VERSION}: figures may differ; choose another folder"
        )
    if edits := name_differences(Design.from_json(known).base, design.base):
        raise RequestError(f"{path} holds a comparison of another experiment ({edits}); choose another folder")


def _refuse_changed(cell: Cell, line: Mapping[str, Any]) -> None:
    """Refuse to put other results beside those that are there."""
    if line["hash"] == cell.hash:
        return
    if line["data"] != cell.data:
        raise RequestError(f"the data of seed {cell.seed} are not those that {cell.path} was made with")
    edits = ""
    with suppress(RequestError):
        edits = name_differences(
            drop_changeable(Experiment.of(cell.path / "experiment.toml").dump()),
            drop_changeable(cell.experiment.dump()),
        )
    raise RequestError(
        f"{cell.path} holds a run of another experiment ({edits or 'its first weights differ'}); choose another folder"
    )
