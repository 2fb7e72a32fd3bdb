"""The runs that were made of a table: one file a table, one entry a run, written as soon as a run ends.

An entry holds the figures, not the model, and what they were obtained with: versions, hardware, date, code. A run is
known again by its experiment, so that whatever is there is never run twice, on whichever machine it was made; an
entry whose experiment has changed since does not count.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from fedstrata import __version__
from fedstrata.core.errors import RequestError
from fedstrata.core.machine.threads import cores
from fedstrata.core.storage.file_lock import in_turn
from fedstrata.core.storage.files import write_atomically, writing_to
from fedstrata.data import store
from fedstrata.data.published import Published
from fedstrata.reproduce.table import PaperTable, Wanted, all_tables
from fedstrata.reproduce.work import data_set
from fedstrata.runs.compare.settings import folder_name
from fedstrata.runs.folder import Run, finite
from fedstrata.runs.metrics import BY_CLIENT, LAST, Criterion, evaluations

FOLDER = Path("reproduce") / "results"
HERE = Path(__file__).parent
PLACES = (HERE / "published", HERE.parents[2] / FOLDER)  # those that come with a package, or with a checkout
PUBLISHED = next((place for place in PLACES if place.is_dir()), PLACES[0])
ALWAYS = ("accuracy", "best", "mean_last10", "balanced_accuracy", "best_balanced_accuracy")
MAYBE = tuple(f"{name}{end}" for name in BY_CLIENT for end in ("", f"_last{LAST}"))  # where runs measured them
COSTS = ("rounds", "client_updates", "bytes_up", "bytes_down", "bytes_p2p", "time", "seconds", "best_accuracy_round")
POINTS = 200  # of a curve
NEEDED = itemgetter("experiment", "figures", "costs", "data", "device")  # of an entry, beside its key
A_POINT = re.compile(r"\[\s+([-\d.e+]+(?:,\s+[-\d.e+]+)*)\s+\]")  # numbers alone, as json spreads them over lines

Key = tuple[str, str, int]  # condition, row and seed


class Results:
    """The runs of a table that are there."""

    def __init__(self, table: PaperTable, folder: Path = FOLDER):
        self.table, self.path = table, folder / f"{folder_name(table.kept_as)}.json"
        self._entries = _read(self.path)
        plain = table.file_id if table.base is None else f"{table.file_id} with {table.method}"
        self._shared = _read(self.path.with_name(f"{folder_name(plain)}.json")) if table.reading else {}
        self._digests = {_key(one): table.digest(one) for one in table.wanted()}
        self.base = None if table.base is None else Results(table.base, folder)

    @property
    def runs(self) -> dict[Key, dict[str, Any]]:
        """The entries whose experiment is the present one, and that have the figure, by condition, method and seed.

        Rows that a reading leaves as they are have the runs of the table itself.
        """
        return self._counting(self._shared) | self.own_runs

    @property
    def own_runs(self) -> dict[Key, dict[str, Any]]:
        """Those that are kept in the file of this table or reading."""
        return self._counting(self._entries)

    def _counting(self, entries: Mapping[Key, dict[str, Any]]) -> dict[Key, dict[str, Any]]:
        figure = self.table.metrics[self.table.metric].name
        present = ((key, e) for key, e in entries.items() if self._digests.get(key) == e["experiment"])
        return {key: e for key, e in present if figure in e["figures"]}

    @property
    def outdated(self) -> int:
        """How many entries belong to settings that have changed since, or are not wanted any more."""
        return 0 if self.table.same_runs else len(self._entries) - len(self.own_runs)

    @property
    def done(self) -> bool:
        """Whether the primary contrast is there."""
        return not any(map(self.table.primary, self.missing()))

    @property
    def partial(self) -> int:
        """How many runs had only a part of a data set."""
        return sum(not entry["data"]["complete"] for entry in self.runs.values())

    def missing(self) -> list[Wanted]:
        """Return the runs that have still to be made, the weightiest first."""
        there = self.runs
        return [one for one in self.table.wanted() if _key(one) not in there]

    def values(self, metric: Criterion, method: str, condition: str) -> dict[int, float]:
        """Return a metric by seed; what was never reached is infinite. Rows of the paper come from its own results."""
        if self.base is not None and method != self.table.method:
            return self.base.values(metric, method, condition)
        own = {seed: e["figures"] for (c, m, seed), e in self.runs.items() if (c, m) == (condition, method)}
        return {seed: _number(figures[metric.name]) for seed, figures in sorted(own.items()) if metric.name in figures}

    def cost(self, name: str, method: str, condition: str | None = None) -> float | None:
        """Return what a run of a row took, in the mean: one of `COSTS`, or "bytes" in all directions."""
        if self.base is not None and method != self.table.method:
            return self.base.cost(name, method, condition)
        asked = [e["costs"] for (c, m, _), e in self.runs.items() if m == method and condition in (None, c)]
        own = [spent(costs, name) for costs in asked if costs.keys() >= set(_kinds(name))]
        return sum(own) / len(own) if own else None

    def add(self, wanted: Wanted, run: Run, jobs: int = 1) -> None:
        """Keep the figures of a finished run; `jobs` is how many ran at a time."""
        summary, scored = run.summary, evaluations(run.events())
        metrics = {metric.name: metric for metric in (*self.table.metrics.values(), *map(Criterion.of, ALWAYS))}
        entry = {
            "condition": wanted.condition,
            "method": wanted.method,
            "seed": wanted.seed,
            "experiment": self.table.digest(wanted),
            "figures": {name: metric.read(summary, scored) for name, metric in metrics.items()}
            | {name: summary[name] for name in MAYBE if name in summary},
            "costs": {name: summary[name] for name in COSTS},
            "jobs": jobs,
            "data": self._trained_on(wanted, run),
            "curve": [_point(event) for event in scored[:: -(-len(scored) // POINTS)]],
            "remarks": summary["remarks"],
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "compiled": _compiled(run),
            **_made_with(),
        }
        self._keep({_key(wanted): entry})

    def _trained_on(self, wanted: Wanted, run: Run) -> dict[str, Any]:
        """Say how many samples there were, and whether that is the whole data set."""
        start = next(event for event in run.events() if event["event"] == "start")
        part = data_set(self.table.settings(wanted.condition))
        complete = store.about(part.key).get("complete", True) if isinstance(part, Published) else True
        return {"samples": start["samples"] + start["left_out"], "test": start["test_samples"], "complete": complete}

    def take_over(self, other: Results) -> int:
        """Keep the runs of another folder that count and are missing here; return how many. What is here stays."""
        missing = {_key(one) for one in self.missing()}
        taken = {key: entry for key, entry in other.own_runs.items() if key in missing}
        if taken:
            self._keep(taken)
        return len(taken)

    def refuse_other_data(self, other: Results) -> None:
        """Refuse runs on more or fewer samples than those that are here had under the same condition."""
        here = {condition: entry["data"]["samples"] for (condition, *_), entry in self.runs.items()}
        for (condition, method, seed), entry in other.runs.items():
            samples = entry["data"]["samples"]
            if samples != here.get(condition, samples):
                raise RequestError(
                    f"{other.path}: {Wanted(condition, method, seed).name} was run on {samples} samples, "
                    f"and {self.path} has runs on {here[condition]}"
                )

    def _keep(self, entries: Mapping[Key, dict[str, Any]]) -> None:
        """Write entries beside those that other processes kept meanwhile; the file is always whole."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with writing_to(self.path.parent), in_turn(self.path.with_suffix(".lock")):
            self._entries = {**_read(self.path), **entries}
            listed = [self._entries[key] for key in sorted(self._entries)]
            text = json.dumps(finite({"id": self.table.kept_as, "runs": listed}), indent=1)
            text = A_POINT.sub(lambda found: f"[{' '.join(found[1].split())}]", text)
            write_atomically(self.path, f"{text}\n".encode())


def spent(costs: Mapping[str, Any], name: str) -> float:
    """Return what a run or a part of it took: one of `COSTS`, or "bytes" in all directions."""
    return float(sum(costs[kind] for kind in _kinds(name)))


def _kinds(name: str) -> tuple[str, ...]:
    return ("bytes_up", "bytes_down", "bytes_p2p") if name == "bytes" else (name,)


def _point(event: Mapping[str, Any]) -> list[float]:
    """Return a point of a curve: round, accuracy, client updates and bytes until then."""
    return [event["round"], round(event["accuracy"], 5), event["client_updates"], int(spent(event, "bytes"))]


def _read(path: Path) -> dict[Key, dict[str, Any]]:
    """Return the entries of a file; where the usual folder does not have it, those that were published."""
    if path.parent == FOLDER and not path.exists():
        path = PUBLISHED / path.name
    return _load(path)[1] if path.exists() else {}


def _load(path: Path) -> tuple[str, dict[Key, dict[str, Any]]]:
    """Return the id that a file says, and its entries."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        entries = {(e["condition"], e["method"], e["seed"]): e for e in said["runs"]}
        for entry in entries.values():
            NEEDED(entry)
        return said["id"], entries
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RequestError(f"{path} is damaged: {error!r}; restore it, or move it away to run it anew") from None


def merge_results(folder: Path, into: Path = FOLDER) -> dict[str, int]:
    """Take over the runs of another folder that are missing; return how many, by table.

    All files are read before anything is kept. Of a run that both have, the one that is there stays. Runs on another
    number of samples do not go together.
    """
    if not folder.is_dir():
        raise RequestError(f"{folder} is not a folder of results")
    tables = all_tables().values()
    own = [table.read_as(name) if name else table for table in tables for name in ("", *table.readings)]
    own = [table for table in own if not table.same_runs]
    own += [table.beside(method) for table in own for method in methods_beside(table, folder)]
    pairs = [(Results(table, into), Results(table, folder)) for table in own]
    known = {there.path.name for _, there in pairs}
    if strange := sorted(path.name for path in folder.glob("*.json") if path.name not in known):
        raise RequestError(f"{folder}/{strange[0]} belongs to no table of this version")
    for here, there in pairs:
        here.refuse_other_data(there)
    return {here.table.id: here.take_over(there) for here, there in pairs}


def methods_beside(table: PaperTable, folder: Path) -> list[str]:
    """Return the methods that were run beside a table or a reading of it, by what their files say."""
    folders = [folder, PUBLISHED] if folder == FOLDER else [folder]
    files = [path for own in folders for path in own.glob(f"{folder_name(table.kept_as)}-with-*.json")]
    found = {_load(path)[0] for path in files}
    return sorted(name.removeprefix(f"{table.kept_as} with ") for name in found)


def _key(wanted: Wanted) -> Key:
    return wanted.condition, wanted.method, wanted.seed


def _number(value: float | None) -> float:
    """Read what JSON has no word for."""
    return float("inf") if value is None else float(value)


def _compiled(run: Run) -> bool:
    """Say whether its local steps were compiled, by the last word of its engine."""
    told = [event["wall"]["compiled"] for event in run.events() if "compiled" in event.get("wall", {})]
    return bool(told and told[-1])


@cache
def _made_with() -> Mapping[str, Any]:
    """Return versions, hardware, and the code itself: by its commit where there is one, and by its text."""
    gpu = torch.cuda.is_available()
    root = HERE.parent
    digest = sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(path.read_bytes())
    return {
        "device": "gpu" if gpu else "cpu",
        "hardware": torch.cuda.get_device_name() if gpu else f"{cores()} cores of {platform.machine()}",
        "versions": {"fedstrata": __version__, "torch": torch.__version__},
        "commit": _commit(root),
        "code": digest.hexdigest()[:16],
    }


def _commit(root: Path) -> str | None:
    """Return the commit whose code this is; with "-dirty" where it has been changed since."""

    def git(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)

    if not (commit := git("rev-parse", "--short", "HEAD").stdout.strip()):
        return None
    return commit if git("diff", "--quiet", "HEAD", "--", ".").returncode == 0 else f"{commit}-dirty"
