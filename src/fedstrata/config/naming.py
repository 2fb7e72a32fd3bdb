"""What a run is called: after its recipe and the parts that were put in its place, or as its `name` says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import PurePath
from typing import Any

from fedstrata.config.completion import GIVEN
from fedstrata.config.experiment import Experiment
from fedstrata.config.tables import kinds_of
from fedstrata.core.errors import RequestError
from fedstrata.methods.recipes import STAGES

LONGEST = 100  # characters of a folder's name


def name_run(experiment: Mapping[str, Any]) -> str:
    """Return what to call a run, from the tables of its experiment: its own `name`, or that of its plan."""
    own = experiment.get("name")
    return str(own) if own else name_plan(experiment)


def name_plan(experiment: Mapping[str, Any]) -> str:
    """Name a plan after its recipe and the parts that this recipe does not have, in the order of the stages.

    Examples
    --------
    >>> from fedstrata import Experiment
    >>> stages = {"selector": "power-of-choice", "corrections": ["scaffold", "prox"], "server_step": "yogi"}
    >>> name_plan(Experiment.of({"method": {"name": "fedavg", **stages}}).dump())
    'fedavg+power-of-choice+scaffold+prox+yogi'
    >>> name_plan(Experiment.of({"method": {"name": "fedprox", "corrections": []}}).dump())
    'fedprox+no-prox'
    """
    method = experiment.get("method")
    if not isinstance(method, Mapping):
        return ""
    recipe = str(method.get("name", ""))
    usual, parts = _kinds_of_recipe(recipe), [_short(recipe)]
    chosen = method.get("chosen") or ()  # by the recipe itself
    for stage in (stage for stage in STAGES if stage not in chosen):
        own, before = kinds_of(method.get(stage)), usual.get(stage, ())
        if not own and stage not in method:  # a file that does not write every stage out
            continue
        parts += [f"no-{stage}" if kind == "none" else _short(kind) for kind in own if kind not in before]
        if stage == "corrections":  # a list; of other stages, another part is there instead
            parts += [f"no-{_short(kind)}" for kind in before if kind not in own]
    return "+".join(parts)


def name_data(name: Any, path: Any) -> str:
    """Return what to call the data of a run, from `data.name` and `data.path`: own data after their file."""
    if name == "own":
        return PurePath(str(path or "")).name or "own data"
    return "data from Python" if name == GIVEN else str(name or "")


def folder_name(name: str) -> str:
    """Return a name as a folder may be called on every system."""
    return re.sub(r"[^\w.+-]+", "-", name).strip("-.")[:LONGEST] or "run"


@cache
def _kinds_of_recipe(name: str) -> dict[str, tuple[str, ...]]:
    """Return the parts of a recipe by stage.

    One that is named by its import path is taken as fedavg, so that its parts are named: whoever reads a run folder
    must not import what is written there.
    """
    try:
        method = Experiment.of({"method": {"name": "fedavg" if ":" in name else name}}).dump()["method"]
    except RequestError:  # a package that had it is not here
        return {}
    return {stage: kinds_of(method.get(stage)) for stage in STAGES}


def _short(name: str) -> str:
    return name.rpartition(":")[2]
