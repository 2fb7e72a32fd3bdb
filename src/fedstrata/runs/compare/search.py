"""The search for each row's best setting under each condition: trials are cells, and are run like others.

A trial is scored on samples that clients hold out of their own training data, with seeds that the comparison does not
have: neither the test set nor the draws of the comparison have a part in what is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedstrata.runs.amounts import write_bytes, write_seconds
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.choice import Choice, Trial, choose, total
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.layout import Planner, find_state, order_by_data
from fedstrata.runs.compare.settings import Condition, Entry
from fedstrata.runs.compare.tune import Setting
from fedstrata.runs.metrics import Criterion

FOLDER = "tuning"

Place = tuple[str, str]  # a condition and a row, by their names
RunCells = Callable[[Sequence[Cell]], bool]  # runs cells; whether all were run before the time was up


@dataclass
class Search:
    """A search over a grid: every setting of every row under every condition, with every seed."""

    design: Design
    planner: Planner
    root: Path  # the comparison's folder
    metric: Criterion
    lines: Mapping[str, Mapping[str, Any]] | None = None  # of trials that lie there, by folder; None: nothing does
    trials: dict[Place, list[Trial]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places = {
            (condition.name, entry.name): (condition, entry)
            for condition in order_by_data(self.design)
            for entry in self.design.entries
            if self.design.tune.space(entry)
        }
        self.seeds = self.design.tune.list_seeds(min(self.design.seeds))
        self.trials = {place: [] for place in self.places}
        self.lay_out()

    @property
    def cells(self) -> list[Cell]:
        """The cells of all trials that are known, but for those that a trial which has ended never began."""
        known = [(trial, cell) for trials in self.trials.values() for trial in trials for cell in trial.cells]
        return list({c.path: c for trial, c in known if not (trial.ended and c.state == "waiting")}.values())

    def lay_out(self) -> None:
        """Make the trials; every setting is checked before one is run."""
        cells: dict[tuple[Place, int], list[Cell]] = {}
        for seed in self.seeds:  # the data of a seed are built once
            for place, (condition, entry) in self.places.items():
                for at, setting in enumerate(self.design.tune.grid(entry)):
                    cells.setdefault((place, at), []).append(self.cell(condition, entry, setting, seed))
        for (place, _), own in cells.items():
            self.trials[place].append(Trial(own[0].setting, own))

    def cell(self, condition: Condition, entry: Entry, setting: Setting, seed: int) -> Cell:
        """Return the cell that tries a setting with a seed, as it lies in the folder."""
        experiment = self.design.experiment(condition, entry, setting, self.design.tune.overrides)
        cell = self.planner.cell((condition.name, entry.name), seed, experiment, self.root / FOLDER, setting)
        cell.trial = True
        if self.lines is not None:
            line = self.lines.get(str(cell.path.relative_to(self.root)), {})
            find_state(cell, line or None)
            if cell.state == "waiting" and line.get("state") == "failed":  # it is tried again, but counts until then
                cell.state, cell.why = "failed", line.get("why")
        return cell

    def run(self, run_cells: RunCells, places: Sequence[Place]) -> bool:
        """Run what is left of the search for some places; say whether all was run."""
        order = {seed: at for at, seed in enumerate(self.seeds)}
        left = [c for p in places for t in self.trials.get(p, ()) for c in t.cells if c.state != "finished"]
        return run_cells(sorted(left, key=lambda cell: order[cell.seed]))

    def refresh(self) -> None:
        """See what others have tried in the same folder."""
        for cell in self.cells:
            if cell.state == "waiting" and cell.has_outcome:
                cell.state = "finished"

    def watch(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """See an event of a trial; a grid is tried as a whole."""

    def settled(self, place: Place) -> bool:
        """Say whether all trials of a place have ended."""
        return all(trial.ended for trial in self.trials[place])

    def choices(self) -> dict[Place, Choice | None]:
        """Return what was chosen for each place that is tuned; None where the search has not ended."""
        tune, metric = self.design.tune, self.metric
        return {
            place: choose(self.trials[place], tune.space(entry), metric) if self.settled(place) else None
            for place, (_, entry) in self.places.items()
        }


def is_trial(line: Mapping[str, Any]) -> bool:
    """Say whether a line of comparison.json is that of a trial."""
    return Path(line["run_dir"]).parts[0] == FOLDER


def settings_of(choices: Mapping[Place, Choice | None]) -> dict[Place, Setting | None]:
    """Return what was chosen; None where nothing was yet."""
    return {place: None if choice is None else choice.setting for place, choice in choices.items()}


def describe_search(search: Search, choices: Mapping[Place, Choice | None]) -> list[str]:
    """Say what a reader should know of a search: what it was made on, what it cost, and where it may end too early."""
    known = {place: choice for place, choice in choices.items() if choice is not None}
    if not known:
        return []
    spent, trials = total([choice.cost for choice in known.values()]), sum(choice.trials for choice in known.values())
    seeds = search.seeds
    with_seeds = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {seeds[0]} to {seeds[-1]}"
    share = search.design.tune.overrides["train.evaluate.validation"]
    said = [
        f"tuned by {search.metric.name} on {100 * share:g} % of every client's training samples, held out, with "
        f"{with_seeds}: {trials} settings tried took {spent['rounds']:,.0f} rounds, {spent['client_updates']:,.0f} "
        f"client updates, {write_bytes(spent['bytes'])} and {write_seconds(spent['seconds'])}, which the rows leave out"
    ]
    found: dict[str, list[str]] = {}
    for (condition, row), choice in known.items():
        name = row + (f" ({condition})" if condition else "")
        for edge in choice.edges:
            found.setdefault(f"{edge}; more beyond it may be better", []).append(name)
        if choice.equals > 1:
            text = f"{choice.equals} of {choice.trials} settings came out equal in tuning; the first was taken"
            found.setdefault(text, []).append(name)
        if choice.failed:
            found.setdefault(f"{choice.failed} of {choice.trials} settings failed in tuning", []).append(name)
        if choice.value == float("inf"):
            text = f"no setting reached {search.metric.target:g} in tuning; the most accurate was chosen"
            found.setdefault(text, []).append(name)
    return said + [f"{', '.join(names)}: {text}" for text, names in found.items()]
