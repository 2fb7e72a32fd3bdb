"""Does the same experiment give the same run everywhere? Over workers, threads, hash seeds, locales and time zones.

Methods are run in the reference environment, then in each other one, in processes that were started there; all of
them under other hash seeds, some of them elsewhere. Survived are runs whose events and models are the same, bit for
bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from campaigns._command import command
from campaigns._table import Table
from fedstrata.core import registry

FEW = ("fedavg", "flips", "stratify-batch")
SOME = (*FEW, "scaffold", "fedcda", "terraform", "oort", "fedbs")
PLAINLY = "", 0  # the reference among the environments
PLAIN = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8", "TZ": "UTC", "OMP_NUM_THREADS": "1"}
SOMEWHERE: dict[str, list[tuple[Mapping[str, str], Mapping[str, Any]]]] = {  # environment, overrides
    "hash seeds": [({"PYTHONHASHSEED": seed}, {}) for seed in ("1", "4242", "random")],
    "locales": [({"LC_ALL": name, "PYTHONUTF8": "0"}, {}) for name in ("C", "POSIX", "de_DE.UTF-8", "tr_TR.UTF-8")],
    "time zones": [({"TZ": zone}, {}) for zone in ("Asia/Kathmandu", "America/St_Johns", "XYZ+25:61")],
    "workers": [({}, {"engine.workers": workers}) for workers in (2, 3)],
    "threads": [({"OMP_NUM_THREADS": threads}, {}) for threads in ("2", "8")],
    "client state on disk": [({}, {"engine.client_state": "disk"})],
    "all at once": [
        (
            {"PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Pacific/Apia", "OMP_NUM_THREADS": "3"},
            {"engine.workers": 2, "engine.client_state": "disk"},
        )
    ],
}


def main(arguments: Sequence[str]) -> int:
    """Run, tell, and store."""
    return command("determinism", PARTS, arguments, __doc__)


def hash_seeds(folder: Path, table: Table) -> None:
    """Fill the row of hash seeds, over every method."""
    _compared(folder, ["hash seeds"], table, FEW if table.quick else registry.names("methods"))


def elsewhere(folder: Path, table: Table) -> None:
    """Fill a row for every other kind of difference, over methods that are unlike each other."""
    kinds = [name for name in SOMEWHERE if name != "hash seeds"]
    _compared(folder, ["workers"] if table.quick else kinds, table, FEW if table.quick else SOME)


def _compared(folder: Path, kinds: Sequence[str], table: Table, methods: Sequence[str]) -> None:
    """Compare one environment of each kind, then the next ones, method by method, for as long as there is time."""
    rows, most = {name: table.row(name) for name in kinds}, 1 if table.quick else 4
    cases = [(name, i, method) for i in range(most) for name in kinds for method in methods if i < len(SOMEWHERE[name])]
    found: dict[tuple[str, int], dict[str, str]] = {}
    for row, (name, number, method) in table.left((rows[case[0]], case) for case in cases):
        expected = found.get(PLAINLY) or found.setdefault(PLAINLY, _run_methods(folder / "plain", {}, {}, methods))
        around, overrides = SOMEWHERE[name][number]
        if (name, number) not in found:
            found[name, number] = _run_methods(folder / f"{name}-{number}", around, overrides, methods)
        outcome = found[name, number].get(method, "nothing")
        where = f"{method} with {dict(around) | dict(overrides)}"
        row.note(None if outcome == expected[method] else f"{where}: {outcome}")


def _run_methods(
    folder: Path, around: Mapping[str, str], overrides: Mapping[str, Any], methods: Sequence[str]
) -> dict[str, str]:
    """Run methods in an environment; give what came of each."""
    folder.mkdir()
    arguments = [sys.executable, "-P", "-m", "campaigns._alike", str(folder), json.dumps(overrides), *methods]
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, **PLAIN, **around, "PYTHONPATH": path}
    done = subprocess.run(arguments, env=env, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


PARTS = {"hash seeds": hash_seeds, "elsewhere": elsewhere}
