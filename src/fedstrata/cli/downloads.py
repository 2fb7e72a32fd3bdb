"""Progress of a download on standard error: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

QUARTERS = 4  # plain lines a file


class DownloadLines:
    """A few plain lines a file. Has what pooch wants of a tqdm bar."""

    def __init__(self, say: Callable[[str], None]):
        self._say, self._total, self._done, self._told = say, 0, 0, 0

    @property
    def total(self) -> int:
        """Bytes to come; setting it begins a file. 0 if the server does not say."""
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total, self._done, self._told = size, 0, 0

    def update(self, size: int) -> None:
        """Count bytes that have come."""
        self._done = min(self._done + size, self._total)
        quarter = QUARTERS * self._done // self._total if self._total else 0
        if quarter > self._told:
            self._told = quarter
            self._say(f"  {100 * quarter // QUARTERS} % of {self._total / 1e6:.1f} MB")

    def reset(self) -> None:
        """Count anew; what was told stays told."""
        self._done = 0

    def close(self) -> None:
        """End a file."""


class Bar:
    """A live bar a file. Has what pooch wants of a tqdm bar."""

    def __init__(self, progress: Progress):
        self._progress, self._task, self._total = progress, TaskID(0), 0

    @property
    def total(self) -> int:
        """Bytes to come; setting it begins a file. 0 if the server does not say."""
        return self._total

    @total.setter
    def total(self, size: int) -> None:
        self._total = size
        self._task = self._progress.add_task("", total=size or None)

    def update(self, size: int) -> None:
        """Count bytes that have come."""
        self._progress.advance(self._task, size)

    def reset(self) -> None:
        """Count anew."""
        self._progress.update(self._task, completed=0)

    def close(self) -> None:
        """End a file."""
        self._progress.remove_task(self._task)


@contextmanager
def shown(quiet: bool, console: Console | None = None) -> Iterator[tuple[Callable[[str], None], Any]]:
    """Return a function that says a line, and a bar for pooch (False: none)."""
    console = console or Console(stderr=True, soft_wrap=True, highlight=False)
    if quiet:
        yield (lambda _: None), False
    elif console.is_terminal:
        columns = (TextColumn("  "), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield (lambda line: console.print(line, markup=False)), Bar(progress)
    else:
        yield (say := lambda line: console.print(line, markup=False)), DownloadLines(say)
