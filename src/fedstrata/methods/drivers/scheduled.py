"""What drivers that follow a schedule of labels have in common: epochs, and answering for clients that live here."""

from __future__ import annotations

import copy
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, TypeVar, cast

import numpy as np

from fedstrata.core.contract import expect
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import REFUSED
from fedstrata.core.plan import Plan
from fedstrata.core.server_parts import Driver, Schedule
from fedstrata.core.steps import BY_CHOICE, Ask, FusedSteps, Outcome, Select, Step, Steps, View
from fedstrata.methods.samplers.shuffle import Shuffle
from fedstrata.methods.schedules.draws import Draws
from fedstrata.methods.schedules.epoch import Epoch
from fedstrata.methods.schedules.fill import Filled
from fedstrata.methods.schedules.stratified import Stratified
from fedstrata.methods.schedules.supply import Pools
from fedstrata.methods.selectors.random import Random

Move = TypeVar("Move")
Answer = TypeVar("Answer")

Account = tuple[int, int]  # client updates, and entries that were refused
Played = Generator[Step, Outcome, Account | None]  # None: what was played as one is not finite
ORDER_TOLD = 200  # entries of the first epoch whose labels are told, for a figure
NUMBER = 8  # bytes of a label or a count on the wire


@dataclass
class ScheduleState:
    """Where the run stands in its schedule."""

    epoch: Epoch | None = None
    epochs: int = 0  # begun so far
    rounds: int = 0  # of the present epoch


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
        if plan.selector != Random():
            return "the schedule chooses the clients; leave method.selector out"
        if plan.sampler_asked != Shuffle():
            return "the schedule chooses the samples; leave method.sampler out"
        if self.schedule.frequency == "uniform" and self.schedule.cap is not None:
            return 'method.schedule.cap belongs to frequency = "capped"'
        if self.schedule.frequency == "capped" and self.schedule.each is not None:
            return 'method.schedule.each belongs to frequency = "uniform"'
        return None

    @property
    def together(self) -> bool:
        """One trainer plays a schedule, and clients that meet do so in one process."""
        return True

    def init(self, view: View) -> ScheduleState:
        """Start before the first epoch."""
        return ScheduleState()

    def multiple(self, view: View) -> int:
        """Return the number of entries of which a round plays a multiple, until the epoch ends."""
        return 1

    def by_messages(self, view: View, now: Slice) -> Played:
        """Play a round's share of the epoch exchange by exchange."""
        raise NotImplementedError

    def fused(self, view: View, now: Slice) -> Played:
        """Play it as one step, answering for clients that live here."""
        raise NotImplementedError

    def close_epoch(self, view: View, epoch: Epoch) -> Steps:
        """Do what is left to do when an epoch is over; nothing, for most."""
        yield from ()

    def round(self, state: ScheduleState, view: View, select: Select) -> Steps:
        """Play a round's share of the epoch, and what follows the last one."""
        if view.round == 0:
            _remark(self.schedule, view)
        epoch = yield from self._share(state, view)
        if state.epoch is None:
            yield from self.close_epoch(view, epoch)

    def _share(self, state: ScheduleState, view: View) -> Generator[Step, Outcome, Epoch]:
        """Play a share of the epoch, as one step if that is exact and gives a finite model."""
        if view.why_not_fused is None:
            before = copy.deepcopy(state)
            now = self.begin(state, view)
            account = yield from self.fused(view, now)
            if account is not None:
                self.end(state, view, now, account)
                return now.epoch
            # One bad sample spoils everybody's result. Message by message only its client is left out.
            view.note("fallback", what="steps played as one", used="message by message", why="the model is not finite")
            vars(state).update(vars(before))
        now = self.begin(state, view)
        account = yield from self.by_messages(view, now)
        assert account is not None
        self.end(state, view, now, account)
        return now.epoch

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


@dataclass
class FusedUpdates:
    """Client updates in a row, to be played as one."""

    epoch: int
    codes: dict[int, list[int]] = field(default_factory=dict)  # by client, in the order of use
    who: list[int] = field(default_factory=list)  # of each client update: the client, the entries, the step
    runs: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)

    @classmethod
    def through(cls, epoch: int, filled: Filled) -> FusedUpdates:
        """Visit everybody who gives samples to a batch, batch by batch, in the order of their first samples."""
        clients, codes = np.array(filled.clients, dtype=np.int64), np.array(filled.codes, dtype=np.int64)
        turns = np.repeat(np.arange(len(filled.sizes)), filled.sizes)
        by_client = np.argsort(clients * len(filled.sizes) + turns, kind="stable")  # and then by batch
        codes, whose, when = codes[by_client], clients[by_client], turns[by_client]
        client_updates = np.flatnonzero(np.diff(whose, prepend=-1) | np.diff(when, prepend=-1))
        runs, first = np.diff(client_updates, append=len(whose)), by_client[client_updates]
        in_order = np.argsort(first)
        fused_updates = cls(
            epoch,
            {},
            clients[first][in_order].tolist(),
            runs[in_order].tolist(),
            turns[first][in_order].tolist(),
        )
        for client in dict.fromkeys(fused_updates.who):
            start, end = np.searchsorted(whose, (client, client + 1))
            fused_updates.codes[client] = codes[start:end].tolist()
        return fused_updates

    def add_update(self, client: int, codes: list[int], turn: int) -> None:
        """Add a client update of the `turn`-th step."""
        self.codes.setdefault(client, []).extend(codes)
        self.who.append(client)
        self.runs.append(len(codes))
        self.turns.append(turn)

    def step(
        self, stock: Stock, sizes: Sequence[int], parts: Sequence[int], handed: tuple[int, int, int], **how: Any
    ) -> Step:
        """Return the step that stands for all of them: batches of some sizes, at some times of the round."""
        places = {client: i for i, client in enumerate(self.codes)}
        fused = FusedSteps(
            who=np.array([places[client] for client in self.who], dtype=np.int64),
            runs=np.array(self.runs, dtype=np.int64),
            turns=np.array(self.turns, dtype=np.int64),
            sizes=np.array(sizes, dtype=np.int64),
            parts=np.array(parts, dtype=np.int64),
            handed=handed,
            told=(stock.told_down, stock.told_up),
        )
        about = {"epoch": self.epoch}
        asks = [Ask(client, {"labels": tuple(own), **about}) for client, own in self.codes.items()]
        return Step(tuple(asks), fused=fused, combine=bool(asks), **how)


@dataclass
class Stock:
    """Answers for clients that live on this machine, as they would."""

    counts: list[dict[int, int]]  # by stratum and client
    pools: Pools
    replacement: bool
    told_down: int = 0
    told_up: int = 0
    refused: int = 0

    @classmethod
    def of(cls, schedule: Stratified, view: View, pools: Pools) -> Stock:
        """Look into what everybody holds."""
        assert view.client_info.ground_truth is not None
        counts = schedule.counts(view.client_info.ground_truth.stock)
        own: list[dict[int, int]] = [{} for _ in range(counts.shape[1])]
        clients, strata = np.nonzero(counts)
        for client, stratum, count in zip(
            clients.tolist(), strata.tolist(), counts[clients, strata].tolist(), strict=True
        ):
            own[stratum][client] = count
        return cls(own, pools, bool(schedule.replacement))

    def refuses(self, client: int, codes: Sequence[int], overhead_bytes: int) -> list[int]:
        """Return the codes that a client has no sample for; `overhead_bytes` numbers go with a request."""
        supply, refused = self.pools.supply, []
        seen: dict[int, int] = {}
        strata = len(supply.passes)
        for code in codes:
            turn, stratum = divmod(code, strata)
            used = supply.taken[stratum].get(client, 0) + seen.get(stratum, 0)
            here = self.counts[stratum].get(client, 0)
            if turn < supply.passes[stratum] or (used >= here and not (self.replacement and here)):
                refused.append(code)
            elif len(codes) > 1:
                seen[stratum] = seen.get(stratum, 0) + 1
        self.told(len(codes), 1, len(refused), len(set(refused)), overhead_bytes)
        return refused

    def told(self, codes: int, requests: int, refused: int, exhausted: int, overhead_bytes: int) -> None:
        """Note what was said: requests, beside whose codes go some numbers, and what of them was refused."""
        self.told_down += NUMBER * (codes + overhead_bytes * requests)
        self.told_up += NUMBER * (refused + exhausted)
        self.refused += refused


def next_of(protocol: Generator[Move, Answer, None], answer: Answer | None) -> Move | None:
    """Return the next move of a protocol, after the answer to the last one."""
    try:
        return protocol.send(cast(Answer, answer))
    except StopIteration:
        return None


def stratified(schedule: Schedule) -> Stratified:
    """Check that a schedule can be followed."""
    if not isinstance(schedule, Stratified):
        raise RequestError(
            f"method.schedule: {type(schedule).__name__} cannot be followed; derive it from Stratified and change "
            "`frequencies` or `epoch`"
        )
    return schedule


def refusals(metrics: Any) -> list[int]:
    """Read a client's answer."""
    return list(metrics[REFUSED])


def _remark(schedule: Stratified, view: View) -> None:
    """Say once what a user should know of the way this schedule is played."""
    if view.why_not_fused not in (None, BY_CHOICE):
        view.note("fallback", what="steps are not played as one", used="message by message", why=view.why_not_fused)
    if schedule.strata == "labels" and np.count_nonzero(schedule.totals(view.client_info)) == 1:
        view.note("warning", what="method.schedule", why="all clients hold one and the same label")


def _absent(epoch: Epoch, view: View) -> list[int]:
    here = set(view.eligible.tolist())
    return sorted({client for pool in epoch.supply.available for client in pool} - here) if epoch.at else []
