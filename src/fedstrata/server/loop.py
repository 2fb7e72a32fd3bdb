"""The round loop. It knows no method by name.

A driver yields steps. Each step is run the same way: tasks out, open reports back, weighted sum, server
step, client state settled. What a method is lies wholly in the parts of the plan.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from fedstrata.core.client_info import ClientInfo
from fedstrata.core.contract import calling_part, expect_enough, expect_model, expect_sums, expect_tensors
from fedstrata.core.engine import Engine
from fedstrata.core.errors import PartError, UnsummableError
from fedstrata.core.events import Log
from fedstrata.core.flat_model import FlatModel
from fedstrata.core.messages import FIGURES, Report, Sums, Task, add_prefix, tensor_bytes
from fedstrata.core.plan import Plan
from fedstrata.core.steps import Evaluate, Outcome, Step, Steps, View, drive_round, give_feedback
from fedstrata.server.accounting import count_cost
from fedstrata.server.metrics import by_client, round_figures
from fedstrata.server.state import State
from fedstrata.server.stopping import Stopping


def run(
    plan: Plan,
    client_info: ClientInfo,
    engine: Engine,
    state: State,
    evaluate: Evaluate,
    stopping: Stopping,
    log: Log,
    save: Callable[[State], None],
) -> None:
    """Run rounds until the last one or until a reason to stop; log and save after each."""
    while state.round < plan.rounds and state.stopped is None:
        view = plan.view(client_info, state.round, log, state.clock)
        if len(view.eligible) < view.needed < view.client_info.clients:
            log("fewer_clients", round=view.round + 1, wanted=view.needed, there=len(view.eligible))
        outcomes = run_round(plan, state, view, engine)
        state.round += 1
        spent = stopping.spent(state.round, state.traffic, state.clock)
        scores = evaluate(model_to_evaluate(plan, state), view if spent is None else replace(view, rounds=state.round))
        give_feedback(plan.selector, state.selector, view, outcomes, scores)
        state.stopped = spent or stopping.reason(state.progress, scores.figures)
        figures = {**scores.figures, **by_client(scores.clients, view.client_info.clients)}
        figures |= round_figures(outcomes, state.participation_log.jain, view, scores.clients) | vars(state.traffic)
        log("round", round=state.round, **figures, time=state.clock)
        save(state)


def run_round(plan: Plan, state: State, view: View, engine: Engine) -> list[Outcome]:
    """Run the steps that the driver, and the selector through it, ask for; with nobody there, none."""
    if not len(view.eligible):
        view.note("no_update", round=view.round + 1, step=0, asked=[])
        return []
    outcomes: list[Outcome] = []
    turns: Counter[str] = Counter()
    steps = drive_round(plan.driver, state.driver, view, plan.selector, state.selector)
    while (step := _next(steps, outcomes)) is not None:
        outcomes.append(run_step(plan, state, view, engine, step, at=len(outcomes), turn=turns[step.kind]))
        turns[step.kind] += 1
    return outcomes


def run_step(plan: Plan, state: State, view: View, engine: Engine, step: Step, at: int, turn: int) -> Outcome:
    """Run one step, the `at`-th of the round and the `turn`-th of its kind."""
    step = plan.system.adapt(view, turn, step)
    view = replace(view, part=step.part)

    # 1. the model goes out, clients work, reports come back
    down = broadcast(plan, state, step)
    size = tensor_bytes(down if step.fused is None else broadcast(plan, state, replace(step, fused=None)))
    tasks = make_tasks(state, view, step, at, turn, down)
    reports = plan.system.time_reports(view, step, size, engine.ask(step, tasks) if tasks else [])
    lost = plan.system.find_lost(view, turn, step, reports)
    took = plan.system.time_step(view, step, size, reports, lost)
    arrived = drop_unusable(view, at, step, reports, lost)

    # 2. their sum makes the next model
    arrived, means = update_model(plan, state, view, engine, step, at, arrived) if step.combine else (arrived, None)

    # 3. clients whose report counts keep their new state; what it cost is written down
    seen = whole_reports(engine, arrived) if plan.selector.individual else arrived
    here = [r.client for r in arrived]
    engine.settle(here, (view.round, at))
    state.participation_log.accept(here, (view.round, at))
    if step.combine:
        state.participation_log.count(here, step.count_updates(here))
    cost = count_cost(step, size, tasks, [r for r in reports if r.client not in lost], engine.overhead_bytes())
    state.traffic.add(cost)
    state.clock += took
    missing = tuple(a.client for a in step.asks if a.client not in set(here))
    return Outcome(replace(step, meanwhile=None), at, tuple(seen), missing, took, cost.bytes_up, cost.bytes_down, means)


# ---- 1. out and back


def broadcast(plan: Plan, state: State, step: Step) -> dict[str, Tensor]:
    """Return what every client of a step receives: the model and, where it makes a new one, what server steps add."""
    down = state.model.wire(buffers=step.buffers or step.fused is not None) if step.model else {}
    if step.model and step.down is not None:
        down |= {"params": state.model.params.to(step.down)}
    for name, part in plan.broadcasting.items() if step.model and step.combine else ():
        extra = (part.broadcast if step.fused is None else part.lend)(state.server_steps[name])
        expect_tensors(part, "broadcast", extra, "tensors by name, for `context.down` of its half at the client")
        down |= add_prefix(extra, name)
    return down


def make_tasks(state: State, view: View, step: Step, at: int, turn: int, down: dict[str, Tensor]) -> list[Task]:
    """Write a task for everybody who is asked; it names the report from whose state its client goes on."""
    tags = state.participation_log.tags([ask.client for ask in step.asks])
    return [
        Task(
            client=ask.client,
            round=view.round,
            step=at,
            kind=step.kind,
            turn=turn,
            part=step.part,
            config=ask.config,
            down=down,
            accepted=accepted,
            durable=durable,
        )
        for ask, (accepted, durable) in zip(step.asks, tags, strict=True)
    ]


def drop_unusable(view: View, at: int, step: Step, reports: Sequence[Report], lost: set[int]) -> list[Report]:
    """Leave out reports that are lost and those that are not finite; every client left out is an event."""
    silent = {a.client for a in step.asks} - {r.client for r in reports}
    broken = {r.client for r in reports if not r.finite} - lost
    for why, clients in (("no answer", silent), ("late", lost), ("not finite", broken)):
        if clients and step.fused is None:
            view.note("dropped", round=view.round + 1, step=at, clients=sorted(clients), why=why)
    return [r for r in reports if r.client not in lost | broken]


# ---- 2. the next model


def update_model(
    plan: Plan, state: State, view: View, engine: Engine, step: Step, at: int, arrived: list[Report]
) -> tuple[list[Report], tuple[float, float] | None]:
    """Combine the reports into the next model; return those that count: none where no sum may be formed.

    Also the means of what single reports do not tell.
    """
    means = None
    if arrived:
        try:
            expect_enough(plan.combiner.fewest, arrived)
            reports = ArrivedReports(engine, step, arrived, plan.combiner.individual)
            sums = plan.combiner.combine(state.combiner, view, state.model, reports)
            sums = replace(expect_sums(plan.combiner, sums, plan.space), reports=tuple(arrived))
            state.model = server_step(plan, state, view, sums)
            if FIGURES in sums.total:
                loss, length = sums.mean(FIGURES).tolist()
                means = loss, length
        except UnsummableError as error:  # a sum over too few is not formed, one that somebody poisoned not used
            view.note(error.event, round=view.round + 1, step=at, clients=[r.client for r in arrived], why=str(error))
            arrived = []
    if not arrived and step.fused is None:
        view.note("no_update", round=view.round + 1, step=at, asked=[a.client for a in step.asks])
    return arrived, means


def server_step(plan: Plan, state: State, view: View, sums: Sums) -> FlatModel:
    """Propose model + combined update, and let each server step change the proposal in turn."""
    model = state.model
    buffers = model.buffers + sums.mean("buffers") if "buffers" in sums.total else model.buffers
    proposal = FlatModel(model.params + sums.total["update"], buffers)
    for name, part in plan.server_steps.items():
        proposed = part.step(state.server_steps[name], view, model, proposal, sums.scope(name))
        proposal = expect_model(part, "step", proposed, model)
    return proposal


def model_to_evaluate(plan: Plan, state: State) -> FlatModel:
    """Return the model to evaluate, which need not be the one to train on."""
    model = state.model
    for name, part in plan.server_steps.items():
        model = expect_model(part, "model_to_evaluate", part.model_to_evaluate(state.server_steps[name], model), model)
    return model


@dataclass(frozen=True)
class ArrivedReports:
    """The reports of a step, as a combiner may use them."""

    engine: Engine
    step: Step
    reports: Sequence[Report]
    individual: bool

    @property
    def weights(self) -> np.ndarray:
        """How often each report counts."""
        asked = {ask.client: ask.weight for ask in self.step.asks}
        return np.array([asked[r.client] for r in self.reports], dtype=np.float64)

    @property
    def chances(self) -> np.ndarray:
        """How likely each client was to be asked."""
        asked = {ask.client: ask.chance for ask in self.step.asks}
        return np.array([asked[r.client] for r in self.reports], dtype=np.float64)  # None becomes NaN

    def sum(self, weights: Sequence[float] | np.ndarray) -> Sums:
        """Return the weighted sum, one weight a report."""
        clients = [r.client for r in self.reports]
        if len(weights) != len(clients):
            raise PartError(f"{calling_part()} gives {len(weights)} weights for {len(clients)} reports; one each")
        return self.engine.collect(dict(zip(clients, map(float, weights), strict=True)))

    def each(self) -> Sequence[Report]:
        """Return whole reports."""
        if not self.individual:
            raise RuntimeError(f"{calling_part()} looks at single updates, and must say so: individual = True")
        return whole_reports(self.engine, self.reports)


def whole_reports(engine: Engine, reports: Sequence[Report]) -> list[Report]:
    """Return reports with the tensors that otherwise only their sum shows."""
    whole = engine.each()
    return [replace(r, aggregated=whole[r.client].aggregated) for r in reports]


def _next(steps: Steps, outcomes: Sequence[Outcome]) -> Step | None:
    try:
        return steps.send(outcomes[-1]) if outcomes else next(steps)
    except StopIteration:
        return None
