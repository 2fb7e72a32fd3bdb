"""Conformance suites: run them on parts of your own, as this project runs them on every part it has."""

from fedstrata.testing.conformance import (
    check_combiner,
    check_driver,
    check_model,
    check_partition,
    check_sampler,
    check_schedule,
    check_selector,
    check_server_step,
)
from fedstrata.testing.correction import check_correction
from fedstrata.testing.sites import WireEngine
from fedstrata.testing.tiny import tiny_federation

__all__ = [
    "WireEngine",
    "check_combiner",
    "check_correction",
    "check_driver",
    "check_model",
    "check_partition",
    "check_sampler",
    "check_schedule",
    "check_selector",
    "check_server_step",
    "tiny_federation",
]
