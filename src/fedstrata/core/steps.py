"""The steps of a round: what a driver or selector can make happen, what it sees, and how the two become steps.

A driver or selector is a generator of `Step`s; the loop runs a step and sends its `Outcome` back. A driver asks with
`asks = yield from select()`. Selectors may answer with ids or with `Ask`s, at once or after probing; none of that
reaches the driver, which always gets a list of `Ask`s in order of id.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

import numpy as np
import torch

from fedstrata.core.batch_norm import By
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.contract import broken, describe, expect_nothing
from fedstrata.core.events import Log
from fedstrata.core.flat_model import FlatModel, ParameterSpace
from fedstrata.core.messages import WHOLE, Fragment, Report, Value
from fedstrata.core.rng import Rng

if TYPE_CHECKING:
    from fedstrata.core.server_parts import Driver, Selector

BY_CHOICE = 'engine.execution = "messages"'  # why client updates are not executed as one: the user said so


@dataclass(frozen=True)
class View:
    """What a server-side part sees of a round.

    Attributes
    ----------
    round
        Counted from 0.
    rounds
        How many will be run at most.
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
    ahead
        `ahead(note)` gives the view of the next round, as it looks from here; None after the last.
    """

    round: int
    rounds: int
    k: int
    eligible: np.ndarray
    client_info: ClientInfo
    space: ParameterSpace
    rng: Callable[..., Rng]
    note: Log
    batch_size: int = 1
    epochs: int = 1
    needed: int = 0
    clock: float = 0.0
    decay: float = 1.0
    why_not_fused: str | None = None
    part: Fragment = WHOLE
    fewest: int = 1
    ahead: Callable[[Log], View] | None = field(default=None, compare=False)


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
    """Many steps whose batches are known before they are run, so that an engine may execute them as one.

    Each client's sampler still says which of its samples come, and in which order; here stands whose turn it is.
    What the single steps would have sent is charged as if they had been run.

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
    down
        The type of numbers in which the model travels; None: that of the run. The server keeps the exact one.
    meanwhile
        What the driver has to do that needs no outcome: an engine may call it while a device computes, or not at all.

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
    down: torch.dtype | None = None
    meanwhile: Callable[[], None] | None = field(default=None, compare=False, repr=False)

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
    means
        Mean loss and length of the updates, where they are known only in the mean: under masked sums.
    """

    step: Step
    at: int
    reports: tuple[Report, ...]
    missing: tuple[int, ...]
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0
    means: tuple[float, float] | None = None


Steps = Generator[Step, Outcome, None]  # what a driver gives: it yields steps, and gets their outcomes


Chosen = Sequence[int | Ask]


Choice = Chosen | Generator[Step, Outcome, Chosen]  # a selector may yield probe steps first


Asking = Generator[Step, Outcome, list[Ask]]


Select = Callable[[], Asking]  # what a driver gets of a selector: `asks = yield from select()`


ALLOWED = "client ids or `Ask`s; to probe first, yield `Step`s and return them at the end"


def select_asks(selector: Selector, state: Any, view: View) -> Asking:
    """Let a selector finish, whether it probes or answers at once; in order of id, so that equal sets are equal."""
    asks = yield from pick_asks(selector, state, view)
    return sorted(asks, key=lambda ask: ask.client)


def pick_asks(selector: Selector, state: Any, view: View) -> Asking:
    """Do the same, in the selector's own order."""
    choice: Any = selector.select(state, view)
    if isinstance(choice, Generator):
        choice = yield from _check_steps(selector, "select", choice, view)
    if not isinstance(choice, Iterable) or isinstance(choice, str | bytes | Mapping):
        raise broken(selector, "select", f"gave {describe(choice)}; allowed: {ALLOWED}")
    asks = [_read_pick(selector, pick) for pick in choice]
    ids = np.array([ask.client for ask in asks], dtype=np.int64)
    there = np.zeros(view.client_info.clients, dtype=bool)
    there[view.eligible] = True
    for strange in ids[(ids < 0) | (ids >= len(there))].tolist():
        raise broken(selector, "select", f"chose client {strange}; there are 0 to {len(there) - 1}")
    if len(away := ids[~there[ids]]):
        raise broken(selector, "select", f"chose client {away[0]}, which is not there; allowed: ids of `view.eligible`")
    if len(np.unique(ids)) != len(ids):
        raise broken(selector, "select", f"asks a client twice: {sorted(ids.tolist())}")
    return asks


def give_feedback(selector: Selector, state: Any, view: View, outcomes: Sequence[Outcome], scores: Scores) -> None:
    """Let a selector learn from a round."""
    learn: Callable[..., Any] = selector.feedback
    expect_nothing(selector, "feedback", learn(state, view, outcomes, scores), "Change `state` in place")


def drive_round(driver: Driver, state: Any, view: View, selector: Selector, selector_state: Any) -> Steps:
    """Return the steps of a round: the driver's, and those with which the selector probes on its behalf."""

    def select() -> Asking:
        return cast(Asking, _Asking(driver, select_asks(selector, selector_state, view)))

    steps: Any = driver.round(state, view, select)
    if not isinstance(steps, Generator):
        allowed = "a generator: it yields a `Step` for every exchange, and gets the `Outcome`"
        raise broken(driver, "round", f"gave {describe(steps)}; allowed: {allowed}")
    yield from _check_steps(driver, "round", steps, view)


class _Asking:
    """What `select()` gives to a driver: only of use behind `yield from`.

    It first yields itself, and goes on only if that came back: whoever loops over it gives nothing back.
    """

    def __init__(self, driver: Driver, asks: Asking):
        self._driver, self._asks, self._begun = driver, asks, False

    def __iter__(self) -> Generator[Any, Any, list[Ask]]:
        self._begun = True
        if (yield self) is not self:
            self._forgotten()
        asks: list[Ask] = yield from self._asks
        return asks

    def _forgotten(self, *_: object) -> NoReturn:
        raise broken(self._driver, "round", "uses what `select()` gives as it is; write `asks = yield from select()`")

    __len__ = __bool__ = __getitem__ = __contains__ = __reversed__ = __index__ = __call__ = _forgotten

    def __getattr__(self, name: str) -> NoReturn:
        self._forgotten()


def _check_steps(part: Driver | Selector, hook: str, steps: Generator[Any, Any, Any], view: View) -> Any:
    """Pass a part's steps on, and refuse what is none."""
    outcome: Any = None
    while True:
        try:
            step = steps.send(outcome)
        except StopIteration as end:
            return end.value
        if isinstance(step, _Asking) and step._begun:
            outcome = step
            continue
        if isinstance(step, _Asking | Generator):
            raise broken(part, hook, "yields a generator where it must yield from it; write `yield from`")
        if not isinstance(step, Step):
            raise broken(part, hook, f"yielded {describe(step)}; allowed: `Step`")
        for ask in step.asks:
            if not 0 <= ask.client < view.client_info.clients:
                raise broken(part, hook, f"asks client {ask.client}; there are 0 to {view.client_info.clients - 1}")
        outcome = yield step


def _read_pick(selector: Selector, pick: Any) -> Ask:
    if isinstance(pick, Ask):
        return pick
    try:
        if isinstance(pick, bool | np.bool_):
            raise TypeError  # Python counts with them, but a mask is no list of ids
        return Ask(index(pick))
    except TypeError:
        raise broken(selector, "select", f"chose {describe(pick)}; allowed: {ALLOWED}") from None
