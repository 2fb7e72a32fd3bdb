"""Does the same experiment give the same run everywhere? Over workers, threads, hash seeds, locales and time zones.

Every method is played in the reference environment, then in each other one, in processes that were started there.
Survived are runs whose events and models are the same, bit for bit.
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
QUICK = ("hash seeds", "workers")  # the first of each


def main(arguments: Sequence[str]) -> int:
    """Play, tell, and store."""
    return command("determinism", PARTS, arguments, __doc__)


def everywhere(folder: Path, quick: bool) -> Iterator[Row]:
    """Give a row a kind of difference."""
    expected = _played(folder / "plain", {}, {}, quick)
    for name in QUICK if quick else SOMEWHERE:
        row = Row(name)
        for number, (around, overrides) in enumerate(in_time(SOMEWHERE[name][: 1 if quick else None])):
            found = _played(folder / f"{name}-{number}", around, overrides, quick)
            for method, outcome in expected.items():
                where = f"{method} with {dict(around) | dict(overrides)}"
                row.note(None if found.get(method) == outcome else f"{where}: {found.get(method, 'nothing')}")
        yield row


def _played(folder: Path, around: Mapping[str, str], overrides: Mapping[str, Any], quick: bool) -> dict[str, str]:
    """Play all methods in an environment; give what came of each."""
    folder.mkdir()
    arguments = [sys.executable, "-P", "-m", "campaigns._alike", str(folder), json.dumps(overrides), str(int(quick))]
    env = {**os.environ, **PLAIN, **around, "PYTHONPATH": str(Path(__file__).parents[1])}
    done = subprocess.run(arguments, env=env, stdout=subprocess.PIPE, text=True, encoding="utf-8", check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


PARTS = {"everywhere": everywhere}
