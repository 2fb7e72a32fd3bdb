"""The server side of a plan: drivers, selectors, combiners, server steps, and what they may see.

A driver or selector is a generator of `Step`s; the loop plays a step and sends its `Outcome` back. Probing,
chains, several exchanges inside a round are only different sequences of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Protocol

import numpy as np

from fedstrata.core.client_context import Program
from fedstrata.core.client_parts import LocalPart
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import Report, Sums, Tensors
from fedstrata.core.part import Part
from fedstrata.core.sampler import Sampler
from fedstrata.core.steps import Choice, Outcome, Scores, Select, Steps, View


class ServerSide(Part):
    """What a part of the server may ask of the clients.

    Attributes
    ----------
    programs
        What clients do for steps of other kinds than "train", by `Step.kind`: functions from `ClientContext` to `Done`.
    individual
        True: the part sees whole updates, one by one, and is refused under masked aggregation.
    """

    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({})
    individual: ClassVar[bool] = False

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Name the numbers that this part reads in the `metrics` of every report; a report without one does not count.

        A site may leave out what it likes: what is not named here may be missing, or be no number.

        Parameters
        ----------
        kind
            Of the step, such as "train".

        Returns
        -------
        tuple of str
        """
        return ()

    @property
    def reads(self) -> str | None:
        """Say in words what this part learns of single clients from their reports; None: nothing."""
        return "every client's whole update" if self.individual else None

    @property
    def reads_envelope(self) -> bool:
        """Whether this part reads `loss` or `update_norm` of single reports: else masked sums hide them."""
        return False

    @property
    def needs(self) -> frozenset[str]:
        """What this part reads of the client info: "sizes", "labels", "totals", "counts", "speeds", "proxy"."""
        return frozenset()

    def meters(self, others: Sequence[LocalPart]) -> Sequence[LocalPart]:
        """Return local parts that this part wants at the clients, to report what it reads.

        Parameters
        ----------
        others
            Corrections and the optimizer, for meters that depend on them.

        Returns
        -------
        sequence of LocalPart
        """
        return ()


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


class ServerStep(ServerSide):
    """A server step, or the server half of a correction.

    The proposal starts as model + combined update; each server step in turn may change it. Write `step`; `init` if it
    remembers. `check_server_step` checks it. A correction with a server half derives from `Correction` and from this.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> import fedstrata
    >>> @dataclass(frozen=True)
    ... class HalfStep(fedstrata.ServerStep):
    ...     '''The model goes a part of the way.'''
    ...
    ...     share: fedstrata.options.Fraction = 0.5
    ...
    ...     def step(self, state, view, model, proposal, sums):
    ...         params = model.params + self.share * (proposal.params - model.params)
    ...         return fedstrata.FlatModel(params, proposal.buffers)
    >>> run = fedstrata.train(overrides={"method.server_step": HalfStep(0.2), "train.rounds": 1})
    """

    def init(self, view: View, model: FlatModel) -> Any:
        """Make the state, as in `Selector.init`.

        Parameters
        ----------
        view
            Of the first round.
        model
            The first one.

        Returns
        -------
        Any
            What lives through the run, or None.
        """
        return None

    def broadcast(self, state: Any) -> Tensors:
        """Return what travels with the model.

        Parameters
        ----------
        state
            What `init` made.

        Returns
        -------
        Mapping
            Tensors by name; the client half of the part finds them in `context.down`.
        """
        return {}

    def lend(self, state: Any) -> Tensors:
        """Return what a worker needs that plays many steps as one, this part's among them; it is not a message.

        Parameters
        ----------
        state
            What `init` made.

        Returns
        -------
        Mapping
            Tensors by name; by default the broadcast.
        """
        return self.broadcast(state)

    def step(self, state: Any, view: View, model: FlatModel, proposal: FlatModel, sums: Sums) -> FlatModel:
        """Return the next proposal.

        Parameters
        ----------
        state
            What `init` made.
        view
            The round.
        model
            The one that was sent.
        proposal
            The next one so far.
        sums
            Of what clients sent; names that the part declared at clients are its own.

        Returns
        -------
        FlatModel
            A new one, or the proposal as it is.
        """
        return proposal

    def model_to_evaluate(self, state: Any, model: FlatModel) -> FlatModel:
        """Return the model to evaluate, where that is not the one to train on.

        Parameters
        ----------
        state
            What `init` made.
        model
            The one to train on.

        Returns
        -------
        FlatModel
        """
        return model
