"""Run one benchmark by name and print what it measured; with --save, also keep it under benchmarks/results."""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from fedstrata import __version__
from fedstrata.core.machine.threads import cores

HERE = Path(__file__).parent
NAMES = sorted(p.stem for p in HERE.glob("*.py") if not p.stem.startswith("_"))


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--json", action="store_true", help="print one JSON list and nothing else")
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/NAME.json")
    parser.add_argument(
        "--quick", action="store_true", help="a small size, to see that it runs: no goal is judged, nothing saved"
    )
    asked = parser.parse_args()
    if asked.quick and asked.save:
        parser.error("--quick measures too little to be saved")
    benchmark = import_module(f"benchmarks.{asked.name}")
    rows = list(_told(benchmark.measure(quick=asked.quick)))
    if asked.quick:  # goals are those of the full size: a small one says nothing about them
        rows = [row | {"met": None} if row["goal"] is not None else row for row in rows]
    print(json.dumps(rows) if asked.json else table(rows))
    if asked.save:
        (HERE / "results").mkdir(exist_ok=True)
        kept = {"benchmark": asked.name, **about(benchmark), "rows": rows}
        (HERE / "results" / f"{asked.name}.json").write_text(json.dumps(kept, indent=2) + "\n")


def _told(rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Tell every row as soon as it is measured, where that is one after another."""
    for row in rows:
        if not isinstance(rows, list):
            print(table([row]), file=sys.stderr, flush=True)
        yield row


def table(rows: list[dict[str, Any]]) -> str:
    """Return one line a row."""
    width = max(len(row["name"]) for row in rows)
    return "\n".join(f"{row['name']:<{width}} {_figure(row['value'])} {row['unit']:<9} {_verdict(row)}" for row in rows)


def _figure(value: float | None) -> str:
    if value is None:
        return f"{'-':>10}"
    return f"{value:>10.2f}" if value >= 0.1 or value == 0 else f"{value:>10.4f}"


def _verdict(row: dict[str, Any]) -> str:
    if row["goal"] is None:
        return ""  # for information
    return f"goal {row['goal']:g}: " + {True: "met", False: "missed", None: "not measured"}[row["met"]]


def about(benchmark: ModuleType) -> dict[str, Any]:
    """Say when, where and with what this was measured."""
    versions = {"python": platform.python_version(), "torch": torch.__version__, "fedstrata": __version__}
    if hasattr(benchmark, "versions"):
        versions |= benchmark.versions()
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), "machine": machine(), "versions": versions}


def machine() -> dict[str, Any]:
    """Describe this machine, as far as it tells."""
    cpu, memory = Path("/proc/cpuinfo"), Path("/proc/meminfo")
    models = [s.partition(":")[2].strip() for s in _lines(cpu) if s.startswith("model name")]
    total = [int(s.split()[1]) for s in _lines(memory) if s.startswith("MemTotal")]
    found: dict[str, Any] = {"cpu": models[0] if models else platform.processor(), "cores": cores()}
    if total:
        found["memory_gb"] = round(total[0] / 1024**2, 1)
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return found


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


if __name__ == "__main__":
    main()
