"""Progress of a comparison on standard error: a live table on a terminal, a line a cell elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from fedstrata.cli.progress import Reporter, remarked

if TYPE_CHECKING:
    from fedstrata.runs.compare import Comparison
    from fedstrata.runs.compare.cells import Cell

PATIENCE = 30.0  # seconds without a line after which one says what is being played


class Watcher:
    """Follows the cells of a comparison; this one shows nothing."""

    def __init__(self, comparison: Comparison):
        self.comparison = comparison
        self.rounds: dict[tuple[str, str, int], tuple[int, int]] = {}  # played and wanted, of the cells at work
        there = [cell for cell in comparison.cells if cell.state == "finished"]
        self.accuracy = {cell.key: float(cell.run.summary["accuracy"]) for cell in there}
        self.began, self.at_first = time.monotonic(), len(self.accuracy)

    def __call__(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Take note of an event, and show what it changes."""
        if Reporter.asked_to_stop:
            raise KeyboardInterrupt
        key, kind = cell.key, event["event"]
        if kind == "begin":
            self.rounds[key] = event["round"], event["rounds"]
        elif kind == "round":
            self.rounds[key] = event["round"], self.rounds[key][1]
            self.accuracy[key] = event.get("accuracy", self.accuracy.get(key, float("nan")))
        elif kind in ("finished", "failed"):
            self.rounds.pop(key, None)
            if kind == "finished":
                self.accuracy[key] = event["summary"]["accuracy"]
        self.show(cell, event)

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
        at = f"{self.ended()}/{len(self.comparison.cells)}"
        if event["event"] == "finished":
            done = event["summary"]
            said = f"accuracy {done['accuracy']:.4f} after {done['rounds']} rounds"
            self._print(f"{at} {cell.name}: {said}{self.left()}")
        elif event["event"] == "failed":
            self._print(f"{at} {cell.name}: failed: {event['why'].strip().splitlines()[-1]}")
        elif (said := remarked(event) or "") and event["event"] != "round":
            self._print(f"{cell.name}: {said}")
        elif time.monotonic() - self._last > PATIENCE:
            names = {cell.key: cell.name for cell in self.comparison.cells}
            at_work = [f"{names[key]}: round {a}/{b}" for key, (a, b) in self.rounds.items()]
            self._print(f"{at} done; {'; '.join(at_work)}{self.left()}")

    def _print(self, line: str) -> None:
        self._last = time.monotonic()
        self._console.print(line, markup=False)


class LiveTable(Watcher):
    """A live table: a line a method, with its cells by state and the accuracies so far."""

    def __init__(self, comparison: Comparison, console: Console):
        super().__init__(comparison)
        self._live = Live(get_renderable=self.table, console=console, refresh_per_second=4)
        self._live.start()

    def show(self, cell: Cell, event: Mapping[str, Any]) -> None:
        """Show an event; the table draws itself."""
        if event["event"] == "failed":
            self._live.console.print(f"{cell.name} failed: {event['why'].strip().splitlines()[-1]}", markup=False)
        elif (said := remarked(event)) is not None:
            self._live.console.print(f"{cell.name}: {said}", markup=False)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._live.stop()

    def table(self) -> Table:
        """Draw what is known now."""
        table = Table(box=None, header_style="bold", pad_edge=False, caption=self._caption(), caption_justify="left")
        table.add_column("method", no_wrap=True)
        for title in ("done", "running", "left", "failed", "accuracy"):
            table.add_column(title, justify="right", no_wrap=True)
        table.add_column("now", no_wrap=True)
        for entry in self.comparison.entries:
            cells = [cell for cell in self.comparison.cells if cell.method == entry.name]
            counts = {state: sum(cell.state == state for cell in cells) for state in ("finished", "running", "failed")}
            waiting = len(cells) - sum(counts.values())
            numbers = counts["finished"], counts["running"], waiting, counts["failed"]
            table.add_row(entry.name, *(str(n or "") for n in numbers), self._mean(cells), self._now(cells))
        return table

    def _mean(self, cells: Sequence[Cell]) -> str:
        """Return the mean of the finished cells, or that of the running ones in brackets."""
        done = [self.accuracy[c.key] for c in cells if c.state == "finished"]
        if done:
            return f"{sum(done) / len(done):.4f}"
        now = [self.accuracy[c.key] for c in cells if c.key in self.accuracy]
        return f"({sum(now) / len(now):.4f})" if now else ""

    def _now(self, cells: Sequence[Cell]) -> str:
        at_work = [(cell, self.rounds.get(cell.key)) for cell in cells]
        return "  ".join(
            f"{f'{cell.condition}, ' if cell.condition else ''}seed {cell.seed}: {now[0]}/{now[1]}"
            for cell, now in at_work
            if now is not None
        )

    def _caption(self) -> str:
        return f"{self.ended()}/{len(self.comparison.cells)} runs{self.left()}"


def watcher(quiet: bool, comparison: Comparison) -> Watcher:
    """Choose how to show progress."""
    console = Console(stderr=True)
    if quiet:
        return Watcher(comparison)
    return LiveTable(comparison, console) if console.is_terminal else LiveLines(comparison)
