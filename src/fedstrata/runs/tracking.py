"""A run in its trackers: each in a thread of its own, so that one that is slow or gone never holds a round up.

What a tracker raises, or that it does not answer, is an event (`tracker`); the run goes on without it. What finds a run
again in its tracker is kept in `trackers/` of the run folder, so that a resumed run goes on where it was tracked.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import isfinite
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from time import monotonic
from typing import Any

from fedstrata.config.completion import make
from fedstrata.config.experiment import Experiment
from fedstrata.core.storage.files import write_atomically
from fedstrata.runs.folder import Run
from fedstrata.runs.trackers.base import How, Recording, TrackedRun, Tracker

FILES = ("model.safetensors", "best.safetensors", "experiment.toml")
CLASSES = 100  # up to which figures by class are told
PATIENCE = {"finished": 30.0, "stopped": 15.0, "failed": 15.0}  # seconds that a tracker has for what is left


News = tuple[str, dict[str, Any]]  # an event: where a tracker shows the run, or why it does not


class Tracking:
    """The trackers of one run.

    Parameters
    ----------
    experiment
        Whose `track` names them.
    folder
        The run folder.
    rounds_done
        How many rounds were done before.
    """

    def __init__(self, experiment: Experiment, folder: Run, rounds_done: int = 0):
        asked: Sequence[Mapping[str, Any]] = experiment.track or []
        self._folder, self._classes = folder, _classes(folder.events())
        self._threads: dict[str, TrackerThread] = {}
        for i, spec in enumerate(asked):
            tracker: Tracker = make("trackers", spec, f"track.{i}")
            short = str(spec["kind"]).rpartition(":")[2]
            name = short if short not in self._threads else f"{short}-{i}"
            known = folder.path / "trackers" / f"{name}.json"
            memory = json.loads(known.read_text()) if known.exists() else {}
            told = TrackedRun(folder.path.name, folder.path, experiment.dump(), rounds_done, memory)
            self._threads[name] = TrackerThread(name, tracker, told, known)
            if not memory:  # it was not there when these were made
                self._tell(
                    self._threads[name], (e for e in folder.events() if e.get("round", rounds_done + 1) <= rounds_done)
                )

    def tell(self, event: Mapping[str, Any]) -> None:
        """Pass an event on."""
        if event["event"] == "start":
            self._classes = _classes([event])
        for thread in self._threads.values():
            self._tell(thread, [event])

    def _tell(self, thread: TrackerThread, events: Iterable[Mapping[str, Any]]) -> None:
        for event in events:
            if event["event"] == "round":
                thread.ask("log", event["round"], figures_of(event, self._classes))

    def end(self, how: How) -> None:
        """Tell the outcome, and wait for what is left, but not for ever."""
        summary = self._folder.summary or {}
        files = [path for name in FILES if (path := self._folder.path / name).exists()] if how == "finished" else []
        for thread in self._threads.values():
            thread.ask("end", how, summary, files)
            thread.ask("")
        until = monotonic() + PATIENCE[how]
        for thread in self._threads.values():
            thread.join(max(until - monotonic(), 0.0))
            if thread.is_alive():
                thread.say("tracker", why=f"it has not answered for {PATIENCE[how]:.0f} s, and is left behind")

    def news(self) -> list[News]:
        """Return what happened since this was last asked."""
        found = []
        for thread in self._threads.values():
            while not thread.news.empty():
                found.append(thread.news.get())
        return found


def refuse_missing(experiment: Experiment) -> None:
    """Refuse a run that asks for a tracker whose package is not installed."""
    for i, spec in enumerate(experiment.track or []):
        make("trackers", spec, f"track.{i}").check_installed(f'track.{i} = "{spec["kind"]}"')


class TrackerThread(Thread):
    """One tracker at work. It is a daemon: a program ends, whether its trackers answer or not."""

    def __init__(self, name: str, tracker: Tracker, run: TrackedRun, known: Path):
        super().__init__(name=name, daemon=True)
        self.news: SimpleQueue[News] = SimpleQueue()
        self._asked: SimpleQueue[tuple[str, tuple[Any, ...]]] = SimpleQueue()
        self._begin: Callable[[], Recording] = partial(tracker.start, run)
        self._known = known
        self.start()

    def ask(self, what: str, *told: Any) -> None:
        """Ask for something to be done; nothing is the end."""
        self._asked.put((what, told))

    def say(self, kind: str, **fields: str) -> None:
        """Tell the thread of the run, which writes events."""
        self.news.put((kind, {"what": self.name, **fields}))

    def run(self) -> None:
        """Do what is asked, until the end or the first error."""
        try:
            recording = self._begin()
            self._known.parent.mkdir(exist_ok=True)
            write_atomically(self._known, json.dumps(dict(recording.memory)).encode())
            self.say("tracked", where=recording.where)
            while (asked := self._asked.get())[0]:
                getattr(recording, asked[0])(*asked[1])
        except Exception as error:  # whatever a tracker's library raises: the run does not depend on it
            self.say("tracker", why=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}")
        except SystemExit as error:
            self.say("tracker", why=f"it wanted to end the program: {error}")


def figures_of(event: Mapping[str, Any], classes: Sequence[str]) -> dict[str, float]:
    """Return all figures of a round by name; those of classes as `recall/CLASS`, where there are not too many."""
    told = {key: value for key, value in event.items() if key != "round"} | dict(event.get("wall", {}))
    for key, value in list(told.items()):
        if isinstance(value, list) and len(value) == len(classes) <= CLASSES and key in ("recall", "labels"):
            told |= {f"{key}/{name}": number for name, number in zip(classes, value, strict=True)}
    return {
        key: float(value)
        for key, value in told.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    }


def _classes(events: Iterable[Mapping[str, Any]]) -> list[str]:
    return next((list(map(str, event.get("classes", ()))) for event in events if event["event"] == "start"), [])
