"""A table as people read it: what the paper printed, ours with its interval, the difference; then the verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from textwrap import wrap

from fedstrata.reproduce.results import Results
from fedstrata.reproduce.table import PAPERS, STATUS
from fedstrata.reproduce.verdict import Verdict, within
from fedstrata.runs.compare.grid import Grid
from fedstrata.runs.compare.paired import interval
from fedstrata.runs.compare.tables import WIDTH, in_blocks
from fedstrata.runs.metrics import Metric

SEARCHED = ("digits", "fashion-mnist")  # data on which the stages of strata were searched


def grid_of(results: Results, name: str) -> Grid:
    """Return a row a method; a column a condition: the paper's figure, ours, and a mark where ours is the paper's."""
    table = results.table
    metric = table.metrics[name]
    heads = [["method", *table.conditions]] if table.conditions != [""] else [["method", name]]
    lines, best = [], set()
    for at, row in enumerate(table.rows):
        line = [row]
        for column, condition in enumerate(table.conditions, start=1):
            printed = _figure(table.figure(name, row, condition), metric)
            line.append(f"{printed} / {_ours(results, metric, row, condition)}")
            if name == table.metric and within(results, row, condition):
                best.add((at, column))
        lines.append(line)
    return Grid(heads, lines, best)


def text_of(results: Results, verdict: Verdict, width: int = WIDTH) -> str:
    """Write all that is known of a table."""
    table = results.table
    lines = [f"{table.id}: {PAPERS[table.paper]}, {table.what}", *_wrapped(f"claim: {table.claim}", width), ""]
    for name, metric in table.metrics.items():
        unit = "less is better" if metric.lower else "%"
        lines += [f"{name} ({unit}), paper / ours [95 % interval]:"]
        lines += [*in_blocks(grid_of(results, name), width), ""]
    lines += _wrapped(
        "* our whole interval is within a point, or two of its standard deviations, of the paper's", width
    )
    for said in describe(results, verdict):
        lines += _wrapped(said, width)
    for note in table.notes:
        lines += _wrapped(f"note: {note}", width)
    return "\n".join(lines)


def describe(results: Results, verdict: Verdict) -> list[str]:
    """Say the verdict and what it rests on."""
    table, contrast = results.table, verdict.contrast
    said = [f"verdict: {verdict.word}" + (f" ({table.not_comparable})" if table.not_comparable else "")]
    if contrast.mean is not None:
        against = ", ".join(dict.fromkeys(b for c in table.conditions if (b := table.baseline(c)) is not None))
        ends = "" if contrast.interval is None else f" [{_gain(contrast.interval[0])}, {_gain(contrast.interval[1])}]"
        claimed = "" if contrast.claimed is None else f"; the paper prints {_gain(contrast.claimed)}"
        p = "" if contrast.p is None else f"; p = {contrast.p:.2g}"
        p += "" if verdict.p_holm is None else f", {verdict.p_holm:.2g} by Holm"
        what = f"the strongest printed baseline ({against})" if table.base is None else against
        said.append(f"{table.method} less {what}: {_gain(contrast.mean)}{ends}{claimed}{p}")
        said += _costs(results)
    done, all_runs = len(results.runs), len(table.wanted())
    said.append(
        f"runs: {done} of {all_runs}; the primary contrast has {contrast.seeds} of {contrast.wanted} seeds; "
        f"status {table.status}: {STATUS[table.status]}"
    )
    if results.outdated:
        said.append(f"{results.outdated} stored runs belong to settings that have changed, and do not count")
    return said


def _costs(results: Results) -> list[str]:
    """Say what a method of ours spent beside the paper's own, and whether it was made on such data."""
    table = results.table
    if table.base is None:
        return []
    ratios = []
    for name, title in (("client_updates", "client updates"), ("bytes", "bytes")):
        ours, theirs = (results.cost(name, row) for row in (table.method, table.base.method))
        ratios += [f"{ours / theirs:.2f} times the {title}"] if ours is not None and theirs else []
    said = [f"{table.method} took {' and '.join(ratios)} of {table.base.method}"] if ratios else []
    known = table.method == "strata" and set(table.data) <= set(SEARCHED)
    return [*said, f"{table.method} was searched on {table.data[0]}: this does not count"] if known else said


def state_of(results: Results) -> str:
    """Say in two words how far a table is: done means that its primary contrast is there."""
    done = not any(map(results.table.primary, results.missing()))
    return f"{len(results.runs)}/{len(results.table.wanted())}{' done' if done else ''}"


def _ours(results: Results, metric: Metric, method: str, condition: str) -> str:
    values = list(results.values(metric, method, condition).values())
    found = interval(values)
    if found["mean"] is None:
        return f"> {results.table.design.experiments[condition, method].train.rounds}" if values else "-"
    ends = found["interval"]
    between = f" [{_figure(ends[0], metric)}, {_figure(ends[1], metric)}]" if ends else ""
    never = sum(not math.isfinite(value) for value in values)
    return f"{_figure(found['mean'], metric)}{between}{f' ({never} never)' if never else ''}"


def _figure(value: float, metric: Metric) -> str:
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if metric.lower else f"{100 * value:.2f}"


def _gain(value: float) -> str:
    return f"{100 * value:+.2f}" if abs(value) < 1 else f"{value:+.1f}"


def _wrapped(text: str, width: int) -> Sequence[str]:
    return wrap(text, width, break_long_words=False, break_on_hyphens=False)
