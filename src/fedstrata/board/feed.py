"""What a browser has not seen yet. Nothing is looked at while nobody watches."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from weakref import WeakValueDictionary

from fedstrata.board.console import SharedLook
from fedstrata.board.details import RunDetails
from fedstrata.board.groups import group_rows
from fedstrata.board.index import Row, RunIndex
from fedstrata.board.views import BoardView, Drawing, RunReader

PAUSE = 1.0  # seconds between two looks at the runs
REST = 20  # how much longer than a look took the next one waits: a folder may hold much else


class Board:
    """A folder of runs, and who watches which of them; browsers that show the same runs share the work."""

    def __init__(self, root: Path, pause: float = PAUSE):
        self.index, self.pause = RunIndex(root), pause
        self._listing, self._drawing = Lock(), Lock()
        self._due = 0.0
        self._readings: WeakValueDictionary[str, RunReader] = WeakValueDictionary()  # gone with the last that watches
        self._views: WeakValueDictionary[tuple[str, ...], BoardView] = WeakValueDictionary()

    def watch(self, names: Sequence[str], console: SharedLook | None = None) -> Feed:
        """Begin to watch the list of runs, the figures of some, and a federation."""
        chosen = tuple(dict.fromkeys(names))
        with self._drawing:
            view = self._views.setdefault(chosen, BoardView(self.index, self._readings, chosen))
        return Feed(self, view, console)

    def look(self) -> dict[str, Row]:
        """Return the list of runs, looked up unless that has just been done."""
        with self._listing:
            began = time.monotonic()
            if began >= self._due:
                self.index.look()
                rest = REST * (time.monotonic() - began) if self.pause else 0.0
                self._due = began + max(0.9 * self.pause, rest)
            return self.index.rows

    def draw(self, view: BoardView) -> Drawing:
        """Return the figures of a view as they are now; one is drawn at a time."""
        with self._drawing:
            view.refresh()
            return view.picture


class Feed:
    """The news for one browser: events, with their data in JSON."""

    def __init__(self, board: Board, view: BoardView, console: SharedLook | None = None):
        self._board, self._view, self._console = board, view, console
        self._federation = ""
        self._rows: dict[str, Row] | None = None
        self._details: list[RunDetails] | None = None
        self._picture: Drawing | None = None

    def rows(self) -> list[tuple[str, str]]:
        """Return an event with the lines of the list that have changed since the last time, if any has."""
        before, now = self._rows or {}, self._board.look()
        changed = [asdict(row) for path, row in now.items() if before.get(path) != row]
        gone = [path for path in before if path not in now]
        anew, self._rows = self._rows is None, now
        if not (changed or gone or anew):
            return []
        groups = [asdict(group) for group in group_rows(self._board.index.root, now)]
        return [("runs", json.dumps({"changed": changed, "gone": gone, "all": anew, "groups": groups}))]

    def federation(self) -> list[tuple[str, str]]:
        """Return an event with sites, runs and queue of the federation, if any of it has changed."""
        before, self._federation = self._federation, "" if self._console is None else self._console.look()
        return [] if self._federation == before else [("federation", self._federation)]

    def details(self) -> list[tuple[str, str]]:
        """Return an event with settings, costs, log and notes of the chosen runs, if any of it has changed."""
        before, self._details = self._details, (now := self._view.details())
        if now == before:
            return []
        return [("details", json.dumps([asdict(details) for details in now]))]

    def figures(self) -> list[tuple[str, str]]:
        """Return an event with the figures that have changed since the last time, if any has."""
        before, self._picture = self._picture, (now := self._board.draw(self._view))
        if now is before:
            return []
        seen = dict(before.figures) if before else {}
        changed = ",".join(f"{json.dumps(name)}:{text}" for name, text in now.figures if seen.get(name) != text)
        about = {"title": now.title, "outcome": now.outcome, "methods": now.methods, "warnings": now.warnings}
        order = [name for name, _ in now.figures]
        return [("figures", f'{json.dumps({**about, "order": order})[:-1]}, "changed": {{{changed}}}}}')]
