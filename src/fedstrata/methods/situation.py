"""What a recipe that chooses its stages may know of a federation before the first round.

Figures are those of `fedstrata inspect`. What the server must not be told is None, and a recipe chooses without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from fedstrata.data.concentration import concentration
from fedstrata.data.label_table import LabelTable


@dataclass(frozen=True)
class Situation:
    """How skewed a federation is, and how its rounds are set up.

    Attributes
    ----------
    clients, k
        How many there are, and how many train in a round.
    classes
        How many labels there are.
    table
        Label counts of clients that hold something; None where the server is not told.
    wrong_labels
        Share of labels that are known to be wrong, as only a simulation knows it; None: unknown.
    stragglers
        Share of the reports that the experiment loses.
    rounds
        How many there will be at most; 0: not known.
    optimizer
        What clients train with.
    """

    clients: int
    k: int
    classes: int
    table: LabelTable | None = None
    wrong_labels: float | None = None
    stragglers: float = 0.0
    rounds: int = 0
    optimizer: str = "sgd"

    @property
    def updates_each(self) -> float:
        """Client updates of each client by the end, on average."""
        return self.rounds * self.k / self.clients

    @cached_property
    def effective_labels(self) -> float | None:
        """Labels that a client holds in effect, on average."""
        return None if self.table is None else float(self.table.effective.mean())

    @cached_property
    def alpha(self) -> float | None:
        """The equivalent alpha of the partition dirichlet-class."""
        return None if self.table is None else concentration(self.table) / len(self.table.labels)

    @property
    def clusters(self) -> int:
        """Clusters of label mixes to draw from: one a label, at most as many as train in a round."""
        labels = self.classes if self.table is None else len(self.table.labels)
        return max(2, min(labels, self.k, self.clients - 1))


@dataclass(frozen=True)
class StageChoice:
    """A part that was chosen for a stage.

    Attributes
    ----------
    stage
        Such as "selector".
    part
        As it would stand in an experiment file.
    why
        The reason in one clause, with the figure that decided; users read it.
    measured
        The figures it was chosen by; None: not known.
    """

    stage: str
    part: Any  # as it would stand in an experiment file
    why: str
    measured: Mapping[str, float | None] = field(default_factory=dict)  # what it was chosen by; None: not known


Choose = Callable[[Situation], Sequence[StageChoice]]
