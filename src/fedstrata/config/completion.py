"""Parts as an experiment file describes them, checked and with all their options written out."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from pydantic import BaseModel

from fedstrata.config import tables
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.data.sets.base import DataSet
from fedstrata.data.sets.own import imported_names

GIVEN = "given"  # data or model handed over from Python

DEFAULTS: dict[str, Any] = {
    "schedule": {"kind": "none"},
    "driver": {"kind": "rounds"},
    "selector": {"kind": "random"},
    "sampler": {"kind": "shuffle"},
    "corrections": [],
    "combiner": {"kind": "size"},
    "server_step": {"kind": "sgd"},
    "optimizer": {"kind": "sgd"},
    "lr_schedule": {"kind": "constant"},
    "partition": {"kind": "dirichlet-class", "alpha": 0.1},
}
MANY = 4  # names that would tell nothing


def make(stage: str, spec: Mapping[str, Any], key: str) -> Any:
    """Build the part that a table describes."""
    if "kind" not in spec:
        raise RequestError(f"{key}.kind is required; allowed: {', '.join(sorted(registry.names(stage)))}")
    options = {k: v for k, v in spec.items() if k != "kind"}
    return registry.build(stage, str(spec["kind"]), options, key)


def complete(stage: str, spec: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Check a part's table and write its name and all its options out."""
    part = make(stage, spec, key)
    return {"kind": registry.name_of(stage, type(part)), **dataclasses.asdict(part)}


def _who_has(stage: str, option: str, key: str) -> str:
    """Say under which other name there is such an option: whoever gives a path has data of his own."""
    others = []
    for name in registry.names(stage):
        with suppress(RequestError):  # one that needs a package which is not here
            if option in registry.options(stage, name, key):
                others.append(f'"{name}"')
    return f"; {key}.name = {' or '.join(others)} has it" if 0 < len(others) < MANY else ""


def _of_partition(own: Mapping[str, Any], option: str) -> str:
    """Say so where an option is one of the partition, as alpha is; a model has none."""
    if "partition" not in own:
        return ""
    kind = tables.merge(DEFAULTS["partition"], own["partition"], "data.partition")["kind"]
    known = registry.options("partitions", kind, "data.partition.kind")
    return f"; did you mean data.partition.{option}?" if option in known else ""


def complete_named(stage: str, section: BaseModel, key: str) -> Any:
    """Do the same for the tables that have a name instead of a kind, with options beside their own keys."""
    own = {field: getattr(section, field) for field in type(section).model_fields}
    name: str = own["name"]
    given = name == GIVEN
    if key == "data" and name not in registry.names(stage) and name in imported_names():
        raise RequestError(f'data.name = "{name}" names imported data: write data.name = "own", data.path = "{name}"')
    known = set() if given else registry.options(stage, name, f"{key}.name")
    options = own_options(section, known)
    for option in options:
        if option not in known:
            refused = registry.unknown_option(f"{key}.{option}", option, known | set(own))
            raise RequestError(f"{refused}{_who_has(stage, option, key) or _of_partition(own, option)}")
    if given:
        return section
    built = registry.build(stage, name, options, key)
    if isinstance(built, DataSet):
        kept = built.names_clients and own["clients"] is None
        usual = {"kind": "natural"} if kept else DEFAULTS["partition"]
        partition = tables.merge(usual, own["partition"], f"{key}.partition")
        own["partition"] = complete("partitions", partition, f"{key}.partition")
        counts_itself = registry.find("partitions", own["partition"]["kind"], f"{key}.partition").counts_clients
        own["clients"] = own["clients"] or (None if counts_itself else 20)
        noises = tables.merge_lists([], _noises(own["noise"]), f"{key}.noise")
        own["noise"] = [complete("noises", noise, f"{key}.noise.{i}") for i, noise in enumerate(noises)]
    return type(section)(**{**own, **dataclasses.asdict(built)})


def own_options(section: BaseModel, known: Collection[str]) -> dict[str, Any]:
    """Return the options of what a table names: its further keys, and `samples` where a data set has it itself."""
    itself = {"samples": getattr(section, "samples", None)} if "samples" in known else {}
    return {**(section.model_extra or {}), **{option: value for option, value in itself.items() if value is not None}}


def complete_list(stage: str, asked: Any, key: str) -> list[dict[str, Any]] | None:
    """Do the same for a list of parts that is empty by default."""
    specs = tables.merge_lists([], asked, key)
    return [complete(stage, spec, f"{key}.{i}") for i, spec in enumerate(specs)] or None


def _noises(noise: Any) -> Any:
    """Read the short form: `{labels = 0.3, features = 0.1}`."""
    if noise is None or not isinstance(noise, Mapping):
        return noise
    short = {"labels": ("label-noise", "rate"), "features": ("feature-noise", "sigma")}
    if strange := [key for key in noise if key not in short]:
        raise registry.unknown_option(f"data.noise.{strange[0]}", strange[0], set(short))
    return [{"kind": kind, option: noise[key]} for key, (kind, option) in short.items() if noise.get(key)]
