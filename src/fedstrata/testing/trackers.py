"""The suite for trackers: what a run expects of one."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from fedstrata.config.experiment import Experiment
from fedstrata.runs.trackers.base import Recording, TrackedRun, Tracker
from fedstrata.testing.conformance import check_part

FIGURES = {"accuracy": 0.5, "recall/3": 1.0, "bytes_up": 1e9, "client_updates": 10.0}


def check_tracker(tracker: Tracker) -> None:
    """Check a tracker: it takes the figures of a run, goes on with it after a kill, and takes every kind of end.

    Parameters
    ----------
    tracker
        An object of a part of your own.

    Raises
    ------
    AssertionError
        With what is wrong.

    Examples
    --------
    >>> import fedstrata
    >>> fedstrata.check_tracker(fedstrata.make_part("trackers", "tensorboard"))
    """
    check_part(tracker)
    tracker.check_installed("track")
    experiment, name = Experiment.of().dump(), type(tracker).__name__
    with TemporaryDirectory() as place:
        folder = Path(place, "fedavg-1")
        folder.mkdir()
        model = folder / "model.safetensors"
        model.write_bytes(b"8 bytes.")
        begun = tracker.start(TrackedRun(folder.name, folder, experiment))
        memory = _check_recording(name, begun)
        for round in (1, 2, 3):
            begun.log(round, FIGURES)
        begun.end("stopped", {}, [])
        again = tracker.start(TrackedRun(folder.name, folder, experiment, rounds_done=2, memory=memory))
        assert _check_recording(name, again) == memory, f"{name}: a run that goes on has another `memory`"
        again.log(3, FIGURES)  # which was told before the kill
        again.end("finished", {"accuracy": 0.5, "rounds": 3, "stopped": "all rounds done"}, [model])
        tracker.start(TrackedRun("fedavg-2", folder, experiment)).end("failed", {}, [])


def _check_recording(name: str, recording: Recording) -> dict[str, str]:
    assert isinstance(recording.where, str), f"{name}: `where` is {recording.where!r}; allowed: text"
    memory = dict(recording.memory)
    assert json.loads(json.dumps(memory)) == memory, f"{name}: `memory` is {memory!r}; allowed: text by name"
    return memory
