"""More rounds for a run that has begun: where it then equals, bit for bit, a run that had them from the start.

Rounds that are done must be those of the longer run too. Whatever looked at the number of rounds in them forbids it:
a learning rate that falls towards the end, a part that plans ahead, an evaluation that only the last round gets.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.messages import WHOLE
from fedstrata.core.plan import Plan
from fedstrata.runs.session import Session
from fedstrata.server.state import State

WHERE = (  # of [engine]: where a run is executed, which changes nothing in it
    "workers",
    "device",
    "client_state",
    "address",
    "cpus",
    "gpus",
    "replicas",
    "shared_folder",
    "object_store",
)
CHANGEABLE = ("train.rounds", *(f"engine.{key}" for key in WHERE), "track")
TIMES = (WHOLE, (1, 2))  # of a round, at which learning rates are compared


def refuse_extension(session: Session, state: State, before: int, folder: Path) -> None:
    """Refuse another number of rounds than a run began with, if rounds that are done would have been others with it."""
    if reason := _why_not(session, state, before, folder):
        raise RequestError(
            f"train.rounds cannot be changed from {before} to {session.experiment.train.rounds}: {reason}"
        )


def depends_on_rounds(plan: Plan, before: int, done: int) -> str | None:
    """Say what in the first rounds of a plan would have been otherwise with another number of rounds, or None."""
    for key, part in plan.parts.items():
        if part.plans_ahead:
            return f"{key} ({type(part).__name__}) plans with the number of rounds"
    now = plan.local.rate
    then = replace(now, rounds=before)
    for round in range(done):
        for time in TIMES:
            if then.at(round, time) != now.at(round, time):
                rates = f"{then.at(round, time):.6g} and would have been {now.at(round, time):.6g}"
                return f"train.lr_schedule depends on it: the learning rate of round {round + 1} was {rates}"
    return None


def _why_not(session: Session, state: State, before: int, folder: Path) -> str | None:
    experiment = session.experiment
    if comparison := next((up for up in folder.resolve().parents[:5] if (up / "comparison.json").exists()), None):
        return f"the run belongs to the comparison in {comparison}, whose runs have equally many"
    if session.remote is not None:
        return "sites have agreed to the experiment as it was"
    if experiment.privacy.clustering == "enclave":
        return "the enclave serves the number of rounds that it was started with"
    if experiment.train.rounds <= state.round:
        return f"{state.round} are done already"
    if state.stopped is not None:
        return f"the run was ended by something else ({state.stopped})"
    if state.round == before and (reason := _last_was_special(experiment, before)):
        return reason
    return depends_on_rounds(session.plan, before, state.round)


def _last_was_special(experiment: Experiment, before: int) -> str | None:
    """Say whether the last round was evaluated only because it was the last; rules and selectors have seen that."""
    every = experiment.train.evaluate.every
    if before % every:
        return f"round {before} was evaluated as the last one, and in a longer run with evaluate.every = {every} is not"
    return None
