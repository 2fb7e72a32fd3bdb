"""Combiners: how the updates that arrived become one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import numpy as np

from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Report, Sums
from fedstrata.core.server_side import ServerSide
from fedstrata.core.steps import View


class Arrived(Protocol):
    """The reports of a step, as much of them as the server may see: what a combiner works on."""

    @property
    def reports(self) -> Sequence[Report]:
        """Open halves of the reports that arrived."""

    @property
    def weights(self) -> np.ndarray:
        """How often each report counts: 1, unless the selector said otherwise."""

    @property
    def chances(self) -> np.ndarray:
        """How likely each client was to be asked; NaN where the selector does not say."""

    def sum(self, weights: Sequence[float] | np.ndarray) -> Sums:
        """Sum what the clients sent.

        Parameters
        ----------
        weights
            One a report, in the order of `reports`.

        Returns
        -------
        Sums
        """

    def each(self) -> Sequence[Report]:
        """Return whole reports, one by one; only for a combiner that is `individual`.

        Returns
        -------
        sequence of Report
            With what each client sent in `aggregated`.
        """


class Combiner(ServerSide):
    """How updates become one.

    Write `combine`; `init` if it remembers. `check_combiner` checks it.

    Attributes
    ----------
    fewest
        Reports that it must have; a step with fewer makes no model, which is an event.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class ByRootOfSize(fedstrata.Combiner):
    ...     '''A client counts by the square root of its samples.'''
    ...
    ...     def combine(self, state, view, model, arrived):
    ...         weights = arrived.weights * np.sqrt([report.samples for report in arrived.reports])
    ...         return arrived.sum(weights / weights.sum())
    >>> run = fedstrata.train(overrides={"method.combiner": ByRootOfSize(), "train.rounds": 1})
    """

    fewest: ClassVar[int] = 1

    def init(self, view: View) -> Any:
        """Make the state, as in `Selector.init`.

        Parameters
        ----------
        view
            Of the first round.

        Returns
        -------
        Any
            What lives through the run, or None.
        """
        return None

    @abstractmethod
    def combine(self, state: Any, view: View, model: FlatModel, arrived: Arrived) -> Sums:
        """Combine the updates of a step.

        Parameters
        ----------
        state
            What `init` made.
        view
            The round.
        model
            The one that was sent.
        arrived
            The reports; at least `fewest`.

        Returns
        -------
        Sums
            `total["update"]` is added to the model, so weights usually sum to 1.
        """
        raise NotImplementedError
