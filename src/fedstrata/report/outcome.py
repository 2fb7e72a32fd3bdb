"""The outcome in one plain line."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedstrata.report.figures.curves import group_runs
from fedstrata.report.figures.labels import last_recall
from fedstrata.report.gather import GatheredRuns
from fedstrata.report.run_data import RunData
from fedstrata.runs.amounts import write_share
from fedstrata.runs.compare.grid import (
    BEST_OVER,
    OVER_FIRST,
    conditions_of,
    metrics_in,
    standing,
    title_of,
    write_figure,
    write_value,
)
from fedstrata.runs.metrics import Criterion


def outcome(gathered: GatheredRuns) -> str:
    """Say what came out."""
    if len(gathered.runs_data) == 1:
        return _of_run(gathered.runs_data[0])
    if why := gathered.unranked:
        return f"{len(gathered.runs_data)} runs, which are not ranked: {why}."
    if names := conditions_of(gathered.rows):
        return _of_conditions(gathered.rows, names)
    if len(gathered.rows) > 1:
        return _of_comparison(gathered.rows)
    return _of_groups(gathered.runs_data)


def share(value: float | None) -> str:
    """Write a share in percent."""
    return "unknown" if value is None or np.isnan(value) else f"{write_share(value)} %"


def _of_run(run_data: RunData) -> str:
    planned = run_data.asked("train", "rounds")
    after = (
        f"after {len(run_data)} rounds"
        if run_data.summary
        else f"after {len(run_data)} of {planned} rounds, not finished"
    )
    if not len(scores := _scores(run_data)):
        return f"{run_data.name} has not been scored {after}."
    said = [f"{run_data.name} recognises {share(scores[-1])} of the test samples {after}"]
    worst = run_data.known("worst10")
    worst = worst[~np.isnan(worst)]
    if len(worst):
        said.append(f"{share(worst[-1])} for the tenth of clients that it serves worst")
    recall = last_recall(run_data)
    if len(recall) and not np.isnan(recall).all():
        weakest = int(np.nanargmin(recall))
        rare = ", a rare one" if run_data.rare[weakest] else ""
        said.append(f"its weakest label is {run_data.classes[weakest]}{rare}, with {share(recall[weakest])}")
    return "; ".join(said) + "."


def _of_groups(runs_data: list[RunData]) -> str:
    """Rank runs that nobody has compared yet, those of one method by their mean: the best seed says nothing."""
    groups = {
        group: [float(a[-1]) for own in runs if len(a := _scores(own))] for group, runs in group_runs(runs_data).items()
    }
    scored = sorted(((np.mean(own), group, own) for group, own in groups.items() if own), key=lambda each: -each[0])
    if not scored:
        return f"{len(runs_data)} runs, none of which has been scored yet."
    seeded = len(groups) < len(runs_data)
    told = [
        f"{group} {share(float(mean))}" + (f" ({share(min(own))} to {share(max(own))})" if len(own) > 1 else "")
        for mean, group, own in scored
    ]
    several = f"{len(groups)} methods" if seeded else f"{len(runs_data)} runs"
    how = "has the highest mean accuracy so far" if seeded else "is the most accurate"
    if len(groups) == 1:
        return f"{len(runs_data)} runs of {told[0]}."
    others = f"; then {', '.join(told[1:4])}{' and others' if len(told) > 4 else ''}" if len(told) > 1 else ""
    return f"Of {several}, {scored[0][1]} {how}: {told[0].removeprefix(scored[0][1]).strip()}{others}."


def _of_comparison(rows: list[dict[str, Any]]) -> str:
    metric = metrics_in(rows)[0]
    title = title_of(metric.name)
    ranked = sorted(rows, key=lambda row: standing(row, metric) or (-1.0, 0.0), reverse=True)
    first, second = ranked[:2]
    most = "lowest" if metric.lower else "highest"
    seeds = "1 seed" if first.get("seeds") == 1 else f"{first.get('seeds')} seeds"
    said = f"Of {len(rows)} methods over {seeds}, {first['method']} has the {most} mean {title}, "
    said += f"{_figure(first, metric)}; then {second['method']}, {_figure(second, metric)}."
    if first.get("seeds") == 1:
        return said + " One seed says little: more give an interval."
    paired, may_be_none = second.get(f"{metric.name}{BEST_OVER}"), may_be_equal(first, second, metric)
    if paired and paired["interval"]:
        points = " in points" if not metric.lower else ""
        told = write_figure(f"{metric.name}{OVER_FIRST}", paired)
        return f"{said} Paired by seed, they differ by {told}{points}{': perhaps not at all' if may_be_none else ''}."
    return said + (" Their intervals overlap." if may_be_none else "")


def may_be_equal(best: dict[str, Any], other: dict[str, Any], metric: Criterion) -> bool:
    """Say whether the best row may be no better than another, by their paired difference.

    Where that is not known, as between two comparisons, it is by their intervals.
    """
    if paired := other.get(f"{metric.name}{BEST_OVER}"):
        return bool(paired["interval"]) and paired["interval"][0] <= 0 <= paired["interval"][1]
    one, two = ((row.get(metric.name) or {}).get("interval") for row in (best, other))
    return one is not None and two is not None and bool(one[0] <= two[1] and two[0] <= one[1])


def _of_conditions(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Count the conditions under which each method is the best."""
    metric = metrics_in(rows)[0]
    title = title_of(metric.name)
    wins = dict.fromkeys((row["method"] for row in rows), 0)
    for name in names:
        own = [(row["method"], standing(row, metric)) for row in rows if row.get("condition") == name]
        top = max((place for _, place in own if place is not None), default=None)
        for method, place in own:
            wins[method] += place is not None and place == top
    ranked = sorted(wins.items(), key=lambda own: -own[1])
    if len(ranked) == 1:
        means = [mean for row in rows if (mean := (row.get(metric.name) or {}).get("mean")) is not None]
        between = f": from {_value(metric, min(means))} to {_value(metric, max(means))}" if means else ""
        return f"{ranked[0][0]} under {len(names)} conditions{between}."
    said = "; ".join(f"{method} {count}" for method, count in ranked if count)
    most = "lowest" if metric.lower else "highest"
    equals = ", equals counted for each" if sum(wins.values()) > len(names) else ""
    many = f"under so many of {len(names)} conditions{equals}"
    return f"Of {len(ranked)} methods, each has the {most} {title} {many}: {said}."


def _figure(row: dict[str, Any], metric: Criterion) -> str:
    """Write what a row came to, with its interval in words."""
    figure = row.get(metric.name) or {}
    mean, ends = figure.get("mean"), figure.get("interval")
    if mean is None:
        return write_figure(metric.name, figure)
    often = f" in {figure['reached']} of {figure['runs']} runs" if figure.get("reached") != figure.get("runs") else ""
    between = f" ({write_value(metric.name, ends[0])} to {write_value(metric.name, ends[1])})" if ends else ""
    return f"{_value(metric, mean)}{between}{often}"


def _value(metric: Criterion, value: float) -> str:
    return write_value(metric.name, value) if metric.lower else share(value)


def _scores(run_data: RunData) -> np.ndarray:
    accuracy = run_data.known("accuracy")
    known: np.ndarray = accuracy[~np.isnan(accuracy)]
    return known
