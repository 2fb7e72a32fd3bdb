"""The design of a comparison: rows x conditions x seeds, each a cell, over one experiment.

A cell's experiment is what the file says, then what all cells share, then what its condition sets, then what its row
sets. Cells of a seed and a condition have the same data, so that rows are paired.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedstrata.config import tables
from fedstrata.config.experiment import Experiment
from fedstrata.config.open_stages import open_stages
from fedstrata.core.errors import RequestError
from fedstrata.data.validation import KEY as VALIDATION
from fedstrata.runs.compare.settings import Condition, Entry, describe, full_key, within
from fedstrata.runs.compare.tune import Tune
from fedstrata.runs.training import drop_changeable

KEYS = (
    "experiment",
    "set",
    "same",
    "methods",
    "conditions",
    "seeds",
    "tune",
)  # of a design, as comparison.json holds it


@dataclass(frozen=True)
class Design:
    """What a comparison holds; `experiments` has the experiment of each condition and row."""

    source: dict[str, Any]  # the tables of the experiment, as they were given
    shared: dict[str, Any]  # keys that are set on top of it for all cells
    entries: list[Entry]
    conditions: list[Condition]
    seeds: list[int] = field(default_factory=list)
    same: list[str] = field(default_factory=list)  # keys in which all rows have the value of the first
    tune: Tune = field(default_factory=Tune)

    @cached_property
    def base(self) -> dict[str, Any]:
        """What all cells have in common, as far as rows and conditions do not change it; seeds may be added."""
        table = drop_changeable(Experiment.of(self.source, **self.shared).dump())
        return {**table, "train": {key: value for key, value in table["train"].items() if key != "seed"}}

    @cached_property
    def experiments(self) -> dict[tuple[str, str], Experiment]:
        """The checked experiment of each condition and row, by their names."""
        return {(c.name, e.name): self.experiment(c, e) for c in self.conditions for e in self.entries}

    def check(self) -> None:
        """Refuse rows and conditions that cannot be compared, or that differ only in their names."""
        for entry in self.entries:
            for key in entry.overrides:
                if key.split(".")[0] == "data" or key == VALIDATION:
                    raise RequestError(
                        f"{entry.name} sets {key}: rows of a comparison share their data; vary it as a condition"
                    )
        for setting in (*self.entries, *self.conditions):
            if "train.seed" in setting.overrides:
                raise RequestError(f"{setting.name} sets train.seed; say how many seeds with seeds instead")
        for condition in self.conditions:
            if "method.name" in condition.overrides and (
                row := next((e.name for e in self.entries if "method.name" in e.overrides), None)
            ):
                raise RequestError(f"condition {condition.name} sets method.name, which the row {row} sets itself")
        for key in self.same:
            if own := next((e.name for e in self.entries[1:] if any(within(k, key) for k in e.overrides)), None):
                raise RequestError(f"same = {key}: the row {own} sets it itself")
        self._refuse_twins()

    def to_json(self) -> dict[str, Any]:
        """Return plain tables; `from_json` reads them back."""
        entries = [{"name": e.name, "without": e.without, "set": dict(e.overrides)} for e in self.entries]
        conditions = [{"name": c.name, "set": dict(c.overrides)} for c in self.conditions]
        values = (self.source, self.shared, self.same, entries, conditions, self.seeds, self.tune.to_json())
        return dict(zip(KEYS, values, strict=True))

    @classmethod
    def from_json(cls, known: Mapping[str, Any]) -> Design:
        """Read what `to_json` gave."""
        entries = [Entry(e["name"], e["set"], e["without"]) for e in known["methods"]]
        conditions = [Condition(c["name"], c["set"]) for c in known["conditions"]]
        own = known["seeds"], known["same"], Tune.of(known["tune"])
        return cls(known["experiment"], known["set"], entries, conditions, *own)

    def experiment(
        self,
        condition: Condition,
        entry: Entry,
        setting: Mapping[str, Any] | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> Experiment:
        """Return the checked experiment of a row under a condition, with a setting and what all trials set on top."""
        asked = _layered(self.shared, condition.overrides, entry.overrides)
        if self.same and entry is not self.entries[0]:
            whole = self.experiment(condition, self.entries[0])
            for key in self.same:
                if any(within(key, f"method.{stage}") for stage in open_stages(whole)):
                    raise RequestError(
                        f"same = {key}: {self.entries[0].name} chooses it by the data; put another first"
                    )
            first = whole.dump()
            asked = _layered(asked, {key: tables.look_up(first, key) for key in self.same})
        try:
            whole = Experiment.of(self.source, **_layered(asked, setting or {}, more or {}))
            return whole.model_copy(update={"name": None})  # rows are called by what they set
        except RequestError as error:
            own = entry.name if set(entry.overrides) - {"method.name"} or setting else ""
            where = [condition.name, own, describe(setting) if setting else ""]
            said = ", ".join(filter(None, where))
            raise RequestError(f"{said}: {error}" if said else str(error)) from error

    def _refuse_twins(self) -> None:
        """Refuse cells that are the same but for their names: a row or a column would only say another's again."""
        refuse_same_rows({place: resolved(own) for place, own in self.experiments.items()})
        columns: dict[str, str] = {}
        for condition in self.conditions:
            own = json.dumps([resolved(self.experiments[condition.name, e.name]) for e in self.entries])
            if own in columns:
                raise RequestError(f"conditions {columns[own]} and {condition.name} are the same; leave one out")
            columns[own] = condition.name


def refuse_same_rows(told: Mapping[tuple[str, str], str]) -> None:
    """Refuse rows of which the same decides their figures; it is told by condition and row."""
    seen: dict[tuple[str, str], str] = {}
    for (condition, name), own in told.items():
        if (other := seen.setdefault((condition, own), name)) != name:
            where = f" under {condition}" if condition else ""
            raise RequestError(
                f"{other} and {name} are the same here{where}: what the experiment sets for all replaces what makes "
                "them differ, or they differ in nothing; leave that, or one of them, out"
            )


def with_seed(experiment: Experiment, seed: int) -> Experiment:
    """Return the experiment with another seed."""
    return experiment.model_copy(update={"train": experiment.train.model_copy(update={"seed": seed})})


def read_same(keys: Sequence[str]) -> list[str]:
    """Return the keys that all rows shall have in common, in full."""
    full = [full_key(key, "same") for key in keys]
    for key in full:
        if key in ("method", "method.name", "train.seed") or key.split(".")[0] == "data":
            raise RequestError(f"same = {key}: name a stage, such as combiner, or a key, such as train.lr")
    return full


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    """Put keys over each other; a later layer is also applied later, so that `a` does not undo a later `a.b`."""
    asked: dict[str, Any] = {}
    for layer in layers:
        for key, value in _keys(layer).items():
            asked.pop(key, None)
            asked[key] = value
    return asked


def _keys(layer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that a layer sets, so that it leaves alone what a layer below sets in the same table.

    Data that are named are a whole: nothing stays of other data.
    """
    whole = {key: value for key, value in layer.items() if key == "data" and "name" in value}
    return {**whole, **tables.flatten({key: value for key, value in layer.items() if key not in whole})}


def resolved(experiment: Experiment) -> str:
    """Return what decides a cell's figures, but for the seed: neither the method's name nor who chose its stages."""
    table = drop_changeable(experiment.dump())
    for key in ("name", "chosen"):
        table["method"].pop(key, None)
    return json.dumps(table, sort_keys=True)
