"""What the service will do, written down before anybody tells it anything; its evidence is bound to these words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fedstrata.config.completion import GIVEN
from fedstrata.config.experiment import Experiment
from fedstrata.core.errors import RequestError
from fedstrata.core.options import Count, Fraction, Natural
from fedstrata.core.registry import validate
from fedstrata.data.federation import Federation
from fedstrata.methods.selectors.flips import Flips


@dataclass(frozen=True)
class Scoring:
    """How models are scored: all that an evaluator needs beside the test set. None of it is secret."""

    model: Mapping[str, Any]  # the table [model]
    head: str  # name of the last layer
    precision: str
    shape: tuple[Natural, ...]  # of a sample
    scale: float
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    clients: Count = 1000  # most clients that enter the per-client figures
    satisfied_at: float | None = None

    @classmethod
    def of(cls, experiment: Experiment, federation: Federation, head: str) -> Scoring:
        """Read it off an experiment; `head` is the name that was found for the last layer."""
        if experiment.model.name == GIVEN:
            raise RequestError(
                'model.name = "given" does not fit privacy.clustering = "enclave": the service builds the model anew '
                "to score it, and one given from Python cannot be sent there; give it a name (module:Class), or keep "
                "the test set outside"
            )
        train, inputs = experiment.train, federation.inputs
        return cls(
            model=experiment.model.model_dump(),
            head=head,
            precision=experiment.engine.precision,
            shape=tuple(federation.test.x.shape[1:]),
            scale=inputs.scale,
            mean=inputs.mean,
            std=inputs.std,
            clients=train.evaluate.clients,
            satisfied_at=train.stop.target if train.stop.vote is not None else None,
        )


@dataclass(frozen=True)
class Terms:
    """One job of the service."""

    clients: Count
    classes: Count
    rounds: Count
    seed: int = 0  # of clusterings and ties: it is no secret
    flips: Flips = field(default_factory=Flips)
    noise: Fraction = 0.0  # chance that a pick is exchanged for another eligible client
    scoring: Scoring | None = None

    @property
    def owner(self) -> int:
        """The party that brings the test set; clients are numbered from 0."""
        return self.clients

    def written(self) -> bytes:
        """Return the one way to write it."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    @classmethod
    def read(cls, text: bytes) -> Terms:
        """Undo `written`."""
        terms: Terms = validate(cls, json.loads(text), "terms")
        return terms
