"""From finished cells to rows, one a method: figures over the seeds, paired difference to the first, rank."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fedstrata.runs.amounts import write_epsilon
from fedstrata.runs.compare.grid import BEST_OVER, OVER_FIRST, standing
from fedstrata.runs.compare.paired import caution, difference, holm, interval, ranks
from fedstrata.runs.compare.settings import Entry
from fedstrata.runs.metrics import Criterion

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
ACCURACY = Criterion("accuracy")  # what methods are compared by, unless something else is asked for
Summaries = Mapping[tuple[str, int], Mapping[str, Any]]  # of a condition's finished cells, by method and seed


def rows_of(
    entries: Sequence[Entry], seeds: Sequence[int], done: Summaries, metrics: Sequence[Criterion] = (ACCURACY,)
) -> list[dict[str, Any]]:
    """Return a row a method; pairs are formed over the seeds that both have finished. Ranks follow the first metric."""
    compared = [list(_compared(entries, seeds, done, metric)) for metric in metrics]
    placed = ranks(values_of(entries, seeds, done, metrics[0]), metrics[0].lower)
    rows = []
    for at, entry in enumerate(entries):
        runs = [done[entry.name, seed] for seed in seeds if (entry.name, seed) in done]
        row: dict[str, Any] = {"method": entry.name, "metrics": [metric.name for metric in metrics], "seeds": len(runs)}
        row |= {figure: interval([run[figure] for run in runs]) for figure in FIGURES}
        if spent := [run["epsilon"] for run in runs if run.get("epsilon") is not None]:
            row["epsilon"] = interval(spent)
        for own in compared:
            row |= own[at]
        row["rank"] = interval(placed[entry.name])
        if entry.without is not None:
            over = row[f"{metrics[0].name}{OVER_FIRST}"]
            row |= {"without": entry.without, "brings": dict(over) if metrics[0].lower else _turned(over)}
        row["stopped"] = [run["stopped"] for run in runs]
        row["run_dirs"] = [run["run_dir"] for run in runs]
        rows.append(row)
    _compare_with_best(rows, [_by_seed(entry, seeds, done, metrics[0]) for entry in entries], metrics[0])
    return rows


def _compare_with_best(
    rows: Sequence[dict[str, Any]], values: Sequence[Mapping[int, float]], metric: Criterion
) -> None:
    """Add to each row by how much the best one differs from it, over the seeds that both have."""
    if len(rows) < 2:
        return
    best = values[max(range(len(rows)), key=lambda at: standing(rows[at], metric) or (-1.0, 0.0))]
    for row, own in zip(rows, values, strict=True):
        both = [seed for seed in own if seed in best]
        found = difference([best[seed] for seed in both], [own[seed] for seed in both])
        row[f"{metric.name}{BEST_OVER}"] = {"mean": found["mean"], "interval": found["interval"]}


def values_of(
    entries: Sequence[Entry], seeds: Sequence[int], done: Summaries, metric: Criterion
) -> dict[str, list[float]]:
    """Return a metric of each method, over the seeds that all methods have finished."""
    own = {entry.name: _by_seed(entry, seeds, done, metric) for entry in entries}
    complete = [seed for seed in seeds if all(seed in known for known in own.values())]
    return {name: [known[seed] for seed in complete] for name, known in own.items()}


def _by_seed(entry: Entry, seeds: Sequence[int], done: Summaries, metric: Criterion) -> dict[int, float]:
    told = {seed: done[entry.name, seed].get(metric.name) for seed in seeds if (entry.name, seed) in done}
    return {seed: value for seed, value in told.items() if value is not None}


def _compared(
    entries: Sequence[Entry], seeds: Sequence[int], done: Summaries, metric: Criterion
) -> Iterator[dict[str, Any]]:
    """Return a metric of each method, and how it differs from that of the first."""
    own = [_by_seed(entry, seeds, done, metric) for entry in entries]
    over = []
    for known in own:
        both = [seed for seed in known if seed in own[0]]
        over.append(difference([known[seed] for seed in both], [own[0][seed] for seed in both]))
    over[0]["p"] = None  # the first has no difference to itself
    for known, told, p in zip(own, over, holm([told["p"] for told in over]), strict=True):
        reached = sum(math.isfinite(value) for value in known.values())
        counted = {"reached": reached, "runs": len(known)} if metric.lower else {}
        told["p_holm"] = p
        yield {metric.name: interval(list(known.values())) | counted, f"{metric.name}{OVER_FIRST}": told}


def _turned(difference: Mapping[str, Any]) -> dict[str, Any]:
    """Turn a difference round: what a stage brings is what the method loses without it."""
    mean, ends = difference["mean"], difference["interval"]
    turned = {"mean": None if mean is None else -mean, "interval": ends and [-ends[1], -ends[0]]}
    return {**difference, **turned}


def remarks_of(
    entries: Sequence[Entry], seeds: Sequence[int], done: Summaries, metrics: Sequence[Criterion] = (ACCURACY,)
) -> list[str]:
    """Return what the runs themselves remarked, once for all that it is said of, and what so few seeds cannot show."""
    said: dict[tuple[str, str], list[str]] = {}  # seeds by remark and method
    for (method, seed), summary in done.items():
        for remark in summary["remarks"]:
            said.setdefault((f": {remark}", method), []).append(str(seed))
        if "epsilon" in summary:
            said.setdefault((f": epsilon is {write_epsilon(summary['epsilon'])}", method), []).append(str(seed))
        for metric in metrics:
            if summary.get(metric.name) == math.inf:
                never = f" never reached {metric.target:g}; it ranks last there, and is in no mean of {metric.name}"
                said.setdefault((never, method), []).append(str(seed))
    alike: dict[tuple[str, str], list[str]] = {}
    for (remark, method), at in said.items():
        alike.setdefault((remark, ", ".join(at)), []).append(method)
    over = [f"{', '.join(methods)}{remark} (seed {at})" for (remark, at), methods in alike.items()]
    over += _same_models(entries, seeds, done)
    return over + (caution(len(seeds), len(entries) - 1) if len(entries) > 1 and done else [])


def _same_models(entries: Sequence[Entry], seeds: Sequence[int], done: Summaries) -> Iterator[str]:
    """Say which rows are one by their models, as far as both have run: a difference of 0 would look measured.

    Models are told by their loss on all test samples, to the last bit; one that is not a number tells nothing.
    """
    losses = {
        entry.name: {
            seed: loss
            for seed in seeds
            if (loss := done.get((entry.name, seed), {}).get("loss_test")) is not None and math.isfinite(loss)
        }
        for entry in entries
    }
    names, told = list(losses), set[str]()
    for at, name in enumerate(names):
        if name in told:
            continue
        own = losses[name]
        same = [
            other
            for other in names[at + 1 :]
            if (both := own.keys() & losses[other].keys()) and all(own[seed] == losses[other][seed] for seed in both)
        ]
        told.update(same)
        if same:
            yield (
                f"{', '.join([name, *same])} came to the same models, bit for bit, with every seed: what sets them "
                "apart had nothing to act on here"
            )
