"""From an experiment to a finished run: what `fedstrata.train` and the command line do."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from fedstrata import __version__, registry
from fedstrata.assemble import assemble, federation_of, initial_model
from fedstrata.engines.local.in_process import one_thread
from fedstrata.errors import RequestError
from fedstrata.experiment import GIVEN, Experiment
from fedstrata.federation import Federation
from fedstrata.judge import Judge
from fedstrata.loop import State, run, scored
from fedstrata.plan import Plan, initial, per_round
from fedstrata.runs import Run
from fedstrata.stopping import Stopping

Watch = Callable[[Mapping[str, Any]], None]


def train(
    experiment: Mapping[str, Any] | str | Path | Experiment | None = None,
    *,
    method: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
) -> Run:
    """Train a model over a federation and keep everything in a run folder.

    Parameters
    ----------
    experiment
        A TOML file, the same as nested mappings, or nothing for the embedded default. Parts may be objects.
    method
        Short for the override `method.name`.
    overrides
        Dotted keys and values, as with `--set`: `{"train.rounds": 10}`.
    federation, model
        The user's own clients and network, instead of `[data]` and `[model]`.
    out
        The run folder; by default the next free one under `runs/`.
    watch
        Called with every event as it happens.
    """
    checked = described(experiment, method, overrides, federation, model)
    path = Path(out) if out is not None else Run.next_free(Path("runs"), checked.method.name)
    return begin(checked, federation or federation_of(checked), model, path, watch)


def described(
    experiment: Mapping[str, Any] | str | Path | Experiment | None,
    method: str | None,
    overrides: Mapping[str, Any] | None,
    federation: Federation | None,
    model: nn.Module | None,
) -> Experiment:
    """Give the checked experiment; data and model from Python are described by what identifies them."""
    asked = dict(overrides or {}) | ({"method.name": method} if method else {})
    if federation is not None:
        if told := [key for key in asked if key.split(".")[0] == "data"]:
            raise RequestError(f"{told[0]} cannot be set: the federation was given")
        asked["data"] = {
            "name": GIVEN,
            "clients": len(federation),
            "partition": None,
            "fingerprint": federation.fingerprint,
        }
    if model is not None:
        asked["model.name"] = GIVEN
    return Experiment.of(experiment, **asked)


def begin(
    experiment: Experiment, federation: Federation, model: nn.Module | None, path: Path, watch: Watch | None
) -> Run:
    """Start a run in a new folder and play it to its end."""
    work = Work(experiment, federation, model)
    folder = Run.create(path, experiment.to_toml())
    return work.go_on(folder, work.fresh(), watch, seconds=0.0)


def resume(
    path: str | Path,
    *,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    watch: Watch | None = None,
) -> Run:
    """Continue a run from its last checkpoint; what a kill interrupted is played again, bit for bit (CPU)."""
    folder = Run.open(Path(path))
    if folder.summary:
        return folder
    experiment = Experiment.of(folder.path / "experiment.toml")
    manifest = folder.checkpoints.manifest()
    if manifest is not None and manifest["experiment"] != experiment.dump():
        edits = _differences(manifest["experiment"], experiment.dump())
        raise RequestError(
            f"{folder.path}/experiment.toml was edited since the run began ({edits}); "
            "undo that, or start a new run from its model with model.init"
        )
    given = experiment.data.name == GIVEN
    if given and federation is not None and federation.fingerprint != experiment.data.fingerprint:
        raise RequestError(f"the federation given is not the one that {folder.path} was trained on")
    work = Work(experiment, federation or federation_of(experiment), model)
    state, saved = work.fresh(), None
    if manifest is not None:
        saved = folder.checkpoints.read(like=state)
    if manifest is None or saved is None:  # killed before the first checkpoint: nothing is lost by starting over
        folder.cut_events(0)
        return work.go_on(folder, state, watch, seconds=0.0)
    folder.cut_events(manifest["events"])
    folder.log("resumed", wall={"round": manifest["round"]})
    return work.go_on(folder, saved[0], watch, manifest["seconds"], keeps=saved[1])


class Work:
    """One experiment on one federation, ready to run."""

    def __init__(self, experiment: Experiment, federation: Federation, model: nn.Module | None):
        self.experiment, self.federation, self.model = experiment, federation, model
        self.plan: Plan = assemble(experiment, federation, model)
        self.roster = federation.roster(self.plan.needs, self.plan.streams)

    def fresh(self) -> State:
        """Give the state before the first round."""
        model = initial_model(self.plan, self.experiment.model.init)
        view = self.plan.view(self.roster, 0, lambda *_, **__: None)
        participation = np.zeros(len(self.federation), dtype=np.int64)
        return State(model, initial(self.plan, view, model), participation)

    def go_on(self, folder: Run, state: State, watch: Watch | None, seconds: float, keeps: Any = None) -> Run:
        """Play the rounds that are left, and write the result."""
        train, began = self.experiment.train, time.perf_counter() - seconds

        def log(kind: str, **fields: Any) -> None:
            if kind == "round":
                fields["wall"] = {"seconds": round(time.perf_counter() - began, 3)}
            folder.log(kind, **fields)
            if watch is not None:
                watch({"event": kind, **fields})

        def save(state: State) -> None:
            state.durable |= state.accepted
            about = {
                "experiment": self.experiment.dump(),
                "events": folder.sync_events(),
                "seconds": time.perf_counter() - began,
            }
            folder.checkpoints.write(state.round, state, engine.keeps(), about)

        choice = self.experiment.engine
        place = registry.build("engines", choice.kind, {"lanes": choice.lanes, "device": choice.device}, "engine")
        visits = train.rounds * per_round(train.clients_per_round, len(self.federation))
        if watch is not None:
            about = {"rounds": train.rounds, "round": state.round, "method": self.experiment.method.name}
            watch({"event": "begin", **about})
        if keeps is None:
            self._introduce(log)
        engine = place.start(self.plan.local, self.federation, visits, log)
        try:
            if keeps is not None:
                engine.restore(keeps)
            else:
                save(state)
            with one_thread():
                stopping = Stopping(**train.stop.model_dump())
                run(self.plan, self.roster, engine, state, self._judge(engine.device), stopping, log, save)
        finally:
            engine.close()
        self._conclude(folder, state, time.perf_counter() - began)
        return folder

    def _judge(self, device: str) -> Judge:
        evaluate, stop = self.experiment.train.evaluate, self.experiment.train.stop
        voting = stop.target if stop.vote is not None else None
        return Judge(self.plan.local, self.federation, evaluate.every, evaluate.clients, voting, device)

    def _introduce(self, log: Callable[..., None]) -> None:
        federation, plan = self.federation, self.plan
        log(
            "start",
            version=__version__,
            clients=len(federation),
            samples=len(federation.train_split.rows),
            left_out=federation.left_out,
            test_samples=len(federation.test),
            classes=list(federation.classes),
            parameters=plan.space.P,
            fingerprint=federation.fingerprint,
        )
        for note in federation.notes:
            log("fallback", what="data.partition", why=note)
        if self.roster.setup_bytes:
            log("setup", told=sorted(plan.needs), bytes_up=self.roster.setup_bytes)
        asked = per_round(plan.clients_per_round, len(federation))
        if asked > len(self.roster.holders):
            log(
                "fallback",
                what="train.clients_per_round",
                used=len(self.roster.holders),
                why="fewer clients hold data",
            )

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
            "run_dir": str(folder.path),
            "loss_test": last["loss_test"],
            "client_mean": last.get("client_mean"),
            "jain": last["jain"],
            "best_accuracy": max(curve),
            "last10_accuracy": float(np.mean(curve[-10:])),
            "bytes_setup": self.roster.setup_bytes,
            "stopped": state.stopped or "all rounds played",
        }
        about = {"classes": json.dumps(self.federation.classes), "method": self.experiment.method.name}
        folder.write_result(self.plan.space.named(scored(self.plan, state)), about, summary)


def _differences(before: Any, after: Any, key: str = "") -> str:
    """Name the keys in which two tables differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        found = [_differences(before.get(k), after.get(k), f"{key}.{k}".lstrip(".")) for k in keys]
        return ", ".join(f for f in found if f)
    return "" if before == after else f"{key}: {before} -> {after}"
