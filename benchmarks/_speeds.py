"""Write into the package what a local step and a multiplication cost, for `fedstrata reproduce list`.

`python -m benchmarks._speeds` reads benchmarks/results: of a CPU, `work.json`; of a GPU, `work-gpu.json` or, as long as
nobody has measured that, the two whole runs of `gpu.json`. The two costs are those that come nearest to all rows, each
off by as small a share as possible.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

import fedstrata
from benchmarks.gpu import CIFAR, FASHION, ROUNDS
from benchmarks.work import WORKLOADS
from fedstrata.reproduce.table import all_tables
from fedstrata.reproduce.work import Work, count_products, name_network, network, work_of

RESULTS = Path(__file__).parent / "results"
SPEEDS = Path(fedstrata.__file__).parent / "reproduce" / "speeds.json"
SOURCES = {"cpu": ("work",), "gpu": ("work-gpu", "gpu")}  # the first that is there


def speeds() -> dict[str, Any]:
    """Return the costs by kind of device, where they come from, and the multiplications of the papers' networks."""
    costs = {device: _fitted(*_first(names)) for device, names in SOURCES.items()}
    places = ((table, c, row) for table in all_tables().values() for c in table.conditions for row in table.rows)
    networks = sorted({network(table.settings(condition, row)) for table, condition, row in places}, key=repr)
    return {**costs, "products": {name_network(*one): count_products(*one) for one in networks}}


def _first(names: tuple[str, ...]) -> tuple[str, dict[str, Any]]:
    name = next(name for name in names if (RESULTS / f"{name}.json").exists())
    return name, json.loads((RESULTS / f"{name}.json").read_text())


def _fitted(name: str, kept: dict[str, Any]) -> dict[str, Any]:
    measured = list(_measured(name, {row["name"]: row["value"] for row in kept["rows"]}))
    shares = np.array([[work.steps / seconds, work.products / seconds] for work, seconds in measured])
    scale = shares.max(axis=0)  # a step and a multiplication are many orders apart
    step, product = nnls(shares / scale, np.ones(len(shares)))[0] / scale
    machine = kept["machine"]
    return {
        "seconds_a_step": float(f"{step:.4g}"),
        "seconds_a_product": float(f"{product:.4g}"),
        "hardware": machine.get("gpus", [f"{machine['cores']} cores of {machine['cpu']}"])[0],
        "measured": f"benchmarks/results/{name}.json, {kept['date'][:10]}",
    }


def _measured(name: str, rows: dict[str, float]) -> Iterator[tuple[Work, float]]:
    if name != "gpu":
        yield from ((one.work, rows[one.name]) for one in WORKLOADS)
        return
    start = rows["fashion-mnist, CNN tf32: first round after the command"]
    for said, asked, rounds in (
        ("fashion-mnist, CNN tf32", FASHION, ROUNDS),
        ("cifar10, ResNet-18 GN bf16, crop and flip", CIFAR, ROUNDS // 3),
    ):
        yield work_of(asked | {"train.rounds": rounds - 1}), rows[f"{said}: a run of ours"] - start


if __name__ == "__main__":
    SPEEDS.write_text(json.dumps(speeds(), indent=1) + "\n")
