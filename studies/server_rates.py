"""Do server steps collapse? Adagrad, Adam and Yogi with a rate of their own against fixed rates, on four data sets.

Runs are kept under `studies/results/server-rates` and `server-rates-long`; the page reads every file there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from studies._grid import Row, figure, read, run_missing, wrapped

STUDY, LONG_STUDY = "server-rates", "server-rates-long"
MODELS = {"digits": "mlp", "fashion-mnist": "lenet5", "uci-har": "har-mlp", "covtype": "covtype-mlp"}
CONDITION, LONG = "dirichlet 0.3", "dirichlet 0.3, 200 rounds"
LONG_MODELS = {**MODELS, "cifar10": "mlp"}  # there, 1,500 samples tell a network little that holds for others
SEEDS = (30, 31)  # others than the rule was chosen with
STEPS, RATES = ("adagrad", "adam", "yogi"), ("auto", 0.1, 0.01)

PAGE = Path(__file__).parent.parent / "docs" / "server-rates.md"
INTRODUCTION = """# Server steps that do not collapse

<!-- written by `python -m studies server_rates --write` from the runs under `studies/results/server-rates` -->

An adaptive server step (`adagrad`, `adam`, `yogi`) moves nearly every weight by about `method.server_step.lr`, however
small the weights and the updates are: a rate that suits one model destroys another. Reddi et al. tune it for each task.
With `lr = "auto"`, the default, it is set once, by the first update of the run, so that the first step is as long as
FedAvg's would have been (Adagrad's, whose steps shrink, sqrt(10) times as long, so that the tenth is). An event
`server_lr` tells the number; given as `lr`, it makes the same run.

Small copies of data sets (at most 150 training samples of a class), Dirichlet {alpha} over 40 clients of which 10 train
in a round, 30 rounds, two local epochs, batches of 16, step size 0.1; nothing was tuned. Accuracies are means of the
last three evaluations over {seeds} seeds, with the least and the most. The rule was chosen among others with another
seed, on these data sets. `below` is how far a row is below the best of its column, in points, in the mean over the
columns; `at a guess` counts runs that ended below 1.5 times the accuracy of a guess.

```
python -m studies server_rates            # makes the missing runs
python -m studies server_rates --write    # writes this page
```
"""
LATER = """## What becomes of the gain

The same with 200 rounds, in which a client trains 50 times, and for comparison two server steps that scale no single
weight: momentum 0.7 (`sgd`) and FedExP. On cifar10 an MLP learns 1,500 samples by heart, and little that holds for
others: the updates there are mostly noise.

{table}

Two seeds tell only large differences. The gains of 30 rounds are small by now, but on covtype. On cifar10, and on
fashion-mnist for momentum and FedExP, steps that stay longer than FedAvg's end behind it; `adagrad`, whose steps
shrink, does not on any of these.
"""


def main(arguments: Sequence[str]) -> int:
    """Make the missing runs, or write what is known."""
    parser = argparse.ArgumentParser(prog="python -m studies server_rates", description=__doc__)
    parser.add_argument("--data", nargs="*", default=list(LONG_MODELS), choices=list(LONG_MODELS))
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--write", action="store_true", help="run nothing; write the page")
    asked = parser.parse_args(arguments)
    if asked.write:
        PAGE.write_text(page(read(STUDY), read(LONG_STUDY)))
        return 0
    for data in asked.data:
        if data in MODELS:
            run_missing(STUDY, [data], [CONDITION], rows(MODELS[data]), asked.seeds)
        run_missing(LONG_STUDY, [data], [LONG], long_rows(LONG_MODELS[data]), asked.seeds)
    return 0


def rows(model: str) -> list[Row]:
    """Return FedAvg, and every step with every rate."""
    named = {"model.name": model}
    steps = [(kind, lr) for kind in STEPS for lr in RATES]
    return [
        Row("fedavg", named),
        *(Row(f"{kind} {lr}", {**named, "method.server_step": {"kind": kind, "lr": lr}}) for kind, lr in steps),
    ]


def long_rows(model: str) -> list[Row]:
    """Return what is looked at again in long runs."""
    named = {"model.name": model}
    others = {"momentum 0.7": {"kind": "sgd", "momentum": 0.7}, "fedexp": {"kind": "fedexp"}}
    return [
        *(row for row in rows(model) if row.name == "fedavg" or row.name.endswith("auto")),
        *(Row(name, {**named, "method.server_step": step}) for name, step in others.items()),
    ]


def page(lines: Sequence[Mapping[str, Any]], long: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown."""
    about = INTRODUCTION.format(alpha=CONDITION.rsplit(maxsplit=1)[-1], seeds=len({line["seed"] for line in lines}))
    return wrapped(f"{about}\n{table(lines)}\n\n{LATER.format(table=table(long))}\n")


def table(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return a row a step and rate and a column a data set; the best of a column is bold."""
    data = [name for name in LONG_MODELS if any(line["data"] == name for line in lines)]
    names = list(dict.fromkeys(line["row"] for line in lines))
    found = {(row, name): [figure(line) for line in lines if (line["row"], line["data"]) == (row, name)]
             for row in names for name in data}  # fmt: skip
    best = {name: max(fmean(found[row, name]) for row in names) for name in data}
    guess = {line["data"]: 1 / line["measured"]["labels"] for line in lines}
    shown = [
        f"| | {' | '.join(f'{name}, {LONG_MODELS[name]}' for name in data)} | below | at a guess |",
        f"|---|{'---:|' * (len(data) + 2)}",
    ]
    for row in names:
        cells = [_cell(found[row, name], best[name]) for name in data]
        below = fmean(best[name] - fmean(found[row, name]) for name in data)
        lost = sum(value < 1.5 * guess[name] for name in data for value in found[row, name])
        runs = sum(len(found[row, name]) for name in data)
        shown.append(f"| {row} | {' | '.join(cells)} | {100 * below:.1f} | {lost} of {runs} |")
    return "\n".join(shown)


def _cell(values: Sequence[float], best: float) -> str:
    mean = f"{fmean(values):.3f}"
    bold = f"**{mean}**" if fmean(values) == best else mean
    return f"{bold} ({min(values):.3f} to {max(values):.3f})"
