"""The rules of a site, as its owner writes them into `site.toml`. Whatever is not written there is not restricted."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from fedstrata.config import tables
from fedstrata.config.experiment import Experiment, refuse_unknown
from fedstrata.config.sections import Section
from fedstrata.config.travel import parts_of
from fedstrata.core import registry
from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, Fraction, Positive, Share
from fedstrata.remote.protocol import PolicyError
from fedstrata.remote.site.policy.hours import Hours


def _checked(read: Callable[[str], Any]) -> AfterValidator:
    def check(text: str) -> str:
        read(text)
        return text

    return AfterValidator(check)


def _server(text: str) -> None:
    host, _, port = text.rpartition(":") if text.count(":") == 1 else (text, "", "1")
    if not host or any(sign.isspace() or sign in "/@" for sign in host) or not port.isdigit():
        raise ValueError('names or addresses of servers, such as "fl.example.org" or "192.0.2.10:8000"')


def _part(text: str) -> None:
    if ":" in text:
        return
    stage, _, name = text.partition(".")
    if stage not in registry.STAGES or name not in registry.names(stage):
        raise ValueError(
            'registered parts such as "selectors.oort", or import paths such as "my_package.module:Newest"'
        )


def _registered(stage: str) -> Callable[[str], None]:
    def check(name: str) -> None:
        if name not in registry.names(stage):
            raise ValueError(f"names of `fedstrata list {stage}`")

    return check


class LeastPrivacy(Section):
    """The least privacy with which anything leaves the site."""

    aggregate: Literal["open", "masked"] = "open"
    labels: Literal["none", "prf"] = "none"
    counts: Literal["exact", "noised", "none"] = "exact"  # how many samples of each label it tells
    counts_epsilon: Positive = 1.0  # of their noise
    epsilon: Positive | None = None  # the largest in total: of all noised updates that ever leave
    delta: Share = 1e-5


class Limits(Section):
    """How much a server may ask for."""

    parameters: Count | None = None  # of a model
    rounds_per_day: Count | None = None  # in 24 hours, over all runs
    updates_per_day: Count | None = None  # a round may have many


class Resources(Section):
    """How much of its machine the site's process may use."""

    threads: Count | None = None
    memory_gb: Positive | None = None
    gpu: Fraction | None = None  # share of a GPU's memory; 0: no GPU


class SitePolicy(Section):
    """All rules of a site."""

    servers: list[Annotated[str, _checked(_server)]] | None = None
    methods: list[Annotated[str, _checked(_registered("methods"))]] | None = None  # and the parts they are made of
    models: list[Annotated[str, _checked(_registered("models"))]] | None = None
    parts: tuple[Annotated[str, _checked(_part)], ...] = ()  # further ones
    approval: Literal["none", "ask"] = "none"  # whether a run waits for the site's owner
    hours: list[Annotated[str, _checked(Hours.read)]] | None = None
    privacy: LeastPrivacy = LeastPrivacy()
    limits: Limits = Limits()
    resources: Resources = Resources()

    @property
    def import_paths(self) -> frozenset[str]:
        """Parts by import path that a server may name."""
        return frozenset(part for part in self.parts if ":" in part)

    def check_server(self, address: str) -> None:
        """Refuse a server, HOST:PORT, that is none of those allowed."""
        host = address.rpartition(":")[0].strip("[]").lower()
        known = {name.lower().strip("[]") for name in self.servers or ()}
        if self.servers is not None and not known & {host, address.lower()}:
            raise refused("servers", address, self.servers)

    def check_experiment(self, experiment: Experiment) -> None:
        """Refuse what a run is made of, or how private it is."""
        privacy, least = experiment.privacy, self.privacy
        if least.aggregate == "masked" and privacy.aggregate != "masked":
            raise refused("privacy.aggregate", privacy.aggregate, ["masked"])
        if least.labels == "prf" and privacy.labels != "prf":
            raise refused("privacy.labels", privacy.labels, ["prf"])
        if least.epsilon is not None:
            if privacy.dp is None or not privacy.dp.noise:
                raise PolicyError("its policy wants noise on updates: set privacy.dp.noise")
            if privacy.dp.where != "local":
                raise refused("privacy.dp.where", privacy.dp.where, ["local"])
        if self.methods is not None:
            self._check_parts(experiment, self.methods)
        if self.models is not None and not {experiment.model.name, f"models.{experiment.model.name}"} & {
            *self.models,
            *self.parts,
        }:
            raise refused("model.name", experiment.model.name, self.models)

    def check_size(self, parameters: int) -> None:
        """Refuse a model that is too large."""
        most = self.limits.parameters
        if most is not None and parameters > most:
            raise PolicyError(f"its policy refuses a model of {parameters} parameters; allowed: at most {most}")

    def _check_parts(self, experiment: Experiment, methods: Collection[str]) -> None:
        if experiment.method.name not in methods:
            raise refused("method.name", experiment.method.name, methods)
        recipes = [Experiment.of({"method": {"name": name}}) for name in methods]
        known = {(part.stage, part.name) for recipe in recipes for part in parts_of(recipe)}
        for part in parts_of(experiment):
            listed = {part.name, f"{part.stage}.{part.name}"} & set(self.parts)
            if part.stage != "models" and (part.stage, part.name) not in known and not listed:
                allowed = [name for stage, name in known if stage == part.stage]
                raise refused(f"{part.key}.kind", part.name, allowed)


def refused(key: str, value: Any, allowed: Collection[str]) -> PolicyError:
    """Say what a policy does not allow, and what it does."""
    words = ", ".join(json.dumps(word) for word in sorted(allowed)) or "nothing"
    return PolicyError(f"its policy refuses {key} = {json.dumps(value)}; allowed: {words}")


def read_policy(path: Path | None, allow: Collection[str] = ()) -> SitePolicy:
    """Read a policy file; `allow` are further parts that its owner allows, by import path."""
    table = {} if path is None else tables.read(path)
    if strange := [part for part in allow if ":" not in part]:
        raise RequestError(
            f'--allow-part "{strange[0]}" is not valid; allowed: an import path, "my_package.module:Name"'
        )
    try:
        refuse_unknown(SitePolicy, table)
        policy: SitePolicy = registry.validate(SitePolicy, table, "")
    except RequestError as error:
        raise RequestError(f"{path}: {error}") from None
    return policy.model_copy(update={"parts": (*policy.parts, *allow)})
