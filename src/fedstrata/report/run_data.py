"""What a run wrote down, as arrays.

It is read as far as the run has come and goes on from there: a second `refresh` reads new lines only. A run that
was killed leaves half a line; a newer version writes events that this one does not know; neither hides the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedstrata import __version__
from fedstrata.config.naming import folder_name, name_run
from fedstrata.core.errors import RequestError, no_figure
from fedstrata.core.events import FAULTS, Fault, describe_choice, describe_fault
from fedstrata.core.storage.event_lines import read_event
from fedstrata.core.storage.toml import read_toml
from fedstrata.report.client_updates import ClientUpdates, StepDone, read_client_updates, read_step
from fedstrata.report.sanity import TABLES, fits_summary, has_lists, is_sane, newer
from fedstrata.runs.folder import Run

CLIENTS = 10_000_000  # of a run that is shown
DEEP = 5  # folders above a run, one of which is its comparison's
SEEN = 256  # bytes before the place where reading goes on, to notice that a resumed run wrote others there


@dataclass
class RunData:
    """What a run wrote down, as arrays, as far as it has come: make one with `RunData.read`.

    Attributes
    ----------
    path
        The run folder.
    name
        What to call the run.
    group
        Runs of one group are the same method, under the same condition, with other seeds.
    experiment
        As plain tables.
    condition
        Under which a comparison of several conditions trained it; with such a one, the group is CONDITION/METHOD.
    method_row
        What its comparison calls its method, where it was read as part of one.
    warnings
        What of the run could not be read.
    start
        The event with which it began.
    engine
        Where it was executed.
    counts
        Label counts of the clients, [N, C]; None: not told.
    mix
        Share of each label over all of them, likewise.
    clusters, splits, exposures
        What FLIPS, Terraform and Stratify told of themselves.
    choices
        What the recipe chose by what was measured, and why.
    faults
        What did not go as asked.
    steps
        The exchanges of every round, in order.

    Examples
    --------
    >>> import fedstrata
    >>> run = fedstrata.train(overrides={"train.rounds": 2})
    >>> data = fedstrata.RunData.read(run.path)
    >>> data.column("accuracy").shape, data.recall.shape, data.client_accuracy.shape
    ((2,), (2, 10), (2, 20))
    """

    path: Path
    name: str = ""
    group: str = ""
    experiment: dict[str, Any] = field(default_factory=dict)
    condition: str = ""
    method_row: str = ""
    warnings: list[str] = field(default_factory=list)
    start: dict[str, Any] = field(default_factory=dict)
    engine: dict[str, Any] = field(default_factory=dict)
    counts: np.ndarray | None = None
    mix: np.ndarray | None = None
    clusters: dict[str, Any] = field(default_factory=dict)
    splits: list[dict[str, Any]] = field(default_factory=list)
    exposures: list[dict[str, Any]] = field(default_factory=list)
    choices: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    steps: list[StepDone] = field(default_factory=list)
    _offset: int = 0
    _lines: int = 0
    _before: bytes = b""
    _rounds: list[dict[str, Any]] = field(default_factory=list)
    _client_updates: list[tuple[np.ndarray, ...]] = field(default_factory=list)

    @classmethod
    def read(cls, path: str | Path, name: str = "", group: str = "") -> RunData:
        """Read a run folder.

        Parameters
        ----------
        path
            The folder.
        name, group
            What to call the run and its group; by default, as its `name` or its parts say.

        Returns
        -------
        RunData

        Raises
        ------
        RequestError
            If it is not a run folder.
        """
        path = Run.open(Path(path)).path
        if not (path / "events.jsonl").is_file():
            raise RequestError(f"{path} has nothing to show: its run was stopped before it began; --resume goes on")
        try:
            experiment = read_toml((path / "experiment.toml").read_text(encoding="utf-8"), "it")
        except (OSError, ValueError, RequestError) as error:
            raise RequestError(f"{path}/experiment.toml cannot be read: {error}") from None
        called = name or name_run(experiment) or path.name
        run_data = cls(path, called, group or called, experiment)
        run_data.refresh()
        if run_data._lines and not run_data.start and not run_data._rounds:
            raise RequestError(f"{path} is not a run folder: its events.jsonl tells of no run")
        return run_data

    def refresh(self) -> bool:
        """Read what was written since.

        Returns
        -------
        bool
            Whether there was anything.
        """
        with (self.path / "events.jsonl").open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(self._offset - len(self._before), 0))
            if size < self._offset or file.read(len(self._before)) != self._before:
                self._forget()  # the run went on from a checkpoint, and wrote other lines
                file.seek(0)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]  # the last line may be half written
        for line in new.splitlines():
            self._lines += 1
            self._take(line)
        self._offset += len(new)
        self._before = (self._before + new)[-SEEN:]
        for name in ("client_updates", "recall", "client_accuracy", "labels", "rounds"):
            self.__dict__.pop(name, None)
        return bool(new)

    def _forget(self) -> None:
        fresh = RunData(self.path, self.name, self.group, self.experiment, self.condition, self.method_row)
        self.__dict__ = fresh.__dict__

    def _take(self, line: bytes) -> None:
        try:
            event = read_event(line)
            known = self._lines  # a round is a line at least
            if event is None or not is_sane(event) or event.get("round", 0) > known or not has_lists(event):
                raise ValueError
            self._apply(event["event"], event)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, MemoryError):
            self._warn(f"line {self._lines} of events.jsonl cannot be understood; it is left out")

    def _warn(self, said: str) -> None:
        if said not in self.warnings and len(self.warnings) < 20:
            self.warnings.append(said)

    def _apply(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "round":
            steps = event.pop("steps", ())
            done = [read_step(int(event["round"]), step) for step in steps]
            self._client_updates += read_client_updates(int(event["round"]), steps)
            self.steps += done
            event |= {name: np.array(event[name], dtype=np.float32) for name in TABLES if event.get(name)}
            self._rounds.append(event)
        elif kind == "start":
            if not isinstance(event.get("classes", []), list) or not 0 <= int(event.get("clients", 0)) <= CLIENTS:
                raise ValueError
            self.start = event
            self.mix = np.array(list(event["mix"]), dtype=np.float64) if "mix" in event else None
            if newer(event.get("version", "0")):
                said = f"this run was written by fedstrata {event['version']}, which is newer than this one"
                self._warn(f"{said} ({__version__}); what it does not know is not shown")
        elif kind == "clients":
            self.counts = np.array(event["counts"], dtype=np.int64)
        elif kind == "engine":
            self.engine |= event.get("wall", {})
        elif kind == "clusters":
            self.clusters |= event
        elif kind == "terraform":
            self.splits.append(event)
        elif kind == "schedule":
            self.exposures.append(event)
        elif kind == "choice":
            self.choices.append(describe_choice(event))
        elif kind in FAULTS:
            now = self._rounds[-1]["round"] + 1 if self._rounds else None  # for those that do not tell their round
            self.faults.append(describe_fault({"round": now, **event}))

    # ---- what the run is -----------------------------------------------------------------------------------------

    @property
    def metrics(self) -> tuple[str, ...]:
        """Figures that `train.evaluate.metrics` measured."""
        return tuple(name for name in self.summary.get("metrics") or () if name.isidentifier())

    @property
    def summary(self) -> dict[str, Any]:
        """The outcome; empty where the run has not come to its end, or what it wrote of that is damaged."""
        try:
            summary = Run(self.path).summary
        except RequestError as error:
            self._warn(str(error))
            return {}
        if odd := [name for name, value in summary.items() if not fits_summary(name, value)]:
            self._warn(f"summary.json says {', '.join(odd)[:200]} as it cannot be; that is left out")
        return {name: value for name, value in summary.items() if name not in odd}

    @property
    def row(self) -> str:
        """What a comparison calls its method."""
        return self.group.removeprefix(f"{self.condition}/")

    @cached_property
    def line_name(self) -> str:
        """By what its lines are coloured: its row in a comparison, else its plan; the same wherever it is shown."""
        path = self.path.absolute()
        if not path.name.startswith("seed-"):
            return self.method_row or folder_name(name_run(self.experiment))
        return self.method_row or _row_of(path) or path.parent.name

    @property
    def method(self) -> str:
        """The recipe's name."""
        return str(self.asked("method", "name") or self.name)

    @property
    def classes(self) -> list[str]:
        """Names of the labels."""
        named = [str(c) for c in self.start.get("classes", ())]
        return named or [str(i) for i in range(self.recall.shape[1])]

    @property
    def clients(self) -> int:
        """How many there are."""
        most = int(self.client_updates.client.max(initial=-1)) + 1
        return int(self.start.get("clients", most))

    def client_name(self, client: int) -> str:
        """Return what a client is called: its name where it has one, else its number.

        Parameters
        ----------
        client
            From 0.

        Returns
        -------
        str
        """
        names = self.start.get("names", ())
        return str(names[client]) if client < len(names) else str(client)

    @property
    def rare(self) -> np.ndarray:
        """Which labels have less than half of an even share; all False where shares are not told."""
        if self.mix is None:
            return np.zeros(len(self.classes), dtype=bool)
        rare: np.ndarray = self.mix < 0.5 / max(len(self.mix), 1)
        return rare

    def asked(self, *keys: str) -> Any:
        """Look up a key of the experiment.

        Parameters
        ----------
        *keys
            Such as "train", "lr".

        Returns
        -------
        Any
            None where it is not set.
        """
        found: Any = self.experiment
        for key in keys:
            found = found.get(key) if isinstance(found, Mapping) else None
        return found

    # ---- round by round ------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._rounds)

    @cached_property
    def rounds(self) -> np.ndarray:
        """Numbers of the rounds, counted from 1."""
        return np.array([e["round"] for e in self._rounds], dtype=np.int64)

    def column(self, name: str) -> np.ndarray:
        """Return a figure by round.

        Parameters
        ----------
        name
            As in the events of rounds; `figures` lists them.

        Returns
        -------
        numpy.ndarray
            NaN where it was not taken.

        Raises
        ------
        RequestError
            If there are rounds, and none of them has it.
        """
        if len(self) and name not in self.figures:
            raise no_figure(name, self.figures)
        return self.known(name)

    @property
    def figures(self) -> set[str]:
        """Names of all figures that some round has."""
        return {name for e in self._rounds for name, value in e.items() if isinstance(value, int | float)}

    def known(self, name: str) -> np.ndarray:
        """Return a figure by round, as far as it is known: NaN throughout where no round has it.

        Parameters
        ----------
        name
            As in `column`.

        Returns
        -------
        numpy.ndarray
        """
        return np.array([_number(e.get(name)) for e in self._rounds], dtype=np.float64)

    @property
    def traffic(self) -> np.ndarray:
        """Bytes sent so far by anybody, by round."""
        ways = [np.nan_to_num(self.known(f"bytes_{way}")) for way in ("up", "down", "p2p")]
        total: np.ndarray = np.sum(ways, axis=0)
        return total

    @property
    def seconds(self) -> np.ndarray:
        """Real seconds so far, by round."""
        return np.array([_number(e.get("wall", {}).get("seconds")) for e in self._rounds], dtype=np.float64)

    @cached_property
    def recall(self) -> np.ndarray:
        """Share of test samples of each label that the model gets right, [rounds, C]."""
        return self._table("recall")

    @cached_property
    def labels(self) -> np.ndarray:
        """Training samples of each label that the clients of a round hold, [rounds, C]."""
        return self._table("labels")

    @cached_property
    def client_accuracy(self) -> np.ndarray:
        """Accuracy of every client by round, [rounds, N]; of very many, of the deciles, [rounds, 11]."""
        told = self._table("client_accuracy")
        return (told if told.size else self._table("client_deciles")) / 1000

    @cached_property
    def client_updates(self) -> ClientUpdates:
        """All client updates."""
        if not self._client_updates:
            none = np.zeros(0)
            return ClientUpdates(none.astype(int), none.astype(int), none.astype(bool), none, none, none)
        return ClientUpdates(*map(np.concatenate, zip(*self._client_updates, strict=True)))

    def participation(self) -> np.ndarray:
        """Count how often each client's report counted in each round.

        Returns
        -------
        numpy.ndarray
            [N, rounds].
        """
        client_updates, first = self.client_updates, int(self.rounds[0]) if len(self) else 1
        times = np.zeros((self.clients, int(self.rounds[-1]) - first + 1 if len(self) else 0), dtype=np.int32)
        there = client_updates.arrived & (client_updates.client < len(times))
        there &= (client_updates.round >= first) & (client_updates.round - first < times.shape[1])
        there &= client_updates.client >= 0
        np.add.at(times, (client_updates.client[there], client_updates.round[there] - first), 1)
        return times

    def _table(self, name: str) -> np.ndarray:
        """Return a list of numbers by round; rounds without it are NaN."""
        width = max((len(e[name]) for e in self._rounds if name in e), default=0)
        table = np.full((len(self._rounds), width), np.nan)
        for at, event in enumerate(self._rounds):
            if len(told := event.get(name, ())):
                table[at, : len(told)] = told
        return table


def _row_of(run: Path) -> str:
    """Return what the comparison above a run calls its method; below that lies the setting, where one was chosen."""
    for root in run.parents[1:DEEP]:
        try:
            known = json.loads((root / "comparison.json").read_text())
            lines = [*known["cells"], *known.get("trials", ())]
            place = str(run.relative_to(root))
            return next((str(line["method"]) for line in lines if line["run_dir"] == place), "")
        except FileNotFoundError:
            continue
        except (OSError, ValueError, LookupError, TypeError):
            return ""  # whoever reads the comparison itself is told that it is damaged
    return ""


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else np.nan  # `is_sane` has seen to it that it fits
