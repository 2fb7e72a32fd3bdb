"""Cells are run one after another in this process, or side by side, each in a process of its own.

Either way a cell keeps to one thread outside its workers, so that neither their number nor their order changes a bit. A
cell that fails is told of and the others go on. Processes are started as workers are: as plain children, so that a
user's script is never imported a second time. They survive no one: they end when this process hangs up.
"""

from __future__ import annotations

import pickle
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from math import ceil
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config.build import build_federation
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import FedstrataError
from fedstrata.core.machine.child_process import start_child, wait_or_kill, why_unsendable
from fedstrata.core.machine.platforms import why_no_workers
from fedstrata.core.machine.threads import keeping_to
from fedstrata.data.federation import Federation
from fedstrata.engines.local.cost import expecting
from fedstrata.engines.local.gpu import uses_gpu
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.gpu_sharing import sharing_gpu
from fedstrata.runs.journal import Watch
from fedstrata.runs.training import begin, resume

PATIENCE = 10.0  # seconds that a process has to put its things away before it is killed

ENDS = ("finished", "failed", "pruned")

Tell = Callable[[Cell, Mapping[str, Any]], None]  # the events of a cell's run, then one of `ENDS`


class Pruned(Exception):  # noqa: N818 - not an error
    """Whoever is told of a round may raise it: the cell goes no further, and the others go on."""


class CellRunner:
    """Runs cells; those of a seed share their data."""

    def __init__(self, federation: Federation | None, model: nn.Module | None):
        self._given, self._model = federation, model
        self._last: tuple[Any, Federation] | None = None

    def run(self, path: Path, experiment: Experiment, watch: Watch, alike: int = 1) -> dict[str, Any]:
        """Run a cell from where it stands, and give its last event; `alike` are all of its method that are run here."""
        try:
            with keeping_to(1), expecting(alike):
                data = self._data(experiment)
                if (path / "experiment.toml").exists():
                    run = resume(path, federation=data, model=self._model, watch=watch, progress=False)
                else:
                    run = begin(experiment, data, self._model, path, watch)
            return {"event": "finished", "summary": run.summary}
        except Pruned:
            return {"event": "pruned"}
        except FedstrataError as error:
            return {"event": "failed", "why": str(error)}
        except Exception:
            return {"event": "failed", "why": traceback.format_exc()}

    def _data(self, experiment: Experiment) -> Federation:
        if self._given is not None:
            return self._given
        asked = experiment.data, experiment.train.seed
        if self._last is None or self._last[0] != asked:
            self._last = asked, build_federation(experiment)
        return self._last[1]


def in_turn(
    cells: Sequence[Cell],
    federation: Federation | None,
    model: nn.Module | None,
    tell: Tell,
    may_begin: Callable[[Cell], bool],
) -> bool:
    """Run cells one after another, as long as another may begin; say whether all were run."""
    runner = CellRunner(federation, model)
    left, alike = list(cells), count_alike(cells, 1)
    while (cell := take_next(left, may_begin)) is not None:
        tell(cell, runner.run(cell.path, cell.experiment, partial(tell, cell), alike[cell.path]))
    return not left


def count_alike(cells: Sequence[Cell], jobs: int) -> dict[Path, int]:
    """Return of every cell how many with its method and network each of so many processes runs: their step is one."""
    of = {cell.path: (cell.method, str(cell.experiment.model)) for cell in cells}
    number = Counter(of.values())
    return {path: ceil(number[step] / jobs) for path, step in of.items()}


def take_next(left: list[Cell], may_begin: Callable[[Cell], bool]) -> Cell | None:
    """Take the first cell that may begin: where a long one would not end in time, a shorter one after it may."""
    at = next((at for at, cell in enumerate(left) if may_begin(cell)), None)
    return None if at is None else left.pop(at)


@dataclass
class CellWorker:
    """A process that runs cells, the line to it, and what it has in hand."""

    process: subprocess.Popen[bytes]
    line: Connection
    cell: Cell | None = None


def side_by_side(
    cells: Sequence[Cell],
    federation: Federation | None,
    model: nn.Module | None,
    tell: Tell,
    jobs: int,
    may_begin: Callable[[Cell], bool],
    time_left: Callable[[], float | None] = lambda: None,
) -> bool:
    """Run so many cells at a time, in order, as long as another may begin; say whether all were run.

    A process that dies takes only its own cell with it. When no time is left, those at work are ended, in the middle of
    a round too: what they did since their last checkpoint is run again the next time.
    """
    hello = pickle.dumps((federation, model))
    on_gpu = any(uses_gpu(cell.experiment.engine.device) for cell in cells)
    with ExitStack() as stack:
        environment = stack.enter_context(sharing_gpu(jobs)) if on_gpu else {}
        return _share_out(cells, tell, jobs, partial(_started, hello, environment), may_begin, time_left)


def _share_out(
    cells: Sequence[Cell],
    tell: Tell,
    jobs: int,
    start: Callable[[], CellWorker],
    may_begin: Callable[[Cell], bool],
    time_left: Callable[[], float | None],
) -> bool:
    left, workers, alike = list(cells), list[CellWorker](), count_alike(cells, jobs)
    try:
        while any(map(may_begin, left)) or any(worker.cell for worker in workers):
            while left and len(workers) < jobs:
                workers.append(start())
            for worker in workers:
                if worker.cell is None and (cell := take_next(left, may_begin)) is not None:
                    worker.cell = cell
                    with suppress(ConnectionError):  # it is dead, as will be noticed below
                        worker.line.send((cell.path, _on_one_worker(cell.experiment), cell.prunable, alike[cell.path]))
            ready = wait([worker.line for worker in workers if worker.cell is not None], time_left())
            if not ready:  # the time is up
                return False
            for worker in [worker for worker in workers if worker.line in ready]:
                assert worker.cell is not None
                try:
                    event = worker.line.recv()
                except (EOFError, ConnectionError):
                    workers.remove(worker)
                    code = worker.process.wait()
                    event = {"event": "failed", "why": f"its process ended unexpectedly with exit code {code}"}
                cell = worker.cell
                if event["event"] in ENDS:
                    worker.cell = None
                go_on = _goes_on(tell, cell, event)
                if cell.prunable and event["event"] == "round":
                    with suppress(ConnectionError):
                        worker.line.send(go_on)  # it waits for that
        return not left
    finally:
        _end(workers)


def _goes_on(tell: Tell, cell: Cell, event: Mapping[str, Any]) -> bool:
    try:
        tell(cell, event)
    except Pruned:
        return False
    return True


def why_not(cells: Sequence[Cell], federation: Federation | None, model: nn.Module | None) -> str | None:
    """Say why these cells cannot be run in other processes, or None."""
    if reason := why_no_workers():
        return reason
    sent = federation, model, [cell.experiment for cell in cells]
    return why_unsendable(sent, "the data or the model", "a part or the model")


def _on_one_worker(experiment: Experiment) -> Experiment:
    """Let a cell that has neighbours use one core, unless the experiment says how many workers it wants."""
    if uses_gpu(experiment.engine.device):  # whose workers are no processes
        return experiment
    workers = 1 if experiment.engine.workers == "auto" else experiment.engine.workers
    return experiment.model_copy(update={"engine": experiment.engine.model_copy(update={"workers": workers})})


def _started(hello: bytes, environment: Mapping[str, str]) -> CellWorker:
    process, line = start_child("fedstrata.runs.compare.worker", environment={"OMP_NUM_THREADS": "1", **environment})
    line.send(sys.path)
    line.send_bytes(hello)
    return CellWorker(process, line)


def _end(workers: Sequence[CellWorker]) -> None:
    """End processes: politely at first, for a cell may have processes of its own to put away."""
    for worker in workers:
        worker.line.close()  # which is enough for one that waits
        if worker.cell is not None:
            worker.process.terminate()
    for worker in workers:
        wait_or_kill(worker.process, PATIENCE)
