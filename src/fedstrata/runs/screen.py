"""Where a picture of progress is drawn: on a terminal, or in the output of a notebook's cell."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from io import StringIO
from typing import Any

from rich.console import Console, RenderableType
from rich.live import Live

OFTEN = 4  # pictures a second
WIDTH = 100  # of a picture in a notebook, in characters
FORMAT = '<pre style="font-family: Menlo, Consolas, monospace; line-height: 1.3">{code}</pre>'


class Screen:
    """A picture that changes, and lines above it that stay. This one is a terminal, which draws itself."""

    def __init__(self, console: Console, draw: Callable[[], RenderableType]):
        self._live = Live(get_renderable=draw, console=console, refresh_per_second=OFTEN)

    def start(self) -> None:
        """Show the picture."""
        self._live.start()

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self._live.console.print(line, markup=False)

    def refresh(self) -> None:
        """Draw what changed."""

    def stop(self) -> None:
        """Draw once more, and leave it there."""
        self._live.stop()


class NotebookScreen(Screen):
    """The same in the output of a cell. It needs nothing but IPython; rich's own display needs widgets as well."""

    def __init__(self, draw: Callable[[], RenderableType]):
        self._draw, self._said = draw, list[str]()
        self._shown: Any = None
        self._last = 0.0

    def start(self) -> None:
        """Show the picture."""
        if self._shown is None:
            there = import_module("IPython.display")  # where there is a notebook, it is there
            self._as_html = there.HTML
            self._shown = there.display(self._as_html(self._html()), display_id=True)

    def say(self, line: str) -> None:
        """Write a line that stays."""
        self._said.append(line)
        self._show()

    def refresh(self) -> None:
        """Draw what changed, unless that was just done."""
        if time.monotonic() - self._last >= 1 / OFTEN:
            self._show()

    def stop(self) -> None:
        """Draw once more, and leave it there."""
        self._show()

    def _show(self) -> None:
        if self._shown is not None:
            self._last = time.monotonic()
            self._shown.update(self._as_html(self._html()))

    def _html(self) -> str:
        console = Console(file=StringIO(), record=True, width=WIDTH, force_terminal=True, force_jupyter=False)
        for line in self._said:
            console.print(line, markup=False)
        console.print(self._draw())
        return console.export_html(inline_styles=True, code_format=FORMAT)


def is_watched(console: Console) -> bool:
    """Say whether somebody sees a picture that changes: at a terminal, or in a notebook."""
    return console.is_terminal or console.is_jupyter


def open_screen(console: Console, draw: Callable[[], RenderableType]) -> Screen:
    """Return where to draw."""
    return NotebookScreen(draw) if console.is_jupyter else Screen(console, draw)
