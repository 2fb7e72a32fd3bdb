"""What a run wrote down, as arrays.

It is read as far as the run has come and goes on from there: a second `refresh` reads new lines only. A run that
was killed leaves half a line; a newer version writes events that this one does not know; neither hides the rest.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedstrata import __version__
from fedstrata.config.naming import folder_name, name_run
from fedstrata.core.errors import RequestError, no_figure
from fedstrata.core.event_lines import read_event
from fedstrata.core.events import FAULTS, Fault, describe_choice, describe_fault
from fedstrata.core.toml import read_toml
from fedstrata.runs.folder import Run

TABLES = ("recall", "labels", "client_accuracy", "client_deciles")  # a round has a list of each
TRAINS = ("train", "gradient")  # kinds of steps that teach the model
SHOWN = (  # figures of a summary
    *("accuracy", "balanced_accuracy", "worst10", "best_accuracy", "accuracy_last10", "accuracy_last10_std"),
    *("bytes_up", "bytes_down", "bytes_p2p", "client_updates", "time"),
)
CLIENTS, DEEPEST = 10_000_000, 12  # of a run that is shown; of tables in its events
DEEP = 5  # folders above a run, one of which is its comparison's
SEEN = 256  # bytes before the place where reading goes on, to notice that a resumed run wrote others there


class StepDone(NamedTuple):
    """One exchange of a round: whom the server asked for what, and who answered.

    Attributes
    ----------
    round
        When, counted from 1.
    kind
        What was asked for, such as "train".
    clients, missing
        Whose reports counted, and whose did not come.
    times
        How many such exchanges in a row are told as one.
    """

    round: int
    kind: str
    clients: np.ndarray
    missing: np.ndarray
    times: int


class ClientUpdates(NamedTuple):
    """Every client update of which a run wrote down who it was; all columns are in the same order.

    Attributes
    ----------
    round, client
        When and who.
    arrived
        Whether the report counted.
    update_norm
        Length of the update; NaN where it is not told.
    cut
        FedBSS: the loss at which samples are cut.
    biased
        Share of samples beyond it.
    """

    round: np.ndarray
    client: np.ndarray
    arrived: np.ndarray
    update_norm: np.ndarray
    cut: np.ndarray
    biased: np.ndarray


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
            if event is None or not _is_sane(event) or event.get("round", 0) > known or not _has_lists(event):
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
            done = [_step_done(int(event["round"]), step) for step in steps]
            self._client_updates += _client_updates(int(event["round"]), steps)
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
    def summary(self) -> dict[str, Any]:
        """The outcome; empty where the run has not come to its end, or what it wrote of that is damaged."""
        try:
            summary = Run(self.path).summary
        except RequestError as error:
            self._warn(str(error))
            return {}
        if odd := [name for name, value in summary.items() if not fits(name, value)]:
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


def fits(name: str, value: Any) -> bool:
    """Say whether a value can stand in a summary under this name; what else is there is not shown."""
    if value is None:
        return True
    kind = {"stopped": str, "remarks": list, "privacy": dict}.get(name)
    return isinstance(value, kind) if kind else _is_sane(value) and (name not in SHOWN or _is_number(value))


def _has_lists(event: dict[str, Any]) -> bool:
    return all(isinstance(event.get(name, []), list) and all(map(_is_entry, event.get(name, []))) for name in TABLES)


def _is_entry(value: Any) -> bool:
    return value is None or isinstance(value, int | float)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def _is_sane(value: Any, depth: int = 0) -> bool:
    """Say whether all whole numbers inside are such as arrays can hold, and nothing lies deeper than we write."""
    if isinstance(value, int):
        return abs(value) < 1 << 62
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < DEEPEST and all(
        _is_sane(one, depth + 1) for one in inside if isinstance(one, int | dict | list) and not isinstance(one, bool)
    )


def newer(version: object) -> bool:
    """Say whether a version is newer than this one."""

    def parts(text: str) -> list[int]:
        return [int("".join(filter(str.isdigit, part)) or 0) for part in text.split(".")[:3]]

    return parts(str(version)) > parts(__version__)


def _step_done(round: int, step: Mapping[str, Any]) -> StepDone:
    here, missing = (np.array(step.get(name, ()), dtype=np.int64).reshape(-1) for name in ("clients", "missing"))
    return StepDone(round, str(step["kind"]), here, missing, int(step.get("times", 1)))


def _client_updates(round: int, steps: Sequence[Mapping[str, Any]]) -> list[tuple[np.ndarray, ...]]:
    found: list[tuple[np.ndarray, ...]] = []
    for step in steps:
        if step["kind"] not in TRAINS:
            continue
        here, missing = np.repeat(step["clients"], step.get("client_updates", 1)).tolist(), step.get("missing", ())
        size = len(here) + len(missing)
        update_norm, cut, biased = np.full((3, size), np.nan)
        told = step.get("update_norm", {})
        update_norm[: len(here)] = np.array([told.get(str(c)) for c in here], dtype=np.float64)
        if metrics := step.get("metrics"):
            own = [metrics.get(str(c), {}) for c in here]
            cut[: len(here)] = np.array([m.get("cut") for m in own], dtype=np.float64)
            biased[: len(here)] = np.array([m.get("biased") for m in own], dtype=np.float64)
        clients = np.array([*here, *missing], dtype=np.int64)
        found.append((np.full(size, round), clients, np.arange(size) < len(here), update_norm, cut, biased))
    return found


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else np.nan  # `_is_sane` has seen to it that it fits
