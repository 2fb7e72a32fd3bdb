"""Runs of a study: small copies of data sets, conditions over them, and a line for every run that is made.

A run's line lies in a file a data set under `studies/results/STUDY`. Whoever reads a study's results reads every file
of that folder, so that runs of other machines, larger data or other models join by lying there.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from textwrap import fill
from typing import Any

import numpy as np
import torch

import fedstrata
from fedstrata import Federation, Inputs
from fedstrata.core.registry import build, make_part
from fedstrata.data.concentration import concentration
from fedstrata.data.label_table import LabelTable
from fedstrata.runs.session import check_experiment
from fedstrata.runs.stage_choices import choose_stages
from fedstrata.runs.training import describe_experiment

RESULTS = Path(__file__).parent / "results"
OPTIONS: dict[str, dict[str, Any]] = {"uci-har": {"form": "signals"}}  # of data sets, where they are not the defaults
EACH = 150, 100  # most training and test samples of a class in a small copy
CLIENTS, ROUND, ROUNDS = 40, 10, 30  # clients, those that train in a round, rounds of FedAvg
UPDATES = ROUND * ROUNDS  # what every run may spend
WIDEST = 120  # columns of a page
LAST = 3  # evaluations whose mean is a run's figure: in skewed federations single rounds differ much


@dataclass(frozen=True)
class Condition:
    """Who holds what, and what goes wrong."""

    name: str
    partition: Mapping[str, Any]
    noise: float = 0.0  # share of wrong labels
    stragglers: float = 0.0
    clients: int = CLIENTS
    k: int = ROUND  # clients of a round
    updates: int = field(default=UPDATES, repr=False)  # what every run may spend
    train: Mapping[str, Any] = field(default_factory=dict, repr=False)  # how clients train, where that is not by SGD

    def settings(self) -> dict[str, Any]:
        """Return the keys that it sets beside the data."""
        lost = {"system.stragglers.rate": self.stragglers} if self.stragglers else {}
        return {"train.clients_per_round": self.k, "train.rounds": self.updates // self.k, **lost, **self.train}


def dirichlet(alpha: float) -> dict[str, Any]:
    """Return the partition by which papers mean skew."""
    return {"kind": "dirichlet-class", "alpha": alpha, "min_size": 2}


def few_labels(labels: int) -> dict[str, Any]:
    """Return the partition in which every client holds so many labels."""
    return {"kind": "labels-per-client", "labels": labels, "unowned": "round-robin"}


CONDITIONS = {
    condition.name: condition
    for condition in (
        Condition("even", {"kind": "iid"}),
        Condition("dirichlet 1", dirichlet(1.0)),
        Condition("dirichlet 0.3", dirichlet(0.3)),
        Condition("dirichlet 0.1", dirichlet(0.1)),
        Condition("2 labels", few_labels(2)),
        Condition("1 label", few_labels(1)),
        Condition("dirichlet 0.3, 30 % wrong labels", dirichlet(0.3), noise=0.3),
        Condition("dirichlet 0.1, 30 % stragglers", dirichlet(0.1), stragglers=0.3),
        Condition("1 label, 30 % stragglers", few_labels(1), stragglers=0.3),
        Condition("dirichlet 0.1, 3 of 40 clients", dirichlet(0.1), k=3),
        Condition("dirichlet 0.1, all 10 clients", dirichlet(0.1), clients=10),
    )
}
LONG = 2_000  # client updates of runs that show what becomes of gains
ADAM = {"train.optimizer.kind": "adam", "train.lr": 0.001}
LONG_RUNS = {
    condition.name: condition
    for condition in (
        Condition("even, 200 rounds", {"kind": "iid"}, updates=LONG),
        Condition("dirichlet 0.3, 200 rounds", dirichlet(0.3), updates=LONG),
        Condition("dirichlet 0.1, 200 rounds", dirichlet(0.1), updates=LONG),
        Condition("1 label, 200 rounds", few_labels(1), updates=LONG),
        Condition("dirichlet 0.1, 30 % stragglers, 200 rounds", dirichlet(0.1), stragglers=0.3, updates=LONG),
        Condition("dirichlet 0.3, 200 rounds of Adam", dirichlet(0.3), updates=LONG, train=ADAM),
        Condition("dirichlet 0.1, 200 rounds of Adam", dirichlet(0.1), updates=LONG, train=ADAM),
    )
}
ALL = CONDITIONS | LONG_RUNS


@dataclass(frozen=True)
class Row:
    """A method, by what it sets; options may depend on the number of classes and of clients a round."""

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    by: str = "client_updates"  # what ends it: the budget of client updates, or FedAvg's bytes


@cache
def small(name: str) -> fedstrata.Arrays:
    """Return a copy of a data set with few samples of every class, so that a run takes seconds."""
    arrays = build("datasets", name, OPTIONS.get(name, {}), "data").load()
    train, test = (_few(y, most) for y, most in zip((arrays.y, arrays.test_y), EACH, strict=True))
    scale = {"mean": arrays.mean, "std": arrays.std}
    return fedstrata.Arrays(arrays.x[train], arrays.y[train], arrays.test_x[test], arrays.test_y[test], **scale)


def _few(labels: np.ndarray, most: int) -> np.ndarray:
    order = np.random.default_rng(0).permutation(len(labels))
    return np.sort(np.concatenate([order[labels[order] == label][:most] for label in np.unique(labels)]))


@cache
def federation_of(data: str, condition: str, seed: int) -> Federation:
    """Deal a small copy out as a condition says."""
    arrays, asked = small(data), ALL[condition]
    options = dict(asked.partition)
    federation = Federation.from_arrays(
        arrays.x,
        arrays.y,
        asked.clients,
        partition=make_part("partitions", options.pop("kind"), **options),
        test=(arrays.test_x, arrays.test_y),
        inputs=Inputs(scale=255.0 if arrays.x.dtype == np.uint8 else 1.0, mean=arrays.mean, std=arrays.std),
        seed=seed,
        name=data,
    )
    noise = [make_part("noises", "label-noise", rate=asked.noise)] if asked.noise else []
    return federation.with_noise(noise, seed)


def run_missing(
    study: str, data: Sequence[str], conditions: Sequence[str], rows: Sequence[Row], seeds: Iterable[int]
) -> None:
    """Make the missing runs, a federation at a time; every run that ends is a line at once."""
    there = {line["key"] for line in read(study)}
    for place in [(name, condition, seed) for seed in seeds for name in data for condition in conditions]:
        for known in (federation_of, measured, spent_by_fedavg):
            known.cache_clear()
        todo = [(row, key) for row in rows if (key := _key(place, row)) not in there]
        for row, key in todo:
            began = time.perf_counter()
            named = {"data": place[0], "condition": place[1], "seed": place[2], "row": row.name}
            line = {"key": key, **named, "by": row.by, "set": row.settings, **_run(place, row)}
            line |= {"seconds": round(time.perf_counter() - began, 2), **_made_with()}
            file = RESULTS / study / f"{place[0]}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(line) + "\n")
            print(f"{', '.join(map(str, place))}: {row.name} {figure(line):.3f}", flush=True)


def read(study: str) -> list[dict[str, Any]]:
    """Return all runs of a study, whoever made them; of a row that was repeated, the last."""
    files = sorted((RESULTS / study).glob("*.jsonl"))
    lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return list({(line["data"], line["condition"], line["seed"], line["row"]): line for line in lines}.values())


def figure(line: Mapping[str, Any], share: float = 1.0, by: str = "client_updates") -> float:
    """Return the accuracy at a share of the budget: the mean of the last evaluations until it was spent."""
    column, budget = (0, line["updates"]) if by == "client_updates" else (1, line["bytes"])
    within = [point[2] for point in line["curve"] if point[column] <= share * budget * 1.001]
    return fmean(within[-LAST:]) if within else 0.0


def _key(place: tuple[str, str, int], row: Row) -> str:
    """Hash what decides a run's figures; methods by name stand for themselves, but for what they choose by the data."""
    condition = ALL[place[1]]
    told = [*place, repr(condition), row.name, row.settings, row.by, condition.updates, EACH, *_chosen(place, row)]
    return sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _chosen(place: tuple[str, str, int], row: Row) -> list[Any]:
    """Return the stages of a method that chooses them: other choices make other runs."""
    if row.settings.get("method.name") != "strata":
        return []
    federation, asked = federation_of(*place), ALL[place[1]].settings()
    experiment = describe_experiment(None, None, {**asked, **row.settings}, federation, None)
    return [choose_stages(experiment, federation)[0].method.model_dump(mode="json")]


def _run(place: tuple[str, str, int], row: Row) -> dict[str, Any]:
    data, condition, seed = place
    federation, asked = federation_of(*place), ALL[condition]
    budget = spent_by_fedavg(data, condition, seed, row.settings.get("model.name", "mlp"))
    ends = {"train.stop.client_updates": asked.updates} if row.by == "client_updates" else {"train.stop.bytes": budget}
    every = max(1, asked.updates // asked.k // 15)
    common = {**asked.settings(), **ends, "train.evaluate.every": every, "train.seed": seed, "engine.workers": 1}
    with TemporaryDirectory() as folder:
        overrides = {**common, **_filled(row.settings, federation, asked.k)}
        run = fedstrata.train(overrides=overrides, federation=federation, out=Path(folder) / "run")
        events = [event for event in run.events() if event["event"] == "round" and event.get("accuracy") is not None]
        chosen = [event for event in run.events() if event["event"] == "choice"]
    curve = [[e["client_updates"], e["bytes_up"] + e["bytes_down"] + e["bytes_p2p"], e["accuracy"]] for e in events]
    about = {"choices": {event["stage"]: event["used"] for event in chosen}} if chosen else {}
    return {"updates": asked.updates, "bytes": budget, "curve": _thinned(curve), "measured": measured(*place), **about}


@cache
def measured(data: str, condition: str, seed: int) -> dict[str, float]:
    """Return what `fedstrata inspect` shows of a federation, as far as methods are chosen by it."""
    federation, asked = federation_of(data, condition, seed), ALL[condition]
    table = LabelTable.of(federation.counts)
    return {
        "labels": len(table.labels),
        "effective_labels": float(table.effective.mean()),
        "effective_share": float(table.effective.mean()) / len(table.labels),
        "alpha": concentration(table) / len(table.labels),
        "size_gini": table.gini,
        "participation": asked.k / len(federation),
        "clients_per_round": asked.k,
        "wrong_labels": federation.wrong_labels or 0.0,
        "stragglers": asked.stragglers,
    }


def _filled(settings: Mapping[str, Any], federation: Federation, k: int) -> dict[str, Any]:
    """Put the number of clusters where a setting asks for it: one a label, at most as many as train in a round."""
    clusters = max(2, min(len(federation.classes), k, len(federation) - 1))
    return {key: clusters if value == "CLUSTERS" else value for key, value in settings.items()}


def _thinned(curve: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    return list(curve) if len(curve) <= 30 else [*curve[: -LAST : -(-len(curve) // 30)], *curve[-LAST:]]


@cache
def spent_by_fedavg(data: str, condition: str, seed: int, model: str = "mlp") -> int:
    """Return the bytes of FedAvg in as many client updates as the budget has: the model down and the update up."""
    federation = federation_of(data, condition, seed)
    experiment = describe_experiment(None, "fedavg", {"model.name": model}, federation, None)
    return ALL[condition].updates * 8 * check_experiment(experiment, federation, None)[1].space.P


@cache
def _made_with() -> dict[str, Any]:
    git = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    versions = {"fedstrata": fedstrata.__version__, "torch": torch.__version__}
    return {"commit": git.stdout.strip() or None, "versions": versions, "date": f"{datetime.now(UTC):%Y-%m-%d}"}


def wrapped(page: str) -> str:
    """Break the lines of a page's paragraphs anew: what was put into them is of any length."""
    parts, code = [], False
    for part in page.split("\n\n"):
        code ^= part.count("```") % 2 == 1
        plain = not code and part[:1] not in "#|<`\n"
        parts.append(fill(part, WIDEST, break_long_words=False, break_on_hyphens=False) if plain else part)
    return "\n\n".join(parts)


def by_place(lines: Iterable[Mapping[str, Any]]) -> Iterator[tuple[tuple[str, str, int], dict[str, Mapping[str, Any]]]]:
    """Group lines by federation: what is compared there is paired."""
    found: dict[tuple[str, str, int], dict[str, Mapping[str, Any]]] = {}
    for line in lines:
        found.setdefault((line["data"], line["condition"], line["seed"]), {})[line["row"]] = line
    yield from found.items()
