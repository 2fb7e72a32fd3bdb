"""A comparison: laid out and checked as a whole, then played cell by cell; `layout.py` says how its folder looks.

What is finished is never played again: the same command goes on where it was, and one with more methods, conditions or
seeds plays the new cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.core.errors import RequestError
from fedstrata.core.files import write_atomically
from fedstrata.core.threads import cores
from fedstrata.data.federation import Federation
from fedstrata.engines.local.gpu import uses_gpu
from fedstrata.runs.compare.cells import VERSION, Cell, listed
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.friedman import Friedman, caution, friedman
from fedstrata.runs.compare.gpu_sharing import CELLS, can_share
from fedstrata.runs.compare.layout import lay_out, read_folder
from fedstrata.runs.compare.pool import Tell, in_turn, side_by_side, why_not
from fedstrata.runs.compare.rows import ACCURACY, Summaries, remarks_of, rows_of, values_of
from fedstrata.runs.compare.settings import Condition, Entry
from fedstrata.runs.compare.tables import WIDTH, terminal_table, write_table
from fedstrata.runs.folder import Run, finite
from fedstrata.runs.metrics import Metric, metrics_of

FEW = 3  # conditions that a remark names one by one
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
        path = Path(path)
        known = read_folder(path)
        if known is None:
            raise RequestError(f"{path} is not the folder of a comparison: it has no comparison.json")
        return laid_out(path, Design.from_json(known), known["notes"], federation, model, metric or known["metrics"])

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
        many, told = len(self.conditions), []
        for text, at in said.items():
            where = f"under {'; '.join(at)}: " if len(at) <= FEW else f"under {len(at)} of {many} conditions: "
            told.append(text if len(at) == many else f"{where}{text}")
        rough = caution(tested) if (tested := self.friedman) else []
        return [*self.notes, *told, *rough]

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


def laid_out(
    path: Path | None,
    design: Design,
    notes: list[str],
    federation: Federation | None,
    model: nn.Module | None,
    metric: Sequence[str] | str,
) -> Comparison:
    """Check a design and find out what a folder holds of it already; nothing is played yet."""
    metrics = metrics_of(metric) if metric else (ACCURACY,)
    for one in metrics:
        if one.personal and not all(e.train.evaluate.personal for e in design.experiments.values()):
            raise RequestError(f'metric = "{one.name}" needs train.evaluate.personal = true in all runs')
    path, cells, others = lay_out(path, design, federation, model)
    return Comparison(path, design, cells, notes, federation, model, others, metrics)


def _title(condition: str, method: str) -> str:
    return f"{condition}/{method}" if condition else method
