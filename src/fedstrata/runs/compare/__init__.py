"""Paired comparisons: every method on the same partition, first model and draws, under conditions and over seeds.

What is asked
    `prepare` makes a `comparison` of a `request`: a `design` of `settings`, an `ablation`, a `budget` that all keep to;
    `control` looks whether rows differ in more than they are about, or in less.
Cells
    `layout` finds the `cells` in a folder; `execution` runs them as a `queue`: in a `pool` of `worker` processes, on a
    GPU (`gpu_sharing`) or a cluster (`ray_cells`), in `shards` that `merge` puts together; `live` shows how far it is.
Tuning
    `tune`, `search`, `optuna_search`, `choice`.
What comes out
    `rows`, with `paired` tests and `friedman`'s, and their `costs`; `grid` and `tables`.
"""

from fedstrata.runs.compare.comparison import Comparison
from fedstrata.runs.compare.prepare import compare, prepare
from fedstrata.runs.compare.request import ComparisonRequest

__all__ = ["Comparison", "ComparisonRequest", "compare", "prepare"]
