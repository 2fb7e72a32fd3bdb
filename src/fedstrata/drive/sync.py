"""Stratify (arXiv 2504.13462), batch-data learning: global batches along the label schedule.

Clients reserve samples, compute gradients at the same model while their batch norms meet, and the server steps along
the exact gradient of the global batch. Played by messages, or as one visit of a machine that holds everybody's samples:
both give the same model and the same account of what was sent.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from math import ceil
from typing import ClassVar

from fedstrata.combine.uniform import Uniform
from fedstrata.drive.scheduled import Course, Played, Scheduled, Slice, Stock, next_of, refusals, stratified
from fedstrata.errors import RequestError
from fedstrata.plan import Plan
from fedstrata.schedule.batches import Learn, Refused, Reserve, batches
from fedstrata.serverside import Ask, Choice, Driver, LabelSchedule, Step, Steps, View


@dataclass(frozen=True)
class Sync(Driver):
    """Clients compute the gradients of one global batch together; the server takes every step."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"

    def following(self, schedule: LabelSchedule) -> Driver:
        """Take global batches from a schedule."""
        return GlobalBatches(stratified(schedule))

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse to work without a schedule."""
        return 'a global batch is filled by a schedule; set method.schedule = "stratified"'

    def round(self, state: None, view: View, select: Callable[[], Choice]) -> Steps:
        """Never reached: `conflicts` refuses."""
        raise RequestError("sync needs a schedule")


@dataclass(frozen=True)
class GlobalBatches(Scheduled):
    """Global batches along a schedule of labels."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"
    steps_at_server: ClassVar[bool] = True

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse what acts on local steps, of which there are none."""
        if reason := super().conflicts(plan):
            return reason
        if plan.local.parts:
            return f"{next(iter(plan.local.parts))} works on local steps, and a global batch has none"
        if any(norm.momentum == 0 for norm in plan.space.norms):
            return "a batch norm with momentum = None (or 0) cannot be synchronised; give it a momentum"
        if plan.combine == Uniform():
            return 'the mean of client means is not the gradient of a batch; use method.combine = "size"'
        return None

    def multiple(self, view: View) -> int:
        """A round ends with a whole batch."""
        return view.batch_size

    def moves(self, view: View, now: Slice) -> Generator[Reserve | Learn, Refused, None]:
        """Give the exchanges of a round; batch norm has nothing to normalise over in a batch of one."""
        return batches(now.epoch, now.pools, now.until, view.batch_size, least=2 if view.space.normed else 1)

    def by_messages(self, view: View, now: Slice) -> Played:
        """Reserve samples, then compute gradients together."""
        moves, answers, steps = self.moves(view, now), None, ceil(now.entries / view.batch_size)
        visits = refused = done = 0
        while (move := next_of(moves, answers)) is not None:
            if isinstance(move, Reserve):
                about = {"epoch": now.epoch.number, "batch": move.batch}
                asks = tuple(Ask(client, {"labels": tuple(codes), **about}) for client, codes in move.codes.items())
                outcome = yield Step(asks, kind="reserve", model=False, combine=False)
                answers = {r.client: refusals(r.meta) for r in outcome.reports}
                refused += sum(map(len, answers.values()))
                continue
            asks = tuple(Ask(client) for client in move.codes)
            part = (min(done, steps - 1), steps)
            outcome = yield Step(asks, kind="gradient", buffers=False, together="samples", part=part)
            answers = {r.client: [] for r in outcome.reports}
            visits, done = visits + len(asks), done + 1
        return visits, refused

    def as_one(self, view: View, now: Slice) -> Played:
        """Fill all batches, then let one lane train on them."""
        moves, answers, steps = self.moves(view, now), None, ceil(now.entries / view.batch_size)
        stock, course = Stock.of(self.schedule, view, now.pools), Course(now.epoch.number)
        sizes: list[int] = []
        while (move := next_of(moves, answers)) is not None:
            if isinstance(move, Reserve):
                answers = {client: stock.refuses(client, own, beside=2) for client, own in move.codes.items()}
                continue
            for client, own in move.codes.items():
                course.visit(client, own, turn=len(sizes))
            sizes.append(sum(map(len, move.codes.values())))
            answers = {client: [] for client in move.codes}
        parts, visits = [min(i, steps - 1) for i in range(len(sizes))], len(course.who)
        handed = visits, visits, 0
        outcome = yield course.step(stock, sizes, parts, handed, kind="gradient", buffers=False, part=(0, steps))
        return None if outcome.missing else (visits, stock.refused)
