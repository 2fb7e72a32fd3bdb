"""Writes what the stored tables say into SECURITY.md: `python -m campaigns._write`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from campaigns._table import RESULTS

PAGE = Path(__file__).parents[1] / "SECURITY.md"
MARKS = "<!-- python -m campaigns._write -->", "<!-- end of what it wrote -->"


def table() -> str:
    """Return a row a campaign, and what was measured."""
    lines, figures = ["| campaign | kinds | tried | survived | lost |", "|---|---|---|---|---|"], []
    for file in sorted(RESULTS.glob("*.json")):
        rows = json.loads(file.read_text())["rows"]
        tried, survived = (sum(row[key] for row in rows) for key in ("tried", "survived"))
        lines.append(f"| {file.stem} | {len(rows)} | {tried:,} | {survived:,} | {tried - survived:,} |")
        for row in rows:
            told = ", ".join(f"{name}: {value:,.3g}" for name, value in row.get("figures", {}).items())
            figures += [f"* {row['name']}: {told}"] if told else []
    return "\n".join([*lines, *(["", *figures] if figures else [])])


def written(page: str) -> str:
    """Return the page with the table between its marks."""
    first, last = MARKS
    return re.sub(f"{first}.*{last}", lambda _: f"{first}\n{table()}\n{last}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
