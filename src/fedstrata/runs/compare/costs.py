"""What rows cost beside the first: a row may win because it spends more, which a table of accuracies does not show."""

from __future__ import annotations

from collections.abc import Sequence

from fedstrata.runs.compare.rows import Summaries
from fedstrata.runs.compare.settings import Entry

COSTS = {"bytes": ("bytes_up", "bytes_down", "bytes_p2p"), "client updates": ("client_updates",)}
APART = 1.5  # times: costs of rows that differ by more are said


def costs_apart(entries: Sequence[Entry], by_condition: Sequence[Summaries], budgeted: bool = False) -> list[str]:
    """Say how many times the bytes and client updates of the first row others took, where rows differ much in them.

    Where all had the same budget of bytes (`budgeted`), none is advised: another note says what overspent it.
    """
    first = entries[0].name
    told: dict[str, dict[str, list[str]]] = {entry.name: {} for entry in entries}  # costs by row and how many times
    for cost, keys in COSTS.items():
        times = {entry.name: [_times(entry.name, first, keys, done) for done in by_condition] for entry in entries}
        if not any(max(rows) > APART * min(rows) for rows in zip(*times.values(), strict=True)):
            continue
        for name, own in times.items():
            if (many := _write(own)) != "1":
                told[name].setdefault(many, []).append(cost)
    rows = [
        f"{name} took {' and '.join(f'{many} times the ' + ' and '.join(costs) for many, costs in own.items())}"
        for name, own in told.items()
        if own
    ]
    bytes_too = any("bytes" in costs for own in told.values() for costs in own.values())
    hint = "; --budget bytes=... makes the bytes equal" if bytes_too and not budgeted else ""
    return [f"beside {first}, {', '.join(rows)}{hint}"] if rows else []


def _times(name: str, first: str, keys: Sequence[str], done: Summaries) -> float:
    """Return how many times the first row's cost a row took, over the seeds that both have finished."""
    both = [seed for row, seed in done if row == name and (first, seed) in done]
    ours, theirs = (sum(done[row, seed][key] for seed in both for key in keys) for row in (name, first))
    return float(ours / theirs) if ours and theirs else 1.0


def _write(times: Sequence[float]) -> str:
    """Write the least and the most over conditions; one number where they are the same."""
    least, most = (f"{one:.0f}" if one >= 10 else f"{one:.2g}" for one in (min(times), max(times)))
    return least if least == most else f"{least} to {most}"
