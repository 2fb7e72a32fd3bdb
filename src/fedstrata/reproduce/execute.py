"""Make the missing runs of tables: the weightiest runs first, as many as the time allows, each kept when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fedstrata.config.build import build_federation
from fedstrata.reproduce.results import Results
from fedstrata.reproduce.table import PaperTable, Wanted
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.design import Design, with_seed
from fedstrata.runs.compare.layout import guess_seconds
from fedstrata.runs.compare.queue import Deadline, choose_jobs, run_cells
from fedstrata.runs.compare.settings import folder_name
from fedstrata.runs.compare.shards import Shard

WHOLE = Shard()

Tell = Callable[[PaperTable, Wanted, Mapping[str, Any]], None]
Only = Callable[[PaperTable, Wanted], bool]  # which runs to make


@dataclass(frozen=True)
class Executed:
    """What a call did."""

    finished: int
    failed: dict[str, str]  # why, by the name of the run
    left: int = 0


def missing_runs(results: Results, shard: Shard = WHOLE, only: Only | None = None) -> list[Wanted]:
    """Return the runs that this machine has still to make: all, or every n-th; and of these only some."""
    table = results.table
    place = {one: number for number, one in enumerate(table.wanted())}
    own = [one for one in results.missing() if place[one] % shard.of == shard.number - 1]
    return own if only is None else [one for one in own if only(table, one)]


def run_tables(
    tables: Sequence[Results],
    out: Path,
    tell: Tell,
    minutes: float | None = None,
    shard: Shard = WHOLE,
    jobs: int | None = None,
    only: Only | None = None,
) -> Executed:
    """Make the missing runs, and keep every run that ends.

    Tables share one queue, so that a device is never idle between two of them: first what decides, table by table, and
    then the other rows.
    """
    deadline = Deadline(minutes)
    tasks = list[TableRun]()
    for own in tables:
        table, todo = own.table, missing_runs(own, shard, only)
        cells = make_cells(table.design, todo, out / folder_name(table.kept_as), estimate(table, todo), table.digest)
        tasks += [TableRun(cell, table, one, own) for cell, one in zip(cells, todo, strict=True)]
    tasks.sort(key=lambda task: not task.table.primary(task.wanted))
    jobs = choose_jobs([task.cell for task in tasks], None, None, jobs)[0]
    done = _run(tasks, tell, deadline, jobs)
    return replace(done, left=sum(len(missing_runs(own, shard, only)) for own in tables))


def describe_tiny(table: PaperTable) -> str:
    """Say what `run_quickly` does, lest its figures are taken for the paper's."""
    experiment = next(iter(table.tiny.experiments.values()))
    rounds = experiment.train.rounds
    return (
        f"{experiment.data.name}, {rounds} round{'s' if rounds > 1 else ''}, whatever the rows and columns are called: "
        f"it shows that they run, and its accuracies mean nothing"
    )


def run_quickly(table: PaperTable, out: Path, tell: Tell) -> Executed:
    """Run, at a tiny size, every row under the first condition and the first row under the others. Nothing is kept."""
    design = table.tiny
    first, *others = (condition.name for condition in design.conditions)
    rows = [entry.name for entry in design.entries]
    todo = [Wanted(first, row, design.seeds[0]) for row in rows]
    todo += [Wanted(condition, rows[0], design.seeds[0]) for condition in others]
    cells = make_cells(design, todo, out / folder_name(table.id))
    tasks = [TableRun(cell, table, one) for cell, one in zip(cells, todo, strict=True)]
    return _run(tasks, tell, Deadline(None), 1)


@dataclass(frozen=True)
class TableRun:
    """A run of a table, and where its figures are kept."""

    cell: Cell
    table: PaperTable
    wanted: Wanted
    kept_in: Results | None = None


def _run(tasks: Sequence[TableRun], tell: Tell, deadline: Deadline, jobs: int) -> Executed:
    finished, failed = list[TableRun](), dict[str, str]()
    known = {task.cell.path: task for task in tasks}

    def watch(cell: Cell, event: Mapping[str, Any]) -> None:
        task = known[cell.path]
        if event["event"] == "finished":
            if task.kept_in is not None:
                task.kept_in.add(task.wanted, cell.run, jobs)
            finished.append(task)
        elif event["event"] == "failed":
            failed[f"{task.table.id}, {task.wanted.name}"] = event["why"]
        tell(task.table, task.wanted, event)

    run_cells([task.cell for task in tasks], None, None, watch, jobs, deadline)
    return Executed(len(finished), failed)


def make_cells(
    design: Design,
    todo: Sequence[Wanted],
    out: Path,
    seconds: Mapping[tuple[str, str], float] | None = None,
    digest: Callable[[Wanted], str] | None = None,
) -> list[Cell]:
    """Return the cells of some runs; each has a folder below `out`, which names its settings by their hash.

    So a run that was begun under other settings is not gone on with.
    """
    cells = []
    for one in todo:
        place = filter(None, (one.condition, one.method))
        settings = f"-{digest(one)[:8]}" if digest else ""
        path = out.joinpath(*map(folder_name, place), f"seed-{one.seed}{settings}")
        experiment = with_seed(design.experiments[one.condition, one.method], one.seed)
        guess = (seconds or {}).get((one.condition, one.method), 0.0)
        cells.append(Cell(one.condition, one.method, one.seed, experiment, path, "", "", guess))
    return cells


def estimate(table: PaperTable, todo: Sequence[Wanted]) -> dict[tuple[str, str], float]:
    """Guess how long a run takes on one core, by condition and row; what does not fit the data is refused."""
    found: dict[tuple[str, str], float] = {}
    last: tuple[Any, Any] = (None, None)
    for one in todo:
        place = one.condition, one.method
        if place in found:
            continue
        experiment = with_seed(table.design.experiments[place], table.design.seeds[0])
        if last[0] != experiment.data:
            last = experiment.data, build_federation(experiment)
        found[place] = guess_seconds(", ".join(filter(None, place)), experiment, last[1], None)
    return found
