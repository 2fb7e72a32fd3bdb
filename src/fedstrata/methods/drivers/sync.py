"""Stratify (arXiv 2504.13462), batch-data learning: global batches along the label schedule.

Clients reserve samples, compute gradients at the same model while their batch norms meet, and the server steps along
the exact gradient of the global batch. Run by messages, or as one client update of a machine that holds everybody's
samples: both give the same model and the same account of what was sent.

What travels may be made smaller: gradients go up in 16 or 8 bits or as their largest numbers (`up`), and what that
loses a client adds to what it sends next; the model goes down in 16 bits (`down`), and the server keeps the exact one.
That is ours. To accumulate several batches locally is a larger `train.batch_size`: gradients at one model, summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, ClassVar, Literal, cast

import torch

from fedstrata.core.client_context import ClientContext, Done, Program
from fedstrata.core.compression import HALVES, Compression, Form, expand
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Value
from fedstrata.core.options import Share
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Driver, Schedule
from fedstrata.core.steps import Ask, Select, Step, Steps, View
from fedstrata.methods.combiners.size import SizeWeighted
from fedstrata.methods.combiners.uniform import Uniform
from fedstrata.methods.drivers.fused import FusedUpdates, Stock
from fedstrata.methods.drivers.scheduled import (
    Account,
    Exchanges,
    ScheduledDriver,
    Slice,
    expect_stratified,
    next_of,
    read_refusals,
)
from fedstrata.methods.schedules.batches import Reserve, batches
from fedstrata.methods.schedules.fill import fill
from fedstrata.methods.schedules.lots import lots
from fedstrata.methods.schedules.take import Take

RESIDUAL = "residual"  # in a client's state: what compression lost so far, as a sum over samples


@dataclass(frozen=True)
class Sync(Driver):
    """Clients compute the gradients of one global batch together; the server takes every step."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"

    up: Form = "full"  # how gradients travel: as they are, in bf16, fp16 or int8, or their largest numbers (top-k)
    top: Share = 0.01  # share of the numbers that top-k sends
    down: Literal["full", "bf16", "fp16"] = "full"  # how the model travels

    def following(self, schedule: Schedule) -> Driver:
        """Take global batches from a schedule."""
        if self.up != "top-k" and self.top != Sync.top:
            raise RequestError(f'method.driver.top = {self.top:g} belongs to method.driver.up = "top-k"')
        return GlobalBatches(expect_stratified(schedule), Compression(self.up, self.top), HALVES.get(self.down))

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse to work without a schedule."""
        return 'a global batch is filled by a schedule; set method.schedule = "stratified"'

    def round(self, state: None, view: View, select: Select) -> Steps:
        """Never reached: `conflicts` refuses."""
        raise RequestError("sync needs a schedule")


@dataclass(frozen=True)
class GlobalBatches(ScheduledDriver):
    """Global batches along a schedule of labels."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"
    steps_at_server: ClassVar[bool] = True

    up: Compression = field(default_factory=Compression)
    down: torch.dtype | None = None

    @property
    def compresses(self) -> bool:
        """Whether anything travels smaller than it is."""
        return self.up.form != "full" or self.down is not None

    @property
    def programs(self) -> Mapping[str, Program]:  # type: ignore[override]
        """Clients send gradients as small as was asked for."""
        return {"gradient": self.compressed_gradient} if self.up.form != "full" else {}

    def compressed_gradient(self, context: ClientContext) -> Done:
        """Send the gradient of what is held, and what was lost of those before; keep what is lost of this one."""
        done = cast(Take, self.schedule.sampler).gradient(context)
        samples = cast(int, done.samples)
        exact = done.aggregated["update"] * samples  # the server weighs by samples: sums are what must not be lost
        if (residual := context.client_state.get(RESIDUAL)) is not None:
            exact = exact + residual.to(exact)
        sent = self.up.compress("update", exact / samples)
        lost = exact - samples * expand(sent)["update"].to(exact)
        return replace(done, aggregated=sent, client_state={**done.client_state, RESIDUAL: lost})

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse what acts on local steps, of which there are none."""
        if reason := super().conflicts(plan):
            return reason
        for option in ("chunk", "pool", "slack"):
            if getattr(self.schedule, option) != getattr(type(self.schedule), option):
                return f"method.schedule.{option} plans single samples, which a global batch does not; leave it out"
        if plan.local.parts:
            return f"{next(iter(plan.local.parts))} works on local steps, and a global batch has none"
        if any(norm.momentum == 0 for norm in plan.space.norms):
            return "a batch norm with momentum = None (or 0) cannot be synchronised; give it a momentum"
        if plan.combiner.individual and self.up.form != "full":
            return (
                f'method.driver.up = "{self.up.form}" sends parts of gradients, and the combiner looks at single ones'
            )
        if plan.combiner == Uniform():
            return 'the mean of client means is not the gradient of a batch; use method.combiner = "size"'
        if self.schedule.clients == "binomial":
            if plan.combiner != SizeWeighted():
                return 'clients that draw lots all weigh the same; use method.combiner = "size"'
            if self.up.form != "full":
                return f'method.driver.up = "{self.up.form}" is not made for clients that draw lots; use "full"'
            if self.schedule.replacement is False:
                return 'method.schedule.clients = "binomial" draws with replacement; leave replacement out'
        return None

    def multiple(self, view: View) -> int:
        """End a round with a whole batch."""
        return view.batch_size

    def least(self, view: View) -> int:
        """Return the size of the smallest batch: batch norm has nothing to normalise over in a batch of one."""
        return 2 if view.space.normed else 1

    def by_messages(self, view: View, now: Slice) -> Exchanges:
        """Deal the batches out, or let clients draw lots."""
        return (self._draw_lots if self.schedule.clients == "binomial" else self._deal_batches)(view, now)

    def _draw_lots(self, view: View, now: Slice) -> Exchanges:
        """Let every holder draw what it gives, and compute gradients together."""
        moves = lots(now.epoch, now.pools, now.until, view.batch_size, view.fewest)
        totals, steps = self.schedule.totals(view.client_info), ceil(now.entries / view.batch_size)
        there, client_updates, done = None, 0, 0
        while (move := next_of(moves, there)) is not None:
            config: dict[str, Value] = {
                "strata": move.strata,
                "entries": move.entries,
                "totals": tuple(int(totals[stratum]) for stratum in move.strata),
                "asked": len(move.clients),
            }
            asks, part = tuple(Ask(client, config) for client in move.clients), (min(done, steps - 1), steps)
            outcome = yield Step(asks, kind="gradient", buffers=False, together="samples", part=part, down=self.down)
            there = [r.client for r in outcome.reports]
            client_updates, done = client_updates + len(asks), done + 1
        return client_updates, 0

    def _deal_batches(self, view: View, now: Slice) -> Exchanges:
        """Reserve samples, then compute gradients together."""
        moves = batches(now.epoch, now.pools, now.until, view.batch_size, self.least(view), view.fewest)
        answers, steps = None, ceil(now.entries / view.batch_size)
        client_updates = refused = done = 0
        while (move := next_of(moves, answers)) is not None:
            if isinstance(move, Reserve):
                about = {"epoch": now.epoch.number, "batch": move.batch}
                asks = tuple(Ask(client, {"labels": tuple(codes), **about}) for client, codes in move.codes.items())
                outcome = yield Step(asks, kind="reserve", model=False, combine=False)
                answers = {r.client: read_refusals(r.metrics) for r in outcome.reports}
                refused += sum(map(len, answers.values()))
                continue
            asks = tuple(Ask(client) for client in move.codes)
            part = (min(done, steps - 1), steps)
            outcome = yield Step(asks, kind="gradient", buffers=False, together="samples", part=part, down=self.down)
            answers = {r.client: [] for r in outcome.reports}
            client_updates, done = client_updates + len(asks), done + 1
        return client_updates, refused

    def fused(self, view: View, now: Slice) -> tuple[Step, Account]:
        """Fill all batches, and let one trainer train on them."""
        stock, steps = Stock.of(self.schedule, view, now.pools), ceil(now.entries / view.batch_size)
        filling = view.batch_size, self.least(view), bool(self.schedule.replacement)
        filled = fill(now.epoch, now.pools, stock.counts, now.until, *filling)
        stock.note_messages(filled.asked, filled.requests, filled.refused, filled.exhausted, overhead_bytes=2)
        fused_updates, sizes = FusedUpdates.through(now.epoch.number, filled), filled.sizes
        parts, client_updates = [min(i, steps - 1) for i in range(len(sizes))], len(fused_updates.who)
        handed = client_updates, client_updates, 0
        if self.up.form != "full":  # not run in earnest, but rehearsed to know its cost
            handed = client_updates, 0, 0
            stock.told_up += client_updates * self.up.nbytes(view.space.P)
        how: dict[str, Any] = {"kind": "gradient", "buffers": False, "part": (0, steps), "down": self.down}
        return fused_updates.step(stock, sizes, parts, handed, **how), (client_updates, stock.refused)
