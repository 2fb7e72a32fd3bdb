"""Conformance suites: run them on parts of your own, as this project runs them on every part it has."""

from fedstrata.testing.conformance import (
    check_combiner,
    check_driver,
    check_partition,
    check_sampler,
    check_schedule,
    check_selector,
    check_server_step,
)
from fedstrata.testing.correction import check_correction
from fedstrata.testing.datasets import check_dataset, check_noise
from fedstrata.testing.methods import check_engine, check_lr_schedule, check_recipe
from fedstrata.testing.metrics import check_metric
from fedstrata.testing.models import check_model
from fedstrata.testing.sites import WireEngine
from fedstrata.testing.tiny import tiny_federation
from fedstrata.testing.trackers import check_tracker

__all__ = [
    "WireEngine",
    "check_combiner",
    "check_correction",
    "check_dataset",
    "check_driver",
    "check_engine",
    "check_lr_schedule",
    "check_metric",
    "check_model",
    "check_noise",
    "check_partition",
    "check_recipe",
    "check_sampler",
    "check_schedule",
    "check_selector",
    "check_server_step",
    "check_tracker",
    "tiny_federation",
]
