"""From finished cells to rows, one a method: figures over the seeds, paired difference to the first, rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstrata.runs.compare.paired import caution, difference, interval, ranks
from fedstrata.runs.compare.settings import Entry

FIGURES = (
    "accuracy",
    "balanced_accuracy",
    "worst10",
    "bytes_up",
    "bytes_down",
    "bytes_p2p",
    "client_updates",
    "rounds",
    "time",
    "seconds",
)
Summaries = Mapping[tuple[str, int], Mapping[str, Any]]  # of a condition's finished cells, by method and seed


def rows_of(entries: Sequence[Entry], seeds: Sequence[int], done: Summaries) -> list[dict[str, Any]]:
    """Return a row a method; pairs are formed over the seeds that both have finished."""
    complete = [seed for seed in seeds if all((entry.name, seed) in done for entry in entries)]
    accuracies = {e.name: {s: done[e.name, s]["accuracy"] for s in seeds if (e.name, s) in done} for e in entries}
    placed = ranks({name: [own[seed] for seed in complete] for name, own in accuracies.items()})
    first, rows = accuracies[entries[0].name], []
    for entry in entries:
        own = accuracies[entry.name]
        runs = [done[entry.name, seed] for seed in own]
        row: dict[str, Any] = {"method": entry.name, "seeds": len(own)}
        row |= {figure: interval([run[figure] for run in runs]) for figure in FIGURES}
        both = [seed for seed in own if seed in first]
        here, there = [own[seed] for seed in both], [first[seed] for seed in both]
        row["accuracy_over_first"] = difference(here, there)
        row["rank"] = interval(placed[entry.name])
        if entry is entries[0]:
            row["accuracy_over_first"]["p"] = None
        if entry.without is not None:
            row |= {"without": entry.without, "brings": difference(there, here)}
        row["stopped"] = [run["stopped"] for run in runs]
        row["run_dirs"] = [run["run_dir"] for run in runs]
        rows.append(row)
    return rows


def remarks_of(entries: Sequence[Entry], seeds: Sequence[int], done: Summaries) -> list[str]:
    """Return what the runs themselves remarked, once a method, and what so few seeds cannot show."""
    said: dict[str, list[str]] = {}
    for (method, seed), summary in done.items():
        for remark in summary["remarks"]:
            said.setdefault(f"{method}: {remark}", []).append(str(seed))
    over = [f"{remark} (seed {', '.join(at)})" for remark, at in said.items()]
    return over + (caution(len(seeds)) if len(entries) > 1 else [])
