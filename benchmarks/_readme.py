"""Write the figures of benchmarks/results into the README: `python -m benchmarks._readme`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- figures: written by python -m benchmarks._readme -->", "<!-- end of figures -->"
SHOWN = ("engine", "profile", "gpu", "scaling", "privacy", "sites")


def figures() -> str:
    """Give a table a benchmark, from what was measured last."""
    paths = [HERE / "results" / f"{name}.json" for name in SHOWN]
    return "\n\n".join(_table(json.loads(path.read_text())) for path in paths if path.exists())


def _table(kept: dict[str, Any]) -> str:
    machine, versions = kept["machine"], kept["versions"]
    where = machine.get("gpus", [f"{machine['cores']} cores of {machine['cpu']}"])[0]
    made = ", ".join(f"{name} {version}" for name, version in versions.items() if name not in ("python", "fedstrata"))
    said = f"`python -m benchmarks {kept['benchmark']}` on {where}, {kept['date'][:10]}, {made}:"
    rows = [f"| {r['name']} | {_value(r)} | {_goal(r)} |" for r in kept["rows"]]
    return "\n".join([said, "", "| | measured | goal |", "|---|---|---|", *rows])


def _value(row: dict[str, Any]) -> str:
    return "-" if row["value"] is None else f"{row['value']:.3g} {row['unit']}"


def _goal(row: dict[str, Any]) -> str:
    if row["goal"] is None:
        return ""
    return f"{row['goal']:g}" + {True: "", False: " (missed)", None: " (not measured)"}[row["met"]]


def written(readme: str) -> str:
    """Give the README with the figures of now."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n\n{figures()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
