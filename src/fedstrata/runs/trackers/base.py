"""What a tracker is told of a run, and what it makes of that."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from fedstrata.core.errors import RequestError
from fedstrata.core.part import Part

How = Literal["finished", "stopped", "failed"]  # by Ctrl-C or a signal; by an error


@dataclass(frozen=True)
class TrackedRun:
    """A run, as a tracker is told of it.

    Attributes
    ----------
    name
        What to call it, such as "fedavg-1".
    folder
        The run folder.
    experiment
        The whole experiment, as nested tables.
    played
        How many rounds were played before: 0, unless a run goes on.
    memory
        What `Recording.memory` held when the run was last tracked; empty the first time.
    """

    name: str
    folder: Path
    experiment: Mapping[str, Any]
    played: int = 0
    memory: Mapping[str, str] | None = None


class Recording(Protocol):
    """One run in one tracker. Its methods are called from one thread, which is not that of the run.

    Attributes
    ----------
    where
        What to type or to open in order to see the run.
    memory
        What finds the run again when it goes on, as text; kept in the run folder.
    """

    where: str
    memory: Mapping[str, str]

    def log(self, round: int, figures: Mapping[str, float]) -> None:
        """Take the figures of a round; a run that was killed may tell the last ones again."""

    def end(self, how: How, summary: Mapping[str, Any], files: Sequence[Path]) -> None:
        """Take the outcome: the summary, the models and the experiment, as far as there are any."""


class Tracker(Part):
    """Where the figures of a run are shown besides its folder. What it raises is an event, and never ends a run.

    Write `start`. `check_tracker` checks it.

    Attributes
    ----------
    modules
        What it imports that fedstrata does not need; a run is refused where one is missing.
    extra
        With which fedstrata brings these.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> class Line:
    ...     def __init__(self, path):
    ...         self.path, self.where, self.memory = path, str(path), {}
    ...
    ...     def log(self, round, figures):
    ...         with self.path.open("a") as file:
    ...             print(f"{round}, {figures['client_updates']:.0f}", file=file)
    ...
    ...     def end(self, how, summary, files):
    ...         pass
    >>> @dataclass(frozen=True)
    ... class Lines(fedstrata.Tracker):
    ...     '''A line a round.'''
    ...
    ...     def start(self, run):
    ...         return Line(run.folder / "lines.csv")
    >>> fedstrata.check_tracker(Lines())
    >>> run = fedstrata.train(overrides={"train.rounds": 2, "track": [Lines()]})
    >>> print((run.path / "lines.csv").read_text())
    1, 10
    2, 20
    """

    modules: ClassVar[tuple[str, ...]] = ()
    extra: ClassVar[str] = ""

    @abstractmethod
    def start(self, run: TrackedRun) -> Recording:
        """Begin to track a run, or go on with it.

        Parameters
        ----------
        run
            What is known of it.

        Returns
        -------
        Recording
        """
        raise NotImplementedError

    def check_installed(self, key: str) -> None:
        """Refuse a run whose tracker is not there, and say how to get it.

        Parameters
        ----------
        key
            Where an experiment asks for it.

        Raises
        ------
        RequestError
            Where a module is missing.
        """
        if missing := [name for name in self.modules if find_spec(name) is None]:
            how = f"; get it with: pip install 'fedstrata[{self.extra}]'" if self.extra else ""
            raise RequestError(f"{key} needs {missing[0]}, which is not installed{how}")
