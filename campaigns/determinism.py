"""Does the same experiment give the same run everywhere? Over workers, threads, hash seeds, locales and time zones.

Methods are played in the reference environment, then in each other one, in processes that were started there; all of
them under other hash seeds, some of them elsewhere. Survived are runs whose events and models are the same, bit for
bit.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from campaigns._clock import in_time
from campaigns._command import command
from campaigns._table import Row

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
    """Play, tell, and store."""
    return command("determinism", PARTS, arguments, __doc__)


def hash_seeds(folder: Path, quick: bool) -> Iterator[Row]:
    """Give the row of hash seeds, over every method."""
    return _compared(folder, ["hash seeds"], quick, "few" if quick else "all")


def elsewhere(folder: Path, quick: bool) -> Iterator[Row]:
    """Give a row for every other kind of difference, over methods that are unlike each other."""
    kinds = [name for name in SOMEWHERE if name != "hash seeds"]
    return _compared(folder, ["workers"] if quick else kinds, quick, "few" if quick else "some")


def _compared(folder: Path, kinds: Sequence[str], quick: bool, methods: str) -> Iterator[Row]:
    """Compare one environment of each kind, then the next ones, for as long as there is time."""
    expected, rows = _played(folder / "plain", {}, {}, methods), {name: Row(name) for name in kinds}
    cases = [(i, name) for i in range(1 if quick else 4) for name in kinds if i < len(SOMEWHERE[name])]
    for number, name in in_time(cases):
        around, overrides = SOMEWHERE[name][number]
        found = _played(folder / f"{name}-{number}", around, overrides, methods)
        for method, outcome in expected.items():
            where = f"{method} with {dict(around) | dict(overrides)}"
            rows[name].note(None if found.get(method) == outcome else f"{where}: {found.get(method, 'nothing')}")
    yield from (row for row in rows.values() if row.tried)


def _played(folder: Path, around: Mapping[str, str], overrides: Mapping[str, Any], methods: str) -> dict[str, str]:
    """Play methods in an environment; give what came of each."""
    folder.mkdir()
    arguments = [sys.executable, "-P", "-m", "campaigns._alike", str(folder), json.dumps(overrides), methods]
    env = {**os.environ, **PLAIN, **around, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(arguments, env=env, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


PARTS = {"hash seeds": hash_seeds, "elsewhere": elsewhere}
