"""Progress of a comparison: a live table on a terminal or in a notebook; else, from the command line, a line a cell."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from fedstrata.runs.compare.grid import titled, write_value
from fedstrata.runs.compare.pool import ENDS, Tell
from fedstrata.runs.progress import Reporter, remarked
from fedstrata.runs.screen import is_watched, open_screen

if TYPE_CHECKING:
    from fedstrata.runs.compare import Comparison
    from fedstrata.runs.compare.cells import Cell
    from fedstrata.runs.metrics import Metric

PATIENCE = 30.0  # seconds without a line after which one says what is going on


class Watcher:
    """Follows the cells of a comparison; this one shows nothing."""

    def __init__(self, comparison: Comparison):
        self.comparison, self.metric = comparison, comparison.metrics[0]
        self.at_work: dict[Path, tuple[Cell, int, int]] = {}  # rounds done and wanted
        self.value: dict[Path, float] = {}  # the metric of each cell, as far as it is known
        self.best: tuple[float, Cell] | None = None  # so far, of the runs that are compared
        self.trials = 0  # that ended
        self._scored: dict[Path, list[dict[str, Any]]] = {}  # evaluations of the cells at work
        for cell in comparison.cells:
            if cell.state == "finished":
                self._take(cell, cell.outcome([self.metric])[self.metric.name])
        self.began, self.at_first = time.monotonic(), self.ended()

    def __call__(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Take note of an event, and show what it changes."""
        if Reporter.asked_to_stop:
            raise KeyboardInterrupt
        at, kind = cell.path, event["event"]
        if kind == "begin":
            self.at_work[at], self._scored[at] = (cell, event["round"], event["rounds"]), []
        elif kind == "round":
            self.at_work[at] = cell, event["round"], self.at_work[at][2]
            if "accuracy" in event:
                self._scored[at].append({key: value for key, value in event.items() if isinstance(value, int | float)})
                self._take(cell, self.metric.so_far(self._scored[at]))
        elif kind in ENDS:
            self.at_work.pop(at, None)
            self._scored.pop(at, None)
            self.trials += cell.trial
            if kind == "finished":
                self._take(cell, cell.outcome([self.metric])[self.metric.name])
        self.show(cell, event)

    def _take(self, cell: Cell, value: float | None) -> None:
        """Take note of what a cell has reached; trials are scored on other samples, and are no best of anything."""
        if value is None or not math.isfinite(value):
            return
        self.value[cell.path] = value
        better = self.best is None or (value < self.best[0] if self.metric.lower else value > self.best[0])
        if better and not cell.trial:
            self.best = value, cell

    def leader(self) -> str:
        """Say which run has shown the best value so far."""
        if self.best is None:
            return ""
        value, cell = self.best
        return f"best {titled(self.metric.name)} so far {written(self.metric, value)}: {cell.name}"

    def show(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Show an event."""

    def close(self) -> None:
        """Leave the terminal as it was."""

    def ended(self) -> int:
        """Return how many cells need no more work."""
        return sum(cell.state in ("finished", "failed") for cell in self.comparison.cells)

    def left(self) -> str:
        """Guess how long the rest takes, from how long cells took so far."""
        ended = self.ended()
        if ended <= self.at_first:
            return ""
        took = (time.monotonic() - self.began) / (ended - self.at_first)
        return f", {took * (len(self.comparison.cells) - ended):.0f} s left"

    def progress(self) -> str:
        """Say how far all is."""
        tuned = f"{self.trials} trials of tuning, " if self.trials else ""
        return f"{tuned}{self.ended()}/{len(self.comparison.cells)} runs"


class LiveLines(Watcher):
    """A plain line for each cell that ends, and now and then one about those at work."""

    def __init__(self, comparison: Comparison):
        super().__init__(comparison)
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)
        self._last = time.monotonic()
        if self.at_first:
            self._print(f"{self.at_first} of {len(comparison.cells)} runs were finished already")

    def show(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Show an event."""
        at = f"tuning {self.trials}" if cell.trial else f"{self.ended()}/{len(self.comparison.cells)}"
        if event["event"] == "finished":
            known = self.value.get(cell.path)
            value = "not reached" if known is None else written(self.metric, known)
            said = f"{titled(self.metric.name)} {value} after {event['summary']['rounds']} rounds"
            leads = "" if cell.trial or self.best is None or self.best[1] is not cell else ", the best so far"
            self._print(f"{at} {cell.name}: {said}{leads}{'' if cell.trial else self.left()}")
        elif event["event"] == "pruned":
            self._print(f"{at} {cell.name}: stays behind, pruned")
        elif event["event"] == "failed":
            self._print(f"{at} {cell.name}: failed: {event['why'].strip().splitlines()[-1]}")
        elif (said := remarked(event) or "") and event["event"] != "round":
            self._print(f"{cell.name}: {said}")
        elif time.monotonic() - self._last > PATIENCE:
            now = [f"{cell.name}: round {a}/{b}" for cell, a, b in self.at_work.values()]
            self._print(f"{self.progress()} done; {'; '.join(now)}{self.left()}")

    def _print(self, line: str) -> None:
        self._last = time.monotonic()
        self._console.print(line, markup=False)


class LiveTable(Watcher):
    """A live table: a line a method, with its cells by state, and the metric so far: the mean and the best."""

    def __init__(self, comparison: Comparison, console: Console):
        super().__init__(comparison)
        self._screen = open_screen(console, self.table)
        self._screen.start()

    def show(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Show an event; the table draws itself."""
        if event["event"] == "failed":
            self._screen.say(f"{cell.name} failed: {event['why'].strip().splitlines()[-1]}")
        elif (said := remarked(event)) is not None:
            self._screen.say(f"{cell.name}: {said}")
        self._screen.refresh()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._screen.stop()

    def table(self) -> Table:
        """Draw what is known now."""
        table = Table(box=None, header_style="bold", pad_edge=False, caption=self._caption(), caption_justify="left")
        table.add_column("method", no_wrap=True)
        for title in ("done", "running", "left", "failed", titled(self.metric.name), "best so far"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("now", no_wrap=True)
        for entry in self.comparison.entries:
            cells = [cell for cell in self.comparison.cells if cell.method == entry.name]
            counts = {state: sum(cell.state == state for cell in cells) for state in ("finished", "running", "failed")}
            waiting = len(cells) - sum(counts.values())
            numbers = [str(n or "") for n in (counts["finished"], counts["running"], waiting, counts["failed"])]
            leads = self.best is not None and self.best[1].method == entry.name
            figures = self._mean(cells), self._best(cells)
            table.add_row(entry.name, *numbers, *figures, self._now(entry.name), style="bold" if leads else None)
        return table

    def _mean(self, cells: Sequence[Cell]) -> str:
        """Return the mean of the finished cells, or that of the running ones in brackets."""
        known = [cell for cell in cells if cell.path in self.value]
        done = [self.value[cell.path] for cell in known if cell.state == "finished"]
        now = done or [self.value[cell.path] for cell in known]
        mean = written(self.metric, sum(now) / len(now)) if now else ""
        return mean if done or not now else f"({mean})"

    def _best(self, cells: Sequence[Cell]) -> str:
        known = [self.value[cell.path] for cell in cells if cell.path in self.value]
        return written(self.metric, (min if self.metric.lower else max)(known)) if known else ""

    def _now(self, method: str) -> str:
        own = [
            (cell.name.partition(f"{method}, ")[2], a, b)
            for cell, a, b in self.at_work.values()
            if cell.method == method
        ]
        return "  ".join(f"{name}: {a}/{b}" for name, a, b in own)

    def _caption(self) -> str:
        return "; ".join(filter(None, (f"{self.progress()}{self.left()}", self.leader())))


def written(metric: Metric, value: float) -> str:
    """Write a value of a metric; shares with a unit, because nothing beside them says so."""
    return f"{write_value(metric.name, value)}{'' if metric.lower else ' %'}"


def watcher(quiet: bool, comparison: Comparison) -> Watcher:
    """Choose how to show progress."""
    console = Console(stderr=True)
    if quiet:
        return Watcher(comparison)
    return LiveTable(comparison, console) if is_watched(console) else LiveLines(comparison)


@contextmanager
def showing(progress: bool, comparison: Comparison, watch: Tell | None) -> Iterator[Tell]:
    """Show a comparison that was started from Python where somebody sees it."""
    console = Console(stderr=True)
    if not (progress and is_watched(console)):
        yield watch or (lambda *_: None)
        return
    shown = LiveTable(comparison, console)

    def both(cell: Cell, event: Mapping[str, Any]) -> None:
        shown(cell, event)
        if watch is not None:
            watch(cell, event)

    try:
        yield both
    finally:
        shown.close()
