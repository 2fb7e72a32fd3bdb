"""Figures of chosen runs, drawn again when one of them has moved on, but never for most of the time."""

from __future__ import annotations

import json
import os.path
import time
from collections.abc import Iterator, MutableMapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

from fedstrata.board.details import DetailReader, RunDetails
from fedstrata.board.index import RunIndex, Stamp, stamp
from fedstrata.core.errors import RequestError
from fedstrata.core.plain_text import plain_text
from fedstrata.report.document import figure_of
from fedstrata.report.figures.colours import SLOTS
from fedstrata.report.gather import GatheredRuns, unlike
from fedstrata.report.outcome import outcome
from fedstrata.report.page import draw, leave_out_damaged, make_title, method_filter
from fedstrata.report.run_data import RunData

MOST = SLOTS  # runs that are drawn together: more lines cannot be told apart
REST = 4  # how much longer than it took to draw a view it then rests


class RunReader:
    """One run, read as far as it has come; all views that show it share it."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        self.run_data: RunData | None = None
        self.problem = ""
        self.version = 0  # counts changes
        self._seen: tuple[Stamp, Stamp] | None = None

    def refresh(self) -> None:
        """Read what was written since. What was read of a run that is gone is kept."""
        now = stamp(self.folder / "events.jsonl"), stamp(self.folder / "summary.json")
        if now == self._seen:
            return
        anew = self.run_data is None or self._seen is None or self._seen[0] is None
        self._seen, self.problem, self.version = now, "", self.version + 1
        try:
            if now[0] is None:
                self.problem = f"{self.name} was removed" if self.run_data else f"there is no run {self.name} any more"
            elif anew:
                group = self.name.rpartition("/")[0] if self.folder.name.startswith("seed-") else ""
                self.run_data = RunData.read(self.folder, self.name, group or self.name)
            elif self.run_data is not None:
                self.run_data.refresh()
        except Exception as error:  # one run, whatever it wrote, must not hide the others
            self.problem = plain_text(f"{self.name}: {error}")


@dataclass(frozen=True)
class Drawing:
    """What a page shows of the chosen runs; figures by name, in the order of the page, as JSON.

    `methods` are the buttons that hide a method, as HTML.
    """

    title: str = ""
    outcome: str = ""
    methods: str = ""
    warnings: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()


def _shortened(runs_data: list[RunData]) -> list[RunData]:
    """Leave out the folder that all methods lie in, as those of one comparison do: it tells nothing apart."""
    groups = {run_data.group for run_data in runs_data}
    shared = os.path.commonpath([os.path.dirname(group) for group in groups]) if len(groups) > 1 else ""
    if not shared:
        return runs_data
    short = [copy(run_data) for run_data in runs_data]
    for own in short:
        own.name, own.group = (path.removeprefix(f"{shared}/") for path in (own.name, own.group))
    return short


def _drawn(gathered: GatheredRuns) -> Drawing:
    figures = []
    for shown in draw(gathered):
        about = {"section": shown.section, "title": shown.title, "said": shown.said, "methods": shown.methods}
        figure = {**about, **figure_of(shown)}
        figures.append((shown.name, json.dumps(figure, separators=(",", ":"), allow_nan=False)))
    return Drawing(make_title(gathered), outcome(gathered), method_filter(gathered), (), tuple(figures))


class BoardView:
    """The chosen runs."""

    def __init__(self, index: RunIndex, readings: MutableMapping[str, RunReader], names: Sequence[str]):
        self._names = names
        self._index, self._readings = index, readings
        self._own: dict[str, RunReader] = {}
        self._drawn: object = None  # of what `picture` is a picture
        self._due = 0.0
        self.picture = Drawing()
        self._details: dict[str, DetailReader] = {}

    def details(self) -> list[RunDetails]:
        """Return settings, costs, log and notes of the chosen runs that are there."""
        for name in self._names[:MOST]:
            if name in self._index.rows and name not in self._details:
                self._details[name] = DetailReader(self._index.folder(name), name)
        return [self._details[name].read() for name in self._names if name in self._details]

    def refresh(self) -> None:
        """Draw the runs again if they have changed, and if drawing them has not just taken long."""
        if time.monotonic() < self._due or not self._names:
            return
        for name in self._names[:MOST]:
            if name in self._index.rows and name not in self._own:
                self._own[name] = self._readings.setdefault(name, RunReader(self._index.folder(name), name))
        for reading in self._own.values():
            reading.refresh()
        now = [(name, reading.version) for name, reading in self._own.items()]
        if now != self._drawn:
            began = time.monotonic()
            self._drawn, self.picture = now, self._draw()
            self._due = time.monotonic() + REST * (time.monotonic() - began)

    def _draw(self) -> Drawing:
        runs_data = [self._own[name].run_data for name in self._names if name in self._own]
        gathered = GatheredRuns(_shortened([run_data for run_data in runs_data if run_data is not None]))
        warnings = list(self._warnings(gathered.runs_data))
        if not gathered.runs_data:
            return Drawing(warnings=tuple(warnings))
        try:
            drawing = leave_out_damaged(gathered, _drawn)
        except RequestError as error:  # none is left
            return Drawing(warnings=(*warnings, str(error)))
        return replace(drawing, warnings=(*warnings, *gathered.warnings))

    def _warnings(self, runs_data: Sequence[RunData]) -> Iterator[str]:
        for name in self._names[:MOST]:
            if name not in self._own:
                yield f"there is no run {name} here"
            elif self._own[name].problem:
                yield self._own[name].problem
        if len(self._names) > MOST:
            yield f"{MOST} runs can be told apart; the other {len(self._names) - MOST} are not drawn"
        for run_data in runs_data:
            yield from (f"{run_data.name}: {said}" for said in run_data.warnings)
        yield from unlike(runs_data)
