"""Writes what the stored tables say into SECURITY.md: `python -m campaigns._write`."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path

from campaigns._table import NOT_KEPT, RESULTS

PAGE = Path(__file__).parents[1] / "SECURITY.md"
TITLES = "| campaign | kinds | of these before tables named commands | cases | tried | survived | lost |"
MARKS = "<!-- python -m campaigns._write -->", "<!-- end of what it wrote -->"


def table() -> str:
    """Return a row a campaign, and what was measured."""
    lines, figures = [TITLES, "|---" * 7 + "|"], []
    for file in sorted(RESULTS.glob("*.json")):
        rows = json.loads(file.read_text())["rows"]
        tried, survived = (sum(row[key] for row in rows) for key in ("tried", "survived"))
        wanted = sum(row["wanted"] or row["tried"] for row in rows)
        before = sum(row["commands"] == [NOT_KEPT] for row in rows)
        numbers = (len(rows), before, wanted, tried, survived, tried - survived)
        lines.append(f"| {file.stem} | " + " | ".join(f"{number:,}" for number in numbers) + " |")
        for row in rows:
            told = "; ".join(f"{name} {_short(value)}" for name, value in row["figures"].items())
            figures += textwrap.wrap(f"* {row['name']}: {told}", 120, subsequent_indent="  ") if told else []
    return "\n".join([*lines, *(["", *figures] if figures else [])])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def written(page: str) -> str:
    """Return the page with the table between its marks."""
    first, last = MARKS
    return re.sub(f"{first}.*{last}", lambda _: f"{first}\n{table()}\n{last}", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
