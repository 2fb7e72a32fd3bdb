"""What it costs to see: inspecting a large federation, reports, and the share of a run for its events.

The long run is written here, not trained: 500 rounds of 40 among 200 clients, with every figure that events hold. The
demo's report is that of `make demo`, whose comparison is made for it; Chromium says when it first painted anything,
and when the figures in view are drawn; without Chromium these two are not measured. The
cost of events is measured in runs of digits with the tiny default network, whose rounds are among the shortest there
are: the time inside what makes and writes events, over the time of the run. Medians count.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any
from unittest.mock import patch

import numpy as np
from playwright.sync_api import sync_playwright

from benchmarks._browser import BROWSERS, FLAGS
from benchmarks._rows import row
from fedstrata import Federation, compare, inspect, train
from fedstrata.data.partitions.dirichlet_client import DirichletClient
from fedstrata.report.gather import gather
from fedstrata.report.page import page
from fedstrata.runs.folder import Run
from fedstrata.server import loop

DEMO = Path(__file__).parents[1] / "examples" / "one_label.toml"
LABELS, FEATURES = 10, 32  # of the federation that is inspected
ASKED, CLASSES = 40, 20  # of the long run


@dataclass(frozen=True)
class Size:
    """How much there is to see."""

    samples: int  # of the federation that is inspected
    holders: int
    rounds: int  # of the long run
    clients: int
    trained: int  # rounds of digits
    turns: int


FULL = Size(samples=1_000_000, holders=10_000, rounds=500, clients=200, trained=30, turns=3)
QUICK = Size(samples=20_000, holders=200, rounds=20, clients=20, trained=3, turns=1)


def measure(quick: bool = False) -> list[dict[str, Any]]:
    """Return all rows."""
    size = QUICK if quick else FULL
    return [*inspect_rows(size), *report_rows(size), *demo_rows(size), *logging_rows(size)]


def inspect_rows(size: Size) -> list[dict[str, Any]]:
    """Return the seconds to inspect a large federation, samples themselves included."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((size.samples, FEATURES), dtype=np.float32), rng.integers(0, LABELS, size.samples)
    federation = Federation.from_arrays(
        x, y, size.holders, partition=DirichletClient(alpha=1.0), test=(x[:1000], y[:1000])
    )
    began = perf_counter()
    inspect(overrides={"train.clients_per_round": 100}, federation=federation)
    name = f"inspect {size.samples:,} samples over {size.holders:,} clients"
    return [row(name, perf_counter() - began, "s", at_most=10.0)]


def report_rows(size: Size) -> list[dict[str, Any]]:
    """Return seconds and size of a report of a long run."""
    seconds, written = [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = write_long_run(Path(folder) / "run", size.rounds, size.clients)
        for _ in range(size.turns):
            began = perf_counter()
            written = len(page(gather([path])).encode())
            seconds.append(perf_counter() - began)
    name = f"report of {size.rounds} rounds, {size.clients} clients"
    return [row(name, median(seconds), "s", at_most=5.0), row(f"{name}, size", written / 1e6, "MB", at_most=3.0)]


def demo_rows(size: Size) -> list[dict[str, Any]]:
    """Return the size of the demo's report, and how long a browser takes to show it."""
    with tempfile.TemporaryDirectory() as folder:
        seeds = 1 if size == QUICK else None
        compare(DEMO, seeds=seeds, overrides={"train.rounds": 50 if seeds is None else 2}, out=Path(folder) / "demo")
        file = Path(folder) / "report.html"
        file.write_text(page(gather([Path(folder) / "demo"])))
        written = file.stat().st_size
        shown = [opened(file) for _ in range(size.turns)]
    painted, drawn = (None if None in times else median(times) for times in zip(*shown, strict=True))
    return [
        row("report of the demo, size", written / 1e6, "MB", at_most=3.0),
        row("report of the demo, first paint", painted, "s", at_most=1.0),
        row("report of the demo, figures in view", drawn, "s"),
    ]


def opened(file: Path) -> tuple[float | None, float | None]:
    """Open a page in Chromium; return the seconds to its first paint, and until the figures in view are drawn."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        return None, None
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=FLAGS)
        shown = started.new_page(viewport={"width": 1280, "height": 900})
        shown.goto(file.as_uri())
        drawn = shown.wait_for_function(
            "() => document.documentElement.dataset.drawn && performance.now()"
        ).json_value()
        painted = shown.evaluate("() => performance.getEntriesByName('first-contentful-paint')[0].startTime")
        started.close()
    return painted / 1000, drawn / 1000


def logging_rows(size: Size) -> list[dict[str, Any]]:
    """Return the share of a run that goes into making and writing its events."""
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(size.turns):
            spent: list[float] = []
            with _timed(Run, "log", spent), _timed(loop, "round_figures", spent), _timed(loop, "by_client", spent):
                began = perf_counter()
                train(overrides={"train.rounds": size.trained}, out=Path(folder) / str(turn))
                shares.append(100 * sum(spent) / (perf_counter() - began))
    return [row("events, share of a run of digits", median(shares), "%", at_most=2.0)]


def write_long_run(path: Path, rounds: int = FULL.rounds, clients: int = FULL.clients, seed: int = 0) -> Path:
    """Write a run folder as a long run would leave it: rare labels, stragglers, clients that are served badly."""
    rng = np.random.default_rng(seed)
    asked = max(1, min(ASKED, clients // 2))
    mix = rng.dirichlet(np.full(CLASSES, 2.0))
    counts = np.array(
        [rng.multinomial(rng.integers(20, 200), rng.dirichlet(50 * mix / CLASSES)) for _ in range(clients)]
    )
    run = Run.create(
        path, f'[data]\nname = "made up"\n[method]\nname = "fedavg"\n[train]\nrounds = {rounds}\nseed = 0\n'
    )
    run.log(
        "start",
        version="0.1.0",
        clients=clients,
        samples=int(counts.sum()),
        test_samples=1000,
        classes=list(range(CLASSES)),
        parameters=1000,
        fingerprint="0" * 64,
        mix=(counts.sum(0) / counts.sum()).tolist(),
    )
    run.log("clients", counts=counts.tolist())
    ease, gift = rng.uniform(0.3, 1.0, CLASSES) * (mix / mix.max()) ** 0.3, rng.normal(0, 0.12, clients)
    lines = {}
    for round in range(1, rounds + 1):
        grown = 1 - np.exp(-round / (rounds / 6))
        recall = np.clip(ease * grown + rng.normal(0, 0.03, CLASSES), 0, 1)
        own = np.clip(recall.mean() + gift * grown + rng.normal(0, 0.04, clients), 0, 1)
        chosen = np.sort(rng.choice(clients, asked, replace=False))
        late = chosen[rng.random(asked) < 0.05].tolist()
        here = [int(c) for c in chosen if c not in late]
        if late:
            run.log("dropped", round=round, step=0, clients=late, why="late")
        lines = {
            "accuracy": float(recall @ mix),
            "balanced_accuracy": float(recall.mean()),
            "loss_test": float(3 * np.exp(-3 * grown)),
            "recall": recall.tolist(),
            "client_mean": float(own.mean()),
            "worst10": float(np.sort(own)[: max(clients // 10, 1)].mean()),
            "client_accuracy": np.rint(1000 * own).astype(int).tolist(),
            "label_divergence": float(rng.gamma(2, 0.05)),
            "labels": counts[here].sum(0).tolist(),
            "loss_train": float(2 * np.exp(-3 * grown)),
            "update_norm": 1.0,
            "jain": 0.9,
        }
        update_norm = {str(c): float(d) for c, d in zip(here, rng.gamma(4, 0.25, len(here)), strict=True)}
        steps = [{"kind": "train", "clients": here, "missing": late, "update_norm": update_norm}]
        cost = {"bytes_up": 4000 * asked * round, "bytes_down": 4000 * asked * round, "bytes_p2p": 0}
        run.log("round", round=round, **lines, steps=steps, **cost, client_updates=asked * round, time=0.3 * round)
    figures = {key: lines[key] for key in ("accuracy", "balanced_accuracy", "worst10", "loss_test", "jain")}
    summary = {"method": "fedavg", "seed": 0, "rounds": rounds, **figures, **cost, "client_updates": asked * rounds}
    run.write_result({}, {}, {**summary, "time": 0.3 * rounds, "stopped": "all rounds done", "privacy": {}})
    return path


@contextmanager
def _timed(owner: Any, name: str, spent: list[float]) -> Iterator[None]:
    """Add up the seconds that calls of a function take."""
    real: Callable[..., Any] = getattr(owner, name)

    def timed(*args: Any, **options: Any) -> Any:
        began = perf_counter()
        try:
            return real(*args, **options)
        finally:
            spent.append(perf_counter() - began)

    with patch.object(owner, name, timed):
        yield
