"""Drivers: the shape of a round, and schedules of labels, which some of them follow.

A driver is a generator of `Step`s; the loop plays a step and sends its `Outcome` back. Probing, chains and several
exchanges inside a round are only different sequences of steps.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, ClassVar

from fedstrata.core.errors import RequestError
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_side import ServerSide
from fedstrata.core.steps import Select, Steps, View


class Schedule(ServerSide):
    """Which labels the model sees next. A driver that can follows it: "chain" and "sync".

    Both follow `Stratified`: derive from that, and write `frequencies` or `epoch`. `check_schedule` checks it.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import numpy as np
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class RareTwice(fedstrata.Stratified):
    ...     '''Labels with fewer samples than the median stand twice in the schedule.'''
    ...
    ...     def frequencies(self, totals):
    ...         return np.where(totals < np.median(totals), 2, 1)
    >>> overrides = {"method.schedule": RareTwice(), "method.driver": "chain", "train.rounds": 1}
    >>> fedstrata.train(overrides=overrides).summary["rounds"]
    1
    """

    @property
    def sampler(self) -> Sampler | None:
        """How clients find the samples that the schedule asks for; None: they are asked for nothing special."""
        return None

    def hiding_counts(self) -> Schedule:
        """Return the schedule to follow where nobody may learn how many samples of a label a client holds.

        Returns
        -------
        Schedule
            This one, if nothing in it tells.

        Raises
        ------
        RequestError
            If it cannot do without.
        """
        return self


class Driver(ServerSide):
    """The shape of a round: which steps, in which order.

    Write `round`; `init` if it remembers. `check_driver` checks it.

    Attributes
    ----------
    steps_at_server
        True: reports are gradients, and the optimizer's steps happen at the server.
    side_by_side
        Whether a step's reports are those of selected clients, from one model; False, as in a chain: combiners that
        compare clients refuse the driver.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class Twice(fedstrata.Driver):
    ...     '''Selected clients train, and those that reported train again from the model in between.'''
    ...
    ...     def round(self, state, view, select):
    ...         asks = yield from select()
    ...         first = yield fedstrata.Step(tuple(asks))
    ...         reported = {report.client for report in first.reports}
    ...         yield fedstrata.Step(tuple(ask for ask in asks if ask.client in reported))
    >>> run = fedstrata.train(overrides={"method.driver": Twice(), "train.rounds": 1})
    >>> run.summary["client_updates"]  # 10 of 20 clients, twice
    20
    """

    steps_at_server: ClassVar[bool] = False
    side_by_side: ClassVar[bool] = True

    @property
    def chained(self) -> bool:
        """Whether the model goes from client to client."""
        return not self.side_by_side and not self.steps_at_server

    @property
    def together(self) -> bool:
        """Whether clients compute together, or steps are played as one.

        Workers of other processes have no part in it.
        """
        return False

    def following(self, schedule: Schedule) -> Driver:
        """Return the driver that takes its steps from a schedule of labels.

        Parameters
        ----------
        schedule
            The one that the experiment asks for.

        Returns
        -------
        Driver

        Raises
        ------
        RequestError
            If this driver follows no schedule.
        """
        raise RequestError(
            'method.schedule is not followed by this method.driver; use method.driver = "chain" or "sync"'
        )

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
    def round(self, state: Any, view: View, select: Select) -> Steps:
        """Yield the steps of one round; each gives its `Outcome` back.

        Parameters
        ----------
        state
            What `init` made.
        view
            The round.
        select
            Lets the selector choose, once a round or more often: `asks = yield from select()` gives the selected
            clients, a list of `Ask`s in order of id. Pass them on, or change them with `dataclasses.replace`.

        Returns
        -------
        generator of Step
        """
        raise NotImplementedError
