"""Every registered part passes the suites that users run on parts of their own."""

from __future__ import annotations

from functools import partial

import pytest
from vision import load_timm

from fedstrata import testing
from fedstrata.core import registry
from fedstrata.data.sets.digits import Digits
from fedstrata.engines.ray.start import RayEngineOptions
from fedstrata.methods.drivers.sync import Sync
from fedstrata.models.densenet import DenseNet121
from fedstrata.models.resnet import ResNet18, ResNet50
from fedstrata.models.timm import Timm
from fedstrata.runs.trackers.tensorboard import TensorBoard
from fedstrata.testing.conformance import check_part

extended = partial(pytest.param, marks=pytest.mark.extended)
LARGE = ResNet18 | ResNet50 | DenseNet121 | Timm  # whose local steps take too long
CHECKS = {
    "schedules": testing.check_schedule,
    "drivers": lambda part: testing.check_driver(part, "stratified" if isinstance(part, Sync) else "none"),
    "selectors": testing.check_selector,
    "samplers": testing.check_sampler,
    "corrections": testing.check_correction,
    "optimizers": lambda part: testing.check_correction(part, optimizer=True),
    "combiners": testing.check_combiner,
    "server_steps": testing.check_server_step,
    "partitions": testing.check_partition,
    "models": lambda part: testing.check_model(part, training=not isinstance(part, LARGE)),
    "lr_schedules": testing.check_lr_schedule,
    "metrics": testing.check_metric,
    "noises": testing.check_noise,
    "datasets": lambda part: testing.check_dataset(part) if isinstance(part, Digits) else check_part(part),
    # tests/engines/test_ray.py checks that on a cluster: one of its own takes minutes to start on a busy machine
    "engines": lambda part: check_part(part) if isinstance(part, RayEngineOptions) else testing.check_engine(part),
    "trackers": lambda part: testing.check_tracker(part) if isinstance(part, TensorBoard) else check_part(part),
}


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        pytest.param(stage, name, marks=pytest.mark.extended if name == "densenet121" else ())  # seconds to build
        for stage in CHECKS
        for name in sorted(registry.names(stage))
    ],
)
def test_registered_part(stage, name):
    if name == "timm" and not load_timm():
        pytest.skip("timm is not installed")
    CHECKS[stage](registry.build(stage, name, {}, stage))


def test_every_stage_is_checked():
    assert {*CHECKS, "methods"} == set(registry.STAGES)


@pytest.mark.parametrize(
    ("stage", "name", "options"),
    [
        ("corrections", "prox", {"mu": 0.0}),
        ("corrections", "prox", {"when": "unstable"}),
        ("corrections", "scaffold", {"frozen": True}),
        ("corrections", "scaffold", {"controls": "plain"}),
        ("corrections", "feddyn", {"clip": 0.5}),
        ("optimizers", "sgd", {"momentum": 0.9, "weight_decay": 0.01}),
        ("optimizers", "adam", {"weight_decay": 0.01}),
        ("optimizers", "sgd", {"momentum": 0.9, "state": "kept"}),
        extended("optimizers", "sgd", {"momentum": 0.9, "state": "carried"}),
        extended("optimizers", "adam", {"state": "kept"}),
        ("optimizers", "adam", {"state": "carried"}),
        ("schedules", "stratified", {"clients": "weighted", "frequency": "capped", "rounds_per_epoch": 3}),
        extended("schedules", "stratified", {"clients": "remaining", "order": "spread", "on_empty": "drop"}),
        extended("schedules", "stratified", {"strata": "none", "replacement": True, "length": 31, "chunk": 1}),
        ("schedules", "stratified", {"clients": "spread", "rounds_per_epoch": 2}),
        ("schedules", "stratified", {"pool": 20, "chunk": 50, "slack": 2, "each": 7}),
        ("server_steps", "sgd", {"lr": 0.5, "momentum": 0.9}),
        ("selectors", "power-of-choice", {"candidates": 2}),
        ("partitions", "labels-per-client", {"labels": 1, "unowned": "drop"}),
        ("partitions", "labels-per-client", {"labels": 5}),
        ("partitions", "labels-per-client", {"unowned": "round-robin"}),
        ("partitions", "dirichlet-class", {"alpha": 1e-3, "min_size": 1, "balance": False}),
        ("models", "mlp", {"hidden": ()}),
    ],
)
def test_registered_part_with_other_options(stage, name, options):
    CHECKS[stage](registry.build(stage, name, options, stage))
