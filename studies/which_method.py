"""Which method when? Methods under different skews, noise, stragglers and participation, at equal bytes.

Runs are kept under `studies/results/which-method`; the page reads every file there.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedstrata.inspection.measured import leaves
from studies._grid import CONDITIONS, Row, read, run_missing, wrapped
from studies._papers import SAID, in_the_papers_tables
from studies._rules import Case, advised, cases, fit

STUDY = "which-method"
DATA = ("digits", "fashion-mnist", "covtype", "mit-bih", "uci-har")
SEEDS = (10, 11, 12)  # others than those of the search for strata
TENTHS = {"method.schedule.rounds_per_epoch": 10, "train.rounds": 10_000, "train.evaluate.every": 1}
LARGE = {"train.batch_size": 1_024, "train.lr": 0.2, "method.driver.up": "int8", "method.driver.down": "bf16"}
PLAIN = ("fedavg", "fedpbs", "fedbss", "terraform", "balanced-labels")
OTHERS = ("scaffold", "feddyn", "fedyogi", "fedexp")

ROOT = Path(__file__).parent.parent
PAGE, RULES = ROOT / "docs" / "which-method.md", ROOT / "src" / "fedstrata" / "inspection" / "measured.json"
INTRODUCTION = """# Which method when

<!-- written by `python -m studies which_method --write` from the runs under `studies/results/which-method` -->

{methods} methods on {federations} federations: small copies of data sets ({data}; at most 150 training samples of a
class), dealt to 40 clients of which 10 train in a round unless the column says otherwise, {seeds}; an MLP, two local
epochs, batches of 16, step size 0.1. Methods have the options of their recipes, but for FLIPS's clusters, which are one
a label, and a row of Stratify with large batches and few bits; nothing was tuned. Every run has the bytes that FedAvg
takes for 300 client updates. A figure is the mean accuracy over data sets and seeds, of a run's last three evaluations
within the budget. What a method *loses* is its distance to the best method on the same federation, in the mean over
all of them.

These are small models and short runs on a CPU: who trains long and large should expect smaller differences, and perhaps
others. Results of larger runs join by lying in the same folder. `strata` was searched on digits, among others, and not
on the other data sets here; see [strata.md](strata.md).

```
python -m studies which_method            # makes the missing runs
python -m studies which_method --write    # writes this page, and the rules that `fedstrata inspect` reads
```
"""
RULES_SAID = """\
A tree of at most two questions is fitted to these runs: in each leaf stands the method that lost least there, and a
question must save 0.4 points in the mean. `fedstrata inspect` gives this advice first:
"""
PLAIN_SAID = """
Without `strata`, which asks questions of its own:
"""
REGRET_SAID = """\
Rules are fitted to all data sets but one and followed on that one; then the next is left out. Columns are the data
set that was left out; a figure is the accuracy that is lost against the best of all methods on each federation.
"""


def rows() -> list[Row]:
    """Return the methods; options are their recipes', but for FLIPS's clusters, which are one a label."""
    plain: list[Row] = [Row(name, {"method.name": name}) for name in (*PLAIN, *OTHERS)]
    flips: dict[str, Any] = {"method.name": "flips", "method.selector.clusters": "CLUSTERS"}
    stratify: dict[str, Any] = {"method.name": "stratify-batch", **TENTHS}
    return [
        *plain,
        Row("flips", flips),
        Row("stratify-batch", stratify, by="bytes"),
        Row("stratify-batch (batches of 1,024, int8)", {**stratify, **LARGE}, by="bytes"),
        Row("strata", {"method.name": "strata"}),
    ]


NAMES = [row.name for row in rows()]
CANDIDATES = [name for name in NAMES if "(" not in name]  # recipes as they are
PLAIN_ONES = [name for name in CANDIDATES if name != "strata"]


def main(arguments: Sequence[str]) -> int:
    """Make the missing runs, or write what is known."""
    parser = argparse.ArgumentParser(prog="python -m studies which_method", description=__doc__)
    parser.add_argument("--data", nargs="*", default=DATA, choices=DATA)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--rows", nargs="*", help="some methods alone")
    parser.add_argument("--write", action="store_true", help="run nothing; write the page and the rules of inspect")
    asked = parser.parse_args(arguments)
    if asked.write:
        write()
        return 0
    chosen = [row for row in rows() if not asked.rows or row.name in asked.rows]
    run_missing(STUDY, asked.data, list(CONDITIONS), chosen, asked.seeds)
    return 0


def write() -> None:
    """Write the page and the rules from all runs that are there."""
    lines = read(STUDY)
    RULES.write_text(json.dumps(fitted_rules(lines), indent=1) + "\n")
    PAGE.write_text(page(lines))


def fitted_rules(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Fit the rules of inspect to all runs."""
    return fit(cases(lines, NAMES), CANDIDATES)


def page(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return the page in Markdown."""
    known, early = cases(lines, NAMES), cases(lines, NAMES, 1 / 3)
    data = sorted({case.data for case in known})
    seeds = len({case.seed for case in known})
    said = f"up to {seeds} seeds"
    about = INTRODUCTION.format(federations=len(known), data=", ".join(data), seeds=said, methods=len(NAMES))
    parts = [
        about,
        "## At equal bytes\n",
        accuracies(known),
        "\n## At a third of the bytes\n",
        accuracies(early),
        f"\n## Rules\n\n{RULES_SAID}",
        told(fitted_rules(lines)),
        PLAIN_SAID,
        told(fit(known, PLAIN_ONES)),
        f"\n## What following the rules loses\n\n{REGRET_SAID}",
        regrets(known),
        f"\n## In the papers' tables\n\n{SAID}",
        in_the_papers_tables(),
    ]
    return wrapped("\n".join(parts) + "\n")


def accuracies(known: Sequence[Case]) -> str:
    """Return a row a method and a column a condition: means over data sets and seeds, the best in bold."""
    conditions = [name for name in CONDITIONS if any(case.condition == name for case in known)]
    of = {name: [case for case in known if case.condition == name] for name in conditions}
    means = {(m, c): fmean(case.accuracy[m] for case in of[c]) for m in NAMES for c in conditions}
    best = {c: max(means[m, c] for m in NAMES) for c in conditions}
    lines = [f"| | {' | '.join(conditions)} | loses |", f"|---|{'---:|' * (len(conditions) + 1)}"]
    for method in sorted(NAMES, key=lambda m: fmean(case.loss[m] for case in known)):
        cells = [f"{means[method, c]:.3f}" for c in conditions]
        cells = [
            f"**{cell}**" if means[method, c] == best[c] else cell for cell, c in zip(cells, conditions, strict=True)
        ]
        lines.append(f"| {method} | {' | '.join(cells)} | {fmean(case.loss[method] for case in known):.3f} |")
    return "\n".join(lines)


def told(tree: Mapping[str, Any]) -> str:
    """Return the leaves of a tree as a table."""
    lines = ["| where | method | loses | FedAvg loses | federations |", "|---|---|---:|---:|---:|"]
    for leaf in leaves(tree):
        where = " and ".join(leaf.questions) or "everywhere"
        lines.append(f"| {where} | `{leaf.recipe}` | {leaf.loss:.3f} | {leaf.fedavg:.3f} | {leaf.federations} |")
    return "\n".join(lines)


def regrets(known: Sequence[Case]) -> str:
    """Return what policies lose on each data set that was left out when they were made."""
    data = sorted({case.data for case in known})
    left: dict[str, dict[str, list[float]]] = {}
    for name in data:
        own, others = [c for c in known if c.data == name], [c for c in known if c.data != name]
        if not others:
            continue
        tree, plain, single = fit(others, CANDIDATES), fit(others, PLAIN_ONES), fit(others, PLAIN_ONES, depth=0)
        lost = {
            "always `fedavg`": [case.loss["fedavg"] for case in own],
            "always the method, but `strata`, that lost least elsewhere": [advised(single, case) for case in own],
            "the rules without `strata`, fitted elsewhere": [advised(plain, case) for case in own],
            "the rules, fitted elsewhere": [advised(tree, case) for case in own],
            "always `strata`": [case.loss["strata"] for case in own],
        }
        for policy, losses in lost.items():
            left.setdefault(policy, {})[name] = losses
    lines = [f"| | {' | '.join(data)} | all | worst |", f"|---|{'---:|' * (len(data) + 2)}"]
    for policy, by_data in left.items():
        every = [loss for own in by_data.values() for loss in own]
        cells = [f"{fmean(by_data[name]):.3f}" for name in data]
        lines.append(f"| {policy} | {' | '.join(cells)} | {fmean(every):.3f} | {max(every):.3f} |")
    return "\n".join(lines)
