"""One experiment on one federation, ready to run: plays the rounds that are left, saves, concludes."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from hashlib import sha256
from importlib.metadata import version
from math import isfinite
from typing import Any, Protocol

import numpy as np
from torch import nn

from fedstrata import __version__
from fedstrata.config.build import build_plan, initial_model
from fedstrata.config.experiment import Experiment, Privacy
from fedstrata.core import registry
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.errors import RequestError
from fedstrata.core.plan import Plan, per_round
from fedstrata.core.threads import one_thread
from fedstrata.data.devices import equip_clients
from fedstrata.data.federation import Federation
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.setup import Setup, accountant, protect_engine, set_up
from fedstrata.privacy.statement import statement
from fedstrata.runs.folder import ClientStates, Run
from fedstrata.server.evaluator import Evaluator, ProxyLoss
from fedstrata.server.loop import State, model_to_evaluate, run
from fedstrata.server.metrics import CLIENTS_LISTED, first_round
from fedstrata.server.stopping import Stopping

REVEALING = {  # what an event tells of the clients' data
    "round": ("label_divergence", "label_divergence_selected", "labels", "client_accuracy", "client_deciles"),
    "clusters": ("members",),
}

Watch = Callable[[Mapping[str, Any]], None]


class RemoteClients(Protocol):
    """Where clients live, if not here."""

    def arrange(self, now: Setup) -> None:
        """Do with them what comes before the first round."""

    def observed(self, plan: Plan) -> Plan:
        """Return the plan with time as the clock says it."""

    def attended(self, client_info: ClientInfo, plan: Plan, federation: Any) -> ClientInfo:
        """Return what is known of them with who is there."""

    def engine(self, plan: Plan, federation: Any, note: Callable[..., None]) -> Any:
        """Return what carries tasks to them."""

    def evaluator(self, classes: int) -> Callable[..., Any]:
        """Return what scores models at their places."""


class Session:
    """One experiment on one federation, ready to run."""

    def __init__(
        self,
        experiment: Experiment,
        federation: Federation,
        model: nn.Module | None,
        remote: RemoteClients | None = None,
    ):
        self._remote = remote
        self.experiment, self.model = experiment, model
        self.federation = federation = with_devices(experiment, federation)
        arrange = None if remote is None else remote.arrange
        self.private = private = set_up(experiment, build_plan(experiment, federation, model), federation, arrange)
        self.plan: Plan = private.plan
        client_info = private.client_info
        if remote is not None:
            self.plan, client_info = remote.observed(self.plan), remote.attended(client_info, self.plan, federation)
        self.accountant = accountant(experiment, self.plan, client_info)
        self.stopping = Stopping(**experiment.train.stop.model_dump(), last=last_round(experiment, self.accountant))
        if self.stopping.last is not None:  # so that methods that plan ahead know it
            self.plan = replace(self.plan, rounds=min(self.plan.rounds, self.stopping.last[0]))
        if "proxy" in self.plan.needs and federation.proxy is not None:
            client_info = replace(client_info, proxy=ProxyLoss(self.plan.local, federation.proxy))
        self.client_info = client_info

    @property
    def identity(self) -> dict[str, str]:
        """What a checkpoint belongs to: these samples at these clients, and this architecture."""
        space = self.plan.space
        layout = repr((self.plan.local.build(), space.params, space.buffers))
        return {"data": self.federation.identity, "model": sha256(layout.encode()).hexdigest()}

    def initial_state(self, note: Callable[..., None] = lambda *_, **__: None, init: bool = True) -> State:
        """Return the state before the first round; without `init`, one that only has the right shape."""
        model = initial_model(self.plan, self.experiment.model.init if init else None)
        return State.first(self.plan, self.plan.view(self.client_info, 0, note), model)

    def run(
        self,
        folder: Run,
        state: State,
        watch: Watch | None,
        seconds: float = 0.0,
        client_states: ClientStates | None = None,
    ) -> Run:
        """Play the rounds that are left, and write the result. `client_states` is client state from a checkpoint."""
        train, began = self.experiment.train, time.perf_counter() - seconds
        identity = self.identity

        def tell(event: Mapping[str, Any]) -> None:
            if watch is not None:
                watch(event)

        def log(kind: str, **fields: Any) -> None:
            if kind == "round":
                fields["wall"] = {"seconds": round(time.perf_counter() - began, 3)}
            if self._secretive:  # they are made of what the server is not told
                fields = {key: value for key, value in fields.items() if key not in REVEALING.get(kind, ())}
            folder.log(kind, **fields)
            tell({"event": kind, **fields})

        def save(state: State) -> None:
            state.participation_log.secure()
            about = {
                "experiment": self.experiment.dump(),
                "identity": identity,
                "events": folder.sync_events(),
                "seconds": time.perf_counter() - began,
            }
            folder.checkpoints.write(state.round, state, engine.client_states(), about)
            if self.experiment.engine.client_state == "disk":
                engine.restore(folder.checkpoints.client_states())  # from here on it lies in the checkpoint's files

        name, at = self.experiment.method.name, str(folder.path)
        tell({"event": "begin", "method": name, "rounds": train.rounds, "round": state.round, "run_dir": at})
        if client_states is None:
            self._introduce(log)
        engine = self._engine(log)
        if self._remote is None:  # sites guard what leaves them themselves
            engine = protect_engine(self.experiment, self.plan, engine, len(self.federation), log)
        try:
            if client_states is None:
                save(state)
            else:
                engine.restore(client_states)
            client_info = self.client_info if engine.can_fuse else self.client_info.without_ground_truth()
            with one_thread():
                run(self.plan, client_info, engine, state, self._evaluator(engine.device), self.stopping, log, save)
        finally:
            engine.close()
            self.private.close()
        self._conclude(folder, state, time.perf_counter() - began)
        return folder

    def _engine(self, log: Callable[..., None]) -> Any:
        if self._remote is not None:
            return self._remote.engine(self.plan, self.federation, log)
        choice, train = self.experiment.engine, self.experiment.train
        place = registry.build("engines", choice.kind, choice.place, "engine")
        client_updates = train.rounds * min(
            per_round(train.clients_per_round, len(self.federation)), len(self.federation)
        )
        if self.plan.driver.together:
            client_updates = 0
        return place.start(self.plan.local, self.private.federation, client_updates, log)

    def _evaluator(self, device: str) -> Callable[..., Any]:
        if self.private.evaluator is not None:
            return self.private.evaluator
        if self._remote is not None:
            return self._remote.evaluator(len(self.federation.classes))
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        return Evaluator(self.plan.local, self.private.federation, evaluate.every, evaluate.clients, voting, device)

    def _statement(self, rounds: int) -> dict[str, Any]:
        known, accountant = self.client_info._known, self.accountant
        told = frozenset(name for name, value in known.items() if value is not None)
        guarantee = None if accountant is None else accountant.describe()
        epsilon = None if accountant is None else _finite(accountant.epsilon(rounds))
        here = self._remote is None
        return statement(self.experiment, self.plan, told, self.private.clusters, guarantee, epsilon, here)

    @property
    def _secretive(self) -> bool:
        """Whether the run folder, which is the server's, must not tell what the data are like."""
        return self.experiment.privacy != Privacy()

    def _introduce(self, log: Callable[..., None]) -> None:
        federation, plan = self.federation, self.plan
        log(
            "start",
            version=__version__,
            clients=len(federation),
            samples=federation.samples,
            left_out=federation.left_out,
            test_samples=federation.tests,
            classes=list(federation.classes),
            parameters=plan.space.P,
            fingerprint=federation.fingerprint,
            **self._mix(),
            wall=_versions(),
        )
        listed = len(federation) <= CLIENTS_LISTED and (self._remote is None or "counts" in plan.needs)
        if listed and not self._secretive:
            log("clients", counts=federation.counts.tolist())
        for note in federation.notes:
            log("fallback", what="data.partition", why=note)
        for kind, fields in self.private.notes:
            log(kind, **fields)
        if self.client_info.setup_bytes:
            log("setup", told=sorted(plan.needs), bytes_up=self.client_info.setup_bytes)
        asked = per_round(plan.clients_per_round, len(federation))
        if asked > len(self.client_info.holders):
            log(
                "fallback",
                what="train.clients_per_round",
                used=len(self.client_info.holders),
                why="fewer clients hold data",
            )

    def _mix(self) -> dict[str, Any]:
        """Tell each label's share of all samples, where that is known here and no secret."""
        ground_truth = self.client_info.ground_truth if self._remote is None else None
        return {} if ground_truth is None or self._secretive else {"mix": ground_truth.mix.tolist()}

    def _conclude(self, folder: Run, state: State, seconds: float) -> None:
        rounds = [e for e in folder.events() if e["event"] == "round"]
        last = next(e for e in reversed(rounds) if "accuracy" in e)
        curve = [e["accuracy"] for e in rounds if "accuracy" in e]
        summary = {
            "method": self.experiment.method.name,
            "seed": self.experiment.train.seed,
            "rounds": state.round,
            "accuracy": last["accuracy"],
            "balanced_accuracy": last["balanced_accuracy"],
            "worst10": last.get("worst10"),
            **asdict(state.traffic),
            "seconds": round(seconds, 3),
            "time": state.clock,
            "run_dir": str(folder.path),
            "loss_test": last["loss_test"],
            "client_mean": last.get("client_mean"),
            "jain": last["jain"],
            "best_accuracy": max(curve),
            "last10_accuracy": float(np.mean(curve[-10:])),
            "bytes_setup": self.client_info.setup_bytes,
            "bytes_evaluate": sum(event.get("bytes_evaluate", 0) for event in rounds),
            "precision": self.experiment.engine.precision,
            "stopped": state.stopped or "all rounds played",
            "remarks": [
                *_remarks(folder.events()),
                *self.stopping.remarks(state.stopped, state.round, state.traffic, state.clock),
            ],
            "privacy": self._statement(state.round),
        }
        if self.accountant is not None:
            summary["epsilon"] = _finite(self.accountant.epsilon(state.round))
        if (target := self.experiment.train.stop.target) is not None:
            summary["rounds_to_target"] = first_round(curve, target)
            reached = [event["time"] for event in rounds if event.get("accuracy", -1.0) >= target]
            summary["time_to_target"] = reached[0] if reached else None
        classes: Sequence[Any] = self.federation.classes
        if self.experiment.privacy.labels != "none":  # whoever has the model should not have the names with it
            classes = [f"placeholder {i}" for i in range(len(classes))]
        about = {"classes": tuple(classes), "method": self.experiment.method.name}
        module = self.plan.local.build().to(self.plan.local.dtype)
        module.load_state_dict(self.plan.space.named(model_to_evaluate(self.plan, state)), strict=False)
        folder.write_result({k: v.clone() for k, v in module.state_dict().items()}, about, summary)


def check_experiment(
    experiment: Experiment, federation: Federation, model: nn.Module | None
) -> tuple[Federation, Plan]:
    """Return the plan and the federation with its devices; refuse what does not fit, before anything is computed."""
    federation = with_devices(experiment, federation)
    plan = build_plan(experiment, federation, model)
    refuse(experiment, plan, federation)
    last_round(experiment, accountant(experiment, plan, federation.client_info(plan.needs, plan.streams)))
    return federation, plan


def with_devices(experiment: Experiment, federation: Federation) -> Federation:
    """Return clients the devices that the experiment describes."""
    speed, bandwidth = experiment.system.speed, experiment.system.bandwidth
    return equip_clients(federation, speed.kind, speed.sigma, bandwidth.mean, bandwidth.sigma, experiment.train.seed)


def last_round(experiment: Experiment, accountant: Any) -> tuple[int, str] | None:
    """Return the last round that a privacy budget allows, and what to say then."""
    dp = experiment.privacy.dp
    if dp is None or dp.budget is None:
        return None
    rounds = accountant.rounds_within(dp.budget)
    if not rounds:
        raise RequestError(
            f"privacy.dp.budget = {dp.budget:g} is spent by the first round, which takes epsilon "
            f"{accountant.epsilon(1):.3g}; use more privacy.dp.noise"
        )
    return rounds, f"budget: epsilon {accountant.epsilon(rounds):.4g} of {dp.budget:g} is spent"


def _versions() -> dict[str, str]:
    """Say with what, and when, a run began."""
    found = {name: version(name) for name in ("torch", "numpy", "scikit-learn")}
    began = datetime.now(UTC).isoformat(timespec="seconds")
    return {"began": began, "python": platform.python_version(), **found, "system": platform.platform()}


def _finite(number: float) -> float | None:
    return number if isfinite(number) else None


def _remarks(events: list[dict[str, Any]]) -> list[str]:
    """Say in words what a user should not miss, however quiet the run was."""
    remarks = []
    without = {event["round"] for event in events if event["event"] == "no_update"}
    rounds = [event for event in events if event["event"] == "round" and event["loss_train"] is None]
    if lost := sum(event["round"] in without for event in rounds):
        remarks.append(f"in {lost} of the rounds no update arrived, and the model stayed as it was")
    broken = [len(e["clients"]) for e in events if e["event"] == "dropped" and e["why"] == "not finite"]
    if broken:
        remarks.append(f"{sum(broken)} reports were dropped because training was not finite; try a smaller train.lr")
    return remarks
