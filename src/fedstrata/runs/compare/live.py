"""Progress of a comparison: a live table on a terminal or in a notebook; else, from the command line, a line a cell."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console
from rich.table import Table

from fedstrata.runs.compare.grid import title_of, write_value
from fedstrata.runs.compare.pool import ENDS, Tell
from fedstrata.runs.progress import Reporter, describe_remark
from fedstrata.runs.screen import is_watched, open_screen

if TYPE_CHECKING:
    from fedstrata.runs.compare import Comparison
    from fedstrata.runs.compare.cells import Cell
    from fedstrata.runs.metrics import Criterion

PATIENCE = 30.0  # seconds without a line after which one says what is going on
FEW = 3  # conditions whose leaders are named one by one


class Leader(NamedTuple):
    """The row that is the best of a condition so far."""

    method: str
    mean: float
    seeds: int  # over which all rows of the condition are compared


class Watcher:
    """Follows the cells of a comparison; this one shows nothing."""

    def __init__(self, comparison: Comparison):
        self.comparison, self.metric = comparison, comparison.metrics[0]
        self.at_work: dict[Path, tuple[Cell, int, int]] = {}  # rounds done and wanted
        self.value: dict[Path, float] = {}  # the metric of each cell, as far as it is known
        self.final: dict[Path, float] = {}  # the same of finished cells, infinite where a target was never reached
        self.trials = 0  # that ended
        self._timed = False  # whether a cell that is no trial has begun since
        self._chosen: set[tuple[str, ...]] = set()  # choices that were told
        self._scored: dict[Path, list[dict[str, Any]]] = {}  # evaluations of the cells at work
        for cell in comparison.cells:
            if cell.state == "finished":
                self._conclude(cell)
        self._start_clock()

    def __call__(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Take note of an event, and show what it changes."""
        if Reporter.asked_to_stop:
            raise KeyboardInterrupt
        at, kind = cell.path, event["event"]
        if kind == "begin":
            self.at_work[at], self._scored[at] = (cell, event["round"], event["rounds"]), []
            if not (cell.trial or self._timed):  # how long trials took says nothing about what is left after them
                self._timed = True
                self._start_clock()
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
                self._conclude(cell)
        self.show(cell, event)

    def _start_clock(self) -> None:
        self.began, self.at_first = time.monotonic(), self.ended()

    def _take(self, cell: Cell, value: float | None) -> None:
        """Take note of what a cell has reached so far."""
        if value is not None and math.isfinite(value):
            self.value[cell.path] = value

    def _conclude(self, cell: Cell) -> None:
        """Take note of what a cell came to."""
        value = cell.outcome([self.metric])[self.metric.name]
        self._take(cell, value)
        if value is not None and not math.isnan(value):
            self.final[cell.path] = value

    def leaders(self) -> dict[str, Leader]:
        """Return the row that leads under each condition: by means over the seeds that all its rows have finished.

        Trials are scored on other samples, and are not among them. A row alone leads nobody.
        """
        found = {}
        for condition in self.comparison.conditions:
            rows = self._finished(condition.name)
            shared = set.intersection(*map(set, rows.values())) if len(rows) > 1 else set()
            means = {name: sum(own[seed] for seed in shared) / len(shared) for name, own in rows.items() if shared}
            if means and math.isfinite(best := (min if self.metric.lower else max)(means.values())):
                found[condition.name] = Leader(next(n for n, mean in means.items() if mean == best), best, len(shared))
        return found

    def _finished(self, condition: str) -> dict[str, dict[int, float]]:
        """Return what the finished cells of a condition came to, by row and seed."""
        rows: dict[str, dict[int, float]] = {}
        for cell in self.comparison.cells:
            if cell.condition == condition and cell.path in self.final:
                rows.setdefault(cell.method, {})[cell.seed] = self.final[cell.path]
        return rows

    def leader(self) -> str:
        """Say which rows lead so far."""
        led, best = self.leaders(), f"best {title_of(self.metric.name)} so far"
        if not led:
            return ""
        if len(self.comparison.conditions) == 1:
            (only,) = led.values()
            seeds = f" (mean of {only.seeds} seeds)" if only.seeds > 1 else ""
            return f"{best}: {only.method} {write_metric(self.metric, only.mean)}{seeds}"
        if len(led) <= FEW:
            named = (f"{name}: {one.method} {write_metric(self.metric, one.mean)}" for name, one in led.items())
            return f"{best} under {', '.join(named)}"
        wins = Counter(one.method for one in led.values()).most_common()
        return f"{best} under {len(led)} conditions: {', '.join(f'{method} {count}' for method, count in wins)}"

    def remark(self, cell: Cell, event: Mapping[str, Any]) -> str:
        """Put an event that is not progress into words; what a recipe chose, once a row and condition.

        Its reasons are nearly the same with every seed and setting; where another part is chosen, that is told.
        """
        if event["event"] == "choice":
            used = event["used"] if isinstance(event["used"], list) else [event["used"]]
            choice = cell.condition, cell.method, event["stage"], *(str(part["kind"]) for part in used)
            if choice in self._chosen:
                return ""
            self._chosen.add(choice)
        return describe_remark(event) or ""

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
            value = "not reached" if known is None else write_metric(self.metric, known)
            said = f"{title_of(self.metric.name)} {value} after {event['summary']['rounds']} rounds"
            more = "" if cell.trial else f"{self._praise(cell)}{self.left()}"
            self._print(f"{at} {cell.name}: {said}{more}")
        elif event["event"] == "pruned":
            self._print(f"{at} {cell.name}: stays behind, pruned")
        elif event["event"] == "failed":
            self._print(f"{at} {cell.name}: failed: {event['why'].strip().splitlines()[-1]}")
        elif (said := self.remark(cell, event)) and event["event"] != "round":
            self._print(f"{cell.name}: {said}")
        elif time.monotonic() - self._last > PATIENCE:
            now = [f"{cell.name}: round {a}/{b}" for cell, a, b in self.at_work.values()]
            self._print(f"{self.progress()} done; {'; '.join(now)}{self.left()}")

    def _praise(self, cell: Cell) -> str:
        """Say that a cell is the best so far of those that it can be compared with."""
        rows = self._finished(cell.condition)
        others = [own[cell.seed] for name, own in rows.items() if name != cell.method and cell.seed in own]
        value = self.final.get(cell.path)
        if value is None or not others or not (value < min(others) if self.metric.lower else value > max(others)):
            return ""
        among = ["condition"] * (len(self.comparison.conditions) > 1) + ["seed"] * (len(self.comparison.seeds) > 1)
        return f", the best so far{' of this ' * bool(among)}{' and '.join(among)}"

    def _print(self, line: str) -> None:
        self._last = time.monotonic()
        self._console.print(line, markup=False)


class LiveTable(Watcher):
    """A live table: a line a method, with its cells by state, the metric so far, and how many conditions it leads."""

    def __init__(self, comparison: Comparison, console: Console):
        super().__init__(comparison)
        self._screen = open_screen(console, self.table)
        self._screen.start()

    def show(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Show an event; the table draws itself."""
        if event["event"] == "failed":
            self._screen.say(f"{cell.name} failed: {event['why'].strip().splitlines()[-1]}")
        elif said := self.remark(cell, event):
            self._screen.say(f"{cell.name}: {said}")
        self._screen.refresh()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._screen.stop()

    def table(self) -> Table:
        """Draw what is known now."""
        table = Table(box=None, header_style="bold", pad_edge=False, caption=self._caption(), caption_justify="left")
        table.add_column("method", no_wrap=True)
        several = ["leads"] * (len(self.comparison.conditions) > 1)
        for title in ("done", "running", "left", "failed", title_of(self.metric.name), *several):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("now", no_wrap=True)
        wins, shared = Counter(leader.method for leader in self.leaders().values()), self._shared()
        for entry in self.comparison.entries:
            cells = [cell for cell in self.comparison.cells if cell.method == entry.name]
            counts = {state: sum(cell.state == state for cell in cells) for state in ("finished", "running", "failed")}
            waiting = len(cells) - sum(counts.values())
            numbers = [str(n or "") for n in (counts["finished"], counts["running"], waiting, counts["failed"])]
            led = [str(wins[entry.name] or "") for _ in several]
            figures = self._mean(cells, shared), *led
            bold = "bold" if wins[entry.name] else None
            table.add_row(entry.name, *numbers, *figures, self._now(entry.name), style=bold)
        return table

    def _shared(self) -> set[tuple[str, int]]:
        """Return conditions and seeds under which every row that has finished anything has finished."""
        places: dict[str, set[tuple[str, int]]] = {}
        for cell in self.comparison.cells:
            if cell.path in self.value and cell.state == "finished":
                places.setdefault(cell.method, set()).add((cell.condition, cell.seed))
        return set.intersection(*places.values()) if places else set()

    def _mean(self, cells: Sequence[Cell], shared: set[tuple[str, int]]) -> str:
        """Return the mean of what all rows have finished; in brackets one that cannot be compared with others."""
        known = [cell for cell in cells if cell.path in self.value]
        ended = [cell for cell in known if cell.state == "finished" and (cell.condition, cell.seed) in shared]
        done = [self.value[cell.path] for cell in ended]
        now = done or [self.value[cell.path] for cell in known]
        mean = write_metric(self.metric, sum(now) / len(now)) if now else ""
        return mean if done or not now else f"({mean})"

    def _now(self, method: str) -> str:
        own = [
            (cell.name.partition(f"{method}, ")[2], a, b)
            for cell, a, b in self.at_work.values()
            if cell.method == method
        ]
        return "  ".join(f"{name}: {a}/{b}" for name, a, b in own)

    def _caption(self) -> str:
        return "; ".join(filter(None, (f"{self.progress()}{self.left()}", self.leader())))


def write_metric(metric: Criterion, value: float) -> str:
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
