"""What was played of a table: one file a table, one entry a run, written as soon as a run ends.

An entry holds the figures, not the model, and what they were obtained with: versions, hardware, date, code. A run is
known again by its experiment, so that whatever is there is never played twice, on whichever machine it was played; an
entry whose experiment has changed since does not count.
"""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from fedstrata import __version__
from fedstrata.core.errors import RequestError
from fedstrata.core.file_lock import in_turn
from fedstrata.core.files import write_atomically, writing_to
from fedstrata.core.threads import cores
from fedstrata.reproduce.table import PaperTable, Wanted
from fedstrata.runs.compare.settings import folder_name
from fedstrata.runs.folder import Run, finite
from fedstrata.runs.metrics import Metric, evaluations

FOLDER = Path("reproduce") / "results"
ALWAYS = ("accuracy", "best", "mean_last10", "balanced_accuracy", "best_balanced_accuracy")
COSTS = ("rounds", "client_updates", "bytes_up", "bytes_down", "bytes_p2p", "time", "seconds")
POINTS = 50  # of a curve


class Results:
    """The runs of a table that are there."""

    def __init__(self, table: PaperTable, folder: Path = FOLDER):
        self.table, self.path = table, folder / f"{folder_name(table.id)}.json"
        self._entries = self._read()
        self._digests = {_key(one): table.digest(one) for one in table.wanted()}
        self.base = None if table.base is None else Results(table.base, folder)

    def _read(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        if not self.path.exists():
            return {}
        try:
            known = json.loads(self.path.read_text(encoding="utf-8"))["runs"]
            return {(e["condition"], e["method"], e["seed"]): e for e in known}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(f"{self.path} is damaged: {error!r}") from None

    @property
    def runs(self) -> dict[tuple[str, str, int], dict[str, Any]]:
        """The entries whose experiment is the present one, by condition, method and seed."""
        return {key: e for key, e in self._entries.items() if self._digests.get(key) == e["experiment"]}

    @property
    def outdated(self) -> int:
        """How many entries belong to settings that have changed since, or are not wanted any more."""
        return len(self._entries) - len(self.runs)

    def missing(self) -> list[Wanted]:
        """Return what has still to be played, the weightiest first."""
        there = self.runs
        return [one for one in self.table.wanted() if _key(one) not in there]

    def values(self, metric: Metric, method: str, condition: str) -> dict[int, float]:
        """Return a metric by seed; what was never reached is infinite. Rows of the paper come from its own results."""
        if self.base is not None and method != self.table.method:
            return self.base.values(metric, method, condition)
        own = {seed: e["figures"] for (c, m, seed), e in self.runs.items() if (c, m) == (condition, method)}
        return {seed: _number(figures[metric.name]) for seed, figures in sorted(own.items()) if metric.name in figures}

    def cost(self, name: str, method: str) -> float | None:
        """Return what a run of a row took, in the mean: "client_updates", or "bytes" in all directions."""
        if self.base is not None and method != self.table.method:
            return self.base.cost(name, method)
        kinds = ("bytes_up", "bytes_down", "bytes_p2p") if name == "bytes" else (name,)
        own = [sum(e["costs"][kind] for kind in kinds) for (_, m, _), e in self.runs.items() if m == method]
        return sum(own) / len(own) if own else None

    def seconds(self) -> dict[str, float]:
        """Return how long a run took, in the mean, by kind of device."""
        by_kind: dict[str, list[float]] = {}
        for entry in self.runs.values():
            by_kind.setdefault(entry["device"], []).append(entry["costs"]["seconds"])
        return {kind: sum(own) / len(own) for kind, own in by_kind.items()}

    def add(self, wanted: Wanted, run: Run) -> None:
        """Keep the figures of a finished run, beside those that other processes kept; the file is always whole."""
        summary, scored = run.summary, evaluations(run.events())
        metrics = {metric.name: metric for metric in (*self.table.metrics.values(), *map(Metric.of, ALWAYS))}
        entry = {
            "condition": wanted.condition,
            "method": wanted.method,
            "seed": wanted.seed,
            "experiment": self.table.digest(wanted),
            "figures": {name: metric.read(summary, scored) for name, metric in metrics.items()},
            "costs": {name: summary[name] for name in COSTS},
            "curve": [[event["round"], round(event["accuracy"], 5)] for event in scored[:: -(-len(scored) // POINTS)]],
            "remarks": summary["remarks"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **_made_with(),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with writing_to(self.path.parent), in_turn(self.path.with_suffix(".lock")):
            self._entries = {**self._read(), _key(wanted): entry}
            listed = [self._entries[key] for key in sorted(self._entries)]
            text = json.dumps(finite({"id": self.table.id, "runs": listed}), indent=1)
            write_atomically(self.path, f"{text}\n".encode())


def methods_beside(table: PaperTable, folder: Path) -> list[str]:
    """Return the methods that were played beside a table, by what their files say."""
    found = [json.loads(path.read_text()).get("id", "") for path in folder.glob(f"{folder_name(table.id)}-with-*.json")]
    return sorted(name.removeprefix(f"{table.id} with ") for name in found)


def _key(wanted: Wanted) -> tuple[str, str, int]:
    return wanted.condition, wanted.method, wanted.seed


def _number(value: float | None) -> float:
    """Read what JSON has no word for."""
    return float("inf") if value is None else float(value)


@cache
def _made_with() -> Mapping[str, Any]:
    """Return versions, hardware, and the code itself: by its commit where there is one, and by its text."""
    gpu = torch.cuda.is_available()
    root = Path(__file__).parent.parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    git = subprocess.run(
        ["git", "-C", str(root), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "device": "gpu" if gpu else "cpu",
        "hardware": torch.cuda.get_device_name() if gpu else f"{cores()} cores of {platform.machine()}",
        "versions": {"fedstrata": __version__, "torch": torch.__version__},
        "commit": git.stdout.strip() or None,
        "code": digest.hexdigest()[:16],
    }
