"""What does a byte buy? FedAvg, and Stratify's batches with less and less to send, each with the same budget of bytes.

FedAvg's rounds set the budget; every other row stops with the round in which it has spent as much, in all directions.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

from rich.progress import track

import fedstrata

PAGE = Path(__file__).parent.parent / "docs" / "bytes.md"
BATCH, UP, DOWN, TOP = "train.batch_size", "method.driver.up", "method.driver.down", "method.driver.top"
STRATIFY: dict[str, dict[str, Any]] = {
    "as the paper has it": {},
    "gradients in bf16": {UP: "bf16"},
    "gradients and model in bf16": {UP: "bf16", DOWN: "bf16"},
    "gradients and model in fp16": {UP: "fp16", DOWN: "fp16"},
    "gradients in int8, model in bf16": {UP: "int8", DOWN: "bf16"},
    "tenth of the gradient, model in bf16": {UP: "top-k", TOP: 0.1, DOWN: "bf16"},
    "hundredth of the gradient, model in bf16": {UP: "top-k", TOP: 0.01, DOWN: "bf16"},
    "batches of 256": {BATCH: 256, "train.lr": 0.1},
    "batches of 1,024": {BATCH: 1_024, "train.lr": 0.2},
    "batches of 256, int8 and bf16": {BATCH: 256, "train.lr": 0.1, UP: "int8", DOWN: "bf16"},
    "batches of 1,024, int8 and bf16": {BATCH: 1_024, "train.lr": 0.2, UP: "int8", DOWN: "bf16"},
}
HEAD = (
    "| | accuracy at equal bytes | bytes | rounds or epochs | bytes an epoch | accuracy at equal epochs |\n"
    "|---|---|---|---|---|---|"
)
INTRODUCTION = """# What a byte buys

Stratify's global batches move a model and a gradient for every client in every batch. With the driver `sync`, gradients
may travel in fewer bits or as their largest numbers (`method.driver.up`), and the model in 16 bits (`down`); what
compression loses of a gradient, its client adds to the next one. A larger `train.batch_size` is the other way: it
accumulates locally what would have been several batches. [experiment.md](experiment.md) has the options.

All clients train in every round, FedAvg with the defaults of `fedstrata run`, Stratify with those of its recipe; with
larger batches the step size doubles for every factor of four. Nothing else was tuned. Every row has the bytes that
FedAvg spent, in all directions, and ends with the round in which they are spent. Bytes an epoch are those of the plain
method times what stands there; the last column has the accuracy after as many epochs as the plain method trained, which
is what fewer bits or larger batches cost. Means over seeds, with the least and the most.
"""


def main(arguments: Sequence[str]) -> int:
    """Train and tell."""
    parser = argparse.ArgumentParser(prog="python -m studies bytes", description=__doc__)
    parser.add_argument("--data", default="digits", help="a data set of classes [digits]")
    parser.add_argument("--model", default="mlp", help="a model by name [mlp]")
    parser.add_argument("--clients", type=int, default=10)
    parser.add_argument("--labels", type=int, default=2, help="labels that each client holds [2]")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of FedAvg, which set the budget [40]")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", nargs="*", metavar="ROW", choices=list(STRATIFY), help="some rows alone")
    parser.add_argument("--write", action="store_true", help="write the table into the documentation")
    asked = parser.parse_args(arguments)
    text = table(asked.data, asked.model, asked.clients, asked.labels, asked.rounds, asked.seeds, asked.only)
    print(text)
    if asked.write:
        given = " ".join(["python -m studies bytes", *(a for a in arguments if a != "--write")])
        PAGE.write_text(f"{INTRODUCTION}\n```\n{given}\n```\n\n{text}\n")
    return 0


def table(
    data: str, model: str, clients: int, labels: int, rounds: int, seeds: int, only: Sequence[str] | None = None
) -> str:
    """Return a table in Markdown: accuracy at equal bytes, means over seeds."""
    partition = {"kind": "labels-per-client", "labels": labels, "unowned": "round-robin"}
    common = {"data.name": data, "data.clients": clients, "data.partition": partition, "model.name": model}
    common |= {"train.clients_per_round": "all"}
    fedavg = [run_method("fedavg", common | {"train.rounds": rounds, "train.seed": seed}) for seed in range(seeds)]
    budget = fmean(map(moved, fedavg))
    lines, plain = [HEAD, line("FedAvg", fedavg)], []
    for name, options in track([(n, o) for n, o in STRATIFY.items() if not only or n in only], "rows"):
        runs = [run_method("stratify-batch", common | spending(budget, seed) | options) for seed in range(seeds)]
        plain = plain or runs
        lines.append(line(f"Stratify, {name}", runs, plain))
    return "\n".join(lines)


def spending(budget: float, seed: int) -> dict[str, Any]:
    """Ask for a run that ends when a budget is spent; a tenth of an epoch is a round, so that little is overspent."""
    tenths = {"method.schedule.rounds_per_epoch": 10, "train.rounds": 10_000}
    return {**tenths, "train.stop.bytes": round(budget), "train.seed": seed, "train.lr_schedule": "constant"}


def run_method(method: str, overrides: dict[str, Any]) -> dict[str, Any]:
    """Return the summary and the curve of a run that leaves nothing behind."""
    with TemporaryDirectory() as folder:
        run = fedstrata.train(method=method, overrides=overrides, out=Path(folder) / "run")
        return {**run.summary, "curve": run.curve("accuracy")}


def moved(run: dict[str, Any]) -> int:
    """Return the bytes of a run, in all directions."""
    return int(run["bytes_up"] + run["bytes_down"] + run["bytes_p2p"])


def epochs(run: dict[str, Any]) -> float:
    """Return the epochs of a run."""
    return float(run["transfers"]["epochs"]) if "transfers" in run else float(run["rounds"])


def line(name: str, runs: Sequence[dict[str, Any]], plain: Sequence[dict[str, Any]] = ()) -> str:
    """Return a row of the table; `plain` are the runs of the method as the paper has it."""
    spent, length = fmean(map(moved, runs)), fmean(map(epochs, runs))
    cells = [name, spread([run["accuracy"] for run in runs]), f"{spent / 1e6:.1f} MB", f"{length:.1f}", "", ""]
    if plain:
        share = (spent / length) / (fmean(map(moved, plain)) / fmean(map(epochs, plain)))
        ends = [run["curve"][len(first["curve"]) - 1] for run, first in zip(runs, plain, strict=True)]
        cells[4:] = [f"{share:.2f}", spread(ends)]
    return f"| {' | '.join(cells)} |"


def spread(values: Sequence[float]) -> str:
    """Return the mean, the least and the most."""
    return f"{fmean(values):.3f} ({min(values):.3f} to {max(values):.3f})"
