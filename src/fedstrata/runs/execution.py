"""From a session to a finished run: events are logged, every round is saved, the result is written."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from fedstrata.core.engine import ClientStates
from fedstrata.core.threads import cores, keeping_to, one_thread
from fedstrata.runs.checkpoints import BackgroundWriter
from fedstrata.runs.folder import Run
from fedstrata.runs.session import Session
from fedstrata.runs.summary import log_start, write_result
from fedstrata.server.best import keep_best
from fedstrata.server.loop import run
from fedstrata.server.state import State

REVEALING = {  # what an event tells of the clients' data
    "round": (
        "label_divergence",
        "label_divergence_selected",
        "label_imbalance",
        "labels",
        "client_accuracy",
        "client_deciles",
    ),
    "clusters": ("members",),
}

Watch = Callable[[Mapping[str, Any]], None]


def run_session(
    session: Session,
    folder: Run,
    state: State,
    watch: Watch | None,
    seconds: float = 0.0,
    client_states: ClientStates | None = None,
) -> Run:
    """Play the rounds that are left, and write the result. `client_states` come from a checkpoint."""
    experiment, began = session.experiment, time.perf_counter() - seconds
    fixed = {"experiment": experiment.dump(), "identity": session.identity}
    checkpoints = BackgroundWriter(folder.checkpoints)
    on_disk = experiment.engine.client_state == "disk"

    def tell(event: Mapping[str, Any]) -> None:
        if watch is not None:
            watch(event)

    def log(kind: str, **fields: Any) -> None:
        if kind == "round":
            fields["wall"] = {"seconds": round(time.perf_counter() - began, 3)}
        if session.hides_data:  # they are made of what the server is not told
            fields = {key: value for key, value in fields.items() if key not in REVEALING.get(kind, ())}
        folder.log(kind, **fields)
        tell({"event": kind, **fields})

    def save(state: State) -> None:
        state.participation_log.secure()
        about = {**fixed, "events": folder.sync_events(), "seconds": time.perf_counter() - began}
        with session.plan.naming_states():
            model = state.model  # a new model is a new object
            checkpoints.write(state.round, state, engine.client_states(), about, (model.params, model.buffers))
        if on_disk or session.remote is not None:  # sites forget what a checkpoint does not need any more
            checkpoints.wait()
        if on_disk:
            engine.restore(folder.checkpoints.client_states())  # from here on it lies in the checkpoint's files

    name, rounds, at = experiment.method.name, experiment.train.rounds, str(folder.path)
    tell({"event": "begin", "method": name, "rounds": rounds, "round": state.round, "run_dir": at})
    if client_states is None:
        log_start(session, log)
    engine = session.start_engine(log)
    try:
        if client_states is None:
            save(state)
        else:
            engine.restore(client_states)
        client_info = session.client_info if engine.can_fuse else session.client_info.without_ground_truth()
        evaluate = keep_best(session.make_evaluator(engine.device), state, experiment.train.evaluate.best)
        with keeping_to(cores() if experiment.engine.workers == "auto" else experiment.engine.workers), one_thread():
            run(session.plan, client_info, engine, state, evaluate, session.stopping, log, save)
    finally:
        engine.close()
        session.private.close()
        checkpoints.close()
    write_result(session, folder, state, time.perf_counter() - began)
    return folder
