"""Run one benchmark by name and print what it measured."""

from __future__ import annotations

import argparse
import json
from importlib import import_module
from pathlib import Path

NAMES = sorted(p.stem for p in Path(__file__).parent.glob("*.py") if not p.stem.startswith("_"))

parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
parser.add_argument("name", choices=NAMES)
parser.add_argument("--json", action="store_true", help="print one JSON list and nothing else")
asked = parser.parse_args()

rows = import_module(f"benchmarks.{asked.name}").measure()
if asked.json:
    print(json.dumps(rows))
else:
    for row in rows:
        verdict = "met" if row["met"] else "missed"
        goal = "" if row["goal"] is None else f"goal {row['goal']:g}: {verdict}"  # some are for information only
        print(f"{row['name']:<40} {row['value']:>10.2f} {row['unit']:<9} {goal}".rstrip())
