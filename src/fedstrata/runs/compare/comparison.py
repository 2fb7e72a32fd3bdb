"""A comparison and the folder that holds it: prepared and checked as a whole, then played cell by cell.

OUT/comparison.json      methods with their experiments, seeds, every cell with its state, rows, remarks
OUT/METHOD/seed-N        a run folder for each cell

A cell is known again by a hash of its experiment, its data and the versions that figures depend on. What is finished
is never played again: the same command goes on where it was, and one with more methods or seeds plays the new cells.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.files import write_atomically
from fedstrata.core.plan import per_round
from fedstrata.core.threads import cores
from fedstrata.data.federation import Federation
from fedstrata.engines.local.cost import Guess
from fedstrata.engines.local.gpu import uses_gpu
from fedstrata.runs.compare import budget as budgets
from fedstrata.runs.compare.ablation import ablate_method
from fedstrata.runs.compare.cells import VERSION, Cell, Entry, first_weights, identity, listed
from fedstrata.runs.compare.gpu_sharing import CELLS, can_share
from fedstrata.runs.compare.pool import Tell, in_turn, side_by_side, why_not
from fedstrata.runs.compare.rows import Summaries, remarks_of, rows_of, table_of
from fedstrata.runs.folder import LOCK, Run, finite
from fedstrata.runs.session import check_experiment, with_devices
from fedstrata.runs.training import describe_experiment, differences, fixed

KEYS = ("version", "experiment", "methods", "seeds", "cells", "notes")  # of comparison.json; others come from the runs
WORTH_PROCESSES = 20.0  # seconds of work, by guess, below which starting processes takes longer than it saves


@dataclass
class Comparison:
    """Several methods over several seeds. `run` plays what is left; `rows` sums up what is there.

    Attributes
    ----------
    path
        The folder.
    entries
        The methods, each with its name and its experiment; the first is what the others are compared with.
    seeds
        As numbers.
    cells
        One method with one seed each: `method`, `seed`, `state`, `run` and, where it failed, `why`.
    base
        The experiment without a method of the comparison: what all cells share.
    notes
        What was found while the comparison was laid out.
    federation, model
        Data and network that came from Python.
    others
        Cells of earlier requests, as they are listed.

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
    entries: list[Entry]
    seeds: list[int]
    cells: list[Cell]
    base: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    federation: Federation | None = None
    model: nn.Module | None = None
    others: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def open(
        cls, path: str | Path, *, federation: Federation | None = None, model: nn.Module | None = None
    ) -> Comparison:
        """Open the comparison that lies in a folder, as it was last asked for; `run` plays what is left of it.

        Parameters
        ----------
        path
            The folder, as in `out` of `compare`.
        federation, model
            Data and network that came from Python are passed again.

        Returns
        -------
        Comparison

        Raises
        ------
        RequestError
            If no comparison lies there, another version made it, or the data are not those of its runs.
        """
        return reopen(path, federation, model)

    def __repr__(self) -> str:
        said = [f"{r['method']} {r['accuracy']['mean']:.4f}" for r in self.rows if r["accuracy"]["mean"] is not None]
        left = sum(cell.state != "finished" for cell in self.cells)
        return f"Comparison({str(self.path)!r}: {', '.join(said)}{f'; {left} cells not finished' if left else ''})"

    @property
    def done(self) -> Summaries:
        """Summaries of the finished cells, by method and seed."""
        there = [cell for cell in self.cells if cell.state == "finished"]
        return {(c.method, c.seed): {**c.run.summary, "run_dir": str(c.path)} for c in there}

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row a method: mean and interval of every figure, difference to the first method, rank."""
        return rows_of(self.entries, self.seeds, self.done)

    @property
    def remarks(self) -> list[str]:
        """What a reader of the rows should not miss."""
        return [*self.notes, *remarks_of(self.entries, self.seeds, self.done)]

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The finished runs of each method, in the order of the seeds."""
        return {
            e.name: [c.run for c in self.cells if c.method == e.name and c.state == "finished"] for e in self.entries
        }

    @property
    def failed(self) -> list[Cell]:
        """The cells that failed; each says why."""
        return [cell for cell in self.cells if cell.state == "failed"]

    def table(self) -> str:
        """Write the rows as a plain table.

        Returns
        -------
        str
            With what each stage brings, where stages were ablated.
        """
        return table_of(self.rows)

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
        methods = [{"name": e.name, "without": e.without, "experiment": e.experiment.dump()} for e in self.entries]
        about = {
            "version": VERSION,
            "experiment": self.base,
            "methods": methods,
            "seeds": self.seeds,
            "cells": [*self.others, *(listed(cell, self.path) for cell in self.cells)],
            "notes": self.notes,
            "rows": rows,
            "remarks": self.remarks if rows else [],
        }
        write_atomically(self.path / "comparison.json", (json.dumps(finite(about), indent=2) + "\n").encode())


def compare(
    experiment: Mapping[str, Any] | str | Path | Experiment | None = None,
    *,
    methods: Sequence[str] = (),
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    budget: str | None = None,
    ablate: Sequence[str] = (),
    jobs: int | None = None,
    watch: Tell | None = None,
) -> Comparison:
    """Run every method with every seed, and sum the runs up.

    Parameters
    ----------
    experiment, overrides, federation, model
        As in `train`.
    methods
        Names of recipes; the first is what the others are compared with.
    seeds
        How many, counted up from the experiment's own.
    out
        The folder of the runs, by default the next free one under `runs/`. A comparison that lies there goes on.
    budget
        What each run may spend: "rounds=100", "bytes=50MB", "client_updates=2000" or "time=3600" (virtual seconds).
    ablate
        Stages of the one method, or of the experiment's own, to put back to FedAvg's, one at a time.
    jobs, watch
        As in `Comparison.run`.

    Returns
    -------
    Comparison

    Raises
    ------
    RequestError
        If an experiment is wrong, two methods are the same, a method does not fit the data, or the folder holds
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
    method  rank  accuracy ...
    """
    prepared = prepare(experiment, methods, seeds, overrides, federation, model, out, budget, ablate)
    return prepared.run(jobs=jobs, watch=watch)


def prepare(
    experiment: Mapping[str, Any] | str | Path | Experiment | None,
    methods: Sequence[str],
    seeds: int,
    overrides: Mapping[str, Any] | None,
    federation: Federation | None,
    model: nn.Module | None,
    out: str | Path | None,
    budget: str | None,
    ablate: Sequence[str],
) -> Comparison:
    """Check a whole comparison, so that what does not fit is refused before the first cell is played."""
    if isinstance(methods, str):
        raise RequestError(f'methods = "{methods}" must be a list of names')
    if out == "":
        raise RequestError("out is empty; name a folder, or leave it out")
    if "method.name" in (overrides or {}):
        raise RequestError("method.name cannot be set in a comparison; name the methods with --methods")
    if not methods and not ablate:
        raise RequestError("compare needs at least one method")
    if ablate and len(methods) > 1:
        raise RequestError(f"--ablate takes one method apart, not {len(methods)}: {', '.join(methods)}")
    if len(set(methods)) != len(methods):
        raise RequestError(f"a method is named twice: {', '.join(methods)}")
    if seeds < 1:
        raise RequestError(f"seeds = {seeds} must be at least 1")
    asked = {**(overrides or {}), **budgets.overrides(budget)}
    own = describe_experiment(experiment, None, asked, federation, model)
    first = own.train.seed
    named = {name: describe_experiment(experiment, name, asked, federation, model) for name in methods}
    entries = [Entry(name, one) for name, one in (named or {own.method.name: own}).items()]
    _refuse_twins(entries)
    notes: list[str] = []
    if ablate:
        without, notes = ablate_method(entries[0], ablate)
        entries += without
    path = None if out is None else Path(out)
    return _laid_out(path, entries, list(range(first, first + seeds)), _shared(own), notes, federation, model)


def reopen(path: str | Path, federation: Federation | None = None, model: nn.Module | None = None) -> Comparison:
    """Take up the comparison that lies in a folder, as it was last asked for."""
    path = Path(path)
    known = _known(path)
    if known is None:
        raise RequestError(f"{path} is not the folder of a comparison: it has no comparison.json")
    entries = [Entry(m["name"], Experiment.of(m["experiment"]), m["without"]) for m in known["methods"]]
    return _laid_out(path, entries, known["seeds"], known["experiment"], known["notes"], federation, model)


def _laid_out(
    path: Path | None,
    entries: list[Entry],
    seeds: list[int],
    base: dict[str, Any],
    notes: list[str],
    federation: Federation | None,
    model: nn.Module | None,
) -> Comparison:
    """Check that methods fit the data, and find out which cells a folder holds already."""
    known = None if path is None else _known(path)
    if path is not None and known is not None:
        _refuse_another(path, known, base)
    weights = first_weights(entries[0].experiment.model.init, model)
    found, guesses = dict[int, str](), dict[str, float]()
    for seed in seeds:
        data = federation or build_federation(entries[0].seeded(seed))
        found[seed] = with_devices(entries[0].seeded(seed), data).fingerprint
        if not guesses:
            guesses = {entry.name: _fitting(entry, data, model) for entry in entries}
    path = path or Run.claim(Path("runs"), "compare")
    path.mkdir(parents=True, exist_ok=True)
    lines = {} if known is None else {(line["method"], line["seed"]): line for line in known["cells"]}
    cells = []
    for seed in seeds:
        for entry in entries:
            one, place = entry.seeded(seed), path / entry.name / f"seed-{seed}"
            key = identity(one, found[seed], weights)
            cell = Cell(entry.name, seed, one, place, found[seed], key, guesses[entry.name])
            if (line := lines.pop((entry.name, seed), None)) is not None:
                _refuse_changed(cell, line)
            cell.state = "finished" if cell.run.summary else "waiting"
            cells.append(cell)
    return Comparison(path, entries, seeds, cells, base, notes, federation, model, list(lines.values()))


def _fitting(entry: Entry, data: Federation, model: nn.Module | None) -> float:
    """Assemble a method as its runs will, and guess how long one takes on one core."""
    try:
        data, plan = check_experiment(entry.experiment, data, model)
    except RequestError as error:
        raise RequestError(f"{entry.name} cannot be compared: {error}") from error
    client_updates = plan.rounds * min(per_round(plan.clients_per_round, len(data)), len(data))
    return Guess.of(plan.local, data, client_updates).seconds


def _refuse_twins(entries: Sequence[Entry]) -> None:
    """Refuse methods that an experiment's own stages have made the same: their rows would only differ in name."""
    seen: dict[str, str] = {}
    for entry in entries:
        stages = entry.experiment.method.model_dump_json(exclude={"name"})
        if stages in seen:
            raise RequestError(
                f"{seen[stages]} and {entry.name} are the same here: the stages that the experiment sets replace what "
                "makes them differ; leave those stages out"
            )
        seen[stages] = entry.name


def _shared(experiment: Experiment) -> dict[str, Any]:
    """Return what all cells of a comparison have in common; seeds may be added."""
    table = fixed(experiment.dump())
    return {**table, "train": {key: value for key, value in table["train"].items() if key != "seed"}}


def _known(path: Path) -> dict[str, Any] | None:
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


def _refuse_another(path: Path, known: Mapping[str, Any], base: Mapping[str, Any]) -> None:
    if known["version"] != VERSION:
        raise RequestError(
            f"{path} was made by {known['version']}, and this is {VERSION}: figures may differ; choose another folder"
        )
    if edits := differences(known["experiment"], base):
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
