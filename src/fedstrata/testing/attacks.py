"""Clients that lie, to see what a method makes of them: an engine some of whose clients are attackers.

In an experiment file

    [engine]
    kind = "fedstrata.testing.attacks:Attackers"
    attack = "sign-flip"
    share = 0.2

or, from Python, `{"engine": Attackers(attack="sign-flip", share=0.2)}`. Attackers train as everybody does, then send
something else; those of `label-flip` train on wrong labels. `inner-product` attackers know what the honest clients of
their step send. `lie` is what a single client says, for a site of one's own making.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fedstrata.core.client_parts import ClientPlan
from fedstrata.core.engine import Engine
from fedstrata.core.events import Log
from fedstrata.core.messages import Report, Task, fast_replace
from fedstrata.core.options import BelowOne, Positive
from fedstrata.core.rng import Rng, Streams
from fedstrata.core.steps import Step
from fedstrata.core.wrapped_engine import RevisedEngine
from fedstrata.data.federation import Federation
from fedstrata.engines.local.start import LocalEngineOptions

Attack = Literal["sign-flip", "scaling", "label-flip", "gaussian", "inner-product", "lying-counts", "free-rider"]
Lie = Callable[[Report, Sequence[Report], float, Rng], Report]  # own report, honest ones, strength, draws
ATTACKS: tuple[Attack, ...] = get_args(Attack)
STRENGTHS: Mapping[Attack, float] = {  # how strong each is, unless it is said
    "sign-flip": 5.0,  # times the own update
    "scaling": 10.0,  # the same
    "gaussian": 10.0,  # times the length of the own update
    "inner-product": 5.0,  # times the mean of the honest updates
    "lying-counts": 1e15,  # samples
}


def sign_flip(own: Report, honest: Sequence[Report], strength: float, rng: Rng) -> Report:
    """Send the opposite of what was learned (Li et al., RSA, AAAI 2019)."""
    return _sending(own, own.aggregated["update"] * -strength)


def scaling(own: Report, honest: Sequence[Report], strength: float, rng: Rng) -> Report:
    """Send so much of it that it outweighs all others (Bagdasaryan et al., AISTATS 2020)."""
    return _sending(own, own.aggregated["update"] * strength)


def gaussian(own: Report, honest: Sequence[Report], strength: float, rng: Rng) -> Report:
    """Send noise (Blanchard et al., NeurIPS 2017)."""
    update = own.aggregated["update"]
    noise = torch.from_numpy(rng.normal(size=update.shape)).to(update)
    return _sending(own, noise * (strength * update.norm() / noise.norm()))


def inner_product(own: Report, honest: Sequence[Report], strength: float, rng: Rng) -> Report:
    """Send the opposite of what the honest clients learned together (Xie et al., Fall of Empires, UAI 2019)."""
    updates = [report.aggregated["update"] for report in honest or [own]]
    return _sending(own, torch.stack(updates).mean(0) * -strength)


def lying_counts(own: Report, honest: Sequence[Report], strength: float, rng: Rng) -> Report:
    """Send the opposite of what was learned, no longer than others', and claim to have learned it from most samples."""
    return fast_replace(_sending(own, -own.aggregated["update"]), samples=int(strength))


def free_rider(own: Report, honest: Sequence[Report], strength: float, rng: Rng) -> Report:
    """Send nothing, as if it were something: a model for no work (Lin et al., Free-riders, 2019)."""
    return _sending(own, torch.zeros_like(own.aggregated["update"]))


LIES: Mapping[str, Lie] = {
    "sign-flip": sign_flip,
    "scaling": scaling,
    "gaussian": gaussian,
    "inner-product": inner_product,
    "lying-counts": lying_counts,
    "free-rider": free_rider,
}


def lie(
    attack: Attack,
    own: Report,
    honest: Sequence[Report] = (),
    strength: float | None = None,
    rng: Rng | None = None,
) -> Report:
    """Return what an attacker reports in the place of its own report; `label-flip` attackers report what they learned.

    Examples
    --------
    >>> import torch
    >>> from fedstrata.core.messages import Report
    >>> own = Report(client=0, samples=50, aggregated={"update": torch.tensor([1.0, -2.0])})
    >>> lie("sign-flip", own).aggregated["update"].tolist()
    [-5.0, 10.0]
    >>> lie("lying-counts", own).samples
    1000000000000000
    """
    if attack not in LIES or "update" not in own.aggregated:
        return own
    return LIES[attack](own, honest, strength or STRENGTHS.get(attack, 1.0), rng or np.random.default_rng(0))


@dataclass(frozen=True)
class Attackers(LocalEngineOptions):
    """The local engine, some of whose clients lie."""

    attack: Attack = "sign-flip"
    share: BelowOne = 0.2  # of the clients
    strength: Positive | None = None  # none given: that of `STRENGTHS`

    def who(self, streams: Streams, clients: int) -> list[int]:
        """Draw the attackers: the same ones for every attack, and more of them with a larger share."""
        order = streams("attackers").permutation(clients)
        return sorted(order[: round(self.share * clients)].tolist())

    def start(self, local: ClientPlan, federation: Federation, client_updates: int, log: Log) -> Engine:  # type: ignore[override]
        """Start the workers, and put the attackers among their clients."""
        who = self.who(local.streams, len(federation))
        if self.attack == "label-flip":
            federation = flip_labels(federation, who)
        engine = super().start(local, federation, client_updates, log)
        remark = f"{len(who)} of {len(federation)} clients attack ({self.attack})" if who else None
        log("engine", wall={"remark": remark, "attackers": who})
        return AttackedEngine(engine, self, who, local.streams) if who else engine


class AttackedEngine(RevisedEngine):
    """An engine some of whose clients send something else than they learned."""

    def __init__(self, engine: Engine, attackers: Attackers, who: Sequence[int], streams: Streams):
        super().__init__(engine)
        self.can_fuse = False  # each sends a report of its own
        self._attackers, self._who, self._streams = attackers, frozenset(who), streams

    def revise(self, step: Step, tasks: Sequence[Task], reports: Sequence[Report]) -> Mapping[int, Report]:
        """Let attackers lie about what makes the next model."""
        liars = [report.client for report in reports if report.client in self._who and report.finite]
        if not step.combine or not liars:
            return {}
        whole, first, asked = self._engine.each(), tasks[0], self._attackers
        honest = [whole[r.client] for r in reports if r.client not in self._who and r.finite]

        def told(client: int) -> Report:
            rng = self._streams("attack", first.round, first.step, client)
            return lie(asked.attack, whole[client], honest, asked.strength, rng)

        return {client: told(client) for client in liars}


def flip_labels(federation: Federation, clients: Sequence[int]) -> Federation:
    """Return a federation some of whose clients have the labels of their training samples the other way round."""
    y = federation.train.y.clone()
    for client in clients:
        rows = torch.from_numpy(federation.train_split[client])
        y[rows] = len(federation.classes) - 1 - y[rows]
    return replace(federation, train=replace(federation.train, y=y))


def _sending(own: Report, update: Tensor) -> Report:
    """Return a report with another update; its length is as long as it is."""
    return fast_replace(own, aggregated={**own.aggregated, "update": update}, update_norm=float(update.norm()))
