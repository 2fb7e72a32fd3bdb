"""What the search for `strata` found, and whether it holds on data and seeds that the search did not use.

Trains nothing: `python -m studies strata_search` and `python -m studies which_method` do. This writes docs/strata.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from fedstrata.runs.compare.paired import difference
from studies import strata_search, which_method
from studies._grid import CONDITIONS, LONG_RUNS, by_place, figure, read, wrapped

PAGE = Path(__file__).parent.parent / "docs" / "strata.md"
TEXT = Path(__file__).parent / "strata.md"  # what stands around the tables
PAPERS = ("stratify-batch", "stratify-batch (batches of 1,024, int8)", "flips", "fedpbs", "fedbss", "terraform")
BASE = "balanced+feddyn+fedexp"  # what strata chooses where clients hold several labels
SHOWN = 8  # of the product, the best
POINT, FAR = 0.01, 0.05

Lines = Sequence[Mapping[str, Any]]


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(prog="python -m studies strata", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/strata.md instead of printing it")
    text = page(read(strata_search.STUDY), read(which_method.STUDY), read(strata_search.LONG_STUDY))
    if parser.parse_args(arguments).write:
        PAGE.write_text(text)
    else:
        print(text)
    return 0


def page(search: Lines, grid: Lines, long: Lines) -> str:
    """Return the page: the text with its tables."""
    fresh = [line for line in grid if line["data"] not in strata_search.DATA]
    own = [line for line in grid if line["data"] in strata_search.DATA]
    tables = {
        "{product}": product_table(search),
        "{more}": more_table(search),
        "{long}": long_table(long, strata_search.DATA),
        "{long_fresh}": long_table(long, [d for d in strata_search.FRESH if d not in strata_search.LOOKED_AT]),
        "{long_looked_at}": long_table(long, strata_search.LOOKED_AT),
        "{settled}": settled(long),
        "{ordered}": gains(search, f"{BASE}+bias-aware", BASE, "client_updates"),
        "{ordered_fedavg}": gains(grid, "fedbss", "fedavg", "bytes"),
        "{fresh}": contrasts(fresh),
        "{own}": contrasts(own),
        "{by_data}": by_data(fresh),
        "{losses}": losses(fresh),
        "{fresh_data}": ", ".join(sorted({line["data"] for line in fresh})),
        "{own_data}": ", ".join(sorted({line["data"] for line in own})),
        "{seeds}": ", ".join(str(seed) for seed in sorted({line["seed"] for line in grid})),
    }
    text = TEXT.read_text()
    for place, table in tables.items():
        text = text.replace(place, table)
    return wrapped(text)


def product_table(search: Lines) -> str:
    """Return the best combinations of three stages, and FedAvg's and the worst: means over the data of the search."""
    known = _means([line for line in search if line["seed"] == 0], [row.name for row in strata_search.combined()])
    conditions = [c for c in CONDITIONS if any(c == at for at, _ in known)]
    best = {c: max(value for (at, _), value in known.items() if at == c) for c in conditions}
    loss = {row: fmean(best[c] - known[c, row] for c in conditions) for row in dict.fromkeys(r for _, r in known)}
    ranked = sorted(loss, key=lambda row: loss[row])
    shown = [*ranked[:SHOWN], *(row for row in ranked[SHOWN:] if row == "random+plain+sgd" or row == ranked[-1])]
    return _table(shown, conditions, known, loss)


def more_table(search: Lines) -> str:
    """Return what other stages bring on top of the best."""
    rows = [row.name for row in strata_search.extended()]
    known = _means([line for line in search if line["seed"] == 1], rows)
    conditions = [c for c in CONDITIONS if all((c, row) in known for row in rows)]
    best = {c: max(known[c, row] for row in rows) for c in conditions}
    loss = {row: fmean(best[c] - known[c, row] for c in conditions) for row in rows}
    return _table(rows, conditions, known, loss)


def gains(lines: Lines, row: str, less: str, by: str) -> str:
    """Say what a row gains over another on the federations that have both."""
    pairs = [
        (figure(o[row], by=by), figure(o[less], by=by), at) for at, o in by_place(lines) if {row, less} <= o.keys()
    ]
    ours, theirs, places = zip(*pairs, strict=True)
    worst, where = min((a - b, at) for a, b, at in pairs)
    better = sum(a > b for a, b, _ in pairs)
    return (
        f"{_gain(difference(ours, theirs))} points, better on {better} of {len(places)} federations and "
        f"{100 * worst:+.1f} on the worst ({where[0]}, {where[1]}, seed {where[2]})"
    )


def long_table(lines: Lines, data: Sequence[str]) -> str:
    """Return what corrections and server steps reach in 100 and in 200 rounds: means over data sets and seeds."""
    own = [line for line in lines if line["data"] in data]
    rows = [row.name for row in strata_search.in_long_runs() if any(line["row"] == row.name for line in own)]
    known: dict[tuple[str, str], float] = {}
    for condition in (c for c in LONG_RUNS if any(line["condition"] == c for line in own)):
        for share, rounds in ((0.5, 100), (1.0, 200)):
            for row in rows:
                here = [line for line in own if (line["condition"], line["row"]) == (condition, row)]
                known[condition.replace("200", str(rounds)), row] = fmean(figure(line, share) for line in here)
    columns = list(dict.fromkeys(column for column, _ in known))
    best = {c: max(known[c, row] for row in rows) for c in columns}
    loss = {row: fmean(best[c] - known[c, row] for c in columns) for row in rows}
    turned = [f"| | {' | '.join(rows)} |", f"|---|{'---:|' * len(rows)}"]
    for column in columns:
        cells = [
            f"**{known[column, row]:.3f}**" if known[column, row] == best[column] else f"{known[column, row]:.3f}"
            for row in rows
        ]
        turned.append(f"| {column} | {' | '.join(cells)} |")
    return "\n".join([*turned, f"| loses | {' | '.join(f'{loss[row]:.3f}' for row in rows)} |"])


def settled(lines: Lines) -> str:
    """Return what each choice for long runs gains over that for short ones, and whether it is kept."""
    table = ["| | less | gains | better on | data sets | without cifar10 | |", "|---|---|---:|---:|---|---:|---|"]
    own = [line for line in lines if line["data"] in strata_search.SETTLING]
    for kind, (long, short) in strata_search.LONG_CHOICES.items():
        pairs = {
            at: (figure(rows[long]), figure(rows[short]))
            for at, rows in by_place(own)
            if strata_search.long_kind(at[1]) == kind and {long, short} <= rows.keys()
        }
        data = dict.fromkeys(name for name, _, _ in pairs)
        means = {name: fmean(ours - less for at, (ours, less) in pairs.items() if at[0] == name) for name in data}
        found = difference(*zip(*pairs.values(), strict=True))
        others = difference(*zip(*(pair for at, pair in pairs.items() if at[0] != "cifar10"), strict=True))
        cells = [
            f"{kind}: {long}",
            short,
            _gain(found),
            f"{sum(ours > less for ours, less in pairs.values())} of {len(pairs)}",
            ", ".join(f"{name} {100 * gain:+.1f}" for name, gain in means.items()),
            _gain(others),
            "**kept**" if found["interval"][0] > 0 else "**not kept**",
        ]
        table.append(f"| {' | '.join(cells)} |")
    return "\n".join(table)


def contrasts(grid: Lines) -> str:
    """Return what strata gains over every method, paired over federations, at equal client updates and equal bytes."""
    lines = [
        "| strata less | at equal client updates | at equal bytes | better on | worst | |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for method in sorted((n for n in which_method.NAMES if n != "strata"), key=lambda n: (n not in PAPERS, n)):
        pairs = [(own["strata"], own[method]) for _, own in by_place(grid) if {"strata", method} <= own.keys()]
        if not pairs:
            continue
        bytes_ = [(figure(ours, by="bytes"), figure(theirs, by="bytes")) for ours, theirs in pairs]
        found = difference(*zip(*bytes_, strict=True))
        gains = [ours - theirs for ours, theirs in bytes_]
        updates = "-"
        if pairs[0][1]["by"] == "client_updates":
            updates = _gain(difference(*zip(*[(figure(a), figure(b)) for a, b in pairs], strict=True)))
        cells = [updates, _gain(found), f"{sum(g > 0 for g in gains)} of {len(gains)}", f"{100 * min(gains):+.1f}"]
        named = f"**{method}**" if method in PAPERS else method
        lines.append(f"| {named} | {' | '.join(cells)} | {_word(found)} |")
    return "\n".join(lines)


def by_data(grid: Lines) -> str:
    """Return strata, FedAvg and the best other method on every data set under every condition, at equal bytes."""
    data = sorted({line["data"] for line in grid})
    lines = [f"| | {' | '.join(data)} |", f"|---|{'---|' * len(data)}"]
    for condition in CONDITIONS:
        cells = []
        for name in data:
            own = [line for line in grid if (line["data"], line["condition"]) == (name, condition)]
            means = {row: _mean_of(own, row) for row in which_method.NAMES if any(line["row"] == row for line in own)}
            if "strata" not in means or len(means) < len(which_method.NAMES):
                cells.append("-")
                continue
            other = max((row for row in means if row != "strata"), key=lambda row: means[row])
            cells.append(f"{means['strata']:.3f}; {other} {means[other]:.3f}; fedavg {means['fedavg']:.3f}")
        lines.append(f"| {condition} | {' | '.join(cells)} |")
    return "\n".join(lines)


def losses(grid: Lines) -> str:
    """Name the federations on which strata stayed far behind the best other method, the worst first."""
    found = []
    for (data, condition, seed), own in by_place(grid):
        reached = {row: figure(line, by="bytes") for row, line in own.items()}
        if "strata" in reached and len(reached) > 1:
            other = max((row for row in reached if row != "strata"), key=lambda row: reached[row])
            found.append((reached["strata"] - reached[other], f"{data}, {condition}, seed {seed}: {other}"))
    far = sorted(one for one in found if one[0] < -FAR)
    shown = "; ".join(f"{100 * gain:+.1f} ({what})" for gain, what in far[:5])
    return f"{len(far)} of {len(found)} federations" + (f", the worst of them {shown}" if far else "")


def _mean_of(lines: Lines, row: str) -> float:
    return fmean(figure(line, by="bytes") for line in lines if line["row"] == row)


def _means(lines: Lines, rows: Sequence[str]) -> dict[tuple[str, str], float]:
    """Return accuracies by condition and row, where all data sets have one."""
    values: dict[tuple[str, str], list[float]] = {}
    for line in lines:
        if line["row"] in rows:
            values.setdefault((line["condition"], line["row"]), []).append(figure(line))
    return {at: fmean(own) for at, own in values.items() if len(own) == len(strata_search.DATA)}


def _table(
    rows: Sequence[str],
    conditions: Sequence[str],
    known: Mapping[tuple[str, str], float],
    loss: Mapping[str, float],
) -> str:
    best = {c: max(known[c, row] for row in rows) for c in conditions}
    lines = [f"| | {' | '.join(conditions)} | loses |", f"|---|{'---:|' * (len(conditions) + 1)}"]
    for row in rows:
        cells = [f"**{known[c, row]:.3f}**" if known[c, row] == best[c] else f"{known[c, row]:.3f}" for c in conditions]
        lines.append(f"| {row} | {' | '.join(cells)} | {loss[row]:.3f} |")
    return "\n".join(lines)


def _gain(found: Mapping[str, Any]) -> str:
    ends = found["interval"]
    between = f" [{100 * ends[0]:+.1f}, {100 * ends[1]:+.1f}]" if ends else ""
    return f"{100 * found['mean']:+.1f}{between}"


def _word(found: Mapping[str, Any]) -> str:
    """Say what the interval at equal bytes says, by the rule of `reproduce --with`."""
    low, high = found["interval"] or (-1.0, 1.0)
    if low > -POINT:
        return "better" if low > 0 else "not inferior"
    return "worse" if high < 0 else "open"
