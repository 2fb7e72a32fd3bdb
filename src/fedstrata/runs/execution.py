"""From a session to a finished run: events are logged, every round is saved, the result is written."""

from __future__ import annotations

import time
from dataclasses import replace

from fedstrata.config.experiment import Experiment
from fedstrata.config.naming import name_run
from fedstrata.core.engine import ClientStates
from fedstrata.core.machine.threads import cores, keeping_to, one_thread
from fedstrata.runs.checkpoints import BackgroundWriter
from fedstrata.runs.folder import Run
from fedstrata.runs.journal import ASKED, Journal, Watch
from fedstrata.runs.session import Session
from fedstrata.runs.summary import log_start, write_result
from fedstrata.runs.tracking import Tracking, refuse_missing
from fedstrata.server.best import keep_best
from fedstrata.server.loop import run
from fedstrata.server.state import State


def run_session(
    session: Session,
    folder: Run,
    state: State,
    watch: Watch | None,
    seconds: float = 0.0,
    client_states: ClientStates | None = None,
) -> Run:
    """Run the rounds that are left, and write the result. `client_states` come from a checkpoint."""
    experiment, began = session.experiment, time.perf_counter() - seconds
    fixed = {"experiment": experiment.dump(), "identity": session.identity}
    checkpoints = BackgroundWriter(folder.checkpoints)
    tracking = Tracking(experiment, folder, state.round)
    journal = Journal(session, folder, watch, began, tracking)
    on_disk = experiment.engine.client_state == "disk"

    def save(state: State) -> None:
        if journal.stop_asked and journal.scored:  # otherwise the next round is the last, and is evaluated
            state.stopped = state.stopped or ASKED
        state.participation_log.secure()
        about = {**fixed, "events": folder.sync_events(), "seconds": time.perf_counter() - began}
        with session.plan.naming_states():
            model = state.model  # a new model is a new object
            checkpoints.write(state.round, state, engine.client_states(), about, (model.params, model.buffers))
        if on_disk or session.remote is not None:  # sites forget what a checkpoint does not need any more
            checkpoints.wait()
        if on_disk:
            engine.restore(folder.checkpoints.client_states())  # from here on it lies in the checkpoint's files

    name, rounds, at = name_run(fixed["experiment"]), experiment.train.rounds, str(folder.path)
    journal.tell({"event": "begin", "method": name, "rounds": rounds, "round": state.round, "run_dir": at})
    if client_states is None:
        log_start(session, journal.log)
        journal.warn_before()
    log = journal.log if session.remote is None else session.remote.without_repeats(journal.log)
    with journal.tracked():
        engine = session.start_engine(log)
        try:
            if experiment != Experiment.of(folder.path / "experiment.toml"):  # not before: an engine may be refused
                folder.write_experiment(experiment.to_toml())
            if client_states is None:
                save(state)
            else:
                engine.restore(client_states)
            client_info = session.client_info if engine.can_fuse else session.client_info.without_ground_truth()
            evaluate = keep_best(session.make_evaluator(engine.device), state, experiment.train.evaluate.best)
            stopping = replace(session.stopping, asked=journal.why_stop)
            workers = experiment.engine.workers
            with keeping_to(cores() if workers == "auto" else workers), one_thread():
                run(session.plan, client_info, engine, state, evaluate, stopping, log, save)
        finally:
            engine.close()
            session.private.close()
            checkpoints.close()
        write_result(session, folder, state, time.perf_counter() - began)
    return folder


def show_finished(experiment: Experiment, folder: Run, watch: Watch) -> Run:
    """Tell trackers of a run that came to its end without them."""
    refuse_missing(experiment)
    tracking = Tracking(experiment, folder, folder.summary["rounds"])
    tracking.end("finished")
    for kind, fields in tracking.news():
        folder.log(kind, **fields)
        watch({"event": kind, **fields})
    return folder
