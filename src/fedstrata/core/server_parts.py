"""The server side of a plan: drivers, selectors, combiners, server steps, and what they may see.

A driver or selector is a generator of `Step`s; the loop plays a step and sends its `Outcome` back. Probing,
chains, several exchanges inside a round are only different sequences of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from fedstrata.core.batch_norm import By
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import LocalPart, Program, Sampler
from fedstrata.core.errors import RequestError
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import WHOLE, Fragment, Report, Sums, Tensors, Value
from fedstrata.core.part import Part
from fedstrata.core.rng import Rng

BY_CHOICE = 'engine.execution = "messages"'  # why client updates are not executed as one: the user said so


@dataclass(frozen=True)
class View:
    """What a server-side part sees of a round.

    Attributes
    ----------
    round
        Counted from 0.
    rounds
        How many will be played at most.
    k
        Clients wanted in this round.
    eligible
        Ids that hold data and are available.
    client_info
        What the server knows of its clients, as far as the part declares it in `needs`.
    space
        Layout of the model.
    rng
        `rng(purpose, step=0, client=-1)` gives a numpy generator, keyed with seed and round. Selectors use the
        purpose "select".
    note
        `note(kind, **fields)` makes an event; every fallback is one: `note("fallback", what=..., used=..., why=...)`.
    batch_size, epochs
        As clients train.
    needed
        Clients wanted in this round before some were asked in reserve.
    clock
        Virtual seconds since the run began.
    decay
        This round's step size at the clients, over that of the first.
    why_not_fused
        Why client updates cannot be executed as one (`FusedSteps`), or None.
    part
        Where in the round the present step is, (i, n).
    fewest
        Clients whose reports can be summed.
    """

    round: int
    rounds: int
    k: int
    eligible: np.ndarray
    client_info: ClientInfo
    space: ParameterSpace
    rng: Callable[..., Rng]
    note: Callable[..., None]
    batch_size: int = 1
    epochs: int = 1
    needed: int = 0
    clock: float = 0.0
    decay: float = 1.0
    why_not_fused: str | None = None
    part: Fragment = WHOLE
    fewest: int = 1


@dataclass(frozen=True)
class Scores:
    """How a model does.

    Attributes
    ----------
    figures
        For the log: "accuracy", "balanced_accuracy", "loss_test" and so on; empty in a round without evaluation.
    clients
        Accuracy of each client that was asked, on its own test data.
    """

    figures: Mapping[str, Any] = field(default_factory=dict)
    clients: Mapping[int, float] = field(default_factory=dict)


Evaluate = Callable[[FlatModel, View], Scores]  # how a model does in a round; without scores, it was not its turn


@dataclass(frozen=True)
class Ask:
    """One client's part in a step.

    Attributes
    ----------
    client
        Its id.
    config
        Travels to it; "epochs" changes how long it trains.
    weight
        How often its report counts, for combiners; stays at the server.
    chance
        How likely it was to be asked; None: the selector does not say. Stays at the server.

    Examples
    --------
    >>> from fedstrata import Ask
    >>> Ask(3, config={"epochs": 1}, chance=0.5)
    Ask(client=3, config={'epochs': 1}, weight=1.0, chance=0.5)
    """

    client: int
    config: Mapping[str, Value] = field(default_factory=dict)
    weight: float = 1.0
    chance: float | None = None

    def __post_init__(self) -> None:
        if type(self.client) is not int:
            try:
                object.__setattr__(self, "client", index(self.client))  # a number of numpy's does not travel
            except TypeError:
                raise ValueError(f"Ask({self.client!r:.60}): a client is named by its id, a whole number") from None
        if not isinstance(self.config, Mapping):
            raise ValueError(f"Ask({self.client}, {self.config!r:.60}): config maps names to values that travel to it")


@dataclass(frozen=True)
class FusedSteps:
    """Many steps whose course is known before they are played, so that an engine may execute them as one.

    Each client's sampler still says which of its samples come, and in which order; here stands whose turn it is.
    What the single steps would have sent is charged as if they had been played.

    Attributes
    ----------
    who
        Of each client update, in order: a place in `Step.asks`.
    runs
        Of each client update: samples.
    turns
        Of each client update: which step of its kind it would have been part of.
    sizes
        Samples of each batch.
    parts
        Of each batch: when in the round, out of `Step.part[1]`.
    handed
        Models (or updates of that size) that went down, up, and from peer to peer.
    told
        Bytes beside, down and up.
    """

    who: np.ndarray
    runs: np.ndarray
    turns: np.ndarray
    sizes: np.ndarray
    parts: np.ndarray
    handed: tuple[int, int, int]
    told: tuple[int, int]


@dataclass(frozen=True)
class Step:
    """One exchange inside a round: the only thing a driver or selector can make happen.

    Attributes
    ----------
    asks
        Who is asked; each client at most once.
    kind
        The client program: "train", or one of the part's own `programs`.
    model
        Send model and broadcast.
    buffers
        Send norm statistics with the model.
    combine
        The reports make a new model; False for a probe.
    source
        Who hands the model over, and is charged for it.
    sink
        Where the model goes; a peer's hop is charged once, to the one who receives.
    together
        Clients meet while they compute: how their norm statistics are averaged. None: they do not.
    fused
        Many steps that an engine may execute as one.
    part
        Where in the round this is, the i-th of n equal parts (i, n): moves learning rates.

    Examples
    --------
    >>> from fedstrata import Ask, Step
    >>> training = Step((Ask(0), Ask(4)))
    >>> probe = Step((Ask(0), Ask(4)), kind="probe-loss", combine=False)
    >>> Step((Ask(4), Ask(4)))
    Traceback (most recent call last):
    ...
    ValueError: a step asks a client twice: [4, 4]
    """

    asks: tuple[Ask, ...]
    kind: str = "train"
    model: bool = True
    buffers: bool = True
    combine: bool = True
    source: Literal["server", "peer"] = "server"
    sink: Literal["server", "peer"] = "server"
    together: By | None = None
    fused: FusedSteps | None = None
    part: Fragment = WHOLE

    def __post_init__(self) -> None:
        if type(self.asks) is not tuple:
            if not isinstance(self.asks, Iterable):
                raise ValueError(f"a step is made of a tuple of Asks, not of {self.asks!r:.60}")
            object.__setattr__(self, "asks", tuple(self.asks))
        if strange := [ask for ask in self.asks if not isinstance(ask, Ask)]:
            raise ValueError(f"a step is made of Asks, and {strange[0]!r:.60} is none; a client is asked by Ask(id)")
        ids = [ask.client for ask in self.asks]
        if len(set(ids)) != len(ids):
            raise ValueError(f"a step asks a client twice: {sorted(ids)}")

    def count_updates(self, clients: Sequence[int]) -> list[int]:
        """Say for how many client updates each client stands: one, unless the step stands for many.

        Parameters
        ----------
        clients
            Ids of clients that are asked.

        Returns
        -------
        list of int
        """
        if self.fused is None:
            return [1] * len(clients)
        counts = np.bincount(self.fused.who, minlength=len(self.asks)).tolist()
        client_updates = dict(zip((ask.client for ask in self.asks), counts, strict=True))
        return [client_updates[client] for client in clients]


@dataclass(frozen=True)
class Outcome:
    """What became of a step.

    Attributes
    ----------
    step
        What was asked.
    at
        Steps before this one in the round.
    reports
        Open halves of the reports that arrived.
    missing
        Clients whose report did not arrive.
    seconds
        What the step took on the virtual clock.
    bytes_up, bytes_down
        What it sent to and from the server.
    """

    step: Step
    at: int
    reports: tuple[Report, ...]
    missing: tuple[int, ...]
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


Steps = Generator[Step, Outcome, None]  # what a driver gives: it yields steps, and gets their outcomes
Chosen = Sequence[int | Ask]
Choice = Chosen | Generator[Step, Outcome, Chosen]  # a selector may yield probe steps first
Asking = Generator[Step, Outcome, list[Ask]]
Select = Callable[[], Asking]  # what a driver gets of a selector: `asks = yield from select()`


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
        """Name what this part reads in the `metrics` of every report; a report without it does not count.

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
    >>> run.summary["rounds"]
    1
    """

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
            The reports; at least one.

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
    >>> run.summary["rounds"]
    1
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


class System(ServerSide):
    """Devices and network: who is available, whose report arrives."""

    @property
    def reliable(self) -> bool:
        """Whether steps are played as asked and every report arrives."""
        return False

    def find_available(self, view: View) -> np.ndarray:
        """Return the eligible ids that can be asked this round."""
        return view.eligible

    def adapt(self, view: View, turn: int, step: Step) -> Step:
        """Change what is asked before it is sent: a slow client may be asked for less work."""
        return step

    def count_to_ask(self, k: int) -> int:
        """Return how many clients to ask where k are wanted."""
        return k

    def count_to_wait_for(self, asked: int, needed: int) -> int:
        """Return how many reports of a training step end the wait; `needed` clients are wanted in a round."""
        return asked

    def time_reports(self, view: View, step: Step, size: int, reports: Sequence[Report]) -> Sequence[Report]:
        """Write on every report how many seconds it took; `size` is the bytes of the model's message."""
        return reports

    def find_lost(self, view: View, turn: int, step: Step, reports: Sequence[Report]) -> set[int]:
        """Return the clients whose report is lost after they did the work; `turn` counts steps of this kind."""
        return set()

    def time_step(self, view: View, step: Step, size: int, reports: Sequence[Report], lost: set[int]) -> float:
        """Return the seconds that the step took on the virtual clock."""
        return max((r.seconds for r in reports if r.client not in lost), default=0.0)
