"""The stored table of a campaign: a row a kind of attack, with the commands that were typed for it.

A row is a list of cases in an order that does not change, so how many were tried is also where a later call goes on.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TypeVar

from campaigns._clock import in_time

RESULTS = Path(__file__).parent / "results"
NOT_KEPT = "not kept: played in parts, before tables named what was typed"
Case = TypeVar("Case")


@dataclass
class Row:
    """One kind of attack, and what came of it."""

    name: str
    tried: int = 0
    survived: int = 0
    wanted: int = 0  # cases that there are
    examples: list[str] = field(default_factory=list)  # of what was lost: how it failed, and how to see it again
    figures: dict[str, float] = field(default_factory=dict)  # what was measured, with its unit in its name
    commands: list[str] = field(default_factory=list)  # that tried them, in order

    @property
    def lost(self) -> int:
        """Cases that ended as they must not."""
        return self.tried - self.survived

    def note(self, problem: str | None) -> None:
        """Count a case; None: it ended as it should."""
        self.tried += 1
        self.survived += problem is None
        if problem is not None and len(self.examples) < 10:
            self.examples.append(problem)


class Table:
    """The rows of one call, and those of earlier ones: what it covers begins anew, unless it is to go on."""

    def __init__(self, quick: bool = False, file: Path | None = None, command: str = "", go_on: bool = False):
        self.quick, self._file, self._command, self._go_on = quick, file, command, go_on
        self._kept = _read(file) if file is not None and file.exists() else {}
        self.rows: dict[str, Row] = {}  # of this call

    def row(self, name: str) -> Row:
        """Return a row to fill: the stored one where the call goes on."""
        if name not in self.rows:
            stored = self._kept.get(name)
            goes_on = self._go_on and stored is not None and stored.commands != [NOT_KEPT]
            self.rows[name] = stored if goes_on and stored is not None else Row(name)
        return self.rows[name]

    def left(self, cases: Iterable[tuple[Row, Case]]) -> Iterator[tuple[Row, Case]]:
        """Give the cases that were not tried yet, while there is time; the table is kept after each of them."""
        listed, passed = list(cases), Counter[str]()
        wanted = Counter(row.name for row, _ in listed)
        for row in {row.name: row for row, _ in listed}.values():
            row.wanted = wanted[row.name]
        for row, case in listed:
            passed[row.name] += 1
            if passed[row.name] > row.tried:
                for _ in in_time([case]):
                    yield row, case
                    self.keep(row)

    def keep(self, row: Row) -> None:
        """Write down what came of a row, and that this command tried it."""
        if self._command and self._command not in row.commands:
            row.commands.append(self._command)
        if self._file is not None:
            self._kept[row.name] = row
            self._file.parent.mkdir(exist_ok=True)
            rows = [{**asdict(row), "lost": row.lost} for row in self._kept.values() if row.tried]
            unfinished = self._file.with_suffix(".new")
            unfinished.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
            unfinished.replace(self._file)


def _read(file: Path) -> dict[str, Row]:
    rows = json.loads(file.read_text())["rows"]
    return {row["name"]: Row(**{key: value for key, value in row.items() if key != "lost"}) for row in rows}


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    width = max((len(row.name) for row in rows), default=0)
    print(f"{'':{width}}  {'tried':>9} {'survived':>9} {'lost':>6}")
    total = Row("all", sum(row.tried for row in rows), sum(row.survived for row in rows))
    for row in (*rows, total):
        print(f"{row.name:{width}}  {row.tried:9,} {row.survived:9,} {row.lost:6,}")
    for row in rows:
        for name, value in row.figures.items():
            print(f"{row.name}: {name} {value:,.4g}")
        for example in row.examples:
            print(f"{row.name}: {example}")
