"""TensorBoard: event files in the run folder, which `tensorboard --logdir runs` shows side by side."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import tomli_w

from fedstrata.config import tables
from fedstrata.core.options import LocalPath
from fedstrata.runs.trackers.base import How, Recording, TrackedRun, Tracker


@dataclass(frozen=True)
class TensorBoard(Tracker):
    """Event files for TensorBoard: a curve a figure, the experiment as text and as hyperparameters."""

    modules: ClassVar[tuple[str, ...]] = ("tensorboard",)
    extra: ClassVar[str] = "tensorboard"

    folder: LocalPath | None = None  # where runs get a folder each; without it, `tensorboard` in the run folder

    def start(self, run: TrackedRun) -> Recording:
        """Open an event file; of a run that goes on, what comes after its checkpoint is forgotten."""
        return EventFiles(run, run.folder / "tensorboard" if self.folder is None else Path(self.folder, run.name))


class EventFiles:
    """The event files of one run."""

    def __init__(self, run: TrackedRun, folder: Path):
        self.where = f"tensorboard --logdir {shlex.quote(str(folder))}"
        self.memory: Mapping[str, str] = {"folder": str(folder.resolve())}
        self._experiment = run.experiment
        again = run.rounds_done + 1 if run.memory else None
        self._writer: Any = import_module("torch.utils.tensorboard").SummaryWriter(folder, purge_step=again)
        self._writer.add_text("experiment", f"```toml\n{tomli_w.dumps(dict(run.experiment))}```")

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Add a point to every curve."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, round)
        self._writer.flush()

    def end(self, how: How, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Add what TensorBoard compares runs by, and where the model lies: it keeps no files."""
        if how == "finished":
            settings = {key: _plain(value) for key, value in tables.flatten(self._experiment).items()}
            outcome = {f"final/{k}": v for k, v in summary.items() if isinstance(v, float)}
            self._writer.add_hparams(settings, outcome, run_name=".")
            self._writer.add_text("files", "\n".join(f"* `{path}`" for path in files))
        self._writer.close()


def _plain(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else tables.write_value(value)
