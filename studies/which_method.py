"""Which method when? Methods under different skews, noise, stragglers and participation, at equal bytes.

Runs are kept under `studies/results/which-method`; the page reads every file there.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from studies._grid import CONDITIONS, Row, play

STUDY = "which-method"
DATA = ("digits", "fashion-mnist", "covtype", "mit-bih", "uci-har")
SEEDS = (10, 11)  # others than those of the search for strata
TENTHS = {"method.schedule.rounds_per_epoch": 10, "train.rounds": 10_000, "train.evaluate.every": 1}
LARGE = {"train.batch_size": 1_024, "train.lr": 0.2, "method.driver.up": "int8", "method.driver.down": "bf16"}
PLAIN = ("fedavg", "fedpbs", "fedbss", "terraform", "balanced-labels")
OTHERS = ("scaffold", "feddyn", "fedyogi", "fedexp")


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


def main(arguments: Sequence[str]) -> int:
    """Play what is missing."""
    parser = argparse.ArgumentParser(prog="python -m studies which_method", description=__doc__)
    parser.add_argument("--data", nargs="*", default=DATA, choices=DATA)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--rows", nargs="*", help="some methods alone")
    asked = parser.parse_args(arguments)
    chosen = [row for row in rows() if not asked.rows or row.name in asked.rows]
    play(STUDY, asked.data, list(CONDITIONS), chosen, asked.seeds)
    return 0
