"""One validated description of a run: TOML in, defaults and `--set` merged, TOML out."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainValidator

from fedstrata import registry
from fedstrata.errors import RequestError
from fedstrata.options import Count, Fraction, Natural, Positive
from fedstrata.part import Part

GIVEN = "given"  # data or model handed over from Python

# A part by name, `"size"`, or with options, `{kind = "size", ...}`.
Spec = Annotated[dict[str, Any], BeforeValidator(lambda v: {"kind": v} if isinstance(v, str) else v)]


def _per_round(value: Any) -> Any:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if count or value == "all" or (isinstance(value, float) and 0 < value <= 1):
        return value
    raise ValueError('a count such as 20, a fraction such as 0.2, or "all"')


PerRound = Annotated[int | float | str, PlainValidator(_per_round)]


class Section(BaseModel):
    """A table of the experiment file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """Which samples, and who holds them. Further keys are options of the data set."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "digits"
    clients: Count = 20
    partition: Spec | None = None
    fingerprint: str | None = None  # hash of data that was given from Python


class ModelChoice(Section):
    """Which network. Further keys are options of the model."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "mlp"
    init: str | None = None  # a model.safetensors to start from
    head: str | None = None  # name of the last layer, where it cannot be found


class Method(Section):
    """A recipe; the stages override its parts."""

    name: str = "fedavg"
    driver: Spec | None = None
    select: Spec | None = None
    sample: Spec | None = None
    correct: list[Spec] | dict[str, Any] | None = None
    combine: Spec | None = None


class Stop(Section):
    """When to end before the last round."""

    target: Fraction | None = None  # accuracy reached
    patience: Count | None = None  # evaluations without a better accuracy
    vote: Fraction | None = (
        None  # with this share of the clients at `target` on their own test data, not the global one
    )


class Evaluate(Section):
    """When to evaluate, and how many clients enter the per-client metrics."""

    every: Count = 1
    clients: Count = 1000


class Train(Section):
    """How the model is trained, whatever the method."""

    rounds: Count = 50
    clients_per_round: PerRound = 0.5
    epochs: Count = 2
    batch_size: Count = 16
    lr: Positive = 0.1
    optimizer: Spec | None = None
    lr_schedule: Spec | None = None
    stop: Stop = Stop()
    evaluate: Evaluate = Evaluate()
    seed: Natural = 0


class Stragglers(Section):
    """Reports that come too late: a share of the selected clients, after they did the work."""

    rate: Fraction = 0.0
    mode: Literal["uniform"] = "uniform"


class Devices(Section):
    """Devices and network."""

    stragglers: Stragglers = Stragglers()


class Privacy(Section):
    """Who may see what."""

    labels: Literal["none"] = "none"
    clustering: Literal["server"] = "server"
    aggregate: Literal["open"] = "open"


class EngineChoice(Section):
    """Where and how visits are executed."""

    kind: str = "local"
    lanes: Count | Literal["auto"] = "auto"
    precision: Literal["fp32", "fp64"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"


class Experiment(Section):
    """A whole run, as the user describes it."""

    data: Data = Data()
    model: ModelChoice = ModelChoice()
    method: Method = Method()
    train: Train = Train()
    system: Devices = Devices()
    privacy: Privacy = Privacy()
    engine: EngineChoice = EngineChoice()

    @classmethod
    def of(cls, source: Mapping[str, Any] | str | Path | Experiment | None = None, **overrides: Any) -> Experiment:
        """Read a mapping or a TOML file, put dotted overrides on top, and check everything."""
        table = source.dump() if isinstance(source, Experiment) else _read(source)
        for key, value in overrides.items():
            put(table, key, value)
        table = _plain(table)
        _refuse_unknown(cls, table, "")
        checked: Experiment = registry.validated(cls, table, "")
        return checked.resolved()

    def resolved(self) -> Experiment:
        """Merge the recipe in and write every option out."""
        recipe = registry.find("methods", self.method.name, "method.name").stages
        method: dict[str, Any] = {"name": self.method.name}
        for stage, kinds in METHOD_STAGES.items():
            asked = getattr(self.method, stage)
            default = recipe.get(stage, DEFAULT_STAGES[stage])
            key = f"method.{stage}"
            if stage == "correct":
                specs = merged(default, asked)
                method[stage] = [complete(kinds, s, f"{key}.{i}") for i, s in enumerate(specs)]
            else:
                method[stage] = complete(kinds, merged(default, asked), key)
        return self.model_copy(
            update={
                "data": self.data if self.data.name == GIVEN else _complete_named("datasets", self.data, "data"),
                "model": self.model if self.model.name == GIVEN else _complete_named("models", self.model, "model"),
                "method": Method(**method),
                "train": self.train.model_copy(
                    update={
                        "optimizer": complete("optimizers", merged(SGD, self.train.optimizer), "train.optimizer"),
                        "lr_schedule": complete("rates", merged(CONSTANT, self.train.lr_schedule), "train.lr_schedule"),
                    }
                ),
            }
        )

    def dump(self) -> dict[str, Any]:
        """Give plain tables; what is not set is left out."""
        tables: dict[str, Any] = _without_none(self.model_dump(mode="json"))
        return tables

    def to_toml(self) -> str:
        """Write the experiment file."""
        return tomli_w.dumps(self.dump())


METHOD_STAGES = {
    "driver": "drivers",
    "select": "selectors",
    "sample": "samplers",
    "correct": "corrections",
    "combine": "combiners",
}
DEFAULT_STAGES: dict[str, Any] = {
    "driver": {"kind": "rounds"},
    "select": {"kind": "random"},
    "sample": {"kind": "shuffle"},
    "correct": [],
    "combine": {"kind": "size", "server": {"kind": "sgd"}},
}
DIRICHLET, SGD, CONSTANT = {"kind": "dirichlet-class", "alpha": 0.1}, {"kind": "sgd"}, {"kind": "constant"}


# ---- parts as tables ---------------------------------------------------------------------------------------------


def make(stage: str, spec: Mapping[str, Any], key: str) -> Any:
    """Build the part that a table describes."""
    if "kind" not in spec:
        raise RequestError(f"{key}.kind is required; allowed: {', '.join(sorted(registry.names(stage)))}")
    options = {k: v for k, v in spec.items() if k not in ("kind", "server")}
    return registry.build(stage, str(spec["kind"]), options, key)


def complete(stage: str, spec: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Check a part's table and write its defaults out."""
    full = {"kind": spec.get("kind"), **dataclasses.asdict(make(stage, spec, key))}
    if stage == "combiners":
        full["server"] = complete("servers", spec.get("server", {"kind": "sgd"}), f"{key}.server")
    elif "server" in spec:
        raise RequestError(f"{key}.server is not an option; only method.combine has a server")
    return full


def _complete_named(stage: str, section: Data | ModelChoice, key: str) -> Any:
    """Do the same for the tables that have a name instead of a kind, with options beside their own keys."""
    options = section.model_extra or {}
    part = registry.find(stage, section.name, f"{key}.name")
    known = {f.name for f in dataclasses.fields(part)}
    for option in options:
        if option not in known:
            raise registry.unknown_option(f"{key}.{option}", option, known | set(type(section).model_fields))
    full = dataclasses.asdict(registry.build(stage, section.name, options, key))
    own = {name: getattr(section, name) for name in type(section).model_fields}
    if "partition" in own:
        own["partition"] = complete("partitions", merged(DIRICHLET, own["partition"]), f"{key}.partition")
    return type(section)(**own, **full)


def merged(base: Any, override: Any) -> Any:
    """Put an override on a recipe's part: the same kind keeps its other options, another kind replaces it.

    An element of a list is named by its place: `method.correct.0.mu`.
    """
    if override is None:
        return base
    if isinstance(base, list) and isinstance(override, Mapping):
        places = list(base)
        for place, value in override.items():
            if not place.isdigit() or int(place) >= len(base):
                raise RequestError(f"method.correct.{place}: the method has {len(base)} corrections, counted from 0")
            places[int(place)] = merged(base[int(place)], value)
        return places
    if isinstance(base, Mapping) and isinstance(override, Mapping):
        if override.get("kind", base.get("kind")) == base.get("kind"):
            return {**base, **{k: merged(base.get(k), v) for k, v in override.items()}}
        server = {"server": base["server"]} if "server" in base else {}
        return {**server, **override}
    if isinstance(base, Mapping) and isinstance(override, str):
        return merged(base, {"kind": override})
    return override


# ---- reading -----------------------------------------------------------------------------------------------------


def assignment(text: str) -> tuple[str, Any]:
    """Read `a.b=value`; the value is TOML, or plain text where that fails."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RequestError(f'--set "{text}" must look like train.rounds=10')
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value.strip()


def put(table: dict[str, Any], key: str, value: Any) -> None:
    """Set a dotted key inside nested tables."""
    *path, last = key.split(".")
    at: Any = table
    for name in path:
        if isinstance(at, list):
            at = at[int(name)] if name.isdigit() and int(name) < len(at) else None
        else:
            if isinstance(at.get(name), str):
                at[name] = {"kind": at[name]}
            at = at.setdefault(name, {})
        if not isinstance(at, dict | list):
            raise RequestError(f"{key} cannot be set: {name} is not a table")
    if isinstance(at, list):
        at[int(last)] = value
    else:
        at[last] = value


def _read(source: Mapping[str, Any] | str | Path | None) -> dict[str, Any]:
    if source is None:
        return {}
    if isinstance(source, Mapping):
        return {k: dict(v) if isinstance(v, Mapping) else v for k, v in source.items()}
    try:
        return tomllib.loads(Path(source).read_text())
    except tomllib.TOMLDecodeError as error:
        raise RequestError(f"{source} is not valid TOML: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError(f"{source} cannot be read: {error}") from None


def _plain(value: Any) -> Any:
    """Write part objects as tables, so that an experiment made in Python is a file too."""
    if isinstance(value, Part):
        return {"kind": registry.name_of(type(value)), **dataclasses.asdict(value)}  # type: ignore[call-overload]
    if isinstance(value, Mapping):
        return {k: _plain(v) for k, v in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(v) for v in value]
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_none(v) for k, v in value.items() if v is not None}
    return [_without_none(v) for v in value] if isinstance(value, list | tuple) else value


def _refuse_unknown(section: type[Section], table: Mapping[str, Any], prefix: str) -> None:
    fields = section.model_fields
    for key, value in table.items():
        if key not in fields:
            if section.model_config.get("extra") == "forbid":
                raise registry.unknown_option(f"{prefix}{key}", key, set(fields))
            continue
        kind = fields[key].annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            if not isinstance(value, Mapping):
                raise RequestError(f"{prefix}{key} = {value!r} must be a table")
            _refuse_unknown(kind, value, f"{prefix}{key}.")
