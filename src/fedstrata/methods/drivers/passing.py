"""Stratify (arXiv 2504.13462), single-sample learning: the model travels along the label schedule.

Run hop by hop, or as one client update of a machine that holds everybody's samples; both give the same model and the
same account of what was sent. When an epoch is over, everybody gets the model (figure 1, a7).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Literal

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.messages import Value
from fedstrata.core.plan import Plan
from fedstrata.core.steps import Ask, Step, Steps, View
from fedstrata.methods.drivers.fused import FusedUpdates, Stock
from fedstrata.methods.drivers.scheduled import (
    Account,
    Exchanges,
    ScheduledDriver,
    Slice,
    next_of,
    read_refusals,
)
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.hops import Hop, Refused, hops
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.methods.schedules.supply import without
from fedstrata.methods.server_steps.sgd import ServerSgd

DELIVER = "deliver"  # the kind of the step in which everybody gets the model


def receive(context: ClientContext) -> Done:
    """Take the model of a finished epoch; there is nothing to say to it."""
    return Done(samples=0)


@dataclass(frozen=True)
class Passing(ScheduledDriver):
    """The model travels from client to client along a schedule of labels, one sample a step."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"
    programs: ClassVar[Mapping[str, Program]] = MappingProxyType({DELIVER: receive})

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse what does not fit steps on single samples."""
        if self.schedule.clients == "binomial":
            return 'with method.schedule.clients = "binomial" clients fill global batches; use method.driver = "sync"'
        if plan.server_steps["server_step"] != ServerSgd():
            return 'a chain takes the last model as it is; use method.server_step = "sgd" with lr = 1, momentum = 0'
        if plan.local.optimizer.declare_memory(plan.space) and plan.local.optimizer.state != "carried":
            return 'an optimizer with memory must carry it from hop to hop: train.optimizer.state = "carried"'
        if plan.space.normed:
            return "single samples have no batch statistics; choose a model without batch norm (model.name, model.norm)"
        if self.schedule.chunk == 1 and (self.schedule.slack or self.schedule.pool != Stratified.pool):
            return "method.schedule.pool and slack plan several entries ahead; set method.schedule.chunk above 1"
        if self.schedule.slack and self.schedule.strata == "none":
            return 'method.schedule.slack changes the order of labels, of which strata = "none" knows nothing'
        return super().conflicts(plan)

    def route(self, now: Slice) -> Generator[Hop, Refused, None]:
        """Plan the way of the model."""
        return hops(now.epoch, now.pools, now.until, self.schedule.chunk, self.schedule.slack)

    def close_epoch(self, view: View, epoch: Epoch) -> Steps:
        """Send the model to everybody who is there."""
        here = [client for client in view.eligible.tolist() if client not in epoch.supply.gone]
        yield Step(tuple(map(Ask, here)), kind=DELIVER, combine=False)

    def by_messages(self, view: View, now: Slice) -> Exchanges:
        """Ask one client after another."""
        route, answer = self.route(now), None
        client_updates = refused = 0
        source: Literal["server", "peer"] = "server"
        while (hop := next_of(route, answer)) is not None:
            next_up = -1 if hop.next is None else hop.next
            config: dict[str, Value] = {"labels": tuple(hop.codes), "epoch": now.epoch.number, "next": next_up}
            sink: Literal["server", "peer"] = "server" if hop.next is None else "peer"
            outcome = yield Step((Ask(hop.client, config),), source=source, sink=sink, part=now.part)
            answer = None if outcome.missing else read_refusals(outcome.reports[0].metrics)
            client_updates, refused, source = client_updates + 1, refused + len(answer or ()), sink
        return client_updates, refused

    def fused(self, view: View, now: Slice) -> tuple[Step, Account]:
        """Find the way, and let one trainer go it."""
        route, answer = self.route(now), None
        stock, fused_updates = Stock.of(self.schedule, view, now.pools), FusedUpdates(now.epoch.number)
        parts: list[int] = []
        from_server = to_server = 0
        at_server = True  # where the model is
        while (hop := next_of(route, answer)) is not None:
            from_server, to_server = from_server + at_server, to_server + (hop.next is None)
            at_server = hop.next is None
            answer = stock.refuses(hop.client, hop.codes, overhead_bytes=2)
            given = without(hop.codes, answer) if answer else hop.codes
            parts += [now.part[0]] * len(given)
            fused_updates.add_update(hop.client, given, turn=len(fused_updates.who))
        handed = from_server, to_server, len(fused_updates.who) - from_server
        step = fused_updates.step(stock, [1] * len(parts), parts, handed, part=(0, now.entries))
        return step, (len(fused_updates.who), stock.refused)
