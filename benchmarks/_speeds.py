"""Write into the package what multiplications, steps and rounds cost, for `fedstrata reproduce list`.

`python -m benchmarks._speeds` reads, of a CPU, `work.json` among the benchmarks' results; of a GPU, the papers' tables
that were reproduced on one: several runs at a time, so a run's seconds are its part. The costs are those that come
nearest to all of them, each off by as small a share as possible.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import fedstrata
from benchmarks.work import WORKLOADS
from fedstrata.reproduce.minutes import Timing
from fedstrata.reproduce.results import Results
from fedstrata.reproduce.table import all_tables
from fedstrata.reproduce.work import Work, count_products, name_network, network

HERE = Path(__file__).parent
BENCHMARKS, TABLES = HERE / "results", HERE.parent / "reproduce/results"
SPEEDS = Path(fedstrata.__file__).parent / "reproduce" / "speeds.json"
QUANTITIES = {"cpu": ("products", "steps"), "gpu": ("products", "sequence", "rounds")}


def speeds() -> dict[str, Any]:
    """Return the costs by kind of device, where they come from, and the multiplications of the papers' networks."""
    costs = {"cpu": _of_cpu(), "gpu": _of_gpu()}
    places = ((table, c, row) for table in all_tables().values() for c in table.conditions for row in table.rows)
    networks = sorted({network(table.settings(condition, row)) for table, condition, row in places}, key=repr)
    return {**costs, "products": {name_network(*one): count_products(*one) for one in networks}}


def _of_cpu() -> dict[str, Any]:
    kept = json.loads((BENCHMARKS / "work.json").read_text())
    measured, machine = {row["name"]: row["value"] for row in kept["rows"]}, kept["machine"]
    return {
        **_fitted("cpu", [(one.work, measured[one.name]) for one in WORKLOADS]),
        "hardware": f"{machine['cores']} cores of {machine['cpu']}",
        "measured": f"benchmarks/results/work.json, {kept['date'][:10]}",
    }


def _of_gpu() -> dict[str, Any]:
    tables = [Results(table, TABLES) for table in all_tables().values()]
    timings = [Timing(results, "gpu") for results in tables]
    measured = [(one.results.table.work(*place), seconds) for one in timings for place, seconds in one.measured.items()]
    runs = [run for results in tables for run in results.runs.values() if run["device"] == "gpu"]
    last = max(runs, key=lambda run: run["date"])
    return {
        **_fitted("gpu", measured),
        "hardware": last["hardware"],
        "measured": f"reproduce/results, {len(runs)} runs until {last['date'][:10]}",
    }


def _fitted(device: str, measured: Sequence[tuple[Work, float]]) -> dict[str, Any]:
    """Return the seconds of each quantity, and within which factor of all that was measured they tell it."""
    names = QUANTITIES[device]
    shares = np.array([[getattr(work, name) / seconds for name in names] for work, seconds in measured])
    scale = shares.max(axis=0)  # a round and a multiplication are many orders apart
    costs = nnls(shares / scale, np.ones(len(shares)))[0] / scale
    off = max(max(share, 1 / share) for share in shares @ costs)
    return {
        "seconds": {name: float(f"{cost:.4g}") for name, cost in zip(names, costs, strict=True)},
        "within": float(f"{off:.2g}"),
    }


if __name__ == "__main__":
    SPEEDS.write_text(json.dumps(speeds(), indent=1) + "\n")
