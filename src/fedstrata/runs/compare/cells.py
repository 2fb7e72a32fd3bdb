"""A cell of a comparison: one row under one condition with one seed, and the hash by which it is known again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fedstrata import __version__
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.runs.compare.settings import describe
from fedstrata.runs.folder import Run
from fedstrata.runs.metrics import Criterion, evaluations
from fedstrata.runs.training import drop_changeable

VERSION = f"fedstrata {__version__}, torch {'.'.join(torch.__version__.split('.')[:2])}"  # what figures depend on

State = Literal["waiting", "running", "stopped", "failed", "pruned", "finished"]


@dataclass
class Cell:
    """One row under one condition with one seed."""

    condition: str  # empty where there is only one
    method: str
    seed: int
    experiment: Experiment
    path: Path  # its run folder
    data: str  # fingerprint of samples and of who holds them
    hash: str  # empty as long as its setting is not chosen
    guess: float = 0.0  # seconds on one core, roughly
    setting: Mapping[str, Any] = field(default_factory=dict)  # what is tried in it, or was chosen by tuning
    trial: bool = False  # whether it is there to tune
    prunable: bool = False  # whether it may be told to stop after a round
    state: State = "waiting"
    why: str | None = None  # it failed
    _reached: dict[str, float | None] = field(default_factory=dict, repr=False)  # metrics that are read from events

    @property
    def key(self) -> tuple[str, str, int]:
        """What it is found by."""
        return self.condition, self.method, self.seed

    @property
    def run(self) -> Run:
        """The run."""
        return Run(self.path)

    @property
    def has_outcome(self) -> bool:
        """Whether its run has ended; it may not have begun."""
        return (self.path / "summary.json").exists() and bool(self.run.summary)

    @property
    def name(self) -> str:
        """What to call it."""
        setting = f", {describe(self.setting)}" if self.setting else ""
        return f"{f'{self.condition}: ' if self.condition else ''}{self.method}{setting}, seed {self.seed}"

    def outcome(self, metrics: Sequence[Criterion]) -> dict[str, Any]:
        """Return the summary of a finished cell with the metrics that are asked for."""
        summary = self.run.summary
        return {**summary, "run_dir": str(self.path)} | {m.name: self._metric(m, summary) for m in metrics}

    def _metric(self, metric: Criterion, summary: Mapping[str, Any]) -> float | None:
        if metric.target is None:
            return metric.read(summary, ())
        if metric.name not in self._reached:  # events may be many, and those of a finished run do not change
            self._reached[metric.name] = metric.read(summary, evaluations(self.run.events()))
        return self._reached[metric.name]


def identity(experiment: Experiment, data: str, weights: str | None) -> str:
    """Hash everything that decides a cell's figures, and nothing else: where it is executed does not count."""
    known = {"experiment": drop_changeable(experiment.dump()), "data": data, "weights": weights, "version": VERSION}
    return sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()


def first_weights(init: str | None, model: nn.Module | None) -> str | None:
    """Hash weights that do not follow from the experiment: those of a file, or of a module from Python."""
    if init is None and model is None:
        return None
    digest = sha256()
    if model is not None:
        digest.update(repr(model).encode())
        for name, tensor in model.state_dict().items():
            digest.update(
                name.encode() + tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
            )
    if init is not None:
        try:
            digest.update(Path(init).read_bytes())
        except OSError as error:
            raise RequestError(f'model.init = "{init}" cannot be read: {error}') from None
    return digest.hexdigest()


def to_line(cell: Cell, root: Path) -> dict[str, Any]:
    """Return a cell's line in comparison.json."""
    line = {"condition": cell.condition, "method": cell.method, "seed": cell.seed, "state": cell.state}
    line |= {"set": dict(cell.setting)} if cell.setting else {}
    known = {"run_dir": str(cell.path.relative_to(root)), "data": cell.data, "hash": cell.hash}
    return {**line, **known} | ({"why": cell.why} if cell.why else {})
