"""One validated description of a run: TOML in, defaults and `--set` merged, TOML out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import tomli_w
from pydantic import BaseModel, ConfigDict, PlainValidator

from fedstrata.config import tables
from fedstrata.config.completion import DEFAULTS, GIVEN, complete, complete_named, complete_trackers
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.options import (
    AtLeastOne,
    BelowOne,
    Count,
    Fraction,
    LocalPath,
    Natural,
    NonNegative,
    Positive,
    Share,
)
from fedstrata.methods.recipes import STAGES

ABOUT = ("compare", "paper")  # what a comparison of such experiments holds, what a paper prints: no run depends on it

LIKE = 0.8  # how like a key a name must be to be taken for it

Spec = Any  # a part by name, `"size"`, or with options, `{kind = "size", ...}`; checked when it is completed


def _per_round(value: Any) -> Any:
    count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if count or value == "all" or (isinstance(value, float) and 0 < value <= 1):
        return value
    raise ValueError('a count such as 20, a fraction such as 0.2, or "all"')


def _name(value: Any) -> str:
    if isinstance(value, str) and value == value.strip() and value.isprintable() and 1 <= len(value) <= 100:
        return value
    raise ValueError("a line of text, 1 to 100 characters")


PerRound = Annotated[int | float | str, PlainValidator(_per_round)]
Name = Annotated[str, PlainValidator(_name)]


class Section(BaseModel):
    """A table of the experiment file."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DriftChoice(Section):
    """Label mixes that change: at each given round a share of the clients pass their samples on among themselves."""

    at: list[Count] = []
    share: Fraction = 0.5


class StreamChoice(Section):
    """Samples that arrive over time."""

    start: Fraction = 0.2
    until: Count = 50
    window: Natural = 0


class Data(Section):
    """Which samples, and who holds them. Further keys are options of the data set."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "digits"
    samples: Count | None = None  # so many training samples in place of all, of every label in proportion
    clients: Count | None = None  # 20, unless the partition counts them itself
    partition: Spec = None
    proxy: Natural = 0  # training samples that the server holds, for methods that rank models
    noise: Any = None  # wrong labels, disturbed features: {labels = 0.3}, or a list of parts
    drift: DriftChoice | None = None
    stream: StreamChoice | None = None
    fingerprint: str | None = None  # hash of data that was given from Python


class ModelChoice(Section):
    """Which network. Further keys are options of the model."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "mlp"
    init: LocalPath | None = None  # a model.safetensors to start from
    head: str | None = None  # name of the last layer, where it cannot be found
    projection: Natural = 0  # width of a projection of two layers that is put before the last one, as in MOON
    head_bias: bool = True  # whether the last layer has a bias; FedRS' authors have none


class Method(Section):
    """A recipe; the stages override its parts."""

    name: str = "fedavg"
    schedule: Spec = None
    driver: Spec = None
    selector: Spec = None
    sampler: Spec = None
    corrections: Any = None  # a list of parts
    combiner: Spec = None
    server_step: Spec = None
    chosen: list[str] | None = None  # stages that a recipe chose by what was measured; the run writes them down


class Stop(Section):
    """When to end before the last round."""

    target: Fraction | None = None  # accuracy reached
    patience: Count | None = None  # evaluations without a better accuracy
    vote: Fraction | None = (
        None  # with this share of the clients at `target` on their own test data, not the global one
    )
    bytes: Count | None = None  # budgets, of which the round that spends one is the last: bytes in all directions,
    client_updates: Count | None = None  # client updates that trained,
    time: Positive | None = None  # and virtual seconds


class Evaluate(Section):
    """When to evaluate and on what, and how many clients enter the per-client metrics."""

    every: Count = 1
    validation: BelowOne = 0.0  # share of their training samples that clients hold out, scored instead of the test set
    clients: Count = 1000
    personal: bool = False  # also after every client has fine-tuned the model for an epoch
    best: Literal["accuracy", "balanced_accuracy", "worst10", "client_mean", "personal_mean"] = "accuracy"


class Augment(Section):
    """Random changes of images in training."""

    crop: Natural = 0  # pixels of padding, out of which a window of the old size is cut
    flip: bool = False  # left and right


class Train(Section):
    """How the model is trained, whatever the method."""

    rounds: Count = 50
    clients_per_round: PerRound = 0.5
    epochs: Count = 2
    batch_size: Count = 16
    lr: Positive = 0.1
    optimizer: Spec = None
    lr_schedule: Spec = None
    targets: list[Fraction] = []  # accuracies of which the summary says what they took
    stop: Stop = Stop()
    evaluate: Evaluate = Evaluate()
    augment: Augment = Augment()
    seed: Natural = 0


class Lateness(Section):
    """Reports that come too late: a share of the selected clients, after they did the work."""

    rate: Fraction = 0.0
    mode: Literal["uniform", "slowest", "sticky", "partial"] = "uniform"


class Speed(Section):
    """How fast devices are: as the data say, drawn, or in five tiers."""

    kind: Literal["given", "lognormal", "tiers"] = "given"
    sigma: NonNegative = 0.5


class Bandwidth(Section):
    """Bytes a second, and how far clients differ."""

    mean: NonNegative = 0.0  # 0: messages take no time
    sigma: NonNegative = 0.0


class Availability(Section):
    """Who can be asked in a round."""

    kind: Literal["always", "independent", "labels", "trace"] = "always"
    rate: Fraction = 1.0
    period: Count = 20
    trace: LocalPath | None = None


class SystemChoice(Section):
    """Devices and network."""

    speed: Speed = Speed()
    bandwidth: Bandwidth = Bandwidth()
    seconds_per_sample: NonNegative = 0.001
    availability: Availability = Availability()
    deadline: NonNegative = 0.0
    wait_for: Fraction = 1.0
    over_select: AtLeastOne = 1.0
    stragglers: Lateness = Lateness()


class FixedPoint(Section):
    """How numbers are written where sums are masked: whole words, some bits of them behind the point."""

    bits: Literal[32, 64] = 32
    fraction: Natural = 20


class Differential(Section):
    """Whole clients are hidden: every update is clipped, and noise of `noise` times `clip` is added."""

    clip: Positive = 1.0
    noise: NonNegative = 0.0
    where: Literal["server", "local"] = "server"  # who adds it: the server to a sum, or every client
    delta: Share | None = None  # None: a tenth of 1 / clients
    budget: Positive | None = None  # epsilon at which the run stops


class EnclaveChoice(Section):
    """What parties insist on before they tell an enclave anything."""

    attestation: Literal["dev-insecure", "sev-snp"] = "sev-snp"
    allow_insecure: bool = False
    measurement: str | None = None
    minimum_tcb: tuple[Natural, Natural, Natural, Natural] = (0, 0, 0, 0)
    vmpl: Natural = 0
    certificates: LocalPath = "."
    noise: Fraction = 0.0


class Privacy(Section):
    """Who may see what."""

    labels: Literal["none", "prf", "ckks-paper"] = "none"
    clustering: Literal["server", "enclave", "masked"] = "server"
    histogram_epsilon: Positive | None = None
    aggregate: Literal["open", "masked"] = "open"
    encoding: FixedPoint = FixedPoint()
    dp: Differential | None = None
    enclave: EnclaveChoice = EnclaveChoice()


class Trust(Section):
    """How far the server believes a client's report; `auto` believes all in a simulation, and less at real sites."""

    clip: Literal["auto", "none", "median"] | Positive = "auto"  # longest update
    samples: Literal["auto", "none"] | AtLeastOne = "auto"  # most that one counts for, as a multiple of the median


class EngineChoice(Section):
    """Where and how client updates are executed. Further keys are options of the engine."""

    model_config = ConfigDict(extra="allow", frozen=True)
    kind: str = "local"
    workers: Count | Literal["auto"] = "auto"
    precision: Literal["fp32", "tf32", "bf16", "fp64"] = "fp32"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    execution: Literal["auto", "fused", "messages"] = "auto"  # of methods whose clients compute one batch together
    client_state: Literal["memory", "disk"] = "memory"  # where what clients keep lies between their client updates
    vmap: Literal["auto", "always", "never"] = "auto"  # whether tiny clients are trained many at once
    cuda_graphs: bool = True  # whether a GPU replays recorded steps
    compile: bool | Literal["auto"] = "auto"  # whether a GPU's steps are compiled first

    def make(self) -> Any:
        """Build the engine; of the options that engines have in common, it gets those that it has."""
        own, further = type(self).model_fields, self.model_extra or {}
        known = registry.options("engines", self.kind, "engine.kind")
        for option in further:
            if option not in known:
                raise self._refuse(option, known | set(own))
        common = {name: getattr(self, name) for name in own if name not in ("kind", "execution")}
        for option, value in common.items():
            if option not in known and value != own[option].default:
                raise RequestError(f'engine.{option} = {value!r}: engine.kind = "{self.kind}" has no such option')
        return registry.build("engines", self.kind, {k: v for k, v in common.items() if k in known} | further, "engine")

    def _refuse(self, option: str, known: set[str]) -> RequestError:
        """Say that there is no such option, or whose it is: a file written for a cluster is tried on a laptop."""
        key = f"engine.{option}"
        others = [kind for kind in registry.names("engines") if option in registry.options("engines", kind, key)]
        if not others:
            return registry.unknown_option(key, option, known)
        whose = " or ".join(f'"{kind}"' for kind in sorted(others))
        other = f"--set 'engine={{kind=\"{self.kind}\"}}' leaves out all options of other engines"
        return RequestError(f'{key} is an option of engine.kind = {whose}, and not of "{self.kind}"; {other}')


class Experiment(Section):
    """A whole run, as the user describes it; docs/experiment.md names every key. Make one with `Experiment.of`.

    Attributes
    ----------
    name
        What to call the run; without it, it is called after its parts.
    data
        Which samples, and who holds them.
    model
        Which network.
    method
        The recipe, and the parts of its stages.
    train
        Rounds, clients of a round, epochs, step sizes, when to stop and to evaluate, the seed.
    system
        Devices and network.
    privacy
        Who may see what.
    trust
        How far the server believes a client's report.
    engine
        Where and how client updates are executed.
    track
        Where the figures of the run are shown besides its folder.
    """

    name: Name | None = None
    data: Data = Data()
    model: ModelChoice = ModelChoice()
    method: Method = Method()
    train: Train = Train()
    system: SystemChoice = SystemChoice()
    privacy: Privacy = Privacy()
    trust: Trust = Trust()
    engine: EngineChoice = EngineChoice()
    track: Any = None  # a list of parts; None, and not an empty list, so that other runs are written as they were

    @classmethod
    def of(cls, source: Mapping[str, Any] | str | Path | Experiment | None = None, /, **overrides: Any) -> Experiment:
        """Read an experiment, check everything and write every option out.

        Parameters
        ----------
        source
            A TOML file, the same as nested mappings, another experiment, or nothing for the embedded default. Parts may
            be objects. A table `compare` is left to `fedstrata compare`, a table `paper` to `fedstrata reproduce`.
        **overrides
            Dotted keys and their values, put on top: `**{"train.rounds": 10}`. A table without a kind changes the keys
            that it has, and no others: `train={"rounds": 10}` is the same.

        Returns
        -------
        Experiment

        Raises
        ------
        RequestError
            If the file cannot be read, a key is unknown, or a value is not allowed; the message names what is.

        Examples
        --------
        >>> from fedstrata import Experiment
        >>> experiment = Experiment.of({"method": {"name": "fedprox"}}, **{"train.rounds": 10})
        >>> experiment.train.rounds, experiment.method.corrections[0]["kind"]
        (10, 'prox')
        >>> Experiment.of({"train": {"round": 10}})
        Traceback (most recent call last):
        ...
        fedstrata.core.errors.RequestError: train.round is not an option (did you mean "rounds"?); allowed: ...
        """
        table = source.dump() if isinstance(source, Experiment) else tables.read(source)
        for about in ABOUT:
            table.pop(about, None)
        if told := [key for key in overrides if key.split(".")[0] == "compare"]:
            raise RequestError(f"{told[0]} cannot be set; `fedstrata compare` has options for it")
        flat = tables.flatten(overrides)
        if "method.name" in flat:
            _forget_recipe(table, flat["method.name"])
        for key, value in overrides.items():
            _forget_options(table, key, value)
            tables.put(table, key, value)
        refuse_unknown(cls, table, "")
        _suggest_training(table)
        data = table.get("data", {})
        if "fingerprint" in data and data.get("name") != GIVEN:
            raise RequestError("data.fingerprint is written by the run; it cannot be set")
        checked: Experiment = registry.validate(cls, table, "")
        return checked._resolved()

    def _resolved(self) -> Experiment:
        found = registry.find("methods", self.method.name, "method.name")
        recipe, chosen = tables.plain(found.stages), self.method.chosen
        if chosen is not None and (found.choose is None or not set(chosen) <= set(STAGES)):
            raise RequestError("method.chosen is written by a run whose recipe chooses its stages; it cannot be set")
        stages: dict[str, Any] = {"chosen": chosen}
        for stage in STAGES:
            key, default, asked = f"method.{stage}", recipe.get(stage, DEFAULTS[stage]), getattr(self.method, stage)
            if found.choose is not None and stage not in recipe and not tables.is_part(asked):
                stages[stage] = asked
            elif stage == "corrections":
                specs = tables.merge_lists(default, asked, key)
                stages[stage] = [complete(stage, s, f"{key}.{i}") for i, s in enumerate(specs)]
            else:
                stages[stage] = complete(f"{stage}s", tables.merge(default, asked, key), key)
        train = {
            key: complete(
                f"{key}s", tables.merge(DEFAULTS[key], getattr(self.train, key), f"train.{key}"), f"train.{key}"
            )
            for key in ("optimizer", "lr_schedule")
        }
        if self.train.stop.vote is not None and self.train.stop.target is None:
            raise RequestError("train.stop.vote needs train.stop.target: the accuracy at which a client is satisfied")
        if self.train.evaluate.best == "personal_mean" and not self.train.evaluate.personal:
            raise RequestError('train.evaluate.best = "personal_mean" needs train.evaluate.personal = true')
        engine = dataclasses.asdict(self.engine.make())
        return self.model_copy(
            update={
                "data": complete_named("datasets", self.data, "data"),
                "model": complete_named("models", self.model, "model"),
                "method": Method(name=self.method.name, **stages),
                "train": self.train.model_copy(update=train),
                "engine": EngineChoice(**{**self.engine.model_dump(), **engine}),
                "track": complete_trackers(self.track),
            }
        )

    def dump(self) -> dict[str, Any]:
        """Return plain tables; what is not set is left out.

        Returns
        -------
        dict
        """
        table: dict[str, Any] = tables.drop_none(self.model_dump(mode="json"))
        return table

    def to_toml(self) -> str:
        """Write the experiment file.

        Returns
        -------
        str
            TOML with every option; `Experiment.of` reads it back.

        Examples
        --------
        >>> from fedstrata import Experiment
        >>> print(Experiment.of().to_toml())
        [data]
        name = "digits"
        clients = 20
        ...
        """
        return tomli_w.dumps(self.dump())


def _suggest_training(table: dict[str, Any]) -> None:
    """Put the training settings that a method suggests where the user set nothing."""
    method = table.get("method")
    name = method.get("name") if isinstance(method, Mapping) else None
    if isinstance(name, str):
        train = table.setdefault("train", {})
        for key, value in tables.plain(registry.find("methods", name, "method.name").train).items():
            if isinstance(train, dict):
                part = isinstance(value, Mapping) and train.get(key) is not None
                train[key] = tables.merge(value, train[key], f"train.{key}") if part else train.get(key, value)


def _forget_recipe(table: dict[str, Any], name: Any) -> None:
    """Another method brings its own parts: leave out the stages that only spell the old method's recipe out."""
    method = table.get("method")
    if not isinstance(method, dict) or method.get("name", name) == name:
        return
    old = Experiment.of({"method": {"name": method["name"]}}).dump()
    chosen = method.pop("chosen", ())
    for stage in STAGES:
        if stage in method and (stage in chosen or method[stage] == old["method"].get(stage)):
            del method[stage]
    suggested = [registry.find("methods", known, "method.name").train for known in (method["name"], name)]
    train = table.get("train", {})
    for key in {**suggested[0], **suggested[1]}:
        if train.get(key) == old["train"].get(key):
            train.pop(key, None)


def _forget_options(table: dict[str, Any], key: str, asked: Any) -> None:
    """Leave out options of a data set or model where a table names another one, which brings its own."""
    named: dict[str, type[Section]] = {"data": Data, "model": ModelChoice}
    section = named.get(key)
    there = table.get(key)
    if section is None or not isinstance(asked, Mapping) or not isinstance(there, dict) or "name" not in asked:
        return
    if asked["name"] == GIVEN:  # nothing that was said of other data holds for these
        table[key] = {}
    elif asked["name"] != there.get("name", section.model_fields["name"].default):
        kept = set(section.model_fields) - {"fingerprint"}
        table[key] = {option: value for option, value in there.items() if option in kept}


def _meant(name: str) -> str:
    """Return the key in full that ends in a name, or in one like it; empty where it is more like a table's."""
    if get_close_matches(name, Experiment.model_fields, n=1, cutoff=LIKE):
        return ""
    by_name: dict[str, list[str]] = {}
    for key in _leaves():
        by_name.setdefault(key.rpartition(".")[2], []).append(key)
    near = get_close_matches(name, by_name, n=1, cutoff=LIKE)
    keys = sorted(by_name[near[0]], key=lambda key: key.count(".")) if near else []
    return " or ".join(key for key in keys if key.count(".") == keys[0].count("."))


@cache
def _leaves() -> list[str]:
    """Return all keys below the tables, with the options of the parts that are there by default."""

    def of(section: type[Section], prefix: str) -> Iterator[str]:
        for name, field in section.model_fields.items():
            yield f"{prefix}{name}"
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, Section):
                    yield from of(kind, f"{prefix}{name}.")

    def options(table: Mapping[str, Any], prefix: str) -> Iterator[str]:
        for name, value in table.items():
            yield f"{prefix}{name}"
            yield from options(value, f"{prefix}{name}.") if isinstance(value, Mapping) else ()

    keys = dict.fromkeys([*of(Experiment, ""), *options(Experiment.of().dump(), "")])
    return [key for key in keys if "." in key and key not in ("data.fingerprint", "method.chosen")]


def refuse_unknown(section: type[Section], table: Mapping[str, Any], prefix: str = "") -> None:
    """Refuse keys that a section does not have, with those that were probably meant."""
    fields = section.model_fields
    for key, value in table.items():
        if key not in fields:
            if section is Experiment and (meant := _meant(key)):
                raise RequestError(
                    f"{key} is not an option (did you mean {meant}?); tables: {', '.join(sorted(fields))}"
                )
            if section.model_config.get("extra") == "forbid":
                raise registry.unknown_option(f"{prefix}{key}", key, set(fields))
            continue
        hint = fields[key].annotation
        for kind in (hint, *get_args(hint)) if value is not None or not get_args(hint) else ():
            if isinstance(kind, type) and issubclass(kind, Section):
                if not isinstance(value, Mapping):
                    name = next((name for name in ("name", "kind") if name in kind.model_fields), None)
                    meant = f"; did you mean {prefix}{key}.{name}?" if name and isinstance(value, str) else ""
                    raise RequestError(f"{prefix}{key} = {registry.shorten(value)} must be a table{meant}")
                refuse_unknown(kind, value, f"{prefix}{key}.")
