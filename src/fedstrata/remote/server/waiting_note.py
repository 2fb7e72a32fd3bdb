"""Whom a run waits for: a note beside the server's state, for `fedstrata deploy status` and the console."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

FILE = "waiting.json"
LOOK = 1.0  # seconds between two looks


class WaitingNote:
    """Notes every second who has not come or not answered yet; inside a `with` block."""

    def __init__(self, folder: Path, run: Path, awaited: Callable[[], Collection[str]] = lambda: ()):
        self._path, self._run, self.awaited = folder / FILE, run, awaited  # `awaited`: who has not answered
        self._missing: Collection[str] = ()
        self._before: dict[str, float] = {}  # since when each is waited for
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> WaitingNote:
        with suppress(OSError):
            forget_waiting(self._path.parent)  # what a run that was killed left
        self.look()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        with suppress(OSError):
            self._path.unlink()

    def miss(self, sites: Collection[str]) -> None:
        """Say which sites must come before the run goes on; nobody: it goes on."""
        self._missing = sites

    def look(self) -> None:
        """Write down who is waited for now, if that has changed."""
        now, awaited = time.time(), {*self.awaited(), *self._missing}
        since = {site: self._before.get(site, now) for site in sorted(awaited)}
        if since == self._before and self._path.exists():
            return
        self._before, part = since, self._path.with_name(FILE + ".part")
        with suppress(OSError):  # a full disk at the server: the run itself says so
            part.write_text(json.dumps({"run": str(self._run), "for": since}))
            os.replace(part, self._path)

    def _watch(self) -> None:
        while not self._over.wait(LOOK):
            self.look()


def forget_waiting(folder: Path) -> None:
    """Take away the note of a run that was killed: nobody is waited for any more."""
    (folder / FILE).unlink(missing_ok=True)


def read_waiting(folder: Path) -> dict[str, Any]:
    """Return which run waits, and since when for whom; nothing where none does."""
    try:
        told: dict[str, Any] = json.loads((folder / FILE).read_text())
    except (OSError, ValueError):
        return {}
    return told
