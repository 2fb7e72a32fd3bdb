"""A comparison: laid out and checked as a whole, then run cell by cell; `layout.py` says how its folder looks.

What is finished is never run again: the same command goes on where it was, and one with more methods, conditions or
seeds adds the new cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config.measured import measured_by_all, refuse_unmeasured
from fedstrata.core.errors import RequestError
from fedstrata.data.federation import Federation
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.choice import Choice
from fedstrata.runs.compare.costs import costs_apart
from fedstrata.runs.compare.design import Design
from fedstrata.runs.compare.execution import Execution, write_folder
from fedstrata.runs.compare.friedman import Friedman, caution, friedman
from fedstrata.runs.compare.layout import (
    Planner,
    find_states,
    plan_cells,
    read_folder,
    refuse_another,
    refuse_same_choices,
)
from fedstrata.runs.compare.live import write_metric
from fedstrata.runs.compare.merge import merge_folders
from fedstrata.runs.compare.optuna_search import OptunaSearch
from fedstrata.runs.compare.pool import Tell
from fedstrata.runs.compare.queue import Deadline
from fedstrata.runs.compare.ray_cells import LOCAL
from fedstrata.runs.compare.rows import ACCURACY, Summaries, remarks_of, rows_of, values_of
from fedstrata.runs.compare.search import Place, Search, describe_search, is_trial, settings_of
from fedstrata.runs.compare.settings import Condition, Entry
from fedstrata.runs.compare.shards import Shard
from fedstrata.runs.compare.tables import WIDTH, flat_table, html_text, terminal_table, write_table
from fedstrata.runs.folder import Run
from fedstrata.runs.frames import make_frame
from fedstrata.runs.metrics import Criterion, metrics_of

FEW = 3  # conditions that a remark names one by one


@dataclass
class Comparison:
    """Rows under conditions over several seeds. `run` does what is left; `rows` sums up what is there.

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
    search
        The search for each row's setting, where rows are tuned; its `cells` are the trials.
    choices
        What it came to, by condition and row: `setting`, `value` on validation samples, `trials`, `cost`; None where it
        has not ended.

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
    metrics: tuple[Criterion, ...] = (ACCURACY,)
    search: Search | None = None
    choices: dict[Place, Choice | None] = field(default_factory=dict)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        federation: Federation | None = None,
        model: nn.Module | None = None,
        metric: Sequence[str] | str = (),
    ) -> Comparison:
        """Open the comparison that lies in a folder, as it was last asked for; `run` does what is left of it.

        Parameters
        ----------
        path
            The folder, as in `out` of `compare`.
        federation, model
            Data and network that came from Python are passed again.
        metric
            What to compare, as in `compare`, where it is not what was asked for last: nothing is run again for it.

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
        return lay_out(path, Design.from_json(known), known["notes"], federation, model, metric or known["metrics"])

    @classmethod
    def merge(
        cls,
        path: str | Path,
        folders: Sequence[str | Path],
        *,
        federation: Federation | None = None,
        model: nn.Module | None = None,
    ) -> Comparison:
        """Put the runs of several folders of one comparison, such as shares of it, into one.

        Parameters
        ----------
        path
            The folder that gets them: a new one, or one with the same comparison. Nothing there is written over.
        folders
            Where the runs are.
        federation, model
            Data and network that came from Python are passed again.

        Returns
        -------
        Comparison
            What lies there then; its `run` does what is still left.

        Raises
        ------
        RequestError
            If a folder holds no comparison or another one, a run there is not that of the others, or a process is
            running in it; nothing is written then.

        Examples
        --------
        >>> import fedstrata
        >>> asked = {"methods": ["fedavg", "sfl"], "overrides": {"train.rounds": 1}}
        >>> shares = [fedstrata.compare(**asked, out=f"runs/{n}-of-2", shard=f"{n}/2").path for n in (1, 2)]
        >>> [cell.state for cell in fedstrata.Comparison.merge("runs/whole", shares).cells]
        ['finished', 'finished']
        """
        merge_folders(Path(path), [Path(folder) for folder in folders], Planner(federation, model))
        merged = cls.open(path, federation=federation, model=model)
        with Shard().locked(merged.path):
            write_folder(merged, merged.rows)
        return merged

    def __repr__(self) -> str:
        name = self.metrics[0].name
        means = [(r, r[name]["mean"]) for r in self.rows if r[name]["mean"] is not None]
        said = [
            f"{_title(r.get('condition', ''), r['method'])} {write_metric(self.metrics[0], mean)}" for r, mean in means
        ]
        left = sum(cell.state != "finished" for cell in self.cells)
        return f"Comparison({str(self.path)!r}: {', '.join(said)}{f'; {left} cells not finished' if left else ''})"

    def _repr_html_(self) -> str:
        return html_text(self.rows, [*self.remarks, *(f"{cell.name} failed: {cell.why}" for cell in self.failed)])

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
            for row in rows_of(self.entries, self.seeds, done, self.metrics):
                choice = self.choices.get((condition.name, row["method"]))
                rows.append({**own, **row, **({"tuned": choice.to_json()} if choice is not None else {})})
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
        budgeted = self.base["train"].get("stop", {}).get("bytes") is not None
        costs = costs_apart(self.entries, [self.done(condition.name) for condition in self.conditions], budgeted)
        for condition in self.conditions:
            for remark in remarks_of(self.entries, self.seeds, self.done(condition.name), self.metrics):
                said.setdefault(remark, []).append(condition.name)
        many, told = len(self.conditions), []
        for text, at in said.items():
            where = f"under {'; '.join(at)}: " if len(at) <= FEW else f"under {len(at)} of {many} conditions: "
            told.append(text if len(at) == many else f"{where}{text}")
        rough = caution(tested) if (tested := self.friedman) else []
        tuned = [] if self.search is None else describe_search(self.search, self.choices)
        return [*self.notes, *self._elsewhere(), *tuned, *costs, *told, *rough]

    def _elsewhere(self) -> list[str]:
        """Say which methods have finished runs in the folder and were not asked for this time."""
        asked, conditions = {e.name for e in self.entries}, {c.name for c in self.conditions}
        ended = [line for line in self.others if line["state"] == "finished" and line["condition"] in conditions]
        left = dict.fromkeys(line["method"] for line in ended if not is_trial(line) and line["method"] not in asked)
        return [f"{self.path} also has finished runs of {', '.join(left)}; name them, too, to compare them"] * bool(
            left
        )

    @property
    def runs(self) -> dict[str, list[Run]]:
        """The finished runs of each method, in the order of the seeds; with conditions, by "CONDITION/METHOD"."""
        places = [(c.name, e.name) for c in self.conditions for e in self.entries]
        return {
            _title(*place): [
                Run(c.path, self.model) for c in self.cells if c.key[:2] == place and c.state == "finished"
            ]
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

    def to_pandas(self) -> Any:
        """Return every figure of every row as a data frame; pandas must be installed.

        Returns
        -------
        pandas.DataFrame
            A row a method and condition; of every figure its mean, the ends of its interval (`_from`, `_to`) and, where
            it is tested, p.
        """
        names, lines = flat_table(self.rows)
        return make_frame(dict(zip(names, map(list, zip(*lines, strict=True)), strict=True)))

    def run(
        self,
        *,
        jobs: int | None = None,
        watch: Tell | None = None,
        minutes: float | None = None,
        shard: str | None = None,
        engine: str = LOCAL,
        progress: bool = True,
    ) -> Comparison:
        """Run the cells that are not finished, so many at a time; by default one a core, where that pays.

        Rows that are tuned have their trials run first.

        Parameters
        ----------
        jobs
            Cells at a time. Each takes memory of its own; the results are the same.
        watch
            Called with a cell and each of its events; the last is "finished", "failed" or, of a trial, "pruned".
        minutes
            Stop after so long, between rounds; the same call goes on from there.
        shard
            "2/5" runs the second of five shares, for several machines; they may use one folder, or folders of their
            own that `Comparison.merge` puts together.
        engine
            "ray" runs cells on a Ray cluster: the one that runs here or that RAY_ADDRESS names, else one that is
            started for it; "ray=HOST:PORT" on that one. Cells are the same, wherever they are run.
        progress
            Whether to show how far it is, on a terminal or in a notebook.

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
        try:
            execution = Execution(self, Shard.read(shard), Deadline(minutes), jobs, engine)
        except RequestError:
            with suppress(OSError):  # nothing is left behind, unless it was there before
                self.path.rmdir()
            raise
        execution.run(watch, progress)
        return self


def lay_out(
    path: Path | None,
    design: Design,
    notes: list[str],
    federation: Federation | None,
    model: nn.Module | None,
    metric: Sequence[str] | str,
    asked: bool = False,
) -> Comparison:
    """Check that all rows fit the data of all conditions, and find what the folder holds already.

    What is `asked` for now must also differ by what recipes choose by the data; what lies in a folder can be read.
    """
    own = measured_by_all(e.train.evaluate for e in design.experiments.values())
    refuse_unmeasured((*([metric] if isinstance(metric, str) else metric), design.tune.metric or ""), own)
    metrics = metrics_of(metric, own) if metric else (ACCURACY,)
    tuned_by = Criterion.of(design.tune.metric or metrics[0].name, own)
    for one in (*metrics, *([tuned_by] if design.tune else [])):
        if one.personal and not all(e.train.evaluate.personal for e in design.experiments.values()):
            raise RequestError(f'metric = "{one.name}" needs train.evaluate.personal = true in all runs')
    known = None if path is None else read_folder(path)
    if path is not None and known is not None:
        refuse_another(path, known, design)
    planner, root = Planner(federation, model), path or Path()
    trials = None if known is None else {line["run_dir"]: line for line in known["trials"]}
    search, choices = None, dict[Place, Choice | None]()
    if design.tune:
        kind = OptunaSearch if design.tune.uses_optuna else Search
        search = kind(design, planner, root, tuned_by, trials)
        choices = search.choices()
    cells = plan_cells(design, planner, root, settings_of(choices))
    if asked:
        refuse_same_choices(design, cells)
    if path is None:
        path = Run.claim(Path("runs"), "compare")
        for cell in (*cells, *(search.cells if search else ())):
            cell.path = path / cell.path
    path.mkdir(parents=True, exist_ok=True)
    others = find_states(cells, [] if known is None else [*known["cells"], *known["trials"]], path)
    if search is not None:
        search.root, search.lines = path, trials or {}
    return Comparison(path, design, cells, notes, federation, model, others, metrics, search, choices)


def _title(condition: str, method: str) -> str:
    return f"{condition}/{method}" if condition else method
