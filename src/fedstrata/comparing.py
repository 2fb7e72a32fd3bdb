"""Paired comparisons: every method on the same partition, first model and draws, over several seeds."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t as student
from torch import nn

from fedstrata.assemble import federation_of
from fedstrata.errors import RequestError
from fedstrata.experiment import Experiment
from fedstrata.federation import Federation
from fedstrata.plots import Plots
from fedstrata.runs import Run, write_atomically
from fedstrata.training import begin, described, resume
from fedstrata.work import Watch

FIGURES = (
    "accuracy",
    "balanced_accuracy",
    "worst10",
    "bytes_up",
    "bytes_down",
    "bytes_p2p",
    "client_updates",
    "rounds",
    "seconds",
)


@dataclass(frozen=True)
class Comparison(Plots):
    """The outcome: one row a method, with mean and 95 % interval of every figure over the seeds."""

    path: Path
    rows: list[dict[str, Any]]

    def __repr__(self) -> str:
        said = ", ".join(f"{row['method']} {row['accuracy']['mean']:.4f}" for row in self.rows)
        return f"Comparison({str(self.path)!r}: {said})"


def compare(
    experiment: Mapping[str, Any] | str | Path | Experiment | None = None,
    *,
    methods: Sequence[str],
    seeds: int = 1,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    watch: Callable[[str, int], Watch | None] | None = None,
) -> Comparison:
    """Run every method with every seed, and sum the runs up.

    Seeds count up from the experiment's own. Runs lie in OUT/METHOD/seed-N; a comparison that was stopped goes on where
    it was, and finished runs are not run again. `watch(method, seed)` may give a watcher for each run.
    """
    if isinstance(methods, str):
        raise RequestError(f'methods = "{methods}" must be a list of names')
    if "method.name" in (overrides or {}):
        raise RequestError("method.name cannot be set in a comparison; name the methods with --methods")
    if not methods:
        raise RequestError("compare needs at least one method")
    if len(set(methods)) != len(methods):
        raise RequestError(f"a method is named twice: {', '.join(methods)}")
    if seeds < 1:
        raise RequestError(f"seeds = {seeds} must be at least 1")
    first = described(experiment, None, overrides, federation, model).train.seed
    cells = {  # all requests are checked before the first is run
        (method, seed): described(experiment, method, {**(overrides or {}), "train.seed": seed}, federation, model)
        for seed in range(first, first + seeds)
        for method in methods
    }
    _refuse_twins({method: cells[method, first] for method in methods})
    path = Path(out) if out is not None else Run.claim(Path("runs"), "compare")
    runs: dict[tuple[str, int], Run] = {}
    data, of_seed = federation, None
    try:
        for (method, seed), cell in cells.items():
            if federation is None and of_seed != seed:
                data, of_seed = federation_of(cell), seed
            assert data is not None
            watcher = watch(method, seed) if watch is not None else None
            runs[method, seed] = _cell(cell, path / method / f"seed-{seed}", data, model, watcher)
    finally:
        with suppress(OSError):  # a comparison that was refused before its first run leaves nothing behind
            path.rmdir()
    by_method = {m: [runs[m, s].summary for s in range(first, first + seeds)] for m in methods}
    rows = [_row(method, summaries, by_method[methods[0]]) for method, summaries in by_method.items()]
    write_atomically(path / "comparison.json", (json.dumps({"rows": rows}, indent=2) + "\n").encode())
    return Comparison(path, rows)


def _refuse_twins(cells: Mapping[str, Experiment]) -> None:
    """Refuse methods that an experiment's own stages have made the same: their rows would only differ in name."""
    seen: dict[str, str] = {}
    for name, cell in cells.items():
        stages = cell.method.model_dump_json(exclude={"name"})
        if stages in seen:
            raise RequestError(
                f"{seen[stages]} and {name} are the same here: the stages that the experiment sets replace what makes "
                "them differ; leave those stages out"
            )
        seen[stages] = name


def _cell(
    experiment: Experiment, path: Path, federation: Federation, model: nn.Module | None, watch: Watch | None
) -> Run:
    if not (path / "experiment.toml").exists():
        return begin(experiment, federation, model, path, watch)
    if Experiment.of(path / "experiment.toml") != experiment:
        raise RequestError(f"{path} holds a run of another experiment; choose another folder")
    return resume(path, federation=federation, model=model, watch=watch)


def _row(method: str, summaries: Sequence[Mapping[str, Any]], first: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    row: dict[str, Any] = {"method": method, "seeds": len(summaries)}
    for figure in FIGURES:
        row[figure] = interval([s[figure] for s in summaries])
    pairs = [s["accuracy"] - f["accuracy"] for s, f in zip(summaries, first, strict=True)]
    row["accuracy_over_first"] = interval(pairs)
    row["run_dirs"] = [s["run_dir"] for s in summaries]
    return row


def interval(values: Sequence[float | None], level: float = 0.95) -> dict[str, Any]:
    """Give the mean and its Student t interval; one value has no interval."""
    known = np.array([v for v in values if v is not None], dtype=np.float64)
    if not len(known):
        return {"mean": None, "interval": None}
    if len(known) == 1:
        return {"mean": float(known[0]), "interval": None}
    half = float(student.ppf((1 + level) / 2, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    return {"mean": float(known.mean()), "interval": [float(known.mean()) - half, float(known.mean()) + half]}
