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

import numpy as np

from fedstrata.drive.scheduled import Progress, Scheduled, Slice, Stock, next_of, refusals
from fedstrata.errors import RequestError
from fedstrata.plan import Plan
from fedstrata.schedule.batches import Learn, Refused, Reserve, batches
from fedstrata.schedule.stratified import Stratified
from fedstrata.serverside import Ask, Choice, Driver, Joint, LabelSchedule, Outcome, Step, Steps, View

Moves = Generator[Reserve | Learn, Refused, None]


@dataclass(frozen=True)
class Sync(Driver):
    """Clients compute the gradients of one global batch together; the server takes every step."""

    paper: ClassVar[str] = "Stratify, arXiv 2504.13462"

    def following(self, schedule: LabelSchedule) -> Driver:
        """Take global batches from a schedule."""
        assert isinstance(schedule, Stratified)
        return GlobalBatches(schedule)

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
        if plan.local.parts:
            return f"{next(iter(plan.local.parts))} works on local steps, and a global batch has none"
        if any(norm.momentum == 0 for norm in plan.space.norms):
            return "a batch norm with momentum = None (or 0) cannot be synchronised; give it a momentum"
        return super().conflicts(plan)

    def round(self, state: Progress, view: View, select: Callable[[], Choice]) -> Steps:
        """Play a round's share of the epoch."""
        size = view.batch_size
        now = self.begin(state, view, multiple=size)
        if now.epoch.length == 1 and view.space.norms:
            raise RequestError("a schedule of one entry leaves batch norm nothing to normalise over; give it more")
        moves = batches(now.epoch, now.pools, now.until, size, least=2 if view.space.norms else 1)
        play = self._as_one if view.apart is None else self._by_messages
        visits, refused = yield from play(view, now, moves, ceil(now.entries / size))
        self.end(state, view, now, visits, refused)

    def _by_messages(
        self, view: View, now: Slice, moves: Moves, steps: int
    ) -> Generator[Step, Outcome, tuple[int, int]]:
        visits = refused = done = 0
        answers: Refused | None = None
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

    def _as_one(self, view: View, now: Slice, moves: Moves, steps: int) -> Generator[Step, Outcome, tuple[int, int]]:
        stock = Stock.of(self.schedule, view, now.pools)
        codes: dict[int, list[int]] = {}
        visits: dict[int, int] = {}
        whose: list[int] = []
        turns: list[int] = []
        sizes: list[int] = []
        answers: Refused | None = None
        while (move := next_of(moves, answers)) is not None:
            if isinstance(move, Reserve):
                answers = {client: stock.refuses(client, own, beside=2) for client, own in move.codes.items()}
                continue
            for client, own in move.codes.items():
                codes.setdefault(client, []).extend(own)
                visits[client] = visits.get(client, 0) + 1
                whose += [client] * len(own)
            count = sum(map(len, move.codes.values()))
            turns += [len(sizes)] * count
            sizes.append(count)
            answers = {client: [] for client in move.codes}
        if not sizes:
            return 0, stock.refused
        places = {client: i for i, client in enumerate(codes)}
        total = sum(visits.values())
        joint = Joint(
            whose=np.array([places[client] for client in whose]),
            turns=np.array(turns),
            sizes=np.array(sizes),
            parts=np.minimum(np.arange(len(sizes)), steps - 1),
            visits=np.array([visits[client] for client in codes]),
            handed=(total, total, 0),
            told=(stock.told_down, stock.told_up),
        )
        asks = [Ask(client, {"labels": tuple(own), "epoch": now.epoch.number}) for client, own in codes.items()]
        yield Step(tuple(asks), kind="gradient", buffers=False, joint=joint, part=(0, steps))
        return total, stock.refused
