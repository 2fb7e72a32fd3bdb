"""How much a run computes, known from its settings alone: nothing is fetched, built or run.

A few quantities tell its time: multiplications of the model on the samples that are trained and tested; local steps,
each of which costs something whatever its size, on a GPU those that follow one another, as clients train side by side
there; and rounds. What they cost was measured: `speeds.json` is written by `python -m benchmarks._speeds` from results
that are committed. On a CPU that is the cost of a plain method; probes, corrections and second passes come on top.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import torch

from fedstrata.client.products import products_a_sample
from fedstrata.config.sections import Train
from fedstrata.core import registry
from fedstrata.data.published import Published
from fedstrata.data.sets.base import DataSet

Settings = Mapping[str, Any]  # dotted keys of an experiment, as a file sets them

BACKWARD = 2  # a backward pass takes two forward ones
USUAL = 10.0  # clients of a round, where the data say how many there are


@dataclass(frozen=True)
class Work:
    """What a run computes."""

    products: float
    steps: float  # of all clients
    sequence: float  # of one client, or of a schedule: steps of which each needs the one before
    rounds: float

    def seconds(self, device: str) -> float:
        """Return how long it takes on a "cpu" or "gpu" such as those that were measured."""
        costs: Mapping[str, float] = speeds()[device]["seconds"]
        return float(sum(getattr(self, quantity) * cost for quantity, cost in costs.items()))


@cache
def speeds() -> dict[str, Any]:
    """Return what was measured, by kind of device."""
    known: dict[str, Any] = json.loads(files("fedstrata.reproduce").joinpath("speeds.json").read_text("utf-8"))
    return known


def data_set(settings: Settings) -> DataSet:
    """Return what is trained on; nothing is read."""
    name = settings["data.name"]
    part: DataSet = registry.build("datasets", name, dict(_options("datasets", name, "data", settings)), "data")
    return part


def work_of(settings: Settings) -> Work:
    """Return the work of a run on a published data set."""
    _, samples, tests = _outline(data_set(settings))
    products = _products(*network(settings))
    train = Train()
    asked = {key: settings.get(f"train.{key}", getattr(train, key)) for key in ("rounds", "epochs", "batch_size")}
    rounds, share = asked["rounds"], _share(settings, train)
    if "schedule" in _stages(settings):  # a round is one schedule, about as long as the training data
        passes, at_once = rounds * samples, 1.0
    else:
        passes = rounds * asked["epochs"] * samples * share
        at_once = max(1.0, share * settings["data.clients"]) if "data.clients" in settings else USUAL
    evaluations = rounds / settings.get("train.evaluate.every", 1)
    steps = passes / asked["batch_size"]
    return Work(products * ((1 + BACKWARD) * passes + evaluations * tests), steps, steps / at_once, rounds)


def network(settings: Settings) -> tuple[str, tuple[tuple[str, Any], ...], tuple[int, ...]]:
    """Return the model, its options, and the shape of a sample."""
    model = settings.get("model.name", "mlp")
    return model, _options("models", model, "model", settings), _outline(data_set(settings))[0]


def _share(settings: Settings, train: Train) -> float:
    """Return which part of all samples is trained on in a round, in the mean over clients."""
    asked = settings.get("train.clients_per_round", train.clients_per_round)
    if asked == "all":
        return 1.0
    return float(asked) if isinstance(asked, float) else float(asked / settings["data.clients"])


def _stages(settings: Settings) -> set[str]:
    """Return the stages of the method that are not FedAvg's."""
    recipe = registry.find("methods", settings.get("method.name", "fedavg"), "method.name")
    return set(recipe.stages) | {key.split(".")[1] for key in settings if key.startswith("method.")}


def _options(stage: str, name: str, section: str, settings: Settings) -> tuple[tuple[str, Any], ...]:
    known = registry.options(stage, name, f"{section}.name")
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in settings.items()}  # hashable
    given = {key.removeprefix(f"{section}."): value for key, value in plain.items()}
    return tuple((key, given[key]) for key in sorted(known) if key in given)


@cache
def _outline(part: DataSet) -> tuple[tuple[int, ...], int, int]:
    if isinstance(part, Published):
        return part.outline()
    arrays = part.load()
    return arrays.x.shape[1:], len(arrays.y), len(arrays.test_y)


def _products(model: str, options: tuple[tuple[str, Any], ...], shape: tuple[int, ...]) -> int:
    """Return the multiplications of a forward pass; those of the papers' networks were counted beforehand."""
    named = name_network(model, options, shape)
    known: int | None = speeds()["products"].get(named)
    return count_products(model, options, shape) if known is None else known


def name_network(model: str, options: tuple[tuple[str, Any], ...], shape: tuple[int, ...]) -> str:
    """Return by what the multiplications of a network are known."""
    return " ".join((model, *(f"{key}={value}" for key, value in options), "x".join(map(str, shape))))


@cache
def count_products(model: str, options: tuple[tuple[str, Any], ...], shape: tuple[int, ...]) -> int:
    """Count them, on the device that computes nothing, and with two classes."""
    with torch.device("meta"):
        module = registry.build("models", model, dict(options), "model").build(shape, 2)
        return products_a_sample(module, torch.empty(2, *shape))
