"""The stored table of a campaign: a row a kind of attack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


@dataclass
class Row:
    """One kind of attack, and what came of it."""

    name: str
    tried: int = 0
    survived: int = 0
    examples: list[str] = field(default_factory=list)  # of what was lost: how it failed, and how to see it again
    figures: dict[str, float] = field(default_factory=dict)  # what was measured, with its unit in its name

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


def store(name: str, command: str, rows: Sequence[Row], whole: bool = True) -> None:
    """Write the table, with the command that makes it; where it is not all of it, other rows stay as they are."""
    RESULTS.mkdir(exist_ok=True)
    file, new = RESULTS / f"{name}.json", [{**asdict(row), "lost": row.lost} for row in rows]
    names = {row["name"] for row in new}
    kept = [] if whole or not file.exists() else json.loads(file.read_text())["rows"]
    rows_now = [row for row in kept if row["name"] not in names] + [row for row in new if row["tried"]]
    table = {"command": command, "rows": rows_now}
    file.write_text(json.dumps(table, indent=1) + "\n")


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'tried':>9} {'survived':>9} {'lost':>6}")
    total = Row("all", sum(row.tried for row in rows), sum(row.survived for row in rows))
    for row in (*rows, total):
        print(f"{row.name:{width}}  {row.tried:9,} {row.survived:9,} {row.lost:6,}")
    for row in rows:
        for name, value in row.figures.items():
            print(f"{row.name}: {name} {value:,.4g}")
        for example in row.examples:
            print(f"{row.name}: {example}")
