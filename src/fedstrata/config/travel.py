"""What of an experiment travels to sites, and what a site takes of one.

A site needs what decides local training: model, method, training, privacy, how long an update may be, and in which
precision. Data and devices are its own. A path on one machine means nothing on another, and would let a server read
files there: keys that name files are known by their types (`LocalPath`), are never sent, and are refused where they
come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple, get_args

from fedstrata.config import tables
from fedstrata.config.experiment import Experiment
from fedstrata.config.sections import Section
from fedstrata.core import origin, registry
from fedstrata.core.errors import RequestError
from fedstrata.methods.recipes import STAGES

TRAVELS = {  # tables, and their keys; None: all of them
    "model": None,
    "method": None,
    "train": None,
    "privacy": None,
    "trust": None,
    "engine": {"precision"},
}


class Named(NamedTuple):
    """A part, as an experiment names it."""

    key: str
    stage: str
    name: str
    options: Mapping[str, Any]


def to_sites(experiment: Experiment) -> dict[str, Any]:
    """Return what sites are told of an experiment; parts whose options name files cannot be told."""
    told = experiment.dump()
    told = {name: {k: v for k, v in told[name].items() if keys is None or k in keys} for name, keys in TRAVELS.items()}
    for key in path_keys():
        *path, last = key.split(".")
        if isinstance(at := tables.look_up(told, ".".join(path)), dict):
            at.pop(last, None)
    for part in parts_of(experiment):
        kind, table = registry.find(part.stage, part.name, part.key), tables.look_up(told, part.key)
        for option in origin.path_options(kind) & set(part.options):
            if origin.names_file(kind, option, part.options[option]):
                raise RequestError(
                    f"{part.key}.{option} is a path on this machine; sites have other files: leave it out"
                )
            table.pop(option, None)
    return told


def from_server(told: Mapping[str, Any], allowed: Collection[str] = ()) -> Experiment:
    """Read what a server tells of an experiment; `allowed` are import paths of parts that it may name."""
    for table, value in told.items():
        if table not in TRAVELS:
            raise RequestError(f"{table:.80} is not what a server decides; allowed: {', '.join(TRAVELS)}")
        keys = TRAVELS[table]
        if keys is not None and (strange := sorted(set(value if isinstance(value, Mapping) else ()) - keys)):
            raise RequestError(f"{table}.{strange[0]:.80} is not what a server decides")
    for key in path_keys():
        if tables.look_up(told, key) is not None:
            raise RequestError(f"{key} is a path, and no machine names files of another")
    with origin.from_elsewhere(allowed):
        return Experiment.of(told)


def path_keys(section: type[Section] = Experiment, prefix: str = "") -> list[str]:
    """Return the keys of an experiment's own tables that name files or folders, by their types."""
    found = []
    for name, field in section.model_fields.items():
        if origin.is_path(field.annotation) or origin.IS_PATH in field.metadata:
            found.append(f"{prefix}{name}")
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, Section):
                found += path_keys(kind, f"{prefix}{name}.")
    return found


def parts_of(experiment: Experiment) -> Iterator[Named]:
    """Give every part that decides what clients compute."""
    method, train = experiment.method, experiment.train
    places = [(f"method.{stage}", f"{stage}s", getattr(method, stage)) for stage in STAGES if stage != "corrections"]
    places += [(f"method.corrections.{i}", "corrections", part) for i, part in enumerate(method.corrections or [])]
    places += [(f"train.{key}", f"{key}s", getattr(train, key)) for key in ("optimizer", "lr_schedule")]
    for key, stage, table in places:
        if not tables.is_part(table):
            continue  # the recipe has still to choose it
        yield Named(key, stage, str(table["kind"]), {k: v for k, v in table.items() if k != "kind" and v is not None})
    yield Named("model", "models", experiment.model.name, experiment.model.model_extra or {})
