"""A table as people read it: what the paper printed, ours with its interval, the difference; then the verdict.

The terminal, the Markdown pages and the HTML page show the same grids and say the same sentences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from textwrap import wrap

from fedstrata.config.tables import write_value
from fedstrata.data import store
from fedstrata.data.published import Published
from fedstrata.reproduce.equal_cost import PRICES, AtEqualCost, at_equal_costs
from fedstrata.reproduce.figures import HOLDS, Figure, costs_of, departures, figures_of
from fedstrata.reproduce.minutes import DEVICES, Timing, in_words
from fedstrata.reproduce.results import Results
from fedstrata.reproduce.table import PAPERS, STATUS, PaperTable
from fedstrata.reproduce.verdict import Contrast, Verdict
from fedstrata.runs.compare.grid import Grid
from fedstrata.runs.compare.tables import WIDTH, in_blocks
from fedstrata.runs.metrics import Criterion

SHOWN = ("data.", "model.", "train.", "system.")  # sections of a file that `show` repeats
OURS = "strata"  # the method of ours that is run beside the papers' tables
SEARCHED = ("digits", "fashion-mnist")  # data on which the stages of strata were searched
SEEN = ("T1",)  # tables after whose first figures its choices were changed (docs/strata.md)


def grids_of(results: Results) -> Iterator[tuple[str, Grid]]:
    """Return all that a table shows, each with its title: figures, and costs."""
    table = results.table
    for name in table.metrics if table.figures or not table.costs else ():
        unit = "rounds, less is better" if table.metrics[name].lower else "%"
        measured, left = _parts(results, name)
        if measured.lines:
            yield f"{name} ({unit})", measured
        if left.lines:
            yield f"{name} ({unit}), not run yet; the paper's figures", left
    yield from ((f"{name} of a run; verdicts are not about it", cost_grid_of(results, name)) for name in table.costs)


def _parts(results: Results, name: str) -> tuple[Grid, Grid]:
    """Return a metric of a table: figure by figure where there are runs, and as it is printed of rows without any."""
    table, metric = results.table, results.table.metrics[name]
    figures = figures_of(results, name)
    known = {own.method for own in figures if own.mean is not None}
    whole = not table.reading and table.base is None  # readings run a contrast alone, and ours is not printed
    rows = [row for row in table.rows if whole and row not in known]
    measured = [own for own in figures if own.method in known and (own.mean is not None or own.paper is not None)]
    return _as_measured(table, measured, metric), _as_printed(table, rows, figures, metric)


def _as_printed(table: PaperTable, rows: list[str], figures: list[Figure], metric: Criterion) -> Grid:
    named = [condition or "paper" for condition in table.conditions]
    at = {(own.method, own.setting): _write(own.paper, metric) for own in figures}
    return Grid([["method", *named]], [[row, *(at[row, c] for c in table.conditions)] for row in rows])


def _as_measured(table: PaperTable, figures: list[Figure], metric: Criterion) -> Grid:
    lines, best = list[list[str]](), set[tuple[int, int]]()
    figures = [own for own in figures if own.mean is not None or not table.reading]  # of which only some have runs
    for at, own in enumerate(figures):
        first = at == 0 or figures[at - 1].setting != own.setting
        ends = "-" if own.low is None else f"{_write(own.low, metric)} to {_write(own.high, metric)}"
        apart = "-" if own.difference is None else _signed(own.difference, metric)
        ours = f"> {_rounds(table, own)}" if own.mean == math.inf else _write(own.mean, metric)
        seeds, word = str(own.seeds or "-"), own.verdict or "-"
        setting = own.setting if first else ""
        lines.append([setting, own.method, _write(own.paper, metric), ours, seeds, ends, apart, word])
        best |= {(at, 7)} if own.verdict == HOLDS else set()
    heads = ["setting", "method", "paper", "ours", "seeds", "95 % interval", "difference", "figure"]
    grid = Grid([heads], lines, best, words=2)
    return grid if table.conditions != [""] else grid.take(range(1, 8))


def _rounds(table: PaperTable, own: Figure) -> int:
    return int(table.settings(own.setting, own.method)["train.rounds"])


def cost_grid_of(results: Results, name: str) -> Grid:
    """Return what rows took, as printed and as measured; as units and machines differ, also in times the first's."""
    costs, table = costs_of(results, name), results.table
    first = costs[0]["first"]
    columns = {"paper": "paper", "ours": "ours", "paper_in_times": f"paper, in times {first}"}
    columns |= {"ours_in_times": f"ours, in times {first}"}
    lines = [
        [one["setting"] if one["method"] == first else "", one["method"], *(_number(one[key]) for key in columns)]
        for one in costs
    ]
    grid = Grid([["setting", "method", *columns.values()]], lines, words=2)
    return grid if table.conditions != [""] else grid.take(range(1, 6))


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1e4 else f"{value:.3e}"


def describe(results: Results, verdict: Verdict) -> list[str]:
    """Say the verdict and what it rests on."""
    table, contrast = results.table, verdict.contrast
    said = [f"verdict: {verdict.word}" + (f" ({table.not_comparable})" if table.not_comparable else "")]
    against = ", ".join(dict.fromkeys(b for c in table.conditions if (b := table.baseline(c)) is not None))
    named = f"{table.method} less {against if table.base else f'the strongest printed baseline ({against})'}"
    printed = "" if contrast.claimed is None else f"the paper prints {write_gain(contrast.claimed)}"
    printed += ", which is no gain" if contrast.claimed is not None and contrast.claimed <= 0 else ""
    printed += f", {told}" if (told := _claimed_there(contrast)) else ""
    if contrast.mean is not None:
        p = "" if contrast.p is None else f"p = {contrast.p:.2g} over {contrast.pairs} pairs"
        p += "" if verdict.p_holm is None else f", {verdict.p_holm:.2g} by Holm"
        said.append("; ".join(filter(None, (f"{named}: {write_contrast(contrast)}", printed, p))))
        said += [told] if (told := from_printed(results)) else []
        said += _costs(results)
    elif printed:
        said.append(f"{named}: {printed}")
    done, all_runs = len(results.runs), len(table.wanted())
    seeds = f"; the primary contrast has {contrast.seeds} of {contrast.wanted} seeds" if against else ""
    said.append(f"runs: {done} of {all_runs}{seeds}; status {table.status}: {STATUS[table.status]}")
    if results.outdated:
        said.append(f"{results.outdated} stored runs belong to settings that have changed, and do not count")
    if results.partial:
        said.append(f"{results.partial} runs had only a part of the published data; the notes say which")
    return said


def _claimed_there(contrast: Contrast) -> str:
    """Say what is claimed under the conditions that have runs, where others have none yet."""
    some, every = contrast.conditions
    if not 0 < some < every or contrast.claimed_there is None:
        return ""
    return f"{write_gain(contrast.claimed_there)} in the {some} of {every} columns that have runs"


def from_printed(results: Results) -> str:
    """Say which side of a contrast is away from what the paper prints: its method, or the baselines."""
    apart = departures(results)
    if apart is None:
        return ""
    own, others = map(write_gain, apart)
    return f"away from the paper's figures, in the mean: {results.table.method} {own}, its strongest baselines {others}"


def text_of(results: Results, verdict: Verdict, width: int = WIDTH, brief: bool = False) -> str:
    """Write all that is known of a table; briefly, only how it came out, as of a further reading of the same file."""
    table = results.table
    lines = _wrapped(f"{table.id}: {PAPERS[table.paper]}, {table.what}", width)
    lines += [] if brief else _wrapped(f"claim: {table.claim}", width)
    lines += [line for said in describe(results, verdict) for line in _wrapped(said, width)] + [""]
    for title, grid in grids_of(results):
        lines += [f"{title}:", *in_blocks(grid, width), ""]
    if brief:
        return "\n".join([*lines, f"reproduce it: {run_command(table)}"])
    set_by_file = {k: v for k, v in table.settings("").items() if k.startswith(SHOWN)}
    told = (f"{key} = {write_value(value)}" for key, value in set_by_file.items())
    lines += _wrapped(f"settings: {', '.join(told)}", width)
    for head, items in (
        ("not stated in the paper, our choice", table.not_stated),
        ("lost in our copy of the paper, our choice", table.lost),
        ("odd in the paper", table.oddities),
        ("notes", table.notes),
        ("other readings (--reading NAME)", list(table.readings)),
    ):
        if items:
            lines += [f"{head}:", *(line for item in items for line in _wrapped(item, width, "  - "))]
    return "\n".join([*lines, "reproduce it:", *(f"  {line}" for line in commands(results))])


def commands(results: Results) -> Iterator[str]:
    """Say what to type to make the runs that are left, and how long it takes."""
    yield from fetch_commands(results.table)
    left = results.missing()
    times = " or ".join(
        f"{in_words(Timing(results, device).minutes(left))} on a {device.upper()}" for device in DEVICES
    )
    yield f"{run_command(results.table)}  # {f'{len(left)} runs, about {times}' if left else 'all is there'}"


def run_command(table: PaperTable) -> str:
    """Say what to type to reproduce a table."""
    reading = f' --reading "{table.reading}"' if table.reading else ""
    return f"fedstrata reproduce run {table.file_id}{reading}{f' --with {table.method}' if table.base else ''}"


def fetch_commands(table: PaperTable) -> list[str]:
    """Return how to get the data that are not here."""
    stored = set(store.names())
    return [own.fetch_command for own in table.data_sets if isinstance(own, Published) and own.key not in stored]


def _costs(results: Results) -> list[str]:
    """Say how a method of ours does at the paper's own method's price, and whether such data count."""
    table = results.table
    if table.base is None:
        return []
    known = [found for found in at_equal_costs(results) if found.share is not None]
    said = [_at_equal_cost(found, table.method, table.base.method) for found in known]
    if (why := why_not_counted(table)) is not None:
        said.append(f"{why}: this does not count")
    return said


def _at_equal_cost(found: AtEqualCost, ours: str, theirs: str) -> str:
    took = f"{ours} took {found.share:.2f} times the {PRICES[found.price]} of {theirs}"
    if found.mean is None:
        return f"{took}; the one that took more was not evaluated early enough to compare them at as many"
    return f"{took}; at as many: {write_contrast(found)} in the mean of the last ten evaluations, {found.word}"


def why_not_counted(table: PaperTable) -> str | None:
    """Say why a table is no test of a method: it was searched on its data, or changed because of it; None: it is."""
    if table.method != OURS:
        return None
    if set(table.data) <= set(SEARCHED):
        return f"{OURS} was searched on {' and '.join(table.data)}"
    return f"{OURS} was changed after its first figures here" if table.file_id in SEEN else None


def state_of(results: Results) -> str:
    """Say in a few words how far a table is: done means that its primary contrast is there."""
    return f"{len(results.runs)}/{len(results.table.wanted())}{', contrast done' if results.done else ''}"


def _write(value: float | None, metric: Criterion) -> str:
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "never"
    return f"{value:.0f}" if metric.lower else f"{100 * value:.2f}"


def _signed(value: float, metric: Criterion) -> str:
    return f"{value:+.0f}" if metric.lower else f"{100 * value:+.2f}"


def contrast_so_far(results: Results, contrast: Contrast) -> str:
    """Write our own gain and, while runs of it are missing, on how many it rests."""
    if contrast.mean is None:
        return "-" if results.runs else "not run yet"
    wanted = sum(map(results.table.primary, results.table.wanted()))
    there = wanted - sum(map(results.table.primary, results.missing()))
    said = write_contrast(contrast) + ("" if there == wanted else f", {there} of the contrast's {wanted} runs")
    return f"{said}; the paper has {told}" if (told := _claimed_there(contrast)) else said


def write_contrast(found: Contrast | AtEqualCost) -> str:
    """Write our own gain with its interval."""
    ends = "" if found.interval is None else " [{}, {}]".format(*map(write_gain, found.interval))
    return f"{write_gain(found.mean or 0.0)}{ends}".replace(" points,", ",").replace(" points]", "]")


def write_gain(value: float) -> str:
    """Write a gain: in points, or in rounds where it is about them."""
    return f"{100 * value:+.2f} points" if abs(value) < 1 else f"{value:+.1f}"


def _wrapped(text: str, width: int, mark: str = "") -> list[str]:
    later = " " * len(mark)
    return wrap(
        text, width, initial_indent=mark, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
