"""The outcome in one plain line."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedstrata.report.figures.labels import last_recall
from fedstrata.report.gather import GatheredRuns
from fedstrata.report.run_data import RunData
from fedstrata.runs.compare.grid import conditions_of


def outcome(gathered: GatheredRuns) -> str:
    """Say what came out."""
    if len(gathered.runs_data) == 1:
        return _of_run(gathered.runs_data[0])
    if names := conditions_of(gathered.rows):
        return _of_conditions(gathered.rows, names)
    if len(gathered.rows) > 1:
        return _of_comparison(gathered.rows)
    scored = [(float(a[-1]), run_data) for run_data in gathered.runs_data if len(a := _scores(run_data))]
    if not scored:
        return f"{len(gathered.runs_data)} runs, none of which has been scored yet."
    (best, first), *rest = sorted(scored, key=lambda own: -own[0])
    others = ", ".join(f"{run_data.name} {share(a)}" for a, run_data in rest[:3])
    return f"Of {len(gathered.runs_data)} runs, {first.name} is the most accurate: {share(best)}" + (
        f"; then {others}{' and others' if len(rest) > 3 else ''}." if others else "."
    )


def share(value: float | None) -> str:
    """Write a share in percent."""
    return "unknown" if value is None or np.isnan(value) else f"{100 * value:.1f} %"


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
    worst = run_data.column("worst10")
    worst = worst[~np.isnan(worst)]
    if len(worst):
        said.append(f"{share(worst[-1])} for the tenth of clients that it serves worst")
    recall = last_recall(run_data)
    if len(recall) and not np.isnan(recall).all():
        weakest = int(np.nanargmin(recall))
        rare = ", a rare one" if run_data.rare[weakest] else ""
        said.append(f"its weakest label is {run_data.classes[weakest]}{rare}, with {share(recall[weakest])}")
    return "; ".join(said) + "."


def _of_comparison(rows: list[dict[str, Any]]) -> str:
    ranked = sorted(rows, key=lambda row: -(_mean(row) or 0.0))
    first, second = ranked[:2]
    said = f"Of {len(rows)} methods over {first.get('seeds')} seeds, {first['method']} has the highest mean accuracy, "
    said += (
        f"{share(_mean(first))}{_interval(first)}; then {second['method']}, {share(_mean(second))}{_interval(second)}."
    )
    lowest, highest = _ends(first)[0], _ends(second)[1]
    if np.isnan(lowest + highest):
        return said + " One seed says little: more give an interval."
    return said + (" Their intervals overlap." if lowest <= highest else "")


def _of_conditions(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Count the conditions under which each method is the best."""
    wins = dict.fromkeys((row["method"] for row in rows), 0)
    for name in names:
        own = [row for row in rows if row.get("condition") == name and _mean(row) is not None]
        top = max((_mean(row) or 0.0 for row in own), default=None)
        for row in own:
            wins[row["method"]] += _mean(row) == top
    ranked = sorted(wins.items(), key=lambda own: -own[1])
    if len(ranked) == 1:
        means = [mean for row in rows if (mean := _mean(row)) is not None]
        between = f": from {share(min(means))} to {share(max(means))}" if means else ""
        return f"{ranked[0][0]} under {len(names)} conditions{between}."
    said = "; ".join(f"{method} {count}" for method, count in ranked if count)
    return f"Of {len(ranked)} methods under {len(names)} conditions, so often each has the highest accuracy: {said}."


def _scores(run_data: RunData) -> np.ndarray:
    accuracy = run_data.column("accuracy")
    known: np.ndarray = accuracy[~np.isnan(accuracy)]
    return known


def _mean(row: dict[str, Any]) -> float | None:
    mean = (row.get("accuracy") or {}).get("mean")
    return None if mean is None else float(mean)


def _ends(row: dict[str, Any]) -> tuple[float, float]:
    low, high = (row.get("accuracy") or {}).get("interval") or (np.nan, np.nan)
    return float(low), float(high)


def _interval(row: dict[str, Any]) -> str:
    low, high = _ends(row)
    return "" if np.isnan(low) else f" ({100 * low:.1f} to {100 * high:.1f})"
