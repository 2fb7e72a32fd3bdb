"""What drivers that follow a schedule of labels have in common: epochs, and a round's share of them."""

from __future__ import annotations

import copy
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from fedstrata.core.contract import expect
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import REFUSED
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Driver, Schedule
from fedstrata.core.steps import BY_CHOICE, Outcome, Select, Step, Steps, View
from fedstrata.methods.samplers.shuffle import Shuffle
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.methods.schedules.supply import Pools
from fedstrata.methods.selectors.random import Random

Move = TypeVar("Move")
Answer = TypeVar("Answer")

Account = tuple[int, int]  # client updates, and entries that were refused
Exchanges = Generator[Step, Outcome, Account]
ORDER_TOLD = 200  # entries of the first epoch whose labels are told, for a figure


@dataclass
class ScheduleState:
    """Where the run stands in its schedule."""

    epoch: Epoch | None = None
    epochs: int = 0  # begun so far
    rounds: int = 0  # of the present epoch

    def __post_init__(self) -> None:
        self.ahead: Planned | None = None  # the next round's share; no field: what is saved has not happened yet

    def after(self, rounds_per_epoch: int) -> ScheduleState:
        """Return a copy of what is left after a round."""
        going_on = self.epoch if self.rounds < rounds_per_epoch else None
        return ScheduleState(copy.deepcopy(going_on), self.epochs, self.rounds)


@dataclass
class Slice:
    """A round's share of an epoch."""

    epoch: Epoch
    pools: Pools
    start: int  # entries over before it
    until: int  # entries over after it
    lost: int = 0  # samples lost before it

    @property
    def entries(self) -> int:
        """Entries of this round."""
        return max(self.until - self.start, 1)

    @property
    def part(self) -> tuple[int, int]:
        """Where in the round the next entry is."""
        return min(self.epoch.over - self.start, self.entries - 1), self.entries


@dataclass(frozen=True)
class Planned:
    """A share of an epoch that is executed as one, before that happens."""

    view: View
    state: ScheduleState  # once it is over
    now: Slice
    step: Step
    account: Account
    notes: list[tuple[str, dict[str, Any]]]  # what to tell of it, when its time has come

    def suits(self, view: View) -> bool:
        """Say whether the round is the one that was planned for."""
        return view.round == self.view.round and np.array_equal(view.eligible, self.view.eligible)


@dataclass(frozen=True)
class ScheduledDriver(Driver):
    """A driver whose steps come from a schedule of labels."""

    side_by_side: ClassVar[bool] = False

    schedule: Stratified

    @property
    def needs(self) -> frozenset[str]:
        """What the schedule needs."""
        return self.schedule.needs

    def metrics_read(self, kind: str) -> tuple[str, ...]:
        """Read which labels a client refuses, wherever it is asked for some."""
        return (REFUSED,) if kind in ("train", "reserve") else ()

    @property
    def reads(self) -> str | None:
        """Clients say when they run out of a label, unless they start over by themselves."""
        silent = self.schedule.replacement or self.schedule.clients == "binomial"
        return None if silent else "who runs out of which label, and so most clients' label counts"

    def conflicts(self, plan: Plan) -> str | None:
        """Refuse stages that would choose clients or samples beside the schedule."""
        for key, part, own, what in (
            ("method.selector", plan.selector, Random(), "clients"),
            ("method.sampler", plan.sampler_asked, Shuffle(), "samples"),
        ):
            if part != own:  # which was asked for; the driver comes with the schedule
                raise RequestError(f"{key} does not fit this plan: the schedule chooses the {what}; leave {key} out")
        if self.schedule.frequency == "uniform" and self.schedule.cap is not None:
            return 'method.schedule.cap belongs to frequency = "capped"'
        if self.schedule.frequency == "capped" and self.schedule.each is not None:
            return 'method.schedule.each belongs to frequency = "uniform"'
        return None

    @property
    def together(self) -> bool:
        """One trainer follows a schedule, and clients that meet do so in one process."""
        return True

    def init(self, view: View) -> ScheduleState:
        """Start before the first epoch."""
        return ScheduleState()

    def multiple(self, view: View) -> int:
        """Return the number of entries of which a round takes a multiple, until the epoch ends."""
        return 1

    def by_messages(self, view: View, now: Slice) -> Exchanges:
        """Run a round's share of the epoch exchange by exchange."""
        raise NotImplementedError

    def fused(self, view: View, now: Slice) -> tuple[Step, Account]:
        """Plan it as one step, answering for clients that live here."""
        raise NotImplementedError

    def close_epoch(self, view: View, epoch: Epoch) -> Steps:
        """Do what is left to do when an epoch is over; nothing, for most."""
        yield from ()

    def round(self, state: ScheduleState, view: View, select: Select) -> Steps:
        """Run a round's share of the epoch, and what follows the last one."""
        if view.round == 0:
            _remark(self.schedule, view)
        epoch = yield from self._share(state, view)
        if state.epoch is None:
            yield from self.close_epoch(view, epoch)

    def _share(self, state: ScheduleState, view: View) -> Generator[Step, Outcome, Epoch]:
        """Run a share of the epoch, as one step if that is exact and gives a finite model."""
        if view.why_not_fused is None:
            planned, state.ahead = state.ahead, None
            if planned is None or not planned.suits(view):
                planned = self._plan(copy.deepcopy(state), view)
            for kind, fields in planned.notes:
                view.note(kind, **fields)
            outcome = yield replace(planned.step, meanwhile=partial(self._plan_ahead, state, planned))
            if not outcome.missing:
                state.epoch, state.epochs, state.rounds = (
                    planned.state.epoch,
                    planned.state.epochs,
                    planned.state.rounds,
                )
                self.end(state, view, planned.now, planned.account)
                return planned.now.epoch
            # One bad sample spoils everybody's result. Message by message only its client is left out.
            view.note("fallback", what="steps run as one", used="message by message", why="the model is not finite")
            state.ahead = None
        now = self.begin(state, view)
        account = yield from self.by_messages(view, now)
        self.end(state, view, now, account)
        return now.epoch

    def _plan(self, state: ScheduleState, view: View) -> Planned:
        """Plan a round's share, in a state of its own, and keep what there is to tell."""
        notes = list[tuple[str, dict[str, Any]]]()
        view = replace(view, note=lambda kind, **fields: notes.append((kind, fields)))
        now = self.begin(state, view)
        return Planned(view, state, now, *self.fused(view, now), notes)

    def _plan_ahead(self, state: ScheduleState, planned: Planned) -> None:
        """Plan the next round's share while a device computes this one: what is drawn depends on the round alone."""
        if planned.view.ahead is not None:
            after = planned.state.after(self.schedule.rounds_per_epoch)
            with suppress(Exception):  # whatever is wrong with the next round is said in the next round
                state.ahead = self._plan(after, planned.view.ahead(lambda *_, **__: None))

    def begin(self, state: ScheduleState, view: View) -> Slice:
        """Go on with the epoch, or draw a new one."""
        schedule, multiple = self.schedule, self.multiple(view)
        if state.epoch is None:
            state.epoch = expect(schedule, "epoch", schedule.epoch(state.epochs, view), Epoch, "an Epoch")
            state.epochs, state.rounds = state.epochs + 1, 0
        epoch, state.rounds = state.epoch, state.rounds + 1
        share = epoch.length * state.rounds / schedule.rounds_per_epoch
        until = epoch.length if state.rounds == schedule.rounds_per_epoch else int(share / multiple + 0.5) * multiple
        weighted = schedule.counts(view.client_info.counts) if schedule.reads_counts else None
        pools = Pools(
            epoch.supply,
            Draws(view.rng("clients")),
            partial(view.note, round=view.round + 1),
            weighted,
            schedule.clients,
            refill=schedule.on_empty == "refill",
            size=schedule.pool,
        )
        for client in _absent(epoch, view):
            pools.leave(client)
        return Slice(epoch, pools, epoch.over, min(until, epoch.length), epoch.lost)

    def end(self, state: ScheduleState, view: View, now: Slice, account: Account) -> None:
        """Say what the model saw, and forget an epoch that is over."""
        supply, (client_updates, refused) = now.epoch.supply, account
        if not client_updates:
            view.note("no_update", round=view.round + 1, step=0, asked=[])
        view.note(
            "schedule",
            round=view.round + 1,
            epoch=now.epoch.number + 1,
            entries=now.epoch.over - now.start,
            lost=now.epoch.lost - now.lost,
            exposure=now.pools.trained,
            **({"order": now.epoch.strata[:ORDER_TOLD].tolist()} if now.epoch.number == now.start == 0 else {}),
            client_updates=client_updates,
            refused=refused,
            passes=max(supply.passes, default=0) + 1,
            dropped=sorted(supply.dropped),
            gone=sorted(supply.gone),
        )
        if state.rounds == self.schedule.rounds_per_epoch:
            state.epoch = None


def next_of(protocol: Generator[Move, Answer, None], answer: Answer | None) -> Move | None:
    """Return the next move of a protocol, after the answer to the last one."""
    try:
        return protocol.send(cast(Answer, answer))
    except StopIteration:
        return None


def expect_stratified(schedule: Schedule) -> Stratified:
    """Check that a schedule can be followed."""
    if not isinstance(schedule, Stratified):
        raise RequestError(
            f"method.schedule: {type(schedule).__name__} cannot be followed; derive it from Stratified and change "
            "`frequencies` or `epoch`"
        )
    return schedule


def read_refusals(metrics: Any) -> list[int]:
    """Read a client's answer."""
    return list(metrics[REFUSED])


def _remark(schedule: Stratified, view: View) -> None:
    """Say once what a user should know of the way this schedule is executed."""
    if view.why_not_fused not in (None, BY_CHOICE):
        view.note("fallback", what="steps are not run as one", used="message by message", why=view.why_not_fused)
    if schedule.strata == "labels" and np.count_nonzero(schedule.totals(view.client_info)) == 1:
        view.note("warning", what="method.schedule", why="all clients hold one and the same label")


def _absent(epoch: Epoch, view: View) -> list[int]:
    here = set(view.eligible.tolist())
    return sorted({client for pool in epoch.supply.available for client in pool} - here) if epoch.at else []
