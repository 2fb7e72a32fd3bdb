"""From a design to cells: everything is checked, and what a folder holds already is found, before anything is played.

OUT/comparison.json                  the design, every cell with its state, rows, remarks
OUT/METHOD/seed-N                    a run folder for each cell
OUT/CONDITION/METHOD/seed-N          the same where there are conditions

A cell is known again by a hash of its experiment, its data and the versions that figures depend on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.plan import per_round
from fedstrata.data.federation import Federation
from fedstrata.engines.local.cost import Guess
from fedstrata.runs.compare import design as designs
from fedstrata.runs.compare.cells import VERSION, Cell, first_weights, identity
from fedstrata.runs.compare.design import Design, with_seed
from fedstrata.runs.compare.settings import Condition, folder_name
from fedstrata.runs.folder import LOCK, Run
from fedstrata.runs.session import check_experiment, with_devices
from fedstrata.runs.training import differences, fixed

KEYS = ("version", *designs.KEYS, "metrics", "cells", "notes")  # of comparison.json; others come from the runs


def lay_out(
    path: Path | None, design: Design, federation: Federation | None, model: nn.Module | None
) -> tuple[Path, list[Cell], list[dict[str, Any]]]:
    """Check that all rows fit the data of all conditions; return the folder, the cells, and others that lie there."""
    known = None if path is None else read_folder(path)
    if path is not None and known is not None:
        _refuse_another(path, known, design)
    planned = list(_planned(design, federation, model))
    path = path or Run.claim(Path("runs"), "compare")
    path.mkdir(parents=True, exist_ok=True)
    lines = {} if known is None else {_key(line): line for line in known["cells"]}
    cells = []
    for cell in planned:
        cell.path = path / cell.path
        if (line := lines.pop(cell.key, None)) is not None:
            _refuse_changed(cell, line)
        cell.state = "finished" if cell.run.summary else "waiting"
        cells.append(cell)
    return path, cells, list(lines.values())


def read_folder(path: Path) -> dict[str, Any] | None:
    """Read the comparison in a folder; None if it is empty or not there."""
    if path.is_file():
        raise RequestError(f"{path} is a file; a comparison needs a folder of its own")
    if not path.is_dir() or all(file.name == LOCK for file in path.iterdir()):
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


def _planned(design: Design, federation: Federation | None, model: nn.Module | None) -> Iterator[Cell]:
    """Give all cells in the order of play: by seed, and those that share data together, so that each is built once."""
    guesses: dict[tuple[str, str], float] = {}
    weights: dict[str | None, str | None] = {}
    first = design.entries[0].name
    for seed in design.seeds:
        for conditions in _by_data(design):
            data = federation or build_federation(with_seed(design.experiments[conditions[0].name, first], seed))
            prints: dict[Any, str] = {}
            for condition in conditions:
                for entry in design.entries:
                    place = condition.name, entry.name
                    one = with_seed(design.experiments[place], seed)
                    if place not in guesses:
                        guesses[place] = guess_seconds(", ".join(filter(None, place)), one, data, model)
                    devices = one.system.speed, one.system.bandwidth
                    if devices not in prints:
                        prints[devices] = with_devices(one, data).fingerprint
                    init = one.model.init
                    if init not in weights:
                        weights[init] = first_weights(init, model)
                    key = identity(one, prints[devices], weights[init])
                    where = Path(*map(folder_name, filter(None, place)), f"seed-{seed}")
                    yield Cell(*place, seed, one, where, prints[devices], key, guesses[place])


def _by_data(design: Design) -> list[list[Condition]]:
    """Put conditions that share their data together."""
    groups: dict[str, list[Condition]] = {}
    for condition in design.conditions:
        asked = design.experiments[condition.name, design.entries[0].name].data
        groups.setdefault(asked.model_dump_json(), []).append(condition)
    return list(groups.values())


def guess_seconds(name: str, experiment: Experiment, data: Federation, model: nn.Module | None) -> float:
    """Assemble a method as its runs will, and guess how long one takes on one core."""
    try:
        data, plan = check_experiment(experiment, data, model)
    except RequestError as error:
        raise RequestError(f"{name} cannot be compared: {error}") from error
    client_updates = plan.rounds * min(per_round(plan.clients_per_round, len(data)), len(data))
    return Guess.of(plan.local, data, client_updates).seconds


def _key(line: Mapping[str, Any]) -> tuple[str, str, int]:
    return line["condition"], line["method"], line["seed"]


def _refuse_another(path: Path, known: Mapping[str, Any], design: Design) -> None:
    if known["version"] != VERSION:
        raise RequestError(
            f"{path} was made by {known['version']}, and this is {VERSION}: figures may differ; choose another folder"
        )
    if edits := differences(Design.from_json(known).base, design.base):
        raise RequestError(f"{path} holds a comparison of another experiment ({edits}); choose another folder")


def _refuse_changed(cell: Cell, line: Mapping[str, Any]) -> None:
    """Refuse to put other results beside those that are there."""
    if line["hash"] == cell.hash:
        return
    if line["data"] != cell.data:
        raise RequestError(f"the data of seed {cell.seed} are not those that {cell.path} was made with")
    edits = ""
    with suppress(RequestError):
        edits = differences(fixed(Experiment.of(cell.path / "experiment.toml").dump()), fixed(cell.experiment.dump()))
    raise RequestError(
        f"{cell.path} holds a run of another experiment ({edits or 'its first weights differ'}); choose another folder"
    )
