"""The run folder: experiment, events, checkpoints, final model, summary.

experiment.toml     the experiment, resolved
events.jsonl        one JSON object a line; `wall` holds what a clock said and is never compared
checkpoint/         CURRENT names the manifest that counts; see `checkpoints.py`
model.safetensors   the final model, tensors by name
best.safetensors    the model of the round whose `train.evaluate.best` was the highest
summary.json        the outcome
trackers/           what finds the run again in its trackers
lock                empty; locked while a process runs here
"""

from __future__ import annotations

import json
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from safetensors.torch import load, save
from torch import Tensor, nn

from fedstrata.config.model_info import ABOUT, ModelInfo
from fedstrata.core import html
from fedstrata.core.errors import RequestError, no_figure
from fedstrata.core.messages import Tensors
from fedstrata.core.storage.event_lines import read_events
from fedstrata.core.storage.file_lock import is_locked, take_lock
from fedstrata.core.storage.files import make_folder, sync_folder, write_atomically, writing_to
from fedstrata.runs.amounts import write_share
from fedstrata.runs.checkpoints import Checkpoints
from fedstrata.runs.frames import columns_of_rounds, make_frame
from fedstrata.runs.metrics import HIGHER
from fedstrata.runs.predictor import Predictor
from fedstrata.runs.saved_model import SavedModel

LOCK = "lock"
UNEQUAL = ("resumed", "engine", "tracked", "tracker")  # events that two equal runs do not share


class Run(Predictor):
    """One run and the folder that holds it. `train` and `resume` give one; `Run("runs/fedavg-1")` reads an old one.

    Parameters
    ----------
    path
        The run folder.
    model
        Where the network came from Python, that network, with which the run predicts; `train` and `resume` pass it on.

    Attributes
    ----------
    path
        The run folder.
    checkpoints
        What `resume` goes on from.

    Examples
    --------
    >>> import fedstrata
    >>> run = fedstrata.train(overrides={"train.rounds": 2}, out="runs/short")
    >>> run.summary["rounds"], run.summary["stopped"]
    (2, 'all rounds done')
    >>> len(run.curve("accuracy"))
    2
    >>> sorted(run.model())
    ['head.bias', 'head.weight', 'layer0.bias', 'layer0.weight']
    >>> fedstrata.Run("runs/short").events()[-1]["event"]
    'round'
    """

    def __init__(self, path: str | Path, model: nn.Module | None = None):
        self.path = Path(path)
        self._network = model
        self.checkpoints = Checkpoints(self.path / "checkpoint")

    def __repr__(self) -> str:
        done = self.summary if self._begun else {}
        said = "not finished" if self._begun else "no run"
        if done:
            figure = "not known" if done["accuracy"] is None else f"{write_share(done['accuracy'])} %"
            said = f"{done.get('name', done['method'])}, accuracy {figure} after {done['rounds']} rounds"
        return f"Run({str(self.path)!r}: {said})"

    def _repr_html_(self) -> str:
        done = self.summary if self._begun else {}
        if not done:
            return html.title(repr(self))
        kept = ("accuracy", "balanced_accuracy", "worst10", "best_accuracy", "rounds", "client_updates", "seconds")
        shown = {key: value for key in kept if (value := done.get(key)) is not None} | {"stopped": done["stopped"]}
        said = {key: f"{write_share(value)} %" if key in HIGHER else value for key, value in shown.items()}
        said["seconds"] = f"{done['seconds']:.1f}"
        name = html.title(f"{done.get('name', done['method'])}: {self.path}")
        return f"{name}{html.curve(self.curve('accuracy'))}{html.facts(said)}{html.notes(done['remarks'])}"

    def to_pandas(self) -> Any:
        """Return what every round told, as a data frame.

        Returns
        -------
        pandas.DataFrame
            A row a round, a column a figure: "accuracy", "loss_test", "bytes_up", "seconds" and so on; NaN in rounds
            that were not evaluated.

        Raises
        ------
        RequestError
            If pandas is not installed, or the folder holds no run.
        """
        return make_frame(columns_of_rounds(self.events()), index="round")

    @classmethod
    def create(cls, path: Path, experiment: str, model: nn.Module | None = None) -> Run:
        """Make a new run folder; one that holds a run already is never touched.

        Parameters
        ----------
        path
            A folder that is empty or not there.
        experiment
            The experiment, as TOML.
        model
            As `Run` takes it.

        Returns
        -------
        Run

        Raises
        ------
        RequestError
            If `path` is a file, or holds a run or other files.
        """
        if path.is_file():
            raise RequestError(f"{path} is a file; a run needs a folder of its own")
        begun = {
            LOCK,
            "events.jsonl",
            "experiment.toml.part",
        }  # what is left of one that was killed before there was anything
        if path.is_dir() and {p.name for p in path.iterdir()} - begun and not (path / "experiment.toml").exists():
            raise RequestError(f"{path} holds other files; a run needs a folder of its own")
        if (path / "experiment.toml").exists():
            raise RequestError(
                f"{path} already holds a run: continue it with --resume {shlex.quote(str(path))}, or choose another "
                "folder"
            )
        with writing_to(path):
            make_folder(path)
            (path / "events.jsonl").touch()
            write_atomically(path / "experiment.toml", experiment.encode())  # which makes both safe
        return cls(path, model)

    @classmethod
    def open(cls, path: Path | str, model: nn.Module | None = None) -> Run:
        """Open an existing run; one that was killed before its first event has an experiment, and nothing else.

        Parameters
        ----------
        path
            Its folder.
        model
            As `Run` takes it.

        Returns
        -------
        Run

        Raises
        ------
        RequestError
            If it is not a run folder.
        """
        path = Path(path)
        begun = any((path / name).exists() for name in ("checkpoint/CURRENT", "summary.json"))
        needed = ["experiment.toml", *(["events.jsonl"] if begun else [])]
        missing = [name for name in needed if not (path / name).is_file()]
        if missing:
            raise _no_run(path, missing)
        return cls(path, model)

    @classmethod
    def claim(cls, root: Path, stem: str) -> Path:
        """Make the next free folder; two processes never get the same one.

        Parameters
        ----------
        root
            Where.
        stem
            Its name, to which a number is added.

        Returns
        -------
        Path
            Such as "runs/fedavg-3".
        """
        with writing_to(root):
            make_folder(root)
            for number in count(1):
                with suppress(FileExistsError):
                    (path := root / f"{stem}-{number}").mkdir()
                    sync_folder(root)
                    return path
        raise AssertionError("unreachable")

    @contextmanager
    def locked(self) -> Iterator[Run]:
        """Keep other processes from running in this folder; the lock ends with this process at the latest.

        Returns
        -------
        context manager
            Gives the run.

        Raises
        ------
        RequestError
            If another process is running here.
        """
        with writing_to(self.path):
            handle = take_lock(self.path / LOCK)
        if handle is None:
            raise RequestError(f"another process is running in {self.path}")
        try:
            yield self
        finally:
            os.close(handle)

    @property
    def running(self) -> bool:
        """Whether a process is running in this folder now."""
        return is_locked(self.path / LOCK)

    @property
    def _begun(self) -> bool:
        """Whether anything of a run is here; one that is about to begin has nothing yet."""
        return any((self.path / name).exists() for name in ("experiment.toml", "events.jsonl", "summary.json"))

    def _refuse_nothing(self) -> None:
        """Refuse to tell of a run that is not there, as if it had done nothing so far."""
        if not self._begun:
            raise _no_run(self.path, ["experiment.toml"])

    # ---- events --------------------------------------------------------------------------------------------------

    def log(self, kind: str, *, wall: Mapping[str, Any] | None = None, **fields: Any) -> None:
        """Append an event.

        Parameters
        ----------
        kind
            Of the event.
        wall
            What a clock said: never compared.
        **fields
            What can be written as JSON; a number that is not finite becomes null.
        """
        event = {"event": kind, **fields} | ({"wall": dict(wall)} if wall else {})
        with writing_to(self.path), (self.path / "events.jsonl").open("a", newline="\n") as file:
            file.write(json.dumps(finite(event)) + "\n")

    def events(self, wall: bool = True) -> list[dict[str, Any]]:
        """Read the events, one dict each; "event" says which kind.

        Parameters
        ----------
        wall
            False: only what two equal runs share, without clocks and machines.

        Returns
        -------
        list of dict
            "start", "clients" and "engine" come first; then a "round" after every round, with its metrics, its traffic
            so far and its "steps". Whatever did not go as asked is an event of its own, such as "dropped"; so is a line
            that cannot be read, "damaged".

        Raises
        ------
        RequestError
            If the folder holds no run.

        Examples
        --------
        >>> import fedstrata
        >>> run = fedstrata.train(overrides={"train.rounds": 1})
        >>> [event["event"] for event in run.events()]
        ['start', 'clients', 'engine', 'round']
        """
        self._refuse_nothing()
        path = self.path / "events.jsonl"
        events = read_events(path.read_bytes()) if path.exists() else []
        if wall:
            return events
        return [{k: v for k, v in e.items() if k != "wall"} for e in events if e["event"] not in UNEQUAL]

    def sync_events(self) -> int:
        """Make the events safe on disk: a checkpoint must not run ahead of them.

        Returns
        -------
        int
            Their size in bytes.
        """
        with writing_to(self.path), (self.path / "events.jsonl").open("rb") as file:
            os.fsync(file.fileno())
            return os.fstat(file.fileno()).st_size

    def cut_events(self, size: int) -> None:
        """Forget events after a checkpoint: their rounds will be run again.

        Parameters
        ----------
        size
            Bytes to keep.

        Raises
        ------
        RequestError
            If there are fewer.
        """
        with writing_to(self.path), (self.path / "events.jsonl").open("ab") as file:
            if os.fstat(file.fileno()).st_size < size:
                raise RequestError(
                    f"{self.path}/events.jsonl is shorter than its checkpoint says; the run cannot go on"
                )
            file.truncate(size)

    def write_experiment(self, experiment: str) -> None:
        """Write the experiment of a run that goes on with another one.

        Parameters
        ----------
        experiment
            As TOML.
        """
        with writing_to(self.path):
            write_atomically(self.path / "experiment.toml", experiment.encode())

    # ---- results -------------------------------------------------------------------------------------------------

    def write_result(self, models: Mapping[str, Tensors], info: ModelInfo, summary: Mapping[str, Any]) -> None:
        """Write models and the summary, which marks the run as finished.

        Parameters
        ----------
        models
            By the name of the file, "model" and "best": tensors by name.
        info
            What the models' files say of them.
        summary
            The outcome.
        """
        with writing_to(self.path):
            for name, model in models.items():
                write_atomically(self.path / f"{name}.safetensors", save(dict(model), {ABOUT: info.to_json()}))
            text = json.dumps(finite(summary), indent=2) + "\n"
            write_atomically(self.path / "summary.json", text.encode())

    def forget_result(self) -> None:
        """Remove the summary, with which a run is not finished any more, and then the models."""
        with writing_to(self.path):
            for name in ("summary.json", "model.safetensors", "best.safetensors"):
                (self.path / name).unlink(missing_ok=True)

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome; empty while the run is not finished. A folder that holds no run is refused."""
        self._refuse_nothing()
        path = self.path / "summary.json"
        try:
            summary = json.loads(path.read_text()) if path.exists() else {}
            if not isinstance(summary, dict):
                raise ValueError("it holds no table")
        except (OSError, ValueError, RecursionError) as error:
            raise RequestError(f"{path} is damaged: {error}; remove it, and --resume writes it again") from None
        return summary

    def curve(self, metric: str) -> list[float]:
        """Return a metric by evaluated round.

        Parameters
        ----------
        metric
            Such as "accuracy", "balanced_accuracy", "worst10", "loss_test", "loss_train" or "bytes_up".

        Returns
        -------
        list of float
            Shorter than the run where `train.evaluate.every` is more than 1.

        Raises
        ------
        RequestError
            If no round has it, or the folder holds no run.
        """
        rounds = [e for e in self.events() if e["event"] == "round"]
        if rounds and not any(metric in e for e in rounds):
            raise no_figure(metric, _curves(rounds))
        return [e[metric] for e in rounds if metric in e]

    def model(self) -> dict[str, Tensor]:
        """Read the final model.

        Returns
        -------
        dict
            Tensors by name, for `load_state_dict`, in the order of the module that was trained, or else by name.
        """
        return _in_order(load((self.path / "model.safetensors").read_bytes()), self._network)

    @property
    def saved(self) -> SavedModel:
        """The final model as its file describes it."""
        return SavedModel.find(self.path, self._network)

    @property
    def best(self) -> BestRound | None:
        """The best evaluated round: `metric`, `value`, `round` and `model()`; None while the run is not finished.

        Which metric, says `train.evaluate.best`. Chosen by the test set, its accuracy is a little too good.
        """
        told = self.summary.get("best")
        return None if told is None else BestRound(self.path / "best.safetensors", **told, _network=self._network)


def _curves(rounds: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names of what can be drawn by round: numbers."""
    return {name for e in rounds for name, value in e.items() if isinstance(value, int | float) and name != "round"}


def _in_order(tensors: Mapping[str, Tensor], network: nn.Module | None) -> dict[str, Tensor]:
    """Put tensors in the order of the network's, which a file has not; Flower's clients go by it."""
    places = {} if network is None else {name: i for i, name in enumerate(network.state_dict())}
    return {name: tensors[name] for name in sorted(tensors, key=lambda name: (places.get(name, len(places)), name))}


def _no_run(path: Path, missing: Sequence[str]) -> RequestError:
    """Refuse a folder that holds no run; one of a comparison holds runs further below."""
    why = f"it has no {' and no '.join(missing)}" if path.is_dir() else "there is no such folder"
    below = (file.parent for deep in ("*", "*/*", "*/*/*") for file in sorted(path.glob(f"{deep}/experiment.toml")))
    run = next(below, None)
    if (path / "comparison.json").exists():
        why = f"it is a comparison, which `fedstrata compare --resume {shlex.quote(str(path))}` goes on with"
    return RequestError(
        f"{path} is not a run folder: {why}{f'; name one of the runs in it, such as {run}' if run else ''}"
    )


@dataclass(frozen=True)
class BestRound(Predictor):
    """The round of a run whose model was the best.

    Attributes
    ----------
    path
        The file that holds the model.
    metric
        By which it is the best, as in `train.evaluate.best`.
    value
        What it came to.
    round
        Counted from 1.
    """

    path: Path
    metric: str
    value: float
    round: int
    _network: nn.Module | None = field(default=None, repr=False)

    def model(self) -> dict[str, Tensor]:
        """Read the model of that round.

        Returns
        -------
        dict
            Tensors by name, for `load_state_dict`, in the same order as those of `Run.model`.
        """
        return _in_order(load(self.path.read_bytes()), self._network)

    @property
    def saved(self) -> SavedModel:
        """The model of that round as its file describes it."""
        return SavedModel.find(self.path, self._network)


def finite(value: Any) -> Any:
    """JSON has no NaN: a number that is not finite becomes null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: finite(v) for k, v in value.items()}
    return [finite(v) for v in value] if isinstance(value, list | tuple) else value
