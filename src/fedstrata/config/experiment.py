"""One validated description of a run: TOML in, defaults and `--set` merged, TOML out."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_args

import tomli_w

from fedstrata.config import tables
from fedstrata.config.completion import DEFAULTS, GIVEN, complete, complete_list, complete_named
from fedstrata.config.measured import complete_evaluate
from fedstrata.config.sections import (
    Data,
    EngineChoice,
    Method,
    ModelChoice,
    Name,
    Privacy,
    Section,
    SystemChoice,
    Train,
    Trust,
)
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.methods.recipes import STAGES

ABOUT = ("compare", "paper")  # what a comparison of such experiments holds, what a paper prints: no run depends on it

LIKE = 0.8  # how like a key a name must be to be taken for it


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
        train: dict[str, Any] = {
            key: complete(
                f"{key}s", tables.merge(DEFAULTS[key], getattr(self.train, key), f"train.{key}"), f"train.{key}"
            )
            for key in ("optimizer", "lr_schedule")
        }
        if self.train.stop.vote is not None and self.train.stop.target is None:
            raise RequestError("train.stop.vote needs train.stop.target: the accuracy at which a client is satisfied")
        train["evaluate"] = complete_evaluate(self.train.evaluate)
        engine = dataclasses.asdict(self.engine.make())
        return self.model_copy(
            update={
                "data": complete_named("datasets", self.data, "data"),
                "model": complete_named("models", self.model, "model"),
                "method": Method(name=self.method.name, **stages),
                "train": self.train.model_copy(update=train),
                "engine": EngineChoice(**{**self.engine.model_dump(), **engine}),
                "track": complete_list("trackers", self.track, "track"),
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
    """Another method brings its own parts: leave out the stages that spell the old method's out, or set its options."""
    method = table.get("method")
    if not isinstance(method, dict) or method.get("name", name) == name:
        return
    old, new = (Experiment.of({"method": {"name": known}}).dump() for known in (method["name"], name))
    chosen = method.pop("chosen", ())
    for stage in STAGES:
        if stage not in method:
            continue
        asked, own, other = (one.get(stage) for one in (method, old["method"], new["method"]))
        options = isinstance(asked, Mapping) and "kind" not in asked and tables.kinds_of(own) != tables.kinds_of(other)
        if stage in chosen or asked == own or options:
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


def meant_key(name: str, like: float = LIKE) -> str:
    """Return the key in full that ends in a name, or in one like it; empty where it is more like a table's."""
    if get_close_matches(name, Experiment.model_fields, n=1, cutoff=LIKE):
        return ""
    by_name: dict[str, list[str]] = {}
    for key in _leaves():
        by_name.setdefault(key.rpartition(".")[2], []).append(key)
    near = get_close_matches(name, by_name, n=1, cutoff=like)
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
            if section is Experiment and (meant := meant_key(key)):
                raise RequestError(
                    f"{key} is not an option (did you mean {meant}?); tables: {', '.join(sorted(fields))}"
                )
            if section.model_config.get("extra") == "forbid":
                near = get_close_matches(key, fields, cutoff=LIKE) or [name for name in fields if name.startswith(key)]
                top = prefix.rstrip(".") in Experiment.model_fields
                if top and not near and (meant := meant_key(key, like=1)):  # the right name, in the wrong table
                    allowed = ", ".join(sorted(fields))
                    raise RequestError(f"{prefix}{key} is not an option (did you mean {meant}?); allowed: {allowed}")
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
