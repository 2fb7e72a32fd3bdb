"""One experiment on one federation, ready to run: everything that is fixed before the first round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any, Protocol

import torch
from torch import nn

from fedstrata.config.build import build_plan, initial_model
from fedstrata.config.experiment import Experiment
from fedstrata.config.measured import metrics_of
from fedstrata.config.sections import Privacy
from fedstrata.core.client_info import ClientInfo
from fedstrata.core.engine import Engine, expect_engine
from fedstrata.core.errors import RequestError
from fedstrata.core.events import Log
from fedstrata.core.plan import Plan, per_round
from fedstrata.core.steps import Evaluate
from fedstrata.data.devices import equip_clients
from fedstrata.data.federation import Federation
from fedstrata.data.validation import KEY as VALIDATION
from fedstrata.data.validation import hold_out_validation
from fedstrata.methods.samplers.shuffle import Shuffle
from fedstrata.methods.situation import StageChoice
from fedstrata.privacy.accounting import Accountant
from fedstrata.privacy.refusals import refuse
from fedstrata.privacy.setup import Setup, accountant, bounds_of, describe_weak_delta, protect_engine, set_up
from fedstrata.runs.stage_choices import choose_stages
from fedstrata.runs.tracking import refuse_missing
from fedstrata.server.bounds import bound_reports
from fedstrata.server.evaluator import Evaluator, ProxyLoss
from fedstrata.server.personal import FineTuning
from fedstrata.server.state import State
from fedstrata.server.stopping import Stopping

UNSEEN = "train.evaluate.metrics needs what a model answers, sample by sample; leave it out at sites and in an enclave"
ELSEWHERE = "train.evaluate.personal needs clients on this machine; leave it out at sites and with an enclave"


class RemoteClients(Protocol):
    """Where clients live, if not here."""

    def set_up(self, setup: Setup) -> None:
        """Do with them what comes before the first round."""

    def with_real_clock(self, plan: Plan) -> Plan:
        """Return the plan with time as the clock says it."""

    def with_attendance(self, client_info: ClientInfo, plan: Plan) -> ClientInfo:
        """Return what is known of them with who is there."""

    def without_repeats(self, log: Log) -> Log:
        """Return a log that does not say again and again what an event has said."""

    def start_engine(self, plan: Plan, log: Log) -> Engine:
        """Return what carries tasks to them."""

    def make_evaluator(self, classes: int) -> Evaluate:
        """Return what scores models at their places."""

    def label_directory(self) -> Mapping[str, Any]:
        """Return what names of placeholders they sealed for each other."""


@dataclass(frozen=True)
class Session:
    """A plan on a federation with what surrounds it. It holds no state: `State` does."""

    experiment: Experiment
    federation: Federation
    model: nn.Module | None  # the user's own
    plan: Plan
    client_info: ClientInfo
    private: Setup  # the federation as clients know it once labels are masked
    accountant: Accountant | None  # of a privacy budget
    stopping: Stopping
    remote: RemoteClients | None = None
    choices: Sequence[StageChoice] = ()  # what the recipe chose by what was measured

    @property
    def identity(self) -> dict[str, str]:
        """What a checkpoint belongs to: these samples at these clients, and this architecture with its frozen weights.

        Frozen weights are not in checkpoints: resumed with others, what was trained would sit on layers it never saw.
        """
        space, module = self.plan.space, self.plan.local.build()
        digest = sha256(repr((module, space.params, space.buffers)).encode())
        for weights in module.parameters():
            if not weights.requires_grad:
                digest.update(weights.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return {"data": self.federation.identity, "model": digest.hexdigest()}

    @property
    def hides_data(self) -> bool:
        """Whether the run folder, which is the server's, must not tell what the data are like."""
        return self.experiment.privacy != Privacy()

    @property
    def weak_delta(self) -> str | None:
        """Why the differential privacy of the run means little, where it does."""
        return describe_weak_delta(self.experiment.privacy.dp, len(self.client_info.holders))

    @property
    def hides_names(self) -> bool:
        """Whether classes are placeholders that nobody here can name: only real sites can."""
        return self.remote is not None and self.experiment.privacy.labels != "none"

    def initial_state(self, log: Log = lambda *_, **__: None, init: bool = True) -> State:
        """Return the state before the first round; without `init`, one that only has the right shape."""
        start = self.experiment.model.init if init else None
        model = initial_model(self.plan, start, self.private.federation.classes, self.hides_names, log)
        return State.first(self.plan, self.plan.view(self.client_info, 0, log), model)

    def start_engine(self, log: Log) -> Engine:
        """Start where client updates happen."""
        if self.remote is not None:  # sites protect what leaves them themselves
            return self.remote.start_engine(self.plan, log)
        choice, train, clients = self.experiment.engine, self.experiment.train, len(self.federation)
        options = choice.make()
        client_updates = train.rounds * min(per_round(train.clients_per_round, clients), clients)
        expected = 0 if self.plan.driver.together else client_updates
        engine = expect_engine(options, options.start(self.plan.local, self.private.federation, expected, log))
        engine = protect_engine(self.experiment, self.plan, engine, clients, log)
        return bound_reports(engine, bounds_of(self.experiment, self.plan), log)

    def make_evaluator(self, device: str) -> Evaluate:
        """Return what scores models: in an enclave, at remote clients, or here."""
        if self.private.evaluator is not None:
            return self.private.evaluator
        if self.remote is not None:
            return self.remote.make_evaluator(len(self.federation.classes))
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        local, federation = self.plan.local, self.private.federation
        tuning = FineTuning(local, federation, Shuffle(), device) if evaluate.personal else None
        metrics = metrics_of(evaluate)
        return Evaluator(local, federation, evaluate.every, evaluate.clients, voting, device, tuning, metrics)


def build_session(
    experiment: Experiment, federation: Federation, model: nn.Module | None = None, remote: RemoteClients | None = None
) -> Session:
    """Build the plan, do what privacy asks for before the first round, and refuse what does not fit."""
    if experiment.train.evaluate.personal and remote is not None:
        raise RequestError(ELSEWHERE)
    if experiment.train.evaluate.metrics and remote is not None:
        raise RequestError(UNSEEN)
    if experiment.train.evaluate.validation and remote is not None:
        raise RequestError(f"{VALIDATION} needs clients on this machine; sites say themselves what they test with")
    refuse_missing(experiment)
    federation = as_asked(experiment, federation)
    experiment, choices = choose_stages(experiment, federation, model)
    plan = build_plan(experiment, federation, model)
    refuse_few(experiment, plan, len(federation))
    refuse_untested(federation)
    private = set_up(experiment, plan, federation, None if remote is None else remote.set_up)
    plan, client_info = private.plan, private.client_info
    if experiment.train.evaluate.personal and private.evaluator is not None:
        raise RequestError(ELSEWHERE)
    if experiment.train.evaluate.metrics and private.evaluator is not None:
        raise RequestError(UNSEEN)
    if remote is not None:
        plan = remote.with_real_clock(plan)
        client_info = remote.with_attendance(client_info, plan)
    budget = accountant(experiment, plan, client_info)
    stopping = Stopping(**experiment.train.stop.model_dump(), last=last_round(experiment, budget))
    if stopping.last is not None:  # so that methods that plan ahead know it
        plan = replace(plan, rounds=min(plan.rounds, stopping.last[0]))
    if "proxy" in plan.needs and federation.proxy is not None:
        client_info = replace(client_info, proxy=ProxyLoss(plan.local, federation.proxy))
    return Session(experiment, federation, model, plan, client_info, private, budget, stopping, remote, choices)


def check_experiment(
    experiment: Experiment, federation: Federation, model: nn.Module | None
) -> tuple[Federation, Plan]:
    """Return the plan and the federation with its devices; refuse what does not fit, before anything is computed."""
    federation = as_asked(experiment, federation)
    experiment, _ = choose_stages(experiment, federation, model)
    plan = build_plan(experiment, federation, model)
    refuse_few(experiment, plan, len(federation))
    refuse_untested(federation)
    refuse(experiment, plan, federation)
    last_round(experiment, accountant(experiment, plan, federation.client_info(plan.needs, plan.streams)))
    return federation, plan


def refuse_few(experiment: Experiment, plan: Plan, clients: int) -> None:
    """Refuse rounds of fewer clients than the combiner compares."""
    k, fewest = min(per_round(plan.clients_per_round, clients), clients), plan.combiner.fewest
    if k < fewest and plan.driver.side_by_side:
        raise RequestError(
            f'train.clients_per_round gives {k}; method.combiner = "{experiment.method.combiner["kind"]}" needs at '
            f"least {fewest} clients a round: of fewer it could leave none out"
        )


def refuse_untested(federation: Federation) -> None:
    """Refuse to train what nothing could score."""
    if not federation.tests:
        raise RequestError(
            "there are no test samples: hold some out, such as test=0.2 (data.test of own data), or give a test set"
        )


def as_asked(experiment: Experiment, federation: Federation) -> Federation:
    """Return clients with the devices that the experiment describes, and what they hold out for validation."""
    if share := experiment.train.evaluate.validation:
        federation = hold_out_validation(federation, share, experiment.train.seed)
    speed, bandwidth = experiment.system.speed, experiment.system.bandwidth
    return equip_clients(federation, speed.kind, speed.sigma, bandwidth.mean, bandwidth.sigma, experiment.train.seed)


def last_round(experiment: Experiment, accountant: Accountant | None) -> tuple[int, str] | None:
    """Return the last round that a privacy budget allows, and what to say then."""
    dp = experiment.privacy.dp
    if accountant is None or dp is None or dp.budget is None:
        return None
    rounds = accountant.rounds_within(dp.budget)
    if not rounds:
        raise RequestError(
            f"privacy.dp.budget = {dp.budget:g} is spent by the first round, which takes epsilon "
            f"{accountant.epsilon(1):.3g}; use more privacy.dp.noise"
        )
    return rounds, f"budget: epsilon {accountant.epsilon(rounds):.4g} of {dp.budget:g} is spent"
