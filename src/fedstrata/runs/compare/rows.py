"""From finished cells to rows, one a method: figures over the seeds, paired difference to the first, rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedstrata.runs.compare.paired import caution, difference, interval, ranks
from fedstrata.runs.compare.settings import Entry

FIGURES = (
    "accuracy",
    "balanced_accuracy",
    "worst10",
    "bytes_up",
    "bytes_down",
    "bytes_p2p",
    "client_updates",
    "rounds",
    "time",
    "seconds",
)
TITLES = {
    "rank": "rank",
    "accuracy": "accuracy",
    "accuracy_over_first": "over first",
    "p": "p",
    "balanced_accuracy": "balanced",
    "worst10": "worst 10 %",
    "client_updates": "updates",
    "bytes_up": "MB up",
    "bytes_down": "MB down",
    "bytes_p2p": "MB p2p",
    "time": "time",
    "seconds": "seconds",
}

Summaries = Mapping[tuple[str, int], Mapping[str, Any]]  # of a condition's finished cells, by method and seed


def rows_of(entries: Sequence[Entry], seeds: Sequence[int], done: Summaries) -> list[dict[str, Any]]:
    """Return a row a method; pairs are formed over the seeds that both have finished."""
    complete = [seed for seed in seeds if all((entry.name, seed) in done for entry in entries)]
    accuracies = {e.name: {s: done[e.name, s]["accuracy"] for s in seeds if (e.name, s) in done} for e in entries}
    placed = ranks({name: [own[seed] for seed in complete] for name, own in accuracies.items()})
    first, rows = accuracies[entries[0].name], []
    for entry in entries:
        own = accuracies[entry.name]
        runs = [done[entry.name, seed] for seed in own]
        row: dict[str, Any] = {"method": entry.name, "seeds": len(own)}
        row |= {figure: interval([run[figure] for run in runs]) for figure in FIGURES}
        both = [seed for seed in own if seed in first]
        here, there = [own[seed] for seed in both], [first[seed] for seed in both]
        row["accuracy_over_first"] = difference(here, there)
        row["rank"] = interval(placed[entry.name])
        if entry is entries[0]:
            row["accuracy_over_first"]["p"] = None
        if entry.without is not None:
            row |= {"without": entry.without, "brings": difference(there, here)}
        row["stopped"] = [run["stopped"] for run in runs]
        row["run_dirs"] = [run["run_dir"] for run in runs]
        rows.append(row)
    return rows


def remarks_of(entries: Sequence[Entry], seeds: Sequence[int], done: Summaries) -> list[str]:
    """Return what the runs themselves remarked, once a method, and what so few seeds cannot show."""
    said: dict[str, list[str]] = {}
    for (method, seed), summary in done.items():
        for remark in summary["remarks"]:
            said.setdefault(f"{method}: {remark}", []).append(str(seed))
    over = [f"{remark} (seed {', '.join(at)})" for remark, at in said.items()]
    return over + (caution(len(seeds)) if len(entries) > 1 else [])


def table_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Write the rows as a plain table, and what each stage brings where stages were ablated."""
    lines = [["method", *TITLES.values()]]
    lines += [[row["method"], *(_cell(key, row) for key in TITLES)] for row in rows]
    text = _aligned(lines)
    if len(rows) > 1:
        text += (
            "\nmean [95 % bootstrap interval over seeds]; over first: paired difference in accuracy; p: of the paired"
        )
        text += "\npermutation test, one method against the first; rank: mean over seeds; worst 10 %: of the clients"
    if brought := [row for row in rows if "brings" in row]:
        ablation = [["stage", "brings", "p"]]
        for row in brought:
            p = row["brings"]["p"]
            ablation.append([row["without"], _ranged(row["brings"], "+"), "-" if p is None else f"{p:.3g}"])
        text += f"\n\n{_aligned(ablation)}\nbrings: accuracy of {rows[0]['method']} less its accuracy without the stage"
    return text


def _cell(key: str, row: Mapping[str, Any]) -> str:
    if key == "p":
        p = row["accuracy_over_first"]["p"]
        return "-" if p is None else f"{p:.3g}"
    figure = row[key]
    if figure["mean"] is None:
        return "-"
    if key in ("accuracy", "accuracy_over_first"):
        return _ranged(figure, "+" if key == "accuracy_over_first" else "")
    if key.startswith("bytes"):
        return f"{figure['mean'] / 1e6:.1f}"
    decimals = {"client_updates": 0, "rank": 1, "time": 1, "seconds": 1}.get(key, 3)
    return f"{figure['mean']:.{decimals}f}"


def _ranged(figure: Mapping[str, Any], sign: str) -> str:
    if figure["mean"] is None:
        return "-"
    ends = figure["interval"]
    return f"{figure['mean']:{sign}.3f}" + (f" [{ends[0]:{sign}.3f}, {ends[1]:{sign}.3f}]" if ends else "")


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))]).rstrip()
        for line in lines
    )
