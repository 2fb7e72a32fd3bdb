"""From an experiment to a finished run: what `fedstrata.train` and the command line do."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from fedstrata.config.build import build_federation
from fedstrata.config.completion import GIVEN
from fedstrata.config.experiment import Experiment
from fedstrata.config.naming import folder_name, name_run
from fedstrata.core.errors import RequestError
from fedstrata.core.storage.event_lines import describe_damage
from fedstrata.data.federation import Federation
from fedstrata.engines.local.gpu import uses_gpu, wake_gpu
from fedstrata.runs.execution import run_session, show_finished
from fedstrata.runs.extension import CHANGEABLE, WHERE, refuse_extension
from fedstrata.runs.folder import Run
from fedstrata.runs.journal import Watch
from fedstrata.runs.progress import showing
from fedstrata.runs.session import RemoteClients, build_session


def train(
    experiment: Mapping[str, Any] | str | Path | Experiment | None = None,
    *,
    method: str | None = None,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    out: str | Path | None = None,
    watch: Watch | None = None,
    progress: bool = True,
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
        The user's own clients and network, instead of `[data]` and `[model]`. The module is left as it was.
    out
        The run folder; by default the next free one under `runs/`.
    watch
        Called with every event as it happens; one that returns `fedstrata.STOP` ends the run after that round.
    progress
        Whether to show how far the run is, on a terminal or in a notebook; elsewhere nothing is shown.

    Returns
    -------
    Run
        Finished, with its summary and final model.

    Raises
    ------
    RequestError
        If a key, a value or the data are wrong, parts do not fit together, or `out` holds a run already; nothing was
        trained then.

    Examples
    --------
    >>> import fedstrata
    >>> run = fedstrata.train(method="fedprox", overrides={"train.rounds": 2, "train.clients_per_round": 5})
    >>> run.summary["client_updates"]
    10

    Until it is good enough:

    >>> def enough(event):
    ...     if event["event"] == "round" and event.get("accuracy", 0.0) > 0.5:
    ...         return fedstrata.STOP
    >>> fedstrata.train(watch=enough).summary["stopped"]
    'asked for by watch'

    With clients and a network of one's own:

    >>> import numpy as np
    >>> from torch import nn
    >>> rng = np.random.default_rng(0)
    >>> sites = [(rng.normal(size=(50, 4)), rng.integers(0, 3, 50)) for _ in range(3)]
    >>> module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> run = fedstrata.train(
    ...     {"train": {"rounds": 2, "clients_per_round": "all"}},
    ...     method="scaffold",
    ...     federation=fedstrata.Federation.from_clients(sites),
    ...     model=module,
    ... )
    >>> module.load_state_dict(run.model())
    <All keys matched successfully>
    """
    checked = describe_experiment(experiment, method, overrides, federation, model)
    if out == "":
        raise RequestError("out is empty; name a folder, or leave it out")
    path = None if out is None else Path(out)
    if uses_gpu(checked.engine.device):
        wake_gpu()
    with showing(progress, watch) as watched:
        return begin(checked, federation or build_federation(checked), model, path, watched)


def describe_experiment(
    experiment: Mapping[str, Any] | str | Path | Experiment | None,
    method: str | None,
    overrides: Mapping[str, Any] | None,
    federation: Federation | None,
    model: nn.Module | None,
) -> Experiment:
    """Return the checked experiment; data and model from Python are described by what identifies them."""
    asked = dict(overrides or {}) | ({"method.name": method} if method else {})
    return Experiment.of(experiment, **with_given(asked, federation, model))


def with_given(overrides: Mapping[str, Any], federation: Federation | None, model: nn.Module | None) -> dict[str, Any]:
    """Return overrides with what identifies data and model from Python; refuse those that contradict them."""
    if model is not None and not isinstance(model, nn.Module):
        raise RequestError(f"model must be a torch module, not {model!r}{_meant(model)}")
    if federation is not None and not isinstance(federation, Federation):
        raise RequestError("federation must be a fedstrata.Federation; make one with Federation.from_clients")
    asked = dict(overrides)
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
        if told := [key for key in asked if key.split(".")[0] == "model" and key not in ("model.head", "model.init")]:
            raise RequestError(f"{told[0]} cannot be set: the model was given")
        asked["model.name"] = GIVEN
    return asked


def _meant(model: Any) -> str:
    """Say how to give what was probably meant as the model."""
    if isinstance(model, str):
        return f'; a network by name is overrides={{"model.name": "{model}"}}'
    if isinstance(model, type) and issubclass(model, nn.Module):
        return f", which is a class; call it: {model.__name__}(...)"
    return ""


def begin(
    experiment: Experiment,
    federation: Federation,
    model: nn.Module | None,
    path: Path | None,
    watch: Watch | None,
    remote: RemoteClients | None = None,
) -> Run:
    """Start a run in a new folder, by default the next free one under runs/, and train it to its end."""
    session = build_session(experiment, federation, model, remote)
    said: list[tuple[str, dict[str, Any]]] = []
    state = session.initial_state(lambda kind, **fields: said.append((kind, fields)))  # which may refuse `model.init`
    path = path or Run.claim(Path("runs"), folder_name(name_run(experiment.dump())))
    with Run.create(path, session.experiment.to_toml(), model).locked() as folder:
        for kind, fields in said:
            folder.log(kind, **fields)
        return run_session(session, folder, state, watch)


def resume(
    path: str | Path,
    *,
    overrides: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    model: nn.Module | None = None,
    watch: Watch | None = None,
    progress: bool = True,
    remote: RemoteClients | None = None,
) -> Run:
    """Continue a run from its last checkpoint; what a kill interrupted is run again, bit for bit (CPU).

    Parameters
    ----------
    path
        The run folder.
    overrides
        `{"train.rounds": 400}` extends a run, also a finished one, where it then equals a run of so many rounds. Where
        it is executed and shown may change too: `engine.workers`, `engine.device`, `engine.client_state`, `track`, and
        of a cluster `engine.address` and what its workers take.
    federation, model
        Data and network that came from Python are passed again.
    watch
        Called with every event as it happens; one that returns `fedstrata.STOP` ends the run after that round.
    progress
        Whether to show how far the run is, on a terminal or in a notebook; elsewhere nothing is shown.
    remote
        Where clients live, if not here; `fedstrata deploy` gives it.

    Returns
    -------
    Run
        Finished; one that was finished before is given back as it is.

    Raises
    ------
    RequestError
        If the folder holds no run, another process is running in it, its experiment was edited, its checkpoint is
        damaged, the data or the model are not those that it was trained with, or rounds that are done would have been
        others with the number of rounds asked for.

    Examples
    --------
    >>> import fedstrata
    >>> def interrupt(event):
    ...     if event["event"] == "round" and event["round"] == 2:
    ...         raise KeyboardInterrupt
    >>> try:
    ...     fedstrata.train(overrides={"train.rounds": 2}, out="runs/cut", watch=interrupt)
    ... except KeyboardInterrupt:
    ...     print(fedstrata.Run("runs/cut"))
    Run('runs/cut': not finished)
    >>> fedstrata.resume("runs/cut").summary["rounds"]
    2
    >>> fedstrata.resume("runs/cut", overrides={"train.rounds": 3}).summary["rounds"]
    3
    """
    for key in overrides or {}:
        if key not in CHANGEABLE:
            raise RequestError(f"{key} cannot be changed in a run that has begun; allowed: {', '.join(CHANGEABLE)}")
    run = Run.open(Path(path), model)
    if not overrides and run.summary and not os.access(run.path, os.W_OK):
        return run  # nothing is left to do where nothing can be done
    with run.locked() as folder, showing(progress, watch) as watched:
        asked = Experiment.of(folder.path / "experiment.toml")
        experiment = Experiment.of(asked, **(overrides or {}))
        manifest = folder.checkpoints.manifest(events=int, seconds=int | float, experiment=dict, identity=dict)
        if manifest is not None and (
            edits := name_differences(_drop_extendable(manifest["experiment"]), _drop_extendable(experiment.dump()))
        ):
            raise RequestError(
                f"{folder.path}/experiment.toml was edited since the run began ({edits}); "
                "undo that, or start a new run from its model with model.init"
            )
        if manifest is None and folder.summary and experiment.train.rounds != asked.train.rounds:
            raise RequestError(
                f"train.rounds cannot be changed from {asked.train.rounds} to {experiment.train.rounds}: {folder.path} "
                "has no checkpoint to go on from; start a new run from its model with model.init"
            )
        before = experiment.train.rounds if manifest is None else manifest["experiment"]["train"]["rounds"]
        extended = before != experiment.train.rounds
        if folder.summary and not extended:
            return show_finished(experiment, folder, watched) if "track" in (overrides or {}) else folder
        if model is not None and experiment.model.name != GIVEN:
            raise RequestError(f"{folder.path} was trained with {experiment.model.name}; it needs no model")
        session = build_session(experiment, federation or build_federation(experiment), model, remote)
        if manifest is None:  # killed before the first checkpoint: nothing is lost by starting over
            folder.cut_events(0)
            return run_session(session, folder, session.initial_state(folder.log), watched)
        for what, identity in session.identity.items():
            if manifest["identity"][what] != identity:
                frozen = "; its frozen layers count as well" if what == "model" else ""
                raise RequestError(f"the {what} given is not the one that {folder.path} was trained with{frozen}")
        with session.plan.naming_states():
            state, client_states = folder.checkpoints.read(manifest, like=session.initial_state(init=False))
        if extended:
            refuse_extension(session, state, before, folder.path)
        folder.forget_result()
        folder.cut_events(manifest["events"])
        folder.log("resumed", wall={"round": manifest["round"]})
        if damage := describe_damage(folder.events()):
            folder.log("warning", what="events.jsonl", why=damage)
        return run_session(session, folder, state, watched, manifest["seconds"], client_states)


def drop_changeable(experiment: dict[str, Any]) -> dict[str, Any]:
    """Leave out where a run is executed and shown, and what it is called: that may change on the way."""
    engine = {k: v for k, v in experiment["engine"].items() if k not in WHERE}
    return {**{key: value for key, value in experiment.items() if key not in ("name", "track")}, "engine": engine}


def _drop_extendable(experiment: dict[str, Any]) -> dict[str, Any]:
    """Leave out what may change in a run that has begun; of another number of rounds, more must be known."""
    table = drop_changeable(experiment)
    return {**table, "train": {**table["train"], "rounds": None}}


def name_differences(before: Any, after: Any, key: str = "") -> str:
    """Name the keys in which two tables differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        keys = sorted(before.keys() | after.keys())
        found = [name_differences(before.get(k), after.get(k), f"{key}.{k}".lstrip(".")) for k in keys]
        return ", ".join(f for f in found if f)
    return "" if before == after else f"{key}: {before} -> {after}"
