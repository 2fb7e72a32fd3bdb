"""A comparison: prepared and checked as a whole, then played cell by cell; `layout.py` says how its folder looks.

What is finished is never played again: the same command goes on where it was, and one with more methods, conditions or
seeds plays the new cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config import tables
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.files import write_atomically
from fedstrata.core.threads import cores
from fedstrata.data.federation import Federation
from fedstrata.engines.local.gpu import uses_gpu
from fedstrata.runs.compare import budget as budgets
from fedstrata.runs.compare.ablation import ablate_method
from fedstrata.runs.compare.cells import VERSION, Cell, listed
from fedstrata.runs.compare.control import side_differences
from fedstrata.runs.compare.design import Design, read_same
from fedstrata.runs.compare.friedman import Friedman, caution, friedman
from fedstrata.runs.compare.gpu_sharing import CELLS, can_share
from fedstrata.runs.compare.layout import lay_out, read_folder
from fedstrata.runs.compare.pool import Tell, in_turn, side_by_side, why_not
from fedstrata.runs.compare.request import Request
from fedstrata.runs.compare.rows import ACCURACY, Summaries, remarks_of, rows_of, values_of
from fedstrata.runs.compare.settings import Condition, Entry, Given
from fedstrata.runs.compare.tables import WIDTH, terminal_table, write_table
from fedstrata.runs.folder import Run, finite
from fedstrata.runs.metrics import Metric, metrics_of
from fedstrata.runs.training import with_given

WORTH_PROCESSES = 20.0  # seconds of work, by guess, below which starting processes takes longer than it saves


@dataclass
class Comparison:
    """Rows under conditions over several seeds. `run` plays what is left; `rows` sums up what is there.

    Attributes
    ----------
    path
        The folder.
    design
        What is compared: `entries` (methods and variants; the first is what the others are compared with),
        `conditions`, `seeds`, and the experiment of each row under each condition.
    cells
        One row under one condition with one seed each: `method`, `condition`, `seed`, `state`, `run` and, where it
        failed, `why`.
    notes
        What was found while the comparison was laid out.
    federation, model
        Data and network that came from Python.
    others
        Cells of earlier requests, as they are listed.
    metrics
        What is compared. Ranks, tests and the headline follow the first.

    Examples
    --------
    >>> import fedstrata
    >>> comparison = fedstrata.compare(methods=["fedavg", "sfl"], overrides={"train.rounds": 1}, out="runs/two")
    >>> [(row["method"], row["rounds"]["mean"]) for row in comparison.rows]
    [('fedavg', 1.0), ('sfl', 1.0)]
    >>> [cell.name for cell in fedstrata.Comparison.open("runs/two").cells]
    ['fedavg, seed 0', 'sfl, seed 0']
    """

    path: Path
    design: Design
    cells: list[Cell]
    notes: list[str] = field(default_factory=list)
    federation: Federation | None = None
    model: nn.Module | None = None
    others: list[dict[str, Any]] = field(default_factory=list)
    metrics: tuple[Metric, ...] = (ACCURACY,)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        federation: Federation | None = None,
        model: nn.Module | None = None,
        metric: Sequence[str] | str = (),
    ) -> Comparison:
        """Open the comparison that lies in a folder, as it was last asked for; `run` plays what is left of it.

        Parameters
        ----------
        path
            The folder, as in `out` of `compare`.
        federation, model
            Data and network that came from Python are passed again.
        metric
            What to compare, as in `compare`, where it is not what was asked for last: nothing is played again for it.

        Returns
        -------
        Comparison

        Raises
        ------
        RequestError
            If no comparison lies there, another version made it, or the data are not those of its runs.
        """
        return reopen(path, federation, model, metric)

    def __repr__(self) -> str:
        name = self.metrics[0].name
        means = [(r, r[name]["mean"]) for r in self.rows if r[name]["mean"] is not None]
        said = [f"{_title(r.get('condition', ''), r['method'])} {mean:.4f}" for r, mean in means]
        left = sum(cell.state != "finished" for cell in self.cells)
        return f"Comparison({str(self.path)!r}: {', '.join(said)}{f'; {left} cells not finished' if left else ''})"

    @property
    def entries(self) -> list[Entry]:
        """The rows: methods and variants of them."""
        return self.design.entries

    @property
    def conditions(self) -> list[Condition]:
        """The columns; without conditions one that has no name."""
        return self.design.conditions

    @property
    def seeds(self) -> list[int]:
        """The seeds, as numbers."""
        return self.design.seeds

    @property
    def base(self) -> dict[str, Any]:
        """What all cells have in common, as far as rows and conditions do not change it."""
        return self.design.base

    def done(self, condition: str = "") -> Summaries:
        """Return summaries of the finished cells of a condition, by method and seed.

        Parameters
        ----------
        condition
            Its name.

        Returns
        -------
        dict
        """
        there = [cell for cell in self.cells if cell.state == "finished" and cell.condition == condition]
        return {(cell.method, cell.seed): cell.outcome(self.metrics) for cell in there}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row a method, condition by condition: means, intervals, difference to the first method, rank."""
        rows = []
        for condition in self.conditions:
            own = {"condition": condition.name} if condition.name else {}
            done = self.done(condition.name)
            rows += [{**own, **row} for row in rows_of(self.entries, self.seeds, done, self.metrics)]
        return rows

    @property
    def friedman(self) -> Friedman | None:
        """Friedman's test of the methods over conditions, by the first metric; None where there is nothing to test.

        `ranks` are means over conditions, in each of which methods are ranked by their means over seeds; those closer
        than `critical_difference` (Nemenyi) cannot be told apart: `alike`.
        """
        metric = self.metrics[0]
        table: dict[str, list[float]] = {entry.name: [] for entry in self.entries}
        for condition in self.conditions:
            values = values_of(self.entries, self.seeds, self.done(condition.name), metric)
            for name, own in values.items():
                if own:
                    table[name].append(sum(own) / len(own))  # infinite where a seed never got there
        return friedman(metric.name, table, metric.lower)

    @property
    def remarks(self) -> list[str]:
        """What a reader of the rows should not miss."""
        said: dict[str, list[str]] = {}
        for condition in self.conditions:
            for remark in remarks_of(self.entries, self.seeds, self.done(condition.name), self.metrics):
                said.setdefault(remark, []).append(condition.name)
        everywhere = len(self.conditions)
        where = {text: "" if len(at) == everywhere else f"under {'; '.join(at)}: " for text, at in said.items()}
        rough = caution(tested) if (tested := self.friedman) else []
        return [*self.notes, *(f"{where[text]}{text}" for text in said), *rough]

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The finished runs of each method, in the order of the seeds; with conditions, by "CONDITION/METHOD"."""
        places = [(c.name, e.name) for c in self.conditions for e in self.entries]
        return {
            _title(*place): [c.run for c in self.cells if c.key[:2] == place and c.state == "finished"]
            for place in places
        }

    @property
    def failed(self) -> list[Cell]:
        """The cells that failed; each says why."""
        return [cell for cell in self.cells if cell.state == "failed"]

    def table(self, *, width: int = WIDTH, wide: bool = False) -> str:
        """Write the rows as a plain table.

        Parameters
        ----------
        width
            Of a line, in characters.
        wide
            Every figure, however wide that gets; with conditions, of one after another.

        Returns
        -------
        str
            With conditions, a column for each; with what each stage brings, where stages were ablated.
        """
        return terminal_table(self.rows, width, wide, self.friedman)

    def write_table(self, path: str | Path) -> None:
        """Write the rows into a file: LaTeX (`.tex`), Markdown (`.md`), or every figure as CSV (`.csv`).

        Parameters
        ----------
        path
            The file; its ending says in which format.

        Raises
        ------
        RequestError
            If the ending is another one, or the file cannot be written.
        """
        write_table(Path(path), self.rows)

    def run(self, *, jobs: int | None = None, watch: Tell | None = None) -> Comparison:
        """Play the cells that are not finished, so many at a time; by default one a core, where that pays.

        Parameters
        ----------
        jobs
            Cells at a time. Each takes memory of its own; the results are the same.
        watch
            Called with a cell and each of its events; the last is "finished" or "failed".

        Returns
        -------
        Comparison
            Itself. A cell that failed does not end the others: see `failed`.

        Raises
        ------
        RequestError
            If another process is running in the folder, or `jobs` is below 1 or more than parts that a script defines
            allow.
        """
        left = [cell for cell in self.cells if cell.state != "finished"]
        try:
            jobs = self._jobs(left, jobs)
        except RequestError:
            with suppress(OSError):  # nothing is left behind, unless it was there before
                self.path.rmdir()
            raise
        with Run(self.path).locked():
            self._write()

            def tell(cell: Cell, event: Mapping[str, Any]) -> None:
                kind = event["event"]
                if kind in ("begin", "finished", "failed"):
                    cell.state = "running" if kind == "begin" else kind
                    cell.why = event.get("why")
                    self._write()
                if watch is not None:
                    watch(cell, event)

            try:
                if jobs == 1:
                    in_turn(left, self.federation, self.model, tell)
                else:
                    side_by_side(left, self.federation, self.model, tell, jobs)
            finally:
                for cell in self.cells:
                    cell.state = "stopped" if cell.state == "running" else cell.state
                self._write(self.rows)
        return self

    def _jobs(self, left: Sequence[Cell], asked: int | None) -> int:
        if asked is not None and asked < 1:
            raise RequestError(f"jobs = {asked} must be at least 1")
        if not left or asked == 1 or len(left) == 1:
            return 1
        reason = why_not(left, self.federation, self.model)
        if reason is not None and asked is not None:
            raise RequestError(f"jobs = {asked}: {reason}; use 1")
        if asked is not None:
            return min(asked, len(left))
        engine = left[0].experiment.engine
        if uses_gpu(engine.device):
            return CELLS if can_share() and reason is None and len(left) > CELLS else 1
        if sum(cell.guess for cell in left) < WORTH_PROCESSES:
            return 1
        jobs = min(cores() // (1 if engine.workers == "auto" else engine.workers), len(left))
        if reason is not None and jobs > 1:
            self.notes = [*dict.fromkeys([*self.notes, f"cells were played one after another: {reason}"])]
        return jobs if jobs > 1 and reason is None else 1

    def _write(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        about = {
            "version": VERSION,
            **self.design.to_json(),
            "cells": [*self.others, *(listed(cell, self.path) for cell in self.cells)],
            "notes": self.notes,
            "metrics": [metric.name for metric in self.metrics],
            "rows": rows,
            "friedman": tested.to_json() if rows and (tested := self.friedman) else None,
            "remarks": self.remarks if rows else [],
        }
        write_atomically(self.path / "comparison.json", (json.dumps(finite(about), indent=2) + "\n").encode())


def compare(
    experiment: Mapping[str, Any] | str | Path | Experiment | None = None,
    *,
    methods: Sequence[str] | str = (),
    variants: Given = (),
    over: Mapping[str, Sequence[Any]] | None = None,
    conditions: Given = (),
    seeds: int | None = None,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    budget: str | None = None,
    ablate: Sequence[str] | str = (),
    same: Sequence[str] | str = (),
    metric: Sequence[str] | str = (),
    jobs: int | None = None,
    watch: Tell | None = None,
) -> Comparison:
    """Run every method under every condition with every seed, and sum the runs up.

    Parameters
    ----------
    experiment, overrides, federation, model
        As in `train`. What the table `[compare]` of a file asks for is done, unless it is asked for differently here.
    methods
        Names of recipes, with keys of their own where wanted: "scaffold(corrections.0.gradients=raw)". The first is
        what the others are compared with.
    variants
        Further rows by name, with the keys that they set: `{"slow": {"method.name": "fedyogi", "train.lr": 0.01}}`, or
        a list of such tables, whose names are made of what they set.
    over
        Keys with their values: one condition for every value, and where there are several keys, for every combination.
    conditions
        Conditions by name, with all the keys that they set, as with `variants`; with `over`, each with every value.
    seeds
        How many, counted up from the experiment's own; 1 if nothing says otherwise.
    out
        The folder of the runs, by default the next free one under `runs/`. A comparison that lies there goes on.
    budget
        What each run may spend: "rounds=100", "bytes=50MB", "client_updates=2000" or "time=3600" (virtual seconds).
    ablate
        Stages of the one method, or of the experiment's own, to put back to FedAvg's, one at a time.
    same
        Stages or keys in which all rows get what the first one has, such as "combiner" or "train.lr".
    metric
        What is compared, by default "accuracy"; of several, ranks and the headline follow the first. Figures of the
        summary, "best", "mean_last10" and "personal" for short, or what an accuracy took: "rounds_to:0.8",
        "bytes_to:0.8", "client_updates_to:0.8", "time_to:0.8"; "balanced_rounds_to:0.8" by the balanced accuracy.
    jobs, watch
        As in `Comparison.run`.

    Returns
    -------
    Comparison

    Raises
    ------
    RequestError
        If an experiment is wrong, two rows are the same, a method does not fit the data, or the folder holds
        something else; nothing was trained then.

    Examples
    --------
    >>> import fedstrata
    >>> comparison = fedstrata.compare(methods=["fedavg", "scaffold"], seeds=2, overrides={"train.rounds": 1})
    >>> [row["method"] for row in comparison.rows]
    ['fedavg', 'scaffold']
    >>> [run.summary["seed"] for run in comparison.runs["scaffold"]]
    [0, 1]
    >>> print(comparison.table())
    method    accuracy ...
    """
    request = Request.of(methods, variants, over or {}, conditions, seeds, budget, ablate, same, metric)
    prepared = prepare(experiment, request, overrides, federation, model, out)
    return prepared.run(jobs=jobs, watch=watch)


def prepare(
    experiment: Mapping[str, Any] | str | Path | Experiment | None,
    request: Request,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Check a whole comparison, so that what does not fit is refused before the first cell is played."""
    if out == "":
        raise RequestError("out is empty; name a folder, or leave it out")
    if "method.name" in (overrides or {}):
        raise RequestError("method.name cannot be set in a comparison; name the methods with --methods")
    source = experiment.dump() if isinstance(experiment, Experiment) else tables.read(experiment)
    asked = request.on_top_of(Request.from_table(source.pop("compare", {})))
    source.pop("paper", None)  # what is printed there decides nothing
    shared = tables.plain(with_given({**(overrides or {}), **budgets.overrides(asked.budget)}, federation, model))
    own = Experiment.of(source, **shared)
    entries, conditions = asked.entries(), asked.list_conditions()
    if not entries and not asked.ablate and conditions == [Condition("")]:
        raise RequestError("compare needs at least one method")
    if asked.ablate and len(entries) > 1:
        raise RequestError(f"--ablate takes one method apart, not {len(entries)}: {', '.join(e.name for e in entries)}")
    for setting in (*entries, *conditions):
        with_given(setting.overrides, federation, model)
    seeds = list(range(own.train.seed, own.train.seed + (asked.seeds or 1)))
    design = Design(source, shared, entries or [Entry(own.method.name)], conditions, seeds, read_same(asked.same))
    notes: list[str] = []
    if asked.ablate:
        whole = design.entries[0]
        without, notes = ablate_method(whole, design.experiments[conditions[0].name, whole.name], asked.ablate)
        design = replace(design, entries=[whole, *without])
    design.check()
    notes += side_differences(design)
    return _laid_out(None if out is None else Path(out), design, notes, federation, model, asked.metric)


def reopen(
    path: str | Path,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    metric: Sequence[str] | str = (),
) -> Comparison:
    """Take up the comparison that lies in a folder, as it was last asked for, or by another metric."""
    path = Path(path)
    known = read_folder(path)
    if known is None:
        raise RequestError(f"{path} is not the folder of a comparison: it has no comparison.json")
    return _laid_out(path, Design.from_json(known), known["notes"], federation, model, metric or known["metrics"])


def _laid_out(
    path: Path | None,
    design: Design,
    notes: list[str],
    federation: Federation | None,
    model: nn.Module | None,
    metric: Sequence[str] | str,
) -> Comparison:
    metrics = metrics_of(metric) if metric else (ACCURACY,)
    for one in metrics:
        if one.personal and not all(e.train.evaluate.personal for e in design.experiments.values()):
            raise RequestError(f'metric = "{one.name}" needs train.evaluate.personal = true in all runs')
    path, cells, others = lay_out(path, design, federation, model)
    return Comparison(path, design, cells, notes, federation, model, others, metrics)


def _title(condition: str, method: str) -> str:
    return f"{condition}/{method}" if condition else method
