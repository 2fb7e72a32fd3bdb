"""What the papers' own tables say of which method is ahead where: larger models, whole data sets, as many rounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

from fedstrata.reproduce.results import Results
from fedstrata.reproduce.table import PAPERS, all_tables

SEEDS = 3  # fewest of a row
FOLDER = Path(__file__).parent.parent / "reproduce" / "results"
SAID = """\
Runs of the papers' tables ([papers/](papers/README.md)), by the figure of each table: whole data sets (P1: six of nine
signals), a CNN or a ResNet, a hundred rounds and more. Methods with at least three seeds, the best first; what each
table holds against the other is the paper's own method and its strongest printed baseline, so most lines have two. They
do not enter the rules above: no table has all of the methods.
"""


def in_the_papers_tables() -> str:
    """Return a line a condition in which several methods were run."""
    head = ["| table | data | setting | in percent, the best first |", "|---|---|---|---|"]
    return "\n".join([*head, *_lines()])


def _lines() -> Iterator[str]:
    for table in all_tables().values():
        results, metric = Results(table, FOLDER), table.metrics[table.metric]
        if metric.lower or not table.figures:
            continue
        for condition in table.conditions:
            values = {row: list(results.values(metric, row, condition).values()) for row in table.rows}
            means = {row: fmean(own) for row, own in values.items() if len(own) >= SEEDS}
            if len(means) > 1:
                ranked = sorted(means, key=lambda row: -means[row])
                told = ", ".join(f"{row} {100 * means[row]:.1f}" for row in ranked)
                data = table.settings(condition)["data.name"]
                yield f"| {PAPERS[table.paper]}, {table.id} | {data} | {condition} | {told} |"
