"""A strategy of Flower that is made of our parts: who is asked, how updates become one, how the server steps.

Clients stay as they are: they get arrays, train, and reply with arrays and "num-examples". A selector that wants to
know what clients have asks them once, before the first round (`client.py` answers); nodes that come later are not
asked. What needs our own code at the clients, such as probes and local corrections, is refused: `fedstrata deploy` has
it. Evaluation is Flower's; what it says of "accuracy" selectors get to know.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from time import sleep
from typing import Any, cast

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Result

from fedstrata.config import tables
from fedstrata.config.completion import make
from fedstrata.core import registry
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.contract import expect_sums
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import Report, Sums, weighted_sum
from fedstrata.core.part import Part
from fedstrata.core.plan import Plan, per_round
from fedstrata.core.rng import Streams
from fedstrata.core.server_parts import Combiner, Selector, ServerStep
from fedstrata.core.steps import Ask, Outcome, Scores, Step, View, give_feedback, select_asks
from fedstrata.data.devices import Devices
from fedstrata.flower_strategy.facts import NodeFacts
from fedstrata.flower_strategy.layout import Layout
from fedstrata.methods.drivers.rounds import Rounds
from fedstrata.privacy.frames import RefusedError
from fedstrata.server.loop import ArrivedReports, model_to_evaluate, server_step
from fedstrata.server.state import State

KNOWN = frozenset({"sizes", "labels", "totals", "counts"})  # what clients' answers tell of them
TOLD = {"oort": ("seconds",), "fedcda": ()}  # what a part reads beside the number of samples and its metrics
PROFILE = "profile"  # the one probe that the answers stand for: how long a round takes


class Strategy(FedAvg):
    """Our parts in Flower's place; other keywords are those of Flower's FedAvg.

    Parts are given by name, as a table with `kind` and options, or as objects; `clients_per_round` is a share, a number
    or "all". What parts have to say (`events`) also goes to the log.
    """

    def __init__(
        self,
        selector: str | Mapping[str, Any] | Selector = "random",
        combiner: str | Mapping[str, Any] | Combiner = "size",
        server_step: str | Mapping[str, Any] | ServerStep = "sgd",
        *,
        clients_per_round: float | int | str = "all",
        seed: int = 0,
        **flower: Any,
    ):
        for key in {"fraction_train", "min_train_nodes"} & flower.keys():
            raise RequestError(f"{key} does not say who trains here; use clients_per_round")
        super().__init__(**flower)
        parts = {"selector": selector, "combiner": combiner, "server_step": server_step}
        self._parts: dict[str, Any] = {key: _part(f"{key}s", given, key) for key, given in parts.items()}
        read = (part.metrics_read("train") + TOLD.get(_name(part), ()) for part in self._parts.values())
        self._metrics = {name for names in read for name in names}
        self._share, self._streams, self._rounds = clients_per_round, Streams(seed), 1
        self._begun: _Begun | None = None
        self.events: list[dict[str, Any]] = []

    def start(self, grid: Grid, initial_arrays: ArrayRecord, num_rounds: int = 3, *rest: Any, **how: Any) -> Result:
        """Run the rounds, as Flower does."""
        self._rounds, self._begun = num_rounds, None
        return super().start(grid, initial_arrays, num_rounds, *rest, **how)

    def summary(self) -> None:
        """Say what it is made of."""
        for key, part in self._parts.items():
            logging.getLogger("flwr").info("\t├──> %s: %s", key, part)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let the selector choose."""
        now = self._begun = self._begun or self._begin(grid, arrays)
        there = set(grid.get_node_ids())
        eligible = [c for c in now.client_info.holders.tolist() if now.nodes[c] in there]
        now.view, now.state.model = self._view(now, server_round - 1, eligible), now.arrays.read(arrays)
        now.step = Step(tuple(self._picked(now) if eligible else ()))
        now.outcome = None
        config["server-round"] = server_round
        return [
            Message(
                RecordDict(
                    {self.arrayrecord_key: arrays, self.configrecord_key: ConfigRecord({**config, **_plain(a)})}
                ),
                dst_node_id=now.nodes[a.client],
                message_type=MessageType.TRAIN,
            )
            for a in now.step.asks
        ]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combine what came, and let the server step."""
        now, reports, contents = self._under_way(), dict[int, Report](), []
        asked = {now.nodes[a.client]: a.client for a in now.step.asks}
        for reply in [reply for reply in replies if reply.metadata.src_node_id in asked]:
            client = asked[reply.metadata.src_node_id]
            try:
                reports[client] = self._report(now, client, reply)
                contents.append(reply.content)
            except RefusedError as error:
                self._note("dropped", round=server_round, clients=[client], why=str(error))
        missing = tuple(a.client for a in now.step.asks if a.client not in reports)
        arrived = [reports[a.client].open() for a in now.step.asks if a.client in reports]
        seen = [reports[r.client] for r in arrived] if self._parts["selector"].individual else arrived
        now.outcome = Outcome(now.step, 0, tuple(seen), missing)
        plan, state = now.plan, now.state
        if arrived and len(arrived) < plan.combiner.fewest:
            why = f"the combiner compares at least {plan.combiner.fewest} reports"
            self._note("dropped", round=server_round, clients=[r.client for r in arrived], why=why)
        if len(arrived) < plan.combiner.fewest:
            self._note("no_update", round=server_round, asked=[a.client for a in now.step.asks])
            return None, None
        gathered = ArrivedReports(cast(Any, _Replies(reports)), now.step, arrived, plan.combiner.individual)
        combined = plan.combiner.combine(state.combiner, now.view, state.model, gathered)
        sums = expect_sums(plan.combiner, combined, plan.space)
        state.model = server_step(plan, state, now.view, replace(sums, reports=tuple(arrived)))
        return now.arrays.written(state.model), self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Let Flower do it, with the model that is to be evaluated."""
        now = self._under_way()
        return super().configure_evaluate(
            server_round, now.arrays.written(model_to_evaluate(now.plan, now.state)), config, grid
        )

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Let Flower do it, and tell the selector how the round went."""
        now, told = self._under_way(), list(replies)
        accuracy: dict[int, float] = {}
        for reply in [r for r in told if not r.has_error() and r.metadata.src_node_id in now.nodes]:
            for metrics in reply.content.metric_records.values():
                if isinstance(said := metrics.get("accuracy"), int | float):
                    accuracy[now.nodes.index(reply.metadata.src_node_id)] = float(said)
        outcomes = [] if now.outcome is None else [now.outcome]
        give_feedback(now.plan.selector, now.state.selector, now.view, outcomes, Scores(clients=accuracy))
        return super().aggregate_evaluate(server_round, told) if told else None

    # ---- before the first round

    def _begin(self, grid: Grid, arrays: ArrayRecord) -> _Begun:
        while len(nodes := sorted(grid.get_node_ids())) < max(self.min_available_nodes, 1):
            sleep(1.0)
        parts = self._parts
        needs = frozenset().union(*(part.needs for part in parts.values()))
        timed = PROFILE in parts["selector"].programs
        facts = NodeFacts.asked(grid, nodes) if needs or timed else NodeFacts.unknown(nodes)
        if timed and not all(seconds > 0 for seconds in facts.seconds):
            raise RequestError(
                f"selector = {_name(parts['selector'])} needs to know how long clients take: seconds > 0"
            )
        layout = Layout.of(arrays)
        plan = Plan(
            Rounds(),
            parts["selector"],
            parts["combiner"],
            {"server_step": parts["server_step"]},
            Devices(),
            cast(Any, None),  # clients are not ours
            layout.space,
            self._rounds,
            self._share,
        )
        for key, part in parts.items():
            if reason := part.conflicts(plan):
                raise RequestError(f"{key} = {_name(part)} does not fit: {reason}")
        client_info = facts.client_info(needs, self._streams)
        now = _Begun(plan, facts, client_info, layout, cast(Any, None), cast(Any, None), Step(()))
        now.view = self._view(now, 0, client_info.holders.tolist())
        now.state = State.first(plan, now.view, layout.read(arrays))
        return now

    def _under_way(self) -> _Begun:
        if self._begun is None:
            raise RequestError("a strategy combines replies to what it asked for: configure_train comes first")
        return self._begun

    # ---- a round

    def _view(self, now: _Begun, round: int, eligible: Sequence[int]) -> View:
        wanted, rng = per_round(self._share, now.client_info.clients), partial(self._streams, round=round)
        known = round, self._rounds, min(wanted, len(eligible)), np.array(eligible, dtype=np.int64)
        return View(*known, now.client_info, now.arrays.space, rng, self._note, needed=wanted)

    def _picked(self, now: _Begun) -> list[Ask]:
        """Let the selector choose; how long clients take they said themselves."""
        choice = select_asks(now.plan.selector, now.state.selector, now.view)
        try:
            step = next(choice)
            while True:
                seconds = now.facts.seconds
                reports = tuple(Report(a.client, 0, seconds=seconds[a.client]) for a in step.asks)
                step = choice.send(Outcome(step, 0, reports, ()))
        except StopIteration as done:
            picked: list[Ask] = done.value
            return picked

    def _report(self, now: _Begun, client: int, reply: Message) -> Report:
        """Read a reply; what it holds is not trusted."""
        if reply.has_error():
            raise RefusedError(str(reply.error.reason))
        arrays, metrics = reply.content.array_records.values(), reply.content.metric_records.values()
        if len(arrays) != 1 or len(metrics) != 1:
            raise RefusedError("one record of arrays and one of metrics are expected")
        told = {k: float(v) for k, v in next(iter(metrics)).items() if isinstance(v, int | float)}
        if absent := sorted({self.weighted_by_key, *self._metrics} - told.keys()):
            raise RefusedError(f"its metrics lack {absent[0]!r}")
        if not all(np.isfinite(v) for v in told.values()) or told[self.weighted_by_key] < 0:
            raise RefusedError("its metrics are not finite, or count less than no samples")
        model, new = now.state.model, now.arrays.read(next(iter(arrays)))
        aggregated = {"update": new.params - model.params}
        aggregated |= {"buffers": new.buffers - model.buffers} if len(model.buffers) else {}
        if not all(bool(t.isfinite().all()) for t in aggregated.values()):
            raise RefusedError("not finite")
        return Report(
            client,
            int(told[self.weighted_by_key]),
            loss=told.get("loss", 0.0),
            update_norm=float(aggregated["update"].norm()),
            metrics=told,
            aggregated=aggregated,
            seconds=told.get("seconds", 0.0),
        )

    def _note(self, kind: str, **fields: Any) -> None:
        self.events.append({"event": kind, **fields})
        logging.getLogger("flwr").info("%s: %s", kind, fields)


@dataclass
class _Begun:
    """A run under way."""

    plan: Plan
    facts: NodeFacts
    client_info: ClientInfo
    arrays: Layout
    view: View
    state: State
    step: Step
    outcome: Outcome | None = None

    @property
    def nodes(self) -> list[int]:
        """Flower's id of every client."""
        return self.facts.nodes


@dataclass(frozen=True)
class _Replies:
    """What a combiner may ask of an engine."""

    reports: Mapping[int, Report]

    def collect(self, weights: Mapping[int, float]) -> Sums:
        return weighted_sum(self.reports, weights)

    def each(self) -> Mapping[int, Report]:
        return self.reports


def _part(stage: str, given: Any, key: str) -> Any:
    """Build a part, and refuse what needs our own code at the clients."""
    part: Any = given if isinstance(given, Part) else make(stage, tables.spec(given, key), key)
    if part is given:
        registry.check_object(part, key)
    name = _name(part)
    probes, meters = sorted(set(part.programs) - {PROFILE}), [] if name in TOLD else part.meters(())
    why = None
    if probes:
        why = f"it has clients run {', '.join(probes)}, which is fedstrata's own code"
    elif meters:
        why = f"it measures inside local training ({type(meters[0]).__name__}), which is fedstrata's own code"
    elif beyond := sorted(part.needs - KNOWN):
        why = f"it needs to know {beyond[0]}, which clients of a Flower app do not tell"
    if why is not None:
        raise RequestError(f"{key} = {name} does not work in an app of somebody else: {why}; see fedstrata deploy")
    return part


def _name(part: Part) -> str:
    stage = {Selector: "selectors", Combiner: "combiners", ServerStep: "server_steps"}
    return next((registry.name_of(s, type(part)) for kind, s in stage.items() if isinstance(part, kind)), "?")


def _plain(ask: Ask) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in ask.config.items()}
