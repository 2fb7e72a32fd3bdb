"""Progress of a run: a live table on a terminal or in a notebook; from the command line, plain lines elsewhere."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedstrata.core.events import FAULTS, describe_choice, describe_fault
from fedstrata.runs.amounts import write_share
from fedstrata.runs.journal import Watch
from fedstrata.runs.screen import is_watched, open_screen

LINES = 10  # plain progress lines in a whole run
PATIENCE = 10.0  # seconds after which there is one in any case
# faults that a user knows of already, or that come every round
EXPECTED = ("resumed", "fewer_clients", "samples_bounded")
ROWS = 8  # evaluations that the live table keeps
COLUMNS = {  # short enough for a terminal of 80 columns
    "round": ("round", "{:d}"),
    "accuracy": ("accuracy", "%"),
    "balanced_accuracy": ("balanced", "%"),
    "worst10": ("worst10", "%"),
    "loss_test": ("loss", "{:.3f}"),
    "loss_train": ("training", "{:.3f}"),
    "client_updates": ("updates", "{:d}"),
    "bytes": ("MB", "{:.1f}"),
    "time": ("time", "{:.1f}"),
}


class Reporter:
    """Shows the events of a run as they come; this one shows nothing."""

    run_dir: str | None = None  # once the run has begun
    asked_to_stop: ClassVar[bool] = False  # by a signal, whose exception a library's callback may have swallowed

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show an event."""
        if Reporter.asked_to_stop:
            raise KeyboardInterrupt
        if event["event"] == "begin":
            self.run_dir = event["run_dir"]

    def close(self) -> None:
        """Leave the terminal as it was."""


def reporter(quiet: bool) -> Reporter:
    """Choose how to show progress."""
    console = Console(stderr=True)
    if quiet:
        return Reporter()
    return Figures(console) if is_watched(console) else ProgressLines()


@contextmanager
def showing(progress: bool, watch: Watch | None) -> Iterator[Watch]:
    """Show a run that was started from Python where somebody sees it; scripts without a terminal stay silent."""
    console = Console(stderr=True)
    shown = Figures(console) if progress and is_watched(console) else Reporter()

    def both(event: Mapping[str, Any]) -> object:
        shown(event)
        return None if watch is None else watch(event)

    try:
        yield both
    finally:
        shown.close()


class Figures(Reporter):
    """A live table: how far the run is, and the figures of the last evaluations."""

    def __init__(self, console: Console):
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeRemainingColumn(),
            console=console,
        )
        self._task = self._bar.add_task("", said="", total=None)
        self._scored: deque[Mapping[str, Any]] = deque(maxlen=ROWS)
        self._screen = open_screen(console, self._drawn)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show an event."""
        super().__call__(event)
        if event["event"] == "begin":
            self._screen.start()
            self._bar.reset(
                self._task,
                total=event["rounds"],
                completed=event["round"],
                description=event["method"],
            )
        elif event["event"] == "round":
            if "accuracy" in event:
                megabytes = (event["bytes_up"] + event["bytes_down"] + event["bytes_p2p"]) / 1e6
                self._scored.append({**{key: event.get(key) for key in COLUMNS}, "bytes": megabytes})
            self._bar.update(self._task, completed=event["round"], said=_clients(event))
        elif (said := describe_remark(event)) is not None:
            self._screen.say(said)
        self._screen.refresh()

    def close(self) -> None:
        """Leave the terminal as it was."""
        self._screen.stop()

    def _drawn(self) -> Group:
        table = Table(box=None, header_style="bold", pad_edge=False)
        for title, _ in COLUMNS.values():
            table.add_column(title, justify="right", no_wrap=True)
        for figures in list(self._scored):
            table.add_row(*(_cell(figures[key], said) for key, (_, said) in COLUMNS.items()))
        return Group(self._bar, table) if self._scored else Group(self._bar)


class ProgressLines(Reporter):
    """About ten plain lines a run."""

    def __init__(self) -> None:
        self._method, self._rounds, self._first = "", 1, 0
        self._began = self._last = time.monotonic()
        self._console = Console(stderr=True, soft_wrap=True, highlight=False)

    def __call__(self, event: Mapping[str, Any]) -> None:
        """Show an event."""
        super().__call__(event)
        if event["event"] == "begin":
            self._method = event["method"]
            self._rounds, self._first, self._began = event["rounds"], event["round"], time.monotonic()
        elif event["event"] == "round":
            done = event["round"]
            waited = time.monotonic() - self._last
            if done % max(self._rounds // LINES, 1) == 0 or done == self._rounds or waited > PATIENCE:
                self._last = time.monotonic()
                left = (time.monotonic() - self._began) / max(done - self._first, 1) * (self._rounds - done)
                accuracy = f"accuracy {write_share(event['accuracy'])} %  " if "accuracy" in event else ""
                self._print(
                    f"{self._method}: round {done}/{self._rounds}  {accuracy}{_clients(event)}  {left:.0f} s left"
                )
        elif (said := describe_remark(event)) is not None:
            self._print(f"{self._method}: {said}")

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False)


def describe_remark(event: Mapping[str, Any]) -> str | None:
    """Put an event that is not progress into words; None for those nobody waits for."""
    kind = event["event"]
    if kind == "engine":
        remark: str | None = event["wall"]["remark"]
        return remark
    if kind == "tracked":
        return f"{event['what']}: {event['where']}"
    if kind == "choice":
        return describe_choice(event)
    if kind not in FAULTS or kind in EXPECTED or event.get("why") == "late":
        return None
    fault = describe_fault(event)
    at = "" if fault.round is None else f"round {fault.round}: "
    who = f" (clients {', '.join(map(str, fault.clients))})" if fault.clients else ""
    return f"{at}{FAULTS[kind]}: {fault.why}{who}"


def _cell(value: Any, how: str) -> str:
    if value is None:
        return "-"
    return f"{write_share(value)} %" if how == "%" else how.format(value)


def _clients(event: Mapping[str, Any]) -> str:
    taught = {client for s in event["steps"] if s["kind"] in ("train", "gradient") for client in s["clients"]}
    return f"{len(taught)} clients"
