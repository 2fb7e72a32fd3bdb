"""Which stages belong together, under which skew? The search behind the recipe `strata`, at equal client updates.

First the product of selectors, corrections and server steps; then, on the best of these, samplers, drivers,
combiners and strengths. Only data of the search are used (`DATA`); `python -m studies strata` confirms on others.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import Any

from studies._grid import CONDITIONS, Row, run_missing

STUDY = "strata-search"
DATA = ("digits", "fashion-mnist")
SKEWS = ("dirichlet 1", "dirichlet 0.3", "dirichlet 0.1", "2 labels", "1 label")
SELECTORS: dict[str, dict[str, Any]] = {
    "random": {},
    "flips": {"method.selector.kind": "flips", "method.selector.clusters": "CLUSTERS"},
    "balanced": {"method.selector.kind": "balanced-labels"},
}
CORRECTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "feddyn": {"method.corrections": [{"kind": "feddyn"}, {"kind": "clip", "norm": 10.0}]},
    "unstable": {"method.corrections": [{"kind": "prox", "mu": 0.1, "when": "unstable"}]},
}
SERVER_STEPS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"method.server_step": {"kind": "sgd", "momentum": 0.7}},
    "momentum 0.9": {"method.server_step": {"kind": "sgd", "momentum": 0.9}},
    "yogi": {"method.server_step": {"kind": "yogi"}},
    "fedexp": {"method.server_step": {"kind": "fedexp"}},
}
OTHERS: dict[str, dict[str, Any]] = {
    "uniform": {"method.combiner": "uniform"},
    "bias-aware": {"method.sampler": "bias-aware"},
    "terraform": {"method.driver": "terraform"},
    "feddyn 0.003": {"method.corrections": [{"kind": "feddyn", "alpha": 0.003}, {"kind": "clip", "norm": 10.0}]},
    "feddyn 0.03": {"method.corrections": [{"kind": "feddyn", "alpha": 0.03}, {"kind": "clip", "norm": 10.0}]},
}
BEST = {  # of the product, and what is put on each of them
    "balanced+feddyn+fedexp": tuple(OTHERS),
    "flips+feddyn+fedexp": ("uniform", "terraform"),
    "balanced+plain+fedexp": (),
    "flips+plain+momentum": (),
    "random+plain+sgd": (),
}


def main(arguments: Sequence[str]) -> int:
    """Make the missing runs."""
    parser = argparse.ArgumentParser(prog="python -m studies strata_search", description=__doc__)
    parser.add_argument("--stage", type=int, choices=(1, 2), default=1, help="the product, or what is put on the best")
    parser.add_argument("--data", nargs="*", default=DATA, choices=DATA)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="stage 1 had seed 0, stage 2 seed 1")
    asked = parser.parse_args(arguments)
    if asked.stage == 1:
        run_missing(STUDY, asked.data, SKEWS, combined(), asked.seeds)
    else:
        run_missing(STUDY, asked.data, list(CONDITIONS), extended(), asked.seeds)
    return 0


def combined() -> list[Row]:
    """Return the product of three stages."""
    named = product(SELECTORS.items(), CORRECTIONS.items(), SERVER_STEPS.items())
    return [Row("+".join(name for name, _ in parts), _joined(*(own for _, own in parts))) for parts in named]


def extended() -> list[Row]:
    """Return the best of them, as they are and with each of the other stages."""
    known = {row.name: row for row in combined()}
    more = [(known[name], extra) for name, extras in BEST.items() for extra in extras]
    return [
        *(known[name] for name in BEST),
        *(Row(f"{row.name}+{extra}", _joined(row.settings, OTHERS[extra])) for row, extra in more),
    ]


def _joined(*settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for own in settings for key, value in own.items()}
