"""A plan: the parts of a run, composed and checked against each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.errors import PartError, RequestError
from fedstrata.core.events import Log
from fedstrata.core.flat_model import ParameterSpace
from fedstrata.core.part import Part
from fedstrata.core.rng import Streams
from fedstrata.core.sampler import Sampler
from fedstrata.core.server_parts import Combiner, Driver, Selector, ServerSide, ServerStep
from fedstrata.core.steps import View
from fedstrata.core.storage.tree import StateError
from fedstrata.core.system import System


@dataclass(frozen=True)
class Plan:
    """Every stage of a run: what `Part.conflicts` looks at. Frozen and without state.

    Attributes
    ----------
    driver, selector, combiner
        The parts at the server.
    server_steps
        By name: the server step first, then the server halves of corrections.
    system
        Devices and network.
    local
        The client side: `local.sampler`, `local.parts` (corrections and meters by name), `local.optimizer`,
        `local.epochs`, `local.batch_size`.
    space
        Layout of the model.
    rounds
        How many will be run at most.
    clients_per_round
        As in the experiment: a count, a fraction or "all".
    why_not_fused
        Why many client updates cannot be executed as one, or None.
    sampler_asked
        What the user asked for, where a schedule brings its own sampler.
    fewest
        Clients whose reports can be summed.
    needs_of_recipe
        What the server was told for the recipe to choose its stages by.
    """

    driver: Driver
    selector: Selector
    combiner: Combiner
    server_steps: Mapping[str, ServerStep]
    system: System
    local: ClientPlan
    space: ParameterSpace
    rounds: int
    clients_per_round: float | int | str
    why_not_fused: str | None = None
    sampler_asked: Sampler | None = None
    fewest: int = 1
    needs_of_recipe: frozenset[str] = frozenset()

    @property
    def streams(self) -> Streams:
        """Random streams of the run."""
        return self.local.streams

    @property
    def server_side(self) -> list[ServerSide]:
        """All parts at the server."""
        return [self.driver, self.selector, self.combiner, self.system, *self.server_steps.values()]

    @property
    def reads_envelope(self) -> bool:
        """Whether a part at the server reads the loss or the length of single reports."""
        return any(part.reads_envelope for part in self.server_side)

    @cached_property
    def broadcasting(self) -> dict[str, ServerStep]:
        """Server steps that send something with the model."""
        silent = ServerStep.broadcast, ServerStep.lend
        return {n: p for n, p in self.server_steps.items() if (type(p).broadcast, type(p).lend) != silent}

    @property
    def needs(self) -> frozenset[str]:
        """What the server must know of its clients."""
        return self.needs_of_recipe.union(*(part.needs for part in self.server_side))

    def view(self, client_info: ClientInfo, round: int, note: Log, clock: float = 0.0) -> View:
        """Return what the server's parts see of a round.

        Parameters
        ----------
        client_info
            What the server knows of its clients.
        round
            Counted from 0.
        note
            Makes an event.
        clock
            Virtual seconds since the run began.

        Returns
        -------
        View
        """
        last = round + 1 >= self.rounds
        ahead = None if last else partial(self.view, client_info, round + 1, clock=clock)
        rng, client_info = partial(self.streams, round=round), client_info.at(round)
        needed = per_round(self.clients_per_round, client_info.clients)  # somebody may have joined
        k = self.system.count_to_ask(needed)
        why_not_fused = (
            "the clients live at sites of their own" if client_info.ground_truth is None else self.why_not_fused
        )
        known = round, self.rounds, k, client_info.holders, client_info, self.space, rng, note
        if not (first := self.local.rate.at(0)):
            raise RequestError("train.lr_schedule: the learning rate of the first round is 0; begin with more")
        decay = self.local.rate.at(round) / first
        more = self.local.batch_size, self.local.epochs, needed, clock, decay, why_not_fused
        view = View(*known, *more, fewest=self.fewest, ahead=ahead)
        eligible = self.system.find_available(view)
        return replace(view, k=min(k, len(eligible)), eligible=eligible)

    @contextmanager
    def naming_states(self) -> Iterator[None]:
        """Say whose state it is that cannot be saved or read; `State` has a field for each part's.

        Returns
        -------
        context manager

        Raises
        ------
        PartError
            With the part and what its state holds.
        """
        try:
            yield
        except StateError as error:
            _, stage, *rest = [*error.path.split("."), ""]
            owners: dict[str, Part] = {"driver": self.driver, "selector": self.selector, "combiner": self.combiner}
            owner = owners.get(stage) or self.server_steps.get(rest[0] if rest else "")
            if owner is None:
                raise
            raise PartError(f"{type(owner).__name__}: its state {error.said}") from None

    @property
    def parts(self) -> dict[str, Part]:
        """All parts, by the key that chose them."""
        return {
            "method.driver": self.driver,
            "method.selector": self.selector,
            "method.combiner": self.combiner,
            "system": self.system,
            "method.sampler": self.local.sampler,
            "train.optimizer": self.local.optimizer,
            "method.server_step": self.server_steps["server_step"],
            **{f"method.corrections ({name})": part for name, part in self.local.parts.items()},
        }

    def check(self) -> None:
        """Refuse stages that cannot work together.

        Raises
        ------
        RequestError
            With the key of the part that does not fit, and its reason.
        """
        for key, part in self.parts.items():
            if reason := part.conflicts(self) or self._too_few(part):
                raise RequestError(f"{key} does not fit this plan: {reason}")

    def _too_few(self, part: Part) -> str | None:
        if not isinstance(part, Combiner) or part.fewest == 1 or not self.driver.chained:
            return None
        return f"it compares at least {part.fewest} clients that train side by side"


def per_round(asked: float | int | str, clients: int) -> int:
    """Return the clients of a round from a fraction, a count or "all"; a count may be more than there are."""
    if asked == "all":
        return clients
    if isinstance(asked, int):
        return asked
    return max(1, math.floor(float(asked) * clients + 1e-9))
