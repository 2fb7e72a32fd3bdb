"""Stratify (arXiv 2504.13462), single-sample learning: the model travels along the label schedule.

Played hop by hop, or as one visit of a machine that holds everybody's samples; both give the same model and the same
account of what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from fedstrata.combine.server.sgd import Sgd
from fedstrata.drive.scheduled import Progress, Scheduled, Slice, Stock, next_of, refusals
from fedstrata.messages import Value
from fedstrata.plan import Plan
from fedstrata.schedule.hops import Hop, Refused, hops
from fedstrata.schedule.supply import without
from fedstrata.serverside import Ask, Choice, Joint, Outcome, Step, Steps, View

Route = Generator[Hop, Refused, None]


@dataclass(frozen=True)
class Passing(Scheduled):
    """The model travels from client to client along a schedule of labels, one sample a step."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse what does not fit steps on single samples."""
        if plan.servers["server"] != Sgd():
            return 'a chain takes the last model as it is; use method.combine.server = "sgd" with lr = 1, momentum = 0'
        if plan.local.optimizer.slots(plan.space) and plan.local.optimizer.state != "carried":
            return 'an optimizer with memory must carry it from hop to hop: train.optimizer.state = "carried"'
        if plan.batch_norms:
            return "single samples have no batch statistics; use a model with group norm or without norms"
        return super().conflicts(plan)

    def round(self, state: Progress, view: View, select: Callable[[], Choice]) -> Steps:
        """Play a round's share of the epoch."""
        now = self.begin(state, view)
        route = hops(now.epoch, now.pools, now.until, self.schedule.chunk)
        play = self._as_one if view.apart is None else self._by_messages
        visits, refused = yield from play(view, now, route)
        self.end(state, view, now, visits, refused)

    def _by_messages(self, view: View, now: Slice, route: Route) -> Generator[Step, Outcome, tuple[int, int]]:
        answer: Refused = None
        visits = refused = 0
        source: Literal["server", "peer"] = "server"
        while (hop := next_of(route, answer)) is not None:
            next_up = -1 if hop.next is None else hop.next
            config: dict[str, Value] = {"labels": tuple(hop.codes), "epoch": now.epoch.number, "next": next_up}
            sink: Literal["server", "peer"] = "server" if hop.next is None else "peer"
            outcome = yield Step((Ask(hop.client, config),), source=source, sink=sink, part=now.part)
            answer = None if outcome.missing else refusals(outcome.reports[0].meta)
            visits, refused, source = visits + 1, refused + len(answer or ()), sink
        return visits, refused

    def _as_one(self, view: View, now: Slice, route: Route) -> Generator[Step, Outcome, tuple[int, int]]:
        stock = Stock.of(self.schedule, view, now.pools)
        codes: dict[int, list[int]] = {}
        visits: dict[int, int] = {}
        who: list[int] = []  # and the length and time of each hop
        runs: list[int] = []
        parts: list[int] = []
        from_server = to_server = 0
        answer: Refused = None
        source = "server"
        while (hop := next_of(route, answer)) is not None:
            from_server += source == "server"
            to_server += hop.next is None
            source = "server" if hop.next is None else "peer"
            answer = stock.refuses(hop.client, hop.codes, beside=2)
            given = without(hop.codes, answer) if answer else hop.codes
            codes.setdefault(hop.client, []).extend(given)
            visits[hop.client] = visits.get(hop.client, 0) + 1
            who.append(hop.client)
            runs.append(len(given))
            parts.append(now.part[0])
        if not who:
            return 0, 0
        places = {client: i for i, client in enumerate(codes)}
        lengths = np.array(runs)
        joint = Joint(
            whose=np.repeat(np.array([places[client] for client in who]), lengths),
            turns=np.repeat(np.arange(len(who)), lengths),
            sizes=np.ones(int(lengths.sum()), dtype=np.int64),
            parts=np.repeat(np.array(parts), lengths),
            visits=np.array([visits[client] for client in codes]),
            handed=(from_server, to_server, len(who) - from_server),
            told=(stock.told_down, stock.told_up),
        )
        asks = [Ask(client, {"labels": tuple(own), "epoch": now.epoch.number}) for client, own in codes.items()]
        yield Step(tuple(asks), joint=joint, part=(0, now.entries))
        return len(who), stock.refused
