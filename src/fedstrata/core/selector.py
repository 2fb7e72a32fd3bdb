"""Selectors: which clients train in a round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from fedstrata.core.server_side import ServerSide
from fedstrata.core.steps import Choice, Outcome, Scores, View


class Selector(ServerSide):
    """Which clients train.

    Write `select`; `init` and `feedback` if it remembers. `check_selector` checks it.

    Attributes
    ----------
    tells_chances
        True: every `Ask` says how likely it was, for combiners that weigh by it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import fedstrata
    >>> @dataclass
    ... class Waiting:
    ...     rounds: np.ndarray  # since each client's last report
    >>> @dataclass(frozen=True)
    ... class LongestWait(fedstrata.Selector):
    ...     '''The clients that have waited longest train.'''
    ...
    ...     def init(self, view):
    ...         return Waiting(np.zeros(view.client_info.clients))
    ...
    ...     def select(self, state, view):
    ...         first = np.lexsort((view.client_info.key[view.eligible], -state.rounds[view.eligible]))
    ...         return view.eligible[first[: view.k]].tolist()
    ...
    ...     def feedback(self, state, view, outcomes, scores):
    ...         state.rounds += 1
    ...         state.rounds[[report.client for outcome in outcomes for report in outcome.reports]] = 0
    >>> run = fedstrata.train(overrides={"method.selector": LongestWait(), "train.rounds": 2})
    >>> clients = [step["clients"] for event in run.events() if event["event"] == "round" for step in event["steps"]]
    >>> len(set(clients[0]) | set(clients[1]))  # 10 of 20 clients in each of two rounds
    20
    """

    tells_chances: ClassVar[bool] = False

    def init(self, view: View) -> Any:
        """Make the state.

        Parameters
        ----------
        view
            Of the first round.

        Returns
        -------
        Any
            A dataclass of arrays and plain values, changed in place and saved with every checkpoint; None: no state.
        """
        return None

    @abstractmethod
    def select(self, state: Any, view: View) -> Choice:
        """Choose the clients of a round.

        Parameters
        ----------
        state
            What `init` made.
        view
            The round: at most `view.k` of `view.eligible` are wanted.

        Returns
        -------
        sequence of int or of Ask, or a generator of them
            Ids, or `Ask`s. To probe first, yield a `Step` with `combine=False`, and get its `Outcome`.
        """
        raise NotImplementedError

    def feedback(self, state: Any, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
        """Learn from the round.

        Parameters
        ----------
        state
            What `init` made.
        view
            The round.
        outcomes
            Of its steps, probes included. With `individual`, they hold whole reports.
        scores
            How the new model does, where it was evaluated.
        """
