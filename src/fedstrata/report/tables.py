"""What figures show, in numbers: for CSV files, and for readers who cannot see a figure."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fedstrata.config.tables import write_value
from fedstrata.core.errors import RequestError
from fedstrata.report.figures.clients import MANY
from fedstrata.report.figures.labels import last_recall
from fedstrata.report.gather import GatheredRuns
from fedstrata.report.run_data import RunData
from fedstrata.report.settings import differing
from fedstrata.runs.compare.tables import flat_table
from fedstrata.runs.metrics import LAST

OUTCOME = ("accuracy", "balanced_accuracy", "worst10", "bytes_up", "bytes_down", "bytes_p2p", "client_updates", "time")
FINAL = ("best_accuracy", "accuracy_last10", "accuracy_last10_std")  # known once a run is finished
SHOWN = (*OUTCOME[:3], *FINAL, *OUTCOME[3:])
BY_ROUND = (
    *OUTCOME[:3],
    "loss_test",
    "loss_train",
    "label_divergence",
    "label_imbalance",
    "update_norm",
    "jain",
    *OUTCOME[3:],
)


class Table(NamedTuple):
    """Rows under names; None is what is not known."""

    name: str
    columns: Sequence[str]
    rows: list[list[Any]]
    titles: Mapping[str, str] = MappingProxyType({})  # of columns whose names do not say enough


def runs(runs_data: Sequence[RunData]) -> Table:
    """Return a row a run: what it came to, or where it is."""
    rows = []
    for run_data in runs_data:
        summary = run_data.summary
        told = {
            key: summary.get(key) if key in FINAL else summary.get(key, _last(run_data.known(key))) for key in SHOWN
        }
        state = summary.get("stopped", "not finished")
        rows.append(
            [run_data.name, run_data.asked("train", "seed"), len(run_data), *told.values(), state, str(run_data.path)]
        )
    last = last_of(int((~np.isnan(run_data.known("accuracy"))).sum()) for run_data in runs_data)
    titles = {"accuracy_last10": f"mean of {last}", "accuracy_last10_std": f"spread of {last}"}
    return Table("runs", ["run", "seed", "rounds", *SHOWN, "state", "folder"], rows, titles)


def last_of(evaluations: Iterable[int]) -> str:
    """Say of how many evaluations figures of the last ones are."""
    counts = {min(count, LAST) for count in evaluations if count}
    if len(counts) > 1:
        return "the last ten or fewer"
    few = {0: "the last ones", 1: "the last one", LAST: "the last ten"}
    count = next(iter(counts), 0)
    return few.get(count, f"the last {count}")


def rounds(run_data: RunData) -> Table:
    """Return a row a round."""
    columns = [run_data.known(name) for name in BY_ROUND]
    rows = [[run_data.name, int(r), *map(_known, own)] for r, *own in zip(run_data.rounds, *columns, strict=True)]
    return Table("rounds", ["run", "round", *BY_ROUND], rows)


def labels(run_data: RunData) -> Table:
    """Return a row a label: its share of the training samples, and what became of it."""
    last = last_recall(run_data)
    best = np.nanmax(np.vstack([run_data.recall, np.full((1, run_data.recall.shape[1]), -1.0)]), axis=0)
    rows = []
    for at, label in enumerate(run_data.classes):
        share = None if run_data.mix is None else float(run_data.mix[at])
        recalls = (float(last[at]), float(best[at])) if at < len(last) else (None, None)
        rows.append([run_data.name, label, share, bool(run_data.rare[at]), *map(_known, recalls)])
    return Table("labels", ["run", "label", "share", "rare", "last_recall", "best_recall"], rows)


def clients(run_data: RunData) -> Table:
    """Return a row a client, those served worst first."""
    client_updates, many = run_data.client_updates, run_data.clients if run_data.clients <= MANY else 0
    here, lost = (
        client_updates.client[client_updates.arrived & (client_updates.client < many)],
        client_updates.client[~client_updates.arrived],
    )
    took, missed = np.bincount(here, minlength=many), np.bincount(lost[lost < many], minlength=many)
    update_norm = np.bincount(
        here, np.nan_to_num(client_updates.update_norm[client_updates.arrived & (client_updates.client < many)]), many
    )
    own = run_data.client_accuracy
    known = own[~np.isnan(own).all(1)] if own.shape[1] == run_data.clients and own.size else own[:0]
    accuracy = known[-1] if len(known) else np.full(many, np.nan)
    rows, named = [], "names" in run_data.start
    for client in np.argsort(accuracy, kind="stable")[:many].tolist():
        held = None if run_data.counts is None else int(run_data.counts[client].sum())
        kinds = None if run_data.counts is None else int((run_data.counts[client] > 0).sum())
        mean = update_norm[client] / took[client] if took[client] and update_norm[client] else np.nan
        numbers = [int(took[client]), int(missed[client]), _known(accuracy[client]), _known(mean)]
        rows.append([run_data.name, run_data.client_name(client) if named else client, held, kinds, *numbers])
    columns = ["run", "client", "samples", "labels", "took_part", "lost_reports", "last_accuracy", "mean_drift"]
    return Table("clients", columns, rows)


def faults(run_data: RunData) -> Table:
    """Return a row a fault."""
    rows: list[list[Any]] = [
        [run_data.name, f.round, f.kind, f.why, " ".join(map(run_data.client_name, f.clients))] for f in run_data.faults
    ]
    return Table("faults", ["run", "round", "kind", "why", "clients"], rows)


def differences(runs_data: Sequence[RunData]) -> Table:
    """Return a row a key in which runs differ, and a column a run."""
    rows = [
        [key, *("-" if value is None else write_value(value) for value in values)]
        for key, values in differing(runs_data).items()
    ]
    return Table("differences", ["key", *(run_data.name for run_data in runs_data)], rows)


def comparison(rows: Sequence[dict[str, Any]]) -> Table:
    """Return a row a method and condition: mean and interval of every figure, and p of those that are tested."""
    return Table("comparison", *flat_table(rows))


def write_csv(folder: Path, gathered: GatheredRuns) -> list[Path]:
    """Write every table that has rows into a folder."""
    runs_data = gathered.runs_data
    of_all = [runs(runs_data), *(_joined(map(each, runs_data)) for each in (rounds, labels, clients, faults))]
    if len(gathered.firsts) > 1:
        of_all.append(differences(gathered.firsts))
    if gathered.rows:
        of_all.append(comparison(gathered.rows))
    written = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for table in (table for table in of_all if table.rows):
            written.append(folder / f"{table.name}.csv")
            with written[-1].open("w", newline="", encoding="utf-8") as file:
                csv.writer(file).writerows([table.columns, *table.rows])
    except OSError as error:
        raise RequestError(f"--csv {folder} cannot be written: {error}") from None
    return written


def _joined(tables: Iterable[Table]) -> Table:
    first, *rest = tables
    return first._replace(rows=[row for table in (first, *rest) for row in table.rows])


def _known(value: Any) -> float | None:
    return None if value is None or np.isnan(value) else float(value)


def _last(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return float(known[-1]) if len(known) else None
