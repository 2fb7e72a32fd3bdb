"""A comparison at work: trials and cells are run, and comparison.json says after each how far all has come."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedstrata.core.storage.files import write_atomically
from fedstrata.engines.ray.cluster import load_ray
from fedstrata.runs.compare.cells import VERSION, Cell, to_line
from fedstrata.runs.compare.layout import find_states, plan_cells
from fedstrata.runs.compare.live import showing
from fedstrata.runs.compare.pool import ENDS, Tell
from fedstrata.runs.compare.queue import Deadline, check_jobs, choose_jobs, run_cells
from fedstrata.runs.compare.ray_cells import LOCAL, check_engine_name, refuse_nested
from fedstrata.runs.compare.search import is_trial, settings_of
from fedstrata.runs.compare.shards import Shard
from fedstrata.runs.folder import finite

if TYPE_CHECKING:
    from fedstrata.runs.compare.comparison import Comparison


class Execution:
    """One `Comparison.run`: a share of the cells, so many at a time, until a deadline; what cannot be is refused."""

    def __init__(self, comparison: Comparison, shard: Shard, deadline: Deadline, jobs: int | None, engine: str):
        self._comparison, self._shard, self._deadline = comparison, shard, deadline
        self._jobs, self._engine = jobs, engine
        unfinished = [cell for cell in (*self._trials(), *self._share()) if cell.state != "finished"]
        check_engine_name(engine)
        if engine == LOCAL:
            choose_jobs(unfinished, comparison.federation, comparison.model, jobs)
        else:
            load_ray()
            check_jobs(jobs)
            refuse_nested(unfinished)

    def run(self, watch: Tell | None, progress: bool) -> None:
        """Run what is left: trials first, where rows are tuned, then the cells that are compared."""
        comparison = self._comparison
        with self._shard.locked(comparison.path), showing(progress, comparison, watch) as watched:
            self._write()

            def tell(cell: Cell, event: Mapping[str, Any]) -> None:
                self._note(cell, event)
                watched(cell, event)
                if comparison.search is not None:
                    comparison.search.watch(cell, event)

            try:
                places = list(dict.fromkeys(cell.key[:2] for cell in self._share()))
                search = comparison.search
                if search is None or search.run(lambda trials: self._run_cells(trials, tell), places):
                    self._take_choices()
                    self._run_cells([cell for cell in self._share() if cell.hash and cell.state != "finished"], tell)
            finally:
                for cell in (*comparison.cells, *self._trials()):
                    cell.state = "stopped" if cell.state == "running" else cell.state
                self._take_choices()
                self._write(comparison.rows)

    def _run_cells(self, cells: Sequence[Cell], tell: Tell) -> bool:
        """Run some cells; say whether all were run before the time was up."""
        comparison = self._comparison
        given = comparison.federation, comparison.model
        if self._engine != LOCAL:
            return run_cells(cells, *given, tell, self._jobs, self._deadline, self._engine)
        many, note = choose_jobs(cells, *given, self._jobs)
        comparison.notes = [*dict.fromkeys([*comparison.notes, *([note] if note else [])])]
        return run_cells(cells, *given, tell, many, self._deadline)

    def _note(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Write down that a cell begins, or how it ended."""
        kind = event["event"]
        if kind in ("begin", *ENDS):
            cell.state = "running" if kind == "begin" else kind
            cell.why = event.get("why")
            self._write()

    def _trials(self) -> Sequence[Cell]:
        return self._comparison.search.cells if self._comparison.search else ()

    def _share(self) -> list[Cell]:
        return self._shard.cells(self._comparison.cells, self._comparison.search is not None)

    def _take_choices(self) -> None:
        """Give cells the settings that were chosen since, and see what other shares have finished."""
        comparison, search = self._comparison, self._comparison.search
        if search is not None:
            if self._shard.of > 1:
                search.refresh()
            comparison.choices = search.choices()
            known = {cell.path: cell for cell in comparison.cells if cell.hash}
            planned = plan_cells(comparison.design, search.planner, comparison.path, settings_of(comparison.choices))
            comparison.cells = [known.get(cell.path, cell) if cell.hash else cell for cell in planned]
            new = [cell for cell in comparison.cells if cell.path not in known]
            comparison.others = find_states(new, comparison.others, comparison.path)
            for cell in comparison.cells:
                choice = comparison.choices.get(cell.key[:2])
                if choice is not None and choice.setting is None:
                    cell.state, cell.why = "failed", "tuning found no setting: all that were tried failed"
        for cell in comparison.cells:
            if cell.state == "waiting" and cell.hash and cell.has_outcome:
                cell.state = "finished"

    def _write(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        with self._shard.writing(self._comparison.path):
            write_folder(self._comparison, rows)


def write_folder(comparison: Comparison, rows: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write comparison.json; rows, and what is said of them, once there are any to be read."""
    path = comparison.path
    trials = [to_line(cell, path) for cell in (comparison.search.cells if comparison.search else ())]
    now = {line["run_dir"] for line in trials}
    others = [line for line in comparison.others if line["run_dir"] not in now]
    about = {
        "version": VERSION,
        **comparison.design.to_json(),
        "cells": [
            *(line for line in others if not is_trial(line)),
            *(to_line(cell, path) for cell in comparison.cells if cell.hash),
        ],
        "trials": [*(line for line in others if is_trial(line)), *trials],
        "notes": comparison.notes,
        "metrics": [metric.name for metric in comparison.metrics],
        "rows": rows,
        "friedman": tested.to_json() if rows and (tested := comparison.friedman) else None,
        "remarks": comparison.remarks if rows else [],
    }
    write_atomically(path / "comparison.json", (json.dumps(finite(about), indent=2) + "\n").encode())
