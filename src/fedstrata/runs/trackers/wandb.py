"""Weights & Biases: offline unless it is told otherwise, so that nothing leaves the machine without an account."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal
from uuid import uuid4

from fedstrata.runs.trackers.base import How, Recording, TrackedRun, Tracker


@dataclass(frozen=True)
class WeightsAndBiases(Tracker):
    """Runs in Weights & Biases: configuration, a curve a figure, models as artefacts; offline without $WANDB_MODE."""

    modules: ClassVar[tuple[str, ...]] = ("wandb",)
    extra: ClassVar[str] = "wandb"

    project: str = "fedstrata"
    entity: str | None = None  # the user or team that it belongs to
    mode: Literal["offline", "online"] | None = None  # without it $WANDB_MODE, or offline

    def start(self, run: TrackedRun) -> Recording:
        """Make a run, or go on with it under its id."""
        return WandbRun(run, self.project, self.entity, self.mode or os.environ.get("WANDB_MODE", "offline"))


class WandbRun:
    """One run of wandb's, whose own console output is silent: standard output may be somebody's JSON."""

    def __init__(self, run: TrackedRun, project: str, entity: str | None, mode: str):
        self._wandb: Any = import_module("wandb")
        self.memory: Mapping[str, str] = {"id": (run.memory or {}).get("id") or uuid4().hex[:8]}
        quiet = {"silent": True, "console": "off", "disable_git": True, "save_code": False, "x_disable_stats": True}
        self._run: Any = self._wandb.init(
            project=project,
            entity=entity,
            name=run.name,
            id=self.memory["id"],
            resume="allow",
            dir=str(run.folder),
            mode=mode,
            config=dict(run.experiment),
            settings=self._wandb.Settings(**quiet),
            reinit="create_new",  # a script may have a run of its own
        )
        self._run.define_metric("*", step_metric="round")
        folder = Path(self._run.dir).parent
        self.where = self._run.url if mode == "online" else f"wandb sync {shlex.quote(str(folder))}"

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Add a point to every curve, at once: otherwise it would wait for the next."""
        self._run.log({"round": round, **figures}, step=round, commit=True)

    def end(self, how: How, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Keep models and experiment as an artefact, and close the run."""
        self._run.summary.update({k: v for k, v in summary.items() if isinstance(v, int | float | str | list)})
        if files:
            artefact = self._wandb.Artifact(f"model-{self.memory['id']}", type="model")
            for path in files:
                artefact.add_file(str(path))
            self._run.log_artifact(artefact)
        self._run.finish(exit_code=0 if how == "finished" else 1)
