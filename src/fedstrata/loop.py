"""The round loop. It knows no method by name.

A driver yields steps. Each step is played the same way: tasks out, open reports back, weighted sum, server
step, client state settled. What a method is lies wholly in the parts of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from fedstrata.federation import Roster
from fedstrata.messages import Report, Sums, Tag, Task, prefixed, value_bytes
from fedstrata.metrics import round_figures
from fedstrata.plan import Plan
from fedstrata.serverside import Engine, Outcome, Step, Steps, View
from fedstrata.space import Model
from fedstrata.stopping import Progress, Stopping


@dataclass
class Traffic:
    """Bytes that crossed a border, by direction, and visits that trained."""

    bytes_up: int = 0
    bytes_down: int = 0
    bytes_p2p: int = 0
    client_updates: int = 0


@dataclass
class State:
    """The server, whole: with the engine's client state, this is the checkpoint. No generator state exists."""

    model: Model
    parts: dict[str, Any]  # what `init` of each server-side part made
    participation: np.ndarray  # reports that counted, by client
    round: int = 0
    accepted: dict[int, Tag] = field(default_factory=dict)  # last report of each client that counted
    durable: dict[int, Tag] = field(default_factory=dict)  # the same as of the last checkpoint
    traffic: Traffic = field(default_factory=Traffic)
    progress: Progress = field(default_factory=Progress)
    stopped: str | None = None


def run(
    plan: Plan,
    roster: Roster,
    engine: Engine,
    state: State,
    judge: Callable[[Model, View], Mapping[str, Any]],
    stopping: Stopping,
    log: Callable[..., None],
    save: Callable[[State], None],
) -> None:
    """Play rounds until the last one or until a reason to stop; log and save after each."""
    while state.round < plan.rounds and state.stopped is None:
        view = plan.view(roster, state.round, log)
        outcomes = play_round(plan, state, view, engine)
        plan.select.feedback(state.parts["select"], view, outcomes)

        state.round += 1
        scores = judge(scored(plan, state), view)
        state.stopped = stopping.reason(state.progress, scores)
        log(
            "round",
            round=state.round,
            **scores,
            **round_figures(outcomes, state.participation),
            **vars(state.traffic),
        )
        save(state)


def play_round(plan: Plan, state: State, view: View, engine: Engine) -> list[Outcome]:
    """Play the steps that the driver, and the selector through it, ask for."""
    outcomes: list[Outcome] = []
    turns: Counter[str] = Counter()
    steps = plan.driver.round(state.parts["driver"], view, lambda: plan.select.select(state.parts["select"], view))
    while (step := _next(steps, outcomes)) is not None:
        outcomes.append(play(plan, state, view, engine, step, at=len(outcomes), turn=turns[step.kind]))
        turns[step.kind] += 1
    return outcomes


def play(plan: Plan, state: State, view: View, engine: Engine, step: Step, at: int, turn: int) -> Outcome:
    """Play one step, the `at`-th of the round and the `turn`-th of its kind."""
    down = broadcast(plan, state) if step.model else {}
    tasks = [
        Task(
            client=ask.client,
            round=view.round,
            step=at,
            kind=step.kind,
            turn=turn,
            config=ask.config,
            down=down,
            accepted=state.accepted.get(ask.client),
            durable=state.durable.get(ask.client),
        )
        for ask in step.asks
    ]
    reports = engine.ask(step, tasks) if tasks else []
    lost = plan.system.lost(view, turn, step, reports)
    arrived = _arrived(view, at, reports, lost)

    if step.combine and arrived:
        sums = plan.combine.combine(state.parts["combine"], view, state.model, Gathered(engine, arrived))
        state.model = server_step(plan, state, view, sums)
    elif step.combine:
        view.note("no_update", round=view.round + 1, step=at, asked=[a.client for a in step.asks])

    here = [r.client for r in arrived]
    engine.settle(here, (view.round, at))
    state.accepted |= dict.fromkeys(here, (view.round, at))
    if step.combine:
        state.participation[here] += 1
    _charge(state.traffic, step, tasks, arrived)
    return Outcome(step, at, tuple(arrived), tuple(r.client for r in reports if r.client not in here))


def broadcast(plan: Plan, state: State) -> dict[str, Tensor]:
    """Give what every client of a step receives: the model, and what the server parts add."""
    down = state.model.wire()
    for name, part in plan.servers.items():
        down |= prefixed(part.broadcast(state.parts[name]), name)
    return down


def server_step(plan: Plan, state: State, view: View, sums: Sums) -> Model:
    """Propose model + combined update, and let each server part change the proposal in turn."""
    model = state.model
    buffers = model.buffers + sums.mean("buffers") if "buffers" in sums.total else model.buffers
    proposal = Model(model.params + sums.total["update"], buffers)
    for name, part in plan.servers.items():
        proposal = part.step(state.parts[name], view, model, proposal, sums.scoped(name))
    return proposal


def scored(plan: Plan, state: State) -> Model:
    """Give the model to evaluate."""
    model = state.model
    for name, part in plan.servers.items():
        model = part.scored(state.parts[name], model)
    return model


@dataclass(frozen=True)
class Gathered:
    """The reports of a step, as a combiner may use them."""

    engine: Engine
    reports: Sequence[Report]

    def sum(self, weights: Sequence[float] | np.ndarray) -> Sums:
        """Give the weighted sum, one weight a report."""
        clients = [r.client for r in self.reports]
        return self.engine.collect(dict(zip(clients, map(float, weights), strict=True)))

    def each(self) -> Sequence[Report]:
        """Give whole reports."""
        whole = self.engine.each()
        return [whole[r.client] for r in self.reports]


def _arrived(view: View, at: int, reports: Sequence[Report], lost: set[int]) -> list[Report]:
    """Leave out reports that are lost and those whose training was not finite; each is an event."""
    broken = {r.client for r in reports if not r.finite} - lost
    for why, clients in (("late", lost), ("not finite", broken)):
        if clients:
            view.note("dropped", round=view.round + 1, step=at, clients=sorted(clients), why=why)
    return [r for r in reports if r.client not in lost | broken]


def _charge(traffic: Traffic, step: Step, tasks: Sequence[Task], arrived: Sequence[Report]) -> None:
    down = sum(task.nbytes for task in tasks)
    if step.source == "server":
        traffic.bytes_down += down
    else:
        traffic.bytes_p2p += down
    # A model handed to a peer is charged when the peer receives it; only the numbers go to the server.
    traffic.bytes_up += sum(r.nbytes if step.sink == "server" else value_bytes(r.meta) for r in arrived)
    if step.combine:
        traffic.client_updates += len(tasks)


def _next(steps: Steps, outcomes: Sequence[Outcome]) -> Step | None:
    try:
        return steps.send(outcomes[-1]) if outcomes else next(steps)
    except StopIteration:
        return None
