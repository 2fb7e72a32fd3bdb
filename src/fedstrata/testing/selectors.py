"""Selectors that answer in every way a selector may: a driver must get along with each of them."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.server_parts import Selector
from fedstrata.core.steps import Ask, Outcome, Step, View


@dataclass(frozen=True)
class PlainIds(Selector):
    """Gives ids, as many as are wanted; other ones every round."""

    def select(self, state: None, view: View) -> list[int]:
        """Go round in a ring."""
        ring = view.eligible.tolist()
        at = view.round % len(ring)
        return [*ring[at:], *ring[:at]][: view.k]


@dataclass(frozen=True)
class FullAsks(Selector):
    """Asks everybody, with a weight, a chance and a config of their own."""

    tells_chances: ClassVar[bool] = True

    def select(self, state: None, view: View) -> list[Ask]:
        """Return everything that an ask can hold."""
        return [self.ask(client) for client in reversed(view.eligible.tolist())]

    @staticmethod
    def ask(client: int) -> Ask:
        """Say what a client is asked for."""
        return Ask(client, {"epochs": 1, "checked": client}, weight=1 + client / 8, chance=0.5)


def count_labels(context: ClientContext) -> Done:
    """Tell how many samples of label 0 a client has."""
    return Done(metrics={"checked_zeros": int((context.client.labels == 0).sum())})


@dataclass(frozen=True)
class ProbesFirst(Selector):
    """Asks all clients something, twice, before it chooses."""

    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({"check-probe": count_labels})

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read what the probe tells."""
        return ("checked_zeros",) if kind in self.programs else ()

    def select(self, state: None, view: View) -> Generator[Step, Outcome, list[int]]:
        """Take those that hold most of label 0."""
        zeros = dict.fromkeys(view.eligible.tolist(), 0)
        for _ in range(2):
            probe = yield Step(tuple(map(Ask, zeros)), kind="check-probe", model=False, combine=False)
            zeros |= {r.client: int(r.metrics["checked_zeros"]) for r in probe.reports}  # type: ignore[arg-type]
        return sorted(zeros, key=lambda client: -zeros[client])[: view.k]


@dataclass(frozen=True)
class MoreThanWanted(Selector):
    """Asks everybody, however few are wanted, as one that asks in reserve does."""

    def select(self, state: None, view: View) -> list[int]:
        """Take all."""
        return list(view.eligible.tolist())


@dataclass(frozen=True)
class FewerThanWanted(Selector):
    """Asks one client, then nobody, then one again."""

    def select(self, state: None, view: View) -> list[int]:
        """Take one in every other round."""
        return list(view.eligible[: 1 - view.round % 2].tolist())


SELECTORS = (PlainIds(), FullAsks(), ProbesFirst(), MoreThanWanted(), FewerThanWanted())
