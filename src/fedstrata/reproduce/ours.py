"""Our own method on the papers' tables, beside the paper's own: by the table's figure, and at the same price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fedstrata.reproduce.equal_cost import PRICES, at_equal_costs
from fedstrata.reproduce.overview import Judged
from fedstrata.reproduce.show import OURS, contrast_so_far, why_not_counted, write_contrast
from fedstrata.reproduce.table import PAPERS
from fedstrata.reproduce.verdict import passes


def beside_papers(judged: Mapping[str, Judged]) -> Iterator[str]:
    """Tell in Markdown how it does on each table that it was run on, and on how many papers it is not behind."""
    found = [own for own in judged.values() if own.results.table.base is not None and own.results.table.method == OURS]
    if not found:
        yield f"It was not run on any of their tables yet: `fedstrata reproduce run ID --with {OURS}`."
        return
    yield "Each line is one table with the paper's settings. *At as many* cuts the run that took more where it had"
    yield "spent what the other took, and compares the mean of the last ten evaluations until then.\n"
    prices = " | ".join(f"at as many {name}" for name in PRICES.values())
    yield f"| table | against | by the table's figure | {prices} | counts |\n|---|---|---|---|---|---|"
    won: dict[str, list[bool]] = {}  # by paper, of every table that counts
    for own in found:
        table, costs = own.results.table, list(at_equal_costs(own.results))
        counts = why_not_counted(table) is None
        if not own.results.own_runs:
            said = f"not run with its present choices; {own.results.outdated} runs of earlier ones do not count"
            yield f"| {table.base.id if table.base else table.id} | {said} | - | {'- | ' * len(PRICES)}- |"
            continue
        cells = [f"{contrast_so_far(own.results, own.verdict.contrast)}: {own.verdict.word}"]
        cells += [f"{'-' if one.mean is None else write_contrast(one)}: {one.word}" for one in costs]
        base = table.base or table
        yield f"| {' | '.join((base.id, base.method, *cells, 'yes' if counts else 'no'))} |"
        if counts:
            words = own.verdict.word, *(one.word for one in costs)
            won.setdefault(table.paper, []).append(all(map(passes, words)))
    yield "\nBetter or not inferior in all three ways, on every table so far that counts: for"
    yield f"{sum(map(all, won.values()))} of {len(PAPERS)} papers.\n"
