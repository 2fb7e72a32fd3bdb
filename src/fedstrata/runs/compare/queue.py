"""Cells as a queue: how many are run at a time, and until when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from time import monotonic
from typing import Any

from torch import nn

from fedstrata.core.errors import RequestError
from fedstrata.core.machine.threads import cores
from fedstrata.data.federation import Federation
from fedstrata.engines.local.gpu import NEIGHBOURS, uses_gpu
from fedstrata.runs.compare.cells import Cell
from fedstrata.runs.compare.gpu_sharing import can_share
from fedstrata.runs.compare.pool import ENDS, Tell, in_turn, side_by_side, why_not
from fedstrata.runs.compare.ray_cells import LOCAL, on_cluster

WORTH_PROCESSES = 20.0  # seconds of work, by guess, below which starting processes takes longer than it saves


class TimeIsUp(KeyboardInterrupt):
    """Ends what is going on as Ctrl-C does: between rounds, with everything kept."""


def choose_jobs(
    cells: Sequence[Cell], federation: Federation | None, model: nn.Module | None, asked: int | None
) -> tuple[int, str | None]:
    """Return how many cells are run at a time, and what the user should know about it."""
    check_jobs(asked)
    if asked == 1 or len(cells) < 2:
        return 1, None
    reason = why_not(cells, federation, model)
    if reason is not None and asked is not None:
        raise RequestError(f"jobs = {asked}: {reason}; use 1")
    if asked is not None:
        return min(asked, len(cells)), None
    engine = cells[0].experiment.engine
    if engine.kind == "ray":  # whose workers take the whole cluster
        return 1, None
    if uses_gpu(engine.device):
        return (NEIGHBOURS if can_share() and reason is None and len(cells) > NEIGHBOURS else 1), None
    if sum(cell.guess for cell in cells) < WORTH_PROCESSES:
        return 1, None
    jobs = max(min(cores() // (1 if engine.workers == "auto" else engine.workers), len(cells)), 1)
    if reason is not None and jobs > 1:
        return 1, f"cells were run one after another: {reason}"
    return jobs, None


def check_jobs(asked: int | None) -> None:
    """Refuse a number of cells at a time that is none."""
    if asked is not None and asked < 1:
        raise RequestError(f"jobs = {asked} must be at least 1")


def check_minutes(minutes: float | None) -> None:
    """Refuse a time in which nothing can be done."""
    if minutes is not None and not minutes > 0:
        raise RequestError(f"minutes = {minutes} must be above 0")


class Deadline:
    """When everything must be over: no cell is begun that would not end in time, and those at work stop by then.

    Where cells share a device, one that has it to itself is done sooner: what counts of a second is a cell's share of
    it. One cell alone does not fill a GPU, so that two are reckoned at the least.
    """

    def __init__(self, minutes: float | None):
        check_minutes(minutes)
        self._last = 0.0 if minutes is None else monotonic()
        self._end = None if minutes is None else self._last + 60 * minutes
        self._shared = False
        self._clock = 0.0  # seconds of a device that every cell at work has had, until the last look
        self._began: dict[int, float] = {}  # when, on that clock, by the cell
        self._longest = 0.0
        self._slowest = 0.0  # such seconds that a cell took for each that it was guessed to take

    def may_begin(self, cell: Cell) -> bool:
        """Say whether a cell would end in time, by those that ended."""
        expected = cell.guess * self._slowest if cell.guess else self._longest
        return self._end is None or monotonic() + expected * self._sharing(len(self._began) + 1) < self._end

    def left(self) -> float | None:
        """Return the seconds that are left; None if there is no end."""
        return None if self._end is None else max(self._end - monotonic(), 0.0)

    def watching(self, tell: Tell, shared: bool = False) -> Tell:
        """Watch the clock while events are told; raises `TimeIsUp` between rounds."""
        self._shared = shared
        if self._end is None:
            return tell
        end = self._end

        def watch(cell: Cell, event: Mapping[str, Any]) -> None:
            now, kind = monotonic(), event["event"]
            self._clock += (now - self._last) / self._sharing(len(self._began))
            self._last = now
            if kind == "begin":
                self._began[id(cell)] = self._clock
            began = self._began.pop(id(cell), None) if kind in ENDS else None
            if kind == "finished" and began is not None:
                took = self._clock - began
                self._longest = max(self._longest, took)
                self._slowest = max(self._slowest, took / cell.guess if cell.guess else 0.0)
            tell(cell, event)
            if kind == "round" and now > end:
                raise TimeIsUp

        return watch

    def _sharing(self, cells: int) -> int:
        return max(cells, 2) if self._shared else 1


def run_cells(
    cells: Sequence[Cell],
    federation: Federation | None,
    model: nn.Module | None,
    tell: Tell,
    jobs: int | None,
    deadline: Deadline,
    engine: str = LOCAL,
) -> bool:
    """Run cells, so many at a time; say whether all were run before the time was up."""
    shared = engine == LOCAL and any(uses_gpu(cell.experiment.engine.device) for cell in cells)
    watch = deadline.watching(tell, shared)
    try:
        if engine != LOCAL:
            return on_cluster(cells, federation, model, watch, engine, jobs, deadline.may_begin, deadline.left)
        assert jobs is not None
        if jobs == 1:
            return in_turn(cells, federation, model, watch, deadline.may_begin)
        return side_by_side(cells, federation, model, watch, jobs, deadline.may_begin, deadline.left)
    except TimeIsUp:
        return False
