"""Which stages belong together, under which skew? The search behind the recipe `strata`, at equal client updates.

First the product of selectors, corrections and server steps; then, on the best of these, samplers, drivers,
combiners and strengths. Only data of the search are used (`DATA`); `python -m studies strata` confirms on others. Last,
corrections and server steps again in long runs, with SGD and with Adam, on the data of the search and on others; and
what they led to, against the choice for short runs, on data that nobody had looked at (`SETTLING`).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import product
from typing import Any

from studies._grid import CONDITIONS, LONG_RUNS, Row, run_missing

STUDY, LONG_STUDY = "strata-search", "strata-long"
DATA, FRESH = ("digits", "fashion-mnist"), ("covtype", "mit-bih", "uci-har")
LOOKED_AT = ("covtype",)  # before the choice for long runs was made: no test of it
SETTLING, SETTLING_SEEDS = ("cifar10", "digits-dg", "ham10000", "pacs"), (12, 13, 14)  # that had no part in it, either
LONG_CHOICES = {  # what strata chooses in long runs, and what it would choose in short ones; kept if it is better there
    "SGD": ("balanced+plain+yogi", "balanced+feddyn+fedexp"),
    "SGD, 1 label": ("flips+plain+yogi", "flips+plain+momentum"),
    "Adam": ("balanced+plain+fedexp", "balanced+feddyn+fedexp"),
}
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
    parser.add_argument(
        "--stage",
        type=int,
        choices=(1, 2, 3, 4),
        default=1,
        help="the product, what is put on the best, long runs, what settles those",
    )
    parser.add_argument("--data", nargs="*", choices=(*DATA, *FRESH, *SETTLING))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0], help="stage 1 had seed 0, 2 seed 1, 3 10 to 12")
    parser.add_argument("--rows", nargs="*", help="some of them alone")
    asked = parser.parse_args(arguments)
    data = asked.data or ((*DATA, *FRESH) if asked.stage == 3 else DATA)
    if asked.stage == 1:
        run_missing(STUDY, data, SKEWS, _named(asked.rows, combined()), asked.seeds)
    elif asked.stage == 2:
        run_missing(STUDY, data, list(CONDITIONS), _named(asked.rows, extended()), asked.seeds)
    elif asked.stage == 3:
        run_missing(LONG_STUDY, data, list(LONG_RUNS), _named(asked.rows, in_long_runs()), asked.seeds)
    else:
        for condition in LONG_RUNS:
            rows = [row for row in in_long_runs() if row.name in LONG_CHOICES.get(long_kind(condition), ())]
            run_missing(LONG_STUDY, asked.data or SETTLING, [condition], rows, SETTLING_SEEDS)
    return 0


def long_kind(condition: str) -> str:
    """Return which of the choices for long runs a condition asks for; even labels ask for none."""
    if condition.startswith("even"):
        return ""
    return "Adam" if "Adam" in condition else "SGD, 1 label" if condition.startswith("1 label") else "SGD"


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


def in_long_runs() -> list[Row]:
    """Return what is looked at again where there are many more rounds: what helps early need not help late."""
    known = {row.name: row for row in combined()}
    balanced = [
        "+".join(parts) for parts in product(["balanced"], ("plain", "feddyn"), ("sgd", "momentum", "yogi", "fedexp"))
    ]
    others = ["random+plain+sgd", "random+plain+yogi", "flips+plain+momentum", "flips+plain+yogi"]
    return [known[name] for name in (*others, *balanced)]


def _named(names: Sequence[str] | None, rows: list[Row]) -> list[Row]:
    return [row for row in rows if not names or row.name in names]


def _joined(*settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for own in settings for key, value in own.items()}
